# SPDX-License-Identifier: Apache-2.0
"""schemathesis, a program that makes requests of an API's document and looks for answers that break it, against a daemon
without machines. All of its checks are on: statuses, types, schemas and headers of answers, wrong data is refused, right
data is taken, no call without its key. Always the same requests, unless RAMET_TEST_LONG=1, which tries others for minutes.
"""
import os
import shutil
import subprocess
import sys

import contract
import rig

PACKAGES = ["schemathesis==4.32.5", "hypothesis==6.170.17"]
FOLDER = os.environ.get("RAMET_PYTHON_FOLDER", "") + "/schemathesis-4.32.5"
START = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
LONG = os.environ.get("RAMET_TEST_LONG") == "1"


def install():
    """Into a folder of the build, whole or not at all."""
    if os.path.isdir(FOLDER):
        return
    shutil.rmtree(FOLDER + ".new", ignore_errors=True)    # of one that was broken off: pip would leave it as it is
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", FOLDER + ".new", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        rig.skip("schemathesis cannot be installed from PyPI: it takes longer than ten minutes")
    if done.returncode != 0:
        rig.skip(f"schemathesis cannot be installed from PyPI: {(done.stderr.strip().splitlines() or ['no pip'])[-1]}")
    os.rename(FOLDER + ".new", FOLDER)


class FuzzTest(rig.Case):
    def test_schemathesis_finds_nothing(self):
        path = os.environ["PATH"]
        try:    # a daemon that finds no programs: builds of templates, which it is asked for too, end at once
            os.environ["PATH"] = "/nonexistent"
            self.daemon.stop()
            self.daemon.start("--listen", "0", "--rate-limit", "0")
        finally:
            os.environ["PATH"] = path
        key = self.daemon.call("POST", "/v1/keys", {"name": "fuzz", "preset": "admin"}).json["key"]
        options = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "300", "--generation-database", "none"] if LONG else \
            ["--phases", "examples,coverage,fuzzing", "--max-examples", "2", "--seed", "1", "--generation-deterministic"]
        command = [sys.executable, "-c", START, "--config-file", os.path.join(contract.HERE, "fuzz.toml"), "run",
                   self.daemon.url + "/openapi.json", "--header", f"Authorization: Bearer {key}", "--no-color", *options]
        environment = {**os.environ, "PYTHONPATH": FOLDER}
        done = subprocess.run(command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout[-20000:])
        self.assertEqual(done.returncode, 0, "schemathesis found what is above")
        self.assertEqual(self.daemon.call("GET", "/healthz").status, 200)
        self.assertNotIn("Sanitizer", self.daemon.log())


if __name__ == "__main__":
    rig.need_root()
    if not os.environ.get("RAMET_PYTHON_FOLDER"):
        rig.skip("RAMET_PYTHON_FOLDER does not say where packages may go")
    install()
    rig.main()
