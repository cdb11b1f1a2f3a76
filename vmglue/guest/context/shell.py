# SPDX-License-Identifier: Apache-2.0
"""IPython's shell without a terminal: values, displays and errors become events instead of text.

An event is given to `send(kind, fields, bundle)`; what user code prints goes to the descriptors 1 and 2, and the streams are
flushed before each event, so that whoever reads both sees them in order.
"""
import ast
import builtins
import contextlib
import functools
import os
import signal
import subprocess
import sys
import traceback
import warnings

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Any, Bool, Dict, Set, Unicode, observe
from traitlets.config import Config, Configurable

from ramet_context import bundle, figures

SHELL_END_SECS = 2    # an interrupted `!` command has so long to end
PLAIN_MAX = 100_000   # of a str or bytes value so much is shown
# A cell that calls one of these outside of a function wants to be inside of the event loop, though it awaits nothing.
LOOP_CALLS = {"create_task", "ensure_future", "get_running_loop", "current_task"}


def flush():
    """Everything that this process has been given to print is in the descriptors: Python's buffers and C's."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass    # closed, or another object by now
    if "ctypes" in sys.modules:    # numpy brings it, and so does whoever calls C functions by hand
        try:
            _libc().fflush(None)
        except Exception:
            pass


@functools.cache
def _libc():
    return sys.modules["ctypes"].CDLL(None)


class Hook(DisplayHook):
    """The last expression's value."""
    busy = False

    def write_output_prompt(self):
        pass

    def compute_format_data(self, result):
        self.busy = True
        try:
            return super().compute_format_data(result)
        finally:
            self.busy = False

    def update_user_ns(self, result):
        if not self.shell.warming:
            super().update_user_ns(result)

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.send_bundle("result", format_dict, execution_count=self.prompt_count)

    def log_output(self, format_dict):
        pass

    def finish_displayhook(self):
        pass


class Publisher(DisplayPublisher):
    """display(), update_display() and clear_output()."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_):
        display_id = (transient or {}).get("display_id")
        fields = {} if display_id is None else {"display_id": bundle.safe_str(display_id)[:256]}
        self.shell.send_bundle("update_display" if update else "display", data, **fields)

    def clear_output(self, wait=False):
        flush()
        self.shell.send("clear", {"wait": bool(wait)}, acknowledged=True)


class Formatter(DisplayFormatter):
    def format(self, obj, include=None, exclude=None):
        shell = self.parent
        if isinstance(obj, (str, bytes, bytearray)) and len(obj) > PLAIN_MAX:
            return {"text/plain": f"{bytes(obj[:PLAIN_MAX]) if not isinstance(obj, str) else obj[:PLAIN_MAX]!r}"
                                  f"... of {len(obj)}", bundle.CUT: True}, {}
        plotly = figures.plotly_bundle(obj)
        if plotly is not None:
            return plotly, {}
        if shell.figures.is_figure(obj):
            if shell.displayhook.busy and shell.figures.was_shown(obj):
                include = {"text/plain"}
            else:
                shell.figures.note(obj)
        return super().format(obj, include, exclude)


class InlineBackend(Configurable):
    """What `%config InlineBackend.figure_formats = ["svg"]` sets."""
    figure_formats = Set({"png"}, help="Image formats of figures: png, svg, jpeg, pdf.").tag(config=True)
    figure_format = Unicode(help="One image format; see figure_formats.").tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}, help="Options for savefig.").tag(config=True)
    close_figures = Bool(True, help="Always: figures are closed when they were displayed.").tag(config=True)

    @observe("figure_formats", "print_figure_kwargs")
    def _formats_changed(self, change):
        self.parent.figures.formats(self.figure_formats)

    @observe("figure_format")
    def _format_changed(self, change):
        if change["new"]:
            self.figure_formats = {change["new"]}


class Shell(InteractiveShell):
    send = Any()     # set by the kernel, like
    shield = Any(contextlib.nullcontext)    # inside of it no interrupt is raised
    warming = False  # a warm-up leaves no trace

    def __init__(self, send, **arguments):
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.xmode = "Context"
        config.InteractiveShell.banner1 = ""
        config.InteractiveShell.displayhook_class = Hook
        super().__init__(config=config, user_module=None, **arguments)
        self.send = send
        self.figures = figures.Figures(self)
        self.inline = InlineBackend(parent=self)
        self.configurables.append(self.inline)
        self.error = None
        self.truncated = False
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        warnings.filterwarnings("ignore", message="matplotlib is currently using a non-GUI backend")
        self._refuse_input()

    displayhook_class = Hook
    display_pub_class = Publisher

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def _refuse_input(self):
        """Nobody can answer: reading the terminal fails at once. (Descriptor 0 is at its end for everybody else.)"""
        def no_input(prompt="", *args, **kwargs):
            __tracebackhide__ = True    # noqa: F841: for IPython
            if prompt:
                print(prompt, end="", flush=True)
            raise EOFError("nobody can answer here: a code context has no input; give the value in the code")
        builtins.input = no_input
        import getpass
        getpass.getpass = no_input

    # ---- events ----
    def send_bundle(self, kind, data, **fields):
        data = dict(data)
        cut = data.pop(bundle.CUT, False)
        if not data:
            return
        encoded, truncated = bundle.encode(data)
        flush()
        self.send(kind, fields | ({"truncated": True} if cut or truncated else {}), encoded, acknowledged=True)

    def showtraceback(self, *args, **kwargs):
        with self.shield():    # the code has ended; an interrupt would only lose what it ended with
            super().showtraceback(*args, **kwargs)

    def _showtraceback(self, etype, evalue, stb):
        lines = stb if isinstance(stb, str) else self.InteractiveTB.stb2text(stb)
        self.note_error(evalue if evalue is not None else etype, lines, getattr(etype, "__name__", str(etype)))

    def show_usage_error(self, exc):
        self.note_error(exc, f"UsageError: {bundle.safe_str(exc)}")

    def note_error(self, error, lines=None, name=None):
        """The run's error is the last one; earlier ones (a magic may show several) go to stderr like in a terminal."""
        if self.error is not None:
            print(self.error["traceback"], file=sys.stderr)
        if lines is None:
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.error = {"name": bundle.text(name or type(error).__name__), "value": bundle.safe_str(error),
                      "traceback": bundle.shorten(bundle.text(lines), bundle.VALUE_MAX)[0]}

    # ---- leaving: the context's life is not its code's to end ----
    def ask_exit(self):
        raise SystemExit("exit")

    # ---- `!` lines: output goes straight to the descriptors, standard input is at its end ----
    def system(self, cmd):
        flush()
        process = subprocess.Popen(self.var_expand(cmd, depth=1), shell=True, executable=_shell(), stdin=subprocess.DEVNULL,
                                   process_group=0)
        self.user_ns["_exit_code"] = _wait(process)

    def getoutput(self, cmd, split=True, depth=0):
        flush()
        process = subprocess.Popen(self.var_expand(cmd, depth=depth + 1), shell=True, executable=_shell(),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   process_group=0)
        try:
            output = process.stdout.read().decode("utf-8", "replace").replace("\r\n", "\n")
        finally:
            _wait(process)
        if not split:
            return output
        from IPython.utils.text import SList
        return SList(output.splitlines())

    # ---- figures are displayed whatever the backend ----
    def enable_matplotlib(self, gui=None):
        if gui not in (None, "inline", "auto", "agg", "Agg"):
            print(f"%matplotlib {gui}: there is no screen here; figures are displayed as with inline", file=sys.stderr)
        import matplotlib.pyplot    # noqa: F401
        return "inline", "agg"

    # ---- await ----
    def should_run_async(self, raw_cell, *, transformed_cell=None, preprocessing_exc_tuple=None):
        if preprocessing_exc_tuple is not None:
            return False
        if super().should_run_async(raw_cell, transformed_cell=transformed_cell,
                                    preprocessing_exc_tuple=preprocessing_exc_tuple):
            return True
        try:
            return _uses_loop(ast.parse(transformed_cell))
        except Exception:
            return False    # it is no code, and will be told so


def _shell():
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _wait(process):
    """Its status, as a shell says it. An interrupt goes on to all that the line started."""
    try:
        status = process.wait()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(SHELL_END_SECS / 2)
                break
            except ProcessLookupError:
                break
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                continue
        raise
    return status if status >= 0 else 128 - status


def _uses_loop(tree):
    """Whether code outside of functions calls what only works inside of a running loop, and starts no loop of its own."""
    found, todo = False, list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            owner = getattr(getattr(node.func, "value", None), "id", "")
            if name == "run_until_complete" or (name == "run" and owner == "asyncio"):
                return False
            found |= name in LOOP_CALLS
        todo.extend(ast.iter_child_nodes(node))
    return found
