# SPDX-License-Identifier: Apache-2.0
"""What a cell needs, used once: the libraries are imported, a table and a figure are drawn, a cell is compiled and run.

For templates and waiting machines. The names that code sees, the history and the count of runs stay as they were.
"""
import gc
import sys


def warm_up(shell, run_in_loop):
    before = dict(shell.user_ns)
    send, shell.send, shell.warming = shell.send, lambda *event, **more: None, True
    try:
        for code in ("None", "1 + 1", "!true", "raise ValueError('warm')", "await __import__('asyncio').sleep(0)"):
            shell.run_cell(code, store_history=False)
        _libraries(shell)
    finally:
        shell.send, shell.warming = send, False
        for name in set(shell.user_ns) - set(before):
            del shell.user_ns[name]
        shell.user_ns.update(before)
    sys.last_type = sys.last_value = sys.last_traceback = None
    gc.collect()
    gc.freeze()    # what is there now stays: no later collection writes to its pages, and forks share them


def _libraries(shell):
    # Each may be missing, or broken: that is then for the cell to say that imports it.
    try:
        import pandas
        shell.display_formatter.format(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))
    except Exception:
        pass
    try:
        import matplotlib.pyplot as pyplot
        figure, axes = pyplot.subplots()
        axes.plot([1, 2], label="warm")
        axes.legend()
        shell.figures.flush()
    except Exception:
        pass
    finally:
        shell.figures.begin()
