# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree itself. Each is a ctest of its own; lint_self_test.py shows that each can fail.

usage: lint.py CHECK [--root FOLDER] [--ramet PROGRAM]
Prints one line "FILE:LINE: what is wrong and what to do" for each fault. Exit 0 none, 1 some, 2 usage, 77 skipped.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys

LAYERS = ["blockstore", "snapshot", "vmglue", "tools", "tests"]
TOP_LEVEL = set(LAYERS) | {"CMakeLists.txt", "CMakePresets.json", "README.md", "HACKING.md", "LICENSE"}
CODE = (".c", ".h")
MAX_LINES = 600
# The Python client is one file so that it can be downloaded as such: that is what users are told to do.
LONG_FILES = {"tools/sdk/python/ramet.py"}

# What belongs to the system (libc, the kernel's interface, the compiler), by folder and by name.
SYSTEM_FOLDERS = ("sys/", "linux/", "asm/", "net/", "netinet/", "arpa/", "bits/")
SYSTEM_HEADERS = set("""
aio alloca assert byteswap complex cpuid ctype dirent dlfcn elf endian errno err execinfo fcntl fenv float fnmatch ftw
getopt glob grp immintrin inttypes langinfo libgen limits link locale malloc math mntent mqueue netdb nl_types nmmintrin
paths poll pthread pty pwd regex sched search semaphore setjmp shadow signal spawn stdalign stdarg stdatomic stdbool
stddef stdint stdio stdlib stdnoreturn string strings sysexits syslog termios tgmath threads time uchar ucontext ulimit
unistd utime utmp utmpx wait wchar wctype wordexp x86intrin emmintrin
""".split())
# Verbs of ramet that take a second one.
GROUPS = {"volume", "store", "template", "snapshots", "key", "context"}
# Test frameworks are every test's business.
FREE_LIBRARIES = {"cmocka"}

# Put together from pieces, so that this file does not find itself.
MACHINE_PATHS = [r"(?<![\w.])/%s/" % name for name in ("wor" + "k", "roo" + "t", "Use" + "rs")]
MACHINE_PATHS.append(r"(?<![\w.])/home/(?!user\b)\w+")
HOSTS = [re.escape(a + "." + b) for a, b in [
    ("deb.debian", "org"), ("snapshot.debian", "org"), ("security.debian", "org"), ("pypi", "org"),
    ("pythonhosted", "org"), ("registry.npmjs", "org"), ("crates", "io"), ("proxy.golang", "org"),
    ("ghcr", "io"), ("archive.ubuntu", "com")]] + ["docker" + r"\.io/"]    # without a slash it is a package of Debian


class Tree:
    """The files that belong to the project, as paths below root."""

    def __init__(self, root):
        self.root = root
        self.faults = []
        if os.path.exists(os.path.join(root, ".git")):
            out = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"], cwd=root,
                                 check=True, capture_output=True, text=True).stdout
            self.files = sorted(f for f in out.splitlines() if os.path.isfile(os.path.join(root, f)))
        else:
            self.files = sorted(
                os.path.relpath(os.path.join(folder, name), root)
                for folder, folders, names in os.walk(root)
                for name in names
                if not os.path.relpath(folder, root).startswith(("build", ".git")))

    def lines(self, path):
        try:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read().splitlines()
        except UnicodeDecodeError:
            return []

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}")

    def code(self):
        return [f for f in self.files if f.endswith(CODE)]

    def includes(self, path):
        """(line number, "quoted" or <system>, name) of each include."""
        for number, line in enumerate(self.lines(path), 1):
            match = re.match(r'\s*#\s*include(?:_next)?\s*([<"])([^>"]+)[>"]', line)
            if match:
                yield number, match.group(1), match.group(2)


def check_layering(tree, options):
    """An include points down, never up, and names its file from the top of the tree."""
    for path in tree.code():
        folder = path.split("/")[0]
        if folder not in LAYERS:
            continue
        for number, kind, name in tree.includes(path):
            if kind != '"':
                continue
            target = name.split("/")[0]
            if target not in LAYERS:
                tree.fault(path, number, f'include "{name}" by its path from the top of the tree')
            elif LAYERS.index(target) > LAYERS.index(folder):
                tree.fault(path, number, f'{folder} may not use {target} ("{name}"): imports point down only; move what is needed down')
            elif not os.path.isfile(os.path.join(tree.root, name)):
                tree.fault(path, number, f'there is no file "{name}"')


def check_foreign_headers(tree, options):
    """One library, one file that includes it: there its quirks are dealt with."""
    users = {}
    for path in tree.code():
        for number, kind, name in tree.includes(path):
            stem = name[:-2] if name.endswith(".h") else name
            if kind != "<" or name.startswith(SYSTEM_FOLDERS) or stem in SYSTEM_HEADERS:
                continue
            library = stem.split("/")[0].split("_")[0].rstrip("0123456789")
            if library not in FREE_LIBRARIES:
                users.setdefault(library, {}).setdefault(path, number)
    for library, places in sorted(users.items()):
        for path in sorted(places)[1:] if len(places) > 1 else []:
            tree.fault(path, places[path], f"{library}'s header is included by {min(places)} already: use what that file offers")


def check_spdx(tree, options):
    """The licence stands in the first line (the second, below a #! line)."""
    for path in tree.files:
        lines = tree.lines(path)
        script = bool(lines) and lines[0].startswith("#!")
        template = path.startswith("tools/image/templates/")
        if not (script or template or path.endswith(CODE + (".py", ".sh", ".ts", ".js", "CMakeLists.txt", ".cmake"))):
            continue
        place = 1 if script else 0
        if len(lines) <= place or "SPDX-License-Identifier: Apache-2.0" not in lines[place]:
            tree.fault(path, place + 1, "the line 'SPDX-License-Identifier: Apache-2.0' is missing here")


def check_length(tree, options):
    """A file that wants to be longer than 600 lines is two ideas."""
    for path in tree.files:
        lines = tree.lines(path)
        script = bool(lines) and lines[0].startswith("#!")
        if (script or path.endswith(CODE + (".py", ".sh", ".ts", ".js"))) and len(lines) > MAX_LINES and path not in LONG_FILES:
            tree.fault(path, len(lines), f"{len(lines)} lines; {MAX_LINES} are the most: split it where the idea changes")


def check_unused(tree, options):
    """A function that a header offers is called by somebody, were it a test."""
    words, texts = collections.Counter(), {}
    for path in tree.code():
        texts[path] = [re.sub(r"//.*", "", line) for line in tree.lines(path)]
        if path.endswith(".c"):
            words.update(re.findall(r"\w+", "\n".join(texts[path])))
    for path, lines in texts.items():
        for number, line in enumerate(lines, 1):
            match = re.match(r"(?!static|typedef|return)[a-z][\w *]*?\b(\w+)\(", line) if path.endswith(".h") else None
            if match and words[match.group(1)] < 2:
                tree.fault(path, number, f"nothing calls {match.group(1)}: remove it, or make what only its own file needs static")


def check_format(tree, options):
    """.clang-format is the arbiter of white space."""
    program = shutil.which("clang-format-14")
    if program is None:
        print("skipped: clang-format-14 is not installed (tools/deps test installs it)")
        sys.exit(77)
    files = tree.code()
    done = subprocess.run([program, "--dry-run", "-Werror", "--style=file", *files], cwd=tree.root, capture_output=True, text=True)
    seen = set()
    for path, line in re.findall(r"(?m)^(.+?):(\d+):\d+: error", done.stderr):
        if path not in seen:
            tree.fault(path, line, "white space differs from .clang-format: run clang-format-14 -i on it")
            seen.add(path)
    if done.returncode != 0 and not seen:
        tree.fault(".clang-format", 1, f"clang-format-14 failed: {done.stderr.strip()}")


def check_places(tree, options):
    """Nothing names a machine's own folders or a package mirror; the top level holds what it is meant to."""
    pattern = re.compile("|".join(MACHINE_PATHS + HOSTS))
    for path in tree.files:
        top = path.split("/")[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            tree.fault(path, 1, f"'{top}' has no place at the top level: put it into one of {', '.join(LAYERS)}")
        if path == "LICENSE":
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = pattern.search(line)
            if match:
                tree.fault(path, number, f"'{match.group(0)}' is a place of one machine or a mirror's name: take it from the environment")


def readme_commands(tree):
    """(line number, words) of the commands in README.md's fenced blocks; output lines of a console block are none."""
    kind = None
    for number, line in enumerate(tree.lines("README.md"), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            kind = (fence.group(1) or "text") if kind is None else None
        elif kind in ("sh", "console"):
            if kind == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            words = re.sub(r"\s#.*", "", line).split()
            if words and not words[0].startswith("#"):
                yield number, words


def ramet_help_accepts(ramet, words):
    """The verb of a command line, and whether `ramet help VERB` knows it; of a group, whether its help names the part."""
    plain = [word for word in words[1:] if not word.startswith("-")]
    if not plain or plain[0] == "help":
        return "", True
    done = subprocess.run([ramet, "help", plain[0]], capture_output=True, text=True)
    if done.returncode != 0:
        return plain[0], False
    if plain[0] in GROUPS:
        return " ".join(plain[:2]), " ".join(plain[:2]) in done.stdout or (len(plain) > 1 and re.search(
            rf"\b{plain[0]}\s.*\b{re.escape(plain[1])}\b", done.stdout) is not None)
    return plain[0], True


def check_readme(tree, options):
    """Every command in README.md is one that exists and answers."""
    commands = list(readme_commands(tree))
    if not commands:
        tree.fault("README.md", 1, "shows no command: a ```sh block with the first ones is what a reader looks for")
    names = {words[0] for _, words in commands}
    for program in ("tools/quickstart", "tools/test"):
        if commands and program not in names:
            tree.fault("README.md", 1, f"does not show {program}")
    for number, words in commands:
        if words[0].startswith("tools/"):
            path = os.path.join(tree.root, words[0])
            if not os.access(path, os.X_OK):
                tree.fault("README.md", number, f"{words[0]} is not a program in this tree")
            elif subprocess.run([path, "--help"], capture_output=True).returncode != 0:
                tree.fault("README.md", number, f"{words[0]} --help fails")
        elif os.path.basename(words[0]) == "ramet" and options.ramet:
            asked, accepted = ramet_help_accepts(options.ramet, words)
            if not accepted:
                tree.fault("README.md", number, f"`ramet help` does not know the command `{asked}`")
    for name in re.findall(r"\]\(([^)#:]+)\)", "\n".join(tree.lines("README.md"))):
        if not os.path.exists(os.path.join(tree.root, name)):
            tree.fault("README.md", 1, f"links to {name}, which does not exist")


CHECKS = {name[len("check_"):]: function for name, function in list(globals().items()) if name.startswith("check_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    parser.add_argument("--ramet", help="the ramet program that README.md's commands are tried on")
    options = parser.parse_args()
    tree = Tree(os.path.abspath(options.root))
    if not tree.files:
        print(f"{tree.root} holds no files: nothing was checked")
        return 1
    CHECKS[options.check](tree, options)
    print("\n".join(tree.faults) or f"{options.check}: {len(tree.files)} files, no fault")
    return 1 if tree.faults else 0


if __name__ == "__main__":
    sys.exit(main())
