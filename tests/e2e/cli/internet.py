# SPDX-License-Identifier: Apache-2.0
"""A small Internet in a network namespace: servers on 198.18.113.0/24, a name server, the cloud's metadata address and a
private network behind it. Run as a program it is what runs inside."""
import os
import socket
import struct
import subprocess
import sys
import threading

HOST, SERVER, EDGE, OTHER = "198.18.113.1", "198.18.113.10", "198.18.113.11", "198.18.113.12"
METADATA, PRIVATE = "169.254.169.254", "192.168.77.10"
PORTS = (80, 443, 8080)
TTL_SECS = 3600    # so long an address stays open to who asked for it: longer than the slowest test
# name: (other name or None, addresses)
NAMES = {
    "good.example": (None, [SERVER]), "deep.below.example": (None, [EDGE]), "port.example": (None, [OTHER]),
    "alias.example": ("edge.example.net", [EDGE]), "edge.example.net": (None, [EDGE]),
    "loop.rebind.example": (None, ["127.0.0.1"]), "private.rebind.example": (None, [PRIVATE]),
    "metadata.rebind.example": (None, [METADATA]), "mixed.rebind.example": (None, [SERVER, PRIVATE]),
    "other.example": (None, [OTHER]),
}


# ---- inside ----

def encode(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def answer(query):
    end = 12
    labels = []
    while query[end]:
        labels.append(query[end + 1:end + 1 + query[end]].decode().lower())
        end += query[end] + 1
    question = query[12:end + 5]
    kind = struct.unpack(">H", query[end + 1:end + 3])[0]
    name = ".".join(labels)
    alias, addresses = NAMES.get(name, (None, []))
    records = []
    if alias:
        records.append(b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, TTL_SECS, len(encode(alias))) + encode(alias))
    if kind == 1:
        owner = encode(alias) if alias else b"\xc0\x0c"
        records += [owner + struct.pack(">HHIH", 1, 1, TTL_SECS, 4) + socket.inet_aton(a) for a in addresses]
    flags = 0x8180 | (0 if name in NAMES else 3)
    return query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)


def serve_names():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((SERVER, 53))
    while True:
        query, client = udp.recvfrom(4096)
        udp.sendto(answer(query), client)


def name_stream(connection):
    while head := connection.recv(2, socket.MSG_WAITALL):
        reply = answer(connection.recv(struct.unpack(">H", head)[0], socket.MSG_WAITALL))
        connection.sendall(struct.pack(">H", len(reply)) + reply)


def greet(connection):
    connection.sendall(f"hello {connection.getpeername()[0]}\n".encode())
    while data := connection.recv(4096):
        connection.sendall(data)


def guarded(handle, connection):
    with connection:
        try:
            handle(connection)
        except OSError:
            pass


def accept_all(address, handle):
    listener = socket.create_server(address, backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=guarded, args=(handle, connection), daemon=True).start()


def inside():
    jobs = [(serve_names, ()), (accept_all, ((SERVER, 53), name_stream))]
    jobs += [(accept_all, (("0.0.0.0", port), greet)) for port in PORTS]
    for target, arguments in jobs:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    # Who looks on must be able to tell that all of it listens.
    print("ready", flush=True)
    sys.stdin.read()


# ---- outside ----

def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class Internet:
    def __init__(self):
        self.name = f"ramet-net-{os.getpid()}"
        self.link = f"rtn{os.getpid()}"
        self.process = None
        with open("/proc/sys/net/ipv4/ip_forward") as file:
            self.forward = file.read()

    def start(self):
        run("ip", "netns", "add", self.name)
        inside_link = ("ip", "-n", self.name)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "wan", "netns", self.name)
        run("ip", "addr", "add", HOST + "/24", "dev", self.link)
        run("ip", "link", "set", self.link, "up")
        for address in (SERVER + "/24", EDGE + "/24", OTHER + "/24", METADATA + "/32", PRIVATE + "/32"):
            run(*inside_link, "addr", "add", address, "dev", "wan")
        run(*inside_link, "link", "set", "lo", "up")
        run(*inside_link, "link", "set", "wan", "up")
        for address in (METADATA, PRIVATE):
            run("ip", "route", "add", address + "/32", "via", SERVER)
        self.process = subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, os.path.abspath(__file__)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError("the servers of the test's Internet did not start")

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
        subprocess.run(["ip", "link", "del", self.link], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write(self.forward)


if __name__ == "__main__":
    inside()
