# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/image/unpack on archives made by hand: tar, OCI, `docker save`. Needs root, no network."""
import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
UNPACK = os.path.join(ROOT, "tools/image/unpack")
PROGRAM = os.path.join(ROOT, "tools/image/unpack.py")


def entry(name, data=None, **fields):
    """A tar entry; without data a folder, unless `type` says otherwise."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    info.mode = 0o755 if data is None else 0o644
    info.size = len(data or b"")
    info.mtime = 1_600_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data or b""


def link(name, target, kind=tarfile.SYMTYPE):
    return entry(name, type=kind, linkname=target, size=0, mode=0o777)


def tar(*entries):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


ROOT_FILES = [entry("./etc"), entry("./bin"), entry("./etc/hostname", b"made by hand\n")]


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Oci:
    """An image layout; parts may be spoiled before it is written."""

    def __init__(self, *layers, config=None, pack=lambda data: data, platform=("linux", "amd64")):
        self.blobs, self.layers = {}, [pack(layer) for layer in layers]
        self.config = {"os": platform[0], "architecture": platform[1], "config": config or {},
                       "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]}}
        self.notes = {}

    def blob(self, data):
        self.blobs["blobs/" + sha256(data).replace(":", "/")] = data
        return {"digest": sha256(data), "size": len(data), "mediaType": "application/octet-stream"}

    def manifest(self):
        return self.blob(json.dumps({"schemaVersion": 2, "config": self.blob(json.dumps(self.config).encode()),
                                     "layers": [self.blob(layer) for layer in self.layers]}).encode())

    def files(self):
        item = dict(self.manifest(), annotations=self.notes)
        return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps({"manifests": [item]}).encode(), **self.blobs}


def docker_save(image, name="made:latest"):
    config = json.dumps(image.config).encode()
    files = {hashlib.sha256(config).hexdigest() + ".json": config}
    names = [f"{number}/layer.tar" for number in range(len(image.layers))]
    files.update(zip(names, image.layers))
    files["manifest.json"] = json.dumps([{"Config": next(iter(files)), "RepoTags": [name], "Layers": names}]).encode()
    return files


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tree, self.config = self.path("tree"), self.path("config")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, data, name="archive"):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def run_program(self, kind, data, *more, limit=64):
        return subprocess.run([sys.executable, PROGRAM, kind, self.write(data), self.tree, self.config, str(limit), *more],
                              capture_output=True, text=True, timeout=120)

    def unpack(self, kind, data, *more):
        done = self.run_program(kind, data, *more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def refused(self, words, kind, data, *more, **options):
        done = self.run_program(kind, data, *more, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def archive(self, files):
        return tar(*[entry(name, data) for name, data in files.items()])

    def inside(self, name):
        with open(os.path.join(self.tree, name), "rb") as file:
            return file.read()

    def listing(self, name=""):
        return sorted(os.listdir(os.path.join(self.tree, name)))


class Tar(Case):
    def test_what_a_file_is_comes_along(self):
        capability = b"\x01\x00\x00\x02\x00\x04\x00\x00" + bytes(12)
        marked = entry("bin/ping", b"x", mode=0o4755, uid=12, gid=34)
        marked[0].pax_headers = {"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape")}
        self.unpack("tar", tar(*ROOT_FILES, marked, link("bin/sh", "/bin/ping"), link("bin/twin", "bin/ping", tarfile.LNKTYPE),
                               entry("pipe", type=tarfile.FIFOTYPE), entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
                               entry("holes", bytes(3 << 20) + b"end")))
        there = os.lstat(self.path("tree/bin/ping"))
        self.assertEqual((there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode), int(there.st_mtime), there.st_nlink),
                         (12, 34, 0o4755, 1_600_000_000, 2))
        self.assertEqual(os.getxattr(self.path("tree/bin/ping"), "security.capability"), capability)
        self.assertEqual(os.readlink(self.path("tree/bin/sh")), "/bin/ping")
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("tree/pipe")).st_mode))
        self.assertEqual(os.lstat(self.path("tree/null")).st_rdev, os.makedev(1, 3))
        self.assertEqual(self.inside("holes"), bytes(3 << 20) + b"end")
        self.assertLess(os.stat(self.path("tree/holes")).st_blocks * 512, 1 << 20)
        self.assertEqual(int(os.stat(self.path("tree/bin")).st_mtime), 1_600_000_000)

    def test_every_compression(self):
        data = tar(*ROOT_FILES)
        for name in ("gzip", "bzip2", "xz", "zstd", "lz4"):
            with self.subTest(name):
                packed = subprocess.run([name, "-c"], input=data, capture_output=True, check=True).stdout
                self.unpack("tar", packed)
                self.assertEqual(self.inside("etc/hostname"), b"made by hand\n")
                self.refused("damaged", "tar", packed[:len(packed) // 2])
                subprocess.run(["rm", "-r", self.tree], check=True)

    def test_nothing_leaves_the_tree(self):
        """X: names and links of a hostile archive reach nothing outside."""
        outside = self.path("outside")
        os.mkdir(outside)
        self.refused("leaves its root", "tar", tar(entry("../escaped", b"x")))
        self.refused("leaves its root", "tar", tar(entry("a/../../escaped", b"x")))
        self.unpack("tar", tar(link("way", outside), entry("way/file", b"x"), link("up", "../../../../../.."),
                               entry("up" + self.path("by-link"), b"x"), entry("/absolute", b"x")))
        self.assertEqual(os.listdir(outside), [])
        self.assertFalse(os.path.exists(self.path("by-link")))
        self.assertFalse(os.path.exists(self.path("escaped")))
        self.assertEqual(self.inside("absolute"), b"x")
        self.refused("cannot be unpacked", "tar", tar(link("stolen", "/etc/passwd-of-the-host", tarfile.LNKTYPE)))

    def test_bounds_and_rubbish(self):
        self.refused("more than 1 MiB", "tar", gzip.compress(tar(entry("big", bytes(5 << 20)))), limit=1)
        self.refused("damaged or no tar archive", "tar", b"this is no archive" * 100)
        self.refused("impossible name", "tar", tar(entry("x" * 300, b"")))

    def test_a_later_entry_wins(self):
        self.unpack("tar", tar(entry("a"), entry("a/b", b"1"), entry("a", b"2"), link("c", "nowhere"), entry("c", b"3")))
        self.assertEqual((self.inside("a"), self.inside("c")), (b"2", b"3"))


class Layers(Case):
    BELOW = tar(*ROOT_FILES, entry("keep", b"1"), entry("gone", b"2"), entry("folder"), entry("folder/old", b"3"),
                entry("whole"), entry("whole/deep"), entry("whole/deep/file", b"4"))
    ABOVE = tar(entry(".wh.gone", b""), entry("folder"), entry("folder/new", b"5"), entry("folder/.wh..wh..opq", b""),
                entry(".wh.whole", b""), entry(".wh.never-there", b""), entry("keep", b"6"))

    def check(self):
        self.assertEqual(self.inside("keep"), b"6")
        self.assertEqual(self.listing("folder"), ["new"])
        self.assertEqual(self.listing(), ["bin", "etc", "folder", "keep"])

    def test_whiteouts(self):
        for kind, data in (("layout", self.archive(Oci(self.BELOW, self.ABOVE).files())),
                           ("gzip layers", self.archive(Oci(self.BELOW, self.ABOVE, pack=gzip.compress).files())),
                           ("zstd layers", self.archive(Oci(self.BELOW, self.ABOVE, pack=self.zstd).files())),
                           ("packed whole", gzip.compress(self.archive(Oci(self.BELOW, self.ABOVE).files()))),
                           ("docker save", self.archive(docker_save(Oci(self.BELOW, self.ABOVE))))):
            with self.subTest(kind):
                self.unpack("oci", data)
                self.check()
                subprocess.run(["rm", "-r", self.tree], check=True)

    @staticmethod
    def zstd(data):
        return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout

    def test_whiteouts_are_no_way_out(self):
        outside = self.path("outside")
        os.mkdir(outside)
        self.write(b"x", "outside/file")
        self.unpack("oci", self.archive(Oci(tar(link("way", outside), link("root", "/")),
                                            tar(entry("way/.wh.file", b""), entry("root/.wh..wh..opq", b""))).files()))
        self.assertEqual(os.listdir(outside), ["file"])
        for name in (".wh.", ".wh..", ".wh..."):
            self.refused("whiteout without a name", "oci", self.archive(Oci(tar(entry(name, b""))).files()))

    def test_configuration(self):
        config = {"Env": ["PATH=/bin", "EMPTY=", "A=b=c"], "WorkingDir": "/srv", "User": "web:www",
                  "Entrypoint": ["/bin/run", "a b"], "Cmd": ["it's"]}
        self.unpack("oci", self.archive(Oci(self.BELOW, config=config).files()))
        with open(self.config, encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"env": {"PATH": "/bin", "EMPTY": "", "A": "b=c"}, "cwd": "/srv", "user": "web",
                                               "command": "/bin/run 'a b' 'it'\"'\"'s'"})

    def test_digests(self):
        for part in ("layer", "config", "manifest"):
            with self.subTest(part):
                files = Oci(self.BELOW).files()
                wanted = {"layer": b"ustar", "config": b"diff_ids", "manifest": b'"layers": ['}[part]
                [name] = [name for name, data in files.items() if name.startswith("blobs/") and wanted in data]
                files[name] = files[name].replace(b"0", b"1", 1)
                self.refused("is not what its digest says", "oci", self.archive(files))
        image = Oci(self.BELOW)
        image.config["rootfs"]["diff_ids"] = [sha256(b"something else")]
        self.refused("its digest differs", "oci", self.archive(image.files()))
        self.refused("its digest differs", "oci", self.archive(docker_save(image)))
        image.config["rootfs"]["diff_ids"] = []
        self.refused("says that it has 0 layers", "oci", self.archive(image.files()))

    def test_what_is_missing_or_foreign(self):
        files = Oci(self.BELOW).files()
        del files[[name for name in files if name.startswith("blobs/")][0]]
        self.refused("lacks", "oci", self.archive(files))
        self.refused("linux/arm64", "oci", self.archive(Oci(self.BELOW, platform=("linux", "arm64")).files()))
        self.refused("neither an OCI archive", "oci", tar(*ROOT_FILES))
        self.refused("is no JSON", "oci", self.archive({"oci-layout": b"{}", "index.json": b"{"}))
        self.refused("has no image", "oci", self.archive({"oci-layout": b"{}", "index.json": b"{}"}))
        self.refused("not described as one", "oci", self.archive({"oci-layout": b"{}", "index.json": b'{"manifests": [{}]}'}))
        hostile = {"oci-layout": b"{}", "index.json": json.dumps({"manifests": [{"digest": "sha256:../../etc/passwd"}]}).encode()}
        self.refused("is no digest", "oci", self.archive(hostile))

    def test_choosing_an_image(self):
        one, two = Oci(self.BELOW), Oci(self.ABOVE)
        items = [dict(image.manifest(), annotations={"org.opencontainers.image.ref.name": name})
                 for image, name in ((one, "first"), (two, "example/second:1"))]
        data = self.archive({"oci-layout": b"{}", "index.json": json.dumps({"manifests": items}).encode(), **one.blobs, **two.blobs})
        self.refused("has 2 images; choose one with --image: example/second:1, first", "oci", data)
        self.refused("has no image 'third'", "oci", data, "third")
        self.unpack("oci", data, "first")
        self.assertEqual(self.inside("gone"), b"2")


class Whole(Case):
    """The program that makes a disk of it."""

    def test_a_disk(self):
        done = subprocess.run([UNPACK, "tar", self.write(tar(*ROOT_FILES)), self.path("disk"), "--size-mib", "64"],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.stat(self.path("disk")).st_size, 64 << 20)
        check = subprocess.run(["/sbin/e2fsck", "-fn", self.path("disk")], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)
        shown = subprocess.run(["/sbin/debugfs", "-R", "cat /etc/hostname", self.path("disk")], capture_output=True, text=True)
        self.assertEqual(shown.stdout, "made by hand\n")

    def test_a_link_for_etc_leads_nowhere(self):
        """X: what is added to the tree is not written through its links."""
        outside = self.path("outside")
        os.mkdir(outside)
        for target in (outside, "../outside"):
            done = subprocess.run([UNPACK, "tar", self.write(tar(entry("./bin"), link("./etc", target))), self.path("disk")],
                                  capture_output=True, text=True, timeout=120)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("a link in the place of /etc", done.stderr)
            self.assertEqual(os.listdir(outside), [])

    def test_refusals_leave_nothing(self):
        for words, *command in (("has no /etc and no /bin", "tar", self.write(tar(entry("readme", b"x")), "a")),
                                ("does not fit a disk of 33 MiB", "tar",
                                 self.write(tar(*ROOT_FILES, entry("big", os.urandom(20 << 20))), "b"), "--size-mib", "33"),
                                ("is not a file", "tar", self.path("missing")),
                                ("neither tar nor oci", "zip", self.path("a"))):
            with self.subTest(words):
                done = subprocess.run([UNPACK, *command[:2], self.path("disk"), *command[2:]], capture_output=True, text=True, timeout=120)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)
                self.assertEqual([name for name in os.listdir(self.folder.name) if name not in ("a", "b")], [])


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: unpacking gives files their owners, which needs root")
        sys.exit(77)
    unittest.main(verbosity=2)
