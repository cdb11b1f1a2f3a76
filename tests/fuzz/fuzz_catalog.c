// SPDX-License-Identifier: Apache-2.0
// Transactions as they stand in log records: what decodes must encode to the same bytes again.
#include "snapshot/store_private.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct txn_op *ops;
    unsigned count;
    if (catalog_decode_ops(bytes, size, &ops, &count) < 0)
        return 0;
    void *again;
    size_t again_size;
    catalog_encode_ops(ops, count, &again, &again_size);
    struct txn_op *second;
    unsigned second_count;
    if (catalog_decode_ops(again, again_size, &second, &second_count) < 0 || second_count != count)
        abort();
    for (unsigned i = 0; i < count; i++)
        if (second[i].type != ops[i].type || second[i].id != ops[i].id ||
                strcmp(second[i].name, ops[i].name) != 0)
            abort();
    catalog_free_ops(second, second_count);
    catalog_free_ops(ops, count);
    free(again);
    return 0;
}
