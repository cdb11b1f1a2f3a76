# SPDX-License-Identifier: Apache-2.0
"""The first reference page's program in our words and with its client's calls.

usage: page_coder.py WAY[,WAY...] NAME      the conversation's sandbox is NAME; a WAY is run_sync, run, run_streamed, chat or mishap
"""
import asyncio
import sys
from dataclasses import dataclass

from agents import Agent, RunContextWrapper, Runner, set_default_openai_api
try:
    from agents.decorators import tool
except ImportError:    # an older agents package
    from agents import function_tool as tool
from ramet import Ramet, RametError

client = Ramet()
MOST = 20_000


def ready(name: str) -> str:
    """Sees that the sandbox runs, whatever state it is in."""
    try:
        state = client.get_sandbox(name)["state"]
    except RametError as error:
        if error.status != 404:
            raise
        state = client.create_sandboxes({"labels": {"test": "page"}, "environment": False, "ttl_secs": 1200, "size": "small",
                                         "name": name})["state"]
    if state == "stopping":
        state = client.wait_until(name, "stopped")["state"]
    if state == "stopped":
        client.start_sandbox(name, {})
    return str(client.wait_until(name, "running")["name"])


def tail(text: str) -> str:
    return text if len(text) <= MOST else "[cut] " + text[-MOST:]


@dataclass
class Talk:
    sandbox: str


@tool
def run_command(ctx: RunContextWrapper[Talk], command: str, timeout_secs: int = 300) -> str:
    """Runs a bash command on the Linux machine of this conversation, in /home/user.

    Args:
        command: What to run.
        timeout_secs: When to end it.
    """
    done = client.exec(ctx.context.sandbox, {"command": command, "timeout_secs": timeout_secs})
    said = f"exit code {done['exit_code']}" + (" (timed out)" if done.get("timed_out") else "")
    for stream in ("stdout", "stderr"):
        if done[stream]:
            said += f"\n{stream}:\n{tail(done[stream])}"
    return said


@tool
def write_file(ctx: RunContextWrapper[Talk], path: str, content: str) -> str:
    """Writes a text file, with the folders above it.

    Args:
        path: Where to.
        content: All of it.
    """
    client.write_file(ctx.context.sandbox, content.encode(), path)
    return f"{path} has {len(content)} characters"


@tool
def read_file(ctx: RunContextWrapper[Talk], path: str) -> str:
    """Reads a text file.

    Args:
        path: Where from.
    """
    return tail(client.read_file(ctx.context.sandbox, path).decode("utf-8", errors="replace"))


agent = Agent[Talk](name="Coder", instructions="Write and run code with your tools, and check what you say by running it.",
                    tools=[run_command, write_file, read_file])
TASK = "Write primes.py, which prints the first 20 primes, run it, and tell me what it printed."


async def streamed(talk: Talk) -> str:
    result = Runner.run_streamed(agent, TASK, context=talk, max_turns=20)
    text = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == result.final_output, (text, result.final_output)
    return text


def main() -> None:
    ways, name = sys.argv[1].split(","), sys.argv[2]
    talk = Talk(sandbox=ready(name))
    try:
        for way in ways:
            set_default_openai_api("chat_completions" if way == "chat" else "responses")
            if way == "run":
                print(asyncio.run(Runner.run(agent, TASK, context=talk, max_turns=20)).final_output)
            elif way == "run_streamed":
                print(asyncio.run(streamed(talk)))
            else:
                result = Runner.run_sync(agent, "mishap" if way == "mishap" else TASK, context=talk, max_turns=20)
                print(result.final_output)
            if way == "run_sync":    # the user goes on, and finds the file where it was
                talk = Talk(sandbox=ready(name))
                again = [*result.to_input_list(), {"role": "user", "content": "And their sum?"}]
                print(Runner.run_sync(agent, again, context=talk, max_turns=20).final_output)
    finally:
        if "run_sync" in ways:
            client.stop_sandbox(talk.sandbox)
        else:
            client.delete_sandbox(talk.sandbox)


if __name__ == "__main__":
    main()
