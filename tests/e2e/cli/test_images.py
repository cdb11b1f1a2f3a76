# SPDX-License-Identifier: Apache-2.0
"""Disk images in and out: formats, lies, odd ends, sources that stop. No machines."""
import binascii
import os
import pty
import random
import signal
import struct
import subprocess
import time

import rig

MIB = 1 << 20


def qemu_img(*arguments):
    return subprocess.run(["qemu-img", *arguments], capture_output=True, text=True)


def must(result):
    assert result.returncode == 0, result.stderr
    return result


class Images(rig.Case):
    def export(self, name):
        self.daemon.ramet("volume", "export", name, self.path("out"))
        return self.read("out")

    def write_at(self, name, content, offset=0):
        """Bytes into a volume by NBD."""
        path = self.write("bytes", content)
        must(subprocess.run(["qemu-io", "-f", "raw", "-c", f"write -s {path} {offset} {len(content)}", self.daemon.uri(name)],
                            capture_output=True, text=True))

    def wait(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.02)

    def nothing_left(self):
        self.assertEqual(self.daemon.json("volume", "ls", "--all"), [])
        self.assertEqual(self.daemon.json("store", "stat")["docs"], 0)

    # ---- I02: a raw disk that looks like something else ----

    def test_I02_a_guest_writes_a_header_of_another_format(self):
        must(qemu_img("create", "-q", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", self.path("trap")))
        must(qemu_img("create", "-q", "-f", "vmdk", self.path("vmdk"), "1M"))
        heads = {"qcow2": self.read("trap")[:65536], "vmdk": self.read("vmdk")[:65536], "vdi": b"\0" * 64 + b"\x7f\x10\xda\xbe" + bytes(444),
                 "luks": b"LUKS\xba\xbe\0\1" + bytes(504), "bochs": b"Bochs Virtual HD Image" + bytes(490)}
        for name, head in heads.items():
            with self.subTest(name):
                self.daemon.ramet("volume", "create", "d", "4M")
                self.write_at("d", head)
                content = head + bytes(4 * MIB - len(head))
                path = self.path("f.raw")
                self.daemon.ramet("volume", "export", "d", path)
                self.assertEqual(self.read("f.raw"), content, "an export is the bytes, whatever they look like")
                result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "import", "e", path],
                                        capture_output=True, text=True, stdin=subprocess.DEVNULL)
                if result.returncode == 0:
                    self.assertEqual(self.export("e"), content)
                    self.daemon.ramet("volume", "rm", "e")
                else:
                    self.assertIn("--format raw", result.stderr)
                self.daemon.ramet("volume", "import", "e", path, "--format", "raw")
                self.assertEqual(self.export("e"), content)
                self.daemon.ramet("volume", "fork", "e", "k")
                self.assertEqual(self.export("k"), content)
                self.daemon.ramet("volume", "rm", "d", "e", "k")
        # A file that is called .raw and is qcow2 is not opened as one either.
        os.rename(self.path("trap"), self.path("trap.img"))
        self.daemon.ramet("volume", "import", "t", self.path("trap.img"), status=1)
        self.assertIn("--format qcow2", self.daemon.stderr)
        self.nothing_left()

    # ---- I03: the qcow2 family ----

    def content(self, size=64 * MIB):
        path = self.path("content")
        with open(path, "wb") as file:
            file.truncate(size)
            for offset in (0, 5 * MIB + 512, 30 * MIB, size - 70000):
                file.seek(offset)
                file.write(random.Random(offset).randbytes(70000))
        return path

    def same_as_convert(self, source):
        must(qemu_img("convert", "-O", "raw", source, self.path("expected")))
        self.daemon.ramet("volume", "import", "q", source)
        said = self.daemon.stderr
        self.assertEqual(self.export("q"), self.read("expected"))
        self.daemon.ramet("volume", "rm", "q")
        return said

    def test_I03_every_kind_of_qcow2(self):
        content, image = self.content(), self.path("i.qcow2")
        kinds = {"v2": ["-o", "compat=0.10"], "v3": ["-o", "compat=1.1"], "zlib": ["-c"],
                 "zstd": ["-c", "-o", "compression_type=zstd"], "extended": ["-o", "extended_l2=on"],
                 "large clusters": ["-o", "cluster_size=2M"], "small clusters": ["-o", "cluster_size=512"],
                 "lazy": ["-o", "lazy_refcounts=on"], "small refcounts": ["-o", "refcount_bits=1"]}
        for name, options in kinds.items():
            with self.subTest(name):
                must(qemu_img("convert", "-O", "qcow2", *options, content, image))
                self.same_as_convert(image)
        self.nothing_left()

    def test_I03_snapshots_and_bitmaps_are_told_of(self):
        image = self.path("i.qcow2")
        must(qemu_img("convert", "-O", "qcow2", self.content(), image))
        must(qemu_img("snapshot", "-c", "inner", image))
        must(subprocess.run(["qemu-io", "-c", "write -P 7 1M 200k", image], capture_output=True, text=True))
        self.assertIn("snapshots", self.same_as_convert(image), "the active state, and a word about the other")
        must(qemu_img("convert", "-O", "qcow2", self.content(), image))
        must(qemu_img("bitmap", "--add", image, "changed"))
        self.assertIn("bitmaps", self.same_as_convert(image))

    def test_I03_a_backing_file_that_is_shorter(self):
        self.content()
        must(qemu_img("create", "-q", "-f", "qcow2", "-b", "content", "-F", "raw", self.path("over.qcow2"), "96M"))
        must(subprocess.run(["qemu-io", "-c", "write -P 9 63M 2M", self.path("over.qcow2")], capture_output=True, text=True))
        self.assertIn("content", self.same_as_convert(self.path("over.qcow2")))

    def test_I03_a_size_that_is_no_multiple_of_the_cluster(self):
        content = self.content(10 * MIB + 512)
        for size in ("64k", "2M"):
            must(qemu_img("convert", "-O", "qcow2", "-o", f"cluster_size={size}", content, self.path("i.qcow2")))
            self.same_as_convert(self.path("i.qcow2"))

    def set_bits(self, image, bits):
        with open(image, "r+b") as file:
            file.seek(72)
            old = int.from_bytes(file.read(8), "big")
            file.seek(72)
            file.write((old | bits).to_bytes(8, "big"))

    def test_I03_bits_of_the_header(self):
        image = self.path("i.qcow2")
        for name, bits, word in (("unknown", 1 << 6, "feature"), ("corrupt", 1 << 1, "corrupt"), ("dirty", 1 << 0, None)):
            with self.subTest(name):
                must(qemu_img("convert", "-O", "qcow2", self.content(), image))
                self.set_bits(image, bits)
                if word is None:
                    self.same_as_convert(image)
                    continue
                self.daemon.ramet("volume", "import", "q", image, status=1)
                self.assertIn(word, self.daemon.stderr.lower())
                self.nothing_left()

    # ---- I04: encrypted images ----

    def encrypted(self, path, kind, options):
        command = ["create", "-q", "-f", kind, "--object", "secret,id=s,data=geheim", "-o", options, path, "1M"]
        for _ in range(20):    # it measures its key derivation first, and gives up where the clock of its CPU stands still
            made = qemu_img(*command)
            if "accurate CPU usage" not in made.stderr:
                break
        if "accurate CPU usage" in made.stderr:
            self.skipTest("qemu-img cannot measure the CPU here: " + made.stderr.strip())
        must(made)
        return path

    def on_a_terminal(self, *arguments):
        """Exit status and output of a command that could ask: its input is a terminal of its own."""
        leader, follower = pty.openpty()
        child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, *arguments], stdin=follower, stdout=follower,
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        os.close(follower)
        try:
            _, said = child.communicate(timeout=rig.HANG_SECS)
        finally:
            os.close(leader)
        return child.returncode, said

    def test_I04_encrypted_images_are_refused_at_once(self):
        images = {"luks in qcow2": self.encrypted(self.path("l.qcow2"), "qcow2",
                                                  "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"),
                  "aes in qcow2": self.encrypted(self.path("a.qcow2"), "qcow2", "encrypt.format=aes,encrypt.key-secret=s"),
                  "luks": self.encrypted(self.path("bare.img"), "luks", "key-secret=s,iter-time=10")}
        for name, path in images.items():
            given = [[], ["--format", "qcow2"]] if path.endswith(".qcow2") else [[]]
            for arguments in given:
                with self.subTest(name, arguments=arguments):
                    self.daemon.ramet("volume", "import", "c", path, *arguments, status=1)
                    self.assertIn("encrypted", self.daemon.stderr)
                    self.assertIn("decrypt", self.daemon.stderr)
                    status, said = self.on_a_terminal("volume", "import", "c", path, *arguments)
                    self.assertEqual(status, 1)
                    self.assertIn("encrypted", said)
                    self.nothing_left()
        self.daemon.ramet("volume", "import", "c", self.path("bare.img"), "--format", "raw")    # asked for
        self.assertEqual(self.export("c"), self.read("bare.img"))

    # ---- I05: raw files of odd length ----

    def test_I05_odd_sizes_come_back_whole(self):
        for size in (1, 511, 512, 513, 1000001, 4096 * 7, 4096 * 7 + 1):
            for way in ("file", "stdin"):
                with self.subTest(size=size, way=way):
                    content = random.Random(size).randbytes(size)
                    path = self.write("in", content)
                    if way == "file":
                        self.daemon.ramet("volume", "import", "odd", path, "--format", "raw")
                        said = self.daemon.stderr
                    else:
                        self.daemon.ramet("volume", "import", "odd", "-", stdin=content, text=False)
                        said = self.daemon.stderr.decode()
                    self.assertEqual("zeros fill the last sector" in said, size % 512 != 0)
                    for out in (self.export("odd"), self.daemon.ramet("volume", "export", "odd", "-", text=False)):
                        self.assertEqual(len(out), (size + 511) // 512 * 512, "the documented rounding is to 512")
                        self.assertEqual(out[:size], content)
                        self.assertEqual(out[size:], bytes(len(out) - size))
                    self.daemon.ramet("volume", "rm", "odd")

    def test_I05_an_empty_file_is_refused(self):
        self.daemon.ramet("volume", "import", "e", self.write("empty", b""), status=1)
        self.assertIn("empty", self.daemon.stderr)
        self.daemon.ramet("volume", "import", "e", self.path("empty"), "--format", "raw", status=1)
        self.daemon.ramet("volume", "import", "e", "-", stdin="", status=1)
        self.assertIn("at least one byte", self.daemon.stderr)
        self.nothing_left()

    def test_I05_holes_cost_nothing(self):
        def sparse(size, *pieces):
            with open(self.path("hole"), "wb") as file:
                file.truncate(size)
                for offset, content in pieces:
                    file.seek(offset)
                    file.write(content)
            return self.path("hole")
        for name, pieces in (("all hole", ()), ("trailing hole", ((0, b"the start"),)), ("leading hole", (((1 << 40) - 5000, b"the end"),))):
            with self.subTest(name):
                before = self.daemon.json("store", "stat")["written_bytes_total"]
                self.daemon.ramet("volume", "import", "hole", sparse(1 << 40, *pieces), "--format", "raw")
                self.assertLess(self.daemon.json("store", "stat")["written_bytes_total"] - before, 4 * MIB)
                self.daemon.ramet("volume", "export", "hole", self.path("back"))
                self.assertEqual(os.stat(self.path("back")).st_size, 1 << 40)
                self.assertLess(os.stat(self.path("back")).st_blocks * 512, 4 * MIB, "holes stay holes")
                with open(self.path("back"), "rb") as file:
                    for offset, content in pieces:
                        file.seek(offset)
                        self.assertEqual(file.read(len(content)), content)
                mapped = self.daemon.json("volume", "map", "hole")
                self.assertEqual(mapped["data_bytes"], 4096 * len(pieces))
                self.assertEqual(sum(r["length"] for r in mapped["ranges"]), 1 << 40)
                self.daemon.ramet("volume", "rm", "hole")

    # ---- I07: a table for sectors of 4096 bytes ----

    @staticmethod
    def gpt(sector):
        """A disk of 16 MiB with one partition, as sfdisk --sector-size makes it."""
        sectors, entries = 16 * MIB // sector, 128 * 128 // sector
        entry = struct.pack("<16s16sQQQ72s", b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4", b"p" * 16,
                            MIB // sector, sectors - MIB // sector, 0, "root".encode("utf-16le"))
        table = entry + bytes(128 * 128 - len(entry))

        def header(here, other, first_entry):
            head = struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, here, other, 2 + entries, sectors - 2 - entries,
                               b"d" * 16, first_entry, 128, 128, binascii.crc32(table))
            return head[:16] + struct.pack("<I", binascii.crc32(head)) + head[20:]
        disk = bytearray(16 * MIB)
        disk[446:462] = struct.pack("<BBBBBBBBII", 0, 0, 2, 0, 0xee, 255, 255, 255, 1, min(sectors - 1, 0xffffffff))
        disk[510:512] = b"\x55\xaa"
        disk[sector:sector + 92] = header(1, sectors - 1, 2)
        disk[2 * sector:2 * sector + len(table)] = table
        disk[-sector:-sector + 92 or None] = header(sectors - 1, 1, sectors - 1 - entries)
        disk[-sector - len(table):-sector] = table
        return bytes(disk)

    def test_I07_a_partition_table_for_large_sectors(self):
        large, small = self.gpt(4096), self.gpt(512)
        must(qemu_img("convert", "-f", "raw", "-O", "qcow2", self.write("large", large), self.path("large.qcow2")))
        for way in ("file", "stdin", "qcow2"):
            with self.subTest(way):
                if way == "stdin":
                    self.daemon.ramet("volume", "import", "d", "-", stdin=large, text=False)
                    said = self.daemon.stderr.decode()
                else:
                    self.daemon.ramet("volume", "import", "d", self.path("large" if way == "file" else "large.qcow2"))
                    said = self.daemon.stderr
                self.assertIn("4096", said)
                self.assertEqual(self.export("d"), large, "the bytes are as they were")
                # A machine that could not find its root is not started.
                self.daemon.ramet("volume", "snapshot", "d", "s")
                for source in ("d", "s"):
                    answer = self.daemon.call("POST", "/v1/sandboxes", {"from": source})
                    self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))
                    self.assertIn("4096", answer.message)
                self.daemon.ramet("snapshots", "rm", "s")
                self.daemon.ramet("volume", "rm", "d")
        self.daemon.ramet("volume", "import", "d", self.write("small", small), "--format", "raw")
        self.assertNotIn("4096", self.daemon.stderr)
        self.assertEqual(self.export("d"), small)

    # ---- I08: too big, bombs, and sources that stop ----

    def test_I08_hostile_headers(self):
        good = self.path("good.qcow2")
        must(qemu_img("create", "-q", "-f", "qcow2", good, "1M"))
        head = bytearray(self.read("good.qcow2")[:120])
        changes = {f"cluster_bits {bits}": (20, bits.to_bytes(4, "big")) for bits in (0, 8, 31, 64)}
        changes |= {"l1_size": (36, (1 << 31).to_bytes(4, "big")), "size": (24, (1 << 63).to_bytes(8, "big")),
                    "extension": (108, (0xffffffff).to_bytes(4, "big")), "refcount table": (56, (1 << 31).to_bytes(4, "big")),
                    "header length": (100, (1 << 31).to_bytes(4, "big")),
                    "snapshots": (60, (1 << 31).to_bytes(4, "big")), "feature": (72, (1 << 6).to_bytes(8, "big"))}
        for name, (offset, value) in changes.items():
            with self.subTest(name):
                bad = bytearray(head)
                if name == "extension":
                    bad[104:108] = b"\xe2\x79\x2a\xca"    # the name of the backing file's format
                bad[offset:offset + len(value)] = value
                self.daemon.ramet("volume", "import", "bad", self.write("bad.qcow2", bytes(bad)), status=1)
                self.assertNotEqual(self.daemon.stderr.strip(), "")
        self.nothing_left()

    def slow_file(self, size=200):
        with open(self.path("slow"), "wb") as file:
            for _ in range(size):
                file.write(os.urandom(MIB))
        return self.path("slow")

    def halfway(self):
        """An import of a file, and the qemu-img that reads it, stopped in the middle. A busy host may not come to stop one before
        it is through with its file: then there is a larger one."""
        for size in (200, 800, 3200):
            child = self.begin(self.slow_file(size), "--format", "raw")
            if copier := rig.stopped_copier(child, self.path("slow")):
                return child, copier
            self.end(child, 0)
            self.daemon.ramet("volume", "rm", "half")
        self.fail("no import was slow enough to be stopped")

    def begin(self, *arguments):
        return subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "import", "half", *arguments],
                                stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self, child, status=None):
        child.stdin.close()
        got = child.wait(rig.HANG_SECS)
        said = child.stderr.read().decode()
        child.stderr.close()
        if status is not None:
            self.assertEqual(got, status, said)
        return said

    def test_I08_a_pipe_that_stops(self):
        before = self.daemon.json("store", "stat")
        self.daemon.ramet("volume", "import", "half", "-", "--size", "2M", stdin="x" * MIB, status=1)
        self.assertIn("1048576", self.daemon.stderr)
        self.daemon.ramet("volume", "import", "more", "-", "--size", "1M", stdin="x" * (2 * MIB), status=1)
        # A producer that dies at half of what it announced.
        producer = subprocess.Popen(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y; kill -9 $$"], stdout=subprocess.PIPE)
        result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "import", "half", "-", "--size", "6000000"],
                                stdin=producer.stdout, capture_output=True, text=True)
        producer.stdout.close()
        producer.wait()
        self.assertEqual(result.returncode, 1)
        self.assertIn("3000000", result.stderr)
        # A command that is killed in the middle takes its volume along, whichever way it goes.
        for way in ("stdin", "file"):
            with self.subTest(way):
                if way == "stdin":
                    child = self.begin("-")
                    child.stdin.write(b"y" * MIB)
                    child.stdin.flush()
                else:
                    child, _ = self.halfway()
                self.wait(lambda: self.daemon.json("store", "stat")["volumes"] > before["volumes"])
                child.kill()
                self.end(child)
                self.wait(lambda: self.daemon.json("store", "stat")["volumes"] == before["volumes"])
        self.wait(lambda: self.daemon.json("store", "stat")["docs"] == before["docs"])
        self.daemon.ramet("volume", "create", "half", "1M")    # the name is free

    def test_I08_a_file_that_changes_while_it_is_read(self):
        def grow(path):
            with open(path, "ab") as file:
                file.write(b"more")

        def rewrite(path):
            with open(path, "r+b") as file:
                file.write(b"other")
        for change in (grow, rewrite, lambda path: os.truncate(path, 1000), os.unlink):
            child, copier = self.halfway()
            try:
                change(self.path("slow"))
            finally:
                os.kill(copier, signal.SIGCONT)
            self.assertIn("nothing was kept", self.end(child, 1))
            self.nothing_left()

    def test_I08_the_daemon_dies_in_the_middle(self):
        child, _ = self.halfway()
        self.assertEqual(self.daemon.json("store", "stat")["volumes"], 1)
        self.daemon.kill()
        self.assertNotEqual(self.end(child, 1), "")    # and ends its qemu-img
        self.daemon.start()
        self.nothing_left()
        self.daemon.ramet("volume", "import", "half", self.path("slow"), "--format", "raw")
        self.daemon.kill()    # exit 0 meant durable
        self.daemon.start()
        with open(self.path("slow"), "rb") as file:
            self.assertEqual(self.export("half"), file.read())


if __name__ == "__main__":
    rig.need_root()
    rig.main()
