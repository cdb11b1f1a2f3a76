# SPDX-License-Identifier: Apache-2.0
"""Exposed ports: requests, streams and WebSockets from a URL into a server in a sandbox, and what must not get through."""
import concurrent.futures
import http.client
import os
import socket
import threading
import time
import urllib.parse
import zlib

import rig

HERE = os.path.dirname(os.path.abspath(__file__))
GUESSERS, GUESSES_MAX = 20, 1000
LEAVES_MAX = 20
HOSTILE = 20    # answers in port_server.py


class Urls(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--log-requests", "--url-host", "boxes.example.org")
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.daemon.ramet("create", "box", "--memory", "256")
        self.daemon.ramet("cp", HERE + "/port_server.py", "box:server.py")
        self.serve("box")

    def address(self):
        return urllib.parse.urlsplit(self.daemon.url)

    def serve(self, box):
        self.daemon.ramet("job", "start", "--name", "server", box, "exec python3 server.py 8000 > ready")
        self.daemon.ramet("exec", box, "until grep -q ready ready; do sleep 0.1; done")

    def make(self, box="box", status=201, **fields):
        answer = self.daemon.call("POST", f"/v1/sandboxes/{box}/urls", {"host_port": 8000, **fields})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json

    def ask(self, url, path, method="GET", body=None, headers=None, host=None):
        """By the path form, or by the host form when a host is given."""
        connection = http.client.HTTPConnection(self.address().hostname, self.address().port, timeout=rig.HANG_SECS)
        path = path if host else url["path"] + path.lstrip("/")
        connection.request(method, path, body, {**(headers or {}), **({"Host": host} if host else {})})
        response = connection.getresponse()
        try:
            return rig.Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def raw(self, text):
        """Everything that a request on a connection of its own is answered with."""
        sock = socket.create_connection((self.address().hostname, self.address().port), rig.HANG_SECS)
        sock.sendall(text)
        return sock

    def all_of(self, sock):
        data = b""
        try:
            while more := sock.recv(65536):
                data += more
        except ConnectionResetError:
            pass
        sock.close()
        return data

    def test_urls(self):
        self.making_and_listing()
        self.requests_get_through()
        self.sites_below_a_path()
        self.host_forms()
        self.tokens_stay_here()
        self.what_is_ours_stays_here()
        self.large_bodies()
        self.early_answers()
        self.half_closed_clients()
        self.streams()
        self.broken_and_hostile_answers()
        self.smuggling()
        self.websockets()
        self.revoking_and_expiry()
        self.lives_of_the_sandbox()
        self.command_line()
        self.guessing()
        for path in f"/ramet{self.url['path']}", f"//u/{self.url['token'].upper()}/x", f"/u/{self.url['token'][:39]}%{ord(self.url['token'][39]):x}/":
            self.assertNotEqual(self.daemon.call_tcp("GET", path).status, 200)    # mistyped: no URL, and in no log
        self.assertNotIn(self.url["token"].upper(), self.daemon.log())
        self.assertNotIn(self.url["token"], self.daemon.log())

    def making_and_listing(self):
        self.url = self.make()
        self.assertEqual(set(self.url), {"id", "url", "host_url", "path", "token", "host_port", "created_at", "expires_at"})
        self.assertRegex(self.url["token"], "^[0-9a-f]{40}$")
        self.assertEqual(self.url["url"], f"{self.daemon.url}/u/{self.url['token']}/")
        self.assertEqual(self.url["host_url"], f"http://{self.url['token']}.boxes.example.org:{self.address().port}/")
        self.assertIsNone(self.url["expires_at"])
        listed = self.daemon.call("GET", "/v1/sandboxes/box/urls")
        self.assertEqual([one["id"] for one in listed.json["urls"]], [self.url["id"]])
        self.assertNotIn(self.url["token"].encode(), listed.body)
        for fields in ({"host_port": 0}, {"host_port": 65536}, {"host_port": "80"}, {"host_port": None}, {"ttl_secs": -1},
                       {"port": 80}):
            answer = self.daemon.call("POST", "/v1/sandboxes/box/urls", {"host_port": 8000, **fields})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), fields)
            self.assertIn(next(iter(fields)), answer.message)
        answer = self.daemon.call("POST", "/v1/sandboxes/none/urls", {"host_port": 8000})
        self.assertEqual((answer.status, answer.code), (404, "sandbox.not_found"))
        answer = self.daemon.call("DELETE", "/v1/sandboxes/box/urls/url_0")
        self.assertEqual((answer.status, answer.code), (404, "url.not_found"))

        ports = {port["port"]: port for port in self.daemon.call("GET", "/v1/sandboxes/box/ports").json["ports"]}
        self.assertEqual(ports[8000], {"port": 8000, "listening": True, "addresses": ["127.0.0.1"]})

    def requests_get_through(self):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "FROB"):
            body = b"" if method == "GET" else b"some body \x00\xff"
            answer = self.ask(self.url, "show/a%2Fb//c?x=%20&y", method, body or None, {"X-Mine": "1", "Cookie": "a=b"})
            self.assertEqual(answer.status, 200, (method, answer.body))
            shown = answer.json
            headers = {name.lower(): value for name, value in shown["headers"]}
            self.assertEqual((shown["method"], shown["target"]), (method, "/show/a%2Fb//c?x=%20&y"))
            self.assertEqual(shown["body"].encode("latin-1"), body)
            self.assertEqual((headers["x-mine"], headers["cookie"]), ("1", "a=b"))
            self.assertEqual((headers["x-forwarded-for"], headers["x-forwarded-proto"]), ("127.0.0.1", "http"))
            self.assertEqual(headers["x-forwarded-prefix"], "/u/" + self.url["token"])
            self.assertEqual(headers["x-forwarded-host"], headers["host"])
            self.assertEqual(answer.headers.get_all("X-Guest"), ["one", "two"])
            self.assertIsNone(answer.headers["X-Secret"])    # named by Connection
        answer = self.ask(self.url, "show", "HEAD")
        self.assertEqual((answer.status, answer.body, answer.headers["Content-Type"]), (200, b"", "application/json"))
        connection = http.client.HTTPConnection(self.address().hostname, self.address().port, timeout=rig.HANG_SECS)
        for _ in range(3):    # one connection, many requests
            connection.request("GET", self.url["path"] + "show")
            sock = connection.sock
            connection.getresponse().read()
            self.assertIs(connection.sock, sock)
        connection.close()
        self.assertEqual(self.ask(self.url, "close").body, b"all of it")
        for path, status in (("status?204", 204), ("status?304", 304), ("lengths", 304), ("status?599", 599), ("status?205", 205)):
            sock = self.raw(f"GET {self.url['path']}{path} HTTP/1.1\r\nHost: x\r\n\r\n"
                            f"GET {self.url['path']}show HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            first, second = self.all_of(sock).split(b"HTTP/1.1 200 OK")    # what follows is an answer of its own
            self.assertTrue(first.startswith(b"HTTP/1.1 %d " % status), first)
            self.assertIn(b"x-forwarded-prefix", second.lower())
        self.assertEqual(self.ask(self.url, "hints").body, b"after hints")

    def sites_below_a_path(self):
        prefix = "/u/" + self.url["token"]
        answer = self.ask(self.url, "site")
        self.assertEqual((answer.status, answer.headers["Location"]), (302, prefix + "/login"))
        self.assertEqual(answer.headers.get_all("Set-Cookie"), [f"a=1; Path={prefix}/; HttpOnly", f"b=2; path={prefix}/app"])
        self.assertIsNone(answer.headers["Service-Worker-Allowed"])
        self.assertEqual(answer.headers["X-Prefix"], prefix)
        answer = self.ask(self.url, "site?host")
        self.assertEqual(answer.headers["Location"], f"{self.daemon.url}{prefix}/login?next=/")
        answer = self.daemon.call_tcp("GET", prefix)
        self.assertEqual((answer.status, answer.headers["Location"]), (308, prefix + "/"))
        self.assertEqual(self.daemon.call("GET", prefix + "/show").json["target"], "/show")    # over the unix socket too

    def host_forms(self):
        for host in (self.url["token"] + ".localhost:7480", self.url["token"].upper() + ".LOCALHOST",
                     self.url["token"] + ".boxes.example.org"):
            answer = self.ask(self.url, "/v1/sandboxes", host=host)
            headers = {name.lower(): value for name, value in answer.json["headers"]}
            self.assertEqual((answer.json["target"], headers["host"]), ("/v1/sandboxes", host))
            self.assertNotIn("x-forwarded-prefix", headers)
        answer = self.ask(self.url, "/site", host=self.url["token"] + ".localhost")
        self.assertEqual((answer.headers["Location"], answer.headers["Service-Worker-Allowed"]), ("/login", "/"))
        self.assertEqual(answer.headers.get_all("Set-Cookie"), ["a=1; Path=/; HttpOnly", "b=2; path=/app"])    # of this host alone
        answer = self.ask(self.url, "/show", host=self.url["token"] + ".other.example.org")
        self.assertEqual(answer.status, 404)
        answer = self.ask(self.url, "/version", host="0" * 40 + ".localhost")
        self.assertEqual((answer.status, answer.code), (404, "url.not_found"))
        box = self.daemon.call("GET", "/v1/sandboxes/box").json
        token = self.url["token"]
        for host in (f"8000-{box['id']}.localhost", "8000-box.boxes.example.org:443"):
            answer = self.ask(self.url, "/show?a=1&preview_token=" + token, host=host)
            self.assertEqual((answer.status, answer.json["target"]), (200, "/show?a=1"))
            cookie = answer.headers["Set-Cookie"].split(";")[0]
            answer = self.ask(self.url, "/show", host=host, headers={"Cookie": "x=1; " + cookie})
            self.assertEqual((answer.status, dict(answer.json["headers"])["Cookie"]), (200, "x=1"))
            answer = self.ask(self.url, "/show", host=host, headers={"X-Preview-Token": token})
            self.assertEqual(answer.status, 200)
            self.assertNotIn(token, answer.body.decode())
        for host in (f"8001-{box['id']}.localhost", "8000-other.localhost"):
            answer = self.ask(self.url, "/show", host=host, headers={"X-Preview-Token": token})
            self.assertEqual((answer.status, answer.code), (404, "url.not_found"))

    def shown_to_guest(self, host, target, headers):
        """What the server inside is told, as text; None when it is not asked."""
        connection = http.client.HTTPConnection(self.address().hostname, self.address().port, timeout=rig.HANG_SECS)
        connection.putrequest("GET", target, skip_host=True)
        for name, value in [("Host", host), *headers]:
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return (text, response.headers) if response.status == 200 and "X-Guest" in response.headers else (None, response.headers)

    def tokens_stay_here(self):
        """In whatever combination they come: the server inside is told none, and each of them opens."""
        box = self.daemon.call("GET", "/v1/sandboxes/box").json
        token, other = self.url["token"], self.make()["token"]
        host = f"8000-{box['id']}.localhost"
        places = [([("x-preview-TOKEN", token)], ""), ([], "preview_token=" + token), ([("cookie", "x=1; preview_token=" + token)], ""),
                  ([("COOKIE", f'y=2;Preview_Token="{token.upper()}" ; z=3')], ""), ([("X-Preview-Token", other)], ""),
                  ([("Referer", f"http://{host}/a?preview_token={token}&b=1#c"), ("HX-Current-URL", f"http://{host}/?t={token}")], "")]
        for chosen in range(1, 1 << len(places)):
            parts = [place for i, place in enumerate(places) if chosen & 1 << i]
            query = "&".join(["a=1", *(query for _, query in parts if query), "b=2"])
            text, _ = self.shown_to_guest(host, "/show?" + query, [header for headers, _ in parts for header in headers])
            if chosen & 31 == 0:    # a Referer alone is no way to come in
                self.assertIsNone(text)
                continue
            for secret in token, other, "preview":
                self.assertNotIn(secret, text.lower(), chosen)
            self.assertIn('"target": "/show?a=1&b=2"', text)
            self.assertEqual(("y=2" in text, "z=3" in text), (bool(chosen & 8), bool(chosen & 8)))
        # In the other forms the token is part of the address, and what has its name is taken out all the same.
        for host, target in ((token + ".localhost", "/show"), ("x", self.url["path"] + "show")):
            text, headers = self.shown_to_guest(host, target + "?preview_token=" + other, [
                ("X-Preview-Token", other), ("Cookie", "a=1; preview_token=" + other),
                ("Referer", f"http://x/u/{other}/page"), ("X-Access-Token", "rmt_" + "0" * 16 + "_" + "1" * 64)])
            for secret in other, "preview_token", "rmt_":
                self.assertNotIn(secret, text.lower())
            self.assertIn("a=1", text)
            self.assertEqual(headers["Referrer-Policy"], "same-origin")
        # A cookie that a neighbour set for the whole domain is not in the way.
        text, _ = self.shown_to_guest(f"8000-{box['id']}.localhost", "/show",
                                      [("Cookie", f"preview_token={'0' * 40}; preview_token={token}")])
        self.assertIsNotNone(text)

    def what_is_ours_stays_here(self):
        key = self.daemon.make_key()["key"]
        for headers in ({"Authorization": "Bearer " + key}, {"X-API-Key": key}, {"authorization": key}):
            answer = self.ask(self.url, "show", headers=headers)
            self.assertNotIn(key, answer.body.decode())
        answer = self.ask(self.url, "show", headers={"Authorization": "Bearer of-the-app", "X-Forwarded-Proto": "https",
                                                     "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"})
        headers = dict(answer.json["headers"])
        self.assertEqual(headers["Authorization"], "Bearer of-the-app")
        self.assertEqual((headers["X-Forwarded-Proto"], headers["X-Forwarded-For"]), ("http", "10.0.0.1, 127.0.0.1"))
        self.assertNotIn("Forwarded", headers)

    def peak_kib(self):
        with open(f"/proc/{self.daemon.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

    def large_bodies(self):
        piece, count = os.urandom(1 << 20), 100
        expected = zlib.crc32(piece * count)
        self.ask(self.url, "sink", "POST", piece)    # buffers that stay
        before = self.peak_kib()
        answer = self.ask(self.url, "sink", "POST", (piece for _ in range(count)), {"Content-Length": str(count << 20)})
        self.assertEqual(answer.json, {"bytes": count << 20, "crc": expected})
        answer = self.ask(self.url, "sink", "PUT", (piece for _ in range(8)))    # in chunks
        self.assertEqual(answer.json["bytes"], 8 << 20)
        # A reader that is slow at first: what waits for it is bounded too.
        sock = self.raw(f"GET {self.url['path']}big?{count} HTTP/1.0\r\n\r\n".encode())
        head = sock.recv(1024)
        time.sleep(1)
        self.assertLess(self.peak_kib() - before, 40 << 10)
        head, _, first = head.partition(b"\r\n\r\n")
        crc, size = zlib.crc32(first), len(first)
        while more := sock.recv(1 << 20):
            crc = zlib.crc32(more, crc)
            size += len(more)
        sock.close()
        self.assertEqual(size, count << 20)
        self.assertIn(b"X-Crc: %d" % crc, head)
        self.assertLess(self.peak_kib() - before, 40 << 10)
        answer = self.ask(self.url, "early", "POST", (piece for _ in range(2)), {"Content-Length": str(2 << 20)})
        self.assertEqual((answer.status, answer.body), (413, b"too much"))

    def early_answers(self):
        """A server that has answered before the body came is heard, however long the body would be, and never replaced by a 502."""
        path = self.url["path"]
        for target in "refuse", "refuse?hold":
            # Who waits for leave gets the answer and sends nothing. A guest that takes longer than a second to answer is slow alone:
            # then there is leave, and after it the answer; it is asked again.
            for _ in range(LEAVES_MAX):
                sock = self.raw(f"POST {path}{target} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {10 << 20}\r\n\r\n".encode())
                data = self.all_of(sock)
                self.assertTrue(data.endswith(b"who are you"), data)
                self.step_if_held(target)
                if not data.startswith(b"HTTP/1.1 100 "):
                    break
            self.assertTrue(data.startswith(b"HTTP/1.1 401 "), data)
            # Who sends for ever hears it under way.
            sock = self.raw(f"POST {path}{target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            sender = threading.Thread(target=send_for_ever, args=(sock,), daemon=True)
            sender.start()
            data = self.head_and(sock, b"who are you")
            self.assertTrue(data.startswith(b"HTTP/1.1 401 "), data)
            self.assertIn(b"X-Why: no", data)
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:    # it has ended already
                pass
            sender.join(rig.HANG_SECS)
            sock.close()
            self.step_if_held(target)
            # So does who has sent a part, and waits.
            sock = self.raw(f"POST {path}{target} HTTP/1.1\r\nHost: x\r\nContent-Length: {10 << 20}\r\n\r\n".encode() + b"x" * 100000)
            data = self.all_of(sock)
            self.assertEqual((data[:13], data[-11:], b"Content-Length: 11\r\n" in data), (b"HTTP/1.1 401 ", b"who are you", True), data)
            self.step_if_held(target)
        # Leave to send is the guest's to give; one that never says so is asked with the body.
        for target, wanted in (("sink", b'{"bytes": 100000, '), ("show", b"xxxxxxxx")):
            sock = self.raw(f"POST {path}{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n".encode())
            self.assertTrue(self.head_and(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100 "))
            sock.sendall(b"x" * 100000)
            self.assertIn(wanted, self.all_of(sock))

    def step_if_held(self, target):
        if "hold" in target:
            self.assertEqual(self.ask(self.url, "step").status, 204)

    def head_and(self, sock, end):
        data = b""
        while end not in data:
            more = sock.recv(65536)
            self.assertTrue(more, data)
            data += more
        return data

    def half_closed_clients(self):
        """Who has said all, and closes that side, is still answered: at once, late, and piece by piece."""
        for target, body in (("show", b""), ("patient", b""), ("sink", b"x" * 300000), ("close", b"")):
            sock = self.raw(f"POST {self.url['path']}{target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            sock.shutdown(socket.SHUT_WR)
            data = self.all_of(sock)
            self.assertTrue(data.startswith(b"HTTP/1.1 200 "), (target, data))
            if target == "patient":
                self.assertTrue(data.endswith(b"it was waited for"), data)
        sock = self.raw(f"GET {self.url['path']}stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        sock.shutdown(socket.SHUT_WR)
        for i in range(3):
            self.assertEqual(self.ask(self.url, "step").status, 204)
            data = self.head_and(sock, b"data: %d\n\n" % i)
        self.assertTrue((data + self.all_of(sock)).endswith(b"0\r\n\r\n"))    # the end may come with the last piece

    def held_back(self, guess):
        """Many guess at once until one is held back, also on a slow host; the refusal."""
        with concurrent.futures.ThreadPoolExecutor(GUESSERS) as guessers:
            for _ in range(GUESSES_MAX // GUESSERS):
                answers = list(guessers.map(guess, range(GUESSERS)))
                refused = [answer for answer in answers if answer.status == 429]
                self.assertLessEqual({answer.code for answer in answers}, {"url.not_found", "auth.invalid", "rate_limit.authentication"})
                if refused:
                    return refused[0]
        self.fail(f"{GUESSES_MAX} guesses, and none was held back")

    def guessing(self):
        """Whoever tries tokens is held back as one who tries keys is; who has one goes on."""
        answer = self.held_back(lambda i: self.ask({"path": f"/u/{i:040x}/"}, "show"))
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        for name, value in ("X-Preview-Token", "%s"), ("Cookie", "preview_token=%s"):
            self.held_back(lambda i: self.ask(None, "/show", host="8000-box.localhost", headers={name: value % f"{i:040x}"}))
        self.held_back(lambda i: self.daemon.call_tcp("GET", "/v1/sandboxes", key=f"e2b_{i:056x}"))    # one limit for all
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.assertEqual(self.daemon.call("GET", f"/u/{0:040x}/").status, 404)    # the owner's socket knows no limits

    def streams(self):
        connection = http.client.HTTPConnection(self.address().hostname, self.address().port, timeout=rig.HANG_SECS)
        connection.request("GET", self.url["path"] + "stream")
        response = None
        for i in range(3):    # each piece is there before the next one is made
            self.assertEqual(self.ask(self.url, "step").status, 204)
            response = response or connection.getresponse()
            self.assertEqual(response.read1(), b"data: %d\n\n" % i)
        self.assertEqual(response.read(), b"")
        self.assertEqual(response.headers["Content-Type"], "text/event-stream")
        connection.close()

    def broken_and_hostile_answers(self):
        for path in ("die", "diechunked", "badchunk"):
            with self.assertRaises((http.client.IncompleteRead, ConnectionError), msg=path):
                self.ask(self.url, path)
        for i in range(HOSTILE):
            answer = self.ask(self.url, f"hostile?{i}")
            self.assertEqual((answer.status, answer.code), (502, "port.bad_answer"), (i, answer.body))
            self.assertIsNone(answer.headers["Set-Cookie"])
            self.assertIn("port 8000", answer.message)
        long = self.ask(self.url, "longhead")    # as long as heads may be, beside our own
        self.assertEqual((long.status, long.body, long.headers["X-Field-84"]), (200, b"behind a long head", "v" * 700))
        nobody = self.make(host_port=8001)
        answer = self.ask(nobody, "show")
        self.assertEqual((answer.status, answer.code), (502, "port.refused"))
        self.assertEqual(self.ask(self.url, "show").status, 200)

    def smuggling(self):
        path = self.url["path"]
        inner = f"GET {path}show/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        # Whatever each of these is taken for, the guest sees one request at most, and none that was hidden in a body.
        for head in ("Content-Length: 6\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                     "Transfer-Encoding: xchunked", "Content-Length: 5, 5", "Content-Length: 5\r\nContent-Length: 6",
                     "Content-Length: +5", "Transfer-Encoding : chunked", "Content-Length: 5\r\n Transfer-Encoding: chunked"):
            body = "0\r\n\r\nX"
            sock = self.raw(f"POST {path}show HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n{body}".encode())
            sock.shutdown(socket.SHUT_WR)
            data = self.all_of(sock)
            self.assertNotIn(b"smuggled", data, head)
            self.assertLessEqual(data.count(b"X-Guest: one"), 1, head)
        sock = self.raw(f"GET {path}show HTTP/1.1\r\nHost: x\r\nContent-Length: {len(inner)}\r\nConnection: close\r\n\r\n{inner}".encode())
        data = self.all_of(sock)
        self.assertEqual(data.count(b"HTTP/1.1 200"), 1)
        self.assertIn(b"smuggled", data)    # as the body that it is

    def websockets(self):
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        head = (f"GET {self.url['path']}ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n")
        sock = self.raw(head.encode() + b"sent with the head")
        data = b""
        while b"sent with the head" not in data:
            data += sock.recv(65536)
        self.assertIn(b"HTTP/1.1 101", data)
        self.assertIn(b"Sec-WebSocket-Accept: " + key.encode(), data)
        self.assertIn(b"\r\n\r\nhello from behind the head", data)
        block = os.urandom(1 << 20)
        threading.Thread(target=sock.sendall, args=(block,), daemon=True).start()
        data = b""
        while len(data) < len(block):
            data += sock.recv(65536)
        self.assertEqual(data, block)
        sock.shutdown(socket.SHUT_WR)
        self.assertEqual(self.all_of(sock), b" and goodbye")
        # A server that does not change the protocol is heard all the same, and its connection stays HTTP.
        sock = self.raw(head.replace("/ws", "/show").replace("keep-alive, ", "").encode())
        data = sock.recv(65536)
        self.assertIn(b"HTTP/1.1 200", data)
        sock.close()
        # Its headers are right also when its body does not come at once.
        sock = self.raw(head.replace("/ws", "/big?1").replace("keep-alive, ", "").encode())
        data, body = b"", b""
        while len(body) < 1 << 20:
            data += sock.recv(65536)
            body = data.partition(b"\r\n\r\n")[2]
        self.assertIn(b"X-Crc: %d\r\n" % zlib.crc32(body), data)
        sock.close()

    def revoking_and_expiry(self):
        url = self.make()
        held = self.raw(f"GET {url['path']}hold HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        data = b""
        while b"half" not in data:
            data += held.recv(65536)
        socks = self.raw(f"GET {url['path']}ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        data = b""
        while b"behind the head" not in data:
            data += socks.recv(65536)
        self.assertEqual(self.daemon.call("DELETE", f"/v1/sandboxes/box/urls/{url['id']}").status, 204)
        self.assertEqual((self.all_of(held), self.all_of(socks)), (b"", b""))    # they end
        answer = self.ask(url, "show")
        self.assertEqual((answer.status, answer.code), (404, "url.not_found"))
        short = self.make(ttl_secs=2)
        self.assertIsNotNone(short["expires_at"])
        held = self.raw(f"GET {short['path']}hold HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.all_of(held)    # ends by itself
        expired, unknown = self.ask(short, "show"), self.ask({"path": "/u/" + "0" * 40 + "/"}, "show")
        for answer in (expired, unknown):
            self.assertEqual((answer.status, answer.code), (404, "url.not_found"))
        self.assertEqual(expired.message, unknown.message)
        self.assertNotIn(short["id"], [one["id"] for one in self.daemon.call("GET", "/v1/sandboxes/box/urls").json["urls"]])

    def lives_of_the_sandbox(self):
        self.daemon.ramet("stop", "box")
        answer = self.ask(self.url, "show")
        self.assertEqual((answer.status, answer.code), (409, "sandbox.invalid_state"))
        self.assertIn("ramet start box", answer.message)
        self.daemon.ramet("start", "box")
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.daemon.ramet("snapshot", "box", "--name", "point")
        self.daemon.ramet("restore", "box", "point")
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.assertEqual(self.daemon.call("PATCH", "/v1/sandboxes/box", {"name": "renamed"}).status, 200)
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.assertEqual(self.daemon.call("PATCH", "/v1/sandboxes/renamed", {"name": "box"}).status, 200)
        self.daemon.ramet("create", "again", "--from", "point")    # a snapshot has no URLs either
        self.assertEqual(self.daemon.call("GET", "/v1/sandboxes/again/urls").json, {"urls": []})
        self.daemon.ramet("rm", "--force", "again")
        self.daemon.ramet("pause", "box")
        answer = self.ask(self.url, "show")
        self.assertEqual((answer.status, answer.code), (409, "sandbox.invalid_state"))
        self.assertIn("ramet resume", answer.message)
        self.daemon.ramet("resume", "box")
        held = self.raw(f"GET {self.url['path']}hold HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        socks = self.raw(f"GET {self.url['path']}ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        held.recv(1)
        socks.recv(1)
        self.daemon.stop()    # it does not wait for who holds a connection open
        self.all_of(held)
        self.all_of(socks)
        self.daemon.start("--listen", "0", "--log-requests")
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.daemon.kill()
        self.daemon.start("--listen", "0", "--log-requests")
        self.assertEqual(self.ask(self.url, "show").status, 200)
        self.daemon.ramet("fork", "box", "--name", "child")
        self.assertEqual(self.daemon.call("GET", "/v1/sandboxes/child/urls").json, {"urls": []})
        child = self.make("child")
        self.daemon.ramet("exec", "child", "echo child > who")
        self.assertEqual(self.ask(child, "show").status, 200)
        self.daemon.ramet("job", "rm", "--force", "child", "server")
        answer = self.ask(child, "show")
        self.assertEqual((answer.status, answer.code), (502, "port.refused"))
        self.assertEqual(self.ask(self.url, "show").status, 200)    # the parent's own
        self.daemon.ramet("rm", "--force", "child")
        answer = self.ask(child, "show")
        self.assertEqual((answer.status, answer.code), (404, "url.not_found"))

    def command_line(self):
        shown = self.daemon.ramet("url", "create", "box", "8000", "--ttl", "3600")
        self.assertIn("/u/", shown)
        made = self.daemon.json("url", "create", "box", "8000")
        self.assertEqual(self.ask(made, "show").status, 200)
        self.assertIn(made["id"], self.daemon.ramet("url", "ls", "box"))
        self.daemon.ramet("url", "rm", "box", made["id"])
        self.assertEqual(self.ask(made, "show").status, 404)
        self.daemon.ramet("url", "rm", "box", made["id"], status=1)
        self.assertIn("ramet url ls", self.daemon.stderr)
        self.daemon.ramet("url", "create", "box", "0", status=1)
        self.daemon.ramet("url", "create", "box", "http", status=2)
        self.assertIn("ramet url create", self.daemon.ramet("help", "url"))


def send_for_ever(sock):
    try:
        while True:
            sock.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    except OSError:
        pass


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
