# SPDX-License-Identifier: Apache-2.0
"""Files that a guest writes all the time, each with its sum in front, so that whoever looks later can tell a torn one."""
import re

# A module there for the test's own program (`import file_load`), and a program that says how many there are, and which are bad.
MODULE = r"""
import glob, hashlib, os, random

def put(name, content, durable=False):
    with open(name + ".new", "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.rename(name + ".new", name)

def save(turn, sizes):
    os.makedirs("load", exist_ok=True)
    data = random.randbytes(random.choice(sizes))
    put(f"load/{turn % 12}", hashlib.sha256(data).digest() + data, durable=True)

if __name__ == "__main__":
    names = glob.glob("load/*[0-9]")
    bad = [n for n in names for d in [open(n, "rb").read()] if hashlib.sha256(d[32:]).digest() != d[:32]]
    print(len(names), bad)
"""


def install(case, box):
    case.daemon.ramet("cp", case.write("file_load.py", MODULE.encode()), box + ":file_load.py")


def check(case, box, program):
    """Ends the program that wrote them, and looks at what the disk has: every file is what was written, and nothing went wrong."""
    case.sh(box, f"pkill -f '[{program[0]}]{program[1:]}'; sync; echo 3 | sudo tee /proc/sys/vm/drop_caches > /dev/null")
    count, bad = re.fullmatch(r"(\d+) (\[.*\])\n", case.sh(box, "python3 file_load.py")).groups()
    case.assertEqual(bad, "[]", box)
    case.assertGreater(int(count), 2)
    case.assertEqual(case.sh(box, "sudo dmesg | grep -ciE 'i/o error|corrupt|ext4-fs error|hung task' || true").strip(), "0")
