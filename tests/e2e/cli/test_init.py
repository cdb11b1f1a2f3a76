# SPDX-License-Identifier: Apache-2.0
"""A disk that brings its own init: systemd is process 1, the agent lives beside it, and both are snapshot and forked."""
import os
import subprocess

import rig

IMAGE = os.environ.get("RAMET_SYSTEMD_IMAGE", "")


class Init(rig.Case):
    KERNEL = True

    def setUp(self):
        super().setUp()
        if not IMAGE:
            self.skipTest("RAMET_SYSTEMD_IMAGE names no disk with systemd; tools/image/ensure --all makes one")
        self.daemon.ramet("volume", "import", "systemd", IMAGE, "--format", "raw")

    def sh(self, name, line):
        return self.daemon.ramet("exec", "--user", "root", name, line)

    def test_systemd_lives_with_the_agent(self):
        self.daemon.ramet("create", "one", "--from", "systemd", "--memory", "512")
        self.assertIn("systemd", self.sh("one", "readlink /proc/1/exe"))
        self.sh("one", "while [ ! -S /run/systemd/private ]; do sleep 0.05; done")
        state = self.sh("one", "systemctl is-system-running --wait; systemctl --failed --no-legend; true")
        self.assertEqual(state.strip().splitlines()[0], "running", state)
        # Process 1 and its units see `user` as the root of all cgroups; execs are below it; the agent is outside.
        self.assertEqual(self.sh("one", "cat /proc/1/cgroup").strip(), "0::/init.scope")
        self.assertRegex(self.sh("one", "cat /proc/self/cgroup").strip(), r"^0::/exec-\d+$")
        agent = self.sh("one", "grep -lz '^@ramet-guest' /proc/[0-9]*/cmdline 2>/dev/null | head -1").split("/")[2]
        self.assertEqual(self.sh("one", f"cat /proc/{agent}/cgroup").strip(), "0::/..")
        self.assertEqual(self.sh("one", f"cat /proc/{agent}/oom_score_adj").strip(), "-1000")
        # A unit that counts, in memory and on disk, is frozen and forked with everything else.
        self.sh("one", "systemd-run --unit=counter bash -c 'while :; do echo $((++i)) > /srv/count; sleep 0.05; done'")
        self.sh("one", "while [ \"$(cat /srv/count 2>/dev/null || echo 0)\" -lt 3 ]; do sleep 0.05; done")
        before = int(self.sh("one", "cat /srv/count"))
        self.daemon.ramet("fork", "one", "--name", "two")
        for name in ("one", "two"):
            self.sh(name, f"while [ $(cat /srv/count) -le {before + 3} ]; do sleep 0.05; done")
            self.assertEqual(self.sh(name, "systemctl is-active counter").strip(), "active")
        ids = {self.sh(name, "cat /etc/machine-id; hostname") for name in ("one", "two")}
        self.assertEqual(len(ids), 2)
        # The end: by the machine's own means, and by the host's.
        # It may be gone before it has answered.
        subprocess.run([rig.BIN + "/ramet", "--run", self.daemon.run, "exec", "--user", "root", "two", "systemctl poweroff"], capture_output=True)
        self.until(lambda: self.daemon.json("show", "two")["state"] in ("stopped", "failed"))
        self.daemon.ramet("stop", "--disk-only", "one")
        self.daemon.ramet("start", "one")
        self.assertIn("systemd", self.sh("one", "readlink /proc/1/exe"))

        if os.environ.get("RAMET_TEST_LONG"):
            self.V07_a_killed_agent()

    def V07_a_killed_agent(self):
        """Root kills the agent, which is not process 1 here. Calls end with words, and rm works."""
        agent = self.sh("one", "grep -lz '^@ramet-guest' /proc/[0-9]*/cmdline 2>/dev/null | head -1").split("/")[2]
        self.daemon.ramet("exec", "--user", "root", "--timeout", "5", "one", f"kill -9 {agent}; sleep 1000", status=1)
        self.assertRegex(self.daemon.stderr, "guest|agent|machine")
        self.daemon.ramet("rm", "--force", "one")


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
