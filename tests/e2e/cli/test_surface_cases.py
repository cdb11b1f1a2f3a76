# SPDX-License-Identifier: Apache-2.0
"""Field cases of the surface over TCP with a key: deadlines under calls of every kind (A06), races for names (A07), terminals that
close badly (A09). One boot; everything else goes on from its snapshot."""
import concurrent.futures
import json
import os
import socket
import struct
import threading
import time
import urllib.parse

import rig
from test_jobs import Socket

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = os.environ.get("RAMET_TEST_LONG") == "1"
TURNS = 2000    # of 50 ms and more, in which something that must end has ended


class TcpSocket(Socket):
    """The WebSocket client of the jobs' tests, by TCP and with a key."""

    def __init__(self, case, path):
        address = urllib.parse.urlsplit(case.daemon.url)
        self.sock = socket.create_connection((address.hostname, address.port), rig.HANG_SECS)
        self.sock.sendall((f"GET {path} HTTP/1.1\r\nHost: ramet\r\nAuthorization: Bearer {case.key}\r\nConnection: Upgrade\r\n"
                           "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").encode())
        self.head, self.shown, self.texts, self.code, self.reason = b"", b"", [], None, ""
        while not self.head.endswith(b"\r\n\r\n"):
            byte = self.sock.recv(1)
            assert byte, self.head
            self.head += byte

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Surface(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.restart()
        self.key = self.daemon.make_key()["key"]
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.daemon.ramet("create", "base", "--memory", "256")
        self.daemon.ramet("cp", HERE + "/port_server.py", "base:server.py")
        self.daemon.ramet("snapshot", "base", "--name", "point")
        self.daemon.ramet("rm", "base")

    def restart(self):
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--rate-limit", "0")

    def api(self, method, path, body=None, headers=None):
        return self.daemon.call_tcp(method, "/v1/sandboxes" + path, body, self.key, headers)

    def good(self, method, path, body=None, status=200):
        answer = self.api(method, path, body)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json if answer.body else None

    def make(self, name, **more):
        return self.good("POST", "", {"name": name, "from": "point", **more}, 201)

    def until_stopped(self, name):
        self.until(lambda: self.good("GET", "/" + name)["state"] == "stopped")

    def sh(self, line, name="box", status=0):
        return self.daemon.ramet("exec", name, line, status=status)

    def test_cases(self):
        self.make("box")
        for case in (self.A06_values_of_a_url, self.A06_ends_during_an_upload, self.A06_ends_during_fork_and_snapshot,
                     self.A06_an_open_connection_is_no_idleness, self.A07_one_name_many_creates, self.A07_forks_race_for_names,
                     self.A07_remove_and_create_at_once, self.A07_names_that_are_none, self.A09_closed_in_every_way,
                     self.A09_resized_beyond_reason, self.A09_what_runs_in_it_is_hung_up, self.A09_stop_and_snapshot_under_it,
                     self.A09_many_in_a_row):
            with self.subTest(case.__name__):
                case()

    # ---- A06 ----

    def A06_values_of_a_url(self):
        for value in (-1, "60", True, [], 2 ** 53, 1e308):
            answer = self.api("POST", "/box/urls", {"host_port": 8000, "ttl_secs": value})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), value)
            self.assertIn("ttl_secs", answer.message)
        for value, expires in ((0, False), (None, False), (1.5, True), (2 ** 31, True)):
            made = self.good("POST", "/box/urls", {"host_port": 8000, "ttl_secs": value}, 201)
            self.assertEqual(made["expires_at"] is not None, expires, value)
            self.good("DELETE", "/box/urls/" + made["id"], status=204)

    def A06_ends_during_an_upload(self):
        address = urllib.parse.urlsplit(self.daemon.url)
        sock = socket.create_connection((address.hostname, address.port), rig.HANG_SECS)
        sock.sendall((f"PUT /v1/sandboxes/box/files/content?path=half HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
                      f"Content-Length: 100000000\r\n\r\n").encode() + b"x" * 100000)
        self.until(lambda: self.good("GET", "/box/metrics")["calls_now"] == 1)
        self.good("PATCH", "/box", {"ttl_secs": 0.2})
        self.until_stopped("box")
        data = b""
        try:    # the daemon may have closed it by now
            sock.sendall(b"x" * 100000)
            sock.shutdown(socket.SHUT_WR)
            while more := sock.recv(65536):
                data += more
        except (ConnectionResetError, BrokenPipeError):
            pass
        sock.close()
        self.assertNotIn(b"HTTP/1.1 2", data)
        self.good("PATCH", "/box", {"ttl_secs": 0})
        self.good("POST", "/box/start", {})
        self.sh("test ! -e half")

    def A06_ends_during_fork_and_snapshot(self):
        for path, body in (("/box/fork", {"names": ["kid"]}), ("/box/snapshots", {"name": "shot"})):
            self.good("PATCH", "/box", {"ttl_secs": 0.05})
            answer = self.api("POST", path, body)
            self.until_stopped("box")
            self.assertIn("ttl", self.good("GET", "/box")["reason"])
            kids = [box["name"] for box in self.good("GET", "")["sandboxes"] if box["name"] == "kid"]
            shots = [shot["name"] for shot in self.daemon.json("snapshots") if shot["name"] == "shot"]
            if answer.status == 201:    # whole
                self.assertEqual(kids + shots, [body.get("name") or "kid"])
            else:    # or not at all
                self.assertEqual((answer.status, kids + shots), (409, []), answer.body)
            for kid in kids:
                self.daemon.ramet("rm", kid)
            for shot in shots:
                self.daemon.ramet("snapshots", "rm", shot)
            self.good("PATCH", "/box", {"ttl_secs": 0})
            self.good("POST", "/box/start", {})

    def A06_an_open_connection_is_no_idleness(self):
        self.daemon.ramet("job", "start", "--name", "server", "box", "exec python3 server.py 8000 > ready")
        self.sh("until grep -q ready ready; do sleep 0.1; done")
        url = self.good("POST", "/box/urls", {"host_port": 8000}, 201)
        address = urllib.parse.urlsplit(self.daemon.url)
        for path, sent in (("ws", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), ("hold", "")):
            sock = socket.create_connection((address.hostname, address.port), rig.HANG_SECS)
            sock.sendall(f"GET {url['path']}{path} HTTP/1.1\r\nHost: x\r\n{sent}\r\n".encode())
            data = b""
            while b"half" not in data and b"behind" not in data:
                data += sock.recv(65536)
            self.good("PATCH", "/box", {"idle_secs": 1})
            time.sleep(2.2)    # not a wait: the deadline passes
            self.assertEqual(self.good("GET", "/box")["state"], "running", path)
            sock.close()
            self.until_stopped("box")
            self.assertIn("idle", self.good("GET", "/box")["reason"])
            self.good("PATCH", "/box", {"idle_secs": 0})
            self.good("POST", "/box/start", {})
        self.good("DELETE", "/box/urls/" + url["id"], status=204)

    # ---- A07 ----

    def at_once(self, calls):
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self.api(*call), calls))

    def A07_one_name_many_creates(self):
        answers = self.at_once([("POST", "", {"name": "same", "from": "point"})] * 20)
        self.assertEqual(sorted(answer.status for answer in answers), [201] + [409] * 19)
        for answer in answers:
            if answer.status == 409:
                self.assertEqual(answer.code, "sandbox.conflict")
                self.assertIn("same", answer.message)
        self.good("DELETE", "/same", status=204)

    def A07_forks_race_for_names(self):
        answers = self.at_once([("POST", "/box/fork", {"names": ["left", "right"]})] * 4)
        self.assertEqual(sorted(answer.status for answer in answers), [201] + [409] * 3)
        self.assertEqual({box["name"] for box in self.good("GET", "")["sandboxes"]}, {"box", "left", "right"})
        answer = self.api("POST", "/box/fork", {"names": ["new", "left"]})    # all or none
        self.assertEqual((answer.status, answer.code), (409, "sandbox.conflict"))
        self.assertEqual(self.api("GET", "/new").status, 404)
        answer = self.api("POST", "/box/fork", {"names": ["twin", "twin"]})
        self.assertIn(answer.status, (400, 409))
        self.assertEqual(self.api("GET", "/twin").status, 404)
        for name in ("left", "right"):
            self.good("DELETE", "/" + name, status=204)

    def A07_remove_and_create_at_once(self):
        self.make("turn")
        for _ in range(4):
            old = self.good("GET", "/turn")["id"]
            gone, made = self.at_once([("DELETE", "/turn"), ("POST", "", {"name": "turn", "from": "point"})])
            self.assertIn((gone.status, made.status), ((204, 201), (204, 409)))
            if made.status == 201:
                self.assertNotEqual(self.good("GET", "/turn")["id"], old)
            else:
                self.assertEqual(self.api("GET", "/turn").status, 404)
                self.make("turn")
        unnamed = self.at_once([("POST", "", {"from": "point"})] * 3)
        self.assertEqual(len({answer.json["name"] for answer in unnamed}), 3)
        before = {box["id"]: box["name"] for box in self.good("GET", "")["sandboxes"]}
        self.daemon.kill()
        self.restart()
        self.assertEqual({box["id"]: box["name"] for box in self.good("GET", "")["sandboxes"]}, before)
        for name in ["turn", *(answer.json["name"] for answer in unnamed)]:
            self.good("DELETE", "/" + name, status=204)

    def A07_names_that_are_none(self):
        box = self.good("GET", "/box")
        for name in (".", "..", "-x", "", "a" * 41, "Upper", "bох", "a b", "a/b", "a_b", box["id"], "ls", "ＢＯＸ"):
            for path, body in (("", {"name": name, "from": "point"}), ("/box/fork", {"names": [name]}), ("/box/snapshots", {"name": name})):
                if (path, name) == ("/box/snapshots", "ls"):
                    continue    # reserved for sandboxes alone
                answer = self.api("POST", path, body)
                self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), (path, name, answer.body))
        self.assertEqual([one["name"] for one in self.good("GET", "")["sandboxes"]], ["box"])

    # ---- A09 ----

    def none_left(self, command):
        self.sh(f"for i in $(seq {TURNS}); do pgrep -f '^{command}' > /dev/null || exit 0; sleep 0.05; done; exit 1")
        self.sh(f"for i in $(seq {TURNS}); do [ $(cat /proc/sys/kernel/pty/nr) = 0 ] && exit 0; sleep 0.05; done; exit 1")

    def pty(self, command="sleep+4711"):
        return TcpSocket(self, "/v1/sandboxes/box/exec/pty?command=" + command)

    def A09_closed_in_every_way(self):
        for code, first, payload, masked in ((1002, 0x82, b"unmasked", False), (1002, 0x80, b"goes on with nothing", True), (1002, 0xc2, b"reserved bit", True),
                                             (1002, 0x83, b"no such frame", True), (1003, 0x81, b"no json", True), (1007, 0x81, b"\xff", True),
                                             (1009, 0x82, b"x" * ((1 << 20) + 1), True), (1000, 0x88, struct.pack(">H", 1000), True)):
            ws = self.pty()
            ws.send(first, payload, masked)
            self.assertEqual(ws.to_end(), code)
        self.pty().reset()
        ws = self.pty()
        ws.sock.sendall(b"\x82\xfe")    # half a frame
        ws.reset()
        for cut in (20, 120, 10 ** 6):    # while it opens
            address = urllib.parse.urlsplit(self.daemon.url)
            sock = socket.create_connection((address.hostname, address.port), rig.HANG_SECS)
            sock.sendall((f"GET /v1/sandboxes/box/exec/pty?command=sleep+4711 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
                          "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").encode()[:cut])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        self.none_left("sleep 4711")
        if LONG:    # no answer to a ping for a minute
            ws = self.pty()
            self.none_left("sleep 4711")
            ws.sock.close()

    def A09_resized_beyond_reason(self):
        ws = self.pty("cat+%3E/dev/null;stty+size")
        for rows, columns in ((0, 0), (10000, 10000), (-1, 80), (1.5, 80), ("24", 80)):
            ws.send(0x81, json.dumps({"resize": {"rows": rows, "columns": columns}}).encode())
        ws.send(0x81, json.dumps({"resize": {"rows": 4096, "columns": 1}}).encode())
        ws.send(0x01, b'{"resize":{"rows":33')    # in fragments
        ws.send(0x80, b',"columns":77}}')
        ws.type("\x04")
        ws.to_end()
        self.assertIn(b"33 77", ws.shown, ws.texts)
        self.assertEqual(sum("error" in text for text in ws.texts), 5, ws.texts)

    def A09_what_runs_in_it_is_hung_up(self):
        ws = self.pty("bash+--norc+-i")
        ws.type("sleep 4712 & sleep 4713 & disown; PS1=; echo re''ady; sleep 4714\n")
        ws.until("ready")
        ws.reset()
        self.none_left("sleep 471[24]")
        self.sh("pkill -f '^sleep 4713'; true")
        ws = self.pty("trap+''+HUP;sleep+4715")    # one that hears no hang-up is killed
        self.sh("until pgrep -f '^sleep 4715' > /dev/null; do sleep 0.05; done")
        ws.reset()
        self.none_left("sleep 4715")

    def A09_stop_and_snapshot_under_it(self):
        ws = self.pty("cat")
        ws.type("before\n")
        ws.until("before\r\nbefore")
        self.daemon.ramet("snapshot", "box", "--name", "under")
        ws.type("after\n")
        ws.until("after\r\nafter")
        self.daemon.ramet("fork", "box", "--name", "kid")
        self.daemon.ramet("exec", "kid", f"for i in $(seq {TURNS}); do [ $(cat /proc/sys/kernel/pty/nr) = 0 ] && exit 0; sleep 0.05; done; exit 1")
        ws.type("still\n")
        ws.until("still\r\nstill")
        self.daemon.ramet("stop", "box")
        self.assertEqual(ws.to_end(), 1001)
        self.assertIn("stop", ws.reason)
        self.daemon.ramet("start", "box")
        self.none_left("cat$")
        self.daemon.ramet("rm", "kid")
        self.daemon.ramet("snapshots", "rm", "under")

    def A09_many_in_a_row(self):
        for i in range(300 if LONG else 20):
            ws = self.pty("echo+hello+%d" % i)
            self.assertEqual(ws.to_end(), 1000)
            self.assertIn(b"hello %d" % i, ws.shown)
        self.none_left("echo hello")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
