# SPDX-License-Identifier: Apache-2.0
"""Code contexts in a real machine: what code defines stays over stop, fork, snapshot and another daemon; runs end as told.

One machine of the code-interpreter disk is booted for all of it; tests/context tries the rest of the driver without one.
"""
import base64
import json
import os
import subprocess
import threading
import time
import zipfile

import rig

SETUP = """
import random, tempfile, uuid
import numpy, pandas
kept = {"answer": 42}
table = pandas.DataFrame({"n": range(3), "word": list("abc")})
random.seed(1); numpy.random.seed(1); next(tempfile._get_candidate_names()); uuid.uuid1();
"""
DRAW = "[random.random(), numpy.random.rand(), next(tempfile._get_candidate_names()), uuid.uuid1().hex, uuid.uuid4().hex]"


class Contexts(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.ramet("volume", "import", "code", os.environ["RAMET_CODE_IMAGE"], "--format", "raw")

    def call(self, method, path, body=None, status=200, box="box"):
        answer = self.daemon.call(method, f"/v1/sandboxes/{box}/contexts{path}", body)
        self.assertEqual(answer.status, status, answer.body[:500])
        return answer

    def run_code(self, code, box="box", context="python", timeout=rig.HANG_SECS):
        return self.call("POST", f"/{context}/run", {"code": code, "timeout_secs": timeout}, box=box).json

    def good(self, code, **more):
        execution = self.run_code(code, **more)
        self.assertIsNone(execution["error"], execution)
        return execution

    def value(self, code, **more):
        return self.good(code, **more)["text"]

    def ramet(self, *arguments, **more):
        return self.daemon.ramet(*arguments, **more)

    def stream(self, code, seen, context="python"):
        """Runs code with server-sent events, which go to `seen` as they come."""
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("POST", f"/v1/sandboxes/box/contexts/{context}/run", json.dumps({"code": code}),
                           {"Accept": "text/event-stream"})
        response = connection.getresponse()
        self.assertEqual((response.status, response.headers["Content-Type"]), (200, "text/event-stream"))
        kind = None
        for line in response:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                seen.append((kind, json.loads(line[6:])))
                if kind in ("done", "failed"):
                    break
        connection.close()

    def in_background(self, code, context="python"):
        seen = []
        thread = threading.Thread(target=self.stream, args=(code, seen, context))
        thread.start()
        limit = time.monotonic() + rig.HANG_SECS
        while True:
            alive = thread.is_alive()    # before it is looked: a short run may end meanwhile
            if any(kind == "stdout" for kind, _ in seen):
                break
            self.assertTrue(alive and time.monotonic() < limit, seen)
            time.sleep(0.01)
        return thread, seen

    def test_contexts(self):
        self.ramet("create", "box", "--from", "code")
        self.check_command_line()
        self.check_results()
        self.check_packages()
        self.check_ends()
        self.check_calls()
        self.check_resume()
        self.check_forks()
        self.check_snapshot_under_a_run()
        self.check_daemon_dies()
        self.check_death()

    def check_command_line(self):
        # Three first uses at once make one context.
        callers = [subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "run", "box", "-c", "bash", f"echo {i}"],
                                    stdout=subprocess.PIPE, text=True) for i in range(3)]
        self.assertEqual([each.communicate()[0] for each in callers], ["0\n", "1\n", "2\n"])
        self.assertEqual(self.ramet("run", "box", "x = 20\nprint('so', x)\nx + 1"), "so 20\n21\n")
        self.assertEqual(self.ramet("run", "box", "-", stdin="x * 2"), "40\n")
        path = self.write("code.py", b"def f():\n    return x / 0\n")
        self.assertEqual(self.ramet("run", "box", path.decode() if isinstance(path, bytes) else path), "")
        self.ramet("run", "box", "f()", status=1)
        self.assertIn("ZeroDivisionError", self.daemon.stderr)
        self.assertEqual(self.ramet("run", "box", "--context", "bash", "cd /usr; y='a b'"), "")
        self.assertEqual(self.ramet("run", "box", "-c", "bash", "pwd; echo $y; exit 3", status=1), "/usr\na b\n")
        self.assertIn("variables were lost", self.daemon.stderr)
        self.assertEqual(self.ramet("run", "box", "-c", "bash", "(exit 7)", status=7), "")
        self.ramet("run", "box", "--timeout", "0.5", "import time; time.sleep(60)", status=124)
        self.assertEqual(self.ramet("run", "box", "x"), "20\n")
        # X13: a line of megabytes, and one that is taken back again and again, as they are.
        self.assertEqual(self.ramet("run", "box", "print('y' * 3_000_000, end='')"), "y" * 3_000_000)
        bar = self.ramet("run", "box", "for i in range(2000): print(f'\\r{i}', end='')", text=False)
        self.assertEqual(bar, b"".join(b"\r%d" % i for i in range(2000)))
        shown = self.daemon.json("context", "ls", "box")
        self.assertEqual({each["id"]: each["language"] for each in shown}, {"python": "python", "bash": "bash"})
        self.assertEqual({each["state"] for each in shown}, {"idle"})

    def check_results(self):
        self.good(SETUP)
        table = self.good("table")
        self.assertIn("<table", table["results"][0]["html"])
        self.assertEqual(table["results"][0]["text"], table["text"])
        self.ramet("run", "box", "import matplotlib.pyplot as plt\nplt.plot([1, 2]);", "--save", self.path("out"))
        self.assertTrue(self.read("out/1.png").startswith(b"\x89PNG"))
        self.check_figure()
        surrogate = self.run_code("raise Exception('\\ud8ff')")    # X04
        self.assertEqual(surrogate["error"]["value"], "\\ud8ff")
        flood = self.good("!head -c 6000000 /dev/zero | tr '\\\\0' x; head -c 6000000 /dev/zero >&2")    # X01
        self.assertTrue(flood["truncated"])
        self.assertEqual((len(flood["stdout"]), len(flood["stderr"])), (4 << 20, 4 << 20))

    def wheel(self, name):
        """A package with a module and a program of that name, in the machine's home folder."""
        file, about = f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info/"
        members = {f"{name}.py": "size = 'small'\ndef main():\n    print(size)\n",
                   about + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
                   about + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                   about + "entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n"}
        members[about + "RECORD"] = "".join(f"{each},,\n" for each in (*members, about + "RECORD"))
        with zipfile.ZipFile(self.path(file), "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
        self.ramet("cp", self.path(file), "box:" + file)
        return file

    def check_packages(self):
        """pip installs beside Debian's packages, without words that ask for another place; what it installed is there at once, its
        programs on the PATH too: in a context, and as a command of the user."""
        done = self.good(f"!pip install --no-index ~/{self.wheel('tiny')}\n_exit_code")
        self.assertEqual(done["text"], "0", done)
        self.assertEqual(self.value("import tiny\ntiny.size"), "'small'")
        self.assertEqual(self.ramet("exec", "box", f"pip install --quiet --no-index ~/{self.wheel('little')} && little && sudo tiny"), "small\nsmall\n")

    def check_figure(self, box="box"):
        """X12: once, as an image, whatever became of the machine since the last one."""
        figure = self.good("plt.plot([2, 1]); plt.show(); print('after')", box=box)
        self.assertEqual([base64.b64decode(each["png"])[:4] for each in figure["results"]], [b"\x89PNG"])
        self.assertEqual(figure["stdout"], "after\n")

    def check_ends(self):
        thread, seen = self.in_background("print('begun', flush=True)\nwhile True: pass")
        self.assertIn("interrupted", self.daemon.ramet("context", "interrupt", "box") + self.daemon.stderr)
        thread.join(rig.HANG_SECS)
        self.assertEqual([kind for kind, _ in seen], ["started", "stdout", "error", "done"])
        self.assertEqual(seen[2][1]["name"], "KeyboardInterrupt")
        self.assertEqual(self.value("kept"), "{'answer': 42}")
        # A client that goes away interrupts its run.
        client = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "run", "box",
                                   "gone = 0\nprint('begun', flush=True)\nimport time\ntime.sleep(3600)"], stdout=subprocess.PIPE)
        self.assertEqual(client.stdout.readline(), b"begun\n")
        client.kill()
        client.communicate()
        self.assertEqual(self.value("gone"), "0")

    def check_calls(self):
        env = {"LINES": "a\nb", "DOLLAR": "$HOME", "EMPTY": "", "UNICODE": "😀"}    # X14
        made = self.call("POST", "", {"id": "mine", "language": "bash", "cwd": "/var", "env": env}, 201).json
        self.assertEqual((made["id"], made["language"], made["state"]), ("mine", "bash", "idle"))
        self.assertEqual(self.value("pwd; printf '%s|' \"$LINES\" \"$DOLLAR\" \"$EMPTY\" \"$UNICODE\"", context="mine"), None)
        out = self.good("pwd; printf '%s|' \"$LINES\" \"$DOLLAR\" \"$EMPTY\" \"$UNICODE\"", context="mine")
        self.assertEqual(out["stdout"], "/var\na\nb|$HOME||😀|")
        self.good("sleep 3600 & echo $! > /tmp/pid", context="mine")
        self.assertEqual(self.call("POST", "", {"id": "mine"}, 409).code, "context.conflict")
        self.call("DELETE", "/mine", status=204)
        self.ramet("exec", "box", "kill -0 $(cat /tmp/pid)", status=1)    # what it had started is gone
        self.assertEqual(self.call("DELETE", "/mine", status=404).code, "context.not_found")
        self.call("POST", "/mine/run", {"code": "1"}, 404)
        for body in ({"id": "Up"}, {"id": "../x"}, {"language": "cobol"}, {"env": {"a=b": "1"}}, {"id": "bash", "language": "python"},
                     {"cwd": "/no/such/folder"}, {"user": "nobody-here"}, {"what": 1}):
            self.assertIn(self.daemon.call("POST", "/v1/sandboxes/box/contexts", body).status, (400, 404), body)
        for body in ({}, {"code": 3}, {"code": "1", "timeout_secs": "x"}, {"code": "1", "more": 1}):
            self.call("POST", "/python/run", body, 400)
        self.assertEqual(len(self.call("GET", "").json["contexts"]), 2)

    def check_resume(self):
        thread, seen = self.in_background("import os\nprint('begun', flush=True)\nwhile not os.path.exists('/tmp/go'): "
                                          "time.sleep(0.02)\nwent = 'on'")
        self.ramet("stop", "box")
        thread.join(rig.HANG_SECS)
        self.assertEqual((seen[-1][0], seen[-1][1]["code"]), ("failed", "context.ended"))
        self.ramet("start", "box")
        self.ramet("exec", "box", "touch /tmp/go")    # the run goes on where it was, unheard, and the next waits for it
        self.assertEqual(self.value("went"), "'on'")
        self.good("import tempfile\ngone_with = tempfile.mkdtemp(); os.chdir(gone_with); os.rmdir(gone_with)")    # X15
        self.ramet("stop", "box")
        self.ramet("start", "box")
        begin = time.monotonic()
        self.assertEqual(self.value("kept"), "{'answer': 42}")
        print(f"first run after a resume: {time.monotonic() - begin:.3f} s")
        self.assertEqual(self.run_code("os.getcwd()")["error"]["name"], "FileNotFoundError")
        self.good("os.chdir('/home/user')")
        self.check_figure()
        self.assertEqual(self.good("echo \"<$y>\"", context="bash")["stdout"], "<>\n")

    def check_forks(self):
        """V05: children and their source go on from one state, and draw unlike numbers."""
        self.good("random.seed(1); numpy.random.seed(1)")
        self.ramet("fork", "box", "--name", "one", "--name", "two")
        draws = [each for name in ("one", "two", "box") for each in eval(self.value(DRAW, box=name))]
        self.assertEqual(len({repr(each) for each in draws}), 15, draws)
        for name in ("one", "two"):
            self.assertEqual(self.value("kept, table.shape", box=name), "({'answer': 42}, (3, 2))")
            self.good(f"kept = '{name}'", box=name)
        self.check_figure("two")
        self.assertEqual([self.value("kept", box=name) for name in ("one", "two", "box")], ["'one'", "'two'", "{'answer': 42}"])
        self.ramet("rm", "one", "two")

    def check_snapshot_under_a_run(self):
        thread, seen = self.in_background("for i in range(40): print(i, flush=True); time.sleep(0.05)\nran = i")
        self.ramet("snapshot", "box", "--name", "during")
        thread.join(rig.HANG_SECS)
        text = "".join(data["text"] for kind, data in seen if kind == "stdout")
        self.assertEqual(text, "".join(f"{i}\n" for i in range(40)))
        self.assertEqual(seen[-1][0], "done")
        self.ramet("create", "later", "--from", "during")    # the run goes on there, unheard, and the next waits for it
        self.assertEqual(self.value("ran", box="later"), "39")
        self.ramet("rm", "later")

    def check_daemon_dies(self):
        thread, seen = self.in_background("print('begun', flush=True)\nwhile not os.path.exists('/tmp/later'): time.sleep(0.02)\nlast = 'ended'")
        self.daemon.kill()
        thread.join(rig.HANG_SECS)
        self.assertNotIn("done", [kind for kind, _ in seen])
        self.daemon.start()
        self.ramet("exec", "box", "touch /tmp/later")
        self.assertEqual(self.value("last"), "'ended'")

    def check_death(self):
        """X08: the machine's memory ends; and the context's own processes are killed from beside it."""
        execution = self.run_code("hoard = []\nwhile True: hoard.append(bytearray(b'x') * (8 << 20))")
        self.assertEqual(execution["error"]["name"], "ContextDied")
        self.assertIn("out of memory", execution["error"]["value"])
        self.assertTrue(execution["out_of_memory"])
        after = self.good("'kept' in globals()")
        self.assertEqual(after["text"], "False")
        self.assertIn("out of memory", after["state_lost"])
        self.ramet("exec", "box", "pkill -9 -f '[s]upervisor.py'")
        # The end of a process that was killed is heard of a moment later; until then its socket answers nobody.
        self.until(lambda: {each["state"] for each in self.call("GET", "").json["contexts"]} == {"ended"})
        again = self.good("echo new", context="bash")
        self.assertEqual(again["stdout"], "new\n")
        self.assertIn("began with nothing", again["state_lost"])
        self.assertEqual(self.call("POST", "/bash/restart", {}).json["state"], "idle")


if __name__ == "__main__":
    rig.need_machines()
    if not os.path.exists(os.environ.get("RAMET_CODE_IMAGE", "")):
        rig.skip("RAMET_CODE_IMAGE names no disk (tools/image/ensure --all makes it)")
    rig.main()
