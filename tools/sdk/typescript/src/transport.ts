// SPDX-License-Identifier: Apache-2.0
// One connection's rules: address and key, time-outs, what is tried again, and how an abort ends a request.
//
// Time: `timeoutMs` bounds a whole call with all its tries. Streams have no such bound; they end when nothing at all,
// not even a comment, came for `silenceMs`. Tries: what the server marks retryable, and calls that got no answer, if
// doing them twice is the same as once (reads, whole writes, removals, and what carries an Idempotency-Key, which is
// the same key in every try). A command is run again only when it certainly has not run.
import { errorOfAnswer, RametError } from "./errors.js";
import { fromEnvironment } from "./platform.js";

export const DEFAULT_URL = "http://127.0.0.1:7480";
const DEFAULT_TIMEOUT_MS = 300_000;
const DEFAULT_RETRIES = 4;
const LONGEST_PAUSE_MS = 20_000;
/** Timers for longer fire at once. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

export interface RametOptions {
  /** Of the server; default: RAMET_API from the environment (Node), or http://127.0.0.1:7480. */
  url?: string;
  /** Default: RAMET_API_KEY from the environment (Node). */
  key?: string;
  /** Instead of the platform's. */
  fetch?: typeof fetch;
  /** For one call with all its tries; default 5 minutes. Commands and code have their own `timeout_secs` on top of it. */
  timeoutMs?: number;
  /** How often a call is tried again when that is safe; default 4. */
  maxRetries?: number;
  /** With every request. */
  headers?: Record<string, string>;
}

/** What any call takes beside what it sends. */
export interface CallOptions {
  /** Ends the request, wherever it is; the call then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  timeoutMs?: number | undefined;
  /** For calls that make something; without one a fresh key is made, so that retries make it once. */
  idempotencyKey?: string | undefined;
}

export type Query = Record<string, string | number | boolean | undefined>;
/** A body, or a function that gives it anew for every try. */
export type BodySource = BodyInit | (() => BodyInit | Promise<BodyInit>);

export interface Call extends CallOptions {
  method: string;
  path: string;
  query?: Query | undefined;
  json?: unknown;
  body?: BodySource | undefined;
  headers?: Record<string, string>;
  /** It makes something: an Idempotency-Key goes with it. */
  creates?: boolean;
  /** Done twice is the same as once, although its method does not say so. */
  repeat?: boolean;
  /** The answer is read piece by piece; only its beginning has to come in time. */
  stream?: boolean;
  /** Is told whether the server may have done it while nobody has its answer. */
  fate?: { open: boolean };
  /** Instead of what the client's options say. */
  tries?: number;
}

/** An answer with status below 400. `end` must be called when its body was read or is given up. */
export interface Answer {
  response: Response;
  /** Ends the request, if it still runs. */
  abort(reason?: unknown): void;
  /** Releases timer and listeners. */
  end(): void;
  /** What a failed read of the body really means: the abort's reason, the time-out, or a broken connection. */
  explain(error: unknown): unknown;
}

export function newKey(): string {
  const random = globalThis.crypto?.getRandomValues?.bind(globalThis.crypto);
  const bytes = new Uint8Array(16);
  if (random) random(bytes);
  else for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(Math.random() * 256);
  return "ts-" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Waits, but not beyond an abort. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** How long until try number `tries` + 1: what the server asked for, or growing, with chance in it. */
export function pauseMs(tries: number, asked?: number): number {
  if (asked !== undefined) return Math.min(asked * 1000, LONGEST_PAUSE_MS) + Math.random() * 50;
  return Math.min(200 * 2 ** tries, 5000) * (0.5 + Math.random() / 2);
}

const SAFE = new Set(["GET", "HEAD", "PUT", "DELETE", "PATCH"]);
// What Node says of a connection that did not come about: nothing was sent.
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

function wasSent(error: unknown): boolean {
  for (let at: unknown = error, depth = 0; at instanceof Error && depth < 4; at = at.cause, depth++) {
    if (NOT_SENT.has(String((at as { code?: unknown }).code))) return false;
  }
  return true;
}

// Refused before anything was done.
const NOTHING_DONE = new Set(["capacity.busy", "capacity.memory"]);

function mayRetry(error: RametError, repeatable: boolean): boolean {
  if (!error.retryable && error.status !== 429) return false;
  return repeatable || error.status === 429 || NOTHING_DONE.has(error.code);
}

export class Transport {
  readonly url: string;
  readonly timeoutMs: number;
  readonly maxRetries: number;
  readonly #key: string | undefined; // private, so that who prints a client does not print it
  readonly #fetch: typeof fetch;
  readonly #headers: Record<string, string>;

  constructor(options: RametOptions) {
    const url = options.url ?? fromEnvironment("RAMET_API") ?? DEFAULT_URL;
    if (!/^https?:\/\/[^/]/.test(url)) {
      throw new RametError(
        `'${url}' is no address of a server: it begins with http:// or https:// (start rametd with --listen to have one)`,
        { code: "client.usage" },
      );
    }
    this.url = url.replace(/\/+$/, "").replace(/\/v1$/, "");
    this.#key = (options.key ?? fromEnvironment("RAMET_API_KEY")) || undefined;
    if (this.#key !== undefined && !/^[\x21-\x7e]+$/.test(this.#key)) {
      throw new RametError("the key holds a character that no key has (a blank or a line's end?)", { code: "client.usage" });
    }
    this.timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.maxRetries = options.maxRetries ?? DEFAULT_RETRIES;
    const given = options.fetch;
    this.#fetch = given ?? ((input, init) => globalThis.fetch(input, init));
    this.#headers = options.headers ?? {};
  }

  address(path: string, query?: Query): string {
    const words: string[] = [];
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value === undefined) continue;
      const text = typeof value === "boolean" ? (value ? "1" : "0") : String(value);
      words.push(`${encodeURIComponent(name)}=${encodeURIComponent(text)}`);
    }
    return this.url + path + (words.length > 0 ? "?" + words.join("&") : "");
  }

  authorization(): Record<string, string> {
    return this.#key === undefined ? {} : { authorization: `Bearer ${this.#key}` };
  }

  /** As browsers have to give it with a WebSocket. */
  keyProtocols(): string[] {
    return this.#key === undefined ? [] : [`ramet.key.${this.#key}`];
  }

  /** An answer that is no error. Throws RametError, or the signal's reason. */
  async send(call: Call): Promise<Answer> {
    const replayable = !(typeof call.body === "object" && call.body instanceof ReadableStream);
    const repeatable = replayable && (SAFE.has(call.method) || call.creates === true || call.repeat === true);
    const headers: Record<string, string> = { ...this.#headers, ...this.authorization(), ...call.headers };
    if (call.creates) headers["idempotency-key"] = call.idempotencyKey ?? newKey();
    const timeoutMs = call.timeoutMs ?? this.timeoutMs;
    const limit = Date.now() + timeoutMs;
    let lost = false; // a try's answer never came: what it did is not known
    for (let tries = 0; ; tries++) {
      let failure: RametError;
      try {
        const answer = await this.#once(call, headers, timeoutMs, limit);
        if (answer.response.ok) return answer;
        if (answer.response.type === "opaqueredirect" || answer.response.status < 400) {
          if (call.fate !== undefined) call.fate.open = false;
          throw await this.#elsewhere(answer);
        }
        failure = await readError(answer);
        // An error is an answer: nothing was made. Not so while an earlier try still runs, and in the words of a gateway.
        const unknown = failure.code === "idempotency.in_progress" || (failure.status >= 500 && failure.code.startsWith("http."));
        if (call.fate !== undefined && !unknown) call.fate.open = false;
        if (call.method === "DELETE" && lost && failure.status === 404) {
          return { ...answer, response: new Response(null, { status: 204 }) };
        }
        if (!replayable || !mayRetry(failure, repeatable)) throw failure;
      } catch (error) {
        if (!(error instanceof RametError) || error.code !== "client.network" || !repeatable) throw error;
        failure = error;
        lost = true;
      }
      const wait = pauseMs(tries, failure.retryAfterSecs);
      if (tries + 1 >= (call.tries ?? this.maxRetries + 1) || Date.now() + wait > limit) throw failure;
      await pause(wait, call.signal);
    }
  }

  // Nobody is followed to where a key may be told to strangers, and what was asked was not done.
  async #elsewhere(answer: Answer): Promise<RametError> {
    const { status, headers, body } = answer.response;
    await body?.cancel().catch(() => undefined);
    answer.end();
    const where = headers.get("location");
    return new RametError(
      `${this.url} is not Ramet's API: it answers ${status === 0 ? "a redirection" : status}${where === null ? "" : ` and leads to ${where}`}; set url or RAMET_API to where the server is`,
      { status, code: "client.protocol" },
    );
  }

  async #once(call: Call, headers: Record<string, string>, timeoutMs: number, limit: number): Promise<Answer> {
    call.signal?.throwIfAborted();
    const controller = new AbortController();
    const what = `${call.method} ${call.path}`;
    const late = new RametError(`${what} took more than ${timeoutMs} ms; its timeoutMs may be raised`, { code: "client.timeout" });
    const stop = (): void => controller.abort(call.signal?.reason);
    call.signal?.addEventListener("abort", stop, { once: true });
    const timer = timeoutMs === Infinity ? undefined : setTimeout(() => controller.abort(late), Math.min(LONGEST_TIMER_MS, Math.max(0, limit - Date.now())));
    const end = (): void => {
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", stop);
    };
    const explain = (error: unknown): unknown => {
      if (controller.signal.aborted) return controller.signal.reason;
      if (error instanceof RametError) return error;
      return new RametError(`${what}: the connection to ${this.url} failed (${words(error)}); is the server running there?`, {
        code: "client.network",
        cause: error,
      });
    };
    try {
      const init: RequestInit & { duplex?: "half" } = { method: call.method, signal: controller.signal, redirect: "manual" };
      const body = typeof call.body === "function" ? await call.body() : call.body;
      if (call.json !== undefined) {
        init.body = JSON.stringify(call.json);
        headers = { "content-type": "application/json", ...headers };
      } else if (body !== undefined) {
        init.body = body instanceof ReadableStream ? abortable(body, controller.signal) : body;
        headers = { "content-type": "application/octet-stream", ...headers };
        if (body instanceof ReadableStream) init.duplex = "half";
      }
      init.headers = headers;
      const address = this.address(call.path, call.query);
      const open = call.fate?.open ?? false;
      if (call.fate !== undefined) call.fate.open = true;
      const response = await this.#fetch(address, init).catch((error: unknown) => {
        if (call.fate !== undefined && !wasSent(error)) call.fate.open = open;
        throw error;
      });
      if (call.stream && response.status < 400) clearTimeout(timer);
      return { response, abort: (reason) => controller.abort(reason), end, explain };
    } catch (error) {
      end();
      throw explain(error);
    }
  }

  /** The answer's JSON; undefined when it has no body. */
  async json<T>(call: Call): Promise<T> {
    const text = await this.text(call);
    if (text === "") return undefined as T;
    try {
      return JSON.parse(text) as T;
    } catch (error) {
      throw new RametError(`${call.method} ${call.path}: the answer is no JSON: ${text.slice(0, 200)}`, {
        code: "client.protocol",
        cause: error,
      });
    }
  }

  async text(call: Call): Promise<string> {
    return this.#whole(call, (response) => response.text());
  }

  async bytes(call: Call): Promise<Uint8Array> {
    return this.#whole(call, async (response) => new Uint8Array(await response.arrayBuffer()));
  }

  // A read is tried anew when its body breaks off.
  async #whole<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    for (let tries = 0; ; tries++) {
      const answer = await this.send(call);
      try {
        return await read(answer.response);
      } catch (error) {
        const failure = answer.explain(error);
        const again = failure instanceof RametError && failure.code === "client.network" && call.method === "GET";
        if (!again || tries >= this.maxRetries) throw failure;
        await pause(pauseMs(tries), call.signal);
      } finally {
        answer.end();
      }
    }
  }

  /** The answer's bytes as they come. Cancelling the stream ends the request. */
  async stream(call: Call): Promise<{ response: Response; body: ReadableStream<Uint8Array> }> {
    const answer = await this.send({ ...call, stream: true });
    const reader = answer.response.body?.getReader();
    const body = new ReadableStream<Uint8Array>(
      {
        async pull(controller) {
          try {
            const piece = await reader?.read();
            if (piece === undefined || piece.done) {
              answer.end();
              controller.close();
            } else controller.enqueue(piece.value);
          } catch (error) {
            answer.end();
            throw answer.explain(error);
          }
        },
        cancel(reason) {
          answer.end();
          answer.abort(reason);
        },
      },
      { highWaterMark: 0 },
    );
    return { response: answer.response, body };
  }
}

/**
 * The stream, which ends with the signal. Not every fetch lets go of a body that it is sending when it is aborted: here
 * the body itself fails then, and its source is cancelled.
 */
function abortable(source: ReadableStream<Uint8Array>, signal: AbortSignal): ReadableStream<Uint8Array> {
  const reader = source.getReader();
  let stop = (): void => undefined;
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        stop = () => {
          controller.error(signal.reason);
          reader.cancel(signal.reason).catch(() => undefined);
        };
        if (signal.aborted) stop();
        signal.addEventListener("abort", stop, { once: true });
      },
      async pull(controller) {
        const piece = await reader.read();
        if (signal.aborted) return;
        if (!piece.done) return controller.enqueue(piece.value);
        signal.removeEventListener("abort", stop);
        controller.close();
      },
      cancel(reason) {
        signal.removeEventListener("abort", stop);
        return reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

async function readError(answer: Answer): Promise<RametError> {
  try {
    return errorOfAnswer(answer.response.status, answer.response.headers, await answer.response.text());
  } catch (error) {
    throw answer.explain(error);
  } finally {
    answer.end();
  }
}

function words(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error; at instanceof Error && parts.length < 3; at = at.cause) {
    const code = (at as { code?: unknown }).code;
    const text = at.message !== "" ? at.message : typeof code === "string" ? code : at.name;
    if (!parts.includes(text)) parts.push(text);
  }
  return parts.length > 0 ? parts.join(": ") : String(error);
}
