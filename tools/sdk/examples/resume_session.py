#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Yesterday's session: a snapshot keeps a warm kernel, and another process goes on with its variables, in milliseconds.

usage: resume_session.py save NAME      works a while, keeps the machine as snapshot NAME, and leaves
       resume_session.py resume NAME    goes on from it, today, tomorrow, as often as you like
       resume_session.py               both, each in a process of its own, with times
"""
import os
import subprocess
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from ramet import Ramet, RametError, Sandbox    # noqa: E402

WORK = """
import numpy as np
table = np.random.RandomState(1).normal(size=(400, 50))
model = np.linalg.svd(table, full_matrices=False)
opened = open('notes.txt', 'a+')
print('the first of', len(model[1]), 'singular values is', round(float(model[1][0]), 3), file=opened, flush=True)
"""
GO_ON = """
opened.seek(0)
print(opened.read(), end='')
print('the smallest is', round(float(model[1][-1]), 3), '- computed from what was in memory')
"""


def save(name: str) -> None:
    """Works, keeps it, and leaves nothing running."""
    with Sandbox.create(template="code-interpreter") as sandbox:
        sandbox.run_code(WORK, check=True)
        snapshot = sandbox.snapshot(name, wait=True)
        print(f"saved as {snapshot['name']}; the machine stood still for {snapshot['pause_ms']:.0f} ms and is gone now")


def resume(name: str) -> None:
    """Goes on. The kernel, its variables and its open file are there."""
    begin = time.monotonic()
    with Sandbox.create(from_snapshot=name) as sandbox:
        runs = time.monotonic()
        execution = sandbox.run_code(GO_ON, check=True)
        answered = time.monotonic()
        print(execution.stdout, end="")
        print(f"it ran {1000 * (runs - begin):.0f} ms after the call, and had answered after {1000 * (answered - begin):.0f} ms")


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ("save", "resume"):
        (save if sys.argv[1] == "save" else resume)(sys.argv[2])
    elif len(sys.argv) == 1:
        name = "session-" + uuid.uuid4().hex[:8]
        for step in ("save", "resume"):
            subprocess.run([sys.executable, os.path.abspath(__file__), step, name], check=True)
        Ramet().delete_snapshot(name)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except RametError as error:
        raise SystemExit(f"resume_session: {error}") from None
