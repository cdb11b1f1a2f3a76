// SPDX-License-Identifier: Apache-2.0
// A stream of server-sent events as an async iterable. Leaving the loop, `close()` or the caller's signal ends the
// request. A stream whose events carry ids goes on after a broken connection with exactly the next event; another one
// that breaks before its last event is an error.
import { errorOfEvent, RametError } from "./errors.js";
import { SseParser } from "./sse.js";
import { type Answer, type Call, pause, pauseMs, type Transport } from "./transport.js";

/** The server is never silent for longer than ten seconds: it sends comments. */
const SILENCE_MS = 60_000;
const STEADY_MS = 60_000;

export interface StreamEvent {
  readonly event: string;
  readonly data: unknown;
  /** Gives the place in the stream, where there is one. */
  readonly id?: string;
}

export interface StreamShape {
  /** Events after which there are no more; the stream ends with them. */
  last: readonly string[];
  /** Events that are thrown as errors. */
  errors: readonly string[];
  /** It can go on after a break (Last-Event-ID). */
  resumable?: boolean;
  /** It may end without one of `last`. */
  mayEnd?: boolean;
}

export interface StreamOptions {
  /** Go on after this event of an earlier stream. */
  lastEventId?: string | undefined;
  /** How long nothing at all may come before the connection is given up; default one minute. */
  silenceMs?: number | undefined;
}

export class EventStream<E extends StreamEvent = StreamEvent> implements AsyncIterable<E>, AsyncDisposable {
  readonly #transport: Transport;
  readonly #call: Call;
  readonly #shape: StreamShape;
  readonly #silenceMs: number;
  #lastId: string;
  #started = false;
  #closed = false;
  #answer: Answer | undefined;
  #connecting: AbortController | undefined;
  #first: Promise<Answer> | undefined;

  /** Not for users: calls of Ramet make these. */
  constructor(transport: Transport, call: Call, shape: StreamShape, options: StreamOptions = {}) {
    this.#transport = transport;
    this.#call = { ...call, stream: true };
    this.#shape = shape;
    this.#silenceMs = options.silenceMs ?? SILENCE_MS;
    this.#lastId = options.lastEventId ?? "";
  }

  /** Of the last event that was given out; a later stream can go on from it. */
  get lastEventId(): string {
    return this.#lastId;
  }

  /** Connects now, so that nothing is missed from here on and a refusal shows here. Otherwise the loop does it. */
  async open(): Promise<this> {
    this.#first ??= this.#connect();
    this.#answer = await this.#first;
    if (this.#closed) this.close(); // meanwhile
    return this;
  }

  /** Ends the stream and its request; a loop over it ends. */
  close(): void {
    const reason = new RametError("the stream was closed", { code: "client.closed" });
    this.#closed = true;
    this.#connecting?.abort(reason);
    this.#answer?.end();
    this.#answer?.abort(reason);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #connect(): Promise<Answer> {
    const headers: Record<string, string> = { accept: "text/event-stream", ...this.#call.headers };
    if (this.#lastId !== "") headers["last-event-id"] = this.#lastId;
    const { signal } = this.#call;
    const controller = new AbortController(); // close() and the caller's signal, until the answer's end
    const stop = (): void => controller.abort(signal?.reason);
    const release = (): void => signal?.removeEventListener("abort", stop);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    this.#connecting = controller;
    try {
      const answer = await this.#transport.send({ ...this.#call, headers, signal: controller.signal });
      return {
        ...answer,
        end: () => {
          answer.end();
          release();
        },
      };
    } catch (error) {
      release();
      throw error;
    } finally {
      this.#connecting = undefined;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<E, void, undefined> {
    if (this.#started) throw new RametError("a stream can be read once", { code: "client.usage" });
    this.#started = true;
    let broken = 0;
    let opened = false; // at least once: from then on also a server that is not there yet is waited for
    try {
      for (;;) {
        let failure: unknown;
        let begun = false;
        let steady = (): boolean => false;
        try {
          if (this.#closed) return;
          this.#answer = await (this.#first ?? this.#connect());
          this.#first = undefined;
          if (this.#closed) return; // while it connected
          begun = opened = true;
          const since = Date.now();
          steady = () => Date.now() - since > STEADY_MS;
          for await (const event of this.#events(this.#answer)) {
            broken = 0;
            if (this.#shape.errors.includes(event.event)) throw errorOfEvent(event.data);
            yield event;
            if (this.#shape.last.includes(event.event)) return;
          }
          if (this.#closed || this.#shape.mayEnd === true) return;
          failure = new RametError("the stream broke off before its end", { code: "client.stream_broken" });
        } catch (error) {
          if (this.#closed) return;
          const lost = error instanceof RametError && ["client.network", "client.silent"].includes(error.code);
          const goesOn = begun ? lost : opened && (lost || (error instanceof RametError && error.retryable));
          if (!goesOn) throw error;
          failure = new RametError(`the stream broke off: ${(error as Error).message}`, {
            code: "client.stream_broken",
            cause: error,
          });
        } finally {
          this.#answer?.end();
        }
        if (steady()) broken = 0; // it was fine, though nothing happened: in days it may break more than a few times
        if (this.#shape.resumable !== true || broken > this.#transport.maxRetries) throw failure;
        await pause(pauseMs(broken++), this.#call.signal);
      }
    } finally {
      this.close();
    }
  }

  async *#events(answer: Answer): AsyncGenerator<E, void, undefined> {
    const parser = new SseParser();
    const reader = answer.response.body?.getReader();
    if (reader === undefined) return;
    const silent = new RametError(`nothing came for ${this.#silenceMs} ms, not even a comment`, { code: "client.silent" });
    try {
      for (;;) {
        const timer = setTimeout(() => answer.abort(silent), this.#silenceMs);
        let piece;
        try {
          piece = await reader.read();
        } catch (error) {
          throw answer.explain(error);
        } finally {
          clearTimeout(timer);
        }
        if (piece.done) return;
        for (const raw of parser.push(piece.value)) {
          let data: unknown;
          try {
            data = JSON.parse(raw.data);
          } catch (error) {
            throw new RametError(`an event '${raw.event}' is no JSON: ${raw.data.slice(0, 200)}`, { code: "client.protocol", cause: error });
          }
          if (raw.id !== "") this.#lastId = raw.id;
          yield { event: raw.event, data, ...(raw.id !== "" ? { id: raw.id } : {}) } as unknown as E;
        }
      }
    } finally {
      // Whoever stops listening ends the request; a body that was read to its end is not touched by it.
      reader.cancel().catch(() => undefined);
    }
  }
}
