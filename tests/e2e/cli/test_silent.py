# SPDX-License-Identifier: Apache-2.0
"""A guest whose agent is silent, and one whose kernel panics, as the host sees them (V07)."""
import subprocess

import rig


class Silent(rig.MachineCase):
    def call(self, method, path, body=None):
        return self.daemon.call(method, "/v1/sandboxes" + path, body)

    def state(self, name):
        return self.daemon.json("show", name)["state"]

    def test_V07_silent_agent(self):
        """Typed errors within a bound, the source is unharmed, rm works without the agent. Then another goes down itself."""
        self.daemon.ramet("create", "box", "--size", "small")
        self.daemon.ramet("snapshot", "box", "--name", "point")
        self.sh("box", "setsid sh -c 'while :; do date +%s%N > tick; sleep 0.05; done' > /dev/null 2>&1 < /dev/null &")
        # The agent cannot be stopped from inside: it is the first process. Its port is taken from it instead, by a command
        # which therefore never ends for the host.
        away = "cd /sys/bus/virtio/drivers/virtio_console; for d in virtio*; do echo $d > unbind; done; echo the port is away > /dev/console"
        command = subprocess.Popen([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "-u", "root", "box", away],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.until(lambda: b"the port is away" in self.call("GET", "/box/logs").body)
        self.assertIn("box does not answer", command.stderr.readline())    # by itself, while it waits
        for path, body in (("/box/snapshots", {"name": "no"}), ("/box/fork", {}), ("/box/stop", {})):
            answer = self.call("POST", path, body)
            self.assertIn(answer.status, (409, 503), (path, answer.body))
            self.assertRegex(answer.code, r"^(capacity\.(timeout|guest_gone)|sandbox\.)", answer.body)
            self.assertEqual(self.state("box"), "running")
        self.assertEqual([s["name"] for s in self.daemon.json("snapshots")], ["point"])
        # Memory is kept all the same when it is asked for.
        stopped = self.call("POST", "/box/stop", {"force": True})
        self.assertEqual((stopped.status, stopped.json["memory_kept"]), (200, True), stopped.body)
        self.assertIn("it was stopped", command.communicate()[1])
        self.assertNotEqual(command.returncode, 0)
        self.assertEqual(self.call("DELETE", "/box").status, 204)
        self.panic()

    def panic(self):
        self.daemon.ramet("create", "box", "--from", "point")
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "-u", "root", "--timeout", str(rig.HANG_SECS), "box",
                        "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger"], capture_output=True)
        self.until(lambda: self.state("box") == "failed")
        self.assertIn("panic", self.daemon.json("show", "box")["reason"])
        self.assertIn("panic", self.daemon.ramet("logs", "box"))
        self.daemon.ramet("rm", "box")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
