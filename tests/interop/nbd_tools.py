# SPDX-License-Identifier: Apache-2.0
"""The field's own NBD programs against our server: qemu-img, qemu-io, nbdinfo, nbdcopy, fio."""
import os
import random
import shutil
import subprocess
import sys
import unittest

from nbd_client import *

MIB = 1 << 20
TOOLS = ["qemu-img", "qemu-io", "nbdinfo", "nbdcopy", "fio"]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
    return result.stdout


class Tools(unittest.TestCase):
    SIZE = 96 * MIB

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.do(f"create disk {self.SIZE}")
        self.uri = self.daemon.uri("disk")

    def path(self, name):
        return os.path.join(self.daemon.directory, name)

    def make_disk(self, name):
        """A sparse file: data, holes and zeros written as data."""
        chance = random.Random(11)
        with open(self.path(name), "wb") as file:
            file.truncate(self.SIZE)
            for _ in range(60):
                file.seek(chance.randrange(0, self.SIZE - MIB) // 512 * 512)
                size = chance.choice((512, 4096, 65536, MIB))
                file.write(bytes(size) if chance.random() < 0.3 else chance.randbytes(size))
        with open(self.path(name), "rb") as file:
            return file.read()

    def read_all(self):
        with self.daemon.client("disk") as client:
            return b"".join(client.read(at, 32 * MIB) for at in range(0, self.SIZE, 32 * MIB))

    def read_file(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def test_qemu_img_both_ways(self):
        content = self.make_disk("in.raw")
        for kind in ("raw", "qcow2"):
            source = self.path("in." + kind)
            if kind == "qcow2":
                run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", self.path("in.raw"), source)
                with self.daemon.client("disk") as client:
                    self.assertEqual(client.do(TRIM, 0, self.SIZE)[0], 0)
            run("qemu-img", "convert", "-n", "-f", kind, "-O", "raw", source, self.uri)
            self.assertEqual(self.read_all(), content)
            run("qemu-img", "convert", "-f", "raw", "-O", kind, self.uri, self.path("out." + kind))
            run("qemu-img", "compare", "-f", kind, "-F", "raw", self.path("out." + kind), self.path("in.raw"))
            run("qemu-img", "compare", "-f", "raw", "-F", "raw", self.uri, self.path("in.raw"))
        self.assertIn(str(self.SIZE), run("qemu-img", "info", "-f", "raw", self.uri))
        mapped = json.loads(run("qemu-img", "map", "-f", "raw", "--output=json", self.uri))
        self.assertEqual(sum(extent["length"] for extent in mapped), self.SIZE)

    def test_qemu_io(self):
        out = run("qemu-io", "-f", "raw", "-t", "none", "-c", "write -P 0xa5 1M 3M", "-c", "write -f -P 0x5a 4k 4k",
                  "-c", "write -z 2M 64k", "-c", "write -z -u 2560k 64k", "-c", "discard 3M 512k", "-c", "flush",
                  "-c", "read -P 0xa5 1M 1M", "-c", "read -P 0x5a 4k 4k", "-c", "read -P 0 2M 64k",
                  "-c", "read -P 0 2560k 64k", "-c", "read -P 0xa5 3584k 512k", "-c", "write -P 7 513 1",
                  "-c", "read -P 7 513 1", "-c", "read -P 0 0 513",
                  "-c", "aio_write -P 1 8M 1M", "-c", "aio_write -P 2 16M 1M", "-c", "aio_read -P 0 24M 1M",
                  "-c", "aio_flush", "-c", "read -P 1 8M 1M", "-c", "read -P 2 16M 1M", self.uri)
        self.assertNotIn("failed", out)
        self.assertNotIn("error", out.lower())

    def test_nbdinfo(self):
        with self.daemon.client("disk") as client:
            self.assertEqual(client.write(MIB, b"x" * 8192), 0)
            self.assertEqual(client.do(ZEROES, 2 * MIB, MIB, NO_HOLE)[0], 0)
        info = json.loads(run("nbdinfo", "--json", self.uri))["exports"][0]
        for key in ("can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_multi_conn", "can_cache", "can_df"):
            self.assertTrue(info[key], key)
        self.assertFalse(info["is_read_only"])
        self.assertEqual(info["contexts"], ["base:allocation", "ramet:shared"])
        self.assertEqual(info["block_size_maximum"], 32 * MIB)
        mapped = json.loads(run("nbdinfo", "--map", "--json", self.uri))
        self.assertEqual([(extent["offset"], extent["length"], extent["type"]) for extent in mapped],
                         [(0, MIB, 3), (MIB, 8192, 0), (MIB + 8192, MIB - 8192, 3), (2 * MIB, MIB, 2),
                          (3 * MIB, self.SIZE - 3 * MIB, 3)])
        mapped = json.loads(run("nbdinfo", "--map=ramet:shared", "--json", self.uri))
        self.assertEqual([(extent["length"], extent["type"]) for extent in mapped], [(self.SIZE, 0)])
        self.daemon.do("snapshot disk snap")
        self.daemon.do("fork snap child")
        with self.daemon.client("child") as client:
            self.assertEqual(client.write(MIB, b"y" * 4096), 0)
        mapped = json.loads(run("nbdinfo", "--map=ramet:shared", "--json", self.daemon.uri("child")))
        self.assertEqual([(extent["offset"], extent["length"], extent["type"]) for extent in mapped],
                         [(0, MIB, 1), (MIB, 4096, 0), (MIB + 4096, self.SIZE - MIB - 4096, 1)])
        totals = json.loads(run("nbdinfo", "--map=ramet:shared", "--totals", "--json", self.daemon.uri("child")))
        self.assertEqual({entry["type"]: entry["size"] for entry in totals}, {0: 4096, 1: self.SIZE - 4096})
        self.daemon.do("rm child")
        self.assertEqual(sorted(export["export-name"] for export in
                                json.loads(run("nbdinfo", "--json", "--list", self.daemon.uri("")))["exports"]),
                         ["disk", "snap"])
        self.assertTrue(json.loads(run("nbdinfo", "--json", self.daemon.uri("snap")))["exports"][0]["is_read_only"])

    def test_nbdcopy_both_ways(self):
        content = self.make_disk("in.raw")
        run("nbdcopy", "--flush", self.path("in.raw"), self.uri)
        self.assertEqual(self.read_all(), content)
        self.daemon.do("snapshot disk snap")
        for name, options in (("disk", []), ("snap", ["--connections=4", "--requests=64"]), ("disk", ["--no-extents"])):
            run("nbdcopy", *options, self.daemon.uri(name), self.path("out.raw"))
            self.assertEqual(self.read_file("out.raw"), content)
        self.daemon.do(f"create copy {self.SIZE}")
        run("nbdcopy", self.daemon.uri("snap"), self.daemon.uri("copy"))
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", self.daemon.uri("copy"), self.path("in.raw"))

    def fio(self, name, *options):
        return run("fio", "--name=" + name, "--ioengine=nbd", "--uri=" + self.uri, f"--size={self.SIZE}",
                   "--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--randseed=7", *options)

    def test_fio_verify(self):
        self.fio("mixed", "--rw=randrw", "--rwmixwrite=60", "--bs=4k", "--iodepth=16", "--io_size=48m")
        self.fio("crooked", "--rw=randwrite", "--bsrange=512-64k", "--blockalign=512", "--bs_unaligned=0",
                 "--iodepth=8", "--fsync=32", "--io_size=32m")
        self.fio("large", "--rw=write", "--bs=1m", "--iodepth=4")

    def test_fio_verify_under_kill(self):
        # fio itself kills the daemon in the middle, and keeps what had been answered by then; later it verifies just that.
        here = os.getcwd()
        os.chdir(self.daemon.directory)    # its state file lies where it runs
        self.addCleanup(os.chdir, here)
        job = ["fio", "--name=cut", "--ioengine=nbd", "--uri=" + self.uri, f"--size={self.SIZE}", "--rw=randwrite", "--bs=4k",
               "--iodepth=16", "--randseed=7", "--verify=crc32c", "--verify_fatal=1", "--output-format=json"]
        for _ in range(2):
            subprocess.run(job + ["--do_verify=0", "--time_based", "--runtime=600", "--verify_state_save=1",
                                  "--trigger-timeout=2s", f"--trigger=kill -9 {self.daemon.process.pid}"], capture_output=True)
            self.daemon.process.wait(GUARD_SECONDS)
            self.daemon.kill()
            self.daemon.start()
            out = run(*job, "--verify_state_load=1", "--verify_only")
            self.assertGreater(json.loads(out[out.index("{"):])["jobs"][0]["read"]["total_ios"], 0)

    def test_fio_verify_after_kill(self):
        # Nothing is flushed: answered writes must survive the daemon's death all the same.
        job = ("--rw=randwrite", "--bs=4k", "--iodepth=16", "--io_size=48m", "--norandommap=0")
        self.fio("acknowledged", *job, "--do_verify=0")
        self.daemon.kill()
        self.daemon.start()
        self.fio("acknowledged", *job, "--verify_only")


class Import(unittest.TestCase):
    """`ramet volume import` has promised durability when it returns: the daemon may die in the next moment."""

    def test_kill_after_import(self):
        with Daemon() as daemon:
            for number in range(3):
                source = os.path.join(daemon.directory, "in.raw")
                content = random.Random(number).randbytes(9 * MIB + 512)
                with open(source, "wb") as file:
                    file.write(content)
                    file.truncate(40 * MIB)
                daemon.do(f"import disk{number} {source}")
                daemon.kill()
                daemon.start()
                with daemon.client(f"disk{number}") as client:
                    self.assertEqual(client.size, 40 * MIB)
                    self.assertEqual(client.read(0, 10 * MIB), content + bytes(10 * MIB - len(content)))
                    self.assertEqual(client.read(10 * MIB, 30 * MIB), bytes(30 * MIB))


if __name__ == "__main__":
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if "fio" not in missing and "nbd" not in run("fio", "--enghelp").split():
        missing.append("fio with its engine nbd")
    if missing:
        print("skipped: not installed: " + ", ".join(missing))
        sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
