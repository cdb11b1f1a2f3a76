# SPDX-License-Identifier: Apache-2.0
"""Every method of the Python client once, and both of its forms, on a real daemon; every call of the server is reached by one."""
import io
import os
import re
import subprocess
import time
import urllib.request

import machines
import ramet
import rig
from machines import MachineCase

# Calls of the server that no method is for, and why.
WITHOUT_METHOD = {}

reached = set()


def routes():
    """(method, pattern) of every call of the server."""
    printed = subprocess.run([rig.BIN + "/rametd", "--routes"], capture_output=True, text=True, check=True).stdout
    return [tuple(line.split()[:2]) for line in printed.splitlines()]


def watch_requests():
    """Notes every call that the client sends."""
    send, upgrade = ramet._Transport.send, ramet._Transport.upgrade

    def noting_send(self, method, path, **more):
        reached.add((method, path.split("?")[0]))
        return send(self, method, path, **more)

    def noting_upgrade(self, path, headers):
        reached.add(("GET", path.split("?")[0]))
        return upgrade(self, path, headers)
    ramet._Transport.send, ramet._Transport.upgrade = noting_send, noting_upgrade


class PythonCalls(MachineCase):
    def test_commands(self):
        for each in self.both():
            done = each.exec(self.box, {"command": "echo out; echo err >&2; exit 3", "timeout_secs": 60})
            self.assertEqual((done["stdout"], done["stderr"], done["exit_code"], done["timed_out"]), ("out\n", "err\n", 3, False))
            self.assertEqual(each.exec(self.box, "cat", stdin="text")["stdout"], "text")
            self.assertEqual(each.exec(self.box, "echo $A; pwd", env={"A": "1 2"}, cwd="/usr")["stdout"], "1 2\n/usr\n")
            events = list(each.exec_stream(self.box, {"command": "echo a; sleep 0.2; echo b >&2; exit 4"}))
            self.assertEqual([(event.kind, event.get("text", event.get("exit_code"))) for event in events],
                             [("stdout", "a\n"), ("stderr", "b\n"), ("exit", 4)])
            self.failure(400, "validation.invalid", each.exec, self.box, {"command": "true", "colour": 1})
            self.failure(404, "sandbox.not_found", each.exec_stream, "nobody", "true")

    def test_terminal(self):
        for each in self.both():
            pty = each.open_pty(self.box, rows=30, columns=100, command="stty size; read x; stty size; exit 7", cwd="/")
            shown = b""
            while b"30 100" not in shown:
                shown += pty.recv(rig.HANG_SECS)
            pty.resize(40, 120)
            pty.send("go\n")
            while piece := pty.recv(rig.HANG_SECS):
                shown += piece
            self.assertIn(b"40 120", shown)
            self.assertEqual(pty.exit_code, 7)
            pty.close()
            pty = each.open_pty(self.box, command="cat")
            with self.assertRaises(TimeoutError):
                pty.recv(0.05)
            pty.send(b"x" * 3000 + b"\n")
            shown = b""
            while shown.count(b"x") < 3000:
                shown += pty.recv(rig.HANG_SECS)
            pty.close()
            self.failure(404, "pty.not_found", each.open_pty, "nobody")

    def test_jobs(self):
        for each in self.both():
            job = each.start_job(self.box, "echo begun; read x < /tmp/none; sleep 3600", name="server")
            logs = each.job_logs(self.box, job["id"])
            self.assertEqual(next(logs)["text"], "begun\n")
            logs.close()
            self.assertIn(job["id"], [one["id"] for one in each.list_jobs(self.box)])
            each.signal_job(self.box, "server", "KILL")
            ended = each.get_job(self.box, job["id"], wait_secs=rig.HANG_SECS)
            self.assertEqual((ended["state"], ended["exit_code"]), ("ended", 137))
            events = list(each.job_logs(self.box, job["id"], follow=False))
            self.assertEqual(events[0]["text"], "begun\n")
            each.delete_job(self.box, job["id"])
            self.failure(404, "job.not_found", each.get_job, self.box, job["id"])
            again = each.start_job(self.box, {"command": "sleep 3600"})
            each.delete_job(self.box, again["id"], kill=True)

    def test_files(self):
        data = os.urandom(300_000)
        for each in self.both():
            each.write_file(self.box, data, "d/e/f.bin", mode="750")
            self.assertEqual(each.read_file(self.box, "d/e/f.bin"), data)
            self.assertEqual(each.read_file(self.box, "d/e/f.bin", offset=1000, length=10), data[1000:1010])
            self.assertEqual(b"".join(each.read_file_stream(self.box, "/home/user/d/e/f.bin")), data)
            self.assertEqual([(one["name"], one["mode"]) for one in each.list_files(self.box, "d/e")], [("f.bin", "0750")])
            self.assertEqual(each.stat_file(self.box, "d/e/f.bin")["size"], len(data))
            watch = each.watch_files(self.box, "d", recursive=True)
            self.assertEqual(next(watch).kind, "ready")
            each.make_dir(self.box, "d/new")
            each.move_file(self.box, {"from": "d/e/f.bin", "to": "d/new/g"})
            while (event := next(watch)).kind != "moved":
                self.assertIn(event.kind, ("created", "changed", "attributes", "removed"))
            watch.close()
            each.write_file(self.box, iter([b"in ", b"pieces"]), "d/h")
            each.write_file(self.box, io.BytesIO(b"a file"), "d/i")
            self.assertEqual((each.read_file(self.box, "d/h"), each.read_file(self.box, "d/i")), (b"in pieces", b"a file"))
            self.failure(404, "file.not_found", each.read_file, self.box, "d/none")
            each.delete_file(self.box, "d", recursive=True)
            self.failure(404, "file.not_found", each.list_files, self.box, "d")

    def test_ports(self):
        # Two servers: one speaks first, the other one when it was asked.
        self.client.start_job(self.box, {"command": "python3 -c \"import socket, threading\ndef serve(s, asked):\n while True:\n"
                                         "  c = s.accept()[0]\n  got = b'' if asked else b'\\r\\n\\r\\n'\n"
                                         "  while b'\\r\\n\\r\\n' not in got: got += c.recv(9999) or b'\\r\\n\\r\\n'\n"
                                         "  c.sendall((b'HTTP/1.0 200 OK\\r\\n\\r\\n' if asked else b'') + b'hello')\n  c.close()\n"
                                         "for port in 7071, 7070: threading.Thread(target=serve, args=(socket.create_server(('127.0.0.1', port)), port == 7071)).start()\""})
        for each in self.both():
            sock = self.until(lambda: self.try_port(each))
            with sock:
                self.assertEqual(sock.makefile("rb").read(5), b"hello")
            self.assertIn(7070, [one["port"] for one in each.list_ports(self.box)])
            made = each.create_url(self.box, 7071, ttl_secs=600)
            with urllib.request.urlopen(made["url"]) as answer:
                self.assertEqual(answer.read(), b"hello")
            self.assertEqual([one["id"] for one in each.list_urls(self.box)], [made["id"]])
            each.delete_url(self.box, made["id"])
            self.assertEqual(each.list_urls(self.box), [])

    def try_port(self, each):
        try:
            return each.open_port(self.box, 7070)
        except ramet.RametError as error:
            self.assertEqual(error.code, "port.refused")
            time.sleep(0.05)
            return None

    def until(self, condition):
        limit = time.monotonic() + rig.HANG_SECS
        while not (found := condition()):
            self.assertLess(time.monotonic(), limit, "waited in vain")
            time.sleep(0.05)
        return found

    def test_code(self):
        for each in self.both():
            made = each.create_context(self.box, {"language": "bash", "cwd": "/usr"})
            self.assertEqual(each.run_code(self.box, made["id"], "pwd; exit_here=3; (exit 3)")["exit_code"], 3)
            self.assertIn(made["id"], [one["id"] for one in each.list_contexts(self.box)])
            self.assertEqual(each.get_context(self.box, made["id"])["state"], "idle")
            self.assertFalse(each.interrupt_context(self.box, made["id"])["interrupted"])
            self.assertEqual(each.restart_context(self.box, made["id"])["state"], "idle")
            each.delete_context(self.box, made["id"])
            events = list(each.run_code_stream(self.box, "python", {"code": "print('a')\n6 * 7"}))
            self.assertEqual([event.kind for event in events], ["started", "stdout", "result", "done"])
            self.assertEqual(each.run_code(self.box, "python", {"code": "1 + 1"})["text"], "2")

    def test_life(self):
        for each in self.both():
            # Words of the froog page: size and environment as it gives them.
            made = each.create_sandboxes({"from": machines.TEMPLATE, "ttl_secs": 1800, "labels": {"app": "x"}, "env": {"A": "b"}})
            name = made["name"]
            events = each.sandbox_events(name)
            events.__enter__()
            self.assertIn(name, [one["name"] for one in each.list_sandboxes(label="app=x", state="running")])
            self.assertEqual(each.get_sandbox(made["id"])["labels"], {"app": "x"})
            self.assertEqual(each.update_sandbox(name, labels={"app": "y"})["labels"], {"app": "y"})
            self.assertEqual(each.sandbox_metrics(name)["id"], made["id"])
            self.assertEqual(each.pause_sandbox(name)["state"], "paused")
            self.assertEqual(each.resume_sandbox(name)["state"], "running")
            each.exec(name, "echo one > f")
            shot = each.snapshot(name, {"name": name + "-shot", "wait": True})
            self.assertEqual(each.get_snapshot(shot["id"], wait=True)["state"], "ready")
            self.assertIn(shot["name"], [one["name"] for one in each.list_snapshots()])
            if ("PATCH", "/v1/snapshots/{name}") in routes():
                self.assertEqual(each.update_snapshot(shot["name"], labels={"kept": "yes"})["labels"], {"kept": "yes"})
            each.exec(name, "echo two > f")
            each.restore_sandbox(name, shot["name"])
            self.assertEqual(each.exec(name, "cat f")["stdout"], "one\n")
            self.assertEqual(each.stop_sandbox(name)["state"], "stopped")
            self.failure(409, "sandbox.invalid_state", each.exec, name, "true")
            each.start_sandbox(name, {})
            self.assertEqual(each.wait_until(name, "running")["state"], "running")
            with self.assertRaises(ramet.RametError) as caught:
                each.wait_until(name, ["stopped", "paused"], timeout_secs=0.1)
            self.assertEqual(caught.exception.code, "wait.timeout")
            forked = each.fork_sandbox(name, {"count": 2})
            self.assertEqual(len(forked["children"]), 2)
            won = each.promote_sandbox(forked["children"][1]["name"], {"name": name + "-won"})
            self.assertEqual(won["winner"]["name"], name + "-won")
            each.delete_sandbox(name + "-won")
            self.assertTrue(each.sandbox_logs(name, tail_bytes=1000) is not None)
            self.assertTrue(each.past_sandbox_events(name) and each.past_events())
            each.delete_snapshot(shot["name"])
            each.delete_sandbox(name)
            self.assertEqual([event["type"] for event in events][-1], "removed")
            self.failure(404, "sandbox.not_found", each.get_sandbox, name)

    def test_events(self):
        self.client.pause_sandbox(self.box)
        self.client.resume_sandbox(self.box)
        for each in self.both():
            stream = each.events(last_event_id="0")    # of no daemon: what is kept, behind a gap
            self.assertEqual(next(stream).kind, "gap")
            first = next(stream)
            second = next(stream)
            stream.close()
            again = each.events(last_event_id=first.id)
            self.assertEqual(next(again), second)
            again.close()

    def test_service_and_store(self):
        for each in self.both():
            self.assertEqual((each.health()["status"], each.version()["api"]), ("ok", "v1"))
            self.assertTrue(each.openapi()["openapi"].startswith("3.1"))
            self.assertEqual(each.memory()["state"], "ok")
            self.assertEqual(each.me()["key"]["name"], "tests")
            self.assertEqual(each.set_environment({"SERVER_WIDE": "yes", "OTHER": "x"}), {"SERVER_WIDE": "yes", "OTHER": "x"})
            self.assertEqual(each.exec(self.box, "echo $SERVER_WIDE")["stdout"], "yes\n")
            self.assertEqual(each.update_environment({"OTHER": None}), {"SERVER_WIDE": "yes"})
            self.assertEqual(each.get_environment(), {"SERVER_WIDE": "yes"})
            each.set_environment({})
            self.assertTrue(each.store_lineage()["nodes"])
            if ("GET", "/metrics") in routes():
                self.assertIn("# TYPE ramet_", each.metrics())
            self.assertEqual(each.pool()["size"], 0)
            self.assertGreater(each.store()["physical_bytes"], 0)
            each.store_seal()
            self.assertIn("freed_bytes", each.store_gc(recompress=False))
            self.assertEqual(each.store_scrub()["damages"], 0)
            self.assertEqual(each.store_check()["damages"], 0)
            made = each.create_key({"name": "short", "preset": "read", "expires_in_secs": 600})
            reader = ramet.Ramet(machines.machines.url, made["key"])
            self.assertTrue(reader.list_sandboxes())
            self.failure(403, "auth.forbidden", reader.exec, self.box, "true")
            self.assertIn(made["id"], [one["id"] for one in each.list_keys()])
            self.assertEqual(each.get_key(made["id"])["preset"], "read")
            each.delete_key(made["id"])
            self.failure(401, "auth.invalid", reader.list_sandboxes)
            reader.close()

    def test_volumes(self):
        data = os.urandom(1 << 20)
        for each in self.both():
            each.write_volume("vol", data, size_bytes=len(data))
            each.create_volume({"name": "empty", "size_bytes": 1 << 20})
            self.assertEqual(b"".join(each.read_volume("vol")), data)
            each.snapshot_volume("vol", "vol-1")
            self.assertEqual(each.fork_volume("vol", "vol-2")["name"], "vol-2")
            self.assertEqual(each.update_volume("vol-2", size_bytes=2 << 20)["size_bytes"], 2 << 20)
            self.assertEqual(each.get_volume("vol")["size_bytes"], 1 << 20)
            self.assertEqual(each.diff_volume("vol", "vol-1")["changed_bytes"], 0)
            self.assertEqual(each.map_volume("vol")["data_bytes"], len(data))
            self.assertLess({"vol", "empty", "vol-2"}, {one["name"] for one in each.list_volumes(all=True)})
            disk = f"{self.box}/disk"
            self.assertGreater(each.get_volume(disk)["size_bytes"], 0)
            self.assertGreater(each.map_volume(disk)["data_bytes"], 0)
            each.snapshot_volume(disk, "disk-1")
            each.fork_volume(disk, "disk-2")
            self.assertIn("ranges", each.diff_volume(disk, "disk-1"))
            with each.read_volume(disk) as stream:
                self.assertGreater(len(next(stream)), 0)
            archive = b"".join(each.export_archive(["vol"]))
            self.assertEqual(each.import_archive(archive, prefix="again-")["volumes"][0]["name"], "again-vol")
            with each.open_import(name="nbd", size_bytes=1 << 20) as opened:
                ready = next(opened)
                self.assertEqual(each.commit_import(ready["import"])["name"], "nbd")
            with each.open_import(name="nbd2", size_bytes=1 << 20) as opened:
                each.cancel_import(next(opened)["import"])
            with each.open_export(name="vol") as opened:
                self.assertTrue(os.path.exists(next(opened)["socket"]))
            for name in ("vol", "empty", "vol-2", "again-vol", "nbd", "disk-2"):
                each.delete_volume(name)
            for name in ("vol-1", "disk-1"):
                each.delete_snapshot(name)
            self.failure(404, "volume.not_found", each.get_volume, "vol")

    def test_templates(self):
        for each in self.both():
            build = each.create_template({"name": "mine", "sandbox": self.box})
            kinds = [event.kind for event in each.build_logs(build["id"])]
            self.assertEqual(kinds[-1], "build")
            self.assertTrue(each.wait_build(build["id"])["template"])
            self.assertIn(build["id"], [one["id"] for one in each.list_builds()])
            self.assertIn("mine", [one["name"] for one in each.list_templates()])
            self.assertTrue(each.get_template("mine")["template"] and isinstance(each.template_log("mine"), str))
            each.delete_template("mine")
            upload = each.upload_template(b"no archive")
            each.delete_upload(upload["upload"])
            build = each.create_template({"name": "mine", "sandbox": self.box})
            each.cancel_build(build["id"])
            limit = time.monotonic() + rig.HANG_SECS
            while each.get_build(build["id"])["state"] not in ("failed", "ready"):
                self.assertLess(time.monotonic(), limit)
            try:
                each.delete_template("mine")    # it was ready before the word came
            except ramet.RametError as error:
                self.assertEqual(error.status, 404)

    def test_zz_every_route_is_reached(self):
        """Last by name: all calls that `rametd --routes` prints were sent by the tests before."""
        missing = []
        for method, pattern in routes():
            wanted = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(pattern)))
            if f"{method} {pattern}" not in WITHOUT_METHOD and not any(sent == method and wanted.fullmatch(path) for sent, path in reached):
                missing.append(f"{method} {pattern}")
        self.assertEqual(missing, [],
                         "the client has no method for these calls, or it is not tried here: give Ramet (tools/sdk/python/ramet.py) "
                         "and AsyncRamet one")


watch_requests()
