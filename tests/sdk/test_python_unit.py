# SPDX-License-Identifier: Apache-2.0
"""The Python client against servers that answer as told: what is tried again and what is not, streams in any pieces, what is left open."""
import asyncio
import gc
import inspect
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
SDK = os.path.join(HERE, "../../tools/sdk/python")
sys.path[:0] = [HERE, SDK]
import ramet    # noqa: E402
from environments import copy_of_sdk, environment    # noqa: E402
from fake import Fake, answer, error, events, in_threads    # noqa: E402
from python_hostile import Hostile    # noqa: E402, F401: run with what is here
from python_surface import Surface    # noqa: E402, F401: as well
from python_undone import Undone    # noqa: E402, F401: as well
from ramet import AsyncRamet, Ramet, RametConnectionError, RametError    # noqa: E402


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Calls(unittest.TestCase):
    def serve(self, *answers, **options):
        server = Fake(*answers)
        self.addCleanup(server.close)
        client = Ramet(server.url, "e2b_0", **options)
        self.addCleanup(client.close)
        return server, client

    def test_keeps_connections(self):
        server, client = self.serve(*[answer({"n": n}) for n in range(5)])
        for n in range(5):
            self.assertEqual(client.version(), {"n": n})
        self.assertEqual(server.connections, 1)
        self.assertEqual(server.requests[0].headers["authorization"], "Bearer e2b_0")
        self.assertEqual(server.requests[0].headers["host"], server.url.removeprefix("http://"))

    def test_stale_connection(self):
        """One that the server closed while it was idle costs nothing, also a call that must not be sent twice."""
        server, client = self.serve(answer({}), answer({"n": 1}), answer({"exit_code": 0}))
        client.version()
        server.drop_idle()
        self.assertEqual(client.version(), {"n": 1})
        server.drop_idle()
        self.assertEqual(client.exec("box", "true"), {"exit_code": 0})

    def test_lost_answer_of_a_create(self):
        """A01: the same key in each try, and another one in the next call."""
        server, client = self.serve(None, None, answer({"id": "sbx_1"}, 201), answer({"id": "sbx_2"}, 201))
        self.assertEqual(client.create_sandboxes({"name": "box"})["id"], "sbx_1")
        client.create_sandboxes({"name": "box2"})
        keys = [request.headers["idempotency-key"] for request in server.requests]
        self.assertEqual(len(set(keys[:3])), 1)
        self.assertNotEqual(keys[2], keys[3])
        self.assertEqual({request.body for request in server.requests[:3]}, {b'{"name":"box"}'})

    def test_answer_cut_in_the_middle(self):
        whole = answer({"id": "sbx_1", "more": "x" * 1000}, 201)
        server, client = self.serve(whole[:500] + Fake.CLOSE, whole)
        self.assertEqual(client.fork_sandbox("box", {})["id"], "sbx_1")
        self.assertEqual(len({request.headers["idempotency-key"] for request in server.requests}), 1)

    def test_command_is_never_sent_twice(self):
        server, client = self.serve(None, answer({}))
        with self.assertRaises(RametConnectionError) as caught:
            client.exec("box", "rm -rf /")
        self.assertEqual((len(server.requests), caught.exception.status, caught.exception.code), (1, 0, "connection.broken"))
        self.assertNotIn("idempotency-key", server.requests[0].headers)
        for code in ("capacity.timeout", "capacity.guest_gone"):    # it may have begun
            server, client = self.serve(error(503, code, retryable=True))
            with self.assertRaises(RametError):
                client.run_code("box", "python", "x += 1")
            self.assertEqual(len(server.requests), 1)
        server, client = self.serve(error(503, "capacity.busy", retryable=True, retry_after_secs=0), answer({"text": "2"}))
        self.assertEqual(client.run_code("box", "python", "1 + 1")["text"], "2")

    def test_retries_what_is_marked(self):
        busy = error(503, "capacity.memory", retryable=True, retry_after_secs=0.05)
        server, client = self.serve(busy, busy, answer({"id": "sbx_1"}, 201))
        begin = time.monotonic()
        client.create_sandboxes({})
        self.assertGreaterEqual(time.monotonic() - begin, 0.1)    # it waited as told
        self.assertEqual(len({request.headers["idempotency-key"] for request in server.requests}), 1)
        server, client = self.serve(*[busy] * 10)
        with self.assertRaises(RametError) as caught:
            client.create_sandboxes({})
        self.assertEqual((len(server.requests), caught.exception.retry_after_secs), (4, 0.05))
        for status, code in ((500, "internal.error"), (409, "sandbox.conflict"), (507, "capacity.storage")):
            server, client = self.serve(error(status, code))
            with self.assertRaises(RametError):
                client.create_sandboxes({})
            self.assertEqual(len(server.requests), 1)
        server, client = self.serve(error(503, "capacity.busy", retryable=True, retry_after_secs=3600))
        with self.assertRaises(RametError):
            client.get_sandbox("box")    # nobody waits for an hour
        self.assertEqual(len(server.requests), 1)
        server, client = self.serve(error(429, "rate_limit.exceeded", retryable=True, retry_after_secs=0), answer({"exit_code": 0}))
        client.exec("box", "true")

    def test_delete_whose_answer_was_lost(self):
        server, client = self.serve(None, error(404, "sandbox.not_found"), error(404, "sandbox.not_found"))
        client.delete_sandbox("box")
        with self.assertRaises(RametError):
            client.delete_sandbox("box")

    def test_silence(self):
        release = threading.Event()
        self.addCleanup(release.set)
        server, client = self.serve(lambda _: release.wait(60) and None, timeout=0.2, retries=0)
        with self.assertRaises(RametConnectionError) as caught:
            client.version()
        self.assertEqual(caught.exception.code, "connection.timeout")
        # A command's own time-out counts, and the grace.
        slow = lambda _: time.sleep(0.5) or answer({"exit_code": 0})    # noqa: E731
        server, client = self.serve(slow, slow, timeout=0.1, retries=0)
        self.assertEqual(client.exec("box", {"command": "x", "timeout_secs": 1})["exit_code"], 0)
        self.assertEqual(client.exec("box", "x")["exit_code"], 0)

    def test_nobody_there(self):
        with Fake() as server:
            url = server.url
        for where in (url, "unix:///tmp/there-is-none.sock"):
            client = Ramet(where, retries=1)
            with self.assertRaises(RametConnectionError) as caught:
                client.create_sandboxes({})
            self.assertIn("ramet up", caught.exception.message)
            self.assertTrue(caught.exception.retryable)

    def test_bad_addresses_and_names(self):
        for url in ("ftp://x", "http://", "http://host:port", "unix://relative", "http://user@host:1", "http://host/?q"):
            with self.assertRaises(RametError, msg=url):
                Ramet(url)
        with self.assertRaises(RametError):
            Ramet("http://h", "two words")
        with self.assertRaises(RametError):
            Ramet("https://h", ca_file="/there/is/none.pem")
        client = Ramet("http://127.0.0.1:1/v1/")
        self.assertEqual(client.url, "http://127.0.0.1:1")
        for name in ("", None, 1.5, True):
            with self.assertRaises(RametError):
                client.get_sandbox(name)
        with self.assertRaises(RametError) as caught:    # X04: no lone surrogate is sent, and the words say where it is
            client.exec("box", "echo '\ud800'")
        self.assertIn("surrogate", caught.exception.message)
        with self.assertRaises(RametError):
            client.write_file("box", "\udead", "x")

    def test_errors(self):
        server, client = self.serve(
            error(404, "sandbox.not_found", "there is none", retry_after_secs=None),
            answer({"code": 401, "message": "in E2B's words"}, 401), answer(b"<h1>gateway</h1>", 502, X_Request_Id="req_9"),
            answer(b"not json"), answer({"error": {"message": "later"}}, 429, Retry_After="7000"))
        seen = []
        for _ in range(5):
            with self.assertRaises(RametError) as caught:
                client.get_sandbox("box")
            seen.append(caught.exception)
        self.assertEqual((seen[0].status, seen[0].code, seen[0].message, seen[0].request_id, seen[0].retryable, seen[0].details),
                         (404, "sandbox.not_found", "there is none", "req_1", False, {"retryable": False}))
        self.assertEqual(str(seen[0]), "there is none (404 sandbox.not_found, req_1)")
        self.assertEqual((seen[1].status, seen[1].message), (401, "in E2B's words"))
        self.assertEqual((seen[2].message, seen[2].request_id), ("<h1>gateway</h1>", "req_9"))
        self.assertEqual(seen[3].code, "client.protocol")
        self.assertEqual((seen[4].retryable, seen[4].retry_after_secs), (True, 7000))
        again = pickle.loads(pickle.dumps(seen[0]))
        self.assertEqual((again.code, str(again)), (seen[0].code, str(seen[0])))

    def test_paths(self):
        server, client = self.serve(*[answer({"entries": [], "sandboxes": []})] * 4)
        client.list_files("box", "a b/ü&?#%\udcff")    # the last one as os.fsdecode makes it
        client.list_sandboxes(label={"app": "x=1"}, state="running")
        client.get_volume("box/disk")
        client.request("GET", "/v1/anything")
        self.assertEqual([request.path for request in server.requests],
                         ["/v1/sandboxes/box/files?path=a%20b%2F%C3%BC%26%3F%23%25%FF", "/v1/sandboxes?state=running&label=app%3Dx%3D1",
                          "/v1/volumes/box/disk", "/v1/anything"])

    def test_uploads(self):
        server, client = self.serve(*[answer(b"", 204)] * 4, None, answer(b"", 204), None)
        file = io.BytesIO(b"0123456789")
        file.seek(3)
        for content in (b"bytes", "text ü", iter([b"pie", b"", b"ces"]), file):
            client.write_file("box", content, "x", mode=0o755)
        self.assertEqual([request.body for request in server.requests], [b"bytes", "text ü".encode(), b"pieces", b"3456789"])
        self.assertTrue(all(request.path.endswith("mode=755") for request in server.requests))
        file.seek(3)
        client.write_file("box", file, "x")    # the answer was lost: what can be sent again is
        self.assertEqual(server.requests[-1].body, b"3456789")
        with self.assertRaises(RametConnectionError):
            client.write_file("box", iter([b"once"]), "x")
        self.assertEqual(server.requests[-1].body, b"once")
        with self.assertRaises(RametError) as caught:
            client.write_file("box", io.StringIO("text"), "x")
        self.assertIn("binary", caught.exception.message)

    def test_files_that_change_while_they_are_sent(self):
        """Exactly as many bytes go as were announced: more would be taken for the next request."""
        class Growing(io.BytesIO):
            def read(self, size=-1):
                self.seek(0, io.SEEK_END)
                self.write(b"GET /v1/keys HTTP/1.1\r\n\r\n")
                self.seek(0)
                return super().read(size)

        class Shrinking(io.BytesIO):
            def read(self, size=-1):
                return super().read(size) if self.tell() == 0 else b""
        server, client = self.serve(answer(b"", 204), answer(b"", 204), answer({"n": 1}))
        client.write_file("box", Growing(b"12345"), "x")
        client.write_file("box", io.BytesIO(), "x")
        self.assertEqual(client.version(), {"n": 1})
        self.assertEqual([request.body for request in server.requests], [b"12345", b"", b""])
        with unittest.mock.patch.object(ramet, "_PIECE", 4), self.assertRaises(RametError) as caught:
            client.write_file("box", Shrinking(b"12345"), "x")
        self.assertIn("shorter", caught.exception.message)

    def test_refused_upload(self):
        """A server that refuses a long body with words and closes is heard."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve():
            sock, _ = listener.accept()
            sock.recv(1000)
            sock.sendall(error(413, "validation.too_large", "too much"))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 20):
                pass
            sock.close()
        threading.Thread(target=serve, daemon=True).start()
        client = Ramet(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with self.assertRaises(RametError) as caught:
            client.write_file("box", iter([b"x" * 100000] * 100), "x")
        self.assertEqual(caught.exception.code, "validation.too_large")

    def test_many_threads(self):
        server, client = self.serve(*[answer({"n": n}) for n in range(200)])
        found, lock = [], threading.Lock()

        def work(_):
            for _ in range(20):
                value = client.version()["n"]
                with lock:
                    found.append(value)
        in_threads(10, work)
        self.assertEqual(sorted(found), list(range(200)))
        self.assertLessEqual(server.connections, 10)


class Streams(unittest.TestCase):
    serve = Calls.serve

    def parse(self, data, size):
        parser, found = ramet._EventParser(), []
        for begin in range(0, len(data), size):
            found += parser.feed(data[begin:begin + size])
        return [(event.kind, dict(event), event.id) for event in found]

    def test_any_pieces(self):
        """X03, A02: lines of every ending, in every cut, give the same events; characters are whole."""
        data = ('\ufeff: a comment\n\nevent: stdout\ndata: {"text":\ndata: "─😀"}\nid: 7\n\n'
                'event: x\r\ndata:{"text":":colon"}\r\n\r\nid\rdata: [1]\r\rdata: {"text":"\\ud800"}\n\nretry: 50\nevent: lost\n\n').encode()
        wanted = [("stdout", {"text": "─😀"}, "7"), ("x", {"text": ":colon"}, "7"), ("message", {"data": [1]}, ""),
                  ("message", {"text": "\ud800"}, "")]
        for size in range(1, len(data) + 1):
            self.assertEqual(self.parse(data, size), wanted, size)

    def test_long_line(self):
        """X13: nothing has a limit of 64 KiB."""
        text = "x" * (30 << 20)
        data = b'event: stdout\ndata: {"text":"%s"}\n\nevent: exit\ndata: {"exit_code":0}\n\n' % text.encode()
        server, client = self.serve(events(data), events(data))
        self.assertEqual([len(event.get("text", "")) for event in client.exec_stream("box", "x")], [len(text), 0])

        async def twin():
            async with AsyncRamet(server.url) as twin:
                return [len(event.get("text", "")) async for event in twin.exec_stream("box", "x")]
        self.assertEqual(asyncio.run(twin()), [len(text), 0])

    def test_ends(self):
        out = b'event: stdout\ndata: {"text":"a"}\n\n'
        last = b'event: exit\ndata: {"exit_code":0}\n\n'
        failed = b'event: error\ndata: {"code":"exec.ended","message":"it was stopped","request_id":"req_2"}\n\n'
        server, client = self.serve(events(out, last), answer({}), events(out, failed), events(out, end=False) + Fake.CLOSE, events(out))
        self.assertEqual([event.kind for event in client.exec_stream("box", "x")], ["stdout", "exit"])
        client.version()
        self.assertEqual(server.connections, 1)    # a stream read to its end leaves its connection for the next call
        seen = []
        with self.assertRaises(RametError) as caught:
            for event in client.exec_stream("box", "x"):
                seen.append(event["text"])
        self.assertEqual((seen, caught.exception.code, caught.exception.status, caught.exception.request_id), (["a"], "exec.ended", 409, "req_2"))
        for _ in range(2):    # broken off, or ended without its last event: a command's output cannot be resumed
            seen = []
            with self.assertRaises(RametConnectionError):
                for event in client.exec_stream("box", "x"):
                    seen.append(event["text"])
            self.assertEqual(seen, ["a"])

    def test_resumes(self):
        """A02: exactly once, after a cut between events and in the middle of one; and the client gives up in the end."""
        one, two = (b'id: %d\nevent: stdout\ndata: {"text":"%d"}\n\n' % (n, n) for n in (1, 2))
        end = b'event: end\ndata: {"exit_code":0}\n\n'
        server, client = self.serve(events(one, two[:20], end=False) + Fake.CLOSE, None, events(two, end=False) + Fake.CLOSE, events(end))
        self.assertEqual([(event.kind, event.get("text")) for event in client.job_logs("box", 3)],
                         [("stdout", "1"), ("stdout", "2"), ("end", None)])
        self.assertEqual([request.headers.get("last-event-id") for request in server.requests], [None, "1", "1", "2"])
        server, client = self.serve(*[events(one, end=False) + Fake.CLOSE] + [None] * 50, retries=0)
        stream = client.job_logs("box", 3)
        self.assertEqual(next(stream)["text"], "1")
        with unittest.mock.patch.object(ramet._EventStream, "_TRIES", 2), self.assertRaises(RametConnectionError):
            next(stream)

    def test_quiet_streams_may_break_often(self):
        """What held for long, though nothing was told, does not count among the tries that are left."""
        last = b'event: end\ndata: {"exit_code":0}\n\n'
        server, client = self.serve(*[events(b":\n\n", end=False) + Fake.CLOSE] * 5, events(last), retries=0)
        with unittest.mock.patch.multiple(ramet._EventStream, _TRIES=1, _STEADY_SECS=-1.0):
            self.assertEqual([event.kind for event in client.job_logs("box", 3)], ["end"])
        self.assertEqual(len(server.requests), 6)

    def test_close_from_another_thread(self):
        out, last = b'event: stdout\ndata: {"text":"a"}\n\n', b'event: exit\ndata: {"exit_code":0}\n\n'
        closes = lambda data: data.replace(b"200 OK", b"200 OK\r\nConnection: close")    # noqa: E731
        server, client = self.serve(events(out, end=False), closes(events(out, end=False)), closes(events(out, last, end=False)))
        for _ in range(2):
            stream = client.exec_stream("box", "x")
            self.assertEqual(next(stream)["text"], "a")
            threading.Timer(0.1, stream.close).start()
            self.assertEqual(list(stream), [])
            self.assertEqual(list(stream), [])
        # An answer that does not end behind its last event is not waited for.
        self.assertEqual([event.kind for event in client.exec_stream("box", "x")], ["stdout", "exit"])

    def test_closing_touches_no_other_call(self):
        """A stream that was read to its end has given its connection back: closing it then must not break who has it now."""
        last = b'event: exit\ndata: {"exit_code":0}\n\n'
        hold = threading.Event()
        self.addCleanup(hold.set)
        server, client = self.serve(events(last), answer(b"abc"), lambda _: hold.wait(60) and answer({"n": 1}))
        stream, raw = client.exec_stream("box", "x"), None
        self.assertEqual([event.kind for event in stream], ["exit"])
        raw = client.read_file_stream("box", "x")
        self.assertEqual(b"".join(raw), b"abc")
        found = []
        other = threading.Thread(target=lambda: found.append(client.exec("box", "true")))
        other.start()
        while len(server.requests) < 3:
            time.sleep(0.01)
        stream.close()
        raw.close()
        hold.set()
        other.join(60)
        self.assertEqual((found, server.connections), ([{"n": 1}], 1))

    def test_raw_bodies(self):
        data = os.urandom(1 << 20)
        server, client = self.serve(answer(data), answer(data), answer(data)[:1000] + Fake.CLOSE)
        self.assertEqual(client.read_file("box", "x"), data)
        self.assertEqual(b"".join(client.read_file_stream("box", "x")), data)
        with self.assertRaises(RametConnectionError):
            b"".join(client.read_file_stream("box", "x"))


class Twin(unittest.TestCase):
    def test_whole(self):
        """Every public method has its twin, with its parameters and text."""
        for sync, twin in ((Ramet, AsyncRamet), (ramet.Sandbox, ramet.AsyncSandbox), (ramet.CodeContext, ramet.AsyncCodeContext),
                           (ramet.Files, ramet.AsyncFiles), (ramet.Commands, ramet.AsyncCommands), (ramet.Pty, ramet.AsyncPty)):
            own = {name for name, value in vars(sync).items() if not name.startswith("_") and (callable(value) or isinstance(value, classmethod))}
            missing = own - set(dir(twin)) - {"request"}
            self.assertEqual(missing, set(), twin)
        client = AsyncRamet("http://127.0.0.1:1")
        self.assertIn("timeout_secs", client.exec.__doc__)
        self.assertEqual(list(inspect.signature(client.wait_until).parameters)[1:], ["name", "state", "timeout_secs"])

    def test_everything_is_documented(self):
        for name in ramet.__all__:
            value = getattr(ramet, name)
            self.assertTrue(value.__doc__, name)
            for part, member in vars(value).items() if isinstance(value, type) else ():
                if not part.startswith("_") and (callable(member) or isinstance(member, (property, classmethod))):
                    self.assertTrue(inspect.getdoc(getattr(value, part)), f"{name}.{part}")

    def test_cancelling_ends_the_request(self):
        gone = threading.Event()

        def hang(request):
            sock = next(iter(server.open))
            while sock.recv(1):
                pass
            gone.set()
        with Fake(hang, events(b'event: stdout\ndata: {"text":"a"}\n\n', end=False)) as server:
            async def main():
                async with AsyncRamet(server.url, workers=1) as client:
                    call = asyncio.create_task(client.exec("box", "sleep 400"))
                    while not server.requests:
                        await asyncio.sleep(0.01)
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(call, 0.1)
                    self.assertTrue(await asyncio.to_thread(gone.wait, 120))
                    stream = client.exec_stream("box", "x")    # the one worker is free again
                    self.assertEqual((await stream.__anext__())["text"], "a")
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(stream.__anext__(), 0.2)
                    self.assertEqual([event async for event in stream], [])
            asyncio.run(main())

    def test_cancelling_touches_no_other_call(self):
        """A wait between two questions holds no connection: cancelling it must not break who has that one now."""
        hold = threading.Event()
        with Fake(answer({"state": "creating"}), lambda _: hold.wait(60) and answer({"n": 1})) as server:
            async def main():
                async with AsyncRamet(server.url) as client:
                    with unittest.mock.patch.object(ramet, "_sleep", lambda _: ramet._current_cancel().wait(60)):
                        wait = asyncio.create_task(client.wait_until("box", "running"))
                        while not client.sync._transport.pool._idle:
                            await asyncio.sleep(0.01)
                        other = asyncio.create_task(client.exec("box", "true"))
                        while len(server.requests) < 2:
                            await asyncio.sleep(0.01)
                        wait.cancel()
                        with self.assertRaises(asyncio.CancelledError):
                            await wait
                        hold.set()
                        self.assertEqual(await other, {"n": 1})
                    self.assertEqual(server.connections, 1)
            asyncio.run(main())

    def test_cancelled_exploration_leaves_no_forks(self):
        """And it needs no thread of those that its approaches wait for."""
        fork = {"tree_id": "tree_1", "children": [{"id": f"sbx_{n}", "name": f"b{n}", "state": "running"} for n in (1, 2)]}
        with Fake(answer(fork, 201), answer(b"", 204), answer(b"", 204)) as server:
            async def main():
                async with AsyncRamet(server.url, workers=1, retries=0) as client:
                    box = ramet.AsyncSandbox(ramet.Sandbox({"id": "sbx_0", "name": "box", "state": "running"}, client))
                    both, stopped = asyncio.Event(), []

                    async def approach(child):
                        stopped.append(child.name)
                        if len(stopped) == 2:
                            both.set()
                        await asyncio.Event().wait()
                    task = asyncio.create_task(box.explore([approach, approach]))
                    await asyncio.wait_for(both.wait(), 60)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    while len(server.requests) < 3:
                        await asyncio.sleep(0.01)
            asyncio.run(main())
            self.assertEqual(sorted(request.method + " " + request.path for request in server.requests[1:]),
                             ["DELETE /v1/sandboxes/sbx_1", "DELETE /v1/sandboxes/sbx_2"])

    def test_cancelled_while_it_waits_for_a_retry(self):
        with Fake(error(503, "capacity.busy", retryable=True, retry_after_secs=25)) as server:
            waits = threading.Event()

            def for_ever(_):
                waits.set()
                ramet._current_cancel().wait(3600)

            async def main():
                async with AsyncRamet(server.url, workers=1) as client:
                    task = asyncio.create_task(client.get_sandbox("box"))
                    while not waits.is_set():
                        await asyncio.sleep(0.01)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    server.answers.append(answer({"n": 1}))
                    self.assertEqual(await asyncio.wait_for(client.version(), 300), {"n": 1})    # the one worker is free again
            with unittest.mock.patch.object(ramet, "_sleep", for_ever):
                asyncio.run(main())

    def test_back_pressure(self):
        """Who reads slowly is sent slowly: nothing is gathered in between."""
        sent = [0]

        def flood(request):
            sock = next(iter(server.open))
            sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            block = b'event: stdout\ndata: {"text":"%s"}\n\n' % (b"x" * 65536)
            sock.settimeout(300)    # only to end it: who leaves ends it too
            try:
                for _ in range(2000):
                    sock.sendall(b"%x\r\n%s\r\n" % (len(block), block))
                    sent[0] += 1
            except OSError:
                pass
        with Fake(flood) as server:
            async def main():
                async with AsyncRamet(server.url) as client:
                    async with client.exec_stream("box", "yes") as stream:
                        await stream.__anext__()
                        while sent[0] != (before := sent[0]) or before == 0:
                            await asyncio.sleep(0.05)
                        await asyncio.sleep(0.5)
            asyncio.run(main())
            self.assertLess(sent[0], 500)    # of 2000 pieces of 64 KiB: what the sockets hold


class Nothing(unittest.TestCase):
    def collect_until(self, condition):
        limit = time.monotonic() + 120
        while not condition() and time.monotonic() < limit:
            gc.collect()
            time.sleep(0.02)

    def test_left_open(self):
        """GC: a client, its streams and its twin that nobody closed leave no socket and no warning."""
        gc.collect()    # what other tests left has no part in this
        self.collect_until(lambda: not Fake.everywhere)
        out = b'event: stdout\ndata: {"text":"a"}\n\n'
        with Fake(answer({}), events(out, end=False), answer({}), events(out, end=False)) as server, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", ResourceWarning)
            before = descriptors()
            client = Ramet(server.url)
            client.version()
            next(client.exec_stream("box", "x"))
            del client

            async def twin():
                client = AsyncRamet(server.url)
                await client.version()
                await client.exec_stream("box", "x").__anext__()
            asyncio.run(twin())
            self.collect_until(lambda: not server.open and descriptors() <= before)
            self.assertEqual(server.open, set())
            self.assertLessEqual(descriptors(), before)
        self.assertEqual([str(each.message) for each in seen], [])

    def test_types(self):
        """mypy --strict of the client and of a program that uses it, where it can be installed."""
        python = environment("mypy", "mypy==2.4.1")
        if python is None:
            self.skipTest("mypy cannot be installed here (no package index in reach)")
        done = subprocess.run([python, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", os.path.join(os.path.dirname(python), "cache"),
                               os.path.join(SDK, "ramet.py"), os.path.join(HERE, "python_types.py")], cwd="/", capture_output=True, text=True,
                              env={**os.environ, "MYPYPATH": SDK})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_installs(self):
        """pip makes a package of it, whose version is the file's."""
        python = environment("package", "setuptools==84.2.1", "wheel==0.48.0", "packaging==26.4")
        if python is None:
            self.skipTest("setuptools cannot be installed here (no package index in reach)")
        done = subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-build-isolation", "--no-deps",
                               "--force-reinstall", copy_of_sdk()], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([python, "-c", "import ramet; print(ramet.__version__, ramet.__file__)"], cwd="/", capture_output=True, text=True)
        self.assertEqual(done.stdout.split()[0], ramet.__version__)
        self.assertIn("site-packages", done.stdout)


if __name__ == "__main__":
    # A shell that put us into the background has it ignored, which all that we start would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2)
