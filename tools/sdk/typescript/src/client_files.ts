// SPDX-License-Identifier: Apache-2.0
// Files of a sandbox. Bodies are bytes: what goes in comes out, whatever it is. Paths are below /home/user unless they
// begin with a slash.
import { RametError } from "./errors.js";
import { isNode, localFile, saveLocalFile } from "./platform.js";
import { EventStream, type StreamOptions } from "./stream.js";
import type { BodySource, CallOptions } from "./transport.js";
import type * as wire from "./types.js";
import { RametRuns } from "./client_run.js";

/** What can be written. A ReadableStream can be sent once only, so that its write is not tried again. */
export type FileData = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array>;

/** For a body's time: a slow line moves this many bytes in a millisecond. */
const SLOWEST_BYTES_PER_MS = 128;

function hasLoneSurrogate(text: string): boolean {
  return /[\ud800-\udbff](?![\udc00-\udfff])|(?:^|[^\ud800-\udbff])[\udc00-\udfff]/.test(text);
}

/** A body for fetch, and how many bytes it has, when that is known. */
export async function bodyOf(data: FileData): Promise<{ body: BodySource; size: number | undefined }> {
  if (typeof data === "string") {
    if (hasLoneSurrogate(data)) {
      throw new RametError("the text holds a lone surrogate, which UTF-8 cannot carry: write bytes (Uint8Array) instead", { code: "client.usage" });
    }
    const bytes = new TextEncoder().encode(data);
    return { body: bytes, size: bytes.length };
  }
  if (data instanceof ReadableStream) {
    // Browsers send streams over HTTP/2 alone.
    if (isNode()) return { body: data, size: undefined };
    const blob = await new Response(data).blob();
    return { body: blob, size: blob.size };
  }
  if (data instanceof Blob) return { body: data, size: data.size };
  if (data instanceof ArrayBuffer) return { body: data, size: data.byteLength };
  if (ArrayBuffer.isView(data)) return { body: data as Uint8Array<ArrayBuffer>, size: data.byteLength };
  throw new RametError("what is written must be a string, Uint8Array, ArrayBuffer, Blob or ReadableStream", { code: "client.usage" });
}

export class RametFiles extends RametRuns {
  /** Time enough for a body of this size; without a size, none is set. */
  protected timeOfBody(size: number | undefined, options: CallOptions): CallOptions {
    if (options.timeoutMs !== undefined) return options;
    return { ...options, timeoutMs: size === undefined ? Infinity : this.transport.timeoutMs + size / SLOWEST_BYTES_PER_MS };
  }

  /** The whole file. */
  readFile(name: string, path: string, options: CallOptions = {}): Promise<Uint8Array> {
    return this.transport.bytes({ method: "GET", path: this.box(name, "/files/content"), query: { path }, ...options });
  }

  /** The whole file as text; bytes that are no UTF-8 are shown as U+FFFD. */
  async readText(name: string, path: string, options: CallOptions = {}): Promise<string> {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await this.readFile(name, path, options));
  }

  /** The file's bytes as they come, of any size; a part of it with `start` and `end` (the byte behind the last). */
  async readFileStream(
    name: string,
    path: string,
    range: { start?: number; end?: number } = {},
    options: CallOptions = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const part = range.start !== undefined || range.end !== undefined;
    const headers: Record<string, string> = part
      ? { range: `bytes=${range.start ?? 0}-${range.end === undefined ? "" : range.end - 1}` }
      : {};
    const call = { method: "GET", path: this.box(name, "/files/content"), query: { path }, headers, ...options };
    return (await this.transport.stream(call)).body;
  }

  /** Writes a file; it appears whole or not at all, and its folders are made. */
  async writeFile(
    name: string,
    data: FileData,
    path: string,
    what: { mode?: number | string } = {},
    options: CallOptions = {},
  ): Promise<void> {
    const { body, size } = await bodyOf(data);
    await this.#put(name, body, path, what, this.timeOfBody(size, options));
  }

  async #put(name: string, body: BodySource, path: string, what: { mode?: number | string }, options: CallOptions): Promise<void> {
    const mode = typeof what.mode === "number" ? what.mode.toString(8) : what.mode;
    await this.transport.text({ method: "PUT", path: this.box(name, "/files/content"), query: { path, mode }, body, ...options });
  }

  /** Node: a local file into the sandbox, piece by piece. */
  async uploadFile(name: string, local: string, path: string, what: { mode?: number | string } = {}, options: CallOptions = {}): Promise<void> {
    const file = await localFile(local);
    await this.#put(name, file.open, path, what, this.timeOfBody(file.size, options));
  }

  /** Node: a file of the sandbox into a local one, which appears whole or not at all. */
  async downloadFile(name: string, path: string, local: string, options: CallOptions = {}): Promise<void> {
    await saveLocalFile(local, await this.readFileStream(name, path, {}, options));
  }

  async deleteFile(name: string, path: string, what: { recursive?: boolean } = {}, options: CallOptions = {}): Promise<void> {
    const query = { path, recursive: what.recursive ? 1 : undefined };
    await this.transport.text({ method: "DELETE", path: this.box(name, "/files/content"), query, ...options });
  }

  async listFiles(name: string, path = ".", options: CallOptions = {}): Promise<wire.FileEntry[]> {
    return (await this.get<{ entries: wire.FileEntry[] }>(this.box(name, "/files"), options, { path })).entries;
  }

  statFile(name: string, path: string, options: CallOptions = {}): Promise<wire.FileEntry> {
    return this.get(this.box(name, "/files/stat"), options, { path });
  }

  async makeDir(name: string, path: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "POST", path: this.box(name, "/files/dir"), query: { path }, repeat: true, ...options });
  }

  /** Renames a file or folder; folders above `to` are made. */
  async moveFile(name: string, from: string, to: string, what: { replace?: boolean } = {}, options: CallOptions = {}): Promise<void> {
    await this.post(this.box(name, "/files/move"), { from, to, ...what }, options);
  }

  /** What changes below a path, from the event `ready` on. */
  watchFiles(
    name: string,
    path: string,
    what: { recursive?: boolean } = {},
    options: CallOptions & StreamOptions = {},
  ): EventStream<wire.WatchEvent> {
    const query = { path, recursive: what.recursive ? 1 : undefined };
    const call = { method: "GET", path: this.box(name, "/files/watch"), query, signal: options.signal };
    return new EventStream(this.transport, call, { last: ["end"], errors: ["error"] }, options);
  }
}
