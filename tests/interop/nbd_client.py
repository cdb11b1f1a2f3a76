# SPDX-License-Identifier: Apache-2.0
"""A raw NBD client that can say the wrong thing, and the test daemon as an object. Python's standard library only."""
import json
import os
import socket
import struct
import subprocess
import tempfile
import time

REQUEST_MAGIC, SIMPLE_MAGIC, CHUNK_MAGIC = 0x25609513, 0x67446698, 0x668E33EF
OPTION_MAGIC, OPTION_REPLY_MAGIC = 0x49484156454F5054, 0x3E889045565A9
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED, LIST_META, SET_META = 1, 2, 3, 5, 6, 7, 8, 9, 10
REP_ACK, REP_SERVER, REP_INFO, REP_META = 1, 2, 3, 4
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_UNKNOWN, ERR_TOO_BIG = (0x80000000 + n for n in (1, 2, 3, 6, 9))
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO = 1, 2, 4, 8, 16
EPERM, EIO, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP = 1, 5, 22, 28, 75, 95
MULTI_CONN, READ_ONLY = 1 << 8, 1 << 1
HOLE, ZERO = 1, 2
GUARD_SECONDS = 120     # against hangs only: no test measures time


class Client:
    """One connection. Without `export`, only the greeting is exchanged and the caller haggles."""

    def __init__(self, path, export=None, structured=True, contexts=("base:allocation",)):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)    # waits while the listener's queue is full
        self.socket.settimeout(GUARD_SECONDS)
        self.cookie = 0
        self.replies = {}
        self.requests = {}      # cookie: (command, offset, length, flags), until its last chunk
        self.chunks = {}        # cookie: [(type, payload), ...]
        self.context_names = {}
        magic, option_magic, self.server_flags = struct.unpack(">QQH", self.receive(18))
        assert (magic, option_magic) == (0x4E42444D41474943, OPTION_MAGIC)
        self.send(struct.pack(">I", 3))
        self.structured = False
        if export is not None:
            if structured:
                self.agree_structured()
                if contexts:
                    self.set_contexts(export, contexts)
            self.go(export)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError(f"end of stream after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    # ---- Options ----

    @staticmethod
    def meta(name, queries):
        data = struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(queries))
        return data + b"".join(struct.pack(">I", len(query)) + query.encode() for query in queries)

    @staticmethod
    def info(name, requests=()):
        name = name if isinstance(name, bytes) else name.encode()
        return (struct.pack(">I", len(name)) + name + struct.pack(">H", len(requests)) +
                b"".join(struct.pack(">H", request) for request in requests))

    def send_option(self, option, data=b""):
        self.send(struct.pack(">QII", OPTION_MAGIC, option, len(data)) + data)

    def option_reply(self, option):
        """All replies to an option: (final type, [(type, data), ...])."""
        replies = []
        while True:
            magic, answered, kind, size = struct.unpack(">QIII", self.receive(20))
            assert magic == OPTION_REPLY_MAGIC and answered == option, (hex(magic), answered, option)
            replies.append((kind, self.receive(size)))
            if kind == REP_ACK or kind & 0x80000000:
                return kind, replies

    def option(self, option, data=b""):
        self.send_option(option, data)
        return self.option_reply(option)

    def agree_structured(self):
        kind, _ = self.option(STRUCTURED)
        assert kind == REP_ACK
        self.structured = True

    def set_contexts(self, export, queries):
        """Agrees on metadata contexts; returns their names."""
        kind, replies = self.option(SET_META, self.meta(export, queries))
        assert kind == REP_ACK, (hex(kind), replies)
        self.context_names = {struct.unpack(">I", data[:4])[0]: data[4:].decode() for code, data in replies if code == REP_META}
        assert len(self.context_names) == len(replies) - 1, "two contexts with one number"
        return sorted(self.context_names.values())

    def go(self, export):
        kind, replies = self.option(GO, self.info(export, [3]))
        assert kind == REP_ACK, (hex(kind), replies)
        self.set_info(replies)

    def set_info(self, replies):
        for kind, data in replies:
            if kind == REP_INFO and data[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", data[2:])
            elif kind == REP_INFO and data[:2] == b"\0\3":
                self.block_sizes = struct.unpack(">III", data[2:])

    # ---- Requests ----

    def expect(self, command, offset=0, length=0, flags=0):
        """A cookie for a request that the caller sends."""
        self.cookie += 1
        self.requests[self.cookie] = (command, offset, length, flags)
        return self.cookie

    def header(self, command, offset=0, length=0, flags=0):
        cookie = self.expect(command, offset, length, flags)
        return struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length)

    def post(self, command, offset=0, length=0, flags=0, payload=b""):
        self.send(self.header(command, offset, length, flags) + payload)
        return self.cookie

    def read_reply(self):
        """Takes one whole reply: (cookie, errno, data). BLOCK_STATUS data is {context: [(length, flags), ...]}."""
        while True:
            magic, = struct.unpack(">I", self.receive(4))
            if magic == SIMPLE_MAGIC:
                error, cookie = struct.unpack(">IQ", self.receive(12))
                command, _, length, _ = self.requests.pop(cookie)
                assert not (self.structured and command == READ), "a simple reply to a structured read"
                return cookie, error, self.receive(length) if not error and command == READ else b""
            assert magic == CHUNK_MAGIC and self.structured, hex(magic)
            flags, kind, cookie, size = struct.unpack(">HHQI", self.receive(16))
            assert cookie in self.requests and flags in (0, 1), (cookie, flags)
            self.chunks.setdefault(cookie, []).append((kind, self.receive(size)))
            if flags & 1:
                return (cookie, *self.assemble(self.requests.pop(cookie), self.chunks.pop(cookie)))

    def assemble(self, request, chunks):
        """(errno, data) of the chunks of one reply; every rule of the protocol about them is checked."""
        command, offset, length, flags = request
        errors = [body for kind, body in chunks if kind & 0x8000]
        for body in errors:
            error, text_size = struct.unpack(">IH", body[:6])
            assert error and len(body) == 6 + text_size
            return error, b""
        if command == STATUS:
            return 0, self.assemble_status(length, flags, chunks)
        if command != READ:
            assert chunks == [(0, b"")], chunks
            return 0, b""
        content = [(kind, body) for kind, body in chunks if kind != 0]
        assert len(content) == len(chunks) or chunks[-1] == (0, b"")
        assert len(content) <= 1 or not flags & DF, "fragments although the client asked for none"
        self.last_chunks = []       # for tests: (offset, size, is a hole)
        data = bytearray(length)
        covered = 0
        for kind, body in sorted(content, key=lambda chunk: chunk[1][:8]):
            at, = struct.unpack(">Q", body[:8])
            if kind == 1:
                size = len(body) - 8
                data[at - offset:at - offset + size] = body[8:]
            else:
                assert kind == 2 and len(body) == 12, kind
                size, = struct.unpack(">I", body[8:])
            assert size > 0 and at == offset + covered, "chunks with gaps, or one over the other"
            covered += size
            self.last_chunks.append((at, size, kind == 2))
        assert covered == length == len(data), (covered, length)
        return 0, bytes(data)

    def assemble_status(self, length, flags, chunks):
        result = {}
        for kind, body in chunks:
            assert kind == 5 and len(body) >= 12 and len(body) % 8 == 4, kind
            words = struct.unpack(f">{len(body) // 4}I", body)
            extents = list(zip(words[1::2], words[2::2]))
            name = self.context_names[words[0]]
            assert name not in result, "one context twice"
            assert all(size > 0 for size, _ in extents)
            assert sum(size for size, _ in extents[:-1]) < length
            assert all(one[1] != two[1] for one, two in zip(extents, extents[1:])), "extents that are one"
            if flags & REQ_ONE:
                assert len(extents) == 1 and extents[0][0] <= length, extents
            result[name] = extents
        assert sorted(result) == sorted(self.context_names.values()), "a context is missing"
        return result

    def wait(self, cookie):
        while cookie not in self.replies:
            got, error, data = self.read_reply()
            self.replies[got] = (error, data)
        return self.replies.pop(cookie)

    def do(self, command, offset=0, length=0, flags=0, payload=b""):
        return self.wait(self.post(command, offset, length, flags, payload))

    def write(self, offset, payload, flags=0):
        error, _ = self.do(WRITE, offset, len(payload), flags, payload)
        return error

    def read(self, offset, length):
        error, data = self.do(READ, offset, length)
        assert error == 0, f"READ {offset}+{length}: {os.strerror(error)}"
        return data

    def extents(self, offset=0, length=None, flags=0, context="base:allocation"):
        """The whole range's extents, merged: [(offset, length, flags), ...]."""
        end = self.size if length is None else offset + length
        result = []
        while offset < end:
            asked = min(end - offset, 0xFFFFFE00)
            error, extents = self.do(STATUS, offset, asked, flags)
            assert error == 0 and extents, (error, extents)
            for size, state in extents[context]:
                if result and result[-1][2] == state:
                    result[-1] = (result[-1][0], result[-1][1] + size, state)
                else:
                    result.append((offset, size, state))
                offset += size
        assert offset == end, "extents go beyond what was asked"
        return result


class TestDaemon:
    """nbd_daemon over a store of its own; `with` ends it."""

    def __init__(self, directory=None, loops=2, negotiation_ms=0, log_budget=0, payload_bytes=0, stall_ms=0,
                 cache_bytes=0):
        self.keep = tempfile.TemporaryDirectory(prefix="ramet-nbd-") if directory is None else None
        self.directory = directory or self.keep.name
        self.socket = os.path.join(self.directory, "nbd.sock")
        self.store = os.path.join(self.directory, "store")
        self.arguments = [str(value) for value in (loops, negotiation_ms, log_budget, payload_bytes, stall_ms,
                                                     cache_bytes)]
        os.makedirs(self.store, exist_ok=True)
        self.start()

    def start(self):
        self.process = subprocess.Popen([os.environ["NBD_DAEMON"], self.store, self.socket] + self.arguments,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line == "ready\n", f"nbd_daemon did not start: {line!r}"

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def do(self, command):
        answer = self.ask(command)
        assert answer.startswith("ok"), f"{command}: {answer}"
        return answer[3:]

    def stat(self):
        return json.loads(self.do("stat"))

    def seal(self):
        """Moves everything out of the log."""
        self.do("seal")

    def collect(self):
        """Moves everything that is sealed and live together."""
        self.do("gc")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait_idle(self):
        """Until the server has seen the end of every connection that was closed."""
        while self.stat()["connections"]:
            pass

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        status = self.process.wait(GUARD_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()
        return status

    def stop(self):
        self.process.stdin.close()
        status = self.wait()
        assert status == 0, f"nbd_daemon ended with {status}"

    def restart(self):
        self.stop()
        self.start()

    def uri(self, export):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def client(self, export, **options):
        return Client(self.socket, export, **options)

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        if self.process.poll() is None:
            if kind is None:
                self.stop()
            else:
                self.kill()
        if self.keep:
            self.keep.cleanup()


class RametDaemon(TestDaemon):
    """The real rametd, driven by the command line: volumes and snapshots by name on RUNDIR/nbd.sock."""

    VERBS = {"create": ["volume", "create"], "fork": ["volume", "fork"], "snapshot": ["volume", "snapshot"],
             "rm": ["volume", "rm"], "resize": ["volume", "resize"]}

    def start(self):
        tools = os.environ["RAMET_TOOLS"]
        self.ramet = os.path.join(tools, "ramet")
        self.run_directory = os.path.join(self.directory, "run")
        self.socket = os.path.join(self.run_directory, "nbd.sock")
        if not os.path.exists(os.path.join(self.store, "superblock")):
            subprocess.run([self.ramet, "store", "init", self.store], check=True, stdout=subprocess.DEVNULL)
        self.log = open(os.path.join(self.directory, "rametd.log"), "a")
        self.process = subprocess.Popen([os.path.join(tools, "rametd"), "--store", self.store, "--run", self.run_directory],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        while self.ask("ls").startswith("error"):
            assert self.process.poll() is None, "rametd did not start: " + self.words()
            time.sleep(0.02)

    def words(self):
        with open(self.log.name) as file:
            return file.read()

    def ask(self, command):
        words = command.split()
        verb = self.VERBS.get(words[0], ["volume", words[0]])
        result = subprocess.run([self.ramet, "--run", self.run_directory, *verb, *words[1:]], capture_output=True, text=True)
        return "ok " + result.stdout.strip() if result.returncode == 0 else "error " + result.stderr.strip()

    def wait(self):
        status = self.process.wait(GUARD_SECONDS)
        self.log.close()
        return status

    def stop(self):
        self.process.terminate()
        status = self.wait()
        assert status == 0, f"rametd ended with {status}: {self.words()}"

    def stat(self):
        raise NotImplementedError("this case looks into the server; it runs on nbd_daemon only")


# Which of the two the tests of this process use.
Daemon = RametDaemon if os.environ.get("NBD_SERVER") == "rametd" else TestDaemon
