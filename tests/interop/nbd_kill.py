# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon under writers that remember what was answered; then every answered write must be there.

usage: nbd_kill.py [ROUNDS]     (default 8; 500 when RAMET_TEST_LONG is set)

A fast writer keeps 16 stamped 4 KiB writes in flight; beside it a slow one sends 32 MiB payloads in pieces, so that
there is always a large write half received; a third one zeroes and trims its own range, a fourth only flushes. A block
may hold what was answered last, or any version sent after that; never an older one, never a mixture.
"""
import os
import random
import select
import struct
import sys
import threading
import time

from nbd_client import *

MIB = 1 << 20
FAST_BLOCKS, SLOW_AT, ZERO_AT = 2048, 64 * MIB, 160 * MIB
SIZE = 256 * MIB


def stamp(block, version):
    return struct.pack("<QQ", block, version) * 256 if version else bytes(4096)


class Ledger:
    """Per block: the version answered last and all versions sent since."""

    def __init__(self):
        self.answered = {}
        self.sent = {}

    def send(self, block, version):
        self.sent.setdefault(block, []).append(version)

    def answer(self, block, version):
        self.answered[block] = version
        self.sent[block] = [other for other in self.sent[block] if other > version]

    def allowed(self, block):
        return [self.answered.get(block, 0)] + self.sent.get(block, [])

    def settle(self, block, version):
        self.answered[block] = version
        self.sent[block] = []


class Writers:
    def __init__(self, daemon, ledger, chance, version):
        self.daemon, self.ledger, self.chance, self.version = daemon, ledger, chance, version
        self.failures = []
        self.answers = 0
        self.large_answers = 0
        self.flushes = 0
        self.threads = [threading.Thread(target=self.guard, args=(work,))
                        for work in (self.fast, self.slow, self.zeroes, self.flusher)]

    def guard(self, work):
        try:
            with self.daemon.client("disk", structured=False) as client:
                work(client)
        except (ConnectionError, BrokenPipeError, FileNotFoundError):
            pass                          # the kill
        except Exception as problem:      # noqa: reported by the main thread
            self.failures.append(problem)

    def next_version(self):
        self.version += 1
        return self.version

    def fast(self, client):
        flying = {}
        while True:
            while len(flying) < 16:
                block = self.chance.randrange(FAST_BLOCKS)
                if block in flying.values():
                    continue              # two writes in flight to one block have no order
                version = self.next_version()
                self.ledger.send(block, version)
                cookie = client.post(WRITE, block * 4096, 4096, 0, stamp(block, version))
                flying[cookie] = block
                self.versions[cookie] = version
            cookie, error, _ = client.read_reply()
            assert error == 0, f"write: error {error}"
            self.ledger.answer(flying.pop(cookie), self.versions[cookie])
            self.answers += 1

    versions = {}

    def slow(self, client):
        first = SLOW_AT // 4096
        while True:
            version = self.next_version()
            for block in range(first, first + 8192):
                self.ledger.send(block, version)
            payload = b"".join(stamp(block, version) for block in range(first, first + 8192))
            client.send(client.header(WRITE, SLOW_AT, len(payload)))
            for at in range(0, len(payload), MIB):
                client.send(payload[at:at + MIB])
                select.select([], [], [], 0.002)    # this is what makes the writer slow
            assert client.read_reply()[1] == 0
            for block in range(first, first + 8192):
                self.ledger.answer(block, version)
            self.large_answers += 1

    def zeroes(self, client):
        first = ZERO_AT // 4096
        for count in range(1 << 30):
            block = first + self.chance.randrange(1024) * 8
            version = self.next_version()
            for i in range(8):
                self.ledger.send(block + i, version)
            assert client.write(block * 4096, b"".join(stamp(block + i, version) for i in range(8))) == 0
            for i in range(8):
                self.ledger.answer(block + i, version)
            if count % 2:
                for i in range(8):
                    self.ledger.sent[block + i].append(0)    # zero again, at any time from now on
                assert client.do(ZEROES, block * 4096, 32768, 0 if count % 4 == 1 else NO_HOLE)[0] == 0
                for i in range(8):
                    self.ledger.settle(block + i, 0)

    def flusher(self, client):
        while True:
            assert client.do(FLUSH)[0] == 0
            self.flushes += 1


def check(daemon, ledger):
    wrong = 0
    with daemon.client("disk") as client:
        for block in sorted(set(ledger.answered) | set(ledger.sent)):
            got = client.read(block * 4096, 4096)
            allowed = ledger.allowed(block)
            found = [version for version in allowed if got == stamp(block, version)]
            if not found:
                wrong += 1
                if wrong <= 10:
                    print(f"block {block}: holds {struct.unpack('<QQ', got[:16])}, allowed versions {allowed[:8]}")
                continue
            ledger.settle(block, found[0])
    return wrong


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500 if os.environ.get("RAMET_TEST_LONG") else 8
    chance = random.Random(5)
    ledger = Ledger()
    version = 0
    answers = large = flushes = 0
    with Daemon() as daemon:
        daemon.do(f"create disk {SIZE}")
        for number in range(rounds):
            writers = Writers(daemon, ledger, chance, version)
            for thread in writers.threads:
                thread.start()
            target = chance.randrange(300, 3000)
            while writers.answers < target and not writers.failures and all(t.is_alive() for t in writers.threads):
                time.sleep(0.001)
            daemon.kill()
            for thread in writers.threads:
                thread.join()
            if writers.failures:
                raise writers.failures[0]
            assert writers.answers >= target, "a writer ended before the kill"
            version = writers.version
            daemon.start()
            wrong = check(daemon, ledger)
            if wrong:
                print(f"round {number}: {wrong} blocks are wrong")
                return 1
            answers += writers.answers
            large += writers.large_answers
            flushes += writers.flushes
    print(f"{rounds} kills, {answers} small writes, {large} of 32 MiB and {flushes} flushes answered: all there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
