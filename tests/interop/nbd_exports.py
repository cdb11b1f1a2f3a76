# SPDX-License-Identifier: Apache-2.0
"""Which exports there are, what is said of them, and their metadata contexts.

usage: nbd_exports.py [Contexts | Shared | Many | Names]     (Names needs NBD_SERVER=rametd)
"""
import os
import random
import struct
import subprocess
import unittest

from nbd_client import *

KIB, MIB = 1 << 10, 1 << 20
ALLOCATION, SHARED = "base:allocation", "ramet:shared"
SAME = 1


class Served(unittest.TestCase):
    SIZE = 16 * MIB

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {self.SIZE}")

    def client(self, *arguments, **options):
        client = Client(self.daemon.socket, *arguments, **options)
        self.addCleanup(client.close)
        return client


class Contexts(Served):
    """LIST_ and SET_META_CONTEXT: wildcards, namespaces, several at once, the last SET counts."""

    def names(self, client, option, queries, export="disk"):
        kind, replies = client.option(option, Client.meta(export, queries))
        self.assertEqual(kind, REP_ACK)
        ids = [struct.unpack(">I", data[:4])[0] for code, data in replies if code == REP_META]
        if option == LIST_META:
            self.assertEqual(set(ids) - {0}, set())
        else:
            self.assertEqual(len(set(ids)), len(ids))
        return [data[4:].decode() for code, data in replies if code == REP_META]

    def setUp(self):
        super().setUp()
        self.haggler = self.client()
        self.haggler.agree_structured()

    def test_list(self):
        for queries, expected in (([], [ALLOCATION, SHARED]), (["base:"], [ALLOCATION]), (["ramet:"], [SHARED]),
                                  (["ramet:", "base:"], [ALLOCATION, SHARED]), ([SHARED], [SHARED]),
                                  ([ALLOCATION, ALLOCATION, "base:"], [ALLOCATION]), (["qemu:"], []), (["base:alloc"], []),
                                  (["x-y:z", SHARED, "qemu:dirty-bitmap:a"], [SHARED]), (["base:allocation:"], []),
                                  (["BASE:allocation"], []), (["bas:"], []), (["ramet:shared2"], [])):
            self.assertEqual(self.names(self.haggler, LIST_META, queries), expected, queries)

    def test_set(self):
        for queries, expected in (([], []), ([ALLOCATION], [ALLOCATION]), ([SHARED, ALLOCATION], [ALLOCATION, SHARED]),
                                  ([SHARED, SHARED], [SHARED]), (["base:"], []), (["ramet:", SHARED], [SHARED]),
                                  (["qemu:allocation-depth"], []), (["nonsense:x", ALLOCATION], [ALLOCATION])):
            self.assertEqual(self.names(self.haggler, SET_META, queries), expected, queries)

    def test_malformed_queries(self):
        for option in (LIST_META, SET_META):
            for query in ("nocolon", "", ":", ":leaf"):
                self.assertEqual(self.haggler.option(option, Client.meta("disk", [ALLOCATION, query]))[0], ERR_INVALID, query)
            self.assertEqual(self.haggler.option(option, Client.meta("nobody", [ALLOCATION]))[0], ERR_UNKNOWN)
            self.assertEqual(self.haggler.option(option, Client.meta("disk", ["x" * 4097 + ":"]))[0], ERR_INVALID)
            self.assertEqual(self.haggler.option(option, Client.meta("disk", [])[:-2])[0], ERR_INVALID)
            self.assertEqual(self.haggler.option(option, Client.meta("disk", []) + b"x")[0], ERR_INVALID)
        self.assertEqual(self.names(self.haggler, LIST_META, []), [ALLOCATION, SHARED])

    def test_they_need_structured_replies(self):
        plain = self.client()
        for option in (LIST_META, SET_META):
            self.assertEqual(plain.option(option, Client.meta("disk", [ALLOCATION]))[0], ERR_INVALID)

    def test_many_queries(self):
        queries = ["x:" + "y" * 30] * 1500 + [SHARED]
        self.assertEqual(self.names(self.haggler, SET_META, queries), [SHARED])
        self.assertEqual(self.haggler.option(LIST_META, Client.meta("disk", ["x:" + "y" * 100] * 1000))[0], ERR_TOO_BIG)

    def status_after(self, *sets):
        client = self.client()
        client.agree_structured()
        for export, queries in sets:
            client.option(SET_META, Client.meta(export, queries))
        client.go("disk")
        client.context_names = {1: "1", 2: "2"}
        client.post(STATUS, 0, 4096)
        chunks = 0
        while True:
            _, flags, kind, _, size = struct.unpack(">IHHQI", client.receive(20))
            client.receive(size)
            if kind & 0x8000:
                return None
            chunks += 1
            if flags & 1:
                return chunks

    def test_the_last_set_counts(self):
        self.daemon.do(f"create other {MIB}")
        self.assertEqual(self.status_after(("disk", [ALLOCATION, SHARED])), 2)
        self.assertEqual(self.status_after(("disk", [ALLOCATION, SHARED]), ("disk", [ALLOCATION])), 1)
        self.assertEqual(self.status_after(("other", [ALLOCATION]), ("disk", [SHARED])), 1)
        for last in (("disk", []), ("disk", ["nocolon"]), ("nobody", [ALLOCATION]), ("other", [ALLOCATION])):
            self.assertIsNone(self.status_after(("disk", [ALLOCATION]), last), last)
        self.assertIsNone(self.status_after())


class Shared(Served):
    """ramet:shared: which blocks are still those of the snapshot that a volume was forked from."""

    def setUp(self):
        super().setUp()
        with self.daemon.client("disk") as client:
            for block in range(0, 1024, 2):
                self.assertEqual(client.write(block * 4096, struct.pack("<Q", block) * 512), 0)
        self.daemon.do("snapshot disk snap")
        self.daemon.do("fork snap child")

    def shared(self, export, **options):
        with self.daemon.client(export, contexts=[SHARED, ALLOCATION]) as client:
            extents = client.extents(context=SHARED, **options)
            self.assertEqual(extents, client.extents(context=SHARED, flags=REQ_ONE, **options))
            return extents

    def test_a_fresh_fork_shares_everything(self):
        self.assertEqual(self.shared("child"), [(0, self.SIZE, SAME)])

    def test_whose_snapshot(self):
        # A volume compares with the snapshot it was made from, or that was made of it, whichever came last.
        self.assertEqual(self.shared("disk"), [(0, self.SIZE, SAME)])
        self.daemon.do(f"create lone {MIB}")
        self.assertEqual(self.shared("lone"), [(0, MIB, 0)])
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(0, b"n" * 4096), 0)
        self.assertEqual(self.shared("disk"), [(0, 4096, 0), (4096, self.SIZE - 4096, SAME)])
        self.daemon.do("snapshot disk newer")
        self.assertEqual(self.shared("disk"), [(0, self.SIZE, SAME)])
        self.assertEqual(self.shared("newer"), [(0, 4096, 0), (4096, self.SIZE - 4096, SAME)])

    def test_what_changes_is_not_shared(self):
        with self.daemon.client("child") as client:
            self.assertEqual(client.write(8 * 4096, b"x" * 4096), 0)          # over data
            self.assertEqual(client.write(101 * 4096 + 5, b"y"), 0)           # a part, over nothing
            self.assertEqual(client.do(TRIM, 200 * 4096, 8192)[0], 0)         # one block of data, one of nothing
            self.assertEqual(client.do(ZEROES, 2 * MIB, MIB, NO_HOLE)[0], 0)  # a long run
        expected = [(0, 8 * 4096, SAME), (8 * 4096, 4096, 0), (9 * 4096, 92 * 4096, SAME), (101 * 4096, 4096, 0),
                    (102 * 4096, 98 * 4096, SAME), (200 * 4096, 4096, 0), (201 * 4096, 2 * MIB - 201 * 4096, SAME),
                    (2 * MIB, MIB, 0), (3 * MIB, self.SIZE - 3 * MIB, SAME)]
        self.assertEqual(self.shared("child"), expected)
        for move in (self.daemon.seal, self.daemon.collect, self.daemon.restart):
            move()
            self.assertEqual(self.shared("child"), expected)
        self.daemon.do("snapshot child grandsnap")    # a snapshot compares with what its volume came from
        self.assertEqual(self.shared("grandsnap"), expected)
        self.daemon.do("fork grandsnap grandchild")
        self.assertEqual(self.shared("grandchild"), [(0, self.SIZE, SAME)])

    def test_reads_agree(self):
        # Whatever is called shared reads as the snapshot does.
        chance = random.Random(2)
        with self.daemon.client("child") as client:
            for _ in range(200):
                at, size = chance.randrange(self.SIZE - 65536), chance.choice((512, 4096, 20000))
                command = chance.choice((WRITE, ZEROES, TRIM))
                self.assertEqual(client.do(command, at, size, 0, bytes(size) if command == WRITE else b"")[0], 0)
            child = client.read(0, self.SIZE)
        with self.daemon.client("snap") as client:
            snap = client.read(0, self.SIZE)
        for at, size, state in self.shared("child"):
            if state & SAME:
                self.assertEqual(child[at:at + size], snap[at:at + size])

    def test_sizes_that_differ(self):
        self.daemon.do(f"resize child {64 * MIB + 100}")
        self.assertEqual(self.shared("child"), [(0, self.SIZE, SAME), (self.SIZE, 48 * MIB + 100, 0)])
        self.daemon.do(f"resize child {MIB}")
        self.assertEqual(self.shared("child"), [(0, MIB, SAME)])

    def test_without_the_snapshot_nothing_is_known_to_be_shared(self):
        self.daemon.do("rm snap")
        self.assertEqual(sum(size for _, size, _ in self.shared("child")), self.SIZE)

    def test_both_contexts_in_one_reply(self):
        with self.daemon.client("child", contexts=[SHARED, ALLOCATION]) as client:
            self.assertEqual(client.write(4096, b"z" * 4096), 0)
            error, got = client.do(STATUS, 0, 16384)
            self.assertEqual(error, 0)
            self.assertEqual(got[ALLOCATION], [(12288, 0), (4096, HOLE | ZERO)])
            self.assertEqual(got[SHARED], [(4096, SAME), (4096, 0), (8192, SAME)])
            error, got = client.do(STATUS, 0, 16384, REQ_ONE)
            self.assertEqual((got[ALLOCATION], got[SHARED]), ([(12288, 0)], [(4096, SAME)]))
            error, got = client.do(STATUS, 4096, 100, 0)
            self.assertEqual((got[ALLOCATION], got[SHARED]), ([(100, 0)], [(100, 0)]))

    def test_more_pieces_than_a_reply_holds(self):
        self.daemon.do(f"create comb {64 * MIB}")
        with self.daemon.client("comb", contexts=[SHARED, ALLOCATION]) as client:
            for block in range(0, 6000, 2):
                client.post(WRITE, block * 4096, 4096, 0, b"c" * 4096)
            for _ in range(3000):
                self.assertEqual(client.read_reply()[1], 0)
            error, got = client.do(STATUS, 0, 64 * MIB)
            self.assertEqual(error, 0)
            self.assertLess(sum(size for size, _ in got[ALLOCATION]), 6000 * 4096)
            extents = client.extents()
            self.assertEqual(len(extents), 6000)
            self.assertEqual(extents[0], (0, 4096, 0))


class Many(Served):
    """Ten thousand exports: listed whole, each with its words, opened at random."""

    COUNT = 10000

    def list(self):
        with Client(self.daemon.socket) as client:
            kind, replies = client.option(LIST)
            self.assertEqual(kind, REP_ACK)
            names = {}
            for code, data in replies[:-1]:
                self.assertEqual(code, REP_SERVER)
                size, = struct.unpack(">I", data[:4])
                self.assertNotIn(data[4:4 + size], names)
                names[data[4:4 + size].decode()] = data[4 + size:].decode()
            return names

    def test_many(self):
        self.daemon.do(f"many v- {self.COUNT}")
        self.daemon.do("snapshot v-77 snap")
        names = self.list()
        self.assertEqual(names, {"disk": "volume", "snap": "snapshot", **{f"v-{n}": "volume" for n in range(self.COUNT)}})
        before = self.daemon.resident_bytes()
        for _ in range(20):
            self.list()
        chance = random.Random(1)
        for _ in range(300):
            number = chance.randrange(self.COUNT)
            with self.daemon.client(f"v-{number}") as client:
                self.assertEqual(client.size, (number + 1) * 4096)
                self.assertEqual(client.write(number * 4096, struct.pack("<Q", number) * 512), 0)
                self.assertEqual(client.read(number * 4096, 8), struct.pack("<Q", number))
        self.daemon.wait_idle()
        self.assertLess(self.daemon.resident_bytes() - before, 64 * MIB)
        self.daemon.restart()
        self.assertEqual(len(self.list()), self.COUNT + 2)

    def test_a_client_that_does_not_read_the_list(self):
        self.daemon.do("many v- 2000")
        deaf = [self.client() for _ in range(20)]
        for client in deaf:
            for _ in range(50):
                client.send_option(LIST)
        self.assertEqual(len(self.list()), 2001)
        self.assertLess(self.daemon.resident_bytes(), 512 * MIB)

    def test_words_in_info(self):
        self.daemon.do("snapshot disk snap")
        for export, words in (("disk", b"volume disk"), ("snap", b"snapshot snap")):
            kind, replies = self.client().option(INFO, Client.info(export, [1, 2, 3]))
            self.assertEqual(kind, REP_ACK)
            told = {data[:2]: data[2:] for code, data in replies if code == REP_INFO}
            self.assertEqual((told[b"\0\1"], told[b"\0\2"]), (export.encode(), words))
            kind, replies = self.client().option(INFO, Client.info(export))
            self.assertNotIn(b"\0\2", [data[:2] for _, data in replies])


class Names(Served):
    """The real daemon's one name space: a name is a volume or a snapshot; numbers work too; snapshots are read-only."""

    def run_ramet(self, *words):
        result = subprocess.run([self.daemon.ramet, "--run", self.daemon.run_directory, *words], capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    def test_names(self):
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(0, b"1" * 4096), 0)
        self.daemon.do("snapshot disk snap")
        for words in (("volume", "snapshot", "disk", "disk"), ("volume", "create", "snap", "1M"),
                      ("volume", "fork", "snap", "snap"), ("volume", "rename", "disk", "snap")):
            status, _, said = self.run_ramet(*words)
            self.assertNotEqual(status, 0, words)
            self.assertIn("snap" if "snap" in words[2:] else "disk", said)
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(0, b"2" * 4096), 0)
            self.assertFalse(client.flags & READ_ONLY)
        with self.daemon.client("snap") as client:
            self.assertTrue(client.flags & READ_ONLY)
            self.assertEqual(client.write(0, b"3" * 4096), EPERM)
            self.assertEqual(client.read(0, 4096), b"1" * 4096)
        status, out, _ = self.run_ramet("--json", "volume", "show", "disk")
        self.assertEqual(status, 0)
        with self.daemon.client(json.loads(out)["id"]) as client:
            self.assertEqual(client.read(0, 4096), b"2" * 4096)
        with Client(self.daemon.socket) as client:
            for name in ("", "vol_999", "snap_999", "vol_0", "vol_01", "vol_1x", "nobody/disk", "nobody/memory", "disk/memory",
                         "/disk", "disk/", "Disk", "x" * 201):
                self.assertEqual(client.option(INFO, Client.info(name))[0], ERR_UNKNOWN, name)
            kind, replies = client.option(LIST)
            told = {}
            for code, data in replies[:-1]:
                size, = struct.unpack(">I", data[:4])
                told[data[4:4 + size].decode()] = data[4 + size:].decode()
            self.assertEqual(told, {"disk": f"volume, {self.SIZE} bytes",
                                    "snap": f"snapshot of a volume, read-only, {self.SIZE} bytes"})


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
