// SPDX-License-Identifier: Apache-2.0
// What the agent sets up in a real machine: a root disk that grew, the network card, files that came along,
// and connections to what listens there.
#include "tests/e2e/cases.h"

#include "snapshot/txn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MORE_BYTES = 128 << 20 };

static struct machine *boot_grown(struct rig *rig)
{
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    struct volume_id disk = txn_volume_create(txn, "", VOLUME_DISK, 0, rig->image);
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("making a disk: %s", err.text);
    txn = txn_begin(rig->store);
    txn_volume_resize(txn, disk, rig->image_bytes + MORE_BYTES);
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("growing a disk: %s", err.text);
    return machine_boot_disk(rig, "setup", disk);
}

static long long number_of(struct machine *machine, const char *command)
{
    char *text = machine_shell(machine, "%s", command);
    long long number = atoll(text);
    free(text);
    return number;
}

static void disk_grows(struct machine *machine)
{
    static const char size[] = "df --output=size -B1 / | tail -1";
    struct error err;
    uint64_t bytes = 0;
    long long before = number_of(machine, size);
    if (agent_disk_grow(machine->agent, 0, &bytes, &err) < 0)
        rig_fail("agent_disk_grow: %s", err.text);
    if (bytes != machine->rig->image_bytes + MORE_BYTES ||
            number_of(machine, size) < before + (MORE_BYTES / 10) * 9)
        rig_fail("the file system did not grow: %lld bytes before, %lld after", before,
                number_of(machine, size));
    if (agent_disk_mount(machine->agent, 0, "/mnt/again", false, &err) != -EBUSY ||
            agent_disk_mount(machine->agent, 1, "/mnt/none", true, &err) != -ENODEV)
        rig_fail("a disk was mounted that cannot be");
}

static void network_is_set(struct machine *machine)
{
    struct error err;
    struct agent_network network = {.address = "10.9.8.7/22",
            .gateway = "10.9.8.1",
            .name_servers = "10.9.8.2 10.9.8.3",
            .host_name = "named.example"};
    if (number_of(machine, "[ -e /sys/class/net/eth0 ] && echo 1 || echo 0") == 0)
        return;
    if (agent_network_set(machine->agent, &network, &err) < 0)
        rig_fail("agent_network_set: %s", err.text);
    free(machine_shell(machine, "ip -4 addr show eth0 | grep -q 'inet 10.9.8.7/22 ' && ip route | grep -q "
                                "'default via 10.9.8.1' && "
                                "[ $(grep -c nameserver /etc/resolv.conf) = 2 ] && grep -q "
                                "'127.0.1.1.named.example' /etc/hosts"));
    network = (struct agent_network){.gateway = "none", .name_servers = "none"};
    if (agent_network_set(machine->agent, &network, &err) < 0)
        rig_fail("agent_network_set: %s", err.text);
    free(machine_shell(machine, "! ip route | grep -q default && ! grep -q nameserver /etc/resolv.conf"));
}

static void files_came_along(struct machine *machine)
{
    free(machine_shell(machine,
            "[ \"$(stat -c '%%U %%a' /run/ramet/context/supervisor.py)\" = 'root 644' ] && "
            "! touch /run/ramet/context/mine 2> /dev/null && ! rm -f /run/ramet/context/supervisor.py 2> "
            "/dev/null"));
}

static void read_answer(int fd, char *text, size_t capacity)
{
    size_t size = 0;
    for (;;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, 60000) != 1)
            rig_fail("no answer came from the guest's port");
        ssize_t got = recv(fd, text + size, capacity - 1 - size, 0);
        if (got < 0 && errno == EAGAIN)
            continue;
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    text[size] = '\0';
}

static void ports_answer(struct machine *machine)
{
    struct agent_job job;
    struct error err;
    static char text[65536];
    static const char server[] = "import socket\n"
                                 "c = socket.create_server(('127.0.0.1', 8000)).accept()[0]\n"
                                 "c.sendall(c.recv(100) + open('supervisor.py', 'rb').read())\n";
    const char *argv[] = {"python3", "-S", "-c", server, NULL};
    int fd = -1, r;
    if (agent_job_start(machine->agent, &(struct agent_exec){.argv = argv, .cwd = "/run/ramet/context"},
                "web", &job, &err) < 0)
        rig_fail("agent_job_start: %s", err.text);
    while ((r = agent_dial(machine->agent, "tcp:8000", 0, &fd, &err)) == -ECONNREFUSED)
        usleep(20000);
    if (r < 0)
        rig_fail("agent_dial: %s", err.text);
    if (send(fd, "hello ", 6, MSG_NOSIGNAL) != 6)
        rig_fail("the connection takes no bytes");
    read_answer(fd, text, sizeof text);
    close(fd);
    if (strncmp(text, "hello # SPDX", 12) != 0)
        rig_fail("the guest's port answered %.100s", text);
    if (agent_job_remove(machine->agent, job.id, true, &err) < 0)
        rig_fail("agent_job_remove: %s", err.text);
}

void case_setup(struct rig *rig)
{
    struct machine *machine = boot_grown(rig);
    disk_grows(machine);
    network_is_set(machine);
    files_came_along(machine);
    ports_answer(machine);
    machine_end(machine, false);
}
