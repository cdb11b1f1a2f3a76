# SPDX-License-Identifier: Apache-2.0
"""Field cases of code and commands as a client of the API sees them: X01 X05 X06 X10 X13. tests/context has them below the API,
e2e/cli/test_exec_cases.py those of commands and files. Figures are a tenth of the cases' own, or less, without RAMET_TEST_LONG=1."""
import json
import os
import socket
import threading

from contract import rig

BOX = "/v1/sandboxes/nothing"
LONG = os.environ.get("RAMET_TEST_LONG") == "1"
TENTH = 1 if LONG else 10
KEPT = 4 << 20    # of each stream of a run, guest/context/README.md


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


class Events:
    """A stream of server-sent events, read as slowly as one likes. Lines may be of any length."""

    def __init__(self, daemon, path, body, receive_buffer=None):
        self.connection = rig.UnixConnection(daemon.run + "/api.sock")
        self.connection.request("POST", path, json.dumps(body), {"Accept": "text/event-stream"})
        if receive_buffer:
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.response = self.connection.getresponse()
        assert self.response.headers["Content-Type"] == "text/event-stream", self.response.read()

    def __iter__(self):
        kind = None
        for line in self.response:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])
        self.connection.close()


class ResultCases:
    def result_cases(self):
        table = (self.X13_a_large_table,) if LONG else ()    # emulated, pandas takes half a minute to be loaded
        return (self.X01_a_reader_of_code_that_stops, self.X05_code_that_will_not_stop, self.X06_nobody_answers_questions,
                self.X10_code_that_goes_on, self.X13_a_large_value, self.X13_a_line_without_end,
                self.X13_progress_and_updates, *table)

    def run_code(self, code, **more):
        """(events by kind, the whole text of stdout, done)."""
        seen, text, done = {}, [], None
        for kind, data in Events(self.daemon, BOX + "/contexts/python/run", {"code": code, **more}):
            self.assertNotEqual(kind, "failed", data)
            if kind == "stdout":
                text.append(data["text"])
            elif kind == "done":
                done = data
            else:
                seen.setdefault(kind, []).append(data)
        self.assertIsNotNone(done, "the stream broke off")
        return seen, "".join(text), done

    def still_answers(self):
        seen, _, _ = self.run_code("1 + 1")
        self.assertEqual(seen["result"][0]["text"], "2")

    def X01_a_reader_of_code_that_stops(self):
        """Both streams at once, read by nobody for a while: the daemon holds little of it, others go on, and then all of it comes."""
        self.still_answers()
        before = resident_bytes(self.daemon.process.pid)
        count = (300 if LONG else 6) << 20
        code = (f"import sys, os\npiece = 'x' * 1023 + '\\n'\nfor i in range({count // 1024}):\n"
                "    sys.stdout.write(piece); sys.stderr.write(piece)\nsys.stdout.flush()\n'written'")
        stream = Events(self.daemon, BOX + "/contexts/python/run", {"code": code}, 4096)
        for _ in range(5):    # others are not held up
            self.assertEqual(self.daemon.call("POST", BOX + "/exec", {"command": "echo $((6 * 7))"}).json["stdout"], "42\n")
        self.assertLess(resident_bytes(self.daemon.process.pid) - before, 150 << 20)
        sizes, last = {"stdout": 0, "stderr": 0}, None
        for kind, data in stream:
            if kind in sizes:
                sizes[kind] += len(data["text"])
            last = (kind, data)
        self.assertEqual(sizes, {"stdout": KEPT, "stderr": KEPT})
        self.assertEqual((last[0], last[1]["interrupted"], last[1]["truncated"]), ("done", False, True))
        self.still_answers()

    def X05_code_that_will_not_stop(self):
        """It ends with its time-out, what was defined stays where Python can be interrupted, and the next run works."""
        for _ in range(5):    # where everything is slow enough, 5 s after the time-out are too few to be interrupted in
            self.run_code("import time; kept = 41")
            _, _, done = self.run_code("while True: time.sleep(0.1)", timeout_secs=1)
            self.assertTrue(done["timed_out"])
            if done["state_lost"] is None:
                break
        self.assertIsNone(done["state_lost"])
        seen, _, _ = self.run_code("kept + 1")
        self.assertEqual(seen["result"][0]["text"], "42")
        # An interrupt from another connection, as Ctrl-C.
        started, kinds = threading.Event(), []

        def run():
            for kind, data in Events(self.daemon, BOX + "/contexts/python/run", {"code": "print('on', flush=True)\ntime.sleep(10000)"}):
                kinds.append((kind, data))
                if kind == "stdout":
                    started.set()

        thread = threading.Thread(target=run)
        thread.start()
        self.assertTrue(started.wait(rig.HANG_SECS))
        self.assertEqual(self.daemon.call("POST", BOX + "/contexts/python/interrupt", {}).json, {"interrupted": True})
        thread.join(rig.HANG_SECS)
        self.assertEqual([data["name"] for kind, data in kinds if kind == "error"], ["KeyboardInterrupt"])
        self.assertTrue(kinds[-1][1]["interrupted"])

    def X06_nobody_answers_questions(self):
        """Who reads where nobody writes sees the end at once, never the time-out; what is given arrives, and then the end."""
        for code, name in (("input('name? ')", "StdinNotImplementedError|EOFError"), ("import getpass; getpass.getpass()", "Error")):
            seen, _, done = self.run_code(code, timeout_secs=600)
            self.assertRegex(seen["error"][0]["name"], name)
            self.assertFalse(done["timed_out"])
        for command in ("cat", "read x; echo \"got:$x\"", "python3 -", "bash"):
            answer = self.daemon.call("POST", BOX + "/exec", {"command": command, "timeout_secs": 600}).json
            self.assertFalse(answer["timed_out"], command)
        answer = self.daemon.call("POST", BOX + "/exec", {"command": "cat; echo end", "stdin": "a\0b"}).json
        self.assertEqual(answer["stdout"], "a\0bend\n")

    def X10_code_that_goes_on(self):
        """Top-level await works; a thread that prints later does not get into another run's value."""
        seen, _, _ = self.run_code("import asyncio\nawait asyncio.sleep(0)\n5")
        self.assertEqual(seen["result"][0]["text"], "5")
        self.run_code("import threading, time\ngo = threading.Event()\n"
                      "thread = threading.Thread(target=lambda: (go.wait(), print('late')))\nthread.start()")
        seen, _, done = self.run_code("go.set(); thread.join(); 6")
        self.assertEqual([result["text"] for result in seen["result"]], ["6"])
        self.assertNotIn("error", seen)

    def X13_a_large_value(self):
        """A value of many megabytes is cut with a word, and the run ends well; markup below the limit comes whole."""
        seen, _, done = self.run_code(f"'x' * {200_000_000 // TENTH}")
        text = seen["result"][0].get("text", "") if "result" in seen else ""
        self.assertTrue(done["truncated"] or seen["result"][0].get("truncated"), {"size": len(text)})
        seen, _, done = self.run_code("from IPython.display import HTML, display\n"
                                      f"display(HTML('<p>' + 'y' * {1_000_000} + '</p>'))")
        self.assertEqual(len(seen["display"][0]["html"]), 1_000_007)
        seen, _, done = self.run_code(f"display(HTML('z' * {30_000_000 // (1 if LONG else 2)}))")
        self.assertTrue(done["truncated"] or seen["display"][0].get("truncated"))
        self.still_answers()

    def X13_a_large_table(self):
        """pandas shortens a table itself, as text and as HTML."""
        seen, _, done = self.run_code("import numpy, pandas\npandas.DataFrame(numpy.zeros((1_000_000, 50)))")
        result = seen["result"][0]
        self.assertIn("...", result["text"])
        self.assertIn("<table", result["html"])
        self.assertLess(len(result["html"]), 1 << 20)
        self.assertFalse(done["truncated"])

    def X13_a_line_without_end(self):
        """A hundred megabytes without a line's end: what is kept comes in pieces, and the run ends well."""
        size = 100_000_000 // TENTH
        _, text, done = self.run_code(f"print('-' * {size}, end='')")
        self.assertEqual((len(text), set(text), done["truncated"]), (KEPT, {"-"}, True))
        whole = self.daemon.call("POST", BOX + "/contexts/python/run", {"code": "print('+' * 20_000_000, end='')"}).json
        self.assertTrue(whole["truncated"])
        self.assertEqual(len(whole["stdout"]), KEPT)

    def X13_progress_and_updates(self):
        """Carriage returns stay as they are; what is cleared goes, and what is updated ends with its last content."""
        count = 100_000 // TENTH
        _, text, _ = self.run_code(f"import sys\nfor i in range({count}): sys.stderr.write(''); sys.stdout.write(f'\\r{{i}}')")
        self.assertEqual(text, "".join(f"\r{i}" for i in range(count)))
        seen, _, _ = self.run_code("from IPython.display import clear_output, display, update_display\nfor i in range(5):\n"
                                   "    clear_output(wait=True); print(i)\n"
                                   "display('first', display_id='bar')\nupdate_display('last', display_id='bar')")
        self.assertEqual(len(seen["clear"]), 5)
        self.assertEqual((seen["update_display"][-1]["text"], seen["update_display"][-1]["display_id"]), ("'last'", "bar"))
        whole = self.daemon.call("POST", BOX + "/contexts/python/run", {
            "code": "for i in range(5):\n    clear_output(wait=True); print(i)\n"
                    "display('first', display_id='bar')\nupdate_display('last', display_id='bar')"}).json
        self.assertEqual(whole["stdout"], "4\n")
        self.assertEqual([result["text"] for result in whole["results"]], ["'last'"])
