# SPDX-License-Identifier: Apache-2.0
"""Machines that come and go leave nothing behind: 100 lives one after another and 50 at once with RAMET_TEST_LONG=1, a few otherwise.

The first life of each kind is not counted: it fills caches and pools that stay. What is there after it is what there is after all others.
"""
import os
import threading
import time

import inventory
import rig

LONG = os.environ.get("RAMET_TEST_LONG") == "1"
LIVES, CROWD = (100, 50) if LONG else (3, 6)


class Leaks(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.maxDiff = None
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.daemon.ramet("create", "origin", "--size", "small")
        self.daemon.ramet("snapshot", "origin", "--name", "start", "--wait")
        self.daemon.ramet("rm", "origin")

    def life(self, number):
        """Everything that makes something: create, commands, files, snapshot, fork, stop, start, a death."""
        sh = lambda name, line: self.daemon.ramet("exec", name, line)
        self.daemon.ramet("create", "box", "--from", "start", "--label", f"number={number}")
        sh("box", f"echo {number} > number; head -c 3000000 /dev/urandom > noise; sync")
        self.daemon.ramet("cp", self.write("file", os.urandom(100000)), "box:file")
        self.daemon.ramet("snapshot", "box", "--name", "middle")
        self.daemon.ramet("fork", "box", "--name", "kid")
        self.assertEqual(sh("kid", "cat number"), f"{number}\n")
        self.daemon.ramet("stop", "box")
        self.daemon.ramet("start", "box")
        self.assertEqual(sh("box", "cat number"), f"{number}\n")
        if number % 2:
            for pid in self.daemon.vmms():
                os.kill(pid, 9)
        self.daemon.call("POST", "/v1/sandboxes", {"name": "never", "from": "start", "cpus": 2})    # refused
        self.daemon.ramet("rm", "box", "kid")
        self.daemon.ramet("snapshots", "rm", "middle")

    def crowd(self, count):
        """All from one snapshot, half of them as forks of one of them, all at work, all removed at once."""
        made = []

        def make(name):
            self.daemon.ramet("create", name, "--from", "start")
            made.append(name)

        self.each(make, [f"one-{i}" for i in range(count - count // 2)])
        forks = self.daemon.json("fork", made[0], "--count", str(count // 2))["children"] if count > 1 else []
        made += [fork["name"] for fork in forks]
        self.assertEqual(len(self.daemon.vmms()), count)
        answers = {}
        self.each(lambda name: answers.update({name: self.daemon.ramet("exec", name, "cat /proc/sys/kernel/random/uuid")}), made)
        self.assertEqual(len(set(answers.values())), count)
        self.each(lambda name: self.daemon.ramet("rm", name), made)

    def each(self, work, names):
        """Four at a time; the first failure is raised."""
        names, failures = list(names), []

        def run():
            while names and not failures:
                try:
                    work(names.pop())
                except IndexError:
                    return
                except Exception as failure:    # shown by the thread that waits
                    failures.append(failure)
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def settled(self):
        """What there is when nothing more comes and goes."""
        before, limit = None, time.monotonic() + rig.HANG_SECS
        while (now := inventory.take(self.daemon)) != before and time.monotonic() < limit:
            before = now
            time.sleep(1)
        return now

    def check(self, before):
        """Threads of answered calls and the like may take a moment to go; what stays is a leak."""
        limit = time.monotonic() + rig.HANG_SECS
        while (grown := inventory.grown(before, inventory.take(self.daemon))) and time.monotonic() < limit:
            time.sleep(0.5)
        self.assertEqual(grown, {})

    def test_lives_one_after_another(self):
        self.life(0)
        self.life(1)
        before = self.settled()
        for number in range(2, 2 + LIVES):
            self.life(number)
        self.check(before)

    def test_many_at_once(self):
        self.crowd(CROWD)
        before = self.settled()
        self.crowd(CROWD)
        self.check(before)
        self.daemon.stop()
        self.assertEqual(self.daemon.keeper_pids(), [])
        self.assertEqual(inventory.mounts(self.root), [])


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
