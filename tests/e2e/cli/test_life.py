# SPDX-License-Identifier: Apache-2.0
"""The life of sandboxes: deadlines (A06), names (A07), pause and resume, restore, promote, several disks, events (A02), the
console. One boot; everything else resumes or forks."""
import datetime
import json
import threading
import time

import rig


class Life(rig.MachineCase):
    def api(self, method, path, body=None, status=200, headers=None):
        answer = self.daemon.call(method, "/v1/sandboxes" + path, body, headers)
        self.assertEqual(answer.status, status, f"{method} {path} {body}: {answer.body.decode()}\n{self.daemon.log()}")
        return answer.json if answer.body and answer.headers["Content-Type"] == "application/json" else None

    def show(self, name):
        return self.api("GET", "/" + name)

    def until_state(self, name, state):
        self.until(lambda: self.show(name)["state"] == state)

    def test_life(self):
        self.api("POST", "", {"name": "base", "size": "small", "disks": [{"size_gb": 1, "mount": "/data"},
                                                                        {"volume": "agent-base", "read_only": True, "mount": "/old image"}]}, 201)
        with self.subTest("disks"):
            self.disks()
        self.daemon.ramet("snapshot", "base", "--name", "point")
        for part in (self.pause, self.restore, self.deadlines, self.promote, self.names, self.events, self.console):
            with self.subTest(part.__name__):
                part()

    # ---- disks ----

    def disks(self):
        self.assertEqual(self.sh("base", "echo one > /data/f; stat -c %U /data; cat '/old image/etc/hostname' >/dev/null && echo there"), "user\nthere\n")
        self.sh("base", "sudo touch '/old image/x'", status=1)
        disks = self.show("base")["disks"]
        self.assertEqual([(d["name"], d["mount"], d["read_only"]) for d in disks],
                         [("base/disk1", "/data", False), ("base/disk2", "/old image", True)])
        for bad, says in (([{}], "either"), ([{"size_gb": 0}], "size_gb"), ([{"size_gb": 1, "volume": "agent-base"}], "either"),
                          ([{"volume": "nothing"}], "nothing"), ([{"size_gb": 1, "mount": "data"}], "mount"),
                          ([{"size_gb": 1, "mount": "/"}], "mount"), ([{"size_gb": 1, "mount": "/a/../b"}], "mount"),
                          ([{"size_gb": 1, "read_only": True}], "read_only"), ([{"size_gb": 1}] * 8, "at most 7"), ("x", "list"),
                          ([{"size_gb": 1, "sise": 1}], "sise")):
            answer = self.daemon.call("POST", "/v1/sandboxes", {"name": "bad", "disks": bad})
            self.assertIn(answer.status, (400, 404), answer.body)
            self.assertIn(says, answer.message)
        self.assertEqual(len(self.daemon.json("volume", "ls", "--all")), 1 + 4)

    # ---- pause ----

    def pause(self):
        self.sh("base", "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > count; sleep 0.02; done' > /dev/null 2>&1 < /dev/null &")
        slow = []
        thread = threading.Thread(target=lambda: slow.append(self.daemon.call(
            "POST", "/v1/sandboxes/base/exec", {"command": "echo begun > began; sleep 1; echo done"})))
        thread.start()
        self.until(lambda: self.sh("base", "cat began 2>/dev/null || true") == "begun\n")
        paused = self.api("POST", "/base/pause", {})
        self.assertEqual(paused["state"], "paused")
        self.api("POST", "/base/pause", {})    # it is as asked for
        for call in (("POST", "/base/exec", {"command": "true"}), ("GET", "/base/files?path=/"), ("POST", "/base/start", {}),
                     ("POST", "/base/stop", {"memory": False})):
            answer = self.daemon.call(call[0], "/v1/sandboxes" + call[1], *call[2:])
            self.assertEqual((answer.status, answer.code.split(".")[1]), (409, "invalid_state"), answer.body)
            self.assertIn("resume", answer.message)
        self.daemon.ramet("snapshot", "base", "--name", "still", "--wait")
        self.assertTrue(self.daemon.json("snapshots", "show", "still")["unique"])
        [pid] = self.daemon.vmms()
        fork = self.api("POST", "/base/fork", {"names": ["of-paused"]}, 201)["children"][0]
        self.assertEqual((fork["state"], self.show("base")["state"]), ("running", "paused"))
        self.daemon.ramet("rm", "of-paused")
        # The command that was under way goes on.
        self.assertEqual(self.api("POST", "/base/resume", {})["state"], "running")
        self.api("POST", "/base/resume", {})
        thread.join()
        self.assertEqual((slow[0].status, slow[0].json["stdout"]), (200, "done\n"))
        # A daemon that ends, and one that dies, leave it paused; the guest's clock is right afterwards.
        self.api("POST", "/base/pause", {})
        for end in (self.daemon.stop, self.daemon.kill):
            end()
            self.daemon.start()
            self.assertEqual((self.show("base")["state"], list(self.daemon.vmms())), ("paused", [pid]))
        self.daemon.ramet("snapshot", "base", "--name", "later")
        self.api("POST", "/base/resume", {})
        counted = lambda: int(self.sh("base", "cat count").strip() or 0)    # empty while it is written
        count = self.until(counted)
        self.until(lambda: counted() > count)
        before, now, after = time.time(), float(self.sh("base", "date +%s.%N")), time.time()
        self.assertTrue(before - 30 < now < after + 30, (before, now, after))
        # Paused, it stops with its memory.
        self.api("POST", "/base/pause", {})
        self.assertEqual(self.api("POST", "/base/stop", {})["memory_kept"], True)
        self.assertEqual(self.api("POST", "/base/start", {})["start_mode"], "resume")
        self.assertEqual(self.sh("base", "cat /data/f"), "one\n")
        for name in ("still", "later"):
            self.daemon.ramet("snapshots", "rm", name)

    # ---- restore ----

    def restore(self):
        before = self.show("base")
        self.sh("base", "echo two > /data/f; echo new > ~/new; sync")
        answer = []
        thread = threading.Thread(target=lambda: answer.append(self.daemon.call("POST", "/v1/sandboxes/base/exec", {"command": "sleep 1000"})))
        thread.start()
        self.until(lambda: self.sh("base", "pgrep -cf '^sleep 1000$' || true") != "0\n")    # others sleep there, too
        self.api("PATCH", "/base", {"labels": {"a": "b"}})
        restored = self.api("POST", "/base/restore", {"snapshot": "point"})
        thread.join()
        self.assertEqual((answer[0].status, answer[0].code), (409, "exec.ended"), answer[0].body)
        self.assertIn("restored", answer[0].message)
        self.assertEqual((restored["id"], restored["name"], restored["state"], restored["labels"]), (before["id"], "base", "running", {"a": "b"}))
        self.assertEqual(self.sh("base", "cat /data/f; test ! -e ~/new && echo gone"), "one\ngone\n")
        for body, says in (({}, "snapshot"), ({"snapshot": "nothing"}, "nothing"), ({"snapshot": "agent-base"}, "snapshot")):
            self.assertIn(says, self.daemon.call("POST", "/v1/sandboxes/base/restore", body).message)
        self.assertEqual(self.show("base")["state"], "running")
        # Stopped, it stays stopped, and goes on from the snapshot when it is started.
        self.sh("base", "echo three > /data/f")
        self.api("POST", "/base/stop", {"memory": False})
        self.assertEqual(self.api("POST", "/base/restore", {"snapshot": "point"})["memory_kept"], True)
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.api("POST", "/base/start", {})["start_mode"], "resume")
        self.assertEqual(self.sh("base", "cat /data/f"), "one\n")
        self.daemon.json("snapshots", "show", "point")
        self.check_owned()

    # ---- deadlines: A06 ----

    def deadlines(self):
        self.api("POST", "/base/stop", {})
        for field in ("ttl_secs", "idle_secs"):
            for value in (-1, "60", True, [], 2 ** 53, 1e308):
                answer = self.daemon.call("PATCH", "/v1/sandboxes/base", {field: value})
                self.assertEqual(answer.status, 400, (field, value))
                self.assertIn(field, answer.message)
                self.assertEqual(self.daemon.call("POST", "/v1/sandboxes", {"name": "no", "from": "point", field: value}).status, 400)
            for value, shown in ((1, 1), (1.5, 1.5), (2 ** 31, 2 ** 31), (None, 2 ** 31), (0, None)):
                self.assertEqual(self.api("PATCH", "/base", {field: value})[field], shown)
        self.assertIsNone(self.show("base")["expires_at"])

        # ttl ends in the middle of a command, and of a snapshot (which is completed first).
        box = self.api("POST", "", {"name": "short", "from": "point", "ttl_secs": 2 ** 31, "persistent": True}, 201)
        self.assertTrue(box["expires_at"].startswith("20"), box)
        self.assertEqual(box["persistent"], True)
        self.sh("short", "echo kept > f")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.daemon.call("POST", "/v1/sandboxes/short/exec", {"command": "echo some; sleep 1000"})))
        thread.start()
        self.until(lambda: self.sh("short", "pgrep -cf '^sleep 1000$' || true") != "0\n")
        self.api("PATCH", "/short", {"ttl_secs": 0.5})
        thread.join()
        self.assertEqual((answers[0].status, answers[0].code), (409, "exec.ended"), answers[0].body)
        self.assertIn("ttl", answers[0].message)
        self.until_state("short", "stopped")
        box = self.show("short")
        self.assertEqual((box["memory_kept"], box["expires_at"]), (True, None))
        self.assertIn("ttl of 0.5 s", box["reason"])
        # It counts anew from the next start; longer and none.
        self.api("PATCH", "/short", {"ttl_secs": 1000})
        self.api("POST", "/short/start", {})
        self.assertEqual(self.sh("short", "cat f"), "kept\n")
        self.api("PATCH", "/short", {"ttl_secs": 0})
        self.assertIsNone(self.show("short")["expires_at"])
        # A child has its parent's ttl from its own start; a paused one ends too.
        self.api("PATCH", "/short", {"ttl_secs": 3000})
        child = self.api("POST", "/short/fork", {"names": ["child"]}, 201)["children"][0]
        self.assertEqual(child["ttl_secs"], 3000)
        self.assertGreater(child["expires_at"], self.show("short")["expires_at"])
        self.api("POST", "/child/pause", {})
        self.api("PATCH", "/child", {"ttl_secs": 0.1})
        self.until_state("child", "stopped")
        # One with auto_start is started by a call into it, not by one about it; on_timeout says what a deadline does.
        for field, value in (("on_timeout", "kill"), ("on_timeout", True), ("auto_start", "yes")):
            self.assertIn(field, self.daemon.call("PATCH", "/v1/sandboxes/child", {field: value}).message)
        self.assertEqual(self.daemon.call("POST", "/v1/sandboxes/child/exec", {"command": "true"}).status, 409)
        box = self.api("PATCH", "/child", {"ttl_secs": 0, "auto_start": True})
        self.assertEqual((box["auto_start"], box["on_timeout"], box["state"]), (True, "stop", "stopped"))
        self.assertEqual(self.sh("child", "echo woken"), "woken\n")
        self.api("POST", "/child/stop", {})
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.daemon.call("GET", "/v1/sandboxes/child/files/content?path=/etc/hostname").body, b"child\n")
        self.daemon.ramet("update", "child", "--on-timeout", "delete", "--ttl", "0.1")
        self.until(lambda: "child" not in {box["name"] for box in self.daemon.json("ls")})
        self.assertIn("sandbox child: its ttl of 0.1 s ended, it is removed", self.daemon.log())
        # While no daemon runs nothing happens; the next one does it once.
        secs = self.die_before_a_deadline()
        self.daemon.start()
        self.until_state("short", "stopped")
        self.assertEqual(self.daemon.log().count(f"sandbox short: its ttl of {secs} s ended"), 1)
        # Idle: a command that runs is activity, and so is anything else.
        for secs in 1, 4, 16, 64:    # a slow machine needs longer than a second to begin a command
            self.until_state("short", "stopped")
            self.api("PATCH", "/short", {"ttl_secs": 0, "idle_secs": secs})
            self.api("POST", "/short/start", {})
            answer = self.daemon.call("POST", "/v1/sandboxes/short/exec", {"command": f"sleep {2.5 * secs}; echo awake"})
            if answer.status == 200:
                break
            self.assertIn(answer.code, ("sandbox.invalid_state", "exec.ended"))    # it came late, or just when it was stopped
        self.assertEqual((answer.status, answer.json.get("stdout")), (200, "awake\n"), answer.body)
        self.until_state("short", "stopped")
        self.assertIn("idle", self.show("short")["reason"])
        # Retention.
        self.daemon.stop()
        self.daemon.start("--keep-stopped", "1")
        self.until(lambda: {b["name"] for b in self.daemon.json("ls")} == {"short"})
        self.daemon.stop()
        self.daemon.start()
        self.daemon.ramet("rm", "short")
        self.api("POST", "", {"name": "base", "from": "point"}, 201)
        self.check_owned()

    def die_before_a_deadline(self):
        """The daemon is killed with a deadline ahead, which passes then; how many seconds it was."""
        for secs in 1, 4, 16, 64:    # a slow host may not come to kill it within a second
            ends = self.api("PATCH", "/short", {"ttl_secs": secs})["expires_at"]
            self.daemon.kill()
            left = datetime.datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() - time.time()
            if left > 0:
                time.sleep(left + 0.2)    # not a wait: the deadline passes
                return secs
            self.daemon.start()
            self.until_state("short", "stopped")
            self.api("PATCH", "/short", {"ttl_secs": 0})
            self.api("POST", "/short/start", {})
        self.fail("no daemon was killed before its sandbox's deadline")

    # ---- promote ----

    def promote(self):
        forks = self.api("POST", "/base/fork", {"names": ["a", "b", "c"]}, 201)
        self.assertEqual({c["tree_id"] for c in forks["children"]}, {forks["tree_id"]})
        self.assertEqual(self.show("a")["parent_id"], self.show("base")["id"])
        self.api("POST", "/a/fork", {"names": ["a1"]}, 201)
        self.sh("b", "echo winner > w")
        self.assertEqual(self.daemon.call("POST", "/v1/sandboxes/b/promote", {"tree_id": "tree_1"}).status, 400)
        self.assertEqual(self.daemon.call("POST", "/v1/sandboxes/base/promote", {}).status, 409)
        result = self.api("POST", "/b/promote", {"tree_id": forks["tree_id"], "name": "base"})
        self.assertEqual((sorted(result["deleted"]), result["failures"], result["winner"]["name"]), (["a", "a1", "c"], {}, "base"))
        self.assertEqual({b["name"] for b in self.daemon.json("ls")}, {"base", "b"})
        self.assertEqual(self.sh("base", "cat w"), "winner\n")
        self.sh("b", "test ! -e w")    # the parent has the winner's name
        self.assertEqual(self.daemon.call("POST", "/v1/sandboxes/base/promote", {}).status, 409)
        self.daemon.ramet("rm", "b")
        self.check_owned()

    # ---- names: A07 ----

    def names(self):
        answers = []
        # Half of them by its id: by its name all may come too late.
        threads = [threading.Thread(target=lambda by=by: answers.append(self.daemon.call(
            "POST", f"/v1/sandboxes/{by}/snapshots", {"name": "one"}))) for by in ("base", self.show("base")["id"]) * 4]
        threads += [threading.Thread(target=lambda: answers.append(self.daemon.call(
            "PATCH", "/v1/sandboxes/base", {"name": "two"}))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        self.assertEqual(sum(a.status == 201 for a in answers), 1)
        self.assertLessEqual({a.status for a in answers}, {200, 201, 404, 409})
        self.assertEqual([b["name"] for b in self.daemon.json("ls")], ["two"])
        self.api("PATCH", "/two", {"name": "base"})
        for bad in (".", "..", "-x", "a" * 41, "Upper", "bаse", "", "a_b", "ls"):    # one with a Cyrillic letter
            self.assertEqual(self.daemon.call("PATCH", "/v1/sandboxes/base", {"name": bad}).status, 400, bad)
        for good in ("a", "a" * 40, "0", "base"):
            name = [b["name"] for b in self.daemon.json("ls")][0]
            self.assertEqual(self.api("PATCH", "/" + name, {"name": good})["name"], good)
        self.api("POST", "", {"name": "other", "from": "point"}, 201)
        self.assertEqual(self.daemon.call("PATCH", "/v1/sandboxes/other", {"name": "base"}).status, 409)
        made = [self.api("POST", "/base/snapshots", {}, 201)["name"] for _ in range(5)]
        self.assertEqual(len(set(made)), 5)
        self.daemon.ramet("rm", "other")
        for name in [*made, "one"]:
            self.daemon.ramet("snapshots", "rm", name)
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.sh("base", "echo here"), "here\n")

    # ---- events: A02 ----

    def stream(self, path, count, last=None):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("GET", path, headers={} if last is None else {"Last-Event-ID": last})
        return connection, connection.getresponse()

    def take(self, response, count):
        found, block = [], {}
        while len(found) < count:
            line = response.readline().decode().rstrip("\n")
            if line == "" and block:
                found.append(block)
                block = {}
            elif line and not line.startswith(":"):
                key, value = line.split(": ", 1)
                block[key] = value
        return found

    def events(self):
        connection, response = self.stream("/v1/events", 0)
        self.assertEqual(response.headers["Content-Type"], "text/event-stream")
        self.api("POST", "/base/pause", {})
        self.api("POST", "/base/resume", {})
        first = self.take(response, 2)
        connection.close()
        self.assertEqual([(e["event"], json.loads(e["data"])["state"]) for e in first], [("state", "paused"), ("state", "running")])
        self.api("POST", "", {"name": "other", "from": "point"}, 201)
        self.api("POST", "/base/pause", {})
        # With the last id: exactly what is missing, of all or of one.
        connection, response = self.stream("/v1/events", 0, first[0]["id"])
        again = self.take(response, 3)
        connection.close()
        self.assertEqual(again[0], first[1])
        self.assertEqual([json.loads(e["data"])["sandbox"] for e in again], ["base", "other", "base"])
        connection, response = self.stream("/v1/sandboxes/base/events?follow=1", 0, again[1]["id"])    # an id of another stream
        self.assertEqual(self.take(response, 1)[0], again[2])
        connection.close()
        # What cannot be told is one gap, then all there is.
        for last in ("00000000-1", "zzz", "", again[2]["id"] + "0"):
            connection, response = self.stream("/v1/events", 0, last)
            got = self.take(response, 2)
            connection.close()
            self.assertEqual(got[0]["event"], "gap", last)
            self.assertNotEqual(got[1]["event"], "gap")
        listed = self.api("GET", "/base/events")["events"]
        self.assertEqual([e["state"] for e in listed if e["type"] == "state"], ["paused", "running", "paused"])
        # A removed one's stream ends.
        connection, response = self.stream("/v1/sandboxes/other/events?follow=1", 0)
        self.daemon.ramet("rm", "other")
        self.assertIn(b"event: removed", response.read())
        connection.close()
        self.api("POST", "/base/resume", {})

    def console(self):
        self.sh("base", "echo the console says hello | sudo tee /dev/console > /dev/null")
        read = lambda query="": self.daemon.call("GET", "/v1/sandboxes/base/logs" + query)
        self.until(lambda: b"the console says hello" in read().body)
        self.assertLessEqual(len(read("?tail_bytes=10").body), 10)
        self.assertEqual(read("?tail_bytes=0").status, 400)
        self.api("POST", "/base/stop", {})
        self.assertIn(b"the console says hello", read().body)
        self.api("POST", "/base/start", {})

    def check_owned(self):
        boxes = self.daemon.json("ls")
        running = sorted(b["id"] for b in boxes if b["state"] in ("running", "paused"))
        self.assertEqual(sorted(self.daemon.vmms().values()), running)
        self.assertEqual(self.daemon.folders(), running)
        volumes = [v for v in self.daemon.json("volume", "ls", "--all") if v["name"] != "agent-base"]
        self.assertEqual(sorted(v["sandbox"] or "" for v in volumes), sorted([b["name"] for b in boxes] * 4))


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
