# SPDX-License-Identifier: Apache-2.0
"""Builds the TypeScript SDK as its package, and runs one part of its tests with node, against a daemon with one machine.

usage: run.py unit|machine|examples|browser

RAMET_SDK_BUILD names the folder for what is installed and built (below build/), RAMET_BIN where the programs are. The package is
what `npm pack` gives, installed as a user's would be. The examples need a later node than Debian 12 has: then one comes from npm.
What cannot be had here is a visible skip: node and npm, or a registry out of reach.
"""
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
SDK = os.path.join(ROOT, "tools", "sdk", "typescript")
EXAMPLES = os.path.join(ROOT, "tools", "sdk", "examples")
sys.path[:0] = [os.path.join(ROOT, "tests", "sdk"), os.path.join(ROOT, "tests", "e2e", "cli")]
import rig    # noqa: E402
import warm    # noqa: E402

BUILD = os.environ.get("RAMET_SDK_BUILD", "")
AGENTS_NODE = 20    # what @openai/agents needs at least
QUIETLY = ["--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts"]
# What npm says when it is the network that fails.
OUT_OF_REACH = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT"
                          r"|EPIPE|FETCH_ERROR|ERR_STREAM_PREMATURE_CLOSE|E5\d\d|E403|E408|E429)\b")


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
    for name in ("package.json", "package-lock.json"):
        shutil.copy(os.path.join(package, name), folder)
    shutil.copy(os.path.join(SDK, ".npmrc"), folder)
    run(["npm", "ci", *QUIETLY], folder, what)


def install_node(folder):
    """A later node, and an npm of its time: each is one package, without others, of a version that is written down."""
    shutil.rmtree(folder)
    os.makedirs(os.path.join(folder, "bin"))
    shutil.copy(os.path.join(HERE, "node", "package.json"), folder)
    run(["npm", "install", "--no-package-lock", *QUIETLY], folder, "installing a later node")
    programs = glob.glob(os.path.join(folder, "node_modules", "node-linux-*", "bin", "node"))
    # It is an optional package, of another name for each processor: npm says nothing when it did not come.
    if not programs or subprocess.run([programs[0], "--version"], capture_output=True).returncode != 0:
        rig.skip(f"@openai/agents needs node {AGENTS_NODE} or later; none came from the npm registry (out of reach, or it has none for this host)")
    for name, target in (("node", programs[0]), ("npm", os.path.join(folder, "node_modules", "npm", "bin", "npm-cli.js"))):
        os.symlink(os.path.relpath(target, os.path.join(folder, "bin")), os.path.join(folder, "bin", name))


def need_node(suite):
    """From here on `node` and `npm` are those that the suite needs: the system's, or later ones below the build folder."""
    if node_version() < AGENTS_NODE and suite == "examples":
        with locked():
            later = once("node", [os.path.join(HERE, "node", "package.json")], install_node)
        os.environ["PATH"] = os.path.join(later, "bin") + os.pathsep + os.environ["PATH"]


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


@contextlib.contextmanager
def locked():
    """One test at a time installs and builds."""
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(suite):
    """The folder that the tests run in."""
    with locked():
        sources = [os.path.join(SDK, name) for name in ("package.json", "package-lock.json", "tsconfig.json", "README.md")]
        built = once("package", sources + list(files_of(SDK, below="src")), build_package)
        where, packages = "run", [os.path.join(built, "package.tgz")]
        if suite == "examples":
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
        if suite == "unit":
            surface = [os.path.join(built, "package.tgz"), os.path.join(HERE, "surface.py"), os.path.join(os.path.dirname(rig.BIN), "vmglue", "openapi.json")]
            once("surface-compared", surface, lambda _: compare_surface(folder, built))
    return folder


def readme_programs(folder):
    """Writes the README's programs, and the calls of its table as a program that is compiled alone; their names."""
    with open(os.path.join(SDK, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    programs = re.findall(r"(?ms)^```ts\n(.*?)^```", readme)
    calls = [call for row in re.findall(r"(?m)^\| [^|]+ \| (.*) \|$", readme) for call in re.findall("`([^`]*)`", row) if "(" in call]
    assert len(programs) == 2 and len(calls) > 10, readme
    declared = ("sandbox: Sandbox, ramet: Ramet, ctx: CodeContext, image: HTMLImageElement, name: string, job: { id: number }, code: string")
    programs.append(f'import {{ type CodeContext, type Ramet, Sandbox }} from "@ramet/sdk";\nexport async function table({declared}) {{\n' +
                    "".join(f"  {{ {call}; }}\n" for call in calls) + "}\n")
    names = [f"readme_{number}.ts" for number in range(len(programs))]
    for name, program in zip(names, programs):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(program)
    return names


def compile_examples(built, folder):
    """The examples and the README as a user of the package would write them: strict, against the types that it ships."""
    names = sorted(name for name in os.listdir(EXAMPLES) if name.endswith(".ts"))
    sources = [os.path.join(EXAMPLES, name) for name in names] + [os.path.join(SDK, "README.md"), os.path.join(built, "package.tgz")]
    names += readme_programs(folder)
    options = ["--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext",
               "--skipLibCheck", "--types", "node", "--outDir", "examples", "--rootDir", "."]
    compiler = os.path.join(built, "node_modules", "typescript", "bin", "tsc")
    once("examples-checked", sources, lambda _: run(["node", compiler, *options, *names], folder, "compiling the examples"))


def compare_surface(folder, built):
    """The SDK's types and methods against the API's own description, by the compiler: strict, as each kind of user resolves them."""
    document = os.path.join(os.path.dirname(rig.BIN), "vmglue", "openapi.json")
    written = run([sys.executable, os.path.join(HERE, "surface.py"), document, os.path.join(folder, "surface.mts")], folder, "reading the API's description")
    assert written == "", written
    compiler = os.path.join(built, "node_modules", "typescript", "bin", "tsc")
    for module, resolution in (("nodenext", "nodenext"), ("node16", "node16"), ("esnext", "bundler")):
        run(["node", compiler, "--strict", "--noEmit", "--target", "es2022", "--module", module, "--moduleResolution", resolution,
             "--lib", "es2022,dom,dom.iterable,dom.asynciterable,esnext.disposable", "surface.mts"], folder,
            f"comparing the SDK's surface with the API ({resolution})")


def with_machine(folder, suite):
    """Every sandbox of the tests resumes one machine that was booted for all."""
    warm.need()
    # The page of the browser's test comes from an address of its own, which the daemon must be told: a socket that is the test's
    # from here on, since a port that is let go of may be another's by then.
    with socket.create_server(("127.0.0.1", 0)) as page:
        return with_page(folder, suite, page)


def with_page(folder, suite, page):
    address = f"http://127.0.0.1:{page.getsockname()[1]}"
    machine = warm.WarmDaemon("ts", "--cors-origin", address)
    failed = True
    try:
        # What sandboxes are made of when nobody says of what: here the same machine.
        machine.daemon.ramet("create", "first", "--from", warm.TEMPLATE)
        machine.daemon.ramet("snapshot", "first", "--name", "agent-base")
        machine.daemon.ramet("rm", "--force", "first")
        status = subprocess.run(["node", f"{suite}.test.mjs"], cwd=folder, pass_fds=[page.fileno()], env={
            **os.environ, "RAMET_API": machine.url, "RAMET_API_KEY": machine.key, "RAMET_TEST_FOLDER": machine.root,
            "RAMET_MODEL_SERVER": os.path.join(ROOT, "tests", "sdk", "model_server.py"), "RAMET_PAGE": address, "RAMET_PAGE_FD": str(page.fileno()),
            "RAMET_CHROMIUM": chromium() or ""}).returncode
        failed = status != 0
        return status
    finally:
        machine.close(failed)


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("unit", "machine", "examples", "browser"):
        sys.exit(__doc__)
    suite = sys.argv[1]
    if not BUILD or not rig.BIN:
        rig.skip("RAMET_SDK_BUILD and RAMET_BIN do not say where to build and where the programs are")
    need_node(suite)
    if suite == "browser" and chromium() is None:
        rig.skip("there is no chromium (tools/deps test installs it)")
    folder = prepare(suite)
    if suite == "unit":
        sys.exit(max(subprocess.run(["node", f"{name}.test.mjs"], cwd=folder).returncode for name in ("unit", "hostile")))
    sys.exit(with_machine(folder, suite))


if __name__ == "__main__":
    main()
