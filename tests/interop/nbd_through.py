# SPDX-License-Identifier: Apache-2.0
"""Our exports served on by other programs: nbdkit's nbd plugin under its filters, and qemu-nbd. usage: nbd_through.py"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import unittest

from nbd_client import *

MIB = 1 << 20
TOOLS = ["nbdkit", "qemu-nbd", "qemu-io", "qemu-img", "nbdinfo", "nbdcopy"]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
    return result.stdout


def content(seed, size):
    """Data with long zero runs in it."""
    chance = random.Random(seed)
    data = bytearray(size)
    for _ in range(size // (256 << 10)):
        at = chance.randrange(0, size - 65536) // 512 * 512
        data[at:at + 65536] = chance.randbytes(65536)
    return bytes(data)


class Through(unittest.TestCase):
    SIZE = 48 * MIB

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {self.SIZE}")
        self.data = content(3, self.SIZE)
        with self.daemon.client("disk") as client:
            for at in range(0, self.SIZE, 16 * MIB):
                self.assertEqual(client.write(at, self.data[at:at + 16 * MIB]), 0)
        self.daemon.do("snapshot disk snap")

    def path(self, name):
        return os.path.join(self.daemon.directory, name)

    def serve(self, *command):
        """Another server in front of ours; returns its URI."""
        path = self.path("front.sock")
        with open(self.path("front.log"), "w") as log:
            process = subprocess.Popen([word.replace("SOCKET", path) for word in command], stdout=log, stderr=log)
        self.front = process

        def stop():
            process.send_signal(signal.SIGTERM)
            process.wait(GUARD_SECONDS)
        self.stop_front = stop
        self.addCleanup(lambda: process.poll() is None and stop())
        while True:
            try:
                Client(path).close()
                break
            except (FileNotFoundError, ConnectionError):
                if process.poll() is not None:
                    with open(self.path("front.log")) as log:
                        self.fail(f"{command[0]} did not start: {log.read()}")
                time.sleep(0.01)
        return "nbd+unix:///?socket=" + path

    def nbdkit(self, export, *words, filters=()):
        return self.serve("nbdkit", "-f", "-U", "SOCKET", *[f"--filter={name}" for name in filters], "nbd",
                          f"socket={self.daemon.socket}", f"export={export}", *words)

    def read_out(self, uri):
        run("nbdcopy", uri, self.path("out"))
        with open(self.path("out"), "rb") as file:
            return file.read()

    def ours(self, export="disk"):
        with self.daemon.client(export) as client:
            return b"".join(client.read(at, 16 * MIB) for at in range(0, self.SIZE, 16 * MIB))

    def test_plain(self):
        uri = self.nbdkit("disk")
        self.assertEqual(self.read_out(uri), self.data)
        mapped = json.loads(run("nbdinfo", "--map", "--json", uri))
        self.assertEqual(mapped, json.loads(run("nbdinfo", "--map", "--json", self.daemon.uri("disk"))))
        run("qemu-io", "-f", "raw", "-c", "write -P 7 1M 64k", "-c", "write -z -u 2M 1M", "-c", "discard 4M 1M", "-c", "flush", uri)
        expected = bytearray(self.data)
        expected[MIB:MIB + 65536] = b"\7" * 65536
        for at in (2 * MIB, 4 * MIB):
            expected[at:at + MIB] = bytes(MIB)
        self.assertEqual(self.ours(), bytes(expected))

    def test_several_connections_behind_one(self):
        uri = self.nbdkit("snap", "shared=true")
        self.assertTrue(json.loads(run("nbdinfo", "--json", uri))["exports"][0]["is_read_only"])
        self.assertEqual(self.read_out(uri), self.data)

    def test_cow_leaves_the_snapshot_alone(self):
        uri = self.nbdkit("snap", filters=("cow",))
        run("qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", "-c", "write -z 8M 1M", "-c", "flush", "-c", "read -P 9 0 1M",
            "-c", "read -P 0 8M 1M", uri)
        self.assertEqual(self.ours("snap"), self.data)

    def test_cow_prefetch_uses_cache(self):
        uri = self.nbdkit("snap", "cow-on-cache=true", filters=("cow",))
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, self.daemon.uri("snap"))

    def test_readahead(self):
        uri = self.nbdkit("disk", filters=("readahead",))
        self.assertEqual(self.read_out(uri), self.data)

    def test_offset(self):
        begin, size = 5 * MIB + 512, 3 * MIB + 1024
        uri = self.nbdkit("disk", f"offset={begin}", f"range={size}", filters=("offset",))
        self.assertEqual(self.read_out(uri), self.data[begin:begin + size])

    def test_partition(self):
        # A master boot record with two partitions: status and places unused, type, first sector, sectors.
        entry = lambda first, count: struct.pack("<4xB3xII", 0x83, first, count)
        record = bytes(446) + entry(2048, 20480) + entry(24576, 8192) + bytes(32) + b"\x55\xaa"
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(0, record), 0)
        part = content(4, 8192 * 512)
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(24576 * 512, part), 0)
        uri = self.nbdkit("disk", "partition=2", filters=("partition",))
        self.assertEqual(self.read_out(uri), part)

    def test_stats_count_the_same_requests(self):
        stats = self.path("stats")
        before = self.daemon.stat()["requests_total"]
        uri = self.nbdkit("disk", f"statsfile={stats}", filters=("stats",))
        run("qemu-io", "-f", "raw", *sum((["-c", f"write -P {i} {i}M 4k"] for i in range(1, 30)), []), uri)
        self.stop_front()
        with open(stats) as file:
            text = file.read()
        self.assertEqual(int(re.search(r"write: (\d+) ops", text)[1]), 29, text)
        self.daemon.wait_idle()
        self.assertGreaterEqual(self.daemon.stat()["requests_total"] - before, 29)

    def test_blocksize_and_fua_filters(self):
        uri = self.nbdkit("disk", "minblock=4096", "maxlen=65536", "fuamode=force", filters=("blocksize", "fua"))
        run("qemu-io", "-f", "raw", "-c", "write -P 3 513 7000", "-c", "read -P 3 513 7000", uri)
        expected = bytearray(self.data)
        expected[513:7513] = b"\3" * 7000
        self.assertEqual(self.ours(), bytes(expected))

    def test_qemu_nbd_lists_our_exports(self):
        out = run("qemu-nbd", "--list", "-k", self.daemon.socket)
        for words in ("export: 'disk'", "export: 'snap'", "base:allocation", "min block: 512", f"size:  {self.SIZE}", "description"):
            self.assertIn(words, out)

    def test_qemu_nbd_serves_our_export_on(self):
        uri = self.serve("qemu-nbd", "-t", "-k", "SOCKET", "-f", "raw", "--discard=unmap", "--detect-zeroes=unmap",
                         self.daemon.uri("disk"))
        self.assertEqual(self.read_out(uri), self.data)
        other = self.path("other")
        with open(other, "wb") as file:
            file.write(content(5, self.SIZE))
        run("nbdcopy", "--flush", other, uri)
        self.assertEqual(self.ours(), content(5, self.SIZE))

    def test_qcow2_overlay_over_our_snapshot(self):
        overlay = self.path("overlay.qcow2")
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", self.daemon.uri("snap"), overlay)
        run("qemu-io", "-f", "qcow2", "-c", "write -P 5 3M 100k", overlay)
        run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", overlay, self.path("flat"))
        expected = bytearray(self.data)
        expected[3 * MIB:3 * MIB + 102400] = b"\5" * 102400
        with open(self.path("flat"), "rb") as file:
            self.assertEqual(file.read(), bytes(expected))
        self.assertEqual(self.ours("snap"), self.data)


if __name__ == "__main__":
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        print("skipped: not installed: " + ", ".join(missing))
        sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
