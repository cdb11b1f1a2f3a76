# SPDX-License-Identifier: Apache-2.0
"""A walk through all calls with a machine, each with what it should be given: (status, method, path, body, headers).
Whoever adds a call adds a step. What is answered is compared with the document, by
test_machine.py and, what needs no machine, by test_errors.py. A step of a call that the server does not have is left out."""

BOX = "/v1/sandboxes/nothing"
EVENTS = {"Accept": "text/event-stream"}
CODE = ("from IPython.display import display, update_display, clear_output, HTML, JSON\n"
        "import sys\nprint('out'); print('err', file=sys.stderr)\n"
        "display(HTML('<b>x</b>'), display_id='a'); update_display(HTML('<i>y</i>'), display_id='a')\n"
        "display(JSON({'n': [1, None]})); clear_output(wait=True); display({'image/png': 'AAAA', 'x/y': 'z'}, raw=True)\n41 + 1")

# What becomes another protocol, and what a test of its own holds open: e2e/cli has them.
ELSEWHERE = {"GET /v1/sandboxes/{name}/exec/pty", "GET /v1/sandboxes/{name}/ports/{port}", "POST /v1/imports/{id}/commit",
             "POST /v1/imports", "POST /v1/exports", "DELETE /v1/imports/{id}", "GET /v1/sandboxes/{name}/files/watch", "GET /v1/volumes/{name}/{part}/content"}

SERVICE = [
    (200, "GET", "/healthz"), (200, "GET", "/version"), (200, "GET", "/openapi.json"), (200, "GET", "/metrics"),
    (200, "GET", "/v1/memory"), (200, "GET", "/v1/pool"), (200, "GET", "/v1/store"), (200, "GET", "/v1/me"),
    (200, "GET", "/v1/environment"), (200, "PUT", "/v1/environment", {"env": {"A": "1"}}),
    (200, "PATCH", "/v1/environment", {"env": {"A": None}}),
    (201, "POST", "/v1/keys", {"name": "k", "preset": "ci", "expires_in_secs": 60}), (200, "GET", "/v1/keys"),
    (200, "GET", "/v1/keys/k"), (204, "DELETE", "/v1/keys/k"),
]

SANDBOXES = [
    (200, "GET", "/v1/sandboxes"), (200, "GET", "/v1/sandboxes?state=running&label=walk"), (200, "GET", BOX),
    (200, "PATCH", BOX, {"labels": {"walk": "1"}, "idle_secs": 0, "ttl_secs": 86400.5, "persistent": True,
                          "on_timeout": "delete", "auto_start": True}),
    (200, "PATCH", BOX, {"labels": None, "ttl_secs": 0, "name": None, "on_timeout": "stop", "auto_start": False}),
    (200, "GET", BOX + "/events"), (200, "GET", BOX + "/events?follow=0", None, {"Last-Event-ID": "old"}),
    (200, "GET", "/v1/events?follow=0"), (200, "GET", BOX + "/logs?tail_bytes=100"), (200, "GET", BOX + "/metrics"),
    (200, "POST", BOX + "/pause", {}), (200, "POST", BOX + "/resume"),
    (201, "POST", BOX + "/snapshots", {"name": "morning", "labels": {"a": "b"}, "wait": True}),
    (200, "PATCH", "/v1/snapshots/morning", {"labels": {"g": "h"}}), (200, "GET", "/v1/snapshots"), (200, "GET", "/v1/snapshots/morning?wait=1"), (200, "GET", "/v1/pool"),
    (201, "POST", BOX + "/fork", {"names": ["one", "two"], "snapshot": "fork-point", "labels": {"c": "d"}, "env": {"B": "2"}}),
    (200, "GET", "/v1/store/lineage"), (200, "POST", "/v1/sandboxes/two/promote", {"name": "winner"}),
    (200, "POST", "/v1/sandboxes/winner/stop", {"memory": True}), (200, "GET", "/v1/sandboxes/winner"),
    (200, "POST", "/v1/sandboxes/winner/restore", {"snapshot": "morning"}), (200, "POST", "/v1/sandboxes/winner/start", {}),
    (204, "DELETE", "/v1/sandboxes/winner"), (202, "POST", "/v1/templates", {"name": "kept", "sandbox": "nothing", "env": {"C": "3"}}),
]

COMMANDS = [
    (200, "POST", BOX + "/exec", {"command": "echo hi; echo no >&2; exit 3", "timeout_secs": 60, "cwd": "/tmp", "env": {"A": ""}}),
    (200, "POST", BOX + "/exec", {"command": "kill -9 $$", "stdin": "x", "encoding": "base64"}),
    (200, "POST", BOX + "/exec", {"command": "sleep 60", "timeout_secs": 0.2, "stdin_base64": "AA==", "user": "root"}),
    (200, "POST", BOX + "/exec/stream", {"command": "echo hi; echo no >&2; exit 3"}),
    (200, "POST", BOX + "/exec/stream", {"command": "printf '\\377'", "encoding": "base64"}),
    (200, "POST", BOX + "/exec/stream", {"command": "true", "user": "nobody-of-this-name"}),
    (201, "POST", BOX + "/jobs", {"command": "echo a; echo b >&2; sleep 1000", "name": "nothing"}),
    (200, "GET", BOX + "/jobs"), (200, "GET", BOX + "/jobs/nothing?wait_secs=0.1"), (200, "GET", BOX + "/jobs/nothing/logs?follow=0&encoding=base64"),
    (204, "POST", BOX + "/jobs/nothing/signal", {"signal": 9}), (200, "GET", BOX + "/jobs/nothing?wait_secs=60"),
    (200, "GET", BOX + "/jobs/nothing/logs?follow=1&stdout=1&stderr=end"),
    (200, "GET", BOX + "/jobs/nothing/logs", None, {"Last-Event-ID": "0.0"}), (204, "DELETE", BOX + "/jobs/nothing?kill=1"),
    (200, "GET", BOX + "/ports"), (201, "POST", BOX + "/urls", {"host_port": 8000, "ttl_secs": 3600}), (200, "GET", BOX + "/urls"),
]

FILES = [
    (204, "PUT", BOX + "/files/content?path=a/b.txt&mode=600", b"hello"), (200, "GET", BOX + "/files/content?path=a/b.txt"),
    (206, "GET", BOX + "/files/content?path=a/b.txt", None, {"Range": "bytes=1-2"}), (200, "GET", BOX + "/files?path=a"),
    (200, "GET", BOX + "/files/stat?path=a/b.txt"), (204, "POST", BOX + "/files/dir?path=c/d"),
    (204, "POST", BOX + "/files/move", {"from": "a/b.txt", "to": "c/d/e", "replace": True}),
    (204, "DELETE", BOX + "/files/content?path=c&recursive=true"),
]

CONTEXTS = [
    (201, "POST", BOX + "/contexts", {"id": "nothing", "language": "python", "cwd": "/tmp", "env": {"D": "4"}}),
    (200, "GET", BOX + "/contexts"), (200, "GET", BOX + "/contexts/nothing"),
    (200, "POST", BOX + "/contexts/nothing/run", {"code": CODE, "timeout_secs": 300}),
    (200, "POST", BOX + "/contexts/nothing/run", {"code": CODE}, EVENTS),
    (200, "POST", BOX + "/contexts/nothing/run/stream", {"code": "1/0"}),
    (200, "POST", BOX + "/contexts/bash/run", {"code": "exit 3"}), (200, "POST", BOX + "/contexts/nothing/interrupt", {"kill": False}),
    (200, "POST", BOX + "/contexts/nothing/restart"), (204, "DELETE", BOX + "/contexts/bash"),
]

# Without a machine: what is sealed and checked is little then.
STORE = [
    (201, "POST", "/v1/volumes", {"name": "data", "size_bytes": 1 << 20}), (200, "GET", "/v1/volumes?all=1"),
    (200, "GET", "/v1/volumes/data"), (200, "PATCH", "/v1/volumes/data", {"size_bytes": 2 << 20, "name": "data-2"}),
    (201, "POST", "/v1/volumes/data-2/fork", {"name": "copy"}), (201, "POST", "/v1/volumes/data-2/snapshots", {"name": "disk-snap"}),
    (200, "GET", "/v1/volumes/copy/diff?from=disk-snap"), (200, "GET", "/v1/volumes/copy/map"), (200, "GET", "/v1/volumes/copy/content"),
    (201, "PUT", "/v1/volumes/new/content?size_bytes=600", b"x" * 600),
    (200, "POST", "/v1/store/export", {"names": ["new"]}), (200, "POST", "/v1/store/seal", {}), (200, "POST", "/v1/store/gc", {"recompress": False}),
    (200, "POST", "/v1/store/scrub"), (200, "POST", "/v1/store/check"), (204, "DELETE", "/v1/volumes/copy"),
    (204, "DELETE", "/v1/snapshots/disk-snap"), (201, "PUT", "/v1/templates/uploads", b"x" * 1000),
]

DISKS = [
    (200, "GET", "/v1/volumes/nothing/disk"), (200, "GET", "/v1/volumes/nothing/disk/map"),
    (200, "GET", "/v1/volumes/nothing/disk/diff?from=code"), (201, "POST", "/v1/volumes/nothing/disk/fork", {"name": "disk-copy"}),
    (201, "POST", "/v1/volumes/nothing/disk/snapshots", {"name": "disk-snap"}),
]

TEMPLATES = [
    (200, "GET", "/v1/templates/builds"), (200, "GET", "/v1/templates"), (200, "GET", "/v1/templates/kept"), (200, "GET", "/v1/templates/kept/log"),
    (201, "POST", "/v1/sandboxes", {"name": "child", "from": "kept", "labels": {"e": "f"}, "env": {"G": "h"}, "environment": False}),
    (204, "DELETE", "/v1/sandboxes/child"), (204, "DELETE", "/v1/templates/kept"),
]
