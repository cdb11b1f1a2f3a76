# SPDX-License-Identifier: Apache-2.0
"""What a sandbox uses (GET .../metrics), and what came from what (GET /v1/store/lineage)."""
import os
import signal
import time

import rig

MIB = 1 << 20


class Metrics(rig.MachineCase):
    def setUp(self):
        super().setUp()
        self.daemon.ramet("create", "box", "--memory", "256")

    def metrics(self, name="box"):
        answer = self.daemon.call("GET", f"/v1/sandboxes/{name}/metrics")
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def nodes(self):
        answer = self.daemon.call("GET", "/v1/store/lineage")
        self.assertEqual(answer.status, 200, answer.body)
        return {node["name"]: node for node in answer.json["nodes"]}

    def test_metrics_and_lineage(self):
        self.figures()
        self.lineage()

    def figures(self):
        before = self.until(lambda: (now := self.metrics())["memory"] and now)    # on a busy host it is read a moment later
        self.assertEqual(before["state"], "running")
        self.assertEqual(before["disk"]["logical_bytes"], self.daemon.json("show", "box")["disk_bytes"])
        self.assertLess(before["disk"]["unique_bytes"], before["disk"]["data_bytes"] // 2)
        self.assertGreater(before["memory"]["private_bytes"], 0)
        self.assertEqual((before["commands_total"], before["calls_now"]), (0, 0))
        if os.environ.get("RAMET_TEST_LONG") == "1":
            self.own_questions_are_no_calls()
        self.daemon.ramet("exec", "box", "head -c 50000000 /dev/urandom > big; sync")
        after = self.metrics()
        self.assertEqual(after["commands_total"], 1)
        self.assertGreaterEqual(after["disk"]["unique_bytes"] - before["disk"]["unique_bytes"], 45 * MIB)
        self.assertGreater(after["cpu_secs"], before["cpu_secs"])
        self.assertGreater(after["uptime_secs"], before["uptime_secs"])
        if after["network"] is not None:
            self.assertGreaterEqual(after["network"]["sent_bytes"], before["network"]["sent_bytes"])
        self.daemon.ramet("stop", "box")
        stopped = self.metrics()
        self.assertEqual([stopped[name] for name in ("state", "uptime_secs", "cpu_secs", "memory", "network")],
                         ["stopped", None, None, None, None])
        self.assertGreaterEqual(stopped["disk"]["unique_bytes"], 45 * MIB)
        self.daemon.ramet("start", "box")
        answer = self.daemon.call("GET", "/v1/sandboxes/none/metrics")
        self.assertEqual((answer.status, answer.code), (404, "sandbox.not_found"))

    def own_questions_are_no_calls(self):
        """The daemon asks each guest for its time now and then; one that stands still keeps it waiting."""
        [pid] = self.daemon.vmms()
        os.kill(pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 25    # two rounds
            while time.monotonic() < until:
                self.assertEqual(self.metrics()["calls_now"], 0)
        finally:
            os.kill(pid, signal.SIGCONT)

    def lineage(self):
        self.daemon.ramet("snapshot", "box", "--name", "one")
        self.daemon.ramet("create", "of-one", "--from", "one")
        disk = self.metrics("of-one")["disk"]
        self.assertLess(disk["unique_bytes"], disk["data_bytes"] // 4)
        self.daemon.ramet("fork", "of-one", "--name", "kid")
        disk = self.metrics("kid")["disk"]
        self.assertLess(disk["unique_bytes"], disk["data_bytes"] // 4)
        nodes = self.nodes()
        parents = {name: node["parent"] for name, node in nodes.items()}
        self.assertEqual(parents, {"box": None, "one": nodes["box"]["id"], "of-one": nodes["one"]["id"], "kid": nodes["of-one"]["id"]})
        self.assertEqual({name: node["kind"] for name, node in nodes.items()},
                         {"box": "sandbox", "one": "snapshot", "of-one": "sandbox", "kid": "sandbox"})
        self.assertGreater(nodes["one"]["new_bytes"], 0)
        self.assertEqual(nodes["box"]["from"], "agent-base")
        tree = self.daemon.ramet("store", "lineage").splitlines()
        self.assertEqual([line.split("  ")[0] if "─" not in line else line[:line.index("─ ") + 2] + line.split("─ ")[1].split("  ")[0]
                          for line in tree], ["box", "└─ one", "   └─ of-one", "      └─ kid"])
        self.daemon.ramet("restore", "box", "one")    # now each would be the other's parent
        nodes = self.nodes()
        self.assertEqual((nodes["box"]["parent"], nodes["one"]["parent"]), (None, nodes["box"]["id"]))
        self.daemon.ramet("rm", "--force", "of-one")
        self.assertIsNone(self.nodes()["kid"]["parent"])
        self.assertIsNone(self.metrics("kid")["disk"]["unique_bytes"])    # nothing to compare with
        self.assertEqual(self.daemon.json("store", "lineage"), self.daemon.call("GET", "/v1/store/lineage").json["nodes"])


if __name__ == "__main__":
    rig.need_machines()
    rig.main()
