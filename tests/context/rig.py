# SPDX-License-Identifier: Apache-2.0
"""A context's supervisor as a child process, and what the daemon does with its events, in a few lines."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "vmglue", "guest", "context")
HANG_SECS = 300    # only to end a test that would hang


def find_python(modules):
    """An interpreter that has the modules: the guest's is Debian's."""
    for python in ("/usr/bin/python3", sys.executable):
        done = subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True)
        if done.returncode == 0:
            return python
    print(f"skipped: no Python with {', '.join(modules)} (tools/deps test installs it)")
    sys.exit(77)


class Execution:
    """What a run came to, as API.md has it; events are all that came, in order."""

    def __init__(self):
        self.events, self.stdout, self.stderr, self.results = [], "", "", []
        self.error = self.done = None

    def take(self, event):
        kind = event["event"]
        self.events.append(event)
        if kind in ("stdout", "stderr"):
            setattr(self, kind, getattr(self, kind) + event["text"])
        elif kind in ("result", "display"):
            self.results.append(event)
        elif kind == "update_display":
            same = [each for each in self.results if each.get("display_id") == event.get("display_id")]
            for each in same:
                each["data"] = event["data"]
            if not same:
                self.results.append(event)
        elif kind == "clear":
            self.stdout, self.stderr, self.results = "", "", []
        elif kind == "error":
            self.error = event
        elif kind == "done":
            self.done = event

    @property
    def text(self):
        values = [each["data"].get("text/plain") for each in self.results if each["event"] == "result"]
        return values[-1] if values else None

    def mime(self, kind):
        return [each["data"][kind] for each in self.results if kind in each["data"]]


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(HANG_SECS)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, **request):
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def event(self):
        line = self.file.readline()
        if not line:
            raise EOFError("the supervisor closed the connection")
        return json.loads(line)

    def collect(self, on_event=None):
        execution = Execution()
        numbers = []
        while execution.done is None:
            event = self.event()
            if event["event"] == "refused":
                raise AssertionError(event)
            if event["event"] == "answer":
                continue
            execution.take(event)
            numbers.append(event["seq"])
            if on_event is not None:
                on_event(event)
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        return execution

    def close(self):
        self.file.close()
        self.socket.close()


class Context:
    """A supervisor. `options` go to its command line, `env` over the test's own."""

    def __init__(self, python, *options, env=None, cwd=None):
        self.folder = tempfile.mkdtemp(prefix="ramet-context-", dir="/tmp")
        self.path, self.generation = self.folder + "/socket", self.folder + "/generation"
        os.mkdir(self.folder + "/home")
        full = {"PATH": os.environ["PATH"], "HOME": self.folder + "/home", "LANG": "C.UTF-8",
                "MPLCONFIGDIR": "/tmp/ramet-context-matplotlib"} | (env or {})
        self.process = subprocess.Popen(
            [python, "-I", "-S", DRIVER + "/supervisor.py", "--socket", self.path, "--generation", self.generation, *options],
            env=full, cwd=cwd or self.folder, stdin=subprocess.DEVNULL)
        limit = time.monotonic() + HANG_SECS
        while not os.path.exists(self.path):
            assert self.process.poll() is None and time.monotonic() < limit, "the supervisor did not start"
            time.sleep(0.01)
        self.connection = self.connect()

    def connect(self):
        return Connection(self.path)

    def run(self, code, timeout=HANG_SECS, on_event=None, op="run"):
        self.connection.send(op=op, run="1", code=code, timeout_ms=int(timeout * 1000))
        return self.connection.collect(on_event)

    def ask(self, op, **fields):
        other = self.connect()
        try:
            other.send(op=op, **fields)
            return other.event()
        finally:
            other.close()

    def set_generation(self, text):
        with open(self.generation + ".new", "w") as file:
            file.write(text)
        os.rename(self.generation + ".new", self.generation)

    def memory_kib(self, pid):
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

    def close(self):
        self.connection.close()
        if self.process.poll() is None:
            assert self.ask("shutdown")["op"] == "shutdown"
            status = self.process.wait(HANG_SECS)
            assert status == 0, f"the supervisor ended with {status}"
        shutil.rmtree(self.folder, ignore_errors=True)


class Case(unittest.TestCase):
    """One context for all tests of a class; each begins where the one before ended."""
    MODULES = ["IPython"]
    OPTIONS = ("--grace", "1")

    @classmethod
    def setUpClass(cls):
        cls.context = Context(PYTHONS[tuple(cls.MODULES)], *cls.OPTIONS)

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def run_code(self, code, timeout=HANG_SECS, **more):
        return self.context.run(code, timeout, **more)

    def good(self, code, **more):
        execution = self.run_code(code, **more)
        self.assertIsNone(execution.error, execution.error)
        return execution

    def bad(self, code, name, **more):
        execution = self.run_code(code, **more)
        self.assertIsNotNone(execution.error, execution.events)
        self.assertEqual(execution.error["name"], name, execution.error)
        return execution

    def value(self, code, **more):
        return self.good(code, **more).text

    def in_background(self, code, timeout=0):
        """A run on a connection of its own, and a function that waits for its execution."""
        connection, box, begun = self.context.connect(), [], threading.Event()
        self.addCleanup(connection.close)
        connection.send(op="run", run="2", code=code, timeout_ms=timeout)

        def collect():
            box.append(connection.collect(lambda event: begun.set() if event["event"] in ("stdout", "done") else None))

        thread = threading.Thread(target=collect)
        thread.start()

        def result():
            thread.join(HANG_SECS)
            return box[0]

        return begun, result


class Pythons(dict):
    def __missing__(self, modules):
        self[modules] = find_python(modules)
        return self[modules]


PYTHONS = Pythons()


def main(modules=("IPython",)):
    PYTHONS[tuple(modules)]    # skips the whole file when there is none
    signal.alarm(HANG_SECS * 4)
    unittest.main(verbosity=2)
