# SPDX-License-Identifier: Apache-2.0
"""Unpacks a root file system into a folder: a tar archive, or an image of an OCI or `docker save` archive.

usage: unpack.py tar|oci FILE TREE CONFIG LIMIT_MIB [IMAGE]

An archive is foreign: every layer is unpacked by a process whose root directory is TREE, so that no link and no name in it
reaches anything else; all digests are checked; what comes out is bounded. CONFIG gets what an image says about its
commands: {"env", "user", "cwd", "command"}. Needs root.
"""
import bz2
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zlib

PIECE = 1 << 20
JSON_LIMIT = 8 << 20
ENTRIES_MAX = 2_000_000    # of a layer: each takes memory here and an inode of the store's file system
OPAQUE = ".wh..wh..opq"
MAGICS = [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"),
          (b"\x04\x22\x4d\x18", "lz4")]
# What reading a damaged or foreign archive can raise.
DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, UnicodeError, ValueError, OverflowError)


class Refused(Exception):
    """A sentence for a person."""


def quoted(name):
    return repr(name if len(name) <= 120 else name[:117] + "...")


# ---- bytes ----

class Slice:
    """A part of an open file, read from its beginning on. Has its own position, so that several may be open."""

    def __init__(self, fd, offset, size):
        self.fd, self.offset, self.end = fd, offset, offset + size

    def read(self, size=-1):
        left = self.end - self.offset
        data = os.pread(self.fd, left if size is None or size < 0 else min(size, left), self.offset)
        self.offset += len(data)
        return data


class Digested:
    """Counts and digests what is read, and gives up beyond a limit."""

    def __init__(self, file, algorithm, limit):
        self.file, self.digest, self.size, self.limit = file, hashlib.new(algorithm), 0, limit

    def read(self, size=-1):
        data = self.file.read(size)
        self.digest.update(data)
        self.size += len(data)
        if self.size > self.limit:
            raise Refused(f"more than {self.limit >> 20} MiB come out of the archive: give the disk more room (disk_gb)")
        return data

    def finish(self):
        while self.read(PIECE):
            pass
        return self.digest.hexdigest()


def compression(head):
    return next((name for magic, name in MAGICS if head.startswith(magic)), None)


def by_program(program, source, work, limit):
    """Decompresses by a program into a nameless file."""
    file = tempfile.TemporaryFile(dir=work)
    try:
        child = subprocess.Popen([program, "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Refused(f"the archive is compressed with {program}, which is not installed: apt-get install {program}") from None
    pid = os.fork()
    if pid == 0:    # one feeds, one takes
        child.stdout.close()
        try:
            while data := source.read(PIECE):
                child.stdin.write(data)
            child.stdin.close()
        except OSError:
            pass
        os._exit(0)
    child.stdin.close()
    size = 0
    while data := child.stdout.read(PIECE):
        size += len(data)
        if size > limit:
            child.kill()
            break
        file.write(data)
    child.stdout.close()
    status = child.wait()
    os.waitpid(pid, 0)
    if size > limit:
        raise Refused(f"more than {limit >> 20} MiB come out of the archive: give the disk more room (disk_gb)")
    if status != 0:
        raise Refused(f"the archive is damaged: {program} cannot decompress it")
    file.flush()
    return file


def plain(fd, offset, size, work, limit):
    """A reader of what that part of a file holds, decompressed."""
    kind = compression(os.pread(fd, 8, offset))
    source = Slice(fd, offset, size)
    if kind is None:
        return source
    if kind in ("zstd", "lz4"):
        file = by_program(kind, source, work, limit)
        return Slice(os.dup(file.fileno()), 0, os.fstat(file.fileno()).st_size)
    return gzip.GzipFile(fileobj=source, mode="rb") if kind == "gzip" else Stream(kind, source)


class Stream:
    """xz and bzip2 from a source that cannot seek; several streams behind each other are one."""

    def __init__(self, kind, source):
        self.make = lzma.LZMADecompressor if kind == "xz" else bz2.BZ2Decompressor
        self.source, self.decoder, self.rest = source, None, b""

    def read(self, size=-1):
        while True:
            if self.decoder is None or self.decoder.eof:
                left = self.decoder.unused_data if self.decoder else b""
                left = left or self.source.read(PIECE)
                if not left.strip(b"\0"):
                    return b""
                self.decoder, self.rest = self.make(), left
            data = self.decoder.decompress(self.rest, size if size > 0 else PIECE)
            self.rest = b""
            if data:
                return data
            if not self.decoder.eof and self.decoder.needs_input:
                self.rest = self.source.read(PIECE)
                if not self.rest:
                    raise EOFError("it breaks off")


# ---- one layer into the tree, by a process whose root the tree is ----

class Layer:
    def __init__(self, reader, whiteouts):
        self.reader, self.whiteouts = reader, whiteouts
        self.made, self.folders = set(), []

    @staticmethod
    def path(name):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Refused(f"the archive has an entry that leaves its root: {quoted(name)}")
        if any(len(os.fsencode(part)) > 255 for part in parts) or "\0" in name:
            raise Refused(f"the archive has an entry with an impossible name: {quoted(name)}")
        return "/" + "/".join(parts)

    def unpack(self):
        with tarfile.open(fileobj=self.reader, mode="r|") as tar:
            for entry in tar:
                self.take(tar, entry)
        for path, entry in reversed(self.folders):    # files that came later have changed their times
            if os.path.isdir(path) and not os.path.islink(path):
                os.utime(path, ns=(int(entry.mtime * 1e9),) * 2)
        self.reader.finish()

    def take(self, tar, entry):
        path = self.path(entry.name)
        folder, base = os.path.split(path)
        if self.whiteouts and base.startswith(".wh."):
            self.whiteout(folder, base)
            return
        if path != "/":
            os.makedirs(os.path.realpath(folder), exist_ok=True)    # a link may lead to what is not there yet
        self.make_room(path, entry)
        try:
            self.make(tar, entry, path)
        except OSError as problem:
            raise Refused(f"the entry {quoted(entry.name)} cannot be unpacked: {os.strerror(problem.errno)}") from None
        self.made.add(path)
        if len(self.made) > ENTRIES_MAX:
            raise Refused(f"the archive has more than {ENTRIES_MAX} entries")

    def whiteout(self, folder, base):
        """Hides what lower layers have, never what this one brought."""
        if base == OPAQUE:
            for name in os.listdir(folder) if os.path.isdir(folder) else []:
                self.hide(os.path.join(folder, name))
            return
        hidden = base[len(".wh."):]
        if hidden in ("", ".", ".."):
            raise Refused(f"the archive has a whiteout without a name in {quoted(folder)}")
        self.hide(os.path.join(folder, hidden))

    def hide(self, path):
        if path in self.made:
            if os.path.isdir(path) and not os.path.islink(path):
                for name in os.listdir(path):
                    self.hide(os.path.join(path, name))
        elif os.path.lexists(path):
            inside = any(made.startswith(path + "/") for made in self.made)
            if not inside:
                remove(path)
            else:
                for name in os.listdir(path):
                    self.hide(os.path.join(path, name))

    @staticmethod
    def make_room(path, entry):
        try:
            there = os.lstat(path)
        except FileNotFoundError:
            return
        if not (entry.isdir() and stat.S_ISDIR(there.st_mode)):
            if path == "/":
                raise Refused("the archive's root is no folder")
            remove(path)

    def make(self, tar, entry, path):
        mode = stat.S_IMODE(entry.mode)
        if entry.isdir():
            if not os.path.isdir(path):
                os.mkdir(path)
            self.folders.append((path, entry))
        elif entry.islnk():
            os.link(self.path(entry.linkname), path, follow_symlinks=False)
            return    # it has its first name's owner, mode and times
        elif entry.issym():
            os.symlink(entry.linkname, path)
        elif entry.isreg():
            self.write(tar.extractfile(entry), path, entry.size)
        elif entry.isfifo():
            os.mkfifo(path)
        elif entry.ischr() or entry.isblk():
            kind = stat.S_IFCHR if entry.ischr() else stat.S_IFBLK
            os.mknod(path, kind | 0o600, os.makedev(entry.devmajor, entry.devminor))
        else:
            raise Refused(f"the archive has an entry of a kind that is not known: {quoted(entry.name)}")
        os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
        if not entry.issym():
            os.chmod(path, mode)
        for key, value in entry.pax_headers.items():
            if key.startswith("SCHILY.xattr."):
                os.setxattr(path, key[len("SCHILY.xattr."):], value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        os.utime(path, ns=(int(entry.mtime * 1e9),) * 2, follow_symlinks=False)

    @staticmethod
    def write(source, path, size):
        with open(path, "xb") as file:
            while data := source.read(PIECE):
                if data.count(0) == len(data):
                    file.seek(len(data), os.SEEK_CUR)
                else:
                    file.write(data)
            file.truncate(size)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def unpack_layer(tree, reader, whiteouts, limit, expected):
    """expected: the hex sha256 that the plain bytes must have, or None. Returns how many there were."""
    fd, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(fd)
        reply = {"error": "the unpacking process failed"}
        try:
            digested = Digested(reader, "sha256", limit)
            # Codecs are loaded on first use, and nothing is found in there.
            for codec in ("utf-8", "latin-1", "ascii", "idna"):
                "a".encode(codec)
            os.chroot(tree)
            os.chdir("/")
            os.umask(0o022)
            Layer(digested, whiteouts).unpack()
            reply = {"size": digested.size}
            if expected is not None and digested.digest.hexdigest() != expected:
                reply = {"error": "a layer's content is not what its image says (its digest differs): the archive is damaged"}
        except Refused as refusal:
            reply = {"error": str(refusal)}
        except DAMAGE as damage:
            reply = {"error": f"the archive is damaged or no tar archive: {damage}"}
        except OSError as problem:
            name = f" ({quoted(str(problem.filename))})" if problem.filename else ""
            reply = {"error": f"the archive cannot be unpacked: {os.strerror(problem.errno or errno.EIO)}{name}"}
        os.write(answer, json.dumps(reply)[:4000].encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(fd, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    reply = json.loads(text or b'{"error": "the unpacking process was killed"}')
    if "error" in reply:
        raise Refused(reply["error"])
    return reply["size"]


# ---- images ----

class Archive:
    """The files of an OCI layout or of `docker save`, in a tar archive that is read where it is."""

    def __init__(self, path, work, limit):
        self.fd, size = os.open(path, os.O_RDONLY | os.O_CLOEXEC), os.stat(path).st_size
        self.work, self.limit = work, limit
        if compression(os.pread(self.fd, 8, 0)):
            whole = tempfile.TemporaryFile(dir=work)
            shutil.copyfileobj(Digested(plain(self.fd, 0, size, work, limit), "sha256", limit), whole, PIECE)
            whole.flush()
            self.fd = os.dup(whole.fileno())
        self.members = {}
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for entry in tar:
                    name = os.path.normpath(entry.name).lstrip("/")
                    if entry.isreg() and not entry.issparse():
                        self.members[name] = (entry.offset_data, entry.size)
                    elif entry.issym():    # docker save: a layer that is there already
                        self.members[name] = os.path.normpath(os.path.join(os.path.dirname(name), entry.linkname))

    def find(self, name):
        name = os.path.normpath(name)
        for _ in range(8):
            place = self.members.get(name)
            if not isinstance(place, str):
                break
            name = place
        if not isinstance(place, tuple):
            raise Refused(f"the archive lacks {quoted(name)}, which it says it has: it is cut off or damaged")
        return place

    def has(self, name):
        return name in self.members

    def json(self, name, digest=None):
        offset, size = self.find(name)
        if size > JSON_LIMIT:
            raise Refused(f"{quoted(name)} in the archive is larger than {JSON_LIMIT >> 20} MiB")
        data = os.pread(self.fd, size, offset)
        if digest is not None:
            check_digest(Slice(self.fd, offset, size), digest, name)
        try:
            return json.loads(data)
        except ValueError:
            raise Refused(f"{quoted(name)} in the archive is no JSON: it is damaged") from None

    def reader(self, name):
        return plain(self.fd, *self.find(name), self.work, self.limit)


def check_digest(source, digest, name):
    algorithm, _, value = digest.partition(":")
    if algorithm not in ("sha256", "sha512"):
        raise Refused(f"digests of kind {quoted(algorithm)} are not known")
    if Digested(source, algorithm, 1 << 62).finish() != value:
        raise Refused(f"{quoted(name)} in the archive is not what its digest says: the archive is damaged")


def blob_name(digest):
    if not isinstance(digest, str) or not re.fullmatch(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})", digest):
        raise Refused(f"{quoted(str(digest))} in the archive is no digest")
    return "blobs/" + digest.replace(":", "/", 1)


def choose(found, wanted):
    """found: [(names, thing)]."""
    names = sorted({name for each, _ in found for name in each})
    if wanted is not None:
        found = [(each, thing) for each, thing in found
                 if any(name == wanted or name.split("/")[-1] == wanted or name.rpartition(":")[0] == wanted for name in each)]
    if len(found) == 1:
        return found[0][1]
    listed = ", ".join(names) or "none has a name"
    if not found:
        raise Refused(f"the archive has no image {quoted(wanted)}; there are: {listed}" if wanted else "the archive has no image")
    raise Refused(f"the archive has {len(found)} images; choose one with --image: {listed}")


def oci_manifest(archive, wanted):
    index = archive.json("index.json")
    found = []
    for item in index.get("manifests", []):
        notes = item.get("annotations") or {}
        names = [notes[key] for key in ("org.opencontainers.image.ref.name", "io.containerd.image.name") if key in notes]
        found.append((names, item))
    item = choose(found, wanted)
    for _ in range(4):
        value = archive.json(blob_name(item["digest"]), item["digest"])
        if "manifests" not in value:
            return value
        fitting = [each for each in value["manifests"] if (each.get("platform") or {}).get("os", "linux") == "linux"
                   and (each.get("platform") or {}).get("architecture", "amd64") == "amd64"]
        if not fitting:
            raise Refused("the archive's image is not for linux/amd64, which machines here are")
        item = fitting[0]
    raise Refused("the archive's indexes refer to each other")


def oci_image(archive, wanted):
    manifest = oci_manifest(archive, wanted)
    config = archive.json(blob_name(manifest["config"]["digest"]), manifest["config"]["digest"])
    layers = []
    for layer in manifest["layers"]:
        name = blob_name(layer["digest"])
        check_digest(Slice(archive.fd, *archive.find(name)), layer["digest"], name)
        layers.append(name)
    return config, layers


def docker_image(archive, wanted):
    item = choose([(each.get("RepoTags") or [], each) for each in archive.json("manifest.json")], wanted)
    name = item["Config"]
    digest = re.search(r"([0-9a-f]{64})(\.json)?$", name)
    return archive.json(name, "sha256:" + digest.group(1) if digest else None), item["Layers"]


def defaults_of(config):
    config = config.get("config") or {}
    result = {}
    env = dict(item.split("=", 1) for item in config.get("Env") or [] if "=" in item[1:])
    if env:
        result["env"] = env
    if config.get("WorkingDir"):
        result["cwd"] = config["WorkingDir"]
    user = (config.get("User") or "").split(":")[0]
    if user:
        result["user"] = user
    command = (config.get("Entrypoint") or []) + (config.get("Cmd") or [])
    if command:
        result["command"] = shlex.join(command)
    return result


def unpack_oci(path, tree, config_path, limit, wanted):
    work = os.path.dirname(os.path.abspath(tree))
    try:
        archive = Archive(path, work, limit)
        if archive.has("oci-layout"):
            config, layers = oci_image(archive, wanted)
        elif archive.has("manifest.json"):
            config, layers = docker_image(archive, wanted)
        else:
            raise Refused("the archive is neither an OCI archive (oci-layout) nor one of `docker save` (manifest.json)")
        platform = f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
        if platform != "linux/amd64":
            raise Refused(f"the image is for {platform}; machines here are linux/amd64")
        plain_digests = config["rootfs"]["diff_ids"]
        if len(plain_digests) != len(layers):
            raise Refused(f"the image says that it has {len(plain_digests)} layers, and the archive has {len(layers)}")
        for number, (layer, digest) in enumerate(zip(layers, plain_digests), 1):
            print(f"layer {number} of {len(layers)}", flush=True)
            blob_name(digest)
            limit -= unpack_layer(tree, archive.reader(layer), True, limit, digest.partition(":")[2])
        with open(config_path, "w", encoding="utf-8") as file:
            json.dump(defaults_of(config), file)
    except (KeyError, TypeError, AttributeError):
        raise Refused("the archive's image is not described as one: a field is missing or of a wrong kind") from None


def unpack_tar(path, tree, limit):
    work = os.path.dirname(os.path.abspath(tree))
    with open(path, "rb") as file:
        reader = plain(file.fileno(), 0, os.stat(path).st_size, work, limit)
        unpack_layer(tree, reader, False, limit, None)


def main(kind, path, tree, config_path, limit_mib, wanted=None):
    limit = int(limit_mib) << 20
    os.makedirs(tree, exist_ok=True)
    try:
        if kind == "tar":
            unpack_tar(path, tree, limit)
        else:
            unpack_oci(path, tree, config_path, limit, wanted)
    except Refused as refusal:
        sys.exit(f"image/unpack: {refusal}")
    except DAMAGE as damage:
        sys.exit(f"image/unpack: the archive is damaged or no tar archive: {damage}")
    except OSError as problem:
        sys.exit(f"image/unpack: {problem}")


if __name__ == "__main__":
    main(*sys.argv[1:])
