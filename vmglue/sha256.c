// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sha256.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <string.h>

#include "vmglue/hex.h"

_Static_assert(SHA256_SIZE == SHA256_DIGEST_SIZE, "a digest fits");

struct sha256 sha256_of(const void *bytes, size_t size)
{
    struct sha256_ctx state;
    struct sha256 sum;
    sha256_init(&state);
    sha256_update(&state, size, bytes);
    sha256_digest(&state, sizeof sum.bytes, sum.bytes);
    return sum;
}

struct sha256 sha256_of_texts(const char *const *texts, size_t count)
{
    struct sha256_ctx state;
    struct sha256 sum;
    sha256_init(&state);
    for (size_t i = 0; i < count; i++) {
        uint64_t size = strlen(texts[i]);
        sha256_update(&state, sizeof size, (const uint8_t *)&size);
        sha256_update(&state, size, (const uint8_t *)texts[i]);
    }
    sha256_digest(&state, sizeof sum.bytes, sum.bytes);
    return sum;
}

bool sha256_equal(const struct sha256 *a, const struct sha256 *b)
{
    return memeql_sec(a->bytes, b->bytes, SHA256_SIZE) != 0;
}

void sha256_hex(const struct sha256 *sum, char ret_hex[2 * SHA256_SIZE + 1])
{
    hex_encode(sum->bytes, SHA256_SIZE, ret_hex);
}

bool sha256_parse(const char *hex, struct sha256 *ret_sum)
{
    struct sha256 sum;
    if (strlen(hex) != 2 * SHA256_SIZE || strspn(hex, "0123456789abcdef") != 2 * SHA256_SIZE)
        return false;
    for (size_t i = 0; i < SHA256_SIZE; i++)
        sum.bytes[i] = (uint8_t)hex_byte(hex + 2 * i);
    *ret_sum = sum;
    return true;
}
