# SPDX-License-Identifier: Apache-2.0
"""Wrong input, by the command line and by HTTP: each gets a sentence, and the daemon goes on. No machines."""
import json
import re
import socket

import rig


class Api(rig.Case):
    def check_alive(self):
        self.assertEqual(self.daemon.call("GET", "/healthz").json, {"status": "ok"})

    def refuse(self, status, code, method, path, body=None, says=None, headers=None):
        with self.subTest(method=method, path=path, body=body):
            answer = self.daemon.call(method, path, body, headers)
            self.assertEqual((answer.status, answer.code), (status, code), answer.body)
            error = answer.json["error"]
            self.assertEqual(error["request_id"], answer.headers["X-Request-Id"])
            self.assertIsInstance(error["details"]["retryable"], bool)
            if says is not None:
                self.assertIn(says, error["message"])
        self.check_alive()

    def test_routes(self):
        self.refuse(404, "route.not_found", "GET", "/nowhere")
        self.refuse(404, "route.not_found", "GET", "/v1/sandboxes/")
        self.refuse(404, "route.not_found", "GET", "/v1/sandboxes/a/b/c")
        self.refuse(405, "validation.method", "DELETE", "/v1/store", says="GET")
        self.assertEqual(self.daemon.call("PUT", "/v1/volumes").headers["Allow"], "GET, POST")
        self.refuse(404, "sandbox.not_found", "GET", "/v1/sandboxes/none", says="none")
        self.refuse(404, "sandbox.not_found", "POST", "/v1/sandboxes/none/exec", {"command": "true"})
        self.refuse(404, "sandbox.not_found", "POST", "/v1/sandboxes/none/exec/stream", {"command": "true"})
        self.refuse(404, "sandbox.not_found", "PUT", "/v1/sandboxes/none/files/content?path=x", b"x" * 3000000)
        self.refuse(404, "sandbox.not_found", "DELETE", "/v1/sandboxes/none")
        self.refuse(404, "snapshot.not_found", "GET", "/v1/snapshots/none")
        self.refuse(404, "volume.not_found", "GET", "/v1/volumes/none")
        self.refuse(404, "volume.not_found", "GET", "/v1/volumes/none/content")
        self.refuse(404, "volume.not_found", "POST", "/v1/exports", {"name": "none"})
        self.refuse(404, "import.not_found", "POST", "/v1/imports/imp_0/commit")

    def test_what_other_services_have_beside_sandboxes(self):
        """404, in the words of PandaStack's clients, which say what there is instead."""
        for thing, says in (("databases", "run one in a sandbox"), ("apps", "give it a URL"), ("functions", "run the code in a sandbox"),
                            ("schedules", "from cron"), ("billing", "your own host"), ("pricing", "your own host"), ("repos", "clone one"),
                            ("preview-repos", "clone one")):
            for method, path in (("GET", f"/v1/{thing}"), ("POST", f"/v1/{thing}/x/y"), ("GET", f"/pandastack/v1/{thing}"), ("DELETE", f"/pandastack/v1/{thing}/x")):
                with self.subTest(method=method, path=path):
                    answer = self.daemon.call(method, path)
                    self.assertEqual((answer.status, answer.json["code"]), (404, "route.not_found"), answer.body)
                    self.assertRegex(answer.json["error"], f"^Ramet has no .*{says}")

    def test_time_outs_of_e2b_that_cannot_be(self):
        """They are refused before the machine is looked for, and so before anything is done with it."""
        for path in "/sandboxes/none/connect", "/v2/sandboxes/none/connect", "/sandboxes/none/resume", "/sandboxes/none/fork":
            for timeout in (-1, 1e11, "300", True):
                with self.subTest(path=path, timeout=timeout):
                    answer = self.daemon.call("POST", path, {"timeout": timeout})
                    self.assertEqual((answer.status, answer.json["code"]), (400, 400), answer.body)
                    self.assertIn("timeout", answer.json["message"])
            self.assertEqual(self.daemon.call("POST", path, {"timeout": 300}).status, 404)

    def test_bodies(self):
        for body in ("{", "[]", "7", '"text"', '{"a":1,"a":2}', "\xff\xfe", '{"name":"x"} tail'):
            self.refuse(400, "validation.invalid", "POST", "/v1/volumes", body.encode("latin-1"))
        self.refuse(400, "validation.invalid", "POST", "/v1/volumes", {"name": "v", "size_bytes": 1, "colour": 1}, says="colour")
        self.refuse(400, "validation.invalid", "POST", "/v1/sandboxes", {"nmae": "v"}, says="nmae")
        self.refuse(400, "validation.invalid", "GET", "/v1/sandboxes?colour=1", says="colour")
        self.refuse(413, "validation.too_large", "POST", "/v1/volumes", b" " * (33 << 20))
        for size in (0, -1, 1.5, "1", 2**57, 1e30, True, [], {}):
            self.refuse(400, "validation.invalid", "POST", "/v1/volumes", {"name": "v", "size_bytes": size}, says="size_bytes")
        for name in (1, True, [], "a\0b"):
            self.refuse(400, "validation.invalid", "POST", "/v1/volumes", {"name": name, "size_bytes": 1}, says="name")
        self.refuse(400, "validation.invalid", "POST", "/v1/volumes", {"size_bytes": 1}, says="name")
        self.refuse(400, "validation.invalid", "POST", "/v1/volumes", {"name": "v"}, says="size_bytes")
        self.assertEqual(self.daemon.json("volume", "ls", "--all"), [])

    def test_sandbox_fields(self):
        self.daemon.ramet("volume", "create", "disk", "1M")
        create = ("POST", "/v1/sandboxes")
        for field, values in {"cpus": (0, 65, -1, "2", 1.5), "memory_mb": (0, 63, 1 << 21, "x"), "disk_gb": (0, -1, "x"),
                              "size": ("huge", 1), "network": ("open", "user", 1, {}, {"allow": "x"}, {"allow": ["::1"]}, {"allow": ["10.1.2.3/24"]}), "labels": ([], {"a": 1}, "x"),
                              "env": ({"": "x"}, {"a=b": "x"}, {"a": None})}.items():
            for value in values:
                self.refuse(400, "validation.invalid", *create, {"name": "b", "from": "disk", field: value}, says=field)
        self.refuse(404, "source.not_found", *create, {"name": "b", "from": "none"}, says="none")
        self.refuse(400, "validation.invalid", *create, {"name": "ls", "from": "disk"}, says="command line")
        for name in ("A", "", "x" * 41, "-a", "a_b"):
            self.refuse(400, "validation.invalid", *create, {"name": name, "from": "disk"})
        self.assertEqual(self.daemon.call("GET", "/v1/sandboxes").json, {"sandboxes": []})
        self.assertEqual(self.daemon.json("store", "stat")["docs"], 0)

    def test_raw_sockets(self):
        for junk in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + bytes(200), b"A" * 100000,
                     b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST /v1/volumes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"POST /v1/volumes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nshort"):
            with self.subTest(junk[:40]):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(rig.HANG_SECS)
                    raw.connect(self.daemon.run + "/api.sock")
                    try:
                        raw.sendall(junk)
                        raw.shutdown(socket.SHUT_WR)
                        while raw.recv(65536):
                            pass
                    except OSError:
                        pass
                self.check_alive()

    def test_paths(self):
        self.refuse(400, "validation.invalid", "GET", "/v1/sandboxes?state=%00x")
        self.refuse(404, "route.not_found", "GET", "/v1/volumes/" + "x" * 300)
        answer = self.daemon.call("GET", "/v1/volumes/%2e%2e")
        self.assertEqual(answer.status, 404)

    def test_content_by_http(self):
        data = bytes(range(256)) * 5000
        answer = self.daemon.call("PUT", "/v1/volumes/v/content", data)
        self.assertEqual((answer.status, answer.json["size_bytes"], answer.json["padding_bytes"]), (201, len(data), 0))
        self.assertEqual(self.daemon.call("GET", "/v1/volumes/v/content").body, data)
        head = self.daemon.call("HEAD", "/v1/volumes/v/content")
        self.assertEqual((head.status, head.headers["Content-Length"], head.body), (200, str(len(data)), b""))
        self.refuse(409, "volume.conflict", "PUT", "/v1/volumes/v/content", data)
        self.refuse(400, "validation.invalid", "PUT", "/v1/volumes/w/content?size_bytes=5", data)
        self.refuse(400, "validation.invalid", "PUT", "/v1/volumes/w/content?size_bytes=x", data)
        self.refuse(400, "validation.invalid", "PUT", "/v1/volumes/w/content?sise=5", data, says="sise")
        # A client that breaks off leaves nothing.
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(self.daemon.run + "/api.sock")
            raw.sendall(b"PUT /v1/volumes/w/content HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + data[:300000])
            self.until(lambda: self.daemon.json("store", "stat")["volumes"] == 2)    # it has begun
        self.until(lambda: self.daemon.json("store", "stat")["volumes"] == 1)
        self.daemon.ramet("volume", "create", "w", "1M")


class CommandLine(rig.Case):
    def test_called_wrongly(self):
        for words in ([], ["frob"], ["ls", "--frob"], ["ls", "extra"], ["create", "a", "b"], ["exec", "a"], ["cp", "a", "b"],
                      ["volume"], ["volume", "frob"], ["volume", "create", "a"],
                      ["volume", "create", "a", "12Q"], ["volume", "import", "a"], ["volume", "export", "a", "f", "--format", "vmdk"],
                      ["create", "x", "--label", "novalue"], ["create", "x", "--cpus", "many"], ["create", "--from"],
                      ["fork"], ["stop"], ["snapshots", "frob"], ["store", "frob"], ["help", "frob"],
                      ["exec", "x", "--timeout", "soon", "--", "true"], ["--frob"], ["volume", "import", "a", "-", "--format", "qcow2"]):
            with self.subTest(words):
                self.daemon.ramet(*words, status=2)
                self.assertNotEqual(self.daemon.stderr, "" if words else None)

    def test_failures_say_what_to_do(self):
        for words, says in ((["show", "none"], "ramet ls"), (["exec", "none", "true"], "ramet ls"), (["rm", "none"], "none"),
                            (["snapshot", "none"], "none"), (["fork", "none"], "none"), (["snapshots", "rm", "none"], "none"),
                            (["volume", "export", "none", self.path("f")], "ramet volume ls"), (["create", "--from", "none"], "none"),
                            (["cp", "none:x", self.path("f")], "none"), (["volume", "import", "v", self.path("nofile")], "No such file")):
            with self.subTest(words):
                self.daemon.ramet(*words, status=1)
                self.assertIn(says, self.daemon.stderr)
        self.daemon.ramet("rm", "--force", "none")
        error = json.loads(self.daemon.ramet("--json", "show", "none", status=1))["error"]
        self.assertEqual(error["code"], "sandbox.not_found")

    def test_no_kernel_is_said_and_leaves_nothing(self):
        self.daemon.ramet("volume", "create", "disk", "1M")
        before = self.daemon.json("store", "stat")
        self.daemon.ramet("create", "box", "--from", "disk", status=1)
        self.assertIn("vmlinux", self.daemon.stderr)
        after = self.daemon.json("store", "stat")
        self.assertEqual((after["volumes"], after["docs"], self.daemon.folders()), (before["volumes"], before["docs"], []))
        self.assertEqual(self.daemon.json("ls"), [])

    def test_help_for_everything(self):
        text = self.daemon.ramet("help")
        verbs = [line.split()[0] for line in text.splitlines() if re.match("  [a-z]", line)]
        self.assertIn("snapshot", verbs)
        for verb in verbs:
            self.assertIn("usage: ramet " + verb, self.daemon.ramet("help", verb))
            self.assertEqual(self.daemon.ramet(verb, "--help").splitlines()[0], self.daemon.ramet("help", verb).splitlines()[0])
        self.assertIn("ramet", self.daemon.ramet("version"))
        self.assertEqual(self.daemon.json("version")["daemon"], self.daemon.json("version")["version"])

    def test_snapshot_words_do_not_collide(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        self.daemon.ramet("volume", "snapshot", "v", "s")
        self.assertEqual(self.daemon.json("snapshot", "ls"), self.daemon.json("snapshots"))
        self.daemon.ramet("snapshot", "rm", "s")
        self.assertEqual(self.daemon.json("snapshots"), [])


if __name__ == "__main__":
    rig.need_root()
    rig.main()
