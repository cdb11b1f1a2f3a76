# SPDX-License-Identifier: Apache-2.0
"""A daemon with one warm Python machine: booted once, every sandbox of a test goes on from it."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/cli"))
import rig    # noqa: E402

TEMPLATE = "code-interpreter"


def need():
    """Ends the test as skipped where there is nothing to boot."""
    rig.need_machines()
    if not os.path.exists(os.environ.get("RAMET_CODE_IMAGE", "")):
        rig.skip("RAMET_CODE_IMAGE names no disk (tools/image/ensure --code makes it)")


class WarmDaemon:
    """`daemon` is the rig's, `key` opens it by TCP. words: for the daemon, besides where it listens. built: the template is built here, and
    the daemon knows of that build; otherwise it comes from an archive that was made before."""

    def __init__(self, name, *words, built=False):
        self.root = tempfile.mkdtemp(prefix=f"ramet-{name}-", dir="/tmp")
        self._words = words
        self.daemon = rig.Daemon(self.root, os.environ["RAMET_KERNEL_DIR"])
        try:
            self.daemon.ramet("store", "init", self.daemon.store)
            self.start()
            if built:
                self.daemon.ramet("template", "build", TEMPLATE, "--disk", os.environ["RAMET_CODE_IMAGE"], "--format", "raw", "--warm", "python")
            else:
                import warm_archive    # which makes it with the class here
                self.daemon.ramet("import", warm_archive.path())
            self.key = self.daemon.make_key("tests")["key"]
        except BaseException:
            self.close(True)
            raise

    def start(self):
        self.daemon.start("--listen", "0", *self._words)

    @property
    def url(self):
        return self.daemon.url

    def close(self, failed):
        """Removes all sandboxes and stops it. failed: prints what it logged."""
        try:
            if failed:
                print(self.daemon.log()[-20000:])
            if self.daemon.process is None or self.daemon.process.poll() is not None:
                self.start()
            for box in self.daemon.json("ls"):
                self.daemon.ramet("rm", "--force", box["name"])
            self.daemon.stop()
        finally:
            subprocess.run(["umount", "-l", self.daemon.run + "/mem"], capture_output=True)
            shutil.rmtree(self.root, ignore_errors=True)
