# SPDX-License-Identifier: Apache-2.0
"""Figures without show() or savefig(): what pyplot holds open when a cell ends, or calls show(), is displayed and closed.

matplotlib and plotly are not imported here: their modules are given our functions when user code imports them. Backend
switches change nothing, for figures are asked for by pyplot's own list and drawn by the canvas of the wanted format. A figure
is shown once a run: one that show() has displayed is not drawn again as the last value.
"""
import importlib.abc
import importlib.util
import sys

PIXELS_MAX = 25_000_000
SIDE_MAX = 16_384


class FigureTooLarge(ValueError):
    pass


class Figures:
    def __init__(self, shell):
        self.shell = shell
        self.shown = []    # figures of this run; held, so that no other gets the same id
        sys.meta_path.insert(0, Hooks({"matplotlib.pyplot": self.on_pyplot, "plotly.io": self.on_plotly}))

    # ---- one run ----
    def begin(self):
        self.shown = []

    def flush(self):
        """Displays and closes what is open, in the order it was made in."""
        module = sys.modules.get("matplotlib._pylab_helpers")
        pyplot = sys.modules.get("matplotlib.pyplot")
        if module is None or pyplot is None:
            return
        first = None
        try:
            for manager in sorted(module.Gcf.get_all_fig_managers(), key=lambda each: each.num):
                try:
                    self.display(manager.canvas.figure)
                except Exception as error:
                    first = first or error    # the others are shown all the same
        finally:
            pyplot.close("all")
        if first is not None:
            raise first

    def discard(self):
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.close("all")

    def display(self, figure):
        if self.was_shown(figure):
            return
        data, metadata = self.shell.display_formatter.format(figure)
        if any(mime.startswith(("image/", "application/")) for mime in data):
            self.shell.display_pub.publish(data, metadata)

    # ---- for the formatter ----
    def is_figure(self, value):
        module = sys.modules.get("matplotlib.figure")
        return module is not None and isinstance(value, getattr(module, "Figure", ()))

    def was_shown(self, figure):
        return any(figure is each for each in self.shown)

    def note(self, figure):
        """About to be drawn. Too large a drawing would take the machine's memory, and nobody looks at it."""
        width, height = (int(side * figure.dpi) for side in figure.get_size_inches())
        self.shown.append(figure)
        if width * height > PIXELS_MAX or max(width, height) > SIDE_MAX:
            raise FigureTooLarge(
                f"the figure is {width} x {height} pixels, and at most {PIXELS_MAX // 1_000_000} million pixels ({SIDE_MAX} a "
                f"side) are displayed: make figsize or dpi smaller, or write it to a file with savefig() and close it")

    # ---- modules that were just imported ----
    def on_pyplot(self, pyplot):
        switch = pyplot.switch_backend

        def show(*args, **kwargs):
            """Displays the figures that are open, and closes them."""
            self.flush()

        def switch_backend(newbackend):
            # The library closes all figures at a switch; what was drawn until then is wanted.
            if pyplot.get_fignums():
                self.flush()
            return switch(newbackend)

        pyplot.show, pyplot.switch_backend = show, switch_backend
        self.formats(self.shell.inline.figure_formats)

    def formats(self, names):
        """Which image formats figures have, once there are figures."""
        if "matplotlib.pyplot" in sys.modules:
            from IPython.core.pylabtools import select_figure_formats
            select_figure_formats(self.shell, set(names), **self.shell.inline.print_figure_kwargs)

    def on_plotly(self, io):
        publish = self.shell.display_pub.publish

        class Renderer(io.base_renderers.ExternalRenderer):
            def render(self, figure):
                publish({"application/vnd.plotly.v1+json": figure, "text/plain": "<plotly figure>"})

        try:
            io.renderers["ramet"] = Renderer()
            io.renderers.default = "ramet"
        except Exception:
            pass    # a plotly of another make shows its figures by its own means


def plotly_bundle(value):
    """A plotly figure as JSON, or None when it is something else."""
    kind = sys.modules.get("plotly.basedatatypes")
    if kind is None or not isinstance(value, getattr(kind, "BaseFigure", ())):
        return None
    import json
    return {"application/vnd.plotly.v1+json": json.loads(value.to_json()), "text/plain": "<plotly figure>"}


class Hooks(importlib.abc.MetaPathFinder):
    """Calls a function with a module, once it is loaded."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        action = self.wanted.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.wanted[name] = action
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            action(module)

        spec.loader.exec_module = exec_module
        return spec
