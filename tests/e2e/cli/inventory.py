# SPDX-License-Identifier: Apache-2.0
"""Everything of the host that a daemon and its machines have: two inventories that are equal mean that nothing was left behind."""
import collections
import glob
import os
import re
import subprocess

import rig


def lines_of(*command):
    """What a tool of the host prints; nothing when it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        return []


def descriptors(pid):
    """How many descriptors of each kind: paths are told apart, numbers of sockets and pipes are not. Files of the log and of
    segments stay open as long as the engine finds useful."""
    kinds = collections.Counter()
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            target = os.readlink(path)
            if not re.search(r"/(log|segments)/", target):
                kinds[re.sub(r"\[\d+\]|:\d+", "", target)] += 1
        except OSError:
            continue
    return kinds


def threads(pid):
    """By name, without those of the kernel for io_uring, which come and go as it likes."""
    names = collections.Counter()
    for path in glob.glob(f"/proc/{pid}/task/*/comm"):
        try:
            with open(path) as file:
                name = file.read().strip()
                names[name] += not name.startswith("iou-")
        except OSError:
            continue
    return +names


def processes(root, tag):
    """Those that name the test's folder or the store's tag on their command line; the daemon itself is not one of them."""
    found = collections.Counter()
    for pid, words in rig.commands():
        if pid != os.getpid() and any(root in word or tag in word for word in words) and not words[0].endswith("/rametd"):
            found[os.path.basename(words[0])] += 1
    return found


def files(folder):
    """Paths below it, without those that the engine makes and recycles by number."""
    paths = set()
    for at, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.relpath(os.path.join(at, name), folder)
            if not re.match(r"(log|segments|mem)/", path):
                paths.add(path)
    return paths


def mounts(root):
    with open("/proc/self/mountinfo") as file:
        return sorted(line.split()[4] for line in file if root in line)


def cgroups(tag):
    return sorted(path for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/*") for path in glob.glob(f"{top}/**/*{tag}*/*/", recursive=True))


def networks(tag):
    """Interfaces that bear the store's mark, and rules in its table."""
    rules, inside = [], False
    for line in lines_of("nft", "list", "ruleset"):
        if line.startswith("table "):
            inside = tag in line
        if inside:
            rules.append(re.sub(r"(packets|bytes|expires|timeout) \S+", r"\1", line))
    return [line for line in lines_of("ip", "-d", "-o", "link") if tag in line], rules, [n for n in lines_of("ip", "netns") if tag in n]


def store(daemon):
    """What the store holds after a collection. Segments and log files come and go; what is alive in them does not."""
    daemon.ramet("store", "gc")
    stat = daemon.call("GET", "/v1/store").json
    # A snapshot gets a working set some seconds after its first resume, if that still runs then; it goes with the snapshot.
    stat["docs"] -= sum(snapshot.get("working_set", False) for snapshot in daemon.json("snapshots"))
    # Not unique_bytes: the answers that are kept for requests that might be sent again are in it, for a day.
    return {name: stat[name] for name in ("volumes", "bases", "docs", "logical_bytes", "mapped_bytes")}


def more(before, after):
    """What of `after` was not in `before`; false when nothing."""
    if isinstance(after, dict) and not isinstance(after, collections.Counter):
        return grown(before, after)
    if isinstance(after, list):
        before, after = collections.Counter(map(repr, before)), collections.Counter(map(repr, after))
    return max(after - before, 0) if isinstance(after, int) else after - before


def grown(before, after):
    """The parts of an inventory that have more than before. Less is no leak: then something was going just when it was taken."""
    return {name: found for name, value in after.items() if (found := more(before[name], value))}


def take(daemon):
    """Of a daemon that runs, as a dict that unittest compares and shows."""
    tag = daemon.call("GET", "/v1/store").json["id"].replace("-", "")
    links, rules, names = networks(tag)
    keepers = daemon.keeper_pids()
    return {
        "store": store(daemon),
        "threads": threads(daemon.process.pid),
        "descriptors": descriptors(daemon.process.pid),
        "keepers": len(keepers),
        "keeper's descriptors": [descriptors(pid) for pid in keepers],
        "keeper's threads": [threads(pid) for pid in keepers],
        "processes": processes(daemon.root, tag),
        "mounts": mounts(daemon.root),
        "run": files(daemon.run),
        "files of the store": files(daemon.store),
        "cgroups": cgroups(tag),
        "links": links,
        "rules": rules,
        "namespaces": names,
        "sandboxes": [box["name"] for box in daemon.json("ls")],
        "snapshots": [snapshot["name"] for snapshot in daemon.json("snapshots")],
        "counted memory": daemon.call("GET", "/v1/memory").json["counted_bytes"],
    }
