// SPDX-License-Identifier: Apache-2.0
// The log record's header: whatever decodes must encode to the same block again. The checksum is mended
// first, else nothing would get past it.
#include "blockstore/digest.h"
#include "blockstore/record.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { SEED = 7, CHECKSUM_AT = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static uint8_t block[BLOCK_SIZE], again[BLOCK_SIZE];
    static struct record_arrays arrays;
    struct record record;
    memset(block, 0, sizeof block);
    memcpy(block, bytes, size < sizeof block ? size : sizeof block);
    memset(block + CHECKSUM_AT, 0, 8);
    uint64_t sum = digest_bytes(block, sizeof block, SEED);
    for (unsigned i = 0; i < 8; i++)
        block[CHECKSUM_AT + i] = (uint8_t)(sum >> (8 * i));
    if (record_decode(block, SEED, &arrays, &record) < 0)
        return 0;
    if (record.payload_blocks > RECORD_PAYLOAD_MAX || record.extent_count > RECORD_EXTENT_MAX)
        abort();
    record_encode(&record, SEED, again);
    struct record second;
    static struct record_arrays second_arrays;
    if (record_decode(again, SEED, &second_arrays, &second) < 0 || second.seq != record.seq ||
            second.payload_blocks != record.payload_blocks || second.body_bytes != record.body_bytes)
        abort();
    return 0;
}
