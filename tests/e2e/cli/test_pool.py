# SPDX-License-Identifier: Apache-2.0
"""Parked machines: a create takes one, nobody can tell it from a plain resume but by its speed, and none is left over."""
import os
import signal
import time

import rig
from owned import Owned

# Draws all the time, as any process of a template may: every line is a draw of the kernel's, then one of its own state.
DRAW = r"""
import random, time
random.random()
with open("draws", "w", buffering=1) as file:
    while True:
        file.write(open("/proc/sys/kernel/random/uuid").read())
        time.sleep(0.02)
"""


class Pool(rig.MachineCase):
    POOL = 1

    def options(self):
        return "--listen", "0"

    def until(self, condition, what):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, f"waited for {what}:\n{self.daemon.log()}")
            time.sleep(0.05)

    def parked(self):
        return self.daemon.call("GET", "/v1/pool").json["parked"]

    def create(self, name, origin="base", **more):
        answer = self.daemon.call("POST", "/v1/sandboxes", dict(name=name, **{"from": origin}, **more))
        self.assertEqual(answer.status, 201, answer.body)
        return answer.json

    def taken(self, name, **more):
        self.until(lambda: self.parked() == 1, "a parked machine")
        box = self.create(name, **more)
        self.assertEqual(box["start_mode"], "pool")
        return box

    def boxes(self):
        return sorted(box["name"] for box in self.daemon.json("ls"))

    def hidden(self):
        """Ids of machines that run and are in no list."""
        shown = {box["id"] for box in self.daemon.json("ls")}
        return [(pid, name) for pid, name in self.daemon.vmms().items() if name not in shown]

    def check_one(self, name, template):
        """It is somebody of its own; returns what it drew since."""
        began = time.time()
        who = self.sh(name, "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; date +%s").split()
        self.assertEqual(who[0], name)
        self.assertNotEqual(who[1], template["machine_id"])
        self.assertTrue(began - 60 < int(who[3]) < time.time() + 60, who)    # it stood still for as long as it was parked
        draws = self.sh(name, "n=$(wc -l < draws); while [ $(wc -l < draws) -lt $((n + 5)) ]; do sleep 0.05; done; "
                              "cat draws").split()
        self.assertEqual(draws[:len(template["draws"])], template["draws"])
        return who[1], set(draws[len(template["draws"]):])

    def make_template(self):
        self.create("maker", "agent-base")
        self.daemon.ramet("cp", self.write("draw.py", DRAW.encode()), "maker:draw.py")
        self.sh("maker", "setsid python3 draw.py > /dev/null 2>&1 < /dev/null & while [ ! -s draws ]; do sleep 0.05; done")
        self.daemon.ramet("snapshot", "maker", "--name", "base")
        self.daemon.ramet("rm", "--force", "maker")
        # What it had drawn at the snapshot is what two plain resumes have in common.
        self.assertEqual(self.create("one")["start_mode"], "resume")
        self.assertEqual(self.create("two")["start_mode"], "resume")
        lists = [self.sh(name, "cat draws; cat /etc/machine-id").split() for name in ("one", "two")]
        same = [a for a, b in zip(*lists) if a == b]
        self.assertEqual(lists[0][:len(same)], same)
        self.assertFalse(set(lists[0][len(same):]) & set(lists[1]))
        return dict(draws=same, machine_id=lists[0][-1])

    def test_takes(self):
        """V05: what waits in the pool becomes somebody of its own, each time another one."""
        template = self.make_template()
        self.until(lambda: self.parked() == 1, "a parked machine")
        (pid, id), = self.hidden()
        self.assertEqual(self.boxes(), ["one", "two"])
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/stop"), ("POST", "/exec")):
            body = {"command": "true"} if path == "/exec" else None
            self.assertEqual(self.daemon.call(method, f"/v1/sandboxes/{id}{path}", body).status, 404)
        three = self.taken("three", labels={"who": "three"}, env={"WORD": "three"})
        self.assertEqual((three["id"], three["pid"], three["labels"]), (id, pid, {"who": "three"}))
        self.assertEqual(self.sh("three", "echo $WORD").strip(), "three")
        four = self.taken("four")
        self.assertNotEqual(four["id"], id)
        seen = [self.check_one(name, template) for name in ("three", "four")]
        self.assertNotEqual(seen[0][0], seen[1][0])
        self.assertFalse(seen[0][1] & seen[1][1])    # no draw of one is a draw of the other
        # It is a sandbox like any other from here on.
        self.daemon.ramet("fork", "three", "--name", "five")
        self.assertEqual(self.sh("five", "echo $WORD; cat draws | wc -l").split()[0], "three")
        self.daemon.ramet("stop", "three")
        self.daemon.ramet("start", "three")
        self.assertEqual(self.sh("three", "hostname").strip(), "three")
        shown = self.daemon.call("GET", "/v1/pool").json
        self.assertEqual([(s["name"], s["taken"], s["missed"]) for s in shown["snapshots"]], [("base", 2, 2)])

    def images(self, pid):
        """The memory images that a VMM maps, writable for itself alone: inodes of our mount."""
        device = os.stat(self.daemon.run + "/mem").st_dev
        with open(f"/proc/{pid}/maps") as maps:
            lines = [line.split() for line in maps]
        return {words[4] for words in lines if words[1] == "rw-p" and
                words[3] == f"{os.major(device):02x}:{os.minor(device):02x}"}

    def test_shares(self):
        """A session that went on from its own memory maps the snapshot that it came from, and its own over it."""
        self.make_template()
        self.until(lambda: self.parked() == 1, "a parked machine")
        self.assertTrue(self.daemon.json("snapshots", "show", "base")["working_set"])
        self.assertEqual(len(self.images(self.daemon.json("show", "one")["pid"])), 1)
        before = self.sh("one", "echo mine > /dev/shm/mine; n=$(wc -c < draws); head -c $n draws | md5sum; echo $n").split()
        for _ in range(2):
            self.daemon.ramet("stop", "one")
            self.daemon.ramet("start", "one")
            self.assertEqual(len(self.images(self.daemon.json("show", "one")["pid"])), 2)
            self.assertEqual(self.sh("one", "cat /dev/shm/mine").strip(), "mine")
            self.assertEqual(self.sh("one", f"head -c {before[2]} draws | md5sum").split()[0], before[0])
        # Its snapshots stay whole when the one that it came from is gone; and the daemon finds its way with both.
        self.daemon.ramet("snapshot", "one", "--name", "later")
        shown = self.daemon.json("snapshots", "show", "later")
        self.assertEqual(shown["memory_bytes"], shown["memory_mb"] << 20)
        self.daemon.ramet("snapshots", "rm", "base")
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.sh("one", "cat /dev/shm/mine").strip(), "mine")
        late = self.create("late", "later")
        self.assertEqual(len(self.images(late["pid"])), 2)
        self.assertEqual(self.sh("late", "cat /dev/shm/mine").strip(), "mine")

    def test_template(self):
        """A template has a machine waiting from its first create on; one that waits takes another network policy."""
        self.create("maker", "agent-base")
        answer = self.daemon.call("POST", "/v1/templates", {"name": "kind", "sandbox": "maker"})
        self.assertEqual(answer.status, 202, answer.body)
        self.until(lambda: any(s["name"] == "kind" for s in self.daemon.json("snapshots")), "the template")
        self.assertEqual(self.create("first", "kind")["start_mode"], "resume")
        self.until(lambda: self.parked() == 1, "a parked machine")
        box = self.create("second", "kind", network="none")
        self.assertEqual((box["start_mode"], box["network"]), ("pool", "none"))
        self.assertEqual(self.sh("second", "hostname").strip(), "second")
        self.of_a_ci_key()
        self.until(lambda: self.parked() == 1, "a parked machine")
        self.assertEqual(self.daemon.call("DELETE", "/v1/templates/kind").status, 204)
        self.until(lambda: self.hidden() == [], "the template's parked machine to end")

    def of_a_ci_key(self):
        """What a ci key takes from the pool is its own, from the first event on, and no other ci key's."""
        mine, other = (self.daemon.make_key(name, "ci") for name in ("mine", "other"))

        def call(key, method, path, body=None):
            return self.daemon.call_tcp(method, "/v1" + path, body, key["key"])

        self.until(lambda: self.parked() == 1, "a parked machine")
        made = call(mine, "POST", "/sandboxes", {"name": "own", "from": "kind"})
        self.assertEqual((made.status, made.json["start_mode"], made.json["owner"]), (201, "pool", mine["id"]))
        for key, names in ((mine, ["own"]), (other, [])):
            self.assertEqual([box["name"] for box in call(key, "GET", "/sandboxes").json["sandboxes"]], names)
            self.assertEqual([(event["sandbox"], event["state"]) for event in call(key, "GET", "/events?follow=0").json["events"]],
                             [(name, "running") for name in names])
            for path in ("", "/metrics", "/events?follow=0"):
                self.assertEqual(call(key, "GET", "/sandboxes/own" + path).status, 200 if names else 404, path)
        self.assertEqual(self.daemon.call("GET", "/v1/pool").json["snapshots"][-1]["taken"], 2)
        self.assertEqual(call(other, "DELETE", "/sandboxes/own").status, 404)
        self.assertEqual(call(mine, "DELETE", "/sandboxes/own").status, 204)
        self.assertEqual(call(mine, "GET", "/events?follow=0").json["events"][-1]["type"], "removed")

    def die_at(self, step):
        self.daemon.stop()
        os.environ["RAMET_TEST_STOP_AT"] = step
        try:
            self.daemon.start()
        finally:
            del os.environ["RAMET_TEST_STOP_AT"]
        self.create("x")
        self.create("y")    # from here on there is a pool
        if step in ("pool.continued", "pool.woken"):
            self.until(lambda: self.parked() == 1, "a parked machine")
            with self.assertRaises((OSError, rig.http.client.HTTPException)):
                self.daemon.call("POST", "/v1/sandboxes", {"name": "never", "from": "base"})
        self.assertEqual(self.daemon.process.wait(rig.HANG_SECS), -signal.SIGKILL)
        self.daemon.start()
        self.assertEqual(self.hidden(), [], step)
        self.assertEqual(self.boxes(), ["x", "y"], step)
        for name in ("x", "y"):
            self.assertEqual(self.sh(name, "hostname").strip(), name)
            self.daemon.ramet("rm", "--force", name)

    def test_dies(self):
        """The daemon dies at each step of the pool: nobody gets a machine that is half awake, and none is left."""
        owned = Owned(self.daemon, ("agent-base",))
        self.make_template()
        self.daemon.stop()
        self.daemon.start()    # the pool begins anew: nothing is parked
        owned.learn()
        for name in ("one", "two"):
            self.daemon.ramet("rm", "--force", name)
        for step in ("pool.stands", "pool.parked", "pool.continued", "pool.woken"):
            self.die_at(step)
            self.assertEqual(owned.problems(), [], step)

    def test_ends(self):
        """Nothing of the pool outlives its template, its daemon, or its own VMM."""
        self.make_template()
        self.until(lambda: self.parked() == 1, "a parked machine")
        # One that cannot wake is thrown away, and the create goes on without it.
        (pid, dead), = self.hidden()
        os.kill(pid, signal.SIGKILL)
        self.assertNotEqual(self.create("three")["id"], dead)
        self.assertEqual(self.sh("three", "hostname").strip(), "three")
        self.until(lambda: dead not in self.daemon.folders(), "the dead one's folder to go")
        # A daemon that dies: the next one ends it, and takes over what is the user's.
        self.until(lambda: self.parked() == 1, "a parked machine")
        (pid, orphan), = self.hidden()
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.hidden(), [])
        self.assertNotIn(orphan, self.daemon.folders())
        self.assertEqual(self.boxes(), ["one", "three", "two"])
        self.assertEqual(len(self.daemon.folders()), 3)
        docs = self.daemon.call("GET", "/v1/store").json["docs"]
        # The snapshot replaced: what was made from the old one is not handed out, and ends.
        self.create("four")
        self.create("five")
        self.until(lambda: self.parked() == 1, "a parked machine")
        (pid, old), = self.hidden()
        self.sh("four", "echo new > age")
        self.daemon.ramet("snapshot", "rm", "base")
        self.daemon.ramet("snapshot", "four", "--name", "base")
        six = self.create("six")
        self.assertEqual((six["start_mode"], self.sh("six", "cat age").strip()), ("resume", "new"))
        self.until(lambda: old not in self.daemon.vmms().values(), "the old snapshot's machine to end")
        # A daemon that stops leaves the user's machines and no other.
        self.create("seven")
        self.until(lambda: self.parked() == 1, "a parked machine")
        (pid, last), = self.hidden()
        self.daemon.stop()
        self.assertNotIn(pid, [p for p, _ in rig.vmm_names()])
        self.daemon.start()
        self.assertEqual(self.hidden(), [])
        for name in ("four", "five", "six", "seven"):
            self.daemon.ramet("rm", "--force", name)
        # One snapshot more or less and its working set, nothing else.
        self.until(lambda: self.daemon.call("GET", "/v1/store").json["docs"] <= docs + 1, "left-over documents to go")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
