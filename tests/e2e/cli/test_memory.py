# SPDX-License-Identifier: Apache-2.0
"""The host's memory: what machines use, who may start, who is stopped when it gets short. On real machines."""
import os
import signal
import subprocess
import threading

import rig

SMALL_COUNTS = (96 + 128) << 20    # what a machine with 256 MiB counts at the default overcommit


class Memory(rig.MachineCase):
    def memory(self, name):
        """Of a machine whose memory was read by now; else None."""
        return self.daemon.json("show", name).get("memory")

    def restart(self, *options):
        self.daemon.stop()
        self.daemon.start(*options)

    def test_memory(self):
        self.daemon.ramet("create", "one", "--size", "small")
        self.figures()
        self.scores()
        self.admission()
        self.shortage()

    def figures(self):
        before = self.until(lambda: self.memory("one"))
        self.daemon.ramet("exec", "one", "head -c 80000000 /dev/urandom > /dev/shm/mine; echo here > kept")
        # On a busy host a reading may not come in time: then the figures are those of the one before.
        after = self.until(lambda: (now := self.memory("one"))["private_bytes"] > before["private_bytes"] + (40 << 20) and now)
        self.assertEqual(after["shared_bytes"], 0, "it was booted: there is no snapshot to share")
        self.assertGreater(after["vmm_bytes"], 1 << 20)
        self.daemon.json("fork", "one", "--name", "keep", "--name", "kid")
        kid = self.until(lambda: self.memory("kid"))
        self.assertGreater(kid["shared_bytes"], 0)
        self.assertLess(kid["private_bytes"], after["private_bytes"])
        whole = self.until(lambda: (now := self.daemon.call("GET", "/v1/memory").json)["unknown"] == 0 and now)
        self.assertEqual((whole["machines"], whole["unknown"], whole["state"]), (3, 0, "ok"))
        self.assertEqual(whole["free_bytes"], whole["budget_bytes"] - whole["counted_bytes"])
        self.assertGreaterEqual(whole["counted_bytes"], 3 * SMALL_COUNTS)
        self.assertGreaterEqual(whole["private_bytes"], after["private_bytes"])
        self.assertIn("3 that run", self.daemon.ramet("memory"))
        self.assertIn("memory private_bytes", self.daemon.ramet("show", "kid"))
        # A VMM that does nothing any more is shown like others.
        pids = {box: pid for pid, box in self.daemon.vmms().items()}
        pid = pids[self.daemon.json("show", "kid")["id"]]
        os.kill(pid, signal.SIGSTOP)
        self.assertEqual(self.memory("kid")["private_bytes"], self.memory("kid")["private_bytes"])
        os.kill(pid, signal.SIGCONT)

    def scores(self):
        """When the host is out of memory the machines go first, the keeper last."""
        def score(pid):
            with open(f"/proc/{pid}/oom_score_adj") as file:
                return int(file.read())
        [keeper] = self.daemon.keeper_pids()
        daemon = score(self.daemon.process.pid)
        for pid in self.daemon.vmms():
            self.assertGreater(score(pid), daemon)
        self.assertLessEqual(score(keeper), daemon)
        if subprocess.run(["sh", "-c", "echo -1 > /proc/self/oom_score_adj"], capture_output=True).returncode == 0:
            self.assertLess(score(keeper), daemon)
            self.assertLess(daemon, 0)

    def admission(self):
        self.restart("--memory-budget", str(5 * SMALL_COUNTS), "--memory-overcommit", "200")
        self.assertEqual(len(self.daemon.vmms()), 3)
        volumes = self.daemon.json("volume", "ls", "--all")
        refused = [self.daemon.call("POST", "/v1/sandboxes", {"name": "big", "memory_mb": 2048}),
                   self.daemon.call("POST", "/v1/sandboxes/one/fork", {"count": 3})]
        for answer in refused:
            self.assertEqual((answer.status, answer.code), (503, "capacity.memory"), answer.body)
            self.assertTrue(answer.json["error"]["details"]["retryable"])
            self.assertGreater(answer.json["error"]["retry_after_secs"], 0)
            self.assertIn("--memory-budget", answer.message)
            self.assertIn("3 machines take", answer.message)
        self.assertIn("2048 MiB counts as 1120 MiB", refused[0].message)
        self.assertEqual(self.daemon.json("volume", "ls", "--all"), volumes)
        self.assertEqual(sorted(box["name"] for box in self.daemon.json("ls")), ["keep", "kid", "one"])
        # A stopped one keeps no place, and is refused as others are; it stays as it was.
        self.daemon.ramet("stop", "kid")
        self.restart("--memory-budget", str(SMALL_COUNTS + (1 << 20)))
        self.daemon.ramet("start", "kid", status=1)
        self.assertIn("no memory for it", self.daemon.stderr)
        self.assertEqual(self.daemon.json("show", "kid")["state"], "stopped")
        self.restart()
        self.daemon.ramet("start", "kid")
        for wrong in (("--memory-budget", "1"), ("--memory-overcommit", "99"), ("--memory-overcommit", "1001"), ("--memory-idle", "0")):
            result = subprocess.run([rig.BIN + "/rametd", "--store", "x", "--run", "x", *wrong], capture_output=True, text=True)
            self.assertEqual((result.returncode, wrong[0] in result.stderr), (2, True), result.stderr)

    def shortage(self):
        """The idle one is stopped with its memory, the one that works and the persistent one are not; all go on as they were."""
        def persistent(name, is_it):
            answer = self.daemon.call("PATCH", "/v1/sandboxes/" + name, {"persistent": is_it})
            self.assertEqual(answer.status, 200, answer.body)
        for name in ("keep", "kid", "one"):    # until one of them works: a slow host may take longer to begin that than to find all idle
            persistent(name, True)
        self.restart("--memory-low", "1T", "--memory-idle", "3")    # always short
        work = threading.Thread(target=self.daemon.ramet, args=("exec", "one", "touch works; while test ! -e stop; do sleep 0.1; done; echo done > kept"))
        work.start()
        self.until(lambda: self.daemon.ramet("exec", "one", "ls works 2> /dev/null || true"))
        for name in ("one", "kid"):
            persistent(name, False)
        self.until(lambda: self.daemon.json("show", "kid")["state"] == "stopped")
        box = self.daemon.json("show", "kid")
        self.assertTrue(box["memory_kept"])
        self.assertIn("short of memory", box["reason"])
        self.until(lambda: "sandbox kid: stopped since the host was short of memory" in self.daemon.log())
        self.assertIn("short of memory", self.daemon.call("GET", "/v1/sandboxes/kid/events").body.decode())
        whole = self.daemon.call("GET", "/v1/memory").json
        self.assertEqual((whole["state"], whole["machines"], whole["stopped_total"]), ("short", 2, 1))
        self.assertEqual(self.daemon.json("show", "one")["state"], "running")
        self.daemon.ramet("start", "kid", status=1)
        self.assertIn("the host is short of memory", self.daemon.stderr)
        answer = self.daemon.call("POST", "/v1/sandboxes", {"name": "more"})
        self.assertEqual((answer.status, answer.code), (503, "capacity.memory"))
        self.daemon.ramet("exec", "one", "touch stop")
        work.join(rig.HANG_SECS)
        self.until(lambda: self.daemon.json("show", "one")["state"] == "stopped")
        self.assertEqual(self.daemon.json("show", "keep")["state"], "running")
        self.daemon.call("PATCH", "/v1/sandboxes/keep", {"persistent": False})
        self.until(lambda: self.daemon.json("show", "keep")["state"] == "stopped")
        self.assertEqual(self.daemon.vmms(), {})
        self.restart()
        for name, kept in (("keep", "here\n"), ("kid", "here\n"), ("one", "done\n")):
            self.assertEqual(self.daemon.json("start", name)["start_mode"], "resume")
            self.assertEqual(self.daemon.ramet("exec", name, "cat kept"), kept)
            self.assertNotIn("reason", self.daemon.json("show", name))


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
