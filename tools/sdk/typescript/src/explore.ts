// SPDX-License-Identifier: Apache-2.0
// Explore: one running machine becomes as many as there are candidates, each tries its own way from the very same
// instant, and the best one is kept. A branch that fails is an outcome, not an error of the whole.
import { RametError } from "./errors.js";
import type { CommandResult, Sandbox } from "./sandbox.js";
import type * as wire from "./types.js";

export interface Candidate {
  label?: string;
  /** A command line; or `run`, which may do anything with the branch. */
  command?: string;
  run?: (branch: Sandbox, signal: AbortSignal) => unknown;
  timeoutSecs?: number;
  env?: wire.Environment;
}

export interface Outcome {
  label: string;
  /** The branch; the losers' are gone when explore has returned. */
  branch: Sandbox;
  /** The command ended with 0, or `run` did not throw. */
  ok: boolean;
  /** NaN when it could not be scored. */
  score: number;
  /** What the command said. */
  result: CommandResult | undefined;
  /** What `run` returned. */
  value: unknown;
  error: Error | undefined;
  durationMs: number;
}

export interface ExploreOptions {
  /** Higher is better; default: 1 for one that is ok, else 0. */
  score?: (outcome: Outcome) => number | Promise<number>;
  /** Instead of the highest score. Outcomes that are not ok are not offered unless `allowFailed`. */
  select?: "max" | "min" | ((outcomes: readonly Outcome[]) => Outcome | undefined);
  /** Also one that failed may win. */
  allowFailed?: boolean;
  /** How many run at once; default all. */
  concurrency?: number;
  /** false: all branches stay, nothing is decided. */
  promote?: boolean;
  /** What the winner is called afterwards; the parent's own name: the two swap. */
  name?: string;
  labels?: wire.Labels;
  onOutcome?: (outcome: Outcome) => void;
  signal?: AbortSignal;
}

export interface ExploreResult {
  treeId: string;
  /** From the call until all branches ran. */
  forkMs: number;
  outcomes: readonly Outcome[];
  /** undefined: none was good enough, and no branch is left. */
  best: Outcome | undefined;
  winner: Sandbox | undefined;
}

async function attempt(branch: Sandbox, candidate: Candidate, label: string, options: ExploreOptions, signal: AbortSignal): Promise<Outcome> {
  const began = Date.now();
  const outcome: Outcome = {
    label, branch, ok: false, score: NaN, result: undefined, value: undefined, error: undefined, durationMs: 0,
  };
  try {
    if (candidate.command !== undefined) {
      outcome.result = await branch.exec(candidate.command, {
        signal,
        ...(candidate.timeoutSecs === undefined ? {} : { timeoutSecs: candidate.timeoutSecs }),
        ...(candidate.env === undefined ? {} : { env: candidate.env }),
      });
      outcome.ok = outcome.result.exitCode === 0 && !outcome.result.timedOut;
    }
    if (candidate.run !== undefined) {
      outcome.value = await candidate.run(branch, signal);
      outcome.ok = outcome.result === undefined || outcome.ok;
    }
    outcome.durationMs = Date.now() - began;
    outcome.score = options.score === undefined ? (outcome.ok ? 1 : 0) : await options.score(outcome);
  } catch (error) {
    signal.throwIfAborted();
    outcome.ok = false;
    outcome.error = error instanceof Error ? error : new Error(String(error));
    outcome.durationMs = Date.now() - began;
  }
  options.onOutcome?.(outcome);
  return outcome;
}

function choose(outcomes: readonly Outcome[], options: ExploreOptions): Outcome | undefined {
  const offered = outcomes.filter((outcome) => options.allowFailed === true || outcome.ok);
  if (typeof options.select === "function") return options.select(offered);
  const sign = options.select === "min" ? -1 : 1;
  let best: Outcome | undefined;
  for (const outcome of offered) {
    if (Number.isNaN(outcome.score)) continue;
    if (best === undefined || outcome.score * sign > best.score * sign) best = outcome;
  }
  return best;
}

export async function explore(parent: Sandbox, candidates: readonly (string | Candidate)[], options: ExploreOptions): Promise<ExploreResult> {
  const wanted = candidates.map((one) => (typeof one === "string" ? { command: one } : one));
  if (wanted.length === 0) throw new RametError("explore needs at least one candidate", { code: "client.usage" });
  for (const [index, one] of wanted.entries()) {
    if (one.command === undefined && one.run === undefined) {
      throw new RametError(`candidate ${index} has neither a command nor a function to run`, { code: "client.usage" });
    }
  }
  options.signal?.throwIfAborted();
  const labels = options.labels === undefined ? {} : { labels: options.labels };
  const began = Date.now();
  const children = await parent.fork(wanted.length, labels);
  const forkMs = Date.now() - began;
  const treeId = children[0]!.info.tree_id ?? "";
  const inner = new AbortController();
  const stop = (): void => inner.abort(options.signal?.reason);
  if (options.signal?.aborted) stop();
  options.signal?.addEventListener("abort", stop, { once: true });
  const outcomes = new Array<Outcome>(wanted.length);
  try {
    let next = 0;
    const worker = async (): Promise<void> => {
      for (let i = next++; i < wanted.length; i = next++) {
        const candidate = wanted[i]!;
        outcomes[i] = await attempt(children[i]!, candidate, candidate.label ?? candidate.command ?? `branch ${i}`, options, inner.signal);
      }
    };
    const count = Math.max(1, Math.min(options.concurrency ?? wanted.length, wanted.length));
    // A function that does not look at its signal does not keep the abort waiting: its branch goes, and it with that.
    const aborted = new Promise<never>((_, reject) => {
      if (inner.signal.aborted) reject(inner.signal.reason);
      inner.signal.addEventListener("abort", () => reject(inner.signal.reason), { once: true });
    });
    aborted.catch(() => undefined);
    await Promise.race([Promise.all(Array.from({ length: count }, worker)), aborted]);
    if (options.promote === false) return { treeId, forkMs, outcomes, best: choose(outcomes, options), winner: undefined };
    const best = choose(outcomes, options);
    if (best === undefined) {
      await Promise.all(children.map((child) => child.kill()));
      return { treeId, forkMs, outcomes, best, winner: undefined };
    }
    const kept = await best.branch.promote(options.name === undefined ? {} : { name: options.name });
    best.branch.info = kept.winner;
    return { treeId, forkMs, outcomes, best, winner: best.branch };
  } catch (error) {
    // Nothing half-made stays: the branches were made here, so they go with the failure.
    inner.abort(error);
    await Promise.allSettled(children.map((child) => child.kill()));
    throw error;
  } finally {
    options.signal?.removeEventListener("abort", stop);
  }
}
