# SPDX-License-Identifier: Apache-2.0
"""Field cases of NBD requests, one class each, named by their id. usage: nbd_cases.py [N01 ...]"""
import os
import random
import shutil
import subprocess
import sys
import threading
import unittest

from nbd_client import *

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


class N01(unittest.TestCase):
    """Requests of no length get a reply and harm nothing."""

    OFFSETS = (0, 1, 4095, 4 * MIB, 8 * MIB, 8 * MIB + 512, 2**63, 2**64 - 1)

    def check(self, client, size):
        for command in (READ, WRITE, TRIM, ZEROES, STATUS, CACHE):
            for offset in self.OFFSETS:
                for flags in (0, FUA) + ((DF,) if command == READ and client.structured else ()):
                    error, data = client.do(command, offset, 0, flags)
                    allowed = (0, EINVAL, ENOSPC) + ((EPERM,) if client.flags & READ_ONLY else ())
                    self.assertIn(error, allowed, (command, offset))
                    if command == STATUS and error == 0:
                        self.assertTrue(data["base:allocation"])
                    if offset > size:
                        self.assertNotEqual(error, 0)
        self.assertEqual(client.read(0, 512), bytes(512))

    def test_zero_length(self):
        size = 8 * MIB
        with Daemon() as daemon:
            daemon.do(f"create disk {size}")
            daemon.do("snapshot disk snap")
            for export in ("disk", "snap"):
                for structured in (True, False):
                    with daemon.client(export, structured=structured) as client:
                        self.check(client, size)

    def test_many_of_them_at_once(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {8 * MIB}")
            with daemon.client("disk") as client:
                cookies = [client.post((READ, WRITE, TRIM, ZEROES, STATUS, CACHE)[i % 6], i * 512, 0) for i in range(600)]
                self.assertEqual(sorted(client.read_reply()[0] for _ in cookies), cookies)
                self.assertEqual(client.read(0, 512), bytes(512))


class N04(unittest.TestCase):
    """Sizes that are no multiple of a block: every byte can be reached, extents add up."""

    def check(self, daemon, size):
        daemon.do(f"create odd{size} {size}")
        info = json.loads(subprocess.run(["nbdinfo", "--json", daemon.uri(f"odd{size}")], check=True,
                                         capture_output=True).stdout)["exports"][0]
        self.assertEqual(info["export-size"], size)
        self.assertEqual(size % info["block_size_minimum"], 0)
        content = pattern(size, size)
        with daemon.client(f"odd{size}") as client:
            self.assertEqual(client.write(0, content), 0)
            for last in (1, 511, 512, 1024):
                if last <= size:
                    tail = pattern(last, last)
                    self.assertEqual(client.write(size - last, tail), 0)
                    content = content[:size - last] + tail
                    self.assertEqual(client.read(size - last, last), tail)
            if size >= 2048:
                self.assertEqual(client.read(1024, 1024), content[1024:2048])
            self.assertNotEqual(client.write(size - 1, b"xy"), 0)
            self.assertEqual(client.read(0, size), content)
            self.assertEqual(sum(length for _, length, _ in client.extents()), size)
        out = os.path.join(daemon.directory, "out")
        subprocess.run(["nbdcopy", daemon.uri(f"odd{size}"), out], check=True)
        with open(out, "rb") as file:
            self.assertEqual(file.read(), content)
        daemon.do(f"snapshot odd{size} odd{size}-snap")
        daemon.do(f"fork odd{size}-snap odd{size}-child")
        for name in (f"odd{size}-snap", f"odd{size}-child"):
            with daemon.client(name) as client:
                self.assertEqual((client.size, client.read(0, size)), (size, content))
                self.assertEqual(client.extents()[-1][0] + client.extents()[-1][1], size)
                self.assertEqual(client.do(READ, size, 1)[0], EINVAL)

    def test_sizes(self):
        with Daemon() as daemon:
            for size in (1000001, 1536, 511, 4095, 1, 513, 4097, 1024 * 1025):
                self.check(daemon, size)
            daemon.do("create grow 1000001")
            with daemon.client("grow") as client:
                client.write(1000000, b"z")
            daemon.do("resize grow 1004544")
            with daemon.client("grow") as client:
                self.assertEqual(client.read(1000000, 4544), b"z" + bytes(4543))


class N06(unittest.TestCase):
    """Numbers over 2 TiB, and sizes that no store can have."""

    def test_wide(self):
        size = 16 * TIB
        offsets = [0, 2 * TIB - 4 * KIB, 2 * TIB, 4 * TIB + 512, size - 4 * KIB]
        with Daemon() as daemon:
            for refused in (2**63, 2**64 - 1, 0):
                answer = daemon.ask(f"create wrong {refused}")
                self.assertTrue(answer.startswith("error ") and len(answer) > 20, answer)
            answer = daemon.ask(f"create edge {2**63 - 4096}")    # exact, or refused in words
            if answer.startswith("ok"):
                with daemon.client("edge") as client:
                    self.check_edge(client, 2**63 - 4096)
            else:
                self.assertGreater(len(answer), 20)
            for wide in (2**56, 2**56 - 4096, 2**53 + 512, 2**41 + 1):
                daemon.do(f"create wide{wide} {wide}")
                with daemon.client(f"wide{wide}") as client:
                    self.check_edge(client, wide)
            daemon.do(f"create big {size}")
            before = daemon.stat()["log_used_bytes"]
            with daemon.client("big") as client:
                self.assertEqual(client.size, size)
                for offset in offsets:
                    self.assertEqual(client.write(offset, pattern(offset, 4 * KIB)), 0)
            daemon.do("snapshot big snap")
            daemon.do("fork snap child")
            daemon.restart()
            for name in ("big", "snap", "child"):
                with daemon.client(name) as client:
                    for offset in offsets:
                        self.assertEqual(client.read(offset, 4 * KIB), pattern(offset, 4 * KIB), (name, offset))
                    data = [(offset, length) for offset, length, state in client.extents() if not state & ZERO]
                    self.assertEqual(data, [(0, 4 * KIB), (2 * TIB - 4 * KIB, 8 * KIB), (4 * TIB, 8 * KIB),
                                            (size - 4 * KIB, 4 * KIB)])
            self.assertLess(daemon.stat()["log_used_bytes"] - before, 192 * MIB)


    def check_edge(self, client, size):
        self.assertEqual(client.size, size)
        self.assertEqual(client.write(size - 777, pattern(size, 777)), 0)
        self.assertEqual(client.read(size - 1000, 1000), bytes(223) + pattern(size, 777))
        self.assertEqual(client.write(size - 1, b"xy"), ENOSPC)
        self.assertEqual(client.do(READ, size - 1, 2)[0], EINVAL)
        begin = (size - 777) // 4096 * 4096
        self.assertEqual(client.extents(begin - MIB, size - begin + MIB),
                         [(begin - MIB, MIB, HOLE | ZERO), (begin, size - begin, 0)])


class N06Cli(unittest.TestCase):
    """N06 by the command line: what it says of wide volumes, and the way through a sparse file and back."""

    def run_ramet(self, daemon, *words):
        result = subprocess.run([daemon.ramet, "--run", daemon.run_directory, *words], capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    def used(self, daemon):
        status, out, said = self.run_ramet(daemon, "--json", "store", "stat")
        self.assertEqual(status, 0, said)
        return json.loads(out)["written_bytes_total"]

    def test_sizes(self):
        with Daemon() as daemon:
            for refused in (2**63 - 4096, 2**63, 2**64 - 1, 0, "8E", "-1", "1.5T", "0x10", "99999999999999999999999"):
                status, _, said = self.run_ramet(daemon, "volume", "create", "wrong", str(refused))
                self.assertNotEqual(status, 0)
                self.assertGreater(len(said), 20, said)
            for number, (word, size) in enumerate([("16T", 16 * TIB), ("64P", 2**56), (str(2**56 - 4096), 2**56 - 4096)]):
                daemon.do(f"create big{number} {word}")
                status, out, _ = self.run_ramet(daemon, "--json", "volume", "show", f"big{number}")
                told = json.loads(out, parse_int=float)["size_bytes"]    # as a client with doubles reads it
                self.assertEqual((status, int(told)), (0, size))
                info = json.loads(subprocess.run(["nbdinfo", "--json", daemon.uri(f"big{number}")], check=True,
                                                 capture_output=True).stdout)["exports"][0]
                self.assertEqual(info["export-size"], size)

    def test_through_a_file_and_back(self):
        size = 8 * TIB      # a file of 16 TiB is more than usual file systems take
        offsets = [0, 2 * TIB - 4 * KIB, 2 * TIB, 4 * TIB + 512, size - 4 * KIB]
        with Daemon() as daemon:
            daemon.do(f"create big {size}")
            before = self.used(daemon)
            with daemon.client("big") as client:
                for offset in offsets:
                    self.assertEqual(client.write(offset, pattern(offset, 4 * KIB)), 0)
            daemon.do("snapshot big snap")
            daemon.do("fork snap child")
            with daemon.client("child") as client:
                self.assertEqual(client.write(size - 8 * KIB, b"c" * 4096), 0)
            status, out, said = self.run_ramet(daemon, "--json", "volume", "diff", "snap", "child")
            self.assertEqual(status, 0, said)
            diff = json.loads(out)
            self.assertEqual(diff["changed_bytes"], 4096)
            self.assertEqual([(entry["offset"], entry["length"]) for entry in diff["ranges"]], [(size - 8 * KIB, 4096)])
            out = os.path.join(daemon.directory, "out")
            status, _, said = self.run_ramet(daemon, "volume", "export", "big", out)
            self.assertEqual(status, 0, said)
            self.assertEqual(os.stat(out).st_size, size)
            self.assertLess(os.stat(out).st_blocks * 512, MIB)
            status, _, said = self.run_ramet(daemon, "volume", "import", "back", out)
            self.assertEqual(status, 0, said)
            status, answer, said = self.run_ramet(daemon, "--json", "volume", "diff", "big", "back")
            self.assertEqual((status, json.loads(answer)["changed_bytes"]), (0, 0), said)
            with daemon.client("back") as client:
                for offset in offsets:
                    self.assertEqual(client.read(offset, 4 * KIB), pattern(offset, 4 * KIB))
            self.assertLess(self.used(daemon) - before, MIB)

    def test_a_file_that_the_file_system_cannot_hold(self):
        with Daemon() as daemon:
            daemon.do("create huge 64P")
            out = os.path.join(daemon.directory, "out")
            status, _, said = self.run_ramet(daemon, "volume", "export", "huge", out)
            self.assertNotEqual(status, 0)
            self.assertGreater(len(said), 20)
            self.assertEqual(self.run_ramet(daemon, "volume", "show", "huge")[0], 0)


class N07(unittest.TestCase):
    """TRIM and WRITE_ZEROES, huge and crooked: exact, or refused whole."""

    SIZE = 8 * GIB
    MARKS = [0, 512, 3 * MIB, 2 * GIB - 4 * KIB, 2 * GIB, 4 * GIB - 8 * KIB, 4 * GIB - 4 * KIB, 4 * GIB, 6 * GIB,
             8 * GIB - 4 * KIB]

    def fill(self, client):
        self.model = {}
        for mark in self.MARKS:
            base = mark & ~4095
            self.model[base] = bytearray(pattern(base, 4 * KIB))
            self.assertEqual(client.write(base, bytes(self.model[base])), 0)

    def apply(self, client, command, offset, length, flags):
        error, _ = client.do(command, offset, length, flags)
        for base, block in self.model.items():
            begin, end = max(base, offset), min(base + 4 * KIB, offset + length)
            got = client.read(base, 4 * KIB)
            inside = slice(begin - base, max(end - base, begin - base))
            if error == 0 and begin < end:
                zeroed = block[:]
                zeroed[inside] = bytes(end - begin)
                if command == ZEROES:
                    self.assertEqual(got, zeroed, (command, offset, length, flags, base))
                else:
                    self.assertEqual(got[:begin - base] + got[end - base:], block[:begin - base] + block[end - base:])
                    for i in range(begin - base, end - base):
                        self.assertIn(got[i], (0, block[i]))
                self.model[base] = bytearray(got)
            else:
                self.assertEqual(got, block, (command, offset, length, flags, base, error))
        return error

    def check_everything(self, client):
        """The map, and all that it calls data: the blocks of the model and nothing else but zeros."""
        for offset, length, state in client.extents():
            for at in range(offset, offset + length, 4 * KIB) if not state & ZERO else ():
                self.assertEqual(client.read(at, 4 * KIB), self.model.get(at, bytes(4 * KIB)), at)
        for base, block in self.model.items():
            self.assertEqual(client.read(base, 4 * KIB), block)

    def test_ranges(self):
        ranges = [(1024, 512), (512, 4096), (0, 4294966784), (0, 2**32 - 1), (4 * GIB - 512, 1024),
                  (self.SIZE - 512, 1024), (self.SIZE - 4096, 4096),
                  (2**64 - 512, 1024), (2**64 - 4096, 4096), (2**63, 2**32 - 1)]
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                for command in (ZEROES, TRIM):
                    for flags in (0, FUA) if command == TRIM else (0, FUA, NO_HOLE, FAST_ZERO, FAST_ZERO | NO_HOLE | FUA):
                        for offset, length in ranges:
                            self.fill(client)
                            error = self.apply(client, command, offset, length, flags)
                            if offset + length > self.SIZE:
                                self.assertIn(error, (EINVAL, ENOSPC))
                            elif flags & FAST_ZERO:
                                self.assertIn(error, (0, ENOTSUP))
                            else:
                                self.assertIn(error, (0, EINVAL, EOVERFLOW))
                    self.check_everything(client)
                self.assertEqual(client.do(ZEROES, 4096, 4096, 1 << 9)[0], EINVAL)
                self.assertEqual(client.do(99, 0, 512)[0], EINVAL)

    def test_payload_over_the_limit(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                self.assertEqual(client.do(READ, 0, 32 * MIB + 1)[0], EINVAL)
                self.assertEqual(client.do(WRITE, 0, 33 * MIB, 0, bytes(33 * MIB))[0], EINVAL)
                big = pattern(1, 32 * MIB)
                self.assertEqual(client.write(4096, big), 0)
                self.assertEqual(client.read(4096, 32 * MIB), big)


class N08(unittest.TestCase):
    """A flush on one connection covers another; what was promised survives kill -9."""

    def test_flush_covers_other_connections(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            first, second = daemon.client("disk"), daemon.client("disk")
            self.assertTrue(first.flags & MULTI_CONN)
            for block in range(1000):
                self.assertEqual(first.write(block * 8192, pattern(block, 4096)), 0)
            syncs = daemon.stat()["sync_count_total"]
            self.assertEqual(second.do(FLUSH)[0], 0)
            self.assertGreater(daemon.stat()["sync_count_total"], syncs)
            daemon.kill()
            daemon.start()
            with daemon.client("disk") as client:
                for block in range(1000):
                    self.assertEqual(client.read(block * 8192, 8192), pattern(block, 4096) + bytes(4096))

    def test_fua_of_every_kind(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            with daemon.client("disk") as client:
                self.assertEqual(client.write(0, pattern(7, 16 * MIB)), 0)
                self.assertEqual(client.do(FLUSH)[0], 0)
                steps = [(WRITE, 0, pattern(8, 8192)), (ZEROES, MIB, b""), (TRIM, 2 * MIB, b"")]
                for command, offset, payload in steps:
                    syncs = daemon.stat()["sync_count_total"]
                    self.assertEqual(client.do(command, offset, len(payload) or 8192, FUA, payload)[0], 0)
                    self.assertGreater(daemon.stat()["sync_count_total"], syncs, command)
            daemon.kill()
            daemon.start()
            expected = bytearray(pattern(7, 16 * MIB))
            expected[:8192] = pattern(8, 8192)
            expected[MIB:MIB + 8192] = bytes(8192)
            with daemon.client("disk") as client:
                got = client.read(0, 16 * MIB)
            self.assertIn(got[2 * MIB:2 * MIB + 8192], (bytes(8192), bytes(expected[2 * MIB:2 * MIB + 8192])))
            expected[2 * MIB:2 * MIB + 8192] = got[2 * MIB:2 * MIB + 8192]
            self.assertEqual(got, bytes(expected))


class N09(unittest.TestCase):
    """Block status says the same as reads, always."""

    SIZE = 64 * MIB

    def scribble(self, client, rounds, seed):
        chance = random.Random(seed)
        for _ in range(rounds):
            grain = chance.choice((512, 4096, 65536))
            length = grain * chance.randint(1, 8)
            offset = chance.randrange(0, (self.SIZE - length) // grain) * grain
            command = chance.choice((WRITE, WRITE, ZEROES, TRIM))
            payload = chance.randbytes(length) if command == WRITE else b""
            self.assertEqual(client.do(command, offset, length, 0, payload)[0], 0)

    def check(self, client):
        data = b"".join(client.read(offset, 16 * MIB) for offset in range(0, self.SIZE, 16 * MIB))
        extents = client.extents()
        self.assertEqual(extents, client.extents())
        self.assertEqual(extents, client.extents(flags=REQ_ONE))
        for offset, length, state in extents:
            if state & ZERO:
                self.assertEqual(data[offset:offset + length].count(0), length, (offset, length, state))
        return data

    def test_status_and_reads(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                self.scribble(client, 400, 1)
                data = self.check(client)
                daemon.do("snapshot disk snap")
                daemon.do("fork snap child")
            for name in ("snap", "child"):
                with daemon.client(name) as client:
                    self.assertEqual(self.check(client), data)
            for tool in (["nbdcopy", "--synchronous"], ["qemu-img", "convert", "-f", "raw", "-O", "raw"]):
                out = os.path.join(daemon.directory, "out")
                subprocess.run(tool + [daemon.uri("snap"), out], check=True)
                with open(out, "rb") as file:
                    self.assertEqual(file.read(), data, tool)
                self.assertLess(os.stat(out).st_blocks * 512, self.SIZE)
                os.unlink(out)
            daemon.restart()
            for name in ("disk", "snap", "child"):
                with daemon.client(name) as client:
                    self.assertEqual(self.check(client), data)
            with daemon.client("child") as client:
                self.scribble(client, 200, 2)
                self.check(client)

    def test_unaligned_questions(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                self.scribble(client, 200, 4)
                chance = random.Random(5)
                whole = client.extents()
                state_at = lambda at: next(state for offset, length, state in whole if offset <= at < offset + length)
                for _ in range(300):
                    offset = chance.randrange(self.SIZE - 1)
                    length = min(chance.choice((1, 511, 512, 4096, 70000, self.SIZE)), self.SIZE - offset)
                    got = client.extents(offset, length)
                    self.assertEqual(sum(size for _, size, _ in got), length)
                    for begin, size, state in got:
                        self.assertEqual((state_at(begin), state_at(begin + size - 1)), (state, state))

    def maps(self, daemon, name):
        """What `nbdinfo --map` says, twice, compared with plain reads."""
        tell = lambda: json.loads(subprocess.run(["nbdinfo", "--map", "--json", daemon.uri(name)], check=True,
                                                 capture_output=True).stdout)
        extents = tell()
        self.assertEqual(extents, tell())
        with daemon.client(name) as client:
            for extent in extents:
                for at in range(extent["offset"], extent["offset"] + extent["length"], 8 * MIB) if extent["type"] & ZERO else ():
                    size = min(8 * MIB, extent["offset"] + extent["length"] - at)
                    self.assertEqual(client.read(at, size), bytes(size))
        return extents

    def data_blocks(self, daemon, name):
        return {block for extent in self.maps(daemon, name) if not extent["type"] & ZERO
                for block in range(extent["offset"] // 4096, (extent["offset"] + extent["length"]) // 4096)}

    def test_the_map_stays_true_when_blocks_move(self):
        # Sealed, collected, restarted: places change, what they hold does not.
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                self.scribble(client, 400, 6)
                data = self.check(client)
            daemon.do("snapshot disk snap")
            daemon.do("fork snap child")
            daemon.do(f"create gone {self.SIZE}")    # to be sealed among the rest, and collected
            with daemon.client("gone") as client:
                self.scribble(client, 200, 7)
            before = {name: self.data_blocks(daemon, name) for name in ("disk", "snap", "child")}
            daemon.wait_idle()
            for move in (daemon.seal, lambda: daemon.do("rm gone"), daemon.collect, daemon.restart):
                move()
                for name, blocks in before.items():
                    # Data that turned out to be zero may be called so from then on.
                    self.assertLessEqual(self.data_blocks(daemon, name), blocks)
                    with daemon.client(name) as client:
                        self.assertEqual(self.check(client), data)

    def test_while_blocks_move(self):
        # Clients read, ask and write on while everything is sealed and collected again and again.
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            with daemon.client("disk") as client:
                self.scribble(client, 300, 8)
                data = b"".join(client.read(at, 16 * MIB) for at in range(0, self.SIZE, 16 * MIB))
            daemon.do("snapshot disk snap")
            stop, problems = threading.Event(), []

            def load(export, seed):
                try:
                    with daemon.client(export) as client:
                        while not stop.is_set():
                            if export == "disk":
                                self.scribble(client, 5, seed)
                            self.assertEqual(client.do(CACHE, 0, 8 * MIB)[0], 0)
                            got = client.read(0, 8 * MIB)
                            for offset, length, state in client.extents(0, 8 * MIB):
                                if export == "snap" and state & ZERO:
                                    self.assertEqual(got[offset:offset + length].count(0), length)
                            if export == "snap":
                                self.assertEqual(got, data[:8 * MIB])
                except Exception as problem:    # noqa: reported by the main thread
                    problems.append(problem)

            threads = [threading.Thread(target=load, args=arguments) for arguments in (("disk", 1), ("snap", 2), ("snap", 3))]
            for thread in threads:
                thread.start()
            try:
                for _ in range(4):
                    daemon.seal()
                    daemon.collect()
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(problems, [])
            with daemon.client("snap") as client:
                self.assertEqual(self.check(client), data)

    def test_under_load(self):
        # A writer only ever adds data to one half: what is reported as zero there must have been zero when asked.
        with Daemon() as daemon:
            daemon.do(f"create disk {self.SIZE}")
            stop = threading.Event()

            def load():
                with daemon.client("disk") as writer:
                    for block in random.Random(3).sample(range(4096), 4096):
                        if stop.is_set():
                            return
                        self.assertEqual(writer.write(block * 8192, pattern(block, 4096)), 0)

            thread = threading.Thread(target=load)
            thread.start()
            try:
                with daemon.client("disk") as client:
                    for _ in range(20):
                        before = client.read(0, 32 * MIB)
                        extents = client.extents(0, 32 * MIB)
                        for offset, length, state in extents:
                            if state & ZERO:
                                self.assertEqual(before[offset:offset + length].count(0), length)
            finally:
                stop.set()
                thread.join()
            with daemon.client("disk") as client:
                self.check(client)


NEEDS = {"N04": ["nbdinfo", "nbdcopy"], "N06Cli": ["nbdinfo"], "N09": ["nbdcopy", "qemu-img", "nbdinfo"]}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(NEEDS)
    missing = [tool for case in chosen for tool in NEEDS.get(case, []) if not shutil.which(tool)]
    if missing:
        print("skipped: not installed: " + ", ".join(missing))
        sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
