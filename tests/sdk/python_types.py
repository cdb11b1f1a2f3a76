# SPDX-License-Identifier: Apache-2.0
"""The Python client as strict users write with it: this file is never run, mypy --strict reads it (test_python_unit.py)."""
from __future__ import annotations
import asyncio

from ramet import AsyncRamet, AsyncSandbox, CodeError, CommandError, Event, Execution, Ramet, RametError, Result, Sandbox


def sync() -> None:
    ramet = Ramet("http://127.0.0.1:1", "k", timeout=5)
    made = ramet.create_sandboxes({"name": "x"}, ttl_secs=5)
    name: str = made["name"]
    for event in ramet.exec_stream(name, "true"):
        kind: str = event.kind
        print(kind, event.get("text"), event.id)
    data: bytes = ramet.read_file(name, "x")
    with ramet.read_file_stream(name, "x") as stream:
        for piece in stream:
            data += piece
    try:
        with Sandbox.create("t", ttl_seconds=4, labels={"a": "b"}) as box:
            done = box.exec("x", check=True)
            print(done.stdout.upper(), done.exit_code + 1)
            with box.create_code_context() as ctx:
                run: Execution = ctx.run_code("1", on_result=lambda r: print(r.png), check=True)
                shown: list[Result] = run.results
                print(shown, run.error is None, run.png_bytes)
            for child in box.fork(2):
                child.kill()
            found = box.explore({"a": "x", "b": lambda fork: fork.exec("y").exit_code}, score=lambda b: -b.seconds)
            if found.best is not None:
                print(found.best.name.upper())
            for entry in box.files.walk("."):
                print(entry["path"])
            for e in box.events():
                print(e["type"])
    except CommandError as error:
        print(error.result.stderr)
    except CodeError as error:
        print(error.execution.stdout)
    except RametError as error:
        print(error.status, error.code.upper(), error.retry_after_secs)


async def main() -> None:
    async with AsyncRamet() as ramet:
        made = await ramet.create_sandbox({"name": "x"})
        print(made["name"])
        done = await ramet.exec("x", {"command": "true"}, timeout_secs=3)
        print(done["stdout"])
        async with ramet.exec_stream("x", "true") as stream:
            async for event in stream:
                e: Event = event
                print(e.kind)
        async with await AsyncSandbox.create(template="t", client=ramet) as box:
            result = await box.exec("x", timeout_secs=4)
            print(result.stdout.upper())
            ctx = await box.create_code_context("python")
            run = await ctx.run_code("x", check=True)
            print(run.text)
            async for piece in box.files.read_stream("x"):
                print(len(piece))
            async for entry in box.files.walk():
                print(entry["path"])
            one, two = await box.fork(2)
            print(one.name.upper(), two.id)
            pty = await box.open_pty(rows=3)
            await pty.send("x")
            await box.hibernate()
            await box.wake()

            async def way(fork: AsyncSandbox) -> int:
                return (await fork.exec("x")).exit_code

            found = await box.explore([way, "true"])
            print(found.winner)


if __name__ == "__main__":
    asyncio.run(main())
