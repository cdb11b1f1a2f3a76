# SPDX-License-Identifier: Apache-2.0
"""Every sandbox call of pandastack (PyPI), its result, and the class that each error becomes."""
import http.client
import json
import os
import socket
import sys
import threading
import urllib.parse

import pandastack
import pandastack.client
from pandastack import Sandbox

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import called    # noqa: E402
from checks import check, raises, tried    # noqa: E402

REASONS = {    # as in API.md
    "TemplatesAPI.push": "runs docker here, and then `register`",
    "DatabasesAPI.*": "404", "AppsAPI.*": "404", "FunctionsAPI.*": "404", "SchedulesAPI.*": "404",
    "Worker.*": "of Anthropic's service: takes its work from there",
}

client = pandastack.Client(timeout=300, max_create_retry_seconds=0)
pandastack.set_default_client(client)


def native(method, path, body=None):
    """By the unix socket: what their client has no call for."""
    connection = http.client.HTTPConnection("ramet")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.environ["RAMET_SOCKET"])
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, text
    return json.loads(text) if text else None


def errors():
    wrong = pandastack.Client(api_key="e2b_00")
    raises("a wrong key", pandastack.AuthError, "not known here", wrong.sandboxes.list)
    raises("get of none", pandastack.NotFoundError, 'no sandbox called "nope"', lambda: Sandbox.get("nope"))
    raises("create from nothing", pandastack.NotFoundError, "nothing-has-it", lambda: Sandbox.create(template="nothing-has-it"))
    raises("a bad ttl", pandastack.BadRequestError, "ttl_secs", lambda: Sandbox.create(ttl_seconds=-1))


def absent():
    """What Ramet has no such thing of: NotFoundError, and what to do instead."""
    raises("databases.list", pandastack.NotFoundError, "Ramet has no managed databases", client.databases.list)
    raises("databases.create", pandastack.NotFoundError, "Ramet has no managed databases",
           lambda: client.databases._client._request("POST", "/databases", json={}))
    raises("apps.list", pandastack.NotFoundError, "Ramet has no app hosting", client.apps.list)
    raises("functions.list", pandastack.NotFoundError, "Ramet has no functions", client.functions.list)
    raises("schedules.list", pandastack.NotFoundError, "Ramet has no schedules", client.schedules.list)


def commands(box):
    result = box.exec("echo out; echo err >&2; exit 3")
    check("exec", (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3) and result.duration_ms > 0, result)
    check("commands.run", box.commands.run("echo $((6 * 7))", timeout=60).stdout == "42\n")
    failed = raises("exec check", pandastack.CommandFailed, "code 4", lambda: box.exec("echo why >&2; exit 4", check=True))
    check("CommandFailed", (failed.exit_code, failed.stderr) == (4, "why\n"), failed)
    raises("exec timeout", pandastack.SandboxTimeout, "timed out", lambda: box.exec("sleep 600", timeout_seconds=1))
    out, err = [], []
    code = box.exec_stream("echo one; echo two >&2; exit 5", on_stdout=out.append, on_stderr=err.append)
    check("exec_stream", (code, "".join(out), "".join(err)) == (5, "one\n", "two\n"), (code, out, err))
    raises("exec_stream timeout", pandastack.SandboxTimeout, "timeout", lambda: box.exec_stream("sleep 600", timeout_seconds=1))
    check("run_code python", box.run_code("print(6 * 7)").stdout == "42\n")
    check("run_code shell", box.run_code("echo $((6 * 7))", "shell").stdout == "42\n")


def files(box):
    files = box.filesystem
    content = bytes(range(256)) * 300
    check("filesystem.write", files.write("/home/user/work/deep/a.bin", content) == {"path": "/home/user/work/deep/a.bin",
                                                                                   "bytes": len(content)})
    check("filesystem.read", files.read("/home/user/work/deep/a.bin") == content)
    files.write("/home/user/work/text", "grüße")
    with open("local", "wb") as file:
        file.write(b"up")
    check("filesystem.upload", files.upload("local", "/home/user/work/up")["bytes"] == 2)
    files.download("/home/user/work/text", "down")
    with open("down", encoding="utf-8") as file:
        check("filesystem.download", file.read() == "grüße")
    listed = {entry.name: (entry.is_dir, entry.size, entry.path) for entry in files.listdir("/home/user/work")}
    check("filesystem.listdir", listed == {"deep": (True, listed["deep"][1], "/home/user/work/deep"),
                                           "text": (False, 7, "/home/user/work/text"), "up": (False, 2, "/home/user/work/up")}, listed)
    stat = files.stat("/home/user/work/text")
    check("filesystem.stat", (stat.name, stat.is_dir, stat.size, stat.mode) == ("text", False, 7, "0644") and stat.mtime > 1e9, stat)
    check("filesystem.exists", (files.exists("/home/user/work"), files.exists("/home/user/none")) == (True, False))
    walked = [(folder, sorted(d.name for d in dirs), sorted(f.name for f in others))
              for folder, dirs, others in files.walk("/home/user/work")]
    check("filesystem.walk", walked == [("/home/user/work", ["deep"], ["text", "up"]), ("/home/user/work/deep", [], ["a.bin"])], walked)
    raises("read of none", pandastack.NotFoundError, "none", lambda: files.read("/home/user/none"))


def code(box):
    with box.create_code_context() as context:
        check("create_code_context", context.id != "" and context.language == "python", context)
        first = context.run_code("kept = 41; print('said')")
        check("run_code keeps", (first.stdout, first.results, first.error, first.exit_code) == ("said\n", [], None, 0), first)
        check("run_code text", context.run_code("kept + 1").text == "42")
        rich = context.run_code("""
from IPython.display import HTML, JSON, Markdown, display
import base64
display({"image/png": base64.b64encode(b"\\x89PNG").decode(), "text/plain": "picture"}, raw=True)
display(JSON({"a": [1]}), Markdown("**m**"))
HTML("<b>h</b>")""")
        kinds = (rich.png, rich.results[1].json, rich.results[2].markdown, rich.results[3].html)
        check("run_code results", kinds == ("iVBORw==", {"a": [1]}, "**m**", "<b>h</b>") and rich.results[0].chart == "iVBORw==", rich)
        failed = context.run_code("1 / 0")
        check("run_code error", failed.exit_code == 1 and "ZeroDivisionError" in failed.error and "ZeroDivisionError" in failed.stderr, failed)
        raises("run_code timeout", pandastack.SandboxTimeout, "timed out",
               lambda: context.run_code("import time; time.sleep(600)", timeout_seconds=1))
    left = native("GET", f"/v1/sandboxes/{box.id}/contexts")["contexts"]
    check("close", context.id not in [each["id"] for each in left], left)
    raises("another language", pandastack.BadRequestError, "language", lambda: box.create_code_context("cobol"))


def life(box):
    box.pause()
    check("pause", box.refresh().status == "paused", box)
    box.resume()
    check("resume", box.refresh().status == "running", box)
    box.filesystem.write("/tmp/kept", "kept")
    box.hibernate()
    check("hibernate", box.refresh().status == "hibernated", box)
    check("a call wakes", box.exec("cat /tmp/kept").stdout == "kept" and box.refresh().status == "running", box)
    box.hibernate()
    box.wake()
    check("wake", box.refresh().status == "running", box)
    check("set_ttl", box.set_ttl(5000)["ttl_seconds"] == 5000)
    check("set_persistent", box.set_persistent(True)["persistent"] is True and box.persistent)
    seen = box.lifecycle()
    check("lifecycle", (seen["ttl_seconds"], seen["persistent"], seen["idle_seconds"]) == (5000, True, 0), seen)


def branches(box):
    snapshot = box.snapshot()
    check("snapshot", snapshot.startswith("snap_"), snapshot)
    listed = client.snapshots.list(sandbox_id=box.id)
    check("snapshots.list", [(s["id"], s["sandbox_id"]) for s in listed] == [(snapshot, box.id)] and listed[0]["size_bytes"] > 0, listed)
    check("snapshots.list of another", client.snapshots.list(sandbox_id="sbx_000000000000") == [])
    check("snapshots.get", client.snapshots.get(snapshot)["sandbox_id"] == box.id)
    with Sandbox.create(from_snapshot=snapshot) as again:
        check("create from_snapshot", (again.from_snapshot, again.boot_mode) == (snapshot, "snapshot"), again)
        check("its memory", again.filesystem.read("/tmp/kept") == b"kept")
    raises("with kills", pandastack.NotFoundError, again.id, again.refresh)
    client.snapshots.delete(snapshot)
    raises("snapshots.delete", pandastack.NotFoundError, "snap_", lambda: client.snapshots.get(snapshot))
    with box.fork({"who": "child"}) as child:
        check("fork", (child.metadata["who"], child.metadata["fork_parent_id"], child.status) == ("child", box.id, "running"), child)
    children = box.fork_tree(2, {"who": "tree"})
    trees = {each.metadata["fork_tree_id"] for each in children}
    check("fork_tree", len(children) == 2 and len(trees) == 1 and all(c.metadata["who"] == "tree" for c in children), children)
    promoted = children[1].promote(cleanup_siblings=True, tree_id=trees.pop())
    check("promote", (promoted["winner"], promoted["deleted"], promoted["failures"]) == (children[1].id, [children[0].id], {}), promoted)
    children[1].kill()
    found = box.explore(["exit 1", "echo PASS > /home/user/won; echo PASS"],
                        score_fn=lambda one, outcome: 1.0 if "PASS" in outcome.stdout_tail else 0.0)
    lost = [o.sandbox_id for o in found.outcomes if o is not found.winner_outcome]
    check("explore", (found.winner.filesystem.read("/home/user/won"), found.reaped, found.errors) == (b"PASS\n", lost, []), found)
    check("explore files", found.winner_outcome.files_changed == ["/home/user/won"], found.winner_outcome)
    found.winner.kill()


def outside(box):
    native("POST", f"/v1/sandboxes/{box.id}/exec", {"command": "echo said on the console > /dev/console", "user": "root"})
    limit = threading.Event()
    while "said on the console" not in (seen := list(box.logs())):    # the console is slower than the answer
        limit.wait(0.1)
    check("logs", "said on the console" in seen)
    follower = box.logs(follow=True)
    check("logs follow", next(follower) == "said on the console")
    follower.close()
    box.exec("nohup python3 -m http.server 8000 > /dev/null 2>&1 &")
    seen = {}
    while 8000 not in seen and not limit.wait(0.2):
        seen = box.preview_urls()
    check("preview_urls", seen == {8000: box.preview_url(8000)}, seen)
    # Their client makes the string alone; the token comes into it by the host that it is told.
    token = client._request("POST", f"/sandboxes/{box.id}/preview-token", json={"port": 8000})["token"]
    server = urllib.parse.urlsplit(client.api_url).netloc
    client.preview_host = f"localhost:{server.rpartition(':')[2]}/?preview_token={token}"
    url = urllib.parse.urlsplit(box.preview_url(8000, scheme="http"))
    connection = http.client.HTTPConnection(server)
    connection.request("GET", f"{url.path}?{url.query}", headers={"Host": url.netloc})
    answer = connection.getresponse()
    check("preview_url with a token", answer.status == 200 and b"Directory listing" in answer.read(), answer.status)
    connection.close()
    client.preview_host = None


def templates():
    """A root file system as a tar archive becomes a template; what cannot be, says what to do instead."""
    raises("templates.register", pandastack.BadRequestError, "ramet template build NAME --oci",
           lambda: client.templates.register("panda", "registry.example/panda:1"))
    raises("build_from_dockerfile", pandastack.BadRequestError, "runs no Dockerfiles",
           lambda: client.templates.build_from_dockerfile("panda", "FROM x\nRUN true\n"))
    os.makedirs("context", exist_ok=True)
    with open("context/file", "wb") as file:
        file.write(b"x")
    raises("with a context", pandastack.BadRequestError, "runs no Dockerfiles",
           lambda: client.templates.build_from_dockerfile("panda", "FROM x\nRUN true\n", context_dir="context"))
    with open("rootfs.tar", "wb") as file:
        file.write(b"no archive at all" * 100)
    build = client.templates.build("panda", rootfs_tar="rootfs.tar", poll_interval=0.2)
    said = list(client.templates.build_logs(build.id))
    check("templates.build", build.is_failed and "the log says why" in build.error and any("no tar archive" in line for line in said), said)
    raises("templates.build of a bad name", pandastack.BadRequestError, "name", lambda: client.templates.build("No Name", rootfs_tar="rootfs.tar"))
    raises("templates.delete", pandastack.NotFoundError, "panda", lambda: client.templates.delete("panda"))


def things():
    data = client.volumes.create("panda-data", 64)
    check("volumes.create", (data["name"], data["size_mb"]) == ("panda-data", 64), data)
    check("volumes.list", ("panda-data", 64) in [(v["name"], v["size_mb"]) for v in client.volumes.list()])
    check("volumes.get", client.volumes.get("panda-data")["size_mb"] == 64)
    client.volumes.delete("panda-data")
    raises("volumes.delete", pandastack.NotFoundError, "panda-data", lambda: client.volumes.get("panda-data"))
    names = [template.name for template in client.templates.list()]
    check("templates.list", names == ["code-interpreter"], names)
    template = client.templates.get("code-interpreter")
    check("templates.get", template.cpu >= 1 and template.memory_mb >= 256 and template.size_bytes > 0, template)
    builds = client.templates.builds()
    check("templates.builds", [(b.name, b.status, b.is_done) for b in builds] == [("code-interpreter", "done", True)], builds)
    check("templates.get_build", client.templates.get_build(builds[0].id).is_done)
    check("templates.wait_for_build", client.templates.wait_for_build(builds[0].id).name == "code-interpreter")
    lines = list(client.templates.build_logs(builds[0].id))
    check("templates.build_logs", len(lines) > 0 and not any(line.startswith("{") for line in lines), lines[:3])
    templates()
    check("me", client.me()["name"] == "tests", client.me())
    token = client.tokens.create("panda-token", expires_in_days=1)
    check("tokens.create", token.token.startswith("e2b_") and token.name == "panda-token", token.prefix)
    check("tokens.list", token.prefix in [each.prefix for each in client.tokens.list()])
    other = pandastack.Client(api_key=token.token)
    check("a token's client", other.sandboxes.list() == [])
    client.tokens.revoke(token.prefix)
    raises("tokens.revoke", pandastack.AuthError, "key", other.sandboxes.list)


def main():
    calls = called.Calls(pandastack.Client, pandastack.client.SandboxAPI, Sandbox, pandastack.CodeContext, pandastack.SandboxCommands,
                         pandastack.SandboxFilesystem, pandastack.SnapshotsAPI, pandastack.TemplatesAPI, pandastack.VolumesAPI,
                         type(client.tokens), pandastack.DatabasesAPI, pandastack.AppsAPI, pandastack.FunctionsAPI,
                         pandastack.SchedulesAPI, pandastack.Worker)
    errors()
    absent()
    box = Sandbox.create(metadata={"who": "me"}, ttl_seconds=3000)
    check("create", (box.status, box.template, box.metadata) == ("running", "code-interpreter", {"who": "me"}) and box.boot_ms > 0, box)
    check("list", [each.id for each in Sandbox.list()] == [box.id])
    check("get", Sandbox.get(box.id).status == "running")
    for part in (commands, files, code, life, branches, outside):
        part(box)
    things()
    box.kill()
    raises("kill", pandastack.NotFoundError, box.id, box.refresh)
    calls.check(REASONS)
    print(len(tried), "calls of", "pandastack", pandastack.__version__)


if __name__ == "__main__":
    sys.exit(main())
