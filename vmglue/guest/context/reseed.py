# SPDX-License-Identifier: Apache-2.0
"""New random numbers after a fork or a resume: no two forks of a machine draw the same.

The agent writes a new line into the generation file after each such step. What draws from the kernel each time (secrets,
uuid4, os.urandom, SystemRandom) needs nothing. Generators that user code made for itself keep their state: they are the
program's data, and one that was seeded on purpose stays repeatable.
"""
import os
import sys

GENERATION = "/run/ramet/generation"


def generation(path=GENERATION):
    try:
        with open(path, "rb") as file:
            return file.read(256)
    except OSError:
        return b""


def everything():
    """Seeds what this process has loaded and can seed. One that fails does not keep the others from it; returns whose
    seeding failed."""
    failed = []
    for name, seed in (("random", _random), ("tempfile", _tempfile), ("uuid", _uuid), ("numpy.random", _numpy),
                       ("_ssl", _ssl), ("torch", _torch)):
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            seed(module)
        except Exception as error:    # a module of that name may be anything
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def _random(module):
    module.seed(int.from_bytes(os.urandom(2500), "little"))


def _tempfile(module):
    module._name_sequence = None    # the next name makes a new one, seeded by the kernel


def _uuid(module):
    # libuuid would go on with the clock sequence and the card's address that it has read. uuid1 of Python draws its
    # clock sequence each time, and the node is random from here on.
    module._generate_time_safe = None
    module._last_timestamp = None
    module._node = module._random_getnode()


def _numpy(module):
    module.seed()


def _ssl(module):
    module.RAND_add(os.urandom(64), 64.0)


def _torch(module):
    module.seed()
