# SPDX-License-Identifier: Apache-2.0
"""How runs end: code that will not stop (X05), that asks (X06), that leaves or dies (X08), that is not done yet (X10)."""
import threading
import time

import rig

STUBBORN = ("import time\nwhile True:\n    try: time.sleep(0.05); print('begun', flush=True); time.sleep(0.5)\n"
            "    except BaseException: pass")


class Kept(rig.Case):
    """X05, where an interrupt is enough. The time until a process is killed is one that a slow machine does not need. (IPython lets
    "x = !command" go at the second interrupt alone, which comes at half of it.)"""
    OPTIONS = ("--grace", "30")

    def test_X05_timeout_keeps_the_state(self):
        self.good("kept = 5")
        for code in ("import time; time.sleep(600)", "while True: pass", "import asyncio; await asyncio.sleep(600)",
                     "!sleep 600", "import subprocess; subprocess.run(['sleep', '600'])", "x = !sleep 600",
                     "import threading; threading.Event().wait()"):
            execution = self.bad(code, "KeyboardInterrupt", timeout=0.3)
            self.assertTrue(execution.done["timed_out"], code)
            self.assertIsNone(execution.done["state_lost"], code)
            self.assertEqual(self.value("kept"), "5")

    def test_X05_interrupt_keeps_the_state(self):
        self.good("kept = 6")
        for code in ("import time; print('begun'); time.sleep(600)", "import asyncio; print('begun'); await asyncio.sleep(600)",
                     "print('begun', flush=True)\nwhile True: pass"):
            begun, result = self.in_background(code)
            self.assertTrue(begun.wait(rig.HANG_SECS))
            self.assertTrue(self.context.ask("interrupt")["interrupted"])
            execution = result()
            self.assertEqual(execution.error["name"], "KeyboardInterrupt")
            self.assertTrue(execution.done["interrupted"] and not execution.done["timed_out"])
            self.assertEqual(self.value("kept"), "6")
        self.assertFalse(self.context.ask("interrupt")["interrupted"])

    def test_X05_own_handler_is_for_one_run(self):
        self.good("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN);")
        self.bad("import time; time.sleep(600)", "KeyboardInterrupt", timeout=0.2)

    def test_X05_interrupted_await_leaves_nothing_in_the_loop(self):
        self.bad("import asyncio\nawait asyncio.sleep(600)\nprint('woken')", "KeyboardInterrupt", timeout=0.2)
        self.assertEqual(self.good("await asyncio.sleep(0.05)").stdout, "")
        self.assertEqual(self.value("len(asyncio.all_tasks(asyncio.get_event_loop()))"), "0")


class Ends(rig.Case):
    def lost(self, execution, words):
        self.assertIn(words, execution.done["state_lost"])
        again = self.context.run("'kept' in globals()")
        self.assertEqual(again.text, "False")
        self.assertIn("began with nothing", again.done["state_lost"])
        self.assertIsNone(self.good("2").done["state_lost"])

    # ---- X05 ----
    def test_X05_timeout_of_what_will_not_stop(self):
        ignoring = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(0.05)"
        for code in (STUBBORN, ignoring, "import hashlib\nhashlib.pbkdf2_hmac('sha256', b'a', b'b', 10 ** 9)"):
            self.good("kept = 5")
            for secs in 0.3, 1.5, 7.5, 30:    # a slow machine may not have come to what cannot be interrupted
                execution = self.run_code(code, timeout=secs)
                self.assertTrue(execution.done["timed_out"])
                if execution.error["name"] != "KeyboardInterrupt":
                    break
            self.assertEqual(execution.error["name"], "TimeoutError", execution.error)
            self.lost(execution, f"the time of {secs:g} s was over")

    def test_X05_timeout_of_a_long_operation(self):
        """Whether it can be interrupted is Python's to say; the answer tells which it was."""
        self.good("kept = 5")
        execution = self.run_code("10 ** 10 ** 8 and 10 ** 10 ** 8", timeout=0.3)
        self.assertTrue(execution.done["timed_out"])
        self.assertEqual(self.value("'kept' in globals()"), "False" if execution.done["state_lost"] else "True")

    def test_X05_second_interrupt_ends_it(self):
        self.good("kept = 7")
        begun, result = self.in_background(STUBBORN)
        self.assertTrue(begun.wait(rig.HANG_SECS))
        self.context.ask("interrupt")
        self.assertEqual(self.context.ask("status")["state"], "busy")
        self.context.ask("interrupt")
        execution = result()
        self.assertEqual(execution.error["name"], "KeyboardInterrupt")
        self.lost(execution, "it was interrupted")

    # ---- X06 ----
    def test_X06_asking_fails_at_once(self):
        self.bad("input('name? ')", "EOFError")
        self.bad("import getpass; getpass.getpass()", "EOFError")
        self.assertEqual(self.value("import sys; sys.stdin.read()"), "''")
        self.bad("import pdb; pdb.set_trace()", "BdbQuit")
        self.bad("breakpoint()", "BdbQuit")
        self.good("!cat; read x; python3 -c 'import sys; sys.stdin.read()'")
        self.good("x = !cat")
        self.good("import subprocess; subprocess.run(['cat'])")
        self.bad("1 / 0", "ZeroDivisionError")
        self.good("%debug")

    # ---- X08 ----
    def test_X08_leaving_keeps_the_context(self):
        self.good("kept = 8")
        for code in ("exit()", "quit()", "exit", "import sys; sys.exit(3)", "raise SystemExit"):
            execution = self.bad(code, "SystemExit")
            self.assertIsNone(execution.done["state_lost"])
            self.assertEqual(self.value("kept"), "8")

    def test_X08_dying(self):
        for code, words in (("import os; os._exit(5)", "ended with status 5"),
                            ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL)"),
                            ("import ctypes; ctypes.string_at(0)", "signal 11 (SIGSEGV)"),
                            ("import os; os.abort()", "signal 6 (SIGABRT)")):
            self.good("kept = 1")
            execution = self.bad(code, "ContextDied")
            self.assertIn(words, execution.error["value"])
            self.lost(execution, words)

    def test_X08_out_of_memory(self):
        """A limit in the place of a machine's end: Python's MemoryError is an error as any other."""
        self.good("kept = 1\nimport resource")
        self.bad("soft, hard = resource.getrlimit(resource.RLIMIT_AS)\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, hard))\n"
                 "try: x = bytearray(8 << 30)\nfinally: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))", "MemoryError")
        self.assertEqual(self.value("kept"), "1")

    def test_X08_death_between_runs(self):
        die = self.context.folder + "/die"
        self.good(f"import os, threading, time\nkept = 1\ndef die():\n    while not os.path.exists('{die}'): time.sleep(0.01)\n    os._exit(9)\n"
                  "threading.Thread(target=die).start()")
        pid = self.context.ask("status")["pid"]
        open(die, "w").close()
        limit = time.monotonic() + rig.HANG_SECS
        while self.context.ask("status")["pid"] == pid:
            self.assertLess(time.monotonic(), limit)
        execution = self.good("'kept' in globals()")
        self.assertEqual(execution.text, "False")
        self.assertIn("between two runs", execution.done["state_lost"])

    def test_X08_code_that_breaks_the_driver(self):
        """What a context's code does to its own connection costs it its state, and nobody else anything."""
        for code in ("import os; os.closerange(3, 1000)\nfrom IPython.display import *\ndisplay(HTML('x'))",
                     "import os\nfor fd in range(200, 220):\n    try: os.write(fd, b'garbage\\n')\n    except OSError: pass\n"
                     "import time; time.sleep(600)",
                     "import os\nfor fd in range(200, 220):\n    try: os.write(fd, b'{\"event\": \"done\", \"size\": 1e9}\\n')\n"
                     "    except OSError: pass\nimport time; time.sleep(600)"):
            execution = self.bad(code, "ContextDied")
            self.assertTrue(execution.done["state_lost"])
            self.assertEqual(self.value("1 + 1"), "2")

    def test_X08_a_fork_of_the_code_does_not_answer(self):
        execution = self.good("import os, time\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'parent' if pid else 'child'")
        self.assertEqual(execution.text, "'parent'")
        self.good("import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: n = pool.map(abs, [-1, 2])")
        self.assertEqual(self.value("n"), "[1, 2]")

    # ---- X10 ----
    def test_X10_await(self):
        self.assertEqual(self.value("import asyncio\nawait asyncio.sleep(0); 5"), "5")
        self.assertEqual(self.value("async def main(): return 6\nasyncio.run(main())"), "6")
        self.assertEqual(self.value("asyncio.get_event_loop().run_until_complete(main())"), "6")
        code = "async def some():\n    for i in range(3): yield i\nasync for i in some(): print(i)\n[i async for i in some()]"
        execution = self.good(code)
        self.assertEqual((execution.stdout, execution.text), ("0\n1\n2\n", "[0, 1, 2]"))
        self.bad("await asyncio.sleep(0); asyncio.run(main())", "RuntimeError")
        self.bad("await nothing()", "NameError")

    def test_X10_tasks_go_on(self):
        self.good("import asyncio\ngate = asyncio.Event()\nasync def later():\n"
                  "    await gate.wait(); await asyncio.sleep(0.05); print('task'); global ran; ran = 1\ntask = asyncio.create_task(later())")
        execution = self.good("gate.set(); await task; 3")
        self.assertEqual((execution.stdout, execution.text), ("task\n", "3"))
        self.good("ran = 0; task = asyncio.create_task(later())")
        limit = time.monotonic() + rig.HANG_SECS
        while self.value("ran") != "1":    # between the runs it goes on, and what it prints then is dropped
            self.assertLess(time.monotonic(), limit)

    def test_X10_late_output_of_threads(self):
        self.good("import threading, time\ndef late():\n    for i in range(40): print('late', i); time.sleep(0.01)\n"
                  "thread = threading.Thread(target=late); thread.start()")
        execution = self.good("thread.join()\n40 + 2")
        self.assertEqual(execution.text, "42")
        self.assertTrue(all(line.startswith("late ") for line in execution.stdout.splitlines()), execution.stdout)
        self.assertEqual(self.good("'quiet'").stdout, "")

    def test_X10_late_output_of_a_process(self):
        self.good("!(sleep 0.05; yes) & echo $! > pid")
        self.assertEqual(self.value("1 + 1"), "2")
        self.good("!kill $(cat pid)")

    # ---- one after another ----
    def test_queue(self):
        self.good("import time; order = []")
        connections = [self.context.connect() for _ in range(5)]
        for i, connection in enumerate(connections):
            connection.send(op="run", run=str(i), code=f"time.sleep(0.02); order.append({i})", timeout_ms=0)
            if i == 0:
                connection.file.peek(1)    # it has begun
        for connection in connections:
            self.assertIsNone(connection.collect().error)
            connection.close()
        self.assertEqual(len(eval(self.value("order"))), 5)

    def test_queue_is_bounded(self):
        begun, result = self.in_background("print('begun', flush=True)\nimport time; time.sleep(600)")
        self.assertTrue(begun.wait(rig.HANG_SECS))
        connection = self.context.connect()
        for i in range(17):
            connection.send(op="run", run=str(i), code="1", timeout_ms=0)
        refused = connection.event()
        self.assertEqual((refused["event"], refused["code"], refused["run"]), ("refused", "busy", "16"))
        self.assertTrue(self.context.ask("interrupt", run="3")["interrupted"])    # one that waits
        self.assertEqual(connection.event()["name"], "KeyboardInterrupt")
        self.assertTrue(connection.event()["interrupted"])
        connection.close()    # and its others are gone with it
        self.context.ask("interrupt")
        self.assertEqual(result().error["name"], "KeyboardInterrupt")
        self.assertEqual(self.value("3"), "3")

    def test_restart(self):
        self.good("kept = 1")
        begun, result = self.in_background("print('begun', flush=True)\nimport time; time.sleep(600)")
        self.assertTrue(begun.wait(rig.HANG_SECS))
        self.assertTrue(self.context.ask("restart")["restarted"])
        self.assertEqual(result().error["name"], "ContextRestarted")
        execution = self.good("'kept' in globals()")
        self.assertEqual((execution.text, execution.done["execution_count"]), ("False", 1))
        self.assertIsNone(execution.done["state_lost"])

    def test_requests_that_are_none(self):
        connection = self.context.connect()
        for line in (b"nonsense\n", b"[]\n", b"{}\n", b'{"op": "fly"}\n', b'{"op": "run", "code": 3}\n', b"[" * 100_000 + b"\n",
                     b'{"op": "run", "code": "1", "timeout_ms": -1}\n', b'{"op": ["run"]}\n', b"\xff\n"):
            connection.socket.sendall(line)
            self.assertEqual(connection.event()["code"], "invalid", line[:40])
        connection.close()
        endless = self.context.connect()
        threading.Thread(target=self._pour, args=(endless,)).start()
        try:
            self.assertEqual(endless.file.read(), b"")
        except ConnectionResetError:
            pass    # closed with bytes unread
        endless.close()
        self.assertEqual(self.value("4"), "4")

    @staticmethod
    def _pour(connection):
        try:
            for _ in range(200):
                connection.socket.sendall(b"x" * 65536)
        except OSError:
            pass    # it was closed, as it should be


if __name__ == "__main__":
    rig.main()
