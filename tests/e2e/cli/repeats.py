# SPDX-License-Identifier: Apache-2.0
"""Requests whose answers are lost and that are sent again: what the tests of Idempotency-Key share."""
import http.client
import os
import socket
import threading
import urllib.parse

import rig


class Proxy:
    """Passes each request on, and drops every answer whole: the client sees its connection end."""

    def __init__(self, url):
        address = urllib.parse.urlsplit(url)
        self.target = (address.hostname, address.port)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.answers = []    # their first lines
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.pass_on, args=(client,), daemon=True).start()

    def pass_on(self, client):
        with client, socket.create_connection(self.target, timeout=rig.HANG_SECS) as server:
            up = threading.Thread(target=self.copy, args=(client, server), daemon=True)
            up.start()
            answer = b""
            try:
                while piece := server.recv(65536):
                    answer += piece
                    head, blank, body = answer.partition(b"\r\n\r\n")
                    if blank and self.is_whole(head, body):
                        break
            except OSError:
                pass
            self.answers.append(answer.split(b"\r\n")[0])
            client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def is_whole(head, body):
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                return len(body) >= int(value)
        return False

    @staticmethod
    def copy(source, target):
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
        except OSError:
            pass

    def close(self):
        self.socket.close()


class Repeats(rig.Case):
    """A daemon on TCP with an admin key."""
    OPTIONS = ("--listen", "0", "--rate-limit", "0")

    def setUp(self):
        super().setUp()
        self.restart(kill=False)
        self.secret = self.daemon.make_key("maker")["key"]

    def restart(self, kill, stop_at=None):
        if kill:
            self.daemon.kill()
        else:
            self.daemon.stop()
        if stop_at is not None:
            os.environ["RAMET_TEST_STOP_AT"] = stop_at
        try:
            self.daemon.start(*self.OPTIONS)
        finally:
            os.environ.pop("RAMET_TEST_STOP_AT", None)

    def post(self, path, body, key, secret=None):
        return self.daemon.call_tcp("POST", path, body, secret or self.secret, {"Idempotency-Key": key})

    def lose(self, path, body, key):
        """Sends it through a proxy that drops the answer."""
        proxy = Proxy(self.daemon.url)
        address = urllib.parse.urlsplit(proxy.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=rig.HANG_SECS)
        try:
            with self.assertRaises((http.client.HTTPException, OSError)):
                connection.request("POST", path, rig.json.dumps(body),
                                   {"Authorization": "Bearer " + self.secret, "Idempotency-Key": key})
                connection.getresponse()
        finally:
            connection.close()
            proxy.close()
        self.assertEqual(len(proxy.answers), 1)
        return proxy.answers[0]

    def die(self, path, body, key, step):
        """Sends it to a daemon that dies at that step; then there is another one."""
        self.restart(kill=False, stop_at=step)
        with self.assertRaises((http.client.HTTPException, OSError)):
            self.post(path, body, key)
        self.daemon.process.wait(rig.HANG_SECS)
        self.daemon.process = None
        self.daemon.start(*self.OPTIONS)

    def at_once(self, count, path, body, key):
        """The answers of so many that come together; who is told to come back does so."""
        answers, gate = [None] * count, threading.Barrier(count)

        def one(i):
            gate.wait()
            answers[i] = self.post(path, body, key)
            while answers[i].status == 409 and answers[i].json["error"]["details"]["retryable"]:
                self.assertEqual(answers[i].code, "idempotency.in_progress")
                answers[i] = self.post(path, body, key)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(rig.HANG_SECS)
        return answers
