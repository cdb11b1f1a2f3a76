# SPDX-License-Identifier: Apache-2.0
"""The store as a whole: its space, its health, what is collected, what is full, who owns it. No machines."""
import errno
import glob
import os
import random
import shutil
import subprocess
import threading
import time

import rig

MIB = 1 << 20


def du(path):
    return int(subprocess.run(["du", "-s", "--block-size=1", path], check=True, capture_output=True, text=True).stdout.split()[0])


class StoreCase(rig.Case):
    OPTIONS = ("--log-budget", "256M")

    def setUp(self):
        super().setUp()
        self.restart()

    def restart(self, *options):
        self.daemon.stop()
        self.daemon.start(*self.OPTIONS, *options)

    def stat(self):
        return self.daemon.json("store", "stat")

    def nbd(self, name, *commands):
        words = [word for command in commands for word in ("-c", command)]
        return subprocess.run(["qemu-io", "-f", "raw", *words, self.daemon.uri(name)], capture_output=True, text=True)

    def nbd_ok(self, name, *commands):
        result = self.nbd(name, *commands)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def write_file(self, name, content, offset=0):
        """Bytes into a volume by NBD."""
        path = self.write("bytes", content)
        self.nbd_ok(name, f"write -s {path} {offset} {len(content)}")

    def load(self, name, content):
        self.daemon.ramet("volume", "import", name, self.write("in", content), "--format", "raw")

    def content(self, name):
        return self.daemon.ramet("volume", "export", name, "-", text=False)

    def wait(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.02)

    def check(self):
        self.assertEqual(self.daemon.json("store", "check")["damages"], 0)

    def check_closed(self, status=0):
        """Without a daemon; returns what was printed."""
        return self.daemon.ramet("store", "check", self.daemon.store, status=status)


class Space(StoreCase):
    def adds_up(self):
        def right():
            stat, used = self.stat(), du(self.daemon.store)
            self.assertEqual(stat["physical_bytes"],
                             stat["log_bytes"] + stat["segment_bytes"] + stat["catalog_bytes"] + stat["other_bytes"])
            return abs(stat["physical_bytes"] - used) <= used / 100
        self.wait(right)    # files come and go in the background
        return self.stat()

    def test_stat_says_what_du_says(self):
        self.adds_up()
        self.load("v", random.Random(1).randbytes(40 * MIB))
        self.adds_up()
        self.daemon.ramet("store", "seal")
        stat = self.adds_up()
        self.assertGreaterEqual(stat["segment_bytes"], 40 * MIB)
        self.daemon.ramet("volume", "rm", "v")
        self.daemon.ramet("store", "gc")
        self.assertLess(self.adds_up()["segment_bytes"], 2 * MIB)
        self.restart()
        self.adds_up()

    def test_what_a_person_sees(self):
        self.load("v", random.Random(1).randbytes(4 * MIB))
        self.daemon.ramet("store", "gc")
        said = self.daemon.ramet("store", "stat")
        for word in ("logical", "mapped", "unique", "physical", "segments", "catalog", "reclaimable", "pinned", "fingerprints", "fine"):
            self.assertIn(word, said)
        stat = self.stat()
        self.assertEqual(stat["logical_bytes"], 4 * MIB)
        self.assertEqual(stat["mapped_bytes"], 4 * MIB)
        self.assertEqual(stat["unique_bytes"], 4 * MIB)

    def test_gc_gives_space_back(self):
        content = random.Random(2).randbytes(30 * MIB)
        self.load("keep", content[:10 * MIB])
        self.daemon.ramet("store", "gc")
        before = self.stat()
        self.load("go", content)
        self.daemon.ramet("store", "seal")
        self.assertGreater(self.stat()["segment_bytes"], before["segment_bytes"] + 19 * MIB)
        self.daemon.ramet("volume", "rm", "go")
        said = self.daemon.json("store", "gc")
        self.assertEqual(said["live_blocks"] * 4096 >= 10 * MIB, True)
        self.assertLess(self.stat()["segment_bytes"], before["segment_bytes"] + MIB)
        self.assertEqual(self.content("keep"), content[:10 * MIB])
        self.check()

    def test_equal_content_is_there_once(self):
        content = random.Random(3).randbytes(20 * MIB)
        for name in ("a", "b", "c"):
            self.load(name, content)
            self.daemon.ramet("store", "seal")
        self.assertLess(self.stat()["segment_bytes"], 22 * MIB)
        self.assertEqual(self.daemon.json("volume", "diff", "a", "c")["ranges"], [], "equal bytes are no difference")
        self.daemon.ramet("volume", "rm", "a", "b")
        self.daemon.ramet("store", "gc", "--recompress")
        self.assertEqual(self.content("c"), content)
        self.assertEqual(self.daemon.json("store", "scrub")["damages"], 0)


class SpecialData(StoreCase):
    def test_D08_special_data(self):
        rng, blocks = random.Random(8), 16384    # 64 MiB each
        one, other = rng.randbytes(4096), rng.randbytes(4096)
        tail = bytearray(one)
        self.load("seed", rng.randbytes(MIB))
        self.daemon.ramet("store", "seal")
        imitations = b""
        newest = sorted(glob.glob(self.daemon.store + "/log/0*"))[-1:]    # older ones may be retiring
        for path in sorted(glob.glob(self.daemon.store + "/segments/*"))[:1] + newest:
            with open(path, "rb") as file:
                content = file.read()
            imitations += content[:8 * 4096].ljust(8 * 4096, b"\0") + content[-(len(content) % 4096) - 8 * 4096:].ljust(9 * 4096, b"\0")
        superblock = self.daemon.store + "/superblock"
        with open(superblock, "rb") as file:
            imitations += file.read().ljust(8192, b"\0")

        def numbered(place):
            for i in range(2048):
                tail[place:place + 2] = i.to_bytes(2, "little")
                yield bytes(tail)
        zstd = subprocess.run(["zstd", "-q", "-c"], input=rng.randbytes(4 * MIB), capture_output=True)
        packed = zstd.stdout if zstd.returncode == 0 else rng.randbytes(4 * MIB)
        kinds = {"one": one * blocks, "ff": b"\xff" * (blocks * 4096), "zeros": bytes(blocks * 4096), "two": (one + other) * (blocks // 2),
                 "last": b"".join(numbered(4094)), "first": b"".join(numbered(0)),
                 "packed": packed.ljust((len(packed) + 4095) // 4096 * 4096, b"\1"),
                 "imitations": imitations.ljust((len(imitations) + 4095) // 4096 * 4096, b"\2")}
        before = self.stat()["segment_bytes"]
        grown = {}
        for name, content in kinds.items():
            self.daemon.ramet("volume", "create", name, str(len(content)))
            self.write_file(name, content)
            self.daemon.ramet("store", "gc")
            grown[name], before = self.stat()["segment_bytes"] - before, self.stat()["segment_bytes"]
            self.daemon.ramet("volume", "snapshot", name, "s-" + name)
        self.assertLess(grown["one"], 256 * 1024, "one block, and its map")
        self.assertLess(grown["ff"], 256 * 1024)
        self.assertLess(grown["zeros"], 128 * 1024)
        self.assertLess(grown["two"], 256 * 1024)
        self.assertLess(grown["packed"], len(packed) * 1.02 + 64 * 1024, "what does not compress stays as it is")
        self.assertEqual({r["kind"] for r in self.daemon.json("volume", "map", "zeros")["ranges"]}, {"zero"})
        for name, content in kinds.items():
            self.assertEqual(self.content(name), content, name)
        for name in list(kinds)[::2]:
            self.daemon.ramet("volume", "rm", name)
            self.daemon.ramet("snapshots", "rm", "s-" + name)
        self.daemon.ramet("store", "gc")
        for name in list(kinds)[1::2]:
            self.assertEqual(self.content("s-" + name), kinds[name], name)
        self.check()
        # Blocks that imitate headers and footers confuse no rebuilding.
        self.daemon.stop()
        self.daemon.ramet("store", "check", "--rebuild-catalog", self.daemon.store)
        self.check_closed()
        self.daemon.start(*self.OPTIONS)
        for name in list(kinds)[1::2]:
            self.assertEqual(self.content(name), kinds[name], name)

    def test_D08_one_block_65536_times_and_forks(self):
        """More references than 16 bits count, of one block."""
        self.daemon.ramet("volume", "create", "v", "256M")
        block = random.Random(9).randbytes(4096)
        part = self.write("bytes", block * 4096)
        self.nbd_ok("v", *[f"write -s {part} {offset * MIB} 16M" for offset in range(0, 256, 16)])
        for i in range(8):
            self.daemon.ramet("volume", "fork", "v", f"f{i}")
            self.write_file(f"f{i}", block, 4096 * i)
        self.daemon.ramet("store", "gc")
        self.assertLess(self.stat()["segment_bytes"], MIB)
        for i in range(1, 8):
            self.daemon.ramet("volume", "rm", f"f{i}")
        self.daemon.ramet("volume", "rm", "v")
        self.daemon.ramet("store", "gc")
        content = self.content("f0")
        self.assertTrue(all(content[at:at + 4096] == block for at in range(0, len(content), 4096 * 97)))
        self.assertEqual(len(content), 256 * MIB)
        self.check()


class Health(StoreCase):
    def fill(self):
        self.contents = {}
        for i, name in enumerate(("a", "b", "c")):
            self.contents[name] = random.Random(i).randbytes(6 * MIB)
            self.load(name, self.contents[name])
            self.daemon.ramet("store", "seal")
        self.write_file("c", b"late" * 1024, 4096)    # in the log
        self.contents["c"] = self.contents["c"][:4096] + b"late" * 1024 + self.contents["c"][8192:]

    def test_check_with_and_without_a_daemon(self):
        self.fill()
        said = self.daemon.json("store", "check")
        self.assertEqual((said["damages"], said["volumes"]), (0, 3))
        self.assertGreaterEqual(said["blocks"], 18 * MIB // 4096)
        self.daemon.ramet("store", "check", self.daemon.store)    # goes through the daemon, which owns it
        # Another run directory: nobody answers there, and the store is in use.
        subprocess_result = subprocess.run([rig.BIN + "/ramet", "--run", self.path("nobody"), "store", "check", self.daemon.store],
                                           capture_output=True, text=True)
        self.assertEqual(subprocess_result.returncode, 1)
        self.assertIn("in use", subprocess_result.stderr)
        self.daemon.stop()
        files = self.listing()
        self.assertIn("no damage", self.check_closed())
        self.assertEqual(self.listing(), files, "a check changes nothing")
        environment = dict(os.environ, RAMET_STORE=self.daemon.store)
        by_default = subprocess.run([rig.BIN + "/ramet", "--json", "--run", self.daemon.run, "store", "check"], capture_output=True,
                                    text=True, env=environment)
        self.assertEqual(by_default.returncode, 0, by_default.stderr)
        self.daemon.ramet("store", "check", self.path("nothing"), status=1)

    def listing(self):
        found = {}
        for folder, _, names in os.walk(self.daemon.store):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[path] = (os.stat(path).st_mtime_ns, hash(file.read()))
        return found

    def damage(self, path, offset):
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 64]))

    def test_damage_is_named_and_never_served(self):
        self.fill()
        self.daemon.stop()
        segments = sorted(glob.glob(self.daemon.store + "/segments/*"), key=os.path.getsize)
        victim = segments[-1]
        self.damage(victim, os.path.getsize(victim) // 2)
        said = self.check_closed(status=1)
        self.assertIn(os.path.basename(victim), said)
        self.daemon.start(*self.OPTIONS)
        for arguments in (("store", "check"), ("store", "scrub")):
            said = self.daemon.ramet(*arguments, status=1)
            self.assertIn(os.path.basename(victim), said)
        bad = []
        for name, content in self.contents.items():
            result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "export", name, "-"],
                                    capture_output=True)
            if result.returncode != 0:
                bad.append(name)
            else:
                self.assertEqual(result.stdout, content)
        self.assertEqual(len(bad), 1, "one volume is touched, and it gives an error")
        self.assertIn(bad[0], said)

    def test_rebuild_after_the_catalog_is_lost(self):
        self.fill()
        self.daemon.ramet("volume", "snapshot", "a", "snap")
        self.daemon.ramet("volume", "rm", "b")
        self.daemon.ramet("store", "check", "--rebuild-catalog", self.daemon.store, status=1)
        self.assertIn("daemon", self.daemon.stderr)
        self.daemon.stop()
        shutil.rmtree(self.daemon.store + "/catalog")
        result = subprocess.run([rig.BIN + "/rametd", "--store", self.daemon.store, "--run", self.daemon.run], capture_output=True,
                                text=True, timeout=rig.HANG_SECS)
        self.assertEqual(result.returncode, 1, "a store without its catalog is not opened as an empty one")
        self.assertIn("rebuild-catalog", result.stderr)
        self.daemon.ramet("store", "check", "--rebuild-catalog", self.daemon.store)
        self.check_closed()
        self.daemon.start(*self.OPTIONS)
        self.assertEqual(sorted(v["name"] for v in self.daemon.json("volume", "ls")), ["a", "c"], "deleted things stay deleted")
        for name in ("a", "c"):
            self.assertEqual(self.content(name), self.contents[name])
        self.assertEqual(self.content("snap"), self.contents["a"])

    # ---- D03: files of the right name and wrong content ----

    def test_D03_files_that_are_wrong_after_a_stop(self):
        self.fill()
        self.daemon.stop()
        whole = self.path("whole")
        shutil.copytree(self.daemon.store, whole)

        def newest(folder):
            return max(glob.glob(f"{self.daemon.store}/{folder}/[0-9d]*"), key=lambda path: (os.path.getmtime(path), path))

        def zero_end(path):
            with open(path, "r+b") as file:
                file.seek(-4096, os.SEEK_END)
                file.write(bytes(4096))

        def longer(path):
            with open(path, "ab") as file:
                file.write(bytes(MIB))

        def next_number(path):
            folder, name = os.path.split(path)
            head, dot, end = name.partition(".")
            number = str(int(head) + 1).zfill(len(head)) if head.isdigit() else head + "2"
            shutil.copy(path, os.path.join(folder, number + dot + end))
        changes = {"empty": lambda path: os.truncate(path, 0), "half": lambda path: os.truncate(path, os.path.getsize(path) // 2),
                   "zero end": zero_end, "longer": longer, "gone": os.unlink, "doubled": next_number}
        for folder in ("log", "segments", "catalog"):
            for name, change in changes.items():
                with self.subTest(folder=folder, change=name):
                    shutil.rmtree(self.daemon.store)
                    shutil.copytree(whole, self.daemon.store)
                    path = newest(folder)
                    change(path)
                    said = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "store", "check", self.daemon.store],
                                          capture_output=True, text=True)
                    self.read_after(path, said)
        shutil.rmtree(self.daemon.store)
        shutil.copytree(whole, self.daemon.store)
        self.daemon.start(*self.OPTIONS)

    def read_after(self, path, said):
        """Everything that was flushed is right, or an error names the file; never other bytes."""
        place = os.path.basename(path)
        try:
            self.daemon.start(*self.OPTIONS)
        except AssertionError:
            self.daemon.process = None
            log = self.daemon.log().rsplit("cannot start", 1)[-1]
            self.assertTrue(place in log or os.path.basename(os.path.dirname(path)) in log, log)
            self.assertNotEqual(said.returncode, 0, "what cannot start is not in order")
            return
        bad = 0
        for name, content in self.contents.items():
            result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "export", name, "-"],
                                    capture_output=True)
            bad += result.returncode != 0
            if result.returncode == 0:
                self.assertEqual(result.stdout, content, name)
        self.assertTrue(bad == 0 or said.returncode == 1, "what cannot be read was not found by the check")
        self.daemon.stop()

    # ---- D05: owners ----

    def test_D05_check_while_the_daemon_runs(self):
        self.fill()
        stop = threading.Event()

        def writer():
            while not stop.is_set():
                self.nbd("c", "write -P 3 2M 64k")
        thread = threading.Thread(target=writer)
        thread.start()
        try:
            for _ in range(3):
                self.check()
        finally:
            stop.set()
            thread.join()

    def test_D05_a_copy_at_another_path(self):
        self.fill()
        self.daemon.stop()
        os.rename(self.daemon.store, self.path("moved"))
        os.symlink(self.path("moved"), self.daemon.store)
        self.daemon.start(*self.OPTIONS)
        for name, content in self.contents.items():
            self.assertEqual(self.content(name), content)

    def test_D05_a_bind_mount_has_the_same_owner(self):
        os.mkdir(self.path("bound"))
        if subprocess.run(["mount", "--bind", self.daemon.store, self.path("bound")], capture_output=True).returncode != 0:
            self.skipTest("bind mounts are not allowed here")
        try:
            result = subprocess.run([rig.BIN + "/rametd", "--store", self.path("bound"), "--run", self.path("run2")],
                                    capture_output=True, text=True, timeout=rig.HANG_SECS)
            self.assertEqual(result.returncode, 1)
            self.assertIn(str(self.daemon.process.pid), result.stderr)
        finally:
            subprocess.run(["umount", self.path("bound")])

    def test_D05_a_read_only_directory_can_be_checked(self):
        self.fill()
        self.daemon.stop()
        os.mkdir(self.path("bound"))
        if subprocess.run(["mount", "--bind", self.daemon.store, self.path("bound")], capture_output=True).returncode != 0 or \
                subprocess.run(["mount", "-o", "remount,bind,ro", self.path("bound")], capture_output=True).returncode != 0:
            subprocess.run(["umount", self.path("bound")], capture_output=True)
            self.daemon.start(*self.OPTIONS)
            self.skipTest("read-only bind mounts are not allowed here")
        try:
            self.assertIn("no damage", self.daemon.ramet("store", "check", self.path("bound")))
            result = subprocess.run([rig.BIN + "/rametd", "--store", self.path("bound"), "--run", self.path("run2")],
                                    capture_output=True, text=True, timeout=rig.HANG_SECS)
            self.assertEqual(result.returncode, 1)
            self.assertIn(os.strerror(errno.EROFS), result.stderr)
        finally:
            subprocess.run(["umount", self.path("bound")])
        self.daemon.start(*self.OPTIONS)

    # ---- D06: readers that are killed ----

    def test_D06_readers_that_are_killed(self):
        self.fill()
        catalog = self.stat()["catalog_bytes"]
        for i in range(40):
            words = ("store", "stat") if i % 2 == 0 else ("store", "check")
            child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, *words], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(random.random() * 0.02)    # not a wait for anything: somewhere in its middle
            child.kill()
            child.wait()
        self.check()
        self.daemon.ramet("store", "seal")
        self.assertLess(self.stat()["catalog_bytes"], catalog + 4 * MIB)
        self.daemon.stop()
        for _ in range(20):
            child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "store", "check", self.daemon.store],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random.random() * 0.03)
            child.kill()
            child.wait()
        self.check_closed()
        self.daemon.start(*self.OPTIONS)

    # ---- D09: collect while the doomed are wanted again ----

    def test_D09_the_doomed_are_wanted_again(self):
        content = random.Random(10).randbytes(8 * MIB)
        path = self.write("x", content)
        self.daemon.ramet("volume", "import", "x", path, "--format", "raw")
        self.daemon.ramet("volume", "snapshot", "x", "kept")
        for turn in range(12):
            self.daemon.ramet("volume", "rm", "x")
            if turn % 3 == 0:
                self.daemon.ramet("snapshots", "rm", "kept")
            collector = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "store", "gc"], stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
            self.daemon.ramet("volume", "import", "x", path, "--format", "raw")
            if turn % 3 != 0:
                self.daemon.ramet("volume", "fork", "kept", f"f{turn}")
            if turn % 4 == 3:
                self.daemon.kill()
                collector.wait(rig.HANG_SECS)
                self.daemon.start(*self.OPTIONS)
            else:
                self.assertEqual(collector.wait(rig.HANG_SECS), 0)
            self.assertEqual(self.content("x"), content)
            if turn % 3 == 0:
                self.daemon.ramet("volume", "snapshot", "x", "kept")
            else:
                self.assertEqual(self.content(f"f{turn}"), content)
                self.daemon.ramet("volume", "rm", f"f{turn}")
        self.check()


class FullStore(StoreCase):
    """D01 on a file system of its own; the quota without one."""

    def test_I08_a_store_that_is_too_small(self):
        self.restart("--quota", "512M")
        self.daemon.ramet("volume", "create", "other", "16M")
        self.write_file("other", b"before" * 1000)
        with open(self.path("big"), "wb") as file:
            for _ in range(800):
                file.write(os.urandom(MIB))
        for source in ("file", "stdin"):
            with self.subTest(source):
                if source == "file":
                    self.daemon.ramet("volume", "import", "big", self.path("big"), "--format", "raw", status=1)
                    said = self.daemon.stderr
                else:
                    with open(self.path("big"), "rb") as file:
                        result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "import", "big", "-"],
                                                stdin=file, capture_output=True, text=True)
                    self.assertEqual(result.returncode, 1)
                    said = result.stderr
                self.assertIn("space", said.lower())
                self.assertEqual([v["name"] for v in self.daemon.json("volume", "ls", "--all")], ["other"])
                self.wait(lambda: du(self.daemon.store) < 512 * MIB)    # what was half-made goes in the background
                self.daemon.ramet("store", "gc")
                self.assertLess(self.stat()["segment_bytes"], 8 * MIB)
                self.nbd_ok("other", "write -P 5 0 1M")    # without a restart
        with open(f"/proc/{self.daemon.process.pid}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        self.assertLess(peak, 800 * 1024, "an import takes no memory to speak of")
        self.check()

    def small_file_system(self, kind):
        if shutil.which("mkfs." + kind) is None:
            self.skipTest(f"there is no mkfs.{kind}")
        with open(self.path("disk"), "wb") as file:
            file.truncate(700 * MIB)
        subprocess.run(["mkfs." + kind, "-q", self.path("disk")], check=True, capture_output=True)
        os.mkdir(self.path("small"))
        mounted = subprocess.run(["mount", "-o", "loop", self.path("disk"), self.path("small")], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest("loop devices cannot be used here: " + mounted.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", self.path("small")])

    def test_D01_the_way_out_of_a_full_file_system(self):
        for kind in ("ext4", "xfs"):
            if shutil.which("mkfs." + kind) is None:
                continue
            with self.subTest(kind):
                self.way_out(kind)
            return    # one is enough for this length

    def way_out(self, kind):
        self.small_file_system(kind)
        self.daemon.stop()
        old, self.daemon.store = self.daemon.store, self.path("small/store")
        options = ("--log-budget", "128M", "--reserve", "64M")
        self.daemon.ramet("store", "init", self.daemon.store, "--log-file", "8M")
        self.daemon.start(*options)
        try:
            self.fill_up(options)
        finally:
            self.daemon.stop()
            self.daemon.store = old
        self.daemon.start(*self.OPTIONS)

    def fill_up(self, options):
        parts, part, refused = [], MIB * 4, None
        for name in ("v", "w"):
            self.daemon.ramet("volume", "create", name, "1G")
        self.daemon.ramet("volume", "snapshot", "w", "s")
        # 1: guests write until they get ENOSPC; then somebody else takes the rest.
        for i in range(400):
            content = random.Random(i).randbytes(part)
            result = self.nbd("v" if i % 4 else "w", f"write -s {self.write('bytes', content)} {i * part // 2} {part}", "flush")
            if result.returncode != 0 or "error" in (result.stdout + result.stderr).lower() or "No space" in result.stdout + result.stderr:
                self.assertIn("No space left", result.stdout + result.stderr, "ENOSPC, not EIO")
                refused = (i, content)
                break
            parts.append((i, content))
        else:
            self.fail("it never was full")
        self.assertGreater(len(parts), 40)
        subprocess.run(["dd", "if=/dev/zero", "of=" + self.path("small/filler"), "bs=64k"], capture_output=True)
        # 2: each of these must work.
        self.stat()
        self.daemon.ramet("snapshots", "rm", "s")
        self.nbd_ok("w", "discard 0 64M")
        self.daemon.ramet("store", "gc")
        self.daemon.ramet("volume", "rm", "w")
        self.daemon.stop()
        self.daemon.start(*options)
        self.daemon.ramet("store", "gc")
        self.stat()
        # 3: the outside file goes; guests try again.
        os.unlink(self.path("small/filler"))
        self.wait(lambda: self.nbd("v", "write -P 9 900M 1M", "flush").returncode == 0)
        content = self.expected(parts)
        got = self.content("v")
        if refused[0] % 4:    # of a refused write each block may be there or not
            content = self.either(content, got, refused[0] * part // 2, refused[1])
        for offset in range(0, len(content), part):
            self.assertEqual(got[offset:offset + part], content[offset:offset + part], f"acknowledged bytes at {offset}")
        self.check()

    @staticmethod
    def either(content, got, start, refused):
        content = bytearray(content)
        for at in range(0, len(refused), 4096):
            if got[start + at:start + at + 4096] == refused[at:at + 4096]:
                content[start + at:start + at + 4096] = refused[at:at + 4096]
        return bytes(content)

    def expected(self, parts):
        content = bytearray(900 * MIB)
        for i, piece in parts:
            if i % 4:
                content[i * len(piece) // 2:i * len(piece) // 2 + len(piece)] = piece
        return bytes(content[:900 * MIB])


if __name__ == "__main__":
    rig.need_root()
    rig.main()
