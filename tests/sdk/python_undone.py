# SPDX-License-Identifier: Apache-2.0
"""Calls of the Python client that make something and lose their answer for good: what nobody could find again is removed."""
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

import ramet
from fake import Fake, answer, error
from ramet import AsyncRamet, Ramet, RametConnectionError, RametError

HERE = os.path.dirname(os.path.abspath(__file__))
MADE = answer({"id": "sbx_1", "name": "b1", "state": "running"}, 201)
GONE = answer(b"", 204)
HANG_SECS = 300    # only to end a test that would hang


def calls(server):
    return [f"{request.method} {request.path}" for request in server.requests]


def keys(server):
    return {request.headers["idempotency-key"] for request in server.requests if request.method == "POST"}


class Undone(unittest.TestCase):
    def serve(self, *answers):
        """A server that keeps the first request's answer back until `self.hold` is set."""
        self.hold = threading.Event()
        self.addCleanup(self.hold.set)
        server = Fake(lambda _: self.hold.wait(2 * HANG_SECS) and None, *answers)
        self.addCleanup(server.close)
        return server

    def unanswered(self, *answers):
        """A server that has a create's request and no answer for it in time, and what the client says then. On a slow host the time may
        be over before the server reads the request, and another one is first: that is tried again with a longer time."""
        for secs in 0.2, 2, 20, 200:
            server = self.serve(*answers)
            with Ramet(server.url, timeout=secs, retries=0) as client, self.assertRaises(RametConnectionError) as caught:
                client.create_sandboxes()
            self.arrived(server, 1)
            if server.requests[0].connection == 1:
                break
            self.hold.set()
            self.settled(server, 1)
        self.assertEqual(server.requests[0].connection, 1)
        return server, caught.exception

    def arrived(self, server, count, more=lambda: False):
        """Waits until so many requests came."""
        limit = time.monotonic() + HANG_SECS
        while len(server.requests) < count or more():
            self.assertLess(time.monotonic(), limit, calls(server))
            time.sleep(0.01)
        return calls(server)

    def settled(self, server, count):
        """Waits until so many requests came, and nothing more is under way."""
        return self.arrived(server, count, lambda: ramet._Undo._all)

    def cancelled(self, server, call):
        async def main():
            async with AsyncRamet(server.url, retries=0) as client:
                task = asyncio.create_task(call(client))
                while not server.requests:
                    await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        asyncio.run(main())

    def test_everything_that_has_no_name(self):
        """A01: each kind of thing, by what the answer to the same key says."""
        box = "/v1/sandboxes/box"
        two = {"tree_id": "tree_1", "children": [{"id": "sbx_2"}, {"id": "sbx_3"}]}
        for call, made, removed in (
                (lambda c: c.create_sandboxes({"from": "t"}), {"id": "sbx_1"}, ["/v1/sandboxes/sbx_1"]),
                (lambda c: ramet.AsyncSandbox.create("t", client=c), {"id": "sbx_1"}, ["/v1/sandboxes/sbx_1"]),
                (lambda c: c.fork_sandbox("box", count=2), two, ["/v1/sandboxes/sbx_2", "/v1/sandboxes/sbx_3"]),
                (lambda c: c.snapshot("box"), {"id": "snap_1"}, ["/v1/snapshots/snap_1"]),
                (lambda c: c.start_job("box", "sleep 9"), {"id": 7}, [box + "/jobs/7?kill=1"]),
                (lambda c: c.create_context("box"), {"id": "ctx_1"}, [box + "/contexts/ctx_1"]),
                (lambda c: c.create_url("box", 80), {"id": "url_1"}, [box + "/urls/url_1"]),
                (lambda c: c.create_key(name="k"), {"id": "key_1"}, ["/v1/keys/key_1"]),    # its secret is lost
                (lambda c: c.snapshot_volume("v"), {"id": "snap_2"}, ["/v1/snapshots/snap_2"])):
            server = self.serve(answer(made, 201), *[GONE] * len(removed))
            self.cancelled(server, call)
            seen = self.settled(server, 2 + len(removed))
            self.assertEqual(seen[2:], ["DELETE " + path for path in removed])
            self.assertEqual((seen[0], len(keys(server))), (seen[1], 1))
            self.assertEqual(server.requests[0].body, server.requests[1].body)

    def test_what_has_a_name_stays(self):
        """Whoever named it, or its request, can find it again, and perhaps has already."""
        for call in (lambda c: c.create_sandboxes({"name": "chat-7"}), lambda c: c.create_sandboxes(idempotency_key="mine"),
                     lambda c: c.fork_sandbox("box", names=["a"]), lambda c: c.snapshot("box", {"name": "monday"}),
                     lambda c: c.start_job("box", "x", name="server"), lambda c: c.create_context("box", {"id": "own"}),
                     lambda c: c.create_volume({"name": "v", "size_bytes": 4096}), lambda c: c.exec("box", "true")):
            server = self.serve()
            self.cancelled(server, call)
            self.assertEqual(len(self.settled(server, 1)), 1)

    def test_cancelled_when_the_answer_was_there(self):
        """Between the last byte and the waiting task an answer can be lost too."""
        load, there = ramet._load, threading.Event()

        def slow_load(data):
            there.set()
            self.hold.wait(HANG_SECS)
            return load(data)
        server = self.serve(MADE, GONE)
        server.answers[0] = MADE

        async def main():
            async with AsyncRamet(server.url) as client:
                task = asyncio.create_task(client.create_sandboxes())
                while not there.is_set():
                    await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.hold.set()
        with unittest.mock.patch.object(ramet, "_load", slow_load):
            asyncio.run(main())
            self.assertEqual(self.settled(server, 3)[2], "DELETE /v1/sandboxes/sbx_1")

    def test_cancelled_before_it_was_sent(self):
        """A server that never heard of it makes nothing now."""
        server = self.serve()
        server.answers[:] = [error(503, "capacity.busy", retryable=True, retry_after_secs=25)]

        async def main():
            async with AsyncRamet(server.url, workers=1) as client:
                tasks = [asyncio.create_task(client.create_sandboxes()) for _ in range(2)]    # one waits for a retry, one for its turn
                while not server.requests:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        with unittest.mock.patch.object(ramet, "_sleep", lambda _: ramet._current_cancel().wait(3600)):
            asyncio.run(main())
        self.assertEqual(len(self.settled(server, 1)), 1)

    def test_no_answer_in_time(self):
        server, said = self.unanswered(MADE, GONE)
        self.assertIn("removed in the background", str(said))
        self.assertEqual(self.settled(server, 3)[2], "DELETE /v1/sandboxes/sbx_1")

    def test_answers_that_take_long(self):
        """The first request still runs, the connection breaks again, and a removal has to wait: it is tried on."""
        server, _ = self.unanswered(error(409, "idempotency.in_progress", retryable=True), None, MADE, error(409, "sandbox.invalid_state"), None, GONE)
        self.assertEqual(self.settled(server, 7)[4:], ["DELETE /v1/sandboxes/sbx_1"] * 3)
        self.assertEqual(len(keys(server)), 1)

    def test_refusals_are_answers(self):
        """An error says that nothing was made; a gateway's does not."""
        server = self.serve()
        server.answers[:] = [error(409, "sandbox.conflict"), answer(b"<h1>gateway time-out</h1>", 504), MADE, GONE]
        with Ramet(server.url, retries=0) as client:
            for count in (1, 4):
                with self.assertRaises(RametError):
                    client.create_sandboxes()
                self.assertEqual(len(self.settled(server, count)), count)
        server, _ = self.unanswered(error(503, "capacity.memory", retryable=True))    # there was nothing, and now there is no room
        self.assertEqual(len(self.settled(server, 2)), 2)

    def test_ctrl_c(self):
        """The program ends when what it made is gone; of a server that is gone too it does not wait."""
        for there in (True, False):
            server = self.serve(MADE, GONE)
            program = subprocess.Popen([sys.executable, "-c", "import ramet, sys; ramet.Ramet(sys.argv[1], retries=20).create_sandboxes()", server.url],
                                       stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.path.dirname(ramet.__file__)})
            while not server.requests:
                time.sleep(0.01)
            if not there:
                server.close()
            program.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", program.communicate(timeout=HANG_SECS)[1])
            self.assertEqual(calls(server)[1:], ["POST /v1/sandboxes", "DELETE /v1/sandboxes/sbx_1"] if there else [])
