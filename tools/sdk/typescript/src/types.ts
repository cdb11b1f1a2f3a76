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

export interface Sandbox {
  id: string;
  name: string;
  state: SandboxState;
  from: string;
  labels: Labels;
  cpus: number;
  memory_mb: number;
  disk_bytes: number;
  network: Network;
  start_mode: "cold" | "resume" | "fork" | "pool" | "restore";
  created_at: string;
  ready_ms: number;
  ttl_secs: number | null;
  idle_secs: number | null;
  persistent: boolean;
  expires_at: string | null;
  pid?: number;
  accel?: string;
  memory_kept?: boolean;
  reason?: string;
  notice?: string;
  defaults?: { user?: string; cwd?: string; command?: string; env?: Environment };
  tree_id?: string;
  parent_id?: string;
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
  started_at: string;
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
  modified_at: string;
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
  execution_count: number;
  queued: number;
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

export interface LifeEvent {
  type: string;
  time: string;
  sandbox: string;
  sandbox_id: string;
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
  step: string | null;
  source: string;
  warm: string;
  cancelled: boolean;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  seconds: number | null;
  error: { code: string; message: string } | null;
  log?: string;
}

export interface Template extends Snapshot {
  template: true;
  build: { id: string; source: string; warm: string; started_at: string };
  defaults?: Sandbox["defaults"];
}

export type BuildLogEvent = { event: "log"; data: { text: string } } | { event: "build"; data: Build };

export interface Volume {
  id: string;
  name: string;
  kind: string;
  size_bytes: number;
  parent: string | null;
  sandbox: string | null;
  created_at: string;
  padding_bytes?: number;
  notice?: string;
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
