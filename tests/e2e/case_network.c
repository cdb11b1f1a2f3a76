// SPDX-License-Identifier: Apache-2.0
// A guest does not reach servers on the host's loopback addresses, where the daemon's like and people's
// credentials helpers listen. That the attempt would be noticed is shown by the kind of network that does
// reach them.
#include "tests/e2e/cases.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_on_loopback(unsigned *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 8) != 0 ||
            getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        rig_fail("cannot listen on a loopback address: %s", strerror(errno));
    *ret_port = ntohs(address.sin_port);
    return fd;
}

// Whether a guest with this kind of network gets a connection to the host's loopback, by the host's name for
// the guest.
static bool reaches(struct rig *rig, enum vm_network network, int listen_fd, unsigned port)
{
    rig->shape.network = network;
    struct machine *machine = machine_boot(rig, vm_network_name(network));
    char *said = machine_shell(machine,
            "i=$(ls /sys/class/net | grep -v '^lo$' | head -n 1); sudo ip link set \"$i\" up; "
            "sudo ip addr add 10.0.2.15/24 dev \"$i\" 2> /dev/null; "
            "timeout 20 bash -c 'echo hello > /dev/tcp/10.0.2.2/%u' 2> /dev/null && echo reached || echo not "
            "reached",
            port);
    machine_end(machine, false);
    // slirp may accept for the guest what it then cannot pass on: what counts is what arrives at the host.
    int fd = accept(listen_fd, NULL, NULL);
    if (fd >= 0)
        close(fd);
    printf("network '%s': the guest says %s", vm_network_name(network), said);
    free(said);
    return fd >= 0;
}

void case_network(struct rig *rig)
{
    unsigned port;
    int fd = listen_on_loopback(&port);
    if (!reaches(rig, VM_NETWORK_USER, fd, port))
        rig_fail("even network 'user' does not reach the host's loopback: this test shows nothing");
    if (reaches(rig, VM_NETWORK_RESTRICTED, fd, port))
        rig_fail("a guest with network 'restricted' reached a server on the host's loopback address");
    close(fd);
}
