# SPDX-License-Identifier: Apache-2.0
"""One daemon with a warm Python machine for all of the clients' tests: booted once, every sandbox goes on from it.

Also both forms of the Python client behind one face, so that a test is written once and tried with each.
"""
import asyncio
import faulthandler
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
SDK = os.path.join(ROOT, "tools/sdk/python")
EXAMPLES = os.path.join(ROOT, "tools/sdk/examples")
sys.path[:0] = [HERE, os.path.join(ROOT, "tests/e2e/cli"), SDK]
import ramet    # noqa: E402
import rig    # noqa: E402
import warm    # noqa: E402
from warm import TEMPLATE    # noqa: E402


class Machines(warm.WarmDaemon):
    """The daemon. `url` and `key` are for TCP, `socket` needs no key."""

    def __init__(self):
        super().__init__("sdk")
        # What sandboxes are made of when nobody says of what: a disk, which boots.
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")

    @property
    def socket(self):
        return f"unix://{self.daemon.run}/api.sock"

    def client(self, **options):
        return ramet.Ramet(self.url, self.key, **options)

    def environment(self, **more):
        """What a program needs to find the daemon."""
        return {**os.environ, "RAMET_API": self.url, "RAMET_API_KEY": self.key, "PYTHONPATH": SDK, **more}


machines = None


class MachineCase(unittest.TestCase):
    """A sandbox of its own for each class, `box`, and a client."""

    @classmethod
    def setUpClass(cls):
        cls.client = machines.client()
        cls.box = cls.client.create_sandboxes({"from": TEMPLATE})["name"]
        cls.addClassCleanup(cls.client.close)
        cls.addClassCleanup(cls.client.delete_sandbox, cls.box)

    def through_both(self):
        """The twin alone, whose calls go through the plain form; in long runs each by itself."""
        return self.both() if os.environ.get("RAMET_TEST_LONG") else (each for each in self.both() if self.tried == "Twin")

    def both(self):
        """Each form of the client; a failure's line says which one it was tried with."""
        for form in (Sync, Twin):
            driver = form(machines.url, machines.key)
            self.addCleanup(driver.close)
            self.tried = form.__name__
            yield driver

    def _formatMessage(self, msg, standard):
        return f"{super()._formatMessage(msg, standard)} [{getattr(self, 'tried', 'no client')}]"

    def failure(self, status, code, call, *args, **kwargs):
        with self.assertRaises(ramet.RametError) as caught:
            value = call(*args, **kwargs)
            if hasattr(value, "__next__"):
                list(value)
        self.assertEqual((caught.exception.status, caught.exception.code), (status, code), caught.exception)
        return caught.exception


class TimedResult(unittest.TextTestResult):
    """Says how long each test took: what CI's time goes to."""

    def startTest(self, test):
        self.begin = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.stream.write(f"{time.monotonic() - self.begin:.1f} s ")
        super().addSuccess(test)


class Sync:
    """Ramet as it is."""

    def __init__(self, url, key, **options):
        self.client = ramet.Ramet(url, key, **options)
        self.sync = self.client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def sandbox(self, info):
        return ramet.Sandbox(info, self.client)

    def close(self):
        self.client.close()


class Twin:
    """AsyncRamet, called from outside of its event loop: what it gives later is waited for, streams are iterated."""

    def __init__(self, url, key, **options):
        self.loop = asyncio.new_event_loop()
        self.client = ramet.AsyncRamet(url, key, **options)
        self.sync = self.client.sync

    def __getattr__(self, name):
        return Wrapped(self.loop, self.client).__getattr__(name)

    def sandbox(self, info):
        return Wrapped(self.loop, ramet.AsyncSandbox(ramet.Sandbox(info, self.sync)))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Wrapped:
    def __init__(self, loop, value):
        self._loop, self._value = loop, value

    def __getattr__(self, name):
        return self._wrap(getattr(self._value, name))

    def _wrap(self, value):
        if asyncio.iscoroutine(value):
            return self._wrap(self._loop.run_until_complete(value))
        if isinstance(value, ramet.AsyncStream):
            return Iterated(self._loop, value)
        if isinstance(value, list):
            return [self._wrap(each) for each in value]
        if type(value).__module__ == "ramet" and type(value).__name__.startswith("Async"):
            return Wrapped(self._loop, value)
        if callable(value):
            return lambda *args, **kwargs: self._wrap(value(*args, **kwargs))
        return value


class Iterated:
    def __init__(self, loop, stream):
        self._loop, self._stream = loop, stream

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._loop.run_until_complete(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self):
        self._loop.run_until_complete(self._stream.aclose())

    def __enter__(self):
        self._loop.run_until_complete(self._stream.__aenter__())
        return self

    def __exit__(self, *_):
        self.close()


def main(*cases):
    """Runs these with one daemon. Words of the command line name some of them, as unittest has it."""
    global machines
    if not rig.BIN:
        rig.skip("RAMET_BIN does not say where the programs are")
    warm.need()
    suite = unittest.TestSuite()
    for case in cases:
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
            if len(sys.argv) == 1 or any(word in test.id() for word in sys.argv[1:]):
                suite.addTest(test)
    failed = True
    faulthandler.dump_traceback_later(1400, exit=False)    # before ctest ends it: where it hangs
    sys.modules["machines"].machines = machines = Machines()
    try:
        result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout, resultclass=TimedResult).run(suite)
        failed = not result.wasSuccessful()
    finally:
        machines.close(failed)
    sys.exit(1 if failed else 0)
