// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network.h"

#include "vmglue/network_dns.h"
#include "vmglue/network_link.h"
#include "vmglue/network_nft.h"
#include "vmglue/network_rules.h"
#include "vmglue/network_table.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME_PREFIX "rmt" // of the host's interfaces
enum { ID_PREFIX_SIZE = 4, ID_SIZE = 32, TAG_SIZE = 64 };

struct cable {
    struct cable *next; // (lock)
    char id[ID_SIZE];
    int netns_fd;
    bool outside; // changed by calls on this sandbox alone, which do not overlap
};

struct network {
    struct network_config config;
    char tag[TAG_SIZE];
    struct network_dns *dns;
    struct network_table *table;
    pthread_mutex_t lock;     // guards what is marked (lock)
    struct cable *cables;     // (lock)
    pthread_mutex_t try_lock; // held while the host is tried: guards what is marked (try)
    bool able[2];             // (try) without, with a way out
};

__attribute__((format(printf, 2, 3))) static void say(struct network *network, const char *format, ...)
{
    char text[600];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (network->config.log != NULL)
        network->config.log(network->config.context, text);
}

// sbx_0123456789ab has rmt0123456789ab.
static void name_of(const char *id, char ret_name[NETWORK_RULES_NAME_SIZE])
{
    snprintf(ret_name, NETWORK_RULES_NAME_SIZE, NAME_PREFIX "%.12s",
            strlen(id) > ID_PREFIX_SIZE ? id + ID_PREFIX_SIZE : "");
}

// Called by the name server.
static int admit(void *context, const char *name, const uint32_t *addresses, unsigned count, uint16_t port,
        unsigned seconds)
{
    struct network *network = context;
    return network_table_admit(network->table, name, addresses, count, port, seconds);
}

// ---- the way out ----

static int inside_rules(void *context)
{
    return network_nft_run_here(network_rules_inside(), context);
}

static int inside_remove(void *context)
{
    return network_nft_run_here(network_rules_inside_remove(), context);
}

static int switch_forwarding_on(struct network *network, struct error *err)
{
    static const char path[] = "/proc/sys/net/ipv4/ip_forward";
    char now = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool on = fd >= 0 && read(fd, &now, 1) == 1 && now != '0';
    if (fd >= 0)
        close(fd);
    if (on)
        return 0;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    int r = fd < 0 || write(fd, "1", 1) != 1 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    if (r < 0)
        return error_set(err, r, "%s cannot be switched on: %s", path, strerror(-r));
    say(network, "net.ipv4.ip_forward was 0 and is 1 now: sandboxes' networks need it; it stays so");
    return 0;
}

static int serve_names(
        struct network *network, int netns_fd, const char *name, const struct network_policy *policy)
{
    int udp_fd = -1, tcp_fd = -1;
    int r = network_link_dns_socket(netns_fd, SOCK_DGRAM, &udp_fd);
    if (r == 0 && (r = network_link_dns_socket(netns_fd, SOCK_STREAM, &tcp_fd)) < 0)
        close(udp_fd);
    return r < 0 ? r : network_dns_serve(network->dns, name, policy, udp_fd, tcp_fd);
}

static void lead_in(struct network *network, struct cable *cable)
{
    char name[NETWORK_RULES_NAME_SIZE];
    name_of(cable->id, name);
    network_dns_forget(network->dns, name);
    network_link_remove(name);
    cable->outside = false;
    network_table_remove(network->table, name);
    network_link_run(cable->netns_fd, inside_remove, NULL);
}

static int lead_out(
        struct network *network, struct cable *cable, const struct network_policy *policy, struct error *err)
{
    char name[NETWORK_RULES_NAME_SIZE], alias[TAG_SIZE + ID_SIZE];
    uint32_t address = 0;
    struct error inside = {0};
    name_of(cable->id, name);
    snprintf(alias, sizeof alias, "%s/%s", network->tag, cable->id);
    struct network_link_pair pair = {.name = name,
            .alias = alias,
            .range = network->config.range,
            .prefix = network->config.prefix,
            .first = (unsigned)strtoul(name + sizeof NAME_PREFIX - 1, NULL, 16) & 0xffff,
            .ret_address = &address};
    cable->outside = true;
    int r = switch_forwarding_on(network, err);
    if (r == 0)
        r = network_table_close(network->table, name, err);
    if (r == 0)
        r = network_link_connect(cable->netns_fd, &pair, err);
    if (r == 0 && (r = network_link_run(cable->netns_fd, inside_rules, &inside)) < 0)
        error_set(err, r, "the rules in a sandbox's namespace cannot be made: %s",
                inside.code != 0 ? inside.text : strerror(-r));
    if (r == 0 && (r = serve_names(network, cable->netns_fd, name, policy)) < 0)
        error_set(err, r, "the sandbox's name server cannot listen: %s", strerror(-r));
    if (r == 0)
        r = network_table_apply(network->table, name, address, policy, err);
    if (r < 0)
        lead_in(network, cable);
    return r;
}

// ---- cables ----

static struct cable *find(struct network *network, const char *id)
{
    pthread_mutex_lock(&network->lock);
    struct cable *cable = network->cables;
    while (cable != NULL && strcmp(cable->id, id) != 0)
        cable = cable->next;
    pthread_mutex_unlock(&network->lock);
    return cable;
}

static int add_cable(struct network *network, const char *id, int netns_fd, struct cable **ret_cable)
{
    struct cable *cable = calloc(1, sizeof *cable);
    if (cable == NULL)
        return -ENOMEM;
    snprintf(cable->id, sizeof cable->id, "%s", id);
    cable->netns_fd = netns_fd;
    pthread_mutex_lock(&network->lock);
    cable->next = network->cables;
    network->cables = cable;
    pthread_mutex_unlock(&network->lock);
    *ret_cable = cable;
    return 0;
}

int network_attach(struct network *network, const char *id, const struct network_policy *policy,
        int *ret_tap_fd, struct error *err)
{
    struct cable *cable;
    int netns_fd, tap_fd;
    network_detach(network, id);
    int r = network_link_create(&netns_fd, &tap_fd, err);
    if (r < 0)
        return r;
    r = add_cable(network, id, netns_fd, &cable);
    if (r < 0) {
        close(netns_fd);
        close(tap_fd);
        return error_set(err, r, "no memory for a sandbox's network");
    }
    if (policy->kind != NETWORK_NONE)
        r = lead_out(network, cable, policy, err);
    if (r < 0) {
        network_detach(network, id);
        close(tap_fd);
        return r;
    }
    *ret_tap_fd = tap_fd;
    return 0;
}

// What stands is kept, with the connections that it allowed.
static int adopt_outside(
        struct network *network, struct cable *cable, const struct network_policy *policy, struct error *err)
{
    char name[NETWORK_RULES_NAME_SIZE];
    uint32_t address;
    name_of(cable->id, name);
    if (network_link_address(cable->netns_fd, &address) < 0) {
        lead_in(network, cable);
        return lead_out(network, cable, policy, err);
    }
    cable->outside = true;
    int r = network_table_adopt(network->table, name, address, policy, err);
    if (r == 0 && (r = serve_names(network, cable->netns_fd, name, policy)) < 0)
        error_set(err, r, "the sandbox's name server cannot listen: %s", strerror(-r));
    return r;
}

int network_adopt(struct network *network, const char *id, int tap_fd, const struct network_policy *policy,
        struct error *err)
{
    struct cable *cable;
    int netns_fd;
    int r = network_link_namespace(tap_fd, &netns_fd);
    if (r < 0)
        return error_set(err, r, "the namespace of the sandbox's network cannot be told: %s", strerror(-r));
    r = add_cable(network, id, netns_fd, &cable);
    if (r < 0)
        close(netns_fd);
    if (r < 0)
        return error_set(err, r, "the sandbox's network cannot be taken over: %s", strerror(-r));
    if (policy->kind != NETWORK_NONE)
        return adopt_outside(network, cable, policy, err);
    uint32_t address;
    if (network_link_address(netns_fd, &address) == 0)
        lead_in(network, cable); // a change to "none" was cut short
    return 0;
}

int network_change(
        struct network *network, const char *id, const struct network_policy *policy, struct error *err)
{
    char name[NETWORK_RULES_NAME_SIZE];
    uint32_t address;
    struct cable *cable = find(network, id);
    name_of(id, name);
    if (cable == NULL)
        return policy->kind == NETWORK_NONE ? 0
                                            : error_set(err, -EBUSY,
                                                      "this machine was started without a network cable; "
                                                      "stop it and start it again");
    if (policy->kind == NETWORK_NONE) {
        lead_in(network, cable);
        return 0;
    }
    if (!cable->outside)
        return lead_out(network, cable, policy, err);
    // Names first: what the old policy admits from here on would outlive it.
    int r = network_dns_change(network->dns, name, policy);
    if (r == -ENOENT)
        r = serve_names(network, cable->netns_fd, name, policy);
    if (r == 0)
        r = network_link_address(cable->netns_fd, &address);
    if (r < 0)
        return error_set(err, r, "the sandbox's network cannot be changed: %s", strerror(-r));
    return network_table_apply(network->table, name, address, policy, err);
}

static void forget_cable(struct network *network, struct cable *cable)
{
    pthread_mutex_lock(&network->lock);
    struct cable **link = &network->cables;
    while (*link != cable)
        link = &(*link)->next;
    *link = cable->next;
    pthread_mutex_unlock(&network->lock);
    close(cable->netns_fd);
    free(cable);
}

static int read_counter(const char *name, const char *counter, uint64_t *ret_value)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s", name, counter);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -errno;
    int found = fscanf(file, "%" SCNu64, ret_value);
    fclose(file);
    return found == 1 ? 0 : -EIO;
}

int network_counters(struct network *network, const char *id, uint64_t *ret_received, uint64_t *ret_sent)
{
    char name[NETWORK_RULES_NAME_SIZE];
    uint64_t in, out;
    name_of(id, name);
    int r = read_counter(name, "rx_bytes", &in); // of the host's end: what the guest sent
    if (r == 0)
        r = read_counter(name, "tx_bytes", &out);
    if (r < 0)
        return r;
    *ret_received = out;
    *ret_sent = in;
    return 0;
}

void network_detach(struct network *network, const char *id)
{
    char name[NETWORK_RULES_NAME_SIZE];
    struct cable *cable = find(network, id);
    name_of(id, name);
    bool outside = cable != NULL && cable->outside;
    network_dns_forget(network->dns, name);
    int r = network_link_remove(name); // of an earlier daemon's, too
    if (cable != NULL)
        forget_cable(network, cable);
    // Rules stay where the link could not be taken away; one that could not be taken over went with its VMM.
    if (r == 0 || (r == -ENODEV && (outside || network_table_knows(network->table, name))))
        network_table_remove(network->table, name);
}

// ---- left-overs ----

struct sweep {
    struct network *network;
    char (*ids)[ID_SIZE];
    size_t count;
};

static void keep_id(struct sweep *sweep, const char *id)
{
    void *grown = realloc(sweep->ids, (sweep->count + 1) * sizeof *sweep->ids);
    if (grown == NULL)
        return;
    sweep->ids = grown;
    snprintf(sweep->ids[sweep->count++], ID_SIZE, "%s", id);
}

static void sweep_link(void *context, const char *name, const char *alias)
{
    struct sweep *sweep = context;
    size_t size = strlen(sweep->network->tag);
    if (strncmp(alias, sweep->network->tag, size) == 0 && alias[size] == '/')
        keep_id(sweep, alias + size + 1);
}

static void sweep_rules(void *context, const char *name)
{
    char id[ID_SIZE];
    if (strncmp(name, NAME_PREFIX, sizeof NAME_PREFIX - 1) != 0)
        return;
    snprintf(id, sizeof id, "sbx_%s", name + sizeof NAME_PREFIX - 1);
    keep_id(context, id);
}

void network_sweep(struct network *network, bool (*wanted)(void *context, const char *id), void *context)
{
    struct sweep sweep = {.network = network};
    char name[NETWORK_RULES_NAME_SIZE];
    network_link_list(sweep_link, &sweep);
    size_t links = sweep.count;
    network_table_list(network->table, sweep_rules, &sweep);
    for (size_t i = 0; i < sweep.count; i++) {
        name_of(sweep.ids[i], name);
        if (!wanted(context, sweep.ids[i])) {
            network_detach(network, sweep.ids[i]);
            network_table_remove(network->table, name);
        } else if (i < links && find(network, sweep.ids[i]) == NULL) {
            network_table_close(network->table, name, NULL); // it runs, but could not be taken over
        }
    }
    free(sweep.ids);
    network_table_settle(network->table);
}

// ---- what this host can ----

static int check_range(const struct network *network, struct error *err)
{
    uint32_t mask = UINT32_MAX << (32 - network->config.prefix);
    struct ifaddrs *list = NULL;
    int r = 0;
    if (getifaddrs(&list) < 0)
        return 0;
    for (struct ifaddrs *at = list; at != NULL && r == 0; at = at->ifa_next) {
        struct sockaddr_in address;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET ||
                strncmp(at->ifa_name, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0)
            continue;
        memcpy(&address, at->ifa_addr, sizeof address);
        if (((ntohl(address.sin_addr.s_addr) ^ network->config.range) & mask) == 0)
            r = error_set(err, -EADDRINUSE,
                    "the host's interface %s has an address in the range of the sandboxes' networks; give "
                    "the "
                    "daemon another --network-range",
                    at->ifa_name);
    }
    freeifaddrs(list);
    return r;
}

// Everything that a sandbox with a way out needs, made and taken away again.
static int try_outside(struct network *network, int netns_fd, struct error *err)
{
    char name[NETWORK_RULES_NAME_SIZE];
    uint32_t address;
    snprintf(name, sizeof name, "rmy%d", (int)getpid());
    struct network_link_pair pair = {.name = name,
            .alias = "ramet-try",
            .range = network->config.range,
            .prefix = network->config.prefix,
            .ret_address = &address};
    int r = check_range(network, err);
    if (r == 0)
        r = switch_forwarding_on(network, err);
    if (r == 0)
        r = network_table_try(network->table, err);
    if (r == 0)
        r = network_link_connect(netns_fd, &pair, err);
    if (r == 0)
        network_link_remove(name);
    return r;
}

int network_able(struct network *network, bool outside, struct error *err)
{
    int netns_fd, tap_fd, r = 0;
    pthread_mutex_lock(&network->try_lock);
    if (!network->able[outside]) {
        r = network_link_create(&netns_fd, &tap_fd, err);
        if (r == 0) {
            r = outside ? try_outside(network, netns_fd, err) : 0;
            close(tap_fd);
            close(netns_fd);
        }
        network->able[outside] = r == 0;
    }
    pthread_mutex_unlock(&network->try_lock);
    return r;
}

// ---- open, close ----

int network_open(const struct network_config *config, struct network **ret_network, struct error *err)
{
    uint32_t mask = config->prefix == 0 ? 0 : UINT32_MAX << (32 - config->prefix);
    if (config->prefix < 8 || config->prefix > 24 || (config->range & ~mask) != 0)
        return error_set(err, -EINVAL,
                "the range of the sandboxes' networks must be a network of 8 to 24 bits, such "
                "as " NETWORK_DEFAULT_RANGE);
    struct network *network = calloc(1, sizeof *network);
    if (network == NULL)
        return error_set(err, -ENOMEM, "no memory");
    network->config = *config;
    snprintf(network->tag, sizeof network->tag, "%s", config->tag);
    pthread_mutex_init(&network->lock, NULL);
    pthread_mutex_init(&network->try_lock, NULL);
    struct network_rules_host host = {
            .range = config->range, .prefix = config->prefix, .private_networks = config->private_networks};
    snprintf(host.table, sizeof host.table, "%s", config->tag);
    for (char *c = host.table; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    struct network_dns_config dns = {.resolver = config->resolver, .admit = admit, .context = network};
    int r = network_table_create(&host, config->log, config->context, &network->table, err);
    if (r == 0)
        r = network_dns_start(&dns, &network->dns, err);
    if (r < 0) {
        network_close(network);
        return r;
    }
    *ret_network = network;
    return 0;
}

struct network *network_close(struct network *network)
{
    if (network == NULL)
        return NULL;
    network_dns_stop(network->dns);
    network_table_destroy(network->table);
    while (network->cables != NULL)
        forget_cable(network, network->cables);
    pthread_mutex_destroy(&network->lock);
    pthread_mutex_destroy(&network->try_lock);
    free(network);
    return NULL;
}
