// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/network.h"

#include "vmglue/guest/boot.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ADDRESSES_MAX = 3 }; // as many as the C library asks

static const char mark[] = "# made by ramet-guest\n";

static void interface_flags_up(int fd, const char *name)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP | IFF_RUNNING;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
}

// "10.0.2.15/24"
static int parse_address(const char *text, struct in_addr *ret_address, struct in_addr *ret_mask)
{
    char copy[40];
    snprintf(copy, sizeof copy, "%s", text);
    char *slash = strchr(copy, '/'), *end = NULL;
    if (slash == NULL)
        return -EINVAL;
    *slash = 0;
    unsigned long prefix = strtoul(slash + 1, &end, 10);
    if (end == slash + 1 || *end != 0 || prefix < 1 || prefix > 32 ||
            inet_pton(AF_INET, copy, ret_address) != 1)
        return -EINVAL;
    ret_mask->s_addr = htonl(~(uint32_t)0 << (32 - prefix));
    return 0;
}

static int set_address(int fd, const char *text)
{
    struct ifreq request = {.ifr_name = "eth0"};
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    struct in_addr address, mask;
    if (parse_address(text, &address, &mask) < 0)
        return -EINVAL;
    in->sin_family = AF_INET;
    in->sin_addr = address;
    if (ioctl(fd, SIOCSIFADDR, &request) < 0)
        return -errno;
    in->sin_addr = mask;
    if (ioctl(fd, SIOCSIFNETMASK, &request) < 0)
        return -errno;
    interface_flags_up(fd, "eth0");
    return 0;
}

static int set_gateway(int fd, const char *gateway)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in any = {.sin_family = AF_INET}, by = {.sin_family = AF_INET};
    bool none = strcmp(gateway, "none") == 0;
    if (!none && inet_pton(AF_INET, gateway, &by.sin_addr) != 1)
        return -EINVAL;
    memcpy(&route.rt_dst, &any, sizeof any);
    memcpy(&route.rt_genmask, &any, sizeof any);
    memcpy(&route.rt_gateway, &any, sizeof any);
    while (ioctl(fd, SIOCDELRT, &route) == 0) // the ones before, whatever they went by
        ;
    memcpy(&route.rt_gateway, &by, sizeof by);
    return none || ioctl(fd, SIOCADDRT, &route) == 0 ? 0 : -errno;
}

// Whether there is nothing in the file, or what an earlier boot put there.
static bool resolver_is_ours(void)
{
    static const char older[] = "# made at boot by ramet-guest\n";
    char text[100] = "";
    int fd = open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return true;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got == 0 || strncmp(text, mark, strlen(mark)) == 0 || strncmp(text, older, strlen(older)) == 0;
}

// Imported images often have a link to a file below /run that their own init would make.
static const char *resolver_path(char *ret_target, size_t size)
{
    ssize_t got = readlink("/etc/resolv.conf", ret_target, size - 1);
    ret_target[got > 0 ? got : 0] = 0;
    char *run = strstr(ret_target, "/run/");
    if (run == NULL)
        return "/etc/resolv.conf";
    for (char *slash = strchr(run + 5, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(run, 0755);
        *slash = '/';
    }
    return run;
}

// "none" empties the file: the C library then asks this machine itself, and is refused at once.
static int set_name_servers(const char *list)
{
    char copy[200], target[300], text[400];
    size_t size = (size_t)snprintf(text, sizeof text, "%s", mark);
    struct in6_addr ignored_address;
    int count = 0;
    snprintf(copy, sizeof copy, "%s", strcmp(list, "none") == 0 ? "" : list);
    for (char *at = strtok(copy, " ,"); at != NULL; at = strtok(NULL, " ,")) {
        bool four = inet_pton(AF_INET, at, &ignored_address) == 1;
        if ((!four && inet_pton(AF_INET6, at, &ignored_address) != 1) || ++count > ADDRESSES_MAX)
            return -EINVAL;
        size += (size_t)snprintf(text + size, sizeof text - size, "nameserver %s\n", at);
    }
    int fd = open(resolver_path(target, sizeof target), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK,
            0644);
    if (fd < 0)
        return -errno;
    ssize_t written = write(fd, text, size);
    int result = written < 0 ? -errno : (size_t)written < size ? -ENOSPC : 0;
    close(fd);
    return result;
}

static void warn(const char *what, int result)
{
    if (result < 0)
        boot_say("%s: %s", what, strerror(-result));
}

void network_boot(void)
{
    char address[64], gateway[64], servers[200];
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    interface_flags_up(fd, "lo");
    boot_write_setting("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    if (access("/sys/class/net/eth0", F_OK) == 0) {
        boot_parameter("ramet.address", "10.0.2.15/24", address, sizeof address);
        boot_parameter("ramet.gateway", "10.0.2.2", gateway, sizeof gateway);
        // There in every machine, so that what is behind the card can change: a look-up that may not be is
        // refused.
        boot_parameter("ramet.dns", "10.0.2.3", servers, sizeof servers);
        // After its address was changed the card tells its neighbours.
        boot_write_setting("/proc/sys/net/ipv4/conf/eth0/arp_notify", "1");
        warn("ramet.address", set_address(fd, address));
        warn("ramet.gateway", set_gateway(fd, gateway));
        if (resolver_is_ours())
            warn("ramet.dns", set_name_servers(servers));
    }
    close(fd);
}

static bool good_host_name(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.");
    return length == strlen(name) && length <= 64 && name[0] != '-' && name[0] != '.';
}

void network_start(uint32_t stream, struct agent_cursor fields)
{
    const char *address = agent_cursor_string(&fields), *gateway = agent_cursor_string(&fields);
    const char *servers = agent_cursor_string(&fields), *name = agent_cursor_string(&fields);
    const char *failed = "the request cannot be read";
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int result = fields.bad ? -EINVAL : fd < 0 ? -errno : 0;
    if (result == 0 && !good_host_name(name)) {
        failed = "the name is no host name";
        result = -EINVAL;
    }
    if (result == 0 && address[0] != 0) {
        failed = "the address (10.0.2.15/24 is one, with its prefix) cannot be set";
        result = set_address(fd, address);
    }
    if (result == 0 && gateway[0] != 0) {
        failed = "the gateway (an IPv4 address in the card's network) cannot be set";
        result = set_gateway(fd, gateway);
    }
    if (result == 0 && servers[0] != 0) {
        failed = "the name servers (up to three addresses) cannot be set";
        result = set_name_servers(servers);
    }
    if (result == 0 && name[0] != 0) {
        failed = "the hosts file cannot be written";
        result = identity_hosts(name);
    }
    if (fd >= 0)
        close(fd);
    char sentence[300];
    snprintf(sentence, sizeof sentence, "%s: %s", failed, strerror(-result));
    job_result(stream, result, result < 0 ? sentence : "", NULL);
}
