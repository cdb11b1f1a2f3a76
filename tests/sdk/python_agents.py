# SPDX-License-Identifier: Apache-2.0
"""Both reference pages' agents, end to end: the published OpenAI Agents SDK on real sandboxes, a scripted model in place of a model.

The agents' package is installed below build/, its versions from agents-constraints.txt.
"""
import os
import struct
import subprocess
import tempfile
import zlib

import machines
import rig
from environments import environment
from machines import EXAMPLES, HERE, MachineCase
from model_server import ModelServer

PRIMES = "n, found = 2, []\nwhile len(found) < 20:\n    if all(n % p for p in found):\n        found.append(n)\n    n += 1\nprint(*found)\n"
FIRST_20 = "2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59 61 67 71"
CODER = {
    "primes.py": [
        {"call": "write_file", "arguments": {"path": "work/primes.py", "content": PRIMES}},
        {"calls": [{"call": "run_command", "arguments": {"command": "python3 work/primes.py"}},
                   {"call": "read_file", "arguments": {"path": "work/primes.py"}},
                   {"call": "run_command", "arguments": {"command": "python3 work/primes.py; hostname", "timeout_secs": 60}}]},
        {"match": FIRST_20, "then": {"say": "They are {output}"}, "else": {"say": "I saw something else: {output}"}},
        {"call": "run_command", "arguments": {"command": "echo $(( $(python3 work/primes.py | tr ' ' '+') ))"}},
        {"say": "Their sum: {output}"},
    ],
    "mishap": [
        {"call": "run_command", "arguments": {"command": "head -c 60000 /dev/zero | tr '\\0' x; echo END; exit 3"}},
        {"call": "run_command", "arguments": {"command": "echo begun; sleep 600", "timeout_secs": 1}},
        # A slow machine needs longer than a second to begin.
        {"match": "begun", "then": {"call": "run_command", "arguments": {"command": "true"}},
         "else": {"call": "run_command", "arguments": {"command": "echo begun; sleep 600", "timeout_secs": 60}}},
        {"call": "run_command", "arguments": {"command": "printf '\\377\\342\\224\\200'; echo no >&2"}},
        {"call": "read_file", "arguments": {"path": "there/is/none"}},
        {"call": "run_command", "arguments": {"not": "its parameter"}},
        {"say": "done"},
    ],
}
ANALYST = {
    "Fibonacci": [
        {"call": "run_python", "arguments": {"code": "fib = [1, 1]\nwhile len(fib) < 15: fib.append(fib[-1] + fib[-3])\nfib[14]"}},
        {"match": "Traceback|Error", "then": {"call": "run_python", "arguments": {"code":
            "fib = [1, 1]\nwhile len(fib) < 15: fib.append(fib[-1] + fib[-2])\nprint('15th:', fib[14])"}}, "else": {"say": "it should have failed"}},
        {"call": "run_python", "arguments": {"code": "import matplotlib.pyplot as plt\nplt.plot(range(1, 16), fib, marker='o')\n"
                                             "plt.yscale('log')\nplt.title('Fibonacci')\nplt.show()\nprint(fib[14])"}},
        {"say": "The 15th is {output}"},
        {"call": "run_python", "arguments": {"code": "import pandas as pd\nframe = pd.DataFrame({'n': range(11, 16), 'fib': fib[-5:]})\n"
                                             "plt.plot(frame.n, frame.fib)\nplt.yscale('log')\nplt.show()\nprint(fib[-5:])"}},
        {"say": "The last five: {output}"},
    ],
}


def decode_png(data):
    """Width, height and the rows of pixels of an 8-bit PNG without interlacing: with what every machine has."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:20]
    place, packed, head = 8, b"", None
    while place < len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        chunk = data[place + 8:place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size)[0] == zlib.crc32(kind + chunk), "a damaged chunk"
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", chunk)
        elif kind == b"IDAT":
            packed += chunk
        place += 12 + size
    width, height, depth, colour, _, _, interlace = head
    assert depth == 8 and interlace == 0
    step = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    raw, rows, above = zlib.decompress(packed), [], bytes(width * step)
    for y in range(height):
        begin = y * (width * step + 1)
        method, row = raw[begin], bytearray(raw[begin + 1:begin + 1 + width * step])
        for i in range(len(row)):
            left = row[i - step] if i >= step else 0
            up, corner = above[i], above[i - step] if i >= step else 0
            if method == 1:
                row[i] = (row[i] + left) & 255
            elif method == 2:
                row[i] = (row[i] + up) & 255
            elif method == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif method == 4:
                guess = left + up - corner
                near = min((left, up, corner), key=lambda value: abs(guess - value))
                row[i] = (row[i] + near) & 255
        rows.append(bytes(row))
        above = rows[-1]
    return width, height, rows, step


class PythonAgents(MachineCase):
    @classmethod
    def setUpClass(cls):
        cls.python = environment("agents", "openai-agents", "pandastack", constraints=os.path.join(HERE, "agents-constraints.txt"))
        if cls.python is None:
            print("skipped: openai-agents cannot be installed here (no package index in reach)")
        cls.client = machines.machines.client()
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        if self.python is None:
            self.skipTest("openai-agents cannot be installed here (no package index in reach)")

    def run_agent(self, model, *words, folder=HERE):
        environment = machines.machines.environment(OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1", PANDASTACK_API=machines.machines.url + "/pandastack",
                                                   PANDASTACK_API_KEY=machines.machines.key)
        done = subprocess.run([self.python, os.path.join(folder, words[0]), *words[1:]], env=environment, capture_output=True, text=True,
                              timeout=rig.HANG_SECS, cwd=self.folder())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def folder(self):
        if not hasattr(self, "made"):
            self.made = tempfile.TemporaryDirectory(prefix="ramet-sdk-agents-")
            self.addCleanup(self.made.cleanup)
        return self.made.name

    def test_first_page(self):
        with ModelServer(CODER) as model:
            # A machine for the conversation, then the user's next turn; it is stopped at the end, as the page advises.
            said = self.run_agent(model, "page_coder.py", "run_sync", "chat-42")
            self.assertIn(FIRST_20, said)
            self.assertIn("Their sum: exit code 0\nstdout:\n639", said)
            made = self.client.get_sandbox("chat-42")
            self.assertEqual((made["state"], made["labels"], made["ttl_secs"]), ("stopped", {"test": "page"}, 1200))
            outputs = model.shown(-1).outputs
            self.assertEqual(outputs[:3], [f"work/primes.py has {len(PRIMES)} characters", f"exit code 0\nstdout:\n{FIRST_20}\n", PRIMES])
            self.assertEqual(outputs[3], f"exit code 0\nstdout:\n{FIRST_20}\nchat-42\n")
            tools = {each["name"]: each for each in model.requests[0]["body"]["tools"]}
            self.assertEqual(sorted(tools), ["read_file", "run_command", "write_file"])
            self.assertEqual(sorted(tools["run_command"]["parameters"]["properties"]), ["command", "timeout_secs"])
            self.assertNotIn("chat-42", str(model.requests[0]["body"]))    # what travels in the context is not shown
            # The same conversation later: the machine goes on, and every way to run an agent works. What goes wrong goes to the
            # model, and nothing ends the conversation.
            model.requests.clear()
            said = self.run_agent(model, "page_coder.py", "run,run_streamed,chat,mishap", "chat-42")
            self.assertEqual((said.count(FIRST_20), said.endswith("\ndone\n")), (3, True), said)
            seen = [(each["path"], bool(each["body"].get("stream"))) for each in model.requests]
            self.assertEqual(seen[:9:3], [("/v1/responses", False), ("/v1/responses", True), ("/v1/chat/completions", False)])
            noisy, slow, slower, bytes_, missing, wrong = model.shown(-1).outputs
            self.assertTrue(noisy.startswith("exit code 3\nstdout:\n[cut] xx") and noisy.endswith("END\n") and len(noisy) < 20_100)
            slow = slow if "begun" in slow else slower
            self.assertTrue(slow.startswith("exit code") and "(timed out)" in slow and "begun" in slow, slow)
            self.assertEqual(bytes_, "exit code 0\nstdout:\n\ufffd\u2500\nstderr:\nno\n")
            self.assertIn("error", missing.lower())
            self.assertIn("error", wrong.lower())
            self.assertEqual([box["name"] for box in self.client.list_sandboxes(label="app=page")], [])

    def check_chart(self, path):
        with open(path, "rb") as file:
            width, height, rows, step = decode_png(file.read())
        self.assertGreaterEqual(min(width, height), 200)
        colours = {row[i:i + 3] for row in rows for i in range(0, len(row), step)}
        self.assertGreater(len(colours), 20)    # a line, its markers, letters: not blank
        # The line rises: its colour (matplotlib's first) is lower on the left than on the right.
        blue = [(x, y) for y, row in enumerate(rows) for x in range(width) if row[x * step:x * step + 3] == b"\x1f\x77\xb4"]
        self.assertGreater(len(blue), 100)
        self.assertGreater(min(blue)[1], max(blue)[1])

    def check_second_page(self, client):
        chart = os.path.join(self.folder(), client + ".png")
        with ModelServer(ANALYST) as model:
            said = self.run_agent(model, "page_analyst.py", client, chart)
            self.assertIn("The 15th is 610", said)
            self.assertIn("The last five: [89, 144, 233, 377, 610]", said)
            self.assertIn("table: True\ncharts: 2\n", said)
            outputs = model.shown(-1).outputs
            self.assertTrue(outputs[0].startswith("It failed:\n") and "IndexError" in outputs[0] and "fib[-3]" in outputs[0], outputs[0])
            self.assertEqual(outputs[1], "15th: 610\n")
            self.assertEqual(model.requests[0]["body"]["model"], "gpt-4o")
        self.check_chart(chart)

    def test_second_page(self):
        self.check_second_page("ramet")

    def test_second_page_with_the_published_package(self):
        """As on the page, `pandastack` and all: its base address and key are what changes."""
        self.check_second_page("pandastack")

    def test_examples(self):
        script = {
            "counts": [{"call": "save", "arguments": {"path": "count.py", "text": "import sys\nprint(len(sys.stdin.read().split()))\n"}},
                       {"calls": [{"call": "show", "arguments": {"path": "none.py"}},
                                  {"call": "shell", "arguments": {"command": "echo one two three | python3 count.py"}}]},
                       {"say": "It says: {output}"}],
            "triangular": [{"call": "python", "arguments": {"code": "t = [n * (n + 1) // 2 for n in range(1, 21)]\nt[20]"}},
                           {"match": "IndexError", "then": {"call": "python", "arguments": {"code":
                               "import matplotlib.pyplot as plt\nplt.semilogy(range(1, 21), t, marker='o')\nplt.show()\nt[-1]"}},
                            "else": {"say": "no"}},
                           {"say": "Seen: {output}"}],
        }
        with ModelServer(script) as model:
            said = self.run_agent(model, "coder_agent.py", "--conversation", "example", "a program that counts", folder=EXAMPLES)
            self.assertIn("It says: exit code 0\nstdout:\n3\n", said)
            self.assertIn("none.py", model.shown(-1).outputs[1])
            self.failure(404, "sandbox.not_found", self.client.get_sandbox, "example")
            said = self.run_agent(model, "analyst_agent.py", "--chart", "drawn.png", "the triangular numbers", folder=EXAMPLES)
            self.assertIn("Seen: 210\n[1 chart(s) drawn and kept]", said)
        self.check_chart(os.path.join(self.folder(), "drawn.png"))
