#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that analyses: the OpenAI Agents SDK with one Python kernel that keeps its variables; the chart comes back as a picture.

usage: analyst_agent.py [--chart FILE] [QUESTION ...]

needs `pip install openai-agents`, OPENAI_API_KEY, and a template `code-interpreter` (`ramet template build code-interpreter`).
Each QUESTION is a turn of one conversation, in one kernel. The last chart goes to FILE (chart.png).
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from agents import Agent, Runner, function_tool    # noqa: E402
from ramet import CodeContext, Sandbox    # noqa: E402


class Notebook:
    """The kernel, and the charts that code drew in it. Pictures stay here; the model is told that they were drawn."""

    def __init__(self, context: CodeContext) -> None:
        self.context = context
        self.charts: list[bytes] = []

    def run(self, code: str) -> str:
        """What the model is to know of a run: its output, value and tables, or the traceback to learn from."""
        execution = self.context.run_code(code, timeout_secs=300)
        if execution.error is not None:
            return f"It failed:\n{execution.error}"
        drawn = [chart for result in execution.results if (chart := result._repr_png_()) is not None]
        self.charts += drawn
        parts = [execution.stdout, execution.html or execution.text or "", f"[{len(drawn)} chart(s) drawn and kept]" if drawn else ""]
        return "\n".join(part for part in parts if part) or "It ran and showed nothing."


def make_analyst(notebook: Notebook) -> Agent:
    """The agent whose one tool is this kernel."""
    @function_tool
    def python(code: str) -> str:
        """Run Python in a notebook kernel of its own machine. Variables and imports stay for the next call.

        The last line's value is shown, and figures of matplotlib and plotly are kept by themselves: save none to files.

        Args:
            code: The lines to run; `!pip install NAME` is fine too.
        """
        return notebook.run(code)

    return Agent(name="Analyst", tools=[python], instructions=(
        "You answer questions about numbers by running Python. Go step by step: the kernel remembers what you computed before. "
        "When code fails, read the traceback and mend it. Draw with matplotlib."))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--chart", default="chart.png", metavar="FILE")
    arguments.add_argument("question", nargs="*")
    options = arguments.parse_args()
    questions = options.question or ["How do the first 20 triangular numbers grow? Draw them on a logarithmic axis, and name the last one."]
    with Sandbox.create(template="code-interpreter", ttl_seconds=1800) as sandbox, sandbox.create_code_context() as context:
        notebook = Notebook(context)
        analyst, history = make_analyst(notebook), []
        for question in questions:
            result = Runner.run_sync(analyst, [*history, {"role": "user", "content": question}])
            history = result.to_input_list()
            print(result.final_output)
        if notebook.charts:
            with open(options.chart, "wb") as file:
                file.write(notebook.charts[-1])
            print(f"the chart is in {options.chart}")


if __name__ == "__main__":
    main()
