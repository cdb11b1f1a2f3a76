// SPDX-License-Identifier: Apache-2.0
// A terminal in a sandbox: an async iterable of the bytes that it shows, with what is typed, its size and its end.
import { RametError } from "./errors.js";
import type { CallOptions, Transport } from "./transport.js";
import { openSocket, type Socket } from "./websocket.js";

export interface PtyRequest {
  rows?: number;
  columns?: number;
  /** The terminal's kind; what programs find as TERM. */
  term?: string;
  /** Default: the user's login shell. */
  command?: string;
  user?: string;
  cwd?: string;
  /** A change of size that the server refused. */
  onError?: (error: RametError) => void;
}

export interface PtyEnd {
  exit_code: number;
  signal: number;
  duration_ms: number;
}

/** The subprotocol of terminals. */
const PROTOCOL = "ramet.pty";
const PIECE_BYTES = 256 << 10; // the server takes messages of up to 1 MiB
const WAITING_MAX = 1 << 20; // shown, but not read yet: from here on the server waits
const OVERFLOW_BYTES = 16 << 20; // ... and from here on it has ended, where a server cannot be made to wait (browsers)

export class Pty implements AsyncIterable<Uint8Array>, AsyncDisposable {
  /** How the command ended; rejects when the connection ended before it. */
  readonly ended: Promise<PtyEnd>;
  #socket: Socket | undefined;
  #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #wake: (() => void) | undefined;
  #closed = false;
  #failure: unknown;
  #end: PtyEnd | undefined;
  #settle!: { resolve: (end: PtyEnd) => void; reject: (error: unknown) => void };
  #onError: ((error: RametError) => void) | undefined;
  #release: () => void = () => undefined;

  private constructor(onError: ((error: RametError) => void) | undefined) {
    this.#onError = onError;
    this.ended = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.ended.catch(() => undefined);
  }

  /** Not for users: Ramet.openPty. */
  static async open(transport: Transport, path: string, what: PtyRequest, options: CallOptions): Promise<Pty> {
    const pty = new Pty(what.onError);
    const { onError: _, ...query } = what;
    const events = {
      binary: (bytes: Uint8Array) => pty.#show(bytes),
      text: (text: string) => pty.#hear(text),
      closed: (code: number, reason: string) => pty.#finish(code, reason),
    };
    pty.#socket = await openSocket(transport, path, query, PROTOCOL, events, options);
    const stop = (): void => {
      pty.#failure = options.signal?.reason;
      pty.close();
    };
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    pty.#release = () => options.signal?.removeEventListener("abort", stop);
    return pty;
  }

  #show(bytes: Uint8Array): void {
    if (this.#failure !== undefined) return;
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    if (this.#waitingBytes > WAITING_MAX && this.#socket?.hold(true) === false && this.#waitingBytes > OVERFLOW_BYTES) {
      const words = `the terminal showed ${OVERFLOW_BYTES >> 20} MiB that nobody read, and a browser cannot make it wait: it was hung up; read faster, or have less shown`;
      this.#failure = new RametError(words, { code: "pty.overflow" });
      this.close();
    }
    this.#wake?.();
  }

  #hear(text: string): void {
    let message: { exit?: PtyEnd; error?: { message?: string } } = {};
    try {
      message = JSON.parse(text);
    } catch {
      // Nothing that this version knows.
    }
    if (message.exit !== undefined) this.#end = message.exit;
    if (message.error !== undefined) {
      this.#onError?.(new RametError(message.error.message ?? "the terminal refused it", { code: "validation.invalid" }));
    }
  }

  #finish(code: number, reason: string): void {
    this.#closed = true;
    this.#release();
    if (this.#end !== undefined) this.#settle.resolve(this.#end);
    else {
      const why = reason !== "" ? reason : code === 1001 ? "the sandbox or the server went away" : "the connection was closed";
      this.#failure ??= new RametError(`the terminal ended: ${why} (${code})`, { code: "pty.ended" });
      this.#settle.reject(this.#failure);
    }
    this.#wake?.();
  }

  /** What is typed. */
  async write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    if (this.#socket === undefined || this.#closed) throw new RametError("the terminal has ended", { code: "pty.ended" });
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) await this.#socket.send(bytes.subarray(at, at + PIECE_BYTES));
  }

  async resize(rows: number, columns: number): Promise<void> {
    await this.#socket?.send(JSON.stringify({ resize: { rows, columns } }));
  }

  /** Hangs the terminal up. */
  close(): void {
    this.#socket?.hold(false);
    this.#socket?.close(1000);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** What it shows, until its end. Leaving the loop hangs it up. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = this.#waiting.shift();
        if (piece !== undefined) {
          this.#waitingBytes -= piece.length;
          if (this.#waitingBytes <= WAITING_MAX / 2) this.#socket?.hold(false);
          yield piece;
        } else if (this.#closed) {
          if (this.#end === undefined) throw this.#failure;
          return;
        } else {
          await new Promise<void>((resolve) => (this.#wake = resolve));
        }
      }
    } finally {
      this.close();
    }
  }
}

export function openPty(transport: Transport, path: string, what: PtyRequest, options: CallOptions): Promise<Pty> {
  return Pty.open(transport, path, what, options);
}
