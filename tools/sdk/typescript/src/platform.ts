// SPDX-License-Identifier: Apache-2.0
// What differs between Node and browsers, in one place. Node's modules are loaded when they are first needed, by names
// that no bundler for browsers tries to follow.
import { RametError } from "./errors.js";

interface NodeProcess {
  versions?: { node?: string };
  env?: Record<string, string | undefined>;
}

function nodeProcess(): NodeProcess | undefined {
  return (globalThis as { process?: NodeProcess }).process;
}

export function isNode(): boolean {
  return typeof nodeProcess()?.versions?.node === "string";
}

export function fromEnvironment(name: string): string | undefined {
  const value = nodeProcess()?.env?.[name];
  return value === undefined || value === "" ? undefined : value;
}

/** One of Node's own modules. */
export async function nodeModule<T>(name: string, purpose: string): Promise<T> {
  if (!isNode()) throw new RametError(`${purpose} needs Node`, { code: "client.usage" });
  const whole = "node:" + name;
  return (await import(/* webpackIgnore: true */ /* @vite-ignore */ whole)) as T;
}

export interface NodeReadable extends AsyncIterable<Uint8Array> {
  destroy(error?: Error): void;
}

/** A local file as a stream of bytes. */
export async function localFile(path: string): Promise<{ size: number; open: () => ReadableStream<Uint8Array> }> {
  type Stat = { size: number; isFile(): boolean };
  const fs = await nodeModule<{ createReadStream(path: string): NodeReadable; promises: { stat(path: string): Promise<Stat> } }>(
    "fs",
    "reading a local file",
  );
  const { Readable } = await nodeModule<{ Readable: { toWeb(from: NodeReadable): ReadableStream<Uint8Array> } }>("stream", "a stream");
  const stat = await fs.promises.stat(path);
  if (!stat.isFile()) throw new RametError(`${path} is no file`, { code: "client.usage" });
  return { size: stat.size, open: () => Readable.toWeb(fs.createReadStream(path)) };
}

/** Writes a stream into a local file that appears whole or not at all. */
export async function saveLocalFile(path: string, body: ReadableStream<Uint8Array>): Promise<void> {
  type Handle = { write(bytes: Uint8Array): Promise<{ bytesWritten: number }>; close(): Promise<void> };
  const fs = await nodeModule<{
    open(path: string, flags: string): Promise<Handle>;
    rename(from: string, to: string): Promise<void>;
    rm(path: string, options: { force: boolean }): Promise<void>;
  }>("fs/promises", "writing a local file");
  const unfinished = `${path}.${Date.now().toString(36)}.part`;
  const file = await fs.open(unfinished, "wx").catch(async (error: unknown) => {
    await body.cancel(error); // else its request would wait for a reader
    throw error;
  });
  try {
    for await (const piece of body) {
      for (let done = 0; done < piece.length; ) done += (await file.write(piece.subarray(done))).bytesWritten;
    }
    await file.close();
    await fs.rename(unfinished, path);
  } catch (error) {
    await file.close().catch(() => undefined);
    await fs.rm(unfinished, { force: true });
    throw error;
  }
}
