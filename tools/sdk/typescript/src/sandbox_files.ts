// SPDX-License-Identifier: Apache-2.0
// The files of one sandbox, as an object.
import type { Ramet } from "./client.js";
import type { FileData } from "./client_files.js";
import { RametError } from "./errors.js";
import type { EventStream } from "./stream.js";
import type * as wire from "./types.js";

export interface FileInfo {
  name: string;
  path: string;
  type: wire.FileEntry["type"];
  isDir: boolean;
  size: number;
  mode: string;
  uid: number;
  gid: number;
  /** undefined: a time that no calendar has. */
  modifiedAt: Date | undefined;
}

type Signal = { signal?: AbortSignal };

function info(entry: wire.FileEntry, path: string): FileInfo {
  return {
    name: entry.name,
    path,
    type: entry.type,
    isDir: entry.type === "dir",
    size: entry.size,
    mode: entry.mode,
    uid: entry.uid,
    gid: entry.gid,
    modifiedAt: entry.modified_at === null ? undefined : new Date(entry.modified_at),
  };
}

export class SandboxFiles {
  readonly #client: Ramet;
  readonly #sandbox: string;

  /** Not for users: `sandbox.files`. */
  constructor(client: Ramet, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** The bytes of a file. */
  read(path: string, options: Signal = {}): Promise<Uint8Array> {
    return this.#client.readFile(this.#sandbox, path, options);
  }

  readText(path: string, options: Signal = {}): Promise<string> {
    return this.#client.readText(this.#sandbox, path, options);
  }

  readStream(path: string, range: { start?: number; end?: number } = {}, options: Signal = {}): Promise<ReadableStream<Uint8Array>> {
    return this.#client.readFileStream(this.#sandbox, path, range, options);
  }

  /** Appears whole or not at all; its folders are made. */
  write(path: string, data: FileData, options: Signal & { mode?: number | string } = {}): Promise<void> {
    return this.#client.writeFile(this.#sandbox, data, path, options.mode === undefined ? {} : { mode: options.mode }, { signal: options.signal });
  }

  /** Node: a local file, piece by piece. */
  upload(local: string, path: string, options: Signal & { mode?: number | string } = {}): Promise<void> {
    return this.#client.uploadFile(this.#sandbox, local, path, options.mode === undefined ? {} : { mode: options.mode }, { signal: options.signal });
  }

  /** Node: into a local file. */
  download(path: string, local: string, options: Signal = {}): Promise<void> {
    return this.#client.downloadFile(this.#sandbox, path, local, options);
  }

  async list(path = ".", options: Signal = {}): Promise<FileInfo[]> {
    const base = path === "/" ? "" : path.replace(/\/+$/, "");
    return (await this.#client.listFiles(this.#sandbox, path, options)).map((entry) => info(entry, `${base}/${entry.name}`));
  }

  async stat(path: string, options: Signal = {}): Promise<FileInfo> {
    return info(await this.#client.statFile(this.#sandbox, path, options), path);
  }

  async exists(path: string, options: Signal = {}): Promise<boolean> {
    try {
      await this.#client.statFile(this.#sandbox, path, options);
      return true;
    } catch (error) {
      if (error instanceof RametError && error.status === 404) return false;
      throw error;
    }
  }

  /** All below a folder, folders before what is in them. */
  async *walk(path = ".", options: Signal = {}): AsyncGenerator<FileInfo, void, undefined> {
    for (const entry of await this.list(path, options)) {
      yield entry;
      if (entry.isDir) yield* this.walk(entry.path, options);
    }
  }

  makeDir(path: string, options: Signal = {}): Promise<void> {
    return this.#client.makeDir(this.#sandbox, path, options);
  }

  move(from: string, to: string, options: Signal & { replace?: boolean } = {}): Promise<void> {
    return this.#client.moveFile(this.#sandbox, from, to, options.replace === undefined ? {} : { replace: options.replace }, { signal: options.signal });
  }

  remove(path: string, options: Signal & { recursive?: boolean } = {}): Promise<void> {
    return this.#client.deleteFile(this.#sandbox, path, options.recursive ? { recursive: true } : {}, { signal: options.signal });
  }

  watch(path: string, options: Signal & { recursive?: boolean } = {}): EventStream<wire.WatchEvent> {
    return this.#client.watchFiles(this.#sandbox, path, options.recursive ? { recursive: true } : {}, { signal: options.signal });
  }
}
