# SPDX-License-Identifier: Apache-2.0
"""Values, displays and errors: MIME bundles, what is no text (X04), what is too large (X13)."""
import base64
import json

import rig


class Values(rig.Case):
    MODULES = ["IPython", "pandas", "plotly"]

    def test_state_stays_and_the_last_expression_is_the_value(self):
        first = self.good("x = 20")
        self.assertEqual((first.text, first.results), (None, []))
        second = self.good("x += 1\nx * 2")
        self.assertEqual(second.text, "42")
        self.assertEqual(second.done["execution_count"], first.done["execution_count"] + 1)
        self.assertEqual(self.value("_ + 1"), "43")
        self.assertIsNone(self.value("x;"))
        self.assertIsNone(self.value("None"))
        self.assertIsNone(self.value("# nothing"))
        self.assertIsNone(self.value(""))

    def test_error_has_name_value_and_plain_traceback(self):
        execution = self.bad("def f():\n    return 1 / 0\nprint('before')\nf()", "ZeroDivisionError")
        self.assertEqual(execution.error["value"], "division by zero")
        self.assertIn("return 1 / 0", execution.error["traceback"])
        self.assertNotIn("\x1b", execution.error["traceback"])
        self.assertEqual(execution.stdout, "before\n")
        self.assertEqual(execution.stderr, "")
        self.bad("1 +", "SyntaxError")
        self.bad("if x:\nx", "IndentationError")
        self.bad("%nosuchmagic", "UsageError")
        self.bad("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd")
        self.assertEqual(self.value("1 + 1"), "2")

    def test_rich_results(self):
        self.good("from IPython.display import *")
        html = self.good("HTML('<b>x</b>')")
        self.assertEqual(html.mime("text/html"), ["<b>x</b>"])
        self.assertEqual(self.good("Markdown('# h')").mime("text/markdown"), ["# h"])
        self.assertEqual(self.good("Latex('$x$')").mime("text/latex"), ["$x$"])
        self.assertEqual(self.good("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')").mime("image/svg+xml"),
                         ['<svg xmlns="http://www.w3.org/2000/svg"/>'])
        self.assertEqual(self.good("JSON({'a': [1, None, True]})").mime("application/json"), [{"a": [1, None, True]}])
        picture = self.good("Image(data=b'\\x89PNG\\r\\n\\x1a\\nrest', format='png')").mime("image/png")
        self.assertEqual(base64.b64decode(picture[0]), b"\x89PNG\r\n\x1a\nrest")
        self.assertEqual(self.good("Image(data=b'\\xff\\xd8jpeg', format='jpeg')").mime("image/jpeg"),
                         [base64.b64encode(b"\xff\xd8jpeg").decode()])
        pdf = self.good("class P:\n    def _repr_pdf_(self): return b'%PDF-'\nP()").mime("application/pdf")
        self.assertEqual(base64.b64decode(pdf[0]), b"%PDF-")
        several = self.good("display(HTML('1')); print('two'); display(HTML('3')); 4")
        self.assertEqual([each["event"] for each in several.events],
                         ["started", "display", "stdout", "display", "result", "done"])

    def test_tables(self):
        self.good("import pandas as pd, numpy as np")
        execution = self.good("pd.DataFrame({'n': [1, 2], 'word': ['<a>', 'b']})")
        self.assertIn("word", execution.text)
        self.assertIn("&lt;a&gt;", execution.mime("text/html")[0])

    def test_plotly(self):
        self.good("import plotly.graph_objects as go\nfigure = go.Figure(go.Bar(y=[2, 3]))")
        for code in ("figure", "figure.show()", "display(figure)"):
            bundles = self.good(code).mime("application/vnd.plotly.v1+json")
            self.assertEqual(len(bundles), 1, code)
            self.assertEqual(list(bundles[0]["data"][0]["y"]), [2, 3])

    def test_X04_lone_surrogates(self):
        self.good("from IPython.display import *")
        self.bad("print('\\ud800')", "UnicodeEncodeError")
        self.assertEqual(self.value("'\\udead'"), "'\\udead'")
        error = self.bad("raise Exception('\\ud8ff')", "Exception").error
        self.assertEqual(error["value"], "\\ud8ff")
        self.assertEqual(self.good("JSON({'\\ud800': '\\udfff'})").mime("application/json"), [{"\\ud800": "\\udfff"}])
        self.bad("globals()['\\ud800']", "KeyError")
        self.bad("raise NameError('\\ud801')", "NameError")
        self.good("import sys; print('\\ud800', file=sys.stderr)")
        self.bad("x = '\ud800'", "UnicodeEncodeError")
        self.assertEqual(self.value("1+1"), "2")

    def test_values_that_json_does_not_have(self):
        self.good("from IPython.display import *")
        data = self.good("JSON({'n': float('nan'), 'i': float('inf'), 'big': 10**30, 'o': object, 't': (1,), 3: 's'})")
        json_value = data.mime("application/json")[0]
        self.assertEqual((json_value["n"], json_value["i"], json_value["t"], json_value["3"]), (None, None, [1], "s"))
        self.assertEqual(int(json_value["big"], 16), 10 ** 30)
        deep = self.good("d = []\nfor _ in range(900): d = [d]\nJSON(d)")
        self.assertLess(len(json.dumps(deep.mime("application/json"))), 4096)
        self.assertEqual(self.value("'a\\0b'"), "'a\\x00b'")

    def test_X13_big_values(self):
        execution = self.good("'x' * 200_000_000")
        self.assertTrue(execution.done["truncated"])
        self.assertLess(len(execution.text), 2 << 20)
        self.assertIn("200000000", execution.text)
        self.assertTrue(self.good("b'x' * 20_000_000").done["truncated"])
        listing = self.good("list(range(3_000_000))")
        self.assertLess(len(listing.text), 2 << 20)
        html = self.good("from IPython.display import *\nHTML('y' * 30_000_000)")
        self.assertTrue(html.done["truncated"])
        self.assertEqual(html.mime("text/html"), [])
        self.assertIn("HTML", html.text)
        self.assertEqual(self.value("2 + 2"), "4")

    def test_X13_big_table(self):
        execution = self.good("import numpy as np, pandas as pd\npd.DataFrame(np.zeros((1_000_000, 50)))")
        self.assertIn("1000000 rows", execution.text)
        self.assertLess(len(execution.mime("text/html")[0]), 200_000)
        self.assertFalse(execution.done["truncated"])

    def test_X13_many_displays(self):
        execution = self.good("from IPython.display import *\nfor i in range(3000): display(HTML(str(i)))\n'end'")
        self.assertTrue(execution.done["truncated"])
        self.assertEqual(execution.mime("text/html")[:2], ["0", "1"])
        self.assertEqual(len(execution.results), 1000)

    def test_X13_clear_and_update(self):
        self.good("from IPython.display import *")
        frames = self.good("for i in range(2500):\n    clear_output(wait=True); print('frame', i); display(HTML(str(i)))")
        self.assertEqual((frames.stdout, frames.mime("text/html")), ("frame 2499\n", ["2499"]))
        self.assertFalse(frames.done["truncated"])
        updates = self.good("h = display(HTML('0'), display_id='one')\nfor i in range(2500): update_display(HTML(str(i)), "
                            "display_id='one')\nh.update(HTML('last'))")
        self.assertEqual(updates.mime("text/html"), ["last"])
        self.assertFalse(updates.done["truncated"])
        self.assertEqual(self.good("h.update(HTML('later'))").mime("text/html"), ["later"])


if __name__ == "__main__":
    rig.main(["IPython", "pandas", "plotly"])
