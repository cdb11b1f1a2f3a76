# SPDX-License-Identifier: Apache-2.0
"""Every call of `rametd --routes` with every kind of key: who is let in is decided for each, and a call that nobody
decided about fails here. No machines."""
import re
import subprocess

import rig

STANDS_FOR = {"name": "nothing-here", "part": "disk", "id": "nothing-1", "port": "80", "host_port": "80"}
EXPECTED = {"none": 403, "sandbox": 404, "data": 404, "source": 404, "build": 404}


class Route:
    def __init__(self, line):
        self.method, self.pattern, *self.words = line.split()
        self.open, self.reads = "open" in self.words, "read" in self.words
        self.rule = next((word[3:] for word in self.words if word.startswith("ci=")), None)
        self.path = re.sub(r"{(\w+)}", lambda match: STANDS_FOR.get(match[1], "nothing-1"), self.pattern)

    def __str__(self):
        return f"{self.method} {self.pattern}"


def routes():
    text = subprocess.run([rig.BIN + "/rametd", "--routes"], capture_output=True, text=True, check=True).stdout
    return [Route(line) for line in text.splitlines()]


class Access(rig.Case):
    def setUp(self):
        super().setUp()
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--rate-limit", "0")

    def test_every_route_is_decided(self):
        found = routes()
        self.assertGreater(len(found), 60)
        for route in found:
            with self.subTest(route=str(route)):
                self.assertNotIn("unclassified", route.words, "give it its row in vmglue/access_table.c")
                if not route.open:
                    self.assertIn(route.rule, ("any", *EXPECTED))
                if route.reads and "reads" not in route.words:
                    self.assertEqual(route.method, "GET", "a read key changes nothing")
                if "admin" in route.words:
                    self.assertEqual((route.rule, route.reads), ("none", False))

    def test_without_a_good_key(self):
        expired = self.daemon.make_key("expired", expires_in_secs=0.01)["key"]
        revoked = self.daemon.make_key("revoked")["key"]
        self.daemon.call("DELETE", "/v1/keys/revoked")
        self.until(lambda: self.daemon.refuses(expired))
        for route in routes():
            if route.open:
                continue
            for key in None, "", "e2b_" + "0" * 56, expired, revoked:
                with self.subTest(route=str(route), key=key):
                    answer = self.daemon.call_tcp(route.method, route.path, key=key)
                    self.assertEqual(answer.status, 401, answer.body)
                    self.assertIn("ramet key create", answer.message)

    def test_every_preset(self):
        keys = {preset: self.daemon.make_key("a-" + preset, preset)["key"] for preset in ("ci", "read", "admin")}
        for route in routes():
            if route.open:
                continue
            # A body that no call takes: who is let in gets no further than its fields.
            body = None if route.method == "GET" else {"no such field": 1}
            with self.subTest(route=str(route), preset="read"):
                answer = self.daemon.call_tcp(route.method, self.bounded(route), body, keys["read"])
                if route.reads:
                    self.assertNotIn(answer.status, (401, 403), answer.body)
                else:
                    self.assertEqual((answer.status, answer.code), (403, "auth.forbidden"), answer.body)
            with self.subTest(route=str(route), preset="ci"):
                answer = self.daemon.call_tcp(route.method, self.bounded(route), body, keys["ci"])
                if str(route) == "POST /v1/templates":
                    self.assertEqual(answer.status, 403, "no source that a ci key may use")
                elif route.rule == "any":
                    self.assertNotIn(answer.status, (401, 403), answer.body)
                else:
                    self.assertEqual(answer.status, EXPECTED[route.rule], answer.body)
            with self.subTest(route=str(route), preset="admin"):
                answer = self.daemon.call_tcp(route.method, self.bounded(route), body, keys["admin"])
                self.assertNotIn(answer.status, (401, 403), answer.body)

    def test_other_services_words(self):
        """They are other names for the same calls: one table decides, and nothing is let in by its name."""
        keys = {preset: self.daemon.make_key("a-" + preset, preset)["key"] for preset in ("ci", "read")}
        headers = {"E2b-Sandbox-Id": "sbx_000000000000", "E2b-Sandbox-Port": "49983", "X-Access-Token": "rmt_" + "0" * 81}
        for method, path, ci, read, more in (
                ("POST", "/process.Process/Start", 502, 403, headers), ("POST", "/process.Process/List", 502, 403, headers),
                ("POST", "/filesystem.Filesystem/Stat", 502, 403, headers), ("GET", "/files?path=x", 502, 403, headers),
                ("POST", "/execute", 502, 403, {**headers, "E2b-Sandbox-Port": "49999"}),
                ("POST", "/sandboxes/sbx_000000000000/pause", 404, 403, {}), ("DELETE", "/sandboxes/sbx_000000000000", 404, 403, {}),
                ("DELETE", "/templates/none", 404, 403, {}), ("GET", "/sandboxes/sbx_000000000000", 404, 404, {}),
                ("POST", "/pandastack/v1/me/tokens", 403, 403, {}), ("GET", "/pandastack/v1/me/tokens", 403, 403, {}),
                ("DELETE", "/pandastack/v1/me/tokens/a-ci", 403, 403, {}),
                ("POST", "/pandastack/v1/sandboxes/none/exec", 404, 403, {}),
                ("GET", "/pandastack/v1/sandboxes/none/fs?path=x", 404, 403, {}),
                ("PUT", "/pandastack/v1/sandboxes/none/fs?path=x", 404, 403, {})):
            for key, status in ((None, 401), ("e2b_" + "0" * 56, 401), (keys["ci"], ci), (keys["read"], read)):
                with self.subTest(method=method, path=path, key=key):
                    body = None if method == "GET" else {}
                    answer = self.daemon.call_tcp(method, path, body, key, more)
                    self.assertEqual(answer.status, status, answer.body)

    @staticmethod
    def bounded(route):
        return route.path + "?follow=0" if route.pattern == "/v1/events" else route.path

    def test_volumes_of_two_keys(self):
        admin = self.daemon.make_key("root")["key"]
        [one, other] = [self.daemon.make_key(name, "ci") for name in ("one", "other")]
        read = self.daemon.make_key("reader", "read")["key"]

        def call(key, *arguments):
            return self.daemon.call_tcp(*arguments, key=key["key"] if isinstance(key, dict) else key)
        for key, name in (one, "mine"), (other, "theirs"), (admin, "common"):
            answer = call(key, "POST", "/v1/volumes", {"name": name, "size_bytes": 1 << 20})
            self.assertEqual(answer.status, 201, answer.body)
            self.assertEqual(answer.json.get("owner"), key["id"] if isinstance(key, dict) else None)
        shown = call(admin, "GET", "/v1/volumes/theirs").json
        self.assertEqual(call(one, "POST", "/v1/volumes/mine/snapshots", {"name": "snap-mine"}).status, 201)
        # Whoever snapshots a thing of a key, the snapshot is that key's.
        self.assertEqual(call(admin, "POST", "/v1/volumes/theirs/snapshots", {"name": "snap-theirs"}).json["owner"], other["id"])

        self.assertEqual(call(admin, "POST", "/v1/volumes/theirs/fork", {"name": "fork-theirs"}).json["owner"], other["id"])
        self.assertEqual(call(other, "DELETE", "/v1/volumes/fork-theirs").status, 204)

        def names(key):
            return ([volume["name"] for volume in call(key, "GET", "/v1/volumes?all=1").json["volumes"]],
                    [snapshot["name"] for snapshot in call(key, "GET", "/v1/snapshots").json["snapshots"]])
        self.assertEqual(names(one), (["mine"], ["snap-mine"]))
        self.assertEqual(names(other), (["theirs"], ["snap-theirs"]))
        self.assertEqual(sorted(names(admin)[0]), ["common", "mine", "theirs"])
        self.assertEqual(names(read), names(admin))
        # What is another's looks exactly as what is not there, by name, by id, alone and in bodies.
        def same(text, name):
            return text.replace(name.encode(), b"NAME").split(b"request_id")[0]
        for name in "theirs", "common", shown["id"], "snap-theirs":
            for method, path, body in (("GET", "/v1/volumes/{}", None), ("DELETE", "/v1/volumes/{}", None),
                                       ("PATCH", "/v1/volumes/{}", {"size_bytes": 2 << 20}),
                                       ("POST", "/v1/volumes/{}/fork", {"name": "x"}),
                                       ("POST", "/v1/volumes/{}/snapshots", {"name": "x"}),
                                       ("GET", "/v1/volumes/{}/content", None), ("GET", "/v1/volumes/{}/map", None),
                                       ("GET", "/v1/volumes/{}/diff?from=mine", None),
                                       ("GET", "/v1/volumes/mine/diff?from={}", None),
                                       ("GET", "/v1/snapshots/{}", None), ("DELETE", "/v1/snapshots/{}", None),
                                       ("POST", "/v1/volumes", {"name": "x", "from": "{}"}),
                                       ("POST", "/v1/sandboxes", {"from": "{}"}),
                                       ("POST", "/v1/sandboxes", {"from": "mine", "disks": [{"volume": "{}"}]})):
                with self.subTest(name=name, method=method, path=path, body=body):
                    answers = []
                    for wanted in name, "nothing-here":
                        text = rig.json.loads(rig.json.dumps(body).replace("{}", wanted))
                        answers.append(call(one, method, path.format(wanted), text))
                    self.assertEqual([answer.status for answer in answers], [404, 404], answers[0].body)
                    self.assertEqual(same(answers[0].body, name), same(answers[1].body, "nothing-here"))
        # A name that another has is taken, and no more is said.
        taken = call(one, "POST", "/v1/volumes", {"name": "theirs", "size_bytes": 4096})
        self.assertEqual((taken.status, taken.code), (409, "volume.conflict"))
        self.assertNotIn(other["id"], taken.body.decode())
        # Its own it may use, by id as well, also after a restart; an id is never handed on.
        mine = call(one, "GET", "/v1/volumes/mine").json
        self.daemon.kill()
        self.daemon.start("--listen", "0", "--rate-limit", "0")
        self.assertEqual(call(one, "GET", "/v1/volumes/" + mine["id"]).json, mine)
        self.assertEqual(call(one, "POST", "/v1/volumes/mine/fork", {"name": "second"}).json["owner"], one["id"])
        self.assertEqual(call(one, "PATCH", "/v1/volumes/mine", {"name": "renamed"}).json["owner"], one["id"])
        self.assertEqual(call(one, "GET", "/v1/volumes/renamed/content").status, 200)
        self.assertEqual(call(read, "GET", "/v1/volumes/renamed/content").status, 403, "a disk's bytes are contents")
        self.assertEqual(call(one, "GET", "/v1/volumes/renamed/diff?from=second").status, 200)
        self.assertEqual(call(one, "DELETE", "/v1/volumes/renamed").status, 204)
        self.assertEqual(call(one, "GET", "/v1/volumes/" + mine["id"]).status, 404)
        self.assertEqual(call(admin, "DELETE", "/v1/volumes/second").status, 204)

    def test_a_usual_name_taken_by_a_ci_key(self):
        """Who names no source starts from nobody's "agent-base", never from what a ci key called so."""
        one, two = (self.daemon.make_key(name, "ci")["key"] for name in ("one", "two"))
        made = self.daemon.call_tcp("POST", "/v1/volumes", {"name": "agent-base", "size_bytes": 1 << 20}, key=one)
        self.assertEqual(made.status, 201, made.body)
        for answer in (self.daemon.call("POST", "/v1/sandboxes", {}), self.daemon.call_tcp("POST", "/v1/sandboxes", {}, key=two)):
            self.assertEqual((answer.status, answer.code), (404, "source.not_found"), answer.body)
            self.assertIn("agent-base", answer.message)
        own = self.daemon.call_tcp("POST", "/v1/sandboxes", {}, key=one)    # its own it may boot, had it a kernel
        self.assertIn("kernel", own.message)

    def test_a_body_that_comes_late(self):
        """What was checked is what is worked on, though the name means another thing by the time the body is there."""
        key = self.daemon.make_key("slow", "ci")["key"]
        self.assertEqual(self.daemon.call_tcp("POST", "/v1/volumes", {"name": "disk", "size_bytes": 4096}, key).status, 201)
        address = rig.urllib.parse.urlsplit(self.daemon.url)
        body = b'{"name":"stolen"}'
        with rig.socket.create_connection((address.hostname, address.port), timeout=rig.HANG_SECS) as connection:
            connection.sendall(b"POST /v1/volumes/disk/fork HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key.encode()
                               + b"\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertIn(b"100 Continue", connection.recv(100))    # it has been through the gate
            self.daemon.ramet("volume", "rm", "disk")
            self.daemon.ramet("volume", "create", "disk", "4096")
            connection.sendall(body)
            response = rig.http.client.HTTPResponse(connection)
            response.begin()
            self.assertEqual(response.status, 404, response.read())
        self.assertEqual([volume["name"] for volume in self.daemon.json("volume", "ls")], ["disk"])


if __name__ == "__main__":
    rig.need_root()
    rig.main()
