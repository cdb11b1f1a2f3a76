# SPDX-License-Identifier: Apache-2.0
"""Jobs, terminals and files of a real machine, by the API and the command line."""
import contextlib
import hashlib
import http.client
import json
import os
import pty
import select
import socket
import struct
import subprocess
import threading
import time

import rig


class Socket:
    """A WebSocket client that can also say what no client should."""

    def __init__(self, daemon, path, key="dGhlIHNhbXBsZSBub25jZQ=="):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(rig.HANG_SECS)
        self.sock.connect(daemon.run + "/api.sock")
        self.sock.sendall((f"GET {path} HTTP/1.1\r\nHost: ramet\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                           f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n").encode())
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            byte = self.sock.recv(1)
            assert byte, self.head
            self.head += byte
        self.shown, self.texts, self.code, self.reason = b"", [], None, ""

    def send(self, first, payload, masked=True):
        size = len(payload)
        mask = os.urandom(4)
        head = bytes([first]) + (bytes([size | masked << 7]) if size < 126 else
                                 bytes([126 | masked << 7]) + struct.pack(">H", size) if size < 65536 else
                                 bytes([127 | masked << 7]) + struct.pack(">Q", size))
        if masked:
            payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
            head += mask
        self.sock.sendall(head + payload)

    def type(self, text):
        self.send(0x82, text.encode())

    def exactly(self, size):
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def take(self):
        """One message; False at the close frame."""
        first, size = self.exactly(2)
        if size == 126:
            size = struct.unpack(">H", self.exactly(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.exactly(8))[0]
        payload = self.exactly(size)
        if first == 0x82:
            self.shown += payload
        elif first == 0x81:
            self.texts.append(json.loads(payload))
        elif first == 0x88:
            self.code, self.reason = struct.unpack(">H", payload[:2])[0], payload[2:].decode()
            return False
        return True

    @contextlib.contextmanager
    def awake(self):
        """Says meanwhile that it is there: who is silent for a minute is given up."""
        done = threading.Event()

        def say():
            while not done.wait(5):
                self.send(0x8A, b"")
        thread = threading.Thread(target=say)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def until(self, text):
        while text.encode() not in self.shown:
            assert self.take(), (text, self.shown, self.code, self.reason)

    def to_end(self):
        while self.take():
            pass
        self.sock.close()
        return self.code


class Jobs(rig.MachineCase):
    def setUp(self):
        super().setUp()
        self.daemon.ramet("create", "box", "--memory", "256")

    def sh(self, line, name="box", status=0):
        return self.daemon.ramet("exec", name, line, status=status)

    def events(self, path, headers=None):
        answer = self.daemon.call("GET", path, headers=headers)
        self.assertEqual(answer.status, 200, answer.body)
        found = []
        for block in answer.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
        return found

    def test_jobs_terminals_and_files(self):
        self.jobs()
        self.logs_can_be_resumed()
        self.terminals()
        self.A09_terminals_that_close_badly()
        self.shell_verb()
        self.files()
        self.ports()
        self.forks_have_their_own_jobs()

    def ports(self):
        self.sh("mkdir -p www; head -c 3000000 /dev/urandom > www/big; sha256sum < www/big > sum")
        self.daemon.ramet("job", "start", "--name", "web", "box", "cd www; exec python3 -m http.server 8000 --bind 127.0.0.1")
        forward = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "forward", "box", "0:8000"],
                                   stdout=subprocess.PIPE, text=True)
        try:
            port = int(forward.stdout.readline().split()[0].split(":")[1])
            self.sh("for i in $(seq 400); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' "
                    "2> /dev/null && exit 0; done; exit 1")
            for _ in range(2):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=rig.HANG_SECS)
                connection.request("GET", "/big")
                body = connection.getresponse().read()
                self.assertEqual(hashlib.sha256(body).hexdigest(), self.sh("cut -d' ' -f1 sum").strip())
                connection.close()
        finally:
            forward.kill()
            forward.wait()
            forward.stdout.close()
        answer = self.daemon.call("GET", "/v1/sandboxes/box/ports/8001", headers={"Connection": "Upgrade", "Upgrade": "tcp"})
        self.assertEqual((answer.status, answer.code), (502, "port.refused"))
        self.daemon.ramet("job", "rm", "--force", "box", "web")

    def jobs(self):
        call = self.daemon.call
        job = call("POST", "/v1/sandboxes/box/jobs", {"command": "echo hi; echo no >&2; sleep 0.2; exit 3", "name": "one",
                                                      "env": {"A": "b c"}})
        self.assertEqual(job.status, 201, job.body)
        path = f"/v1/sandboxes/box/jobs/{job.json['id']}"
        ended = call("GET", path + "?wait_secs=100").json
        self.assertEqual((ended["state"], ended["exit_code"], ended["name"]), ("ended", 3, "one"))
        events = self.events(path + "/logs")
        self.assertEqual([(e, d.get("text")) for _, e, d in events],
                         [("stdout", "hi\n"), ("stderr", "no\n"), ("end", None)])
        self.assertEqual(call("GET", "/v1/sandboxes/box/jobs/one").json["id"], job.json["id"])
        self.assertEqual(call("POST", "/v1/sandboxes/box/jobs", {"command": "true", "name": "1x"}).status, 400)
        self.assertEqual(call("GET", "/v1/sandboxes/box/jobs/99999").status, 404)
        self.daemon.ramet("job", "start", "box", "--name", "server", "while :; do echo tick; sleep 0.05; done")
        again = call("POST", "/v1/sandboxes/box/jobs", {"command": "true", "name": "server"})
        self.assertEqual((again.status, again.code), (409, "job.conflict"))
        self.assertEqual(call("DELETE", "/v1/sandboxes/box/jobs/server").status, 409)
        self.assertIn("server", self.daemon.ramet("job", "ls", "box"))
        self.daemon.ramet("job", "kill", "box", "server", "--signal", "INT")
        self.assertNotEqual(self.daemon.json("job", "show", "box", "server")["id"], job.json["id"])
        self.daemon.ramet("job", "rm", "--force", "box", "server")
        self.assertEqual(self.daemon.ramet("job", "wait", "box", "one", status=3), "job 1 one: exit 3\n")
        self.daemon.ramet("job", "rm", "box", "one")
        self.assertEqual(self.daemon.json("job", "ls", "box"), [])

    def logs_can_be_resumed(self):
        """A02: with the last id exactly what was missed comes, and what is not kept is told."""
        call = self.daemon.call
        job = call("POST", "/v1/sandboxes/box/jobs", {"command": "printf 'a─b'; seq 300000"}).json
        path = f"/v1/sandboxes/box/jobs/{job['id']}"
        events = self.events(path + "/logs?follow=1")
        end = events[-1][2]
        text = "".join(d["text"] for _, e, d in events if e == "stdout")
        self.assertEqual(events[-1][1], "end")
        size = end["stdout"]["next_offset"]
        wanted = "a─b" + "".join(f"{i}\n" for i in range(1, 300001))
        self.assertEqual(size, len(wanted.encode()))
        if not any(e == "gap" for _, e, _ in events):
            self.assertEqual(text, wanted)
        late = self.events(path + "/logs", {"Last-Event-ID": "0.0"})
        self.assertEqual(late[0][1], "gap")
        self.assertEqual(late[0][2]["to"], size - (1 << 20))
        rest = self.events(path + "/logs", {"Last-Event-ID": f"{size - 7}.0"})
        self.assertEqual("".join(d["text"] for _, e, d in rest if e == "stdout"), wanted[-7:])
        self.assertEqual(call("GET", path + "/logs", headers={"Last-Event-ID": "seven"}).status, 400)
        future = self.events(path + "/logs", {"Last-Event-ID": f"{size + 100}.0"})
        self.assertEqual((future[0][1], future[0][2]), ("gap", {"stream": "stdout", "from": size + 100, "to": size - (1 << 20)}))
        self.assertEqual("".join(d["text"] for _, e, d in future if e == "stdout"), wanted[-(1 << 20):])
        self.assertEqual(future[-1][1], "end")

    def terminals(self):
        ws = Socket(self.daemon, "/v1/sandboxes/box/exec/pty?rows=30&columns=100&term=dumb")
        self.assertIn(b" 101 ", ws.head)
        self.assertIn(b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", ws.head)
        ws.type("stty size; echo id=$(id -un)\n")
        ws.until("30 100")
        ws.until("id=user")
        ws.send(0x81, b'{"resize":{"rows":50,"columns":132}}')
        ws.type("sleep 0.1; stty size\n")
        ws.until("50 132")
        ws.send(0x81, b'{"resize":{"rows":0,"columns":10000}}')   # refused with words; it goes on
        ws.type("exit 7\n")
        self.assertEqual(ws.to_end(), 1000)
        self.assertEqual(ws.texts[-1]["exit"]["exit_code"], 7)
        self.assertIn("error", ws.texts[0])
        # Fragments, a ping between them, a megabyte at once.
        ws = Socket(self.daemon, "/v1/sandboxes/box/exec/pty?command=stty+raw+-echo;echo+ready;head+-c+1000000|wc+-c")
        ws.until("ready")
        ws.send(0x02, b"x" * 10)
        ws.send(0x89, b"are you there")
        ws.send(0x80, b"y" * 10)
        ws.send(0x82, b"z" * 999980)
        ws.until("1000000")
        self.assertEqual(ws.to_end(), 1000)
        answer = self.daemon.call("GET", "/v1/sandboxes/box/exec/pty")
        self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))

    def A09_terminals_that_close_badly(self):
        def refused(code, *frames, **how):
            ws = Socket(self.daemon, "/v1/sandboxes/box/exec/pty?command=sleep+4711")
            for first, payload in frames:
                try:
                    ws.send(first, payload, **how)
                except (BrokenPipeError, ConnectionResetError):
                    pass    # refused with words before all was sent, or it is gone, which the next line says
            self.assertEqual(ws.to_end(), code)
        refused(1002, (0x82, b"unmasked"), masked=False)
        refused(1002, (0x80, b"goes on with nothing"))
        refused(1003, (0x81, b"no json"))
        refused(1007, (0x81, b"\xff"))
        refused(1009, (0x82, b"x" * ((1 << 20) + 1)))
        refused(1000, (0x88, struct.pack(">H", 1000)))
        for _ in range(3):    # gone without a word, and while it opens
            Socket(self.daemon, "/v1/sandboxes/box/exec/pty?command=sleep+4711").sock.close()
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.daemon.run + "/api.sock")
            sock.sendall(b"GET /v1/sandboxes/box/exec/pty?command=sleep+4711 HTTP/1.1\r\nHost: ramet\r\nConnection: Upgrade\r\n"
                         b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
            sock.close()
        self.sh("for i in $(seq 2400); do pgrep -f '^sleep 4711' > /dev/null || exit 0; sleep 0.05; done; exit 1")
        self.sh("for i in $(seq 2400); do [ $(cat /proc/sys/kernel/pty/nr) = 0 ] && exit 0; sleep 0.05; done; exit 1")

    def shell_verb(self):
        """The command line's own terminal: raw, so that keys go to the sandbox; its exit status is passed on."""
        pid, master = pty.fork()
        if pid == 0:
            os.execv(rig.BIN + "/ramet", ["ramet", "--run", self.daemon.run, "shell", "box"])
        shown = b""

        def until(text):
            nonlocal shown
            while text not in shown:
                self.assertTrue(select.select([master], [], [], rig.HANG_SECS)[0], shown)
                shown += os.read(master, 65536)
        os.write(master, b"PS1=; sh -c 'echo be\"\"gin; exec sleep 1000'\n")
        until(b"begin")
        os.write(master, b"\x03")
        until(b"^C")
        os.write(master, b"echo still he''re; exit 5\n")
        until(b"still here")
        try:
            while os.read(master, 65536):
                pass
        except OSError:
            pass
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 5)
        self.assertIn("no", self.daemon.ramet("shell", "no-such-box", status=1) + self.daemon.stderr)

    def files(self):
        call, at = self.daemon.call, "/v1/sandboxes/box/files"
        call("PUT", at + "/content?path=data", b"0123456789")
        for given, status, body, told in (("bytes=2-4", 206, b"234", "bytes 2-4/10"), ("bytes=7-", 206, b"789", "bytes 7-9/10"),
                                          ("bytes=-3", 206, b"789", "bytes 7-9/10"), ("bytes=5-100", 206, b"56789", "bytes 5-9/10"),
                                          ("bytes=10-", 416, None, "bytes */10"), ("lines=1-2", 200, b"0123456789", None)):
            answer = call("GET", at + "/content?path=data", headers={"Range": given})
            self.assertEqual((answer.status, answer.headers["Content-Range"]), (status, told), given)
            if body is not None:
                self.assertEqual(answer.body, body)
        for path, status in (("data", 200), ("no-such", 404)):    # X17
            answer = call("HEAD", at + "/content?path=" + path)
            self.assertEqual((answer.status, answer.body), (status, b""))
        self.assertEqual(call("POST", at + "/move", {"from": "data", "to": "deep/er/data"}).status, 204)
        self.assertEqual(call("GET", at + "/content?path=deep/er/data").body, b"0123456789")
        self.assertEqual(call("POST", at + "/move", {"from": "data", "to": "x"}).status, 404)
        call("PUT", at + "/content?path=other", b"o")
        self.assertEqual(call("POST", at + "/move", {"from": "other", "to": "deep/er/data"}).status, 409)
        self.assertEqual(call("POST", at + "/move", {"from": "other", "to": "deep/er/data", "replace": True}).status, 204)
        self.X17_a_full_disk()
        found, ready = [], threading.Event()

        def watch():
            connection = rig.UnixConnection(self.daemon.run + "/api.sock")
            connection.request("GET", at + "/watch?path=deep&recursive=1")
            response = connection.getresponse()
            event = None
            for line in response:
                line = line.decode().strip()
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    found.append((event, json.loads(line[6:])))
                    if event == "ready":
                        ready.set()
                    if event in ("end", "error"):
                        break
            connection.close()
        thread = threading.Thread(target=watch)
        thread.start()
        self.assertTrue(ready.wait(rig.HANG_SECS))
        self.sh("echo more >> deep/er/data; mv deep/er/data deep/moved; rm -r deep")
        thread.join(rig.HANG_SECS)
        names = [(event, data["path"].rsplit("/deep", 1)[1]) for event, data in found if "path" in data]
        self.assertIn(("changed", "/er/data"), names)
        self.assertIn(("moved", "/er/data"), names)
        self.assertEqual(found[-1][0], "end")

    def X17_a_full_disk(self):
        """What does not fit leaves the old content and nothing beside it."""
        call, at = self.daemon.call, "/v1/sandboxes/box/files"
        root = ["exec", "--user", "root", "box"]
        self.daemon.ramet(*root, "mkdir -p /srv/small && mount -t tmpfs -o size=1m,mode=777 none /srv/small")
        self.assertEqual(call("PUT", at + "/content?path=/srv/small/old", b"old").status, 204)
        answer = call("PUT", at + "/content?path=/srv/small/old", b"x" * (2 << 20))
        self.assertEqual((answer.status, answer.code), (507, "capacity.storage"))
        self.assertEqual(call("GET", at + "/content?path=/srv/small/old").body, b"old")
        self.assertEqual(call("PUT", at + "/content?path=/srv/small/new", b"x" * (2 << 20)).status, 507)
        self.assertEqual(self.daemon.ramet(*root, "ls -A /srv/small"), "old\n")
        results = []
        threads = [threading.Thread(target=lambda byte=byte: results.append(
            call("PUT", at + "/content?path=/srv/small/both", byte * 300000).status)) for byte in (b"a", b"b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        both = call("GET", at + "/content?path=/srv/small/both").body
        self.assertEqual((results, len(both), len(set(both))), ([204, 204], 300000, 1))
        self.assertEqual(self.daemon.ramet(*root, "ls -A /srv/small"), "both\nold\n")
        self.daemon.ramet(*root, "umount /srv/small")

    def forks_have_their_own_jobs(self):
        self.daemon.ramet("job", "start", "box", "--name", "count", "while :; do echo $((++i)); sleep 0.05; done")
        ws = Socket(self.daemon, "/v1/sandboxes/box/exec/pty?command=echo+open;sleep+4712")
        ws.until("open")
        with ws.awake():
            self.fork_beside_a_terminal()
        ws.send(0x88, b"")
        ws.to_end()
        self.outlives_stop_and_daemon()

    def outlives_stop_and_daemon(self):
        """The job goes on where it was after stop and start, and under another daemon; no line of its log is lost or twice."""
        path = "/v1/sandboxes/box/jobs/count"
        before = self.daemon.json("job", "show", "box", "count")
        for between in (lambda: self.daemon.ramet("stop", "box") and self.daemon.ramet("start", "box"),
                        lambda: self.daemon.kill() or self.daemon.start()):
            seen = self.daemon.json("job", "show", "box", "count")["stdout"]["next_offset"]
            between()
            self.until(lambda: self.daemon.json("job", "show", "box", "count")["stdout"]["next_offset"] > seen + 20)
        after = self.daemon.json("job", "show", "box", "count")
        self.assertEqual((after["id"], after["pid"], after["state"]), (before["id"], before["pid"], "running"))
        self.daemon.ramet("job", "kill", "box", "count", "--signal", "KILL")
        ended = self.daemon.call("GET", path + "?wait_secs=100").json
        self.assertEqual((ended["state"], ended["exit_code"], ended["signal"]), ("ended", 137, 9))
        lines = "".join(data["text"] for _, kind, data in self.events(path + "/logs?follow=1") if kind == "stdout").splitlines()
        self.assertEqual(lines[:-1], [str(n) for n in range(1, len(lines))])    # the last may be unfinished

    def fork_beside_a_terminal(self):
        self.daemon.ramet("fork", "box", "--name", "child")
        before = self.daemon.json("job", "show", "child", "count")["stdout"]["next_offset"]
        for name in ("box", "child"):
            while self.daemon.json("job", "show", name, "count")["stdout"]["next_offset"] <= before + 20:
                time.sleep(0.05)
            self.assertEqual(self.daemon.json("job", "show", name, "count")["state"], "running")
        # A terminal of the parent stays the parent's: in the child it is hung up.
        self.assertEqual(self.sh("pgrep -cf '^sleep 4712'").strip(), "1")
        self.sh("for i in $(seq 2400); do pgrep -f '^sleep 4712' > /dev/null || exit 0; sleep 0.05; done; exit 1", "child")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
