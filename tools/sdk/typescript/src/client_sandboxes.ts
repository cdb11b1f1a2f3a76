// SPDX-License-Identifier: Apache-2.0
// Calls on sandboxes themselves: making, finding, changing, waiting, their events; and the service's own few calls.
import { RametError } from "./errors.js";
import { EventStream, type StreamOptions } from "./stream.js";
import { type CallOptions, type RametOptions, Transport } from "./transport.js";
import type * as wire from "./types.js";
import { create, type Unmake } from "./undo.js";

/** A name or id as one part of a path; `NAME/disk` and `NAME/memory` keep their slash. */
export function part(given: string | number): string {
  const name = typeof given === "number" ? String(given) : given;
  if (typeof name !== "string" || name === "") {
    throw new RametError("a name or id is missing: the path would be of another call", { code: "client.usage" });
  }
  if (/^\.{1,2}$/.test(name) || name.includes("/../") || name.includes("/./")) {
    throw new RametError(`'${name}' can be no name`, { code: "client.usage" });
  }
  return name.split("/").map(encodeURIComponent).join("/");
}

const EVENTS = { last: [], errors: ["error"], resumable: true } as const;

export const unmakeSnapshot = (made: wire.Snapshot): string[] => [`/v1/snapshots/${part(made.id)}`];

export class RametSandboxes {
  /** Not for users: what carries the calls. */
  readonly transport: Transport;

  constructor(options: RametOptions = {}) {
    this.transport = new Transport(options);
  }

  protected box(name: string, rest = ""): string {
    return `/v1/sandboxes/${part(name)}${rest}`;
  }

  protected get<T>(path: string, options: CallOptions, query?: Record<string, string | number | boolean | undefined>): Promise<T> {
    return this.transport.json<T>({ method: "GET", path, query, ...options });
  }

  /**
   * creates: it makes something, once, however often it is sent. unmake: for what has no name of its caller's, where it
   * is, so that it is removed when its answer is lost.
   */
  protected post<T>(path: string, json: unknown, options: CallOptions, creates = false, unmake?: Unmake<T>): Promise<T> {
    const call = { method: "POST", path, json, creates, ...options };
    return unmake === undefined ? this.transport.json<T>(call) : create<T>(this.transport, call, unmake);
  }

  /** The server's address. */
  get url(): string {
    return this.transport.url;
  }

  /** Any call by its path: what its answer's JSON says (undefined without a body). `repeat`: it may be sent twice. */
  request<T = unknown>(method: string, path: string, json?: unknown, options: CallOptions & { repeat?: boolean } = {}): Promise<T> {
    return this.transport.json<T>({ method, path, json, ...options });
  }

  // ---- The service ----

  health(options: CallOptions = {}): Promise<{ status: string }> {
    return this.get("/healthz", options);
  }

  version(options: CallOptions = {}): Promise<{ version: string; api: string | number }> {
    return this.get("/version", options);
  }

  /** The description of the whole API (OpenAPI 3.1). */
  openapi(options: CallOptions = {}): Promise<Record<string, unknown>> {
    return this.get("/openapi.json", options);
  }

  /** Figures for Prometheus, as text. */
  metrics(options: CallOptions = {}): Promise<string> {
    return this.transport.text({ method: "GET", path: "/metrics", ...options });
  }

  // ---- Making and finding ----

  async listSandboxes(
    where: { state?: wire.SandboxState; label?: string } = {},
    options: CallOptions = {},
  ): Promise<wire.Sandbox[]> {
    return (await this.get<{ sandboxes: wire.Sandbox[] }>("/v1/sandboxes", options, where)).sandboxes;
  }

  getSandbox(name: string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.get(this.box(name), options);
  }

  /** Makes one and answers when it can be used. */
  createSandboxes(what: wire.CreateSandbox = {}, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.post("/v1/sandboxes", what, options, true, what.name ? undefined : (made) => [this.box(made.id)]);
  }

  /** The same as `createSandboxes`. */
  createSandbox(what: wire.CreateSandbox = {}, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.createSandboxes(what, options);
  }

  updateSandbox(name: string, what: wire.UpdateSandbox, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.transport.json({ method: "PATCH", path: this.box(name), json: what, ...options });
  }

  async deleteSandbox(name: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: this.box(name), ...options });
  }

  // ---- Life ----

  startSandbox(name: string, what: { cold?: boolean } = {}, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.post(this.box(name, "/start"), what, options);
  }

  /** Keeps memory and disk, so that a start goes on where it was. */
  stopSandbox(name: string, what: { memory?: boolean; force?: boolean } = {}, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.transport.json({ method: "POST", path: this.box(name, "/stop"), json: what, repeat: true, ...options });
  }

  pauseSandbox(name: string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.post(this.box(name, "/pause"), {}, options);
  }

  /** The same as `pauseSandbox`. */
  pause(name: string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.pauseSandbox(name, options);
  }

  resumeSandbox(name: string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.post(this.box(name, "/resume"), {}, options);
  }

  /** The same as `resumeSandbox`. */
  resume(name: string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.resumeSandbox(name, options);
  }

  /** Puts disks and memory back to a snapshot; what was before is gone. */
  restoreSandbox(name: string, what: { snapshot: string } | string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.post(this.box(name, "/restore"), typeof what === "string" ? { snapshot: what } : what, options);
  }

  /** The same as `restoreSandbox`. */
  restore(name: string, what: { snapshot: string } | string, options: CallOptions = {}): Promise<wire.Sandbox> {
    return this.restoreSandbox(name, what, options);
  }

  /** Keeps a running machine's instant, memory and all; the machine runs on. */
  snapshot(name: string, what: wire.CreateSnapshot = {}, options: CallOptions = {}): Promise<wire.Snapshot> {
    return this.post(this.box(name, "/snapshots"), what, options, true, what.name ? undefined : unmakeSnapshot);
  }

  /** Running copies; all of them, or none. */
  forkSandbox(name: string, what: wire.Fork = {}, options: CallOptions = {}): Promise<wire.ForkResult> {
    const unmake = (made: wire.ForkResult): string[] => made.children.map((child) => this.box(child.id));
    return this.post(this.box(name, "/fork"), what, options, true, what.names?.length ? undefined : unmake);
  }

  /** Of a fork's children keeps this one. */
  promoteSandbox(name: string, what: wire.Promote = {}, options: CallOptions = {}): Promise<wire.PromoteResult> {
    return this.post(this.box(name, "/promote"), what, options);
  }

  /** The same as `promoteSandbox`. */
  promote(name: string, what: wire.Promote = {}, options: CallOptions = {}): Promise<wire.PromoteResult> {
    return this.promoteSandbox(name, what, options);
  }

  /**
   * Waits until the sandbox is in this state (`deleted`: until it is gone). Asks once and then listens to its events; a
   * sandbox that failed ends the wait with its reason. `timeoutMs` bounds the wait.
   */
  async waitUntil(name: string, state: wire.SandboxState | "deleted", options: CallOptions = {}): Promise<wire.Sandbox | undefined> {
    const limitMs = options.timeoutMs ?? this.transport.timeoutMs;
    const late = new AbortController();
    const error = new RametError(`sandbox ${name} was not ${state} within ${limitMs} ms`, { code: "client.timeout" });
    const timer = limitMs === Infinity ? undefined : setTimeout(() => late.abort(error), limitMs);
    const stop = (): void => late.abort(options.signal?.reason);
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    let events: EventStream | undefined;
    try {
      const inTime = { signal: late.signal };
      events = await this.sandboxEvents(name, inTime).open();
      const look = async (): Promise<wire.Sandbox | undefined> => {
        const box = await this.getSandbox(name, inTime);
        if (box.state === "failed" && state !== "failed" && state !== "deleted") {
          throw new RametError(`sandbox ${name} failed${box.reason === undefined ? "" : ": " + box.reason}`, { code: "sandbox.failed" });
        }
        return box.state === state ? box : undefined;
      };
      let found = await look();
      if (found !== undefined) return found;
      for await (const event of events) {
        if (event.event === "removed" || event.event === "state") found = await look();
        if (found !== undefined) return found;
      }
      found = await look();
      if (found !== undefined) return found;
      throw new RametError(`the events of sandbox ${name} ended before it was ${state}`, { code: "client.stream_broken" });
    } catch (failure) {
      if (state === "deleted" && failure instanceof RametError && failure.status === 404) return undefined;
      throw failure;
    } finally {
      events?.close();
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", stop);
    }
  }

  // ---- What happened, and what it uses ----

  /** What happens from now on, to all sandboxes; goes on over broken connections without loss. */
  events(options: CallOptions & StreamOptions = {}): EventStream<wire.SandboxEvent> {
    const call = { method: "GET", path: "/v1/events", query: { follow: 1 }, signal: options.signal };
    return new EventStream(this.transport, call, EVENTS, options);
  }

  sandboxEvents(name: string, options: CallOptions & StreamOptions = {}): EventStream<wire.SandboxEvent> {
    const call = { method: "GET", path: this.box(name, "/events"), query: { follow: 1 }, signal: options.signal };
    return new EventStream(this.transport, call, { ...EVENTS, last: ["removed"] }, options);
  }

  /** What is kept of what happened to all sandboxes. */
  async pastEvents(options: CallOptions = {}): Promise<wire.LifeEvent[]> {
    return (await this.get<{ events: wire.LifeEvent[] }>("/v1/events", options, { follow: 0 })).events;
  }

  async pastSandboxEvents(name: string, options: CallOptions = {}): Promise<wire.LifeEvent[]> {
    return (await this.get<{ events: wire.LifeEvent[] }>(this.box(name, "/events"), options, { follow: 0 })).events;
  }

  /** The end of what the guest wrote to its console. */
  sandboxLogs(name: string, what: { tailBytes?: number } = {}, options: CallOptions = {}): Promise<string> {
    const query = { tail_bytes: what.tailBytes };
    return this.transport.text({ method: "GET", path: this.box(name, "/logs"), query, ...options });
  }

  /** Its console as it is written: what is kept, then each line as it comes, until the sandbox is removed. */
  sandboxLogsStream(name: string, options: CallOptions & StreamOptions = {}): EventStream<wire.ConsoleEvent> {
    const call = { method: "GET", path: this.box(name, "/logs"), query: { follow: 1 }, signal: options.signal };
    return new EventStream(this.transport, call, { last: [], errors: ["error"], mayEnd: true }, options);
  }

  /** What one sandbox uses: memory, disk, processors. */
  sandboxMetrics(name: string, options: CallOptions = {}): Promise<wire.Metrics> {
    return this.get(this.box(name, "/metrics"), options);
  }
}
