# SPDX-License-Identifier: Apache-2.0
"""A server for the inside of a sandbox that does, by the path it is asked for, what servers do and what none should."""
import json
import os
import select
import socket
import sys
import threading
import zlib

steps = threading.Semaphore(0)    # each /step lets one waiting answer go on
BIG = os.urandom(1 << 20)

HOSTILE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-One: 1\r\n folded\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX One: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-One: a\nSet-Cookie: b=1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-One: a\rb\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-One: a\0b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 99 No\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 70000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
    b"HTTP/1.1 200 O",
    b"",
]


class Request:
    def __init__(self, sock):
        self.sock, self.data = sock, b""
        while b"\r\n\r\n" not in self.data:
            more = sock.recv(65536)
            if not more:
                raise EOFError
            self.data += more
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = [line.split(": ", 1) for line in lines]

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def more(self):
        self.data = self.sock.recv(1 << 16)
        if not self.data:
            raise EOFError

    def line(self):
        text = b""
        while not text.endswith(b"\r\n"):
            if not self.data:
                self.more()
            text += self.data[:1]
            self.data = self.data[1:]
        return text[:-2]

    def take(self, size):
        while size > 0:
            if not self.data:
                self.more()
            part, self.data = self.data[:size], self.data[size:]
            size -= len(part)
            yield part

    def body(self):
        if self.header("transfer-encoding") == "chunked":
            while size := int(self.line(), 16):
                yield from self.take(size)
                self.line()
            self.line()
        else:
            yield from self.take(int(self.header("content-length") or 0))


def answer(sock, status, headers, body=b""):
    lines = [f"HTTP/1.1 {status} Text", *(f"{name}: {value}" for name, value in headers), f"Content-Length: {len(body)}"]
    sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def show(request, sock):
    body = b"".join(request.body())
    shown = json.dumps({"method": request.method, "target": request.target, "headers": request.headers,
                        "body": body.decode("latin-1")}).encode()
    answer(sock, 200, [("Content-Type", "application/json"), ("X-Guest", "one"), ("X-Guest", "two"),
                       ("Connection", "X-Secret"), ("X-Secret", "1"), ("Keep-Alive", "timeout=5")],
           b"" if request.method == "HEAD" else shown)


def sink(request, sock):
    if request.header("expect"):
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    crc, size = 0, 0
    for piece in request.body():
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    answer(sock, 200, [], json.dumps({"bytes": size, "crc": crc}).encode())


def big(request, sock):
    count = int(request.target.split("?")[1])
    crc = 0
    for _ in range(count):
        crc = zlib.crc32(BIG, crc)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Crc: %d\r\n\r\n" % (count << 20, crc))
    for _ in range(count):
        sock.sendall(BIG)


def stream(request, sock):
    """Chunks, one for each /step; the last is followed by a trailer."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for i in range(3):
        steps.acquire()
        event = b"data: %d\n\n" % i
        sock.sendall(b"%x;name=value\r\n%s\r\n" % (len(event), event))
    sock.sendall(b"0\r\nX-Trailer: 1\r\n\r\n")


def until_close(request, sock):
    sock.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of it")


def early(request, sock):
    answer(sock, 413, [("Connection", "close")], b"too much")


def refuse(request, sock):
    """Whatever the body will be: not with this head. ?hold keeps the connection, and takes nothing of the body."""
    answer(sock, 401, [("Connection", "close"), ("X-Why", "no")], b"who are you")
    if request.target.endswith("?hold"):
        steps.acquire()


def patient(request, sock):
    """Answers after a second, unless nobody wants the answer any more."""
    gone, _, _ = select.select([sock], [], [], 1)
    if not gone:
        answer(sock, 200, [], b"it was waited for")


def die(request, sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")


def die_chunked(request, sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nhel")


def bad_chunk(request, sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")


def hostile(request, sock):
    sock.sendall(HOSTILE[int(request.target.split("?")[1])])


def long_head(request, sock):
    answer(sock, 200, [(f"X-Field-{i}", "v" * 700) for i in range(85)], b"behind a long head")


def hints(request, sock):
    sock.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
    answer(sock, 200, [], b"after hints")


def site(request, sock):
    host = request.header("host")
    answer(sock, 302, [("Location", f"http://{host}/login?next=/" if "host" in request.target else "/login"),
                       ("Set-Cookie", "a=1; Path=/; HttpOnly"), ("Set-Cookie", "b=2; Domain=evil.example; path=/app"),
                       ("Service-Worker-Allowed", "/"), ("X-Prefix", request.header("x-forwarded-prefix") or "none")])


def socket_echo(request, sock):
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                 b"Sec-WebSocket-Accept: %s\r\n\r\nhello from behind the head" % (request.header("sec-websocket-key") or "none").encode())
    if request.data:
        sock.sendall(request.data)
    while piece := sock.recv(65536):
        sock.sendall(piece)
    sock.sendall(b" and goodbye")


def hold(request, sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    while sock.recv(65536):
        pass


def status(request, sock):
    sock.sendall(f"HTTP/1.1 {request.target.split('?')[1]} Text\r\nETag: \"x\"\r\n\r\n".encode())


def lengths(request, sock):
    """An answer without a body that says how long it would be."""
    sock.sendall(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n")


def step(request, sock):
    steps.release()
    answer(sock, 204, [])


ROUTES = {"show": show, "sink": sink, "big": big, "stream": stream, "close": until_close, "early": early, "die": die,
          "diechunked": die_chunked, "badchunk": bad_chunk, "hostile": hostile, "hints": hints, "longhead": long_head, "site": site,
          "ws": socket_echo, "hold": hold, "step": step, "status": status, "lengths": lengths, "refuse": refuse, "patient": patient}


def serve(sock):
    try:
        request = Request(sock)
        ROUTES.get(request.target.split("?")[0].strip("/").split("/")[0], show)(request, sock)
    except (EOFError, OSError):
        pass
    finally:
        sock.close()


def main():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
    print("ready", flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


main()
