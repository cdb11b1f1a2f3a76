# SPDX-License-Identifier: Apache-2.0
# What the image builders share: a tree of Debian packages, what packages do not bring, and a tree made into an ext4 disk.
# Sourced after tools/lib.sh. $work is a scratch folder that the caller removes; $child is the process that its
# clean_up ends.

# in_tree TREE COMMAND...: runs a program of the tree, as root, with nothing of this machine's environment.
in_tree() {
    local tree=$1
    shift
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHONHASHSEED=0 chroot "$tree" "$@"
}

# wait_child: waits for $child; a shell hears of a signal only when no foreground command runs.
wait_child() {
    local status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

# debian_tree TREE PACKAGES DEBS: a new tree of Debian 12 packages (words), without what they recommend. DEBS may be empty.
debian_tree() {
    local tree=$1 debs=$3 pattern line sources options
    sources=$(debian_sources)
    [ -n "$sources" ] || die "apt knows no Debian 12 (bookworm) archive yet: run apt-get update, and see that its sources name one"
    options=(--mode=root --variant=minbase --quiet --format=directory --include="$(echo $2 | tr -s ' ' ,)"
        --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' --dpkgopt=force-unsafe-io)
    for pattern in man locale info doc lintian linda; do
        options+=(--dpkgopt="path-exclude=/usr/share/$pattern/*")
    done
    options+=(--dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-include=/usr/share/locale/locale.alias')
    # Debian's mark that has pip and uv refuse to install outside of a virtual environment. These machines are thrown away, and
    # what pip installs goes to /usr/local, beside Debian's own. dpkg keeps the option: an upgrade does not bring the mark back.
    options+=(--dpkgopt='path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED')
    while IFS= read -r line; do
        [ -n "$line" ] && options+=(--aptopt="$line")
    done < <(apt-config dump --no-empty | grep -E '^Acquire::(http|https)::(Proxy|Verify)' | tr -d ';' || true)
    if [ -n "$debs" ]; then
        mkdir -p "$debs" || die "cannot make the folder '$debs' for packages"
        debs=$(cd "$debs" && pwd)
        # Kept packages go in before apt looks for what to download, and all come out again at the end. Links save the
        # copying where both are on one file system; a package is never changed in place. A kept package is whole from the
        # moment it has its name, for two builds may run at a time.
        options+=(--skip=download/empty,essential/unlink,cleanup/apt/cache
            --setup-hook="mkdir -p \"\$1/var/cache/apt/archives/partial\"; find '$debs' -maxdepth 1 -name '*.deb' -exec sh -c 'cp -lt \"\$0\" \"\$@\" 2> /dev/null || cp -t \"\$0\" \"\$@\"' \"\$1/var/cache/apt/archives\" {} +"
            --customize-hook="find \"\$1/var/cache/apt/archives\" -maxdepth 1 -name '*.deb' -exec sh -c 'for deb; do kept=\"'$debs'/\${deb##*/}\"; [ -e \"\$kept\" ] || { cp \"\$deb\" \"\$kept.\$\$\" && mv \"\$kept.\$\$\" \"\$kept\"; }; done' sh {} +")
    fi
    echo "$sources" | sed 's,^,deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ,' > "$work/sources.list"
    mmdebstrap "${options[@]}" bookworm "$tree" "$work/sources.list" > "$work/log" 2>&1 &
    child=$!
    if ! wait_child; then
        tail -n 40 "$work/log" >&2
        die "mmdebstrap failed (its last words are above): either a package has no such name, or the Debian mirror cannot be reached"
    fi
}

# refuse_programs TREE NAMES: a program that a recipe must not bring ends the build.
refuse_programs() {
    local name found
    for name in $2; do
        found=$(find "$1/usr/bin" "$1/bin/" "$1/usr/local/bin" \( -name "$name" -o -name "x86_64-linux-gnu-$name" -o -name "$name-[0-9]*" \
            -o -name "x86_64-linux-gnu-$name-[0-9]*" \) -print -quit 2> /dev/null)
        [ -z "$found" ] || die "'$name' came with the packages (${found#"$1"}), and this template must not have it: see which package brings it"
    done
}

# furnish_tree TREE: user, names and empty places: what every Debian tree made here has beyond its packages.
furnish_tree() {
    local tree=$1
    chroot "$tree" useradd --create-home --uid 1000 --shell /bin/bash user
    if [ -d "$tree/etc/sudoers.d" ]; then
        echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' > "$tree/etc/sudoers.d/user"
        # sudo would complain on every call when the guest's new hostname is not in /etc/hosts; it need not ask.
        echo 'Defaults !fqdn' > "$tree/etc/sudoers.d/no-name-lookup"
        chmod 0440 "$tree/etc/sudoers.d/user" "$tree/etc/sudoers.d/no-name-lookup"
        # pip removes folders that it empties, and a Python that starts meanwhile would not look there later.
        in_tree "$tree" find /usr/local/bin /usr/local/lib -path /usr/local/bin -o -name dist-packages |
            while IFS= read -r folder; do : > "$tree$folder/.keep"; done
        # Who may do everything need not say so to install: where pip and npm put programs, so that they are on every PATH.
        in_tree "$tree" chown -R user:user /usr/local
    fi
    echo sandbox > "$tree/etc/hostname"
    printf '127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n' > "$tree/etc/hosts"
    # No name server yet: the guest's first process writes it when there is a network card.
    : > "$tree/etc/resolv.conf"
    echo '/dev/vda / ext4 rw,noatime,discard 0 1' > "$tree/etc/fstab"
    : > "$tree/etc/machine-id"
    mkdir -p "$tree"/{proc,sys,dev,run,tmp}
    chmod 1777 "$tree/tmp"
}

# clean_tree TREE: what installing left, and what would tell one build from the next. Prints nothing; sets SOURCE_DATE_EPOCH.
clean_tree() {
    local tree=$1
    epoch=${SOURCE_DATE_EPOCH:-$(find "$tree"/usr/share/doc -name copyright -printf '%T@\n' | sort -n | tail -n 1 | cut -d. -f1)}
    export SOURCE_DATE_EPOCH=$epoch
    rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/cache/apt/*.bin "$tree"/var/lib/apt/lists/*_* "$tree"/var/log/* \
        "$tree"/var/cache/debconf/*-old "$tree"/var/lib/dpkg/*-old "$tree"/var/cache/ldconfig/* "$tree"/etc/*- \
        "$tree"/tmp/* "$tree"/run/* "$tree"/dev/* "$tree"/etc/.pwd.lock
    find "$tree" -xdev -newermt "@$epoch" -exec touch --no-dereference --date="@$epoch" {} +
}

# disk_of_tree TREE DISK SIZE_MIB IDENTITY: an ext4 file system that looks the same whenever it is made of the same tree
# and identity (a word). No loop device and no mount is needed.
disk_of_tree() {
    local tree=$1 disk=$2 identity inodes
    identity=$(printf '%s' "$4 $epoch" | sha256sum | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-4\3-8\4-\5/')
    truncate -s "$3M" "$disk"
    # Nothing is left for the kernel to initialise lazily: every clone would write those blocks again.
    E2FSPROGS_FAKE_TIME=$epoch mkfs.ext4 -q -F -L root -m 0 -b 4096 -I 256 -U "$identity" -J size=16 \
        -E "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1,nodiscard,root_owner=0:0,hash_seed=$identity" \
        -d "$tree" "$disk"
    # mkfs copies access and change times from the tree, where they say when it was built; here they say what it was built from.
    inodes=$(dumpe2fs -h "$disk" 2> /dev/null | awk '/^Inode count/ { all = $3 } /^Free inodes/ { free = $3 } END { print all - free }')
    seq 2 "$inodes" | awk -v t="@$epoch" 'BEGIN { split("atime ctime crtime", fields) } { for (f in fields) print "sif <" $1 "> " fields[f] " " t }' > "$work/times"
    E2FSPROGS_FAKE_TIME=$epoch debugfs -w -f "$work/times" "$disk" > "$work/log" 2>&1
    e2fsck -f -n "$disk" > "$work/log" 2>&1 || { cat "$work/log" >&2; die "the file system just made is not clean: this is a fault of tools/image"; }
    chmod 644 "$disk"
}
