# SPDX-License-Identifier: Apache-2.0
"""Field cases of connections: handshakes, churn, limits. One class each. usage: nbd_connections.py [N11 ...]"""
import os
import random
import struct
import threading
import unittest

from nbd_client import *

KIB, MIB = 1 << 10, 1 << 20


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


class N11(unittest.TestCase):
    """Handshakes in pieces, with lies, with STARTTLS: refused with the right word, and haggling goes on."""

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {MIB}")

    def handshake(self):
        meta = Client.meta("disk", ["base:allocation"])
        go = Client.info("disk", [3])
        return (struct.pack(">I", 3) + struct.pack(">QII", OPTION_MAGIC, STRUCTURED, 0) +
                struct.pack(">QII", OPTION_MAGIC, SET_META, len(meta)) + meta +
                struct.pack(">QII", OPTION_MAGIC, GO, len(go)) + go)

    def raw(self):
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.connect(self.daemon.socket)
        raw.settimeout(GUARD_SECONDS)
        return raw

    def test_one_byte_at_a_time(self):
        with self.raw() as raw:
            for byte in self.handshake() + struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 77, 0, 512):
                raw.sendall(bytes([byte]))
            hole = struct.pack(">IHHQIQI", CHUNK_MAGIC, 1, 2, 77, 12, 0, 512)
            data = b""
            while not data.endswith(hole):
                data += raw.recv(65536)

    def test_cut_after_each_byte(self):
        whole = self.handshake()
        for size in range(len(whole) + 1):
            with self.raw() as raw:
                raw.sendall(whole[:size])
        with self.daemon.client("disk") as client:
            self.assertEqual(client.read(0, 512), bytes(512))

    def expect(self, client, option, data, *allowed):
        kind, _ = client.option(option, data)
        self.assertIn(kind, allowed, (option, data[:64], hex(kind)))
        kind, replies = client.option(INFO, Client.info("disk", [3]))
        self.assertEqual(kind, REP_ACK)
        return replies

    def test_wrong_options(self):
        long_name = struct.pack(">I", 100) + b"disk" + struct.pack(">H", 0)
        with Client(self.daemon.socket) as client:
            for unknown in (4, 11, 12, 4242, 0, 2**32 - 1):
                self.expect(client, unknown, b"", ERR_UNSUP)
            self.expect(client, 4242, b"data", ERR_UNSUP)
            self.expect(client, LIST, b"data", ERR_INVALID)
            self.expect(client, GO, long_name, ERR_INVALID)
            self.expect(client, GO, b"", ERR_INVALID)
            self.expect(client, GO, Client.info("disk") + b"!", ERR_INVALID)
            self.expect(client, GO, struct.pack(">I", 4) + b"disk" + struct.pack(">H", 9), ERR_INVALID)
            self.expect(client, GO, struct.pack(">I", 0xFFFFFFFF) + b"disk", ERR_INVALID)
            self.expect(client, INFO, Client.info("nobody"), ERR_UNKNOWN)
            self.expect(client, GO, Client.info("x" * 4096), ERR_UNKNOWN)
            for size in (4097, 5000):
                self.expect(client, GO, Client.info("x" * size), ERR_INVALID, ERR_TOO_BIG)
                self.expect(client, SET_META, Client.meta("x" * size, ["base:allocation"]), ERR_INVALID, ERR_TOO_BIG)
            self.expect(client, GO, Client.info(b"d\xffsk"), ERR_UNKNOWN, ERR_INVALID)
            self.expect(client, GO, Client.info(b"disk\0"), ERR_INVALID, ERR_UNKNOWN)
            self.expect(client, 4242, bytes(64 * KIB), ERR_UNSUP, ERR_TOO_BIG)
            self.expect(client, 4242, bytes(64 * KIB + 1), ERR_UNSUP, ERR_TOO_BIG)
            self.expect(client, GO, bytes(3 * MIB), ERR_INVALID, ERR_TOO_BIG)
            self.expect(client, INFO, Client.info("disk", [3] * 100 + [0, 1, 2, 999]), REP_ACK)
            self.expect(client, SET_META, Client.meta("disk", ["base:allocation"]), ERR_INVALID)
            self.expect(client, STARTTLS, b"", ERR_UNSUP, ERR_POLICY)
            self.expect(client, STARTTLS, b"data", ERR_INVALID, ERR_UNSUP)
            self.expect(client, STRUCTURED, b"data", ERR_INVALID)
            client.agree_structured()
            self.expect(client, SET_META, Client.meta("disk", ["nocolon"]), ERR_INVALID)
            self.expect(client, SET_META, Client.meta("disk", ["base:allocation"])[:-3], ERR_INVALID)
            self.expect(client, SET_META, Client.meta("nobody", ["base:allocation"]), ERR_UNKNOWN)
            kind, replies = client.option(SET_META, Client.meta("disk", ["qemu:dirty-bitmap:x", "base:nothing"]))
            self.assertEqual([kind, len(replies)], [REP_ACK, 1])
            kind, replies = client.option(LIST_META, Client.meta("disk", []))
            self.assertEqual([reply[4:] for code, reply in replies if code == REP_META], [b"base:allocation", b"ramet:shared"])
            kind, replies = client.option(LIST_META, Client.meta("disk", ["base:"]))
            self.assertEqual([reply[4:] for code, reply in replies if code == REP_META], [b"base:allocation"])
            before = self.expect(client, LIST, b"", REP_ACK)
            kind, replies = client.option(GO, Client.info("disk", [3]))
            self.assertEqual((kind, replies), (REP_ACK, before))
            client.set_info(replies)
            self.assertEqual(client.read(0, 512), bytes(512))
            self.assertEqual(client.do(STATUS, 0, 512)[0], EINVAL)    # no context was agreed

    def test_contexts_belong_to_their_export(self):
        self.daemon.do(f"create other {MIB}")
        with Client(self.daemon.socket) as client:
            client.agree_structured()
            self.assertEqual(client.option(SET_META, Client.meta("other", ["base:allocation"]))[0], REP_ACK)
            client.go("disk")
            self.assertEqual(client.do(STATUS, 0, 512)[0], EINVAL)

    def closed(self, client):
        try:
            return client.socket.recv(1) == b""
        except ConnectionError:
            return True

    def test_what_cannot_be_answered_closes(self):
        with Client(self.daemon.socket) as client:
            client.send_option(EXPORT_NAME, b"nobody")
            self.assertTrue(self.closed(client))
        for name in (b"x" * 4097, b"disk\0", b"\0"):
            with Client(self.daemon.socket) as client:
                client.send_option(EXPORT_NAME, name)
                self.assertTrue(self.closed(client))
        with Client(self.daemon.socket) as client:
            client.send(struct.pack(">QII", OPTION_MAGIC, EXPORT_NAME, 2**32 - 1))
            self.assertTrue(self.closed(client))
        with Client(self.daemon.socket) as client:
            client.send(struct.pack(">QII", 12345, GO, 0))
            self.assertTrue(self.closed(client))
        with self.raw() as raw:
            raw.recv(18)
            raw.sendall(struct.pack(">I", 1 << 7))
            self.assertEqual(raw.recv(1), b"")
        with Client(self.daemon.socket) as client:
            self.assertEqual(client.option(ABORT)[0], REP_ACK)
            self.assertTrue(self.closed(client))
        with self.daemon.client("disk") as client:
            client.send(bytes(28))
            self.assertTrue(self.closed(client))

    def test_export_name_and_simple_replies(self):
        for no_zeroes in (0, 2):
            with self.raw() as raw:
                raw.recv(18)
                raw.sendall(struct.pack(">I", 1 | no_zeroes) + struct.pack(">QII", OPTION_MAGIC, EXPORT_NAME, 4) +
                            b"disk" + struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 5, 0, 512))
                expected = 10 + (0 if no_zeroes else 124) + 16 + 512
                data = b""
                while len(data) < expected:
                    data += raw.recv(4096)
                self.assertEqual(struct.unpack(">Q", data[:8])[0], MIB)
                self.assertEqual(data[-528:], struct.pack(">IIQ", SIMPLE_MAGIC, 0, 5) + bytes(512))

    def test_nothing_is_sent_before_the_ack(self):
        # A read behind GO in the same bytes is answered after GO's last reply, and every reply has its exact length.
        with Client(self.daemon.socket) as client:
            client.send(struct.pack(">QII", OPTION_MAGIC, LIST, 0) + struct.pack(">QII", OPTION_MAGIC, GO, 10) +
                        Client.info("disk") + client.header(READ, 0, 512) + client.header(DISC))
            self.assertEqual(client.option_reply(LIST)[0], REP_ACK)
            kind, replies = client.option_reply(GO)
            self.assertEqual((kind, [len(data) for code, data in replies if code == REP_INFO]), (REP_ACK, [12, 14]))
            self.assertEqual(client.read_reply(), (1, 0, bytes(512)))
            self.assertEqual(client.socket.recv(1), b"")

    def test_info_opens_nothing(self):
        with Client(self.daemon.socket) as client:
            client.agree_structured()
            self.assertEqual(client.option(INFO, Client.info("disk"))[0], REP_ACK)
            self.assertEqual(client.option(SET_META, Client.meta("disk", ["base:allocation"]))[0], REP_ACK)
            self.daemon.do("rm disk")
            self.assertEqual(client.option(GO, Client.info("disk"))[0], ERR_UNKNOWN)

    def silent_clients(self, negotiation_ms):
        """False: that time was over before the one that is not silent had got through, and the others were there."""
        with Daemon(negotiation_ms=negotiation_ms) as daemon:
            daemon.do(f"create disk {MIB}")
            try:
                served = daemon.client("disk")
                silent = [Client(daemon.socket) for _ in range(3)]
                silent[1].send(b"\x49\x48")
            except ConnectionError:
                return False
            with served:
                for client in silent:
                    self.assertTrue(self.closed(client))
                self.assertEqual(served.read(0, 512), bytes(512))
            daemon.wait_idle()
            daemon.do("rm disk")
        return True

    def test_silent_clients_are_dropped(self):
        self.assertTrue(any(self.silent_clients(ms) for ms in (300, 3000, 30000)))    # a slow host needs longer to negotiate


class N12(unittest.TestCase):
    """Thousands of connections that die at every stage leave nothing behind."""

    STAGES = ["connect", "option", "go", "header", "payload", "in flight", "disc in flight", "half close"]

    def die_at(self, daemon, stage, number):
        client = Client(daemon.socket)
        if stage == "connect":
            return client.close()
        if stage == "option":
            client.send(struct.pack(">QII", OPTION_MAGIC, GO, 100) + bytes(50))
            return client.close()
        client.go("disk")
        if stage == "header":
            client.send(struct.pack(">IHH", REQUEST_MAGIC, 0, WRITE))
        elif stage == "payload":
            # Half of a write that must never be seen.
            client.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 1, 32 * MIB, 64 * KIB) + b"X" * 40000)
        elif stage in ("in flight", "disc in flight"):
            for i in range(16):
                client.post(WRITE, 4096 * i, 4096, 0, struct.pack("<Q", number) * 512)
            if stage == "disc in flight":
                client.post(DISC)
                for _ in range(16):     # all outstanding requests are answered, then the session ends
                    self.assertEqual(client.read_reply()[1], 0)
                self.assertEqual(client.socket.recv(1), b"")
                self.last_disc = number
        elif stage == "half close":
            client.post(READ, 0, 4096)
            client.socket.shutdown(socket.SHUT_WR)
            self.assertEqual(client.read_reply()[1], 0)
            self.assertEqual(client.socket.recv(1), b"")
        client.close()

    def counts(self, daemon):
        """(sockets, threads). The store's own files and the kernel's I/O workers come and go with the log."""
        process = f"/proc/{daemon.process.pid}"
        sockets = threads = 0
        for fd in os.listdir(process + "/fd"):
            try:
                sockets += os.readlink(f"{process}/fd/{fd}").startswith("socket:")
            except FileNotFoundError:
                pass
        for task in os.listdir(process + "/task"):
            try:
                with open(f"{process}/task/{task}/comm") as file:
                    threads += not file.read().startswith("iou-")
            except (FileNotFoundError, ProcessLookupError):
                pass
        return sockets, threads

    def test_churn(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            for stage in self.STAGES:
                self.die_at(daemon, stage, 0)
            daemon.wait_idle()
            before, memory_before = self.counts(daemon), daemon.resident_bytes()
            for number in range(3000):
                self.die_at(daemon, self.STAGES[number % len(self.STAGES)], number)
            daemon.wait_idle()
            limit = time.monotonic() + GUARD_SECONDS
            while self.counts(daemon) != before:    # what was counted out may still be being closed
                self.assertLess(time.monotonic(), limit, (self.counts(daemon), before))
                time.sleep(0.01)
            # The log's tree and buffers may grow a little; three thousand leaked connections would not fit.
            self.assertLess(daemon.resident_bytes() - memory_before, 160 * MIB)
            with daemon.client("disk") as client:
                self.assertEqual(client.read(32 * MIB, 64 * KIB), bytes(64 * KIB))
                for i in range(16):
                    self.assertEqual(len(set(client.read(4096 * i, 4096)[at:at + 8] for at in range(0, 4096, 8))), 1)
            daemon.wait_idle()
            daemon.do("rm disk")
            daemon.do(f"create disk {64 * MIB}")
            with daemon.client("disk") as client:
                self.assertEqual(client.read(0, 64 * KIB), bytes(64 * KIB))

    def test_large_requests_of_the_dead(self):
        # Payload memory comes back too, also from those who were waiting for it.
        with Daemon(payload_bytes=64 * MIB) as daemon:
            daemon.do(f"create disk {64 * MIB}")
            with daemon.client("disk") as client:
                self.assertEqual(client.write(0, pattern(1, 16 * MIB)), 0)
            for number in range(60):
                with daemon.client("disk") as client:
                    for _ in range(4):
                        client.post(READ, 0, 16 * MIB)
                    if number % 2:
                        client.send(client.header(WRITE, 32 * MIB, 16 * MIB) + b"X" * 100000)
            daemon.wait_idle()
            self.assertEqual(daemon.stat()["payload_bytes"], 0)
            with daemon.client("disk") as client:
                self.assertEqual(client.read(32 * MIB, 64 * KIB), bytes(64 * KIB))
            daemon.wait_idle()
            daemon.do("rm disk")

    def test_more_clients_than_places(self):
        # The rest waits in the listener's queue and is served when others leave.
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            clients = [daemon.client("disk") for _ in range(256)]
            late = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            late.settimeout(GUARD_SECONDS)
            late.connect(daemon.socket)
            self.assertEqual(clients[-1].read(0, 512), bytes(512))
            self.assertEqual(daemon.stat()["connections"], 256)
            clients.pop().close()
            self.assertEqual(late.recv(8), b"NBDMAGIC")
            late.close()
            for client in clients:
                client.close()
            daemon.wait_idle()
            daemon.do("rm disk")

    def test_requests_before_disc_are_applied(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            for number in range(1, 51):
                self.die_at(daemon, "disc in flight", number)
                with daemon.client("disk") as client:
                    self.assertEqual(client.read(0, 64 * KIB), struct.pack("<Q", number) * 8192)


class Limits(unittest.TestCase):
    """More requests than the server takes at once, and clients that do not read: order is kept, memory is bounded."""

    def test_many_requests_before_the_first_reply_is_read(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            with daemon.client("disk") as client:
                self.assertEqual(client.write(0, pattern(1, 16 * MIB)), 0)
                cookies = []

                def post():
                    for i in range(2000):
                        cookies.append(client.post(READ, i * 8192 % (16 * MIB), 8192))

                thread = threading.Thread(target=post)
                thread.start()
                data = pattern(1, 16 * MIB)
                for i in range(2000):
                    cookie, error, got = client.read_reply()
                    at = (cookie - 2) * 8192 % (16 * MIB)
                    self.assertEqual((error, got), (0, data[at:at + 8192]))
                thread.join()

    def test_a_reader_that_does_not_read(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            with daemon.client("disk") as deaf, daemon.client("disk") as other:
                deaf.socket.setblocking(False)
                header = struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 9, 0, 32 * MIB)
                sent = 0
                try:
                    while sent < 16 * MIB:
                        sent += deaf.socket.send(header * 100)
                except BlockingIOError:
                    pass
                self.assertLess(sent, 16 * MIB)
                self.assertEqual(other.write(0, b"x" * 4096), 0)
                self.assertEqual(other.read(0, 4096), b"x" * 4096)
                self.assertLess(daemon.resident_bytes(), 512 * MIB)

    def test_read_only_exports(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {MIB}")
            with daemon.client("disk") as client:
                self.assertEqual(client.write(0, b"a" * 4096), 0)
            daemon.do("snapshot disk snap")
            with daemon.client("snap") as client:
                self.assertTrue(client.flags & READ_ONLY)
                self.assertEqual(client.write(0, b"b" * 4096), EPERM)
                self.assertEqual(client.do(ZEROES, 0, 4096)[0], EPERM)
                self.assertEqual(client.do(TRIM, 0, 4096)[0], EPERM)
                self.assertEqual(client.do(FLUSH)[0], 0)
                self.assertEqual(client.read(0, 8192), b"a" * 4096 + bytes(4096))

    def test_open_volumes_are_busy(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {MIB}")
            client = daemon.client("disk")
            self.assertTrue(daemon.ask("rm disk").startswith("error"))
            client.post(DISC)
            self.assertEqual(client.socket.recv(1), b"")
            while not daemon.ask("rm disk").startswith("ok"):
                self.assertEqual(daemon.stat()["connections"] <= 1, True)

    def test_stop_with_clients(self):
        with Daemon() as daemon:
            daemon.do(f"create disk {64 * MIB}")
            clients = [daemon.client("disk") for _ in range(8)] + [Client(daemon.socket) for _ in range(4)]
            for client in clients[:4]:
                for _ in range(20):
                    client.post(READ, 0, MIB)
            daemon.stop()
            for client in clients:
                try:
                    while client.socket.recv(1 << 20):
                        pass
                except ConnectionError:
                    pass


class Full(unittest.TestCase):
    """A full store is ENOSPC to the client, never EIO; reads go on; deleting helps without a restart."""

    def write(self, client, numbers):
        written = {number * 128 * KIB: number for number in numbers}
        for offset, number in written.items():
            self.assertEqual(client.write(offset, pattern(number, 128 * KIB)), 0)
        return written

    def fill(self, client, written):
        """Goes on until a write is refused."""
        for number in range(len(written), 1000):
            offset = number * 128 * KIB
            error = client.write(offset, pattern(number, 128 * KIB))
            if error:
                self.assertEqual(error, ENOSPC)
                return
            written[offset] = number
        self.fail("the store never filled")

    def check(self, client, written):
        for offset, seed in written.items():
            self.assertEqual(client.read(offset, 128 * KIB), pattern(seed, 128 * KIB))

    def test_full_store(self):
        with Daemon(log_budget=24 * MIB) as daemon:
            daemon.do(f"create keep {256 * MIB}")
            daemon.do(f"create drop {256 * MIB}")
            with daemon.client("drop") as client:
                written = self.write(client, range(40))
            with daemon.client("keep") as client:
                kept = self.write(client, range(20))
            with daemon.client("drop") as client:
                self.fill(client, written)
                self.assertGreater(len(written), 60)
                self.assertEqual(client.do(FLUSH)[0], 0)
                self.check(client, written)
            with daemon.client("keep") as client:
                for number in range(64, 256):    # sealing may have made a little room meanwhile
                    error = client.write(number * MIB, pattern(number, MIB))
                    if error:
                        break
                    kept.update({number * MIB: None})
                self.assertEqual(error, ENOSPC)
                kept = {offset: seed for offset, seed in kept.items() if seed is not None}
                self.check(client, kept)
            daemon.wait_idle()
            daemon.restart()
            with daemon.client("drop") as client:
                self.check(client, written)
            daemon.wait_idle()
            daemon.do("rm drop")
            with daemon.client("keep") as client:
                # The space comes back in the background.
                while (error := client.write(64 * MIB, pattern(2, 128 * KIB))) != 0:
                    self.assertEqual(error, ENOSPC)
                kept[64 * MIB] = 2
                self.check(client, kept)


class Stop(unittest.TestCase):
    """A server that ends while clients of every kind are at work: it ends cleanly, whatever they do."""

    COMMANDS = [READ, READ, READ, WRITE, WRITE, FLUSH, TRIM, ZEROES, CACHE]

    def hammer(self, daemon, seed):
        chance = random.Random(seed)
        try:
            while True:
                with daemon.client("disk", structured=chance.random() < 0.5) as client:
                    self.session(client, chance)
        except OSError:
            pass        # the server has ended

    def session(self, client, chance):
        for _ in range(chance.randint(1, 60)):
            command, size = chance.choice(self.COMMANDS), chance.choice((512, 4096, 65536, 300000, MIB))
            payload = bytes(size) if command == WRITE else b""
            flags = FUA if command == WRITE and chance.random() < 0.3 else 0
            client.post(command, chance.randrange(32 * MIB // 512) * 512, size, flags, payload)
            if chance.random() < 0.3:
                client.read_reply()
        ending = chance.random()
        if ending < 0.3:
            client.post(DISC)
        elif ending < 0.5:
            client.socket.shutdown(socket.SHUT_WR)

    def test_stop_under_load(self):
        for round in range(4):
            with Daemon() as daemon:
                daemon.do(f"create disk {64 * MIB}")
                threads = [threading.Thread(target=self.hammer, args=(daemon, round * 10 + i)) for i in range(6)]
                for thread in threads:
                    thread.start()
                while daemon.stat()["connections_total"] < 20 + 20 * round:
                    pass
                daemon.stop()
                for thread in threads:
                    thread.join()


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
