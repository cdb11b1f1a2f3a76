# SPDX-License-Identifier: Apache-2.0
"""Keys over TCP: how one is given, what a wrong one gets, when it ends. No machines."""
import concurrent.futures
import http.client
import json
import socket
import threading
import urllib.parse

import rig


class Keys(rig.Case):
    def setUp(self):
        super().setUp()
        self.daemon.stop()
        self.daemon.start("--listen", "0")

    def raw(self, *headers, method="GET", path="/v1/store", body=b""):
        """Status and JSON of a request with exactly these header lines."""
        address = urllib.parse.urlsplit(self.daemon.url)
        with socket.create_connection((address.hostname, address.port), timeout=rig.HANG_SECS) as connection:
            lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers, f"Content-Length: {len(body)}"]
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
            response = http.client.HTTPResponse(connection, method=method)
            response.begin()
            text = response.read()
            return response, json.loads(text) if text else None

    def refused(self, code, *headers, status=401, **more):
        response, body = self.raw(*headers, **more)
        self.assertEqual(response.status, status, body)
        if body is not None:
            self.assertEqual(body["error"]["code"], code, body)
        return response, body

    def allowed(self, *headers, **more):
        response, body = self.raw(*headers, **more)
        self.assertEqual(response.status, 200, body)
        return body

    def test_ways_to_give_a_key(self):
        key = self.daemon.make_key()["key"]
        other = self.daemon.make_key("other")["key"]
        self.assertRegex(key, "^e2b_[0-9a-f]{56}$")
        for headers in (f"Authorization: Bearer {key}",), (f"authorization: bearer {key}",), (f"X-API-Key: {key}",), \
                (f"x-api-key:{key}",), (f"AUTHORIZATION:  BEARER   {key}",), \
                (f"Authorization: Bearer {key}", f"X-API-Key: {key}"), \
                ("Authorization: Basic dXNlcjo=", f"X-API-Key: {key}"):
            self.allowed(*headers)
        response, body = self.refused("auth.missing")
        self.assertIn("ramet key create", body["error"]["message"])
        self.assertEqual(response.headers["WWW-Authenticate"], 'Bearer realm="ramet"')
        for header in "Authorization: Bearer", "Authorization: Bearer ", "X-API-Key:", "Authorization: Basic dXNlcjo=", \
                f"Authorization: {key}", f"Authorization: Bearer{key}":
            self.refused("auth.missing", header)
        for wrong in "x", "e2b_", "e2b_" + "0" * 56, key[:-1], key + "0", key[:-1] + ("1" if key[-1] == "0" else "0"), \
                key.upper(), key[:20] + other[20:], "e2b_" + "\xff" * 56, key + " x":
            self.refused("auth.invalid", f"Authorization: Bearer {wrong}")
        for pair in ((f"Authorization: Bearer {key}", f"X-API-Key: {other}"), (f"X-API-Key: {key}", f"X-API-Key: {key}"),
                     (f"Authorization: Bearer {key}", f"Authorization: Bearer {other}"),
                     ("Authorization: Bearer", f"X-API-Key: {key}"), (f"X-API-Key: {key}", "x-api-key:")):
            self.refused("auth.ambiguous", *pair)
        self.allowed(path="/healthz")
        self.allowed(path="/version")
        # Nothing else is a way in, nor changes what is asked.
        self.refused(None, method="HEAD")
        self.refused("auth.missing", path="/v1/store?key=" + key)
        self.refused("auth.missing", path="/v1/sandboxes/x/exec/pty", *[])
        self.refused("auth.missing", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                     "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", path="/v1/sandboxes/x/exec/pty")
        self.refused("auth.missing", "Connection: Upgrade", "Upgrade: tcp", path="/v1/sandboxes/x/ports/80")
        for path in "/v1/%73tore", "/v1/./store", "/v1//store", "//v1/store", "/healthz/../v1/store", "/v1/store%2f":
            response, body = self.raw(path=path)
            self.assertIn(response.status, (400, 401, 404), (path, body))
        self.assertEqual(self.daemon.call("GET", "/v1/store").status, 200, "the unix socket needs no key")

    def test_life_of_a_key(self):
        made = self.daemon.make_key("ci-7", "ci", expires_in_secs=3600)
        self.assertEqual({name: made[name] for name in ("name", "preset", "created_by", "last_used_at")},
                         {"name": "ci-7", "preset": "ci", "created_by": None, "last_used_at": None})
        self.assertTrue(made["key"].startswith(made["prefix"]) and made["id"][4:] == made["prefix"][4:])
        shown = self.daemon.call("GET", "/v1/keys/ci-7")
        self.assertEqual({**shown.json, "key": made["key"]}, made)
        self.assertEqual(shown.json, self.daemon.call("GET", "/v1/keys/" + made["id"]).json)
        self.assertEqual(self.daemon.call("GET", "/v1/keys").json, {"keys": [shown.json]})
        # No byte of the secret lies in the store or the log.
        self.daemon.stop()
        for folder in self.daemon.store, self.daemon.run:
            found = rig.subprocess.run(["grep", "-rlaF", made["key"][20:], folder], capture_output=True, text=True).stdout
            self.assertEqual(found, "")
        self.assertNotIn(made["key"][20:], self.daemon.log())
        self.daemon.start("--listen", "0")
        admin = self.daemon.make_key("root")
        key = admin["key"]
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/sandboxes", key=made["key"]).status, 200, "it survives")
        for answer, code in ((self.daemon.call("POST", "/v1/keys", {"name": "ci-7", "preset": "ci"}), "key.conflict"),
                             (self.daemon.call("POST", "/v1/keys", {"name": "x", "preset": "root"}), "validation.invalid"),
                             (self.daemon.call("POST", "/v1/keys", {"name": "x"}), "validation.invalid"),
                             (self.daemon.call("POST", "/v1/keys", {"preset": "ci"}), "validation.invalid"),
                             (self.daemon.call("POST", "/v1/keys", {"name": "key_00", "preset": "ci"}), "validation.invalid"),
                             (self.daemon.call("POST", "/v1/keys", {"name": "x", "preset": "ci", "expires_in_secs": 0}),
                              "validation.invalid"),
                             (self.daemon.call("GET", "/v1/keys/none"), "key.not_found"),
                             (self.daemon.call("DELETE", "/v1/keys/key_0"), "key.not_found")):
            self.assertEqual(answer.code, code, answer.body)
        # No key makes one that holds more than itself: ci and read make none, none outlives its maker.
        for preset in "ci", "read":
            weak = self.daemon.make_key("weak-" + preset, preset)["key"]
            for wanted in "admin", "ci", "read":
                answer = self.daemon.call_tcp("POST", "/v1/keys", {"name": "up", "preset": wanted}, weak)
                self.assertEqual((answer.status, answer.code), (403, "auth.forbidden"))
            self.assertEqual(self.daemon.call_tcp("GET", "/v1/keys", key=weak).status, 403)
            self.assertEqual(self.daemon.call_tcp("DELETE", "/v1/keys/root", key=weak).status, 403)
        short = self.daemon.call_tcp("POST", "/v1/keys", {"name": "short", "preset": "admin", "expires_in_secs": 600}, key)
        self.assertEqual((short.status, short.json["created_by"]), (201, admin["id"]))
        child = self.daemon.call_tcp("POST", "/v1/keys", {"name": "child", "preset": "admin"}, short.json["key"]).json
        self.assertEqual(child["expires_at"], short.json["expires_at"])
        answer = self.daemon.call_tcp("POST", "/v1/keys", {"name": "longer", "preset": "read", "expires_in_secs": 601},
                                      short.json["key"])
        self.assertEqual((answer.status, answer.code), (403, "auth.forbidden"))
        self.assertIsNotNone(self.daemon.call("GET", "/v1/keys/root").json["last_used_at"])
        # A key may revoke itself, and gets its answer.
        self.assertEqual(self.daemon.call_tcp("DELETE", "/v1/keys/short", key=short.json["key"]).status, 204)
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=short.json["key"]).code, "auth.invalid")

    def test_command_line(self):
        printed = self.daemon.ramet("key", "create", "ci-8", "--preset", "ci", "--expires", "12h")
        self.assertRegex(printed, "^e2b_[0-9a-f]{56}\n$")
        self.assertIn("ramet key rm ci-8", self.daemon.stderr)
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/sandboxes", key=printed.strip()).status, 200)
        [listed] = self.daemon.json("key", "ls")
        self.assertEqual((listed["name"], listed["preset"], "key" in listed), ("ci-8", "ci", False))
        self.assertIn(listed["prefix"], self.daemon.ramet("key", "ls"))
        made = self.daemon.json("key", "create", "root")
        self.assertEqual(made["preset"], "admin")
        self.assertEqual(self.daemon.ramet("key", "rm", "ci-8", made["id"]), f"ci-8: removed\n{made['id']}: removed\n")
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=made["key"]).status, 401)
        for words in ["create"], ["create", "x", "--expires", "soon"], ["create", "x", "--expires", "0"], ["rm"], ["shine"], []:
            self.daemon.ramet("key", *words, status=2)
        self.daemon.ramet("key", "create", "x", "--preset", "god", status=1)
        self.assertIn("preset", self.daemon.stderr)
        self.daemon.ramet("key", "rm", "none", status=1)
        self.assertIn("ramet key ls", self.daemon.stderr)
        self.assertIn("--preset", self.daemon.ramet("help", "key"))

    def follow(self, key):
        """An open stream of events; what it returns waits for its end."""
        address = urllib.parse.urlsplit(self.daemon.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=rig.HANG_SECS)
        connection.request("GET", "/v1/events?follow=1", headers={"X-API-Key": key})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)

        def wait():
            try:
                while response.read1(4096):
                    pass
            except (http.client.HTTPException, OSError):
                pass
            connection.close()
        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def follow_briefly(self):
        """A key that ends soon, and a stream that began before."""
        for secs in 2, 8, 32, 128:    # a slow machine needs longer to begin
            key = self.daemon.make_key(f"brief-{secs}", "read", expires_in_secs=secs)
            try:
                return key, self.follow(key["key"])
            except (AssertionError, http.client.HTTPException, OSError):    # refused, or broken off in the middle
                self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=key["key"]).code, "auth.expired")
        self.fail("no stream began before its key had expired")

    def test_streams_end_with_their_key(self):
        gone, kept = self.daemon.make_key("gone", "read"), self.daemon.make_key("kept", "read")
        streams = [self.follow(gone["key"]) for _ in range(3)]
        other = self.follow(kept["key"])
        self.assertEqual(self.daemon.call("DELETE", "/v1/keys/gone").status, 204)
        for stream in streams:
            stream.join(rig.HANG_SECS)
            self.assertFalse(stream.is_alive())
        self.assertTrue(other.is_alive())
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=gone["key"]).code, "auth.invalid")
        brief, stream = self.follow_briefly()
        stream.join(rig.HANG_SECS)    # it expires in the middle
        self.assertFalse(stream.is_alive())
        answer = self.daemon.call_tcp("GET", "/v1/store", key=brief["key"])
        self.assertEqual((answer.status, answer.code), (401, "auth.expired"))
        self.assertTrue(other.is_alive())
        self.daemon.call("DELETE", "/v1/keys/kept")
        other.join(rig.HANG_SECS)

    def crowd(self, count, key):
        """The answers to so many calls, as fast as can be: one after another they may be too slow for a limit."""
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda _: self.daemon.call_tcp("GET", "/v1/store", key=key), range(count)))

    def test_rate_limits(self):
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--rate-limit", "1")
        key, other = self.daemon.make_key()["key"], self.daemon.make_key("other")["key"]
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=key).status, 200)
        limited = self.until(lambda: [answer for answer in self.crowd(30, key) if answer.status == 429])
        self.assertEqual(limited[0].code, "rate_limit.requests")
        self.assertTrue(limited[0].json["error"]["details"]["retryable"])
        self.assertEqual(str(limited[0].json["error"]["retry_after_secs"]), limited[0].headers["Retry-After"])
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/store", key=other).status, 200)
        self.assertEqual({self.daemon.call("GET", "/v1/store").status for _ in range(30)}, {200})
        # Wrong keys are slowed down, and do not lock out who comes from the same address with a good one.
        codes = {self.daemon.call_tcp("GET", "/v1/store", key="wrong").code}
        self.until(lambda: codes.update(answer.code for answer in self.crowd(200, "wrong")) or len(codes) > 1)
        self.assertEqual(codes, {"auth.invalid", "rate_limit.authentication"})
        self.until(lambda: self.daemon.call_tcp("GET", "/v1/store", key=other).status == 200)


if __name__ == "__main__":
    rig.need_root()
    rig.main()
