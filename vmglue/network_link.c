// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_link.h"

#include "vmglue/network_netlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/veth.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- entering a namespace ----

struct visit {
    int netns_fd;
    int (*work)(void *context);
    void *context;
    int result;
};

static void *visit_thread(void *argument)
{
    struct visit *visit = argument;
    int r = visit->netns_fd < 0 ? unshare(CLONE_NEWNET) : setns(visit->netns_fd, CLONE_NEWNET);
    visit->result = r < 0 ? -errno : visit->work(visit->context);
    return NULL;
}

// A namespace is a thread's: a thread of its own needs no way back, which could fail.
int network_link_run(int netns_fd, int (*work)(void *context), void *context)
{
    struct visit visit = {.netns_fd = netns_fd, .work = work, .context = context};
    pthread_t thread;
    int error = pthread_create(&thread, NULL, visit_thread, &visit);
    if (error != 0)
        return -error;
    pthread_join(thread, NULL);
    return visit.result;
}

static int write_setting(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written = fd < 0 ? -1 : write(fd, value, strlen(value));
    int r = written < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r;
}

// ---- single steps; each in the namespace that the socket is of ----

static int bring_up(int fd, unsigned index, const char *alias, const uint8_t *mac)
{
    struct network_netlink_message message;
    struct ifinfomsg link = {.ifi_index = (int)index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    network_netlink_begin(&message, RTM_NEWLINK, 0, &link, sizeof link);
    if (alias != NULL)
        network_netlink_add(&message, IFLA_IFALIAS, alias, strlen(alias));
    if (mac != NULL)
        network_netlink_add(&message, IFLA_ADDRESS, mac, 6);
    return network_netlink_ask(fd, &message);
}

static int add_address(int fd, unsigned index, uint32_t address, unsigned prefix)
{
    struct network_netlink_message message;
    struct ifaddrmsg head = {.ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)prefix, .ifa_index = index};
    network_netlink_begin(&message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    network_netlink_add_u32(&message, IFA_LOCAL, htonl(address));
    network_netlink_add_u32(&message, IFA_ADDRESS, htonl(address));
    return network_netlink_ask(fd, &message);
}

// To one address, or (via != 0) everywhere.
static int add_route(int fd, unsigned index, uint32_t to, uint32_t via)
{
    struct network_netlink_message message;
    struct rtmsg route = {.rtm_family = AF_INET,
            .rtm_dst_len = via != 0 ? 0 : 32,
            .rtm_table = RT_TABLE_MAIN,
            .rtm_protocol = RTPROT_STATIC,
            .rtm_scope = via != 0 ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK,
            .rtm_type = RTN_UNICAST};
    network_netlink_begin(&message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &route, sizeof route);
    if (via != 0)
        network_netlink_add_u32(&message, RTA_GATEWAY, htonl(via));
    else
        network_netlink_add_u32(&message, RTA_DST, htonl(to));
    network_netlink_add_u32(&message, RTA_OIF, index);
    return network_netlink_ask(fd, &message);
}

// ---- the namespace and its tap ----

struct creation {
    int netns_fd, tap_fd;
    struct error *err;
};

static int open_tap(struct creation *creation)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(request.ifr_name, sizeof request.ifr_name, NETWORK_LINK_TAP);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(creation->err, errno == ENOENT ? -EOPNOTSUPP : -errno,
                "/dev/net/tun cannot be opened (%s); load the kernel's module tun (modprobe tun)",
                strerror(errno));
    if (ioctl(fd, TUNSETIFF, &request) < 0) {
        int error = errno;
        close(fd);
        return error_set(creation->err, -error, "a tap device cannot be made: %s", strerror(error));
    }
    creation->tap_fd = fd;
    return 0;
}

// The same address of the card's other end in every namespace: a guest that goes on in another one has it in
// its memory.
static int furnish(int fd)
{
    static const uint8_t gateway_mac[6] = {0x52, 0x55, 0x0a, 0x00, 0x02, 0x02};
    unsigned tap = if_nametoindex(NETWORK_LINK_TAP);
    write_setting("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"); // not there without IPv6
    write_setting("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    int r = write_setting("/proc/sys/net/ipv4/ip_forward", "1");
    write_setting("/proc/sys/net/ipv4/icmp_ratelimit", "0"); // a refusal must not get lost
    if (r == 0)
        r = bring_up(fd, if_nametoindex("lo"), NULL, NULL);
    if (r == 0)
        r = bring_up(fd, tap, NULL, gateway_mac);
    if (r == 0)
        r = add_address(fd, tap, NETWORK_LINK_GUEST_GATEWAY, 24);
    if (r == 0)
        r = add_address(fd, tap, NETWORK_LINK_GUEST_DNS, 32);
    return r;
}

static int create_inside(void *context)
{
    struct creation *creation = context;
    int r = open_tap(creation);
    if (r < 0)
        return r;
    int fd = network_netlink_open();
    r = fd < 0 ? fd : furnish(fd);
    if (fd >= 0)
        close(fd);
    if (r == 0 && (creation->netns_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) < 0)
        r = -errno;
    if (r == 0)
        return 0;
    close(creation->tap_fd);
    return error_set(creation->err, r, "a sandbox's network namespace cannot be furnished: %s", strerror(-r));
}

int network_link_create(int *ret_netns_fd, int *ret_tap_fd, struct error *err)
{
    struct error words = {0};
    struct creation creation = {.err = &words};
    int r = network_link_run(-1, create_inside, &creation);
    if (r == -EPERM)
        return error_set(err, r,
                "a network namespace cannot be made: the daemon must be root (or have CAP_SYS_ADMIN and "
                "CAP_NET_ADMIN)");
    if (r < 0 && words.code == 0)
        return error_set(err, r, "a network namespace cannot be made: %s", strerror(-r));
    if (r < 0) {
        if (err != NULL)
            *err = words;
        return r;
    }
    *ret_netns_fd = creation.netns_fd;
    *ret_tap_fd = creation.tap_fd;
    return 0;
}

int network_link_namespace(int tap_fd, int *ret_netns_fd)
{
    int fd = ioctl(tap_fd, TUNGETDEVNETNS);
    if (fd < 0)
        return -errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    *ret_netns_fd = fd;
    return 0;
}

// ---- the way out ----

static int make_pair(int fd, const char *name, int netns_fd)
{
    struct network_netlink_message message;
    struct ifinfomsg link = {0};
    network_netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link, sizeof link);
    network_netlink_add_text(&message, IFLA_IFNAME, name);
    struct rtattr *info = network_netlink_nest(&message, IFLA_LINKINFO);
    network_netlink_add_text(&message, IFLA_INFO_KIND, "veth");
    struct rtattr *data = network_netlink_nest(&message, IFLA_INFO_DATA);
    struct rtattr *peer = network_netlink_nest(&message, VETH_INFO_PEER);
    network_netlink_add_raw(&message, &link, sizeof link);
    network_netlink_add_text(&message, IFLA_IFNAME, NETWORK_LINK_UP);
    network_netlink_add_u32(&message, IFLA_NET_NS_FD, (uint32_t)netns_fd);
    network_netlink_nest_end(&message, peer);
    network_netlink_nest_end(&message, data);
    network_netlink_nest_end(&message, info);
    return network_netlink_ask(fd, &message);
}

// The kernel's own table says which addresses are taken, by whichever daemon of this host: a route is added
// once only.
static int take_address(int fd, unsigned index, const struct network_link_pair *pair, uint32_t *ret_address)
{
    unsigned count = (1u << (32 - pair->prefix)) - 3; // without the network, the gateway and the last
    int r = -EADDRNOTAVAIL;
    for (unsigned i = 0; i < count; i++) {
        uint32_t address = pair->range + 2 + (pair->first + i) % count;
        r = add_route(fd, index, address, 0);
        if (r == 0)
            *ret_address = address;
        if (r != -EEXIST)
            return r;
    }
    return -EADDRNOTAVAIL;
}

static int furnish_pair(int fd, const struct network_link_pair *pair, uint32_t *ret_address)
{
    char path[96];
    unsigned index = if_nametoindex(pair->name);
    snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", pair->name);
    write_setting(path, "1");
    int r = bring_up(fd, index, pair->alias, NULL);
    if (r == 0)
        r = add_address(fd, index, pair->range + 1, 32);
    return r < 0 ? r : take_address(fd, index, pair, ret_address);
}

struct inside {
    uint32_t address, gateway;
};

static int connect_inside(void *context)
{
    const struct inside *inside = context;
    unsigned index = if_nametoindex(NETWORK_LINK_UP);
    int fd = network_netlink_open();
    if (fd < 0)
        return fd;
    int r = add_address(fd, index, inside->address, 32);
    if (r == 0)
        r = bring_up(fd, index, NULL, NULL);
    if (r == 0)
        r = add_route(fd, index, inside->gateway, 0);
    if (r == 0)
        r = add_route(fd, index, 0, inside->gateway);
    close(fd);
    return r;
}

static int fail_pair(int r, const struct network_link_pair *pair, struct error *err)
{
    if (r == -EOPNOTSUPP)
        return error_set(err, r, "the kernel has no veth devices; load its module (modprobe veth)");
    if (r == -EADDRNOTAVAIL)
        return error_set(err, -EAGAIN,
                "every address for sandboxes' networks is taken; give the daemon a larger --network-range");
    return error_set(
            err, r, "the way out of a sandbox's network (%s) cannot be made: %s", pair->name, strerror(-r));
}

int network_link_connect(int netns_fd, const struct network_link_pair *pair, struct error *err)
{
    struct inside inside = {.gateway = pair->range + 1};
    int fd = network_netlink_open();
    if (fd < 0)
        return fail_pair(fd, pair, err);
    int r = make_pair(fd, pair->name, netns_fd);
    bool made = r == 0;
    if (r == 0)
        r = furnish_pair(fd, pair, &inside.address);
    if (r == 0)
        r = network_link_run(netns_fd, connect_inside, &inside);
    close(fd);
    if (r < 0 && made)
        network_link_remove(pair->name);
    if (r < 0)
        return fail_pair(r, pair, err);
    *pair->ret_address = inside.address;
    return 0;
}

static int address_inside(void *context)
{
    struct ifreq request = {.ifr_addr.sa_family = AF_INET};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), r = fd < 0 ? -errno : 0;
    snprintf(request.ifr_name, sizeof request.ifr_name, NETWORK_LINK_UP);
    if (r == 0 && ioctl(fd, SIOCGIFADDR, &request) < 0)
        r = -errno;
    if (fd >= 0)
        close(fd);
    if (r == 0) {
        struct sockaddr_in address;
        memcpy(&address, &request.ifr_addr, sizeof address);
        *(uint32_t *)context = ntohl(address.sin_addr.s_addr);
    }
    return r;
}

int network_link_address(int netns_fd, uint32_t *ret_address)
{
    return network_link_run(netns_fd, address_inside, ret_address);
}

int network_link_remove(const char *name)
{
    struct network_netlink_message message;
    struct ifinfomsg link = {0};
    int fd = network_netlink_open();
    if (fd < 0)
        return fd;
    network_netlink_begin(&message, RTM_DELLINK, 0, &link, sizeof link);
    network_netlink_add_text(&message, IFLA_IFNAME, name);
    int r = network_netlink_ask(fd, &message);
    close(fd);
    return r;
}

struct listing {
    void (*each)(void *context, const char *name, const char *alias);
    void *context;
};

static void list_one(void *context, const struct nlmsghdr *head)
{
    const struct listing *listing = context;
    struct ifinfomsg *link = NLMSG_DATA(head);
    int left = (int)IFLA_PAYLOAD(head);
    const char *name = NULL, *alias = NULL;
    for (struct rtattr *at = IFLA_RTA(link); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
        if (at->rta_type == IFLA_IFNAME)
            name = RTA_DATA(at);
        if (at->rta_type == IFLA_IFALIAS)
            alias = RTA_DATA(at);
    }
    if (name != NULL && alias != NULL)
        listing->each(listing->context, name, alias);
}

int network_link_list(void (*each)(void *context, const char *name, const char *alias), void *context)
{
    struct listing listing = {each, context};
    struct network_netlink_message message;
    struct ifinfomsg link = {0};
    int fd = network_netlink_open();
    if (fd < 0)
        return fd;
    network_netlink_begin(&message, RTM_GETLINK, NLM_F_DUMP, &link, sizeof link);
    int r = network_netlink_dump(fd, &message, list_one, &listing);
    close(fd);
    return r;
}

// ---- the name server's address ----

struct listener {
    int type, fd;
};

static int listen_inside(void *context)
{
    struct listener *listener = context;
    struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(NETWORK_LINK_GUEST_DNS)};
    int fd = socket(AF_INET, listener->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
            (listener->type == SOCK_STREAM && listen(fd, 16) < 0)) {
        int error = errno;
        close(fd);
        return -error;
    }
    listener->fd = fd;
    return 0;
}

int network_link_dns_socket(int netns_fd, int type, int *ret_fd)
{
    struct listener listener = {.type = type};
    int r = network_link_run(netns_fd, listen_inside, &listener);
    if (r == 0)
        *ret_fd = listener.fd;
    return r;
}
