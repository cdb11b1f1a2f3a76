# SPDX-License-Identifier: Apache-2.0
"""What went wrong elsewhere with memory that is given back, with work that was lost, and with parents that were deleted (V10, LESSONS)."""
import json
import os

import rig

ROUNDS = 10    # resume, change, snapshot: elsewhere changes were lost from the second on

# Keeps what it was told in memory alone, and says on demand all that it knows.
MEMO = r"""
import json, os
known = []
while True:
    with open("tell") as pipe:
        word = pipe.read().strip()
    known.append(word)
    with open("known.new", "w") as file:
        json.dump([os.getpid(), known], file)
    os.rename("known.new", "known")
"""

# Takes memory, stamps each page, looks at all of it, gives it back: whatever a page held before, a fresh one is zeros and
# a stamped one is as it was stamped.
STAMPS = r"""
import json, mmap, os, struct
PAGES, turn, wrong = 1200, 0, []
while True:
    turn += 1
    memory = mmap.mmap(-1, PAGES * 4096)
    for page in range(PAGES):
        if memory[page * 4096:page * 4096 + 16] != bytes(16):
            wrong.append(("fresh", turn, page))
        memory[page * 4096:page * 4096 + 16] = struct.pack("<QQ", turn, page)
    for page in range(PAGES):
        if memory[page * 4096:page * 4096 + 16] != struct.pack("<QQ", turn, page):
            wrong.append(("stamp", turn, page))
    memory.close()
    with open("stamps.new", "w") as file:
        json.dump([turn, wrong[:10]], file)
    os.rename("stamps.new", "stamps")
"""


class Lessons(rig.MachineCase):
    def setUp(self):
        super().setUp()
        self.daemon.ramet("create", "box", "--size", "small")

    def said(self, name, file):
        return json.loads(self.sh(name, f"cat {file} 2>/dev/null || echo null"))

    def test_lessons(self):
        self.ten_rounds()
        self.V10_memory_given_back()

    def tell(self, name, word):
        self.sh(name, f"echo {word} > tell; echo {word} >> lines; sync")
        return self.until(lambda: (known := self.said(name, "known")) and word in known[1] and known)

    def ten_rounds(self):
        """Each round resumes the last snapshot, changes memory and disk, and takes the next; its parents are deleted meanwhile."""
        self.sh("box", "mkfifo tell")
        self.start_program("box", "memo", MEMO)
        pid = self.tell("box", "word-0")[0]
        self.daemon.ramet("snapshot", "box", "--name", "round-0", "--wait")
        for number in range(1, ROUNDS + 1):
            name = f"box-{number}"
            self.daemon.ramet("create", name, "--from", f"round-{number - 1}")
            self.assertEqual(self.tell(name, f"word-{number}"), [pid, [f"word-{i}" for i in range(number + 1)]])
            self.daemon.ramet("snapshot", name, "--name", f"round-{number}")
            if number % 2:    # a parent goes while its child runs, or afterwards; a running sandbox's own snapshot, too
                self.daemon.ramet("snapshots", "rm", f"round-{number - 1}")
                self.daemon.ramet("rm", name)
            else:
                self.daemon.ramet("rm", name)
                self.daemon.ramet("snapshots", "rm", f"round-{number - 1}")
            if number == ROUNDS // 2:    # a collection finds nothing that is still needed
                self.daemon.ramet("store", "seal")
                self.daemon.ramet("store", "gc")
        self.daemon.ramet("create", "last", "--from", f"round-{ROUNDS}")
        words = [f"word-{i}" for i in range(ROUNDS + 1)]
        self.assertEqual(self.sh("last", "cat lines").split(), words)
        self.assertEqual(self.tell("last", "end"), [pid, [*words, "end"]])
        self.daemon.ramet("stop", "last", "--disk-only")
        self.daemon.ramet("start", "last")
        self.assertEqual(self.sh("last", "cat lines").split(), [*words, "end"])
        self.daemon.ramet("rm", "last")
        self.daemon.ramet("snapshots", "rm", f"round-{ROUNDS}")
        self.assertEqual(self.tell("box", "aside"), [pid, ["word-0", "aside"]], "nobody's changes came back to the source")

    def V10_memory_given_back(self):
        """There is no balloon: what a guest frees stays in its snapshots until it is written again, and is never anybody else's."""
        self.assertEqual(self.sh("box", "ls /sys/bus/virtio/drivers/virtio_balloon 2>/dev/null | grep virtio[0-9] || true"), "")
        self.start_program("box", "stamps", STAMPS)
        turn = lambda name: (self.said(name, "stamps") or [0])[0]
        self.until(lambda: turn("box") >= 2)
        for number in range(2):    # at whatever moment of filling and freeing
            self.daemon.ramet("snapshot", "box", "--name", f"full-{number}", "--best-effort")
            self.until(lambda seen=turn("box"): turn("box") > seen)
        self.daemon.ramet("fork", "box", "--name", "kid", "--best-effort")
        self.daemon.ramet("create", "old", "--from", "full-0")
        for name in ("box", "kid", "old"):
            self.until(lambda name=name, seen=turn(name): turn(name) > seen)
            self.assertEqual(self.said(name, "stamps")[1], [], name)
            fresh = "python3 -c 'import mmap; m = mmap.mmap(-1, 40 << 20); print(m.read() == bytes(40 << 20))'"
            self.assertEqual(self.sh(name, fresh), "True\n")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
