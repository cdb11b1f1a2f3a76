# SPDX-License-Identifier: Apache-2.0
"""The API as HTTP: what is let in, how it is framed, TLS, browsers' pages, streams that break, limits. No machines."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import urllib.parse

import rig


class Sse:
    """The events of one answer, read as they come: (id, event, data) and comments."""

    def __init__(self, file):
        self.file = file

    def __iter__(self):
        fields, data = {}, []
        for line in self.file:
            line = line.decode().rstrip("\n")
            if line.startswith(":"):
                continue
            if line == "":
                if data or fields:
                    yield fields.get("id"), fields.get("event"), json.loads("\n".join(data))
                fields, data = {}, []
                continue
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                data.append(value)
            else:
                fields[name] = value


class Http(rig.Case):
    OPTIONS = ()

    def options(self):
        """With a VMM that ends at once: each create fails and leaves one event, "removed"."""
        os.makedirs(self.path("kernel"), exist_ok=True)
        for name in "vmlinux", "initramfs-q35.cpio":
            self.write("kernel/" + name, b"x")
        return ("--listen", "0", "--kernel-dir", self.path("kernel"), "--vmm", "/bin/false", "--no-confine", *self.OPTIONS)

    def restart(self, *options):
        self.daemon.stop()
        self.daemon.start(*self.options(), *options)

    def make_events(self, *names):
        self.daemon.call("POST", "/v1/volumes", {"name": "none", "size_bytes": 1 << 20})
        for name in names:
            self.assertEqual(self.daemon.call("POST", "/v1/sandboxes", {"name": name, "from": "none"}).status, 503)

    @property
    def address(self):
        url = urllib.parse.urlsplit(self.daemon.url)
        return url.hostname, url.port

    def connect(self, local=True):
        if not local:
            return socket.create_connection(self.address, timeout=rig.HANG_SECS)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(rig.HANG_SECS)
        connection.connect(self.daemon.run + "/api.sock")
        return connection

    def send(self, text, method="GET", local=True):
        """One answer to exactly these bytes."""
        with self.connect(local) as connection:
            connection.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            return self.answer(connection, method)

    @staticmethod
    def answer(connection, method="GET"):
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return rig.Answer(response.status, response.headers, response.read())

    def refused(self, text, status, code, words, method="GET"):
        answer = self.send(text, method)
        self.assertEqual((answer.status, answer.code), (status, code), (text, answer.body))
        self.assertIn(words, answer.message)
        self.assertEqual(answer.json["message"], answer.message)
        self.assertEqual(answer.json["error"]["request_id"], answer.headers["X-Request-Id"])
        return answer

    def follow(self, path="/v1/events", last=None, key=None, connection=None):
        """Begins to follow events; (the connection, its events)."""
        connection = connection or self.connect(key is None)
        lines = [f"GET {path} HTTP/1.1", "Host: x"]
        lines += [f"Last-Event-ID: {last}"] if last is not None else []
        lines += [f"Authorization: Bearer {key}"] if key is not None else []
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        self.assertEqual(response.status, 200, response.headers)
        self.assertEqual(response.headers["Content-Type"], "text/event-stream")
        return connection, iter(Sse(response))


    @staticmethod
    def leave(connection):
        connection.shutdown(socket.SHUT_RDWR)    # the response holds the descriptor, too
        connection.close()


class Heads(Http):
    def test_framing(self):
        get = "GET /version HTTP/1.1\r\nHost: x\r\n"
        post = "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n"
        self.assertEqual(self.send(get + "\r\n").status, 200)
        self.refused("GET /version HTTP/1.1\r\n\r\n", 400, "validation.invalid", "Host")
        self.refused(get + "Host: y\r\n\r\n", 400, "validation.invalid", "Host")
        self.assertEqual(self.send("GET /version HTTP/1.0\r\n\r\n").status, 200)
        self.refused(post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "validation.invalid", "more than once")
        self.refused(post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400,
                     "validation.invalid", "more than once")
        self.refused(post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "validation.unsupported", "gzip")
        for length in "-1", "x", "1x", "0x10", "":
            self.assertEqual(self.send(post + f"Content-Length: {length}\r\n\r\n").status, 400, length)
        self.assertEqual(self.send(post + f"Content-Length: {2 ** 70}\r\n\r\n").status, 413)
        for bad in "nonsense\r\n\r\n", "GET /version HTTP/3.0\r\n\r\n", "\x00\x01\x02\r\n\r\n":
            with self.connect() as connection:
                connection.sendall(bad.encode())
                connection.shutdown(socket.SHUT_WR)
                self.assertNotIn(b" 200 ", connection.recv(65536), bad)
        self.assertEqual(self.send(get + "\r\n").status, 200, "the daemon goes on")

    def test_chunked(self):
        """Chunks with extensions and trailers; a broken one is refused."""
        head = "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        body = "5;ext=1\r\n{\"nam\r\n7\r\ne\":\"A\"}\r\n0\r\nX-Sum: 12\r\nHost: evil\r\n\r\n"
        answer = self.send(head + body)
        self.assertEqual(answer.status, 400)
        self.assertIn("name", answer.message, "the body was put together")
        for broken in "x\r\n", "5\r\nabc", "-1\r\nabc\r\n", "fffffffffffffffff\r\n":
            with self.connect() as connection:
                connection.sendall((head + broken).encode())
                connection.shutdown(socket.SHUT_WR)
                got = connection.recv(65536)
                self.assertTrue(got == b"" or got.split(b" ")[1] in (b"400", b"413"), (broken, got))

    def test_pipelined(self):
        with self.connect() as connection:
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 20 +
                               b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]"
                               b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = b""
            while part := connection.recv(65536):
                text += part
            statuses = [line.split()[1] for line in text.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
                        or b"HTTP/1.1 " in line]
            self.assertEqual(text.count(b"HTTP/1.1 200 "), 21, text)
            self.assertEqual(text.count(b"HTTP/1.1 400 "), 1, statuses)

    def test_head_and_methods(self):
        answer = self.send("HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD")
        full = self.send("GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual((answer.status, answer.body), (200, b""))
        self.assertEqual(answer.headers["Content-Length"], str(len(full.body)))
        self.refused("BREW /version HTTP/1.1\r\nHost: x\r\n\r\n", 501, "validation.method", "BREW")
        answer = self.refused("TRACE /version HTTP/1.1\r\nHost: x\r\n\r\n", 405, "validation.method", "GET")
        self.assertEqual(answer.headers["Allow"], "GET")
        self.assertEqual(self.send("CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n").status, 400)
        answer = self.send("OPTIONS /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(answer.status, 204)
        self.assertEqual({word.strip() for word in answer.headers["Allow"].split(",")}, {"GET", "POST"})
        self.assertEqual(self.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").status, 204)
        self.assertEqual(self.send("OPTIONS /none HTTP/1.1\r\nHost: x\r\n\r\n").status, 404)

    def test_targets(self):
        line = "GET {} HTTP/1.1\r\nHost: x\r\n\r\n"
        self.assertEqual(self.send(line.format("http://other:99/version?")).status, 200)
        self.assertEqual(self.send(line.format("HTTPS://x/healthz")).status, 200)
        self.assertEqual(self.send(line.format("/%76ersion")).status, 200)
        self.refused(line.format("http://x"), 404, "route.not_found", "/")
        self.refused(line.format("version"), 400, "validation.invalid", "begin with /")
        self.refused(line.format("/v1/sandboxes/a%2Fb"), 400, "validation.invalid", "%2F")
        self.refused(line.format("/v1/sandboxes/a%2fexec"), 400, "validation.invalid", "%2F")
        self.refused(line.format("/version%00"), 400, "validation.invalid", "zero byte")
        self.refused(line.format("/v1/sandboxes/a%00b"), 400, "validation.invalid", "zero byte")
        self.refused(line.format("/v1/sandboxes?state=%00"), 400, "validation.invalid", "zero byte")
        self.refused(line.format("/v1/sandboxes/%zz"), 400, "validation.invalid", "hexadecimal")
        self.refused(line.format("/v1/sandboxes/a%"), 400, "validation.invalid", "hexadecimal")
        self.refused(line.format("/v1/sandboxes/%ff"), 404, "sandbox.not_found", "")
        self.refused(line.format("/v1/sandboxes/a%20b"), 404, "sandbox.not_found", "a b")
        self.refused(line.format("/v1/./sandboxes"), 404, "route.not_found", "")
        self.refused(line.format("/v1/sandboxes/"), 404, "route.not_found", "")
        self.refused(line.format("/v1/sandboxes?" + "&".join(f"a{i}=1" for i in range(40))), 400, "validation.invalid",
                     "16")

    def test_sizes(self):
        line = "GET /version HTTP/1.1\r\nHost: x\r\n"
        self.assertEqual(self.send(line + "X: " + "a" * 20000 + "\r\n\r\n").status, 200)
        answer = self.refused(line + "X: " + "a" * 33000 + "\r\n\r\n", 431, "validation.too_large", "head")
        self.assertIn("24576", answer.message)
        for far, status in (line + "X: " + "a" * 3000000 + "\r\n\r\n", 431), ("GET /" + "a" * 200000 + " HTTP/1.1\r\n", 414):
            try:    # the connection is closed in the middle of it
                self.assertEqual(self.send(far).status, status)
            except (BrokenPipeError, ConnectionResetError):
                pass
        # Said before a byte of it is taken, whether the client waits for that or not.
        for expect in "", "Expect: 100-continue\r\n":
            head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{expect}Content-Length: {40 << 20}\r\n\r\n"
            self.refused(head, 413, "validation.too_large", "33554432")
        with self.connect() as connection:    # and so that one who sends all the same hears it
            connection.sendall(f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: {40 << 20}\r\n\r\n".encode())
            try:
                for _ in range(40):
                    connection.sendall(bytes(1 << 20))
            except (BrokenPipeError, ConnectionResetError):
                pass
            self.assertEqual(self.answer(connection).status, 413)

    def test_expect(self):
        head = "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
        with self.connect() as connection:
            connection.sendall(head.format(12).encode())
            self.assertEqual(connection.recv(len(b"HTTP/1.1 100 Continue\r\n\r\n")), b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(b'{"name":"A"}')
            self.assertEqual(self.answer(connection).status, 400)
        # What is refused in any case is refused before the body.
        path = "/v1/sandboxes/none/files/content?path=x"
        self.refused(f"PUT {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 999999\r\n\r\n", 404,
                     "sandbox.not_found", "none", "PUT")
        self.refused(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n", 404, "sandbox.not_found", "none",
                     "PUT")

    def test_request_ids(self):
        line = "GET /v1/sandboxes/none HTTP/1.1\r\nHost: x\r\nX-Request-Id: {}\r\n\r\n"
        self.restart("--log-requests")
        answer = self.send(line.format("my-Call_1.2"))
        self.assertEqual(answer.headers["X-Request-Id"], "my-Call_1.2")
        self.assertEqual(answer.json["error"]["request_id"], "my-Call_1.2")
        self.until(lambda: "my-Call_1.2 GET /v1/sandboxes/none 404 " in self.daemon.log())
        for bad in "a b", "a\tb", "x" * 100, "<script>", "a\xffb", "":
            self.assertRegex(self.send(line.format(bad)).headers["X-Request-Id"], "^req_[0-9a-f]{16}$")
        secret = self.daemon.make_key("logged")["key"]
        self.daemon.call_tcp("GET", "/v1/sandboxes?label=a%3Dtop-secret", key=secret)
        line = self.until(lambda: [line for line in self.daemon.log().splitlines() if "GET /v1/sandboxes 200" in line])[-1]
        self.assertRegex(line, r" key_[0-9a-f]+$", "the log names the key that asked")
        self.assertNotIn("top-secret", self.daemon.log())
        self.assertNotIn(secret, self.daemon.log())


class Browsers(Http):
    OPTIONS = ("--cors-origin", "https://app.example", "--cors-origin", "http://localhost:3000")

    def preflight(self, origin, path="/v1/sandboxes/x/exec", method="POST"):
        return self.daemon.call_tcp("OPTIONS", path, headers={
            "Origin": origin, "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "authorization,content-type"})

    def test_known_origins(self):
        key = self.daemon.make_key()["key"]
        for origin in "https://app.example", "http://localhost:3000":
            answer = self.preflight(origin)
            self.assertEqual((answer.status, answer.body), (204, b""))
            self.assertEqual(answer.headers["Access-Control-Allow-Origin"], origin)
            self.assertIn("PATCH", answer.headers["Access-Control-Allow-Methods"])
            for header in "Authorization", "Idempotency-Key", "Last-Event-ID", "Content-Type":
                self.assertIn(header, answer.headers["Access-Control-Allow-Headers"])
            self.assertEqual(answer.headers["Vary"], "Origin")
            for path, given, status in (("/v1/sandboxes", key, 200), ("/v1/sandboxes", None, 401), ("/none", key, 404)):
                answer = self.daemon.call_tcp("GET", path, key=given, headers={"Origin": origin})
                self.assertEqual(answer.status, status, path)
                self.assertEqual(answer.headers["Access-Control-Allow-Origin"], origin)
                self.assertIn("X-Request-Id", answer.headers["Access-Control-Expose-Headers"])
                self.assertNotIn("Access-Control-Allow-Credentials", answer.headers)

    def test_unknown_origins(self):
        key = self.daemon.make_key()["key"]
        for origin in "https://evil.example", "https://app.example.evil.example", "http://app.example", "null", "*", \
                "https://APP.example", "https://app.example/", "https://app.example, http://localhost:3000":
            answer = self.preflight(origin)
            self.assertEqual((answer.status, answer.code), (403, "auth.origin"), origin)
            self.assertIn("--cors-origin", answer.message)
            self.assertNotIn("Access-Control-Allow-Origin", answer.headers)
            answer = self.daemon.call_tcp("GET", "/v1/sandboxes", key=key, headers={"Origin": origin})
            self.assertNotIn("Access-Control-Allow-Origin", answer.headers)
            self.assertEqual(answer.headers["Vary"], "Origin")

    def test_nobody_is_known_by_default(self):
        self.OPTIONS = ()
        self.restart()
        self.assertEqual(self.preflight("https://app.example").status, 403)
        answer = self.daemon.call_tcp("GET", "/version", headers={"Origin": "https://app.example"})
        self.assertEqual(answer.status, 200)
        self.assertNotIn("Access-Control-Allow-Origin", answer.headers)

    def test_a_name_that_was_turned_to_this_host(self):
        """DNS rebinding: the page's own name leads here, so its calls are no cross-origin ones. It has no key."""
        for method, path in ("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("POST", "/v1/keys"), ("GET", "/metrics"):
            answer = self.daemon.call_tcp(method, path, headers={"Host": "evil.example", "Origin": "http://evil.example",
                                                                  "Cookie": "key=1"})
            self.assertEqual(answer.status, 401, path)


class Tls(Http):
    def certificate(self, name, days=30, common="localhost"):
        cert, key = self.path(name + ".crt"), self.path(name + ".key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        key, "-out", cert, "-days", str(days), "-subj", f"/CN={common}", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        return cert, key

    def options(self):
        if not os.path.exists(self.path("first.crt")):
            self.cert, self.key = self.certificate("first")
        return *super().options(), "--tls-cert", self.cert, "--tls-key", self.key

    def connect(self, local=False, trusted=None):
        context = ssl.create_default_context(cafile=trusted or self.cert)
        return context.wrap_socket(socket.create_connection(self.address, timeout=rig.HANG_SECS), server_hostname="localhost")

    def call(self, method, path, body=None, headers=None, trusted=None):
        with self.connect(trusted=trusted) as connection:
            lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{n}: {v}" for n, v in (headers or {}).items())]
            if body is not None:
                lines.append(f"Content-Length: {len(body)}")
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))
            return self.answer(connection, method)

    def test_calls_streams_and_uploads(self):
        self.assertTrue(self.daemon.url.startswith("https://127.0.0.1:"), self.daemon.url)
        key = self.daemon.make_key()["key"]
        self.assertEqual(self.call("GET", "/version").status, 200)
        self.assertEqual(self.call("GET", "/v1/sandboxes").status, 401)
        bearer = {"Authorization": "Bearer " + key}
        with self.connect() as connection:
            self.assertIn(connection.version(), ("TLSv1.2", "TLSv1.3"))
            for _ in range(50):    # keep-alive
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(self.answer(connection).status, 200)
        with self.connect() as connection:
            connection, events = self.follow(key=key, connection=connection)
            self.make_events("a")
            self.assertEqual(next(events)[1], "removed")
        content = os.urandom(3 << 20) * 11    # more than any buffer on the way
        answer = self.call("PUT", "/v1/volumes/v/content", content, bearer)
        self.assertIn(answer.status, (200, 201, 204), answer.body)
        got = self.call("GET", "/v1/volumes/v/content", headers=bearer)
        self.assertEqual((got.status, got.body[:len(content)] == content), (200, True))
        # Plain HTTP on this port gets nothing, and hurts nobody.
        with socket.create_connection(self.address, timeout=rig.HANG_SECS) as plain:
            plain.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                self.assertNotIn(b"200", plain.recv(4096))
            except ConnectionResetError:
                pass
        self.assertEqual(self.call("GET", "/version").status, 200)

    def test_renewed_on_sighup(self):
        old = open(self.cert, "rb").read()
        trusted_old = self.write("old.crt", old)
        standing = self.connect()
        new_cert, new_key = self.certificate("second")
        os.replace(new_cert, self.cert)
        os.replace(new_key, self.key)
        self.daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: "new connections get the certificate" in self.daemon.log())
        self.assertEqual(self.call("GET", "/version").status, 200)
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.call("GET", "/version", trusted=trusted_old)
        standing.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(self.answer(standing).status, 200, "what stood before goes on")
        standing.close()
        self.write("first.key", b"nonsense")
        self.daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: "the old certificate stays in use: the key" in self.daemon.log())
        self.assertEqual(self.call("GET", "/version").status, 200)

    def start_refused(self, *options, status=1):
        result = subprocess.run([rig.BIN + "/rametd", "--store", self.daemon.store, "--run", self.path("run2"), *options],
                                capture_output=True, text=True, timeout=rig.HANG_SECS)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertFalse(os.path.exists(self.path("run2")), "nothing was begun")
        return result.stderr

    def test_bad_pairs_are_refused(self):
        other_cert, other_key = self.certificate("other")
        tls = lambda cert, key: self.start_refused("--listen", "0", "--tls-cert", cert, "--tls-key", key)
        self.assertIn("does not belong to the certificate", tls(self.cert, other_key))
        self.assertIn("cannot be read: No such file", tls(self.path("none"), self.key))
        self.assertIn("cannot be read: No such file", tls(self.cert, self.path("none")))
        self.assertIn("no good", tls(self.key, self.key))
        self.assertIn("no good", tls(self.cert, self.write("bad", b"-----BEGIN PRIVATE KEY-----\nAAAA\n")))
        self.assertIn("is empty", tls(self.write("empty", b""), self.key))
        locked = self.path("locked")
        subprocess.run(["openssl", "pkey", "-in", self.key, "-aes256", "-passout", "pass:x", "-out", locked], check=True)
        self.assertIn("is encrypted", tls(self.cert, locked))
        self.assertIn("together", self.start_refused("--listen", "0", "--tls-cert", self.cert, status=2))
        self.assertIn("--listen, which is missing", self.start_refused("--tls-cert", self.cert, "--tls-key", self.key, status=2))

    def test_plain_beyond_this_host_is_said_twice(self):
        words = self.start_refused("--listen", "0.0.0.0:0")
        self.assertIn("everybody on the way reads keys", words)
        self.assertIn("--listen-plain-anyway", words)
        self.assertIn("everybody on the way", self.start_refused("--listen", "[::]:0"))
        for text, wrong in (("x", "is not PORT"), ("1.2.3.4.5:1", "no IP address"), ("::1:80", "brackets"), ("70000", "is not PORT"),
                            ("203.0.113.9:0", "no interface")):
            self.assertIn(wrong, self.start_refused("--listen", text))
        for origin in "*", "null", "https://a.example/", "a.example", "https://A.example":
            self.assertIn("--cors-origin is not like", self.start_refused("--listen", "0", "--cors-origin", origin, status=2))
        self.daemon.stop()
        self.daemon.start("--listen", "0.0.0.0:0", "--listen-plain-anyway")
        self.assertRegex(self.daemon.url, "^http://0.0.0.0:")
        self.daemon.stop()
        self.daemon.start("--listen", "0.0.0.0:0", "--tls-cert", self.cert, "--tls-key", self.key)
        self.assertEqual(self.call("GET", "/version").status, 200)


class Streams(Http):
    """A02 for events. What is exec's and jobs' is in test_streams.py; other streams have no ids."""

    def listed(self):
        return self.daemon.call("GET", "/v1/events?follow=0").json["events"]

    def test_A02_events_that_break(self):
        self.make_events(*"abcdef")
        events = self.listed()
        self.assertEqual(len(events), 6)
        for cut in range(1, len(events)):
            connection, stream = self.follow(last=events[cut - 1]["id"])
            got = [next(stream)[0] for _ in range(len(events) - cut)]
            self.leave(connection)
            self.assertEqual(got, [event["id"] for event in events[cut:]], cut)
        epoch, _, last = events[-1]["id"].partition("-")
        for wrong in f"{epoch}-{int(last) + 1000}", f"{int(epoch, 16) ^ 1:08x}-1", "x", "17", "", "-1", f"{epoch}-0x1", \
                f"{epoch}-{2 ** 70}", f" {epoch}-1x", "a" * 5000:
            connection, stream = self.follow(last=wrong)
            got = [next(stream) for _ in range(len(events) + 1)]
            self.leave(connection)
            self.assertEqual(got[0][1], "gap", wrong)
            self.assertEqual([event[0] for event in got[1:]], [event["id"] for event in events], wrong)

    def test_A02_ids_of_another_daemon(self):
        self.make_events("a")
        last = self.listed()[-1]["id"]
        self.restart()
        self.make_events("b")
        connection, stream = self.follow(last=last)
        self.assertEqual(next(stream)[1], "gap")
        self.leave(connection)


class Metrics(Http):
    def samples(self, text):
        """Parsed as the format demands; {(name, labels): value}, {name: type}."""
        samples, types, helped = {}, {}, set()
        self.assertTrue(text.endswith("\n"))
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ")[2]
                self.assertNotIn(name, helped)
                helped.add(name)
                continue
            if line.startswith("# TYPE "):
                name, kind = line.split(" ")[2:]
                self.assertIn(kind, ("counter", "gauge", "histogram"))
                self.assertNotIn(name, types, "one block each")
                types[name] = kind
                continue
            match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)', line)
            self.assertTrue(match, line)
            labels = re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"', match[2] or "")
            self.assertEqual(",".join(f'{name}="{value}"' for name, value in labels), match[2] or "", line)
            base = re.sub("_(bucket|sum|count)$", "", match[1])
            self.assertTrue(match[1] in types or types.get(base) == "histogram", line)
            self.assertEqual(match[1].endswith("_total"), types.get(match[1]) == "counter", line)
            key = match[1], tuple(labels)
            self.assertNotIn(key, samples)
            samples[key] = float(match[3])
        self.assertEqual(helped, set(types))
        return samples

    def scrape(self):
        answer = self.daemon.call("GET", "/metrics")
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        return self.samples(answer.body.decode())

    def test_metrics(self):
        requests = lambda samples, method, route, status: samples.get(
            ("ramet_http_requests_total", (("method", method), ("route", route), ("status", str(status)))), 0)
        box = "/v1/sandboxes/{name}"
        for _ in range(5):
            self.daemon.call("GET", "/v1/sandboxes/none")
        for path in "/nothing", "/v1/nothing":
            self.daemon.call("GET", path)
        connection, _ = self.follow()
        # A call is counted when its answer has gone out, which its client may see a moment before.
        self.until(lambda: requests(before := self.scrape(), "GET", box, 404) + requests(before, "", "", 404) >= 7)
        before = self.scrape()
        self.assertEqual(requests(before, "GET", box, 404), 5)
        self.assertEqual(requests(before, "", "", 404), 2, "what anybody makes up gets no row of its own")
        self.assertEqual(before["ramet_http_streams", ()], 1)
        self.leave(connection)
        self.until(lambda: self.scrape()["ramet_http_streams", ()] == 0)
        bucket = lambda samples, le: samples["ramet_http_request_duration_seconds_bucket",
                                             (("method", "GET"), ("route", box), ("le", le))]
        edges = [dict(labels)["le"] for name, labels in before if name.endswith("_bucket") and dict(labels)["route"] == box]
        counts = [bucket(before, edge) for edge in edges]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual((edges[-1], counts[-1]), ("+Inf", 5))
        self.assertEqual(before["ramet_http_request_duration_seconds_count", (("method", "GET"), ("route", box))], 5)
        self.assertEqual(before["ramet_sandboxes", (("state", "running"),)], 0)
        for name in "ramet_store_physical_bytes", "ramet_store_logical_bytes", "ramet_store_log_bytes", \
                "ramet_store_reclaimable_bytes", "ramet_pool_size", "ramet_memory_machines", "process_resident_memory_bytes", \
                "process_threads", "process_open_fds", "ramet_http_requests_in_flight", "ramet_host_memory_available_bytes":
            self.assertIn((name, ()), before)
        after = self.scrape()
        for (name, labels), value in before.items():
            if name.endswith("_total"):
                self.assertGreaterEqual(after[name, labels], value, name)

    def test_who_may_read_them(self):
        for preset, status in ("admin", 200), ("read", 200), ("ci", 403):
            key = self.daemon.make_key(preset, preset)["key"]
            self.assertEqual(self.daemon.call_tcp("GET", "/metrics", key=key).status, status, preset)
        self.assertEqual(self.daemon.call_tcp("GET", "/metrics").status, 401)


class Crowds(Http):
    def tcp_answer(self):
        try:
            return self.daemon.call_tcp("GET", "/version")
        except (http.client.HTTPException, OSError):    # it is shut down while it is asked
            return None

    def tcp_status(self):
        answer = self.tcp_answer()
        return answer and answer.status

    def test_beyond_the_limit(self):
        """A full TCP side says 503, lets go of nothing that stands, and leaves the owner's socket alone."""
        self.restart("--connections", "40")
        key = self.daemon.make_key()["key"]
        streams = [self.follow(key=key) for _ in range(40)]
        answer = self.until(self.tcp_answer)    # one that is slow to ask is shut
        self.assertEqual((answer.status, answer.code), (503, "capacity.connections"))
        self.assertEqual(answer.headers["Connection"], "close")
        self.assertEqual(answer.headers["Retry-After"], "1")
        self.assertTrue(answer.json["error"]["details"]["retryable"])
        self.assertEqual(self.daemon.call("GET", "/version").status, 200, "the unix socket has its own limit")
        self.make_events("a")
        first = [next(events)[0] for _, events in streams]
        self.assertEqual(len(set(first)), 1, "each of them hears it")
        for connection, _ in streams[:20]:
            self.leave(connection)
        self.until(lambda: self.tcp_status() == 200)
        for connection, _ in streams[20:]:
            self.leave(connection)

    def test_silent_connections_end(self):
        """Connections without a head make room when there are too many; none of them holds up a stop."""
        self.restart("--connections", "8")
        idle = [self.connect(local=False) for _ in range(30)]
        for number, connection in enumerate(idle):
            connection.sendall(b"GET /version HT"[:number])
        # More than 8: whoever sends no head within five seconds is shut.
        self.until(lambda: self.tcp_status() == 200)
        for connection in idle:
            connection.close()

    def test_many_idle_streams(self):
        """One thread each, no more than a few dozen KiB, and all of them hear of what happens."""
        count = 4000 if os.environ.get("RAMET_TEST_LONG") == "1" else 300
        self.restart("--rate-limit", "0")
        key = self.daemon.make_key()["key"]
        streams = [self.follow(key=key) for _ in range(count)]
        status = dict(line.split(":\t") for line in open(f"/proc/{self.daemon.process.pid}/status").read().splitlines()
                      if ":\t" in line)
        self.assertLess(int(status["Threads"]), count + 100)
        self.make_events("a")
        self.assertEqual(len({next(events)[0] for _, events in streams}), 1)
        for connection, _ in streams:
            self.leave(connection)
        self.until(lambda: len(os.listdir(f"/proc/{self.daemon.process.pid}/task")) < 100)

    def test_stop_under_streams(self):
        streams = [self.follow() for _ in range(50)]
        self.daemon.stop()
        for connection, events in streams:
            with self.assertRaises((http.client.IncompleteRead, ConnectionError, StopIteration)):
                next(events)
            connection.close()


if __name__ == "__main__":
    rig.need_root()
    rig.main()
