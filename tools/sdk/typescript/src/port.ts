// SPDX-License-Identifier: Apache-2.0
// Node: a connection to a port inside a sandbox, as a pair of streams of bytes. Closing one side leaves the other open.
import { RametError } from "./errors.js";
import type { CallOptions, Transport } from "./transport.js";
import { upgradeNode } from "./upgrade_node.js";

export interface PortConnection {
  /** What the server in the sandbox says. */
  readable: ReadableStream<Uint8Array>;
  /** What is said to it; closing it is heard as an end of input. */
  writable: WritableStream<Uint8Array>;
  /** Breaks the connection off. */
  close(): void;
}

export async function openPort(transport: Transport, path: string, options: CallOptions): Promise<PortConnection> {
  const { socket } = await upgradeNode(transport, path, {}, { upgrade: "tcp" }, options);
  socket.setNoDelay(true);
  const stop = (): void => socket.destroy();
  options.signal?.addEventListener("abort", stop, { once: true });
  let broken: RametError | undefined;
  let done = false; // nothing more goes to the reader, who may have cancelled
  const readable = new ReadableStream<Uint8Array>({
    start(controller) {
      const end = (): void => {
        if (done) return;
        done = true;
        options.signal?.removeEventListener("abort", stop);
        if (options.signal?.aborted) controller.error(options.signal.reason);
        else if (broken !== undefined) controller.error(broken);
        else controller.close();
      };
      socket.on("data", (piece: Uint8Array) => {
        if (done) return;
        controller.enqueue(new Uint8Array(piece));
        if ((controller.desiredSize ?? 0) <= 0) socket.pause();
      });
      socket.on("end", end);
      socket.on("close", end);
      socket.on("error", (error: Error) => {
        broken = new RametError(`the connection into the sandbox broke: ${error.message}`, { code: "client.network", cause: error });
      });
    },
    pull: () => socket.resume(),
    cancel: () => {
      done = true;
      options.signal?.removeEventListener("abort", stop);
      socket.destroy();
    },
  });
  const writable = new WritableStream<Uint8Array>({
    write: (bytes) =>
      new Promise<void>((resolve, reject) => socket.write(bytes, (error) => (error ? reject(broken ?? error) : resolve()))),
    close: () => socket.end(),
    abort: () => socket.destroy(),
  });
  return { readable, writable, close: stop };
}
