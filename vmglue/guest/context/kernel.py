# SPDX-License-Identifier: Apache-2.0
"""The process that runs a Python context's code: IPython's shell in the main thread, driven by the supervisor.

usage: kernel.py CONTROL-FD ACK-FD GENERATION-FILE

Requests are JSON lines on CONTROL-FD: {"op": "run", "code"} and {"op": "warm"}. Answers are a JSON line {"event", ..., "size"}
followed by `size` bytes, a bundle's JSON, and a line end. Of displays the supervisor says on ACK-FD, a byte for each, that it has
taken them: what is printed after one is read after it. Standard output and error are pipes to the supervisor, standard input
is empty. SIGINT interrupts code and nothing else: between runs, and while an event is being sent, it is ignored or waits.
"""
import contextlib
import gc
import importlib.util
import json
import os
import signal
import socket
import sys


def make_package():
    """Our modules under one name, and our folder not among those that user code imports from."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    spec = importlib.util.spec_from_file_location("ramet_context", here + "/__init__.py", submodule_search_locations=[here])
    sys.modules["ramet_context"] = importlib.util.module_from_spec(spec)


if __name__ == "__main__":
    make_package()

from ramet_context import bundle, reseed    # noqa: E402

KEEP_FROM_FD = 200    # our own descriptors are out of the way of code that counts on small numbers


class Channel:
    """The connection to the supervisor. Only the process that opened it may use it: a fork of user code has it, too."""

    def __init__(self, fd, ack_fd):
        import fcntl
        self.pid = os.getpid()
        kept, self.ack = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, KEEP_FROM_FD) for each in (fd, ack_fd))
        os.close(fd)
        os.close(ack_fd)
        self.socket = socket.socket(fileno=kept)
        self.buffer = b""
        self.sending = False    # SIGINT waits for its end
        self.interrupted = False
        import threading
        self.lock = threading.RLock()

    def send(self, kind, fields=None, payload=None, acknowledged=False):
        if os.getpid() != self.pid:
            return
        head = {"event": kind} | (fields or {}) | ({} if payload is None else {"size": len(payload)})
        data = json.dumps(head).encode("ascii") + b"\n" + (b"" if payload is None else payload.encode("ascii") + b"\n")
        with self.lock:
            self.sending = True
            try:
                self.socket.sendall(data)
                if acknowledged and not os.read(self.ack, 1):
                    os._exit(70)
            except OSError:
                os._exit(70)    # the supervisor is gone, or code closed this descriptor: nobody hears us
            finally:
                self.sending = False
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def line(self, wait):
        """The next request, or None at the end. wait() returns when something may have come."""
        while b"\n" not in self.buffer:
            wait(self.socket)
            try:
                piece = self.socket.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not piece:
                return None
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)


class Streams:
    """Descriptors 0, 1 and 2 and Python's files on them, as they were at the beginning: code that closed or replaced them
    does so for its own run."""

    def __init__(self):
        import fcntl
        self.kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, KEEP_FROM_FD) for fd in (0, 1, 2)]
        self.files = None
        self.open()

    def open(self):
        out = open(1, "w", encoding="utf-8", errors="strict", newline="\n", closefd=False)
        err = open(2, "w", encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False)
        for file in (out, err):
            file.reconfigure(line_buffering=True)
        self.files = out, err
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = self.files

    def repair(self):
        for fd, kept in enumerate(self.kept):
            try:
                same = os.path.sameopenfile(fd, kept)
            except OSError:
                same = False
            if not same:
                os.dup2(kept, fd)
        if any(file.closed for file in self.files) or sys.stdout.closed or sys.stderr.closed:
            self.open()
        if sys.stdin is None or sys.stdin.closed:
            sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)


class Kernel:
    def __init__(self, channel, generation_path):
        self.channel = channel
        self.code_runs = False
        self.task = None              # of the cell that runs in the loop
        self.loop_used = False
        signal.signal(signal.SIGINT, self.on_interrupt)
        self.streams = Streams()
        self.generation_path = generation_path
        self.generation = reseed.generation(generation_path)
        sys.argv = [""]
        sys.path.insert(0, "")
        self.add_user_site()
        import asyncio
        from ramet_context.shell import Shell, flush
        self.asyncio, self.flush = asyncio, flush
        self.loop = asyncio.new_event_loop()
        self.shell = Shell.instance(self.channel.send)
        self.shell.loop_runner = self.run_in_loop
        self.shell.shield = self.shield
        self.signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE)}

    # ---- signals ----
    def on_interrupt(self, number, frame):
        if self.channel.sending:
            self.channel.interrupted = self.code_runs
        elif self.code_runs:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def shield(self):
        before, self.code_runs = self.code_runs, False
        try:
            yield
        finally:
            self.code_runs = before

    # ---- the surroundings of a run ----
    def add_user_site(self):
        """`%pip install` makes this folder when there is none yet; Python looks for it at its start alone."""
        import site
        self.user_site = site.getusersitepackages()
        if site.ENABLE_USER_SITE is not False and self.user_site not in sys.path:
            sys.path.append(self.user_site)

    def prepare(self):
        self.streams.repair()
        for number, handler in self.signals.items():
            signal.signal(number, handler)
        if sys.path_importer_cache.get(self.user_site, self) is None and os.path.isdir(self.user_site):
            del sys.path_importer_cache[self.user_site]
        if self.loop.is_closed():
            self.loop = self.asyncio.new_event_loop()
        self.asyncio.set_event_loop(self.loop)
        now = reseed.generation(self.generation_path)
        if now != self.generation:
            failed = reseed.everything()
            self.generation = now
            if failed:
                print("not reseeded after the fork: " + "; ".join(failed), file=sys.stderr)

    # ---- code ----
    def run_in_loop(self, coroutine):
        """A cell with a top-level await. When it is interrupted nothing of it stays behind in the loop."""
        self.loop_used = True
        task = self.task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException as error:
            if not task.done():
                task.cancel()
                try:
                    self.loop.run_until_complete(task)
                except BaseException:
                    pass    # it was told to end; how it did is of no interest
            raise error
        finally:
            self.task = None

    def run(self, code):
        shell = self.shell
        shell.error = None
        result = None
        self.prepare()
        count = shell.execution_count
        self.channel.send("started", {"execution_count": count})
        shell.figures.begin()
        try:
            self.code_runs = True
            result = shell.run_cell(code, store_history=True)
            shell.figures.flush()
            self.flush()
        except BaseException as error:
            self.code_runs = False
            shell.figures.discard()
            shell.note_error(error)
        finally:
            self.code_runs = False
        self.leave_if_forked()
        self.finish(result)
        self.channel.send("done", {"execution_count": count, "error": shell.error})

    def finish(self, result):
        """The run's error, also when nothing was shown of it, and what is left in buffers."""
        error = None if result is None else result.error_before_exec or result.error_in_exec
        try:
            if error is not None and self.shell.error is None:
                self.shell.note_error(error)
            self.flush()
        except BaseException as failure:
            self.shell.error = {"name": type(failure).__name__, "value": "", "traceback": ""}

    def leave_if_forked(self):
        if os.getpid() != self.channel.pid:
            try:
                self.flush()
            finally:
                os._exit(0)

    def warm(self):
        """Walks the ways of a cell, so that the first real one finds them trodden, and leaves no trace."""
        from ramet_context.warm import warm_up
        self.prepare()
        warm_up(self.shell, self.run_in_loop)
        self.shell.error = None
        self.channel.send("done", {"execution_count": self.shell.execution_count, "error": None})

    # ---- between runs ----
    def wait(self, connection):
        """Tasks that cells have started go on while nothing else runs."""
        if not self.loop_used or self.loop.is_closed() or not self.asyncio.all_tasks(self.loop):
            return
        ready = self.loop.create_future()

        def readable():
            self.code_runs = False
            if not ready.done():
                ready.set_result(None)

        self.loop.add_reader(connection, readable)
        try:
            self.code_runs = True
            self.loop.run_until_complete(ready)
        except BaseException:
            pass    # a task has raised SystemExit, or was interrupted
        finally:
            self.code_runs = False
            if not self.loop.is_closed():
                self.loop.remove_reader(connection)

    def serve(self):
        gc.freeze()    # collections then pass over what was imported: fewer pages are touched after a resume
        self.channel.send("ready", {"execution_count": self.shell.execution_count})
        while True:
            request = self.channel.line(self.wait)
            if request is None:
                return
            if request["op"] == "warm":
                self.warm()
            else:
                self.run(request["code"])


def main():
    channel, generation_path = Channel(int(sys.argv[1]), int(sys.argv[2])), sys.argv[3]
    try:
        kernel = Kernel(channel, generation_path)
    except ImportError as error:
        words = f"IPython cannot be imported ({bundle.safe_str(error)}); make the sandbox from the template code-interpreter, or " \
                f"install python3-ipython in it"
        channel.send("unavailable", {"reason": words})
        os._exit(1)
    kernel.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
