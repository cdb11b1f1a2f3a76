# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart, broken off and then run whole: it does all it shows, and leaves nothing behind either time."""
import os
import re
import signal
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
QUICKSTART = os.path.join(ROOT, "tools/quickstart")
ROWS = ["cold boot to the first answer", "snapshot: the machine was paused for", "fork 8 ways",
        "start to first answer", "host memory of a fork",
        "template: disk, boot, warm kernel, captured", "a cell in its Python kernel", "its first cell",
        "<- kept", "eight branches made, run, scored, one promoted"]
HANG_SECS = 300    # only for what does not end


def fail(words, output):
    print(output)
    print(f"quickstart: {words}")
    sys.exit(1)


def processes(run):
    """The command lines that name the run directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if run.encode() in words:
            found.append(words)
    return found


def check_nothing_left(output):
    """No process, mount or folder of the run directory that the output names."""
    match = re.search(r"run directory (\S+),", output)
    if match is None:
        fail("its output names no run directory", output)
    run = match.group(1)
    if os.path.exists(run):
        fail(f"{run} is still there", output)
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        if run + "/" in mounts.read():
            fail(f"something is still mounted below {run}", output)
    limit = time.monotonic() + HANG_SECS
    while left := processes(run):    # who has answered that he ends may not have ended yet
        if time.monotonic() > limit:
            fail(f"these processes still run: {left}", output)
        time.sleep(0.05)
    if os.path.exists(os.path.join(ROOT, "build/quickstart/store")):
        fail("its store is still there", output)


def run_whole():
    done = subprocess.run([QUICKSTART], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail(f"ended with {done.returncode}", done.stdout)
    for row in ROWS:
        if row not in done.stdout:
            fail(f"its table has no row '{row}'", done.stdout)
    check_nothing_left(done.stdout)


def run_broken_off():
    """SIGTERM as soon as the first machine runs."""
    process = subprocess.Popen([QUICKSTART], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = ""
    for line in process.stdout:
        output += line
        if "plain: running" in line:
            process.send_signal(signal.SIGTERM)
    if process.wait() != 143:
        fail(f"broken off, it ended with {process.returncode} and not with 143", output)
    check_nothing_left(output)


def main():
    refused = subprocess.run([QUICKSTART, "--fast"], capture_output=True, text=True)
    if refused.returncode != 2 or "unknown argument '--fast'" not in refused.stderr:
        fail("takes arguments that it does not know", refused.stdout + refused.stderr)
    if os.environ.get("RAMET_TEST_LONG"):
        run_broken_off()
    run_whole()
    print("quickstart: nothing was left")


main()
