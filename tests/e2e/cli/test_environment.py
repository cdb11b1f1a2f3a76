# SPDX-License-Identifier: Apache-2.0
"""The server's environment over HTTP, through each layer and each way to run something (X14), and where its values must not show."""
import base64
import glob
import os
import secrets

import rig

NASTY = {"NEWLINE": "a\nb\n", "EQUALS": "a=b=c", "QUOTES": "it's \"so\" `x`", "BLANKS": "  lead trail  ", "DOLLAR": "$HOME ${PATH} $(id)",
         "BACKSLASH": "\\n\\\\", "EMOJI": "😀", "LARGE": "x" * 100000, "EMPTY": "", "WITH.DOT": "dot"}


class Environment(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.secret = secrets.token_hex(20)
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--log-requests")
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")

    def put(self, env, status=200, method="PUT"):
        answer = self.daemon.call(method, "/v1/environment", {"env": env})
        self.assertEqual(answer.status, status, answer.body[:300])
        return answer

    def run_job(self, box, **body):
        """A job, to its end."""
        path = f"/v1/sandboxes/{box}/jobs"
        job = self.daemon.call("POST", path, body)
        self.assertEqual(job.status, 201, job.body)
        self.until(lambda: self.daemon.call("GET", f"{path}/{job.json['id']}?wait_secs=60").json["state"] == "ended")

    def environ(self, box, **more):
        answer = self.daemon.call("POST", f"/v1/sandboxes/{box}/exec", {"command": "cat /proc/self/environ", "encoding": "base64", **more})
        self.assertEqual(answer.status, 200, answer.body[:300])
        text = base64.b64decode(answer.json["stdout_base64"]).decode()
        return dict(pair.split("=", 1) for pair in text.split("\0") if pair)

    def test_environment(self):
        self.values_and_refusals()
        self.layers()
        self.every_way_to_run()
        self.snapshots_and_forks_have_the_present_one()
        self.X14_nothing_shows()
        self.who_may()
        self.command_line()

    def values_and_refusals(self):
        self.assertEqual(self.daemon.call("GET", "/v1/environment").json, {"env": {}})
        self.put({**NASTY, "SECRET": self.secret, "LAYER": "server"})
        self.daemon.ramet("create", "box", "--memory", "256")
        self.daemon.ramet("create", "bare", "--memory", "256", "--no-environment")
        seen = self.environ("box")
        for name, value in {**NASTY, "SECRET": self.secret}.items():
            self.assertEqual(seen.get(name), value, name)
        self.assertFalse(set(NASTY) & set(self.environ("bare")))
        self.assertEqual([self.daemon.call("GET", "/v1/sandboxes/" + name).json["environment"] for name in ("box", "bare")], [True, False])
        for env in ({"": "x"}, {"A=B": "x"}, {"A B": "x"}, {"A": 1}, {"A": "x\0y"}, {"A": None}, [], "A=B", None):
            answer = self.put(env, 400)
            self.assertEqual(answer.code, "validation.invalid")
            self.assertIn('"env"', answer.message)
        self.put({"A B": None}, method="PATCH")    # it may have been set by an earlier release
        answer = self.put({"SECRET" + str(i): self.secret * 2000 for i in range(4)}, 413)
        self.assertNotIn(self.secret, answer.body.decode())
        self.assertEqual(self.daemon.call("POST", "/v1/sandboxes", {"environment": "no"}).status, 400)
        self.assertEqual(self.daemon.call("GET", "/v1/environment").json["env"]["LAYER"], "server")    # as it was

    def layers(self):
        self.assertEqual(self.environ("box")["LAYER"], "server")
        self.daemon.call("PATCH", "/v1/sandboxes/box", {"env": {"LAYER": "sandbox", "OWN": "1"}})
        self.assertEqual(self.environ("box")["LAYER"], "sandbox")
        seen = self.environ("box", env={"LAYER": "call"})
        self.assertEqual((seen["LAYER"], seen["OWN"], seen["SECRET"]), ("call", "1", self.secret))
        self.put({"LAYER": "changed", "MORE": "yes", "EMPTY": None}, method="PATCH")
        seen = self.environ("box")
        self.assertEqual((seen["LAYER"], seen["MORE"], "EMPTY" in seen), ("sandbox", "yes", False))
        self.daemon.call("PATCH", "/v1/sandboxes/box", {"env": {}})
        self.assertEqual(self.environ("box")["LAYER"], "changed")

    def every_way_to_run(self):
        """X14 in a create, a fork, a job and a context, byte for byte."""
        def of_file(box, path):
            answer = self.daemon.call("GET", f"/v1/sandboxes/{box}/files/content?path={path}")
            return dict(pair.split("=", 1) for pair in answer.body.decode().split("\0") if pair)
        self.run_job("bare", command="cat /proc/self/environ > job-environ", env=NASTY)
        made = self.daemon.call("POST", "/v1/sandboxes/bare/contexts", {"id": "nasty", "language": "bash", "env": NASTY})
        self.assertEqual(made.status, 201, made.body)
        ran = self.daemon.call("POST", "/v1/sandboxes/bare/contexts/nasty/run", {"code": "env -0 > context-environ"})
        self.assertEqual(ran.json["exit_code"], 0, ran.body)
        forked = self.daemon.call("POST", "/v1/sandboxes/bare/fork", {"names": ["nastykid"], "env": NASTY})
        self.assertEqual(forked.status, 201, forked.body)
        for seen in (of_file("bare", "job-environ"), of_file("bare", "context-environ"), self.environ("nastykid")):
            for name, value in NASTY.items():
                self.assertEqual(seen.get(name), value, name)
        self.daemon.ramet("rm", "nastykid")
        for path, body in (("", {"from": "agent-base"}), ("/bare/fork", {}), ("/bare/jobs", {"command": "true"}), ("/bare/exec", {"command": "true"}),
                           ("/bare/contexts", {"language": "bash"})):
            for name in ("", "A=B", "A B", "A\n", "\x7f"):
                answer = self.daemon.call("POST", "/v1/sandboxes" + path, {**body, "env": {name: self.secret}})
                self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), (path, name))
                self.assertIn(f'"{name}" cannot be the name of a variable: a name', answer.message)
                self.assertNotIn(self.secret, answer.message)
        self.run_job("box", command="printf %s \"$SECRET\" > of-a-job")
        self.assertEqual(self.daemon.ramet("exec", "box", "cat of-a-job"), self.secret)
        answer = self.daemon.call("POST", "/v1/sandboxes/box/contexts/bash/run", {"code": "echo $SECRET"})
        self.assertEqual(answer.json["stdout"], self.secret + "\n", answer.body)

    def snapshots_and_forks_have_the_present_one(self):
        self.daemon.ramet("snapshot", "box", "--name", "then")
        self.put({"WHEN": "later"}, method="PATCH")
        self.put({"MORE": None}, method="PATCH")
        self.daemon.ramet("create", "again", "--from", "then")
        seen = self.environ("again")
        self.assertEqual((seen.get("WHEN"), "MORE" in seen), ("later", False))
        self.daemon.ramet("fork", "bare", "--name", "barekid")
        self.assertNotIn("WHEN", self.environ("barekid"))
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--log-requests")
        self.assertEqual(self.environ("again")["WHEN"], "later")
        self.daemon.ramet("rm", "--force", "again", "barekid")

    def X14_nothing_shows(self):
        self.daemon.call("POST", "/v1/sandboxes/box/jobs", {"command": "sleep 1000", "name": "sleeper"})
        for path in ("/v1/sandboxes", "/v1/sandboxes/box", "/v1/sandboxes/box/jobs", "/v1/snapshots", "/v1/snapshots/then", "/v1/events?follow=0",
                     "/v1/sandboxes/box/logs", "/v1/store"):
            self.assertNotIn(self.secret, self.daemon.call("GET", path).body.decode(), path)
        for answer in (self.daemon.call("POST", "/v1/sandboxes/box/exec", {"command": "x", "user": "nobody-there"}),
                       self.daemon.call("POST", "/v1/sandboxes/box/exec", {"command": "x", "env": {"A=": "x"}})):
            self.assertGreaterEqual(answer.status, 400)
            self.assertNotIn(self.secret, answer.body.decode())
        self.assertNotIn(self.secret, self.daemon.log())
        shown = []
        for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    shown += [path] if self.secret.encode() in file.read() else []
            except OSError:
                continue
        self.assertEqual(shown, [])

    def who_may(self):
        for preset in ("ci", "read"):
            key = self.daemon.make_key("key-" + preset, preset)["key"]
            for method in ("GET", "PUT", "PATCH"):
                answer = self.daemon.call_tcp(method, "/v1/environment", None if method == "GET" else {"env": {}}, key)
                self.assertEqual((answer.status, answer.code), (403, "auth.forbidden"), (preset, method))
        key = self.daemon.make_key("key-admin")["key"]
        self.assertEqual(self.daemon.call_tcp("GET", "/v1/environment", key=key).json["env"]["SECRET"], self.secret)

    def command_line(self):
        self.put({})
        self.daemon.ramet("env", "set", "A=1", "B=x=y")
        self.daemon.ramet("env", "set", "TOKEN", stdin=self.secret + "\n")
        self.assertEqual(self.daemon.ramet("env", "ls"), "A\nB\nTOKEN\n")
        self.assertEqual(self.daemon.json("env", "ls"), ["A", "B", "TOKEN"])
        self.assertIn("TOKEN=" + self.secret, self.daemon.ramet("env", "ls", "--values"))
        self.assertEqual(self.daemon.ramet("exec", "box", "echo $B $TOKEN"), f"x=y {self.secret}\n")
        self.daemon.ramet("env", "unset", "TOKEN", "NEVER")
        self.assertEqual(self.daemon.json("env", "ls", "--values"), {"A": "1", "B": "x=y"})
        self.daemon.ramet("env", "set", "=1", status=1)
        self.daemon.ramet("env", "set", "A", "B", status=2)


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
