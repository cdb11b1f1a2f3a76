// SPDX-License-Identifier: Apache-2.0
// The superblock, as it is and with its checksum made right.
#include "blockstore/digest.h"
#include "blockstore/ids.h"
#include "blockstore/superblock.h"

#include <stdlib.h>
#include <string.h>

enum { CHECKSUM_AT = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint8_t *block = calloc(1, BLOCK_SIZE);
    struct superblock superblock;
    if (block == NULL)
        abort();
    memcpy(block, bytes, size < BLOCK_SIZE ? size : BLOCK_SIZE);
    superblock_decode(block, &superblock);
    memset(block + CHECKSUM_AT, 0, 8);
    uint64_t sum = digest_bytes(block, BLOCK_SIZE, 0);
    for (unsigned i = 0; i < 8; i++)
        block[CHECKSUM_AT + i] = (uint8_t)(sum >> (8 * i));
    int r = superblock_decode(block, &superblock);
    if (r == 0 && (superblock.version != 1 || superblock.must_features != 0))
        abort();
    free(block);
    return 0;
}
