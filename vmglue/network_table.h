// SPDX-License-Identifier: Apache-2.0
// The table of a store on the host, with what is in force for each sandbox that leads anywhere (by its
// interface's name). Made with the first of them, gone with the last; made anew when somebody flushes the
// host's ruleset. Threads: any that is not a loop; calls take turns and wait for the kernel.
#pragma once

#include "vmglue/network_rules.h"

struct network_table;

// log may be NULL. *host is copied.
int network_table_create(const struct network_rules_host *host,
        void (*log)(void *context, const char *message), void *context, struct network_table **ret_table,
        struct error *err);
// What is in the kernel stays. Accepts NULL.
struct network_table *network_table_destroy(struct network_table *table);

// From its return on nothing gets in or out by that interface, which need not be there yet.
int network_table_close(struct network_table *table, const char *name, struct error *err);
// Whether it was closed, applied or adopted here and not removed since.
bool network_table_knows(struct network_table *table, const char *name);
int network_table_apply(struct network_table *table, const char *name, uint32_t address,
        const struct network_policy *policy, struct error *err);
// For one that an earlier daemon applied: what still stands is kept as it is.
int network_table_adopt(struct network_table *table, const char *name, uint32_t address,
        const struct network_policy *policy, struct error *err);
int network_table_admit(struct network_table *table, const char *name, const uint32_t *addresses,
        unsigned count, uint16_t port, unsigned seconds);
void network_table_remove(struct network_table *table, const char *name); // also one that was never known
// Calls each() for every name that the kernel's table has rules of.
void network_table_list(
        struct network_table *table, void (*each)(void *context, const char *name), void *context);
// Every sandbox of this store is known: from now on the last one to go takes the table along; and now, when
// there is none.
void network_table_settle(struct network_table *table);
// Whether the kernel takes such a table: tried under another name.
int network_table_try(struct network_table *table, struct error *err);
