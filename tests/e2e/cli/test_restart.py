# SPDX-License-Identifier: Apache-2.0
"""The daemon dies, under load and in the middle of changes; the next one finds everything, and guests notice a wait."""
import os
import random
import subprocess
import threading
import time

import file_load
import rig

WRITER = r"""
import file_load
turn = 0
while True:
    turn += 1
    file_load.save(turn, (4096, 100000, 3000000))
    file_load.put("turn", str(turn).encode())
"""


class Restart(rig.MachineCase):
    def turn(self, name):
        return int(self.sh(name, "cat turn 2>/dev/null || echo 0"))

    def check_owned(self, kept=()):
        boxes = self.daemon.json("ls")
        running = sorted(b["id"] for b in boxes if b["state"] == "running")
        self.assertEqual(sorted(self.daemon.vmms().values()), running)
        self.assertEqual(self.daemon.folders(), running)
        volumes = [v for v in self.daemon.json("volume", "ls", "--all") if v["name"] not in ("agent-base", *kept)]
        self.assertEqual(sorted(v["sandbox"] or "" for v in volumes), sorted([b["name"] for b in boxes] * 2))

    def test_killed_under_load(self):
        """Large writes in flight, memory image cold: the guest goes on, its files are right, its disk is clean."""
        self.daemon.ramet("create", "first")
        file_load.install(self, "first")
        self.start_program("first", "writer", WRITER)
        self.until(lambda: self.turn("first") > 3)
        self.daemon.ramet("snapshot", "first", "--name", "mid")
        # A fresh child maps the snapshot's memory and has touched little of it yet.
        self.daemon.ramet("create", "second", "--from", "mid")
        pids = dict(self.daemon.vmms())
        for _ in range(3):
            turns = {name: self.turn(name) for name in ("first", "second")}
            self.daemon.kill()
            time.sleep(0.3)    # nobody serves for a while: requests and page faults wait
            self.daemon.start()
            self.assertEqual(self.daemon.vmms(), pids, "the same processes")
            for name, turn in turns.items():
                self.until(lambda: self.turn(name) > turn + 2)
        for name in ("first", "second"):
            file_load.check(self, name, "writer.py")
        # The dirty set was lost with the daemons: a snapshot copies all private pages, and is right.
        self.daemon.ramet("snapshot", "first", "--name", "later")
        self.daemon.ramet("create", "third", "--from", "later")
        self.assertIn("[]", self.sh("third", "python3 file_load.py"))
        self.daemon.ramet("stop", "--disk-only", "second")
        self.daemon.ramet("volume", "export", "second/disk", self.path("disk"))
        check = subprocess.run(["e2fsck", "-fn", self.path("disk")], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)
        self.check_owned()

    def test_killed_in_the_middle_of_changes(self):
        """At random moments of create, snapshot, fork, stop, start and rm. Afterwards nothing is left without an owner, what
        was answered is there, and the source runs."""
        rounds = 40 if os.environ.get("RAMET_TEST_LONG") else 10
        chance = random.Random(int(os.environ.get("RAMET_TEST_SEED", "1")))
        self.daemon.ramet("create", "demo")
        self.sh("demo", "echo 1 > f; sync")
        self.daemon.ramet("snapshot", "demo", "--name", "base", "--wait")
        self.daemon.ramet("create", "other", "--from", "base")
        calls = [("POST", "/v1/sandboxes", {"name": "new", "from": "base"}), ("POST", "/v1/sandboxes/demo/fork", {"count": 2}),
                 ("POST", "/v1/sandboxes/demo/snapshots", {"name": "extra"}), ("POST", "/v1/sandboxes/other/stop", {}),
                 ("POST", "/v1/sandboxes/other/start", {}), ("DELETE", "/v1/sandboxes/new", None)]
        for turn in range(rounds):
            call = calls[turn % len(calls)]
            delay = chance.random() * 0.6
            with self.subTest(turn=turn, call=call, delay=delay):
                answers = []
                thread = threading.Thread(target=self.try_call, args=(call, answers))
                thread.start()
                time.sleep(delay)    # not a wait: the moment of the kill
                self.daemon.kill()
                thread.join(rig.HANG_SECS)
                self.daemon.start()
                self.check_round(call, answers)

    def try_call(self, call, answers):
        try:
            answers.append(self.daemon.call(*call))
        except (OSError, rig.http.client.HTTPException):
            pass

    def check_round(self, call, answers):
        boxes = {b["name"]: b for b in self.daemon.json("ls")}
        self.assertLessEqual({b["state"] for b in boxes.values()}, {"running", "stopped"}, boxes)
        self.check_owned()
        if answers and answers[0].status == 201 and call[1] == "/v1/sandboxes":
            self.assertEqual(boxes["new"]["state"], "running")
        if answers and answers[0].status == 201 and call[1].endswith("/snapshots"):
            self.daemon.json("snapshots", "show", "extra")
        if answers and answers[0].status == 200 and call[1].endswith("/stop"):
            self.assertEqual(boxes["other"]["state"], "stopped")
        self.assertEqual(self.sh("demo", "cat f"), "1\n", "the source goes on")
        if boxes["other"]["state"] == "running":
            self.assertEqual(self.sh("other", "cat f"), "1\n")
        for name, box in boxes.items():
            if name.startswith("demo-"):
                self.daemon.ramet("rm", name)
        if "extra" in [s["name"] for s in self.daemon.json("snapshots")]:
            self.daemon.ramet("snapshots", "rm", "extra")

    def test_a_lost_machine_is_said(self):
        """Host reboot or power cut: no VMM is left, and the sandbox starts from its disk."""
        self.daemon.ramet("create", "demo")
        self.sh("demo", "echo 1 > f; sync")
        [pid] = self.daemon.vmms()
        self.daemon.kill()
        os.kill(pid, 9)
        for keeper in self.daemon.keeper_pids():
            os.kill(keeper, 9)
        self.daemon.start()
        box = self.daemon.json("show", "demo")
        self.assertEqual((box["state"], box["memory_kept"]), ("stopped", False))
        self.assertIn("starts from its disk", box["reason"])
        self.daemon.ramet("start", "demo")
        self.assertEqual(self.sh("demo", "cat f"), "1\n")
        self.check_owned()

    def test_the_keeper_dies_first(self):
        """The daemon revives it with all that it held, so that its own death costs no guest afterwards."""
        self.daemon.ramet("create", "demo")
        self.sh("demo", "echo 1 > f; sync")
        self.daemon.ramet("snapshot", "demo", "--name", "base")
        self.daemon.ramet("create", "child", "--from", "base")
        pids = dict(self.daemon.vmms())
        [keeper] = self.daemon.keeper_pids()
        os.kill(keeper, 9)
        self.daemon.ramet("create", "later", "--from", "base")    # needs a keeper at once
        self.until(lambda: self.daemon.keeper_pids() not in ([], [keeper]))
        pids = dict(self.daemon.vmms())
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.daemon.vmms(), pids, "the same processes")
        for name in ("demo", "child", "later"):
            # Modules that nobody has loaded: memory and disk that were not touched before.
            self.assertEqual(self.sh(name, "python3 -c 'import sqlite3, decimal; print(open(\"f\").read())'"), "1\n\n")
        self.check_owned()

    def test_another_store_is_refused(self):
        """Guests map memory images by numbers that mean something else in another store."""
        self.daemon.ramet("create", "demo")
        self.daemon.kill()
        other = self.path("other")
        self.daemon.ramet("store", "init", other)
        result = subprocess.run([rig.BIN + "/rametd", "--store", other, "--run", self.daemon.run, "--kernel-dir",
                                 os.environ["RAMET_KERNEL_DIR"]], capture_output=True, text=True, timeout=rig.HANG_SECS)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("another store still run from " + self.daemon.run, result.stdout + result.stderr)
        self.daemon.start()
        self.assertEqual(self.sh("demo", "echo alive"), "alive\n")
        self.check_owned()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
