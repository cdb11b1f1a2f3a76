// SPDX-License-Identifier: Apache-2.0
// The fingerprints of one seal: exact, in memory, gone with the seal or published after its commit.
#include "snapshot/seal_private.h"

#include <stdlib.h>

static size_t place_of(const struct seal_table *table, struct fingerprint fingerprint)
{
    size_t at = (fingerprint.low ^ fingerprint.high * UINT64_C(0x9e3779b97f4a7c15)) & (table->capacity - 1);
    while (table->entries[at].locator != 0 &&
            (table->entries[at].fingerprint.low != fingerprint.low ||
                    table->entries[at].fingerprint.high != fingerprint.high))
        at = (at + 1) & (table->capacity - 1);
    return at;
}

locator_t seal_table_find(const struct seal_table *table, struct fingerprint fingerprint)
{
    return table->capacity == 0 ? 0 : table->entries[place_of(table, fingerprint)].locator;
}

static void grow(struct seal_table *table)
{
    struct seal_table larger = {.capacity = table->capacity == 0 ? 1024 : table->capacity * 2};
    larger.entries = calloc(larger.capacity, sizeof *larger.entries);
    if (larger.entries == NULL)
        abort();
    for (size_t i = 0; i < table->capacity; i++)
        if (table->entries[i].locator != 0)
            larger.entries[place_of(&larger, table->entries[i].fingerprint)] = table->entries[i];
    larger.count = table->count;
    free(table->entries);
    *table = larger;
}

void seal_table_put(struct seal_table *table, struct fingerprint fingerprint, locator_t locator)
{
    if (table->count * 4 >= table->capacity * 3)
        grow(table);
    size_t at = place_of(table, fingerprint);
    if (table->entries[at].locator == 0)
        table->count++;
    table->entries[at] = (struct seal_published){fingerprint, locator};
}

void seal_table_take(struct seal_table *table, struct seal_result *result)
{
    size_t n = 0;
    for (size_t i = 0; i < table->capacity; i++)
        if (table->entries[i].locator != 0)
            table->entries[n++] = table->entries[i];
    result->published = table->entries;
    result->published_count = n;
    *table = (struct seal_table){0};
}

void seal_table_free(struct seal_table *table)
{
    free(table->entries);
    *table = (struct seal_table){0};
}
