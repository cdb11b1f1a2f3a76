# SPDX-License-Identifier: Apache-2.0
"""Sums ctest's JUnit files: names what failed and what was skipped and why; the last line has the figures.

usage: test_summary.py [--failed-step NAME]... FILE.xml...
A failed step is one that never got as far as ctest (a build); it counts as one failure. Exit 1 when anything failed or
nothing ran.
"""
import os
import sys
import xml.etree.ElementTree as xml


def reason(case):
    """The line in which a skipped test says why."""
    for line in (case.findtext("system-out") or "").splitlines():
        if "skip" in line.lower():
            return line.strip()
    return "it gave no reason"


def main(arguments):
    steps, files = [], []
    while arguments:
        word = arguments.pop(0)
        if word == "--failed-step":
            steps.append(arguments.pop(0))
        else:
            files.append(word)
    passed, failed, skipped = 0, len(steps), 0
    for step in steps:
        print(f"failed   {step}")
    for path in files:
        preset = os.path.splitext(os.path.basename(path))[0]
        for case in xml.parse(path).getroot().iter("testcase"):
            name = f"{case.get('name')} ({preset})"
            skip = case.find("skipped")
            # "Not run" for want of the program is a failure; only exit status 77 and a disabled test are skips.
            if case.get("status") == "disabled" or (skip is not None and "SKIP" in skip.get("message", "").upper()):
                skipped += 1
                print(f"skipped  {name}: {reason(case)}")
            elif skip is not None or case.find("failure") is not None or case.get("status") != "run":
                failed += 1
                print(f"failed   {name}")
            else:
                passed += 1
    if passed + failed + skipped == 0:
        print("no test ran: does the expression after --only match a name? (ctest -N --test-dir build/release lists them)")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed + skipped > 0 else 1


sys.exit(main(sys.argv[1:]))
