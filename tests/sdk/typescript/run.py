# SPDX-License-Identifier: Apache-2.0
"""Builds the TypeScript SDK as its package, and runs one part of its tests with node, against a daemon with one machine.

usage: run.py unit|machine|examples|browser

RAMET_SDK_BUILD names the folder for what is installed and built (below build/), RAMET_BIN where the programs are. The package is
what `npm pack` gives, installed as a user's would be. What cannot be had here is a visible skip: node and npm, or a registry
out of reach.
"""
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
SDK = os.path.join(ROOT, "tools", "sdk", "typescript")
EXAMPLES = os.path.join(ROOT, "tools", "sdk", "examples")
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e", "cli"))
import rig    # noqa: E402

BUILD = os.environ.get("RAMET_SDK_BUILD", "")
# What npm says when it is the network that fails.
OUT_OF_REACH = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT"
                          r"|E5\d\d|E403)\b")


def run(command, folder, what):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stdout + done.stderr
        if command[0] == "npm" and OUT_OF_REACH.search(said):
            rig.skip(f"{what}: the npm registry is out of reach ({OUT_OF_REACH.search(said).group(0)})")
        sys.exit(f"{what} failed: {' '.join(command)} in {folder} ended with {done.returncode}\n{said}")
    return done.stdout


def node_version():
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            rig.skip(f"there is no {program} (tools/deps test installs it)")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major = int(version.lstrip("v").split(".")[0])
    if major < 18:
        rig.skip(f"node {version} is too old: 18 is the least")
    return major


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def digest(paths):
    total = hashlib.sha256()
    for path in paths:
        total.update(os.path.relpath(path, ROOT).encode() + b"\0")
        with open(path, "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def files_of(folder, *, below=""):
    for base, folders, names in os.walk(os.path.join(folder, below)):
        folders[:] = sorted(set(folders) - {"node_modules", "dist"})
        yield from (os.path.join(base, name) for name in sorted(names) if not name.endswith(".tgz"))


def once(name, paths, make):
    """Makes BUILD/name by make(folder) unless it was made from what these files hold now."""
    folder, key = os.path.join(BUILD, name), digest(paths)
    stamp = folder + ".made-from"
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == key:
                return folder
        os.unlink(stamp)
    os.makedirs(folder, exist_ok=True)
    make(folder)
    with open(stamp, "w") as file:
        file.write(key)
    return folder


def install(folder, package, what):
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(os.path.join(package, name), folder)
    run(["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts"], folder, what)


def build_package(folder):
    install(folder, SDK, "installing TypeScript")
    for name in ("src", "dist"):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    shutil.copytree(os.path.join(SDK, "src"), os.path.join(folder, "src"))
    for name in ("tsconfig.json", "README.md"):
        shutil.copy(os.path.join(SDK, name), folder)
    packed = json.loads(run(["npm", "pack", "--json", "--silent"], folder, "packing the SDK"))
    held = {entry["path"] for entry in packed[0]["files"]}
    for name in ("package.json", "README.md", "dist/index.js", "dist/index.d.ts", "src/index.ts"):
        assert name in held, f"the package lacks {name}: it has {sorted(held)}"
    assert not [name for name in held if name.startswith("node_modules/")], held
    os.replace(os.path.join(folder, packed[0]["filename"]), os.path.join(folder, "package.tgz"))


def place_package(built, folder):
    """As an installation of the package would."""
    place = os.path.join(folder, "node_modules", "@ramet", "sdk")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with tarfile.open(os.path.join(built, "package.tgz")) as archive:
        archive.extractall(os.path.dirname(place))
    os.rename(os.path.join(os.path.dirname(place), "package"), place)


def prepare(suite):
    """The folder that the tests run in."""
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [os.path.join(SDK, name) for name in ("package.json", "package-lock.json", "tsconfig.json", "README.md")]
        built = once("package", sources + list(files_of(SDK, below="src")), build_package)
        where, packages = "run", [os.path.join(built, "package.tgz")]
        if suite == "examples":
            if node_version() < 20:
                rig.skip("@openai/agents needs node 20 or later")
            where = "installed"
            agents = [os.path.join(HERE, name) for name in ("package.json", "package-lock.json")]
            once(where, agents, lambda folder: install(folder, HERE, "installing @openai/agents"))
            packages += agents
        os.makedirs(os.path.join(BUILD, where), exist_ok=True)
        once("placed-" + where, packages, lambda _: place_package(built, os.path.join(BUILD, where)))
        folder = os.path.join(BUILD, where)
        used = list(files_of(HERE)) + list(files_of(EXAMPLES))
        for path in used:
            if path.endswith((".mjs", ".ts", ".html", ".json")) and os.path.basename(path) not in ("package.json", "package-lock.json"):
                shutil.copy(path, folder)
        if suite == "examples":
            compile_examples(built, folder)
    return folder


def compile_examples(built, folder):
    """The examples as a user of the package would write them: strict, against the types that it ships."""
    names = sorted(name for name in os.listdir(EXAMPLES) if name.endswith(".ts"))
    options = ["--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext",
               "--skipLibCheck", "--types", "node", "--outDir", "examples", "--rootDir", "."]
    compiler = os.path.join(built, "node_modules", "typescript", "bin", "tsc")
    once("examples-checked", [os.path.join(EXAMPLES, name) for name in names] + [os.path.join(built, "package.tgz")],
         lambda _: run(["node", compiler, *options, *names], folder, "compiling the examples"))


def with_machine(folder, suite):
    """One machine, kept as a snapshot: the tests resume it."""
    rig.need_machines()
    if not os.path.exists(os.environ.get("RAMET_CODE_IMAGE", "")):
        rig.skip("RAMET_CODE_IMAGE names no disk (tools/image/ensure --code makes it)")
    root = tempfile.mkdtemp(prefix="ramet-ts-", dir="/tmp")
    daemon = rig.Daemon(root, os.environ["RAMET_KERNEL_DIR"])
    failed = True
    try:
        daemon.ramet("store", "init", daemon.store)
        # The page of the browser's test comes from an address of its own, which the daemon must be told.
        with socket.create_server(("127.0.0.1", 0)) as free:
            page_port = free.getsockname()[1]
        daemon.start("--listen", "0", "--cors-origin", f"http://127.0.0.1:{page_port}")
        daemon.ramet("template", "build", "code-interpreter", "--disk", os.environ["RAMET_CODE_IMAGE"], "--format", "raw",
                     "--warm", "python")
        # What sandboxes are made of when nobody says of what: here the same machine.
        daemon.ramet("create", "first", "--from", "code-interpreter")
        daemon.ramet("snapshot", "first", "--name", "agent-base")
        daemon.ramet("rm", "--force", "first")
        key = daemon.make_key("tests")["key"]
        status = subprocess.run(["node", f"{suite}.test.mjs"], cwd=folder, env={
            **os.environ, "RAMET_API": daemon.url, "RAMET_API_KEY": key, "RAMET_TEST_FOLDER": root,
            "RAMET_MODEL_SERVER": os.path.join(ROOT, "tests", "sdk", "model_server.py"), "RAMET_PAGE_PORT": str(page_port),
            "RAMET_CHROMIUM": chromium() or ""}).returncode
        failed = status != 0
        return status
    finally:
        if failed:
            print(daemon.log())
        if daemon.process is not None and daemon.process.poll() is not None:
            daemon.start()
        for box in daemon.json("ls"):
            daemon.ramet("rm", "--force", box["name"])
        daemon.stop()
        subprocess.run(["umount", "-l", daemon.run + "/mem"], capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("unit", "machine", "examples", "browser"):
        sys.exit(__doc__)
    suite = sys.argv[1]
    if not BUILD or not rig.BIN:
        rig.skip("RAMET_SDK_BUILD and RAMET_BIN do not say where to build and where the programs are")
    node_version()
    if suite == "browser" and chromium() is None:
        rig.skip("there is no chromium (tools/deps test installs it)")
    folder = prepare(suite)
    if suite == "unit":
        sys.exit(subprocess.run(["node", "unit.test.mjs"], cwd=folder).returncode)
    sys.exit(with_machine(folder, suite))


if __name__ == "__main__":
    main()
