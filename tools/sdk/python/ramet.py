# SPDX-License-Identifier: Apache-2.0
"""Ramet's Python client: machines that are snapshotted and forked in milliseconds, from one file and nothing else.

Three layers, each usable by itself:

- `Ramet` has one method for each call of the HTTP API (vmglue/API.md). Bodies and answers are plain dicts::

      ramet = Ramet()
      ramet.create_sandboxes({"name": "box", "ttl_secs": 1800})
      print(ramet.exec("box", {"command": "uname -a"})["stdout"])

- `Sandbox`, `CodeContext`, `Execution` and `Result` are objects over it::

      with Sandbox.create(template="code-interpreter") as sandbox:
          print(sandbox.create_code_context().run_code("6 * 7").text)

- `AsyncRamet`, `AsyncSandbox` and `AsyncCodeContext` are the same for asyncio, streams included.

Where the server is: `url`, else the environment variable RAMET_API (`http://host:7480`, `https://...` or
`unix:///run/ramet/api.sock`), else the socket of this machine's daemon (RAMET_RUN, or /run/ramet). The key: `key`, else
RAMET_API_KEY; the socket needs none. Every failure is a `RametError`.

What is tried again by itself, a bounded number of times: what the server marks as retryable, and connections that
failed under calls that may be repeated. Creating calls carry an Idempotency-Key, the same in each try, so that a lost
answer makes nothing twice. A command that may have begun is never sent again. What a call made whose answer never came
(it was cancelled, Ctrl-C, no answer in time) is removed in the background, unless its caller gave it a name or a key.

Threads: a `Ramet` may be used by any number at once; a stream, a `Pty` by one at a time (close() from any).
"""
from __future__ import annotations

import asyncio
import atexit
import base64
import collections
import concurrent.futures
import contextlib
import copy
import functools
import hashlib
import http.client
import inspect
import json
import os
import random
import re
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import uuid
from typing import (IO, Any, AsyncIterator, Awaitable, Callable, Concatenate, Dict, Generic, Iterable, Iterator, List,
                    Mapping, ParamSpec, Sequence, TypeVar, Union, cast)

__version__ = "0.1.0"
__all__ = [
    "AsyncCodeContext", "AsyncPty", "AsyncRamet", "AsyncSandbox", "AsyncStream", "Branch", "CodeContext", "CodeError", "CommandError",
    "CommandResult", "Event", "Execution", "ExecutionError", "Exploration", "Files", "Pty", "Ramet",
    "RametConnectionError", "RametError", "Result", "Sandbox", "Stream",
]

Json = Dict[str, Any]
Body = Mapping[str, Any]
Data = Union[bytes, bytearray, memoryview, str, "IO[bytes]", Iterable[bytes]]
T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

_GRACE_SECS = 30.0     # what a call may take beyond the time-out of the command in it
_SILENCE_SECS = 60.0   # streams have a comment every ten quiet seconds: so long without a byte means a dead server
_IDLE_SECS = 15.0      # an idle connection is used again for so long
_FRESH_SECS = 1.0      # ... and so long by a call that must not be sent twice
_PIECE = 1 << 18       # bytes read or sent at once


# ---------------------------------------------------------------------------------------------------------------------
# Errors

class RametError(Exception):
    """A call failed. The server's own words are in `message`.

    status: the HTTP status; 0 when there was no answer (or the mistake was found before sending).
    code: the machine's word for it, such as "sandbox.not_found" or "capacity.memory".
    request_id: finds the call in the server's log; "" when there was no answer.
    retryable: whether trying later may help; retry_after_secs: when (None: not said).
    details: more about it, as the server sent it.
    """

    def __init__(self, message: str, *, status: int = 0, code: str = "client.error", request_id: str = "",
                 retryable: bool = False, retry_after_secs: float | None = None, details: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retryable = retryable
        self.retry_after_secs = retry_after_secs
        self.details: Json = details or {}

    def __str__(self) -> str:
        where = f"{self.status} {self.code}" if self.status else self.code
        return f"{self.message} ({where}{', ' + self.request_id if self.request_id else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle_error, (type(self), self.message, dict(self.__dict__)))


class RametConnectionError(RametError):
    """There was no answer, or only a part of it: nobody listens, the connection broke, or it took too long."""


class CommandError(RametError):
    """A command ended with another exit code than 0, and `check=True` was asked for. `result` is all it said."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message, code="command.failed")
        self.result = result


class CodeError(RametError):
    """Code ended with an error, and `check=True` was asked for. The message is its traceback; `execution` is all it gave."""

    def __init__(self, message: str, execution: Execution) -> None:
        super().__init__(message, code="code.failed")
        self.execution = execution


class _Cancelled(RametError):
    """Another thread ended this call."""


def _unpickle_error(kind: type[RametError], message: str, state: Json) -> RametError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


def _invalid(message: str) -> RametError:
    return RametError(message, code="validation.invalid")


def _error_of(status: int, headers: Any, body: bytes) -> RametError:
    """The error that an answer describes; of one that is no JSON (a proxy's page), what it says."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    error: Any = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        text = answer.get("message") if isinstance(answer, dict) else body[:500].decode("utf-8", "replace").strip()
        error = {"message": text or f"the server answered {status} without words", "code": f"http.{status}"}
    details: Json = error["details"] if isinstance(error.get("details"), dict) else {}
    after = error.get("retry_after_secs", details.get("retry_after_secs", headers.get("Retry-After")))
    try:
        after = None if after is None else max(0.0, float(after))
    except ValueError:
        after = None
    return RametError(str(error.get("message")), status=status, code=str(error.get("code", "")), details=details,
                      request_id=str(error.get("request_id") or headers.get("X-Request-Id") or ""),
                      retryable=bool(details.get("retryable", status == 429)), retry_after_secs=after)


# ---------------------------------------------------------------------------------------------------------------------
# Text. JSON is UTF-8, which has no lone surrogates: they are refused with words, before anything is sent.

def _dump(body: Body | None) -> bytes:
    text = json.dumps(body if body is not None else {}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"the text {text[max(0, error.start - 20):error.end + 20]!r} holds a lone surrogate, which UTF-8 "
                       "cannot carry: send bytes instead (write_file, or exec with stdin as bytes)") from None


def _load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise RametError(f"the server's answer is no JSON ({error}): is this address Ramet's API?",
                         code="client.protocol") from None


def _quote(text: object, safe: str = "") -> str:
    """For a path or query. What os.fsdecode made of bytes that are no text is sent as these bytes."""
    try:
        return urllib.parse.quote(str(text), safe=safe, errors="surrogateescape")
    except UnicodeEncodeError:
        raise _invalid(f"{text!r} holds a lone surrogate and is no name of a file or thing") from None


def _segment(name: str | int, safe: str = "") -> str:
    if isinstance(name, bool) or not isinstance(name, (str, int)) or name in ("", ".", ".."):
        raise _invalid(f"a name or id is needed here, and {name!r} is none")
    return _quote(name, safe)


def _query(values: Mapping[str, object]) -> str:
    parts = [f"{key}={_quote(int(value) if isinstance(value, bool) else value)}"
             for key, value in values.items() if value is not None]
    return "?" + "&".join(parts) if parts else ""


def _merge(body: Body | None, fields: Mapping[str, Any]) -> Json:
    """What a call's dict and keywords say together; `from_` stands for the word that Python keeps for itself."""
    merged = {**(body or {}), **fields}
    if "from_" in merged:
        merged["from"] = merged.pop("from_")
    return merged


# ---------------------------------------------------------------------------------------------------------------------
# Transport: HTTP/1.1 over TCP, TLS or a unix socket; connections are kept and used again

class _Cancel:
    """Lets another thread end a call: knows the socket that it uses now, and wakes it where it waits for a retry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._follower: Callable[[], object] | None = None
        self._undo: Callable[[], object] | None = None
        self._abandoned = False
        self._event = threading.Event()

    def follow(self, function: Callable[[], object]) -> None:
        """What cancelling means besides."""
        with self._lock:
            self._follower = function
            if not self._event.is_set():
                return
        function()

    def attach(self, sock: socket.socket | None) -> None:
        with self._lock:
            if self._event.is_set():
                raise _Cancelled("this call was cancelled", code="client.cancelled")
            self._socket = sock

    def detach(self, sock: socket.socket | None) -> None:
        """This one is about to serve other calls: cancelling must not reach it any more."""
        with self._lock:
            if self._socket is sock:
                self._socket = None

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            if self._socket is not None:
                _shut(self._socket)
            follower, self._follower = self._follower, None
        if follower is not None:
            follower()

    def made(self, undo: Callable[[], object] | None) -> None:
        """This call made something, and its answer is on its way to whoever waits for it. None: somebody has it."""
        with self._lock:
            if not self._abandoned or undo is None:
                self._undo = undo
                return
        undo()

    def abandon(self) -> None:
        """As cancel(), and what the call returns reaches nobody any more."""
        self.cancel()
        with self._lock:
            self._abandoned = True
            undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        if self._event.wait(seconds):
            raise _Cancelled("this call was cancelled", code="client.cancelled")

    def run(self, function: Callable[[], T]) -> T:
        """Calls it so that cancel() reaches what it does."""
        before, _here.cancel = getattr(_here, "cancel", None), self
        try:
            if self.cancelled:
                raise _Cancelled("this call was cancelled", code="client.cancelled")
            return function()
        finally:
            _here.cancel = before
            with self._lock:    # it leads to what it would have ended: together they would never be let go
                self._follower = None


_here = threading.local()


def _current_cancel() -> _Cancel | None:
    return cast("_Cancel | None", getattr(_here, "cancel", None))


def _sleep(seconds: float) -> None:
    cancel = _current_cancel()
    if cancel is not None:
        cancel.wait(seconds)
    else:
        time.sleep(seconds)


def _shut(sock: socket.socket) -> None:
    """Ends both directions; whoever waits in another thread wakes up. Of TLS too: below it, so that its state is not touched."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass


def _readable(sock: socket.socket, seconds: float | None) -> bool:
    """Whether something (also an end) is there to be read within this time; None: waits for it."""
    if hasattr(select, "poll"):    # select() knows no descriptors above 1023
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    return bool(select.select([sock], [], [], seconds)[0])


class _Address:
    """Where the server is, and how to get there. Proxies of the environment are not used."""

    def __init__(self, url: str | None, ca_file: str | None) -> None:
        url = url or os.environ.get("RAMET_API") or "unix://" + _default_socket()
        self.url = url if "://" in url else "http://" + url
        if not self.url.endswith("://"):
            self.url = self.url.rstrip("/").removesuffix("/v1")
        parts = urllib.parse.urlsplit(self.url)
        self.tls: ssl.SSLContext | None = None
        self.socket_path = ""
        self.prefix = "" if parts.scheme == "unix" else parts.path
        if parts.scheme == "unix":
            self.socket_path = parts.netloc + urllib.parse.unquote(parts.path)
            self.host_header = "ramet"
            if not self.socket_path.startswith("/"):
                raise _invalid(f"{url!r} should name an absolute path: unix:///run/ramet/api.sock")
            return
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise _invalid(f"{url!r} is no address of a server: http://HOST:PORT, https://HOST:PORT or unix:///PATH")
        try:
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise _invalid(f"{url!r}: {error}") from None
        self.host = parts.hostname
        self.host_header = parts.netloc
        if parts.scheme == "https":
            ca_file = ca_file or os.environ.get("RAMET_CA") or None
            try:
                self.tls = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise _invalid(f"the CA file {ca_file!r} cannot be used: {error}") from None

    def open(self, timeout: float) -> socket.socket:
        if self.socket_path:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(timeout)
                sock.connect(self.socket_path)
            except BaseException:
                sock.close()
                raise
            return sock
        sock = socket.create_connection((self.host, self.port), timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A quiet command may run for hours: the kernel notices a peer that is gone.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            return self.tls.wrap_socket(sock, server_hostname=self.host) if self.tls is not None else sock
        except BaseException:
            sock.close()
            raise


def _default_socket() -> str:
    """As the command line finds it: RAMET_RUN, root's daemon, or this user's own."""
    run, session = os.environ.get("RAMET_RUN"), os.environ.get("XDG_RUNTIME_DIR")
    uid = os.geteuid() if hasattr(os, "geteuid") else 0
    if not run:
        if uid == 0 or (not session and os.access("/run/ramet/api.sock", os.W_OK)):
            run = "/run/ramet"
        else:
            run = session + "/ramet" if session else f"/tmp/ramet-{uid}"
    return run + "/api.sock"


class _Connection(http.client.HTTPConnection):
    """http.client's over a socket of ours."""

    def __init__(self, address: _Address, timeout: float) -> None:
        super().__init__("ramet")
        self._address = address
        self._connect_timeout = timeout
        self.used = False
        self.idle_since = 0.0

    def connect(self) -> None:
        self.sock = self._address.open(self._connect_timeout)

    def is_stale(self) -> bool:
        """Whether the server closed it (or said what nobody asked for) while it lay idle."""
        sock = self.sock
        if sock is None or time.monotonic() - self.idle_since > _IDLE_SECS:
            return True
        try:
            return _readable(sock, 0.0)
        except (OSError, ValueError):
            return True


class _Pool:
    """Idle connections, the last one used first."""

    def __init__(self, address: _Address, connect_timeout: float, most: int = 32) -> None:
        self._address, self._timeout, self._most = address, connect_timeout, most
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._process = os.getpid()

    def _forked(self) -> None:
        """In a process that was forked off, connections are still the other one's: two would speak on one."""
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
            self.close()

    def take(self, once: bool) -> _Connection:
        """once: for a call that must not be sent twice, so only a connection that was in use a moment ago will do."""
        self._forked()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return _Connection(self._address, self._timeout)
            if not connection.is_stale() and (not once or time.monotonic() - connection.idle_since < _FRESH_SECS):
                return connection
            connection.close()

    def give(self, connection: _Connection) -> None:
        connection.used = True
        connection.idle_since = time.monotonic()
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _Response:
    """An answer whose body is still to be read. Read to its end, its connection goes back into the pool."""

    def __init__(self, pool: _Pool, connection: _Connection, cancel: _Cancel | None) -> None:
        # http.client forgets the socket of an answer after which the server closes, though it is still read from.
        self.sock: socket.socket | None = connection.sock
        raw = connection.getresponse()
        self._pool, self._connection, self._raw = pool, connection, raw
        self.status = raw.status
        self.headers = raw.headers
        self._open = True
        self._cancels: list[_Cancel] = []
        if cancel is not None:
            self.attach(cancel)

    def attach(self, cancel: _Cancel) -> None:
        """Cancelling ends it, as long as its connection is its own."""
        if self._open:
            self._cancels.append(cancel)
            cancel.attach(self.sock)

    def read(self) -> bytes:
        try:
            data = self._raw.read()
        except BaseException:
            self.close()
            raise
        self._release()
        return data

    def read_some(self) -> bytes:
        """What is there, at least a byte; b"" at the end."""
        if not self._open:
            return b""
        try:
            data = self._raw.read1(_PIECE)
            if not data and self._raw.length:
                raise http.client.IncompleteRead(b"", self._raw.length)
        except BaseException:
            self.close()
            raise
        if not data:
            self._release()
        return data

    def _release(self) -> None:
        if not self._open:
            return
        self._open = False
        self._raw.close()
        for cancel in self._cancels:
            cancel.detach(self.sock)
        if self._raw.will_close or self._connection.sock is None:
            self._connection.close()
        else:
            self._pool.give(self._connection)

    def close(self) -> None:
        """Gives it up: a body that was not read to its end takes the connection with it."""
        if self._open:
            self._open = False
            self._raw.close()
            self._connection.close()


class _Broken(Exception):
    """A connection failed. `sent`: whether the server may have got the request."""

    def __init__(self, cause: BaseException, sent: bool, reused: bool = False) -> None:
        super().__init__(str(cause))
        self.cause, self.sent, self.reused = cause, sent, reused


_NETWORK_ERRORS = (OSError, http.client.HTTPException)


class _Upload:
    """A request's body: bytes, a file or pieces. `again`: whether it can be sent once more."""

    def __init__(self, data: Data) -> None:
        self.headers: dict[str, str] = {"Content-Type": "application/octet-stream"}
        self._start: int | None = None
        self._size = 0    # from there on; told to the server, so exactly this is sent
        if isinstance(data, str):
            try:
                data = data.encode()
            except UnicodeEncodeError:
                raise _invalid("the text holds a lone surrogate, which UTF-8 cannot carry: give bytes") from None
        content: Any = bytes(data) if isinstance(data, (bytearray, memoryview)) else data
        self._data = content
        self.again = isinstance(self._data, bytes)
        if self.again:
            return
        if hasattr(self._data, "read"):
            try:
                self._start = self._data.tell()
                self._size = self._data.seek(0, os.SEEK_END) - self._start
                self._data.seek(self._start)
                if self._size > 0:    # else it is empty, or one of those in /proc that do not tell
                    self.headers["Content-Length"] = str(self._size)
                    self.again = True
                    return
            except (OSError, AttributeError, ValueError):
                pass
            self._start = None
        self.headers["Transfer-Encoding"] = "chunked"

    def body(self) -> bytes | Iterator[bytes]:
        if isinstance(self._data, bytes):
            return self._data
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        if not hasattr(self._data, "read"):
            for piece in self._data:
                if piece:
                    yield piece
            return
        if self._start is not None:
            self._data.seek(self._start)
        left = self._size
        while self._start is None or left > 0:
            piece = self._data.read(_PIECE if self._start is None else min(_PIECE, left))
            if isinstance(piece, str):
                raise _invalid("open the file in binary mode (\"rb\"): its bytes are what is sent")
            if not piece:
                if self._start is not None:
                    raise _invalid(f"the file became {left} bytes shorter while it was sent: nothing was written")
                return
            left -= len(piece)
            yield piece


class _Fate:
    """What is known of a call that makes something: `open` while the server may have made it and nobody has the answer."""

    def __init__(self) -> None:
        self.open = False

    def refused(self, error: RametError) -> None:
        """An error is an answer: nothing was made. Not so while an earlier try still runs, and in the words of a gateway."""
        self.open = self.open and (error.code == "idempotency.in_progress" or (error.status >= 500 and error.code.startswith("http.")))


class _Transport:
    """Sends one request, again where that is safe, and gives its answer or raises RametError."""

    def __init__(self, address: _Address, key: str | None, timeout: float | None, connect_timeout: float, retries: int) -> None:
        self.address, self.timeout, self.connect_timeout, self.retries = address, timeout, connect_timeout, retries
        self.pool = _Pool(address, connect_timeout)
        self.headers = {"Host": address.host_header, "User-Agent": f"ramet-python/{__version__}", "Accept": "application/json"}
        if key is None and not address.socket_path:
            key = os.environ.get("RAMET_API_KEY") or None
        if key:
            if not re.fullmatch(r"[\x21-\x7e]+", key):
                raise _invalid("the key holds a character that no key has (a blank or a line's end?)")
            self.headers["Authorization"] = "Bearer " + key

    def send(self, method: str, path: str, *, body: bytes | None = None, upload: _Upload | None = None,
             headers: Mapping[str, str] | None = None, timeout: float | None = None, repeat: bool = False,
             fate: _Fate | None = None) -> _Response:
        """repeat: whether it may be sent again though the server may have done it. fate: is told what is known of that."""
        target = self.address.prefix + path
        sent_headers = {**self.headers, **(upload.headers if upload else {}), **(headers or {})}
        if body is not None:
            sent_headers["Content-Type"] = "application/json"
        repeat = repeat and (upload is None or upload.again)
        attempt, broke = 0, False
        while True:
            try:
                response = self._once(method, target, upload.body() if upload else body, sent_headers, timeout, not repeat, fate)
            except _Broken as broken:
                if broken.reused and repeat:
                    self.pool.close()    # it, and those like it, died of old age: no try is lost
                    broke = broke or broken.sent
                    continue
                if attempt >= self.retries or not (repeat or (not broken.sent and (upload is None or upload.again))):
                    raise self._connection_error(method, path, broken) from broken.cause
                broke = broke or broken.sent
                delay = 0.1 * 2 ** attempt
            else:
                if response.status < 300:
                    return response
                if response.status < 400:
                    elsewhere = self._elsewhere(response)
                    if fate is not None:
                        fate.refused(elsewhere)
                    raise elsewhere
                error = _error_of(response.status, response.headers, self._rest(response))
                if fate is not None:
                    fate.refused(error)
                if broke and method == "DELETE" and response.status == 404:
                    return response    # an earlier try, whose answer was lost, did it
                delay = 0.2 * 2 ** attempt if error.retry_after_secs is None else error.retry_after_secs
                # Without `repeat`, only what says that nothing was begun.
                harmless = repeat or error.status == 429 or error.code in ("capacity.busy", "capacity.memory")
                if not error.retryable or not harmless or attempt >= self.retries or delay > 30 or (upload and not upload.again):
                    raise error
            attempt += 1
            _sleep(delay * random.uniform(1.0, 1.25))

    def _elsewhere(self, response: _Response) -> RametError:
        """Nobody is followed to where a key may be told to strangers, and what was asked was not done."""
        where = response.headers.get("Location")
        self._rest(response)
        return RametError(f"{self.address.url} is not Ramet's API: it answers {response.status}"
                          f"{f' and leads to {where}' if where else ''}; set url= or RAMET_API to where the server is",
                          status=response.status, code="client.protocol")

    @staticmethod
    def _rest(response: _Response) -> bytes:
        try:
            return response.read()
        except _NETWORK_ERRORS:
            return b""

    def _once(self, method: str, target: str, body: bytes | Iterator[bytes] | None, headers: Mapping[str, str],
              timeout: float | None, once: bool, fate: _Fate | None) -> _Response:
        cancel = _current_cancel()
        connection = self.pool.take(once)
        reused, sent = connection.used, False
        try:
            if connection.sock is None:
                connection.connect()
            if cancel is not None:
                cancel.attach(connection.sock)
            connection.sock.settimeout(timeout)
            sent = True
            if fate is not None:
                fate.open = True
            try:
                connection.request(method, target, cast(Any, body), headers,
                                   encode_chunked=headers.get("Transfer-Encoding") == "chunked")
            except (BrokenPipeError, ConnectionResetError):
                # The server may have refused a long body with words and closed: they are there to be read.
                try:
                    return _Response(self.pool, connection, cancel)
                except _NETWORK_ERRORS:
                    pass
                raise
            return _Response(self.pool, connection, cancel)
        except BaseException as error:
            connection.close()
            if cancel is not None and cancel.cancelled:
                raise _Cancelled("this call was cancelled", code="client.cancelled") from None
            if isinstance(error, _NETWORK_ERRORS):
                raise _Broken(error, sent, reused and not isinstance(error, TimeoutError)) from error
            raise

    def _connection_error(self, method: str, path: str, broken: _Broken) -> RametConnectionError:
        cause, where = broken.cause, self.address.url
        call = f"{method} {path.split('?')[0]}"
        if not broken.sent:
            if isinstance(cause, ssl.SSLError):
                hint = "TLS was not agreed upon; ca_file= (or RAMET_CA) names the CA that signed the server's certificate"
            else:
                hint = "does the daemon run there (`ramet up`)? url= or RAMET_API say where to look"
            return RametConnectionError(f"{where} cannot be reached: {cause}; {hint}", code="connection.failed", retryable=True)
        if isinstance(cause, TimeoutError):
            return RametConnectionError(f"{call}: no answer from {where} in time; it may have been done all the same. "
                                        "Ramet(timeout=...) says how long to wait", code="connection.timeout")
        return RametConnectionError(f"{call}: the connection to {where} broke ({cause or type(cause).__name__}); it may "
                                    "have been done all the same", code="connection.broken")

    # ---- upgrades: terminals and ports ----

    def upgrade(self, path: str, headers: Mapping[str, str]) -> tuple[socket.socket, dict[str, str]]:
        """A connection that is no longer HTTP's, and the head of the answer (names in lower case)."""
        cancel = _current_cancel()
        try:
            sock = self.address.open(self.connect_timeout)
        except OSError as error:
            raise self._connection_error("GET", path, _Broken(error, False)) from error
        try:
            if cancel is not None:
                cancel.attach(sock)
            sock.settimeout(self.timeout)
            lines = [f"GET {self.address.prefix}{path} HTTP/1.1"]
            lines += [f"{name}: {value}" for name, value in {**self.headers, **headers}.items()]
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            head = b""
            while not head.endswith(b"\r\n\r\n"):    # byte by byte: what follows belongs to whoever gets the socket
                byte = sock.recv(1)
                if not byte or len(head) > 65536:
                    raise ConnectionError("the server closed it before it answered")
                head += byte
            first, *rest = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ", 2)[1])
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
            if status == 101:
                return sock, fields
            body = b""
            length = int(fields.get("content-length", "0"))
            while len(body) < length and (piece := sock.recv(length - len(body))):
                body += piece
            raise _error_of(status, fields, body)
        except BaseException as error:
            sock.close()
            if cancel is not None and cancel.cancelled:
                raise _Cancelled("this call was cancelled", code="client.cancelled") from None
            if isinstance(error, (OSError, ValueError, IndexError)):
                raise self._connection_error("GET", path, _Broken(error, True)) from error
            raise


# ---------------------------------------------------------------------------------------------------------------------
# What was made, and nobody knows of

class _Undo:
    """Asks again, with the same Idempotency-Key, what a call made whose answer was lost, and removes it.

    In a thread of its own, as long as it may be of use; the program's end waits for it, though not for a server that is
    gone. Asking again makes nothing twice: while the first request runs this one waits for its answer.
    """

    SECS = 300.0         # so long it is tried
    EXIT_SECS = 60.0     # ... and so long a program's end waits
    _all: set[_Undo] = set()
    _lock = threading.Lock()
    _exits = threading.Event()

    def __init__(self, transport: _Transport, path: str, body: bytes, headers: Mapping[str, str],
                 unmake: Callable[[Json], Iterable[str]]) -> None:
        self._transport = copy.copy(transport)
        self._transport.pool = _Pool(transport.address, transport.connect_timeout, 1)
        self._transport.retries, self._transport.timeout = 0, 90.0    # the server lets a second one wait for a minute
        self._path, self._body, self._headers, self._unmake = path, body, headers, unmake
        self._limit = time.monotonic() + self.SECS
        self._thread = threading.Thread(target=self._run, name="ramet-undo", daemon=True)
        with self._lock:
            self._all.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            answer = self._insist("POST", self._path, self._body, self._headers)
            for path in self._unmake(_load(answer)) if answer else ():
                self._insist("DELETE", path, None, {})
        except Exception:    # an answer that is none: nobody waits for this thread's words
            pass
        finally:
            self._transport.pool.close()
            with self._lock:
                self._all.discard(self)

    def _insist(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes | None:
        """Until there is an answer; None: it was refused, or it is of no use any more."""
        pause = 0.1
        while True:
            fate = _Fate()
            try:
                return self._transport.send(method, path, body=body, headers=headers, repeat=True, fate=fate,
                                            timeout=self._transport.timeout).read()
            except RametError as error:
                later = (429,) if method == "POST" else (409, 429, 503)
                if not (fate.open or isinstance(error, RametConnectionError) or error.status in later):
                    return None
                if error.code == "connection.failed" and self._exits.is_set():
                    return None
            except _NETWORK_ERRORS:
                pass
            if time.monotonic() > self._limit:
                return None
            time.sleep(pause) if self._exits.is_set() else self._exits.wait(pause)
            pause = min(pause * 2, 5.0)

    @classmethod
    def wait_for_all(cls) -> None:
        cls._exits.set()
        limit = time.monotonic() + cls.EXIT_SECS
        while (left := limit - time.monotonic()) > 0:
            with cls._lock:
                undo = next(iter(cls._all), None)
            if undo is None:
                return
            undo._thread.join(left)
            if not undo._thread.is_alive():    # also one of the process that this one was forked from
                with cls._lock:
                    cls._all.discard(undo)


atexit.register(_Undo.wait_for_all)


# ---------------------------------------------------------------------------------------------------------------------
# Streams

class Event(Dict[str, Any]):
    """One event of a stream: a dict of what came with it, `kind` (such as "stdout" or "exit") and its `id`, if it has one."""

    __slots__ = ("kind", "id")

    def __init__(self, kind: str, data: Mapping[str, Any], id: str | None = None) -> None:
        super().__init__(data)
        self.kind = kind
        self.id = id

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, {dict(self)!r})"


class _EventParser:
    """Server-sent events out of bytes that come in any pieces. Lines of any length; text is decoded when it is whole."""

    _END = re.compile(rb"[\r\n]")

    def __init__(self, last_id: str | None = None) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._kind, self._data = b"", cast("list[bytes]", [])
        self._id = self.last_id = last_id    # of what was whole: an event that breaks off is to be sent again
        self.retry_secs: float | None = None
        self._first = True

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        buffer = self._buffer
        buffer += data
        begin = 0
        while True:
            match = self._END.search(buffer, max(begin, self._scanned))
            if match is None:
                self._scanned = len(buffer)
                break
            end = match.end()
            if buffer[match.start()] == 13:
                if end == len(buffer):    # perhaps the first half of CR LF
                    self._scanned = match.start()
                    break
                end += buffer[end] == 10
            self._line(bytes(buffer[begin:match.start()]), events)
            begin = end
            self._scanned = begin
        del buffer[:begin]
        self._scanned -= begin
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            self.last_id = self._id
            if self._data:
                events.append(self._event())
            self._kind, self._data = b"", []
            return
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry_secs = int(value) / 1000

    def _event(self) -> Event:
        data = _load(b"\n".join(self._data))
        return Event((self._kind or b"message").decode("utf-8", "replace"), data if isinstance(data, dict) else {"data": data},
                     self.last_id)


class Stream(Generic[T]):
    """Iterates over what a server sends, as it comes; nothing is read that was not asked for.

    Closing it before its end ends the request (of a command: the command). close() may be called by another thread,
    whose iteration then stops. Also a context manager.
    """

    def __init__(self) -> None:
        self._batch: collections.deque[T] = collections.deque()
        self._cancel = _Cancel()
        self._reading = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._batch:
            self._batch.extend(self.read_batch())
        if not self._batch:
            raise StopIteration
        return self._batch.popleft()

    def read_batch(self) -> list[T]:
        """All that is there, at least one; [] at the end."""
        if self._batch:
            batch, self._batch = list(self._batch), collections.deque()
            return batch
        if self._closed:
            self._drop_unless_read()
            return []
        try:
            with self._reading:
                return self._cancel.run(self._read)
        except _Cancelled:
            self.close()
            if self._outer_cancelled():
                raise
            return []
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _outer_cancelled() -> bool:
        outer = _current_cancel()
        return outer is not None and outer.cancelled

    def _read(self) -> list[T]:
        raise NotImplementedError

    def _drop(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Ends it. What it had read ahead is dropped."""
        self._closed = True
        self._cancel.cancel()
        self._batch.clear()
        self._drop_unless_read()

    def _drop_unless_read(self) -> None:
        if self._reading.acquire(blocking=False):    # else the thread that reads comes by here when it wakes up
            try:
                self._drop()
            finally:
                self._reading.release()

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


_S = TypeVar("_S", bound="Stream[Any]")


class _ByteStream(Stream[bytes]):
    """A raw body in pieces. One that is shorter than it should be is an error at its end."""

    def __init__(self, response: _Response) -> None:
        super().__init__()
        self._response = response
        response.attach(self._cancel)

    def _read(self) -> list[bytes]:
        try:
            piece = self._response.read_some()
        except _NETWORK_ERRORS as error:
            if self._cancel.cancelled:
                raise _Cancelled("closed", code="client.cancelled") from None
            raise RametConnectionError(f"the connection broke before the end of the data ({error or type(error).__name__}); "
                                       "what came so far is not all", code="connection.broken") from error
        if piece:
            return [piece]
        self._closed = True
        return []

    def _drop(self) -> None:
        self._response.close()


class _EventStream(Stream[Event]):
    """Server-sent events.

    connect: opens it, given the id of the last event that came (None: from the beginning).
    last: whether an event is the last one. failure: the kind of event that is an error of the call.
    resume: whether the server's ids allow to go on where the connection broke. wanted: others are left out. may_end: it may
    end without a last event.
    """

    _TRIES = 6
    _STEADY_SECS = 60.0

    def __init__(self, connect: Callable[[str | None], _Response], last: Callable[[Event], bool], failure: str | None,
                 resume: bool, what: str, wanted: Callable[[Event], bool] | None = None, may_end: bool = False) -> None:
        super().__init__()
        self._wanted, self._may_end = wanted, may_end
        self._connect, self._last, self._failure, self._resume, self._what = connect, last, failure, resume, what
        self._response: _Response | None = None
        self._parser = _EventParser()
        self._error: RametError | None = None
        self._ended = False
        self._tries = 0
        self._open(None)

    def _open(self, last_id: str | None) -> None:
        self._response = self._connect(last_id)
        self._parser = _EventParser(last_id)
        self._response.attach(self._cancel)
        self._opened = time.monotonic()

    def _read(self) -> list[Event]:
        while not self._ended:
            if self._error is not None:
                raise self._error
            cause: BaseException | None = None
            piece = b""
            try:
                piece = self._response.read_some() if self._response is not None else b""
            except _NETWORK_ERRORS as error:
                cause = error
            if self._cancel.cancelled:
                raise _Cancelled("closed", code="client.cancelled")
            if piece:
                events = self._sift(self._parser.feed(piece))
                if events:
                    self._tries = 0
                    return events
                continue
            if self._may_end and cause is None:
                self._ended = True
            else:
                self._reconnect(cause)
        self._finish()
        return []

    def _sift(self, events: list[Event]) -> list[Event]:
        """Those until the last one; a failure is kept until what came before it was delivered."""
        if self._wanted is not None:
            events = [event for event in events if self._wanted(event)]
        for number, event in enumerate(events):
            if event.kind == self._failure:
                self._error = _failure_of(event)
                events = events[:number]
                break
            if self._last(event):
                self._ended = True
                events = events[:number + 1]
                break
        if not events and self._error is not None:
            raise self._error
        return events

    def _finish(self) -> None:
        """The last event came: the end of the body follows it at once, and the connection can be used again."""
        self._closed = True
        response = self._response
        if response is None:
            return
        if self._wanted is not None:    # perhaps the stream of others too, which goes on
            response.close()
            return
        try:
            if response.sock is not None:
                response.sock.settimeout(1.0)
            while response.read_some():
                pass
        except _NETWORK_ERRORS:
            pass

    def _reconnect(self, cause: BaseException | None) -> None:
        self._drop()
        if time.monotonic() - self._opened > self._STEADY_SECS:
            self._tries = 0    # it was fine, though nothing happened: a stream of days breaks more often than a few times
        while True:
            if not self._resume or self._tries >= self._TRIES:
                why = f": {cause}" if cause is not None and str(cause) else ""
                raise RametConnectionError(f"{self._what} broke off before its end{why}", code="connection.broken") from cause
            if self._tries:
                self._cancel.wait(min(0.1 * 2 ** self._tries, 5.0))
            elif self._parser.retry_secs:
                self._cancel.wait(min(self._parser.retry_secs, 5.0))
            self._tries += 1
            try:
                self._open(self._parser.last_id)
                return
            except RametError as error:
                if not isinstance(error, RametConnectionError) and not error.retryable:
                    raise
                cause = error

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()


def _failure_of(event: Event) -> RametError:
    code = str(event.get("code", "internal.error"))
    return RametError(str(event.get("message", "it failed")), code=code, request_id=str(event.get("request_id") or ""),
                      status={"capacity": 503, "validation": 400, "auth": 403, "internal": 500}.get(
                          code.split(".")[0], 404 if code.endswith(".not_found") else 409))


# ---------------------------------------------------------------------------------------------------------------------
# Terminals

class Pty:
    """A terminal in a sandbox, over a WebSocket (RFC 6455).

    send() types, recv() gives what it shows; bytes both ways, which need not be cut between characters. When its
    command ended, recv() gives b"" and `exit_code` (or `signal`) says how. Closing it hangs the terminal up.
    """

    _GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    _MOST = 1 << 20    # the server takes messages up to this

    def __init__(self, transport: _Transport, path: str) -> None:
        key = base64.b64encode(os.urandom(16))
        self._socket, head = transport.upgrade(path, {"Connection": "Upgrade", "Upgrade": "websocket",
                                                     "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key.decode()})
        accept = base64.b64encode(hashlib.sha1(key + self._GUID).digest()).decode()
        if head.get("sec-websocket-accept") != accept:
            self._socket.close()
            raise RametError("the answer to the WebSocket's opening is not one", code="client.protocol")
        self._socket.settimeout(None)
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._message = bytearray()
        self._opcode = 0
        self._closed = False
        self.exit_code: int | None = None
        self.signal: int | str | None = None
        self.close_code: int | None = None
        self.close_reason = ""
        self.duration_ms: float | None = None

    def send(self, data: bytes | str) -> None:
        """Types it."""
        data = data.encode() if isinstance(data, str) else bytes(data)
        for begin in range(0, len(data), self._MOST):
            self._frame(2, data[begin:begin + self._MOST])

    def resize(self, rows: int, columns: int) -> None:
        """Tells the programs in it how large it is now."""
        self._frame(1, json.dumps({"resize": {"rows": rows, "columns": columns}}).encode())

    def recv(self, timeout: float | None = None) -> bytes:
        """What it showed since; waits for some. b"" at the end; TimeoutError after so many seconds without any."""
        limit = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            frame = self._take_frame(limit)
            if frame is None:
                self._end(1006, "the connection broke")
                break
            final, opcode, payload = frame
            if opcode == 9:
                self._frame(10, payload)
            elif opcode == 8:
                code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
                self._answer_close(payload)
                self._end(code, payload[2:].decode("utf-8", "replace"))
            elif opcode in (0, 1, 2):
                self._opcode = opcode or self._opcode
                self._message += payload
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    if self._opcode == 2 and message:
                        return message
                    if self._opcode == 1:
                        self._text(message)
        if self.close_code not in (None, 1000) and self.exit_code is None and self.signal is None:
            raise RametConnectionError(f"the terminal was closed: {self.close_reason or self.close_code}", code="connection.broken")
        return b""

    def __iter__(self) -> Iterator[bytes]:
        while data := self.recv():
            yield data

    def close(self) -> None:
        """Hangs it up; its programs get SIGHUP."""
        if not self._closed:
            self._answer_close(struct.pack("!H", 1000))
            self._end(1000, "")
        self._socket.close()

    def __enter__(self) -> Pty:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        sock = getattr(self, "_socket", None)
        if sock is not None:
            sock.close()

    def _end(self, code: int, reason: str) -> None:
        self._closed = True
        self.close_code, self.close_reason = code, reason
        _shut(self._socket)
        self._socket.close()

    def _text(self, message: bytes) -> None:
        data = _load(message)
        if "exit" in data:
            self.exit_code, self.signal = data["exit"].get("exit_code"), data["exit"].get("signal")
            self.duration_ms = data["exit"].get("duration_ms")
        elif "error" in data:
            raise RametError(str(data["error"].get("message")), code="terminal.refused")

    def _answer_close(self, payload: bytes) -> None:
        try:
            self._frame(8, payload[:125])
        except RametError:
            pass

    def _frame(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += struct.pack("!BH", 0x80 | 126, size)
        else:
            head += struct.pack("!BQ", 0x80 | 127, size)
        mask = os.urandom(4)
        whole = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "little") ^ int.from_bytes(whole, "little")).to_bytes(size, "little")
        if self._closed:
            raise RametError("this terminal is closed", code="terminal.closed")
        try:
            with self._send_lock:
                self._socket.sendall(head + mask + masked)
        except OSError as error:
            raise RametConnectionError(f"the terminal's connection broke: {error}", code="connection.broken") from error

    def _take_frame(self, limit: float | None) -> tuple[bool, int, bytes] | None:
        if not self._fill(2, limit):
            return None
        first, second = self._buffer[0], self._buffer[1]
        size, begin = second & 0x7F, 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            if not self._fill(begin, limit):
                return None
            size = int.from_bytes(self._buffer[2:begin], "big")
        if second & 0x80 or first & 0x70 or size > 64 << 20:
            raise RametError("the server sent a WebSocket frame that is none", code="client.protocol")
        if not self._fill(begin + size, limit):
            return None
        payload = bytes(self._buffer[begin:begin + size])
        del self._buffer[:begin + size]
        return bool(first & 0x80), first & 15, payload

    def _fill(self, size: int, limit: float | None) -> bool:
        """Until there are so many bytes; what came stays for the next call when the time is over."""
        while len(self._buffer) < size:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            try:
                pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
                if not pending and not _readable(self._socket, left):
                    raise TimeoutError("the terminal showed nothing in this time")
                # OpenSSL's state is for one thread at a time; without TLS nobody waits for the lock.
                with self._send_lock if isinstance(self._socket, ssl.SSLSocket) else contextlib.nullcontext():
                    piece = self._socket.recv(_PIECE)
            except TimeoutError:
                raise
            except (OSError, ValueError):
                return False
            if not piece:
                return False
            self._buffer += piece
        return True


# ---------------------------------------------------------------------------------------------------------------------
# The client: one method for each call

class Ramet:
    """The HTTP API, a method for a call. Bodies are dicts of the API's fields, keywords, or both; answers are dicts.

    url, key: where the server is and who asks (see the module's text). timeout: seconds to wait for an answer (None:
    for ever); a call with a command in it waits as long as that may take. connect_timeout: for a connection. retries:
    how often a call is tried again. ca_file: the CA of the server's certificate, when it is no public one.
    workers: the most calls at once of the asyncio twin.
    """

    def __init__(self, url: str | None = None, key: str | None = None, timeout: float | None = 300.0, *,
                 connect_timeout: float = 10.0, retries: int = 3, ca_file: str | None = None, workers: int = 64) -> None:
        self._transport = _Transport(_Address(url, ca_file), key, timeout, connect_timeout, retries)
        self._workers = workers
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._executor_lock = threading.Lock()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.address.url

    def close(self) -> None:
        """Closes what is idle. It can be used again."""
        self._transport.pool.close()
        with self._executor_lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def __enter__(self) -> Ramet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_executor_lock"):
            self.close()

    def __repr__(self) -> str:
        return f"Ramet({self.url!r})"

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._executor_lock:
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(self._workers, "ramet")
            return self._executor

    # ---- the few ways in which all calls are made ----

    def request(self, method: str, path: str, body: Body | None = None, *, repeat: bool | None = None,
                headers: Mapping[str, str] | None = None, timeout: float | None = None) -> Any:
        """Any call by its path: what its answer's JSON says (None without a body).

        repeat: whether it may be sent twice when a connection breaks (default: as its method is meant).
        """
        if repeat is None:
            repeat = method in ("GET", "HEAD", "PUT", "DELETE")
        with_body = None if body is None and method in ("GET", "HEAD", "DELETE") else _dump(body)
        response = self._transport.send(method, path, body=with_body, repeat=repeat, headers=headers,
                                        timeout=self._transport.timeout if timeout is None else timeout)
        data = self._read(method, path, response)
        return _load(data) if data else None

    def _read(self, method: str, path: str, response: _Response) -> bytes:
        try:
            return response.read()
        except _NETWORK_ERRORS as error:
            cancel = _current_cancel()
            if cancel is not None and cancel.cancelled:
                raise _Cancelled("this call was cancelled", code="client.cancelled") from None
            raise self._transport._connection_error(method, path, _Broken(error, True)) from error

    def _get(self, path: str, **query: object) -> Json:
        return self._read_again("GET", path + _query(query), None, None)

    def _create(self, path: str, body: Body | None, idempotency_key: str | None,
                unmake: Callable[[Json], Iterable[str]] | None = None) -> Json:
        """Makes something: one key for all tries, so that it is made once.

        unmake: given for what nobody could find again, it names the paths of what an answer says was made: when the answer
        is lost for good (the call was cancelled, Ctrl-C, no answer in time), these are removed.
        """
        data, headers = _dump(body), {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if unmake is None or idempotency_key:
            return self._read_again("POST", path, data, headers)
        fate, undo = _Fate(), functools.partial(_Undo, self._transport, path, data, headers, unmake)
        try:
            answer = self._read_again("POST", path, data, headers, fate)
        except BaseException as error:
            if fate.open:
                undo()
                if isinstance(error, RametConnectionError):
                    error.message += "; what it may have made is removed in the background"
            raise
        cancel = _current_cancel()
        if cancel is not None:
            cancel.made(undo)
        return answer

    def _read_again(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None,
                    fate: _Fate | None = None) -> Json:
        """A call that may be repeated, also when its answer broke off in the middle."""
        for attempt in range(self._transport.retries + 1):
            response = self._transport.send(method, path, body=body, headers=headers, repeat=True, fate=fate,
                                            timeout=self._transport.timeout)
            try:
                return cast(Json, _load(self._read(method, path, response)))
            except RametConnectionError:
                if attempt == self._transport.retries:
                    raise
                _sleep(0.1 * 2 ** attempt)
        raise AssertionError("not reached")

    def _once(self, path: str, body: Body | None, command_secs: object, patient: bool) -> Json:
        """Runs something of the user's: never sent twice; waits as long as it may take."""
        if isinstance(command_secs, (int, float)) and command_secs > 0:
            timeout: float | None = command_secs + _GRACE_SECS
        else:
            timeout = None if patient else self._transport.timeout
        response = self._transport.send("POST", path, body=_dump(body), timeout=timeout)
        return cast(Json, _load(self._read("POST", path, response)))

    def _events(self, method: str, path: str, body: Body | None, what: str, last: Callable[[Event], bool],
                failure: str | None = None, resume: bool = False, last_event_id: str | None = None,
                may_end: bool = False) -> Stream[Event]:
        data = None if method == "GET" else _dump(body)

        def connect(last_id: str | None) -> _Response:
            headers = {"Accept": "text/event-stream"}
            last_id = last_event_id if last_id is None else last_id
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            return self._transport.send(method, path, body=data, headers=headers, timeout=_SILENCE_SECS, repeat=method == "GET")

        return _EventStream(connect, last, failure, resume, what, may_end=may_end)

    def _bytes(self, method: str, path: str, body: Body | None = None, headers: Mapping[str, str] | None = None) -> _Response:
        return self._transport.send(method, path, body=None if body is None else _dump(body), timeout=self._transport.timeout,
                                    headers={"Accept": "*/*", **(headers or {})}, repeat=True)

    def _upload(self, method: str, path: str, data: Data, idempotency_key: str | None = None) -> Json | None:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
        response = self._transport.send(method, path, upload=_Upload(data), headers=headers, repeat=method == "PUT",
                                        timeout=self._transport.timeout)
        answer = self._read(method, path, response)
        return cast(Json, _load(answer)) if answer else None

    @staticmethod
    def _box(name: str, rest: str = "") -> str:
        return f"/v1/sandboxes/{_segment(name)}{rest}"

    # ---- service and store ----

    def health(self) -> Json:
        """`{"status": "ok"}`; an error when the store has stopped writing."""
        return self._get("/healthz")

    def version(self) -> Json:
        """`version` of the server and `api`."""
        return self._get("/version")

    def openapi(self) -> Json:
        """The description of every call, as OpenAPI 3.1."""
        return self._get("/openapi.json")

    def metrics(self) -> str:
        """The server's figures as Prometheus reads them."""
        return self._bytes("GET", "/metrics").read().decode()

    def me(self) -> Json:
        """Who asks: `name owner key` (null for the owner, by the unix socket)."""
        return self._get("/v1/me")

    def get_environment(self) -> Dict[str, str]:
        """The variables that every sandbox's commands have, unless it was made with `environment: false`."""
        return cast("Dict[str, str]", self._get("/v1/environment")["env"])

    def set_environment(self, env: Mapping[str, str]) -> Dict[str, str]:
        """These in place of what was there."""
        return cast("Dict[str, str]", self.request("PUT", "/v1/environment", {"env": env})["env"])

    def update_environment(self, env: Mapping[str, str | None]) -> Dict[str, str]:
        """Sets these; None removes one."""
        return cast("Dict[str, str]", self.request("PATCH", "/v1/environment", {"env": env}, repeat=True)["env"])

    def memory(self) -> Json:
        """What machines use of the host's memory, and what is left of the budget."""
        return self._get("/v1/memory")

    def pool(self) -> Json:
        """The machines that wait to be taken, by template."""
        return self._get("/v1/pool")

    def store(self) -> Json:
        """What is stored and what it takes: logical, physical, deduplicated, reclaimable."""
        return self._get("/v1/store")

    def store_lineage(self) -> Json:
        """The tree of templates, snapshots, sandboxes and forks."""
        return self._get("/v1/store/lineage")

    def store_seal(self) -> Json:
        """Moves what is in the log into segments now."""
        return cast(Json, self.request("POST", "/v1/store/seal", repeat=True))

    def store_gc(self, /, body: Body | None = None, **fields: Any) -> Json:
        """Frees what nothing reaches any more. `recompress?`"""
        return self._once("/v1/store/gc", _merge(body, fields), None, True)

    def store_scrub(self) -> Json:
        """Reads what is stored and compares its checksums."""
        return self._once("/v1/store/scrub", None, None, True)

    def store_check(self) -> Json:
        """Verifies all that can be verified; changes nothing."""
        return self._once("/v1/store/check", None, None, True)

    def export_archive(self, names: Sequence[str]) -> Stream[bytes]:
        """Volumes and snapshots with all that they consist of, as one stream of bytes."""
        return _ByteStream(self._bytes("POST", "/v1/store/export", {"names": list(names)}))

    def import_archive(self, data: Data, prefix: str | None = None) -> Json:
        """What export_archive gave, into this store; `prefix` goes before every name."""
        return cast(Json, self._upload("POST", "/v1/store/import" + _query({"prefix": prefix}), data))

    def open_import(self, /, body: Body | None = None, **fields: Any) -> Stream[Event]:
        """`name size_bytes`: a new disk to be written by an NBD client. Its event `ready` names the socket and the `import`
        to commit; it lasts until the stream is closed. (For programs on the server's machine.)"""
        return self._events("POST", "/v1/imports", _merge(body, fields), "the import", lambda event: False, "error")

    def commit_import(self, id: str) -> Json:
        """What was written is the volume now."""
        return self._once(f"/v1/imports/{_segment(id)}/commit", None, None, True)

    def cancel_import(self, id: str) -> None:
        """Gives it up; nothing is left of it."""
        self.request("DELETE", f"/v1/imports/{_segment(id)}")

    def open_export(self, /, body: Body | None = None, **fields: Any) -> Stream[Event]:
        """`name`: a disk to be read by an NBD client, as it is now; lasts until the stream is closed."""
        return self._events("POST", "/v1/exports", _merge(body, fields), "the export", lambda event: False, "error")

    def events(self, *, follow: bool = True, last_event_id: str | None = None) -> Stream[Event]:
        """What happens to all sandboxes, from now on (or after `last_event_id`); goes on by itself when a connection breaks."""
        return self._events("GET", "/v1/events" + _query({"follow": follow}), None, "the stream of events", lambda event: False,
                            resume=True, last_event_id=last_event_id)

    def past_events(self) -> list[Json]:
        """The events that are still known."""
        return cast("list[Json]", self._get("/v1/events", follow=0)["events"])

    # ---- sandboxes ----

    def list_sandboxes(self, *, state: str | None = None, label: str | Mapping[str, str] | None = None) -> list[Json]:
        """All, or those in a state, or with a label ("k=v")."""
        if isinstance(label, Mapping):
            wanted = dict(label)
            if len(wanted) != 1:
                raise _invalid("label takes one label: {\"name\": \"value\"} or \"name=value\"")
            label = "=".join(*wanted.items())
        return cast("list[Json]", self._get("/v1/sandboxes", state=state, label=label)["sandboxes"])

    def get_sandbox(self, name: str) -> Json:
        """One, by its name or id."""
        return self._get(self._box(name))

    def create_sandboxes(self, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """A new sandbox, running: `name? from? size? cpus? memory_mb? disk_gb? network? labels? env? environment? ttl_secs?
        idle_secs? persistent? on_timeout? auto_start? disks?`"""
        merged = _merge(body, fields)
        return self._create("/v1/sandboxes", merged, idempotency_key,
                            None if merged.get("name") else lambda made: [self._box(made["id"])])

    create_sandbox = create_sandboxes

    def update_sandbox(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """`name? labels? env? network? ttl_secs? idle_secs? persistent? on_timeout? auto_start?`"""
        return cast(Json, self.request("PATCH", self._box(name), _merge(body, fields), repeat=True))

    def delete_sandbox(self, name: str) -> None:
        """Removes it, running or not. Its snapshots and forks stay."""
        self.request("DELETE", self._box(name))

    def start_sandbox(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """Goes on where it was stopped. `cold?` boots instead."""
        return cast(Json, self.request("POST", self._box(name, "/start"), _merge(body, fields)))

    def stop_sandbox(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """Stops it with its memory (`memory: false`: the disk alone; `force?`)."""
        return cast(Json, self.request("POST", self._box(name, "/stop"), _merge(body, fields), repeat=True))

    def pause_sandbox(self, name: str) -> Json:
        """Its vCPUs stand still, in place."""
        return cast(Json, self.request("POST", self._box(name, "/pause")))

    def resume_sandbox(self, name: str) -> Json:
        """After pause_sandbox."""
        return cast(Json, self.request("POST", self._box(name, "/resume")))

    def restore_sandbox(self, name: str, /, body: Body | str | None = None, **fields: Any) -> Json:
        """Its disks and memory become those of `snapshot`."""
        body = {"snapshot": body} if isinstance(body, str) else body
        return cast(Json, self.request("POST", self._box(name, "/restore"), _merge(body, fields)))

    def promote_sandbox(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """Keeps this one of a fork's children and drops its siblings. `cleanup_siblings? tree_id? name?`"""
        return cast(Json, self.request("POST", self._box(name, "/promote"), _merge(body, fields)))

    def fork_sandbox(self, name: str, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """Copies of it that run on from this instant: `count? names? labels? env? snapshot? best_effort?`"""
        merged = _merge(body, fields)
        return self._create(self._box(name, "/fork"), merged, idempotency_key,
                            None if merged.get("names") else lambda made: [self._box(child["id"]) for child in made["children"]])

    def snapshot(self, name: str, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """Keeps this instant, memory and disks; the sandbox runs on. `name? labels? wait? best_effort?`"""
        merged = _merge(body, fields)
        return self._create(self._box(name, "/snapshots"), merged, idempotency_key, self._unmake_snapshot(merged))

    @staticmethod
    def _unmake_snapshot(body: Json) -> Callable[[Json], Iterable[str]] | None:
        return None if body.get("name") else lambda made: [f"/v1/snapshots/{_segment(made['id'])}"]

    def wait_until(self, name: str, state: str | Sequence[str], timeout_secs: float | None = 300.0) -> Json:
        """Waits until it is in this state (or one of these), and returns it. A sandbox that failed meanwhile is an error."""
        wanted = [state] if isinstance(state, str) else list(state)
        limit = None if timeout_secs is None else time.monotonic() + timeout_secs
        pause = 0.02
        while True:
            sandbox = self.get_sandbox(name)
            if sandbox["state"] in wanted:
                return sandbox
            if sandbox["state"] == "failed":
                raise RametError(f"{name} has failed: {sandbox.get('reason') or 'see its logs'}", code="sandbox.failed")
            if limit is not None and time.monotonic() >= limit:
                raise RametError(f"{name} is {sandbox['state']} and did not become {' or '.join(wanted)} within {timeout_secs} s",
                                 code="wait.timeout", retryable=True)
            _sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def sandbox_events(self, name: str, *, last_event_id: str | None = None) -> Stream[Event]:
        """What happens to it, from now on (or after `last_event_id`), until it is removed."""
        own, ids = self._box(name, "/events?follow=1"), {name}
        paths = [own]

        def connect(last_id: str | None) -> _Response:
            last_id = last_event_id if last_id is None else last_id
            headers = {"Accept": "text/event-stream", **({} if last_id is None else {"Last-Event-ID": last_id})}
            try:
                return self._transport.send("GET", paths[-1], headers=headers, timeout=_SILENCE_SECS, repeat=True)
            except RametError as error:
                if error.status != 404 or last_id is None or len(paths) > 1:
                    raise
            # It was removed while the connection was broken: that is told by the events of all.
            paths.append("/v1/events?follow=1")
            return connect(last_id)

        def is_its(event: Event) -> bool:
            if event.get("sandbox_id") in ids or (event.get("sandbox") == name and len(ids) == 1):
                ids.add(event["sandbox_id"])    # from now on by its id alone: a name may change hands
                return True
            return len(paths) == 1

        return _EventStream(connect, lambda event: event.get("type") == "removed", None, True, f"the stream of {name}'s events", is_its)

    def past_sandbox_events(self, name: str) -> list[Json]:
        """Its events that are still known."""
        return cast("list[Json]", self._get(self._box(name, "/events"), follow=0)["events"])

    def sandbox_logs(self, name: str, *, tail_bytes: int | None = None) -> str:
        """The end of what it wrote to its console."""
        path = self._box(name, "/logs") + _query({"tail_bytes": tail_bytes})
        return self._read("GET", path, self._bytes("GET", path)).decode("utf-8", "replace")

    def sandbox_logs_stream(self, name: str) -> Stream[Event]:
        """Its console as it is written: an event `line` (`text`) for each line that is kept, then as they come, until it is removed."""
        return self._events("GET", self._box(name, "/logs?follow=1"), None, f"the console of {name}", lambda event: False,
                            "error", may_end=True)

    def sandbox_metrics(self, name: str) -> Json:
        """Its figures: memory, disk, processor."""
        return self._get(self._box(name, "/metrics"))

    # ---- commands ----

    @staticmethod
    def _command(body: Body | str | None, fields: Mapping[str, Any]) -> Json:
        merged = _merge({"command": body} if isinstance(body, str) else body, fields)
        stdin = merged.get("stdin")
        if isinstance(stdin, (bytes, bytearray, memoryview)):
            del merged["stdin"]
            merged["stdin_base64"] = base64.b64encode(stdin).decode()
        return merged

    def exec(self, name: str, /, body: Body | str | None = None, **fields: Any) -> Json:
        """Runs a command and waits for it: `command timeout_secs? cwd? env? user? stdin? encoding?`. `stdin` may be bytes;
        the answer has `exit_code stdout stderr timed_out truncated duration_ms`."""
        command = self._command(body, fields)
        return self._once(self._box(name, "/exec"), command, command.get("timeout_secs"), True)

    def exec_stream(self, name: str, /, body: Body | str | None = None, **fields: Any) -> Stream[Event]:
        """Runs a command and gives its output as it comes: `command timeout_secs? cwd? env? user? stdin? encoding?`; events
        `stdout` and `stderr` (`text`), then `exit`. Closing the stream ends the command."""
        return self._events("POST", self._box(name, "/exec/stream"), self._command(body, fields), "the command's stream",
                            lambda event: event.kind == "exit", "error")

    def open_pty(self, name: str, *, command: str | None = None, rows: int = 24, columns: int = 80, user: str | None = None,
                 cwd: str | None = None, term: str | None = None) -> Pty:
        """A terminal; without a command, the user's shell in it."""
        return Pty(self._transport, self._box(name, "/exec/pty") + _query(
            {"rows": rows, "columns": columns, "command": command, "user": user, "cwd": cwd, "term": term}))

    def start_job(self, name: str, /, body: Body | str | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """A command in the background, which outlives caller, daemon, snapshots: `command name? timeout_secs? cwd? env? user?
        stdin? encoding?`"""
        command = self._command(body, fields)
        return self._create(self._box(name, "/jobs"), command, idempotency_key,
                            None if command.get("name") else lambda made: [self._box(name, f"/jobs/{_segment(made['id'])}?kill=1")])

    def list_jobs(self, name: str) -> list[Json]:
        """Its jobs, newest first."""
        return cast("list[Json]", self._get(self._box(name, "/jobs"))["jobs"])

    def get_job(self, name: str, id: str | int, *, wait_secs: float | None = None) -> Json:
        """One, by id or name; with `wait_secs` when it ended, or as it is after that time."""
        path = self._box(name, f"/jobs/{_segment(id)}") + _query({"wait_secs": wait_secs})
        wait = (self._transport.timeout or 0) + (wait_secs or 0) if self._transport.timeout else None
        return cast(Json, self.request("GET", path, timeout=wait))

    def signal_job(self, name: str, id: str | int, /, body: Body | str | None = None, **fields: Any) -> None:
        """`signal?` (default TERM) `whole?`"""
        body = {"signal": body} if isinstance(body, str) else body
        self.request("POST", self._box(name, f"/jobs/{_segment(id)}/signal"), _merge(body, fields))

    def delete_job(self, name: str, id: str | int, *, kill: bool | None = None) -> None:
        """Forgets it; `kill` ends one that runs."""
        self.request("DELETE", self._box(name, f"/jobs/{_segment(id)}") + _query({"kill": kill}))

    def job_logs(self, name: str, id: str | int, *, follow: bool = True, stdout: int | str | None = None, stderr: int | str | None = None,
                 encoding: str | None = None, last_event_id: str | None = None) -> Stream[Event]:
        """Its output: events `stdout` and `stderr` (`text offset`), `gap`, at last `end` (the job). Goes on by itself, exactly
        where it was, when a connection breaks. stdout, stderr: offsets to begin at ("end": what comes from now on)."""
        path = self._box(name, f"/jobs/{_segment(id)}/logs") + _query(
            {"follow": follow or None, "stdout": stdout, "stderr": stderr, "encoding": encoding})
        return self._events("GET", path, None, "the job's log", lambda event: event.kind == "end", "error", resume=follow,
                            last_event_id=last_event_id, may_end=not follow)

    # ---- files ----

    def _file(self, name: str, rest: str, **query: object) -> str:
        return self._box(name, "/files" + rest) + _query(query)

    def read_file(self, name: str, path: str, *, offset: int | None = None, length: int | None = None) -> bytes:
        """A file's bytes, or a part of them. Paths are below /home/user unless they begin with "/"."""
        target, headers = self._file(name, "/content", path=path), {}
        if offset is not None or length is not None:
            first = offset or 0
            if length is not None and length < 1:
                return b""
            headers["Range"] = f"bytes={first}-{'' if length is None else first + length - 1}"
        for attempt in range(self._transport.retries + 1):
            try:
                return self._read("GET", target, self._bytes("GET", target, headers=headers))
            except RametConnectionError:
                if attempt == self._transport.retries:
                    raise
                _sleep(0.1 * 2 ** attempt)
        raise AssertionError("not reached")

    def read_file_stream(self, name: str, path: str) -> Stream[bytes]:
        """A file of any size, in pieces."""
        return _ByteStream(self._bytes("GET", self._file(name, "/content", path=path)))

    def write_file(self, name: str, content: Data, path: str, *, mode: str | int | None = None) -> None:
        """Bytes, text, an open binary file or an iterable of bytes; appears whole or not at all, folders are made.
        mode: as chmod has it, "755" or 0o755."""
        mode = f"{mode:o}" if isinstance(mode, int) else mode
        self._upload("PUT", self._file(name, "/content", path=path, mode=mode), content)

    def delete_file(self, name: str, path: str, *, recursive: bool | None = None) -> None:
        """A file, or (recursive) a folder with all in it."""
        self.request("DELETE", self._file(name, "/content", path=path, recursive=recursive))

    def list_files(self, name: str, path: str = ".") -> list[Json]:
        """A folder's entries: `name type size mode uid gid modified_at`."""
        return cast("list[Json]", self._get(self._file(name, "", path=path))["entries"])

    def stat_file(self, name: str, path: str) -> Json:
        """One such entry."""
        return self._get(self._file(name, "/stat", path=path))

    def make_dir(self, name: str, path: str) -> None:
        """A folder, and those above it."""
        self.request("POST", self._file(name, "/dir", path=path), repeat=True)

    def move_file(self, name: str, /, body: Body | None = None, **fields: Any) -> None:
        """`from to replace?` (as a keyword: `from_`)."""
        self.request("POST", self._file(name, "/move"), _merge(body, fields))

    def watch_files(self, name: str, path: str, *, recursive: bool | None = None) -> Stream[Event]:
        """What changes in a folder: `ready`, then `created changed attributes removed moved overflow`, at last `end`."""
        return self._events("GET", self._file(name, "/watch", path=path, recursive=recursive), None, "the watch",
                            lambda event: event.kind == "end", "error")

    # ---- ports and addresses ----

    def open_port(self, name: str, port: int) -> socket.socket:
        """A connection to this port of the sandbox's localhost, as a connected socket. Needs no network."""
        return self._transport.upgrade(self._box(name, f"/ports/{int(port)}"), {"Connection": "Upgrade", "Upgrade": "tcp"})[0]

    def list_ports(self, name: str) -> list[Json]:
        """The ports that something in it listens on."""
        return cast("list[Json]", self._get(self._box(name, "/ports"))["ports"])

    def create_url(self, name: str, /, body: Body | int | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """`host_port ttl_secs?`: an address with a secret in it that reaches a server in the sandbox → `url token expires_at`"""
        body = {"host_port": body} if isinstance(body, int) else body
        return self._create(self._box(name, "/urls"), _merge(body, fields), idempotency_key,
                            lambda made: [self._box(name, f"/urls/{_segment(made['id'])}")])

    def list_urls(self, name: str) -> list[Json]:
        """Its addresses, without their secrets."""
        return cast("list[Json]", self._get(self._box(name, "/urls"))["urls"])

    def delete_url(self, name: str, id: str) -> None:
        """It reaches nothing any more."""
        self.request("DELETE", self._box(name, f"/urls/{_segment(id)}"))

    # ---- code ----

    def create_context(self, name: str, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """Something that keeps what code defines: `id? language? cwd? user? env?`"""
        merged = _merge(body, fields)
        return self._create(self._box(name, "/contexts"), merged, idempotency_key,
                            None if merged.get("id") else lambda made: [self._box(name, f"/contexts/{_segment(made['id'])}")])

    def list_contexts(self, name: str) -> list[Json]:
        """Its code contexts."""
        return cast("list[Json]", self._get(self._box(name, "/contexts"))["contexts"])

    def get_context(self, name: str, id: str) -> Json:
        """One of them."""
        return self._get(self._box(name, f"/contexts/{_segment(id)}"))

    def delete_context(self, name: str, id: str) -> None:
        """Ends it with all that its code started."""
        self.request("DELETE", self._box(name, f"/contexts/{_segment(id)}"))

    def run_code(self, name: str, id: str, /, body: Body | str | None = None, **fields: Any) -> Json:
        """Runs code in a context and waits for it: `code timeout_secs?` → `stdout stderr text error results ...`"""
        run = _merge({"code": body} if isinstance(body, str) else body, fields)
        return self._once(self._box(name, f"/contexts/{_segment(id)}/run"), run, run.get("timeout_secs"), True)

    def run_code_stream(self, name: str, id: str, /, body: Body | str | None = None, **fields: Any) -> Stream[Event]:
        """The same as it comes: `code timeout_secs?`; events `started stdout stderr result display update_display clear error`,
        at last `done`. Closing the stream interrupts the run."""
        run = _merge({"code": body} if isinstance(body, str) else body, fields)
        return self._events("POST", self._box(name, f"/contexts/{_segment(id)}/run/stream"), run, "the run's stream",
                            lambda event: event.kind == "done", "failed")

    def interrupt_context(self, name: str, id: str, /, body: Body | None = None, **fields: Any) -> Json:
        """As Ctrl-C. `kill?` ends what does not listen, with its state."""
        return cast(Json, self.request("POST", self._box(name, f"/contexts/{_segment(id)}/interrupt"), _merge(body, fields)))

    def restart_context(self, name: str, id: str) -> Json:
        """It begins anew, with nothing in it."""
        return cast(Json, self.request("POST", self._box(name, f"/contexts/{_segment(id)}/restart")))

    # ---- snapshots and templates ----

    def list_snapshots(self) -> list[Json]:
        """All snapshots."""
        return cast("list[Json]", self._get("/v1/snapshots")["snapshots"])

    def get_snapshot(self, name: str, *, wait: bool | None = None) -> Json:
        """One; with `wait`, when it is ready (survives power loss)."""
        return self._get(f"/v1/snapshots/{_segment(name)}", wait=wait)

    def update_snapshot(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """`name? labels?`"""
        return cast(Json, self.request("PATCH", f"/v1/snapshots/{_segment(name)}", _merge(body, fields), repeat=True))

    def delete_snapshot(self, name: str) -> None:
        """Forgets it. What was made from it stays."""
        self.request("DELETE", f"/v1/snapshots/{_segment(name)}")

    def list_templates(self) -> list[Json]:
        """The machines that sandboxes are made from."""
        return cast("list[Json]", self._get("/v1/templates")["templates"])

    def get_template(self, name: str) -> Json:
        """One of them."""
        return self._get(f"/v1/templates/{_segment(name)}")

    def delete_template(self, name: str) -> None:
        """Forgets it. Sandboxes made from it stay."""
        self.request("DELETE", f"/v1/templates/{_segment(name)}")

    def template_log(self, name: str) -> str:
        """What the build that made it said."""
        return str(self._get(f"/v1/templates/{_segment(name)}/log")["log"])

    def create_template(self, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """Begins to build one, and gives the build: `name`; a source: one of `packages tar oci import volume sandbox`, or none for
        a recipe of this name; `base? image? size? cpus? memory_mb? disk_gb? network? labels? env? setup? warm? warm_code? replace?`"""
        return self._create("/v1/templates", _merge(body, fields), idempotency_key)

    def list_builds(self) -> list[Json]:
        """Builds that wait or run, and the last that ended."""
        return cast("list[Json]", self._get("/v1/templates/builds")["builds"])

    def get_build(self, id: str) -> Json:
        """One, with its `log`."""
        return self._get(f"/v1/templates/builds/{_segment(id)}")

    def cancel_build(self, id: str) -> Json:
        """Ends it; nothing is left when it is `failed`."""
        return cast(Json, self.request("DELETE", f"/v1/templates/builds/{_segment(id)}"))

    def build_logs(self, id: str, *, follow: bool = True) -> Stream[Event]:
        """Its log as it is written: events `log` (`text`), at last `build`."""
        return self._events("GET", f"/v1/templates/builds/{_segment(id)}/logs" + _query({"follow": follow or None}), None,
                            "the build's log", lambda event: event.kind == "build", "error")

    def wait_build(self, id: str, timeout_secs: float | None = None) -> Json:
        """Waits for the end of a build and returns its template; a build that failed is an error with its words."""
        limit = None if timeout_secs is None else time.monotonic() + timeout_secs
        pause = 0.05
        while True:
            build = self.get_build(id)
            if build["state"] == "ready":
                return self.get_template(build["name"])
            if build["state"] == "failed":
                error = build.get("error") or {}
                raise RametError(f"the build of {build['name']} failed: {error.get('message')}",
                                 code=str(error.get("code", "template.failed")), details={"log": build.get("log", "")})
            if limit is not None and time.monotonic() >= limit:
                raise RametError(f"the build of {build['name']} is not ready within {timeout_secs} s ({build.get('step')})",
                                 code="wait.timeout", retryable=True)
            _sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def upload_template(self, data: Data) -> Json:
        """An archive for create_template: `upload size_bytes`."""
        return cast(Json, self._upload("PUT", "/v1/templates/uploads", data))

    def delete_upload(self, id: str) -> None:
        """One that no build used."""
        self.request("DELETE", f"/v1/templates/uploads/{_segment(id)}")

    # ---- volumes; NAME/disk is the disk of a sandbox ----

    @staticmethod
    def _volume(name: str, rest: str = "") -> str:
        return f"/v1/volumes/{_segment(name, '/')}{rest}"

    def list_volumes(self, *, all: bool | None = None) -> list[Json]:
        """Volumes; `all`: those of sandboxes too."""
        return cast("list[Json]", self._get("/v1/volumes", all=all)["volumes"])

    def create_volume(self, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """`name size_bytes` (empty) or `name from size_bytes?` (a fork of a volume or snapshot)."""
        return self._create("/v1/volumes", _merge(body, fields), idempotency_key)

    def get_volume(self, name: str) -> Json:
        """One of them."""
        return self._get(self._volume(name))

    def update_volume(self, name: str, /, body: Body | None = None, **fields: Any) -> Json:
        """`size_bytes? name?`"""
        return cast(Json, self.request("PATCH", self._volume(name), _merge(body, fields), repeat=True))

    def delete_volume(self, name: str) -> None:
        """Removes it; not while an NBD client uses it."""
        self.request("DELETE", self._volume(name))

    def fork_volume(self, name: str, /, body: Body | str | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """`name`: another volume that begins as this one is."""
        body = {"name": body} if isinstance(body, str) else body
        return self._create(self._volume(name, "/fork"), _merge(body, fields), idempotency_key)

    def snapshot_volume(self, name: str, /, body: Body | str | None = None, *, idempotency_key: str | None = None,
                        **fields: Any) -> Json:
        """`name?`: keeps it as it is now."""
        merged = _merge({"name": body} if isinstance(body, str) else body, fields)
        return self._create(self._volume(name, "/snapshots"), merged, idempotency_key, self._unmake_snapshot(merged))

    def diff_volume(self, name: str, from_: str) -> Json:
        """The ranges that changed since an older snapshot."""
        return self._get(self._volume(name, "/diff") + _query({"from": from_}))

    def map_volume(self, name: str) -> Json:
        """What of it holds data."""
        return self._get(self._volume(name, "/map"))

    def read_volume(self, name: str) -> Stream[bytes]:
        """Its raw bytes, of one instant."""
        return _ByteStream(self._bytes("GET", self._volume(name, "/content")))

    def write_volume(self, name: str, data: Data, *, size_bytes: int | None = None) -> Json:
        """A new volume of these bytes. `size_bytes`: how many must come."""
        return cast(Json, self._upload("PUT", self._volume(name, "/content") + _query({"size_bytes": size_bytes}), data))

    # ---- keys ----

    def create_key(self, /, body: Body | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Json:
        """`name preset (admin, ci, read) expires_in_secs?`; the key itself is in this answer and nowhere else."""
        return self._create("/v1/keys", _merge(body, fields), idempotency_key, lambda made: [f"/v1/keys/{_segment(made['id'])}"])

    def list_keys(self) -> list[Json]:
        """Keys, without what opens."""
        return cast("list[Json]", self._get("/v1/keys")["keys"])

    def get_key(self, id: str) -> Json:
        """One of them, by id or name."""
        return self._get(f"/v1/keys/{_segment(id)}")

    def delete_key(self, id: str) -> None:
        """It opens nothing any more, from now on."""
        self.request("DELETE", f"/v1/keys/{_segment(id)}")


# ---------------------------------------------------------------------------------------------------------------------
# Objects

_default: list[Ramet] = []
_default_lock = threading.Lock()


def _client_of(client: Ramet | AsyncRamet | None) -> Ramet:
    """The one that was given, or one for all, made from the environment when it is first needed."""
    if client is not None:
        return client.sync if isinstance(client, AsyncRamet) else client
    with _default_lock:
        if not _default:
            _default.append(Ramet())
        return _default[0]


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _one_of(native: T | None, foreign: T | None, name: str, other: str) -> T | None:
    if native is not None and foreign is not None and native != foreign:
        raise _invalid(f"{name} and {other} mean the same: give one of them")
    return native if native is not None else foreign


class CommandResult:
    """What a command said: `stdout stderr exit_code timed_out truncated duration_ms signal out_of_memory`; `raw` is the whole answer."""

    def __init__(self, answer: Json) -> None:
        self.raw = answer
        self.stdout: str = answer.get("stdout", "")
        self.stderr: str = answer.get("stderr", "")
        self.exit_code: int = answer.get("exit_code", 0)
        self.timed_out: bool = answer.get("timed_out", False)
        self.truncated: bool = answer.get("truncated", False)
        self.duration_ms: float = answer.get("duration_ms", 0.0)
        self.signal: Any = answer.get("signal")
        self.out_of_memory: bool = answer.get("out_of_memory", False)

    @property
    def stdout_bytes(self) -> bytes:
        """The exact bytes, when encoding="base64" was asked for (else those of the text)."""
        return _decode(self.raw.get("stdout_base64")) or self.stdout.encode("utf-8", "replace")

    @property
    def stderr_bytes(self) -> bytes:
        """The exact bytes, when encoding="base64" was asked for (else those of the text)."""
        return _decode(self.raw.get("stderr_base64")) or self.stderr.encode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0 and not self.timed_out

    def __repr__(self) -> str:
        return f"CommandResult(exit_code={self.exit_code}, stdout={self.stdout[:200]!r}, stderr={self.stderr[:200]!r})"

    def _check(self, command: str) -> None:
        if not self.ok:
            why = "ran out of its time" if self.timed_out else f"ended with {self.exit_code}"
            raise CommandError(f"{command[:200]!r} {why}: {(self.stderr or self.stdout)[-2000:].strip()}", self)


class ExecutionError:
    """Why code failed: `name value traceback`. As text it is the traceback, which tells a model what to mend."""

    def __init__(self, error: Json) -> None:
        self.name: str = error.get("name", "")
        self.value: str = error.get("value", "")
        traceback = error.get("traceback") or ""
        self.traceback: str = "\n".join(traceback) if isinstance(traceback, list) else traceback

    def __str__(self) -> str:
        return self.traceback or f"{self.name}: {self.value}"

    def __repr__(self) -> str:
        return f"ExecutionError({self.name!r}, {self.value!r})"


class Result:
    """Something that code showed, in each form that it has: `text html markdown svg png jpeg pdf latex json javascript plotly`
    (png, jpeg and pdf in base64), others by MIME type in `extra`. Notebooks show it as they would their own."""

    _FORMS = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "plotly")
    _MIME = {"text": "text/plain", "html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml", "png": "image/png",
             "jpeg": "image/jpeg", "pdf": "application/pdf", "latex": "text/latex", "json": "application/json",
             "javascript": "application/javascript", "plotly": "application/vnd.plotly.v1+json"}

    def __init__(self, data: Json) -> None:
        self.raw = data
        self.type: str = data.get("type", "result")
        self.text: str | None = data.get("text")
        self.html: str | None = data.get("html")
        self.markdown: str | None = data.get("markdown")
        self.svg: str | None = data.get("svg")
        self.png: str | None = data.get("png")
        self.jpeg: str | None = data.get("jpeg")
        self.pdf: str | None = data.get("pdf")
        self.latex: str | None = data.get("latex")
        self.json: Any = data.get("json")
        self.javascript: str | None = data.get("javascript")
        self.plotly: Any = data.get("plotly")
        self.extra: Json = data.get("extra") or {}
        self.display_id: str | None = data.get("display_id")
        self.truncated: bool = data.get("truncated", False)

    @property
    def is_main_result(self) -> bool:
        """Whether it is the last expression's value (otherwise it was displayed)."""
        return self.type == "result"

    def formats(self) -> list[str]:
        """The forms that it has."""
        return [form for form in self._FORMS if form in self.raw]

    def __str__(self) -> str:
        return self.text or ""

    def __repr__(self) -> str:
        return f"Result({', '.join(self.formats())})"

    def _repr_html_(self) -> str | None:
        return self.html

    def _repr_markdown_(self) -> str | None:
        return self.markdown

    def _repr_svg_(self) -> str | None:
        return self.svg

    def _repr_png_(self) -> bytes | None:
        return _decode(self.png)

    def _repr_jpeg_(self) -> bytes | None:
        return _decode(self.jpeg)

    def _repr_pdf_(self) -> bytes | None:
        return _decode(self.pdf)

    def _repr_latex_(self) -> str | None:
        return self.latex

    def _repr_json_(self) -> Any:
        return self.json

    def _repr_javascript_(self) -> str | None:
        return self.javascript

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Json:
        bundle = {self._MIME[form]: self.raw[form] for form in self.formats()}
        return {**self.extra, **bundle}


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Execution:
    """What a run of code gave: `stdout stderr text error results execution_count duration_ms timed_out interrupted truncated
    state_lost exit_code signal out_of_memory`.

    text: the last expression's value. error: None or an ExecutionError. results: what was shown, in order, and the value.
    png, html and the like: of the first result that has such a form.
    """

    def __init__(self, answer: Json) -> None:
        self.raw = answer
        self.stdout: str = answer.get("stdout") or ""
        self.stderr: str = answer.get("stderr") or ""
        self.text: str | None = answer.get("text")
        self.error: ExecutionError | None = ExecutionError(answer["error"]) if answer.get("error") else None
        self.results: List[Result] = [Result(each) for each in answer.get("results") or []]
        self.execution_count: int | None = answer.get("execution_count")
        self.duration_ms: float = answer.get("duration_ms", 0.0)
        self.timed_out: bool = answer.get("timed_out", False)
        self.interrupted: bool = answer.get("interrupted", False)
        self.truncated: bool = answer.get("truncated", False)
        self.state_lost: str | None = answer.get("state_lost")
        self.exit_code: int | None = answer.get("exit_code")
        self.signal: Any = answer.get("signal")
        self.out_of_memory: bool = answer.get("out_of_memory", False)

    def _check(self) -> Execution:
        if self.error is not None:
            raise CodeError(str(self.error), self)
        if self.timed_out or self.interrupted:
            raise CodeError("the code ran out of its time" if self.timed_out else "the code was interrupted", self)
        return self

    def _first(self, form: str) -> Any:
        return next((each.raw[form] for each in self.results if each.raw.get(form) is not None), None)

    @property
    def png(self) -> str | None:
        """The first picture, a PNG in base64."""
        return cast("str | None", self._first("png"))

    @property
    def png_bytes(self) -> bytes | None:
        """The first picture, a PNG as it goes into a file."""
        return _decode(self.png)

    @property
    def jpeg(self) -> str | None:
        """The first JPEG in base64."""
        return cast("str | None", self._first("jpeg"))

    @property
    def svg(self) -> str | None:
        """The first SVG."""
        return cast("str | None", self._first("svg"))

    @property
    def html(self) -> str | None:
        """The first HTML, such as a DataFrame's table."""
        return cast("str | None", self._first("html"))

    @property
    def markdown(self) -> str | None:
        """The first Markdown."""
        return cast("str | None", self._first("markdown"))

    @property
    def latex(self) -> str | None:
        """The first LaTeX."""
        return cast("str | None", self._first("latex"))

    @property
    def pdf(self) -> str | None:
        """The first PDF in base64."""
        return cast("str | None", self._first("pdf"))

    @property
    def json(self) -> Any:
        """The first JSON."""
        return self._first("json")

    def __str__(self) -> str:
        return str(self.error) if self.error is not None else self.stdout + (self.text or "")

    def __repr__(self) -> str:
        return (f"Execution(text={self.text!r:.200}, stdout={self.stdout[:200]!r}, error={self.error!r}, "
                f"results={self.results!r:.200})")


class _Collector:
    """Puts an Execution together from a run's events, as the server does without a stream."""

    def __init__(self) -> None:
        self._out: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._shown: list[Json] = []
        self._error: Json | None = None
        self._count: Any = None
        self._clear = False

    def take(self, event: Event) -> None:
        kind = event.kind
        if kind == "started":
            self._count = event.get("execution_count")
        elif kind == "clear":
            self._clear = True
            if not event.get("wait"):
                self._wipe()
        elif kind in self._out:
            self._wipe()
            self._out[kind].append(event.get("text", ""))
        elif kind in ("result", "display"):
            self._wipe()
            self._shown.append({"type": kind, **event})
        elif kind == "update_display":
            for number, shown in enumerate(self._shown):
                if shown.get("display_id") == event.get("display_id"):
                    self._shown[number] = {**event, "type": shown["type"]}
        elif kind == "error":
            self._error = dict(event)

    def _wipe(self) -> None:
        if self._clear:
            self._clear = False
            self._shown = []
            self._out = {"stdout": [], "stderr": []}

    def execution(self, done: Json) -> Execution:
        text = next((shown.get("text") for shown in reversed(self._shown) if shown["type"] == "result"), None)
        return Execution({"text": text, "execution_count": self._count, "error": self._error, **done, "results": self._shown,
                          **{name: "".join(pieces) for name, pieces in self._out.items()}})


class CodeContext:
    """Something in a sandbox that keeps what code defines from one run to the next. Also a context manager."""

    def __init__(self, sandbox: Sandbox, info: Json) -> None:
        self.sandbox = sandbox
        self.info = info

    @property
    def id(self) -> str:
        """Its name in the sandbox."""
        return str(self.info["id"])

    @property
    def language(self) -> str:
        """`python` or `bash`."""
        return str(self.info["language"])

    def run_code(self, code: str, *, timeout_secs: float | None = None, timeout_seconds: float | None = None,
                 on_stdout: Callable[[str], object] | None = None, on_stderr: Callable[[str], object] | None = None,
                 on_result: Callable[[Result], object] | None = None, check: bool = False) -> Execution:
        """Runs code. The on_... functions get output and results while it runs; what they raise interrupts it. check: raise
        CodeError when it ends with an error."""
        client, box = self.sandbox.client, self.sandbox.id
        body = _given(code=code, timeout_secs=_one_of(timeout_secs, timeout_seconds, "timeout_secs", "timeout_seconds"))
        if on_stdout is None and on_stderr is None and on_result is None:
            execution = Execution(client.run_code(box, self.id, body))
            return execution._check() if check else execution
        collector = _Collector()
        with client.run_code_stream(box, self.id, body) as stream:
            for event in stream:
                collector.take(event)
                if event.kind == "stdout" and on_stdout is not None:
                    on_stdout(event["text"])
                elif event.kind == "stderr" and on_stderr is not None:
                    on_stderr(event["text"])
                elif event.kind in ("result", "display") and on_result is not None:
                    on_result(Result({"type": event.kind, **event}))
                elif event.kind == "done":
                    execution = collector.execution(event)
                    return execution._check() if check else execution
        raise RametConnectionError("the run's stream ended before the run", code="connection.broken")

    def run_code_stream(self, code: str, *, timeout_secs: float | None = None) -> Stream[Event]:
        """The same as it comes: `started stdout stderr result display update_display clear error`, at last `done`."""
        return self.sandbox.client.run_code_stream(self.sandbox.id, self.id, _given(code=code, timeout_secs=timeout_secs))

    def interrupt(self, *, kill: bool | None = None) -> bool:
        """As Ctrl-C; whether something ran."""
        return bool(self.sandbox.client.interrupt_context(self.sandbox.id, self.id, _given(kill=kill))["interrupted"])

    def restart(self) -> None:
        """Begins anew, with nothing in it."""
        self.info = self.sandbox.client.restart_context(self.sandbox.id, self.id)

    def close(self) -> None:
        """Ends it with all that its code started. One that is gone already is fine."""
        try:
            self.sandbox.client.delete_context(self.sandbox.id, self.id)
        except RametError as error:
            if error.status != 404:
                raise

    def __enter__(self) -> CodeContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CodeContext({self.id!r} of {self.sandbox.name!r})"


class Files:
    """A sandbox's files. Paths are below /home/user unless they begin with "/"."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        """Its bytes."""
        return self._sandbox.client.read_file(self._sandbox.id, path)

    def read_text(self, path: str, errors: str = "strict") -> str:
        """Its text (UTF-8)."""
        return self.read(path).decode("utf-8", errors)

    def read_stream(self, path: str) -> Stream[bytes]:
        """A file of any size, in pieces."""
        return self._sandbox.client.read_file_stream(self._sandbox.id, path)

    def write(self, path: str, content: Data, *, mode: str | int | None = None) -> None:
        """Bytes, text, an open binary file or pieces; appears whole or not at all, folders are made."""
        self._sandbox.client.write_file(self._sandbox.id, content, path, mode=mode)

    def list(self, path: str = ".") -> List[Json]:
        """A folder's entries."""
        return self._sandbox.client.list_files(self._sandbox.id, path)

    def walk(self, path: str = ".") -> Iterator[Json]:
        """All entries below a folder, each with its `path`; a folder comes before what is in it."""
        for entry in self.list(path):
            entry["path"] = f"{path.rstrip('/')}/{entry['name']}"
            yield entry
            if entry["type"] == "dir":
                yield from self.walk(entry["path"])

    def stat(self, path: str) -> Json:
        """One entry: `name type size mode uid gid modified_at`."""
        return self._sandbox.client.stat_file(self._sandbox.id, path)

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        try:
            self.stat(path)
        except RametError as error:
            if error.status == 404:
                return False
            raise
        return True

    def make_dir(self, path: str) -> None:
        """A folder, and those above it."""
        self._sandbox.client.make_dir(self._sandbox.id, path)

    def move(self, source: str, target: str, *, replace: bool | None = None) -> None:
        """Renames it."""
        self._sandbox.client.move_file(self._sandbox.id, {"from": source, "to": target, **_given(replace=replace)})

    def remove(self, path: str, *, recursive: bool | None = None) -> None:
        """A file, or (recursive) a folder with all in it."""
        self._sandbox.client.delete_file(self._sandbox.id, path, recursive=recursive)

    def upload(self, local: str | os.PathLike[str], path: str, *, mode: str | int | None = None) -> None:
        """A file of this machine, of any size."""
        with open(local, "rb") as file:
            self.write(path, file, mode=mode)

    def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Into a file of this machine, of any size; appears whole or not at all."""
        part = f"{os.fspath(local)}.{uuid.uuid4().hex[:8]}.part"
        try:
            with self._sandbox.client.read_file_stream(self._sandbox.id, path) as stream, open(part, "wb") as file:
                for piece in stream:
                    file.write(piece)
            os.replace(part, local)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise

    def watch(self, path: str, *, recursive: bool | None = None) -> Stream[Event]:
        """What changes there."""
        return self._sandbox.client.watch_files(self._sandbox.id, path, recursive=recursive)


class Commands:
    """A sandbox's commands."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(self, /, cmd: str, *, timeout: float | None = None, check: bool = False, **fields: Any) -> CommandResult:
        """Runs a command and waits for it. check: raise CommandError unless it ends with 0."""
        return self._sandbox.exec(cmd, timeout_secs=timeout, check=check, **fields)

    def stream(self, /, cmd: str, **fields: Any) -> Stream[Event]:
        """Its output as it comes."""
        return self._sandbox.exec_stream(cmd, **fields)

    def start(self, /, cmd: str, **fields: Any) -> Json:
        """In the background: a job."""
        return self._sandbox.start_job(cmd, **fields)


Approach = Union[str, Callable[["Sandbox"], Any]]


class Branch:
    """One way that explore() went: `name sandbox approach value score seconds error`.

    value: what the approach gave (of a command: a CommandResult). score: None when it failed or got none.
    """

    def __init__(self, name: str, sandbox: Sandbox, approach: Approach) -> None:
        self.name = name
        self.sandbox = sandbox
        self.approach = approach
        self.value: Any = None
        self.score: float | None = None
        self.seconds = 0.0
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return f"Branch({self.name!r}, score={self.score}, seconds={self.seconds:.3f}, error={self.error!r})"


class Exploration:
    """What explore() found: `branches` in order, the `best` of them (None: none had a score), and how long the fork took.

    winner: the sandbox that was kept (None: nothing was promoted).
    """

    def __init__(self, tree_id: str, branches: list[Branch], fork_seconds: float) -> None:
        self.tree_id = tree_id
        self.branches = branches
        self.fork_seconds = fork_seconds
        self.best: Branch | None = None
        self.winner: Sandbox | None = None

    def __repr__(self) -> str:
        return f"Exploration({self.branches!r}, best={self.best and self.best.name!r})"


class Sandbox:
    """A machine. As a context manager it is removed at the end of the block.

    `info` is what the server last said of it (refresh() asks again); `id name state labels` are from there.
    """

    def __init__(self, info: Json, client: Ramet | AsyncRamet | None = None) -> None:
        self.client = _client_of(client)
        self.info = info
        self.files = Files(self)
        self.commands = Commands(self)

    # ---- getting one ----

    @classmethod
    def create(cls, template: str | None = None, *, name: str | None = None, from_: str | None = None,
               from_snapshot: str | None = None, ttl_secs: float | None = None, ttl_seconds: float | None = None,
               idle_secs: float | None = None, idle_seconds: float | None = None, persistent: bool | None = None,
               on_timeout: str | None = None, auto_start: bool | None = None,
               labels: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None, environment: bool | None = None,
               network: str | Mapping[str, Any] | None = None, size: str | None = None, cpus: int | None = None,
               memory_mb: int | None = None, disk_gb: float | None = None, disks: Sequence[Mapping[str, Any]] | None = None,
               idempotency_key: str | None = None, client: Ramet | AsyncRamet | None = None) -> Sandbox:
        """A new one, running: from a template or a snapshot (`from_` takes either), the server's default without one.

        ttl_secs stops it, with its memory, so long after its start, or removes it with `on_timeout="delete"`. auto_start: calls
        into it start it when it is stopped.
        """
        source = _one_of(_one_of(from_, from_snapshot, "from_", "from_snapshot"), template, "from_", "template")
        body = _given(**{"from": source}, name=name, size=size, cpus=cpus, memory_mb=memory_mb, disk_gb=disk_gb, disks=disks,
                      network=network, labels=_one_of(labels, metadata, "labels", "metadata"), env=env, environment=environment,
                      ttl_secs=_one_of(ttl_secs, ttl_seconds, "ttl_secs", "ttl_seconds"), persistent=persistent,
                      on_timeout=on_timeout, auto_start=auto_start,
                      idle_secs=_one_of(idle_secs, idle_seconds, "idle_secs", "idle_seconds"))
        ramet = _client_of(client)
        return cls(ramet.create_sandboxes(body, idempotency_key=idempotency_key), ramet)

    @classmethod
    def get(cls, name: str, *, client: Ramet | AsyncRamet | None = None) -> Sandbox:
        """One that exists, by name or id."""
        ramet = _client_of(client)
        return cls(ramet.get_sandbox(name), ramet)

    @classmethod
    def list(cls, *, state: str | None = None, label: str | Mapping[str, str] | None = None,
             client: Ramet | AsyncRamet | None = None) -> List[Sandbox]:
        """All, or those in a state, or with a label."""
        ramet = _client_of(client)
        return [cls(info, ramet) for info in ramet.list_sandboxes(state=state, label=label)]

    # ---- what it is ----

    @property
    def id(self) -> str:
        """Its id, which it keeps when it is renamed."""
        return str(self.info["id"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.info["name"])

    @property
    def state(self) -> str:
        """`running`, `stopped` ..., as of the last answer."""
        return str(self.info["state"])

    @property
    def labels(self) -> Dict[str, str]:
        """Its labels."""
        return cast("Dict[str, str]", self.info.get("labels") or {})

    @property
    def filesystem(self) -> Files:
        """Another word for `files`."""
        return self.files

    def refresh(self) -> Sandbox:
        """Asks the server again."""
        self.info = self.client.get_sandbox(self.id)
        return self

    def update(self, /, **fields: Any) -> Sandbox:
        """`name labels env network ttl_secs idle_secs persistent on_timeout auto_start`"""
        self.info = self.client.update_sandbox(self.id, fields)
        return self

    def set_ttl(self, ttl_secs: float) -> Sandbox:
        """It is stopped so long from now."""
        return self.update(ttl_secs=ttl_secs)

    def set_persistent(self, persistent: bool) -> Sandbox:
        """Whether it goes on by itself when the server starts again."""
        return self.update(persistent=persistent)

    def metrics(self) -> Json:
        """Its figures: memory, disk, processor."""
        return self.client.sandbox_metrics(self.id)

    def logs(self, *, tail_bytes: int | None = None) -> str:
        """The end of what it wrote to its console."""
        return self.client.sandbox_logs(self.id, tail_bytes=tail_bytes)

    def events(self, *, last_event_id: str | None = None) -> Stream[Event]:
        """What happens to it, from now on (or after `last_event_id`), until it is removed."""
        return self.client.sandbox_events(self.id, last_event_id=last_event_id)

    # ---- commands and code ----

    def exec(self, command: str, *, timeout_secs: float | None = None, timeout_seconds: float | None = None, cwd: str | None = None,
             env: Mapping[str, str] | None = None, user: str | None = None, stdin: str | bytes | None = None,
             encoding: str | None = None, check: bool = False) -> CommandResult:
        """Runs a command and waits for it. check: raise CommandError unless it ends with 0."""
        secs = _one_of(timeout_secs, timeout_seconds, "timeout_secs", "timeout_seconds")
        result = CommandResult(self.client.exec(self.id, _given(command=command, timeout_secs=secs, cwd=cwd, env=env, user=user,
                                                                stdin=stdin, encoding=encoding)))
        if check:
            result._check(command)
        return result

    def exec_stream(self, /, command: str, **fields: Any) -> Stream[Event]:
        """Its output as it comes: events `stdout` and `stderr` (`text`), then `exit`."""
        return self.client.exec_stream(self.id, {"command": command, **fields})

    def start_job(self, /, command: str, **fields: Any) -> Json:
        """In the background, whoever leaves: as exec, and `name`."""
        return self.client.start_job(self.id, {"command": command, **fields})

    def open_pty(self, /, **options: Any) -> Pty:
        """A terminal: `command rows columns user cwd term`."""
        return self.client.open_pty(self.id, **options)

    def create_code_context(self, language: str | None = None, *, id: str | None = None, cwd: str | None = None,
                            user: str | None = None, env: Mapping[str, str] | None = None) -> CodeContext:
        """A context of its own (python unless `language` says bash)."""
        return CodeContext(self, self.client.create_context(self.id, _given(id=id, language=language, cwd=cwd, user=user, env=env)))

    def context(self, id: str = "python") -> CodeContext:
        """One by its id; `python` and `bash` are there without being made."""
        return CodeContext(self, {"id": id, "language": "bash" if id == "bash" else "python"})

    def run_code(self, /, code: str, language: str = "python", **options: Any) -> Execution:
        """In the context that every sandbox has for this language; options as for CodeContext.run_code."""
        return self.context(language).run_code(code, **options)

    # ---- snapshots and forks ----

    def snapshot(self, name: str | None = None, *, labels: Mapping[str, str] | None = None, wait: bool | None = None) -> Json:
        """Keeps this instant; Sandbox.create(from_=...) goes on from it. wait: until it survives power loss."""
        return self.client.snapshot(self.id, _given(name=name, labels=labels, wait=wait))

    def restore(self, snapshot: str) -> Sandbox:
        """Its disks and memory become the snapshot's."""
        self.info = self.client.restore_sandbox(self.id, snapshot)
        return self

    def fork(self, n: int = 1, *, names: Sequence[str] | None = None, labels: Mapping[str, str] | None = None,
             env: Mapping[str, str] | None = None) -> List[Sandbox]:
        """n copies that run on from this instant."""
        forked = self.client.fork_sandbox(self.id, _given(count=n, names=names, labels=labels, env=env))
        return [type(self)(info, self.client) for info in forked["children"]]

    def promote(self, *, name: str | None = None, tree_id: str | None = None, cleanup_siblings: bool | None = None) -> Json:
        """Keeps this one of a fork's children and drops its siblings."""
        answer = self.client.promote_sandbox(self.id, _given(name=name, tree_id=tree_id, cleanup_siblings=cleanup_siblings))
        self.info = answer["winner"]
        return answer

    def explore(self, approaches: Mapping[str, Approach] | Sequence[Approach], *,
                score: Callable[[Branch], float | None] | None = None, promote: bool = True, keep: bool = False,
                timeout_secs: float | None = None, on_branch: Callable[[Branch], object] | None = None) -> Exploration:
        """Tries each approach in a fork of its own, all at once, and keeps the best.

        approaches: commands, or functions that get the fork; with names, or in a list. score: how good a branch is, more
        is better, None: out of the race (default: the fastest command that ends with 0). on_branch: told as each ends.
        promote: the best one stays, the others go; without one that has a score, all go. keep (with promote=False): all
        forks stay. What an approach raises is its branch's `error`. This sandbox runs on.
        """
        named = dict(approaches) if isinstance(approaches, Mapping) else {str(n): each for n, each in enumerate(approaches, 1)}
        if not named:
            raise _invalid("explore() needs at least one approach")
        begin = time.monotonic()
        forked = self.client.fork_sandbox(self.id, {"count": len(named)})
        if (outer := _current_cancel()) is not None:
            outer.made(None)    # from here on they are looked after here
        children = [type(self)(info, self.client) for info in forked["children"]]
        branches = [Branch(name, child, approach) for (name, approach), child in zip(named.items(), children)]
        found = Exploration(forked["tree_id"], branches, time.monotonic() - begin)
        try:
            cancels = [_Cancel() for _ in branches]

            def cancel_all() -> None:
                for each in cancels:
                    each.cancel()

            if outer is not None:
                outer.follow(cancel_all)
            with concurrent.futures.ThreadPoolExecutor(len(branches), "ramet-explore") as threads:
                work = [threads.submit(_walk, branch, score, timeout_secs, cancel) for branch, cancel in zip(branches, cancels)]
                try:
                    for done in concurrent.futures.as_completed(work):
                        branch = done.result()
                        if on_branch is not None:
                            on_branch(branch)
                except BaseException:    # Ctrl-C too: the branches are not waited for
                    cancel_all()
                    raise
            if outer is not None:
                outer.wait(0)
            scored = [branch for branch in branches if branch.score is not None]
            found.best = max(scored, key=lambda branch: cast(float, branch.score), default=None)
            if promote and found.best is not None:
                found.best.sandbox.promote(tree_id=found.tree_id)
                found.winner = found.best.sandbox
                children = []
            elif keep:
                children = []
        finally:
            for child in children:
                with contextlib.suppress(RametError):
                    _Cancel().run(child.kill)    # also of a call that was cancelled
        return found

    # ---- its life ----

    def stop(self, /, **fields: Any) -> Sandbox:
        """With its memory; `memory=False`: the disk alone."""
        self.info = self.client.stop_sandbox(self.id, fields)
        return self

    def start(self, /, **fields: Any) -> Sandbox:
        """Goes on where it was stopped."""
        self.info = self.client.start_sandbox(self.id, fields)
        return self

    hibernate, wake = stop, start

    def pause(self) -> Sandbox:
        """Its vCPUs stand still."""
        self.info = self.client.pause_sandbox(self.id)
        return self

    def resume(self) -> Sandbox:
        """After pause()."""
        self.info = self.client.resume_sandbox(self.id)
        return self

    def wait_until(self, state: str | Sequence[str], timeout_secs: float | None = 300.0) -> Sandbox:
        """Waits until it is in this state."""
        self.info = self.client.wait_until(self.id, state, timeout_secs)
        return self

    def url(self, host_port: int, *, ttl_secs: float | None = None) -> str:
        """An address that reaches the server on this port of it."""
        return str(self.client.create_url(self.id, _given(host_port=host_port, ttl_secs=ttl_secs))["url"])

    def kill(self) -> None:
        """Removes it. One that is gone already is fine."""
        try:
            self.client.delete_sandbox(self.id)
        except RametError as error:
            if error.status != 404:
                raise

    delete = kill

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __repr__(self) -> str:
        return f"Sandbox({self.name!r}, {self.state})"


def _walk(branch: Branch, score: Callable[[Branch], float | None] | None, timeout_secs: float | None, cancel: _Cancel) -> Branch:
    """One branch of explore(), in a thread of its own."""
    begin = time.monotonic()
    approach = branch.approach
    try:
        if callable(approach):
            branch.value = cancel.run(functools.partial(approach, branch.sandbox))
        else:
            branch.value = cancel.run(functools.partial(branch.sandbox.exec, approach, timeout_secs=timeout_secs))
        branch.seconds = time.monotonic() - begin
        if score is not None:
            branch.score = score(branch)
        elif not isinstance(branch.value, CommandResult) or branch.value.ok:
            branch.score = -branch.seconds
    except Exception as error:
        branch.seconds = branch.seconds or time.monotonic() - begin
        branch.error = error
    return branch


# ---------------------------------------------------------------------------------------------------------------------
# The asyncio twin. Nothing is written a second time: each method here is the one above, run by a thread of the client's
# bounded pool; cancelling it shuts the connection down, which ends the request at the server and frees the thread.

async def _in_thread(client: Ramet | None, function: Callable[[], T]) -> T:
    """client None: on a thread of its own, for what waits for calls that need the client's threads."""
    cancel = _Cancel()
    own = concurrent.futures.ThreadPoolExecutor(1, "ramet-async") if client is None else None
    try:
        return await asyncio.get_running_loop().run_in_executor(own or cast(Ramet, client)._threads(), cancel.run, function)
    except asyncio.CancelledError:
        cancel.abandon()
        raise
    finally:
        if own is not None:
            own.shutdown(wait=False)


class _Twin(Generic[P, T]):
    """The asyncio form of a method, with its parameters and text."""

    def __init__(self, method: Callable[..., Any], wrap: Callable[[Any, Any], Any] | None = None) -> None:
        self._method, self._wrap = method, wrap
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __get__(self, instance: Any, owner: Any = None) -> Callable[P, Awaitable[T]]:
        method, wrap = self._method, self._wrap

        @functools.wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            sync = instance._sync
            value = await _in_thread(instance._ramet, functools.partial(method, sync, *args, **kwargs))
            return cast(T, value if wrap is None else wrap(instance, value))

        return call if instance is not None else cast("Callable[P, Awaitable[T]]", self)


def _twin(method: Callable[Concatenate[Any, P], T]) -> _Twin[P, T]:
    return _Twin(method)


def _twin_as(method: Callable[Concatenate[Any, P], T], wrap: Callable[[Any, T], U]) -> _Twin[P, U]:
    return _Twin(method, wrap)


class AsyncStream(Generic[T]):
    """A stream for `async for`. Opened by `async with`, or when it is first asked; nothing is read that was not asked for.

    Cancelling what waits for it, or aclose(), ends the request.
    """

    def __init__(self, client: Ramet, open: Callable[[], Stream[T]]) -> None:
        self._client = client
        self._open = open
        self._stream: Stream[T] | None = None
        self._batch: collections.deque[T] = collections.deque()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[T]:
        return cast("AsyncIterator[T]", self)

    async def __anext__(self) -> T:
        if not self._batch and not self._closed:
            try:
                self._batch.extend(await _in_thread(self._client, self._pull))
            except BaseException:
                await self.aclose()
                raise
        if not self._batch:
            raise StopAsyncIteration
        return self._batch.popleft()

    def _pull(self) -> list[T]:
        return self._opened().read_batch()

    def _opened(self) -> Stream[T]:
        if self._stream is None:
            self._stream = self._open()
            if self._closed:
                self._stream.close()
        outer = _current_cancel()
        if outer is not None:
            outer.follow(self._stream.close)
        return self._stream

    async def aclose(self) -> None:
        """Ends it."""
        self._closed = True
        self._batch.clear()
        if self._stream is not None:
            self._stream.close()

    async def __aenter__(self) -> AsyncStream[T]:
        await _in_thread(self._client, self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _StreamTwin(Generic[P, T]):
    """The asyncio form of a method that gives a stream."""

    def __init__(self, method: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __get__(self, instance: Any, owner: Any = None) -> Callable[P, AsyncStream[T]]:
        method = self._method

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]:
            return AsyncStream(instance._ramet, functools.partial(method, instance._sync, *args, **kwargs))

        return call if instance is not None else cast("Callable[P, AsyncStream[T]]", self)


class AsyncPty:
    """A terminal for asyncio. Give recv() a timeout rather than cancelling it: a cancelled one hangs the terminal up."""

    def __init__(self, pty: Pty, ramet: Ramet) -> None:
        self._sync = pty
        self._ramet = ramet

    send = _twin(Pty.send)
    resize = _twin(Pty.resize)
    close = _twin(Pty.close)

    async def recv(self, timeout: float | None = None) -> bytes:
        """What it showed since; waits for some. b"" at the end; TimeoutError after so many seconds without any."""
        def read() -> bytes:
            outer = _current_cancel()
            if outer is not None:
                outer.attach(self._sync._socket)
            return self._sync.recv(timeout)
        return await _in_thread(self._ramet, read)

    @property
    def exit_code(self) -> int | None:
        """How its command ended."""
        return self._sync.exit_code

    @property
    def signal(self) -> int | str | None:
        """The signal that ended it."""
        return self._sync.signal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.recv():
            yield data

    async def __aenter__(self) -> AsyncPty:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncRamet:
    """`Ramet` for asyncio: the same methods, awaited; streams by `async for`. Cancelling a call ends its request.

    Takes what Ramet takes; `workers` calls (64) are under way at once, more wait for their turn. `sync` is the Ramet in it.
    """

    def __init__(self, url: str | None = None, key: str | None = None, timeout: float | None = 300.0, *,
                 connect_timeout: float = 10.0, retries: int = 3, ca_file: str | None = None, workers: int = 64) -> None:
        self.sync = self._sync = self._ramet = Ramet(url, key, timeout, connect_timeout=connect_timeout, retries=retries,
                                                     ca_file=ca_file, workers=workers)

    @property
    def url(self) -> str:
        """The server's address."""
        return self.sync.url

    async def close(self) -> None:
        """Closes what is idle. It can be used again."""
        self.sync.close()

    async def __aenter__(self) -> AsyncRamet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    request = _twin(Ramet.request)
    health = _twin(Ramet.health)
    version = _twin(Ramet.version)
    openapi = _twin(Ramet.openapi)
    metrics = _twin(Ramet.metrics)
    me = _twin(Ramet.me)
    get_environment = _twin(Ramet.get_environment)
    set_environment = _twin(Ramet.set_environment)
    update_environment = _twin(Ramet.update_environment)
    memory = _twin(Ramet.memory)
    pool = _twin(Ramet.pool)
    store = _twin(Ramet.store)
    store_lineage = _twin(Ramet.store_lineage)
    store_seal = _twin(Ramet.store_seal)
    store_gc = _twin(Ramet.store_gc)
    store_scrub = _twin(Ramet.store_scrub)
    store_check = _twin(Ramet.store_check)
    export_archive = _StreamTwin(Ramet.export_archive)
    import_archive = _twin(Ramet.import_archive)
    open_import = _StreamTwin(Ramet.open_import)
    commit_import = _twin(Ramet.commit_import)
    cancel_import = _twin(Ramet.cancel_import)
    open_export = _StreamTwin(Ramet.open_export)
    events = _StreamTwin(Ramet.events)
    past_events = _twin(Ramet.past_events)
    list_sandboxes = _twin(Ramet.list_sandboxes)
    get_sandbox = _twin(Ramet.get_sandbox)
    create_sandboxes = _twin(Ramet.create_sandboxes)
    create_sandbox = _twin(Ramet.create_sandboxes)
    update_sandbox = _twin(Ramet.update_sandbox)
    delete_sandbox = _twin(Ramet.delete_sandbox)
    start_sandbox = _twin(Ramet.start_sandbox)
    stop_sandbox = _twin(Ramet.stop_sandbox)
    pause_sandbox = _twin(Ramet.pause_sandbox)
    resume_sandbox = _twin(Ramet.resume_sandbox)
    restore_sandbox = _twin(Ramet.restore_sandbox)
    promote_sandbox = _twin(Ramet.promote_sandbox)
    fork_sandbox = _twin(Ramet.fork_sandbox)
    snapshot = _twin(Ramet.snapshot)
    wait_until = _twin(Ramet.wait_until)
    sandbox_events = _StreamTwin(Ramet.sandbox_events)
    past_sandbox_events = _twin(Ramet.past_sandbox_events)
    sandbox_logs = _twin(Ramet.sandbox_logs)
    sandbox_logs_stream = _StreamTwin(Ramet.sandbox_logs_stream)
    sandbox_metrics = _twin(Ramet.sandbox_metrics)
    exec = _twin(Ramet.exec)
    exec_stream = _StreamTwin(Ramet.exec_stream)
    start_job = _twin(Ramet.start_job)
    list_jobs = _twin(Ramet.list_jobs)
    get_job = _twin(Ramet.get_job)
    signal_job = _twin(Ramet.signal_job)
    delete_job = _twin(Ramet.delete_job)
    job_logs = _StreamTwin(Ramet.job_logs)
    read_file = _twin(Ramet.read_file)
    read_file_stream = _StreamTwin(Ramet.read_file_stream)
    write_file = _twin(Ramet.write_file)
    delete_file = _twin(Ramet.delete_file)
    list_files = _twin(Ramet.list_files)
    stat_file = _twin(Ramet.stat_file)
    make_dir = _twin(Ramet.make_dir)
    move_file = _twin(Ramet.move_file)
    watch_files = _StreamTwin(Ramet.watch_files)
    list_ports = _twin(Ramet.list_ports)
    create_url = _twin(Ramet.create_url)
    list_urls = _twin(Ramet.list_urls)
    delete_url = _twin(Ramet.delete_url)
    create_context = _twin(Ramet.create_context)
    list_contexts = _twin(Ramet.list_contexts)
    get_context = _twin(Ramet.get_context)
    delete_context = _twin(Ramet.delete_context)
    run_code = _twin(Ramet.run_code)
    run_code_stream = _StreamTwin(Ramet.run_code_stream)
    interrupt_context = _twin(Ramet.interrupt_context)
    restart_context = _twin(Ramet.restart_context)
    list_snapshots = _twin(Ramet.list_snapshots)
    get_snapshot = _twin(Ramet.get_snapshot)
    update_snapshot = _twin(Ramet.update_snapshot)
    delete_snapshot = _twin(Ramet.delete_snapshot)
    list_templates = _twin(Ramet.list_templates)
    get_template = _twin(Ramet.get_template)
    delete_template = _twin(Ramet.delete_template)
    template_log = _twin(Ramet.template_log)
    create_template = _twin(Ramet.create_template)
    list_builds = _twin(Ramet.list_builds)
    get_build = _twin(Ramet.get_build)
    cancel_build = _twin(Ramet.cancel_build)
    build_logs = _StreamTwin(Ramet.build_logs)
    wait_build = _twin(Ramet.wait_build)
    upload_template = _twin(Ramet.upload_template)
    delete_upload = _twin(Ramet.delete_upload)
    list_volumes = _twin(Ramet.list_volumes)
    create_volume = _twin(Ramet.create_volume)
    get_volume = _twin(Ramet.get_volume)
    update_volume = _twin(Ramet.update_volume)
    delete_volume = _twin(Ramet.delete_volume)
    fork_volume = _twin(Ramet.fork_volume)
    snapshot_volume = _twin(Ramet.snapshot_volume)
    diff_volume = _twin(Ramet.diff_volume)
    map_volume = _twin(Ramet.map_volume)
    read_volume = _StreamTwin(Ramet.read_volume)
    write_volume = _twin(Ramet.write_volume)
    create_key = _twin(Ramet.create_key)
    list_keys = _twin(Ramet.list_keys)
    get_key = _twin(Ramet.get_key)
    delete_key = _twin(Ramet.delete_key)
    open_pty = _twin_as(Ramet.open_pty, lambda self, pty: AsyncPty(pty, self._ramet))
    open_port = _twin(Ramet.open_port)


class AsyncFiles:
    """`Files` for asyncio."""

    def __init__(self, files: Files, ramet: Ramet) -> None:
        self._sync = files
        self._ramet = ramet

    read = _twin(Files.read)
    read_text = _twin(Files.read_text)
    read_stream = _StreamTwin(Files.read_stream)
    write = _twin(Files.write)
    list = _twin(Files.list)
    stat = _twin(Files.stat)
    exists = _twin(Files.exists)
    make_dir = _twin(Files.make_dir)
    move = _twin(Files.move)
    remove = _twin(Files.remove)
    upload = _twin(Files.upload)
    download = _twin(Files.download)
    watch = _StreamTwin(Files.watch)

    async def walk(self, path: str = ".") -> AsyncIterator[Json]:
        """All entries below a folder, each with its `path`; a folder comes before what is in it."""
        for entry in await self.list(path):
            entry["path"] = f"{path.rstrip('/')}/{entry['name']}"
            yield entry
            if entry["type"] == "dir":
                async for below in self.walk(entry["path"]):
                    yield below


class AsyncCommands:
    """`Commands` for asyncio."""

    def __init__(self, commands: Commands, ramet: Ramet) -> None:
        self._sync = commands
        self._ramet = ramet

    run = _twin(Commands.run)
    start = _twin(Commands.start)
    stream = _StreamTwin(Commands.stream)


class AsyncCodeContext:
    """`CodeContext` for asyncio."""

    def __init__(self, context: CodeContext) -> None:
        self._sync = context
        self._ramet = context.sandbox.client

    @property
    def id(self) -> str:
        """Its name in the sandbox."""
        return self._sync.id

    @property
    def language(self) -> str:
        """`python` or `bash`."""
        return self._sync.language

    async def run_code(self, code: str, *, timeout_secs: float | None = None, timeout_seconds: float | None = None,
                       on_stdout: Callable[[str], object] | None = None, on_stderr: Callable[[str], object] | None = None,
                       on_result: Callable[[Result], object] | None = None, check: bool = False) -> Execution:
        """Runs code; cancelling it interrupts the run. The on_... functions are called in the event loop. check: raise CodeError
        when it ends with an error."""
        loop = asyncio.get_running_loop()

        def here(function: Callable[[U], object] | None) -> Callable[[U], object] | None:
            return None if function is None else lambda value: loop.call_soon_threadsafe(function, value)

        return await _in_thread(self._ramet, functools.partial(
            self._sync.run_code, code, timeout_secs=timeout_secs, timeout_seconds=timeout_seconds, on_stdout=here(on_stdout),
            on_stderr=here(on_stderr), on_result=here(on_result), check=check))

    run_code_stream = _StreamTwin(CodeContext.run_code_stream)
    interrupt = _twin(CodeContext.interrupt)
    restart = _twin(CodeContext.restart)
    close = _twin(CodeContext.close)

    async def __aenter__(self) -> AsyncCodeContext:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


AsyncApproach = Union[str, Callable[["AsyncSandbox"], Awaitable[Any]]]


class _ClassTwin(Generic[P, T]):
    """The asyncio form of a class method of Sandbox."""

    def __init__(self, method: Callable[P, Any], wrap: Callable[[Any], T]) -> None:
        self._method, self._wrap = method, wrap
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Callable[P, Awaitable[T]]:
        method, wrap = self._method, self._wrap

        @functools.wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            client = _client_of(cast("Ramet | AsyncRamet | None", kwargs.get("client")))
            return wrap(await _in_thread(client, functools.partial(method, *args, **kwargs)))

        return call


class AsyncSandbox:
    """`Sandbox` for asyncio: `await AsyncSandbox.create(...)`, then the same methods, awaited. `sync` is the Sandbox in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sync = self._sync = sandbox
        self._ramet = sandbox.client
        self.files = AsyncFiles(sandbox.files, self._ramet)
        self.commands = AsyncCommands(sandbox.commands, self._ramet)

    create = _ClassTwin(Sandbox.create, lambda sandbox: AsyncSandbox(sandbox))
    get = _ClassTwin(Sandbox.get, lambda sandbox: AsyncSandbox(sandbox))
    list = _ClassTwin(Sandbox.list, lambda sandboxes: [AsyncSandbox(each) for each in sandboxes])

    @property
    def id(self) -> str:
        """Its id, which it keeps when it is renamed."""
        return self._sync.id

    @property
    def name(self) -> str:
        """Its name."""
        return self._sync.name

    @property
    def state(self) -> str:
        """`running`, `stopped` ..., as of the last answer."""
        return self._sync.state

    @property
    def labels(self) -> Dict[str, str]:
        """Its labels."""
        return self._sync.labels

    @property
    def info(self) -> Json:
        """What the server last said of it."""
        return self._sync.info

    @property
    def filesystem(self) -> AsyncFiles:
        """Another word for `files`."""
        return self.files

    refresh = _twin_as(Sandbox.refresh, lambda self, _: cast(AsyncSandbox, self))
    update = _twin_as(Sandbox.update, lambda self, _: cast(AsyncSandbox, self))
    set_ttl = _twin_as(Sandbox.set_ttl, lambda self, _: cast(AsyncSandbox, self))
    set_persistent = _twin_as(Sandbox.set_persistent, lambda self, _: cast(AsyncSandbox, self))
    metrics = _twin(Sandbox.metrics)
    logs = _twin(Sandbox.logs)
    events = _StreamTwin(Sandbox.events)
    start_job = _twin(Sandbox.start_job)
    exec = _twin(Sandbox.exec)
    exec_stream = _StreamTwin(Sandbox.exec_stream)
    open_pty = _twin_as(Sandbox.open_pty, lambda self, pty: AsyncPty(pty, self._ramet))
    create_code_context = _twin_as(Sandbox.create_code_context, lambda self, context: AsyncCodeContext(context))
    snapshot = _twin(Sandbox.snapshot)
    restore = _twin_as(Sandbox.restore, lambda self, _: cast(AsyncSandbox, self))
    fork = _twin_as(Sandbox.fork, lambda self, children: [AsyncSandbox(child) for child in children])
    promote = _twin(Sandbox.promote)
    stop = _twin_as(Sandbox.stop, lambda self, _: cast(AsyncSandbox, self))
    start = _twin_as(Sandbox.start, lambda self, _: cast(AsyncSandbox, self))
    hibernate, wake = stop, start
    pause = _twin_as(Sandbox.pause, lambda self, _: cast(AsyncSandbox, self))
    resume = _twin_as(Sandbox.resume, lambda self, _: cast(AsyncSandbox, self))
    wait_until = _twin_as(Sandbox.wait_until, lambda self, _: cast(AsyncSandbox, self))
    url = _twin(Sandbox.url)
    kill = _twin(Sandbox.kill)
    delete = _twin(Sandbox.kill)

    def context(self, id: str = "python") -> AsyncCodeContext:
        """One by its id; `python` and `bash` are there without being made."""
        return AsyncCodeContext(self._sync.context(id))

    async def run_code(self, code: str, language: str = "python", **options: Any) -> Execution:
        """In the context that every sandbox has for this language; options as for AsyncCodeContext.run_code."""
        return await self.context(language).run_code(code, **options)

    async def explore(self, approaches: Mapping[str, AsyncApproach] | Sequence[AsyncApproach], *,
                      score: Callable[[Branch], float | None] | None = None, promote: bool = True, keep: bool = False,
                      timeout_secs: float | None = None, on_branch: Callable[[Branch], object] | None = None) -> Exploration:
        """As Sandbox.explore; the approaches are commands or coroutine functions that get an AsyncSandbox."""
        loop = asyncio.get_running_loop()

        def adapt(approach: AsyncApproach) -> Approach:
            if isinstance(approach, str):
                return approach
            function = approach

            async def walk(box: AsyncSandbox) -> Any:
                return await function(box)

            def start(box: Sandbox) -> Any:
                cancel, future = _current_cancel(), asyncio.run_coroutine_threadsafe(walk(AsyncSandbox(box)), loop)
                if cancel is not None:
                    cancel.follow(future.cancel)
                return future.result()

            return start

        ways: Dict[str, Approach] | List[Approach]
        if isinstance(approaches, Mapping):
            ways = {name: adapt(approach) for name, approach in approaches.items()}
        else:
            ways = [adapt(approach) for approach in approaches]
        return await _in_thread(None, functools.partial(
            self._sync.explore, ways, score=score, promote=promote, keep=keep, timeout_secs=timeout_secs, on_branch=on_branch))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    def __repr__(self) -> str:
        return f"AsyncSandbox({self.name!r}, {self.state})"
