# SPDX-License-Identifier: Apache-2.0
"""What a VMM that was taken over can reach, by a program in its place that tries; and sessions that outlive upgrades of what
they were started from."""
import glob
import os
import shutil
import socket
import subprocess

import rig

PROBE = os.environ.get("RAMET_CONFINE_PROBE", "")
UID_BASE, UID_COUNT = 2000000000, 1 << 26

# As another user: opens a memory image by descriptor of its folder (paths above it are closed to him), lists the folder,
# and speaks with a socket that is not his. Prints what he got.
STRANGER = r"""
import ctypes, os, socket, sys
images, sockets, image, uid = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
got = []
for name, attempt in (("image", lambda: os.open(image, os.O_RDONLY, dir_fd=images)),
                      ("list", lambda: os.listdir(f"/proc/self/fd/{images}"))):
    try:
        attempt()
        got.append(name)
    except PermissionError:
        pass
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(f"/proc/self/fd/{sockets}/nbd.sock")
    if s.recv(8):
        got.append("disk")
except (PermissionError, ConnectionResetError):
    pass
print(" ".join(got))
"""


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def mounts_of(pid):
    """Mount point in the VMM's own root -> (path in its file system, options)."""
    with open(f"/proc/{pid}/mountinfo") as file:
        return {words[4]: (words[3], words[5].split(",")) for words in (line.split() for line in file)}


def runtime_of(pid):
    return os.path.basename(mounts_of(pid)["/runtime"][0])


def groups():
    return {path for path in glob.glob("/sys/fs/cgroup/**/ramet-*", recursive=True)}


class Confine(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        self.tag = "ramet-" + self.daemon.call("GET", "/v1/store").json["id"].replace("-", "")
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")

    def pid_of(self, name):
        box = self.daemon.json("show", name)["id"]
        return next(pid for pid, owner in self.daemon.vmms().items() if owner == box)

    def my_groups(self):
        return {path for path in groups() if self.tag in path}

    # ---- what it can reach ----

    def test_a_vmm_reaches_nothing_but_its_own(self):
        self.daemon.ramet("create", "demo")
        self.daemon.ramet("snapshot", "demo", "--name", "warm", "--wait")
        self.daemon.ramet("create", "late", "--from", "warm")
        cold, late = self.pid_of("demo"), self.pid_of("late")
        self.assertNotEqual(status_of(cold)["Uid"], status_of(late)["Uid"])
        for pid in (cold, late):
            self.check_process(pid)
        self.assertEqual(sorted(os.listdir(f"/proc/{cold}/root")), ["dev", "io", "lib", "lib64", "runtime"])
        self.assertEqual(sorted(os.listdir(f"/proc/{late}/root")), ["dev", "io", "lib", "lib64", "memory", "runtime"])
        self.strangers(late)
        self.attempts(late)
        for name in ("demo", "late"):    # and all this did it no harm
            self.assertEqual(self.daemon.ramet("exec", name, "echo fine"), "fine\n")
        self.out_of_memory("late")
        self.assertNotEqual(self.my_groups(), set())
        self.daemon.ramet("rm", "demo", "late")
        self.assertEqual(self.my_groups(), set())
        self.assertEqual(self.daemon.folders(), [])

    def check_process(self, pid):
        status = status_of(pid)
        uids = set(status["Uid"].split()) | set(status["Gid"].split())
        self.assertEqual(len(uids), 1)
        self.assertTrue(UID_BASE <= int(uids.pop()) < UID_BASE + UID_COUNT, status["Uid"])
        self.assertEqual(status["Groups"].split(), [])
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(status[kind], 16), 0, kind)
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"], status["NSpid"].split()[-1]), ("1", "2", "1"))
        for kind in ("mnt", "pid", "ipc", "uts", "net"):
            self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/{kind}"), os.readlink(f"/proc/self/ns/{kind}"), kind)
        for point, (_, options) in mounts_of(pid).items():
            self.assertTrue({"ro", "nosuid"} <= set(options), point)
        with open(f"/proc/{pid}/limits") as file:
            limits = {line[:26].strip(): line[26:].split()[:2] for line in file}
        self.assertEqual(limits["Max core file size"], ["0", "0"])
        with open(f"/proc/{pid}/oom_score_adj") as ours, open(f"/proc/{self.daemon.process.pid}/oom_score_adj") as daemons:
            self.assertGreater(int(ours.read()), int(daemons.read()))
        with open(f"/proc/{pid}/cgroup") as file:
            self.assertIn(self.tag, file.read())

    def strangers(self, pid):
        """Users are told apart by the servers too: files that are his may be there by mistake, or by another hole."""
        box, uid = self.daemon.json("show", "late")["id"], int(status_of(pid)["Uid"].split()[0])
        image = os.path.basename(mounts_of(pid)["/memory"][0])
        io = f"{self.daemon.run}/vm/{box}/io"
        self.assertEqual((os.stat(io).st_uid, os.stat(io).st_mode & 0o777), (uid, 0o700))
        images, sockets = os.open(self.daemon.run + "/mem", os.O_PATH), os.open(io, os.O_PATH)
        def got(who):
            result = subprocess.run(["python3", "-c", STRANGER, str(images), str(sockets), image, str(who)], capture_output=True,
                                    text=True, pass_fds=(images, sockets))
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout.split()
        self.assertEqual(got(UID_BASE + UID_COUNT - 1), [])
        os.chmod(io, 0o755)
        os.chmod(io + "/nbd.sock", 0o666)    # as if anybody could connect: the server looks who it is
        self.assertEqual(got(UID_BASE + UID_COUNT - 1), [])
        self.assertEqual(got(uid), ["image", "disk"])
        os.chmod(io, 0o700)
        os.chmod(io + "/nbd.sock", 0o600)
        os.close(images)
        os.close(sockets)

    def attempts(self, victim):
        """A second daemon starts the probe as its VMM, beside the first one's machines."""
        box, mine = self.daemon.json("show", "late")["id"], os.getpid()
        listener, hidden = socket.socket(), socket.socket(socket.AF_UNIX)
        listener.bind(("127.0.0.1", 0))
        hidden.bind("\0ramet-confine-test-" + str(mine))
        for server in (listener, hidden):
            server.listen()
            self.addCleanup(server.close)
        folder = f"{self.daemon.run}/vm/{box}"
        lines = [f"read {path}" for path in ("/etc/shadow", "/etc/passwd", "/proc/self/status", "/sys/kernel", "/dev/mem", "/dev/kvm",
                                             self.daemon.store, self.daemon.store + "/superblock", self.daemon.run, folder,
                                             self.daemon.run + "/mem", self.path("two"), "/..", "/proc/1/root")
                 if path != "/.."]
        lines += [f"connect {path}" for path in (self.daemon.run + "/api.sock", folder + "/qmp.sock", folder + "/agent.sock",
                                                 folder + "/io/nbd.sock", self.path("two") + "/run/api.sock")]
        lines += [f"write {path}" for path in ("/x", "/io/x", "/dev/x", "/runtime/x", "/runtime/lib/x", "/tmp/x",
                                               "/runtime/boot/vmlinux", "/runtime/bin/qemu-system-x86_64")]
        lines += ["remove /runtime/boot/vmlinux", "remove /io/nbd.sock", "remove /dev/null"]
        lines += [f"abstract ramet-confine-test-{mine}", f"tcp {listener.getsockname()[1]}", "packet"]
        lines += [f"{kind} {pid}" for kind in ("kill", "ptrace") for pid in (mine, victim, self.daemon.process.pid)]
        lines += ["others", "root", "namespaces", "mount", "device", "clock", "descriptors", "fill 80", "forks 130", "memory 1024"]
        os.mkdir(self.path("two"))
        os.mkdir(self.path("two") + "/kernel")
        self.write("two/kernel/vmlinux", b"none")
        self.write("two/kernel/initramfs-q35.cpio", "\n".join(lines).encode() + b"\n")
        other = rig.Daemon(self.path("two"), self.path("two") + "/kernel")
        other.ramet("store", "init", other.store)
        other.start("--vmm", PROBE, "--accel", "tcg")
        try:
            other.ramet("volume", "create", "empty", "64M")
            other.ramet("create", "escape", "--from", "empty", "--memory", "256", status=1)
            said = other.stderr
            self.assertIn(f"confined: {len(lines)} attempts failed", said, said)
            self.assertEqual(other.json("ls"), [])
            self.assertEqual(other.folders(), [])
        finally:
            other.stop()
            subprocess.run(["umount", "-l", other.run + "/mem"], capture_output=True)
        self.assertEqual({path for path in groups() if self.tag not in path and "sbx_" in path and not os.path.exists(path)}, set())

    def out_of_memory(self, name):
        """A VMM beyond its limit is ended by the kernel, and nothing else is; the reason says why."""
        box = self.daemon.json("show", name)["id"]
        limit, usage = next((f"{group}/{box}/{a}", f"{group}/{box}/{b}") for group in self.my_groups()
                            for a, b in (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))
                            if os.path.exists(f"{group}/{box}/{a}"))
        with open(usage) as file:
            used = int(file.read())
        with open(limit, "w") as file:
            file.write(str(used + (16 << 20)))
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", name, "python3 -c \"print(len(b'x' * (300 << 20)))\""], capture_output=True)
        self.until(lambda: self.daemon.json("show", name)["state"] == "failed")
        self.assertIn("used up the memory of its control group", self.daemon.json("show", name)["reason"])
        self.daemon.ramet("start", name)

    # ---- upgrades ----

    def upgrade(self, vmm, kernel):
        """Other bytes in the same places: what a package manager does."""
        for path in (vmm, kernel + "/vmlinux", kernel + "/initramfs-q35.cpio"):
            with open(path, "rb") as file:
                content = file.read()
            with open(path + ".new", "wb") as file:
                file.write(content + b"\0" * 512)
            shutil.copymode(path, path + ".new")
            os.rename(path + ".new", path)

    def restart(self, vmm):
        self.daemon.stop()
        self.daemon.start("--vmm", vmm)

    def boot_id(self, name):
        result = subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", name, "--timeout", "30", "cat /proc/sys/kernel/random/boot_id"],
                                capture_output=True, text=True)
        return result.stdout.strip()

    def test_sessions_outlive_an_upgrade(self):
        os.makedirs(self.path("prefix/bin"))
        os.symlink("/usr/share", self.path("prefix/share"))    # where a QEMU in this place looks for its firmware
        vmm = shutil.copy(shutil.which("qemu-system-x86_64"), self.path("prefix/bin/qemu-system-x86_64"))
        self.daemon.kernel_dir = shutil.copytree(os.environ["RAMET_KERNEL_DIR"], self.path("kernel"))
        self.restart(vmm)
        runtimes = lambda: {name for name in os.listdir(self.daemon.store + "/runtimes") if not name.startswith("installed")}
        self.daemon.ramet("create", "demo")
        self.daemon.ramet("exec", "demo", "echo kept > /dev/shm/memory")
        self.daemon.ramet("snapshot", "demo", "--name", "warm", "--wait")
        old = runtime_of(self.pid_of("demo"))
        self.assertEqual(runtimes(), {old})
        before = self.daemon.json("store", "stat")["other_bytes"]
        self.assertGreater(before, 50 << 20, "its bytes are counted")
        self.restart(vmm)
        self.assertEqual(self.daemon.log().count("was made of what is installed"), 1, "the same files are not copied again")

        self.upgrade(vmm, self.daemon.kernel_dir)
        self.restart(vmm)
        self.assertEqual(runtime_of(self.pid_of("demo")), old, "it ran through all of it")
        self.daemon.ramet("create", "fresh")
        new = runtime_of(self.pid_of("fresh"))
        self.assertNotEqual(new, old)
        self.daemon.ramet("rm", "fresh")
        self.daemon.ramet("create", "late", "--from", "warm")
        self.assertEqual(runtime_of(self.pid_of("late")), old)
        self.assertEqual(self.daemon.ramet("exec", "late", "cat /dev/shm/memory"), "kept\n")
        booted = self.boot_id("late")
        reboot = "sudo python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x1234567)'"
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "late", reboot], capture_output=True)
        self.until(lambda: self.boot_id("late") not in ("", booted))
        self.assertEqual(runtime_of(self.pid_of("late")), old, "a reboot keeps its kernel")
        self.daemon.ramet("stop", "demo")
        self.daemon.ramet("start", "demo")
        self.assertEqual(self.daemon.ramet("exec", "demo", "cat /dev/shm/memory"), "kept\n")
        self.damage(old, runtimes)
        self.assertEqual(runtimes(), {old, new})
        self.daemon.ramet("snapshots", "rm", "warm")
        self.daemon.ramet("rm", "demo", "late")
        self.assertEqual(runtimes(), {new}, "nobody needs it any more")

    def damage(self, old, runtimes):
        folder = f"{self.daemon.store}/runtimes/{old}"
        kernel = folder + "/boot/vmlinux"
        shutil.copy2(kernel, self.path("saved"))
        with open(kernel, "r+b") as file:
            file.seek(4096)
            file.write(b"damage")
        self.daemon.ramet("create", "odd", "--from", "warm", status=1)
        self.assertIn("boot/vmlinux has other bytes", self.daemon.stderr)
        os.unlink(kernel)
        self.daemon.ramet("create", "odd", "--from", "warm", status=1)
        self.assertIn("boot/vmlinux is missing", self.daemon.stderr)
        shutil.copy2(self.path("saved"), kernel)
        self.daemon.ramet("create", "odd", "--from", "warm")
        self.daemon.ramet("rm", "odd")
        os.rename(folder, self.path("gone"))
        self.daemon.ramet("create", "odd", "--from", "warm", status=1)
        self.assertIn("not in the store any more", self.daemon.stderr)
        os.rename(self.path("gone"), folder)
        self.daemon.ramet("create", "odd", "--from", "warm")
        self.daemon.ramet("rm", "odd")


if __name__ == "__main__":
    rig.need_machines()
    if not os.path.exists(PROBE):
        rig.skip("RAMET_CONFINE_PROBE does not say where the probe is")
    rig.main()
