// SPDX-License-Identifier: Apache-2.0
// Code in a sandbox: a context that keeps its variables, what a run of it gave, and what it showed.
import type { Ramet } from "./client.js";
import { RametError } from "./errors.js";
import { fromBase64 } from "./gather.js";
import type { EventStream } from "./stream.js";
import type * as wire from "./types.js";

/** One thing that code showed, in every form that it has. */
export class Result {
  readonly text: string | undefined;
  readonly html: string | undefined;
  readonly markdown: string | undefined;
  readonly svg: string | undefined;
  /** png, jpeg and pdf are base64; `pngBytes()` decodes. */
  readonly png: string | undefined;
  readonly jpeg: string | undefined;
  readonly pdf: string | undefined;
  readonly latex: string | undefined;
  readonly json: unknown;
  readonly javascript: string | undefined;
  readonly plotly: unknown;
  /** Other forms, by their MIME types. */
  readonly extra: Readonly<Record<string, unknown>>;
  /** The value of the last expression, not something displayed on the way. */
  readonly isMainResult: boolean;
  readonly displayId: string | undefined;
  readonly truncated: boolean;
  /** As it came. */
  readonly raw: wire.ResultData;

  constructor(raw: wire.ResultData) {
    this.raw = raw;
    this.text = raw.text;
    this.html = raw.html;
    this.markdown = raw.markdown;
    this.svg = raw.svg;
    this.png = raw.png;
    this.jpeg = raw.jpeg;
    this.pdf = raw.pdf;
    this.latex = raw.latex;
    this.json = raw.json;
    this.javascript = raw.javascript;
    this.plotly = raw.plotly;
    this.extra = raw.extra ?? {};
    this.isMainResult = raw.type === "result";
    this.displayId = raw.display_id;
    this.truncated = raw.truncated ?? false;
  }

  /** The forms that it has. */
  formats(): string[] {
    const forms = ["text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "plotly"] as const;
    return forms.filter((form) => this[form] !== undefined);
  }

  /** The picture in it: png, else jpeg (both base64), else svg (text). */
  get chart(): string | undefined {
    return this.png ?? this.jpeg ?? this.svg;
  }

  pngBytes(): Uint8Array | undefined {
    return this.png === undefined ? undefined : fromBase64(this.png);
  }

  /** What `<img src>` takes. */
  get dataUrl(): string | undefined {
    if (this.png !== undefined) return `data:image/png;base64,${this.png}`;
    if (this.jpeg !== undefined) return `data:image/jpeg;base64,${this.jpeg}`;
    return this.svg === undefined ? undefined : `data:image/svg+xml,${encodeURIComponent(this.svg)}`;
  }

  toString(): string {
    return this.text ?? this.markdown ?? this.html ?? "";
  }
}

/** What one run of code gave. */
export class Execution {
  readonly stdout: string;
  readonly stderr: string;
  /** The last expression's value as text; else the first text that was displayed. */
  readonly text: string | undefined;
  /** The traceback of the error that ended it, ready to be shown to a model or a person. */
  readonly error: string | undefined;
  /** The same in parts. */
  readonly errorInfo: wire.CodeError | undefined;
  readonly results: readonly Result[];
  readonly executionCount: number | null;
  readonly durationMs: number;
  readonly exitCode: number;
  readonly timedOut: boolean;
  readonly interrupted: boolean;
  readonly truncated: boolean;
  /** Why the variables are gone, when they are. */
  readonly stateLost: string | undefined;
  readonly raw: wire.ExecutionData;

  constructor(raw: wire.ExecutionData) {
    this.raw = raw;
    this.stdout = raw.stdout;
    this.stderr = raw.stderr;
    this.results = raw.results.map((result) => new Result(result));
    this.text = raw.text ?? this.results.find((result) => result.text !== undefined)?.text;
    this.errorInfo = raw.error ?? undefined;
    this.error = raw.error === null ? undefined : raw.error.traceback || `${raw.error.name}: ${raw.error.value}`;
    this.executionCount = raw.execution_count;
    this.durationMs = raw.duration_ms;
    this.exitCode = raw.exit_code ?? (raw.error === null ? 0 : 1);
    this.timedOut = raw.timed_out;
    this.interrupted = raw.interrupted;
    this.truncated = raw.truncated;
    this.stateLost = raw.state_lost ?? undefined;
  }

  #first<K extends "png" | "jpeg" | "svg" | "html" | "markdown" | "chart" | "dataUrl">(form: K): Result[K] | undefined {
    return this.results.find((result) => result[form] !== undefined)?.[form];
  }

  /** The first of each form. */
  get png(): string | undefined {
    return this.#first("png");
  }
  get jpeg(): string | undefined {
    return this.#first("jpeg");
  }
  get svg(): string | undefined {
    return this.#first("svg");
  }
  get html(): string | undefined {
    return this.#first("html");
  }
  get markdown(): string | undefined {
    return this.#first("markdown");
  }
  get json(): unknown {
    return this.results.find((result) => result.json !== undefined)?.json;
  }
  get chart(): string | undefined {
    return this.#first("chart");
  }
  get dataUrl(): string | undefined {
    return this.#first("dataUrl");
  }
}

/** Code ended with an error, and `check` was asked for. The message is its traceback. */
export class CodeError extends RametError {
  readonly execution: Execution;

  constructor(execution: Execution) {
    super(execution.error ?? (execution.timedOut ? "the code ran out of its time" : "the code was interrupted"), { code: "code.failed" });
    this.name = "CodeError";
    this.execution = execution;
  }
}

export interface RunOptions {
  /** Seconds after which the code is interrupted; the answer then says `timedOut`. */
  timeoutSecs?: number;
  /** The same. */
  timeoutSeconds?: number;
  /** An error in the code is thrown as CodeError. */
  check?: boolean;
  /** Ends the wait and interrupts the code. */
  signal?: AbortSignal;
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
  onResult?: (result: Result) => void;
}

/** A process in the sandbox that runs code and keeps what it defined. */
export class CodeContext implements AsyncDisposable {
  readonly id: string;
  readonly language: string;
  readonly #client: Ramet;
  readonly #sandbox: string;

  /** Not for users: Sandbox.createCodeContext. */
  constructor(client: Ramet, sandbox: string, id: string, language: string) {
    this.#client = client;
    this.#sandbox = sandbox;
    this.id = id;
    this.language = language;
  }

  /** Runs code to its end; an error in it is in the Execution, and thrown only with `check`. */
  async runCode(code: string, options: RunOptions = {}): Promise<Execution> {
    const { onStdout, onStderr, onResult } = options;
    const timeout = options.timeoutSecs ?? options.timeoutSeconds;
    const body: wire.RunCode = timeout === undefined ? { code } : { code, timeout_secs: timeout };
    const onEvent = (event: wire.RunEvent): void => {
      if (event.event === "stdout") onStdout?.(event.data.text);
      else if (event.event === "stderr") onStderr?.(event.data.text);
      else if (event.event === "result" || event.event === "display" || event.event === "update_display") {
        onResult?.(new Result(event.data));
      }
    };
    const listens = onStdout !== undefined || onStderr !== undefined || onResult !== undefined;
    const execution = new Execution(
      await this.#client.runCode(this.#sandbox, this.id, body, { signal: options.signal, onEvent: listens ? onEvent : undefined }),
    );
    const failed = execution.error !== undefined || execution.timedOut || execution.interrupted;
    if (options.check === true && failed) throw new CodeError(execution);
    return execution;
  }

  /** The events of a run as they come. */
  runCodeStream(code: string, options: Pick<RunOptions, "timeoutSecs" | "signal"> = {}): EventStream<wire.RunEvent> {
    const body: wire.RunCode = options.timeoutSecs === undefined ? { code } : { code, timeout_secs: options.timeoutSecs };
    return this.#client.runCodeStream(this.#sandbox, this.id, body, { signal: options.signal });
  }

  /** As Ctrl-C. */
  async interrupt(options: { kill?: boolean } = {}): Promise<boolean> {
    return (await this.#client.interruptContext(this.#sandbox, this.id, options)).interrupted;
  }

  /** A fresh process; the variables are gone. */
  async restart(): Promise<void> {
    await this.#client.restartContext(this.#sandbox, this.id);
  }

  /** Ends it; one that has ended already is fine. */
  async close(): Promise<void> {
    try {
      await this.#client.deleteContext(this.#sandbox, this.id);
    } catch (error) {
      if (!(error instanceof RametError && error.status === 404)) throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
