# SPDX-License-Identifier: Apache-2.0
"""The command line's terminal and its copies, on one machine: by the unix socket and by TCP with a key."""
import fcntl
import hashlib
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import rig

RAMET = rig.BIN + "/ramet"


class Screen:
    """A command on a terminal of its own: what is typed, what it shows, its end and the terminal's modes after it."""

    def __init__(self, case, *words, env=None, rows=24, columns=80):
        self.case, self.shown = case, b""
        self.leader, self.follower = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.follower)
        self.child = subprocess.Popen([RAMET, *words], stdin=self.follower, stdout=self.follower, stderr=self.follower, start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**os.environ, "TERM": "dumb", **(env or {})})
        case.addCleanup(self.close)

    def resize(self, rows, columns):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.leader, text.encode())

    def until(self, pattern):
        while not (found := re.search(pattern.encode(), self.shown)):
            self.case.assertTrue(select.select([self.leader], [], [], rig.HANG_SECS)[0], (pattern, self.shown))
            self.shown += os.read(self.leader, 65536)
        self.shown = self.shown[found.end():]
        return found.group().decode()

    def shows(self, pattern, seconds):
        """Whether it comes in that time."""
        limit = time.monotonic() + seconds
        while not re.search(pattern.encode(), self.shown):
            if not select.select([self.leader], [], [], max(0, limit - time.monotonic()))[0]:
                return False
            self.shown += os.read(self.leader, 65536)
        self.until(pattern)
        return True

    def end(self):
        """Its status. The terminal must be as it was."""
        while self.child.poll() is None:
            if select.select([self.leader], [], [], 0.05)[0]:
                self.shown += os.read(self.leader, 65536)
        while select.select([self.leader], [], [], 0)[0]:
            self.shown += os.read(self.leader, 65536)
        self.case.assertEqual(termios.tcgetattr(self.follower), self.before, "the terminal's modes were not restored")
        return self.child.returncode

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        for fd in (self.leader, self.follower):
            os.close(fd)


class Terminal(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.daemon.stop()
        self.daemon.start("--listen", "0")
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.daemon.ramet("create", "box", "--size", "small")
        self.here = ["--run", self.daemon.run]

    def sh(self, line, box="box", status=0):
        return self.daemon.ramet("exec", "-u", "root", box, line, status=status)

    def test_all(self):
        self.remote = {"RAMET_API": self.daemon.url, "RAMET_API_KEY": self.daemon.make_key()["key"]}
        for part in (self.keys_and_size, self.ways_out, self.without_a_terminal, self.exec_options, self.readers_that_leave, self.by_tcp, self.files, self.folders,
                     self.interrupted, self.between, self.bench, self.a_lost_daemon):
            with self.subTest(part=part.__name__):
                part()

    # ---- the terminal ----

    def keys_and_size(self):
        """Ctrl-C and Ctrl-Z end and stop what runs there, not this program; the size follows."""
        screen = Screen(self, *self.here, "shell", "box", rows=30, columns=100)
        screen.type("PS1=; stty size; echo fir''st\n")
        screen.until("30 100\r\n")
        screen.until("first")
        screen.resize(41, 123)
        screen.child.send_signal(signal.SIGWINCH)
        screen.type("while [ \"$(stty size)\" != '41 123' ]; do sleep 0.1; done; echo resi''zed\n")
        screen.until("resized")
        screen.type("sh -c 'echo be\"\"gin; exec sleep 1000'\n")
        screen.until("begin")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.type("jobs; fg\n")
        screen.until(r"Stopped[^\r]*\r\nsh -c")
        # The shell says what it brings back before it gives it the terminal: until then, Ctrl-C is the shell's.
        screen.type("\x03echo al''ive\n")
        while not screen.shows("alive", 2):
            screen.type("\x03echo al''ive\n")
        screen.type("kill -9 %1 2> /dev/null; exit 5\n")    # a job that goes on would keep the terminal open
        self.assertEqual(screen.end(), 5)

    def ways_out(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            screen = Screen(self, *self.here, "shell", "box")
            screen.type("echo re''ady\n")
            screen.until("ready")
            screen.child.send_signal(number)
            self.assertEqual(screen.end(), 128 + number)
        screen = Screen(self, *self.here, "shell", "box", "--", "sleep", "1000")
        screen.until("")
        self.until(lambda: "sleep" in self.sh("ps -eo comm"))
        screen.type("\r~.")
        self.assertEqual(screen.end(), 1)
        screen = Screen(self, *self.here, "shell", "box", "--", "stty -echo raw; echo go; head -c 3 | od -c")
        screen.until("go")
        screen.type("\r~~.")    # a ~ by two
        screen.until(r"\\r +~ +\.")
        self.assertEqual(screen.end(), 0)
        screen = Screen(self, *self.here, "shell", "boks")
        screen.until('did you mean "box"')
        self.assertEqual(screen.end(), 1)
        # Nothing stays there.
        self.until(lambda: self.sh("cat /proc/sys/kernel/pty/nr").strip() == "0")

    def without_a_terminal(self):
        for stdin in ("echo one; exit 3\n", "cat > got; exit 3\nsome text", "exit 3"):
            result = subprocess.run([RAMET, *self.here, "shell", "box"], input=stdin, capture_output=True, text=True, timeout=rig.HANG_SECS)
            self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        self.assertIn("some text", self.sh("cat /home/user/got"))

    def exec_options(self):
        screen = Screen(self, *self.here, "exec", "-it", "-e", "WORD=some thing", "box", "tty; echo \"$WORD\"; exit 4")
        screen.until("/dev/pts/")
        screen.until("some thing")
        self.assertEqual(screen.end(), 4)
        env = self.write("env", b"# a file\nA=1\nB=two words\n\nFROM_HERE\n")
        out = subprocess.run([RAMET, *self.here, "exec", "-i", "--env-file", env, "-e", "A=3", "box", "echo $A,$B,$FROM_HERE; cat"],
                             input="typed", capture_output=True, text=True, env={**os.environ, "FROM_HERE": "yes"})
        self.assertEqual(out.stdout, "3,two words,yes\ntyped", out.stderr)
        self.assertEqual(self.daemon.ramet("exec", "box", "--timeout", "0.5", "sleep 100", status=124), "")

    def readers_that_leave(self):
        """Nobody reads any more, or nothing fits: the program ends, and says so where it is a failure."""
        def line(words):
            return subprocess.run(["bash", "-c", f'trap "" PIPE; ramet() {{ "$RAMET" --run "$RUN" "$@"; }}; {words}; echo "${{PIPESTATUS[0]}}"'],
                                  env={**os.environ, "RAMET": RAMET, "RUN": self.daemon.run}, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=rig.HANG_SECS)
        self.sh("echo one > /dev/console")
        self.daemon.ramet("job", "start", "box", "--name", "ticks", "--", "sh", "-c", "echo first; sleep 1000")
        for words, out in (("ramet exec box yes | head -n 1", "y\n141\n"), ("ramet logs -f box | head -n 1", None), ("ramet events -f | true", "141\n"),
                           ("ramet job logs -f box ticks | head -n 1", "first\n141\n"), ("ramet shell box yes | head -n 1", None),
                           ("ramet exec box echo x > /dev/full", "1\n")):
            result = line(words)
            self.assertTrue(result.stdout.endswith("141\n") if out is None else result.stdout.replace("\r", "") == out, (words, result))
            self.assertEqual("cannot be written: No space left" in result.stderr, "full" in words, (words, result))
        self.until(lambda: "yes" not in self.sh("ps -eo comm").split())    # and the commands with it
        events = [json.loads(text) for text in self.daemon.ramet("--json", "job", "logs", "box", "ticks").splitlines()]
        self.assertEqual([(event["event"], event.get("text")) for event in events], [("stdout", "first\n"), ("end", None)])
        self.assertIn("one", self.daemon.json("logs", "box")["text"])
        self.assertEqual((self.daemon.ramet("ls", "-q"), self.daemon.ramet("ls", "-q", "--state", "paused")), ("box\n", ""))
        self.daemon.ramet("job", "rm", "--force", "box", "ticks")
        self.daemon.ramet("job", "show", "box", "ticks", status=1)
        self.assertIn("`ramet job ls box`", self.daemon.stderr)
        self.daemon.ramet("export", "box", self.path("archive"), status=1)
        self.assertIn("`ramet snapshot box --name NAME`", self.daemon.stderr)

    def by_tcp(self):
        def ramet(*words, **more):
            return subprocess.run([RAMET, *words], capture_output=True, text=True, env={**os.environ, **self.remote}, timeout=rig.HANG_SECS, **more)
        self.assertEqual(ramet("exec", "box", "echo far; exit 6").stdout, "far\n")
        screen = Screen(self, "shell", "box", "--", "echo far; exit 6", env=self.remote)
        screen.until("far")
        self.assertEqual(screen.end(), 6)
        self.sh("command -v python3 > /dev/null || command -v perl > /dev/null")
        self.assertEqual(ramet("cp", self.write("f", b"far"), "box:/tmp/f").returncode, 0)
        self.assertEqual(ramet("cp", "box:/tmp/f", "-").stdout, "far")
        forward = subprocess.Popen([RAMET, "forward", "box", "0:9"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **self.remote})
        port = int(re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline()).group(1))
        limits = resource.prlimit(forward.pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(forward.pid, resource.RLIMIT_NOFILE)[1]))
        with socket.create_connection(("127.0.0.1", port)) as sock:
            self.assertIn("no more connections", forward.stderr.readline())    # it has no descriptor for this one
            resource.prlimit(forward.pid, resource.RLIMIT_NOFILE, limits)
            self.assertEqual(sock.recv(10), b"")    # nothing listens there
        self.assertIn("port", forward.stderr.readline())
        forward.terminate()
        forward.communicate()

    # ---- copies ----

    def files(self):
        file = self.write("plain", os.urandom(100000))
        os.chmod(file, 0o751)
        ramet = self.daemon.ramet
        ramet("cp", file, "box:")
        ramet("cp", file, "box:new/folder/")
        ramet("cp", file, "box:new/name")
        self.assertEqual(self.sh("cd /home/user; stat -c '%a %U' plain new/folder/plain new/name").split("\n")[:3], ["751 user"] * 3)
        ramet("cp", "box:new/name", self.path("back"))
        self.assertEqual((self.read("back"), os.stat(self.path("back")).st_mode & 0o777), (self.read("plain"), 0o751))
        ramet("cp", "box:new/name", self.path("made/"))
        self.assertEqual(self.read("made/name"), self.read("plain"))
        self.assertEqual(ramet("cp", "box:/etc/hostname", "-"), "box\n")
        ramet("cp", "-", "box:/tmp/typed", stdin="typed")
        self.assertEqual(self.sh("cat /tmp/typed"), "typed")
        ramet("cp", file, self.path("back"), "box:several", status=1)    # no such folder
        self.sh("mkdir /tmp/several")
        ramet("cp", file, self.path("back"), "box:/tmp/several")
        self.assertEqual(self.sh("ls /tmp/several"), "back\nplain\n")
        for words, said in ((["box:nothing", "."], "there is no nothing in box"), ([self.path("nothing"), "box:"], "there is no"),
                            ([file + "/.", "box:x"], "is a file"), (["-", "box:/tmp/"], "how the file is to be called"),
                            ([file, "boks:x"], 'did you mean "box"')):
            ramet("cp", *words, status=2 if words[0] == "-" else 1)
            self.assertIn(said, self.daemon.stderr)

    def tree(self):
        """A folder with everything that a copy must keep."""
        top = self.path("tree")
        os.makedirs(top + "/deep/er")
        os.makedirs(top + "/a b")
        for name, content, mode in (("run", b"#!/bin/sh\n", 0o755), ("deep/er/secret", b"s", 0o600), ("a b/\u00fc", b"", 0o644), ("x" * 130, b"long", 0o644),
                                    ("big", os.urandom(1 << 20), 0o640)):
            with open(f"{top}/{name}", "wb") as file:
                file.write(content)
            os.chmod(f"{top}/{name}", mode)
        os.symlink("../run", top + "/deep/link")
        os.symlink("/nowhere", top + "/dangling")
        return top

    def look(self, folder):
        """What is there, as find tells it, here and in the machine."""
        line = "find . -mindepth 1 -printf '%P %y %m %l\\n' | LC_ALL=C sort; find . -type f -exec md5sum {} + | LC_ALL=C sort"
        if ":" in folder:
            box, path = folder.split(":")
            return self.sh(f"cd /home/user; cd {path}; {line}", box)
        return subprocess.run(["bash", "-c", f"cd {folder}; {line}"], check=True, capture_output=True, text=True).stdout

    def folders(self):
        ramet, top = self.daemon.ramet, self.tree()
        ramet("cp", top, "box:copy")
        self.assertEqual(self.look("box:copy"), self.look(top))
        self.assertEqual(self.sh("stat -c %U /home/user/copy/big /home/user/copy/deep").split(), ["user"] * 2)
        ramet("cp", "-r", "box:copy", self.path("out"))
        self.assertEqual(self.look(self.path("out")), self.look(top))
        ramet("cp", top, "box:copy")    # it exists: into it
        self.assertEqual(self.look("box:copy/tree"), self.look(top))
        ramet("cp", top + "/.", "box:/opt/contents")    # what is in it
        self.assertEqual(self.look("box:/opt/contents"), self.look(top))
        os.makedirs(self.path("there/deep"))
        self.write("there/deep/own", b"own")
        ramet("cp", "box:/opt/contents/.", self.path("there"))    # merged
        self.assertEqual(self.read("there/deep/own"), b"own")
        self.assertEqual(hashlib.md5(self.read("there/big")).digest(), hashlib.md5(self.read("tree/big")).digest())
        ramet("cp", top, "box:/etc/hostname", status=1)
        self.assertIn("is a file", self.daemon.stderr)
        ramet("cp", "box:copy", "-", status=2)
        self.assertIn("tar", self.daemon.stderr)
        self.no_leftovers()

    def no_leftovers(self):
        self.assertEqual(self.sh("find / -xdev -name '.ramet-cp-*'"), "")
        self.assertEqual([name for name in os.listdir(self.root) if name.startswith(".ramet-cp-") or ".XXXXXX" in name], [])

    def takes_signals(self, pid):
        """SIGINT is blocked: a thread waits for it."""
        with open(f"/proc/{pid}/status") as file:
            blocked = re.search(r"SigBlk:\s+([0-9a-f]+)", file.read())
        return int(blocked.group(1), 16) >> (signal.SIGINT - 1) & 1

    def interrupted(self):
        """Ctrl-C in the middle, both ways: no name appears, nothing half-made stays."""
        os.makedirs(self.path("slow"))
        with open(self.path("slow/big"), "wb") as file:
            file.truncate(3 << 30)    # of zeros, more than is sent before the signal comes
        folder, file = [self.path("slow"), "box:/opt/slow"], [self.path("slow/big"), "box:/opt/big"]
        for words in (folder, folder, folder, folder, file):    # of a folder something is made there first: at any moment of that
            child = subprocess.Popen([RAMET, *self.here, "cp", *words], stderr=subprocess.PIPE, text=True)
            self.until(lambda: child.poll() is not None or self.takes_signals(child.pid))
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=rig.HANG_SECS)
            self.assertEqual(child.returncode, 130)
        self.assertNotIn("slow", self.sh("ls /opt"))
        self.assertNotIn("big", self.sh("ls /opt"))
        os.unlink(self.path("slow/big"))
        # Out of it.
        self.sh("mkdir /opt/large; truncate -s 3G /opt/large/zeros")
        child = subprocess.Popen([RAMET, *self.here, "cp", "box:/opt/large", self.path("large")], stderr=subprocess.PIPE, text=True)
        self.until(lambda: child.poll() is not None or any(name.startswith(".ramet-cp-") for name in os.listdir(self.root)))
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=rig.HANG_SECS)
        self.assertEqual(child.returncode, 130)
        self.assertFalse(os.path.exists(self.path("large")))
        self.sh("rm -r /opt/large")
        self.until(lambda: self.sh("find / -xdev -name '.ramet-cp-*'") == "")
        self.no_leftovers()

    def between(self):
        self.daemon.ramet("fork", "box", "--name", "twin")
        self.sh("rm -rf /home/user/copy", "twin")
        self.daemon.ramet("cp", "box:copy/big", "twin:/tmp/big")
        self.daemon.ramet("cp", "box:copy", "twin:")
        self.assertEqual(self.look("twin:copy"), self.look("box:copy"))
        self.daemon.ramet("rm", "twin")

    def bench(self):
        result = self.daemon.json("bench", "--rounds", "1")
        self.assertEqual({row["what"] for row in result["results"]}, {"create", "exec", "snapshot", "snapshot_pause", "snapshot_ready", "resume", "fork",
                                                                     "fork_pause", "fork_4", "stop", "start", "rm"})
        self.assertTrue(all(row["median_ms"] >= 0 and row["count"] >= 1 for row in result["results"]))
        self.assertEqual([box["name"] for box in self.daemon.json("ls")], ["box"])
        self.assertEqual(self.daemon.json("snapshots"), [])

    def a_hanging_daemon(self):
        """A03: it is noticed after a key (within 20 s)."""
        screen = Screen(self, *self.here, "shell", "box")
        screen.type("echo re''ady\n")
        screen.until("ready")
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            screen.type("x")
            screen.until("does not answer")
            self.assertEqual(screen.end(), 1)
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)

    def a_lost_daemon(self):
        """It ends under a terminal: a sentence, the terminal's modes as before."""
        if os.environ.get("RAMET_TEST_LONG") == "1":
            self.a_hanging_daemon()
        screen = Screen(self, *self.here, "shell", "box")
        screen.type("echo re''ady\n")
        screen.until("ready")
        self.daemon.kill()
        screen.until("broke off")
        self.assertEqual(screen.end(), 1)
        self.daemon.start()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
