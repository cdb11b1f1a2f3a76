# SPDX-License-Identifier: Apache-2.0
"""The template `code-interpreter` with a warm Python kernel as an archive, which tests that do not try how it is made put into their stores.

Making it takes longer than most of these tests run, so it is made once for a build folder, below build/warm; the stores share nothing.
Run alone it makes the archive where it is missing or older than what it is made of (the test `warm_template`, which runs before those
that use it).
"""
import hashlib
import os
import shutil
import sys

import environments
import warm

FOLDER = os.path.join(environments.ROOT, "build", "warm")
ARCHIVE = os.path.join(FOLDER, warm.TEMPLATE + ".ramet")


def made_of():
    """What says whether an archive is still the one: the programs and the VMM by content, the disk and the kernel by what they were made from."""
    image, kernel, programs = os.environ["RAMET_CODE_IMAGE"], os.environ["RAMET_KERNEL_DIR"].rstrip("/"), warm.rig.BIN
    files = [programs + "/ramet", programs + "/rametd", programs + "/../vmglue/libramet-preload.so", shutil.which("qemu-system-x86_64"),
             warm.__file__, os.path.abspath(__file__), image + ".made-from", kernel + ".made-from"]
    total = hashlib.sha256()
    for path in filter(os.path.exists, files):
        with open(path, "rb") as file:
            total.update(hashlib.sha256(file.read()).digest())
    state = os.stat(image)
    total.update(f"{state.st_ino} {state.st_size} {state.st_mtime_ns}".encode())
    return total.digest()


def path():
    """Of the archive; it is made when it is not there. A test that comes while another makes it waits."""
    command = [sys.executable, os.path.abspath(__file__), FOLDER]
    if not environments.made_once(FOLDER, made_of(), [command], lambda: os.makedirs(FOLDER)):
        raise AssertionError(f"the warm template could not be made; this shows why: {' '.join(command)}")
    return ARCHIVE


def make():
    machine, failed = warm.WarmDaemon("warm", built=True), True
    try:
        machine.daemon.ramet("export", warm.TEMPLATE, ARCHIVE)
        failed = False
    finally:
        machine.close(failed)


if __name__ == "__main__":
    if not warm.rig.BIN:
        warm.rig.skip("RAMET_BIN does not say where the programs are")
    warm.need()
    if len(sys.argv) == 2:
        make()
    else:
        print(path())
