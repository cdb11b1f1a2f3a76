# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Agents SDK for Python (openai-agents) with its own E2B client, on Ramet's machines: a SandboxAgent with a file of its
manifest runs commands in a machine that goes on, as its model says (a scripted one: tests/sdk/model_server.py)."""
import asyncio
import os
import sys
from pathlib import Path

from agents import Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.run import RunConfig
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../sdk"))
from model_server import ModelServer    # noqa: E402

SCRIPT = [
    {"call": "exec_command", "arguments": {"cmd": "cat notes.txt; echo $WHO; echo kept > made.txt; exit 3"}},
    {"match": "(?s)code 3.*seven.*agent", "then": {"say": "it says {output}"}, "else": {"say": "wrong: {output}"}},
    {"call": "exec_command", "arguments": {"cmd": "cat made.txt"}},
    {"say": "again {output}"},
]


async def main():
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(sandbox_type="e2b", template="base", timeout=1500, workspace_persistence="snapshot",
                                      metadata={"who": "agents"}, envs={"WHO": "agent"})
    agent = SandboxAgent(name="Reader", instructions="Read the notes.")
    session = await client.create(manifest=Manifest(entries={"notes.txt": File(content=b"seven\n")}), options=options,
                                  snapshot=LocalSnapshotSpec(base_path=Path("agents-kept")))
    async with session:
        config = RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
        first = await Runner.run(agent, "What do the notes say?", run_config=config)
        assert first.final_output.startswith("it says") and "seven" in first.final_output, first.final_output
        print("ok a turn with a tool")
        second = await Runner.run(agent, first.to_input_list() + [{"role": "user", "content": "And what was made?"}], run_config=config)
        assert "kept" in second.final_output, second.final_output
        print("ok a follow-up")
    # Closed, its workspace is a snapshot of the machine, from which another session goes on.
    again = await client.resume(session.state)
    async with again:
        result = await again.exec("cat made.txt")
        assert result.stdout == b"kept\n", (result.stdout, result.stderr)
        print("ok resumed from a snapshot")
    await client.delete(again)


if __name__ == "__main__":
    with ModelServer(SCRIPT) as model:
        os.environ.update(OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")
        asyncio.run(main())
