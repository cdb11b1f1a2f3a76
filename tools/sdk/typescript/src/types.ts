// SPDX-License-Identifier: Apache-2.0
// What goes over the wire, with the wire's own names (vmglue/API.md says what each means). Answers may hold more fields
// than are listed here. `_secs`, `_ms`, `_bytes` are units; times are RFC 3339.

export type Labels = Record<string, string>;
export type Environment = Record<string, string>;
export type Network = "full" | "none" | { allow: string[] };
export type SandboxState =
  | "creating" | "starting" | "running" | "paused" | "stopping" | "stopped" | "failed" | "removing";

export interface Disk {
  name: string;
  from: string | null;
  size_bytes: number;
  read_only: boolean;
  mount: string | null;
}

export interface DiskRequest {
  volume?: string;
  size_gb?: number;
  read_only?: boolean;
  mount?: string;
}

/** What commands have when a call leaves it out. */
export interface Defaults {
  user?: string;
  cwd?: string;
  command?: string;
  env?: Environment;
}

export interface Sandbox {
  id: string;
  name: string;
  state: SandboxState;
  from: string;
  labels: Labels;
  cpus: number;
  memory_mb: number;
  disk_bytes?: number;
  network: Network;
  /** "" while it is created. */
  start_mode: "cold" | "resume" | "fork" | "pool" | "restore" | "";
  created_at: string;
  ready_ms: number;
  ttl_secs: number | null;
  idle_secs: number | null;
  persistent: boolean;
  on_timeout: "stop" | "delete";
  auto_start: boolean;
  expires_at: string | null;
  pid?: number;
  accel?: string;
  memory_kept?: boolean;
  reason?: string;
  notice?: string;
  /** Whether it has the server's default environment. */
  environment: boolean;
  /** The change that is under way. */
  doing?: string;
  defaults?: Defaults;
  tree_id?: string;
  parent_id?: string;
  /** The id of the `ci` key that made it. */
  owner?: string;
  disks?: Disk[];
  memory?: SandboxMemory;
}

export interface SandboxMemory {
  private_bytes: number;
  shared_bytes: number;
  shared_part_bytes: number;
  swapped_bytes: number;
  vmm_bytes: number;
  counted_bytes: number;
  age_ms: number;
}

export interface CreateSandbox {
  name?: string;
  /** A template, snapshot or volume; default `agent-base`. */
  from?: string;
  size?: "small" | "default" | "large";
  cpus?: number;
  memory_mb?: number;
  disk_gb?: number;
  network?: Network;
  labels?: Labels;
  env?: Environment;
  /** false: without the server's default environment. */
  environment?: boolean;
  ttl_secs?: number;
  idle_secs?: number;
  persistent?: boolean;
  on_timeout?: "stop" | "delete";
  auto_start?: boolean;
  disks?: DiskRequest[];
}

export interface UpdateSandbox {
  name?: string;
  labels?: Labels;
  env?: Environment;
  network?: Network;
  ttl_secs?: number;
  idle_secs?: number;
  persistent?: boolean;
  on_timeout?: "stop" | "delete";
  auto_start?: boolean;
}

export interface Exec {
  command?: string;
  timeout_secs?: number;
  cwd?: string;
  env?: Environment;
  user?: string;
  stdin?: string;
  stdin_base64?: string;
  /** Also gives the exact bytes, as `stdout_base64` and `stderr_base64`. */
  encoding?: "base64";
}

export interface ExecEnd {
  exit_code: number;
  timed_out: boolean;
  truncated: boolean;
  duration_ms: number;
  signal?: number;
  out_of_memory?: boolean;
}

export interface ExecResult extends ExecEnd {
  stdout: string;
  stderr: string;
  stdout_base64?: string;
  stderr_base64?: string;
}

export type ExecEvent =
  | { event: "stdout" | "stderr"; data: { text: string; base64?: string } }
  | { event: "exit"; data: ExecEnd };

export interface StartJob extends Exec {
  name?: string;
}

export interface Job {
  id: number;
  name: string | null;
  command: string;
  state: "running" | "ended";
  pid: number;
  started_at: string | null;
  ended_at: string | null;
  duration_ms: number;
  stdout: { first_offset: number; next_offset: number };
  stderr: { first_offset: number; next_offset: number };
  exit_code?: number;
  timed_out?: boolean;
  signal?: number;
  out_of_memory?: boolean;
}

export type JobLogEvent =
  | { event: "stdout" | "stderr"; id?: string; data: { text: string; offset: number; base64?: string } }
  | { event: "gap"; id?: string; data: { stream: "stdout" | "stderr"; from: number; to: number } }
  | { event: "end"; id?: string; data: Job };

export interface FileEntry {
  name: string;
  type: "file" | "dir" | "link" | "other";
  size: number;
  mode: string;
  uid: number;
  gid: number;
  /** null: a time that no calendar has. */
  modified_at: string | null;
}

export type WatchEvent =
  | { event: "ready" | "overflow" | "end"; data: Record<string, unknown> }
  | { event: "created" | "changed" | "attributes" | "removed"; data: { path: string } }
  | { event: "moved"; data: { path: string; to: string } };

export interface CreateContext {
  id?: string;
  language?: "python" | "bash";
  cwd?: string;
  user?: string;
  env?: Environment;
}

export interface Context {
  id: string;
  language: string;
  state: "starting" | "idle" | "busy" | "unavailable" | "ended";
  created_at: string;
  execution_count?: number;
  queued?: number;
  reason?: string;
}

export interface RunCode {
  code: string;
  timeout_secs?: number;
}

export interface ResultData {
  type?: "result" | "display";
  text?: string;
  html?: string;
  markdown?: string;
  svg?: string;
  /** png, jpeg and pdf are base64. */
  png?: string;
  jpeg?: string;
  pdf?: string;
  latex?: string;
  json?: unknown;
  javascript?: string;
  plotly?: unknown;
  extra?: Record<string, unknown>;
  display_id?: string;
  truncated?: boolean;
}

export interface CodeError {
  name: string;
  value: string;
  traceback: string;
}

export interface ExecutionEnd {
  execution_count: number | null;
  duration_ms: number;
  timed_out: boolean;
  interrupted: boolean;
  truncated: boolean;
  state_lost: string | null;
  exit_code?: number;
  signal?: number;
  out_of_memory?: boolean;
}

export interface ExecutionData extends ExecutionEnd {
  stdout: string;
  stderr: string;
  text: string | null;
  error: CodeError | null;
  results: ResultData[];
}

export type RunEvent =
  | { event: "started"; data: { execution_count: number | null } }
  | { event: "stdout" | "stderr"; data: { text: string } }
  | { event: "result" | "display" | "update_display"; data: ResultData }
  | { event: "clear"; data: { wait: boolean } }
  | { event: "error"; data: CodeError }
  | { event: "done"; data: ExecutionEnd & Partial<ExecutionData> };

/** What happened. A `gap` has only `message`: events before the next one are not known any more. */
export interface LifeEvent {
  type: string;
  time: string;
  sandbox: string;
  sandbox_id: string;
  /** In a list of past events; in a stream it is the event's own. */
  id?: string;
  owner?: string;
  message?: string;
  state?: SandboxState;
  before?: string;
  reason?: string | null;
  snapshot?: string;
  tree_id?: string;
  count?: number;
}

export type SandboxEvent = { event: string; id?: string; data: LifeEvent };

export interface CreateSnapshot {
  name?: string;
  labels?: Labels;
  /** Answers when it survives power loss. */
  wait?: boolean;
  best_effort?: boolean;
}

export interface Snapshot {
  id: string;
  name: string;
  kind: "disk" | "machine";
  state: "writing" | "ready";
  parent: string | null;
  logical_bytes: number;
  created_at: string;
  memory_bytes?: number;
  cpus?: number;
  memory_mb?: number;
  network?: Network;
  labels?: Labels;
  new_bytes?: number;
  shared_bytes?: number;
  pause_ms?: number;
  frozen_ms?: number;
  total_ms?: number;
  unique?: boolean;
  working_set?: boolean;
  /** The sandbox that it is an instant of. */
  parent_id?: string;
  owner?: string;
  template?: boolean;
  build?: BuildOf;
  defaults?: Defaults;
}

/** How a template was made. */
export interface BuildOf {
  id: string;
  source: string;
  warm: string;
  started_at: string | null;
}

export interface Fork {
  count?: number;
  names?: string[];
  labels?: Labels;
  env?: Environment;
  /** Also keeps the instant under this name. */
  snapshot?: string;
  best_effort?: boolean;
}

export interface ForkResult {
  tree_id: string;
  parent: string;
  snapshot: string | null;
  children: Sandbox[];
  pause_ms: number;
  frozen_ms: number;
  new_bytes: number;
}

export interface Promote {
  cleanup_siblings?: boolean;
  tree_id?: string;
  name?: string;
}

export interface PromoteResult {
  winner: Sandbox;
  tree_id: string;
  deleted: string[];
  failures: Record<string, string>;
}

export interface BuildTemplate {
  name: string;
  packages?: string[];
  base?: string;
  tar?: string;
  oci?: string;
  image?: string;
  import?: string;
  volume?: string;
  sandbox?: string;
  size?: "small" | "default" | "large";
  cpus?: number;
  memory_mb?: number;
  disk_gb?: number;
  network?: Network;
  labels?: Labels;
  env?: Environment;
  setup?: string[];
  warm?: "python" | "docker" | "none";
  warm_code?: string;
  replace?: boolean;
}

export interface Build {
  id: string;
  name: string;
  state: "queued" | "running" | "ready" | "failed";
  step: string;
  source: string;
  warm: string;
  cancelled: boolean;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  seconds?: number;
  error: { code: string; message: string } | null;
  log?: string;
  owner?: string;
}

export interface Template extends Snapshot {
  template: true;
  build: BuildOf;
}

export type BuildLogEvent = { event: "log"; data: { text: string } } | { event: "build"; data: Build };

export interface Volume {
  id: string;
  /** null: a disk or memory of something else, which is named in `sandbox` or `parent`. */
  name: string | null;
  kind: string;
  size_bytes: number;
  parent: string | null;
  sandbox: string | null;
  created_at: string;
  /** Of one that was written: what was added to make whole blocks. */
  padding_bytes?: number;
  notice?: string;
  owner?: string;
}

export interface Diff {
  from: string;
  to: string;
  ranges: Range[];
  changed_bytes: number;
}

export interface VolumeMap {
  name: string;
  size_bytes: number;
  ranges: Range[];
  data_bytes: number;
}

export interface Range {
  offset: number;
  length: number;
  kind: "data" | "zero" | "unmapped";
}

export type Preset = "admin" | "ci" | "read";

export interface Key {
  id: string;
  name: string;
  /** What the key begins with. */
  prefix: string;
  preset: Preset;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  created_by: string | null;
}

/** The only time that the key itself is shown. */
export interface CreatedKey extends Key {
  key: string;
}

export interface Url {
  id: string;
  host_port: number;
  created_at: string;
  expires_at: string | null;
}

/** The only time that the token, and what holds it, is shown. */
export interface CreatedUrl extends Url {
  token: string;
  path: string;
  /** null: the server listens on no TCP port. */
  url: string | null;
  host_url: string | null;
}

export interface Store {
  directory: string;
  id: string;
  state: string;
  logical_bytes: number;
  physical_bytes: number;
  reclaimable_bytes: number;
  [field: string]: unknown;
}

export interface Port {
  port: number;
  listening: boolean;
  /** At which it listens. */
  addresses: string[];
}

/** A line of a sandbox's console. */
export type ConsoleEvent = { event: "line"; data: { text: string } };

/** What a sandbox uses; null: not known, or it does not run. */
export interface Metrics {
  id: string;
  name: string;
  state: SandboxState;
  uptime_secs: number | null;
  cpu_secs: number | null;
  memory: SandboxMemory | null;
  commands_total: number;
  calls_now: number;
  disk: { logical_bytes: number; data_bytes: number; unique_bytes: number | null } | null;
  network: { received_bytes: number; sent_bytes: number } | null;
}

/** What machines use of the host's memory, and what is left of the budget (null: there is none). */
export interface Memory {
  state: "ok" | "short";
  machines: number;
  unknown: number;
  budget_bytes: number | null;
  counted_bytes: number;
  free_bytes: number | null;
  overcommit_percent: number;
  low_bytes: number;
  stopped_total: number;
  private_bytes: number;
  shared_bytes: number;
  shared_part_bytes: number;
  swapped_bytes: number;
  vmm_bytes: number;
  host: {
    total_bytes: number;
    available_bytes: number;
    swap_total_bytes: number;
    swap_free_bytes: number;
    pressure_some_percent: number | null;
    pressure_full_percent: number | null;
  };
}

/** The machines that wait to be taken. */
export interface Pool {
  size: number;
  parked: number;
  snapshots: { name: string; parked: number; taken: number; missed: number }[];
}

export interface LineageNode {
  kind: "template" | "snapshot" | "sandbox";
  id: string;
  name: string;
  state: string;
  created_at: string;
  logical_bytes: number;
  /** The id of another node; null: it is gone, or no machine. */
  parent: string | null;
  from?: string | null;
  new_bytes?: number;
  tree_id?: string;
}
