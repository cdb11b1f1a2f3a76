# SPDX-License-Identifier: Apache-2.0
"""The processes that run a context's code, as their supervisor sees them: started, fed, interrupted, killed.

A child has pipes for standard output and error, an empty standard input, and one channel for requests and events. What comes
from it is not trusted: user code is free to write into all of them.
"""
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time

LINE_MAX = 1 << 20        # of a channel: an event without its bundle
PAYLOAD_MAX = 16 << 20    # a bundle
OOM_SCORE = "500"         # rather the code's process than its supervisor


class Broken(Exception):
    """The channel says what it cannot say."""


class Child:
    """One process; subclasses say how it is spoken to. Descriptors: out, err, control (what the supervisor reads)."""
    language = ""

    def __init__(self, command, extra_fds, env):
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        try:
            self.process = subprocess.Popen(
                command, stdin=self.stdin(), stdout=out_write, stderr=err_write, pass_fds=extra_fds, env=env,
                start_new_session=True, close_fds=True, restore_signals=True)
        except BaseException:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self.out, self.err = out_read, err_read
        for fd in (self.out, self.err):
            os.set_blocking(fd, False)
        self.pid = self.process.pid
        self.pid_fd = os.pidfd_open(self.pid)
        self.ready = False
        self.buffer = bytearray()
        self.wanted = None      # the event whose bundle is being received
        self.closed_at = None   # when its channel ended
        self.killed_for = self.broken = None
        try:
            with open(f"/proc/{self.pid}/oom_score_adj", "w") as file:
                file.write(OOM_SCORE)
        except OSError:
            pass    # an older container may not let us; the kernel's choice then

    def stdin(self):
        return subprocess.DEVNULL

    def read_some(self):
        """Takes what its channel has now; False when that is nothing."""
        data = self.read()
        if data == b"":
            self.closed_at = time.monotonic()
        self.buffer += data or b""
        return bool(data)

    def events(self):
        """(event, bundle or None) for all that is whole in what came."""
        while self.broken is None:
            if self.wanted is not None:
                size = self.wanted["size"]
                if len(self.buffer) <= size:
                    return
                payload, event = bytes(self.buffer[:size]), self.wanted
                if self.buffer[size] != 10 or b"\n" in payload:
                    raise Broken("a bundle without its end")
                del self.buffer[:size + 1]
                self.wanted = None
                yield event, payload
                continue
            end = self.buffer.find(b"\n", 0, LINE_MAX)
            if end < 0:
                if len(self.buffer) >= LINE_MAX:
                    raise Broken("a line without an end")
                return
            try:
                event = json.loads(self.buffer[:end])
                size = event.get("size")
                if not isinstance(event["event"], str) or not (size is None or 0 <= size <= PAYLOAD_MAX):
                    raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise Broken("a line that is no event") from None
            del self.buffer[:end + 1]
            if size is None:
                yield event, None
            else:
                self.wanted = event

    def interrupt(self):
        try:
            os.kill(self.pid, signal.SIGINT)
        except ProcessLookupError:
            pass

    def kill(self):
        """Ends it and all that its code started and that did not leave its session."""
        for pid in _session(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def reap(self):
        """Its status, once the process has ended: (exit code or None, signal or None)."""
        status = self.process.wait()
        return (status, None) if status >= 0 else (None, -status)

    def taken(self):
        pass

    def close(self):
        """Everything but out and err, which background processes may still write to."""
        os.close(self.pid_fd)


class PythonChild(Child):
    language = "python"

    def __init__(self, python, folder, generation_path, env):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ack_read, self.ack = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(ack_read, True)
        self.socket = ours
        try:
            super().__init__([python, f"{folder}/kernel.py", str(theirs.fileno()), str(ack_read), generation_path],
                             [theirs.fileno(), ack_read], env)
        except BaseException:
            ours.close()
            os.close(self.ack)
            raise
        finally:
            theirs.close()
            os.close(ack_read)
        ours.setblocking(False)
        self.control = ours.fileno()
        self.to_send = b""

    def read(self):
        """Bytes of events, b"" at the end, None when there are none now."""
        try:
            return self.socket.recv(1 << 18)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def request(self, op, code=None):
        self.to_send += json.dumps({"op": op, "code": code}).encode("ascii") + b"\n"
        self.push()

    def push(self):
        """Sends what the channel takes; True when all is sent."""
        try:
            while self.to_send:
                self.to_send = self.to_send[self.socket.send(self.to_send):]
        except BlockingIOError:
            return False
        except OSError:
            self.to_send = b""    # it has ended; its status says how
        return True

    def taken(self):
        """Tells it that its display was taken; it goes on then."""
        try:
            os.write(self.ack, b"+")
        except OSError:
            pass    # it does not read: it has no use for it

    def close(self):
        super().close()
        os.close(self.ack)
        self.socket.close()


# Bash reads its commands interactively: then an interrupt goes back to the reading of the next one, and PROMPT_COMMAND
# is where each one's end is seen, the interrupted too. They are numbered, for an interrupt between two makes a prompt more.
BASH_START = r"""set +m +H +o history; PS1= PS2= _ramet_run=0; readonly PROMPT_COMMAND='_ramet_done'; _ramet_done() { printf '{"event":"done","number":%d,"exit_code":%d}\n' "$_ramet_run" "$?" >&{fd}; }
"""


class BashChild(Child):
    language = "bash"

    def __init__(self, generation, env):
        read, write = os.pipe2(os.O_CLOEXEC)
        self.control = read
        self.number = 0     # of the run whose end is waited for
        self.generation = generation
        self.last_generation = generation()
        try:
            super().__init__(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], [write], env | {"PS1": "", "PS2": ""})
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self.fd = write
        os.set_blocking(read, False)
        self.socket = self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)
        # The first prompt's message says that it is ready.
        self.to_send = BASH_START.replace("{fd}", str(write)).encode()
        self.push()

    def stdin(self):
        return subprocess.PIPE

    def read(self):
        try:
            return os.read(self.control, 1 << 16)
        except BlockingIOError:
            return None

    def request(self, op, code=None):
        seed = ""
        now = self.generation()
        if now != self.last_generation:
            self.last_generation = now
            seed = f"RANDOM={int.from_bytes(os.urandom(2), 'little')}; "
        self.number += 1
        line = f"_ramet_run={self.number}; {seed}eval {shlex.quote(code or ':')} < /dev/null {self.fd}>&-\n"
        self.to_send += line.encode("utf-8", "replace")
        self.push()

    def events(self):
        for event, payload in super().events():
            if event.get("number") == self.number and payload is None:
                yield event, None

    def push(self):
        try:
            while self.to_send:
                self.to_send = self.to_send[os.write(self.process.stdin.fileno(), self.to_send):]
        except BlockingIOError:
            return False
        except OSError:
            self.to_send = b""
        return True

    def interrupt(self):
        """What it waits for, and then itself: without job control its commands are in its own process group."""
        try:
            os.killpg(self.pid, signal.SIGINT)
        except ProcessLookupError:
            pass

    def close(self):
        super().close()
        os.close(self.control)
        try:
            self.process.stdin.close()
        except OSError:
            pass


def _session(leader):
    """Processes of a session, its leader first."""
    pids = [leader]
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == leader:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == leader:
            pids.append(int(name))
    return pids


def oom_kills():
    """How many processes the kernel has killed for memory since it started."""
    try:
        with open("/proc/vmstat") as file:
            match = re.search(r"^oom_kill (\d+)$", file.read(), re.M)
            return int(match.group(1)) if match else 0
    except OSError:
        return 0
