# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/image. usage: test_image.py refusals | content | code

refusals: bad input ends with a sentence and leaves nothing behind. content: what RAMET_KERNEL_DIR and RAMET_IMAGE name
(tools/image/ensure makes them) is what a guest needs. code: what RAMET_CODE_IMAGE names is (tools/image/ensure --all).
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.path.join(ROOT, "tools/image/build")
KERNEL = os.path.join(ROOT, "tools/image/kernel")
NOBODY = 65534


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=300, **options)


def unpack(archive, folder):
    with open(archive, "rb") as file:
        subprocess.run(["cpio", "--quiet", "-i", "--no-absolute-filenames"], check=True, cwd=folder, stdin=file)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o777)
        self.guest = "/bin/true"

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def refused(self, status, words, *command):
        done = run(*command)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(os.listdir(self.folder.name), [], "something was left behind")

    def test_usage(self):
        self.refused(2, "usage:", BUILD)
        self.refused(2, "usage:", BUILD, "agent-base")
        self.refused(2, "usage:", KERNEL)
        self.refused(2, "unknown option --fast", BUILD, "--fast", "agent-base", self.path("x.raw"))
        self.refused(2, "--debs needs a value", BUILD, "agent-base", self.path("x.raw"), "--debs")
        self.refused(2, "too many arguments", KERNEL, self.path("a"), self.path("b"))

    def test_unknown_template(self):
        self.refused(2, "there is no template 'agent-bse'; there are: agent-base", BUILD, "agent-bse", self.path("x.raw"))
        self.refused(2, "is not a template's name", BUILD, "../build", self.path("x.raw"))

    def test_no_folder(self):
        self.refused(1, "does not exist: make it first", BUILD, "agent-base", self.path("gone/x.raw"))
        self.refused(1, "does not exist: make it first", KERNEL, self.path("gone/kernel"))

    def test_output_is_a_folder(self):
        self.refused(1, "is a folder; give the name of the file", BUILD, "agent-base", self.folder.name)

    def test_output_of_kernel_is_a_file(self):
        with tempfile.NamedTemporaryFile() as file:
            self.refused(1, "is a file; give the name of a folder", KERNEL, file.name, "--guest", self.guest)

    def test_bad_guest(self):
        self.refused(1, "is not an executable file", KERNEL, self.path("k"), "--guest", self.path("gone"))
        self.refused(1, "is not an executable file", KERNEL, self.path("k"), "--guest", "/etc/passwd")

    def test_not_root(self):
        command = [BUILD, "agent-base", self.path("x.raw")]
        if os.geteuid() == 0:
            if run("setpriv", f"--reuid={NOBODY}", "--clear-groups", "test", "-x", BUILD).returncode != 0:
                self.skipTest("skipped: another user cannot reach this tree")
            command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"] + command
        self.refused(1, "needs root", *command)

    def test_no_space(self):
        if os.geteuid() != 0 or run("unshare", "-m", "true").returncode != 0:
            self.skipTest("skipped: mounting a small file system needs root")
        for tool, *words in ((BUILD, "agent-base", self.path("x.raw")), (KERNEL, "--guest", self.guest, self.path("k"))):
            script = f'mount -t tmpfs -o size=20m none {self.folder.name} && exec "$@"'
            self.refused(1, "MiB free; ", "unshare", "-m", "sh", "-c", script, "sh", tool, *words)


class Disk:
    limit_mib = 600

    def inside(self, command):
        done = run("/sbin/debugfs", "-R", command, self.image)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_size(self):
        stat = os.stat(self.image)
        self.assertEqual(stat.st_size, 4 << 30)
        self.assertLess(stat.st_blocks * 512, self.limit_mib << 20, "the image is not sparse")

    def test_file_system(self):
        done = run("/sbin/e2fsck", "-f", "-n", self.image)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_user(self):
        self.assertRegex(self.inside("cat /etc/passwd"), r"(?m)^user:x:1000:1000:[^:]*:/home/user:/bin/bash$")
        self.assertRegex(self.inside("cat /etc/sudoers.d/user"), r"^user ALL=.*NOPASSWD: ALL$")
        self.assertRegex(self.inside("stat /home/user"), r"User:\s+1000\s+Group:\s+1000")

    def test_programs(self):
        for name in "bash ls python3 pip git curl sudo ip ps".split():
            found = any("Inode:" in self.inside(f"stat {folder}/{name}") for folder in ("/bin", "/usr/bin"))
            self.assertTrue(found, f"{name} is not in the image")
        self.assertIn("Inode:", self.inside("stat /etc/ssl/certs/ca-certificates.crt"))

    def test_python_installs(self):
        """`pip install` as user or root, and `python3 -m venv`, without a flag; an upgrade of Python does not end that."""
        self.assertNotIn("Inode:", self.inside("stat /usr/lib/python3.11/EXTERNALLY-MANAGED"))
        self.assertIn("path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED\n", self.inside("cat /etc/dpkg/dpkg.cfg.d/99mmdebstrap"))
        for folder in ("bin", "lib/python3.11/dist-packages", "share"):
            self.assertRegex(self.inside(f"stat /usr/local/{folder}"), r"User:\s+1000\s+Group:\s+1000")
        for folder in ("bin", "lib/python3.11/dist-packages"):    # an uninstallation leaves it
            self.assertIn("Inode:", self.inside(f"stat /usr/local/{folder}/.keep"))
        self.assertIn("Inode:", self.inside("stat /usr/lib/python3.11/ensurepip"))
        self.assertRegex(self.inside("ls /usr/share/python-wheels"), r"pip-\S+\.whl")

    def test_nothing_of_this_machine(self):
        self.assertEqual(self.inside("cat /etc/machine-id"), "")
        self.assertEqual(self.inside("cat /etc/resolv.conf"), "")
        self.assertNotIn(".deb", self.inside("ls /var/cache/apt/archives"))
        self.assertEqual(self.inside("cat /etc/hostname").strip(), "sandbox")


class Code(Disk, unittest.TestCase):
    limit_mib = 1300

    @classmethod
    def setUpClass(cls):
        cls.image = os.environ["RAMET_CODE_IMAGE"]

    def test_python_packages(self):
        for name in "IPython matplotlib pandas plotly munkres.py jinja2 pip".split():
            self.assertIn("Inode:", self.inside(f"stat /usr/lib/python3/dist-packages/{name}"), f"{name} is not in the image")
        self.assertIn(".cpython-", self.inside("ls /usr/lib/python3/dist-packages/pandas/__pycache__"), "nothing is compiled")

    def test_no_compiler(self):
        for name in "gcc g++ cc c++ ld as cpp x86_64-linux-gnu-ld x86_64-linux-gnu-gcc".split():
            self.assertNotIn("Inode:", self.inside(f"stat /usr/bin/{name}"), f"{name} is in the image")

    def test_font_cache(self):
        for home, owner in (("/root", 0), ("/home/user", 1000)):
            self.assertRegex(self.inside(f"ls {home}/.cache/matplotlib"), r"fontlist-\S+\.json")
            self.assertRegex(self.inside(f"stat {home}/.cache/matplotlib"), rf"User:\s+{owner}\s")


class Content(Disk, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kernel, cls.image = os.environ["RAMET_KERNEL_DIR"], os.environ["RAMET_IMAGE"]

    def kernel_file(self, name):
        return os.path.join(self.kernel, name)

    def test_first_process(self):
        with tempfile.TemporaryDirectory() as folder:
            unpack(self.kernel_file("initramfs-q35.cpio"), folder)
            with open(f"{folder}/init", "rb") as file:
                self.assertEqual(file.read(4), b"\x7fELF")
        # An agent on the disk would be one that a new kernel folder does not renew.
        self.assertNotIn("Inode:", self.inside("stat /sbin/ramet-guest"))

    def test_vmlinux(self):
        with open(self.kernel_file("vmlinux"), "rb") as file:
            self.assertEqual(file.read(4), b"\x7fELF")
        notes = run("readelf", "--notes", self.kernel_file("vmlinux")).stdout
        # XEN_ELFNOTE_PHYS32_ENTRY: the PVH entry that QEMU's -kernel needs.
        self.assertRegex(notes, r"Xen\s+0x[0-9a-f]+\s+Unknown note type: \(0x00000012\)")

    def test_initramfs(self):
        for machine, bus in (("q35", "virtio_pci"), ("microvm", "virtio_mmio")):
            with tempfile.TemporaryDirectory() as folder:
                unpack(self.kernel_file(f"initramfs-{machine}.cpio"), folder)
                with open(f"{folder}/modules.list", encoding="utf-8") as file:
                    paths = file.read().split()
                names = [re.sub(r".*/|\.ko$", "", path).replace("-", "_") for path in paths]
                self.assertEqual(names[-1], bus, "the bus is not last")
                for needed in ("virtio_blk", "virtio_console", "virtio_net", "virtio_rng"):
                    self.assertIn(needed, names)
                seen = []
                for path, name in zip(paths, names):
                    depends = run("/sbin/modinfo", "-F", "depends", folder + path).stdout.strip()
                    for dependency in filter(None, depends.split(",")):
                        self.assertIn(dependency.replace("-", "_"), seen, f"{name} comes before {dependency}")
                    seen.append(name)

    def test_kernel_json(self):
        with open(self.kernel_file("kernel.json"), encoding="utf-8") as file:
            described = json.load(file)
        self.assertRegex(described["release"], r"^\d+\.\d+.*amd64$")
        self.assertEqual(sorted(described["files"]), ["initramfs-microvm.cpio", "initramfs-q35.cpio", "vmlinux"])
        for name, facts in described["files"].items():
            with open(self.kernel_file(name), "rb") as file:
                content = file.read()
            self.assertEqual((len(content), hashlib.sha256(content).hexdigest()), (facts["size_bytes"], facts["sha256"]))


if __name__ == "__main__":
    which = sys.argv.pop(1)
    if which == "content" and not os.environ.get("RAMET_IMAGE"):
        print("skipped: RAMET_IMAGE and RAMET_KERNEL_DIR do not say what to look at (tools/image/ensure prints them)")
        sys.exit(77)
    if which == "code" and not os.environ.get("RAMET_CODE_IMAGE"):
        print("skipped: RAMET_CODE_IMAGE does not say what to look at (tools/image/ensure --all prints it)")
        sys.exit(77)
    unittest.main(defaultTest=which.capitalize(), verbosity=2)
