# SPDX-License-Identifier: Apache-2.0
"""Sandboxes on real machines, by the command line and the API: their whole life."""
import json
import os
import random
import socket
import subprocess
import threading
import time

import rig

# Keeps a count in memory alone and writes it, with fresh random bytes, to a file; a number in memory says who it is.
COUNTER = r"""
import json, os, random, time
born, count = os.urandom(8).hex(), 0
random.random()
while True:
    count += 1
    with open("state.new", "w") as f:
        json.dump(dict(born=born, count=count, draw=os.urandom(16).hex(), pid=os.getpid()), f)
    os.rename("state.new", "state")
    time.sleep(0.04)
"""

# 350 MiB, no two blocks of them equal: sealing makes them no smaller.
FILL = r"""
import os, random, sys
pieces = lambda: (random.Random(i).randbytes(1 << 20) for i in range(350))
if sys.argv[1] == "write":
    with open("big", "wb") as f:
        for piece in pieces():
            f.write(piece)
        f.flush()
        os.fsync(f.fileno())
    open("done", "w").close()
else:
    with open("big", "rb") as f:
        bad = [i for i, piece in enumerate(pieces()) if f.read(1 << 20) != piece]
        print(f.tell() >> 20, bad)
"""


class Boxes(rig.MachineCase):
    def start_counter(self, name):
        self.start_program(name, "counter", COUNTER)
        return self.counted(name, 3)

    def state(self, name):
        return json.loads(self.sh(name, "cat state 2>/dev/null || echo {}"))

    def counted(self, name, beyond):
        limit = time.monotonic() + rig.HANG_SECS
        while True:
            state = self.state(name)
            if state.get("count", 0) > beyond:
                return state
            self.assertLess(time.monotonic(), limit, f"{name} does not count: {state}")

    def check_owned(self):
        """Every process, folder and volume belongs to a sandbox that is there."""
        boxes = self.daemon.json("ls")
        running = sorted(b["id"] for b in boxes if b["state"] == "running")
        self.assertEqual(sorted(self.daemon.vmms().values()), running)
        self.assertEqual(self.daemon.folders(), running)
        volumes = [v for v in self.daemon.json("volume", "ls", "--all") if v["name"] != "agent-base"]
        self.assertEqual(len(volumes), 2 * len(boxes), volumes)
        self.assertEqual({v["sandbox"] for v in volumes}, {b["name"] for b in boxes})

    def test_life(self):
        box = self.daemon.json("create", "demo", "--from", "agent-base", "--label", "team=red", "--env", "GREETING=hello")
        self.assertEqual((box["name"], box["state"], box["start_mode"]), ("demo", "running", "cold"))
        self.assertEqual(self.sh("demo", "hostname; echo $GREETING"), "demo\nhello\n")
        self.commands("demo")
        self.files("demo")
        before = self.start_counter("demo")

        snapshot = self.daemon.json("snapshot", "demo", "--name", "warm", "--wait")
        self.assertEqual((snapshot["state"], snapshot["parent"], snapshot["kind"]), ("ready", "demo", "machine"))
        self.assertTrue(snapshot["unique"])
        after = self.counted("demo", before["count"])
        self.assertEqual((after["born"], after["pid"]), (before["born"], before["pid"]), "the source goes on")
        self.fork_eight("demo")
        self.stop_and_start("demo")
        self.from_snapshot(before)
        self.daemon.ramet("snapshots", "rm", "warm")
        for name in [b["name"] for b in self.daemon.json("ls")]:
            self.daemon.ramet("rm", name)
        self.check_owned()
        self.daemon.stop()
        self.assertEqual(self.daemon.keeper_pids(), [])

    def commands(self, name):
        self.sh(name, "exit 7", status=7)
        self.sh(name, "no-such-command", status=127)
        self.sh(name, "kill -9 $$", status=137)
        self.assertEqual(self.daemon.ramet("exec", name, "--", "printf", "%s|", "a b", "$HOME", "it's"), "a b|$HOME|it's|")
        self.assertEqual(self.daemon.ramet("exec", "-i", name, "wc -c", stdin="x" * 70000), "70000\n")
        self.assertEqual(self.daemon.ramet("exec", "-e", "A=1 2\n3", "-w", "/tmp", name, "printf '%s' \"$A\"; pwd"), "1 2\n3/tmp\n")
        self.daemon.ramet("exec", name, "--timeout", "0.5", "--", "sleep", "1000", status=124)
        self.assertEqual(self.sh(name, "pgrep -c sleep || true"), "0\n")
        noise = self.daemon.ramet("exec", name, "head -c 300000 /dev/urandom | tee noise", text=False)
        self.assertEqual(self.daemon.ramet("cp", name + ":noise", "-", text=False), noise)
        result = self.daemon.call("POST", f"/v1/sandboxes/{name}/exec",
                                  {"command": "printf '\\303'; sleep 0.2; printf '\\244\\0'; head -c 3 /dev/zero >&2; cat", "stdin": "\0é"}).json
        self.assertEqual((result["stdout"], result["stderr"], result["exit_code"]), ("ä\0\0é", "\0\0\0", 0))
        events = self.daemon.call("POST", f"/v1/sandboxes/{name}/exec/stream", {"command": "printf '\\303'; sleep 0.2; printf '\\244\\n'; exit 4"})
        self.assertEqual(events.headers["Content-Type"], "text/event-stream")
        blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in events.body.decode().strip().split("\n\n")]
        self.assertEqual("".join(json.loads(b["data"])["text"] for b in blocks if b["event"] == "stdout"), "ä\n")
        self.assertEqual((blocks[-1]["event"], json.loads(blocks[-1]["data"])["exit_code"]), ("exit", 4))
        for body, says in (({}, "command"), ({"command": 1}, "command"), ({"command": "true", "timeout_secs": 0}, "timeout_secs"),
                           ({"command": "true", "env": {"a=": "x"}}, "env"), ({"command": "true", "stdin_base64": "?"}, "stdin_base64"),
                           ({"command": "true", "cwd": "/nowhere"}, "/nowhere"), ({"command": "true", "user": "nobody-here"}, "nobody-here")):
            answer = self.daemon.call("POST", f"/v1/sandboxes/{name}/exec", body)
            self.assertIn(answer.status, (400, 404), answer.body)
            self.assertIn(says, answer.message)
        # What a new user meets who has not taken the template for it.
        answer = self.daemon.call("POST", f"/v1/sandboxes/{name}/contexts", {})
        self.assertEqual((answer.status, answer.code), (409, "context.unsupported"), answer.body)
        self.assertRegex(answer.message, "IPython.*code-interpreter")
        self.daemon.ramet("run", name, "1 + 1", status=1)
        self.assertIn("code-interpreter", self.daemon.stderr)

    def files(self, name):
        for size in (0, 1, 65535, 65536, 3 << 20):
            data = random.Random(size).randbytes(size)
            self.daemon.ramet("cp", self.write("f", data), f"{name}:deep/er/f{size}")
            self.daemon.ramet("cp", f"{name}:deep/er/f{size}", self.path("g"))
            self.assertEqual(self.read("g"), data)
        call = lambda *a: self.daemon.call(a[0], f"/v1/sandboxes/{name}/files{a[1]}", *a[2:])
        entries = call("GET", "?path=deep/er").json["entries"]
        self.assertEqual(sorted(e["name"] for e in entries), sorted(f"f{s}" for s in (0, 1, 65535, 65536, 3 << 20)))
        self.assertEqual(call("GET", "/stat?path=/home/user/deep").json["type"], "dir")
        self.assertEqual(call("POST", "/dir?path=new/folder").status, 204)
        self.assertEqual(call("PUT", "/content?path=new/x&mode=700", b"#!/bin/sh\necho ran").status, 204)
        self.assertEqual(self.sh(name, "new/x"), "ran\n")
        self.assertEqual(call("DELETE", "/content?path=new&recursive=1").status, 204)
        self.assertEqual(call("GET", "/content?path=new/x").status, 404)
        self.assertEqual(call("GET", "/content?path=deep").status, 400)
        self.assertEqual(call("PUT", "/content?path=x&mode=9", b"").status, 400)
        self.assertEqual(call("GET", "/content").status, 400)
        self.cut_upload(name)
        self.daemon.ramet("cp", self.path("nothing"), name + ":x", status=1)
        self.daemon.ramet("cp", name + ":nothing", self.path("y"), status=1)
        self.assertFalse(os.path.exists(self.path("y")))
        self.daemon.ramet("cp", name + ":deep", self.path("y"))
        self.assertEqual(len(os.listdir(self.path("y") + "/er")), 5)

    def cut_upload(self, name):
        """X17: a client that breaks off leaves the old file, and no other."""
        self.sh(name, "mkdir cut; echo old > cut/f")
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(self.daemon.run + "/api.sock")
            raw.sendall(f"PUT /v1/sandboxes/{name}/files/content?path=cut/f HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n".encode()
                        + b"n" * 500000)
        self.until(lambda: self.sh(name, "ls -A cut").split() == ["f"])
        self.assertEqual(self.sh(name, "cat cut/f"), "old\n")

    def fork_eight(self, name):
        before = self.state(name)
        forks = self.daemon.json("fork", name, "--count", "8")
        names = [child["name"] for child in forks["children"]]
        self.assertEqual(len(set(names)), 8)
        self.assertEqual(forks["parent"], name)
        self.check_owned()
        # What the fork point was is within what the source says now; beyond it every state is the branch's own.
        at_fork = self.state(name)["count"]
        states = {n: self.counted(n, at_fork + 5) for n in [name, *names]}
        self.assertEqual({s["born"] for s in states.values()}, {before["born"]}, "one past")
        self.assertEqual(len({s["draw"] for s in states.values()}), 9, "no two draw the same")
        self.assertEqual({s["pid"] for s in states.values()}, {before["pid"]})
        identities = {n: self.sh(n, "cat /proc/sys/kernel/random/uuid /etc/machine-id; hostname").split() for n in [name, *names]}
        for part in range(3):
            self.assertEqual(len({i[part] for i in identities.values()}), 9, identities)
        for n in names:    # different futures
            self.sh(n, f"echo {n} > mine; sync")
        self.assertEqual([self.sh(n, "cat mine").strip() for n in names], names)
        self.sh(name, "test ! -e mine")
        self.daemon.ramet("rm", *names[1:])
        self.daemon.ramet("fork", name, "--name", names[0], status=1)
        self.assertIn("already", self.daemon.stderr)
        self.check_owned()
        self.daemon.ramet("rm", names[0])

    def stop_and_start(self, name):
        before = self.state(name)
        stopped = self.daemon.json("stop", name)
        self.assertEqual((stopped["state"], stopped["memory_kept"]), ("stopped", True))
        self.check_owned()
        self.daemon.ramet("exec", name, "true", status=1)
        self.assertIn("ramet start", self.daemon.stderr)
        self.daemon.ramet("stop", name)    # it is as asked for
        self.daemon.stop()
        self.daemon.start()
        started = self.daemon.json("start", name)
        self.assertEqual((started["state"], started["start_mode"]), ("running", "resume"))
        after = self.counted(name, before["count"])
        self.assertEqual((after["born"], after["pid"]), (before["born"], before["pid"]), "the counter goes on")
        self.check_owned()
        self.sh(name, "echo kept > kept")    # not synced by hand: the stop does it
        self.assertEqual(self.daemon.json("stop", name, "--disk-only")["memory_kept"], False)
        self.daemon.ramet("volume", "export", name + "/disk", self.path("disk"))
        check = subprocess.run(["e2fsck", "-fn", self.path("disk")], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)
        self.daemon.ramet("volume", "fork", name + "/disk", "copy")
        self.daemon.ramet("volume", "snapshot", name + "/disk", "shot")
        self.assertEqual(self.daemon.json("volume", "diff", "shot", "copy")["changed_bytes"], 0)
        self.daemon.ramet("volume", "rm", "copy")
        self.daemon.ramet("snapshots", "rm", "shot")
        os.unlink(self.path("disk"))
        self.assertEqual(self.daemon.json("start", name)["start_mode"], "cold")
        self.assertEqual(self.sh(name, "cat kept; pgrep -f '[c]ounter.py' | wc -l"), "kept\n0\n")

    def from_snapshot(self, before):
        for shape in (["--cpus", "2"], ["--memory", "256"], ["--disk", "9G"]):
            self.daemon.ramet("create", "odd", "--from", "warm", *shape, status=1)
            self.assertIn("warm", self.daemon.stderr)
        box = self.daemon.json("create", "late", "--from", "warm", "--size", "large")    # a wish, no order
        self.assertEqual((box["start_mode"], box["cpus"], box["memory_mb"]), ("resume", 1, 512))
        self.assertIn("1 cpus and 512 MiB", box["notice"])
        state = self.counted("late", 0)
        self.assertEqual((state["born"], state["pid"]), (before["born"], before["pid"]))
        self.daemon.ramet("snapshots", "rm", "warm")    # what was made from it stays
        self.counted("late", state["count"])
        self.daemon.ramet("snapshot", "late", "--name", "warm")
        self.check_owned()

    def test_reboot_power_off_and_removal(self):
        self.daemon.ramet("create", "demo")
        self.sh("demo", "echo data > f; sync")
        reboot = "sudo python3 -c 'import ctypes; ctypes.CDLL(None).reboot({})'"
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "demo", reboot.format("0x1234567")], capture_output=True)
        self.until_answers("demo")
        self.assertEqual(self.sh("demo", "cat f"), "data\n")
        self.daemon.ramet("snapshot", "demo", "--name", "again")    # a rebooted machine is like any other
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "demo", reboot.format("0x4321fedc")], capture_output=True)
        self.until(lambda: self.daemon.json("show", "demo")["state"] == "stopped")
        self.check_owned()
        self.assertEqual(self.daemon.json("start", "demo")["start_mode"], "cold")
        # A VMM that is killed is noticed and said; the disk starts again.
        [pid] = self.daemon.vmms()
        os.kill(pid, 9)
        self.until(lambda: self.daemon.json("show", "demo")["state"] == "failed")
        self.assertNotEqual(self.daemon.json("show", "demo")["reason"], "")
        self.daemon.ramet("start", "demo")
        self.assertEqual(self.sh("demo", "cat f"), "data\n")
        # rm needs no agent.
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "demo", "--timeout", "3", "sudo kill -STOP -1; true"], capture_output=True)
        self.daemon.ramet("rm", "demo")
        self.check_owned()

    def until_answers(self, name):
        self.until(lambda: subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", name, "--timeout", "30", "true"],
                                          capture_output=True).returncode == 0)

    def test_a_full_store_makes_the_guest_wait(self):
        """No room: the guest waits and the sandbox says so; when there is room it goes on by itself, with nothing lost."""
        self.daemon.stop()
        self.daemon.store = self.path("small")
        self.daemon.ramet("store", "init", self.daemon.store, "--log-file", "8M")
        self.daemon.start("--log-budget", "128M", "--quota", "700M")    # image, ballast and the guest's file do not fit
        with open(self.path("ballast"), "wb") as file:
            for _ in range(300):
                file.write(os.urandom(1 << 20))
        self.daemon.ramet("volume", "import", "ballast", self.path("ballast"), "--format", "raw")
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.daemon.ramet("create", "demo")
        self.start_program("demo", "fill", FILL, "write")
        self.until(lambda: "guest waits" in self.daemon.json("show", "demo").get("reason", ""))
        self.assertEqual(self.daemon.json("show", "demo")["state"], "running")
        def is_refused_for_its_disk():    # else it was just tried whether there is room by now
            self.daemon.ramet("snapshot", "demo", status=1)
            return "disk" in self.daemon.stderr
        self.until(is_refused_for_its_disk)
        self.daemon.ramet("volume", "rm", "ballast")
        self.until(lambda: "reason" not in self.daemon.json("show", "demo"))
        self.until(lambda: self.sh("demo", "ls") .split().count("done") == 1)
        self.sh("demo", "echo 3 | sudo tee /proc/sys/vm/drop_caches > /dev/null")
        self.assertEqual(self.sh("demo", "python3 fill.py check"), "350 []\n")
        self.assertEqual(self.sh("demo", "sudo dmesg | grep -ciE 'i/o error|ext4-fs error' || true"), "0\n")
        self.daemon.ramet("rm", "demo")
        self.check_owned()

    def test_many_at_once(self):
        """Changes of one sandbox take turns; names are given once."""
        self.daemon.ramet("create", "demo")
        results, calls = [], [("POST", "/v1/sandboxes/demo/snapshots", {"name": "one"}), ("POST", "/v1/sandboxes/demo/snapshots", {"name": "one"}),
                              ("POST", "/v1/sandboxes/demo/snapshots", {}), ("POST", "/v1/sandboxes/demo/snapshots", {}),
                              ("POST", "/v1/sandboxes/demo/fork", {"names": ["kid"]}), ("POST", "/v1/sandboxes/demo/fork", {"names": ["kid"]}),
                              ("POST", "/v1/sandboxes/demo/exec", {"command": "head -c 20000000 /dev/zero | sha256sum"}),
                              ("POST", "/v1/sandboxes", {"name": "kid", "from": "agent-base"})]
        threads = [threading.Thread(target=lambda c=c: results.append((c, self.daemon.call(*c)))) for c in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(rig.HANG_SECS)
        self.assertEqual(len(results), len(calls))
        statuses = sorted(answer.status for _, answer in results)
        self.assertEqual(statuses, [200, 201, 201, 201, 201, 409, 409, 409], [(c, a.body) for c, a in results])
        self.assertEqual(sorted(s["name"] == "one" for s in self.daemon.json("snapshots")), [False, False, True])
        self.check_owned()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
