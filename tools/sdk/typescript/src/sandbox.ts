// SPDX-License-Identifier: Apache-2.0
// A sandbox as an object. Names here are camelCase throughout; `info` is the server's own description, as it last came.
import { Ramet } from "./client.js";
import { CodeContext, type Execution, type RunOptions } from "./code.js";
import { RametError } from "./errors.js";
import { explore, type Candidate, type ExploreOptions, type ExploreResult } from "./explore.js";
import { toBase64 } from "./gather.js";
import type { Pty, PtyRequest } from "./pty.js";
import { SandboxFiles } from "./sandbox_files.js";
import type { EventStream } from "./stream.js";
import type { RametOptions } from "./transport.js";
import type * as wire from "./types.js";

/** Where a client is made from these, or is given. */
export type ClientOption = Ramet | RametOptions;

function clientOf(option: ClientOption | undefined): Ramet {
  return option instanceof Ramet ? option : new Ramet(option ?? {});
}

export interface CreateOptions {
  name?: string;
  /** A template, snapshot or volume. */
  from?: string;
  /** The same as `from`, for those who think of a template. */
  template?: string;
  /** The same as `from`, for those who think of a snapshot. */
  fromSnapshot?: string;
  size?: "small" | "default" | "large";
  cpus?: number;
  memoryMb?: number;
  diskGb?: number;
  network?: wire.Network;
  labels?: wire.Labels;
  /** The same as `labels`. */
  metadata?: wire.Labels;
  env?: wire.Environment;
  /** false: without the server's default environment. */
  environment?: boolean;
  /** Stops it, with its memory, so long after its start. */
  ttlSecs?: number;
  ttlSeconds?: number;
  idleSecs?: number;
  idleSeconds?: number;
  persistent?: boolean;
  /** What ttlSecs and idleSecs do: `stop` (with its memory, the default) or `delete`. */
  onTimeout?: "stop" | "delete";
  /** Calls into it start it when it is stopped. */
  autoStart?: boolean;
  disks?: wire.DiskRequest[];
  signal?: AbortSignal;
  /** Makes the call once, however often it is sent with this key. */
  idempotencyKey?: string;
  client?: ClientOption;
}

export interface ExecOptions {
  timeoutSecs?: number;
  timeoutSeconds?: number;
  cwd?: string;
  env?: wire.Environment;
  user?: string;
  stdin?: string | Uint8Array;
  /** Another exit code than 0 is thrown as CommandError. */
  check?: boolean;
  signal?: AbortSignal;
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
}

export interface CommandResult {
  stdout: string;
  stderr: string;
  exitCode: number;
  timedOut: boolean;
  truncated: boolean;
  durationMs: number;
  signal: number | undefined;
  outOfMemory: boolean;
}

/** A command ended with another exit code than 0, and `check` was asked for. */
export class CommandError extends RametError {
  readonly result: CommandResult;

  constructor(command: string, result: CommandResult) {
    const last = result.stderr.trimEnd().split("\n").at(-1) ?? "";
    super(`'${command}' ended with ${result.timedOut ? "a time-out" : result.exitCode}${last === "" ? "" : ": " + last}`, {
      code: "command.failed",
    });
    this.name = "CommandError";
    this.result = result;
  }
}

function execBody(command: string, options: ExecOptions): wire.Exec {
  const timeout = options.timeoutSecs ?? options.timeoutSeconds;
  return {
    command,
    ...(timeout === undefined ? {} : { timeout_secs: timeout }),
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...(options.env === undefined ? {} : { env: options.env }),
    ...(options.user === undefined ? {} : { user: options.user }),
    ...(options.stdin === undefined ? {} : typeof options.stdin === "string" ? { stdin: options.stdin } : { stdin_base64: toBase64(options.stdin) }),
  };
}

function createBody(options: CreateOptions): wire.CreateSandbox {
  const from = options.from ?? options.fromSnapshot ?? options.template;
  const ways = [options.from, options.fromSnapshot, options.template].filter((one) => one !== undefined);
  if (new Set(ways).size > 1) {
    throw new RametError("from, template and fromSnapshot mean the same: give one of them", { code: "client.usage" });
  }
  const body: Record<string, unknown> = {
    name: options.name, from, size: options.size, cpus: options.cpus, memory_mb: options.memoryMb, disk_gb: options.diskGb,
    network: options.network, labels: options.labels ?? options.metadata, env: options.env, environment: options.environment,
    ttl_secs: options.ttlSecs ?? options.ttlSeconds, idle_secs: options.idleSecs ?? options.idleSeconds,
    persistent: options.persistent, on_timeout: options.onTimeout, auto_start: options.autoStart, disks: options.disks,
  };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined)) as wire.CreateSandbox;
}

export class Sandbox implements AsyncDisposable {
  /** The server's description, as it last came; `refresh()` asks anew. */
  info: wire.Sandbox;
  readonly client: Ramet;
  readonly files: SandboxFiles;
  /** `commands.run` is `exec`. */
  readonly commands: { run(command: string, options?: ExecOptions): Promise<CommandResult> };

  /** Not for users: Sandbox.create, .get, .list. */
  constructor(client: Ramet, info: wire.Sandbox) {
    this.client = client;
    this.info = info;
    this.files = new SandboxFiles(client, info.id);
    this.commands = { run: (command, options = {}) => this.exec(command, options) };
  }

  /** The same as `files`. */
  get filesystem(): SandboxFiles {
    return this.files;
  }

  static async create(options: CreateOptions = {}): Promise<Sandbox> {
    const client = clientOf(options.client);
    const call = { signal: options.signal, idempotencyKey: options.idempotencyKey };
    return new Sandbox(client, await client.createSandboxes(createBody(options), call));
  }

  static async get(name: string, client?: ClientOption): Promise<Sandbox> {
    const found = clientOf(client);
    return new Sandbox(found, await found.getSandbox(name));
  }

  static async list(where: { state?: wire.SandboxState; label?: string } = {}, client?: ClientOption): Promise<Sandbox[]> {
    const found = clientOf(client);
    return (await found.listSandboxes(where)).map((info) => new Sandbox(found, info));
  }

  get id(): string {
    return this.info.id;
  }
  get name(): string {
    return this.info.name;
  }
  /** As it last came. */
  get state(): wire.SandboxState {
    return this.info.state;
  }
  get status(): wire.SandboxState {
    return this.info.state;
  }
  get labels(): wire.Labels {
    return this.info.labels;
  }

  async #now(answer: Promise<wire.Sandbox>): Promise<this> {
    this.info = await answer;
    return this;
  }

  refresh(): Promise<this> {
    return this.#now(this.client.getSandbox(this.id));
  }

  // ---- Commands and code ----

  /** Runs a command for /bin/bash to its end. */
  async exec(command: string, options: ExecOptions = {}): Promise<CommandResult> {
    const body = execBody(command, options);
    const listens = options.onStdout !== undefined || options.onStderr !== undefined;
    const raw = await this.client.exec(this.id, body, {
      signal: options.signal,
      ...(listens
        ? {
            onEvent: (event: wire.ExecEvent): void => {
              if (event.event === "stdout") options.onStdout?.(event.data.text);
              else if (event.event === "stderr") options.onStderr?.(event.data.text);
            },
          }
        : {}),
    });
    const result: CommandResult = {
      stdout: raw.stdout,
      stderr: raw.stderr,
      exitCode: raw.exit_code,
      timedOut: raw.timed_out,
      truncated: raw.truncated,
      durationMs: raw.duration_ms,
      signal: raw.signal,
      outOfMemory: raw.out_of_memory ?? false,
    };
    if (options.check === true && (result.exitCode !== 0 || result.timedOut)) throw new CommandError(command, result);
    return result;
  }

  /** Output as it comes, at last one `exit`. */
  execStream(command: string, options: Omit<ExecOptions, "check" | "onStdout" | "onStderr"> = {}): EventStream<wire.ExecEvent> {
    return this.client.execStream(this.id, execBody(command, options), { signal: options.signal });
  }

  /** A command that goes on when its caller leaves. */
  startJob(command: string, options: Pick<ExecOptions, "timeoutSecs" | "cwd" | "env" | "user" | "stdin"> & { name?: string } = {}): Promise<wire.Job> {
    const name = options.name === undefined ? {} : { name: options.name };
    return this.client.startJob(this.id, { ...execBody(command, options), ...name });
  }

  /** Code in the context that every sandbox has; `createCodeContext` makes others. */
  runCode(code: string, options: RunOptions & { language?: "python" | "bash" } = {}): Promise<Execution> {
    const language = options.language ?? "python";
    return this.context(language).runCode(code, options);
  }

  /** A process that keeps what code defines from one run to the next. */
  async createCodeContext(what: "python" | "bash" | wire.CreateContext = "python"): Promise<CodeContext> {
    const made = await this.client.createContext(this.id, typeof what === "string" ? { language: what } : what);
    return new CodeContext(this.client, this.id, made.id, made.language);
  }

  /** One by its id; `python` and `bash` are there without being made. Nothing is asked. */
  context(id = "python"): CodeContext {
    return new CodeContext(this.client, this.id, id, id === "bash" ? "bash" : "python");
  }

  /** One that is there already: after a resume, in a fork. */
  async getCodeContext(id: string): Promise<CodeContext> {
    const found = await this.client.getContext(this.id, id);
    return new CodeContext(this.client, this.id, found.id, found.language);
  }

  openPty(what: PtyRequest = {}, options: { signal?: AbortSignal } = {}): Promise<Pty> {
    return this.client.openPty(this.id, what, options);
  }

  // ---- Copies ----

  /** A running copy; with a number, so many. */
  fork(): Promise<Sandbox>;
  fork(count: number, what?: Omit<wire.Fork, "count">): Promise<Sandbox[]>;
  async fork(count?: number, what: Omit<wire.Fork, "count"> = {}): Promise<Sandbox | Sandbox[]> {
    const made = await this.client.forkSandbox(this.id, { count: count ?? 1, ...what });
    const children = made.children.map((child) => new Sandbox(this.client, child));
    return count === undefined ? children[0]! : children;
  }

  /** Of its siblings keeps this one. */
  promote(what: wire.Promote = {}): Promise<wire.PromoteResult> {
    return this.client.promoteSandbox(this.id, what);
  }

  /** Forks once for each candidate, runs them all, scores them, keeps the best: explore.ts. */
  explore(candidates: readonly (string | Candidate)[], options: ExploreOptions = {}): Promise<ExploreResult> {
    return explore(this, candidates, options);
  }

  snapshot(what: wire.CreateSnapshot | string = {}): Promise<wire.Snapshot> {
    return this.client.snapshot(this.id, typeof what === "string" ? { name: what } : what);
  }

  restore(snapshot: string): Promise<this> {
    return this.#now(this.client.restoreSandbox(this.id, snapshot));
  }

  // ---- Life ----

  pause(): Promise<this> {
    return this.#now(this.client.pauseSandbox(this.id));
  }
  resume(): Promise<this> {
    return this.#now(this.client.resumeSandbox(this.id));
  }
  /** With its memory: `start` goes on where it was. */
  stop(what: { memory?: boolean; force?: boolean } = {}): Promise<this> {
    return this.#now(this.client.stopSandbox(this.id, what));
  }
  start(what: { cold?: boolean } = {}): Promise<this> {
    return this.#now(this.client.startSandbox(this.id, what));
  }
  /** The same as `stop`. */
  hibernate(): Promise<this> {
    return this.stop();
  }
  /** The same as `start`. */
  wake(): Promise<this> {
    return this.start();
  }
  update(what: wire.UpdateSandbox): Promise<this> {
    return this.#now(this.client.updateSandbox(this.id, what));
  }
  setTtl(seconds: number): Promise<this> {
    return this.update({ ttl_secs: seconds });
  }
  setPersistent(persistent: boolean): Promise<this> {
    return this.update({ persistent });
  }
  async waitUntil(state: wire.SandboxState, options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<this> {
    this.info = (await this.client.waitUntil(this.id, state, options))!;
    return this;
  }
  /** Removes it; one that is gone already is fine. Its snapshots and forks stay. */
  async kill(): Promise<void> {
    try {
      await this.client.deleteSandbox(this.id);
    } catch (error) {
      if (!(error instanceof RametError && error.status === 404)) throw error;
    }
  }
  /** The same as `kill`. */
  delete(): Promise<void> {
    return this.kill();
  }

  // ---- Around it ----

  /** A URL that reaches a server inside. */
  url(port: number, what: { ttlSecs?: number } = {}): Promise<wire.CreatedUrl> {
    return this.client.createUrl(this.id, what.ttlSecs === undefined ? { host_port: port } : { host_port: port, ttl_secs: what.ttlSecs });
  }
  logs(what: { tailBytes?: number } = {}): Promise<string> {
    return this.client.sandboxLogs(this.id, what);
  }
  events(options: { signal?: AbortSignal; lastEventId?: string } = {}): EventStream<wire.SandboxEvent> {
    return this.client.sandboxEvents(this.id, options);
  }
  metrics(): Promise<wire.Metrics> {
    return this.client.sandboxMetrics(this.id);
  }

  /** `await using sandbox = ...` removes it at the end of the block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}
