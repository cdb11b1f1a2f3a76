# SPDX-License-Identifier: Apache-2.0
"""A code context: listens for requests, runs them one after another in a child process, and outlives what the code does.

usage: supervisor.py --socket PATH [--language python|bash] [--cwd FOLDER] [--generation FILE] [--grace SECS] [--python PROGRAM]

The protocol, the limits and what is lost when are in README.md beside this file. One thread; nothing here waits for one
thing alone. Needs nothing but Python's standard library, and imports no module of the user's.
"""
import argparse
import collections
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import termios
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import children    # noqa: E402
from output import Client, Run    # noqa: E402

QUEUE_MAX = 16
CLIENTS_MAX = 64
OLD_STREAMS_MAX = 64
READ_BYTES = 1 << 16
DISPLAYS = {"result", "display", "update_display", "clear"}    # a child waits until each was taken
START_TRIES = 3         # children that end before they are ready
CLOSED_SECS = 0.5       # from the end of a child's channel to its own


class Supervisor:
    def __init__(self, options):
        self.options = options
        self.selector = selectors.DefaultSelector()
        self.clients = {}
        self.queue = collections.deque()
        self.current = None             # the Run whose code runs
        self.child = None
        self.unavailable = None         # why no child can run
        self.failed_starts = 0
        self.lost = None                # why the next run begins with nothing
        self.execution_count = 1
        self.restarting = []            # clients that wait for a new child
        self.waiting = []               # clients that wait until the state is not "starting"
        self.old_streams = collections.deque()    # of children that have gone: background processes may write to them
        self.last_words = b""           # of a child that is not ready yet
        self.over = False
        self.env = make_env()
        self.cwd = options.cwd or working_directory()
        self.listener = listen(options.socket)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.start_child()

    # ---- clients ----
    def accept(self):
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        if len(self.clients) >= CLIENTS_MAX:
            connection.close()
            return
        client = Client(connection)
        self.clients[connection.fileno()] = client
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(client))

    def hear(self, client):
        for line in client.lines():
            try:
                request = json.loads(line)
                op = request["op"]
                handler = self.OPS.get(op)
                if handler is None:
                    raise ValueError(f"there is no operation {op!r}")
                handler(self, client, request)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                client.answer(event="refused", code="invalid", message=f"no request: {error}")

    def drop(self, client):
        """Its queued runs go with it; one that has begun goes on to its end, unheard."""
        fd = client.socket.fileno()
        self.selector.unregister(client.socket)
        client.socket.close()
        del self.clients[fd]
        client.outgoing.clear()
        self.queue = collections.deque(run for run in self.queue if run.client is not client)
        self.restarting = [each for each in self.restarting if each is not client]
        self.waiting = [each for each in self.waiting if each is not client]

    # ---- requests ----
    def ask_run(self, client, request):
        op = request["op"]
        name, code, timeout_ms = request.get("run", ""), request.get("code", ""), request.get("timeout_ms", 0)
        if not isinstance(name, str) or not isinstance(code, str) or not isinstance(timeout_ms, int) or timeout_ms < 0:
            raise ValueError("run and code are texts, timeout_ms is a whole number")
        if len(self.queue) >= QUEUE_MAX:
            client.answer(event="refused", run=name, code="busy",
                          message=f"{QUEUE_MAX} runs wait in this context already: wait for one of them, interrupt, or make another "
                                  f"context")
            return
        if "\0" in code and self.options.language == "bash":
            client.answer(event="refused", run=name, code="invalid", message="code for bash cannot hold a zero character")
            return
        self.queue.append(Run(client, name, op, code, timeout_ms))
        if self.child is None:
            self.failed_starts = 0
            self.start_child()
        self.next_run()

    def ask_interrupt(self, client, request):
        """Once: SIGINT. Again, or with "kill": what still runs after the grace is ended, and its state with it."""
        name = request.get("run")
        waiting = [run for run in self.queue if name is not None and run.name == name]
        for run in waiting:
            self.queue.remove(run)
            run.interrupted = True
            run.done({"name": "KeyboardInterrupt", "value": "interrupted before it began", "traceback": ""})
        run = self.current
        hit = run is not None and (name is None or run.name == name)
        if hit:
            self.interrupt(run, kill=bool(request.get("kill")) or run.interrupts > 0)
        client.answer(event="answer", op="interrupt", interrupted=hit or bool(waiting))

    def interrupt(self, run, kill):
        now = time.monotonic()
        run.interrupts += 1
        run.interrupted = True
        if run.interrupts == 1:
            run.interrupt_again_at = now + self.options.grace / 2
        if kill and run.kill_at is None:
            run.kill_at = now + self.options.grace
        self.child.interrupt()

    def ask_status(self, client, request):
        if request.get("wait") is True and self.child is not None and not self.child.ready:
            self.waiting.append(client)
        else:
            self.tell_status(client)

    def tell_status(self, client):
        state = "unavailable" if self.child is None else "busy" if self.current else \
            "idle" if self.child.ready else "starting"
        client.answer(event="answer", op="status", state=state, language=self.options.language, queued=len(self.queue),
                      execution_count=self.execution_count, pid=self.child.pid if self.child else None,
                      reason=self.unavailable, cwd=self.cwd)

    def ask_restart(self, client, request):
        for run in [self.current] * (self.current is not None) + list(self.queue):
            run.interrupted = True
            run.done({"name": "ContextRestarted", "value": "the context was restarted", "traceback": ""},
                     state_lost="the context was restarted")
        self.current = None
        self.queue.clear()
        self.end_child(kill=True)
        self.lost = None    # it was asked for: no surprise to the next run
        self.failed_starts = 0
        self.restarting.append(client)
        self.start_child()

    def ask_shutdown(self, client, request):
        client.answer(event="answer", op="shutdown")
        self.over = True

    OPS = {"run": ask_run, "warm": ask_run, "interrupt": ask_interrupt, "status": ask_status, "restart": ask_restart,
           "shutdown": ask_shutdown}

    # ---- the child ----
    def start_child(self):
        options = self.options
        try:
            os.chdir(self.cwd)
        except OSError:
            pass    # it is gone by now: the code sees where it is
        try:
            if options.language == "bash":
                self.child = children.BashChild(lambda: read_file(options.generation), self.env)
            else:
                folder = os.path.dirname(os.path.abspath(__file__))
                self.child = children.PythonChild(options.python, folder, options.generation, self.env)
        except OSError as error:
            self.give_up(f"{options.language} cannot be started: {error}")
            return
        self.last_words = b""
        self.unavailable = None
        child = self.child
        self.selector.register(child.control, selectors.EVENT_READ, lambda: self.hear_child(child))
        self.selector.register(child.pid_fd, selectors.EVENT_READ, lambda: self.child_ended(child))
        self.watch_streams()

    def watch_streams(self):
        """Output is read while its reader keeps up; without a run, or a reader, it is read and dropped."""
        child = self.child
        held = self.current is not None and self.current.client.full and not self.current.interrupts
        for fd, name in ((child.out, "stdout"), (child.err, "stderr")):
            if fd is None:
                continue
            registered = fd in self.selector.get_map()
            if held and registered:
                self.selector.unregister(fd)
            elif not held and not registered:
                self.selector.register(fd, selectors.EVENT_READ, lambda fd=fd, name=name: self.read_stream(fd, name))
        registered = child.control in self.selector.get_map()
        if held and registered:
            self.selector.unregister(child.control)
        elif not held and not registered and child.closed_at is None:
            self.selector.register(child.control, selectors.EVENT_READ, lambda: self.hear_child(child))

    def read_stream(self, fd, name, limit=READ_BYTES):
        """One piece; False when there is none."""
        try:
            data = os.read(fd, limit)
        except BlockingIOError:
            return False
        if not data:    # nobody can write to it any more
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
            os.close(fd)
            if fd == self.child.out:
                self.child.out = None
            else:
                self.child.err = None
            return False
        if self.current is not None:
            self.current.text(name, data)
        elif not self.child.ready:
            self.last_words = (self.last_words + data)[-4096:]
        return True

    def drain(self):
        """What was written up to now. No more than that: a background process may write for ever."""
        for name in ("stdout", "stderr"):
            fd = self.child.out if name == "stdout" else self.child.err
            left = 0 if fd is None else struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
            while left > 0 and self.read_stream(fd, name, min(left, READ_BYTES)):
                left -= READ_BYTES

    def hear_child(self, child):
        child.read_some()
        if child.closed_at is not None:    # it is ending; or code has closed the channel, and then it will be ended
            self.selector.unregister(child.control)
        self.hear_events(child)

    def hear_events(self, child):
        try:
            for event, payload in child.events():
                self.take_event(event, payload)
        except (children.Broken, ValueError, TypeError, KeyError) as error:
            child.broken = f"its channel carried {error}"
            child.kill()

    def take_event(self, event, payload):
        kind, child, run = event["event"], self.child, self.current
        if not child.ready and kind in ("ready", "done"):
            child.ready = True
            self.failed_starts = 0
            self.execution_count = 1
            for client in self.restarting:
                client.answer(event="answer", op="restart", restarted=True)
            self.restarting = []
            self.tell_waiting()
            self.next_run()
        elif kind == "unavailable":
            self.unavailable = str(event.get("reason"))[:1000]
        elif run is None:
            pass    # a thread displays something after its run: dropped, like what it prints
        elif kind == "started":
            run.execution_count = self.execution_count = int(event["execution_count"])
            run.send("started", execution_count=run.execution_count)
        elif kind in DISPLAYS and payload is not None and kind != "clear":
            self.drain()
            run.bundle(event, payload)
        elif kind == "clear":
            self.drain()
            run.clear_budgets()
            run.send("clear", wait=event.get("wait") is True)
        elif kind == "done":
            self.drain()
            self.run_ended(run, event)
        if kind in DISPLAYS:
            child.taken()

    def run_ended(self, run, event):
        error, fields = event.get("error"), {}
        if error is not None:
            error = {name: str(error[name]) for name in ("name", "value", "traceback")}
        if isinstance(event.get("exit_code"), int):
            fields["exit_code"] = event["exit_code"]
            run.execution_count = self.execution_count
            self.execution_count += 1
        elif run.op == "run":
            self.execution_count = run.execution_count + 1 if run.execution_count else self.execution_count
        self.current = None
        run.done(error, state_lost=run.lost_before, **fields)
        self.next_run()

    def next_run(self):
        if self.current is not None or not self.queue or self.child is None or not self.child.ready:
            return
        run = self.queue.popleft()
        self.drain()    # late output of what ran before is nobody's
        self.current = run
        run.oom_kills = children.oom_kills()
        run.begin()
        run.lost_before, self.lost = self.lost, None
        if self.options.language == "bash":
            run.execution_count = self.execution_count
            run.send("started", execution_count=run.execution_count)
        self.child.request(run.op, run.code)

    def end_child(self, kill):
        """Takes a child away; its pipes go on being read, for nobody. Returns (exit code, signal), one of them None."""
        child, self.child = self.child, None
        if child is None:
            return None
        if kill:
            child.kill()
        status = child.reap()
        for fd in (child.control, child.pid_fd):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        for fd in (child.out, child.err):
            if fd is None:
                continue
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
            self.keep_reading(fd)
        child.close()
        return status

    def keep_reading(self, fd):
        """A process that a context's code has left behind would die of writing to a closed pipe."""
        if len(self.old_streams) >= OLD_STREAMS_MAX:
            oldest = self.old_streams.popleft()
            self.selector.unregister(oldest)
            os.close(oldest)

        def read():
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.selector.unregister(fd)
                os.close(fd)
                self.old_streams.remove(fd)

        self.old_streams.append(fd)
        self.selector.register(fd, selectors.EVENT_READ, read)

    def child_ended(self, child):
        """It ended, by itself or by us: the run that it was at ends with it, and a new one takes its place. What its code
        left running goes on."""
        while child.closed_at is None and child.broken is None and child.read_some():
            self.hear_events(child)
        run = self.current
        self.drain()
        memory = run is not None and children.oom_kills() > run.oom_kills
        code, number = self.end_child(kill=False)
        why = child.killed_for or describe(code, number, memory and number == signal.SIGKILL, child)
        if not child.ready:
            self.failed_starts += 1
        elif run is None:
            self.lost = f"{why} between two runs; this run began with nothing"
        if run is not None:
            self.current = None
            name = "ContextDied" if not child.killed_for else "TimeoutError" if run.timed_out else "KeyboardInterrupt"
            fields = {"exit_code": code if code is not None else 128 + number} if child.language == "bash" else {}
            if memory and number == signal.SIGKILL and not child.killed_for:
                fields["out_of_memory"] = True
            run.done({"name": name, "value": why, "traceback": ""}, state_lost=why, signal=number, **fields)
            self.lost = f"{why} in an earlier run; this run began with nothing"
        if self.unavailable is not None or self.failed_starts >= START_TRIES:
            words = self.last_words.decode("utf-8", "replace").strip()
            self.give_up(self.unavailable or f"{why} before it was ready" + (f"; its last words: {words[-500:]}" if words else ""))
        else:
            self.start_child()

    def give_up(self, reason):
        """No child can run now. The next request tries again."""
        self.unavailable = reason
        self.child = None
        for run in self.queue:
            run.done({"name": "ContextUnavailable", "value": reason, "traceback": ""})
        self.queue.clear()
        for client in self.restarting:
            client.answer(event="refused", code="unavailable", message=reason)
        self.restarting = []
        self.tell_waiting()

    def tell_waiting(self):
        waiting, self.waiting = self.waiting, []
        for client in waiting:
            self.tell_status(client)

    # ---- time ----
    def next_deadline(self):
        run, times = self.current, []
        if self.child is not None and self.child.closed_at is not None:
            times.append(self.child.closed_at + CLOSED_SECS)
        if run is not None:
            times += [run.kill_at, run.interrupt_again_at]
            if run.timeout_secs is not None and not run.timed_out:
                times.append(run.started + run.timeout_secs)
        times = [each for each in times if each is not None]
        return min(times) if times else None

    def check_deadlines(self):
        run, now, child = self.current, time.monotonic(), self.child
        if child is not None and child.closed_at is not None and now >= child.closed_at + CLOSED_SECS:
            child.kill()
        if run is None or child is None:
            return
        if run.timeout_secs is not None and not run.timed_out and now >= run.started + run.timeout_secs:
            run.timed_out = True
            self.interrupt(run, kill=True)
        elif run.interrupt_again_at is not None and now >= run.interrupt_again_at:
            # The first may have come where exceptions are swallowed.
            run.interrupt_again_at = None
            self.child.interrupt()
        if run.kill_at is not None and now >= run.kill_at:
            run.kill_at = None
            what = f"the time of {run.timeout_secs:g} s was over" if run.timed_out else "it was interrupted"
            self.child.killed_for = f"{what} and the code did not end within {self.options.grace:g} s: its process was killed"
            self.child.kill()

    # ---- the loop ----
    def step(self):
        for client in list(self.clients.values()):
            client.push()
            if client.gone:
                self.drop(client)
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outgoing else 0)
            if self.selector.get_key(client.socket).events != wanted:
                self.selector.modify(client.socket, wanted, self.selector.get_key(client.socket).data)
        if self.child is not None:
            self.watch_streams()
        deadline = self.next_deadline()
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self.child is not None and not self.child.push():
            wait = min(wait or 0.01, 0.01)
        for key, _ in self.selector.select(wait):
            if key.fd in self.selector.get_map() and self.selector.get_map()[key.fd].data is key.data:
                key.data()
        self.check_deadlines()

    def serve(self):
        while not self.over:
            self.step()
        for client in self.clients.values():
            client.push()
        self.end_child(kill=True)
        try:
            os.unlink(self.options.socket)
        except OSError:
            pass


def describe(code, number, memory, child):
    if memory:
        return "the context's process was killed: the machine is out of memory"
    if child.broken:
        return f"the context's process was killed, for {child.broken}"
    if number is not None:
        try:
            name = f" ({signal.Signals(number).name})"
        except ValueError:
            name = ""
        return f"the context's process was killed by signal {number}{name}"
    return f"the context's process ended with status {code}"


def read_file(path):
    try:
        with open(path, "rb") as file:
            return file.read(256)
    except OSError:
        return b""


def working_directory():
    try:
        return os.getcwd()
    except OSError:
        return "/"


def make_env():
    env = dict(os.environ)
    env.setdefault("MPLBACKEND", "agg")
    env.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")    # on disks of others, which may have Debian's mark against it
    env.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    env.setdefault("PAGER", "cat")
    return env


def listen(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(temporary)
    os.chmod(temporary, 0o600)
    listener.listen(CLIENTS_MAX)
    os.rename(temporary, path)    # whoever finds the name finds a listener
    return listener


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--language", choices=["python", "bash"], default="python")
    parser.add_argument("--cwd")
    parser.add_argument("--generation", default="/run/ramet/generation")
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)    # not SIG_IGN: that would be inherited
    Supervisor(options).serve()


if __name__ == "__main__":
    main()
