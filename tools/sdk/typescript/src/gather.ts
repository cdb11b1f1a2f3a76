// SPDX-License-Identifier: Apache-2.0
// What a stream's events come to: the same answer that the whole call gives, with the same bounds.
import type * as wire from "./types.js";

const EXEC_KEEPS_BYTES = 16 << 20;
const RUN_KEEPS_BYTES = 8 << 20;

export function toBase64(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += 0x8000) parts.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  return btoa(parts.join(""));
}

export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** The beginning of a text, as UTF-8 in this many bytes, not cut within a character. */
function beginning(text: string, bytes: number): string {
  const room = new Uint8Array(Math.max(0, bytes));
  return text.slice(0, new TextEncoder().encodeInto(text, room).read);
}

class Output {
  #pieces: string[] = [];
  #bytes: Uint8Array[] = [];
  #left: number;
  #keeps: number;
  truncated = false;

  constructor(keeps: number) {
    this.#keeps = this.#left = keeps;
  }

  take(text: string, base64?: string): void {
    if (this.#left <= 0) {
      this.truncated ||= text.length > 0;
      return;
    }
    // Three bytes are the most that one UTF-16 unit takes: only near the limit it has to be known exactly.
    const exact = base64 !== undefined ? fromBase64(base64) : undefined;
    const size = exact?.length ?? (text.length * 3 <= this.#left ? text.length * 3 : new TextEncoder().encode(text).length);
    const fits = size <= this.#left;
    this.#pieces.push(fits ? text : beginning(text, this.#left));
    if (exact !== undefined) this.#bytes.push(exact.subarray(0, this.#left));
    this.truncated ||= !fits;
    this.#left -= exact === undefined && fits ? new TextEncoder().encode(text).length : Math.min(size, this.#left);
    if (!fits) this.#left = 0;
  }

  clear(): void {
    this.#pieces = [];
    this.#bytes = [];
    this.#left = this.#keeps;
  }

  get text(): string {
    return this.#pieces.join("");
  }

  get base64(): string {
    return toBase64(joined(this.#bytes));
  }
}

/** The result of a command. */
export class Gathered {
  #out = new Output(EXEC_KEEPS_BYTES);
  #err = new Output(EXEC_KEEPS_BYTES);
  #end: wire.ExecEnd | undefined;
  readonly #exact: boolean;

  constructor(exact: boolean) {
    this.#exact = exact;
  }

  take(event: wire.ExecEvent): void {
    if (event.event === "exit") this.#end = event.data;
    else (event.event === "stdout" ? this.#out : this.#err).take(event.data.text, event.data.base64);
  }

  result(): wire.ExecResult {
    const end = this.#end ?? { exit_code: -1, timed_out: false, truncated: true, duration_ms: 0 };
    const exact = this.#exact ? { stdout_base64: this.#out.base64, stderr_base64: this.#err.base64 } : {};
    const truncated = end.truncated || this.#out.truncated || this.#err.truncated;
    return { ...end, truncated, stdout: this.#out.text, stderr: this.#err.text, ...exact };
  }
}

/** The result of code: what was updated shows its last content, what was cleared is not there. */
export class GatheredRun {
  #out = new Output(RUN_KEEPS_BYTES);
  #err = new Output(RUN_KEEPS_BYTES);
  #results: wire.ResultData[] = [];
  #text: string | null = null;
  #error: wire.CodeError | null = null;
  #clears = false; // clear_output(wait=True): what is there goes when something new comes
  #end: wire.ExecutionEnd | undefined;

  take(event: wire.RunEvent): void {
    switch (event.event) {
      case "started":
        break;
      case "clear":
        this.#clears = event.data.wait;
        if (!event.data.wait) this.#clear();
        break;
      case "error":
        this.#error = event.data;
        break;
      case "done":
        this.#end = event.data;
        break;
      case "stdout":
      case "stderr":
        if (this.#clears) this.#clear();
        (event.event === "stdout" ? this.#out : this.#err).take(event.data.text);
        break;
      default:
        if (this.#clears) this.#clear();
        this.#show(event.event === "update_display", event.data);
        if (event.event === "result" && typeof event.data.text === "string") this.#text = event.data.text;
    }
  }

  #clear(): void {
    this.#out.clear();
    this.#err.clear();
    this.#results = [];
    this.#text = null;
    this.#clears = false;
  }

  #show(update: boolean, shown: wire.ResultData): void {
    const place = update ? this.#results.findIndex((result) => result.display_id === shown.display_id) : -1;
    if (place >= 0) this.#results[place] = shown;
    else this.#results.push(shown);
  }

  result(): wire.ExecutionData {
    const end = this.#end ?? {
      execution_count: null, duration_ms: 0, timed_out: false, interrupted: true, truncated: true, state_lost: null,
    };
    return {
      ...end,
      truncated: end.truncated || this.#out.truncated || this.#err.truncated,
      stdout: this.#out.text,
      stderr: this.#err.text,
      text: this.#text,
      error: this.#error,
      results: this.#results,
    };
  }
}
