# SPDX-License-Identifier: Apache-2.0
"""Answers of a machine against the API's document, on one machine: a walk through all calls, every wrong field and parameter,
and the errors that need a machine. The field cases of results (X01, X13 and others over server-sent events) use it too."""
import os
import time

import results
from contract import rig
import test_errors
import walk

BOX = walk.BOX


class MachineTest(results.ResultCases, test_errors.ErrorCase):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.ramet("volume", "import", "code", os.environ["RAMET_CODE_IMAGE"], "--format", "raw")
        self.daemon.ramet("volume", "create", "nothing", "1M")
        self.daemon.ramet("create", "nothing", "--from", "code", "--memory", "1024")

    def test_one_machine(self):
        for part in (self.check_fields, self.check_parameters, self.check_errors, *self.result_cases(), self.check_walk,
                     self.check_states):
            with self.subTest(part.__name__):
                begun = time.monotonic()
                part()
                print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
                self.assertEqual(self.daemon.call("GET", BOX).json["state"], "running", part.__name__)

    # ---- the walk ----

    def check_walk(self):
        walked = set()
        for steps in (walk.SERVICE, walk.COMMANDS, walk.FILES, walk.CONTEXTS, walk.DISKS, walk.SANDBOXES):
            for step in steps:
                walked.add(self.step(*step))
        self.until(lambda: self.daemon.call("GET", "/v1/templates/kept").status == 200)
        for step in walk.TEMPLATES:
            walked.add(self.step(*step))
        walked |= self.walk_ids()
        walked |= {f"{step[1]} {(self.document.find(*step[1:3]) or ['none'])[0]}" for step in walk.STORE}    # by test_errors.py
        calls = {f"{method} {path}" for method, path, _ in self.document.calls()}
        self.assertEqual(sorted(calls - walked - walk.ELSEWHERE), [],
                         "walk.py has no step for these calls")

    def walk_ids(self):
        """Calls whose paths hold what an answer gave."""
        build = self.daemon.call("GET", "/v1/templates/builds").json["builds"][0]["id"]
        upload = self.daemon.call("PUT", "/v1/templates/uploads", b"x").json["upload"]
        archive = self.daemon.call("POST", "/v1/store/export", {"names": ["nothing"]}).body
        steps = [(200, "GET", f"/v1/templates/builds/{build}"), (200, "GET", f"/v1/templates/builds/{build}/logs?follow=1"),
                 (202, "DELETE", f"/v1/templates/builds/{build}"), (204, "DELETE", f"/v1/templates/uploads/{upload}"),
                 (201, "POST", "/v1/store/import?prefix=again-", archive)]
        if "/v1/sandboxes/{name}/urls/{id}" in self.document.document["paths"]:
            urls = self.daemon.call("GET", BOX + "/urls").json["urls"]
            steps.append((204, "DELETE", f"{BOX}/urls/{urls[0]['id']}"))
        return {self.step(*step) for step in steps}

    # ---- what is wrong ----

    def check_fields(self):
        self.daemon.call("POST", BOX + "/contexts", {"id": "nothing"})
        self.daemon.call("POST", BOX + "/jobs", {"name": "nothing", "command": "sleep 10000"})
        self.walk_fields(True)
        self.check_defaults()
        self.daemon.call("DELETE", BOX + "/jobs/nothing?kill=1")
        self.daemon.call("DELETE", BOX + "/contexts/nothing")

    def check_parameters(self):
        self.walk_parameters()

    def check_errors(self):
        """Errors that a guest has to say, or that need one that runs."""
        exec_in = ("POST", BOX + "/exec")
        self.refuse(400, "validation.invalid", *exec_in, {}, "command.*missing")
        self.refuse(400, "validation.invalid", *exec_in, {"command": "true", "stdin_base64": "?"}, "stdin_base64")
        self.refuse(400, "validation.invalid", *exec_in, {"command": "cat", "stdin": "a", "stdin_base64": "AA=="}, "stdin.*stdin_base64")
        for method, path, more in ((*exec_in, {"command": "true"}), ("PATCH", BOX, {}), ("POST", BOX + "/fork", {})):
            self.refuse(413, "validation.too_large", method, path, {**more, "env": {"BIG": "x" * 131072}}, '"BIG".*128 KiB')
        self.assertEqual(self.daemon.call(*exec_in, {"command": "echo ${#BIG}", "env": {"BIG": "x" * 131067}}).json["stdout"], "131067\n")
        self.refuse(404, "exec.not_found", *exec_in, {"command": "true", "cwd": "/no/such/folder"}, "/no/such/folder")
        self.refuse(400, "validation.invalid", *exec_in, {"command": "true", "user": "nobody-at-all"}, "user.*nobody-at-all")
        self.refuse(409, "sandbox.conflict", "POST", "/v1/sandboxes", {"name": "nothing", "from": "code"}, "nothing")
        self.refuse(400, "validation.invalid", "POST", BOX + "/restore", {"snapshot": "no-such"}, "snapshot.*no-such")
        self.refuse(409, "sandbox.conflict", "POST", BOX + "/snapshots", {"name": "code"}, "code")
        self.refuse(409, "sandbox.conflict", "POST", BOX + "/fork", {"names": ["nothing"]}, "nothing")
        self.refuse(400, "validation.invalid", "POST", BOX + "/fork", {"count": 2, "names": ["a"]}, "names")
        self.refuse(400, "validation.invalid", "POST", BOX + "/fork", {"names": ["a", "b", "a"]}, 'names.*"a" twice')
        self.refuse(400, "validation.invalid", "POST", BOX + "/fork", {"names": []}, "names.*empty")
        self.assertEqual(self.daemon.call("POST", BOX + "/snapshots", {"name": "labelled"}).status, 201)
        self.refuse(413, "validation.too_large", "PATCH", "/v1/snapshots/labelled", {"labels": {"l": "x" * 300000}}, "labels.*256 KiB")
        self.assertEqual(self.daemon.call("DELETE", "/v1/snapshots/labelled").status, 204)
        large, once = {"names": ["large"], "labels": {"l": "x" * 200000}}, {"Idempotency-Key": "large"}
        self.assertEqual(self.daemon.call("POST", BOX + "/fork", large, once).status, 201)
        self.refuse(409, "idempotency.unknown", "POST", BOX + "/fork", large, "192 KiB", once)
        self.assertEqual(self.daemon.call("DELETE", "/v1/sandboxes/large").status, 204)
        self.refuse(400, "validation.invalid", "POST", "/v1/templates", {"name": "t", "sandbox": "nothing", "cpus": 2}, "cpus")
        self.file_errors()
        self.job_errors()
        self.context_errors()
        self.refuse(400, "validation.invalid", "GET", BOX + "/ports/70000", headers={"Upgrade": "tcp"}, says="70000")
        self.refuse(400, "validation.invalid", "GET", BOX + "/ports/80", says="Upgrade")
        self.refuse(502, "port.refused", "GET", BOX + "/ports/9", headers={"Upgrade": "tcp"}, says="9")
        self.refuse(400, "validation.invalid", "GET", BOX + "/exec/pty", says="Upgrade")
        made = [self.daemon.call("POST", BOX + "/urls", {"host_port": 80}) for _ in range(64)]
        self.assertEqual({answer.status for answer in made}, {201})
        self.refuse(409, "url.too_many", "POST", BOX + "/urls", {"host_port": 80}, "64")
        for answer in made:
            self.assertEqual(self.daemon.call("DELETE", BOX + "/urls/" + answer.json["id"]).status, 204)

    def file_errors(self):
        content = BOX + "/files/content?path="
        self.assertEqual(self.daemon.call("PUT", content + "here", b"12345").status, 204)
        for method, path in (("GET", content + "gone"), ("DELETE", content + "gone"), ("GET", BOX + "/files?path=gone"),
                             ("GET", BOX + "/files/stat?path=gone"), ("GET", BOX + "/files/watch?path=gone")):
            if "watch" not in path:
                self.refuse(404, "file.not_found", method, path, says="gone")
        self.refuse(404, "file.not_found", "POST", BOX + "/files/move", {"from": "gone", "to": "there"}, "gone")
        self.refuse(409, "file.conflict", "POST", BOX + "/files/move", {"from": "here", "to": "here2/../here"}, "here")
        self.refuse(416, "validation.range", "GET", content + "here", headers={"Range": "bytes=5-"}, says="5 bytes")
        self.refuse(400, "validation.invalid", "GET", content + "/tmp", says="/tmp")
        self.refuse(400, "validation.invalid", "GET", BOX + "/files?path=here", says="here")
        self.refuse(400, "validation.invalid", "PUT", content + "/tmp", b"x", "/tmp")
        self.refuse(400, "validation.invalid", "PUT", content + "here/below", b"x", "here")
        self.refuse(403, "auth.forbidden", "PUT", content + "/sys/nothing", b"x", "/sys/nothing")
        self.refuse(400, "validation.invalid", "GET", content + "x" * 5000, says="path|name")
        self.assertEqual(self.daemon.call("GET", content + "here").body, b"12345")

    def job_errors(self):
        jobs = BOX + "/jobs"
        self.assertEqual(self.daemon.call("POST", jobs, {"name": "server", "command": "sleep 10000"}).status, 201)
        self.refuse(409, "job.conflict", "POST", jobs, {"name": "server", "command": "true"}, "server")
        self.refuse(409, "job.invalid_state", "DELETE", jobs + "/server", says="kill|runs")
        self.refuse(404, "job.not_found", "GET", jobs + "/gone", says="gone")
        self.refuse(404, "job.not_found", "GET", jobs + "/12x", says="12x")
        self.refuse(400, "validation.invalid", "POST", jobs, {"name": "7up", "command": "true"}, "name")
        self.refuse(413, "validation.too_large", "POST", jobs, {"command": "cat", "stdin": "x" * (2 << 20)}, "1048576|MiB|bytes")
        self.refuse(400, "validation.invalid", "GET", jobs + "/server/logs", headers={"Last-Event-ID": "yesterday"}, says="Last-Event-ID")
        self.assertEqual(self.daemon.call("POST", jobs + "/server/signal", {"signal": "KILL"}).status, 204)
        self.assertEqual(self.daemon.call("GET", jobs + "/server?wait_secs=3600").json["state"], "ended")
        self.refuse(409, "job.invalid_state", "POST", jobs + "/server/signal", {}, "no process.*left")
        self.refuse(409, "job.invalid_state", "POST", jobs + "/server/signal", {"whole": False}, "first process.*whole")
        self.refuse(404, "job.not_found", "POST", jobs, {"command": "true", "cwd": "/no/such/folder"}, "/no/such/folder")
        self.assertEqual(self.daemon.call("DELETE", jobs + "/server").status, 204)

    def context_errors(self):
        contexts, name = BOX + "/contexts", "mine"
        self.assertEqual(self.daemon.call("POST", contexts, {"id": name, "language": "bash"}).status, 201)
        self.refuse(409, "context.conflict", "POST", contexts, {"id": name, "language": "bash"}, "mine")
        self.refuse(404, "context.not_found", "GET", contexts + "/gone", says="gone")
        self.refuse(404, "context.not_found", "POST", contexts + "/gone/run", {"code": "1"}, "gone")
        self.refuse(404, "context.not_found", "POST", contexts + "/gone/interrupt", {}, "gone")
        self.refuse(413, "validation.too_large", "POST", f"{contexts}/{name}/run", {"code": "#" * (9 << 20)}, "8 MiB|bytes")
        self.assertEqual(self.daemon.call("DELETE", f"{contexts}/{name}").status, 204)

    def check_states(self):
        """What a machine that is paused, stopped or not a fork cannot."""
        self.refuse(409, "sandbox.invalid_state", "POST", BOX + "/promote", {}, "nothing|fork")
        self.assertEqual(self.daemon.call("POST", BOX + "/pause", {}).status, 200)
        for method, path, body in (("POST", "/exec", {"command": "true"}), ("GET", "/files?path=.", None), ("GET", "/jobs", None),
                                   ("GET", "/contexts", None), ("PUT", "/files/content?path=x", b"x")):
            self.refuse(409, "sandbox.invalid_state", method, BOX + path, body, "paused.*resume")
        self.refuse(409, "pty.invalid_state", "GET", BOX + "/exec/pty", says="paused.*resume", headers={
            "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        self.assertEqual(self.daemon.call("POST", BOX + "/resume", {}).status, 200)
        self.assertEqual(self.daemon.call("POST", BOX + "/stop", {"memory": False, "force": True}).status, 200)
        for method, path, body in (("POST", "/exec", {"command": "true"}), ("POST", "/pause", {}), ("POST", "/snapshots", {}),
                                   ("POST", "/fork", {})):
            self.refuse(409, "sandbox.invalid_state", method, BOX + path, body, "stopped.*start|not running|start")
        self.assertEqual(self.daemon.call("POST", BOX + "/start", {}).status, 200)


if __name__ == "__main__":
    rig.need_machines()
    if not os.path.exists(os.environ.get("RAMET_CODE_IMAGE", "")):
        rig.skip("RAMET_CODE_IMAGE names no disk (tools/image/ensure --all makes it)")
    rig.main()
