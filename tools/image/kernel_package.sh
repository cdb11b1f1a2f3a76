# SPDX-License-Identifier: Apache-2.0
# Debian's kernel package, downloaded and unpacked, never installed. Sourced after tools/lib.sh; $work is a scratch folder.

# kernel_package PACKAGE VERSION DEBS: unpacks it into $work/package. DEBS keeps the download; it may be empty.
kernel_package() {
    local package=$1 version=$2 debs=$3 deb_name
    deb_name=${package}_${version//:/%3a}_amd64.deb
    if [ -n "$debs" ] && [ -f "$debs/$deb_name" ]; then
        cp "$debs/$deb_name" "$work/"
    else
        say "$program: downloading $package $version"
        (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package=$version") > "$work/log" 2>&1 ||
            { cat "$work/log" >&2; die "cannot download $package (the reason is above); if the mirror is reachable, run apt-get update"; }
        if [ -n "$debs" ]; then mkdir -p "$debs" && cp "$work/$deb_name" "$debs/.$deb_name.$$" && mv "$debs/.$deb_name.$$" "$debs/$deb_name"; fi
    fi
    dpkg-deb --extract "$work/$deb_name" "$work/package" || die "$deb_name is damaged: delete it from '${debs:-the mirror}' and try again"
    rm -f "$work/$deb_name"
}

# kernel_modules RELEASE: where the unpacked package's modules are, with a list of what depends on what.
kernel_modules() {
    local modules=$work/package/lib/modules/$1
    [ -d "$modules" ] || modules=$work/package/usr/lib/modules/$1
    [ -e "$modules/modules.dep" ] || depmod -b "${modules%/lib/modules/*}" "$1" 2> "$work/log" ||
        { cat "$work/log" >&2; die "depmod failed on the package's modules"; }
    printf '%s\n' "$modules"
}

# module_files MODULES RELEASE NAME: the files of a module, what it depends on first; nothing when the kernel has it built in.
module_files() {
    local pattern="(^|/)$(printf '%s' "$3" | sed 's/[-_]/[-_]/g')\.ko(\.xz|\.zst)?" line
    if line=$(grep -E "$pattern:" "$1/modules.dep"); then
        printf '%s\n' "$line" | tr -d ':' | tr ' ' '\n' | grep . | tac
    else
        grep -qE "$pattern\$" "$1/modules.builtin" || die "the kernel $2 has no module $3"
    fi
}

# install_modules TREE KERNEL_FOLDER NAMES DEBS: modules of exactly the guests' kernel, and what they depend on, into a tree.
install_modules() {
    local tree=$1 description=$2/kernel.json names=$3 package version release modules name file
    [ -f "$description" ] || die "'$2' has no kernel.json, which tells which kernel's modules the template needs: make it with tools/image/kernel"
    release=$(jq -r .release "$description")
    package=$(jq -r .package "$description")
    version=$(jq -r .package_version "$description")
    kernel_package "$package" "$version" "$4"
    modules=$(kernel_modules "$release")
    mkdir -p "$tree/lib/modules/$release"
    cp "$modules"/modules.{builtin,builtin.modinfo,order} "$tree/lib/modules/$release/"
    for name in $names; do
        for file in $(module_files "$modules" "$release" "$name"); do
            install -D -m 0644 "$modules/$file" "$tree/lib/modules/$release/$file"
        done
    done
    depmod -b "$tree" "$release" || die "depmod failed on the template's modules"
    rm -rf "$work/package"
}
