# SPDX-License-Identifier: Apache-2.0
"""Standard output and error: floods (X01), characters in pieces (X03), carriage returns (X13), order."""
import json
import time

import rig

LIMIT = 4 << 20    # bytes of each stream that are kept
BOUND_KIB = 96 << 10    # the supervisor's memory, whatever the code prints

FLOOD = """
import os, threading
def flood(fd, what):
    piece = what * 65536
    for _ in range(300 << 4): os.write(fd, piece)
threads = [threading.Thread(target=flood, args=(fd, what)) for fd, what in ((1, b'o'), (2, b'e'))]
[each.start() for each in threads]
[each.join() for each in threads]
'done'
"""


class Streams(rig.Case):
    OPTIONS = ("--grace", "60")    # nothing here has to be killed; at half of it one is interrupted again who was before he began

    def check_bounded(self):
        self.assertLess(self.context.memory_kib(self.context.process.pid), BOUND_KIB)
        self.assertEqual(self.value("1 + 1"), "2")

    def test_X01_flood_on_both_streams(self):
        execution = self.good(FLOOD)
        self.assertEqual(execution.text, "'done'")
        self.assertEqual((execution.stdout, execution.stderr), ("o" * LIMIT, "e" * LIMIT))
        self.assertTrue(execution.done["truncated"])
        self.check_bounded()

    def test_X01_flood_of_a_command(self):
        execution = self.good("!yes | head -c 300000000; exit 3")
        self.assertEqual(len(execution.stdout), LIMIT)
        self.assertEqual(self.value("_exit_code"), "3")
        self.check_bounded()

    def test_X01_flood_of_a_library(self):
        execution = self.good("import ctypes\nlibc = ctypes.CDLL(None)\nfor i in range(1000): libc.printf(b'%d\\n', i)")
        self.assertEqual(execution.stdout, "".join(f"{i}\n" for i in range(1000)))

    def test_X01_reader_that_sleeps(self):
        """It holds its own run back, not others, and the supervisor stores no more than it must."""
        lazy = self.context.connect()
        self.addCleanup(lazy.close)
        lazy.send(op="run", run="lazy", code="for i in range(60): print('z' * 65535)\n'end'", timeout_ms=0)
        limit = time.monotonic() + rig.HANG_SECS
        while self.context.ask("status")["state"] != "busy":
            self.assertLess(time.monotonic(), limit)
        self.assertEqual(self.context.ask("status")["state"], "busy")
        execution = lazy.collect()
        self.assertEqual((execution.stdout, execution.text), (("z" * 65535 + "\n") * 60, "'end'"))
        self.check_bounded()

    def test_X01_reader_that_sleeps_for_ever_does_not_keep_an_interrupt_from_working(self):
        self.good("kept = 1")
        lazy = self.context.connect()
        lazy.send(op="run", run="lazy", code="while True: print('z' * 65535)", timeout_ms=500)
        limit = time.monotonic() + rig.HANG_SECS
        lazy.file.peek(1)    # it has begun
        while self.context.ask("status")["state"] == "busy":
            self.assertLess(time.monotonic(), limit)
        execution = lazy.collect()
        lazy.close()
        self.assertTrue(execution.done["timed_out"])
        self.assertIsNone(execution.done["state_lost"])
        self.assertEqual(self.value("kept"), "1")

    def test_X01_client_that_leaves(self):
        """The code goes on, unheard, to its end."""
        client = self.context.connect()
        client.send(op="run", run="1", code="import time\nfor i in range(200): print('y' * 65535)\nleft = 'whole'", timeout_ms=0)
        self.assertEqual(client.event()["event"], "started")
        client.close()
        self.assertEqual(self.value("left"), "'whole'")

    def test_X03_a_character_in_pieces(self):
        slow = "import os, time\nfor byte in '─😀é'.encode():\n    os.write({fd}, bytes([byte])); time.sleep(0.02)"
        self.assertEqual(self.good(slow.format(fd=1)).stdout, "─😀é")
        self.assertEqual(self.good(slow.format(fd=2)).stderr, "─😀é")
        self.assertEqual(self.good("print('─' * 100_000)").stdout, "─" * 100_000 + "\n")
        self.assertEqual(self.good("!python3 -c 'print(\"─\" * 100_000)'").stdout, "─" * 100_000 + "\n")

    def test_X03_limit_inside_a_character(self):
        execution = self.good("print('x' + '─' * 2_000_000)")
        self.assertTrue(execution.done["truncated"])
        self.assertNotIn("\ufffd", execution.stdout)
        self.assertEqual(execution.stdout, "x" + "─" * ((LIMIT - 1) // 3))

    def test_X03_end_inside_a_character(self):
        self.assertEqual(self.good("import os; os.write(1, '─'.encode()[:2]);").stdout, "\ufffd")
        self.assertEqual(self.good("import os; os.write(1, '─'.encode()[2:]);").stdout, "\ufffd")
        self.assertEqual(self.good("print('whole')").stdout, "whole\n")

    def test_X02_bytes_that_are_no_text(self):
        execution = self.good("!printf '\\xff\\x00\\x80'")
        self.assertEqual(execution.stdout, "\ufffd\0\ufffd")
        json.dumps(execution.events).encode("utf-8")

    def test_X13_long_line_and_carriage_returns(self):
        execution = self.good("print('l' * 100_000_000)")
        self.assertEqual(len(execution.stdout), LIMIT)
        bar = "import sys\nfor i in range(100_000): sys.stderr.write(f'\\r{i:6d} of 100000 ' + '#' * 50); sys.stderr.flush()"
        execution = self.good(bar)
        self.assertEqual(execution.stderr[:17], "\r     0 of 100000")
        self.assertEqual(len(execution.stderr), LIMIT)
        self.check_bounded()

    def test_output_comes_while_code_runs(self):
        begun, result = self.in_background("import time\nprint('now')\nwhile True: time.sleep(0.01)")
        self.assertTrue(begun.wait(rig.HANG_SECS))
        self.context.ask("interrupt")
        self.assertEqual(result().error["name"], "KeyboardInterrupt")

    def test_order_of_output_and_displays(self):
        execution = self.good("from IPython.display import *\nfor i in range(300): print(i); display(HTML(str(i)))")
        seen = [(event.get("text") or event["data"]["text/html"]).strip() for event in execution.events[1:-1]]
        self.assertEqual(seen, [str(i) for i in range(300) for _ in "ab"])


if __name__ == "__main__":
    rig.main()
