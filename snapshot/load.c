// SPDX-License-Identifier: Apache-2.0
// After an opening the fingerprint index is empty: footers are read one after another, in the background.
// Until then a block that is there already may be stored once more.
#include "snapshot/background.h"
#include "snapshot/checkpoint.h"

#include <errno.h>

static int put(void *context, locator_t locator, struct fingerprint fingerprint)
{
    struct store *store = context;
    fingerprint_index_put(store->fingerprints, fingerprint, locator);
    return 0;
}

// A damaged footer costs space, not data: scrub and check report it.
static bool skippable(int result)
{
    return result == -EBADMSG || result == -ENOENT || result == -EIO || result == -EACCES;
}

int load_fingerprints(struct task *task, struct store *store, struct error *err)
{
    const struct checkpoint_rows *rows = &store->checkpoint->rows;
    for (size_t i = 0; i < rows->segment_count; i++) {
        const struct segment_row *row = &rows->segments[i];
        if (row->number < store->checkpoint->load_segment)
            continue;
        if (task_stopping(task))
            return error_set(err, -ECANCELED, "the store is closing");
        if (background_waiting(store))
            return -EAGAIN;
        int r = row->kind == SEGMENT_DATA ? segment_slots_task(store->segments, task, row->number, put, store)
                                          : 0;
        if (r < 0 && !skippable(r))
            return error_set(
                    err, r, "cannot read the footer of segment %llu", (unsigned long long)row->number);
        store->checkpoint->load_segment = row->number + 1;
    }
    return 0;
}
