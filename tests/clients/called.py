# SPDX-License-Identifier: Apache-2.0
"""Which public methods of a client's classes a program called: a method that nobody called must be named, with a reason."""
import inspect
import sys
import threading


def _codes(thing, depth=0):
    """The code objects below an attribute of a class, whatever decorates them."""
    if inspect.isfunction(thing):
        yield thing.__code__
    if depth > 4 or thing is None or inspect.isclass(thing) or isinstance(thing, (str, int, tuple, list, dict)):
        return
    inside = [getattr(thing, name, None) for name in ("__func__", "__wrapped__")]
    inside += [value for value in vars(thing).values() if callable(value)] if hasattr(thing, "__dict__") else []
    for each in inside:
        yield from _codes(each, depth + 1)


def methods(kind):
    """Public methods by name, each with its code objects; properties and plain values are none."""
    found = {}
    for name in dir(kind):
        thing = inspect.getattr_static(kind, name)
        codes = set() if name.startswith("_") or isinstance(thing, property) else set(_codes(thing))
        if codes:
            found[name] = codes
    return found


class Calls:
    """Notes every call from its making on, in all threads that begin later."""

    def __init__(self, *kinds):
        self.wanted = {f"{kind.__name__}.{name}": codes for kind in kinds for name, codes in methods(kind).items()}
        codes = set().union(*self.wanted.values())
        self.seen = set()

        def note(frame, event, _argument):
            if event == "call" and frame.f_code in codes:
                self.seen.add(frame.f_code)
        threading.setprofile(note)
        sys.setprofile(note)

    def check(self, reasons):
        """`reasons`: why a method is not called, by "Class.method", or "Class.*" for all that are left of a class."""
        sys.setprofile(None)
        threading.setprofile(None)
        silent = {name for name, codes in self.wanted.items() if not codes & self.seen}
        unnamed = sorted(name for name in silent if name not in reasons and name.split(".")[0] + ".*" not in reasons)
        stale = sorted(name for name in reasons if name not in silent and
                       not (name.endswith(".*") and any(each.startswith(name[:-1]) for each in silent)))
        assert not unnamed, f"neither called nor named with a reason: {unnamed}"
        assert not stale, f"named with a reason, but called, or no method at all: {stale}"
        print(f"ok {len(self.wanted)} public methods: {len(self.wanted) - len(silent)} called, {len(silent)} named")


def check_twins(pairs, extra):
    """An asyncio class has no method that its twin has not, but for those named."""
    for twin, kind in pairs:
        alone = {f"{twin.__name__}.{name}" for name in set(methods(twin)) - set(methods(kind))}
        assert alone <= set(extra), f"only of the asyncio class, and not named: {sorted(alone - set(extra))}"
