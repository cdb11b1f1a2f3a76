# SPDX-License-Identifier: Apache-2.0
"""Python environments below build/, with packages that tests need and the system does not have."""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = os.path.join(ROOT, "build", "sdk")


def made_once(folder, key, commands, prepare=lambda: None, cwd=None):
    """Whether the folder is there as these commands make it of what `key` says; False, and a line why, when it cannot be.

    A test that comes while another makes it waits. `prepare` runs before the commands, when nothing is there.
    """
    key, mark = hashlib.sha256(key).hexdigest(), os.path.join(folder, "made-from")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(mark):
            with open(mark, encoding="ascii") as file:
                if file.read() == key:
                    return True
        shutil.rmtree(folder, ignore_errors=True)
        prepare()
        for command in commands:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{os.path.basename(folder)} cannot be had here: {(done.stderr or done.stdout).strip()[-500:]}")
                shutil.rmtree(folder, ignore_errors=True)
                return False
        with open(mark, "w", encoding="ascii") as file:
            file.write(key)
    return True


def environment(name, *requirements, constraints=None):
    """The Python of an environment with these packages; None, and a line why, when they cannot be had here.

    Nothing of the system's Python is changed.
    """
    folder = os.path.join(BUILD, name)
    python = os.path.join(folder, "bin", "python")
    words = list(requirements)
    key = " ".join([sys.version, *words])
    if constraints is not None:
        with open(constraints, encoding="utf-8") as file:
            key += file.read()
        words += ["--constraint", constraints]
    return python if made_once(folder, key.encode(), [
        [sys.executable, "-m", "venv", "--without-pip", folder],
        [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet",
         "--retries", "1", "--timeout", "20", *words]]) else None


def copy_of_sdk():
    """The Python client's folder, where a build may leave what it likes."""
    folder = os.path.join(BUILD, "source")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(ROOT, "tools", "sdk", "python"), folder,
                    ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", ".mypy_cache"))
    return folder
