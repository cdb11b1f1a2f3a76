# SPDX-License-Identifier: Apache-2.0
"""Plain disks: fork, snapshot, diff, names, owners. No machines."""
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import time

import rig

MIB = 1 << 20


class Volumes(rig.Case):
    def export(self, name):
        self.daemon.ramet("volume", "export", name, self.path("out"))
        return self.read("out")

    def nbd_write(self, name, pattern, offset, length):
        subprocess.run(["qemu-io", "-f", "raw", "-c", f"write -P {pattern} {offset} {length}", self.daemon.uri(name)],
                       check=True, capture_output=True)

    def test_qcow2_both_ways(self):
        for options in ("compat=0.10", "compression_type=zstd", "cluster_size=512", "extended_l2=on"):
            with self.subTest(options=options):
                source = self.path("a.qcow2")
                subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, source, "64M"], check=True)
                subprocess.run(["qemu-io", "-c", "write -P 5 1M 300k", "-c", "write -P 6 60M 4M", source], check=True,
                               capture_output=True)
                self.daemon.ramet("volume", "import", "q", source)
                self.daemon.ramet("volume", "export", "q", self.path("b.qcow2"))
                subprocess.run(["qemu-img", "compare", source, self.path("b.qcow2")], check=True, capture_output=True)
                self.daemon.ramet("volume", "rm", "q")

    def slow_file(self):
        with open(self.path("slow"), "wb") as file:
            for _ in range(200):
                file.write(os.urandom(MIB))
        return self.path("slow")

    def wait(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.02)

    def test_a_copy_may_take_longer_than_the_daemon_is_quiet(self):
        """The stream that holds a transfer open gets a comment after ten quiet seconds; it must not end the copy."""
        self.daemon.ramet("volume", "import", "v", self.slow_file(), "--format", "raw")
        copier = None
        while copier is None:    # one that is over before it is seen is made again
            if os.path.exists(self.path("out")):
                os.unlink(self.path("out"))
            child = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "export", "v", self.path("out")],
                                     stdout=subprocess.DEVNULL)
            copier = rig.stopped_copier(child, self.root)
        time.sleep(12)    # not a wait for anything: the time that it is to be slow
        os.kill(copier, signal.SIGCONT)
        self.assertEqual(child.wait(rig.HANG_SECS), 0)
        self.assertEqual(self.read("out"), self.read("slow"))

    def test_forks_snapshots_and_differences(self):
        content = random.Random(3).randbytes(3 * MIB)
        self.daemon.ramet("volume", "import", "base", self.write("in", content), "--format", "raw")
        self.daemon.ramet("volume", "snapshot", "base", "then")
        self.daemon.ramet("volume", "fork", "base", "kid")
        self.nbd_write("kid", 9, 8192, 4096)
        self.nbd_write("base", 7, 0, 512)
        self.assertEqual(self.export("then"), content)
        self.assertEqual(self.export("base"), b"\7" * 512 + content[512:])
        kid = content[:8192] + b"\t" * 4096 + content[12288:]
        self.assertEqual(self.export("kid"), kid)
        diff = self.daemon.json("volume", "diff", "then", "kid")
        self.assertEqual([(r["offset"], r["length"], r["kind"]) for r in diff["ranges"]], [(8192, 4096, "data")])
        self.assertEqual(diff["changed_bytes"], 4096)
        self.daemon.ramet("volume", "rm", "base")
        self.daemon.ramet("volume", "fork", "then", "late")
        self.rename_snapshot("then")
        self.daemon.ramet("snapshots", "rm", "then")
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.export("late"), content)
        self.assertEqual(self.export("kid"), kid)
        self.assertEqual(self.daemon.json("snapshots"), [])
        self.assertEqual(self.daemon.ramet("volume", "export", "kid", "-", text=False), kid)

    def rename_snapshot(self, name):
        """Another name, other labels, both kept over a restart; what is there already is not taken."""
        before = self.daemon.json("snapshots", "show", name)
        changed = self.daemon.json("snapshots", "update", name, "--name", "renamed", "--label", "branch=best")
        self.assertEqual(changed, before | {"name": "renamed", "labels": {"branch": "best"}, "state": changed["state"]})
        self.daemon.ramet("snapshots", "show", name, status=1)
        self.daemon.ramet("snapshots", "update", name, "--name", "other", status=1)
        taken = self.daemon.json("volume", "ls")[0]["name"]
        for body, status in (({"name": taken}, 409), ({"name": "No Name"}, 400), ({"labels": {"a": 1}}, 400), ({"new": 1}, 400)):
            self.assertEqual(self.daemon.call("PATCH", "/v1/snapshots/renamed", body).status, status, body)
        self.assertEqual(self.daemon.call("PATCH", f"/v1/snapshots/{taken}", {"name": "x"}).status, 400)
        self.daemon.stop()
        self.daemon.start()
        again = self.daemon.json("snapshots", "show", changed["id"])
        self.assertEqual((again["name"], again["labels"]), ("renamed", {"branch": "best"}))
        self.daemon.ramet("snapshots", "update", "renamed", "--name", name)

    def test_a_folder_that_cannot_be_synced(self):
        """The file is there, and has taken another's place: no failure, but a note."""
        self.daemon.ramet("volume", "create", "v", "1M")
        folder, drop = self.path("blind"), []
        os.mkdir(folder)
        os.chmod(folder, 0o300)    # files can be made in it, and it cannot be read
        if os.geteuid() == 0:      # it reads all, but for this
            drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
            if shutil.which("setpriv") is None:
                self.skipTest("there is no setpriv (Debian: util-linux)")
        done = subprocess.run([*drop, rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "export", "v", folder + "/out"],
                              capture_output=True, text=True, timeout=rig.HANG_SECS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("its folder cannot be synced (Permission denied)", done.stderr)
        os.chmod(folder, 0o700)
        self.assertEqual(os.listdir(folder), ["out"])
        self.assertEqual(self.read("blind/out"), bytes(MIB))

    def test_resize_and_rename(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        self.nbd_write("v", 1, 0, MIB)
        self.daemon.ramet("volume", "resize", "v", "3M")
        self.assertEqual(self.export("v"), b"\1" * MIB + bytes(2 * MIB))
        self.daemon.ramet("volume", "create", "w", "1M")
        self.daemon.ramet("volume", "rename", "v", "w", status=1)
        self.assertEqual(self.daemon.call("PATCH", "/v1/volumes/v", {"name": "w", "size_bytes": 5 * MIB}).status, 409)
        self.assertEqual(len(self.export("v")), 3 * MIB)    # both or none
        self.daemon.ramet("volume", "rename", "v", "x")
        self.assertEqual(len(self.export("x")), 3 * MIB)
        self.assertEqual(self.daemon.call("PATCH", "/v1/volumes/x", {"name": "y", "size_bytes": 5 * MIB}).status, 200)
        self.assertEqual(len(self.export("y")), 5 * MIB)

    def test_snapshots_are_read_only_by_nbd(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        self.daemon.ramet("volume", "snapshot", "v", "s")
        result = subprocess.run(["qemu-io", "-f", "raw", "-c", "write 0 512", self.daemon.uri("s")], capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0, "qemu-io opens for writing, which a snapshot refuses")
        self.assertEqual(self.export("s"), bytes(MIB))
        listed = subprocess.run(["nbdinfo", "--list", "--json", f"nbd+unix:///?socket={self.daemon.run}/nbd.sock"],
                                capture_output=True, text=True)
        self.assertIn('"s"', listed.stdout)

    def test_an_open_volume_is_not_removed(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        client = subprocess.Popen(["qemu-io", "-f", "raw", self.daemon.uri("v")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True)
        client.stdin.write("read 0 512\n")
        client.stdin.flush()
        client.stdout.readline()
        self.daemon.ramet("volume", "rm", "v", status=1)
        self.assertIn("in use", self.daemon.stderr)
        answer = self.daemon.call("DELETE", "/v1/volumes/v")
        self.assertEqual((answer.status, answer.code), (409, "volume.invalid_state"))
        client.communicate("quit\n")
        self.wait(lambda: subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "volume", "rm", "v"],
                                         capture_output=True).returncode == 0)

    def test_A07_names(self):
        good, bad = ["1", "a" * 40, "a-b", "0"], [".", "..", "-x", "", "a" * 41, "Ab", "a_b", "a/b", "a b", "ä", "а"]
        for name in good:
            self.daemon.ramet("volume", "create", name, "1M")
        for name in bad:
            with self.subTest(name):
                answer = self.daemon.call("POST", "/v1/volumes", {"name": name, "size_bytes": 4096})
                self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))
        self.assertEqual(sorted(v["name"] for v in self.daemon.json("volume", "ls")), sorted(good))
        # A name and an id can never be the same: ids hold an underscore.
        volume = self.daemon.json("volume", "show", "1")
        self.assertRegex(volume["id"], "_")
        self.assertEqual(self.daemon.json("volume", "show", volume["id"]), volume)

    def test_A07_races_for_one_name(self):
        calls = [("/v1/volumes", {"name": "n", "size_bytes": MIB})] * 10 + [("/v1/volumes/v/snapshots", {"name": "n"})] * 10
        self.daemon.ramet("volume", "create", "v", "1M")
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda call: self.daemon.call("POST", *call), calls))
        self.assertEqual(sorted(a.status for a in answers), [201] + [409] * 19)
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            unnamed = list(pool.map(lambda _: self.daemon.call("POST", "/v1/volumes/v/snapshots", {}), range(50)))
        self.assertEqual(len({a.json["name"] for a in unnamed}), 50)
        things = len(self.daemon.json("snapshots")) + len(self.daemon.json("volume", "ls"))
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(len(self.daemon.json("snapshots")) + len(self.daemon.json("volume", "ls")), things)

    def test_volumes_and_snapshots_share_their_names(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        self.daemon.ramet("volume", "snapshot", "v", "s")
        self.daemon.ramet("volume", "create", "s", "1M", status=1)
        self.daemon.ramet("volume", "snapshot", "v", "v", status=1)
        self.daemon.ramet("volume", "fork", "v", "s", status=1)
        self.assertIn("already", self.daemon.stderr)


class Owners(rig.Case):
    def refused(self, store, run):
        result = subprocess.run([rig.BIN + "/rametd", "--store", store, "--run", run], capture_output=True, text=True,
                                timeout=rig.HANG_SECS)
        self.assertEqual(result.returncode, 1, result.stderr)
        return result.stderr

    def test_D05_a_second_daemon_is_refused_and_told_who_is_first(self):
        first = str(self.daemon.process.pid)
        os.symlink(self.daemon.store, self.path("link"))
        self.assertIn(first, self.refused(self.daemon.store, self.path("run2")))
        self.assertIn(first, self.refused(self.path("link"), self.path("run2")))
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            self.assertIn(first, self.refused(self.daemon.store, self.path("run2")))
            self.assertIn(first, self.refused(self.path("other"), self.daemon.run))
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.daemon.ramet("store", "stat")

    def test_D05_a_dead_owner_never_blocks(self):
        self.daemon.ramet("volume", "create", "v", "1M")
        for text in ("", "1\n", f"{os.getpid()}\n", "rubbish"):
            with self.subTest(text):
                self.daemon.kill()
                with open(self.daemon.run + "/rametd.lock", "w") as file:
                    file.write(text)
                self.assertTrue(os.path.exists(self.daemon.run + "/api.sock"), "a stale socket is part of the test")
                self.daemon.ramet("ls", status=1)
                self.assertIn("ramet up", self.daemon.stderr)
                self.daemon.start()
                self.assertEqual([v["name"] for v in self.daemon.json("volume", "ls")], ["v"])

    def test_a_clean_end_leaves_nothing_behind(self):
        self.daemon.stop()
        self.assertEqual([n for n in os.listdir(self.daemon.run) if n.endswith(".sock")], [])
        self.until(lambda: self.daemon.keeper_pids() == [])    # it answers before it is gone
        with open("/proc/mounts") as mounts:
            self.assertNotIn(self.daemon.run, mounts.read())

    def test_no_store_is_said(self):
        self.assertIn("store", self.refused(self.path("nothing"), self.path("run3")))
        self.daemon.ramet("store", "init", self.daemon.store, status=1)
        self.daemon.ramet("volume", "ls")

    def test_up_and_down(self):
        self.daemon.stop()
        store = self.path("fresh/store")
        for _ in range(2):    # the second call finds it running
            self.daemon.ramet("up", "--store", store, "--no-kernel")
        self.daemon.ramet("volume", "create", "v", "1M")
        self.daemon.ramet("up", "--store", self.daemon.store, "--no-kernel", status=1)
        self.daemon.ramet("down")
        self.daemon.ramet("down")
        self.daemon.ramet("ls", status=1)


if __name__ == "__main__":
    rig.need_root()
    rig.main()
