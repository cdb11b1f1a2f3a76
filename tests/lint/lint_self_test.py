# SPDX-License-Identifier: Apache-2.0
"""Shows that every check of lint.py can fail: each gets a tree with one fault and must name its file and line."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
PROGRAM = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nexit 0\n"
# Stands in for ramet: knows the verb "up", and of the verb "volume" the part "ls".
RAMET = PROGRAM.replace("exit 0", 'case $* in "help up") ;; "help volume") echo "volume import|ls" ;; *) exit 2 ;; esac')

GOOD = {
    "blockstore/io.h": SPDX + "#pragma once\n",
    "blockstore/io.c": SPDX + '#include "blockstore/io.h"\n#include <stdio.h>\n#include <sys/stat.h>\n#include <zstd.h>\n',
    "snapshot/tree.c": SPDX + '#include "blockstore/io.h"\n',
    "tests/unit/test_io.c": SPDX + '#include "blockstore/io.h"\n#include <cmocka.h>\n',
    "tests/unit/test_tree.c": SPDX + "#include <cmocka.h>\n",
    "tools/quickstart": PROGRAM,
    "tools/test": PROGRAM,
    "tools/ramet-here": RAMET,
    "README.md": "# x\n```sh\ntools/quickstart\ntools/test   # all\nramet up\nramet volume ls --json\n```\n",
}
# check, what is changed in the good tree, what the fault's line must begin with
BAD = [
    ("layering", {"blockstore/io.c": SPDX + '#include "snapshot/tree.h"\n'}, "blockstore/io.c:2:"),
    ("layering", {"snapshot/tree.c": SPDX + '\n#  include "tools/ramet/x.h"\n'}, "snapshot/tree.c:3:"),
    ("layering", {"snapshot/tree.c": SPDX + '#include "tree.h"\n'}, "snapshot/tree.c:2:"),
    ("layering", {"snapshot/tree.c": SPDX + '#include "blockstore/gone.h"\n'}, "snapshot/tree.c:2:"),
    ("foreign_headers", {"snapshot/tree.c": SPDX + "#include <zstd.h>\n"}, "snapshot/tree.c:2:"),
    ("foreign_headers", {"vmglue/a.c": SPDX + "#include <fuse3/fuse_lowlevel.h>\n", "vmglue/b.c": SPDX + "#include <fuse_lowlevel.h>\n"}, "vmglue/b.c:2:"),
    ("spdx", {"blockstore/io.h": "#pragma once\n"}, "blockstore/io.h:1:"),
    ("spdx", {"tools/test": "#!/bin/sh\nexit 0\n"}, "tools/test:2:"),
    ("length", {"blockstore/io.c": SPDX + "int x;\n" * 600}, "blockstore/io.c:601:"),
    ("format", {"blockstore/io.c": SPDX + "int  f( void ){return 1;}\n"}, "blockstore/io.c:2:"),
    ("places", {"tools/test": PROGRAM + "cd /wor" + "k/main\n"}, "tools/test:4:"),
    ("places", {"tools/test": PROGRAM + "curl http://deb.debian" + ".org/x\n"}, "tools/test:4:"),
    ("places", {"vendor/x.c": SPDX}, "vendor/x.c:1:"),
    ("unused", {"blockstore/io.h": SPDX + "// io_open opens\nint io_open(int fd);\n", "blockstore/io.c": SPDX + "int io_open(int fd)\n{\n}\n"}, "blockstore/io.h:3:"),
    ("unused", {"blockstore/io.h": SPDX + "struct io *io_new(\n        int fd);\n"}, "blockstore/io.h:2:"),
    ("readme", {"README.md": "# x\n"}, "README.md:1:"),
    ("readme", {"README.md": GOOD["README.md"] + "```sh\ntools/gone\n```\n"}, "README.md:9:"),
    ("readme", {"tools/test": PROGRAM.replace("exit 0", "exit 1")}, "README.md:4:"),
    ("readme", {"README.md": GOOD["README.md"] + "```console\n$ ramet dance box\n```\n"}, "README.md:9:"),
    ("readme", {"README.md": GOOD["README.md"] + "```sh\nramet volume dance d\n```\n"}, "README.md:9:"),
    ("readme", {"README.md": GOOD["README.md"] + "[x](GONE.md)\n"}, "README.md:1:"),
]


def run(check, changes):
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(ROOT, ".clang-format"), encoding="utf-8") as source:
            files = {**GOOD, **changes, ".clang-format": source.read()}
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(full, 0o755 if text.startswith("#!") else 0o644)
        return subprocess.run([sys.executable, os.path.join(HERE, "lint.py"), check, "--root", root,
                               "--ramet", os.path.join(root, "tools/ramet-here")], capture_output=True, text=True)


def main():
    wrong = 0
    for check in sorted({check for check, _, _ in BAD}):
        done = run(check, {})
        if done.returncode == 77:
            continue
        if done.returncode != 0:
            wrong += 1
            print(f"{check}: a good tree fails: {done.stdout}{done.stderr}")
    for check, changes, expected in BAD:
        done = run(check, changes)
        if done.returncode == 77:
            print(f"{check}: not tried, {done.stdout.strip()}")
        elif done.returncode != 1 or not any(line.startswith(expected) for line in done.stdout.splitlines()):
            wrong += 1
            print(f"{check}: expected a fault at {expected}, got {done.returncode}: {done.stdout}{done.stderr}")
    print(f"{len(BAD)} faults tried, {wrong} wrong")
    return 1 if wrong else 0


sys.exit(main())
