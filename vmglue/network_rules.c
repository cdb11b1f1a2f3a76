// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

// Refusals are answered: a program in the guest learns at once what no time-out needs to teach. TCP by a
// reset, since the kernel sends only a few ICMP messages in a second.
#define REFUSE "goto refuse"

static void put_address(FILE *out, uint32_t address)
{
    fprintf(out, "%u.%u.%u.%u", address >> 24, address >> 16 & 255, address >> 8 & 255, address & 255);
}

static FILE *begin(char **text, size_t *size)
{
    *text = NULL;
    return open_memstream(text, size);
}

static char *finish(FILE *out, char **text)
{
    bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed)
        return *text;
    free(*text);
    return NULL;
}

// Everything of the table but its rules; "add" of what is there already changes nothing.
static void put_frame(FILE *out, const char *table)
{
    fprintf(out,
            "add table inet %1$s\n"
            "add set inet %1$s peers { type ifname; }\n"
            "add map inet %1$s outgoing { type ifname : verdict; }\n"
            "add map inet %1$s incoming { type ifname : verdict; }\n",
            table);
}

// Before other tables' filters (priority 0): what is refused here stays refused, what passes still has to
// pass theirs.
char *network_rules_base(const struct network_rules_host *host)
{
    char *text;
    size_t size;
    FILE *out = begin(&text, &size);
    if (out == NULL)
        return NULL;
    put_frame(out, host->table);
    fprintf(out,
            "add chain inet %1$s input { type filter hook input priority -20; policy accept; }\n"
            "add chain inet %1$s forward { type filter hook forward priority -20; policy accept; }\n"
            "add chain inet %1$s refuse\n"
            "add chain inet %1$s leave { type nat hook postrouting priority 100; policy accept; }\n"
            "flush chain inet %1$s input\n"
            "flush chain inet %1$s forward\n"
            "flush chain inet %1$s leave\n"
            "flush chain inet %1$s refuse\n"
            "add rule inet %1$s refuse meta l4proto tcp reject with tcp reset\n"
            "add rule inet %1$s refuse reject with icmpx admin-prohibited\n"
            "add rule inet %1$s input iifname @peers " REFUSE "\n"
            "add rule inet %1$s forward iifname @peers meta nfproto ipv6 drop\n"
            "add rule inet %1$s forward iifname vmap @outgoing\n"
            "add rule inet %1$s forward iifname @peers drop\n"
            "add rule inet %1$s forward oifname vmap @incoming\n"
            "add rule inet %1$s forward oifname @peers drop\n"
            "add rule inet %1$s leave ip saddr ",
            host->table);
    put_address(out, host->range);
    fprintf(out, "/%u masquerade\n", host->prefix);
    return finish(out, &text);
}

char *network_rules_close(const struct network_rules_host *host, const char *name)
{
    char *text;
    size_t size;
    FILE *out = begin(&text, &size);
    if (out == NULL)
        return NULL;
    fprintf(out, "add element inet %s peers { \"%s\" }\n", host->table, name);
    return finish(out, &text);
}

// The sets that a policy by addresses and names looks into.
static const struct {
    const char *prefix, *type;
} sets[] = {{"net", "type ipv4_addr; flags interval; auto-merge;"},
        {"netport", "type ipv4_addr . inet_service; flags interval;"},
        {"name", "type ipv4_addr; flags timeout; size 8192;"},
        {"nameport", "type ipv4_addr . inet_service; flags timeout; size 8192;"}};
enum { SETS = sizeof sets / sizeof *sets };

static void put_sets(FILE *out, const char *table, const char *name, const char *verb)
{
    for (unsigned i = 0; i < SETS; i++)
        fprintf(out, "%s set inet %s %s_%s { %s }\n", verb, table, sets[i].prefix, name, sets[i].type);
}

static void put_chains(FILE *out, const char *table, const char *name)
{
    fprintf(out,
            "add chain inet %1$s out_%2$s\n"
            "add chain inet %1$s in_%2$s\n"
            "flush chain inet %1$s out_%2$s\n"
            "flush chain inet %1$s in_%2$s\n",
            table, name);
}

static void put_entries(FILE *out, const struct network_rules_host *host, const char *name,
        const struct network_policy *policy)
{
    for (unsigned i = 0; i < policy->count; i++) {
        const struct network_entry *entry = &policy->entries[i];
        if (entry->is_name)
            continue;
        fprintf(out, "add element inet %s %s_%s { ", host->table, entry->port != 0 ? "netport" : "net", name);
        put_address(out, entry->address);
        fprintf(out, "/%u", entry->prefix);
        if (entry->port != 0)
            fprintf(out, " . %u", entry->port);
        fprintf(out, " }\n");
    }
}

static void put_refusals(FILE *out, const struct network_rules_host *host, const char *name, bool private)
{
    fprintf(out,
            "add rule inet %s out_%s ip daddr { 0.0.0.0/8, 127.0.0.0/8, 168.63.129.16, 169.254.0.0/16, "
            "224.0.0.0/3 } " REFUSE "\nadd rule inet %s out_%s ip daddr ",
            host->table, name, host->table, name);
    put_address(out, host->range);
    fprintf(out, "/%u " REFUSE "\n", host->prefix);
    if (private)
        fprintf(out,
                "add rule inet %s out_%s ip daddr { 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 "
                "} " REFUSE "\n",
                host->table, name);
}

static void put_allowed(FILE *out, const char *table, const struct network_rules_guest *guest)
{
    static const char *const matches[] = {"ip daddr @net_%s",
            "meta l4proto { tcp, udp } ip daddr . th dport @netport_%s", "ip daddr @name_%s",
            "meta l4proto { tcp, udp } ip daddr . th dport @nameport_%s"};
    char match[128];
    fprintf(out, "add rule inet %s out_%s ct state established,related ct mark 0x%08x accept\n", table,
            guest->name, guest->mark);
    for (unsigned i = 0; i < SETS; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(match, sizeof match, matches[i], guest->name);
#pragma GCC diagnostic pop
        fprintf(out, "add rule inet %s out_%s %s ct mark set 0x%08x accept\n", table, guest->name, match,
                guest->mark);
    }
    fprintf(out, "add rule inet %s out_%s " REFUSE "\n", table, guest->name);
}

char *network_rules_guest(const struct network_rules_host *host, const struct network_rules_guest *guest,
        const struct network_policy *policy)
{
    const char *table = host->table, *name = guest->name;
    char *text;
    size_t size;
    FILE *out = begin(&text, &size);
    if (out == NULL)
        return NULL;
    put_chains(out, table, name);
    if (policy->kind == NETWORK_ALLOW) {
        put_sets(out, table, name, "add");
        for (unsigned i = 0; i < SETS; i++)
            fprintf(out, "flush set inet %s %s_%s\n", table, sets[i].prefix, name);
        put_entries(out, host, name, policy);
    }
    fprintf(out, "add rule inet %s out_%s ip saddr != ", table, name);
    put_address(out, guest->address);
    fprintf(out, " drop comment \"%016" PRIx64 "\"\nadd rule inet %s out_%s ct state invalid drop\n",
            network_policy_digest(policy), table, name);
    put_refusals(out, host, name, policy->kind == NETWORK_FULL && !host->private_networks);
    // The way on may be narrower than a guest's card.
    fprintf(out, "add rule inet %s out_%s tcp flags syn tcp option maxseg size set rt mtu\n", table, name);
    if (policy->kind == NETWORK_FULL)
        fprintf(out, "add rule inet %s out_%s ct mark set 0x%08x accept\n", table, name, guest->mark);
    else
        put_allowed(out, table, guest);
    fprintf(out,
            "add rule inet %1$s in_%2$s ct state established,related ct mark 0x%3$08x accept\n"
            "add rule inet %1$s in_%2$s drop\n"
            "add element inet %1$s outgoing { \"%2$s\" : jump out_%2$s }\n"
            "add element inet %1$s incoming { \"%2$s\" : jump in_%2$s }\n"
            "add element inet %1$s peers { \"%2$s\" }\n",
            table, name, guest->mark);
    return finish(out, &text);
}

char *network_rules_remove(const struct network_rules_host *host, const char *name)
{
    char *text;
    size_t size;
    FILE *out = begin(&text, &size);
    if (out == NULL)
        return NULL;
    // Added first, so that nothing of it can be missing.
    put_frame(out, host->table);
    put_chains(out, host->table, name);
    put_sets(out, host->table, name, "add");
    fprintf(out,
            "add element inet %1$s outgoing { \"%2$s\" : jump out_%2$s }\n"
            "add element inet %1$s incoming { \"%2$s\" : jump in_%2$s }\n"
            "add element inet %1$s peers { \"%2$s\" }\n"
            "delete element inet %1$s outgoing { \"%2$s\" }\n"
            "delete element inet %1$s incoming { \"%2$s\" }\n"
            "delete element inet %1$s peers { \"%2$s\" }\n"
            "delete chain inet %1$s out_%2$s\n"
            "delete chain inet %1$s in_%2$s\n",
            host->table, name);
    for (unsigned i = 0; i < SETS; i++)
        fprintf(out, "delete set inet %s %s_%s\n", host->table, sets[i].prefix, name);
    return finish(out, &text);
}

char *network_rules_admit(const struct network_rules_host *host, const char *name, const uint32_t *addresses,
        unsigned count, uint16_t port, unsigned seconds)
{
    // An element that is there keeps its old time: so it goes out and comes in again, in one transaction.
    static const char *const verbs[] = {"add", "delete", "add"};
    char *text, behind[16] = "";
    size_t size;
    FILE *out = begin(&text, &size);
    if (out == NULL)
        return NULL;
    if (port != 0)
        snprintf(behind, sizeof behind, " . %u", port);
    for (unsigned i = 0; i < count; i++) {
        for (unsigned v = 0; v < 3; v++) {
            fprintf(out, "%s element inet %s %s_%s { ", verbs[v], host->table,
                    port != 0 ? "nameport" : "name", name);
            put_address(out, addresses[i]);
            fprintf(out, "%s", behind);
            if (v != 1)
                fprintf(out, " timeout %us", seconds);
            fprintf(out, " }\n");
        }
    }
    return finish(out, &text);
}

// While no daemon serves the name server's address, a look-up must wait for the next one and not fail: the
// guest is not told that nobody listens there. Without a way out it is told, at once.
const char *network_rules_inside(void)
{
    return "add table ip ramet\n"
           "add chain ip ramet leave { type nat hook postrouting priority 100; policy accept; }\n"
           "add chain ip ramet answer { type filter hook output priority 0; policy accept; }\n"
           "flush table ip ramet\n"
           "add rule ip ramet leave oifname \"up0\" masquerade\n"
           "add rule ip ramet answer oifname \"tap0\" icmp type destination-unreachable icmp code "
           "port-unreachable ip saddr 10.0.2.3 drop\n"
           "add rule ip ramet answer oifname \"tap0\" tcp sport 53 tcp flags & rst == rst ip saddr 10.0.2.3 "
           "drop\n";
}

const char *network_rules_inside_remove(void)
{
    return "add table ip ramet\n"
           "delete table ip ramet\n";
}
