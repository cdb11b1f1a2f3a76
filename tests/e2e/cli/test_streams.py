# SPDX-License-Identifier: Apache-2.0
"""A02 and A03 over the API, and other protocols through TLS, on one machine: streams that break, silence, deadlines."""
import base64
import http.client
import json
import socket
import ssl
import subprocess
import threading

import rig


# Raw bytes on one port, an answer without an end on the other.
FLOOD = """
import socket, threading
def flood(port, head):
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", port, flush=True)
    sock, _ = listener.accept()
    if head:
        sock.recv(65536)
    sock.sendall(head)
    sock.settimeout(1)
    while True:
        try:
            sock.sendall(b"x" * 65536)
        except TimeoutError:
            print("full", port, flush=True)
for port, head in (7000, b""), (7001, b"HTTP/1.1 200 OK\\r\\nContent-Length: 1000000000000\\r\\n\\r\\n"):
    threading.Thread(target=flood, args=(port, head)).start()
"""
TRICKLE_BYTES = 512    # a second: never a client that takes nothing, which the server drops by itself


def blocks(response):
    """The events of an answer as they come, as (id, event, data); comments as (None, "comment", text)."""
    fields = {}
    for line in response:
        line = line.decode().rstrip("\n")
        if line.startswith(":"):
            yield None, "comment", line[1:].strip()
        elif line == "" and fields:
            yield fields.get("id"), fields["event"], json.loads(fields["data"])
            fields = {}
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value


class Streams(rig.MachineCase):
    def options(self):
        self.cert, key = self.path("tls.crt"), self.path("tls.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        key, "-out", self.cert, "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        return "--log-requests", "--listen", "0", "--tls-cert", self.cert, "--tls-key", key

    def setUp(self):
        super().setUp()
        self.daemon.ramet("create", "box")

    def sh(self, command, **more):
        answer = self.daemon.call("POST", "/v1/sandboxes/box/exec", {"command": command, **more})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def run_in(self, box, command):
        answer = self.daemon.call("POST", f"/v1/sandboxes/{box}/exec", {"command": command})
        self.assertEqual((answer.status, answer.json["exit_code"]), (200, 0), answer.body)

    def begin(self, method, path, body=None, last=None):
        """(the connection, its events)"""
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        headers = {} if last is None else {"Last-Event-ID": last}
        connection.request(method, "/v1/sandboxes/box" + path, None if body is None else json.dumps(body), headers)
        raw = connection.sock
        response = connection.getresponse()
        self.assertEqual(response.status, 200, response.headers)
        return raw, blocks(response)

    @staticmethod
    def told(events):
        """Without the comments, which come whenever the host was slow for ten seconds."""
        return (found for found in events if found[1] != "comment")

    @staticmethod
    def leave(raw):
        raw.shutdown(socket.SHUT_RDWR)

    def gone(self, words):
        """Waits until no process of the guest has these words."""
        self.until(lambda: self.sh(f"pgrep -fx '{words}' | wc -l")["stdout"] == "0\n")

    def test_cases(self):
        for case in (self.A02_lines_in_data, self.A02_logs_of_jobs_that_break, self.A03_a_quiet_command,
                     self.A03_a_deadline_ends_the_group, self.A03_clients_that_leave,
                     self.A03_clients_that_do_not_read, self.terminal_through_tls):
            with self.subTest(case.__name__):
                case()

    def A02_lines_in_data(self):
        """A stream of a command cannot be resumed (API.md), and what it holds cannot end an event early."""
        text = ": colon first\n\ndata: x\r\n\r\revent: exit\n\nid: 7\n\n \t end without a line's end"
        raw, events = self.begin("POST", "/exec/stream", {"command": "cat", "stdin": text * 50})
        got = list(events)
        self.assertEqual("".join(data["text"] for _, event, data in got if event == "stdout"), text * 50)
        self.assertEqual([event for _, event, _ in got][-1], "exit")
        self.assertEqual([event for _, event, _ in got].count("exit"), 1)
        self.assertEqual({event_id for event_id, _, _ in got}, {None}, "no ids, so nobody resumes it")

    def A02_logs_of_jobs_that_break(self):
        lines = "".join(f": {n}\\r\\n\\n" for n in range(400))
        job = self.daemon.call("POST", "/v1/sandboxes/box/jobs", {"command": f"printf '{lines}'; sleep 1; printf 'the end'"}).json
        whole = lines.replace("\\r", "\r").replace("\\n", "\n") + "the end"
        path = f"/jobs/{job['id']}/logs?follow=1"
        got, last, rounds = "", None, 0
        while got != whole:    # cut after each event
            raw, events = self.begin("GET", path, last=last)
            last, event, data = next(self.told(events))
            self.leave(raw)
            self.assertEqual(event, "stdout", (rounds, got[-40:], data))
            got += data["text"]
            self.assertTrue(whole.startswith(got), got[-60:])
            rounds += 1
        raw, events = self.begin("GET", path, last=last)
        self.assertEqual([event for _, event, _ in self.told(events)], ["end"])
        for wrong in "x", "", "-5", "999999999999", "7-7-7", "9" * 400, "999999999999.0", "0.7", f"{2 ** 64 - 1}.0":
            connection = rig.UnixConnection(self.daemon.run + "/api.sock")
            connection.request("GET", "/v1/sandboxes/box" + path, headers={"Last-Event-ID": wrong})
            response = connection.getresponse()
            if response.status == 200:
                events = list(self.told(blocks(response)))
                text = "".join(data["text"] for _, event, data in events if event == "stdout")
                names = [event for _, event, _ in events]
                self.assertEqual((names[0], text), ("gap", whole), wrong)    # of another log: all of this one, and a word
                self.assertEqual(names[-1], "end", wrong)
            else:
                self.assertEqual(response.status, 400, wrong)
            connection.close()

    def A03_a_quiet_command(self):
        """Silence is filled with comments, and a quiet command ends as it should: as a stream, as one call, by the command line. These
        are quiet until a comment was heard."""
        quiet, whole = "until [ -e heard ]; do sleep 0.1; done; echo late", []
        thread = threading.Thread(target=lambda: whole.append(self.sh(quiet)))
        thread.start()
        lines = [subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, *words, "exec", "box", quiet], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for words in ([], ["--json"])]
        for child in lines:
            self.addCleanup(child.kill)
        raw, events = self.begin("POST", "/exec/stream", {"command": quiet})
        self.assertEqual(next(events)[1], "comment")
        self.sh("touch heard")
        got = list(events)
        self.assertEqual([(event, data.get("text")) for _, event, data in got if event == "stdout"], [("stdout", "late\n")])
        self.assertEqual(got[-1][2]["exit_code"], 0)
        thread.join()
        self.assertEqual((whole[0]["exit_code"], whole[0]["stdout"]), (0, "late\n"))
        for child in lines:
            out, errors = child.communicate(timeout=rig.HANG_SECS)
            self.assertEqual((child.returncode, "late" in out), (0, True), errors)    # a note that all is slow is no failure

    def A03_a_deadline_ends_the_group(self):
        for secs in 1, 4, 16, 64:    # a slow machine needs longer than a second to begin
            answer = self.sh("echo partial; (sleep 4711 & sleep 4712)", timeout_secs=secs)
            self.assertTrue(answer["timed_out"])
            if answer["stdout"]:
                break
        self.assertEqual(answer["stdout"], "partial\n")
        self.gone("sleep 471[12]")
        for secs in 1, 4, 16, 64:
            raw, events = self.begin("POST", "/exec/stream", {"command": "echo partial; sleep 4713", "timeout_secs": secs})
            got = list(self.told(events))
            if len(got) > 1:
                break
        self.assertEqual([event for _, event, _ in got], ["stdout", "exit"])
        self.assertTrue(got[-1][2]["timed_out"])
        self.gone("sleep 4713")

    def A03_clients_that_leave(self):
        """Who leaves ends his command; a job goes on."""
        raw, events = self.begin("POST", "/exec/stream", {"command": "echo up; sleep 4721"})
        self.assertEqual(next(self.told(events))[1], "stdout")
        self.leave(raw)
        self.gone("sleep 4721")
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("POST", "/v1/sandboxes/box/exec", json.dumps({"command": "sleep 4722"}))
        self.until(lambda: self.sh("pgrep -fx 'sleep 4722' | wc -l")["stdout"] != "0\n")
        connection.sock.shutdown(socket.SHUT_RDWR)
        self.gone("sleep 4722")
        self.until(lambda: " POST /v1/sandboxes/box/exec 499 " in self.daemon.log())
        job = self.daemon.call("POST", "/v1/sandboxes/box/jobs", {"command": "sleep 4723"}).json
        raw, events = self.begin("GET", f"/jobs/{job['id']}/logs?follow=1")
        self.leave(raw)
        self.assertEqual(self.daemon.call("GET", f"/v1/sandboxes/box/jobs/{job['id']}").json["state"], "running")
        self.daemon.call("DELETE", f"/v1/sandboxes/box/jobs/{job['id']}?kill=1")

    def upgrade_unread(self):
        heads = ("GET /v1/sandboxes/loud/ports/7000 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
                 "GET /v1/sandboxes/loud/exec/pty?command=yes HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                 f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n")
        for head in heads:
            connection = rig.UnixConnection(self.daemon.run + "/api.sock")
            connection.connect()
            connection.sock.sendall(head.encode())
            self.assertIn(b" 101 ", connection.sock.recv(64))
            self.addCleanup(connection.close)

    def ask(self, method, path, body=None, headers={}):
        """The answer, of which one byte was read."""
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        self.addCleanup(connection.close)
        self.assertEqual(answer.status, 200, (path, answer.headers))
        self.assertTrue(answer.read(1), path)
        return answer

    def ask_without_end(self, box):
        """Answers whose bytes come faster than they will be taken."""
        self.run_in(box, "truncate -s 1T big")
        return [self.ask("POST", f"/v1/sandboxes/{box}/exec/stream", {"command": "yes " + "word " * 20}),
                self.ask("GET", f"/v1/sandboxes/{box}/files/content?path=big")]

    def ask_for_more_without_end(self):
        about = "/v1/sandboxes/loud"
        job = self.daemon.call("POST", about + "/jobs", {"command": "head -c 1000000 /dev/zero | tr '\\0' x; sleep 9999"}).json["id"]
        self.until(lambda: self.daemon.call("GET", f"{about}/jobs/{job}").json["stdout"]["next_offset"] == 1000000)
        url = self.daemon.call("POST", about + "/urls", {"host_port": 7001}).json["url"]
        start = json.dumps({"process": {"cmd": "yes", "args": ["word " * 20]}}).encode()
        inside = {"E2b-Sandbox-Id": self.daemon.call("GET", about).json["id"], "E2b-Sandbox-Port": "49983",
                  "Content-Type": "application/connect+json"}
        return [self.ask("GET", f"{about}/jobs/{job}/logs?follow=1&encoding=base64"),
                self.ask("POST", about + "/contexts/python/run/stream", {"code": "while True: print('x' * 1000)"}),
                self.ask("GET", url[url.index("/u/"):]),
                self.ask("POST", "/process.Process/Start", b"\0" + len(start).to_bytes(4, "big") + start, inside)]

    def upload_and_stop(self):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.connect()
        connection.sock.sendall(b"PUT /v1/sandboxes/loud/files/content?path=f HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        self.addCleanup(connection.close)

    def A03_clients_that_do_not_read(self):
        """A sandbox is removed, and stopped, although nobody takes what it says, or all but nobody; who reads hears how it ended."""
        answer = self.daemon.call("POST", "/v1/sandboxes/box/fork", {"names": ["loud", "louder"]})
        self.assertEqual(answer.status, 201, answer.body)
        self.daemon.ramet("cp", self.write("flood.py", FLOOD.encode()), "loud:flood.py")
        self.run_in("loud", "setsid python3 flood.py > flood.log 2>&1 < /dev/null &")
        self.run_in("loud", "until [ $(grep -c ready flood.log) = 2 ]; do sleep 0.1; done")
        self.upgrade_unread()
        self.upload_and_stop()
        unread = self.ask_without_end("loud") + self.ask_for_more_without_end()
        self.run_in("loud", "until [ $(grep full flood.log | sort -u | wc -l) = 2 ]; do sleep 0.1; done")
        self.ends_unread("loud", unread, "DELETE", "", 204)
        self.ends_unread("louder", self.ask_without_end("louder"), "POST", "/stop", 200)
        self.assertEqual(self.daemon.json("show", "louder")["memory_kept"], True)
        self.daemon.ramet("rm", "louder")

    def ends_unread(self, box, unread, method, path, status):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("POST", f"/v1/sandboxes/{box}/exec/stream", json.dumps({"command": "echo up; sleep 9999"}))
        heard = self.told(blocks(connection.getresponse()))
        self.assertEqual(next(heard)[1], "stdout")
        over = threading.Event()

        def trickle():
            while not over.wait(1):
                for answer in unread:
                    self.read_of(answer, TRICKLE_BYTES)
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            answer = self.daemon.call(method, f"/v1/sandboxes/{box}{path}")
        finally:
            over.set()
            thread.join()
        self.assertEqual(answer.status, status, answer.body)
        [(_, event, data)] = heard
        self.assertEqual((event, data["code"]), ("error", "exec.ended"))
        connection.close()
        for answer in unread:    # each is closed, and none as if all had been said
            while part := self.read_of(answer, 65536):
                self.assertNotRegex(part, rb"event: (exit|end|done)|\"exited\"")

    @staticmethod
    def read_of(answer, size):
        """Nothing once it is cut off."""
        try:
            return answer.read(size)
        except http.client.IncompleteRead as error:
            answer.close()
            return error.partial
        except OSError:
            answer.close()
            return b""

    def terminal_through_tls(self):
        """Upgrades over TLS: the connection's own thread carries the bytes, another speaks."""
        key = self.daemon.make_key()["key"]
        port = int(self.daemon.url.rsplit(":", 1)[1])
        context = ssl.create_default_context(cafile=self.cert)
        plain = socket.create_connection(("127.0.0.1", port), timeout=rig.HANG_SECS)
        connection = context.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(f"GET /v1/sandboxes/box/exec/pty HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: "
                           "Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
                           f"{base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode())
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += connection.recv(4096)
        self.assertIn(b" 101 ", seen)
        line = b"echo $((6*7))-through; exit 3\n"
        connection.sendall(bytes([0x82, 0x80 | len(line), 0, 0, 0, 0]) + line)    # binary, masked with zeros
        while b"42-through" not in seen:
            part = connection.recv(4096)
            self.assertTrue(part, seen)
            seen += part
        while connection.recv(4096):
            pass
        connection.close()
        # One that is left open does not hold up a stop.
        plain = socket.create_connection(("127.0.0.1", port), timeout=rig.HANG_SECS)
        connection = context.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(f"GET /v1/sandboxes/box/ports/22 HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nConnection: Upgrade\r\n"
                           "Upgrade: tcp\r\n\r\n".encode())
        self.assertIn(b"HTTP/1.1 ", connection.recv(4096))
        self.daemon.stop()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
