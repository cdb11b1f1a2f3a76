#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tool for graphs of nodes that pass a state along, as LangGraph has them, without that package.

usage: graph_tool.py      (runs a small graph: plan -> run -> mend, until the code works)

LangGraph takes plain functions: a node is a function of the state that gives what changed of it, a tool is a callable with a
name, a docstring and types. `CodeTool` is such a tool, for `ToolNode([tool])` or `model.bind_tools([tool])`; what it keeps
is one machine for each thread id, and a checkpoint of it is a snapshot: going back in the graph goes back in the machine.
"""
import os
import sys
from typing import Any, Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from ramet import RametError, Sandbox    # noqa: E402

State = dict[str, Any]


class CodeTool:
    """Python in a machine for each thread of the graph; the state keeps nothing but names."""

    name = "run_python"
    description = "Run Python code. Variables stay from one call to the next. Gives what was printed, or the traceback."

    def __init__(self, template: str = "code-interpreter") -> None:
        self.template = template
        self.machines: dict[str, Sandbox] = {}

    def machine(self, thread_id: str) -> Sandbox:
        """This thread's machine, made when it is first needed."""
        if thread_id not in self.machines:
            self.machines[thread_id] = Sandbox.create(template=self.template, labels={"thread": thread_id[:40]}, ttl_secs=3600)
        return self.machines[thread_id]

    def __call__(self, code: str, *, thread_id: str = "main") -> str:
        execution = self.machine(thread_id).run_code(code, timeout_secs=120)
        return str(execution.error) if execution.error else execution.stdout + (execution.text or "")

    def checkpoint(self, thread_id: str) -> str:
        """Keeps the machine as it is now, kernel and all; the name to go back to."""
        return str(self.machine(thread_id).snapshot()["name"])

    def rewind(self, thread_id: str, checkpoint: str) -> None:
        """The machine is again what it was then, in milliseconds."""
        self.machine(thread_id).restore(checkpoint)

    def close(self) -> None:
        """Removes the machines."""
        while self.machines:
            self.machines.popitem()[1].kill()


class Graph:
    """The little that this example needs of a graph: nodes, and after each the name of the next one."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[Callable[[State], State], Callable[[State], str | None]]] = {}

    def add(self, name: str, node: Callable[[State], State], then: Callable[[State], str | None]) -> None:
        self.nodes[name] = (node, then)

    def run(self, start: str, state: State, most: int = 20) -> State:
        name: str | None = start
        while name is not None and most > 0:
            node, then = self.nodes[name]
            state = {**state, **node(state)}
            name, most = then(state), most - 1
        return state


def main() -> None:
    tool = CodeTool()

    def plan(state: State) -> State:
        tool("readings = [3.1, 2.9, None, 3.4]\nattempts = 0")
        return {"code": "attempts += 1\nsum(readings) / len(readings)",
                "checkpoint": tool.checkpoint("main")}

    def run(state: State) -> State:
        return {"output": tool(state["code"]), "tries": state.get("tries", 0) + 1}

    def mend(state: State) -> State:
        # What the failed code did to the variables is undone first.
        tool.rewind("main", state["checkpoint"])
        return {"code": "attempts += 1\nknown = [each for each in readings if each is not None]\nround(sum(known) / len(known), 3), attempts"}

    graph = Graph()
    graph.add("plan", plan, lambda state: "run")
    graph.add("run", run, lambda state: "mend" if "Error" in state["output"] else None)
    graph.add("mend", mend, lambda state: "run")
    try:
        state = graph.run("plan", {})
        print(f"after {state['tries']} tries: {state['output']}")
    finally:
        tool.close()


if __name__ == "__main__":
    try:
        main()
    except RametError as error:
        raise SystemExit(f"graph_tool: {error}") from None
