# SPDX-License-Identifier: Apache-2.0
"""The closing line of tools/test adds up all runs, and nothing that failed leaves it at exit 0."""
import os
import subprocess
import sys
import tempfile

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "test_summary.py")
PASS = '<testcase name="p" status="run"><system-out>fine</system-out></testcase>'
FAIL = '<testcase name="f" status="fail"><failure message="x"/></testcase>'
SKIP = '<testcase name="s" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>a\nskipped: no KVM here\n</system-out></testcase>'
# A test whose program is missing: ctest calls it "not run", and it must not pass for skipped.
MISSING = '<testcase name="m" status="notrun"><skipped message="Unable to find executable"/></testcase>'

CASES = [
    # suites, steps, last line, exit status, a line that must be there
    ([[PASS, PASS], [PASS]], [], "3 passed, 0 failed, 0 skipped", 0, None),
    ([[PASS, SKIP], [SKIP]], [], "1 passed, 0 failed, 2 skipped", 0, "skipped  s (0): skipped: no KVM here"),
    ([[PASS, FAIL], [PASS]], [], "2 passed, 1 failed, 0 skipped", 1, "failed   f (0)"),
    ([[PASS]], ["build-tsan"], "1 passed, 1 failed, 0 skipped", 1, "failed   build-tsan"),
    ([[PASS, MISSING]], [], "1 passed, 1 failed, 0 skipped", 1, "failed   m (0)"),
    ([[]], [], "0 passed, 0 failed, 0 skipped", 1, None),
    ([], [], "0 passed, 0 failed, 0 skipped", 1, None),
]


def main():
    wrong = 0
    for suites, steps, last, status, needed in CASES:
        with tempfile.TemporaryDirectory() as folder:
            arguments = []
            for step in steps:
                arguments += ["--failed-step", step]
            for number, cases in enumerate(suites):
                arguments.append(os.path.join(folder, f"{number}.xml"))
                with open(arguments[-1], "w", encoding="utf-8") as file:
                    file.write(f"<testsuite>{''.join(cases)}</testsuite>")
            done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)
        lines = done.stdout.splitlines()
        if done.returncode != status or not lines or lines[-1] != last or (needed and needed not in lines):
            wrong += 1
            print(f"{suites} {steps}: exit {done.returncode}, {done.stdout}{done.stderr}")
    print(f"{len(CASES)} cases, {wrong} wrong")
    return 1 if wrong else 0


sys.exit(main())
