# SPDX-License-Identifier: Apache-2.0
"""Servers for tests of clients: one that answers as it is told, and a proxy that loses answers or cuts them off."""
import json
import re
import socket
import threading
import time

TCP_NOT_TOLD = (1, 4)    # ESTABLISHED, FIN_WAIT1: the peer's kernel has not acknowledged that it is the end


class Request:
    def __init__(self, method, path, headers, body, connection):
        self.method, self.path, self.headers, self.body, self.connection = method, path, headers, body, connection


def read_request(file, connection):
    """The next request of a connection; None when there is none."""
    first = file.readline()
    if not first.strip():
        return None
    method, path, _ = first.decode().split()
    headers = {}
    while (line := file.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        file.readline()
    else:
        body = file.read(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, connection)


def in_threads(count, work):
    """work(number) in so many threads at once, until all have ended."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answer(value, status=200, **headers):
    """An answer as bytes; value: bytes, or something for JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}"]
    head += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def error(status, code, message="words", **more):
    retryable = more.pop("retryable", False)
    return answer({"error": {"code": code, "message": message, "request_id": "req_1", "details": {"retryable": retryable}, **more}}, status)


def events(*blocks, end=True):
    """An answer of server-sent events, chunked; without `end` it breaks off there."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(block), block) for block in blocks)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + body + (b"0\r\n\r\n" if end else b"")


class Fake:
    """Gives one answer after another. An answer is bytes, or a function of the request that gives such; None: the connection
    is closed without a word. What is not complete, the client sees broken off: bytes that end in CLOSE."""

    CLOSE = b"<close>"
    everywhere = set()    # open connections of all of them, also of those that were closed

    def __init__(self, *answers, listener=None, tls=None):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0
        self.open = set()
        self._lock = threading.Lock()
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._tls = tls
        self._closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self.open.add(sock)
                self.everywhere.add(sock)
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, sock, number):
        if self._tls is not None:
            try:
                plain, sock = sock, self._tls.wrap_socket(sock, server_side=True)
            except OSError:    # it did not like the certificate
                return
            with self._lock:
                self.open.discard(plain)
                self.open.add(sock)
        file = sock.makefile("rb")
        try:
            while (request := read_request(file, number)) is not None:
                with self._lock:
                    self.requests.append(request)
                    found = self.answers.pop(0) if self.answers else error(500, "test.unasked", "nobody expected this request")
                data = found(request) if callable(found) else found
                if data is None:
                    break
                sock.sendall(data.removesuffix(self.CLOSE))
                if data.endswith(self.CLOSE):
                    break
        except (OSError, ValueError):
            pass
        finally:
            file.close()
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
            with self._lock:
                self.open.discard(sock)
                self.everywhere.discard(sock)

    def drop_idle(self):
        """Closes every connection, as a server does with idle ones, and returns when the clients can see it."""
        with self._lock:
            for sock in self.open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                    while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in TCP_NOT_TOLD:
                        time.sleep(0.001)
                except OSError:    # its own thread was quicker
                    pass

    def close(self):
        if self._closed:
            return
        self._closed = True
        self._listener.shutdown(socket.SHUT_RDWR)    # closing alone does not wake up who accepts
        self._listener.close()
        with self._lock:
            for sock in self.open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Proxy:
    """Between a client and a server on TCP. `lose`: how many answers, of requests that match, are swallowed (the connection is
    closed instead, after the server did it). `cut_after`: answers that match `cut` are broken off after so many bytes, `cuts` times.
    `hold_answers`: the next one that matches is kept back until `release` is set; `held` tells that the server has given it."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.lose, self.lose_pattern, self.lost = 0, re.compile(""), 0
        self.cuts, self.cut_pattern, self.cut_after = 0, re.compile(""), 0
        self.hold_pattern, self.held, self.release = None, threading.Event(), threading.Event()
        self.seen = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_answers(self, count, pattern):
        self.lose, self.lose_pattern = count, re.compile(pattern)

    def cut_answers(self, count, pattern, after):
        self.cuts, self.cut_pattern, self.cut_after = count, re.compile(pattern), after

    def hold_answers(self, pattern):
        self.held.clear()
        self.release.clear()
        self.hold_pattern = re.compile(pattern)

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, client):
        server = socket.socket()
        try:
            server.connect(self.target)
            file = client.makefile("rb")
            request = read_request(file, 0)
            if request is None:
                return
            line = f"{request.method} {request.path}"
            with self._lock:
                self.seen.append((line, request.headers))
                losing = self.lose > 0 and self.lose_pattern.search(line) is not None
                self.lose -= losing
                cutting = self.cuts > 0 and self.cut_pattern.search(line) is not None
                self.cuts -= cutting
                holding = self.hold_pattern is not None and self.hold_pattern.search(line) is not None
                if holding:
                    self.hold_pattern = None
            request.headers.pop("transfer-encoding", None)
            request.headers["content-length"] = str(len(request.body))
            request.headers["connection"] = "close"    # one request a connection keeps this simple
            head = f"{line} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            server.sendall(head.encode() + b"\r\n" + request.body)
            passed = 0
            while piece := server.recv(65536):
                if holding:
                    self.held.set()
                    self.release.wait()
                if losing:
                    self.lost += 1
                    return
                left = self.cut_after - passed
                if cutting and len(piece) >= left:
                    client.sendall(piece[:left])
                    return
                client.sendall(piece)
                passed += len(piece)
        except OSError:
            pass
        finally:
            for sock in (client, server):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                sock.close()

    def close(self):
        self.release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
