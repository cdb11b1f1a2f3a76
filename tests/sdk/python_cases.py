# SPDX-License-Identifier: Apache-2.0
"""Cases of the field through the Python client, in both of its forms: floods, bytes that are no text, lost answers, cut streams, silence."""
import asyncio
import gc
import hashlib
import os
import time
import urllib.parse

import fake
import machines
import ramet
import rig
from machines import MachineCase, Sync, Twin

CHARACTERS = "─😀"
# Each byte by itself, so that every reader on the way sees characters in pieces.
SLOWLY = "for byte in " + CHARACTERS.encode().hex(" ") + "; do printf \"\\\\x$byte\" >&{fd}; sleep 0.02; done"
SLOWLY_PYTHON = f"import os, time\nfor byte in {CHARACTERS!r}.encode():\n    os.write(1, bytes([byte])); time.sleep(0.02)"


class PythonCases(MachineCase):
    def proxy(self):
        address = urllib.parse.urlsplit(machines.machines.url)
        proxy = fake.Proxy(address.hostname, address.port)
        self.addCleanup(proxy.close)
        return proxy

    def until(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.05)

    def through(self, proxy):
        for form in (Sync, Twin):
            driver = form(proxy.url, machines.machines.key)
            self.addCleanup(driver.close)
            self.tried = form.__name__
            yield driver

    def test_X01_flood(self):
        pieces = 4800 if os.environ.get("RAMET_TEST_LONG") else 288    # of 64 KiB: 18 MiB on each, or 300
        flood = ("python3 -c \"import os, threading\nfor fd in (1, 2): threading.Thread(target=lambda fd=fd: "
                 f"[os.write(fd, b'x' * 65536) for _ in range({pieces})]).start()\"; exit 3")
        for each in self.through_both():
            sizes = {"stdout": 0, "stderr": 0}
            for event in each.exec_stream(self.box, flood):
                if event.kind in sizes:
                    sizes[event.kind] += len(event["text"])
            self.assertEqual((event["exit_code"], sizes), (3, {"stdout": pieces << 16, "stderr": pieces << 16}))
        done = self.client.exec(self.box, flood)
        self.assertEqual((done["exit_code"], done["truncated"]), (3, True))
        self.assertEqual((len(done["stdout"]), len(done["stderr"])), (16 << 20, 16 << 20))
        code = self.client.run_code(self.box, "python", "!head -c 6000000 /dev/zero | tr '\\0' x; head -c 6000000 /dev/zero >&2")
        self.assertTrue(code["truncated"] and len(code["stdout"]) == 4 << 20)
        self.assertEqual(self.client.run_code(self.box, "python", "1 + 1")["text"], "2")

    def test_X01_slow_reader(self):
        """One that stops reading is waited for, and nobody else: the command stands, other calls go on."""
        for each in self.both():
            stream = each.exec_stream(self.box, "head -c 50000000 /dev/zero | tr '\\0' x; echo done > /tmp/went")
            first = next(stream)
            for _ in range(20):
                self.assertEqual(each.exec(self.box, "cat /tmp/went 2> /dev/null; rm -f /tmp/went")["stdout"], "")
            rest = list(stream)
            self.assertEqual(len(first["text"]) + sum(len(event["text"]) for event in rest[:-1]), 50_000_000)
            self.assertEqual(each.exec(self.box, "cat /tmp/went; rm /tmp/went")["stdout"], "done\n")

    def test_X02_bytes(self):
        every = bytes(range(256)) * 40
        digest = hashlib.sha256(every).hexdigest()
        for each in self.through_both():
            box = each.sandbox(each.sync.get_sandbox(self.box))
            self.assertIn(digest, box.exec("sha256sum", stdin=every).stdout)
            done = box.exec("cat; cat >&2 <<< $'\\xff\\x00\\x80'", stdin=every, encoding="base64")
            self.assertEqual((done.stdout_bytes, done.stderr_bytes), (every, b"\xff\n"))
            lossy = each.exec(self.box, "printf 'a\\377\\200b'; printf '\\376' >&2")
            self.assertEqual((lossy["stdout"], lossy["stderr"]), ("a\ufffd\ufffdb", "\ufffd"))
            each.write_file(self.box, every, "every")
            self.assertEqual(each.read_file(self.box, "every"), every)
            noise = list(each.exec_stream(self.box, "head -c 65536 /dev/urandom"))
            self.assertEqual(noise[-1]["exit_code"], 0)
            name = os.fsdecode(b"n\xff")    # a file whose name is no text can be named all the same
            each.exec(self.box, "echo in it > $'n\\xff'")
            self.assertEqual(each.read_file(self.box, name), b"in it\n")

    def test_X03_cut_characters(self):
        for each in self.through_both():
            for fd, name in ((1, "stdout"), (2, "stderr")):
                events = list(each.exec_stream(self.box, SLOWLY.format(fd=fd)))
                self.assertEqual("".join(event["text"] for event in events if event.kind == name), CHARACTERS)
                job = each.start_job(self.box, SLOWLY.format(fd=fd))
                self.assertEqual("".join(event["text"] for event in each.job_logs(self.box, job["id"]) if event.kind == name), CHARACTERS)
            events = list(each.run_code_stream(self.box, "python", SLOWLY_PYTHON))
            self.assertEqual("".join(event["text"] for event in events if event.kind == "stdout"), CHARACTERS)
            done = each.exec(self.box, "python3 -c 'print(\"─\" * 100000)'; printf '\\342\\224'")
            self.assertEqual(done["stdout"].rstrip("\ufffd"), "─" * 100000 + "\n")    # U+FFFD for the unfinished one alone
            self.assertIn("\ufffd", done["stdout"])
            pty = each.open_pty(self.box, command=SLOWLY.format(fd=1))
            shown = b""
            while piece := pty.recv(rig.HANG_SECS):
                shown += piece
            self.assertEqual(shown.decode(), CHARACTERS)

    def test_X04_lone_surrogates(self):
        for each in self.through_both():
            run = lambda code: each.run_code(self.box, "python", code)    # noqa: E731
            self.assertEqual(run("print('\\ud800')")["error"]["name"], "UnicodeEncodeError")
            self.assertEqual(run("'\\udead'")["text"], "'\\udead'")
            self.assertEqual(run("raise Exception('\\ud8ff')")["error"]["value"], "\\ud8ff")
            shown = run("from IPython.display import JSON, display\ndisplay(JSON({'a': '\\ud8ff'}))")
            self.assertEqual(len(shown["results"]), 1)
            self.assertEqual(run("1 + 1")["text"], "2")
            with self.assertRaises(ramet.RametError) as caught:    # in the code itself: refused before it is sent
                run("'\ud800'")
            self.assertIn("surrogate", caught.exception.message)

    def test_X05_X06_X08_code_that_ends_otherwise(self):
        """Interrupted it keeps its state; out of time, asking or dead it says so; the next run works and says what is lost."""
        for each in self.through_both():
            events = []
            for event in each.run_code_stream(self.box, "python", "import time\nkept = 41\nprint('on', flush=True)\ntime.sleep(3600)"):
                events.append(event)
                if event.kind == "stdout":
                    self.assertTrue(each.interrupt_context(self.box, "python")["interrupted"])
            self.assertEqual([event.get("name") for event in events if event.kind == "error"], ["KeyboardInterrupt"])
            self.assertEqual((events[-1]["interrupted"], events[-1]["state_lost"]), (True, None))
            asked = each.run_code(self.box, "python", "kept += 1; input('name? ')", timeout_secs=600)
            self.assertEqual((asked["error"]["name"], asked["timed_out"]), ("EOFError", False))
            self.assertEqual(each.run_code(self.box, "python", "kept")["text"], "42")
            # What costs a context its state is tried where a new process is there at once.
            made = each.create_context(self.box, language="bash")["id"]
            self.assertTrue(each.run_code(self.box, made, "kept=1; sleep 3600", timeout_secs=1)["timed_out"])
            each.run_code(self.box, made, "true")    # which may hear that the last one had to be killed
            died = each.run_code(self.box, made, "exit 5")
            self.assertEqual((died["error"]["name"], died["exit_code"]), ("ContextDied", 5))
            self.assertIn("status 5", died["state_lost"])
            anew = each.run_code(self.box, made, "echo \"<$kept>\"")
            self.assertEqual(anew["stdout"], "<>\n")
            self.assertIn("began with nothing", anew["state_lost"])
            each.delete_context(self.box, made)

    def test_X13_big_results(self):
        scale = 4 if os.environ.get("RAMET_TEST_LONG") else 1
        code = """
import pandas as pd, numpy as np
table = pd.DataFrame(np.zeros((20000, 50)))
class Big:
    def _repr_html_(self): return "<b>" + "x" * (2 << 20) + "</b>"
for i in range(2000): print("\\r", i, end="")
print()
print("y" * 1000000)
shown = display(Big(), display_id="it")
table
"""
        whole = self.client.run_code(self.box, "python", code)
        self.assertIsNone(whole["error"])
        self.assertEqual(len(whole["results"][0]["html"]), (2 << 20) + 7)
        self.assertIn("20000 rows", whole["text"])
        self.assertIn("\r 0\r 1", whole["stdout"])
        self.assertIn("y" * 1000000, whole["stdout"])
        for each in self.both():
            pieces = []
            context = each.sandbox(each.sync.get_sandbox(self.box)).context("python")
            streamed = context.run_code(code, on_stdout=pieces.append)
            self.assertEqual(("".join(pieces), streamed.text), (whole["stdout"], whole["text"]))
            self.assertEqual([result.html for result in streamed.results], [result.get("html") for result in whole["results"]])
            line = each.exec(self.box, f"head -c {scale * 4000000} /dev/zero | tr '\\0' z")    # one line
            self.assertEqual(line["stdout"], "z" * scale * 4_000_000)
            # An update takes its display's place, clear_output what was before.
            ran = context.run_code("h = display('old', display_id='u')\nprint('gone')\nfrom IPython.display import clear_output, update_display\n"
                                   "update_display('new', display_id='u')\nclear_output(wait=True)\ndisplay('last')", on_stdout=pieces.append)
            self.assertEqual(([result.text for result in ran.results], ran.stdout), (["'last'"], ""))
            ran = context.run_code("h = display('old', display_id='u3')\nupdate_display('new', display_id='u3')", on_result=pieces.append)
            self.assertEqual([result.text for result in ran.results], ["'new'"])

    def test_A01_lost_answers(self):
        proxy = self.proxy()
        for each in self.through(proxy):
            before = {one["id"] for one in self.client.list_sandboxes()}
            proxy.lose_answers(2, r"^POST /v1/sandboxes$")
            made = each.create_sandboxes({"from": machines.TEMPLATE})
            self.assertEqual({one["id"] for one in self.client.list_sandboxes()} - before, {made["id"]})
            proxy.lose_answers(1, r"/snapshots$")
            shot = each.snapshot(made["name"], {"name": "lost-" + self.tried.lower()})
            proxy.lose_answers(1, r"/fork$")
            forked = each.fork_sandbox(made["name"], {"count": 2})
            names = {child["id"] for child in forked["children"]}
            self.assertEqual({one["id"] for one in self.client.list_sandboxes()} - before, {made["id"], *names})
            proxy.lose_answers(1, r"/keys$")
            keys = len(self.client.list_keys())
            key = each.create_key({"name": "once-" + self.tried.lower(), "preset": "read"})
            self.assertEqual(len(self.client.list_keys()), keys + 1)
            each.delete_key(key["id"])
            proxy.lose_answers(1, r"^DELETE")
            for name in (made["id"], *names):
                each.delete_sandbox(name)
            proxy.lose_answers(1, r"/exec$")
            with self.assertRaises(ramet.RametConnectionError):    # it may have run: never twice
                each.exec(self.box, "echo x >> once")
            self.assertEqual(self.client.exec(self.box, "cat once; rm once")["stdout"], "x\n")
            each.delete_snapshot(shot["name"])
            self.assertEqual(proxy.lose, 0)

    def test_A01_cancelled_calls_leave_nothing(self):
        """Cancelled when the server has done it, and at any other moment: what nobody has a name for is gone soon."""
        def what_is_there():
            box = self.client.get_sandbox(self.box)["id"]
            return [sorted(str(one["id"]) for one in all) for all in (
                self.client.list_sandboxes(), self.client.list_snapshots(), self.client.list_jobs(box), self.client.list_contexts(box),
                self.client.list_urls(box))]
        calls = {"/v1/sandboxes$": lambda c: c.create_sandboxes({"from": machines.TEMPLATE}), "/fork$": lambda c: c.fork_sandbox(self.box, count=2),
                 "/snapshots$": lambda c: c.snapshot(self.box), "/jobs$": lambda c: c.start_job(self.box, "sleep 3600"),
                 "/contexts$": lambda c: c.create_context(self.box), "/urls$": lambda c: c.create_url(self.box, 80)}
        proxy = self.proxy()

        async def wait_with(call, answers):
            answers.append(await call)
            await asyncio.Event().wait()

        async def main():
            async with ramet.AsyncRamet(proxy.url, machines.machines.key) as client:
                for pattern, call in calls.items():
                    proxy.hold_answers("^POST .*" + pattern)
                    task = asyncio.create_task(call(client))
                    self.assertTrue(await asyncio.to_thread(proxy.held.wait, rig.HANG_SECS), pattern)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    proxy.release.set()
                for millis in (0, 20, 320):
                    for pattern, remove in (("/v1/sandboxes$", lambda made: client.delete_sandbox(made["id"])),
                                            ("/jobs$", lambda made: client.delete_job(self.box, made["id"], kill=True))):
                        answers = []
                        with self.assertRaises(asyncio.TimeoutError):
                            await asyncio.wait_for(wait_with(calls[pattern](client), answers), millis / 1000)
                        for made in answers:    # whoever has the answer removes it: a fast host's calls end before
                            await remove(made)
        self.client.run_code(self.box, "python", "1")    # the contexts that are always there are
        before = what_is_there()
        asyncio.run(main())
        limit = time.monotonic() + rig.HANG_SECS
        while (ramet._Undo._all or what_is_there() != before) and time.monotonic() < limit:
            time.sleep(0.05)
        self.assertEqual(what_is_there(), before)

    def test_A02_streams_that_break(self):
        proxy = self.proxy()
        for each in self.through(proxy):
            # Of lines that are longer together than what comes before the cuts, also when a slow host gets them all in one event.
            job = each.start_job(self.box, "for i in $(seq 200); do printf '%0100d\\n' $i; sleep 0.005; done")
            proxy.cut_answers(3, r"/logs", 1500)
            events = list(each.job_logs(self.box, job["id"]))
            self.assertEqual("".join(event["text"] for event in events[:-1]), "".join(f"{i:0100d}\n" for i in range(1, 201)))
            self.assertEqual((events[-1].kind, proxy.cuts), ("end", 0))
            # Events of a sandbox: exactly those that were missing.
            made = self.client.create_sandboxes({"from": machines.TEMPLATE})
            proxy.cut_answers(2, r"/events", 900)
            with each.sandbox_events(made["name"]) as events:
                for name in ("pause", "resume", "pause", "resume", "stop"):
                    getattr(self.client, name + "_sandbox")(made["name"])
                self.client.delete_sandbox(made["name"])
                seen = [(event["type"], event.get("state")) for event in events]
            whole = self.client.past_events()
            self.assertEqual(seen, [(event["type"], event.get("state")) for event in whole if event["sandbox_id"] == made["id"]][-len(seen):])
            self.assertEqual([kind for kind, _ in seen][-1], "removed")
            # A command's stream cannot be resumed, and says so.
            proxy.cut_answers(1, r"/exec/stream", 400)
            with self.assertRaises(ramet.RametConnectionError):
                list(each.exec_stream(self.box, "seq 100000"))

    def test_A03_silence(self):
        for each in self.both():
            for secs in 1, 4, 16, 64:    # a slow machine needs longer than a second to begin
                done = each.exec(self.box, {"command": "echo begun; sleep 300 & sleep 300", "timeout_secs": secs})
                self.assertTrue(done["timed_out"])
                if done["stdout"]:
                    break
            self.assertEqual(done["stdout"], "begun\n")
            self.until(lambda: each.exec(self.box, "pgrep -x sleep")["exit_code"] == 1)
            # A quiet command outlasts every pause that streams and calls have: 12 s of a stream whose comments come after 10.
            if self.tried == "Sync" or os.environ.get("RAMET_TEST_LONG"):
                events = list(each.exec_stream(self.box, "sleep 12; echo end"))
                self.assertEqual(events[0]["text"], "end\n")

        async def gives_up():
            async with ramet.AsyncRamet(machines.machines.url, machines.machines.key) as client:
                for call in (lambda: client.exec(self.box, "sleep 3600"), lambda: client.run_code(self.box, "python", "import time; time.sleep(3600)")):
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(call(), 0.5)
                # The client that went away ended its command, and interrupted its run.
                while (await client.exec(self.box, "pgrep -x sleep"))["exit_code"] == 0:
                    await asyncio.sleep(0.05)
                self.assertEqual((await client.run_code(self.box, "python", "3"))["text"], "3")
                async with client.exec_stream(self.box, "yes") as stream:
                    async for _ in stream:
                        break
                while (await client.exec(self.box, "pgrep -x yes"))["exit_code"] == 0:
                    await asyncio.sleep(0.05)
        asyncio.run(asyncio.wait_for(gives_up(), rig.HANG_SECS))

    def test_threads(self):
        """Ten threads at once with one client, and with one event loop."""
        failures = []

        def work(number):
            try:
                for i in range(5):
                    self.assertEqual(self.client.exec(self.box, f"echo {number} {i}")["stdout"], f"{number} {i}\n")
                    self.client.write_file(self.box, f"{number}{i}", f"many/{number}")
                    self.assertEqual(self.client.read_file(self.box, f"many/{number}"), f"{number}{i}".encode())
            except Exception as error:
                failures.append(error)
        fake.in_threads(10, work)
        self.assertEqual(failures, [])

        async def many():
            async with ramet.AsyncRamet(machines.machines.url, machines.machines.key, workers=4) as client:
                done = await asyncio.gather(*(client.exec(self.box, f"echo {number}") for number in range(20)))
                self.assertEqual([each["stdout"] for each in done], [f"{number}\n" for number in range(20)])
        asyncio.run(many())

    def test_nothing_stays_open(self):
        """What nobody closed is closed when nobody has it any more: here and at the server."""
        before = len(os.listdir("/proc/self/fd"))
        client = ramet.Ramet(machines.machines.url, machines.machines.key)
        client.version()
        next(client.exec_stream(self.box, "echo; sleep 3600"))
        client.open_pty(self.box).recv(rig.HANG_SECS)
        client.events()
        del client
        limit = time.monotonic() + rig.HANG_SECS
        while len(os.listdir("/proc/self/fd")) > before or self.client.exec(self.box, "pgrep -x sleep")["exit_code"] == 0:
            self.assertLess(time.monotonic(), limit)
            gc.collect()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)

    def test_unix_socket(self):
        """The daemon's own user needs no key; what is not there is said."""
        for form in (Sync, Twin):
            driver = form(machines.machines.socket, None)
            self.assertEqual(driver.exec(self.box, "echo by socket")["stdout"], "by socket\n")
            driver.close()
        stranger = ramet.Ramet(machines.machines.url)
        if not os.environ.get("RAMET_API_KEY"):
            self.assertEqual(self.failure(401, "auth.missing", stranger.list_sandboxes).status, 401)
