# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: rows, medians, the store driver, peers that archive."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
BLOCK = 4096


def say(text):
    print(text, file=sys.stderr, flush=True)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}: {result.stderr}")
    return result.stdout


def seconds_of(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def medians(measures, repeats):
    """{name: callable} measured in turn; {name: median}. `repeats` is a number, or {name: number}: some peers take long."""
    figures = {name: [] for name in measures}
    counts = repeats if isinstance(repeats, dict) else dict.fromkeys(measures, repeats)
    for turn in range(max(counts.values())):
        for name, measure in measures.items():
            if turn < counts[name]:
                figures[name].append(measure())
    return {name: statistics.median(values) for name, values in figures.items()}


class Rows:
    def __init__(self):
        self.rows = []

    def add(self, row, measure, ours, peer, ratio, goal, met, unit, peer_name):
        self.rows.append({"row": row, "measure": measure, "ours": ours, "peer": peer, "ratio": ratio, "goal": goal,
                          "met": met, "unit": unit, "peer_name": peer_name})
        say(f"  row {row}: {measure}: {ours} against {peer} {unit} ({peer_name}), ratio {ratio}, goal {goal}: "
            f"{'no goal' if met is None else 'met' if met else 'not met'}")

    def faster(self, row, measure, ours, peer, times, unit, peer_name):
        """Smaller is better: at least `times` times smaller than the peer; None: no goal."""
        ratio = round(peer / ours, 3)
        self.add(row, measure, round(ours, 3), round(peer, 3), ratio, f">= {times}" if times else "none",
                 ratio >= times if times else None, unit, peer_name)

    def more(self, row, measure, ours, peer, times, unit, peer_name):
        ratio = round(ours / peer, 3)
        self.add(row, measure, round(ours), round(peer), ratio, f">= {times}" if times else "none",
                 ratio >= times if times else None, unit, peer_name)

    def at_most(self, row, measure, ours, peer, times, unit, peer_name):
        """Smaller is better: at most `times` of the peer."""
        ratio = round(ours / peer, 4)
        self.add(row, measure, round(ours, 2), round(peer, 2), ratio, f"<= {times}" if times else "none",
                 ratio <= times if times else None, unit, peer_name)

    def below(self, row, measure, ours, limit, unit, what=""):
        """An absolute goal."""
        self.add(row, measure, round(ours, 3), limit, round(ours / limit, 3) if limit else None,
                 f"<= {limit}" if limit else "none", ours <= limit if limit else None, unit, what)

    def write(self, path):
        text = json.dumps(self.rows, indent=1)
        if path:
            with open(path, "w") as file:
                file.write(text + "\n")
        print(text)


# ---- Files ----

def file_bytes(path):
    """What a file, or everything below a folder, takes by its own length."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def data_ranges(file, size):
    at = 0
    while at < size:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        yield at, end - at
        at = end


def compact(source, target):
    """What `source` holds between its holes, without them; whole blocks."""
    with open(source, "rb") as file, open(target, "wb") as out:
        for at, length in data_ranges(file, os.path.getsize(source)):
            file.seek(at)
            out.write(file.read(length))
        out.truncate((out.tell() + BLOCK - 1) // BLOCK * BLOCK)


def copy_sparse(source, target):
    run("cp", "--sparse=auto", source, target)


def sync_file(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def forget(path):
    """Takes everything below a folder out of the page cache."""
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def images(build):
    """Kernel and disk of a guest, made where they are missing: {"RAMET_KERNEL_DIR": ..., "RAMET_IMAGE": ...}."""
    names = ("RAMET_KERNEL_DIR", "RAMET_IMAGE")
    if all(os.environ.get(name) for name in names):
        return {name: os.environ[name] for name in names}
    guest = os.path.join(build, "vmglue/ramet-guest")
    if os.geteuid() != 0 or not os.path.exists(guest):
        skip("RAMET_KERNEL_DIR and RAMET_IMAGE are not set, and making them needs root and a build of ramet-guest")
    made = subprocess.run([os.path.join(ROOT, "tools/image/ensure"), "--guest", guest], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        skip("tools/image/ensure could not make a kernel and a disk; its words are above")
    return dict(line.split("=", 1) for line in made.stdout.split() if line.startswith(names))


# ---- Ours ----

class Engine:
    """store_bench over a store in `directory`."""

    running = []

    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        self.start()

    def start(self):
        self.process = subprocess.Popen([os.environ["STORE_BENCH"], self.directory], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        Engine.running.append(self)
        self.opened = self.answer("opening")

    def answer(self, command):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"store_bench ended at '{command}' with {self.process.wait()}; its words are above")
        return json.loads(line)

    def do(self, *words):
        command = " ".join(str(word) for word in words)
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer(command)

    def pages(self, name, seed, first, stride, count, content="r", batch=256):
        return self.do("pages", name, seed, first, stride, count, content, batch)

    def pages_file(self, path, seed, first, stride, count, content="r"):
        return self.do("pages_file", path, seed, first, stride, count, content)

    def stat(self):
        return self.do("stat")

    def device_bytes(self):
        """What the process has sent to its disks, as the kernel counts it."""
        with open(f"/proc/{self.process.pid}/io") as file:
            return int(next(line for line in file if line.startswith("write_bytes")).split()[1])

    def ended(self):
        status = self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        Engine.running.remove(self)
        return status

    def kill(self):
        self.process.kill()
        self.ended()

    def stop(self):
        self.process.stdin.close()
        if status := self.ended():
            raise SystemExit(f"store_bench ended with {status}")

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory)


# ---- Programs that archive ----

class Archiver:
    """A peer: `make` prepares its repository, `add` puts one file into it, durably as it does it itself."""

    def __init__(self, name, directory):
        self.name, self.directory = name, os.path.join(directory, name)
        self.count = 0
        self.environment = dict(os.environ, BORG_BASE_DIR=self.directory + ".base", RESTIC_PASSWORD="bench",
                                BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes", BORG_RELOCATED_REPO_ACCESS_IS_OK="yes")

    def command(self, *words):
        run(*words, env=self.environment)

    def make(self):
        self.drop()
        os.makedirs(self.directory)
        if self.name == "borg":
            self.command("borg", "init", "-e", "none", self.directory)
        elif self.name == "restic":
            self.command("restic", "--no-cache", "-q", "init", "-r", self.directory)

    def add(self, path):
        self.count += 1
        if self.name == "borg":
            self.command("borg", "create", "--compression", "zstd,1", "--chunker-params", "fixed,4194304", "--sparse",
                         f"{self.directory}::{self.count}", path)
        elif self.name == "restic":
            self.command("restic", "--no-cache", "-q", "-r", self.directory, "backup", path)
        else:
            self.command("casync", "make", "--store", os.path.join(self.directory, "store.castr"),
                         os.path.join(self.directory, f"{self.count}.caibx"), path)

    def fresh_add_seconds(self, path):
        self.make()
        return seconds_of(lambda: self.add(path))

    def bytes(self):
        return file_bytes(self.directory)

    def drop(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.directory + ".base", ignore_errors=True)


def archivers(directory, names=("borg", "restic", "casync")):
    """Those that are installed; the others are named on standard error."""
    for name in names:
        if not shutil.which(name):
            say(f"  {name} is not installed (tools/deps bench); its rows are left out")
    return {name: Archiver(name, directory) for name in names if shutil.which(name)}


def main(description, measure):
    """measure(directory, quick, rows) of a part, with the usual flags."""
    import argparse
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument("--directory", help="where stores and files are made; default: a temporary folder")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    build = os.environ.get("RAMET_BUILD", os.path.join(ROOT, "build/release"))
    os.environ.setdefault("STORE_BENCH", os.path.join(build, "tests/bench/store_bench"))
    os.environ["RAMET_BUILD"] = build
    rows = Rows()
    with tempfile.TemporaryDirectory(prefix="ramet-bench-", dir=options.directory) as directory:
        try:
            measure(directory, options.quick, rows)
        finally:
            for engine in list(Engine.running):
                engine.kill()
    rows.write(options.json)
    return 0
