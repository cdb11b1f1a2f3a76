// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network.h"

#include "vmglue/network_dns.h"
#include "vmglue/network_link.h"
#include "vmglue/network_nft.h"
#include "vmglue/network_rules.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME_PREFIX "rmt" // of the host's interfaces
enum { ID_PREFIX_SIZE = 4, ID_SIZE = 32, TAG_SIZE = 64, MARK = 0x52000000, MARK_BITS = 0x00ffffff };

struct cable {
    struct cable *next; // (lock)
    char id[ID_SIZE];
    int netns_fd;
    bool outside;
};

struct network {
    struct network_config config;
    char tag[TAG_SIZE];
    struct network_rules_host host;
    struct network_dns *dns;
    pthread_mutex_t lock; // guards what is marked (lock)
    struct cable *cables; // (lock)
    pthread_mutex_t
            rules;    // rank above lock; held while the table comes and goes: guards what is marked (rules)
    bool table_ready; // (rules)
    bool settled;     // (rules) every cable of this store is known
    bool able[2];     // (rules) without, with a way out
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

// ---- rules ----

static int run_text(char *text, struct error *err)
{
    int r = text == NULL ? error_set(err, -ENOMEM, "no memory for the rules of a network")
                         : network_nft_run(text, err);
    free(text);
    return r;
}

// With the base when it is not there, or not any more: somebody may have flushed the host's whole ruleset.
static int run_rules_locked(struct network *network, char *text, struct error *err)
{
    int r = text == NULL ? -ENOMEM : 0;
    for (unsigned attempt = 0; text != NULL && attempt < 2; attempt++) {
        r = network->table_ready ? 0 : run_text(network_rules_base(&network->host), err);
        network->table_ready = r == 0;
        if (r == 0)
            r = network_nft_run(text, err);
        if (r != -ENOENT)
            break;
        network->table_ready = false;
    }
    free(text);
    return r;
}

static int run_rules(struct network *network, char *text, struct error *err)
{
    pthread_mutex_lock(&network->rules);
    int r = run_rules_locked(network, text, err);
    pthread_mutex_unlock(&network->rules);
    return r;
}

static int apply(struct network *network, const char *name, uint32_t address,
        const struct network_policy *policy, struct error *err)
{
    struct network_rules_guest guest = {.address = address};
    // Unlike the one before, also when that was another daemon's.
    if (getrandom(&guest.mark, sizeof guest.mark, 0) != sizeof guest.mark)
        return error_set(err, -EIO, "the kernel gives no random bytes");
    guest.mark = MARK | (guest.mark & MARK_BITS);
    snprintf(guest.name, sizeof guest.name, "%s", name);
    return run_rules(network, network_rules_guest(&network->host, &guest, policy), err);
}

// Called by the name server.
static int admit(void *context, const char *name, const uint32_t *addresses, unsigned count, uint16_t port,
        unsigned seconds)
{
    struct network *network = context;
    return run_text(network_rules_admit(&network->host, name, addresses, count, port, seconds), NULL);
}

static bool leads_outside_locked(struct network *network)
{
    for (struct cable *cable = network->cables; cable != NULL; cable = cable->next)
        if (cable->outside)
            return true;
    return false;
}

static void remove_rules(struct network *network, const char *name)
{
    struct error err;
    char drop[2 * NETWORK_RULES_TABLE_SIZE + 48];
    pthread_mutex_lock(&network->rules);
    pthread_mutex_lock(&network->lock);
    bool last = network->settled && !leads_outside_locked(network);
    pthread_mutex_unlock(&network->lock);
    // Added first, so that its absence is no failure.
    snprintf(drop, sizeof drop, "add table inet %1$s\ndelete table inet %1$s\n", network->host.table);
    int r = last ? network_nft_run(drop, &err) : run_text(network_rules_remove(&network->host, name), &err);
    if (last || r == -ENOENT)
        network->table_ready = false;
    pthread_mutex_unlock(&network->rules);
    if (r < 0)
        say(network, "network rules of %s cannot be removed: %s", name, err.text);
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

static void note_outside(struct network *network, struct cable *cable, bool outside)
{
    pthread_mutex_lock(&network->lock);
    cable->outside = outside;
    pthread_mutex_unlock(&network->lock);
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
    note_outside(network, cable, false);
    remove_rules(network, name);
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
            .range = network->host.range,
            .prefix = network->host.prefix,
            .first = (unsigned)strtoul(name + sizeof NAME_PREFIX - 1, NULL, 16) & 0xffff,
            .ret_address = &address};
    note_outside(network, cable, true); // the table stays from here on
    int r = switch_forwarding_on(network, err);
    if (r == 0)
        r = run_rules(network, network_rules_close(&network->host, name), err);
    if (r == 0)
        r = network_link_connect(cable->netns_fd, &pair, err);
    if (r == 0 && (r = network_link_run(cable->netns_fd, inside_rules, &inside)) < 0)
        error_set(err, r, "the rules in a sandbox's namespace cannot be made: %s",
                inside.code != 0 ? inside.text : strerror(-r));
    if (r == 0 && (r = serve_names(network, cable->netns_fd, name, policy)) < 0)
        error_set(err, r, "the sandbox's name server cannot listen: %s", strerror(-r));
    if (r == 0)
        r = apply(network, name, address, policy, err);
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

struct rule_search {
    char word[32];
    bool found;
};

static void look_for_word(void *context, const char *line)
{
    struct rule_search *search = context;
    search->found = search->found || strstr(line, search->word) != NULL;
}

// Whether the policy's rules still stand: a change may have been cut short, and somebody may have flushed the
// host's ruleset while no daemon ran.
static bool has_rules(struct network *network, const char *name, const struct network_policy *policy)
{
    char text[NETWORK_RULES_TABLE_SIZE + 64];
    struct rule_search search = {.found = false};
    snprintf(search.word, sizeof search.word, "%016" PRIx64, network_policy_digest(policy));
    snprintf(text, sizeof text, "list chain inet %s out_%s\n", network->host.table, name);
    return network_nft_list(text, look_for_word, &search, NULL) == 0 && search.found;
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
    note_outside(network, cable, true);
    int r = has_rules(network, name, policy) ? 0 : apply(network, name, address, policy, err);
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
                                            : error_set(err, -ENOTCONN,
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
    return apply(network, name, address, policy, err);
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
    if (outside || r == 0)
        remove_rules(network, name);
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

static void sweep_chain(void *context, const char *line)
{
    char name[16], id[ID_SIZE];
    if (sscanf(line, " chain out_" NAME_PREFIX "%12[0-9a-z] {", name) != 1)
        return;
    snprintf(id, sizeof id, "sbx_%s", name);
    keep_id(context, id);
}

void network_sweep(struct network *network, bool (*wanted)(void *context, const char *id), void *context)
{
    struct sweep sweep = {.network = network};
    char text[2 * NETWORK_RULES_TABLE_SIZE + 48], name[NETWORK_RULES_NAME_SIZE];
    network_link_list(sweep_link, &sweep);
    snprintf(text, sizeof text, "list table inet %s\n", network->host.table);
    bool table = network_nft_list(text, sweep_chain, &sweep, NULL) == 0;
    pthread_mutex_lock(&network->rules);
    network->settled = true;
    pthread_mutex_unlock(&network->rules);
    for (size_t i = 0; i < sweep.count; i++) {
        if (wanted(context, sweep.ids[i]))
            continue;
        name_of(sweep.ids[i], name);
        network_detach(network, sweep.ids[i]);
        remove_rules(network, name);
    }
    if (table && sweep.count == 0)
        remove_rules(network, NAME_PREFIX);
    free(sweep.ids);
}

// ---- what this host can ----

static int check_range(const struct network *network, struct error *err)
{
    uint32_t mask = UINT32_MAX << (32 - network->host.prefix);
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
        if (((ntohl(address.sin_addr.s_addr) ^ network->host.range) & mask) == 0)
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
    struct network_rules_host host = network->host;
    char drop[2 * NETWORK_RULES_TABLE_SIZE + 48], name[NETWORK_RULES_NAME_SIZE];
    uint32_t address;
    snprintf(host.table, sizeof host.table, "ramet_try_%d", (int)getpid());
    snprintf(name, sizeof name, "rmy%d", (int)getpid());
    snprintf(drop, sizeof drop, "delete table inet %s\n", host.table);
    struct network_link_pair pair = {.name = name,
            .alias = "ramet-try",
            .range = host.range,
            .prefix = host.prefix,
            .ret_address = &address};
    int r = check_range(network, err);
    if (r == 0)
        r = switch_forwarding_on(network, err);
    if (r == 0 && (r = run_text(network_rules_base(&host), err)) < 0)
        return error_prefix(err,
                "the kernel's nftables (nf_tables, nft_chain_nat, nft_masq, nft_reject_inet) "
                "cannot be used");
    if (r == 0)
        network_nft_run(drop, NULL);
    if (r == 0)
        r = network_link_connect(netns_fd, &pair, err);
    if (r == 0)
        network_link_remove(name);
    return r;
}

int network_able(struct network *network, bool outside, struct error *err)
{
    int netns_fd, tap_fd, r = 0;
    pthread_mutex_lock(&network->rules);
    if (!network->able[outside]) {
        r = network_link_create(&netns_fd, &tap_fd, err);
        if (r == 0) {
            r = outside ? try_outside(network, netns_fd, err) : 0;
            close(tap_fd);
            close(netns_fd);
        }
        network->able[outside] = r == 0;
    }
    pthread_mutex_unlock(&network->rules);
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
    network->config.resolver = NULL; // the name server's
    network->host = (struct network_rules_host){
            .range = config->range, .prefix = config->prefix, .private_networks = config->private_networks};
    snprintf(network->tag, sizeof network->tag, "%s", config->tag);
    snprintf(network->host.table, sizeof network->host.table, "%s", config->tag);
    for (char *c = network->host.table; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    pthread_mutex_init(&network->lock, NULL);
    pthread_mutex_init(&network->rules, NULL);
    struct network_dns_config dns = {.resolver = config->resolver, .admit = admit, .context = network};
    int r = network_dns_start(&dns, &network->dns, err);
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
    while (network->cables != NULL)
        forget_cable(network, network->cables);
    pthread_mutex_destroy(&network->lock);
    pthread_mutex_destroy(&network->rules);
    free(network);
    return NULL;
}
