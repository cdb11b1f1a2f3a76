# SPDX-License-Identifier: Apache-2.0
"""The fine print of the protocol, one test a sentence. usage: nbd_fine_print.py [Lessons | Reads | Cache | Resize | Memory | Stall]"""
import random
import threading
import unittest

from nbd_client import *

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


class Served(unittest.TestCase):
    SIZE = 64 * MIB
    OPTIONS = {}

    def setUp(self):
        self.daemon = Daemon(**self.OPTIONS)
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {self.SIZE}")

    def client(self, name="disk", **options):
        client = self.daemon.client(name, **options)
        self.addCleanup(client.close)
        return client


class Lessons(Served):
    """Each test is one sentence of what other servers got wrong."""

    def assert_survives_kill(self, expected):
        self.daemon.kill()
        self.daemon.start()
        with self.daemon.client("disk") as client:
            self.assertEqual(client.read(0, len(expected)), expected)

    def test_flush_covers_writes_zeros_and_trims_of_all_connections(self):
        first, second, third = self.client(), self.client(), self.client()
        self.assertTrue(first.flags & MULTI_CONN)
        self.assertEqual(first.write(0, pattern(1, MIB)), 0)
        self.assertEqual(first.do(ZEROES, 4096, 8192)[0], 0)
        self.assertEqual(second.do(TRIM, 64 * KIB, 64 * KIB)[0], 0)
        syncs = self.daemon.stat()["sync_count_total"]
        self.assertEqual(third.do(FLUSH)[0], 0)
        self.assertGreater(self.daemon.stat()["sync_count_total"], syncs)
        expected = bytearray(pattern(1, MIB))
        expected[4096:12288] = bytes(8192)
        expected[64 * KIB:128 * KIB] = bytes(64 * KIB)
        self.assert_survives_kill(bytes(expected))

    def test_a_flush_with_nothing_new_is_answered(self):
        client = self.client()
        for _ in range(3):
            self.assertEqual(client.do(FLUSH)[0], 0)

    def test_fua_persists_before_the_reply(self):
        client = self.client()
        for command, payload in ((WRITE, pattern(2, 4096)), (ZEROES, b""), (WRITE, pattern(3, 1000))):
            syncs = self.daemon.stat()["sync_count_total"]
            self.assertEqual(client.do(command, 8192, len(payload) or 4096, FUA, payload)[0], 0)
            self.assertGreater(self.daemon.stat()["sync_count_total"], syncs)
        self.assert_survives_kill(bytes(8192) + pattern(3, 1000) + bytes(MIB))

    def test_fua_is_taken_on_every_command(self):
        client = self.client()
        for command in (READ, FLUSH, TRIM, CACHE, ZEROES, STATUS):
            self.assertEqual(client.do(command, 0, 0 if command == FLUSH else 4096, FUA)[0], 0, command)

    def test_payloads_of_32_mib_are_taken(self):
        client = self.client()
        data = pattern(4, 32 * MIB)
        self.assertEqual(client.write(4096, data), 0)
        self.assertEqual(client.read(4096, 32 * MIB), data)

    def test_payloads_over_32_mib_are_refused_and_the_session_goes_on(self):
        client = self.client()
        self.assertEqual(client.write(0, bytes(32 * MIB + 512)), EINVAL)
        self.assertEqual(client.do(READ, 0, 32 * MIB + 512)[0], EINVAL)
        self.assertEqual(client.read(0, 512), bytes(512))

    def test_trim_and_zeros_of_any_length_keep_the_session(self):
        self.daemon.do(f"create large {8 * GIB}")
        client = self.client("large")
        self.assertEqual(client.write(6 * GIB, b"x" * 4096), 0)
        for command in (TRIM, ZEROES):
            for length in (32 * MIB + 512, 2 * GIB, 4294966784, 2**32 - 1):
                self.assertIn(client.do(command, 0, length)[0], (0, EINVAL, EOVERFLOW))
        self.assertEqual(client.read(6 * GIB, 4096), b"x" * 4096)

    def test_offsets_that_overflow_are_refused(self):
        client = self.client()
        for command in (READ, TRIM, ZEROES, STATUS, CACHE):
            for offset in (2**64 - 512, 2**64 - 1, 2**63, 2**63 - 512, self.SIZE - 511):
                self.assertIn(client.do(command, offset, 512)[0], (EINVAL, ENOSPC), (command, offset))
            self.assertIn(client.do(command, 2**64 - 1, 2**32 - 1)[0], (EINVAL, ENOSPC))
        self.assertEqual(client.write(2**64 - 512, bytes(512)), ENOSPC)
        self.assertEqual(client.read(0, 512), bytes(512))

    def test_trim_rounds_inward(self):
        client = self.client()
        data = pattern(5, 64 * KIB)
        self.assertEqual(client.write(0, data), 0)
        self.assertEqual(client.do(TRIM, 4095, 8194)[0], 0)
        got = client.read(0, 64 * KIB)
        self.assertEqual((got[:4095], got[12289:]), (data[:4095], data[12289:]))
        self.assertTrue(all(new in (0, old) for new, old in zip(got, data)))
        self.assertEqual(client.do(TRIM, 513, 100)[0], 0)
        self.assertEqual(client.read(0, 4095), data[:4095])

    def test_zeros_read_back_as_zeros(self):
        client = self.client()
        for flags in (0, NO_HOLE, FUA):
            for offset, length in ((0, 4096), (1, 4095), (4095, 2), (511, 123457), (self.SIZE - 777, 777)):
                at = max(offset - 4096, 0)
                size = min(length + 8192, self.SIZE - at)
                data = pattern(offset, size)
                self.assertEqual(client.write(at, data), 0)
                self.assertEqual(client.do(ZEROES, offset, length, flags)[0], 0)
                expected = data[:offset - at] + bytes(length) + data[offset - at + length:]
                self.assertEqual(client.read(at, size), expected, (flags, offset, length))

    def test_a_fast_zero_that_would_be_slow_is_refused_and_changes_nothing(self):
        client = self.client()
        data = pattern(6, 8192)
        self.assertEqual(client.write(0, data), 0)
        for offset, length in ((512, 512), (1, 4095), (100, 8000), (4095, 2)):
            self.assertEqual(client.do(ZEROES, offset, length, FAST_ZERO)[0], ENOTSUP)
            self.assertEqual(client.read(0, 8192), data)
        self.assertEqual(client.do(ZEROES, 0, 8192, FAST_ZERO)[0], 0)
        self.assertEqual(client.read(0, 8192), bytes(8192))

    def test_zeros_without_the_fast_flag_are_never_unsupported(self):
        client = self.client()
        for flags in (0, NO_HOLE, FUA, NO_HOLE | FUA):
            self.assertEqual(client.do(ZEROES, 513, 511, flags)[0], 0)

    def test_requests_of_no_length_do_not_disconnect(self):
        client = self.client()
        for command in (READ, WRITE, TRIM, ZEROES, STATUS, CACHE):
            for flags in (0, FUA):
                self.assertIn(client.do(command, 4096, 0, flags)[0], (0, EINVAL))
        self.assertEqual(client.read(0, 512), bytes(512))

    def test_unknown_client_flags_disconnect(self):
        for flags in (1 << 2, 1 << 31, 7):
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.addCleanup(raw.close)
            raw.connect(self.daemon.socket)
            raw.settimeout(GUARD_SECONDS)
            raw.recv(18)
            raw.sendall(struct.pack(">I", flags))
            self.assertEqual(raw.recv(1), b"")

    def test_unknown_commands_and_flags_are_refused_and_the_session_goes_on(self):
        client = self.client()
        for command, flags in ((8, 0), (99, 0), (65535, 0), (READ, 1 << 9), (READ, NO_HOLE), (READ, REQ_ONE), (TRIM, NO_HOLE),
                               (FLUSH, DF), (STATUS, DF), (ZEROES, REQ_ONE), (CACHE, DF)):
            self.assertEqual(client.do(command, 0, 0 if command == FLUSH else 512, flags)[0], EINVAL, (command, flags))
        self.assertEqual(client.do(WRITE, 0, 512, DF, b"y" * 512)[0], EINVAL)    # its payload is taken all the same
        self.assertEqual(client.read(0, 512), bytes(512))

    def test_reserved_fields_of_a_flush_must_be_zero(self):
        client = self.client()
        self.assertEqual(client.do(FLUSH, 512, 0)[0], EINVAL)
        self.assertEqual(client.do(FLUSH, 0, 512)[0], EINVAL)
        self.assertEqual(client.do(FLUSH)[0], 0)

    def test_the_reader_is_never_held_up_by_a_slow_request(self):
        # One send holds both headers. The long CACHE goes in steps; the read behind it must not wait for it.
        client = self.client()
        self.assertEqual(client.write(0, pattern(7, 32 * MIB)), 0)
        slow = client.header(CACHE, 0, 32 * MIB)
        client.send(slow + client.header(READ, 40 * MIB, 4096))
        self.assertEqual([client.read_reply()[0] for _ in range(2)], [client.cookie, client.cookie - 1])

    def test_a_half_sent_write_holds_up_only_its_own_connection(self):
        first, second = self.client(), self.client()
        first.send(first.header(WRITE, 0, MIB) + bytes(1000))
        for _ in range(10):
            self.assertEqual(second.write(4096, b"z" * 4096), 0)
            self.assertEqual(second.do(FLUSH)[0], 0)
        first.send(pattern(8, MIB - 1000))
        self.assertEqual(first.read_reply()[1], 0)
        self.assertEqual(second.read(0, MIB), bytes(1000) + pattern(8, MIB - 1000))


class Reads(Served):
    """Structured reads: data and holes, in as few chunks as said, in one with DF."""

    def fill(self, client, blocks):
        for block in blocks:
            self.assertEqual(client.write(block * 4096, pattern(block, 4096)), 0)

    def check(self, client, offset, length, chunks, flags=0):
        error, data = client.do(READ, offset, length, flags)
        self.assertEqual(error, 0)
        self.assertEqual(client.last_chunks, chunks)
        return data

    def test_chunks(self):
        client = self.client()
        self.fill(client, (1, 3))
        K = 4096
        self.check(client, 0, K, [(0, K, True)])
        self.check(client, K, K, [(K, K, False)])
        data = self.check(client, 0, 5 * K, [(0, K, True), (K, K, False), (2 * K, K, True), (3 * K, K, False),
                                             (4 * K, K, True)])
        self.assertEqual(data, bytes(K) + pattern(1, K) + bytes(K) + pattern(3, K) + bytes(K))
        self.assertEqual(self.check(client, 0, 5 * K, [(0, 5 * K, False)], DF), data)
        self.check(client, 8 * K, 8 * K, [(8 * K, 8 * K, True)], DF)
        # Parts of blocks at the ends are holes only together with a whole block.
        self.check(client, K - 100, K, [(K - 100, K, False)])
        self.check(client, 512, 2 * K, [(512, 2 * K, False)])
        self.check(client, 4 * K - 1, 3 * K, [(4 * K - 1, 1, False), (4 * K, 3 * K - 1, True)])
        self.check(client, 5 * K + 1, 3, [(5 * K + 1, 3, True)])
        self.check(client, 2 * K, 0, [])

    def test_written_zeros_are_holes_too(self):
        client = self.client()
        self.assertEqual(client.write(0, bytes(4096) + b"x" + bytes(8191)), 0)
        self.check(client, 0, 12288, [(0, 4096, True), (4096, 4096, False), (8192, 4096, True)])
        self.assertEqual(client.write(16384, bytes(4095) + b"x"), 0)
        self.check(client, 16384, 4096, [(16384, 4096, False)])

    def test_chunks_of_a_long_read_are_bounded(self):
        client = self.client()
        self.fill(client, range(0, 512, 2))
        data = b"".join(pattern(block, 4096) if block % 2 == 0 else bytes(4096) for block in range(512))
        error, got = client.do(READ, 0, 2 * MIB)
        self.assertEqual((error, got), (0, data))
        self.assertEqual(len(client.last_chunks), 1)    # no hole is a sixteenth of the read
        error, got = client.do(READ, 0, 128 * KIB)
        self.assertEqual((error, got), (0, data[:128 * KIB]))
        error, got = client.do(READ, 0, 64 * KIB)
        self.assertEqual((error, got), (0, data[:64 * KIB]))
        self.assertEqual(len(client.last_chunks), 16)
        error, got = client.do(READ, 0, 32 * MIB)
        self.assertEqual((error, got), (0, data + bytes(30 * MIB)))
        self.assertEqual(client.last_chunks[-1][2], True)

    def test_any_range_reads_the_same_in_any_shape(self):
        chance = random.Random(9)
        plain, client = self.client(structured=False), self.client()
        for _ in range(200):
            size = chance.choice((512, 4096, 20000))
            offset = chance.randrange(MIB)
            self.assertEqual(client.write(offset, bytes(size) if chance.random() < 0.4 else chance.randbytes(size)), 0)
        cookies = {}
        for number in range(300):
            offset, size = chance.randrange(MIB), chance.randint(1, 300000)
            flags = DF if chance.random() < 0.2 else 0
            self.assertEqual(client.do(READ, offset, size, flags), plain.do(READ, offset, size), (offset, size, flags))
            if number % 20 == 0:    # several replies of many chunks in one send
                wanted = {client.post(READ, at * 65536, 65536): at for at in range(16)}
                for _ in range(16):
                    cookie, error, data = client.read_reply()
                    cookies[wanted[cookie]] = data
                self.assertEqual(b"".join(cookies[at] for at in range(16)), plain.read(0, MIB))

    def test_df_without_structured_replies_is_refused(self):
        client = self.client(structured=False)
        self.assertEqual(client.do(READ, 0, 512, DF)[0], EINVAL)
        self.assertEqual(client.read(0, 512), bytes(512))


class Cache(Served):
    """CACHE has no effect that could be seen, keeps within bounds, and says so when asked for too much."""

    def test_cache(self):
        client = self.client()
        self.assertEqual(client.write(0, pattern(1, 3 * MIB + 100)), 0)
        for offset, length in ((0, 1), (0, 3 * MIB + 100), (MIB - 1, 777777), (0, 32 * MIB), (self.SIZE - 5, 5)):
            self.assertEqual(client.do(CACHE, offset, length), (0, b""))
        self.assertEqual(client.do(CACHE, 0, 32 * MIB + 1)[0], ENOTSUP)
        self.assertEqual(client.do(CACHE, 0, 2**32 - 1)[0], EINVAL)    # beyond the end as well
        self.assertEqual(client.do(CACHE, self.SIZE - 4, 5)[0], EINVAL)
        self.assertEqual(client.read(0, 3 * MIB + 100), pattern(1, 3 * MIB + 100))

    def test_cache_of_a_snapshot(self):
        client = self.client()
        self.assertEqual(client.write(0, pattern(2, MIB)), 0)
        self.daemon.do("snapshot disk snap")
        self.assertEqual(self.client("snap").do(CACHE, 0, 2 * MIB)[0], 0)

    def test_many_at_once_and_a_client_that_leaves(self):
        for leave in ("close", "disc"):
            client = self.client()
            self.assertEqual(client.write(0, pattern(3, 4 * MIB)), 0)
            cookies = [client.post(CACHE, 0, 32 * MIB) for _ in range(40)]
            if leave == "disc":
                client.post(DISC)
                self.assertEqual(sorted(client.read_reply()[0] for _ in cookies), cookies)
                self.assertEqual(client.socket.recv(1), b"")
            client.close()
        self.daemon.wait_idle()
        self.daemon.do("rm disk")


class Resize(Served):
    """A volume that grows and shrinks under its clients: right answers at every size, new clients see the new one."""

    def test_grow(self):
        old = self.client()
        self.assertEqual(old.write(self.SIZE, b"x" * 512), ENOSPC)
        self.assertEqual(old.do(READ, self.SIZE, 512)[0], EINVAL)
        self.daemon.do(f"resize disk {2 * self.SIZE}")
        self.assertEqual(old.write(self.SIZE, b"x" * 512), 0)
        new = self.client()
        self.assertEqual((old.size, new.size), (self.SIZE, 2 * self.SIZE))
        for client in (old, new):
            self.assertEqual(client.read(self.SIZE - 512, 2048), bytes(512) + b"x" * 512 + bytes(1024))
            self.assertEqual(client.write(2 * self.SIZE - 100, b"y" * 101), ENOSPC)
            self.assertEqual(sum(size for _, size, _ in client.extents(0, 2 * self.SIZE)), 2 * self.SIZE)

    def test_shrink(self):
        old = self.client()
        self.assertEqual(old.write(self.SIZE - MIB, pattern(1, MIB)), 0)
        self.assertEqual(old.write(MIB - 8192, pattern(2, 16384)), 0)
        self.daemon.do(f"resize disk {MIB + 100}")
        new = self.client()
        self.assertEqual((old.size, new.size), (self.SIZE, MIB + 100))
        self.assertEqual(new.block_sizes[0], 1)
        for client in (old, new):
            for command, refusal in ((READ, EINVAL), (TRIM, EINVAL), (STATUS, EINVAL), (CACHE, EINVAL), (ZEROES, ENOSPC)):
                self.assertEqual(client.do(command, MIB, 4096)[0], refusal, command)
                self.assertEqual(client.do(command, self.SIZE - 512, 512)[0], refusal, command)
            self.assertEqual(client.write(MIB + 99, b"ab"), ENOSPC)
            self.assertEqual(client.read(MIB - 8192, 8292), pattern(2, 16384)[:8292])
            self.assertEqual(client.extents(MIB, 100)[-1][:2], (MIB, 100))
        self.daemon.do(f"resize disk {self.SIZE}")
        self.assertEqual(old.read(MIB - 8192, 16384), pattern(2, 16384)[:8292] + bytes(8092))
        self.assertEqual(old.read(self.SIZE - MIB, MIB), bytes(MIB))

    def test_a_write_half_received_when_the_volume_shrinks(self):
        client = self.client()
        client.send(client.header(WRITE, 32 * MIB, MIB) + b"x" * 1000)
        client.socket.setblocking(True)
        self.daemon.do(f"resize disk {32 * MIB + 512}")
        client.send(b"x" * (MIB - 1000))
        self.assertIn(client.read_reply()[1], (EINVAL, ENOSPC))
        self.assertEqual(client.read(32 * MIB, 512), bytes(512))

    def test_a_snapshot_keeps_its_size(self):
        self.daemon.do("snapshot disk snap")
        snap = self.client("snap")
        self.daemon.do(f"resize disk {MIB}")
        self.assertEqual(snap.read(self.SIZE - 512, 512), bytes(512))
        self.assertEqual(self.client("snap").size, self.SIZE)

    def hammer(self, seed, stop, problems):
        chance = random.Random(seed)
        try:
            with self.daemon.client("disk") as client:
                while not stop.is_set():
                    sent = []
                    for _ in range(20):
                        command = chance.choice((READ, WRITE, ZEROES, TRIM, STATUS, CACHE))
                        offset, length = chance.randrange(self.SIZE), chance.choice((1, 512, 4096, 100000))
                        sent.append(client.post(command, offset, length, 0, bytes(length) if command == WRITE else b""))
                    for _ in sent:
                        _, error, _ = client.read_reply()
                        if error not in (0, EINVAL, ENOSPC):
                            problems.append(error)
        except Exception as problem:    # noqa: reported by the main thread
            problems.append(problem)

    def test_resize_under_load(self):
        stop, problems = threading.Event(), []
        threads = [threading.Thread(target=self.hammer, args=(seed, stop, problems)) for seed in range(4)]
        for thread in threads:
            thread.start()
        chance = random.Random(1)
        try:
            for _ in range(60):
                self.daemon.do(f"resize disk {chance.randint(1, self.SIZE)}")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(problems, [])
        size = self.client().size
        self.assertEqual(len(self.client().read(0, min(size, MIB))), min(size, MIB))


class SharedMemory(Served):
    """Payload memory is bounded for all clients together."""

    BUDGET = 64 * MIB
    OPTIONS = {"payload_bytes": BUDGET}

    def deaf(self, count):
        """Clients that ask for a lot and read nothing."""
        clients = [self.client() for _ in range(count)]
        for client in clients:
            for _ in range(2):
                client.post(READ, 0, 32 * MIB)
        return clients


class Memory(SharedMemory):
    """Everybody is served in the end."""

    def test_large_reads_of_many(self):
        # More than fits at once; everybody is served.
        data, problems = pattern(1, 16 * MIB), []
        self.assertEqual(self.client().write(0, data), 0)

        def read(client):
            try:
                for _ in range(3):
                    assert client.read_reply()[1:] == (0, data)
            except Exception as problem:    # noqa: reported by the main thread
                problems.append(problem)

        clients = [self.client() for _ in range(12)]
        for client in clients:
            for _ in range(3):
                client.post(READ, 0, 16 * MIB)
        threads = [threading.Thread(target=read, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        stat = self.daemon.stat()
        self.assertGreater(stat["payload_peak_bytes"], 32 * MIB)
        self.assertLessEqual(stat["payload_peak_bytes"], self.BUDGET)

    def test_large_writes_of_many(self):
        def write(number):
            with self.daemon.client("disk") as client:
                for i in range(3):
                    assert client.write(number * 4 * MIB, pattern(number * 10 + i, 4 * MIB)) == 0
        threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self.daemon.client("disk") as client:
            for number in range(12):
                self.assertEqual(client.read(number * 4 * MIB, 4 * MIB), pattern(number * 10 + 2, 4 * MIB))
        self.assertLessEqual(self.daemon.stat()["payload_peak_bytes"], self.BUDGET)

    def test_small_requests_never_wait_for_memory(self):
        self.assertEqual(self.client().write(0, pattern(1, 32 * MIB)), 0)
        self.deaf(8)
        client = self.client()
        for number in range(200):
            self.assertEqual(client.write(48 * MIB + number * 4096, pattern(number, 4096)), 0)
        self.assertEqual(client.read(48 * MIB + 4096, 4096), pattern(1, 4096))
        self.assertEqual(client.read(0, MIB), pattern(1, 32 * MIB)[:MIB])
        self.assertLessEqual(self.daemon.stat()["payload_peak_bytes"], self.BUDGET)

    def test_idle_clients_hold_nothing_shared(self):
        clients = [self.client() for _ in range(20)]
        for client in clients:
            self.assertEqual(client.write(0, bytes(4 * MIB)), 0)
            self.assertEqual(client.read(0, 4 * MIB), bytes(4 * MIB))
        for client in clients:
            self.assertEqual(client.read(0, 512), bytes(512))
        self.assertEqual(self.daemon.stat()["payload_bytes"], 0)

    def test_who_leaves_while_waiting_is_forgotten(self):
        self.assertEqual(self.client().write(0, pattern(1, 32 * MIB)), 0)
        self.deaf(4)
        for _ in range(20):
            client = self.daemon.client("disk")
            client.post(READ, 0, 32 * MIB)
            client.close()
        with self.daemon.client("disk") as client:
            self.assertEqual(client.read(0, 512), pattern(1, 32 * MIB)[:512])


class Stall(SharedMemory):
    """Who holds much and moves nothing is given up, but only while others wait."""

    def read_beside_the_silent(self, stall_ms):
        """False: who reads was slower than that himself, and given up."""
        with Daemon(payload_bytes=self.BUDGET, stall_ms=stall_ms) as self.daemon:
            self.daemon.do(f"create disk {self.SIZE}")
            data = pattern(1, 32 * MIB)
            self.assertEqual(self.client().write(0, data), 0)
            deaf = self.deaf(4)
            half = self.client()
            half.send(half.header(WRITE, 0, 32 * MIB) + b"x" * 4096)
            try:
                for _ in range(3):
                    self.assertEqual(self.client().read(0, 32 * MIB), data)    # waits until the silent ones are dropped
            except ConnectionError:
                return False
            for client in deaf[:1]:
                with self.assertRaises(OSError):
                    while True:
                        client.read_reply()
        return True

    def test_who_moves_nothing_gives_way_to_who_waits(self):
        self.assertTrue(any(self.read_beside_the_silent(ms) for ms in (500, 5000, 30000)))    # a slow host's reader needs longer


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
