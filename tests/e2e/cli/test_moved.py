# SPDX-License-Identifier: Apache-2.0
"""A running machine's snapshot goes into another store by an archive, and goes on there."""
import json
import os
import shutil
import subprocess

import rig

KEEPER = r"""
import json, os, sys
secret = os.urandom(16).hex()
open("secret", "w").write(secret)
os.sync()
fifo = "ask"
os.mkfifo(fifo)
while True:
    with open(fifo) as f:
        word = f.read().strip()
    with open("answer.new", "w") as f:
        f.write(word + " " + secret)
    os.rename("answer.new", "answer")
"""


class Moved(rig.MachineCase):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("two"))
        self.other = rig.Daemon(self.path("two"), os.environ["RAMET_KERNEL_DIR"])
        self.addCleanup(self.stop_other)
        self.other.ramet("store", "init", self.other.store)
        self.other.start()

    def stop_other(self):
        for box in self.other.json("ls"):
            self.other.ramet("rm", "--force", box["name"])
        self.other.stop()
        subprocess.run(["umount", "-l", self.other.run + "/mem"], capture_output=True)
        shutil.rmtree(self.path("two"), ignore_errors=True)

    def ask(self, daemon, box, word):
        """What a process in the machine that was there before the snapshot says, from its memory alone."""
        line = f"rm -f answer; echo {word} > ask; while [ ! -e answer ]; do sleep 0.05; done; cat answer"
        return daemon.ramet("exec", box, line)

    def test_a_machine_goes_on_in_another_store(self):
        self.daemon.ramet("create", "box", "--from", "agent-base", "--size", "small")
        self.daemon.ramet("cp", self.write("keeper.py", KEEPER.encode()), "box:keeper.py")
        self.daemon.ramet("exec", "box", "setsid python3 keeper.py > /dev/null 2>&1 < /dev/null & while [ ! -p ask ]; do sleep 0.05; done")
        secret = self.daemon.ramet("exec", "box", "cat secret").strip()
        self.daemon.ramet("snapshot", "box", "--name", "warm", "--wait")
        self.daemon.ramet("exec", "box", "echo later > secret")    # the snapshot does not see it
        self.daemon.ramet("store", "seal")
        self.daemon.ramet("store", "export", "warm", self.path("warm.ramet"))
        came = self.other.json("store", "import", self.path("warm.ramet"), "--prefix", "my-")
        self.assertEqual([s["name"] for s in came["snapshots"]], ["my-warm"])
        here, there = (json.loads(d.call("GET", "/v1/snapshots/" + n).body) for d, n in ((self.daemon, "warm"), (self.other, "my-warm")))
        for field in ("kind", "memory_bytes", "cpus", "memory_mb", "network", "logical_bytes"):
            self.assertEqual(here[field], there[field], field)
        for daemon, source, name in ((self.other, "my-warm", "moved"), (self.daemon, "warm", "stayed")):
            daemon.ramet("create", name, "--from", source)
            self.assertEqual(daemon.json("show", name)["start_mode"], "resume")
            self.assertEqual(self.ask(daemon, name, name), f"{name} {secret}")
            self.assertEqual(daemon.ramet("exec", name, "cat secret").strip(), secret)
        self.other.ramet("rm", "--force", "moved")
        self.other.ramet("snapshots", "rm", "my-warm")
        stat = self.other.json("store", "stat")
        self.assertEqual((stat["volumes"], stat["docs"]), (0, 0))


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
