# SPDX-License-Identifier: Apache-2.0
"""Field cases of commands and files over the API, on one machine: X01 X02 X03 X06 X08 X14 X15 X17. (Contexts have theirs in tests/context.)"""
import base64
import hashlib
import json
import os
import random
import socket
import subprocess
import threading
import unittest

import rig

LONG = os.environ.get("RAMET_TEST_LONG") == "1"
KEPT = 16 << 20    # of each stream, API.md
FLOOD = (300 if LONG else 24) << 20
ALL_BYTES = bytes(range(256))


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


class ExecCases(rig.MachineCase):
    def options(self):
        """What it keeps of sealed data, by default a sixteenth of the host's memory, is not what a request takes."""
        return "--cache", "64M"

    def setUp(self):
        super().setUp()
        self.daemon.ramet("create", "box", "--env", "LAYER=sandbox", "--env", "KEPT= of the sandbox ")

    def run_in(self, command, status=200, **more):
        answer = self.daemon.call("POST", "/v1/sandboxes/box/exec", {"command": command, **more})
        self.assertEqual(answer.status, status, answer.body[:500])
        return answer.json

    def stream(self, command, **more):
        """The events of a streamed command, as [(event, data)]."""
        answer = self.daemon.call("POST", "/v1/sandboxes/box/exec/stream", {"command": command, **more})
        blocks = [dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
                  for block in answer.body.decode().strip().split("\n\n")]
        return [(block["event"], json.loads(block["data"])) for block in blocks if block]

    def put(self, path, body, status=204, headers=None):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("PUT", f"/v1/sandboxes/box/files/content?path={path}", body, headers or {})
        response = connection.getresponse()
        answer = rig.Answer(response.status, response.headers, response.read())
        connection.close()
        self.assertEqual(answer.status, status, answer.body[:500])
        return answer

    def get(self, path):
        answer = self.daemon.call("GET", f"/v1/sandboxes/box/files/content?path={path}")
        self.assertEqual(answer.status, 200, answer.body[:500])
        return answer.body

    def test_cases(self):
        for case in (self.X01_flood_on_both_streams, self.X01_a_reader_that_stops, self.X02_bytes_that_are_no_text,
                     self.X03_a_character_cut_in_two, self.X06_an_input_that_never_ends, self.X08_how_commands_end,
                     self.X14_environment_values, self.X15_working_directory_gone,
                     self.X17_sizes, self.X17_cut_off, self.X17_refused, self.X17_two_at_once, self.X17_full_disk):
            with self.subTest(case.__name__):
                case()

    # ---- X01 ----

    def X01_flood_on_both_streams(self):
        self.run_in("true")
        before = resident_bytes(self.daemon.process.pid)
        flood = f"head -c {FLOOD} /dev/zero"
        result = self.run_in(f"({flood} | tr '\\0' o) & ({flood} | tr '\\0' e) >&2; wait; exit 3", encoding="base64", timeout_secs=280)
        self.assertEqual((result["exit_code"], result["truncated"], result["timed_out"]), (3, True, False))
        for stream, letter in (("stdout_base64", b"o"), ("stderr_base64", b"e")):
            self.assertEqual(base64.b64decode(result[stream]), letter * KEPT)
        # Two streams are kept, and said again in base64 and JSON; none of it grows with the flood.
        self.assertLess(resident_bytes(self.daemon.process.pid) - before, 14 * KEPT)
        self.assertEqual(self.run_in("echo still")["stdout"], "still\n")

    def X01_a_reader_that_stops(self):
        """It holds up its own command and nobody else; when it reads again it gets everything."""
        slow = rig.UnixConnection(self.daemon.run + "/api.sock")
        slow.request("POST", "/v1/sandboxes/box/exec/stream", json.dumps({"command": "head -c 12000000 /dev/zero | tr '\\0' x; exit 5"}))
        answer = slow.getresponse()
        for _ in range(3):
            self.assertEqual(self.run_in("head -c 2000000 /dev/zero | sha256sum | cut -c 1-8")["exit_code"], 0)
        text = answer.read().decode()
        slow.close()
        self.assertEqual(sum(len(json.loads(line[6:])["text"]) for line in text.splitlines() if line.startswith('data: {"text"')), 12000000)
        self.assertIn('"exit_code":5', text)
        # One that never ends, too, costs what a pipe holds.
        before = resident_bytes(self.daemon.process.pid)
        slow.request("POST", "/v1/sandboxes/box/exec/stream", json.dumps({"command": "exec yes so it goes on for ever"}))
        slow.getresponse()
        for _ in range(3):
            self.assertEqual(self.run_in("head -c 2000000 /dev/zero | sha256sum | cut -c 1-8")["exit_code"], 0)
        self.assertLess(resident_bytes(self.daemon.process.pid) - before, 8 << 20)
        slow.sock.shutdown(socket.SHUT_RDWR)
        self.run_in("while pgrep -x yes > /dev/null; do sleep 0.05; done")

    # ---- X02 ----

    def X02_bytes_that_are_no_text(self):
        self.put("all", ALL_BYTES)
        self.assertEqual(self.get("all"), ALL_BYTES)
        for redirect, stream in (("", "stdout"), (" >&2", "stderr")):
            result = self.run_in(f"printf 'a\\377\\000\\200z'{redirect}")
            self.assertEqual(result[stream], "a\ufffd\0\ufffdz")
            exact = self.run_in(f"cat all{redirect}", encoding="base64")
            self.assertEqual(base64.b64decode(exact[stream + "_base64"]), ALL_BYTES)
            noise = self.run_in(f"head -c 65536 /dev/urandom | tee noise{redirect}")
            self.assertEqual(noise["exit_code"], 0)
            self.assertGreater(len(noise[stream]), 30000)
        noise = self.run_in("cat noise", encoding="base64")
        self.assertEqual(base64.b64decode(noise["stdout_base64"]), self.get("noise"))
        events = self.stream("cat all; cat all >&2; exit 9", encoding="base64")
        for kind in ("stdout", "stderr"):
            self.assertEqual(b"".join(base64.b64decode(data["base64"]) for event, data in events if event == kind), ALL_BYTES)
        self.assertEqual((events[-1][0], events[-1][1]["exit_code"]), ("exit", 9))
        self.assertEqual(self.run_in("sha256sum", stdin_base64=base64.b64encode(ALL_BYTES * 300).decode())["stdout"][:64],
                         hashlib.sha256(ALL_BYTES * 300).hexdigest())

    # ---- X03 ----

    def X03_a_character_cut_in_two(self):
        """Each byte of "€😀" by itself: 3 and 4 of them; then the last character is not finished."""
        slow = r"for b in 342 202 254 360 237 230 200; do printf \\$b; printf \\$b >&2; sleep 0.1; done"
        result = self.run_in(slow)
        self.assertEqual((result["stdout"], result["stderr"]), ("€😀", "€😀"))
        events = self.stream(slow)
        for kind in ("stdout", "stderr"):
            self.assertEqual("".join(data["text"] for event, data in events if event == kind), "€😀")
        self.assertEqual(self.run_in(r"printf 'x\342\202'")["stdout"].rstrip("\ufffd"), "x")
        self.assertIn("\ufffd", self.run_in(r"printf 'x\342\202'")["stdout"])
        self.assertEqual("".join(data["text"] for event, data in self.stream(r"printf 'x\342\202'") if event == "stdout").rstrip("\ufffd"), "x")
        line = "─" * 100000 + "\n"
        program = "python3 -c 'print(\"─\"*100000)'"
        self.assertEqual(self.run_in(program, env={"PYTHONIOENCODING": "utf-8"})["stdout"], line)
        self.assertEqual("".join(data["text"] for event, data in self.stream(program, env={"PYTHONIOENCODING": "utf-8"})
                                 if event == "stdout"), line)
        # The limit of what is kept lies inside a character: KEPT - 1 is no multiple of 3.
        cut = self.run_in("printf x; yes € | tr -d '\\n' | head -c %d" % (KEPT + 3000), timeout_secs=280)
        self.assertTrue(cut["truncated"])
        self.assertEqual(cut["stdout"][1:].strip("€"), "\ufffd" * ((KEPT - 1) % 3 != 0))

    # ---- X06 ----

    def X06_an_input_that_never_ends(self):
        """The command line gives a command no input unless it is told to, and ends when the command does."""
        for command in ("echo hi", "cat; echo hi", "read -p 'Do you want to continue? [Y/n] ' answer; echo hi"):
            child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "box", "--", "bash", "-c", command],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(child.kill)
            self.assertEqual(child.wait(rig.HANG_SECS), 0, command)    # nobody closes its input before
            self.assertEqual(child.communicate()[0], "hi\n", command)

    # ---- X08 ----

    def X08_how_commands_end(self):
        """The shell's own numbers, and a killed one's signal beside them: never 0. The command line passes them on."""
        self.run_in("echo true > plain; chmod 644 plain")
        for command, code, number in (("kill -9 $$", 137, 9), ("kill -SEGV $$", 139, 11), ("exit 300", 44, None), ("no-such-command", 127, None),
                                      ("./plain", 126, None), ("sh -c 'kill -9 $$'; exit $?", 137, None)):
            result, (kind, data) = self.run_in(command), self.stream(command)[-1]
            self.assertEqual((result["exit_code"], result.get("signal")), (code, number), command)
            self.assertEqual((kind, data["exit_code"], data.get("signal")), ("exit", code, number), command)
            self.daemon.ramet("exec", "box", command, status=code)

    # ---- X14 ----

    def X14_environment_values(self):
        values = {"NEWLINE": "a\nb\n", "EQUALS": "a=b=c", "QUOTES": "it's \"so\" `x`", "BLANKS": "  lead trail  ", "DOLLAR": "$HOME ${PATH} $(id)",
                  "BACKSLASH": "\\n\\\\", "EMOJI": "😀", "LARGE": "x" * 100000, "EMPTY": "", "WITH.DOT": "dot", "LAYER": "call", "PATH": "/bin:/mine"}
        result = self.run_in("cat /proc/self/environ", env=values, encoding="base64")
        seen = dict(pair.split("=", 1) for pair in base64.b64decode(result["stdout_base64"]).decode().split("\0") if pair)
        for name, value in {**values, "KEPT": " of the sandbox "}.items():
            self.assertEqual(seen.get(name), value, name)
        self.assertEqual(self.run_in("echo $LAYER")["stdout"], "sandbox\n", "a later layer is of its call alone")
        for name in ("", "A=B", "A\0B"):
            answer = self.run_in("true", status=400, env={name: "x"})
            self.assertEqual(answer["error"]["code"], "validation.invalid")
            self.assertIn("NUL" if "\0" in name else "env", answer["error"]["message"])
        self.assertEqual(self.run_in("true", status=400, env={"A": "x\0y"})["error"]["code"], "validation.invalid")
        secret = "visible-to-nobody-%d" % random.getrandbits(60)
        watched = []
        thread = threading.Thread(target=lambda: watched.append(self.run_in(
            "touch told; until [ -e looked ]; do sleep 0.05; done; echo ${#SECRET}", env={"SECRET": secret})))
        thread.start()
        self.until(lambda: self.run_in("test -e told")["exit_code"] == 0)
        shown = [words for _, words in rig.commands() if any(secret in word for word in words)]
        self.run_in("touch looked")
        thread.join()
        self.assertEqual((shown, watched[0]["stdout"]), ([], "%d\n" % len(secret)))
        [kid] = self.daemon.call("POST", "/v1/sandboxes/box/fork", {"names": ["kid"], "env": {"LAYER": "fork\n2"}}).json["children"]
        self.assertEqual(self.daemon.ramet("exec", "kid", "printf '%s|%s' \"$LAYER\" \"$KEPT\""), "fork\n2| of the sandbox ")
        self.daemon.ramet("rm", kid["name"])

    # ---- X15 ----

    def X15_working_directory_gone(self):
        self.run_in("mkdir -p gone; touch file; sudo install -d -m 700 /opt/closed; rmdir gone")
        for cwd in ("gone", "/home/user/gone", "file", "/opt/closed"):
            answer = self.run_in("true", status=403 if "closed" in cwd else (400, 404)[cwd != "file"], cwd=cwd)
            self.assertIn(cwd.rsplit("/", 1)[-1], answer["error"]["message"])
        self.assertEqual(self.run_in("pwd")["stdout"], "/home/user\n")
        # The user's home, where commands begin, is taken away and comes back.
        self.run_in("sudo mv /home/user /opt/away")
        without = self.daemon.call("POST", "/v1/sandboxes/box/exec", {"command": "pwd"})
        self.assertIn(without.status, (200, 404), without.body)
        self.assertEqual(self.run_in("pwd", cwd="/tmp")["stdout"], "/tmp\n")
        self.run_in("sudo mv /opt/away /home/user", cwd="/")
        self.assertEqual(self.run_in("pwd")["stdout"], "/home/user\n")

    # ---- X17 ----

    def sum_of(self, path):
        """As a job: gigabytes take longer than any call here waits."""
        job = self.daemon.call("POST", "/v1/sandboxes/box/jobs", {"command": f"sha256sum < {path} > sum"}).json
        self.until_ended(f"/v1/sandboxes/box/jobs/{job['id']}")
        return self.run_in("cat sum")["stdout"][:64]

    def until_ended(self, path):
        while self.daemon.call("GET", path + "?wait_secs=60").json["state"] != "ended":
            pass
        self.assertEqual(self.daemon.call("DELETE", path).status, 204)

    def X17_sizes(self):
        sizes = [0, 1, 65535, 65536, 65537, 5 << 20] + ([3 << 30] if LONG else [])
        before = resident_bytes(self.daemon.process.pid)
        for size in sizes:
            sent = hashlib.sha256()

            def pieces():
                for at in range(0, size, 1 << 20):
                    piece = random.Random(at).randbytes(min(1 << 20, size - at))
                    sent.update(piece)
                    yield piece
            self.put("f", pieces(), headers={"Content-Length": str(size)})
            self.assertEqual(self.sum_of("f"), sent.hexdigest(), size)
            if size < 1 << 30:    # chunked: without its length
                self.put("g", pieces())
                self.assertEqual(self.run_in("cmp f g; wc -c < g")["stdout"], f"{size}\n")
        self.assertLess(resident_bytes(self.daemon.process.pid) - before, 128 << 20, "no file is kept in memory")

    def raw_put(self, path, length, body):
        """A client that says one length and sends another, and ends. What it was answered."""
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(rig.HANG_SECS)
            raw.connect(self.daemon.run + "/api.sock")
            raw.sendall(f"PUT /v1/sandboxes/box/files/content?path={path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                        f"Content-Length: {length}\r\n\r\n".encode() + body)
            raw.shutdown(socket.SHUT_WR)
            return raw.recv(4096)

    def X17_cut_off(self):
        self.run_in("rm -rf cut; mkdir cut; echo old > cut/f")
        answer = self.raw_put("cut/f", 1000000, b"n" * 500000)
        self.assertNotIn(b" 20", answer[:12])
        # Nothing of it is left; the next whole one comes through.
        self.until(lambda: self.run_in("ls -A cut; cat cut/f")["stdout"] == "f\nold\n")
        answer = self.raw_put("cut/f", 3, b"newer and more")    # what is beyond the length is no part of the file
        self.assertIn(b" 204", answer[:20])
        self.assertEqual(self.get("cut/f"), b"new")

    def X17_refused(self):
        self.run_in("mkdir -p dir; echo keep > dir/inside; sudo touch /opt/secret")
        self.put("dir", b"x", status=400)
        self.assertEqual(self.get("dir/inside"), b"keep\n")
        self.run_in("mkdir -p fixed; sudo mount -t tmpfs -o ro none fixed")
        self.put("fixed/f", b"x", status=403)
        self.run_in("sudo umount fixed; rmdir fixed")
        for path, code in (("/opt/secret/below", "validation.invalid"), ("dir/inside/below", "validation.invalid")):
            answer = self.daemon.call("PUT", f"/v1/sandboxes/box/files/content?path={path}", b"x")
            self.assertEqual((answer.status, answer.code), (400, code), answer.body)
        self.assertEqual(self.get("dir/inside"), b"keep\n")

    def X17_two_at_once(self):
        """One of the two contents, whole, whoever came last; readers of the old one keep it; snapshots fit in between."""
        contents = [bytes([letter]) * (3 << 20) for letter in b"ab"]
        self.put("both", contents[0])
        results = []
        work = [lambda c=c: results.append(self.put("both", c).status) for c in contents * 2]
        work.append(lambda: results.append(self.daemon.call("POST", "/v1/sandboxes/box/snapshots", {"name": "between"}).status))
        work.append(lambda: results.append(200 if self.get("both") in contents else 500))
        threads = [threading.Thread(target=w) for w in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results), [200, 201, 204, 204, 204, 204])
        self.assertIn(self.get("both"), contents)
        self.assertEqual(self.run_in("ls -A | grep -c both")["stdout"], "1\n")

    def X17_full_disk(self):
        self.run_in("mkdir -p small; sudo mount -t tmpfs -o size=1m,mode=777 none small; echo old > small/f")
        answer = self.put("small/f", os.urandom(2 << 20), status=507)
        self.assertEqual(answer.code, "capacity.storage")
        self.assertEqual(self.run_in("cat small/f; ls -A small")["stdout"], "old\nf\n")
        self.put("small/f", b"new")
        self.assertEqual(self.get("small/f"), b"new")
        self.run_in("sudo umount small")


if __name__ == "__main__":
    rig.need_machines()
    unittest.TestCase.maxDiff = 2000
    rig.main()
