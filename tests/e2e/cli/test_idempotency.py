# SPDX-License-Identifier: Apache-2.0
"""A01: a create whose answer was lost. Volumes, snapshots and keys; no machines (test_owners.py has them)."""
import unittest.mock

import rig
from repeats import Repeats


def without_secret(answer):
    return {name: value for name, value in answer.items() if name not in ("key", "notice")}


class Idempotency(Repeats):
    CALLS = {"volume": ("/v1/volumes", lambda name: {"name": name, "size_bytes": 1 << 20}, "/v1/volumes/"),
             "fork": ("/v1/volumes/base/fork", lambda name: {"name": name}, "/v1/volumes/"),
             "snapshot": ("/v1/volumes/base/snapshots", lambda name: {"name": name}, "/v1/snapshots/"),
             "unnamed snapshot": ("/v1/volumes/base/snapshots", lambda name: {}, "/v1/snapshots/"),
             "key": ("/v1/keys", lambda name: {"name": name, "preset": "read"}, "/v1/keys/")}

    def setUp(self):
        super().setUp()
        self.daemon.ramet("volume", "create", "base", "1M")

    def things(self):
        return sorted(thing["id"] for path, member in (("/v1/volumes", "volumes"), ("/v1/snapshots", "snapshots"), ("/v1/keys", "keys"))
                      for thing in self.daemon.call("GET", path).json[member])

    def test_a01_answers_that_are_lost(self):
        for i, (kind, (path, body, where)) in enumerate(self.CALLS.items()):
            with self.subTest(kind=kind):
                name, key, before = f"thing-{i}", f"key {i}", self.things()
                self.assertIn(b" 201 ", self.lose(path, body(name), key))
                made = sorted(set(self.things()) - set(before))
                self.assertEqual(len(made), 1)
                again = self.post(path, body(name), key)
                self.assertEqual((again.status, again.headers["Idempotency-Replayed"]), (201, "true"), again.body)
                self.assertEqual(again.json["id"], made[0])
                # Other contents with the same key are a mistake.
                other = self.post(path, {**body(name), "name": "another"}, key)
                self.assertEqual((other.status, other.code), (409, "idempotency.conflict"))
                self.assertFalse(other.json["error"]["details"]["retryable"])
                self.assertEqual(self.post("/v1/volumes", {"name": "another", "size_bytes": 4096}, key).code
                                 if path != "/v1/volumes" else "idempotency.conflict", "idempotency.conflict")
                # It is the first answer, also from the next daemon, and after the thing is gone.
                for kill in False, True:
                    self.restart(kill)
                    self.assertEqual(self.post(path, body(name), key).json, again.json)
                self.assertEqual(self.daemon.call("DELETE", where + made[0]).status, 204)
                gone = self.post(path, body(name), key)
                self.assertEqual((gone.status, gone.json), (201, again.json))
                self.assertEqual(self.things(), before, "and nothing is made again")

    def test_a01_ten_at_once(self):
        for i, (kind, (path, body, where)) in enumerate(self.CALLS.items()):
            with self.subTest(kind=kind):
                before = self.things()
                answers = self.at_once(10, path, body(f"thing-{i}"), f"key {i}")
                self.assertEqual({answer.status for answer in answers}, {201}, [answer.body for answer in answers])
                self.assertEqual(len({answer.json["id"] for answer in answers}), 1)
                self.assertEqual([answer.headers["Idempotency-Replayed"] for answer in answers].count(None), 1)
                self.assertEqual(len(self.things()), len(before) + 1)

    def test_a01_the_daemon_dies(self):
        for i, (kind, (path, body, where)) in enumerate(self.CALLS.items()):
            for step in "request.recorded", "request.made":
                with self.subTest(kind=kind, step=step):
                    name, key, before = f"thing-{i}-{step[8:]}", f"key {i} {step}", self.things()
                    self.die(path, body(name), key, step)
                    there = sorted(set(self.things()) - set(before))
                    self.assertEqual(len(there), int(step == "request.made"))
                    again = self.post(path, body(name), key)
                    self.assertEqual(again.status, 201, again.body)
                    self.assertEqual(again.headers["Idempotency-Replayed"], "true" if there else None)
                    self.assertEqual(sorted(set(self.things()) - set(before)), [again.json["id"]])
                    shown = self.daemon.call("GET", where + again.json["id"]).json
                    self.assertEqual(without_secret(again.json), shown)

    def test_what_failed_is_not_kept(self):
        body = {"name": "later", "from": "source"}
        self.assertEqual(self.post("/v1/volumes", body, "one").status, 404)
        self.daemon.ramet("volume", "create", "source", "1M")
        answer = self.post("/v1/volumes", body, "one")
        self.assertEqual((answer.status, answer.headers["Idempotency-Replayed"]), (201, None))
        self.assertEqual(self.post("/v1/volumes", {"name": "later", "size_bytes": 4096}, "two").code, "volume.conflict")

    def test_secrets_are_shown_once(self):
        body = {"name": "secret", "preset": "read"}
        first, again = self.post("/v1/keys", body, "one"), self.post("/v1/keys", body, "one")
        self.assertIn("key", first.json)
        self.assertNotIn("key", again.json)
        self.assertIn("make another", again.json["notice"])
        self.assertEqual(without_secret(first.json), without_secret(again.json))
        self.daemon.stop()
        found = rig.subprocess.run(["grep", "-rlaF", first.json["key"][20:], self.daemon.store], capture_output=True, text=True)
        self.assertEqual(found.stdout, "")

    def test_whose_key_it_is(self):
        """Each caller has a name space of its own; what is replayed is what that caller made."""
        [one, other] = [self.daemon.make_key(name, "ci")["key"] for name in ("one", "other")]
        body = {"name": "mine", "size_bytes": 4096}
        made = self.post("/v1/volumes", body, "k", one)
        self.assertEqual(made.status, 201)
        self.assertEqual(self.post("/v1/volumes", body, "k", other).code, "volume.conflict")
        self.assertEqual(self.post("/v1/volumes", body, "k").code, "volume.conflict")
        local = self.daemon.call("POST", "/v1/volumes", {"name": "local", "size_bytes": 4096}, {"Idempotency-Key": "k"})
        self.assertEqual(local.status, 201)
        # What it was about may be gone; the answer stays its own, and another one's is none.
        self.assertEqual(self.post("/v1/volumes/mine/fork", {"name": "copy"}, "f", one).status, 201)
        self.daemon.ramet("volume", "rm", "mine")
        self.assertEqual(self.post("/v1/volumes/mine/fork", {"name": "copy"}, "f", one).headers["Idempotency-Replayed"], "true")
        self.assertEqual(self.post("/v1/volumes/mine/fork", {"name": "copy"}, "f", other).status, 404)
        self.assertEqual(self.post("/v1/volumes/mine/fork", {"name": "copy"}, "g", one).status, 404)
        self.daemon.ramet("volume", "create", "mine", "4K")
        # Known, and still to be judged: a key that was used is no way around the check.
        self.assertEqual(self.post("/v1/volumes/mine/fork", {"name": "theft"}, "f", one).code, "idempotency.conflict")
        self.daemon.call("DELETE", "/v1/keys/one")
        self.assertEqual(self.post("/v1/volumes", body, "k", one).status, 401)

    def test_headers(self):
        for bad in "", "x" * 256, "tab\there", "ü":
            answer = self.daemon.call("POST", "/v1/volumes", {"name": "v", "size_bytes": 4096}, {"Idempotency-Key": bad.encode("utf-8")})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), bad)
        with unittest.mock.patch.object(rig.http.client.HTTPConnection, "request", request_twice):
            answer = self.daemon.call("POST", "/v1/volumes", {"name": "v", "size_bytes": 4096})
        self.assertEqual(answer.code, "validation.invalid", answer.body)
        # It says nothing on calls that make nothing.
        for _ in range(2):
            answer = self.daemon.call("GET", "/v1/volumes", headers={"Idempotency-Key": "k"})
            self.assertEqual((answer.status, answer.headers["Idempotency-Replayed"]), (200, None))


def request_twice(connection, method, path, body, headers):
    connection.putrequest(method, path)
    connection.putheader("Content-Length", str(len(body)))
    for value in "one", "two":
        connection.putheader("Idempotency-Key", value)
    connection.endheaders(body.encode())


if __name__ == "__main__":
    rig.need_root()
    rig.main()
