// SPDX-License-Identifier: Apache-2.0
// The client where things are not as they should be: calls that are left, terminals that nobody reads, servers that lead
// elsewhere or restart in the middle of a stream, secrets in what is printed. The server is a made-up one.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { inspect } from "node:util";
import { CodeError, Ramet, RametError, Sandbox } from "@ramet/sdk";
import { error, event, events, Fake, json, lost, silence } from "./fake.mjs";
import { all, failure } from "./helpers.mjs";

let fake;
const client = (more = {}) => new Ramet({ url: fake.url, key: "e2b_00", ...more });
before(async () => (fake = await Fake.start()));
after(() => fake.stop());

// ---- What nobody has a name for ----

const posts = () => fake.requests.filter((request) => request.method === "POST");

/** Aborts the call when its request came; what came after it. */
async function undone(call, made, count) {
  fake.answer(silence, json(201, made), json(204));
  const controller = new AbortController();
  const promise = call({ signal: controller.signal });
  promise.catch(() => undefined);
  await fake.until(() => fake.requests.length > 0);
  controller.abort();
  assert.equal((await failure(promise)).name, "AbortError");
  await fake.until(() => fake.requests.length === count && fake.open.size === 0);
  assert.ok(new Set(posts().map((request) => request.headers["idempotency-key"] + request.url)).size <= 1);
  return fake.requests.slice(2).map((request) => `${request.method} ${request.url}`);
}

test("A01 what an aborted call made is asked for with its key, and removed", async () => {
  const ramet = client();
  const box = "/v1/sandboxes/box";
  for (const [call, made, ...removed] of [
    [(o) => ramet.createSandboxes({ from: "t" }, o), { id: "sbx_1" }, "/v1/sandboxes/sbx_1"],
    [(o) => Sandbox.create({ template: "t", client: ramet, ...o }), { id: "sbx_1" }, "/v1/sandboxes/sbx_1"],
    [(o) => ramet.forkSandbox("box", { count: 2 }, o), { children: [{ id: "sbx_2" }, { id: "sbx_3" }] }, "/v1/sandboxes/sbx_2", "/v1/sandboxes/sbx_3"],
    [(o) => ramet.snapshot("box", {}, o), { id: "snap_1" }, "/v1/snapshots/snap_1"],
    [(o) => ramet.startJob("box", "sleep 9", o), { id: 7 }, `${box}/jobs/7?kill=1`],
    [(o) => ramet.createContext("box", {}, o), { id: "ctx_1" }, `${box}/contexts/ctx_1`],
    [(o) => ramet.createUrl("box", { host_port: 80 }, o), { id: "url_1" }, `${box}/urls/url_1`],
    [(o) => ramet.createKey({ name: "k" }, o), { id: "key_1" }, "/v1/keys/key_1"], // its secret is lost
    [(o) => ramet.snapshotVolume("v", {}, o), { id: "snap_2" }, "/v1/snapshots/snap_2"],
  ]) assert.deepEqual(await undone(call, made, 2 + removed.length), removed.map((path) => `DELETE ${path}`));
  // What its caller named, or gave a key, can be found again.
  for (const call of [
    (o) => ramet.createSandboxes({ name: "chat-7" }, o), (o) => ramet.createSandboxes({}, { ...o, idempotencyKey: "mine" }),
    (o) => ramet.forkSandbox("box", { names: ["a"] }, o), (o) => ramet.snapshot("box", { name: "monday" }, o),
    (o) => ramet.startJob("box", { command: "x", name: "server" }, o), (o) => ramet.createContext("box", { id: "own" }, o),
  ]) assert.deepEqual(await undone(call, {}, 1), []);
});

/** What a create says whose request came and had no answer in time; a host that stood still may not even have sent it by then. */
async function unanswered(...answers) {
  for (const timeoutMs of [1000, 10_000, 100_000]) {
    fake.answer(silence, ...answers);
    const late = await failure(client({ timeoutMs }).createSandboxes());
    if (/background/.test(late.message) || timeoutMs === 100_000) return late;
  }
}

test("A01 no answer in time, a broken connection, a gateway: it is tried until it is gone", async () => {
  const late = await unanswered(error(409, "idempotency.in_progress", { retryable: true }), lost, json(201, { id: "sbx_1" }),
    error(409, "sandbox.invalid_state"), json(204));
  assert.match(late.message, /more than 10+ ms.*removed in the background/);
  await fake.until(() => fake.requests.length === 6 && fake.open.size === 0);
  assert.equal(new Set(posts().map((request) => request.headers["idempotency-key"])).size, 1);
  fake.answer((_, response) => response.writeHead(504).end("<h1>gateway</h1>"), json(201, { id: "sbx_1" }), json(204));
  assert.equal((await failure(client().createSandboxes())).code, "http.504");
  await fake.until(() => fake.requests.length === 3 && fake.open.size === 0);
});

test("A01 an error is an answer, and who was never heard by a server asks for nothing", async () => {
  fake.answer(error(409, "sandbox.conflict"), json(200, {}));
  assert.doesNotMatch((await failure(client().createSandboxes())).message, /background/);
  await client().health(); // what comes behind it has overtaken nothing: there is nothing
  assert.equal(posts().length, 1);
  const gone = await Fake.start();
  await gone.stop();
  assert.doesNotMatch((await failure(new Ramet({ url: gone.url, maxRetries: 1 }).createSandboxes())).message, /background/);
  // There was nothing, and now there is no room: that is an answer too.
  assert.match((await unanswered(error(503, "capacity.memory", { retryable: true }))).message, /background/);
  await fake.until(() => fake.requests.length === 2 && fake.open.size === 0);
});

// ---- A browser's WebSocket ----

/** In place of the platform's: what is sent drains only when the test says so. */
class BrowserSocket {
  static OPEN = 1;
  static last;
  readyState = 0;
  bufferedAmount = 0;
  most = 0;
  closedWith = undefined;

  constructor() {
    BrowserSocket.last = this;
    setImmediate(() => {
      this.readyState = 1;
      this.onopen();
    });
  }
  send(message) {
    this.bufferedAmount += message.length;
    this.most = Math.max(this.most, this.bufferedAmount);
  }
  show(bytes) {
    if (this.readyState === 1) this.onmessage({ data: bytes.buffer });
  }
  close(code) {
    this.closedWith = code;
    this.readyState = 3;
    setImmediate(() => this.onclose({ code, reason: "" }));
  }
}

/** A terminal as in a browser. */
async function browserPty() {
  const { versions } = process;
  const platform = globalThis.WebSocket;
  Object.defineProperty(process, "versions", { value: {}, configurable: true });
  globalThis.WebSocket = BrowserSocket;
  try {
    return [await client().openPty("box"), BrowserSocket.last];
  } finally {
    Object.defineProperty(process, "versions", { value: versions, configurable: true });
    after(() => (globalThis.WebSocket = platform));
  }
}

test("what is typed waits for a browser's socket, also by callers that do not wait themselves", async () => {
  const [pty, socket] = await browserPty();
  const writes = Array.from({ length: 16 }, () => pty.write(new Uint8Array(1 << 20)));
  let sent = 0;
  const drain = setInterval(() => {
    sent += socket.bufferedAmount;
    socket.bufferedAmount = 0;
  }, 1);
  await Promise.all(writes);
  clearInterval(drain);
  assert.equal(sent + socket.bufferedAmount, 16 << 20);
  assert.ok(socket.most <= (1 << 20) + (256 << 10), `${socket.most} bytes were waiting`);
  pty.close();
  assert.equal((await failure(pty.write("x"))).code, "client.closed");
});

test("what nobody reads of a browser's terminal ends it with words, and what came before can be read", async () => {
  const [pty, socket] = await browserPty();
  for (let i = 0; i < 100; i++) socket.show(new Uint8Array(1 << 20));
  assert.equal(socket.closedWith, 1000);
  let read = 0;
  const thrown = await failure((async () => {
    for await (const piece of pty) read += piece.length;
  })());
  assert.deepEqual([thrown.code, read >> 20], ["pty.overflow", 17]);
  assert.match(thrown.message, /16 MiB that nobody read/);
  assert.equal((await failure(pty.ended)).code, "pty.overflow");
  const [quick, other] = await browserPty();
  const reads = (async () => {
    let bytes = 0;
    for await (const piece of quick) if ((bytes += piece.length) === 100 << 20) return bytes;
  })();
  for (let i = 0; i < 100; i++) {
    other.show(new Uint8Array(1 << 20));
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(await reads, 100 << 20);
});

// ---- Servers and streams ----

test("a redirection is no success, is not followed with the key, and says where to", async () => {
  const elsewhere = (_, response) => response.writeHead(301, { location: "https://elsewhere.example/v1/" }).end();
  for (const call of [(r) => r.deleteSandbox("box"), (r) => r.createSandboxes(), (r) => r.exec("box", { command: "true", timeout_secs: 5 })]) {
    fake.answer(elsewhere);
    const thrown = await failure(call(client()));
    assert.match(thrown.message, /leads to https:\/\/elsewhere\.example\/v1\//);
    assert.deepEqual([thrown.code, fake.requests.length], ["client.protocol", 1]);
  }
});

test("A02 a stream goes on over a restart: nobody there, then busy, then exactly the next event", async () => {
  const one = event("stdout", { text: "a", offset: 0 }, "1");
  const busy = error(503, "capacity.busy", { retryable: true, retry_after_secs: 0.01 });
  fake.answer(events([one], { breakOff: true }), lost, lost, busy, lost, events([event("end", { id: 1, state: "ended" }, "2")]));
  assert.deepEqual((await all(client({ maxRetries: 2 }).jobLogs("box", 1))).map((seen) => seen.event), ["stdout", "end"]);
  assert.ok(fake.requests.slice(1).every((request) => request.headers["last-event-id"] === "1"));
  fake.answer(events([one], { breakOff: true }), error(404, "job.not_found"));
  assert.equal((await failure(all(client().jobLogs("box", 1)))).code, "job.not_found");
  assert.equal(fake.requests.length, 2);
  // An error that the stream itself tells ends it, retryable or not.
  fake.answer(events([event("error", { code: "capacity.busy", message: "no", retryable: true }, "2")]));
  const thrown = await failure(all(client().jobLogs("box", 1)));
  assert.deepEqual([thrown.code, thrown.status, fake.requests.length], ["capacity.busy", 503, 1]);
});

test("a console is followed to its end", async () => {
  fake.answer(events([event("line", { text: "boot" })]));
  assert.deepEqual((await all(client().sandboxLogsStream("box"))).map((seen) => seen.data.text), ["boot"]);
  assert.equal(fake.requests[0].url, "/v1/sandboxes/box/logs?follow=1");
});

test("secrets are in no error and in nothing that is printed", async () => {
  const key = "e2b_" + "5ec2e7".repeat(8);
  const ramet = client({ key, maxRetries: 0 });
  fake.answer(error(401, "auth.invalid"), (_, response) => response.end("no JSON"), lost);
  const box = new Sandbox(ramet, { id: "sbx_1", name: "box", state: "running", labels: {} });
  const shown = [ramet, box, JSON.stringify(ramet)];
  for (let i = 0; i < 3; i++) shown.push(await failure(ramet.exec("box", { command: "true", timeout_secs: 5, env: { TOKEN: "hidden" } })));
  assert.throws(() => client({ key: key + "\n" }), (thrown) => shown.push(thrown) && thrown.code === "client.usage");
  for (const one of shown) assert.doesNotMatch(inspect(one, { depth: 20, showHidden: true }), /5ec2e7|hidden"/);
});

test("any call by its path, below a path", async () => {
  fake.answer(json(200, { n: 1 }), json(204), lost, json(200, { n: 2 }));
  const ramet = client({ url: fake.url + "/below/a/path/" });
  assert.deepEqual(await ramet.request("GET", "/v1/anything"), { n: 1 });
  assert.equal(await ramet.request("DELETE", "/v1/anything"), undefined);
  assert.deepEqual(await ramet.request("POST", "/v1/anything", { a: 1 }, { repeat: true }), { n: 2 });
  assert.ok(fake.requests.every((request) => request.url === "/below/a/path/v1/anything"));
  assert.equal(ramet.url, fake.url + "/below/a/path");
});

test("an error in code is a result; with check it is thrown, with its traceback as the message", async () => {
  const failed = { stdout: "so far", stderr: "", text: null, error: { name: "KeyError", value: "'a'", traceback: "Traceback: 'a'" }, results: [],
    execution_count: 1, duration_ms: 1, timed_out: false, interrupted: false, truncated: false, state_lost: null };
  const box = new Sandbox(client(), { id: "sbx_1", name: "box", state: "running", labels: {} });
  fake.answer(json(200, failed), json(200, failed), json(200, { ...failed, error: null, timed_out: true }), json(200, { ...failed, error: null }));
  assert.equal((await box.runCode("x", { timeoutSecs: 5 })).error, "Traceback: 'a'");
  const thrown = await failure(box.runCode("x", { timeoutSecs: 5, check: true }));
  assert.ok(thrown instanceof CodeError && thrown instanceof RametError);
  assert.deepEqual([thrown.message, thrown.code, thrown.execution.stdout], ["Traceback: 'a'", "code.failed", "so far"]);
  assert.match((await failure(box.runCode("x", { timeoutSecs: 5, check: true }))).message, /out of its time/);
  assert.equal((await box.runCode("x", { timeoutSecs: 5, check: true })).stdout, "so far");
});
