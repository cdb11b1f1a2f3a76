// SPDX-License-Identifier: Apache-2.0
// One machine with its data in memory, forked eight ways: a different model is fitted in each, and the best one is kept.
//
// usage: node explore_branches.js [TEMPLATE]      (default: code-interpreter; RAMET_API says where the server is)
//
// The parent loads the data once, in a warm Python kernel. Each fork goes on from that instant with the same variables, tries
// its own way, and says how far off it is on points that it was not shown. Nothing is loaded, copied or installed eight times.
import { type Candidate, type Outcome, Sandbox } from "@ramet/sdk";

// What is to be explained: a wave on a slope, with noise, and two points that somebody mistyped.
const DATA = `
import numpy as np
draw = np.random.RandomState(7)
x = np.sort(draw.uniform(-3, 3, 240))
y = 1.5 * np.sin(2 * x) + 0.4 * x + draw.normal(0, 0.2, x.size)
y[[31, 160]] += 9
seen = draw.uniform(size=x.size) < 0.7
score = lambda guess: float(np.median(np.abs(guess(x[~seen]) - y[~seen])))
len(x)
`;
const polynomial = (degree: number): string => `
fit = np.polyfit(x[seen], y[seen], ${degree})
print(score(lambda at: np.polyval(fit, at)))
`;
const neighbours = (count: number, middle: string): string => `
def guess(at):
    near = np.argsort(np.abs(at[:, None] - x[seen][None, :]), axis=1)[:, :${count}]
    return np.${middle}(y[seen][near], axis=1)
print(score(guess))
`;
const waves = (count: number, rounds: number): string => `
def columns(at):
    return np.stack([np.ones_like(at), at] + [f(k * at) for k in range(1, ${count} + 1) for f in (np.sin, np.cos)], axis=1)
weights = np.ones(seen.sum())
for _ in range(${rounds}):
    fit = np.linalg.lstsq(columns(x[seen]) * weights[:, None], y[seen] * weights, rcond=None)[0]
    off = np.abs(columns(x[seen]) @ fit - y[seen])
    weights = np.minimum(1, 0.3 / np.maximum(off, 1e-9)) ** 0.5
print(score(lambda at: columns(at) @ fit))
`;
const WAYS: Record<string, string> = {
  "straight line": polynomial(1),
  cubic: polynomial(3),
  "degree 9": polynomial(9),
  "nearest point": neighbours(1, "mean"),
  "mean of 9 near": neighbours(9, "mean"),
  "median of 9 near": neighbours(9, "median"),
  waves: waves(3, 1),
  "waves, robust": waves(3, 8),
};

/** Runs code in the fork's own kernel and gives the number that it prints. */
function way(label: string, code: string): Candidate {
  return {
    label,
    async run(branch, signal) {
      return Number((await branch.runCode(code, { timeoutSecs: 120, check: true, signal })).stdout);
    },
  };
}

/** The outcomes, the best first; a bar shows how far off each is. */
function table(outcomes: readonly Outcome[], best: Outcome | undefined): string[] {
  const good = outcomes.filter((outcome) => outcome.ok).sort((a, b) => b.score - a.score);
  const worst = Math.max(...good.map((outcome) => -outcome.score));
  const rows = good.map((outcome) => [
    outcome.label, outcome.branch.name, (outcome.durationMs / 1000).toFixed(2), (-outcome.score).toFixed(4),
    "#".repeat(Math.max(1, Math.round((24 * -outcome.score) / worst))) + (outcome === best ? " <- kept" : ""),
  ]);
  for (const outcome of outcomes) {
    if (!outcome.ok) rows.push([outcome.label, outcome.branch.name, (outcome.durationMs / 1000).toFixed(2), "failed", outcome.error?.message ?? ""]);
  }
  const all = [["approach", "fork", "seconds", "off by", ""], ...rows];
  const widths = [0, 1, 2, 3].map((column) => Math.max(...all.map((row) => row[column]!.length)));
  return all.map((row) => "  " + row.map((cell, i) => (i < 2 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i] ?? 0))).join("  ").trimEnd());
}

const parent = await Sandbox.create({ template: process.argv[2] ?? "code-interpreter", labels: { example: "explore-branches" } });
try {
  const points = await parent.runCode(DATA, { check: true });
  const ways = Object.entries(WAYS).map(([label, code]) => way(label, code));
  console.log(`  ${parent.name} holds ${points.text} points in its kernel; ${ways.length} forks of it, one for each approach:`);
  const began = Date.now();
  const found = await parent.explore(ways, { score: (outcome) => -(outcome.value as number) });
  const seconds = (ms: number): string => (ms / 1000).toFixed(2);
  console.log(table(found.outcomes, found.best).join("\n"));
  console.log(`  ${ways.length} machines ran ${seconds(found.forkMs)} s after the call, and the whole search took ${seconds(Date.now() - began)} s.`);
  if (found.best === undefined || found.winner === undefined) throw new Error("no approach came to a number");
  // The winner is still that machine, with what its code defined; the others are gone.
  const kept = await found.winner.runCode(found.best.label.startsWith("waves") ? "fit.round(2).tolist()" : "len(x)");
  console.log(`  ${found.winner.name} was promoted and the others are gone; its kernel still knows: ${kept.text}`);
  await found.winner.kill();
} finally {
  await parent.kill();
}
