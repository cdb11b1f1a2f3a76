// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_table.h"

#include "vmglue/network_nft.h"
#include "vmglue/network_watch.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MARK = 0x52000000, MARK_BITS = 0x00ffffff, COMMAND_SIZE = 2 * NETWORK_RULES_TABLE_SIZE + 64 };

struct entry {
    struct entry *next;
    char name[NETWORK_RULES_NAME_SIZE];
    uint32_t address;
    bool applied; // false: closed
    struct network_policy policy;
};

struct network_table {
    struct network_rules_host host;
    void (*log)(void *context, const char *message);
    void *context;
    struct network_watch *watch;
    pthread_mutex_t lock; // held over every call of nftables that changes something; guards the rest
    struct entry *entries;
    bool ready, settled; // ready: the base stands
};

__attribute__((format(printf, 2, 3))) static void say(struct network_table *table, const char *format, ...)
{
    char text[700];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (table->log != NULL)
        table->log(table->context, text);
}

// ---- texts ----

static int run_text(char *text, struct error *err)
{
    int r = text == NULL ? error_set(err, -ENOMEM, "no memory for the rules of a network")
                         : network_nft_run(text, err);
    free(text);
    return r;
}

// With the base when it is not there, or not any more.
static int run_locked(struct network_table *table, char *text, struct error *err)
{
    int r = text == NULL ? error_set(err, -ENOMEM, "no memory for the rules of a network") : 0;
    for (unsigned attempt = 0; text != NULL && attempt < 2; attempt++) {
        r = table->ready ? 0 : run_text(network_rules_base(&table->host), err);
        table->ready = r == 0;
        if (r == 0)
            r = network_nft_run(text, err);
        if (r != -ENOENT)
            break;
        table->ready = false;
    }
    free(text);
    return r;
}

static int apply_locked(struct network_table *table, struct entry *entry, struct error *err)
{
    struct network_rules_guest guest = {.address = entry->address};
    // Unlike the one before, also when that was another daemon's.
    if (getrandom(&guest.mark, sizeof guest.mark, 0) != sizeof guest.mark)
        return error_set(err, -EIO, "the kernel gives no random bytes");
    guest.mark = MARK | (guest.mark & MARK_BITS);
    memcpy(guest.name, entry->name, sizeof guest.name);
    int r = run_locked(table, network_rules_guest(&table->host, &guest, &entry->policy), err);
    entry->applied = entry->applied || r == 0;
    return r;
}

struct search {
    char word[32];
    bool found;
};

static void look_for_word(void *context, const char *line)
{
    struct search *search = context;
    search->found = search->found || strstr(line, search->word) != NULL;
}

// Whether the rules of just this policy stand.
static bool stands_locked(struct network_table *table, const struct entry *entry)
{
    char text[COMMAND_SIZE];
    struct search search = {.found = false};
    snprintf(search.word, sizeof search.word, "%016" PRIx64, network_policy_digest(&entry->policy));
    snprintf(text, sizeof text, "list chain inet %s out_%s\n", table->host.table, entry->name);
    return network_nft_list(text, look_for_word, &search, NULL) == 0 && search.found;
}

// Called by the watch.
static void mend(void *context)
{
    struct network_table *table = context;
    struct error err;
    unsigned mended = 0;
    pthread_mutex_lock(&table->lock);
    for (struct entry *entry = table->entries; entry != NULL; entry = entry->next) {
        if (entry->applied && stands_locked(table, entry))
            continue;
        table->ready = false;
        int r = entry->applied ? apply_locked(table, entry, &err)
                               : run_locked(table, network_rules_close(&table->host, entry->name), &err);
        if (r < 0)
            say(table, "the network rules of %s were deleted and cannot be made again: %s", entry->name,
                    err.text);
        mended += r == 0 && entry->applied;
    }
    pthread_mutex_unlock(&table->lock);
    if (mended > 0)
        say(table, "somebody deleted the table %s of nftables; the rules of %u sandboxes were made again",
                table->host.table, mended);
}

// ---- entries ----

static struct entry *find_locked(struct network_table *table, const char *name)
{
    struct entry *entry = table->entries;
    while (entry != NULL && strcmp(entry->name, name) != 0)
        entry = entry->next;
    return entry;
}

static struct entry *need_locked(struct network_table *table, const char *name)
{
    struct entry *entry = find_locked(table, name);
    if (entry != NULL || (entry = calloc(1, sizeof *entry)) == NULL)
        return entry;
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->next = table->entries;
    table->entries = entry;
    return entry;
}

static void drop_locked(struct network_table *table, const char *name)
{
    for (struct entry **link = &table->entries; *link != NULL; link = &(*link)->next) {
        struct entry *entry = *link;
        if (strcmp(entry->name, name) != 0)
            continue;
        *link = entry->next;
        network_policy_free(&entry->policy);
        free(entry);
        return;
    }
}

bool network_table_knows(struct network_table *table, const char *name)
{
    pthread_mutex_lock(&table->lock);
    bool known = find_locked(table, name) != NULL;
    pthread_mutex_unlock(&table->lock);
    return known;
}

int network_table_close(struct network_table *table, const char *name, struct error *err)
{
    pthread_mutex_lock(&table->lock);
    int r = need_locked(table, name) == NULL
                    ? error_set(err, -ENOMEM, "no memory for the rules of a network")
                    : run_locked(table, network_rules_close(&table->host, name), err);
    pthread_mutex_unlock(&table->lock);
    return r;
}

static int set(struct network_table *table, const char *name, uint32_t address,
        const struct network_policy *policy, bool keep, struct error *err)
{
    struct network_policy copy;
    int r = network_policy_copy(policy, &copy);
    pthread_mutex_lock(&table->lock);
    struct entry *entry = r < 0 ? NULL : need_locked(table, name);
    if (entry == NULL) {
        r = error_set(err, -ENOMEM, "no memory for the rules of a network");
    } else {
        network_policy_free(&entry->policy);
        entry->policy = copy;
        entry->address = address;
        if (keep && stands_locked(table, entry))
            entry->applied = true;
        else
            r = apply_locked(table, entry, err);
    }
    pthread_mutex_unlock(&table->lock);
    return r;
}

int network_table_apply(struct network_table *table, const char *name, uint32_t address,
        const struct network_policy *policy, struct error *err)
{
    return set(table, name, address, policy, false, err);
}

int network_table_adopt(struct network_table *table, const char *name, uint32_t address,
        const struct network_policy *policy, struct error *err)
{
    return set(table, name, address, policy, true, err);
}

// Only what a sandbox has set up can be admitted to: a text alone, which fails otherwise.
int network_table_admit(struct network_table *table, const char *name, const uint32_t *addresses,
        unsigned count, uint16_t port, unsigned seconds)
{
    return run_text(network_rules_admit(&table->host, name, addresses, count, port, seconds), NULL);
}

static int drop_table_locked(struct network_table *table, struct error *err)
{
    char text[COMMAND_SIZE];
    // Added first, so that its absence is no failure.
    snprintf(text, sizeof text, "add table inet %1$s\ndelete table inet %1$s\n", table->host.table);
    table->ready = false;
    return network_nft_run(text, err);
}

void network_table_remove(struct network_table *table, const char *name)
{
    struct error err;
    pthread_mutex_lock(&table->lock);
    drop_locked(table, name);
    int r = table->settled && table->entries == NULL
                    ? drop_table_locked(table, &err)
                    : run_locked(table, network_rules_remove(&table->host, name), &err);
    pthread_mutex_unlock(&table->lock);
    if (r < 0)
        say(table, "the network rules of %s cannot be removed: %s", name, err.text);
}

struct listing {
    void (*each)(void *context, const char *name);
    void *context;
};

static void list_chain(void *context, const char *line)
{
    const struct listing *listing = context;
    char name[NETWORK_RULES_NAME_SIZE];
    if (sscanf(line, " chain out_%15[0-9a-z] {", name) == 1)
        listing->each(listing->context, name);
}

void network_table_list(
        struct network_table *table, void (*each)(void *context, const char *name), void *context)
{
    char text[COMMAND_SIZE];
    struct listing listing = {each, context};
    snprintf(text, sizeof text, "list table inet %s\n", table->host.table);
    network_nft_list(text, list_chain, &listing, NULL);
}

void network_table_settle(struct network_table *table)
{
    char text[COMMAND_SIZE];
    struct error err;
    snprintf(text, sizeof text, "list table inet %s\n", table->host.table);
    pthread_mutex_lock(&table->lock);
    table->settled = true;
    int r = table->entries == NULL && network_nft_list(text, NULL, NULL, NULL) == 0
                    ? drop_table_locked(table, &err)
                    : 0;
    pthread_mutex_unlock(&table->lock);
    if (r < 0)
        say(table, "the table %s of nftables cannot be removed: %s", table->host.table, err.text);
}

int network_table_try(struct network_table *table, struct error *err)
{
    struct network_rules_host host = table->host;
    char *text = NULL;
    snprintf(host.table, sizeof host.table, "ramet_try_%d", (int)getpid());
    // Made and deleted by one transaction: whoever dies at any moment leaves nothing.
    char *base = network_rules_base(&host);
    if (base != NULL && asprintf(&text, "%sdelete table inet %s\n", base, host.table) < 0)
        text = NULL;
    free(base);
    int r = run_text(text, err);
    if (r < 0)
        error_prefix(err, "the kernel's nftables (modules nf_tables, nft_chain_nat, nft_masq, "
                          "nft_reject_inet) cannot be used");
    return r;
}

int network_table_create(const struct network_rules_host *host,
        void (*log)(void *context, const char *message), void *context, struct network_table **ret_table,
        struct error *err)
{
    struct network_table *table = calloc(1, sizeof *table);
    if (table == NULL)
        return error_set(err, -ENOMEM, "no memory");
    table->host = *host;
    table->log = log;
    table->context = context;
    pthread_mutex_init(&table->lock, NULL);
    // Without news (no rights, no nftables) there are no rules to lose either.
    network_watch_start(host->table, mend, table, &table->watch);
    *ret_table = table;
    return 0;
}

struct network_table *network_table_destroy(struct network_table *table)
{
    if (table == NULL)
        return NULL;
    network_watch_stop(table->watch);
    while (table->entries != NULL)
        drop_locked(table, table->entries->name);
    pthread_mutex_destroy(&table->lock);
    free(table);
    return NULL;
}
