// SPDX-License-Identifier: Apache-2.0
// Commands, jobs, and code. A command that may take long is run over the streaming call, whose comments keep the
// connection alive where a silent one would be cut by fetch, by proxies or by the browser after minutes.
import { Gathered, GatheredRun } from "./gather.js";
import { RametError } from "./errors.js";
import { EventStream, type StreamOptions } from "./stream.js";
import { type CallOptions, LONGEST_TIMER_MS } from "./transport.js";
import type * as wire from "./types.js";
import { part, RametSandboxes } from "./client_sandboxes.js";

/** Up to here a command or a run may be silent on one connection. */
const SILENT_SECS = 120;
/** On top of `timeout_secs`: the guest ends the command and its answer travels. */
const GRACE_MS = 60_000;
/** One question of a wait for a job. */
const WAIT_SLICE_SECS = 60;

/** The time-out of a call whose work has one of its own. */
function timeoutOf(timeoutSecs: number | undefined, options: CallOptions): number {
  if (options.timeoutMs !== undefined) return options.timeoutMs;
  return timeoutSecs === undefined || timeoutSecs <= 0 ? Infinity : timeoutSecs * 1000 + GRACE_MS;
}

/** A signal that also fires when the time is over; `done` releases it. */
function bounded(limitMs: number, what: string, signal?: AbortSignal): { signal: AbortSignal; done: () => void } {
  const controller = new AbortController();
  const late = new RametError(`${what} took more than ${limitMs} ms; its timeoutMs may be raised`, { code: "client.timeout" });
  const timer = limitMs === Infinity ? undefined : setTimeout(() => controller.abort(late), Math.min(LONGEST_TIMER_MS, limitMs));
  const stop = (): void => controller.abort(signal?.reason);
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop, { once: true });
  return {
    signal: controller.signal,
    done: () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    },
  };
}

export class RametRuns extends RametSandboxes {
  // ---- Commands ----

  /**
   * Runs a command to its end. Leaving (the signal, `timeoutMs`) ends the command; its own `timeout_secs` gives an answer
   * with `timed_out` and the output so far. 16 MiB of each stream are kept.
   */
  async exec(
    name: string,
    what: wire.Exec | string,
    options: CallOptions & { onEvent?: ((event: wire.ExecEvent) => void) | undefined } = {},
  ): Promise<wire.ExecResult> {
    const body = typeof what === "string" ? { command: what } : what;
    const { onEvent, ...rest } = options;
    const timeoutMs = timeoutOf(body.timeout_secs, rest);
    if (onEvent === undefined && body.timeout_secs !== undefined && body.timeout_secs <= SILENT_SECS) {
      return this.post(this.box(name, "/exec"), body, { ...rest, timeoutMs });
    }
    const time = bounded(timeoutMs, `the command in sandbox ${name}`, options.signal);
    try {
      const gathered = new Gathered(body.encoding === "base64");
      for await (const event of this.execStream(name, body, { signal: time.signal })) {
        onEvent?.(event);
        gathered.take(event);
      }
      return gathered.result();
    } finally {
      time.done();
    }
  }

  /** Output as it comes, at last one `exit`. Leaving the loop ends the command. */
  execStream(name: string, what: wire.Exec | string, options: CallOptions & StreamOptions = {}): EventStream<wire.ExecEvent> {
    const json = typeof what === "string" ? { command: what } : what;
    const call = { method: "POST", path: this.box(name, "/exec/stream"), json, signal: options.signal, timeoutMs: options.timeoutMs };
    return new EventStream(this.transport, call, { last: ["exit"], errors: ["error"] }, options);
  }

  // ---- Jobs ----

  /** A command that goes on when its caller leaves, and in snapshots and forks. */
  startJob(name: string, what: wire.StartJob | string, options: CallOptions = {}): Promise<wire.Job> {
    const body: wire.StartJob = typeof what === "string" ? { command: what } : what;
    return this.post(this.box(name, "/jobs"), body, options, true, body.name ? undefined : (made: wire.Job) => [this.box(name, `/jobs/${part(made.id)}?kill=1`)]);
  }

  async listJobs(name: string, options: CallOptions = {}): Promise<wire.Job[]> {
    return (await this.get<{ jobs: wire.Job[] }>(this.box(name, "/jobs"), options)).jobs;
  }

  getJob(name: string, job: string | number, options: CallOptions = {}): Promise<wire.Job> {
    return this.get(this.box(name, `/jobs/${part(job)}`), options);
  }

  /** Waits for its end; with `waitSecs` at most so long, and gives it as it is then. */
  async waitJob(name: string, job: string | number, what: { waitSecs?: number } = {}, options: CallOptions = {}): Promise<wire.Job> {
    const until = what.waitSecs === undefined ? Infinity : Date.now() + what.waitSecs * 1000;
    for (;;) {
      const left = Math.max(0, (until - Date.now()) / 1000);
      const slice = Math.min(left, WAIT_SLICE_SECS);
      const query = { wait_secs: slice.toFixed(3) };
      const found = await this.get<wire.Job>(this.box(name, `/jobs/${part(job)}`), options, query);
      if (found.state === "ended" || slice === left) return found;
    }
  }

  async signalJob(
    name: string,
    job: string | number,
    what: { signal?: string | number; whole?: boolean } = {},
    options: CallOptions = {},
  ): Promise<void> {
    await this.post(this.box(name, `/jobs/${part(job)}/signal`), what, options);
  }

  /** Forgets it; one that runs is refused, or ended with `kill`. */
  async deleteJob(name: string, job: string | number, what: { kill?: boolean } = {}, options: CallOptions = {}): Promise<void> {
    const query = what.kill ? { kill: 1 } : {};
    await this.transport.text({ method: "DELETE", path: this.box(name, `/jobs/${part(job)}`), query, ...options });
  }

  /** Its output from these offsets on, until its end with `follow` (the default); broken connections lose nothing. */
  jobLogs(
    name: string,
    job: string | number,
    what: { follow?: boolean; stdout?: number | "end"; stderr?: number | "end"; encoding?: "base64" } = {},
    options: CallOptions & StreamOptions = {},
  ): EventStream<wire.JobLogEvent> {
    const follow = what.follow ?? true;
    const query = { follow: follow ? 1 : undefined, stdout: what.stdout, stderr: what.stderr, encoding: what.encoding };
    const call = { method: "GET", path: this.box(name, `/jobs/${part(job)}/logs`), query, signal: options.signal };
    return new EventStream(this.transport, call, { last: ["end"], errors: ["error"], resumable: follow, mayEnd: !follow }, options);
  }

  // ---- Code contexts ----

  /** A process that keeps what code defines from one run to the next, over stops, snapshots and forks. */
  createContext(name: string, what: wire.CreateContext = {}, options: CallOptions = {}): Promise<wire.Context> {
    const unmake = (made: wire.Context): string[] => [this.box(name, `/contexts/${part(made.id)}`)];
    return this.post(this.box(name, "/contexts"), what, options, true, what.id ? undefined : unmake);
  }

  async listContexts(name: string, options: CallOptions = {}): Promise<wire.Context[]> {
    return (await this.get<{ contexts: wire.Context[] }>(this.box(name, "/contexts"), options)).contexts;
  }

  getContext(name: string, context: string, options: CallOptions = {}): Promise<wire.Context> {
    return this.get(this.box(name, `/contexts/${part(context)}`), options);
  }

  async deleteContext(name: string, context: string, options: CallOptions = {}): Promise<void> {
    await this.transport.text({ method: "DELETE", path: this.box(name, `/contexts/${part(context)}`), ...options });
  }

  /** As Ctrl-C; with `kill`, what has not ended after five seconds is ended with its variables. */
  interruptContext(
    name: string,
    context: string,
    what: { kill?: boolean } = {},
    options: CallOptions = {},
  ): Promise<{ interrupted: boolean }> {
    return this.post(this.box(name, `/contexts/${part(context)}/interrupt`), what, options);
  }

  restartContext(name: string, context: string, options: CallOptions = {}): Promise<wire.Context> {
    return this.post(this.box(name, `/contexts/${part(context)}/restart`), {}, options);
  }

  /** Runs code to its end. Leaving interrupts it. `onEvent` sees the events as they come. */
  async runCode(
    name: string,
    context: string,
    what: wire.RunCode | string,
    options: CallOptions & { onEvent?: ((event: wire.RunEvent) => void) | undefined } = {},
  ): Promise<wire.ExecutionData> {
    const body = typeof what === "string" ? { code: what } : what;
    const { onEvent, ...rest } = options;
    const timeoutMs = timeoutOf(body.timeout_secs, rest);
    if (onEvent === undefined && body.timeout_secs !== undefined && body.timeout_secs <= SILENT_SECS) {
      return this.post(this.box(name, `/contexts/${part(context)}/run`), body, { ...rest, timeoutMs });
    }
    const time = bounded(timeoutMs, `the code in sandbox ${name}`, options.signal);
    try {
      const gathered = new GatheredRun();
      for await (const event of this.runCodeStream(name, context, body, { signal: time.signal })) {
        onEvent?.(event);
        gathered.take(event);
      }
      return gathered.result();
    } finally {
      time.done();
    }
  }

  /** What the code shows, as it shows it; at last one `done`. */
  runCodeStream(
    name: string,
    context: string,
    what: wire.RunCode | string,
    options: CallOptions & StreamOptions = {},
  ): EventStream<wire.RunEvent> {
    const json = typeof what === "string" ? { code: what } : what;
    const path = this.box(name, `/contexts/${part(context)}/run/stream`);
    const call = { method: "POST", path, json, signal: options.signal, timeoutMs: options.timeoutMs };
    return new EventStream(this.transport, call, { last: ["done"], errors: ["failed"] }, options);
  }
}
