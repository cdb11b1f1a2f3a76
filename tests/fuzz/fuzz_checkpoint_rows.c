// SPDX-License-Identifier: Apache-2.0
// The checkpoint's rows as a ROOTS record holds them: what decodes encodes to rows that decode to the same.
#include "snapshot/checkpoint.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct checkpoint_rows rows, again;
    void *once, *twice;
    size_t once_size, twice_size;
    if (checkpoint_rows_decode(bytes, size, &rows) < 0)
        return 0;
    checkpoint_rows_encode(&rows, &once, &once_size);
    if (checkpoint_rows_decode(once, once_size, &again) < 0)
        abort();
    checkpoint_rows_encode(&again, &twice, &twice_size);
    if (once_size != twice_size || memcmp(once, twice, once_size) != 0)
        abort();
    checkpoint_rows_free(&rows);
    checkpoint_rows_free(&again);
    free(once);
    free(twice);
    return 0;
}
