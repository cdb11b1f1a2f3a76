# SPDX-License-Identifier: Apache-2.0
"""Archives: `ramet store export` and `import`, between two daemons and through pipes. No machines."""
import os
import random
import shutil
import subprocess
import time

import rig

MIB = 1 << 20


class Archives(rig.Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("two"))
        self.other = rig.Daemon(self.path("two"))
        self.addCleanup(self.stop_other)
        self.other.ramet("store", "init", self.other.store)
        self.other.start()

    def stop_other(self):
        self.other.stop()
        subprocess.run(["umount", "-l", self.other.run + "/mem"], capture_output=True)
        shutil.rmtree(self.path("two"), ignore_errors=True)

    def write_disk(self, daemon, name, *writes):
        commands = [argument for pattern, offset, length in writes for argument in ("-c", f"write -P {pattern} {offset} {length}")]
        subprocess.run(["qemu-io", "-f", "raw", *commands, daemon.uri(name)], check=True, capture_output=True)

    def content(self, daemon, name):
        return daemon.ramet("volume", "export", name, "-", text=False)

    def counts(self, daemon):
        stat = daemon.json("store", "stat")
        return stat["volumes"], stat["bases"], stat["docs"]

    def wait(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.02)

    def family(self):
        """A volume of an odd number of sectors, two snapshots of it, a fork of the first."""
        content = random.Random(5).randbytes(3 * MIB + 512)
        self.daemon.ramet("volume", "import", "disk", self.write("in", content), "--format", "raw")
        self.daemon.ramet("volume", "snapshot", "disk", "first")
        self.write_disk(self.daemon, "disk", (7, 4096, 8192))
        self.daemon.ramet("volume", "snapshot", "disk", "second")
        self.daemon.ramet("volume", "fork", "first", "kid")
        self.write_disk(self.daemon, "kid", (8, 3 * MIB, 512))
        return ["disk", "first", "second", "kid"]

    def test_everything_arrives(self):
        names = self.family()
        said = self.daemon.json("store", "export", *names, self.path("all.ramet"))
        self.assertEqual(said["archive_bytes"], os.stat(self.path("all.ramet")).st_size)
        self.assertLess(said["archive_bytes"], 3 * MIB + 200_000, "what they share is stored once")
        came = self.other.json("store", "import", self.path("all.ramet"))
        self.assertEqual(sorted(v["name"] for v in came["volumes"]), ["disk", "kid"])
        self.assertEqual(sorted(s["name"] for s in came["snapshots"]), ["first", "second"])
        self.other.kill()    # exit 0 meant durable
        self.other.start()
        for name in names:
            self.assertEqual(self.content(self.daemon, name), self.content(self.other, name), name)
        diff = self.other.json("volume", "diff", "first", "second")
        self.assertEqual([(r["offset"], r["length"]) for r in diff["ranges"]], [(4096, 8192)])
        self.write_disk(self.other, "disk", (1, 0, 512))    # it is a volume like any other
        self.assertNotEqual(self.content(self.other, "disk"), self.content(self.daemon, "disk"))
        self.assertEqual(self.content(self.other, "second"), self.content(self.daemon, "second"))

    def test_golden_an_archive_of_format_1(self):
        """An archive that was written when the format was new: a snapshot, and its volume, which was changed afterwards."""
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/archive-1.ramet")
        then = bytearray(64 * 1024 + 512)
        then[:11], then[-3:] = b"golden text", b"end"
        then[8192:12288] = bytes(i * 7 & 255 for i in range(4096))
        now = bytearray(then)
        now[8192:12288], now[16384:20480] = bytes(4096), b"\t" * 4096
        self.daemon.ramet("store", "import", golden)
        self.assertEqual(self.content(self.daemon, "golden-then"), then)
        self.assertEqual(self.content(self.daemon, "golden"), now)
        ranges = self.daemon.json("volume", "diff", "golden-then", "golden")["ranges"]
        self.assertEqual([(r["offset"], r["length"]) for r in ranges], [(8192, 4096), (16384, 4096)])

    def test_through_a_pipe(self):
        self.family()
        out = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "store", "export", "second", "kid", "-"],
                               stdout=subprocess.PIPE)
        into = subprocess.run([rig.BIN + "/ramet", "--run", self.other.run, "store", "import", "-", "--prefix", "my-"],
                              stdin=out.stdout, capture_output=True, text=True)
        out.stdout.close()
        self.assertEqual((out.wait(), into.returncode), (0, 0), into.stderr)
        self.assertIn("my-second", into.stdout)
        self.assertEqual(self.content(self.daemon, "second"), self.content(self.other, "my-second"))
        self.assertEqual(self.content(self.daemon, "kid"), self.content(self.other, "my-kid"))

    def test_what_is_no_archive_is_named_with_its_place(self):
        self.family()
        self.daemon.ramet("store", "export", "first", "disk", self.path("good"))
        good = self.read("good")
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 16
        newer = bytearray(good)
        newer[8] = 9
        cases = {"empty": b"", "foreign": b"\x7fELF" + bytes(5000), "cut": good[:-1], "half": good[:len(good) // 2],
                 "longer": good + b"\0", "twice": good + good, "flipped": bytes(flipped), "newer": bytes(newer)}
        before = self.counts(self.other)
        for name, content in cases.items():
            with self.subTest(name):
                self.other.ramet("store", "import", self.write(name, content), status=1)
                self.assertIn(self.path(name), self.other.stderr)
                self.assertRegex(self.other.stderr, "byte")
                self.assertEqual(self.counts(self.other), before)
        self.other.ramet("store", "import", self.path("nothing"), status=1)
        self.other.ramet("store", "import", self.path("good"))
        self.other.ramet("store", "import", self.path("good"), status=1)
        self.assertIn("already", self.other.stderr)
        self.other.ramet("store", "import", self.path("good"), "--prefix", "x-")
        self.other.ramet("store", "import", self.path("good"), "--prefix", "X_", status=1)
        self.assertEqual(len(self.other.json("volume", "ls")), 2)

    def test_names_are_looked_up_before_a_file_is_made(self):
        self.family()
        for names, word in ((["first", "nobody"], "nobody"), (["first", "first"], "twice"), (["disk/disk"], "disk/disk")):
            with self.subTest(names=names):
                self.daemon.ramet("store", "export", *names, self.path("out"), status=1)
                self.assertIn(word, self.daemon.stderr)
                self.assertFalse(os.path.exists(self.path("out")))
        self.assertEqual([n for n in os.listdir(self.root) if n.startswith("out")], [])

    def test_N06_a_huge_empty_volume_costs_nothing(self):
        self.daemon.ramet("volume", "create", "huge", "16T")
        self.write_disk(self.daemon, "huge", (3, (16 << 40) - 4096, 4096), (4, (2 << 40) - 4096, 8192))
        said = self.daemon.json("store", "export", "huge", self.path("huge.ramet"))
        self.assertLess(said["archive_bytes"], 64 * 1024)
        before = self.other.json("store", "stat")["written_bytes_total"]
        self.other.ramet("store", "import", self.path("huge.ramet"))
        self.assertLess(self.other.json("store", "stat")["written_bytes_total"] - before, MIB)
        ranges = [r for r in self.other.json("volume", "map", "huge")["ranges"] if r["kind"] == "data"]
        self.assertEqual([(r["offset"], r["length"]) for r in ranges], [((2 << 40) - 4096, 8192), ((16 << 40) - 4096, 4096)])

    def half_an_import(self):
        """An import that has begun to make things and waits for more."""
        self.family()
        self.daemon.ramet("store", "export", "disk", "first", "kid", self.path("good"))
        good, before = self.read("good"), self.counts(self.other)
        child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.other.run, "store", "import", "-"], stdin=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        child.stdin.write(good[:-100])
        child.stdin.flush()
        self.wait(lambda: self.counts(self.other)[0] > before[0])
        self.assertEqual(self.other.json("volume", "ls"), [], "nothing has a name yet")
        self.assertEqual(self.other.json("snapshots"), [])
        return child, before

    def finish(self, child, code):
        child.stdin.close()
        self.assertEqual(child.wait(rig.HANG_SECS), code)
        text = child.stderr.read()
        child.stderr.close()
        return text

    def test_I08_a_command_that_is_killed_leaves_nothing(self):
        child, before = self.half_an_import()
        child.kill()
        self.finish(child, -9)
        self.wait(lambda: self.counts(self.other) == before)
        self.other.ramet("store", "import", self.path("good"))

    def test_I08_a_pipe_that_ends_early_leaves_nothing(self):
        child, before = self.half_an_import()
        self.assertIn(b"cut off", self.finish(child, 1))
        self.wait(lambda: self.counts(self.other) == before)

    def test_I08_a_daemon_that_is_killed_leaves_nothing(self):
        child, before = self.half_an_import()
        self.other.kill()
        self.assertNotEqual(self.finish(child, 1), b"")
        self.other.start()
        self.assertEqual(self.counts(self.other), before)
        self.other.ramet("store", "import", self.path("good"))

    def test_D09_what_is_deleted_during_an_export(self):
        names = self.family()
        expected = {name: self.content(self.daemon, name) for name in names}
        out = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "store", "export", *names, "-"],
                               stdout=subprocess.PIPE)
        head = out.stdout.read(100)    # it has begun: the pipe between is smaller than the archive
        self.daemon.ramet("volume", "rm", "disk", "kid")
        self.daemon.ramet("snapshots", "rm", "first", "second")
        archive = head + out.stdout.read()
        out.stdout.close()
        self.assertEqual(out.wait(), 0)
        self.assertEqual(self.daemon.json("volume", "ls"), [])
        self.other.ramet("store", "import", self.write("late", archive))
        for name in names:
            self.assertEqual(self.content(self.other, name), expected[name])
        self.wait(lambda: self.counts(self.daemon) == (0, 0, 0))


if __name__ == "__main__":
    rig.need_root()
    rig.main()
