# SPDX-License-Identifier: Apache-2.0
"""Two ci keys with machines of their own, and what else they may see: nothing. Then A01 for what makes machines.
One machine boots; all others go on from it or are its forks."""
import os

import rig
from repeats import Repeats


class Owners(Repeats):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.good("POST", "/v1/sandboxes", {"name": "seed"}, status=201)
        build = self.good("POST", "/v1/templates", {"name": "base", "sandbox": "seed"}, status=202)
        self.until(lambda: self.good("GET", "/v1/templates/builds/" + build["id"])["state"] == "ready")
        self.good("DELETE", "/v1/sandboxes/seed", status=204)

    def good(self, method, path, body=None, key=None, status=200):
        answer = self.daemon.call_tcp(method, path, body, key or self.secret)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json if answer.body else None

    def names(self, key, what="sandboxes"):
        return sorted(thing["name"] for thing in self.good("GET", "/v1/" + what, key=key)[what])

    def test_everything_of_two_keys(self):
        keys = {name: self.daemon.make_key(name, "ci") for name in ("one", "two")}
        one, two = keys["one"]["key"], keys["two"]["key"]
        read = self.daemon.make_key("reader", "read")["key"]
        self.assertEqual(self.names(one, "templates"), ["base"], "a template of the owner is everybody's to start from")
        for name, key in ("box-one", one), ("box-two", two):
            box = self.good("POST", "/v1/sandboxes", {"name": name, "from": "base", "env": {"TOKEN": "hush-" + name}}, key, 201)
            self.assertEqual(box["owner"], keys[name[4:]]["id"])
        self.good("POST", "/v1/sandboxes", {"name": "box-all", "from": "base"}, status=201)
        # What is taken when nothing is named is everybody's to start from; the volume itself is not shown.
        self.good("POST", "/v1/sandboxes", {"name": "box-default"}, one, 201)
        self.good("DELETE", "/v1/sandboxes/box-default", key=one, status=204)
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/volumes/agent-base", key=one).status, 404)
        ids = {box["name"]: box["id"] for box in self.good("GET", "/v1/sandboxes")["sandboxes"]}
        self.assertEqual(sorted(ids), ["box-all", "box-one", "box-two"])
        self.assertEqual((self.names(one), self.names(two), self.names(read)), (["box-one"], ["box-two"], sorted(ids)))

        # Its own: commands, files, snapshots, forks; what comes of them is its own too, whoever asks.
        self.assertEqual(self.good("POST", "/v1/sandboxes/box-one/exec", {"command": "echo $TOKEN"}, one)["stdout"], "hush-box-one\n")
        self.assertEqual(self.daemon.call_tcp("PUT", "/v1/sandboxes/box-one/files/content?path=f", b"bytes", one).status, 204)
        self.good("POST", "/v1/sandboxes/box-one/snapshots", {"name": "snap-one"}, one, 201)
        fork = self.good("POST", "/v1/sandboxes/box-one/fork", {"names": ["child-one"], "snapshot": "tree-one"}, status=201)
        self.assertEqual(fork["children"][0]["owner"], keys["one"]["id"], "the owner's fork of it belongs to it")
        self.assertEqual(self.names(one), ["box-one", "child-one"])
        self.assertEqual(self.names(one, "snapshots"), ["base", "snap-one", "tree-one"])
        self.assertEqual(self.names(two, "snapshots"), ["base"])
        job = self.good("POST", "/v1/sandboxes/box-one/jobs", {"command": "sleep 1000", "name": "server"}, one, 201)

        # Another one's does not exist, by every call that has a place for its name.
        from test_access import routes
        for wanted in "box-one", ids["box-one"], "box-all":
            for route in routes():
                if route.rule != "sandbox":
                    continue
                path = route.pattern.replace("{name}", wanted).replace("{id}", str(job["id"])).replace("{port}", "80")
                with self.subTest(route=str(route), wanted=wanted):
                    body = None if route.method == "GET" else {}
                    answer = self.daemon.call_tcp(route.method, path + "?path=f", body, two)
                    self.assertEqual((answer.status, answer.code), (404, "sandbox.not_found"), answer.body)
        for name in "box-one", "box-all":
            for path in f"/v1/volumes/{name}/disk", f"/v1/volumes/{name}/disk/content", f"/v1/volumes/{ids[name]}/disk/map":
                self.assertEqual(self.daemon.call_tcp("GET", path, key=two).status, 404, path)
        for name in "snap-one", "tree-one", "snap-one/memory", "box-one/disk":
            for body in {"from": name}, {"from": "base", "disks": [{"volume": name}]}:
                answer = self.daemon.call_tcp("POST", "/v1/sandboxes", body, two)
                self.assertIn((answer.status, answer.code), ((404, "source.not_found"), (400, "validation.invalid")), answer.body)
            answer = self.daemon.call_tcp("POST", "/v1/sandboxes/box-two/restore", {"snapshot": name}, two)
            self.assertEqual(answer.status, 404, answer.body)
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/volumes/base/content", key=two).status, 404, "to start from, not to copy")
        self.assertEqual(self.daemon.call_tcp("DELETE", "/v1/templates/base", key=two).status, 404)
        self.assertEqual(self.daemon.call_tcp("POST", "/v1/sandboxes", {"name": "box-one", "from": "base"}, two).status, 409)
        self.assertEqual(self.daemon.call_tcp("PATCH", "/v1/sandboxes/box-two", {"name": "box-one"}, two).status, 409)
        self.assertEqual(self.names(two), ["box-two"])

        # Events: its own alone, also of what is gone.
        self.good("DELETE", "/v1/sandboxes/child-one", key=one, status=204)
        seen = {key: {event["sandbox"] for event in self.good("GET", "/v1/events?follow=0", key=key)["events"] if "sandbox" in event}
                for key in (one, two)}
        self.assertEqual(seen, {one: {"box-one", "box-default", "child-one"}, two: {"box-two"}})

        # Templates of its own, and no others in their place.
        build = self.good("POST", "/v1/templates", {"name": "base-one", "sandbox": "box-one"}, one, 202)
        self.until(lambda: self.good("GET", "/v1/templates/builds/" + build["id"], key=one)["state"] == "ready")
        self.assertEqual((self.names(one, "templates"), self.names(two, "templates")), (["base", "base-one"], ["base"]))
        self.assertEqual(self.good("GET", "/v1/templates/base-one")["owner"], keys["one"]["id"])
        self.assertEqual([found["id"] for found in self.good("GET", "/v1/templates/builds", key=one)["builds"]], [build["id"]])
        self.assertEqual(self.good("GET", "/v1/templates/builds", key=two)["builds"], [])
        for status, key, method, path, body in (
                (404, two, "GET", "/v1/templates/base-one", None), (404, two, "GET", "/v1/templates/builds/" + build["id"], None),
                (404, two, "DELETE", "/v1/templates/builds/" + build["id"], None), (404, two, "DELETE", "/v1/templates/base-one", None),
                (404, two, "POST", "/v1/templates", {"name": "theft", "sandbox": "box-one"}),
                (404, two, "POST", "/v1/templates", {"name": "theft", "volume": "agent-base"}),
                (403, two, "POST", "/v1/templates", {"name": "code-interpreter"}),
                (403, two, "POST", "/v1/templates", {"name": "theft", "packages": ["sl"]}),
                (409, two, "POST", "/v1/templates", {"name": "base", "sandbox": "box-two", "replace": True}),
                (409, two, "POST", "/v1/templates", {"name": "base-one", "sandbox": "box-two", "replace": True})):
            self.assertEqual(self.daemon.call_tcp(method, path, body, key).status, status, (path, body))
        self.good("DELETE", "/v1/templates/base-one", key=one, status=204)

        # A read key sees what there is, runs nothing, and gets no contents and no values of env.
        self.assertEqual(self.names(read, "snapshots"), ["base", "snap-one", "tree-one"])
        self.good("GET", "/v1/sandboxes/box-one/files?path=.", key=read)
        for method, path, body in (("GET", "/v1/sandboxes/box-one/files/content?path=f", None),
                                   ("POST", "/v1/sandboxes/box-one/exec", {"command": "true"}),
                                   ("POST", "/v1/sandboxes/box-one/fork", {}), ("GET", "/v1/volumes/box-one/disk/content", None),
                                   ("GET", "/v1/sandboxes/box-one/exec/pty", None), ("GET", "/v1/sandboxes/box-one/ports/80", None)):
            answer = self.daemon.call_tcp(method, path, body, read)
            self.assertEqual((answer.status, answer.code), (403, "auth.forbidden"), path)
        self.good("POST", "/v1/templates", {"name": "with-env", "sandbox": "box-all", "env": {"SECRET": "hush-env"}}, status=202)
        self.until(lambda: self.daemon.call("GET", "/v1/templates/with-env").status == 200)
        self.assertEqual(self.good("GET", "/v1/templates/with-env")["defaults"]["env"], {"SECRET": "hush-env"})
        self.assertEqual(self.good("GET", "/v1/templates/with-env", key=read)["defaults"]["env"], {"SECRET": None})
        for what in "sandboxes", "snapshots", "templates", "volumes":
            self.assertNotIn("hush", str(self.good("GET", "/v1/" + what, key=read)))

        # Everything is as it was after the daemon died; a tunnel ends with its key.
        self.restart(kill=True)
        self.assertEqual((self.names(one), self.names(two)), (["box-one"], ["box-two"]))
        self.assertEqual(self.good("GET", "/v1/sandboxes/box-one", key=one)["owner"], keys["one"]["id"])
        self.tunnel_ends(one)

    def tunnel_ends(self, key):
        """Of a connection into the guest and of a terminal: revoked under them, both end."""
        address = rig.urllib.parse.urlsplit(self.daemon.url)
        self.good("POST", "/v1/sandboxes/box-one/jobs", {"command": "python3 -m http.server 8000 || busybox httpd -f -p 8000 || "
                                                         "while true; do nc -l -p 8000; done"}, key, 201)
        heads = (b"GET /v1/sandboxes/box-one/exec/pty HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                 b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
                 b"GET /v1/sandboxes/box-one/ports/8000 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n")

        def open_one(head):
            connection = rig.socket.create_connection((address.hostname, address.port), timeout=rig.HANG_SECS)
            connection.sendall(head + b"Host: x\r\nAuthorization: Bearer " + key.encode() + b"\r\n\r\n")
            if b" 101 " in connection.recv(4096):
                return connection
            connection.close()
        connections = [self.until(lambda head=head: open_one(head)) for head in heads]
        ended = []

        def command():
            try:
                ended.append(self.daemon.call_tcp("POST", "/v1/sandboxes/box-one/exec", {"command": "exec sleep 4711"}, key))
            except (rig.http.client.HTTPException, OSError) as error:
                ended.append(error)
        thread = rig.threading.Thread(target=command)
        thread.start()
        self.until(lambda: self.runs("sleep 4711"))
        self.assertEqual(self.daemon.call("DELETE", "/v1/keys/one").status, 204)
        for connection in connections:
            with connection:
                try:
                    while connection.recv(4096):
                        pass
                except ConnectionError:
                    pass
        thread.join(rig.HANG_SECS)
        self.assertIsInstance(ended[0], Exception, "no answer for a key that is gone")
        self.until(lambda: not self.runs("sleep 4711"))    # a client that is gone ends its command
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/sandboxes", key=key).status, 401)

    def runs(self, command):
        line = f"for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p; echo; done 2> /dev/null | grep -cx '{command} ' || true"
        return int(self.daemon.ramet("exec", "box-one", line)) > 0

    def boxes(self):
        return sorted(box["id"] for box in self.daemon.json("ls"))

    def test_a01_sandboxes_forks_snapshots(self):
        create = {"name": "box", "from": "base"}
        self.assertIn(b" 201 ", self.lose("/v1/sandboxes", create, "create"))
        [made] = self.boxes()
        self.assertEqual({answer.json["id"] for answer in self.at_once(10, "/v1/sandboxes", create, "create")}, {made})
        self.assertEqual(self.post("/v1/sandboxes", {**create, "ttl_secs": 9}, "create").code, "idempotency.conflict")
        # Each dies between what it made and its answer; a fork before that too.
        for path, body, key, step, more in (("/v1/sandboxes", {"from": "base"}, "second", "create.running", 1),
                                            ("/v1/sandboxes", {"from": "base"}, "third", "create.recorded", 1),
                                            ("/v1/sandboxes/box/fork", {"count": 2}, "fork", "fork.running", 2),
                                            ("/v1/sandboxes/box/fork", {"count": 2}, "fork again", "fork.captured", 2)):
            with self.subTest(step=step):
                before = self.boxes()
                self.die(path, body, key, step)
                answer = self.post(path, body, key)
                self.assertEqual(answer.status, 201, answer.body)
                new = [answer.json["id"]] if more == 1 else [child["id"] for child in answer.json["children"]]
                self.assertEqual(self.boxes(), sorted(before + new))
                self.assertEqual(len(new), more)
                self.assertEqual(self.post(path, body, key).json, answer.json)
                for box in new:
                    self.assertEqual(self.good("POST", f"/v1/sandboxes/{box}/exec", {"command": "echo here"})["stdout"], "here\n")
                    self.good("DELETE", "/v1/sandboxes/" + box, status=204)
                self.assertEqual(self.post(path, body, key).json, answer.json, "also when it is gone")
                self.assertEqual(self.boxes(), before)
        self.die("/v1/sandboxes/box/snapshots", {}, "snapshot", "snapshot.taken")
        answer = self.post("/v1/sandboxes/box/snapshots", {}, "snapshot")
        self.assertEqual((answer.status, answer.headers["Idempotency-Replayed"]), (201, "true"))
        self.assertEqual(sorted(snapshot["id"] for snapshot in self.good("GET", "/v1/snapshots")["snapshots"] if "template" not in snapshot),
                         [answer.json["id"]])
        # What lives in a guest is asked for there, by the request's mark; what was not asked for yet is made.
        for path, body, count in (("/v1/sandboxes/box/jobs", {"command": "sleep 1000"}, "jobs"),
                                  ("/v1/sandboxes/box/contexts", {"language": "bash"}, "contexts"),
                                  ("/v1/sandboxes/box/urls", {"host_port": 80}, "urls")):
            for step in "request.recorded", "request.made":
                with self.subTest(path=path, step=step):
                    before = len(self.good("GET", path)[count])
                    self.die(path, body, path + step, step)
                    answer = self.post(path, body, path + step)
                    self.assertEqual((answer.status, answer.headers["Idempotency-Replayed"]), (201, "true" if step == "request.made" else None),
                                     answer.body)
                    [there] = [thing for thing in self.good("GET", path)[count] if thing["id"] == answer.json["id"]]
                    self.assertEqual(len(self.good("GET", path)[count]), before + 1)
                    if count == "urls":
                        self.assertEqual("token" in answer.json, step == "request.recorded")
                        self.assertEqual(answer.json["host_port"], there["host_port"])
                    again = self.post(path, body, path + step)
                    self.assertEqual((again.status, again.headers["Idempotency-Replayed"], again.json["id"]), (201, "true", answer.json["id"]))
        # A machine that does not run cannot be asked; nobody pretends, and nothing is made twice.
        self.die("/v1/sandboxes/box/jobs", {"command": "sleep 1001"}, "stopped", "request.made")
        self.good("POST", "/v1/sandboxes/box/stop", {})
        answer = self.post("/v1/sandboxes/box/jobs", {"command": "sleep 1001"}, "stopped")
        self.assertEqual((answer.status, answer.code), (409, "idempotency.unknown"))
        self.good("POST", "/v1/sandboxes/box/start", {})
        answer = self.post("/v1/sandboxes/box/jobs", {"command": "sleep 1001"}, "stopped")
        self.assertEqual((answer.status, answer.json["command"]), (201, "sleep 1001"))
        # One that was restored to before it has forgotten: then only a person can tell.
        self.good("POST", "/v1/sandboxes/box/snapshots", {"name": "before"}, status=201)
        self.die("/v1/sandboxes/box/jobs", {"command": "sleep 1002"}, "restored", "request.made")
        self.good("POST", "/v1/sandboxes/box/restore", {"snapshot": "before"})
        answer = self.post("/v1/sandboxes/box/jobs", {"command": "sleep 1002"}, "restored")
        self.assertEqual((answer.status, answer.code), (409, "idempotency.unknown"))
        # In the words that it was asked in.
        self.die("/pandastack/v1/sandboxes", {"template": "base"}, "words", "create.running")
        answer = self.post("/pandastack/v1/sandboxes", {"template": "base"}, "words")
        self.assertEqual((answer.status, answer.headers["Idempotency-Replayed"], answer.json["status"], answer.json["template"]),
                         (201, "true", "running", "base"))
        self.good("DELETE", "/v1/sandboxes/" + answer.json["id"], status=204)
        self.die("/v1/sandboxes/box/preview-token", {"port": 8000}, "preview", "request.made")
        answer = self.post("/v1/sandboxes/box/preview-token", {"port": 8000}, "preview")
        self.assertEqual((answer.status, answer.json["port"], answer.json["host_port"], "token" in answer.json), (201, 8000, 8000, False), answer.body)
        started = self.post("/v1/sandboxes/box/jobs", {"command": "sleep 1000", "name": "twice"}, "job two")
        self.assertEqual(self.post("/v1/sandboxes/box/jobs", {"command": "sleep 1000", "name": "twice"}, "job two").json, started.json)


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
