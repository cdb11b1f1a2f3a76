// SPDX-License-Identifier: Apache-2.0
// Node: a request that becomes a connection ("Upgrade"), which fetch cannot do.
import { errorOfAnswer, RametError } from "./errors.js";
import { joined } from "./gather.js";
import { nodeModule } from "./platform.js";
import type { CallOptions, Query, Transport } from "./transport.js";

/** What is used of Node's net.Socket. */
export interface NodeSocket {
  write(bytes: Uint8Array | string, done?: (error?: Error | null) => void): boolean;
  end(): void;
  destroy(error?: Error): void;
  pause(): void;
  resume(): void;
  setNoDelay(on: boolean): void;
  unshift(bytes: Uint8Array): void;
  on(event: string, listener: (...values: never[]) => void): void;
}

interface Incoming {
  statusCode?: number;
  headers: Record<string, string | string[] | undefined>;
  on(event: string, listener: (...values: never[]) => void): void;
}

interface Outgoing {
  on(event: string, listener: (...values: never[]) => void): void;
  end(): void;
  destroy(error?: Error): void;
}

export interface Upgraded {
  socket: NodeSocket;
  headers: Record<string, string | string[] | undefined>;
}

/** Rejects with the server's error when it answers anything but 101. The socket is paused. */
export async function upgradeNode(
  transport: Transport,
  path: string,
  query: Query,
  headers: Record<string, string>,
  options: CallOptions,
): Promise<Upgraded> {
  options.signal?.throwIfAborted();
  const url = new URL(transport.address(path, query));
  type Http = { request(url: URL, options: unknown): Outgoing };
  const http = await nodeModule<Http>(url.protocol === "https:" ? "https" : "http", "this connection");
  const timeoutMs = options.timeoutMs ?? transport.timeoutMs;
  return new Promise<Upgraded>((resolve, reject) => {
    const request = http.request(url, {
      method: "GET",
      agent: false,
      headers: { ...transport.authorization(), connection: "Upgrade", ...headers },
    });
    const give = (error: unknown): void => {
      end();
      request.destroy();
      reject(error);
    };
    const stop = (): void => give(options.signal?.reason);
    const late = new RametError(`${path} was not connected within ${timeoutMs} ms`, { code: "client.timeout" });
    const timer = timeoutMs === Infinity ? undefined : setTimeout(() => give(late), timeoutMs);
    const end = (): void => {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", stop);
    };
    options.signal?.addEventListener("abort", stop, { once: true });
    request.on("error", (error: Error) =>
      give(new RametError(`the connection to ${transport.url} failed: ${error.message}`, { code: "client.network", cause: error })),
    );
    request.on("upgrade", (answer: Incoming, socket: NodeSocket, head: Uint8Array) => {
      end();
      socket.pause();
      if (head.length > 0) socket.unshift(head);
      resolve({ socket, headers: answer.headers });
    });
    request.on("response", (answer: Incoming) => {
      const pieces: Uint8Array[] = [];
      answer.on("data", (piece: Uint8Array) => pieces.push(piece));
      answer.on("error", (error: Error) =>
        give(new RametError(`the connection to ${transport.url} broke: ${error.message}`, { code: "client.network", cause: error })),
      );
      answer.on("end", () => {
        end();
        const all = new Headers();
        for (const [name, value] of Object.entries(answer.headers)) if (typeof value === "string") all.set(name, value);
        reject(errorOfAnswer(answer.statusCode ?? 0, all, new TextDecoder().decode(joined(pieces))));
      });
    });
    request.end();
  });
}
