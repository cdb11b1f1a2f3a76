// SPDX-License-Identifier: Apache-2.0
// A WebSocket for both worlds. Browsers have one, which cannot send an Authorization header: the key goes as a
// subprotocol, `ramet.key.KEY`, beside the one that is spoken. Node's own cannot do so either, or is not there: here are
// the frames of RFC 6455 over a connection of Node's, with the key in the header.
import { RametError } from "./errors.js";
import { joined, toBase64 } from "./gather.js";
import { isNode } from "./platform.js";
import type { CallOptions, Query, Transport } from "./transport.js";
import { type NodeSocket, upgradeNode } from "./upgrade_node.js";

export interface SocketEvents {
  binary(bytes: Uint8Array): void;
  text(text: string): void;
  /** Once, at the end. */
  closed(code: number, reason: string): void;
}

export interface Socket {
  /** Resolves when it may go on; rejects when the socket is closed. */
  send(message: Uint8Array | string): Promise<void>;
  close(code: number): void;
  /** Stops reading; false: that is not possible here. */
  hold(on: boolean): boolean;
}

const MESSAGE_MAX = 64 << 20;
const UNSENT_MAX = 1 << 20; // what a browser may have to send still
const CLOSE_MS = 3000;

export async function openSocket(
  transport: Transport,
  path: string,
  query: Query,
  protocol: string,
  events: SocketEvents,
  options: CallOptions,
): Promise<Socket> {
  if (!isNode()) return openBrowserSocket(transport, path, query, protocol, events, options);
  const random = new Uint8Array(16);
  for (let i = 0; i < random.length; i++) random[i] = Math.floor(Math.random() * 256);
  const headers = {
    upgrade: "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": toBase64(random),
    "sec-websocket-protocol": protocol,
  };
  const { socket } = await upgradeNode(transport, path, query, headers, options);
  return new NodeWebSocket(socket, events);
}

async function openBrowserSocket(
  transport: Transport,
  path: string,
  query: Query,
  protocol: string,
  events: SocketEvents,
  options: CallOptions,
): Promise<Socket> {
  options.signal?.throwIfAborted();
  const socket = new WebSocket(transport.address(path, query).replace(/^http/, "ws"), [protocol, ...transport.keyProtocols()]);
  socket.binaryType = "arraybuffer";
  const timeoutMs = options.timeoutMs ?? transport.timeoutMs;
  await new Promise<void>((resolve, reject) => {
    const refused = new RametError(
      `the WebSocket to ${transport.url}${path} was refused (a browser does not say why): is the sandbox running, the key valid, and this page's origin allowed?`,
      { code: "client.refused" },
    );
    const give = (error: unknown): void => {
      end();
      socket.close();
      reject(error);
    };
    const stop = (): void => give(options.signal?.reason);
    const late = new RametError(`the WebSocket was not open within ${timeoutMs} ms`, { code: "client.timeout" });
    const timer = timeoutMs === Infinity ? undefined : setTimeout(() => give(late), timeoutMs);
    const end = (): void => {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", stop);
      socket.onopen = socket.onerror = socket.onclose = null;
    };
    options.signal?.addEventListener("abort", stop, { once: true });
    socket.onopen = () => {
      end();
      resolve();
    };
    socket.onerror = socket.onclose = () => give(refused);
  });
  socket.onmessage = (message) => {
    if (typeof message.data === "string") events.text(message.data);
    else events.binary(new Uint8Array(message.data as ArrayBuffer));
  };
  socket.onclose = (close) => events.closed(close.code, close.reason);
  let turn = Promise.resolve(); // one after another, also of callers that do not wait
  const sendInTurn = async (message: Uint8Array | string): Promise<void> => {
    while (socket.bufferedAmount > UNSENT_MAX && socket.readyState === WebSocket.OPEN) {
      await new Promise((resolve) => setTimeout(resolve, 10)); // browsers tell of no event for it
    }
    if (socket.readyState !== WebSocket.OPEN) throw new RametError("the connection is closed", { code: "client.closed" });
    socket.send(message as Uint8Array<ArrayBuffer>);
  };
  return {
    send(message) {
      const sent = turn.then(() => sendInTurn(message));
      turn = sent.catch(() => undefined);
      return sent;
    },
    close: (code) => socket.close(code),
    hold: () => false,
  };
}

const CONTINUATION = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10;

class NodeWebSocket implements Socket {
  readonly #socket: NodeSocket;
  readonly #events: SocketEvents;
  #pieces: Uint8Array[] = []; // what has not made a frame yet
  #size = 0;
  #needed = 2;
  #message: Uint8Array[] = [];
  #messageSize = 0;
  #opcode = 0;
  #code = 1006;
  #reason = "";
  #closing = false;
  #ended = false;

  constructor(socket: NodeSocket, events: SocketEvents) {
    this.#socket = socket;
    this.#events = events;
    socket.setNoDelay(true);
    socket.on("data", (piece: Uint8Array) => this.#take(piece));
    socket.on("end", () => socket.destroy());
    socket.on("error", (error: Error) => (this.#reason ||= error.message));
    socket.on("close", () => {
      this.#ended = true;
      events.closed(this.#code, this.#reason);
    });
    socket.resume();
  }

  #take(piece: Uint8Array): void {
    this.#pieces.push(piece);
    this.#size += piece.length;
    if (this.#size < this.#needed) return;
    let all = joined(this.#pieces);
    for (;;) {
      const taken = this.#frame(all);
      if (taken === 0) break;
      all = all.subarray(taken);
    }
    this.#pieces = [all];
    this.#size = all.length;
  }

  // Bytes of the frame at the beginning; 0: it is not whole, and #needed says how many it will have.
  #frame(all: Uint8Array): number {
    const view = new DataView(all.buffer, all.byteOffset, all.length);
    let head = 2;
    if ((this.#needed = head) > all.length) return 0;
    let size = view.getUint8(1) & 127;
    if (size === 126) head = 4;
    if (size === 127) head = 10;
    if ((this.#needed = head) > all.length) return 0;
    if (size === 126) size = view.getUint16(2);
    else if (size === 127) size = Number(view.getBigUint64(2));
    if (size > MESSAGE_MAX || (view.getUint8(1) & 128) !== 0) {
      this.#fail(size > MESSAGE_MAX ? 1009 : 1002, "the server sent no frame of RFC 6455 that is taken here");
      return 0;
    }
    if ((this.#needed = head + size) > all.length) return 0;
    this.#needed = 2;
    this.#part(view.getUint8(0) & 15, (view.getUint8(0) & 128) !== 0, all.slice(head, head + size));
    return head + size;
  }

  #part(opcode: number, last: boolean, payload: Uint8Array): void {
    if (opcode === PING) return this.#write(PONG, payload);
    if (opcode === CLOSE) {
      if (payload.length >= 2) this.#code = (payload[0]! << 8) | payload[1]!;
      else this.#code = 1005;
      this.#reason = new TextDecoder().decode(payload.subarray(2));
      if (!this.#closing) this.#write(CLOSE, payload.subarray(0, 2));
      this.#closing = true;
      this.#socket.end();
      return;
    }
    if (opcode !== CONTINUATION && opcode !== TEXT && opcode !== BINARY) return;
    if (opcode !== CONTINUATION) this.#opcode = opcode;
    this.#message.push(payload);
    this.#messageSize += payload.length;
    if (this.#messageSize > MESSAGE_MAX) return this.#fail(1009, "the server sent a message that is too large");
    if (!last) return;
    const whole = this.#message.length === 1 ? payload : joined(this.#message);
    this.#message = [];
    this.#messageSize = 0;
    if (this.#opcode === TEXT) this.#events.text(new TextDecoder().decode(whole));
    else this.#events.binary(whole);
  }

  #fail(code: number, reason: string): void {
    this.#code = code;
    this.#reason = reason;
    this.#socket.destroy();
  }

  #write(opcode: number, payload: Uint8Array, done?: (error?: Error | null) => void): void {
    const head = payload.length < 126 ? 2 : payload.length < 65536 ? 4 : 10;
    const frame = new Uint8Array(head + 4 + payload.length);
    const view = new DataView(frame.buffer);
    view.setUint8(0, 128 | opcode);
    view.setUint8(1, 128 | (head === 2 ? payload.length : head === 4 ? 126 : 127));
    if (head === 4) view.setUint16(2, payload.length);
    if (head === 10) view.setBigUint64(2, BigInt(payload.length));
    const mask = [0, 0, 0, 0].map(() => Math.floor(Math.random() * 256));
    mask.forEach((byte, i) => view.setUint8(head + i, byte));
    for (let i = 0; i < payload.length; i++) frame[head + 4 + i] = payload[i]! ^ mask[i & 3]!;
    this.#socket.write(frame, done);
  }

  send(message: Uint8Array | string): Promise<void> {
    if (this.#closing || this.#ended) {
      return Promise.reject(new RametError("the connection is closed", { code: "client.closed" }));
    }
    const text = typeof message === "string";
    return new Promise((resolve, reject) =>
      this.#write(text ? TEXT : BINARY, text ? new TextEncoder().encode(message) : message, (error) =>
        error ? reject(new RametError(`the connection broke: ${error.message}`, { code: "client.network", cause: error })) : resolve(),
      ),
    );
  }

  close(code: number): void {
    if (this.#closing || this.#ended) return;
    this.#closing = true;
    this.#write(CLOSE, new Uint8Array([code >> 8, code & 255]));
    this.#socket.resume();
    // A server that does not answer the close is left.
    const timer = setTimeout(() => this.#socket.destroy(), CLOSE_MS);
    this.#socket.on("close", () => clearTimeout(timer));
  }

  hold(on: boolean): boolean {
    if (on) this.#socket.pause();
    else this.#socket.resume();
    return true;
  }
}
