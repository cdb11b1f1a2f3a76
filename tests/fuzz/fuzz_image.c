// SPDX-License-Identifier: Apache-2.0
// The catalog's image: what decodes encodes to an image that decodes to the same.
#include "snapshot/checkpoint.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static struct store *scratch(void)
{
    static struct loop loop;
    static struct loop *loops[] = {&loop};
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL || (store->checkpoint = calloc(1, sizeof *store->checkpoint)) == NULL)
        abort();
    store->loops = loops;
    store->loop_count = 1;
    return store;
}

static void scratch_free(struct store *store)
{
    catalog_free(store);
    free(store->checkpoint);
    free(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct store *store = scratch(), *again = scratch();
    void *once, *twice;
    size_t once_size, twice_size;
    if (size > 0 && catalog_decode_image(store, bytes, size) == 0) {
        catalog_encode_image(store, &once, &once_size);
        if (catalog_decode_image(again, once, once_size) < 0)
            abort();
        catalog_encode_image(again, &twice, &twice_size);
        if (once_size != twice_size || memcmp(once, twice, once_size) != 0)
            abort();
        free(once);
        free(twice);
    }
    scratch_free(store);
    scratch_free(again);
    return 0;
}
