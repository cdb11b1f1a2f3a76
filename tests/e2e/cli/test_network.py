# SPDX-License-Identifier: Apache-2.0
"""What sandboxes reach, by policy, on real machines, with an Internet of the test's own."""
import glob
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import internet
import rig

# Runs in the guest: what comes of connections and look-ups, as JSON.
PROBE = r"""
import errno, json, os, socket, struct, sys
os.environ["RES_OPTIONS"] = "timeout:30 attempts:3"    # a slow host's answers come late: libc gives up after ten seconds
def tcp(address, port):
    with socket.create_connection((address, port), 60) as s:
        s.settimeout(60)
        return s.makefile().readline().split()[0]
def name(host):
    return sorted({a[4][0] for a in socket.getaddrinfo(host, 80, socket.AF_INET, socket.SOCK_STREAM)})
def web(host, port):
    return tcp(name(host)[0], port)
def dns(host, stream=False, kind=1):
    query = struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0)
    query += b"".join(bytes([len(p)]) + p.encode() for p in host.split(".")) + struct.pack(">BHH", 0, kind, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
    with s:
        s.settimeout(60)
        s.connect(("10.0.2.3", 53))
        s.sendall((struct.pack(">H", len(query)) if stream else b"") + query)
        if stream:
            reply = s.recv(struct.unpack(">H", s.recv(2, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
        else:
            reply = s.recv(4096)
    return [reply[3] & 15, struct.unpack(">H", reply[6:8])[0]]    # code, number of answers
def result(what, *how):
    try:
        return globals()[what](*how)
    except socket.gaierror as e:
        return "no name"
    except TimeoutError:
        return "time-out"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
print(json.dumps([result(*item) for item in json.loads(sys.argv[1])]))
"""

# Runs in the guest: a connection that is used all the time; what it has done stands in a file.
TALK = r"""
import json, os, socket, sys, time
s = socket.create_connection(("198.18.113.10", 8080), 60)
s.settimeout(60)
f = s.makefile("rw")
f.readline()
count = 0
while True:
    try:
        f.write(f"{count}\n")
        f.flush()
        good = f.readline() == f"{count}\n"
    except OSError:
        good = False
    count += good
    with open("talk.new", "w") as out:
        json.dump(dict(pid=os.getpid(), port=s.getsockname()[1], count=count, broken=not good), out)
    os.rename("talk.new", "talk")
    if not good:
        break
    time.sleep(0.05)
"""

CLOSED = ("ECONNREFUSED", "ENETUNREACH")    # at once; what is given up after a while is neither
OPEN = "hello"


class Traps:
    """Servers on every address of the host, and on its loopback alone; they know who came."""

    def __init__(self):
        self.came = []
        self.everywhere = socket.create_server(("0.0.0.0", 0))
        self.loopback = socket.create_server(("127.0.0.1", 0))
        for listener in (self.everywhere, self.loopback):
            threading.Thread(target=self.wait, args=(listener,), daemon=True).start()

    def wait(self, listener):
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            self.came.append(peer)
            connection.sendall(b"hello\n")
            connection.close()

    def ports(self):
        return [listener.getsockname()[1] for listener in (self.everywhere, self.loopback)]

    def close(self):
        for listener in (self.everywhere, self.loopback):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def host_addresses():
    """This host's own, without loopback."""
    lines = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({line.split()[3].split("/")[0] for line in lines if " lo " not in line})


class Network(rig.Case):
    KERNEL = True

    def setUp(self):
        self.internet = internet.Internet()
        self.addCleanup(self.internet.stop)
        self.internet.start()
        self.traps = Traps()
        self.addCleanup(self.traps.close)
        super().setUp()
        self.restart()
        self.daemon.ramet("volume", "import", "agent-base", os.environ["RAMET_IMAGE"], "--format", "raw")
        self.tag = "ramet-" + self.daemon.call("GET", "/v1/store").json["id"].replace("-", "")

    def restart(self):
        self.daemon.stop()
        self.daemon.start("--resolver", internet.SERVER)

    # ---- tools ----

    def probe(self, box, *items):
        return json.loads(self.daemon.ramet("exec", box, "python3 probe.py " + "'" + json.dumps(items) + "'"))

    def expect(self, box, pairs):
        """Pairs of a probe and what comes of it."""
        items = [item for item, _ in pairs]
        for (item, wanted), got in zip(pairs, self.probe(box, *items)):
            with self.subTest(box=box, item=item):
                if isinstance(wanted, tuple):
                    self.assertIn(got, wanted)
                else:
                    self.assertEqual(got, wanted)

    def policy(self, box, network):
        answer = self.daemon.call("PATCH", "/v1/sandboxes/" + box, {"network": network})
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.json["network"], network)
        self.assertEqual(self.daemon.json("show", box)["network"], network)

    def links(self):
        out = subprocess.run(["ip", "-j", "-d", "link"], capture_output=True, text=True, check=True).stdout
        return {link["ifalias"].split("/")[1]: link["ifname"] for link in json.loads(out)
                if link.get("ifalias", "").startswith(self.tag + "/")}

    def tables(self):
        out = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        return [line for line in out.splitlines() if self.tag.replace("-", "_") in line or "ramet_try" in line]

    def talk(self, box):
        return json.loads(self.daemon.ramet("exec", box, "cat talk 2> /dev/null || echo {}") or "{}")

    def talked(self, box, more_than):
        limit = time.monotonic() + rig.HANG_SECS
        while time.monotonic() < limit:
            state = self.talk(box)
            self.assertFalse(state.get("broken"), state)
            if state.get("count", -1) > more_than:
                return state
            time.sleep(0.02)
        raise AssertionError("the connection is not used any more")

    def refused_everywhere(self, box):
        """The host itself, the metadata service, other sandboxes: closed, at once, with every policy."""
        addresses = host_addresses() + ["10.0.2.2", "127.0.0.1"]
        ports = self.traps.ports()
        self.expect(box, [(["tcp", address, port], CLOSED) for address in addresses for port in ports] +
                    [(["tcp", internet.METADATA, 80], CLOSED)])
        self.assertEqual(self.traps.came, [])

    # ---- the cases, on one boot ----

    def test_networks(self):
        box = self.daemon.json("create", "plain", "--network", "none")
        self.assertEqual(box["network"], "none")
        self.assertNotIn("notice", box)
        self.assertEqual((self.links(), self.tables()), ({}, []))
        self.daemon.ramet("cp", self.write("probe.py", PROBE.encode()), "plain:probe.py")
        self.daemon.ramet("cp", self.write("talk.py", TALK.encode()), "plain:talk.py")
        self.traps_work()
        self.none("plain")
        self.daemon.ramet("snapshot", "plain", "--name", "base")
        self.full_from_none()
        self.allow_from_none()
        self.connection_survives()
        self.changes()
        self.flushed()
        self.nothing_left()
        self.without_rights()

    def traps_work(self):
        """Else that nobody came would show nothing."""
        for port in self.traps.ports():
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.recv(10)
        self.assertEqual(len(self.traps.came), 2)
        self.traps.came.clear()

    def none(self, box):
        self.expect(box, [(["tcp", internet.SERVER, 80], CLOSED), (["name", "good.example"], "no name"),
                          (["dns", "good.example"], "ECONNREFUSED"), (["dns", "good.example", True], "ECONNREFUSED")])
        self.refused_everywhere(box)

    def full_from_none(self):
        box = self.daemon.json("create", "full", "--from", "base", "--network", "full")
        self.assertEqual((box["network"], box["start_mode"]), ("full", "resume"))
        self.expect("full", [
            (["tcp", internet.SERVER, 80], OPEN), (["tcp", internet.OTHER, 443], OPEN), (["web", "good.example", 80], OPEN),
            (["name", "alias.example"], [internet.EDGE]), (["name", "nothing.example"], "no name"),
            (["dns", "good.example"], [0, 1]), (["dns", "good.example", True], [0, 1]), (["dns", "nothing.example", True], [3, 0]),
            (["tcp", internet.PRIVATE, 80], CLOSED), (["tcp", internet.SERVER, 81], "ECONNREFUSED")])
        self.refused_everywhere("full")
        second = self.daemon.json("create", "second", "--from", "base", "--network", "full")
        self.daemon.ramet("exec", "full", "setsid python3 -m http.server 9000 > /dev/null 2>&1 < /dev/null &")
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
        other = {line.split()[2]: line.split()[0] for line in routes if " dev rmt" in line}[self.links()[box["id"]]]
        self.expect("second", [(["tcp", other, 9000], CLOSED), (["tcp", internet.SERVER, 80], OPEN)])
        # What the snapshot of one with a network says is the default of what is made from it.
        self.daemon.ramet("snapshot", "second", "--name", "online")
        self.assertEqual(self.daemon.json("create", "third", "--from", "online")["network"], "full")
        self.expect("third", [(["web", "good.example", 80], OPEN)])
        self.assertEqual(self.daemon.json("create", "cut", "--from", "online", "--network", "none")["network"], "none")
        self.none("cut")
        self.assertEqual(sorted(self.links()), sorted(b["id"] for b in self.daemon.json("ls") if b["network"] == "full"))
        self.daemon.ramet("rm", "second", "third", "cut")
        self.assertEqual(list(self.links()), [box["id"]])

    def allow_from_none(self):
        allow = ["good.example", "*.below.example", "port.example:443", "alias.example", "*.rebind.example", "198.18.113.12:8080"]
        box = self.daemon.json("create", "some", "--from", "base", "--network", ",".join(allow))
        self.assertEqual(box["network"], {"allow": allow})
        self.expect("some", [
            (["tcp", internet.SERVER, 80], CLOSED),    # not before its name was looked up
            (["web", "good.example", 80], OPEN), (["tcp", internet.SERVER, 443], OPEN),
            (["tcp", internet.EDGE, 80], CLOSED), (["web", "deep.below.example", 80], OPEN), (["web", "alias.example", 443], OPEN),
            (["tcp", internet.OTHER, 8080], OPEN), (["web", "port.example", 443], OPEN),
            (["web", "port.example", 80], CLOSED), (["name", "below.example"], "no name"),
            (["name", "other.example"], "no name"), (["dns", "other.example"], [3, 0]), (["dns", "other.example", True], [3, 0]),
            (["dns", "good.example", True], [0, 1]), (["dns", "good.example", False, 28], [0, 0])])
        names = ["loop", "private", "metadata", "mixed"]
        self.expect("some", [(["name", n + ".rebind.example"], "no name") for n in names])
        self.expect("some", [(["tcp", internet.PRIVATE, 80], CLOSED)])
        self.refused_everywhere("some")

    def connection_survives(self):
        """A fork of its source, and the daemon's restart."""
        self.daemon.ramet("exec", "full", "setsid python3 talk.py > talk.log 2>&1 < /dev/null &")
        before = self.talked("full", 3)
        fork = self.daemon.json("fork", "full", "--name", "child")
        self.assertEqual(fork["children"][0]["network"], "full")
        after = self.talked("full", before["count"] + 3)
        self.assertEqual((after["pid"], after["port"]), (before["pid"], before["port"]))
        self.expect("child", [(["web", "good.example", 80], OPEN)])
        self.daemon.ramet("rm", "child")
        self.restart()
        after = self.talked("full", after["count"] + 3)
        self.assertEqual((after["pid"], after["port"]), (before["pid"], before["port"]))
        self.expect("full", [(["web", "good.example", 80], OPEN), (["dns", "good.example", True], [0, 1])])
        self.expect("some", [(["tcp", internet.SERVER, 443], OPEN), (["web", "alias.example", 80], OPEN), (["dns", "other.example"], [3, 0])])
        self.daemon.kill()
        self.daemon.start("--resolver", internet.SERVER)
        self.talked("full", after["count"] + 3)
        self.refused_everywhere("full")

    def changes(self):
        """While it runs: at once, for connections that there are as well."""
        talking = self.talk("full")
        self.policy("full", {"allow": [internet.SERVER]})
        self.talked("full", talking["count"] + 3)    # still allowed
        self.expect("full", [(["tcp", internet.SERVER, 80], OPEN), (["tcp", internet.OTHER, 80], CLOSED)])
        self.policy("full", {"allow": ["good.example:80"]})
        self.expect("full", [(["web", "good.example", 80], OPEN), (["tcp", internet.SERVER, 443], CLOSED)])
        self.broken("full")
        self.policy("full", "none")
        self.none("full")
        self.policy("full", "full")
        self.expect("full", [(["web", "other.example", 80], OPEN)])
        self.policy("some", {"allow": [internet.PRIVATE + ":80", "*.rebind.example"]})
        self.expect("some", [(["tcp", internet.PRIVATE, 80], OPEN), (["tcp", internet.PRIVATE, 443], CLOSED),
                             (["name", "private.rebind.example"], [internet.PRIVATE]), (["name", "mixed.rebind.example"], [internet.PRIVATE, internet.SERVER]),
                             (["name", "loop.rebind.example"], "no name"), (["name", "good.example"], "no name")])
        # A stopped one keeps what it is given, and starts with it.
        self.daemon.ramet("stop", "some")
        self.policy("some", {"allow": ["good.example"]})
        self.daemon.ramet("start", "some")
        self.expect("some", [(["web", "good.example", 80], OPEN), (["tcp", internet.PRIVATE, 80], CLOSED)])
        for bad in ("open", {"allow": ["10.0.0.1/8"]}, {"allow": ["169.254.169.254"]}, {"allow": ["a b"]}, {"deny": []}):
            answer = self.daemon.call("PATCH", "/v1/sandboxes/some", {"network": bad})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))
        self.assertEqual(self.daemon.json("show", "some")["network"], {"allow": ["good.example"]})

    def broken(self, box):
        """Its connection is not allowed any more: TCP learns it from the refusals, and nothing comes through."""
        count = self.talk(box)["count"]
        self.probe(box, ["tcp", internet.SERVER, 80])    # time for the guest to have tried
        self.assertLessEqual(self.talk(box)["count"], count + 1)

    def flushed(self):
        """Somebody flushes the host's ruleset, with and without a daemon: what was closed is closed again."""
        drop = ["nft", "delete", "table", "inet", self.tag.replace("-", "_")]
        subprocess.run(drop, check=True)
        limit = time.monotonic() + rig.HANG_SECS
        while "were made again" not in self.daemon.log() and time.monotonic() < limit:
            time.sleep(0.01)
        self.refused_everywhere("full")
        self.expect("full", [(["web", "good.example", 80], OPEN)])
        self.expect("some", [(["tcp", internet.OTHER, 80], CLOSED), (["web", "good.example", 80], OPEN)])
        self.daemon.stop()
        subprocess.run(drop, check=True)
        self.daemon.start("--resolver", internet.SERVER)
        self.refused_everywhere("full")
        self.expect("full", [(["web", "good.example", 80], OPEN)])
        self.expect("some", [(["web", "good.example", 80], OPEN), (["tcp", internet.OTHER, 80], CLOSED)])

    def without_rights(self):
        """A daemon that may not make networks: what nobody asked for is left out with a word, what was asked for refused."""
        programs = self.path("bin")
        os.mkdir(programs)
        os.symlink(rig.BIN + "/ramet", programs + "/ramet")
        with open(programs + "/rametd", "w") as file:
            file.write(f"#!/bin/sh\nexec setpriv --bounding-set -net_admin {rig.BIN}/rametd \"$@\"\n")
        os.chmod(programs + "/rametd", 0o755)
        self.daemon.stop()
        real, rig.BIN = rig.BIN, programs
        try:
            self.daemon.start()
            answer = self.daemon.call("POST", "/v1/sandboxes", {"name": "bare", "from": "base", "network": "full"})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))
            self.assertIn("network", answer.message)
            box = self.daemon.json("create", "bare", "--from", "agent-base")
            self.assertEqual(box["network"], "none")
            self.assertIn("root", box["notice"])
            self.assertEqual(self.daemon.ramet("exec", "bare", "echo runs"), "runs\n")
            answer = self.daemon.call("PATCH", "/v1/sandboxes/bare", {"network": "full"})
            self.assertEqual((answer.status, answer.code), (400, "validation.invalid"))
            self.daemon.stop()
        finally:
            rig.BIN = real
        self.refused_whole("bare")

    def refused_whole(self, box):
        """With the rights, but the machine has no cable: nothing of the change is made."""
        self.daemon.start("--resolver", internet.SERVER)
        before = self.daemon.json("show", box)
        answer = self.daemon.call("PATCH", "/v1/sandboxes/" + box, {"name": "other", "labels": {"a": "b"}, "ttl_secs": 900, "network": "full"})
        self.assertEqual((answer.status, answer.code), (409, "sandbox.invalid_state"), answer.body)
        after = self.daemon.json("show", box)
        for field in "name", "labels", "ttl_secs", "network":
            self.assertEqual(after.get(field), before.get(field), field)
        self.daemon.ramet("rm", box)
        self.daemon.stop()

    def nothing_left(self):
        self.assertEqual(len(self.tables()), 1)
        # A machine whose VMM dies while no daemon runs leaves rules, which the next daemon removes.
        ids = {box["name"]: box["id"] for box in self.daemon.json("ls")}
        pids = {sandbox: pid for pid, sandbox in self.daemon.vmms().items()}
        self.daemon.stop()
        os.kill(pids[ids["some"]], 9)
        self.daemon.start("--resolver", internet.SERVER)
        self.assertEqual(list(self.links()), [ids["full"]])
        table = subprocess.run(["nft", "list", "table", "inet", self.tag.replace("-", "_")], capture_output=True, text=True, check=True).stdout
        self.assertNotIn(ids["some"][4:], table)
        self.assertIn(ids["full"][4:], table)
        self.daemon.ramet("rm", *ids)
        self.assertEqual((self.links(), self.tables()), ({}, []))
        self.assertEqual([name for name in self.held() if name.startswith("net:[") or name == "/dev/net/tun"], [])

    def held(self):
        """What the daemon's descriptors are of; connections may close under this."""
        for path in glob.glob(f"/proc/{self.daemon.process.pid}/fd/*"):
            try:
                yield os.readlink(path)
            except FileNotFoundError:
                pass


if __name__ == "__main__":
    rig.need_machines()
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            rig.skip(f"there is no {program} (Debian: iproute2, nftables)")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0:
        rig.skip("network namespaces cannot be made here")
    if subprocess.run(["nft", "list", "tables"], capture_output=True).returncode != 0:
        rig.skip("this kernel has no nftables")
    rig.main()
