# SPDX-License-Identifier: Apache-2.0
"""The second reference page's program in our words and with its calls.

usage: page_analyst.py ramet|pandastack CHART.png     with our client, or with the published package
"""
import asyncio
import base64
import sys

from agents import Agent, Runner, function_tool

if sys.argv[1] == "ramet":
    from ramet import Sandbox
else:
    from pandastack import Client, Sandbox, set_default_client
    set_default_client(Client(timeout=300))    # its 30 s are for machines that are not emulated on a busy host

machine = Sandbox.create(template="code-interpreter", ttl_seconds=1200)
kernel = machine.create_code_context()
charts = []


@function_tool
def run_python(code: str) -> str:
    """Runs Python in the kernel of an isolated machine and gives what it printed or its value.

    Variables and imports stay between calls. Figures of matplotlib are caught by themselves.

    Args:
        code: The Python to run.
    """
    run = kernel.run_code(code)
    if run.png:
        charts.append(run.png)
    return f"It failed:\n{run.error}" if run.error else run.stdout or run.text or "It showed nothing."


agent = Agent(name="Analyst", model="gpt-4o", tools=[run_python],
              instructions="You analyse data with run_python. The kernel keeps its state; plot with matplotlib.")


async def more(result) -> str:
    again = [*result.to_input_list(), {"role": "user", "content": "Show me the last five alone."}]
    return (await Runner.run(agent, again)).final_output


result = Runner.run_sync(agent, "Which is the 15th Fibonacci number? Draw all up to it on a logarithmic axis.")
print(result.final_output)
print(asyncio.run(more(result)))
assert kernel.run_code("frame").results[0].html is not None
print("table:", "<table" in kernel.run_code("frame").results[0].html)
with open(sys.argv[2], "wb") as file:
    file.write(base64.b64decode(charts[0]))
print("charts:", len(charts))
kernel.close()
machine.kill()
