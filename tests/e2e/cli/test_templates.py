# SPDX-License-Identifier: Apache-2.0
"""Templates on real machines: every source, what comes of each, and that nothing is left of a build that ended early."""
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import tempfile
import time

import rig

LONG = bool(os.environ.get("RAMET_TEST_LONG"))


def saved_image(config):
    """An archive of `docker save` with nothing but /etc in it."""
    def archive(files):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue()

    layer = archive({"etc/hostname": b"x\n"})
    text = json.dumps({"os": "linux", "architecture": "amd64", "config": config,
                       "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
    name = hashlib.sha256(text).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": ["made:latest"], "Layers": ["layer.tar"]}]).encode()
    return archive({name: text, "layer.tar": layer, "manifest.json": manifest})


class Templates(rig.Case):
    """One daemon and one template of the agent-base disk for all: a machine boots once, the rest goes on from it."""
    KERNEL = True

    def build(self, *arguments, status=0, **more):
        return self.daemon.ramet("template", "build", *arguments, status=status, **more)

    def sh(self, name, line, status=0):
        return self.daemon.ramet("exec", name, line, status=status)

    def until(self, condition, what):
        limit = time.monotonic() + rig.HANG_SECS
        while not condition():
            self.assertLess(time.monotonic(), limit, f"waited in vain for {what}\n{self.daemon.log()}")
            time.sleep(0.02)

    def check_nothing_left(self, templates=(), boxes=(), volumes=()):
        """No machine, volume, snapshot, file or process of a build."""
        self.assertEqual(sorted(box["name"] for box in self.daemon.json("ls")), sorted(boxes))
        self.assertEqual(sorted(self.daemon.vmms().values()), sorted(box["id"] for box in self.daemon.json("ls")))
        self.assertEqual(sorted(one["name"] for one in self.daemon.json("snapshots")), sorted(templates))
        owned = [one for one in self.daemon.json("volume", "ls", "--all") if one["sandbox"] is None]
        self.assertEqual(sorted(one["name"] for one in owned), sorted(volumes))
        folder = self.daemon.store + "/templates/"
        self.assertEqual([os.listdir(folder + name) for name in ("builds", "uploads")], [[], []])
        self.assertEqual(len(os.listdir(folder + "logs")), len(templates))
        self.assertEqual(self.builders(), [])
        with open("/proc/mounts", encoding="utf-8") as mounts:
            self.assertNotIn(folder, mounts.read())

    def builders(self):
        return [words for _, words in rig.commands() if any(self.root in word for word in words)
                and any(tool in word for word in words for tool in ("image/build", "image/unpack", "mmdebstrap"))]

    def refused(self, words, body, status=400):
        answer = self.daemon.call("POST", "/v1/templates", body)
        self.assertEqual(answer.status, status, answer.body)
        self.assertIn(words, answer.message)

    # ---- refusals: no machine boots ----

    def test_bad_input(self):
        for words, body in (
                ('"name" is missing', {}),
                ("not allowed", {"name": "No"}),
                ("word of the API", {"name": "builds", "volume": "x"}),
                ("none of the built-in templates", {"name": "mine"}),
                ("exclude each other", {"name": "mine", "packages": ["bash"], "tar": "upl_1"}),
                ("list of 1 to 500 names", {"name": "mine", "packages": []}),
                ("is not the name of a Debian package", {"name": "mine", "packages": ["bash", "x; rm -rf"]}),
                ("is not the name of a Debian package", {"name": "mine", "packages": ["-oDir=x"]}),
                ("is not the name of a Debian package", {"name": "mine", "packages": [7]}),
                ("choose python, docker or none", {"name": "agent-base", "warm": "hot"}),
                ('for "warm": "python"', {"name": "agent-base", "warm_code": "1"}),
                ("is what \"packages\" are added to", {"name": "agent-base", "base": "agent-base"}),
                ("choose agent-base, code-interpreter or docker-base", {"name": "mine", "packages": ["less"], "base": "../build"}),
                ("chooses an image of an \"oci\" archive", {"name": "agent-base", "image": "x"}),
                ("list of command lines; number 2 is none", {"name": "agent-base", "setup": ["true", ""]}),
                ("leave size, cpus", {"name": "mine", "sandbox": "box", "memory_mb": 512}),
                ("leave setup and warm out", {"name": "mine", "sandbox": "box", "setup": ["true"]}),
                ("no field is called", {"name": "agent-base", "colour": 1})):
            with self.subTest(words):
                answer = self.daemon.call("POST", "/v1/templates", body)
                self.assertEqual(answer.status, 400, answer.body)
                if words != "no field is called":
                    self.assertIn(words, answer.message)
                else:
                    self.assertIn("colour", answer.message)
        self.refused("no volume or snapshot", {"name": "mine", "volume": "nothing"}, 404)
        self.refused("no sandbox", {"name": "mine", "sandbox": "nothing"}, 404)
        self.refused("no upload", {"name": "mine", "tar": "upl_1"}, 404)
        self.refused("no import", {"name": "mine", "import": "imp_1"}, 404)
        for method, path in (("GET", "mine"), ("DELETE", "mine"), ("GET", "mine/log"), ("GET", "builds/bld_1"),
                             ("DELETE", "builds/bld_1"), ("GET", "builds/bld_1/logs"), ("DELETE", "uploads/upl_1")):
            self.assertEqual(self.daemon.call(method, "/v1/templates/" + path).status, 404, path)
        self.daemon.ramet("volume", "create", "taken", "1M")
        self.refused("taken", {"name": "taken", "packages": ["bash"]}, 409)
        self.assertIn("is a volume, not a template", self.daemon.call("GET", "/v1/templates/taken").message)
        for status, words, *arguments in ((2, "one source", "x", "--tar", "a", "--oci", "b"), (1, "cannot be read", "x", "--tar", self.path("no")),
                                          (1, "is a folder; make an archive", "x", "--tar", self.root),
                                          (1, "cannot be read", "x", "--warm", "python", "--warm-code", self.path("no")),
                                          (2, "--format", "x", "--format", "raw"), (2, "A=VALUE", "x", "--env", "A")):
            self.build(*arguments, status=status)
            self.assertIn(words, self.daemon.stderr)
        self.daemon.ramet("volume", "rm", "taken")
        self.check_nothing_left()

    def test_bad_archives_leave_only_their_log(self):
        """X: what an archive holds is refused with a sentence, and takes nothing with it."""
        for option, data, words in (("--tar", b"no archive at all" * 50, "no tar archive"), ("--oci", bytes(10240), "neither an OCI archive")):
            self.build("mine", option, self.write("bad", data), status=1)
            self.assertIn("the builder failed", self.daemon.stderr)
            self.assertIn(words, self.daemon.stderr)    # the log goes there too
        self.build("mine", "--tar", self.write("bad", b""), status=1)
        self.assertIn("empty", self.daemon.stderr)
        for user in ("a\0b", "\ud800"):    # what an image says of itself, and the daemon's JSON cannot hold
            self.build("words", "--oci", self.write("bad", saved_image({"User": user})), status=1)
            self.assertIn("configuration", self.daemon.stderr)
        [first, second, *_] = self.daemon.call("GET", "/v1/templates/builds").json["builds"]
        self.assertEqual((first["state"], second["state"], first["name"]), ("failed", "failed", "mine"))
        self.assertIn("no tar archive", self.daemon.ramet("template", "log", first["id"]))
        self.assertEqual(self.daemon.call("DELETE", "/v1/templates/builds/" + first["id"]).json["cancelled"], False)
        # I02: a raw disk that looks like qcow2 is not taken for one.
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", self.path("image"), "1M"], check=True)
        self.build("mine", "--disk", self.path("image"), status=1)
        self.assertIn("--format raw", self.daemon.stderr)
        # I07: one made for sectors of 4096 bytes cannot boot, and it is said so.
        disk = bytearray(1 << 20)
        disk[4096:4104] = b"EFI PART"
        self.build("mine", "--disk", self.write("image", disk), status=1)
        self.assertIn("4096", self.daemon.stderr)
        self.check_nothing_left()

    def test_uploads(self):
        answer = self.daemon.call("PUT", "/v1/templates/uploads", b"x" * 300000)
        self.assertEqual((answer.status, answer.json["size_bytes"]), (201, 300000))
        upload = answer.json["upload"]
        self.assertEqual(self.daemon.call("DELETE", "/v1/templates/uploads/" + upload).status, 204)
        self.refused("no upload", {"name": "mine", "tar": upload}, 404)
        self.daemon.call("PUT", "/v1/templates/uploads", b"left")
        self.daemon.kill()
        self.daemon.start()
        self.check_nothing_left()

    # ---- machines ----

    def test_a_disk_and_what_comes_of_it(self):
        """Disk, commands, volume, sandbox, replacing, removing, a machine of each: one boot, then resumes."""
        image = os.environ["RAMET_IMAGE"]
        printed = self.build("first", "--disk", image, "--format", "raw", "--size", "small", "--env", "A=of the template", "--label", "k=v",
                             "--setup", "echo made > /srv/mark; id -un", "--setup", "nohup sleep 100000 > /dev/null 2>&1 &")
        self.assertIn("ramet create --from first", printed)
        self.assertIn("$ echo made > /srv/mark; id -un\nroot\n", self.daemon.ramet("template", "log", "first"))
        shown = self.daemon.json("template", "show", "first")
        self.assertEqual((shown["template"], shown["state"], shown["cpus"], shown["memory_mb"], shown["labels"]), (True, "ready", 1, 256, {"k": "v"}))
        self.assertEqual([one["name"] for one in self.daemon.json("template", "ls")], ["first"])
        self.check_nothing_left(["first"])
        box = self.daemon.json("create", "one", "--from", "first", "--env", "B=own")
        self.assertEqual(box["start_mode"], "resume")
        self.assertEqual(self.sh("one", "cat /srv/mark; echo $A $B; pgrep -c sleep"), "made\nof the template own\n1\n")
        self.daemon.json("fork", "one", "--name", "two")
        self.assertEqual(self.sh("two", "echo $A"), "of the template\n")
        self.daemon.ramet("rm", "two")
        self.of_a_box()
        self.replace_and_remove()

    def of_a_box(self):
        self.sh("one", "echo more | sudo tee /srv/more")
        self.build("second", "--from", "one")
        self.daemon.ramet("create", "late", "--from", "second")
        self.assertEqual(self.sh("late", "cat /srv/mark /srv/more; pgrep -c sleep; echo $A"), "made\nmore\n1\nof the template\n")
        self.daemon.ramet("rm", "late")
        self.check_nothing_left(["first", "second"], ["one"])

    def replace_and_remove(self):
        self.refused("first", {"name": "first", "sandbox": "one"}, 409)
        self.daemon.ramet("snapshot", "one", "--name", "plain", "--wait")
        self.refused("no template", {"name": "plain", "sandbox": "one", "replace": True}, 409)
        self.daemon.ramet("snapshots", "rm", "plain")
        before = self.daemon.json("template", "show", "second")["id"]
        self.build("second", "--from", "one", "--replace")
        self.assertNotEqual(self.daemon.json("template", "show", "second")["id"], before)
        self.daemon.ramet("template", "rm", "first", "second")
        self.assertEqual(self.sh("one", "cat /srv/mark"), "made\n")    # what was made from it stays
        # (The log of what was replaced goes with the next start.)
        self.daemon.stop()
        self.daemon.start()
        self.assertNotIn("unfinished template builds", self.daemon.log())    # no journal was left
        self.check_nothing_left([], ["one"])

    def test_a_failed_command_and_a_cancelled_build(self):
        self.daemon.ramet("volume", "import", "disk", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.build("mine", "--volume", "disk", "--setup", "echo words of the command; exit 3", status=1)
        self.assertIn("command 1 of 1", self.daemon.stderr)
        self.assertIn("status 3", self.daemon.stderr)
        self.check_nothing_left(volumes=["disk"])
        # Interrupting the command line cancels; so does the API, as often as one likes; the next in the queue goes on.
        command = [rig.BIN + "/ramet", "--run", self.daemon.run, "template", "build", "mine", "--volume", "disk", "--setup", "echo begun; sleep 1000"]
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(command, stdout=output, stderr=output)
            self.addCleanup(child.kill)
            self.until(lambda: b"\nbegun\n" in os.pread(output.fileno(), 1 << 20, 0), "the command")
            self.refused("being made at this moment", {"name": "mine", "volume": "disk"}, 409)
            waiting = self.daemon.call("POST", "/v1/templates", {"name": "later", "volume": "disk"}).json
            self.assertEqual((waiting["state"], waiting["step"]), ("queued", ""))
            upload = self.daemon.call("PUT", "/v1/templates/uploads", b"no archive").json["upload"]
            user = self.daemon.call("POST", "/v1/templates", {"name": "third", "tar": upload}).json
            taken = self.daemon.call("DELETE", "/v1/templates/uploads/" + upload)
            self.assertEqual((taken.status, taken.code), (409, "upload.invalid_state"))
            self.refused("belongs to another build", {"name": "fourth", "tar": upload}, 409)
            more = self.refused_when_full()
            for build in (waiting, waiting, user, *more):
                self.assertTrue(self.daemon.json("template", "cancel", build["id"])["cancelled"])
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.wait(rig.HANG_SECS), 130)

        def ended():
            return all(one["state"] == "failed" for one in self.daemon.call("GET", "/v1/templates/builds").json["builds"])
        self.until(ended, "the builds to end")
        self.assertEqual({one["error"]["code"] for one in self.daemon.call("GET", "/v1/templates/builds").json["builds"][1:]},
                         {"template.cancelled"})
        self.check_nothing_left(volumes=["disk"])
        self.killed_daemon()

    def refused_when_full(self):
        """As many builds as may wait, and one more: it is refused, and its upload waits for another try."""
        builds, upload = [], self.daemon.call("PUT", "/v1/templates/uploads", b"no archive").json["upload"]
        while (answer := self.daemon.call("POST", "/v1/templates", {"name": f"full-{len(builds)}", "volume": "disk"})).status == 202:
            builds.append(answer.json)
        self.assertEqual((answer.status, answer.code), (503, "capacity.busy"), answer.body)
        self.refused("builds wait already", {"name": "one-more", "tar": upload}, 503)
        self.assertEqual(self.daemon.call("DELETE", "/v1/templates/uploads/" + upload).status, 204)
        return builds

    def killed_daemon(self):
        """The daemon dies in the middle of each step: the next one finds nothing of the build."""
        for body, step in (({"name": "agent-base"}, "installing packages"), ({"name": "mine", "volume": "disk"}, "booting"),
                           ({"name": "mine", "volume": "disk", "setup": ["echo begun; sleep 1000"]}, "running commands")):
            with self.subTest(step):
                build = self.daemon.call("POST", "/v1/templates", body).json
                path = "/v1/templates/builds/" + build["id"]
                self.until(lambda: self.daemon.call("GET", path).json["step"] == step, step)
                if step == "installing packages":
                    self.until(self.builders, "the builder")
                self.daemon.kill()
                self.until(lambda: not self.builders(), "the builder to end with the daemon")
                self.daemon.start()
                self.check_nothing_left(volumes=["disk"])
        self.daemon.call("POST", "/v1/templates", {"name": "mine", "volume": "disk", "setup": ["sleep 1000"]})
        self.until(lambda: self.daemon.call("GET", "/v1/templates/builds").json["builds"][0]["step"] == "running commands", "the command")
        self.daemon.stop()    # in peace: the build is given up first
        self.daemon.start()
        self.check_nothing_left(volumes=["disk"])


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
