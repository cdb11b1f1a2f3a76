# SPDX-License-Identifier: Apache-2.0
"""Every error that needs no machine: what provokes it, its status, code and words, and that it has the shape that all have.
The fields and parameters of each call are walked with wrong values: each is a 400 that names it."""
import concurrent.futures
import json
import os
import re
import socket
import urllib.parse

import contract
import rig
import schema
import walk
import wrong

MEGABYTE = 1 << 20
ASKERS, ASKED_MAX = 20, 2000


class ErrorCase(rig.Case):
    def setUp(self):
        super().setUp()
        self.document = contract.Document(self.daemon.call("GET", "/openapi.json").json)
        self.faults, self.seen = [], set()

    def tearDown(self):
        self.assertEqual(self.faults, [], "\n" + "\n".join(self.faults[:60]) + f"\n{len(self.faults)} faults")

    def refuse(self, status, code, method, path, body=None, says="", headers=None, call=None):
        answer = (call or self.daemon.call)(method, path, body, headers)
        self.faults += self.document.refusal_faults(method, path, answer, status, code, says)
        self.seen.add(code)

    # ---- steps of walk.py ----

    def step(self, status, method, path, body=None, headers=None):
        found = self.document.find(method, path)
        if found is None:
            return None
        answer = self.daemon.call(method, path, body, headers)
        if answer.status != status:
            self.faults.append(f"{method} {path} -> {answer.status} {answer.body[:300]!r}, not {status}")
        self.faults += self.document.answer_faults(method, path, answer)
        return f"{method} {found[0]}"

    # ---- each field and parameter of each call ----

    def walk_fields(self, strict):
        """Without a machine what is right in type may find out first that there is no sandbox: `strict` says that there is one."""
        count = 0
        for method, pattern, operation in self.document.calls():
            shape = contract.Document.body_schema(operation)
            if shape is None:
                continue
            good = wrong.body(operation, self.document)
            if "from" in shape["properties"]:
                good["from"] = "nothing"    # there is a volume of that name
            path = self.example(pattern)
            if strict and "/sandboxes/{name}" not in pattern and "{part}" not in pattern and pattern != "/v1/sandboxes":
                continue    # the same without a machine
            for name, field in shape["properties"].items():
                for value in wrong.values(field, self.document.schemas):
                    count += 1
                    self.check_named(method, path, {**good, name: value}, name, strict)
            for name in shape.get("required", []):
                self.check_named(method, path, {key: value for key, value in good.items() if key != name}, name, True)
                self.check_named(method, path, {**good, name: None}, name, True)
        self.assertGreater(count, 300)

    def check_named(self, method, path, body, name, strict):
        answer = self.daemon.call(method, path, body)
        stem = name[:-1] if name == "names" else name    # one of them is what is wrong
        early = {"sandbox.not_found", "volume.not_found"} if not strict else set()
        if answer.status == 404 and answer.code in early and ("/sandboxes/" in path or "/disk/" in path):
            return
        if path.endswith("/promote") and answer.status == 409:    # it is no fork's child, whatever the name
            return
        self.faults += [f"{fault} (body {json.dumps(body)[:200]})" for fault in self.document.refusal_faults(
            method, path, answer, 400, "validation.invalid", re.escape(stem) + "|too big integer")]

    def walk_parameters(self):
        count = 0
        for method, pattern, operation in self.document.calls():
            known = contract.Document.parameters(operation, "query")
            right = {name: "x" for name, part in known.items() if part.get("required")}
            headers = contract.upgrade_headers(operation)
            for name, part in known.items():
                for text in wrong.texts(part, self.document.schemas):
                    count += 1
                    query = urllib.parse.urlencode({**right, name: text})
                    self.refuse(400, "validation.invalid", method, self.example(pattern) + "?" + query, says=re.escape(name), headers=headers)
                if part.get("required"):
                    self.refuse(400, "validation.invalid", method, self.example(pattern), says=re.escape(name), headers=headers)
        self.assertGreater(count, 60)

    def check_defaults(self):
        """A default of the document is the server's: said or not, the answer is of the same kind."""
        count = 0
        for method, pattern, operation in self.document.calls():
            known = contract.Document.parameters(operation, "query")
            required = {name: "." for name, part in known.items() if part.get("required")}
            for name, part in known.items():
                default = schema.Checker(self.document.schemas, True).resolve(part["schema"]).get("default")
                if method != "GET" or default is None or contract.upgrade_headers(operation):
                    continue
                count += 1
                kinds = [self.kind_of(self.example(pattern) + "?" + urllib.parse.urlencode({**required, **more}))
                         for more in ({}, {name: default})]
                if kinds[0] != kinds[1]:
                    self.faults.append(f"GET {pattern}: with {name}={default}, which is said to be the default, {kinds[1]}, without {kinds[0]}")
        self.assertGreater(count, 8)

    def kind_of(self, path):
        """(status, type of content); streams are not awaited."""
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("GET", path)
        response = connection.getresponse()
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        response.close()
        connection.close()
        return response.status, response.headers["Content-Type"]

    def example(self, pattern):
        return contract.example_path(pattern)


def random_bytes(count):
    """No two blocks are the same, which is all that the store looks for."""
    return b"".join(index.to_bytes(8, "little") + os.urandom(4088) for index in range(count // 4096))


class ErrorTest(ErrorCase):
    def test_walk_without_a_machine(self):
        for steps in (walk.SERVICE, walk.STORE):
            for step in steps:
                self.step(*step)

    def test_each_field(self):
        self.daemon.ramet("volume", "create", "nothing", "1M")
        self.walk_fields(False)
        self.assertEqual([volume["name"] for volume in self.daemon.json("volume", "ls")], ["nothing"])
        self.assertEqual(self.daemon.call("GET", "/v1/sandboxes").json, {"sandboxes": []})
        self.assertEqual(self.daemon.call("GET", "/v1/templates/builds").json, {"builds": []})
        self.assertEqual(self.daemon.call("GET", "/v1/keys").json, {"keys": []})

    def test_each_parameter(self):
        self.walk_parameters()
        self.check_defaults()

    def test_each_body(self):
        """No JSON, other JSON than an object, a name twice, bytes that are no text, and too much."""
        for method, pattern, operation in self.document.calls():
            if contract.Document.body_schema(operation) is None:
                continue
            path = contract.example_path(pattern)
            for body, says in ((b"{", "JSON"), (b"[]", "object"), (b"7", "JSON"), (b'"x"', "JSON"), (b"null", "JSON"),
                               (b'{"a":1,"a":2}', "duplicate"), (b'{"a":"\xff"}', "JSON"), (b"{} x", "JSON"), (b"[" * 5000, "JSON"),
                               (b'{"a":' + b"9" * 400 + b"}", "JSON"), (b'{"no_such":1}', "no_such")):
                self.refuse(400, "validation.invalid", method, path, body, says)

    def test_too_large_a_body(self):
        """32 MiB of JSON are the most, by length or in pieces, at once or collected by a handler."""
        for path in ("/v1/volumes", "/v1/sandboxes/nothing/exec", "/v1/sandboxes/nothing/exec/stream", "/v1/store/export"):
            self.refuse(413, "validation.too_large", "POST", path, b" " * (33 * MEGABYTE), "33554432")
        self.refuse(404, "sandbox.not_found", "POST", "/v1/sandboxes/nothing/exec",
                    json.dumps({"command": "x" * (31 * MEGABYTE)}).encode(), "nothing")

    def test_missing_things(self):
        """404 of each kind names what is not there."""
        for method, pattern, operation in self.document.calls():
            if not re.search(r"{(name|id)}", pattern) or method == "PUT" and "/volumes/" in pattern:
                continue
            expected = self.not_found_of(pattern)
            required = {name: "x" for name, part in contract.Document.parameters(operation, "query").items() if part.get("required")}
            path = contract.example_path(pattern) + ("?" + urllib.parse.urlencode(required) if required else "")
            body = wrong.body(operation, self.document) if contract.Document.body_schema(operation) else None
            self.refuse(404, expected, method, path, body, "nothing", contract.upgrade_headers(operation))

    @staticmethod
    def not_found_of(pattern):
        for start, code in (("/v1/sandboxes/{name}/exec/pty", "pty"), ("/v1/sandboxes/", "sandbox"), ("/v1/volumes/", "volume"),
                            ("/v1/snapshots/", "snapshot"), ("/v1/templates/builds/", "build"), ("/v1/templates/uploads/", "upload"),
                            ("/v1/templates/", "template"), ("/v1/imports/", "import"), ("/v1/keys/", "key")):
            if pattern.startswith(start):
                return code + ".not_found"
        raise AssertionError(f"{pattern}: what is not found there?")

    def test_paths_and_methods(self):
        self.refuse(404, "route.not_found", "GET", "/nowhere", says="/nowhere")
        self.refuse(404, "route.not_found", "GET", "/v1/sandboxes/", says="/v1/sandboxes/")
        self.refuse(404, "route.not_found", "GET", "/v1/volumes/" + "x" * 300)
        self.refuse(405, "validation.method", "PUT", "/v1/sandboxes", says="PUT.*GET|POST")
        self.refuse(405, "validation.method", "DELETE", "/v1/templates/builds", says="takes GET")
        self.refuse(501, "validation.method", "FROB", "/v1/sandboxes", says="FROB")
        self.refuse(501, "validation.unsupported", "POST", "/v1/volumes", b"{}", "gzip", {"Transfer-Encoding": "gzip"})
        self.refuse(400, "validation.invalid", "GET", "/v1/volumes/a%00b", says="zero byte")
        self.refuse(400, "validation.invalid", "GET", "/v1/volumes?all=1&all=0", says="all is given twice")
        self.refuse(400, "validation.invalid", "GET", "/v1/volumes?" + "&".join(f"a{i}=1" for i in range(40)), says="parameters")
        self.refuse(431, "validation.too_large", "GET", "/v1/volumes", headers={"X-Long": "x" * 40000}, says="head")

    def test_conflicts(self):
        """409 names what is taken or in use, and changes nothing."""
        self.daemon.ramet("volume", "create", "data", "1M")
        self.daemon.ramet("volume", "snapshot", "data", "morning")
        for method, path, body in (
                ("POST", "/v1/volumes", {"name": "data", "size_bytes": 4096}), ("POST", "/v1/volumes", {"name": "morning", "from": "data"}),
                ("POST", "/v1/volumes/data/fork", {"name": "morning"}), ("POST", "/v1/volumes/data/snapshots", {"name": "morning"}),
                ("PATCH", "/v1/volumes/data", {"name": "morning"}), ("PUT", "/v1/volumes/data/content", b"x" * 512),
                ("POST", "/v1/imports", {"name": "data", "size_bytes": 4096})):
            self.refuse(409, "volume.conflict", method, path, body, "data|morning")
        self.refuse(409, "snapshot.conflict", "PATCH", "/v1/snapshots/morning", {"name": "data"}, "data")
        self.refuse(409, "template.conflict", "POST", "/v1/templates", {"name": "morning", "volume": "data"}, "morning")
        archive = self.daemon.call("POST", "/v1/store/export", {"names": ["morning"]}).body
        self.refuse(409, "name.conflict", "POST", "/v1/store/import", archive, "morning")
        self.refuse(400, "validation.invalid", "POST", "/v1/store/import?prefix=x-", archive[:-100], "byte")
        self.refuse(400, "validation.invalid", "POST", "/v1/store/import", b"no archive", "archive")
        self.refuse(404, "source.not_found", "POST", "/v1/store/export", {"names": ["data", "nothing"]}, "nothing")
        self.refuse(404, "source.not_found", "POST", "/v1/sandboxes", {"from": "nothing"}, "nothing")
        self.refuse(404, "source.not_found", "POST", "/v1/templates", {"name": "t", "volume": "nothing"}, "nothing")
        self.refuse(404, "volume.not_found", "POST", "/v1/volumes", {"name": "v", "from": "nothing"}, "nothing")
        self.refuse(404, "volume.not_found", "GET", "/v1/volumes/data/diff?from=nothing", says="nothing")
        self.refuse(404, "volume.not_found", "GET", "/v1/volumes/morning", says="/v1/snapshots/morning")
        self.assertEqual(len(self.daemon.json("volume", "ls")), 1)

    def test_repeated_requests(self):
        """A key of a request is for that request."""
        path, key = "/v1/volumes", {"Idempotency-Key": "0b8e6f0c"}
        first = self.daemon.call("POST", path, {"name": "once", "size_bytes": 4096}, key)
        again = self.daemon.call("POST", path, {"name": "once", "size_bytes": 4096}, key)
        self.assertEqual((first.status, again.status, again.json), (201, 201, first.json))
        self.faults += self.document.answer_faults("POST", path, again)
        self.refuse(409, "idempotency.conflict", "POST", path, {"name": "twice", "size_bytes": 4096}, "0b8e6f0c|Idempotency-Key", key)
        self.refuse(400, "validation.invalid", "POST", path, {"name": "v", "size_bytes": 1}, "Idempotency-Key", {"Idempotency-Key": "x" * 256})

    def test_an_import_under_way(self):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("POST", "/v1/imports", json.dumps({"name": "disk", "size_bytes": 4096}))
        response = connection.getresponse()
        self.assertEqual(response.readline(), b"event: ready\n")
        name = json.loads(response.readline()[len("data: "):])["import"]
        self.refuse(409, "volume.conflict", "POST", "/v1/volumes", {"name": "disk", "size_bytes": 4096}, "disk")
        self.assertEqual(self.daemon.call("DELETE", "/v1/imports/" + name).status, 204)
        self.refuse(404, "import.not_found", "POST", f"/v1/imports/{name}/commit", says=name)
        connection.close()

    def test_a_full_store(self):
        self.daemon.stop()
        self.daemon.start("--quota", "280M", "--log-budget", "256M", "--reserve", "0")
        self.refuse(507, "capacity.storage", "PUT", "/v1/volumes/big/content", random_bytes(320 * MEGABYTE), "space|full|quota|room")
        self.assertEqual(self.daemon.json("volume", "ls"), [])

    def test_keys(self):
        """401, 403 and 429 by TCP."""
        self.daemon.stop()
        self.daemon.start("--listen", "0")
        made = {preset: self.daemon.call("POST", "/v1/keys", {"name": preset, "preset": preset}).json for preset in ("admin", "ci", "read")}
        bearer = {preset: {"Authorization": "Bearer " + key["key"]} for preset, key in made.items()}
        self.refuse(401, "auth.missing", "GET", "/v1/sandboxes", says="Authorization: Bearer", call=self.by_tcp)
        self.refuse(401, "auth.missing", "GET", "/v1/sandboxes", headers={"Authorization": "Basic eDp5"}, says="key", call=self.by_tcp)
        self.refuse(401, "auth.invalid", "GET", "/v1/sandboxes", headers={"X-API-Key": "e2b_" + "0" * 40}, says="not known", call=self.by_tcp)
        self.refuse(401, "auth.ambiguous", "GET", "/v1/sandboxes", headers={**bearer["ci"], "X-API-Key": made["read"]["key"]},
                    says="more than one key", call=self.by_tcp)
        self.refuse(403, "auth.forbidden", "POST", "/v1/volumes", {"name": "v", "size_bytes": 4096}, "read.*POST /v1/volumes",
                    bearer["read"], call=self.by_tcp)
        self.refuse(403, "auth.forbidden", "POST", "/v1/store/gc", {}, "ci", bearer["ci"], call=self.by_tcp)
        for method, path, body in (("POST", "/v1/volumes", {"name": "own", "size_bytes": 4096}), ("GET", "/v1/volumes", None),
                                   ("POST", "/v1/volumes/own/snapshots", {"name": "own-snap"}), ("GET", "/v1/snapshots", None)):
            answer = self.by_tcp(method, path, body, bearer["ci"])    # what a ci key made says so, as the document has it
            self.assertIn(f'"owner":"{made["ci"]["id"]}"', answer.body.decode())
            self.faults += self.document.answer_faults(method, path, answer)
        self.refuse(409, "key.conflict", "POST", "/v1/keys", {"name": "ci", "preset": "ci"}, "ci")
        self.refuse(404, "key.not_found", "DELETE", "/v1/keys/nothing", says="nothing")
        self.assertEqual(self.daemon.call("DELETE", "/v1/keys/read").status, 204)
        self.refuse(401, "auth.invalid", "GET", "/v1/sandboxes", headers=bearer["read"], says="not known", call=self.by_tcp)
        short = self.daemon.call("POST", "/v1/keys", {"name": "short", "preset": "read", "expires_in_secs": 0.001}).json
        self.until(lambda: self.daemon.refuses(short["key"]))
        self.refuse(401, "auth.expired", "GET", "/v1/sandboxes", headers={"X-API-Key": short["key"]}, says="expired", call=self.by_tcp)
        late = self.held_back("/v1/sandboxes", {"X-API-Key": "wrong"})
        self.faults += self.document.refusal_faults("GET", "/v1/sandboxes", late, 429, "rate_limit.authentication", "wrong keys")

    def test_the_limit_of_a_key(self):
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--rate-limit", "1")
        key = self.daemon.call("POST", "/v1/keys", {"name": "much", "preset": "read"}).json["key"]
        answers = [self.by_tcp("GET", "/version", None, {"X-API-Key": key}) for _ in range(1)]
        self.assertEqual(answers[0].status, 200)
        late = self.held_back("/v1/sandboxes", {"X-API-Key": key})
        self.faults += self.document.refusal_faults("GET", "/v1/sandboxes", late, 429, "rate_limit.requests", "much.*more often")

    def held_back(self, path, headers):
        """The first refusal of those who ask many at once: one after the other, on a slow host, they come as seldom as they may."""
        with concurrent.futures.ThreadPoolExecutor(ASKERS) as askers:
            for _ in range(ASKED_MAX // ASKERS):
                answers = askers.map(lambda _: self.by_tcp("GET", path, None, headers), range(ASKERS))
                if refused := [answer for answer in answers if answer.status == 429]:
                    return refused[0]
        self.fail(f"{ASKED_MAX} requests, and none was held back")

    def by_tcp(self, method, path, body=None, headers=None):
        return contract.call_url(self.daemon.url, method, path, body, headers)


if __name__ == "__main__":
    rig.need_root()
    rig.main()
