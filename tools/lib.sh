# SPDX-License-Identifier: Apache-2.0
# Shared by the shell programs of tools/: words for people, root by way of sudo, where things are kept.
# Sourced, never run. Every program that sources it has set -euo pipefail and $tools (this folder) before.

root=$(cd "$tools/.." && pwd)

# A user's path has no sbin, where mkfs, debugfs and depmod are.
PATH=$PATH:/usr/sbin:/sbin

# Downloaded packages are kept here between builds; everything made from them is in build/.
cache=${RAMET_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var}/.cache}/ramet}

program=${0##*/}

say() {
    printf "%s\n" "$*"
}

# die MESSAGE [STATUS]: one sentence that says what is wrong and what to do next. 1 = failed, 2 = wrong usage.
die() {
    printf '%s: %s\n' "$program" "$1" >&2
    exit "${2:-1}"
}

# as_root COMMAND...: runs it as root, by sudo where we are not.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        die "this step needs root and there is no sudo: run it as root, or install sudo ($1)"
    fi
}

# need_commands PACKAGE:COMMAND...: refuses with the package that is missing.
need_commands() {
    local pair missing=
    for pair in "$@"; do
        command -v "${pair#*:}" > /dev/null || missing="$missing ${pair%%:*}"
    done
    [ -z "$missing" ] || die "missing packages:$missing. Install them with: apt-get install$missing (tools/deps does it)"
}

# free_mib FOLDER: free space of its file system in MiB.
free_mib() {
    df --output=avail -B1M "$1" | tail -n 1 | tr -d ' '
}

# debian_sources: the apt sources of this machine that are Debian's own archive, one "REPO SUITE COMPONENT" a line.
debian_sources() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN) $(CODENAME)' 'Created-By: Packages' |
        awk '$4 == "Debian" && $5 ~ /^bookworm/ { print $1, $2, $3 }' | sort -u
}

# newest_guest: the guest's first process, as it was built last.
newest_guest() {
    local guest
    guest=$(ls -t "$root"/build/*/vmglue/ramet-guest 2> /dev/null | head -n 1 || true)
    [ -n "$guest" ] || die "ramet-guest is not built yet: cmake --preset release && cmake --build --preset release, or give --guest FILE"
    printf '%s\n' "$guest"
}
