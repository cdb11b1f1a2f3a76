# SPDX-License-Identifier: Apache-2.0
"""The built-in templates and lists of packages, built as people build them: minutes each, and Debian's mirror; so with
RAMET_TEST_LONG only."""
import os
import time

import rig

# A container of a few files of the machine itself counts in its file system.
CONTAINER = """
tar -C / -chf /tmp/small.tar bin/sh bin/sleep bin/cat lib/x86_64-linux-gnu/libc.so.6 lib64/ld-linux-x86-64.so.2 &&
docker import /tmp/small.tar small > /dev/null &&
docker run -d --name counter small /bin/sh -c 'i=0; while :; do i=$((i+1)); echo $i > /new; read i < /new; sleep 0.2; done' > /dev/null &&
docker exec counter cat /new
"""


class Recipes(rig.Case):
    KERNEL = True

    def build(self, *arguments):
        began = time.monotonic()
        self.daemon.ramet("template", "build", *arguments)
        print(f"{arguments[0]}: {time.monotonic() - began:.0f} s")

    def sh(self, name, line):
        return self.daemon.ramet("exec", name, line)

    def test_packages(self):
        self.build("tiny", "--packages", "less,tree", "--disk-gb", "2")
        self.daemon.ramet("create", "one", "--from", "tiny")
        self.assertIn("tree v", self.sh("one", "tree --version"))
        self.assertEqual(self.sh("one", "id -un").strip(), "user")

    def test_code_interpreter(self):
        self.build("code-interpreter")
        self.daemon.ramet("create", "one", "--from", "code-interpreter")
        self.assertEqual(self.daemon.ramet("run", "one", "import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); int(df.a.sum())"), "3\n")
        self.daemon.ramet("fork", "one", "--name", "two")
        self.assertEqual(self.daemon.ramet("run", "two", "int(df.a.max())"), "2\n")

    def count(self, name):
        text = self.sh(name, "docker exec counter cat /new").strip()
        return int(text or 0)

    def goes_on(self, name, beyond):
        limit = time.monotonic() + rig.HANG_SECS
        while self.count(name) <= beyond:
            self.assertLess(time.monotonic(), limit, f"the container in {name} does not go on")

    def test_docker(self):
        """A container made by `docker import` runs, writes, and goes on in each fork."""
        self.build("docker-base")
        self.daemon.ramet("create", "one", "--from", "docker-base")
        self.sh("one", CONTAINER)
        before = self.count("one")
        self.daemon.json("fork", "one", "--name", "two", "--name", "three")
        for name in ("one", "two", "three"):
            self.goes_on(name, before + 3)
            self.sh(name, f"docker exec counter /bin/sh -c 'echo {name} > /mine'")
        self.assertEqual([self.sh(name, "docker exec counter cat /mine").strip() for name in ("one", "two", "three")], ["one", "two", "three"])
        self.daemon.json("stop", "two")
        self.daemon.json("start", "two")
        self.goes_on("two", self.count("two"))


if __name__ == "__main__":
    if not os.environ.get("RAMET_TEST_LONG"):
        rig.skip("builds from Debian's mirror take minutes; RAMET_TEST_LONG=1 runs them")
    rig.need_machines()
    rig.main()
