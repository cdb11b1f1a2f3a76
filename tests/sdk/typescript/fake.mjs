// SPDX-License-Identifier: Apache-2.0
// A server that answers as the test says, request by request, and keeps what it was asked; its connections can break.
import http from "node:http";

export class Fake {
  requests = [];
  open = new Set(); // requests whose client is still there
  #handlers = [];

  static async start() {
    const fake = new Fake();
    fake.server = http.createServer((request, response) => fake.#take(request, response));
    fake.server.on("upgrade", (request, socket, head) => fake.onUpgrade?.(request, socket, head));
    await new Promise((resolve) => fake.server.listen(0, "127.0.0.1", resolve));
    fake.url = `http://127.0.0.1:${fake.server.address().port}`;
    return fake;
  }

  /** The next requests, in order; the last one answers all that follow. */
  answer(...handlers) {
    this.#handlers = handlers;
    this.requests = [];
  }

  async #take(request, response) {
    const pieces = [];
    const seen = { method: request.method, url: request.url, headers: request.headers, body: undefined, gone: false };
    this.requests.push(seen);
    const handler = this.#handlers.length > 1 ? this.#handlers.shift() : this.#handlers[0];
    this.open.add(seen);
    response.on("close", () => {
      seen.gone = !response.writableFinished;
      this.open.delete(seen);
      this.onChange?.();
    });
    this.onChange?.();
    request.on("error", () => undefined);
    if (handler.early) return handler(request, response, seen);
    for await (const piece of request) pieces.push(piece);
    seen.body = Buffer.concat(pieces);
    return handler(request, response, seen);
  }

  /** Waits until it holds; the requests that come and go wake it. */
  async until(condition) {
    while (!condition()) await new Promise((resolve) => (this.onChange = resolve));
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

export const json = (status, value, headers = {}) => (_, response) => {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(value));
};

export const error = (status, code, details = {}, headers = {}) =>
  json(status, { error: { code, message: `words for ${code}`, request_id: "req_1", details: { retryable: false, ...details } } }, headers);

/** Does it, and the answer is lost. */
export const lost = (_, response) => response.socket.destroy();

export const events = (pieces, { breakOff = false } = {}) => async (_, response) => {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const piece of pieces) {
    response.write(piece);
    await new Promise((resolve) => setImmediate(resolve));
  }
  if (!breakOff) return response.end();
  // What was written must have left before the connection breaks.
  response.write(":\n", () => setImmediate(() => response.socket.destroy()));
};

export const event = (name, data, id) =>
  (id === undefined ? "" : `id: ${id}\n`) + `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;

/** Never answers. */
export const silence = () => undefined;
