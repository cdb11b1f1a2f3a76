# SPDX-License-Identifier: Apache-2.0
"""Machines under conditions that are not the usual ones: a stop that keeps only the disk under write load (V08), other
circumstances at a resume (V09), another build of the daemon under a loaded guest."""
import json
import os
import shutil
import threading
import time

import rig

# Each value that it prints was on disk before.
COUNTER = r"""
import os, sys, itertools
for n in itertools.count(1):
    fd = os.open(f"c/{n % 40}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, str(n).encode())
    os.fsync(fd)
    os.close(fd)
    print(n, flush=True)
"""

# Keeps count in memory and on disk, with sums that show a page or block that is not its own.
LOAD = r"""
import hashlib, os, random
block, turn = bytearray(8 << 20), 0
while True:
    turn += 1
    for at in range(0, len(block), 4096):
        block[at:at + 8] = turn.to_bytes(8, "little")
    with open("l.new", "wb") as f:
        f.write(block)
        f.flush()
        os.fsync(f.fileno())
    os.rename("l.new", "l")
    if any(block[at:at + 8] != turn.to_bytes(8, "little") for at in range(0, len(block), 4096)):
        open("wrong", "w").write(str(turn))
    with open("turn.new", "w") as f:
        f.write(str(turn))
    os.rename("turn.new", "turn")
"""


class Conditions(rig.MachineCase):
    def call(self, method, path, body=None):
        return self.daemon.call(method, "/v1/sandboxes" + path, body)

    def state(self, name):
        return self.daemon.json("show", name)["state"]

    def test_conditions(self):
        self.daemon.ramet("create", "base", "--size", "small")
        self.daemon.ramet("cp", self.write("counter.py", COUNTER.encode()), "base:counter.py")
        self.daemon.ramet("cp", self.write("load.py", LOAD.encode()), "base:load.py")
        self.sh("base", "mkdir c; sync")
        self.daemon.ramet("snapshot", "base", "--name", "point", "--wait")
        self.daemon.ramet("rm", "base")
        for part in (self.upgrade, self.V09_other_conditions, self.V08_disk_only):
            begun = time.monotonic()
            with self.subTest(part.__name__):
                part()
            print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)

    # ---- another daemon ----

    def upgrade(self):
        """Another build takes over while the guest works: it notices a pause and nothing else."""
        self.daemon.ramet("create", "box", "--from", "point")
        self.sh("box", "setsid python3 load.py > /dev/null 2>&1 < /dev/null &")
        turn = lambda: int(self.sh("box", "cat turn 2>/dev/null || echo 0"))
        self.until(lambda: turn() > 1)
        pids = self.daemon.vmms()
        other = self.path("other-build")
        os.mkdir(other)
        shutil.copy(rig.BIN + "/rametd", other)
        with open(other + "/rametd", "ab") as file:
            file.write(b"another build")
        here = rig.BIN
        for programs in (other, here):
            before = turn()
            self.daemon.stop()
            os.environ["RAMET_LIBEXEC"] = here
            try:
                command, rig.BIN = rig.BIN, programs
                self.daemon.start()
            finally:
                rig.BIN = command
                del os.environ["RAMET_LIBEXEC"]
            self.assertEqual(os.readlink(f"/proc/{self.daemon.process.pid}/exe"), os.path.realpath(programs + "/rametd"))
            self.assertEqual(self.daemon.vmms(), pids)
            self.until(lambda: turn() > before + 1)
        self.sh("box", "test ! -e wrong")
        self.assertEqual(self.sh("box", "sudo dmesg | grep -ciE 'i/o error|ext4-fs error|hung task' || true").strip(), "0")
        self.daemon.ramet("snapshot", "box", "--name", "after")
        self.daemon.ramet("create", "child", "--from", "after")
        self.sh("child", "test ! -e wrong && kill -0 $(pgrep -f load.py | head -1)")
        self.daemon.ramet("rm", "box", "child")
        self.daemon.ramet("snapshots", "rm", "after")
        self.daemon.stop()
        self.daemon.start()

    # ---- V09 ----

    def resumes(self, name="box"):
        box = self.daemon.json("create", name, "--from", "point")
        self.assertEqual(box["start_mode"], "resume")
        self.assertEqual(self.sh(name, "ls load.py").strip(), "load.py")
        self.daemon.ramet("rm", name)

    def refused(self, *says):
        answer = self.call("POST", "", {"name": "box", "from": "point"})
        self.assertEqual(answer.status, 400, answer.body)
        for words in says:
            self.assertIn(words, answer.message)
        self.assertEqual((self.daemon.json("ls"), self.daemon.vmms(), self.daemon.folders()), ([], {}, []))

    def V09_other_conditions(self):
        other = self.path("other-kernel")
        shutil.copytree(os.environ["RAMET_KERNEL_DIR"], other)
        with open(other + "/initramfs-q35.cpio", "ab") as file:
            file.write(bytes(512))
        program = shutil.which("qemu-system-x86_64")
        shutil.copy(program, self.path("other-vmm"))
        with open(self.path("other-vmm"), "ab") as file:
            file.write(b"another build")
        # What the machine was saved with is kept in the store, so that it goes on although the host has something else.
        self.daemon.stop()
        self.daemon.kernel_dir = other
        self.daemon.start("--vmm", self.path("other-vmm"))
        self.resumes()
        # Without it the difference is said: the field, both values, the remedy.
        for options, kernel, field in ((("--no-confine", "--vmm", self.path("other-vmm")), os.environ["RAMET_KERNEL_DIR"], "VMM's build"),
                                       (("--no-confine",), other, "initramfs")):
            self.daemon.stop()
            self.daemon.kernel_dir = kernel
            self.daemon.start(*options)
            self.refused(field, " of the snapshot is ", " and of the machine to start ", ": ")
        self.daemon.stop()
        self.daemon.kernel_dir = os.environ["RAMET_KERNEL_DIR"]
        # Another place and another host name are nothing.
        moved = self.path("moved")
        os.rename(self.daemon.store, moved)
        self.daemon.store = moved
        self.daemon.start()
        self.resumes()
        for field, value in (("cpus", 2), ("memory_mb", 512), ("disk_gb", 100), ("disks", [{"size_gb": 1}])):
            answer = self.call("POST", "", {"name": "box", "from": "point", field: value})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertIn(field, answer.message)
        self.daemon.stop()
        bin, rig.BIN = rig.BIN, self.host_name_wrapper()
        try:
            self.daemon.start()
        finally:
            rig.BIN = bin
        self.resumes()

    def host_name_wrapper(self):
        folder = self.path("wrapped")
        os.mkdir(folder)
        with open(folder + "/rametd", "w") as file:
            file.write(f'#!/bin/sh\nexport RAMET_LIBEXEC={os.path.realpath(rig.BIN)}\n'
                       f'exec unshare --uts sh -c \'hostname another-host; exec "$0" "$@"\' {os.path.realpath(rig.BIN)}/rametd "$@"\n')
        os.chmod(folder + "/rametd", 0o755)
        return folder

    # ---- V08 ----

    def V08_disk_only(self):
        """Needs at most a journal replay (none: it was frozen), and every value that was told is there."""
        long = bool(os.environ.get("RAMET_TEST_LONG"))
        self.daemon.ramet("create", "box", "--from", "point")
        for _ in range(30 if long else 1):
            told = []
            thread = threading.Thread(target=self.listen, args=(told,))
            thread.start()
            self.sh("box", "setsid sh -c 'while :; do dd if=/dev/urandom of=noise bs=64k count=40 conv=fsync; done' > /dev/null 2>&1 < /dev/null &")
            self.until(lambda: len(told) > 60)
            answer = self.call("POST", "/box/stop", {"memory": False})
            self.assertEqual(answer.status, 200, answer.body)
            thread.join()
            # Looked at by another machine, whose second disk is a fork of it.
            self.daemon.ramet("create", "checker", "--size", "small", "--add-disk", "box/disk:ro")
            self.sh("checker", "sudo e2fsck -fn /dev/vdb")
            self.sh("checker", "sudo mkdir -p /look && sudo mount -o ro,noload /dev/vdb /look")
            self.check_counter("checker", "/look/home/user/c", told)
            self.daemon.ramet("rm", "checker")
            if long:
                self.assertEqual(self.daemon.json("start", "box")["start_mode"], "cold")
                self.check_counter("box", "c", told)
        self.daemon.ramet("rm", "box")

    def check_counter(self, name, folder, told):
        kept = [int(word) for word in self.sh(name, f"for f in {folder}/*; do cat $f; echo; done").split()]
        self.assertGreaterEqual(max(kept), max(told))
        self.assertGreaterEqual(len(kept), 39)    # one may have been cut and not written again yet

    def listen(self, told):
        connection = rig.UnixConnection(self.daemon.run + "/api.sock")
        connection.request("POST", "/v1/sandboxes/box/exec/stream", json.dumps({"command": "python3 counter.py"}))
        response = connection.getresponse()
        text = ""
        while line := response.readline():
            if line.startswith(b"data: "):
                text += json.loads(line[6:]).get("text", "")
                whole, _, text = text.rpartition("\n")
                told += [int(word) for word in whole.split()]
        connection.close()


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
