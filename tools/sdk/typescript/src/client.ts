// SPDX-License-Identifier: Apache-2.0
// Ramet: every call of the API, one method each. Bodies and answers are the wire's own, so that vmglue/API.md is their
// description too; objects with methods of their own are in sandbox.ts.
import { RametError } from "./errors.js";
import { EventStream, type StreamOptions } from "./stream.js";
import type { CallOptions } from "./transport.js";
import type * as wire from "./types.js";
import { bodyOf, type FileData, RametFiles } from "./client_files.js";
import { part, unmakeSnapshot } from "./client_sandboxes.js";
import { openPty, type Pty, type PtyRequest } from "./pty.js";
import { openPort, type PortConnection } from "./port.js";

/** A transfer by NBD; it lasts until `close`, and what was not committed then is gone. */
export interface Transfer {
  /** Names an import for commitImport and cancelImport. */
  import?: string;
  /** On the daemon's host. */
  socket: string;
  size_bytes: number;
  close(): void;
}

export class Ramet extends RametFiles {
  /** A terminal in the sandbox, over a WebSocket. */
  async openPty(name: string, what: PtyRequest = {}, options: CallOptions = {}): Promise<Pty> {
    try {
      return await openPty(this.transport, this.box(name, "/exec/pty"), what, options);
    } catch (error) {
      // Browsers keep to themselves why a WebSocket was refused; a plain call says it.
      if (error instanceof RametError && error.code === "client.refused") {
        const box = await this.getSandbox(name, options);
        if (box.state !== "running") throw new RametError(`sandbox ${name} is ${box.state}`, { code: "pty.invalid_state", cause: error });
      }
      throw error;
    }
  }

  /** Node: a connection to a port of the sandbox's own 127.0.0.1; it needs no network in the guest. */
  openPort(name: string, port: number, options: CallOptions = {}): Promise<PortConnection> {
    return openPort(this.transport, this.box(name, `/ports/${part(String(port))}`), options);
  }

  // ---- Snapshots ----

  async listSnapshots(options: CallOptions = {}): Promise<wire.Snapshot[]> {
    return (await this.get<{ snapshots: wire.Snapshot[] }>("/v1/snapshots", options)).snapshots;
  }

  /** With `wait` when it survives power loss. */
  getSnapshot(name: string, what: { wait?: boolean } = {}, options: CallOptions = {}): Promise<wire.Snapshot> {
    return this.get(`/v1/snapshots/${part(name)}`, options, { wait: what.wait ? 1 : undefined });
  }

  updateSnapshot(name: string, what: { name?: string; labels?: wire.Labels }, options: CallOptions = {}): Promise<wire.Snapshot> {
    return this.transport.json({ method: "PATCH", path: `/v1/snapshots/${part(name)}`, json: what, ...options });
  }

  async deleteSnapshot(name: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/snapshots/${part(name)}`, ...options });
  }

  // ---- Templates ----

  async listTemplates(options: CallOptions = {}): Promise<wire.Template[]> {
    return (await this.get<{ templates: wire.Template[] }>("/v1/templates", options)).templates;
  }

  getTemplate(name: string, options: CallOptions = {}): Promise<wire.Template> {
    return this.get(`/v1/templates/${part(name)}`, options);
  }

  /** Begins a build; `waitBuild` waits for its end. */
  createTemplate(what: wire.BuildTemplate, options: CallOptions = {}): Promise<wire.Build> {
    return this.post("/v1/templates", what, options, true);
  }

  async deleteTemplate(name: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/templates/${part(name)}`, ...options });
  }

  async templateLog(name: string, options: CallOptions = {}): Promise<string> {
    return (await this.get<{ log: string }>(`/v1/templates/${part(name)}/log`, options)).log;
  }

  async listBuilds(options: CallOptions = {}): Promise<wire.Build[]> {
    return (await this.get<{ builds: wire.Build[] }>("/v1/templates/builds", options)).builds;
  }

  getBuild(id: string, options: CallOptions = {}): Promise<wire.Build> {
    return this.get(`/v1/templates/builds/${part(id)}`, options);
  }

  cancelBuild(id: string, options: CallOptions = {}): Promise<wire.Build> {
    return this.transport.json({ method: "DELETE", path: `/v1/templates/builds/${part(id)}`, ...options });
  }

  /** The build's log as it grows, and at last the build. */
  buildLogs(id: string, what: { follow?: boolean } = {}, options: CallOptions & StreamOptions = {}): EventStream<wire.BuildLogEvent> {
    const query = { follow: (what.follow ?? true) ? 1 : undefined };
    const call = { method: "GET", path: `/v1/templates/builds/${part(id)}/logs`, query, signal: options.signal };
    return new EventStream(this.transport, call, { last: ["build"], errors: ["error"] }, options);
  }

  /** Waits for a build's end; one that failed is an error with its reason. */
  async waitBuild(id: string, options: CallOptions & { onLog?: (text: string) => void } = {}): Promise<wire.Build> {
    let build = await this.getBuild(id, { signal: options.signal });
    for await (const event of this.buildLogs(id, {}, { signal: options.signal })) {
      if (event.event === "log") options.onLog?.(event.data.text);
      else build = event.data;
    }
    if (build.state === "failed") {
      throw new RametError(`the build of ${build.name} failed: ${build.error?.message ?? "no reason was given"}`, {
        code: build.error?.code ?? "template.failed",
      });
    }
    return build;
  }

  /** Bytes that a build's `tar` or `oci` then names. */
  async uploadTemplate(data: FileData, options: CallOptions = {}): Promise<{ upload: string; size_bytes: number }> {
    const { body, size } = await bodyOf(data);
    return this.transport.json({ method: "PUT", path: "/v1/templates/uploads", body, ...this.timeOfBody(size, options) });
  }

  async deleteUpload(id: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/templates/uploads/${part(id)}`, ...options });
  }

  // ---- Volumes ----

  async listVolumes(what: { all?: boolean } = {}, options: CallOptions = {}): Promise<wire.Volume[]> {
    return (await this.get<{ volumes: wire.Volume[] }>("/v1/volumes", options, { all: what.all ? 1 : undefined })).volumes;
  }

  createVolume(what: { name: string; size_bytes?: number; from?: string }, options: CallOptions = {}): Promise<wire.Volume> {
    return this.post("/v1/volumes", what, options, true);
  }

  getVolume(name: string, options: CallOptions = {}): Promise<wire.Volume> {
    return this.get(`/v1/volumes/${part(name)}`, options);
  }

  updateVolume(name: string, what: { size_bytes?: number; name?: string }, options: CallOptions = {}): Promise<wire.Volume> {
    return this.transport.json({ method: "PATCH", path: `/v1/volumes/${part(name)}`, json: what, ...options });
  }

  async deleteVolume(name: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/volumes/${part(name)}`, ...options });
  }

  forkVolume(name: string, to: string, options: CallOptions = {}): Promise<wire.Volume> {
    return this.post(`/v1/volumes/${part(name)}/fork`, { name: to }, options, true);
  }

  snapshotVolume(name: string, what: { name?: string } = {}, options: CallOptions = {}): Promise<wire.Snapshot> {
    return this.post(`/v1/volumes/${part(name)}/snapshots`, what, options, true, what.name ? undefined : unmakeSnapshot);
  }

  diffVolume(
    name: string,
    from: string,
    options: CallOptions = {},
  ): Promise<wire.Diff> {
    return this.get(`/v1/volumes/${part(name)}/diff`, options, { from });
  }

  mapVolume(name: string, options: CallOptions = {}): Promise<wire.VolumeMap> {
    return this.get(`/v1/volumes/${part(name)}/map`, options);
  }

  /** Raw bytes into a new volume. */
  async writeVolume(name: string, data: FileData, what: { sizeBytes?: number } = {}, options: CallOptions = {}): Promise<wire.Volume> {
    const { body, size } = await bodyOf(data);
    const query = { size_bytes: what.sizeBytes ?? size };
    const path = `/v1/volumes/${part(name)}/content`;
    return this.transport.json({ method: "PUT", path, query, body, ...this.timeOfBody(size, options) });
  }

  async readVolume(name: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    return (await this.transport.stream({ method: "GET", path: `/v1/volumes/${part(name)}/content`, ...options })).body;
  }

  // ---- Archives and transfers ----

  /** Volumes and snapshots with all that they consist of, as one stream of bytes. */
  async exportArchive(names: readonly string[], options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    return (await this.transport.stream({ method: "POST", path: "/v1/store/export", json: { names }, repeat: true, ...options })).body;
  }

  async importArchive(
    data: FileData,
    what: { prefix?: string } = {},
    options: CallOptions = {},
  ): Promise<{ volumes: wire.Volume[]; snapshots: wire.Snapshot[]; data_bytes: number; archive_bytes: number }> {
    const { body, size } = await bodyOf(data);
    return this.transport.json({ method: "POST", path: "/v1/store/import", query: what, body, ...this.timeOfBody(size, options) });
  }

  async #transfer(path: string, json: unknown, options: CallOptions): Promise<Transfer> {
    const call = { method: "POST", path, json, signal: options.signal };
    const events = new EventStream<{ event: string; data: Omit<Transfer, "close"> }>(this.transport, call, {
      last: [],
      errors: ["error"],
      mayEnd: true,
    });
    const next = await events[Symbol.asyncIterator]().next();
    if (next.done || next.value.event !== "ready") {
      events.close();
      throw new RametError("the transfer ended before it was ready", { code: "client.protocol" });
    }
    return { ...next.value.data, close: () => events.close() };
  }

  /** A volume to be written over NBD, on the daemon's host. */
  openImport(what: { name: string; size_bytes: number }, options: CallOptions = {}): Promise<Transfer> {
    return this.#transfer("/v1/imports", what, options);
  }

  commitImport(id: string, options: CallOptions = {}): Promise<wire.Volume> {
    return this.post(`/v1/imports/${part(id)}/commit`, {}, options);
  }

  async cancelImport(id: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/imports/${part(id)}`, ...options });
  }

  /** A volume's instant to be read over NBD, on the daemon's host. */
  openExport(what: { name: string }, options: CallOptions = {}): Promise<Transfer> {
    return this.#transfer("/v1/exports", what, options);
  }

  // ---- The store ----

  store(options: CallOptions = {}): Promise<wire.Store> {
    return this.get("/v1/store", options);
  }

  /** The tree of snapshots and forks. */
  storeLineage(options: CallOptions = {}): Promise<{ nodes: wire.LineageNode[] }> {
    return this.get("/v1/store/lineage", options);
  }

  storeSeal(options: CallOptions = {}): Promise<Record<string, never>> {
    return this.transport.json({ method: "POST", path: "/v1/store/seal", json: {}, repeat: true, ...options });
  }

  storeGc(what: { recompress?: boolean } = {}, options: CallOptions = {}): Promise<Record<string, number>> {
    return this.post("/v1/store/gc", what, options);
  }

  storeScrub(options: CallOptions = {}): Promise<{ damages: number; damaged: string[]; [field: string]: unknown }> {
    return this.post("/v1/store/scrub", {}, options);
  }

  storeCheck(options: CallOptions = {}): Promise<{ damages: number; damaged: string[]; [field: string]: unknown }> {
    return this.post("/v1/store/check", {}, options);
  }

  memory(options: CallOptions = {}): Promise<wire.Memory> {
    return this.get("/v1/memory", options);
  }

  pool(options: CallOptions = {}): Promise<wire.Pool> {
    return this.get("/v1/pool", options);
  }

  // ---- Keys, exposed ports, environment ----

  /** The answer is the only one that has the key itself. */
  createKey(what: { name: string; preset?: wire.Preset; expires_in_secs?: number }, options: CallOptions = {}): Promise<wire.CreatedKey> {
    return this.post("/v1/keys", what, options, true, (made: wire.CreatedKey) => [`/v1/keys/${part(made.id)}`]);
  }

  async listKeys(options: CallOptions = {}): Promise<wire.Key[]> {
    return (await this.get<{ keys: wire.Key[] }>("/v1/keys", options)).keys;
  }

  getKey(id: string, options: CallOptions = {}): Promise<wire.Key> {
    return this.get(`/v1/keys/${part(id)}`, options);
  }

  /** Revokes it at once. */
  async deleteKey(id: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: `/v1/keys/${part(id)}`, ...options });
  }

  /** Who asks: with which key. */
  me(options: CallOptions = {}): Promise<{ name: string | null; owner: boolean; key: wire.Key | null }> {
    return this.get("/v1/me", options);
  }

  /** What commands of every sandbox have in their environment unless it was made with `environment: false`. */
  async getEnvironment(options: CallOptions = {}): Promise<wire.Environment> {
    return (await this.get<{ env: wire.Environment }>("/v1/environment", options)).env;
  }

  /** In place of what was there. */
  async setEnvironment(env: wire.Environment, options: CallOptions = {}): Promise<wire.Environment> {
    const call = { method: "PUT", path: "/v1/environment", json: { env }, ...options };
    return (await this.transport.json<{ env: wire.Environment }>(call)).env;
  }

  /** Sets what is a string, removes what is null. */
  async updateEnvironment(env: Record<string, string | null>, options: CallOptions = {}): Promise<wire.Environment> {
    const call = { method: "PATCH", path: "/v1/environment", json: { env }, ...options };
    return (await this.transport.json<{ env: wire.Environment }>(call)).env;
  }

  /** The TCP ports on which something in the sandbox listens. */
  async listPorts(name: string, options: CallOptions = {}): Promise<wire.Port[]> {
    return (await this.get<{ ports: wire.Port[] }>(this.box(name, "/ports"), options)).ports;
  }

  /** A URL that reaches a server inside the sandbox. */
  createUrl(name: string, what: { host_port: number; ttl_secs?: number }, options: CallOptions = {}): Promise<wire.CreatedUrl> {
    return this.post(this.box(name, "/urls"), what, options, true, (made: wire.CreatedUrl) => [this.box(name, `/urls/${part(made.id)}`)]);
  }

  async listUrls(name: string, options: CallOptions = {}): Promise<wire.Url[]> {
    return (await this.get<{ urls: wire.Url[] }>(this.box(name, "/urls"), options)).urls;
  }

  async deleteUrl(name: string, id: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: this.box(name, `/urls/${part(id)}`), ...options });
  }
}
