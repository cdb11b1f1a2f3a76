# SPDX-License-Identifier: Apache-2.0
"""The command line as a new user meets it, without machines: other hosts' daemons, JSON, tables, completion, pages, mistakes."""
import fcntl
import glob
import json
import os
import pty
import select
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import termios
import threading
import time

import rig

RAMET = rig.BIN + "/ramet"
PATIENCE_SECS = 3    # tools/ramet/completion.c's
BUILD = os.path.dirname(rig.BIN)
# Nothing of the tester's own environment may say where a daemon is.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("RAMET_", "COLUMNS", "NO_COLOR")) and
         name.lower() not in ("http_proxy", "https_proxy", "all_proxy")}


def run(*arguments, env=None, stdin=None):
    """Status, output, errors."""
    result = subprocess.run([RAMET, *arguments], capture_output=True, text=True, env={**CLEAN, **(env or {})}, input=stdin,
                            stdin=subprocess.DEVNULL if stdin is None else None, timeout=rig.HANG_SECS)
    return result.returncode, result.stdout, result.stderr


def on_terminal(arguments, columns=200, env=None):
    """What a command shows on a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen([RAMET, *arguments], stdin=follower, stdout=follower, stderr=follower,
                             env={**CLEAN, "TERM": "xterm", **(env or {})})
    os.close(follower)
    shown = b""
    try:
        while select.select([leader], [], [], rig.HANG_SECS)[0]:
            shown += os.read(leader, 65536)
    except OSError:    # the other side is closed
        pass
    os.close(leader)
    child.wait(rig.HANG_SECS)
    return shown.decode(errors="replace").replace("\r\n", "\n")


def all_verbs():
    return [line.split()[0] for line in run("help")[1].splitlines() if line.startswith("  ") and line[2:3].isalpha()]


class Remote(rig.Case):
    def setUp(self):
        super().setUp()
        self.daemon.stop()

    def certificate(self, name, names):
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                               "-subj", "/CN=test", "-addext", "subjectAltName=" + names, "-keyout", self.path(name + ".key"),
                               "-out", self.path(name + ".pem")], capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.path(name + ".pem"), self.path(name + ".key")

    def fails(self, word, *arguments, env=None, status=1):
        code, out, errors = run(*arguments, env=env)
        self.assertEqual((code, out), (status, ""), (arguments, errors))
        self.assertRegex(errors, word)
        self.assertNotIn("e2b_", errors)

    def test_by_tcp_with_a_key(self):
        self.daemon.start("--listen", "0")
        url, key = self.daemon.url, self.daemon.make_key()["key"]
        good = {"RAMET_API": url, "RAMET_API_KEY": key}
        self.assertEqual(run("volume", "create", "v", "1M", env=good)[0], 0)
        self.assertEqual(json.loads(run("--json", "volume", "ls", env=good)[1])[0]["name"], "v")
        key_file = self.write("key", key.encode() + b"\n")
        for more in (["--server", url, "--key-file", key_file], ["--server", url + "/", "--key-file=" + key_file],
                     ["--server", url + "/v1", "--key-file", key_file], ["--server", "unix://" + self.daemon.run + "/api.sock"]):
            self.assertEqual(run(*more, "volume", "show", "v")[0], 0, more)
            self.assertEqual(run("volume", "show", "v", *more)[0], 0, more)
        # --run goes before the environment's address, and --server before both.
        self.assertEqual(run("--run", self.daemon.run, "ls", env={"RAMET_API": "http://127.0.0.1:1"})[0], 0)
        # Bytes both ways.
        content = os.urandom(3 << 20)
        file = self.write("disk", content)
        self.assertEqual(run("volume", "import", "d", file, "--format", "raw", env=good)[0], 0)
        self.assertEqual(run("volume", "export", "d", self.path("back"), env=good)[0], 0)
        self.assertEqual(self.read("back"), content)
        self.assertEqual(run("export", "v", "d", self.path("all"), env=good)[0], 0)
        self.assertEqual(run("import", self.path("all"), "--prefix", "b-", env=good)[0], 0)
        self.assertEqual({v["name"] for v in json.loads(run("--json", "volume", "ls", env=good)[1])}, {"v", "d", "b-v", "b-d"})
        # What needs this host.
        self.fails("qemu-img convert", "volume", "import", "q", file, "--format", "qcow2", env=good, status=2)
        self.fails("own host", "volume", "export", "d", self.path("x.qcow2"), env=good, status=2)
        self.fails("log in", "up", "--server", url, status=2)
        self.fails("log in", "down", "--server", url, status=2)
        self.wrong_keys(url, key)

    def wrong_keys(self, url, key):
        self.fails("RAMET_API_KEY", "ls", env={"RAMET_API": url})
        self.fails("key", "ls", env={"RAMET_API": url, "RAMET_API_KEY": "e2b_" + "0" * 56})
        self.fails("one word", "ls", env={"RAMET_API": url, "RAMET_API_KEY": "two words"}, status=2)
        self.fails("no key", "ls", "--server", url, "--key-file", self.write("empty", b""), status=2)
        self.fails("cannot be read", "ls", "--server", url, "--key-file", self.path("nothing"), status=2)
        self.daemon.call("DELETE", "/v1/keys/test")
        self.fails("key", "ls", env={"RAMET_API": url, "RAMET_API_KEY": key})
        reader = self.daemon.make_key("reader", "read")["key"]
        self.fails("read", "volume", "rm", "v", env={"RAMET_API": url, "RAMET_API_KEY": reader})
        short = self.daemon.make_key("short", expires_in_secs=1)["key"]
        self.until(lambda: self.daemon.refuses(short))
        self.fails("expired", "ls", env={"RAMET_API": url, "RAMET_API_KEY": short})

    def test_addresses_that_lead_nowhere(self):
        self.daemon.start("--listen", "0")
        port = self.daemon.url.rsplit(":", 1)[1]
        for url, word in (("http://127.0.0.1:1", "nothing listens"), ("http://no-such-host.invalid", 'no host "no-such-host.invalid"'),
                          ("https://127.0.0.1:" + port, "http://"), ("unix:///nowhere/api.sock", "ramet up")):
            self.fails(word, "ls", "--server", url)
        self.fails("came from RAMET_API", "ls", env={"RAMET_API": "http://127.0.0.1:1"})
        for url in ("127.0.0.1:" + port, "ftp://x", "http://", "http://h:0", "http://h:99999", "http://h:x", "http://h/?q", "unix://relative",
                    "http://[::1", "http://a b"):
            self.fails("no address", "ls", "--server", url, status=2)
        self.fails("process lists", "ls", "--server", "http://user:secret@127.0.0.1:" + port, status=2)
        # Something that is no daemon.
        class Other(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.recv(1000)
                self.request.sendall(b"220 mail.example ESMTP\r\n")
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.fails("no Ramet daemon", "ls", "--server", f"http://127.0.0.1:{server.server_address[1]}")
            server.shutdown()

    def test_by_tls(self):
        if shutil.which("openssl") is None:
            self.skipTest("skipped: there is no openssl to make a certificate with")
        pem, key_pem = self.certificate("right", "DNS:localhost,IP:127.0.0.1")
        other, _ = self.certificate("other", "DNS:localhost,IP:127.0.0.1")
        self.daemon.start("--listen", "0", "--tls-cert", pem, "--tls-key", key_pem)
        url, key = self.daemon.url, {"RAMET_API_KEY": self.daemon.make_key()["key"]}
        good = {**key, "RAMET_API": url, "RAMET_CA": pem}
        self.assertTrue(url.startswith("https://"), url)
        content = os.urandom(5 << 20)
        file = self.write("disk", content)
        for words, env in ((("import", "d", file, "--format", "raw", "--server", url, "--ca", pem), key), (("export", "d", self.path("back")), good)):
            done = run("volume", *words, env=env)
            self.assertEqual(done[0], 0, (done, self.daemon.log()))
        self.assertEqual(self.read("back"), content)
        self.fails("not trusted", "ls", "--server", url, env=key)
        self.fails("not trusted", "ls", "--server", url, "--ca", other, env=key)
        self.fails("PEM", "ls", "--server", url, "--ca", self.path("nothing"), env=key)
        self.fails("https://", "ls", "--server", url.replace("https", "http"), env=key)
        wrong, wrong_key = self.certificate("wrong", "DNS:elsewhere.example")
        self.daemon.stop()
        self.daemon.start("--listen", "0", "--tls-cert", wrong, "--tls-key", wrong_key)
        self.fails("not trusted", "ls", "--server", self.daemon.url, "--ca", wrong, env=key)

    @staticmethod
    def is_connected(pid):
        def target(path):
            try:
                return os.readlink(path)
            except OSError:    # closed meanwhile, as is the file of a library
                return ""
        return any(target(path).startswith("socket:") for path in glob.glob(f"/proc/{pid}/fd/*") if int(path.rsplit("/", 1)[1]) > 2)

    def test_A03_a_daemon_that_never_answers(self):
        """Every verb ends with a sentence, by socket and by TCP."""
        self.daemon.start("--listen", "0")
        key = self.daemon.make_key()["key"]
        self.write("file", b"x" * (8 << 20))
        verbs = all_verbs()
        words = {"exec": ["box", "true"], "run": ["box", "1"], "context": ["ls", "box"], "job": ["ls", "box"], "url": ["ls", "box"],
                 "forward": ["box", "0:80"], "cp": [self.path("file"), "box:x"], "restore": ["box", "s"], "events": ["--follow"],
                 "volume": ["import", "v", self.path("file"), "--format", "raw"], "template": ["build", "t", "--tar", self.path("file")],
                 "store": ["gc"], "export": ["v", self.path("out")], "import": [self.path("file")], "key": ["ls"], "env": ["ls"],
                 "update": ["box", "--ttl", "1h"], "snapshots": [], "ls": [], "memory": [], "bench": [], "create": [], "metrics": ["box"], "lineage": []}
        silent = {"up", "down", "help", "version", "completion"}    # no daemon, or about its process
        self.assertTrue({"create", "shell", "fork"} <= set(verbs), verbs)
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            children = [(verb, subprocess.Popen([RAMET, "--run", self.daemon.run, verb, *words.get(verb, ["box"])], env=CLEAN, text=True,
                                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
                        for verb in verbs if verb not in silent]
            children.append(("ls by TCP", subprocess.Popen([RAMET, "--server", self.daemon.url, "ls"], text=True, stdin=subprocess.DEVNULL,
                                                           env={**CLEAN, "RAMET_API_KEY": key}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
            # Ctrl-C says that the daemon may still do it. What nohup had ignored stays so.
            child = subprocess.Popen([RAMET, "--run", self.daemon.run, "volume", "create", "late", "1M"], env=CLEAN, text=True, stderr=subprocess.PIPE,
                                     preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            self.until(lambda: child.poll() is not None or self.is_connected(child.pid))
            child.send_signal(signal.SIGHUP)
            child.send_signal(signal.SIGINT)
            self.assertRegex(child.communicate(timeout=rig.HANG_SECS)[1], "interrupted.*`ramet volume ls`")
            self.assertEqual(child.returncode, 130)
            for verb, child in children:
                out, errors = child.communicate(timeout=rig.HANG_SECS)
                child.stdout.close()
                child.stderr.close()
                self.assertEqual((child.returncode, out), (1, ""), (verb, errors))
                self.assertRegex(errors, "does not answer", verb)
            self.assertFalse(os.path.exists(self.path("out")))
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.until(lambda: run("--run", self.daemon.run, "ls")[0] == 0)    # it has all those calls to get rid of first


class Looks(rig.Case):
    def test_json_is_what_the_api_answers(self):
        ramet, call = self.daemon.json, lambda path: self.daemon.call("GET", path).json
        made = ramet("volume", "create", "v", "1M")
        self.assertEqual(made, call("/v1/volumes/v"))
        ramet("volume", "snapshot", "v", "s")
        ramet("volume", "fork", "s", "f")
        self.daemon.json("key", "create", "k")
        for words, path, field in ((["ls"], "/v1/sandboxes", "sandboxes"), (["volume", "ls"], "/v1/volumes", "volumes"),
                                   (["volume", "show", "v"], "/v1/volumes/v", None), (["snapshots"], "/v1/snapshots", "snapshots"),
                                   (["snapshots", "show", "s"], "/v1/snapshots/s", None), (["template", "ls"], "/v1/templates", "templates"),
                                   (["key", "ls"], "/v1/keys", "keys"), (["volume", "map", "v"], "/v1/volumes/v/map", None),
                                   (["volume", "diff", "s", "f"], "/v1/volumes/f/diff?from=s", None),
                                   (["events"], "/v1/events?follow=0", "events")):
            expected = call(path)
            self.assertEqual(ramet(*words), expected[field] if field else expected, words)
        self.assertEqual(ramet("store", "stat").keys(), call("/v1/store").keys())
        self.assertEqual(ramet("memory").keys(), call("/v1/memory").keys())
        for words in (["store", "gc"], ["store", "seal"], ["store", "scrub"], ["store", "check"], ["version"], ["env", "ls"]):
            ramet(*words)
        for words in (["volume", "resize", "v", "2M"], ["volume", "rename", "v", "w"], ["export", "w", "s", self.path("archive")],
                      ["import", self.path("archive"), "--prefix", "x-"], ["volume", "export", "w", self.path("disk")],
                      ["volume", "rm", "w"], ["snapshots", "rm", "s", "x-s"], ["key", "rm", "k"]):
            ramet(*words)
        # The options of every verb may stand before a part, and `snapshots` alone lists.
        ramet("volume", "create", "y", "1M")
        ramet("volume", "snapshot", "y", "before")
        self.assertEqual(json.loads(self.daemon.ramet("volume", "--json", "ls"))[-1]["name"], "y")
        self.assertEqual(ramet("snapshots", "rename", "before", "after")["name"], "after")
        self.assertEqual(json.loads(self.daemon.ramet("snapshots", "--json"))[-1]["name"], "after")
        self.assertEqual([row["verb"] for row in ramet("help")], all_verbs())
        # A failure is the API's object too.
        error = json.loads(self.daemon.ramet("--json", "show", "nobody", status=1))
        self.assertEqual(error["error"]["code"], "sandbox.not_found")
        self.assertEqual(ramet("rm", "--force", "nobody"), [])

    def test_tables(self):
        long = "a-rather-long-name-of-a-volume-here"
        for name in (long, "b"):
            self.daemon.ramet("volume", "create", name, "1M")
        words = ["--run", self.daemon.run, "volume", "ls"]
        wide, narrow = (on_terminal(words, columns, {"NO_COLOR": "1"}).splitlines() for columns in (200, 50))
        self.assertRegex(wide[0], r"^NAME +KIND +SIZE")
        self.assertEqual([line.index("disk") for line in wide[1:]], [len(long) + 2] * 2)
        self.assertTrue(all(len(line) <= 50 for line in narrow), narrow)
        self.assertIn("…", narrow[1])
        # A bar stays within its line, else it could not be taken back.
        self.daemon.ramet("export", long, "b", self.path("an-archive-with-a-long-name"))
        for columns in (20, 100):
            shown = on_terminal(["--run", self.daemon.run, "import", self.path("an-archive-with-a-long-name"), "--prefix", f"x{columns}-"], columns)
            bars = [bar for bar in shown.split("\n")[0].split("\r\033[K") if bar]
            self.assertTrue(any("%" in bar for bar in bars), shown)
            self.assertTrue(all(len(bar) < columns for bar in bars if "%" in bar), bars)
        piped = run(*words)[1].splitlines()
        self.assertEqual((len(piped), piped[0].split()[0]), (6, long))
        self.assertRegex(on_terminal(["--run", self.daemon.run, "ls"]), "NAME.*STATE")    # also where there is none
        for env, colored in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            shown = on_terminal(words, 200, env) + on_terminal(["--run", self.daemon.run, "show", "nobody"], 200, env)
            self.assertEqual("\033[" in shown, colored, env)
        self.assertNotIn("\033", "".join(run("--run", self.daemon.run, "show", "nobody")[1:]))

    def test_several_at_once_are_one_document(self):
        for name in ("a", "b"):
            self.daemon.ramet("volume", "create", name, "1M")
        removed = json.loads(self.daemon.ramet("--json", "volume", "rm", "a", "nobody", "b", status=1))
        self.assertEqual([thing.get("name") for thing in removed], ["a", None, "b"])
        self.assertEqual(removed[1]["error"]["code"], "volume.not_found")
        stopped = json.loads(self.daemon.ramet("stop", "x", "y", "--json", status=1))
        self.assertEqual([thing["error"]["code"] for thing in stopped], ["sandbox.not_found"] * 2)

    def test_output_that_goes_nowhere(self):
        for number in range(3):
            self.daemon.ramet("volume", "create", f"v{number}", "1M")
        here = [RAMET, "--run", self.daemon.run]
        for words in (["volume", "ls"], ["--json", "volume", "ls"], ["help"], ["help", "--man"], ["version"]):
            for redirection, status, said in ((">/dev/full", 1, "No space left|is there room"), (">&-", 1, "cannot be written"), ("| true", 141, "^$")):
                line = f'trap "" PIPE; "$@" {redirection}'
                if redirection == "| true":    # nobody has it open any more when this begins
                    line = 'exec 3> >(exec true); wait $!; "$@" >&3'
                result = subprocess.run(["bash", "-c", line, "bash", *here, *words], capture_output=True, text=True, env=CLEAN,
                                        stdin=subprocess.DEVNULL, timeout=rig.HANG_SECS, check=False)
                self.assertEqual(result.returncode, status, (words, redirection, result.stderr))
                self.assertRegex(result.stderr, said, (words, redirection))
        # What would be printed does not go to the daemon in the place of standard output.
        self.assertNotRegex(self.daemon.log(), "(?i)malformed|bad request")
        result = subprocess.run(["bash", "-c", '"$@" <&-', "bash", *here, "volume", "import", "x", "-", "--size", "1M"], capture_output=True,
                                text=True, env=CLEAN, timeout=rig.HANG_SECS, check=False)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertIn("standard input cannot be read", result.stderr)

    def test_an_interrupted_export_leaves_nothing(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        os.mkfifo(self.path("never"))
        reader = os.open(self.path("never"), os.O_RDONLY | os.O_NONBLOCK)
        child = subprocess.Popen([RAMET, "--run", self.daemon.run, "store", "import", self.path("never")], env=CLEAN,
                                 stderr=subprocess.PIPE, text=True)
        writer = os.open(self.path("never"), os.O_WRONLY)
        os.write(writer, b"RAMET")
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=rig.HANG_SECS)
        self.assertNotEqual(child.returncode, 0)
        os.close(writer)
        os.close(reader)
        self.assertEqual(len(self.daemon.json("volume", "ls")), 1)


class FirstTenMinutes(rig.Case):
    """What a new user does wrong, and the next step that each failure names."""

    def test_each_failure_says_the_next_step(self):
        run_dir, store = ["--run", self.daemon.run], self.daemon.store
        self.daemon.ramet("volume", "create", "data", "1M")
        self.daemon.ramet("volume", "snapshot", "data", "point")
        listener = socket.create_server(("127.0.0.1", 0))
        taken = str(listener.getsockname()[1])
        self.addCleanup(listener.close)
        other = ["--run", self.path("other")]
        table = [    # words, status, what the sentence must say
            (["--run", self.path("nowhere"), "ls"], 1, "ramet up"),
            (["lss"], 2, 'did you mean "ls"'), (["snapshto", "x"], 2, 'did you mean "snapshot'), (["frobnicate"], 2, "ramet help"), (["ps"], 2, 'did you mean "ls"'), (["help", "ssh"], 2, 'did you mean "shell"'),
            (["help", "sotre"], 2, 'did you mean "store"'), (["volume", "lst"], 2, 'did you mean "volume ls|"ls"'), (["volume"], 2, "import"),
            (run_dir + ["ls", "--jsno"], 2, "--json"), (run_dir + ["create", "--memroy", "1G"], 2, "--memory"),
            (run_dir + ["exec", "box"], 2, "COMMAND"), (run_dir + ["exec", "box", "--", "ls"], 1, "ramet ls"),
            (run_dir + ["create", "box"], 1, "ramet template build agent-base"),
            (run_dir + ["create", "box", "--from", "dat"], 1, 'did you mean "data"'),
            (run_dir + ["create", "box", "--from", "code-interpreter"], 1, "ramet template build code-interpreter"),
            (run_dir + ["create", "UPPER", "--from", "data"], 1, "a-z"), (run_dir + ["create", "box", "--from", "data", "--network", "some"], 1, "--network none"), (run_dir + ["create", "box", "--memory", "lots"], 2, "512M"),
            (run_dir + ["create", "box", "--ttl", "soon"], 2, "10m"), (run_dir + ["create", "box", "--env", "A B"], 2, "NAME=VALUE|A B"),
            (run_dir + ["create", "box", "--env-file", self.path("none")], 2, "cannot be read"),
            (run_dir + ["create", "box", "--env-file", store], 2, "cannot be read"),    # a folder
            (run_dir + ["template", "build", "warm", "--warm-code", store], 1, "cannot be read"),
            (run_dir + ["create", "box", "--from", "data", "--env", "A B=1"], 1, '"A B".* blanks'), (run_dir + ["env", "set", "A B=1"], 1, '"A B".* blanks'),
            (run_dir + ["create", "box", "--label", "x"], 2, "NAME=VALUE"),
            (run_dir + ["volume", "show", "dta"], 1, 'did you mean "data"'), (run_dir + ["snapshots", "show", "pont"], 1, 'did you mean "point"'),
            (run_dir + ["template", "show", "agent-base"], 1, "ramet template build"), (run_dir + ["shell", "box"], 1, "ramet ls"),
            (run_dir + ["update", "box"], 2, "what is to change"), (run_dir + ["snapshots", "sho"], 2, 'did you mean "snapshots show"'),
            (run_dir + ["volume", "--frob", "ls"], 2, "unknown option --frob"), (["--run", self.daemon.run + "/api.sock", "ls"], 1, "names the folder"),
            (["--server", "unix://" + self.daemon.run, "ls"], 1, "the socket itself"),
            (run_dir + ["cp", "a", "b"], 2, "NAME:PATH"), (run_dir + ["cp", self.path("none"), "box:x"], 1, "there is no|ramet ls"),
            (run_dir + ["forward", "box", "http"], 2, "8080:80"), (run_dir + ["volume", "create", "data", "1M"], 1, "taken|already"),
            (run_dir + ["volume", "create", "big", "huge"], 2, "512M"), (run_dir + ["import", self.path("none")], 1, "cannot be read"),
            (run_dir + ["key", "create", "k", "--preset", "root"], 1, "admin"), (run_dir + ["completion", "fish"], 2, "bash and zsh"),
            (run_dir + ["bench", "--rounds", "0"], 2, "1 to"), (run_dir + ["up", "--store", self.path("another")], 1, "--run"),
            (other + ["up", "--no-kernel", "--store", store], 1, "in use by process"),
            (other + ["up", "--no-kernel", "--store", self.path("new"), "--", "--listen", taken], 1, "another program listens"),
            (other + ["up", "--no-kernel", "--store", self.path("new"), "--", "--frob"], 1, "--help"),
            (["--run", "/proc/no", "up", "--no-kernel", "--store", self.path("new")], 1, "cannot be made"),
            (["store", "init", store], 1, "store|empty"),
        ]
        for words, status, said in table:
            with self.subTest(words=words):
                code, out, errors = run(*words)
                self.assertEqual((code, out), (status, ""), errors)
                self.assertRegex(errors, said)
                self.assertRegex(errors, r"^ramet")
                if "shell" in words:    # a terminal has no JSON
                    continue
                # For a program the same sentence, as one object on standard output.
                code, out, _ = run("--json", *words)
                self.assertEqual(code, status)
                self.assertRegex(json.loads(out)["error"]["message"] + errors, said)
                self.assertIn(json.loads(out)["error"]["message"], errors.split("\n")[0])
        code, out, errors = run(*run_dir, "exec", "-t", "-e", "A.B=1", "box", "true")    # a line of the shell sets it
        self.assertEqual((code, out), (2, ""), errors)
        self.assertIn('"A.B"', errors)

    def test_input_that_cannot_be_read_is_no_empty_input(self):
        folder = os.open(self.daemon.store, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        for words in (["exec", "box", "-i", "--", "cat"], ["run", "box", "-"], ["env", "set", "NAME"]):
            with self.subTest(words=words):
                done = subprocess.run([RAMET, "--run", self.daemon.run, *words], stdin=folder, capture_output=True, text=True,
                                      env=CLEAN, timeout=rig.HANG_SECS)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, r"\Aramet \w+( set)?: standard input cannot be read: .*\n\Z")    # and nothing was sent

    def test_a_full_store_says_so(self):
        self.daemon.stop()
        self.daemon.start("--quota", "340M")
        for number in range(12):    # until it is full: each is unlike the others, or they would be stored once
            file = self.write("much", os.urandom(64 << 20))
            code, _, errors = run("--run", self.daemon.run, "volume", "import", f"v{number}", file, "--format", "raw")
            if code != 0:
                break
        self.assertEqual(code, 1)
        self.assertRegex(errors, "(?i)space|quota|full")
        self.assertNotIn(f"v{number}", [v["name"] for v in self.daemon.json("volume", "ls")])

    def test_not_root(self):
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            self.skipTest("skipped: only root can become somebody else")
        os.chmod(self.root, 0o755)
        os.chmod(self.daemon.run, 0o755)
        program = shutil.copy(RAMET, self.path("ramet"))
        os.chmod(program, 0o755)
        result = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", program, "--run", self.daemon.run, "ls"], env=CLEAN,
                                capture_output=True, text=True, check=False, cwd="/")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "another user's; use sudo")

    def test_variables_come_from_files_and_this_environment(self):
        ramet = ["--run", self.daemon.run, "create", "box", "--from", "none"]
        for content, said in (("=x\n", "needs a name"), ("# fine\n\nNOWHERE\n", "line 3: NOWHERE has no value"), ("A=1\n", "no volume")):
            errors = run(*ramet, "--env-file", self.write("env", content.encode()))[2]
            self.assertIn(said, errors)
        self.assertIn("no volume", run(*ramet, "-e", "SECRET", env={"SECRET": "x"})[2])


class Shells(rig.Case):
    @staticmethod
    def patiently(complete, is_whole=bool):
        """What a completion offers. It gives up the daemon after three seconds, and offers nothing: on a busy host it is asked again."""
        limit = time.monotonic() + rig.HANG_SECS
        while True:
            begun = time.monotonic()
            offered = complete()
            if is_whole(offered) or time.monotonic() - begun < PATIENCE_SECS or begun > limit:
                return offered

    def bash(self, line, script=None):
        """What bash offers for that line."""
        return self.patiently(lambda: self.bash_once(line, script))

    def bash_once(self, line, script):
        script = script or f"source <({RAMET} completion bash)"
        program = script + '; COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; _ramet; printf "%s\\n" "${COMPREPLY[@]}"'
        result = subprocess.run(["bash", "--norc", "-c", program, "bash", line], capture_output=True, text=True, check=True, cwd=self.root,
                                env={**CLEAN, "RAMET_RUN": self.daemon.run, "PATH": rig.BIN + ":" + os.environ["PATH"]})
        self.assertEqual(result.stderr, "")
        return [word for word in result.stdout.splitlines() if word]

    def test_bash(self):
        self.daemon.ramet("volume", "create", "data", "1M")
        self.daemon.ramet("volume", "snapshot", "data", "point")
        self.daemon.ramet("key", "create", "mine")
        self.write("file.tar", b"")
        for line, words in (("ramet snaps", ["snapshot", "snapshots"]), ("ramet volume re", ["resize", "rename"]),
                            ("ramet volume show d", ["data"]), ("ramet --run " + self.daemon.run + " volume rm da", ["data"]),
                            ("ramet create --from p", ["point"]), ("ramet create --from=p", ["point"]),
                            ("ramet create --size ", ["small", "default", "large"]), ("ramet create --pers", ["--persistent"]),
                            ("ramet volume fork ", ["data", "point"]), ("ramet key rm ", ["mine"]), ("ramet help vol", ["volume"]),
                            ("ramet help volume fo", ["fork"]), ("ramet import fi", ["file.tar"]), ("ramet nonsense ", []),
                            ("ramet restore box po", ["point"]), ("ramet snapshots rm po", ["point"]), ("ramet snapshots re", ["rename"])):
            self.assertEqual(self.bash(line), words, line)
        self.assertEqual(self.bash("ramet "), all_verbs())
        # What a guest calls its files is no command of this shell.
        self.write("stub", b"#!/bin/sh\nprintf '%s\\n' 'box:a;reboot' 'box:$(reboot)' box:plain\n")
        os.chmod(self.path("stub"), 0o755)
        self.assertEqual(self.bash(self.path("stub") + " cp box:"), ["a\\;reboot", "\\$\\(reboot\\)", "plain"])
        # Every verb and part tells its options, and does nothing else.
        for verb in all_verbs():
            parts = run("completion", "words", verb, "")[1].split() if "|" in run("help", verb)[1].split("\n")[0] else []
            for part in [[part] for part in parts if not os.path.exists(self.path(part))] or [[]]:
                offered = run("completion", "words", verb, *part, "--")[1].split()
                if verb != "completion":
                    self.assertIn("--json", offered, (verb, part))
        self.daemon.stop()    # without a daemon there are no names, and no complaints
        self.assertEqual(self.bash("ramet volume show d"), [])
        self.daemon.start()

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("skipped: there is no zsh")
        self.daemon.ramet("volume", "create", "data", "1M")
        program = ('autoload -Uz compinit; compinit -u -D; source <(ramet completion zsh); print $_comps[ramet];'
                   'compadd() { local -a rest; while [[ $1 == -* ]]; do [[ $1 == -S ]] && shift; [[ $1 == -- ]] && { shift; break }; shift; done;'
                   'print -l -- $@ }; words=(ramet volume show d); CURRENT=4; _ramet;'
                   # What stands before the sign is not part of what is completed.
                   "compset() { print compset $@ }; words=(ramet create --from=d); CURRENT=3; _ramet")
        result = self.patiently(
            lambda: subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True, cwd=self.root,
                                   env={**CLEAN, "RAMET_RUN": self.daemon.run, "PATH": rig.BIN + ":" + os.environ["PATH"]}),
            lambda offered: offered.stdout.split().count("data") == 2)
        self.assertEqual(result.stdout.split(), ["_ramet", "data", "compset", "-P", "*=", "data"], result.stderr)

    def test_pages(self):
        for program, words in (("ramet", ["help", "--man"]), ("rametd", ["--man"])):
            page = subprocess.run([rig.BIN + "/" + program, *words], capture_output=True, check=True).stdout
            file = self.write(program + ".1", page)
            found = False
            for reader in (["man", "--warnings", "-l", file], ["mandoc", "-T", "lint", "-W", "warning", file]):
                if shutil.which(reader[0]) is None:
                    continue
                found = True
                result = subprocess.run(reader, capture_output=True, text=True, env={**CLEAN, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
                                        check=False)
                complaints = result.stderr + (result.stdout if reader[0] == "mandoc" else "")
                self.assertEqual(complaints, "", reader)
                if reader[0] == "man":
                    self.assertIn("NAME", result.stdout)
            if not found:
                self.skipTest("skipped: there is neither man nor mandoc")
        text = run("help", "--man")[1]
        for verb in self.bash("ramet "):
            self.assertIn(f'.SS "{verb}"', text)

    def test_an_installed_tree_works(self):
        if shutil.which("cmake") is None or not os.path.exists(BUILD + "/tools/cmake_install.cmake"):
            self.skipTest("skipped: there is no build tree to install from")
        home = self.path("usr")
        done = subprocess.run(["cmake", "--install", BUILD + "/tools", "--prefix", home], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        env = {"PATH": home + "/bin:" + os.environ["PATH"], "HOME": self.root, "RAMET_RUN": self.path("r"), "RAMET_STORE": self.path("s/store")}

        def installed(*words):
            result = subprocess.run([home + "/bin/ramet", *words], capture_output=True, text=True, env=env, cwd="/", check=False)
            self.assertEqual(result.returncode, 0, (words, result.stderr))
            return result.stdout
        installed("up", "--no-kernel")
        try:
            self.assertEqual(json.loads(installed("--json", "version"))["daemon"], installed("version").split()[1])
            installed("volume", "create", "v", "1M")
        finally:
            installed("down")
        for file in ("share/man/man1/ramet.1", "share/man/man1/rametd.1", "share/ramet/tools/image/kernel", "share/ramet/tools/lib.sh",
                     "share/ramet/vmglue/guest/context/supervisor.py", "libexec/ramet/ramet-keeper"):
            self.assertTrue(os.path.exists(home + "/" + file), file)
        subprocess.run([home + "/share/ramet/tools/image/kernel", "--help"], check=True, capture_output=True)
        self.assertEqual(self.bash("ramet volume cr", f"source {home}/share/bash-completion/completions/ramet"), ["create"])
        self.assertTrue(self.read("usr/share/zsh/site-functions/_ramet").startswith(b"#compdef ramet\n"))
        subprocess.run(["umount", "-l", self.path("r/mem")], capture_output=True, check=False)


if __name__ == "__main__":
    rig.need_root()
    rig.main()
