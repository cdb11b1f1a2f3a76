# SPDX-License-Identifier: Apache-2.0
"""What e2b and e2b-code-interpreter (PyPI) call of sandboxes, their results, and the class that each error becomes."""
import asyncio
import os
import sys
import threading

import e2b
import e2b_code_interpreter
import httpx
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b_code_interpreter import AsyncSandbox, Sandbox

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import called    # noqa: E402
from checks import check, raises, tried    # noqa: E402

REASONS = {    # as in API.md: what differs, or is not served
    "Sandbox.get_mcp_url": "no MCP server in the machine", "Sandbox.get_mcp_token": "no MCP server in the machine",
    "Sandbox.upload_url": "signed URLs are not served", "Sandbox.download_url": "signed URLs are not served",
    "Pty.connect": "a terminal ends with its connection",
    "Git.*": "commands of git, by commands.run; the template has to have git",
    "Template.*": "Template.build is not served", "Volume.*": "volumes are attached otherwise", "Secret.*": "no store of secrets",
}
ASYNC_ONLY: set = set()



def errors():
    raises("a wrong key", e2b.AuthenticationException, "not known here", lambda: Sandbox.create(api_key="e2b_00"))
    raises("connect to none", e2b.SandboxNotFoundException, "sbx_0", lambda: Sandbox.connect("sbx_000000000000"))
    check("kill of none", Sandbox.kill("sbx_000000000000") is False)
    raises("create from nothing", e2b.SandboxException, "nothing-has-it", lambda: Sandbox.create("nothing-has-it"))
    raises("volumes", e2b.VolumeException, "404: Ramet's volumes", lambda: e2b.Volume.create("data"))


def commands(box):
    result = box.commands.run("echo out $E; echo err >&2")
    check("run", (result.stdout, result.stderr, result.exit_code) == ("out 1\n", "err\n", 0), result)
    failed = raises("run fails", e2b.CommandExitException, "code 3", lambda: box.commands.run("echo why >&2; exit 3"))
    check("CommandExitException", (failed.exit_code, failed.stderr) == (3, "why\n"), failed)
    result = box.commands.run("id -un; pwd; echo \"$X\"", user="root", cwd="/etc", envs={"X": "it's"})
    check("user cwd envs", result.stdout == "root\n/etc\nit's\n", result)
    out, err = [], []
    box.commands.run("echo a; echo b >&2; sleep 0.3; echo c", on_stdout=out.append, on_stderr=err.append)
    check("streams", ("".join(out), "".join(err)) == ("a\nc\n", "b\n"), (out, err))
    check("bytes that are cut", box.commands.run("head -c 300000 /dev/zero | tr '\\0' x; printf 'ü'").stdout == "x" * 300000 + "ü")
    raises("timeout", e2b.TimeoutException, "timeout", lambda: box.commands.run("sleep 600", timeout=1))
    handle = box.commands.run("sleep 600", background=True)
    listed = [(p.pid, p.cmd, p.args) for p in box.commands.list()]
    check("list", (handle.pid, "/bin/bash", ["-l", "-c", "sleep 600"]) in listed, listed)
    check("connect", box.commands.connect(handle.pid).pid == handle.pid)
    check("kill", handle.kill() is True and box.commands.kill(4000000) is False)
    raises("a killed one", e2b.CommandExitException, "-1", handle.wait)
    cat = box.commands.run("cat; echo end", background=True, stdin=True)
    box.commands.send_stdin(cat.pid, "fed\n")
    box.commands.send_stdin(cat.pid, "again\n")
    box.commands.close_stdin(cat.pid)
    check("send_stdin", cat.wait().stdout == "fed\nagain\nend\n")
    cat = box.commands.run("cat; echo end", background=True, stdin=True)
    box.commands.stream_input(cat.pid, (f"{i}\n" for i in range(3)))
    cat.send_stdin("more\n")
    cat.close_stdin()
    check("stream_input", cat.wait().stdout == "0\n1\n2\nmore\nend\n")
    raises("stream_input to none", e2b.NotFoundException, "4000000", lambda: box.commands.stream_input(4000000, ["x"]))
    # Its folder is nobody else's, and its name cannot be known before.
    cat = box.commands.run("sudo -u nobody true 2>/dev/null; cat", background=True, stdin=True)
    box.commands.send_stdin(cat.pid, "x")
    seen = box.commands.run("stat -c '%a %U %n' /tmp/.ramet-stdin-*").stdout.split()
    check("a folder of its own", seen[:2] == ["700", "user"] and len(seen[2]) > len("/tmp/.ramet-stdin-") + 20, seen)
    cat.disconnect()
    check("kill leaves nothing", box.commands.kill(cat.pid) is True and box.commands.run("ls -d /tmp/.ramet-stdin-* | wc -l").stdout == "0\n")
    check("nothing stays", box.commands.run("sleep 1.5; ls -d /tmp/.ramet-stdin-* 2>/dev/null | wc -l").stdout == "0\n")


def terminal(box):
    shown = []
    pty = box.pty.create(e2b.PtySize(rows=24, cols=80), timeout=120)
    box.pty.resize(pty.pid, e2b.PtySize(rows=30, cols=101))
    box.pty.send_stdin(pty.pid, b"stty size; echo $((6 * 7))x; exit 7\n")
    try:
        pty.wait(on_pty=lambda data: shown.append(bytes(data)))
    except e2b.CommandExitException as error:
        check("pty", error.exit_code == 7 and b"42x" in b"".join(shown) and b"30 101" in b"".join(shown), shown)
    pty = box.pty.create(e2b.PtySize(rows=24, cols=80), timeout=120)
    box.pty.stream_input(pty.pid, [b"echo $((6 ", b"* 9))y\n"])
    for _, _, data in pty:
        shown.append(bytes(data))
        if b"54y" in b"".join(shown):
            break
    check("pty.stream_input", b"54y" in b"".join(shown))
    check("pty.kill", box.pty.kill(pty.pid) is True)
    raises("a killed terminal", e2b.CommandExitException, "-1", pty.wait)
    raises("pty is over", e2b.NotFoundException, "terminal", lambda: box.pty.send_stdin(pty.pid, b"x"))


def files(box):
    files, content = box.files, bytes(range(256)) * 3000
    check("write", files.write("work/deep/a.bin", content).path == "/home/user/work/deep/a.bin")
    check("read bytes", files.read("/home/user/work/deep/a.bin", format="bytes") == content)
    check("read stream", b"".join(files.read("work/deep/a.bin", format="stream")) == content)
    written = files.write_files([{"path": "/home/user/work/one \"q\"", "data": "grüße"}, {"path": "work/two", "data": b"2\r\n--2"}])
    check("write_files", [each.path for each in written] == ["/home/user/work/one \"q\"", "/home/user/work/two"], written)
    check("read", (files.read("work/one \"q\""), files.read("work/two")) == ("grüße", "2\r\n--2"))
    raises("read of none", e2b.FileNotFoundException, "none", lambda: files.read("/home/user/none"))
    listed = [(e.name, e.type.value, e.size) for e in files.list("/home/user/work") if e.type.value == "file"]
    check("files.list", listed == [("one \"q\"", "file", 7), ("two", "file", 6)], listed)
    check("list deeper", "/home/user/work/deep/a.bin" in [e.path for e in files.list("/home/user/work", depth=2)])
    info = files.get_info("work/two")
    check("get_info", (info.path, info.size, info.mode, info.permissions, info.owner) ==
          ("/home/user/work/two", 6, 0o644, "-rw-r--r--", "user"), info)
    check("exists", (files.exists("work"), files.exists("none")) == (True, False))
    check("make_dir", (files.make_dir("work/made"), files.make_dir("work/made")) == (True, False))
    check("rename", files.rename("work/two", "work/three").path == "/home/user/work/three" and not files.exists("work/two"))
    files.write("/ours/deep/file", "x")
    files.make_dir("/srv/made/deep")
    owners = [(files.get_info(path).owner) for path in ("/ours", "/ours/deep/file", "/srv/made", "/srv/made/deep", "/srv")]
    check("whose files", owners == ["user"] * 4 + ["root"], owners)
    watch = files.watch_dir("work")
    box.commands.run("echo x > work/watched; mkdir work/made/inner; rm work/watched")
    events, limit = [], threading.Event()
    while ("remove", "watched") not in events and not limit.wait(0.1):
        events += [(event.type.value, event.name) for event in watch.get_new_events()]
    check("watch_dir", events[0] == ("create", "watched") and ("create", "inner") not in events, events)
    watch.stop()
    raises("watch is over", e2b.SandboxException, "stopped", watch.get_new_events)
    raises("watch_dir of none", e2b.FileNotFoundException, "nowhere", lambda: files.watch_dir("nowhere"))
    watch = files.watch_dir("work", recursive=True)
    box.commands.run("echo x > work/made/inner/deep")
    while ("create", "made/inner/deep") not in events and not limit.wait(0.1):
        events += [(event.type.value, event.name) for event in watch.get_new_events()]
    check("watch_dir recursive", ("create", "made/inner/deep") in events)
    files.remove("work/three")
    raises("remove of none", e2b.FileNotFoundException, "three", lambda: files.remove("work/three"))


def code(box):
    said = []
    run = box.run_code("kept = 41; print('said'); kept + 1", on_stdout=lambda message: said.append(message.line))
    check("run_code", (run.text, run.logs.stdout, said, run.error) == ("42", ["said\n"], ["said\n"], None) and run.execution_count, run)
    run = box.run_code("""
from IPython.display import display
import base64
display({"image/png": base64.b64encode(b"\\x89PNG").decode(), "text/plain": "picture", "application/x-own": "o"}, raw=True)
import matplotlib.pyplot as plt
plt.plot([1, 2, 3]); plt.show()""")
    check("results", run.results[0].png == "iVBORw==" and run.results[0].extra == {"application/x-own": "o"}, run.results)
    check("a chart", run.results[1].png.startswith("iVBORw0KGgo"), run.results)
    failed = box.run_code("1 / 0").error
    check("an error", failed.name == "ZeroDivisionError" and "1 / 0" in failed.traceback, failed)
    check("bash", box.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"])
    raises("another language", e2b.SandboxException, "bash", lambda: box.run_code("1", language="js"))
    for _ in range(5):    # where everything is slow enough, 5 s after the time-out are too few to be interrupted in
        raises("run_code timeout", e2b.TimeoutException, "timeout", lambda: box.run_code("import time; time.sleep(600)", timeout=2))
        if (kept := box.run_code("kept").text) == "41":
            break
        box.run_code("kept = 41")
    check("kept", kept == "41", kept)
    context = box.create_code_context(cwd="/tmp")
    check("create_code_context", box.run_code("import os; os.getcwd()", context=context).text == "'/tmp'" and context.cwd == "/tmp")
    box.run_code("gone = 1", context=context)
    box.restart_code_context(context)
    check("restart_code_context", box.run_code("gone", context=context).error.name == "NameError")
    check("list_code_contexts", {context.id, "python", "bash"} <= {each.id for each in box.list_code_contexts()})
    box.remove_code_context(context)
    check("remove_code_context", context.id not in [each.id for each in box.list_code_contexts()])


def life(box):
    box.set_timeout(2000)
    info = box.get_info()
    check("get_info", (info.sandbox_id, info.metadata, info.state.value, info.cpu_count >= 1) ==
          (box.sandbox_id, {"who": "me & you"}, "running", True) and 1900 < (info.end_at - info.started_at).total_seconds() < 3000, info)
    check("lifecycle", info.lifecycle == {"on_timeout": "kill", "auto_resume": False}, info.lifecycle)
    used = box.get_metrics()[0]
    check("get_metrics", used.cpu_count >= 1 and 0 < used.mem_used <= used.mem_total and used.disk_used > 0, used)
    check("get_host", box.get_host(8000).startswith("8000-sbx_"))
    query = e2b.SandboxQuery(metadata={"who": "me & you"}, state=[e2b.SandboxState.RUNNING])
    check("list", [each.sandbox_id for each in Sandbox.list(query=query).next_items()] == [box.sandbox_id])
    check("list of others", Sandbox.list(query=e2b.SandboxQuery(metadata={"who": "else"})).next_items() == [])
    check("pause", (box.pause(), box.beta_pause(), box.is_running()) == (True, False, False))
    raises("run in a paused one", e2b.SandboxNotRunningException, "not found", lambda: box.commands.run("true"))
    check("list paused", [each.state.value for each in Sandbox.list().next_items()] == ["paused"])
    again = Sandbox.connect(box.sandbox_id, timeout=1000)
    check("connect resumes", again.is_running() and again.run_code("kept").text == "41")
    check("connect to a running one", box.connect(timeout=1000).sandbox_id == box.sandbox_id)


def branches(box):
    snapshot = box.create_snapshot(name="e2b-kept")
    check("create_snapshot", snapshot.names == ["e2b-kept"], snapshot)
    listed = box.list_snapshots().next_items()
    check("list_snapshots", [each.snapshot_id for each in listed] == [snapshot.snapshot_id], listed)
    other = Sandbox.create(snapshot.snapshot_id, timeout=300)
    check("create from a snapshot", other.run_code("kept").text == "41")
    other.kill()
    check("delete_snapshot", (Sandbox.delete_snapshot(snapshot.snapshot_id), Sandbox.delete_snapshot(snapshot.snapshot_id)) ==
          (True, False))
    first, second = box.fork(count=2, timeout=700)
    first.run_code("kept = 'first'")
    check("fork", (first.run_code("kept").text, second.run_code("kept").text, box.run_code("kept").text) == ("'first'", "41", "41"))
    tokens(box, second)
    check("kill", (first.kill(), first.kill()) == (True, False))
    second.set_timeout(1)    # a time-out kills, unless something else was asked for
    until(lambda: second.sandbox_id not in [each.sandbox_id for each in Sandbox.list().next_items()])
    raises("a time-out kills", e2b.SandboxNotFoundException, second.sandbox_id, lambda: Sandbox.connect(second.sandbox_id))


def until(condition):
    limit = threading.Event()
    while not condition():
        limit.wait(0.2)


def lifecycle():
    """A time-out that pauses, a call that resumes; a network that changes."""
    raises("auto_resume alone", e2b.SandboxException, "autoPause",
           lambda: httpx_post("/v2/sandboxes", {"templateID": "base", "autoResume": {"enabled": True}}))
    box = Sandbox.create("base", allow_internet_access=False, timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": True})
    check("no network", native(box)["network"] == "none", native(box))
    box.update_network({"allow_out": ["10.1.2.0/24"], "deny_out": ["0.0.0.0/0"]})
    check("update_network", native(box)["network"] == {"allow": ["10.1.2.0/24"]}, native(box))
    raises("rules", e2b.SandboxException, "rules", lambda: box.update_network({"rules": {"x.example": [{"transform": {"headers": {"A": "b"}}}]}}))
    check("asked to pause", box.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}, box.get_info())
    box.set_timeout(1)
    until(lambda: box.get_info().state.value == "paused")
    check("a time-out pauses", not box.is_running())
    url, admin = os.environ["E2B_API_URL"], {"X-API-Key": os.environ["E2B_API_KEY"]}
    reader = httpx.post(url + "/v1/keys", headers=admin, json={"name": "e2b-read", "preset": "read"}).json()
    seen = httpx.get(f"{url}/v1/sandboxes/{box.sandbox_id}/files?path=/tmp", headers={"X-API-Key": reader["key"]})
    check("one who reads starts nothing", seen.status_code == 409 and box.get_info().state.value == "paused", seen.text)
    httpx.patch(f"{url}/v1/sandboxes/{box.sandbox_id}", json={"ttl_secs": 900}, headers=admin).raise_for_status()
    check("auto_resume", box.commands.run("echo back").stdout == "back\n" and box.is_running())
    check("kill", box.kill() is True)


def native(box):
    return httpx.get(f"{os.environ['E2B_API_URL']}/v1/sandboxes/{box.sandbox_id}",
                     headers={"X-API-Key": os.environ["E2B_API_KEY"]}).json()


def httpx_post(path, body):
    answer = httpx.post(os.environ["E2B_API_URL"] + path, json=body, headers={"X-API-Key": os.environ["E2B_API_KEY"]})
    if answer.status_code >= 400:
        raise e2b.SandboxException(answer.text)


def tokens(box, other):
    """A token is of one sandbox, and no key."""
    url = os.environ["E2B_API_URL"]
    own = {"X-Access-Token": box._envd_access_token, "E2b-Sandbox-Id": box.sandbox_id}
    check("its token", httpx.get(url + "/health", headers=own).status_code == 204)
    wrong = [{**own, "E2b-Sandbox-Id": other.sandbox_id}, {"E2b-Sandbox-Id": box.sandbox_id},
             {**own, "X-Access-Token": own["X-Access-Token"][:-1] + "x"}]
    check("others", [httpx.get(url + "/health", headers=each).status_code for each in wrong] == [401] * 3)
    check("no key", httpx.delete(f"{url}/sandboxes/{box.sandbox_id}", headers=own).status_code == 401)
    check("no name", httpx.post(url + "/execute", headers={"X-API-Key": os.environ["E2B_API_KEY"]}, json={}).status_code == 400)


def another_key(box):
    """A ci key sees what it made, and nothing of others."""
    url, admin = os.environ["E2B_API_URL"], {"X-API-Key": os.environ["E2B_API_KEY"]}
    made = httpx.post(url + "/v1/keys", headers=admin, json={"name": "e2b-ci", "preset": "ci"}).json()
    its = {"api_key": made["key"]}
    check("list with another key", Sandbox.list(**its).next_items() == [])
    raises("connect with another key", e2b.SandboxNotFoundException, box.sandbox_id, lambda: Sandbox.connect(box.sandbox_id, **its))
    check("kill with another key", Sandbox.kill(box.sandbox_id, **its) is False)
    own = Sandbox.create(timeout=300, **its)
    check("its own", own.commands.run("echo own").stdout == "own\n" and [s.sandbox_id for s in Sandbox.list(**its).next_items()] == [own.sandbox_id])
    httpx.delete(f"{url}/v1/keys/{made['id']}", headers=admin)
    raises("a token ends with its key", e2b.AuthenticationException, "", lambda: own.commands.run("true"))
    check("kill of it", Sandbox.kill(own.sandbox_id) is True)


async def asynchronous(sandbox_id):
    box = await AsyncSandbox.connect(sandbox_id)
    events = []
    handle = await box.files.watch_dir("/home/user/work", on_event=lambda event: events.append((event.type.value, event.name)))
    await box.commands.run("echo x > /home/user/work/watched; mv /home/user/work/watched /home/user/work/moved")
    while ("rename", "watched") not in events or ("create", "moved") not in events:
        await asyncio.sleep(0.1)
    check("watch_dir", ("create", "watched") in events, events)
    await handle.stop()
    check("async run", (await box.commands.run("echo async")).stdout == "async\n")
    check("async run_code", (await box.run_code("kept")).text == "41")


def main():
    calls = called.Calls(Sandbox, Commands, Pty, Filesystem, e2b.CommandHandle, e2b.WatchHandle, e2b.Git, e2b.Template, e2b.Volume,
                         e2b.Secret)
    errors()
    box = Sandbox.create(timeout=1500, metadata={"who": "me & you"}, envs={"E": "1"})
    check("create", box.is_running() and box.sandbox_id.startswith("sbx_"))
    for part in (commands, terminal, files, code, life, branches):
        part(box)
    another_key(box)
    asyncio.run(asynchronous(box.sandbox_id))
    check("kill", box.kill() is True)
    raises("run in a killed one", e2b.SandboxNotRunningException, "not found", lambda: box.commands.run("true"))
    lifecycle()
    calls.check(REASONS)
    called.check_twins([(AsyncSandbox, Sandbox), (AsyncCommands, Commands), (AsyncPty, Pty), (AsyncFilesystem, Filesystem)], ASYNC_ONLY)
    print(len(tried), "checks of e2b", e2b_code_interpreter.__name__)


if __name__ == "__main__":
    sys.exit(main())
