#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One machine with its data in memory, forked eight ways: a different model is fitted in each, and the best one is kept.

usage: explore_branches.py [--template NAME]      (default: code-interpreter; RAMET_API says where the server is)

The parent loads the data once, in a warm Python kernel. Each fork goes on from that instant with the same variables, tries
its own way, and says how far off it is on points that it was not shown. Nothing is loaded, copied or installed eight times.
"""
import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from ramet import RametError, Sandbox    # noqa: E402

# What is to be explained: a wave on a slope, with noise, and two points that somebody mistyped.
DATA = """
import numpy as np
draw = np.random.RandomState(7)
x = np.sort(draw.uniform(-3, 3, 240))
y = 1.5 * np.sin(2 * x) + 0.4 * x + draw.normal(0, 0.2, x.size)
y[[31, 160]] += 9
seen = draw.uniform(size=x.size) < 0.7
score = lambda guess: float(np.median(np.abs(guess(x[~seen]) - y[~seen])))
len(x)
"""

POLYNOMIAL = """
fit = np.polyfit(x[seen], y[seen], {degree})
print(score(lambda at: np.polyval(fit, at)))
"""
NEIGHBOURS = """
def guess(at):
    near = np.argsort(np.abs(at[:, None] - x[seen][None, :]), axis=1)[:, :{count}]
    return np.{middle}(y[seen][near], axis=1)
print(score(guess))
"""
WAVES = """
def columns(at):
    return np.stack([np.ones_like(at), at] + [f(k * at) for k in range(1, {waves} + 1) for f in (np.sin, np.cos)], axis=1)
weights = np.ones(seen.sum())
for _ in range({rounds}):
    fit = np.linalg.lstsq(columns(x[seen]) * weights[:, None], y[seen] * weights, rcond=None)[0]
    off = np.abs(columns(x[seen]) @ fit - y[seen])
    weights = np.minimum(1, 0.3 / np.maximum(off, 1e-9)) ** 0.5
print(score(lambda at: columns(at) @ fit))
"""
WAYS = {
    "straight line": POLYNOMIAL.format(degree=1),
    "cubic": POLYNOMIAL.format(degree=3),
    "degree 9": POLYNOMIAL.format(degree=9),
    "nearest point": NEIGHBOURS.format(count=1, middle="mean"),
    "mean of 9 near": NEIGHBOURS.format(count=9, middle="mean"),
    "median of 9 near": NEIGHBOURS.format(count=9, middle="median"),
    "waves": WAVES.format(waves=3, rounds=1),
    "waves, robust": WAVES.format(waves=3, rounds=8),
}


def try_way(code):
    """A function for explore(): runs code in the fork's own kernel and gives the number that it prints."""
    return lambda fork: float(fork.run_code(code, timeout_secs=120, check=True).stdout)


def table(branches, best):
    """The branches, the best score first, as lines of text; a bar shows how far off each is."""
    worst = max((branch.value for branch in branches if branch.error is None), default=1.0)
    rows = [("approach", "fork", "seconds", "off by", "")]
    for branch in sorted(branches, key=lambda branch: (branch.score is None, -(branch.score or 0))):
        if branch.error is not None:
            rows.append((branch.name, branch.sandbox.name, f"{branch.seconds:.2f}", "failed", str(branch.error).splitlines()[-1][:40]))
            continue
        bar = "#" * max(1, round(24 * branch.value / worst))
        rows.append((branch.name, branch.sandbox.name, f"{branch.seconds:.2f}", f"{branch.value:.4f}", bar + (" <- kept" if branch is best else "")))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip() for row in rows]
    return [lines[0], "  " + "-" * (len(max(lines, key=len)) - 2), *lines[1:]]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--template", default="code-interpreter", help="a template with a Python kernel and numpy")
    options = arguments.parse_args()
    with Sandbox.create(template=options.template, labels={"example": "explore-branches"}) as parent:
        points = parent.run_code(DATA, check=True)
        print(f"  {parent.name} holds {points.text} points in its kernel; {len(WAYS)} forks of it, one for each approach:")
        begin = time.monotonic()
        found = parent.explore({name: try_way(code) for name, code in WAYS.items()}, score=lambda branch: -branch.value)
        took = time.monotonic() - begin
        print("\n".join(table(found.branches, found.best)))
        print(f"  {len(found.branches)} machines ran {found.fork_seconds:.2f} s after the call, and the whole search took {took:.2f} s.")
        if found.best is None or found.winner is None:
            raise SystemExit("no approach came to a number")
        # The winner is still that machine, with what its code defined; the others are gone.
        with found.winner as winner:
            kept = winner.run_code("fit.round(2).tolist()" if "waves" in found.best.name else "len(x)")
            print(f"  {winner.name} was promoted and the others are gone; its kernel still knows: {kept.text}")


if __name__ == "__main__":
    try:
        main()
    except RametError as error:
        raise SystemExit(f"explore_branches: {error}") from None
