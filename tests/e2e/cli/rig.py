# SPDX-License-Identifier: Apache-2.0
"""A store, a run directory and a daemon for each test, and both ways to speak to it: the command line and the API."""
import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

BIN = os.environ.get("RAMET_BIN", "")
HANG_SECS = 300    # only to end a test that would hang


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("ramet", timeout=HANG_SECS)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    @property
    def message(self):
        return self.json["error"]["message"]


def exchange(connection, method, path, body, headers):
    if body is not None and not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    try:
        try:
            connection.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass    # refused with words before all was sent, or it is gone, which the next line says
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


class Daemon:
    """rametd as a child; its log is kept in memory's place, a file, and shown when a test fails."""

    def __init__(self, root, kernel_dir=None, pool=0):
        self.root, self.kernel_dir, self.pool = root, kernel_dir, pool
        self.store, self.run = root + "/store", root + "/run"
        self.process = None

    def start(self, *options):
        command = [BIN + "/rametd", "--store", self.store, "--run", self.run, "--pool", str(self.pool), *options]
        if self.kernel_dir:
            command += ["--kernel-dir", self.kernel_dir]
        with open(self.root + "/log", "ab") as log:
            before = log.tell()
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        limit = time.monotonic() + HANG_SECS
        # It answers a little before it says where on TCP.
        while not self.answers() or not self.is_ready(before):
            if self.process.poll() is not None or time.monotonic() > limit:
                raise AssertionError("the daemon did not start:\n" + self.log())
            time.sleep(0.01)

    def is_ready(self, position):
        with open(self.root + "/log", "rb") as file:
            file.seek(position)
            return b"rametd: ready: " in file.read()

    def answers(self):
        try:
            return self.call("GET", "/version").status == 200
        except OSError:
            return False

    def log(self):
        with open(self.root + "/log", errors="replace") as file:
            return file.read()

    @property
    def url(self):
        """Of the API on TCP, when it was started with "--listen"."""
        return re.findall(r"ready: API on \S+ and (https?://[^,\s]+)", self.log())[-1]

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if self.process is not None:
            status = self.process.wait(HANG_SECS)
            self.process = None
            assert status == 0, f"rametd ended with {status}:\n{self.log()}"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def call(self, method, path, body=None, headers=None):
        return exchange(UnixConnection(self.run + "/api.sock"), method, path, body, headers or {})

    def make_key(self, name="test", preset="admin", **more):
        """A key for the API on TCP (the daemon was started with "--listen"): the answer, whose "key" is the secret."""
        answer = self.call("POST", "/v1/keys", {"name": name, "preset": preset, **more})
        assert answer.status == 201, answer.body
        return answer.json

    def call_tcp(self, method, path, body=None, key=None, headers=None):
        """The same as call, over TCP, with a key's secret or without one."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=HANG_SECS)
        headers = dict(headers or {})
        if key is not None:
            headers["Authorization"] = "Bearer " + key
        return exchange(connection, method, path, body, headers)

    def refuses(self, key):
        """Whether a key's time is over. A call that goes on at that moment is broken off, without an answer."""
        try:
            return self.call_tcp("GET", "/v1/store", key=key).status == 401
        except (http.client.HTTPException, OSError):
            return False

    def ramet(self, *arguments, status=0, stdin=None, text=True):
        """Runs the command line; checks its exit status; returns what it printed."""
        result = subprocess.run([BIN + "/ramet", "--run", self.run, *arguments], input=stdin, capture_output=True,
                                text=text, timeout=HANG_SECS,
                                stdin=subprocess.DEVNULL if stdin is None else None)
        assert result.returncode == status, (f"ramet {' '.join(map(str, arguments))} ended with {result.returncode}, not "
                                             f"{status}:\n{result.stdout}{result.stderr}\nlog:\n{self.log()}")
        self.stderr = result.stderr
        return result.stdout

    def json(self, *arguments):
        return json.loads(self.ramet("--json", *arguments))

    def uri(self, name):
        return f"nbd+unix:///{name}?socket={self.run}/nbd.sock"

    # ---- what must not be left over ----

    def vmms(self):
        """(pid, sandbox id) of this store's machines."""
        tag = "ramet-" + self.call("GET", "/v1/store").json["id"].replace("-", "") + "/"
        return {pid: name[len(tag):].split(",")[0] for pid, name in vmm_names() if name.startswith(tag)}

    def folders(self):
        return sorted(os.listdir(self.run + "/vm")) if os.path.isdir(self.run + "/vm") else []

    def keeper_pids(self):
        return [pid for pid, words in commands() if words[0].endswith("ramet-keeper") and self.run in words[1:]]


def commands():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = [word.decode(errors="replace") for word in file.read().split(b"\0")[:-1]]
        except OSError:
            continue
        if words:
            yield int(path.split("/")[2]), words


def stands_still(pid):
    """Stops a process; false when it has ended by then."""
    try:
        os.kill(pid, signal.SIGSTOP)
        while True:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
            if state in "TZX":
                return state == "T"
    except OSError:
        return False


def stopped_copier(child, path):
    """The qemu-img that copies to or from that path for a child, stopped in the middle; None when the child was through before."""
    limit = time.monotonic() + HANG_SECS
    while child.poll() is None:
        for pid, words in commands():
            if words[0] == "qemu-img" and "convert" in words and any(path in word for word in words) and stands_still(pid):
                return pid
        if time.monotonic() > limit:
            raise AssertionError("waited in vain for a copy of " + path)
        time.sleep(0.02)
    return None


def vmm_names():
    for pid, words in commands():
        if "qemu-system" in words[0] and "-name" in words:
            yield pid, words[words.index("-name") + 1]


class Case(unittest.TestCase):
    KERNEL = False
    POOL = 0    # leftovers are counted everywhere: only the tests of the pool have one

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="ramet-cli-", dir="/tmp")
        self.daemon = Daemon(self.root, os.environ["RAMET_KERNEL_DIR"] if self.KERNEL else None, self.POOL)
        self.addCleanup(self.clean_up)
        self.daemon.ramet("store", "init", self.daemon.store)
        self.daemon.start(*self.options())

    def options(self):
        """More of the daemon's options than every test has."""
        return ()

    def clean_up(self):
        failed = any(error for _, error in self._outcome.errors) if hasattr(self._outcome, "errors") else False
        try:
            if self.daemon.process is None or self.daemon.process.poll() is not None:
                self.daemon.start()
            for box in self.daemon.json("ls"):
                self.daemon.ramet("rm", "--force", box["name"])
            self.daemon.stop()
        finally:
            if failed:
                print(self.daemon.log())
            subprocess.run(["umount", "-l", self.daemon.run + "/mem"], capture_output=True)
            shutil.rmtree(self.root, ignore_errors=True)

    def until(self, condition):
        """Waits until it holds and returns what it said; the test's time limit ends a wait in vain."""
        limit = time.monotonic() + HANG_SECS
        while not (found := condition()):
            self.assertLess(time.monotonic(), limit, "waited in vain\n" + self.daemon.log())
            time.sleep(0.05)
        return found

    def path(self, name):
        return f"{self.root}/{name}"

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()


class MachineCase(Case):
    """With something to boot from: the test image, as the volume that sandboxes are made of by default."""
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")

    def sh(self, name, line, **more):
        return self.daemon.ramet("exec", name, line, **more)

    def start_program(self, box, name, text, *arguments):
        """A Python program that goes on in the background of a sandbox; what it prints is in NAME.log there."""
        self.daemon.ramet("cp", self.write("program", text.encode()), f"{box}:{name}.py")
        self.sh(box, f"setsid python3 {name}.py {' '.join(arguments)} > {name}.log 2>&1 < /dev/null &")


def need_root():
    if os.geteuid() != 0:
        skip("the daemon mounts memory images, which needs root here")
    if not os.path.exists("/dev/fuse"):
        skip("there is no /dev/fuse")


def need_machines():
    need_root()
    for name in ("RAMET_KERNEL_DIR", "RAMET_IMAGE"):
        if not os.environ.get(name) or not os.path.exists(os.environ[name]):
            skip(f"{name} names nothing to boot from (tools/image/ensure makes it)")
    if shutil.which("qemu-system-x86_64") is None:
        skip("there is no qemu-system-x86_64")


def main():
    if not BIN:
        skip("RAMET_BIN does not say where the programs are")
    # A shell that put us into the background has it ignored, which all that we start would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2)
