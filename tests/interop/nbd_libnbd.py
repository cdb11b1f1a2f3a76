# SPDX-License-Identifier: Apache-2.0
"""libnbd through its Python module: a strict client that checks every reply against the protocol. usage: nbd_libnbd.py"""
import os
import random
import sys
import unittest

try:
    import nbd
except ImportError:
    # Debian's module is Debian's Python's.
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.access("/usr/bin/python3", os.X_OK):
        os.execv("/usr/bin/python3", ["/usr/bin/python3"] + sys.argv)
    print("skipped: python3-libnbd is not installed")
    sys.exit(77)

from nbd_client import *

MIB = 1 << 20
SHARED = "ramet:shared"


class LibNbd(unittest.TestCase):
    SIZE = 32 * MIB

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {self.SIZE}")

    def open(self, export="disk", contexts=(), **settings):
        handle = nbd.NBD()
        for name in contexts:
            handle.add_meta_context(name)
        for setting, value in settings.items():
            getattr(handle, "set_" + setting)(value)
        handle.connect_uri(self.daemon.uri(export))
        return handle

    def statuses(self, handle, offset, length, flags=0):
        got = {}

        def extent(context, at, entries, error):
            self.assertEqual((at, error.value), (offset, 0))
            got[context] = list(zip(entries[0::2], entries[1::2]))
        handle.block_status(length, offset, extent, flags)
        return got

    def test_what_is_offered(self):
        handle = self.open(contexts=[nbd.CONTEXT_BASE_ALLOCATION, SHARED])
        self.assertEqual(handle.get_size(), self.SIZE)
        self.assertTrue(handle.get_structured_replies_negotiated())
        for ask in (handle.can_multi_conn, handle.can_flush, handle.can_fua, handle.can_trim, handle.can_zero,
                    handle.can_fast_zero, handle.can_cache, handle.can_df):
            self.assertTrue(ask(), ask)
        self.assertFalse(handle.is_read_only())
        self.assertTrue(handle.can_meta_context(SHARED) and handle.can_meta_context("base:allocation"))
        self.assertEqual([handle.get_block_size(kind) for kind in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)],
                         [512, 4096, 32 * MIB])

    def test_haggling(self):
        handle = nbd.NBD()
        handle.set_opt_mode(True)
        handle.connect_unix(self.daemon.socket)
        names, contexts = [], []
        handle.opt_list(lambda name, words: names.append((name, words)))
        self.assertEqual(names, [("disk", "volume")])
        handle.set_export_name("nobody")
        with self.assertRaises(nbd.Error):
            handle.opt_info()
        handle.set_export_name("disk")
        handle.set_full_info(True)
        handle.opt_info()
        self.assertEqual((handle.get_size(), handle.get_export_description()), (self.SIZE, "volume disk"))
        handle.opt_list_meta_context(contexts.append)
        self.assertEqual(sorted(contexts), ["base:allocation", SHARED])
        handle.add_meta_context("ramet:")
        handle.opt_list_meta_context(contexts.append)
        self.assertEqual(contexts[2:], [SHARED])
        handle.clear_meta_contexts()
        handle.add_meta_context(SHARED)
        handle.opt_go()
        self.assertEqual(handle.pread(512, 0), bytearray(512))

    def test_chunks(self):
        handle = self.open()
        handle.pwrite(b"d" * 4096, 4096)
        chunks = []

        def chunk(data, offset, kind, error):
            chunks.append((offset, len(data), kind))
        data = handle.pread_structured(16384, 0, chunk)
        self.assertEqual(data, bytes(4096) + b"d" * 4096 + bytes(8192))
        self.assertEqual([kind for _, _, kind in chunks], [nbd.READ_HOLE, nbd.READ_DATA, nbd.READ_HOLE])
        chunks.clear()
        self.assertEqual(handle.pread_structured(16384, 0, chunk, nbd.CMD_FLAG_DF), data)
        self.assertEqual(chunks, [(0, 16384, nbd.READ_DATA)])

    def test_contexts(self):
        handle = self.open()
        handle.pwrite(b"s" * 65536, 0)
        self.daemon.do("snapshot disk snap")
        self.daemon.do("fork snap child")
        child = self.open("child", [nbd.CONTEXT_BASE_ALLOCATION, SHARED])
        child.pwrite(b"c" * 4096, 8192)
        got = self.statuses(child, 0, 131072)
        self.assertEqual(got["base:allocation"], [(65536, 0), (65536, 3)])
        self.assertEqual(got[SHARED], [(8192, 1), (4096, 0), (131072 - 12288, 1)])
        got = self.statuses(child, 0, 131072, nbd.CMD_FLAG_REQ_ONE)
        self.assertEqual((got["base:allocation"], got[SHARED]), ([(65536, 0)], [(8192, 1)]))

    def test_every_command_beside_a_model(self):
        handle = self.open(contexts=[nbd.CONTEXT_BASE_ALLOCATION])
        chance, model = random.Random(6), bytearray(4 * MIB)
        for _ in range(500):
            at = chance.randrange(0, 4 * MIB - 262144) // 512 * 512
            size = chance.choice((512, 4096, 65536, 262144))
            command = chance.choice("wwwztcfr")
            if command == "w":
                data = chance.randbytes(size)
                handle.pwrite(data, at, chance.choice((0, nbd.CMD_FLAG_FUA)))
                model[at:at + size] = data
            elif command == "z":
                handle.zero(size, at, chance.choice((0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA)))
                model[at:at + size] = bytes(size)
            elif command == "t":
                begin, end = (at + 4095) // 4096 * 4096, (at + size) // 4096 * 4096
                handle.trim(size, at)
                if begin < end:
                    model[begin:end] = bytes(end - begin)
            elif command == "c":
                handle.cache(size, at)
            elif command == "f":
                handle.flush()
            else:
                self.assertEqual(handle.pread(size, at), model[at:at + size])
        self.assertEqual(handle.pread(4 * MIB, 0), model)

    def test_many_in_flight(self):
        handle = self.open()
        cookies = [handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([number]) * 8192), number * 8192)
                   for number in range(200)]
        buffers = [nbd.Buffer(8192) for _ in range(200)]
        while handle.aio_in_flight():
            handle.poll(-1)
        reads = [handle.aio_pread(buffer, number * 8192) for number, buffer in enumerate(buffers)]
        while handle.aio_in_flight():
            handle.poll(-1)
        self.assertTrue(all(handle.aio_command_completed(cookie) for cookie in cookies + reads))
        for number, buffer in enumerate(buffers):
            self.assertEqual(buffer.to_bytearray(), bytearray([number]) * 8192)

    def test_what_a_strict_client_would_not_send(self):
        handle = self.open(strict_mode=0)
        for call in (lambda: handle.pread(512, self.SIZE), lambda: handle.pwrite(b"x", self.SIZE), lambda: handle.zero(512, self.SIZE),
                     lambda: handle.cache(33 * MIB, 0)):
            with self.assertRaises(nbd.Error):
                call()
        self.assertEqual(handle.pread(512, 0), bytearray(512))

    def test_sizes(self):
        for size in (1, 511, 4097, 1000001, 2**44, 2**56 - 4096):
            self.daemon.do(f"create size{size} {size}")
            handle = self.open(f"size{size}")
            self.assertEqual(handle.get_size(), size)
            end = min(size, handle.get_block_size(nbd.SIZE_MINIMUM))
            handle.pwrite(b"e" * end, size - end)
            self.assertEqual(handle.pread(end, size - end), b"e" * end)


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
