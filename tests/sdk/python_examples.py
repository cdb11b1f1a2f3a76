# SPDX-License-Identifier: Apache-2.0
"""The examples that need no agents' package, and the programs of the client's README, each run as its users run it."""
import os
import re
import subprocess
import sys
import unittest

import machines
import rig
from machines import EXAMPLES, SDK, MachineCase


class PythonExamples(MachineCase):
    @classmethod
    def setUpClass(cls):
        cls.client = machines.machines.client()
        cls.addClassCleanup(cls.client.close)

    def example(self, name, *words, status=0):
        environment = machines.machines.environment()
        environment.pop("PYTHONPATH")    # it finds the client next door
        done = subprocess.run([sys.executable, os.path.join(EXAMPLES, name), *words], env=environment, capture_output=True, text=True,
                              timeout=rig.HANG_SECS, cwd=machines.machines.root)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def tearDown(self):
        self.assertEqual(self.client.list_sandboxes(), [])    # an example leaves nothing running

    def test_explore_branches(self):
        said = self.example("explore_branches.py")
        print(said)
        rows = re.findall(r"(?m)^  ([a-z0-9 ,]+?) {2,}(\S+) +[0-9.]+ +([0-9.]+) +#+( <- kept)?$", said)
        self.assertEqual(len(rows), 8, said)
        self.assertEqual(len({fork for _, fork, _, _ in rows}), 8)
        errors = [float(error) for _, _, error, _ in rows]
        self.assertEqual(errors, sorted(errors))
        self.assertEqual([name for name, _, _, kept in rows if kept], ["waves, robust"])
        self.assertRegex(said, r"was promoted and the others are gone; its kernel still knows: \[")

    def test_resume_session(self):
        said = self.example("resume_session.py")
        print(said)
        self.assertRegex(said, r"the first of 50 singular values is 26\.\d+\nthe smallest is 13\.\d+ - computed from what was in memory")
        self.assertEqual([one["name"] for one in self.client.list_snapshots() if one["name"].startswith("session-")], [])
        self.assertIn("usage:", self.example("resume_session.py", "what", status=1))
        self.assertIn("there is no", self.example("resume_session.py", "resume", "never-saved", status=1))

    def test_graph_tool(self):
        self.assertEqual(self.example("graph_tool.py"), "after 2 tries: (3.133, 1)\n")

    def test_readme(self):
        with open(os.path.join(SDK, "README.md"), encoding="utf-8") as file:
            programs = re.findall(r"(?ms)^```python\n(.*?)^```", file.read())
        said = []
        for program in programs:
            done = subprocess.run([sys.executable, "-c", program], env=machines.machines.environment(), capture_output=True, text=True,
                                  timeout=rig.HANG_SECS, cwd=machines.machines.root)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            said.append(done.stdout)
        tour, twin = said
        for words in ("Linux box ", "stdout {'text': '42\\n'}", "404 sandbox.not_found", "IndexError: list index out of range", "Branch('careful'"):
            self.assertIn(words, tour)
        with open(os.path.join(machines.machines.root, "chart.png"), "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        self.assertTrue(twin.startswith("stdout 1\n"), twin)
        # On a slow host two lines may come in one event.
        self.assertEqual([word for word in twin.split() if word != "stdout"], ["1", "2", "3", "exit"])

    @unittest.skipUnless(os.environ.get("RAMET_TEST_LONG"), "a new kernel that loads pandas: with RAMET_TEST_LONG=1")
    def test_readme_of_the_project(self):
        with open(os.path.join(machines.ROOT, "README.md"), encoding="utf-8") as file:
            [program] = re.findall(r"(?ms)^```python\n(.*?)^```", file.read())
        done = subprocess.run([sys.executable, "-c", program], env=machines.machines.environment(), capture_output=True, text=True,
                              timeout=rig.HANG_SECS, cwd=machines.machines.root)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(done.stdout, "".join(line + "\n" for line in re.findall(r"# ((?:formula )?\d+)$", program, re.M)) + "\n")
