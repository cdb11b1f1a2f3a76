# SPDX-License-Identifier: Apache-2.0
"""V04, V05: what a machine that goes on elsewhere or later must not take for granted: the time, and that nobody else draws its numbers."""
import os
import threading
import time

import rig

LONG = os.environ.get("RAMET_TEST_LONG") == "1"
CHILDREN = 20 if os.environ.get("RAMET_TEST_LONG") else 6
BOUND_SECS = 0.05    # FIELD_CASES.md's, a minute after a resume
AWAY_SECS = 120 if LONG else 4
DAY = 86400

# Notes both clocks all the time, and when three kinds of waiting for SECONDS end.
TIMES = r"""
import ctypes, os, select, sys, threading, time
SECONDS = float(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
class Spec(ctypes.Structure):
    _fields_ = [("period_s", ctypes.c_long), ("period_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long)]
timer = libc.timerfd_create(1, 0)
begin = time.monotonic()
libc.timerfd_settime(timer, 0, ctypes.byref(Spec(0, 0, int(SECONDS), int(SECONDS % 1 * 1e9))), None)
def note(name, wait):
    wait()
    took = time.monotonic() - begin
    with open("new." + name, "w") as file:
        file.write(str(took))
    os.rename("new." + name, "ended." + name)
for name, wait in (("sleep", lambda: time.sleep(SECONDS)), ("timer", lambda: os.read(timer, 8)), ("select", lambda: select.select([], [], [], SECONDS))):
    threading.Thread(target=note, args=(name, wait)).start()
with open("times", "w", buffering=1) as log:
    while True:
        log.write("%.6f %.6f\n" % (time.monotonic(), time.time()))
        time.sleep(0.02)
"""

# An old process: what it draws from the kernel is fresh by itself; its own generator is, since it watches the file for that.
OLD = r"""
import os, random, time
generation = lambda: open("/run/ramet/generation").read().strip()
random.seed(1)
born = seen = generation()
while True:
    now = generation()
    if now != seen:
        random.seed()
        seen = now
    with open("draw.new", "w") as file:
        file.write("%s %s %s" % (seen, os.urandom(16).hex(), random.getrandbits(64)))
    os.rename("draw.new", "draw")
    time.sleep(0.05)
"""

# The first command in a child: everything that new processes draw from.
DRAWS = r"""cat /proc/sys/kernel/random/uuid
python3 -c 'import os, random, secrets, uuid; print(os.getrandom(32).hex()); print(random.getrandbits(128)); print(secrets.token_hex(16)); print(uuid.uuid1()); print(uuid.uuid4())'
head -c 16 /dev/random | sha256sum
mktemp -u XXXXXXXXXXXXXXXX
cat /etc/machine-id
cat /sys/class/net/eth0/address
if command -v openssl > /dev/null; then openssl rand -hex 16; fi
if command -v uuidgen > /dev/null; then uuidgen -t; fi"""


class Identity(rig.MachineCase):
    def setUp(self):
        super().setUp()
        begun = time.monotonic()
        self.daemon.ramet("create", "box", "--size", "small")
        self.boot_secs = time.monotonic() - begun

    # ---- V04 ----

    def clock_error(self, name, shift=0):
        """Between which bounds the guest's clock is off; many questions make them narrow."""
        low, high = -1e9, 1e9
        for _ in range(6):
            before = time.time() + shift
            guest = int(self.sh(name, "date +%s%N")) / 1e9
            after = time.time() + shift
            low, high = max(low, guest - after), min(high, guest - before)
        return low, high

    def check_clock(self, name, shift=0):
        """Within the bound a minute after; it may need a moment on a busy host."""
        limit = time.monotonic() + 60
        while True:
            low, high = self.clock_error(name, shift)
            if low <= BOUND_SECS and high >= -BOUND_SECS:
                return
            self.assertLess(time.monotonic(), limit, f"the clock of {name} is off by {low:.3f} to {high:.3f} s")

    def restart(self, shift):
        """A daemon whose wall clock is off: nothing else on this host is, so that is what guests are told."""
        self.daemon.stop()
        if shift:
            os.environ.update(LD_PRELOAD=os.environ["RAMET_SHIFT_CLOCK"], RAMET_TEST_CLOCK_SHIFT_SECS=str(shift))
        try:
            self.daemon.start()
        finally:
            os.environ.pop("LD_PRELOAD", None)
            os.environ.pop("RAMET_TEST_CLOCK_SHIFT_SECS", None)

    def check_times(self, name, taken, resumed, away):
        """No line of the log is of a time between the snapshot and the resume; monotonic time stood still meanwhile."""
        lines = [tuple(map(float, line.split())) for line in self.sh(name, "cat times").splitlines()[:-1]]
        steps = [b[0] - a[0] for a, b in zip(lines, lines[1:])]
        self.assertGreaterEqual(min(steps), 0, "monotonic time never goes back")
        if abs(away) > 60:
            self.assertLess(max(steps), abs(away) / 2, "and does not jump by the time away")
        after = [(m, r) for m, r in lines if (r > taken + 2 if away > 0 else r < taken - 60)]
        self.assertGreater(len(after), 0)
        self.assertGreater(after[0][1], resumed - 2, "the first line after the resume knows the time")
        return after[0][0]

    def check_waits(self, name, wait):
        """None ended since time went by elsewhere; returns the files of those that ended in their own time."""
        ended = self.sh(name, "ls ended.* 2>/dev/null || true").split()
        for file in ended:
            self.assertGreaterEqual(float(self.sh(name, f"cat {file}")), wait - 0.001, f"{file}: before its time")
        return ended

    def test_V04_clocks(self):
        wait = max(12.0, 6 * self.boot_secs)    # longer than a snapshot, a resume and a look take here
        self.start_program("box", "times", TIMES, str(wait))
        self.until(lambda: self.sh("box", "wc -l < times 2>/dev/null || echo 0").strip() not in ("", "0", "1", "2"))
        self.daemon.ramet("snapshot", "box", "--name", "then", "--wait")
        taken = time.time()
        self.check_clock("box")    # the source lost the pause, and nothing more
        self.sh("box", "sudo date -s @1000000000 > /dev/null")    # whatever sets it wrong: it is put right
        self.check_clock("box")
        self.daemon.ramet("rm", "box")
        time.sleep(AWAY_SECS)    # being away is what is tried
        for number, (shift, away) in enumerate(((0, AWAY_SECS), (DAY, DAY), (-3600, -3600))):
            self.restart(shift)
            resumed = time.time() + shift
            name = f"late-{number}"
            self.daemon.ramet("create", name, "--from", "then")
            self.check_waits(name, wait)
            self.check_clock(name, shift)
            self.check_times(name, taken, resumed, away)
            if number == 1 or LONG:
                self.until(lambda: self.check_waits(name, wait) == ["ended.select", "ended.sleep", "ended.timer"])
            if LONG:
                time.sleep(60)
                low, high = self.clock_error(name, shift)
                self.assertTrue(low <= BOUND_SECS and high >= -BOUND_SECS, (low, high))
            self.daemon.ramet("rm", name)
        self.restart(0)

    # ---- V05 ----

    def draws(self, names):
        """What each draws first; at most four ask at a time."""
        left, found = list(names), {}

        def ask():
            while left:
                try:
                    name = left.pop()
                except IndexError:
                    return
                found[name] = self.sh(name, DRAWS).split("\n")[:-1]
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(found), sorted(names))
        return found

    def check_unlike(self, found):
        lines = list(found.values())
        for part in range(len(lines[0])):
            drawn = [line[part] for line in lines]
            self.assertEqual(len(set(drawn)), len(drawn), drawn)

    def old_draw(self, name):
        generation = self.sh(name, "cat /run/ramet/generation").strip()
        return self.until(lambda: (self.sh(name, "cat draw") + " ").startswith(generation) and self.sh(name, "cat draw")).split()

    def test_V05_randomness(self):
        self.start_program("box", "old", OLD)
        self.until(lambda: self.sh("box", "cat draw 2>/dev/null || true"))
        self.daemon.ramet("snapshot", "box", "--name", "same")
        names = [f"kid-{i}" for i in range(CHILDREN)]
        self.daemon.ramet("fork", "box", *[word for name in names for word in ("--name", name)])
        found = self.draws(["box", *names])
        old = {name: self.old_draw(name) for name in names}
        for part in range(3):
            self.assertEqual(len({draw[part] for draw in old.values()}), CHILDREN, old)
        self.daemon.ramet("rm", *names)
        # The same snapshot again, one after another and under one name.
        for turn in range(2):
            self.daemon.ramet("create", "again", "--from", "same")
            found[f"again {turn}"] = self.draws(["again"])["again"]
            old[f"again {turn}"] = self.old_draw("again")
            self.daemon.ramet("rm", "again")
        self.check_unlike(found)
        for part in range(3):
            self.assertEqual(len({draw[part] for draw in old.values()}), len(old), old)
        self.reseed_fails()

    def reseed_fails(self):
        """What the agent writes its seed to is no random device: nobody gets that machine."""
        self.sh("box", "sudo mount --bind /etc/hostname /dev/urandom")
        before = sorted(self.daemon.vmms().values())
        self.daemon.ramet("fork", "box", "--name", "alike", status=1)
        self.assertIn("random", self.daemon.stderr)
        self.assertIn("not handed out", self.daemon.stderr)
        self.assertEqual([box["name"] for box in self.daemon.json("ls")], ["box"])
        self.assertEqual(sorted(self.daemon.vmms().values()), before)
        self.daemon.ramet("snapshot", "box", "--name", "bad")
        self.daemon.ramet("create", "alike", "--from", "bad", status=1)
        self.assertIn("not handed out", self.daemon.stderr)
        self.sh("box", "sudo umount /dev/urandom")
        self.daemon.ramet("fork", "box", "--name", "unlike")
        self.check_unlike(self.draws(["box", "unlike"]))


if __name__ == "__main__":
    rig.need_machines()
    if not os.environ.get("RAMET_SHIFT_CLOCK"):
        rig.skip("RAMET_SHIFT_CLOCK does not say where the library is that shifts a daemon's clock")
    rig.main()
