# SPDX-License-Identifier: Apache-2.0
"""Machines over sealed data: their disks give space back, they live through sealing and collecting, damage is said."""
import glob
import json
import mmap
import os
import random
import subprocess

import file_load
import rig

MIB = 1 << 20
BIG = 160    # MiB that the guest writes and deletes
HELD = 2 * MIB    # what the worker has in memory and nowhere else

# Holds pages that can be told from a word, looks at all of them again and again, and writes files with their sums.
WORKER = r"""
import file_load, hashlib, json, mmap, os, random, sys
size = int(sys.argv[2])
area = mmap.mmap(-1, size)
area[:] = random.Random(sys.argv[1]).randbytes(size)
right = hashlib.sha256(area).hexdigest()
born, turn = os.urandom(8).hex(), 0
while True:
    turn += 1
    good = hashlib.sha256(area).hexdigest() == right
    file_load.save(turn, (4096, 100000, 1000000))
    file_load.put("state", json.dumps(dict(born=born, count=turn, good=good, pid=os.getpid())).encode())
"""


class SealedCase(rig.MachineCase):
    def gc(self, *options):
        """Seals and collects; returns what the segments take then."""
        self.daemon.ramet("store", "gc", *options)
        return self.daemon.json("store", "stat")["segment_bytes"]

    def check(self):
        self.assertEqual(self.daemon.json("store", "check")["damages"], 0)

    def start_worker(self, name):
        self.word = os.urandom(8).hex()
        file_load.install(self, name)
        self.start_program(name, "worker", WORKER, self.word, str(HELD))
        return self.works(name)

    def state(self, name):
        return json.loads(self.sh(name, "cat state 2>/dev/null || echo {}") or "{}")

    def works(self, name, past=None):
        """Waits for more turns of the worker; it is the one it was, and its memory is right."""
        first = self.state(name).get("count", 0)
        self.until(lambda: self.state(name).get("count", 0) > first + 2)
        state = self.state(name)
        self.assertTrue(state["good"], f"{name}: its memory is wrong")
        if past is not None:
            self.assertEqual((state["born"], state["pid"]), (past["born"], past["pid"]), name)
        return state

    def clean_disk(self, name):
        """Stops it; its file system is in order."""
        self.daemon.ramet("stop", name, "--disk-only")
        self.daemon.ramet("volume", "export", name + "/disk", self.path("disk"))
        check = subprocess.run(["e2fsck", "-fn", self.path("disk")], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)
        os.unlink(self.path("disk"))


class Trim(SealedCase):
    def data(self, name):
        """The blocks of a disk that hold data."""
        blocks = set()
        for found in self.daemon.json("volume", "map", name)["ranges"]:
            if found["kind"] == "data":
                blocks.update(range(found["offset"] // 4096, (found["offset"] + found["length"]) // 4096))
        return blocks

    def write_big(self):
        self.sh("demo", f"head -c {BIG}M /dev/urandom > big; sync")

    def delete_big(self):
        self.sh("demo", "rm big; sync; sudo fstrim /; sync")

    def test_a_file_system_gives_space_back(self):
        self.daemon.ramet("create", "demo")
        self.sh("demo", "sync; sudo fstrim /")
        lean, mapped = self.gc(), self.data("demo/disk")
        self.write_big()
        full, written = self.gc(), self.data("demo/disk") - mapped
        self.assertGreaterEqual(full, lean + (BIG - 2) * MIB)
        self.assertGreaterEqual(len(written) * 4096, (BIG - 2) * MIB)
        self.delete_big()
        left = self.data("demo/disk") & written
        self.assertLess(len(left), len(written) // 50, "what was trimmed is holes")
        self.assertLess(self.gc(), lean + BIG // 20 * MIB)

        # What a snapshot holds stays for as long as the snapshot.
        self.write_big()
        self.sh("demo", "sha256sum big > sum; sync")
        self.daemon.ramet("volume", "snapshot", "demo/disk", "holds")
        full, written = self.gc(), self.data("holds")
        self.assertGreaterEqual(full, lean + (BIG - 2) * MIB)
        self.delete_big()
        self.assertGreaterEqual(self.gc(), lean + (BIG - 2) * MIB, "a snapshot needs it")
        self.assertEqual(self.data("holds"), written)
        self.daemon.ramet("create", "again", "--from", "holds")
        self.assertIn("OK", self.sh("again", "sha256sum -c sum"))
        self.daemon.ramet("rm", "--force", "again")
        self.daemon.ramet("snapshots", "rm", "holds")
        self.assertLess(self.gc(), lean + BIG // 20 * MIB, "nothing needs it any more")
        self.check()
        self.clean_disk("demo")


class Sealing(SealedCase):
    def test_a_machine_lives_through_sealing(self):
        self.daemon.ramet("create", "demo")
        past = self.start_worker("demo")
        self.gc()
        self.works("demo", past)
        self.daemon.ramet("snapshot", "demo", "--name", "mid", "--wait")
        self.gc()
        self.works("demo", past)
        [child] = [c["name"] for c in self.daemon.json("fork", "demo")["children"]]
        self.gc("--recompress")
        for name in ("demo", child):
            self.works(name, past)
        self.daemon.ramet("stop", "demo")
        self.gc()
        self.daemon.kill()
        self.daemon.start()
        self.works(child, past)
        file_load.check(self, child, "worker.py")
        self.clean_disk(child)
        self.daemon.ramet("rm", child)
        self.assertEqual(self.daemon.json("start", "demo")["start_mode"], "resume")
        self.works("demo", past)
        file_load.check(self, "demo", "worker.py")
        self.clean_disk("demo")
        self.gc("--recompress")
        self.daemon.ramet("create", "late", "--from", "mid")    # everything that it needs has been moved twice
        self.works("late", past)
        file_load.check(self, "late", "worker.py")
        self.check()


class Damage(SealedCase):
    def damage(self):
        """V02 for sealed data: flips a bit in the stored pages of the worker; returns the files' names."""
        content, files, found = random.Random(self.word).randbytes(HELD), set(), 0
        for path in glob.glob(self.daemon.store + "/segments/*"):
            with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as bytes_of:
                for at in range(0, HELD, 4096):
                    place = bytes_of.find(content[at:at + 4096])
                    if place >= 0:
                        bytes_of[place + 1000] ^= 4
                        files.add(os.path.basename(path))
                        found += 1
                bytes_of.flush()
        self.assertGreater(found, HELD // 4096 // 4, "pages of the worker in segments: this test shows nothing")
        return files

    def test_V02_a_damaged_memory_image(self):
        self.daemon.ramet("create", "source")
        past = self.start_worker("source")
        self.daemon.ramet("snapshot", "source", "--name", "mid", "--wait")
        self.gc()
        self.daemon.stop()
        files = self.damage()
        self.daemon.start()
        result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "create", "victim", "--from", "mid"],
                                capture_output=True, text=True)
        if result.returncode == 0:    # it lives until it touches one
            self.until(lambda: self.daemon.json("show", "victim")["state"] == "failed")
            said = self.daemon.json("show", "victim")["reason"]
        else:
            said = result.stderr
        self.assertIn("memory image", said)
        self.assertIn("damaged", said)
        self.assertIn('"mid"', said, "the snapshot is named")
        self.works("source", past)
        said = self.daemon.ramet("store", "check", status=1)
        for name in files:
            self.assertIn(name, said)
        self.assertIn('"mid"', said)
        self.works("source", past)
        file_load.check(self, "source", "worker.py")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
