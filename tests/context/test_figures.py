# SPDX-License-Identifier: Apache-2.0
"""Figures (X12): each once, in order, as images that decode, whatever the backend is."""
import base64
import struct
import zlib

import rig


def png_size(text):
    """Width and height of a PNG; its chunks and its pixels are whole."""
    data = base64.b64decode(text, validate=True)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, pixels, size = 8, b"", None
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place:place + 8])
        body = data[place + 8:place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length:place + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        elif kind == b"IDAT":
            pixels += body
        place += 12 + length
    assert kind == b"IEND" and len(zlib.decompress(pixels)) > size[0] * size[1]
    return size


class Figures(rig.Case):
    MODULES = ["IPython", "matplotlib", "pandas"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.context.run("import matplotlib.pyplot as plt\ndef draw(width=4):\n    figure, axes = plt.subplots(figsize=(width, 2))\n"
                        "    axes.plot([1, 3, 2]); return figure")

    def pngs(self, code, **more):
        """The widths of the figures that a cell shows, which tell them apart."""
        return [round(png_size(image)[0] / 100) for image in self.good(code, **more).mime("image/png")]

    def test_X12_each_figure_once(self):
        for code in ("draw(4);", "draw(4); plt.show()", "f = draw(4)\nplt.show()\nf", "f = draw(4)\nf", "draw(4).savefig('out.png')",
                     "draw(4)", "plt.figure(figsize=(4, 2)); plt.plot([1, 2])\nplt.show(block=False); plt.show()",
                     "import matplotlib; matplotlib.use('Agg'); draw(4); plt.show()", "%matplotlib inline\ndraw(4); plt.show()",
                     "%matplotlib inline\nf = draw(4)\nf", "%matplotlib notebook\ndraw(4);",
                     "import pandas\npandas.Series([1, 2]).plot(figsize=(4, 2));", "plt.switch_backend('svg'); draw(4);"):
            self.assertEqual(self.pngs(code), [4], code)
            self.assertEqual(self.pngs("1 + 1"), [], code)

    def test_X12_a_new_process_in_each_way(self):
        """What is done first decides which backend there is."""
        for first in ("import matplotlib; matplotlib.use('Agg')\nimport matplotlib.pyplot as plt",
                      "import matplotlib; matplotlib.use('svg')\nimport matplotlib.pyplot as plt",
                      "%matplotlib inline\nimport matplotlib.pyplot as plt", "%pylab inline",
                      "import matplotlib.pyplot as plt; plt.switch_backend('svg')"):
            self.context.ask("restart")
            execution = self.good(first + "\nplt.figure(figsize=(4, 2)); plt.plot([1, 2]); plt.show()")
            self.assertEqual(len(execution.mime("image/png")), 1, first)
        self.context.ask("restart")
        self.setUpClass_again()

    def setUpClass_again(self):
        self.good("import matplotlib.pyplot as plt\ndef draw(width=4):\n    figure, axes = plt.subplots(figsize=(width, 2))\n"
                  "    axes.plot([1, 3, 2]); return figure")

    def test_X12_order(self):
        self.assertEqual(self.pngs("draw(3); draw(9); draw(6);"), [3, 7, 5])
        execution = self.good("print(1); draw(3); plt.show(); print(2); draw(5); print(3)")
        kinds = [event["event"] for event in execution.events]
        self.assertEqual((kinds[:4], kinds[-2:]), (["started", "stdout", "display", "stdout"], ["display", "done"]))
        self.assertEqual(execution.stdout, "1\n2\n3\n")

    def test_X12_backend_switch_loses_nothing(self):
        self.assertEqual(self.pngs("draw(3); plt.switch_backend('svg'); draw(9); plt.switch_backend('agg'); draw(6);"), [3, 7, 5])

    def test_X12_changed_in_a_later_cell(self):
        self.assertEqual(self.pngs("f = draw(4)"), [4])
        self.assertEqual(self.pngs("f.axes[0].set_title('later');"), [])
        self.assertEqual(self.pngs("f"), [4])
        self.assertEqual(self.pngs("display(f); display(f)"), [4, 4])

    def test_X12_closed_ones_are_not_shown(self):
        self.assertEqual(self.pngs("draw(3); plt.close(); draw(4);"), [4])

    def test_X12_too_large(self):
        execution = self.bad("draw(3); plt.figure(figsize=(100, 100)); plt.plot([1]); draw(4);", "FigureTooLarge")
        self.assertIn("10000 x 10000", execution.error["value"])
        self.assertEqual([round(png_size(image)[0] / 100) for image in execution.mime("image/png")], [3, 4])
        self.bad("plt.figure(figsize=(100, 100)); plt.plot([1]); plt.show()", "FigureTooLarge")
        self.bad("f = plt.figure(figsize=(100, 100)); plt.plot([1])\nf", "FigureTooLarge")
        self.assertEqual(self.pngs("draw(4);"), [4])

    def test_X12_error_after_a_figure(self):
        execution = self.bad("draw(4); 1 / 0", "ZeroDivisionError")
        self.assertEqual(len(execution.mime("image/png")), 1)
        self.assertEqual(self.pngs("1"), [])

    def test_formats(self):
        both = self.good("%config InlineBackend.figure_formats = ['png', 'svg']\ndraw(4);")
        self.assertEqual((len(both.mime("image/png")), len(both.mime("image/svg+xml"))), (1, 1))
        self.assertIn("</svg>", both.mime("image/svg+xml")[0])
        svg = self.good("%config InlineBackend.figure_format = 'svg'\ndraw(4);")
        self.assertEqual((len(svg.mime("image/png")), len(svg.mime("image/svg+xml"))), (0, 1))
        self.assertEqual(self.pngs("%config InlineBackend.figure_formats = ['png']\ndraw(4);"), [4])

    def test_other_libraries_formats(self):
        self.good("from matplotlib_inline.backend_inline import set_matplotlib_formats\nset_matplotlib_formats('jpeg')")
        self.assertEqual(len(self.good("draw(4);").mime("image/jpeg")), 1)
        self.assertEqual(self.pngs("set_matplotlib_formats('png')\ndraw(4);"), [4])


if __name__ == "__main__":
    rig.main(["IPython", "matplotlib", "pandas"])
