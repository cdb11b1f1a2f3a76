# SPDX-License-Identifier: Apache-2.0
"""The daemon, the VMM, or both die at every step of every change of a sandbox (sandbox_steps.h). The next daemon owns or removes
every process, mount, socket, descriptor, file, row and volume; what was there before is there, what was decided is done.

By default each step is tried once, with the three ways to die taking turns; RAMET_TEST_LONG=1 tries all combinations."""
import os
import subprocess
import threading
import time

import rig
from owned import Owned

VM = ["vm.served", "vm.started", "vm.answered"]
CAPTURE = ["capture.copying", "capture.freezing", "capture.pausing", "capture.committing"]

# The change, the call, the steps it goes through, and the first step from which on it is decided.
CHANGES = [
    ("create", ("POST", "", {"name": "new", "from": "point"}), ["create.recorded", *VM, "create.running"], "create.running"),
    ("snapshot", ("POST", "/a/snapshots", {"name": "extra"}), [*CAPTURE, "snapshot.taken"], "snapshot.taken"),
    ("fork", ("POST", "/a/fork", {"names": ["new"], "snapshot": "extra"}), [*CAPTURE, "fork.captured", *VM, "fork.running"], "fork.running"),
    ("pause", ("POST", "/a/pause", {}), ["pause.frozen", "pause.recorded", "pause.paused"], "pause.recorded"),
    ("resume", ("POST", "/p/resume", {}), ["resume.recorded", "resume.continued"], "resume.recorded"),
    ("stop", ("POST", "/a/stop", {}), [*CAPTURE, "stop.captured", "stop.ended"], "stop.captured"),
    ("stop-disk", ("POST", "/a/stop", {"memory": False}), ["stop.quiet", "stop.recorded", "stop.ended"], "stop.recorded"),
    ("start", ("POST", "/s/start", {}), ["start.recorded", *VM, "start.running"], "start.running"),
    ("restore", ("POST", "/a/restore", {"snapshot": "point"}),
     [*CAPTURE, "restore.kept", "restore.recorded", *VM, "restore.running"], "restore.running"),
    ("promote", ("POST", "/b/promote", {"name": "a"}), ["promote.recorded", "promote.removed"], "promote.recorded"),
    ("rm", ("DELETE", "/a", None), ["rm.recorded", "rm.ended", "rm.deleted"], "rm.recorded"),
]
WAYS = ("daemon", "both", "vmm")
# Once each by default: steps that are common to changes are tried in one of them.
SHORT = {"vm.served": "create", "vm.started": "fork", "vm.answered": "restore", "capture.copying": "snapshot",
         "capture.freezing": "restore", "capture.pausing": "fork", "capture.committing": "stop", "stop.ended": "stop"}
# Where the guest's file systems stand frozen, or a snapshot has its name, the daemon that comes next must find out.
SHORT_WAYS = {"stop.quiet": "daemon", "fork.captured": "daemon"}


class Steps(rig.MachineCase):
    def setUp(self):
        super().setUp()
        self.owned = Owned(self.daemon, ("agent-base",))
        self.daemon.ramet("create", "a", "--size", "small")
        self.sh("a", "echo point > mark; sync")
        self.daemon.ramet("snapshot", "a", "--name", "point", "--wait")

    def restart(self, **environment):
        if self.daemon.process.poll() is None:
            self.daemon.stop()
        os.environ.update(environment)
        try:
            self.daemon.start("--working-sets", "off")    # which add rows to the catalog when they like
        finally:
            for name in environment:
                del os.environ[name]

    def call(self, method, path, body=None):
        return self.daemon.call(method, "/v1/sandboxes" + path, body)

    def states(self):
        return {b["name"]: b["state"] for b in self.daemon.json("ls")}

    def prepare(self, change):
        """`a` runs and is its own; beside it what the change needs."""
        states = self.states()
        for name in [n for n in states if n != "a" and n != {"start": "s", "resume": "p"}.get(change)]:
            self.daemon.ramet("rm", name)
        for name, wanted in (("a", "running"), ("s", "stopped"), ("p", "paused")):
            if name != "a" and {"start": "s", "resume": "p"}.get(change) != name:
                continue
            if name in states and (states[name] != wanted or (name == "s" and not self.show(name)["memory_kept"])):
                self.daemon.ramet("rm", name)
                del states[name]
            if name not in states:
                self.assertEqual(self.call("POST", "", {"name": name, "from": "point"}).status, 201)
            if name == "a":
                self.sh("a", "echo own > mark; sync")
            elif name not in states:
                self.assertEqual(self.call("POST", f"/{name}/{'stop' if name == 's' else 'pause'}", {}).status, 200)
        if change == "promote":
            self.assertEqual(self.call("POST", "/a/fork", {"names": ["b", "c"]}).status, 201)
        if "extra" in [s["name"] for s in self.daemon.json("snapshots")]:
            self.daemon.ramet("snapshots", "rm", "extra")

    def show(self, name):
        return self.call("GET", "/" + name).json

    def die_at(self, change, call, step, way, decided):
        self.prepare(change)
        self.restart(RAMET_TEST_STOP_AT=f"{step}:{way}")
        answers = []

        def ask():
            try:
                answers.append(self.call(*call))
            except (OSError, rig.http.client.HTTPException):
                pass

        thread = threading.Thread(target=ask)
        thread.start()
        if way != "vmm":
            self.assertEqual(self.daemon.process.wait(rig.HANG_SECS), -9, self.daemon.log())
        thread.join(rig.HANG_SECS)
        self.restart()
        self.assertEqual(self.owned.problems(), [], self.daemon.log())
        if way == "daemon":
            self.check_decided(change, step, decided)
        self.check_source(change, way)
        self.assertEqual(self.owned.problems(), [], self.daemon.log())

    def check_decided(self, change, step, decided):
        states = self.states()
        wanted = {"create": {"new": "running"}, "fork": {"new": "running"}, "pause": {"a": "paused"}, "resume": {"p": "running"},
                  "stop": {"a": "stopped"}, "stop-disk": {"a": "stopped"}, "start": {"s": "running"}, "restore": {"a": "running"},
                  "promote": {"a": "running", "b": "running"}, "rm": {}, "snapshot": {"a": "running"}}
        if decided:
            self.assertEqual({k: v for k, v in states.items() if k in wanted[change]}, wanted[change])
            gone = {"promote": "c", "rm": "a"}.get(change)
            self.assertNotIn(gone, states)
            if change in ("snapshot", "fork"):
                self.daemon.json("snapshots", "show", "extra")
        elif change in ("create", "fork"):
            self.assertNotIn("new", states)
            self.assertNotIn("extra", [one["name"] for one in self.daemon.json("snapshots")])
        elif change in ("start",):
            self.assertEqual(states["s"], "stopped")
        elif change == "restore" and not step.startswith("capture."):
            self.assertEqual((states["a"], self.show("a")["memory_kept"]), ("stopped", True))
        else:
            self.assertEqual(states["a"], "running")

    def check_source(self, change, way):
        """What was there before works, and is what it was."""
        for name, state in self.states().items():
            if state == "paused":
                self.assertEqual(self.call("POST", f"/{name}/resume", {}).status, 200)
            if state in ("stopped", "failed"):
                # Without its memory it would boot, which takes long and is tried elsewhere.
                if not self.show(name).get("memory_kept"):
                    continue
                answer = self.call("POST", f"/{name}/start", {})
                self.assertEqual(answer.status, 200, answer.body)
            mark = self.sh(name, "cat mark; echo x > touched; sync").strip()    # a file system that stays frozen hangs here
            if change != "restore" and change != "promote" and name in ("a", "s", "p"):
                self.assertEqual(mark, "own" if name == "a" else "point")
            else:
                self.assertIn(mark, ("own", "point"))

    def combinations(self):
        long, turn = os.environ.get("RAMET_TEST_LONG"), 0
        for change, call, steps, first in CHANGES:
            for step in steps:
                if not long and SHORT.get(step, change) != change:
                    continue
                decided = steps.index(step) >= steps.index(first)
                for way in WAYS if long else (SHORT_WAYS.get(step, WAYS[turn % len(WAYS)]),):
                    yield change, call, step, way, decided
                turn += 1

    def fork_that_fails(self):
        """All run or none is left: nor is the snapshot that was to be kept."""
        self.prepare("fork")
        self.restart(RAMET_TEST_STOP_AT="vm.started:vmm")
        answer = self.call("POST", "/a/fork", {"names": ["new"], "snapshot": "extra"})
        self.assertGreaterEqual(answer.status, 500, answer.body)
        self.assertNotIn("new", self.states())
        self.assertEqual([one["name"] for one in self.daemon.json("snapshots")], ["point"])
        self.assertEqual(self.owned.problems(), [], self.daemon.log())

    def test_every_step(self):
        names = subprocess.run([rig.BIN + "/rametd", "--steps"], capture_output=True, text=True, check=True).stdout.split()
        names = [name for name in names if not name.startswith("pool.")]    # test_pool.py tries these
        names = {name for name in names if not name.startswith("request.")}    # test_idempotency.py tries these
        self.assertEqual({step for _, _, steps, _ in CHANGES for step in steps}, names, "every step is tried")
        self.owned.learn()
        for change, call, step, way, decided in self.combinations():
            begun = time.monotonic()
            with self.subTest(change=change, step=step, way=way):
                self.die_at(change, call, step, way, decided)
            print(f"{change} {step} {way}: {time.monotonic() - begun:.1f} s", flush=True)
        self.fork_that_fails()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
