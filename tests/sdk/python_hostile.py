# SPDX-License-Identifier: Apache-2.0
"""The Python client where things are not as they should be: servers that lead elsewhere, restart or die in the middle of a stream,
processes that fork, loops that end; and where an address may lie: IPv6, below a path, behind TLS with a CA of one's own."""
import asyncio
import contextlib
import gc
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import traceback
import unittest
import unittest.mock

import ramet
from fake import Fake, answer, error, events, in_threads
from ramet import AsyncRamet, Ramet, RametError

KEY = "e2b_" + "5ec2e7" * 8
HIDDEN = "hidden" + "-value"    # so that these lines do not have it
OUT = b'id: 1\nevent: stdout\ndata: {"text":"a"}\n\n'
END = b'id: 2\nevent: end\ndata: {"exit_code":0}\n\n'


class Hostile(unittest.TestCase):
    def serve(self, *answers, **options):
        server = Fake(*answers)
        self.addCleanup(server.close)
        client = Ramet(server.url, KEY, **options)
        self.addCleanup(client.close)
        return server, client

    def test_led_elsewhere(self):
        """A redirection is no success, is not followed with the key, and says where to."""
        for call in (lambda c: c.delete_sandbox("box"), lambda c: c.create_sandboxes(), lambda c: c.exec("box", "true")):
            server, client = self.serve(answer(b"", 301, Location="https://elsewhere.example/v1/"))
            with self.assertRaises(RametError) as caught:
                call(client)
            self.assertIn("leads to https://elsewhere.example/v1/", caught.exception.message)
            self.assertEqual((caught.exception.code, len(server.requests)), ("client.protocol", 1))

    def test_secrets_are_not_shown(self):
        server, client = self.serve(error(401, "auth.invalid"), answer(b"not json"), None)
        shown = [repr(client), str(client), repr(AsyncRamet(server.url, KEY))]
        for _ in range(3):
            try:
                client.exec("box", {"command": "true", "env": {"TOKEN": HIDDEN}})
            except RametError as caught:
                shown += [repr(caught), str(caught), "".join(traceback.format_exception(caught)), str(vars(caught))]
        with self.assertRaises(RametError) as caught:
            Ramet(server.url, KEY + "\n")
        shown.append(str(caught.exception))
        for text in shown:
            self.assertNotIn(KEY, text)
            self.assertNotIn(HIDDEN, text)

    def test_restart_in_the_middle_of_a_stream(self):
        """The server is not there for a while, then says that it is busy, then goes on exactly where it was."""
        busy = error(503, "capacity.busy", retryable=True, retry_after_secs=0.01)
        server, client = self.serve(events(OUT, end=False) + Fake.CLOSE, None, None, busy, busy, None, events(END), retries=0)
        self.assertEqual([event.kind for event in client.job_logs("box", 1)], ["stdout", "end"])
        self.assertEqual({request.headers.get("last-event-id") for request in server.requests[1:]}, {"1"})
        gone = error(404, "job.not_found")
        server, client = self.serve(events(OUT, end=False) + Fake.CLOSE, gone)
        stream = client.job_logs("box", 1)
        next(stream)
        with self.assertRaises(RametError) as caught:
            next(stream)
        self.assertEqual((caught.exception.code, list(stream)), ("job.not_found", []))

    def test_logs_that_need_not_end(self):
        server, client = self.serve(events(OUT), events(OUT, end=False) + Fake.CLOSE, events(b'event: line\ndata: {"text":"boot"}\n\n'))
        self.assertEqual([event["text"] for event in client.job_logs("box", 1, follow=False)], ["a"])
        with self.assertRaises(RametError):
            list(client.job_logs("box", 1, follow=False))
        self.assertEqual([event["text"] for event in client.sandbox_logs_stream("box")], ["boot"])
        self.assertEqual(len(server.requests), 3)

    def test_a_connection_after_an_error(self):
        """Answers of every status leave a connection that can be used; what broke off is never used again."""
        server, client = self.serve(error(404, "x.not_found"), answer({"n": 1}), answer(b"[1, 2"), answer({"n": 2}), answer({"n": 3})[:20] + Fake.CLOSE,
                                    answer({"n": 4}), retries=0)
        with self.assertRaises(RametError):
            client.get_sandbox("x")
        self.assertEqual(client.version(), {"n": 1})
        with self.assertRaises(RametError):
            client.version()
        self.assertEqual(client.version(), {"n": 2})
        self.assertEqual(server.connections, 1)
        with self.assertRaises(RametError):
            client.exec("x", "true")
        self.assertEqual((client.version(), server.connections), ({"n": 4}, 2))

    def test_code_that_fails(self):
        """An error in code is a result; with check=True it is raised, with its traceback as the message."""
        failed = {"error": {"name": "KeyError", "value": "'a'", "traceback": "Traceback: KeyError: 'a'"}, "stdout": "so far"}
        done = b'event: error\ndata: {"name":"E","value":"v","traceback":"T"}\n\nevent: done\ndata: {"execution_count":1}\n\n'
        server, client = self.serve(answer(failed), answer(failed), events(done), answer({"timed_out": True}), answer({"text": "2"}), answer(failed))
        box = ramet.Sandbox({"id": "sbx_1", "name": "box", "state": "running"}, client)
        self.assertEqual(box.run_code("x").stdout, "so far")
        for options, words in (({}, "Traceback: KeyError: 'a'"), ({"on_stdout": print}, "T"), ({}, "out of its time")):
            with self.assertRaises(ramet.CodeError) as caught:
                box.run_code("x", check=True, **options)
            self.assertIn(words, caught.exception.message)
        self.assertEqual(box.run_code("x", check=True).text, "2")
        with self.assertRaises(ramet.CodeError) as caught:
            asyncio.run(ramet.AsyncSandbox(box).run_code("x", check=True))
        self.assertEqual((caught.exception.code, caught.exception.execution.stdout), ("code.failed", "so far"))

    def test_threads_of_every_kind(self):
        """Twenty threads, each with calls, streams that are read, and streams that are left half-way."""
        def serve(request):
            return events(OUT, END) if "logs" in request.path else answer({"path": request.path})
        server, client = self.serve(*[serve] * 1000)
        wrong = []

        def work(number):
            for turn in range(8):
                if client.get_sandbox(f"t{number}-{turn}")["path"] != f"/v1/sandboxes/t{number}-{turn}":
                    wrong.append(number)
                stream = client.job_logs("box", number)
                if turn % 2:
                    next(stream)
                    stream.close()
                elif [event.kind for event in stream] != ["stdout", "end"]:
                    wrong.append(number)
        in_threads(20, work)
        self.assertEqual((wrong, len(server.requests)), ([], 320))

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork here")
    def test_forked_process(self):
        """Parent and child of a fork do not speak on one connection."""
        server, client = self.serve(*[lambda request: answer({"path": request.path})] * 20)
        client.version()
        self.assertEqual(server.connections, 1)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                good = all(client.get_sandbox(f"c{n}")["path"] == f"/v1/sandboxes/c{n}" for n in range(5))
                os._exit(0 if good else 1)
            os._exit(2)
        mine = [client.get_sandbox(f"p{n}")["path"] for n in range(5)]
        self.assertEqual((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), mine), (0, [f"/v1/sandboxes/p{n}" for n in range(5)]))
        self.assertEqual(server.connections, 2)

    def test_loop_that_ends_in_the_middle(self):
        """A loop that is closed over a stream, and generators that nobody reads to their end, leave no connection."""
        with Fake(*[events(OUT, end=False)] * 3) as server:
            client = AsyncRamet(server.url)

            async def begin():
                stream = client.exec_stream("box", "x")
                await stream.__anext__()
                async for _ in client.job_logs("box", 1):
                    break
                return stream
            loop = asyncio.new_event_loop()
            stream = loop.run_until_complete(begin())
            loop.close()
            del stream
            next(client.sync.exec_stream("box", "x"))
            while server.open:
                gc.collect()
            client.sync.close()

    def test_addresses(self):
        with contextlib.ExitStack() as stack:
            for form in ("http://[::1]:{}", "http://[::1]:{}/below/a/path/", "http://localhost:{}/v1"):
                family = socket.AF_INET6 if "::1" in form else socket.AF_INET
                try:
                    listener = stack.enter_context(socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family))
                except OSError:
                    continue    # a host without IPv6
                server = stack.enter_context(Fake(answer({"n": 1}), None, listener=listener))
                address = form.format(listener.getsockname()[1])
                client = Ramet(address, retries=0)
                self.assertEqual(client.version(), {"n": 1})
                with self.assertRaises(RametError):
                    client.open_port("box", 80)
                below = "/below/a/path" if "below" in form else ""
                self.assertEqual([request.path for request in server.requests], [below + "/version", below + "/v1/sandboxes/box/ports/80"])
                self.assertEqual(server.requests[0].headers["host"], address.split("/")[2])
                client.close()

    def test_proxies_of_the_environment_get_nothing(self):
        server, client = self.serve(answer({"n": 1}))
        with Fake() as proxy, unittest.mock.patch.dict(os.environ, {"http_proxy": proxy.url, "HTTP_PROXY": proxy.url, "ALL_PROXY": proxy.url}):
            self.assertEqual(Ramet(server.url).version(), {"n": 1})
            self.assertEqual(proxy.requests, [])

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make certificates with")
    def test_tls(self):
        """A CA of one's own by name or environment; without it, and for another host's name, words that say what to do."""
        with tempfile.TemporaryDirectory() as folder:
            key, cert = os.path.join(folder, "key"), os.path.join(folder, "cert")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                            "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            with Fake(answer({"n": 1}), answer({"n": 2}), events(OUT, END), tls=context) as server:
                port = server.url.rsplit(":", 1)[1]
                with Ramet(f"https://localhost:{port}", KEY, ca_file=cert) as client:
                    self.assertEqual(client.version(), {"n": 1})
                with unittest.mock.patch.dict(os.environ, {"RAMET_CA": cert}), Ramet(f"https://localhost:{port}") as client:
                    self.assertEqual(client.version(), {"n": 2})
                    self.assertEqual(len(list(client.job_logs("box", 1))), 2)
                for address, ca in ((f"https://localhost:{port}", None), (f"https://127.0.0.1:{port}", cert)):
                    with self.assertRaises(RametError) as caught:
                        Ramet(address, ca_file=ca, retries=0).version()
                    self.assertIn("RAMET_CA", caught.exception.message)
                self.assertEqual(len(server.requests), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
