# SPDX-License-Identifier: Apache-2.0
"""Counts what a daemon owns: processes, mounts, sockets and files below its run directory, descriptors in the keeper, network
and cgroup things, files of the store, rows of the catalog. Everything is asked of the host, and of the catalog what is there.

`problems` compares that with the sandboxes that exist: whatever belongs to none of them is one."""
import os
import re
import subprocess

import rig


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""


class Owned:
    """To be made before the first machine; `learn` is called when some run and all is at rest."""

    def __init__(self, daemon, kept_volumes=()):
        self.daemon, self.kept_volumes = daemon, set(kept_volumes)
        self.keeper_rest = self.keeper_descriptors()

    def learn(self):
        live = len(self.live())
        assert live > 0, "one must run, to see what belongs to it"
        self.run_files = self.files(self.daemon.run)
        self.box_files = set().union(*(set(os.listdir(f"{self.daemon.run}/vm/{i}")) for i in self.live()))
        self.store_files = self.store_names()
        self.mounts = self.mount_points()
        self.per_box = (self.keeper_descriptors() - self.keeper_rest) / live

    def boxes(self):
        return self.daemon.json("ls")

    def live(self):
        return sorted(b["id"] for b in self.boxes() if b["state"] in ("running", "paused"))

    def files(self, root):
        """Paths below root that are not of one sandbox or one memory image."""
        found = set()
        for folder, folders, files in os.walk(root):
            if folder == root:
                folders[:] = [f for f in folders if f not in ("mem", "vm")]
            found.update(os.path.relpath(os.path.join(folder, name), root) for name in [*folders, *files])
        return found

    def store_names(self):
        """Numbers of files, which grow, are one name."""
        return {re.sub(r"[0-9a-f]{8,}", "N", name) for name in self.files(self.daemon.store)}

    def mount_points(self):
        with open("/proc/self/mountinfo") as file:
            return sorted(line.split()[4] for line in file if self.daemon.root in line)

    def keeper_descriptors(self):
        [pid] = self.daemon.keeper_pids()
        return len(os.listdir(f"/proc/{pid}/fd"))

    # ---- what is wrong ----

    def problems(self):
        boxes = self.boxes()
        live = self.live()
        found = [f"{b['name']} is {b['state']}" for b in boxes if b["state"] not in ("running", "paused", "stopped", "failed")]
        found += self.of_processes(live) + self.of_files(live) + self.of_host(boxes) + self.of_catalog(boxes)
        return found

    def of_processes(self, live):
        found = []
        vmms = sorted(self.daemon.vmms().values())
        if vmms != live:
            found.append(f"machines {vmms}, sandboxes that run {live}")
        mine = {self.daemon.process.pid, *self.daemon.keeper_pids(), *self.daemon.vmms(), os.getpid()}
        parents = {pid: int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1]) for pid in self.daemon.vmms()}
        mine |= set(parents.values())    # what stands above a machine that is confined
        for pid, words in rig.commands():
            if any(self.daemon.root in word for word in words) and pid not in mine and "rametd" not in words[0]:
                found.append(f"process {pid}: {' '.join(words)[:150]}")
        return found

    def of_files(self, live):
        found = []
        if self.daemon.folders() != live:
            found.append(f"folders {self.daemon.folders()}, sandboxes that run {live}")
        for id in self.daemon.folders():
            extra = set(os.listdir(f"{self.daemon.run}/vm/{id}")) - self.box_files - {"console.log.1"}
            if extra:
                found.append(f"files of {id}: {extra}")
        extra = self.files(self.daemon.run) ^ self.run_files
        if extra:
            found.append(f"files in the run directory: {extra}")
        extra = self.store_names() - self.store_files - {"log/new.N"}    # the next log file, being written ahead
        if extra:
            found.append(f"files in the store: {extra}")
        if self.mount_points() != self.mounts:
            found.append(f"mounts {self.mount_points()}, not {self.mounts}")
        wanted = self.keeper_rest + len(live) * self.per_box
        if self.keeper_descriptors() != wanted:
            [pid] = self.daemon.keeper_pids()
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            found.append(f"the keeper has {self.keeper_descriptors()} descriptors, not {wanted}: {links}")
        return found

    def of_host(self, boxes):
        """Names made from ids of sandboxes that do not run: cgroups, network namespaces, links, rules."""
        live = set(self.live())
        text = "\n".join([output("ip", "-o", "link"), output("ip", "netns"), output("nft", "list", "tables"),
                          output("find", "/sys/fs/cgroup", "-name", "*sbx*")])
        mine = {b["id"] for b in boxes} | self.seen()
        return [f"{id} is still named in: {[l for l in text.splitlines() if id in l or id[4:] in l][:3]}"
                for id in mine - live if id in text or id[4:] in text]

    def seen(self):
        """Every id that the daemon's log or events speak of."""
        return set(re.findall(r"sbx_[0-9a-f]{12}", self.daemon.log()))

    def of_catalog(self, boxes):
        found = []
        names = {b["name"]: 2 + len(b.get("disks", [])) for b in boxes}
        volumes = [v for v in self.daemon.json("volume", "ls", "--all") if v["name"] not in self.kept_volumes]
        for name, count in names.items():
            have = sum(v["sandbox"] == name for v in volumes)
            if have != count:
                found.append(f"{name} has {have} volumes, not {count}")
        found += [f"volume {v['id']} belongs to {v['sandbox']}" for v in volumes if v["sandbox"] not in names]
        store = self.daemon.call("GET", "/v1/store").json
        kept = sum(b.get("memory_kept", False) for b in boxes)
        listed = self.daemon.call("GET", "/v1/snapshots").json["snapshots"]
        snapshots, sets = len(listed), sum(s.get("working_set", False) for s in listed)
        if store["docs"] != len(boxes) + snapshots + kept + sets:
            found.append(f"{store['docs']} docs for {len(boxes)} sandboxes, {snapshots} snapshots, {sets} working sets and "
                         f"{kept} kept memories")
        return found
