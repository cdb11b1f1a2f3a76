# SPDX-License-Identifier: Apache-2.0
"""What tests of other people's clients share: the packages, at versions that files here pin, below build/; and one daemon with
a warm Python machine, from which every sandbox of theirs goes on."""
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
BUILD = os.path.join(ROOT, "build", "clients")
sys.path[:0] = [os.path.join(ROOT, "tests/e2e/cli"), os.path.join(ROOT, "tests/sdk")]
import environments    # noqa: E402
import warm    # noqa: E402

LIMIT_SECS = 900    # only to end one that would hang


def python_with(family):
    """A Python that has the packages of FAMILY/requirements.txt, all pinned there."""
    wanted = os.path.join(HERE, family, "requirements.txt")
    return environments.environment("clients-" + family, "--requirement", wanted, constraints=wanted)


def node_modules(family):
    """A folder with the packages of FAMILY/package-lock.json; None, and a line why, when they cannot be had here."""
    if shutil.which("npm") is None:
        print("there is no npm")
        return None
    source, folder = os.path.join(HERE, family), os.path.join(BUILD, family)

    def prepare():
        os.makedirs(folder)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(os.path.join(source, name), folder)
    with open(os.path.join(source, "package-lock.json"), "rb") as file:
        key = file.read()
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    return folder if environments.made_once(folder, key, [install], prepare, folder) else None


def program(family, name):
    return os.path.join(HERE, family, name)


class Clients(unittest.TestCase):
    """Programs run one after another against one daemon; each prints what it tries and ends with 0."""

    @classmethod
    def setUpClass(cls):
        cls.machine = warm.WarmDaemon("clients", built=True)    # what they ask about builds
        cls.addClassCleanup(cls.machine.close, False)
        cls.daemon, cls.key, cls.root = cls.machine.daemon, cls.machine.key, cls.machine.root

    def run_client(self, command, **environment):
        done = subprocess.run(command, env={**os.environ, "RAMET_SOCKET": self.daemon.run + "/api.sock", **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECS, cwd=self.root)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, f"{' '.join(command)} failed\nthe daemon's log:\n{self.daemon.log()[-8000:]}")
        return done.stdout

    def left_over(self):
        return [box["name"] for box in self.daemon.json("ls")]
