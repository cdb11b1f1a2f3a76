#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that programs: the OpenAI Agents SDK with a machine of its own for each conversation.

usage: coder_agent.py [--conversation NAME] [--keep] [TASK]

needs `pip install openai-agents`, OPENAI_API_KEY, and RAMET_API (with RAMET_API_KEY) for a server that is not this machine's.
A NAME finds the machine that it had before, as it was left; with --keep it is stopped, not deleted, and goes on where it was next time.
"""
import argparse
import os
import sys
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from agents import Agent, RunContextWrapper, Runner, function_tool    # noqa: E402
from ramet import Ramet, RametError    # noqa: E402

MOST = 16_000    # characters of a tool's answer: a build's log would fill the model's context


@dataclass
class Desk:
    """What tools get and the model never sees: whose machine it is."""
    ramet: Ramet
    box: str


def open_desk(ramet: Ramet, name: str) -> Desk:
    """The conversation's machine, running: made on its first turn, woken up on a later one."""
    try:
        state = ramet.get_sandbox(name)["state"]
    except RametError as error:
        if error.status != 404:
            raise
        # environment=False: none of the server's own variables, since the model runs what it likes in there.
        ramet.create_sandboxes(name=name, size="small", ttl_secs=1800, environment=False, labels={"example": "coder"})
        return Desk(ramet, name)
    if state == "stopping":
        state = ramet.wait_until(name, "stopped")["state"]
    if state == "stopped":
        ramet.start_sandbox(name, {})
    ramet.wait_until(name, "running")
    return Desk(ramet, name)


def shorten(text: str) -> str:
    """The end of it, which is where a command says why it failed."""
    return text if len(text) <= MOST else f"({len(text) - MOST} characters left out)\n{text[-MOST:]}"


@function_tool
def shell(desk: RunContextWrapper[Desk], command: str, timeout_secs: int = 120) -> str:
    """Run a line of bash on your Linux machine, in /home/user, and see its exit code and output.

    Args:
        command: What to run; pipes and && are fine. Nothing can be typed into it.
        timeout_secs: After so many seconds it is ended with all that it started.
    """
    done = desk.context.ramet.exec(desk.context.box, command=command, timeout_secs=timeout_secs)
    parts = [f"exit code {done['exit_code']}{', out of time' if done['timed_out'] else ''}"]
    parts += [f"{name}:\n{shorten(done[name])}" for name in ("stdout", "stderr") if done[name]]
    return "\n".join(parts)


@function_tool
def save(desk: RunContextWrapper[Desk], path: str, text: str) -> str:
    """Write a text file, in place of one that is there. Missing folders are made.

    Args:
        path: Below /home/user, unless it begins with a slash.
        text: All that the file shall hold.
    """
    desk.context.ramet.write_file(desk.context.box, text.encode(), path)
    return f"{path} has {len(text)} characters now"


@function_tool
def show(desk: RunContextWrapper[Desk], path: str) -> str:
    """Read a text file.

    Args:
        path: Below /home/user, unless it begins with a slash.
    """
    try:
        data = desk.context.ramet.read_file(desk.context.box, path)
    except RametError as error:
        return error.message    # a sentence that says what is wrong helps a model more than a failed tool
    return shorten(data.decode("utf-8", "replace"))


coder = Agent[Desk](
    name="Coder",
    instructions="You program on a Linux machine of your own. Write files, run them, and believe only what you saw run.",
    tools=[shell, save, show],
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--conversation", default="coder-demo", metavar="NAME")
    arguments.add_argument("--keep", action="store_true", help="stop the machine at the end instead of deleting it")
    arguments.add_argument("task", nargs="?", default="Write a program that counts the words of its input, and show that it works.")
    options = arguments.parse_args()
    ramet = Ramet()
    desk = open_desk(ramet, options.conversation)
    try:
        print(Runner.run_sync(coder, options.task, context=desk, max_turns=30).final_output)
    finally:
        if options.keep:
            ramet.stop_sandbox(desk.box)
        else:
            ramet.delete_sandbox(desk.box)


if __name__ == "__main__":
    main()
