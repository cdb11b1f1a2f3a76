// SPDX-License-Identifier: Apache-2.0
// Lookups that go on when a sealed node has been loaded.
#include "snapshot/store_private.h"

#include <errno.h>

static void loaded(struct node_load *load, int result)
{
    struct volume_lookup *lookup =
            (struct volume_lookup *)((char *)load - offsetof(struct volume_lookup, load));
    lookup->failed = result < 0 ? load->locator : LOCATOR_UNMAPPED;
    lookup->failure = result == -ENOENT ? -EBADMSG : result; // a tree names a node that no segment has
    lookup->again(lookup);
}

int volume_lookup_load(struct volume_lookup *lookup, locator_t missing)
{
    if (lookup->store->space.cache == NULL)
        return -EBADMSG; // a sealed node in a store without segments
    if (lookup->failed == missing)
        return lookup->failure;
    lookup->load = (struct node_load){.loop = lookup->loop, .locator = missing, .done = loaded};
    node_cache_load(lookup->store->space.cache, &lookup->load);
    return 0;
}
