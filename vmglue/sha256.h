// SPDX-License-Identifier: Apache-2.0
// SHA-256 (nettle's, included by sha256.c alone), for what is stored in place of a secret, and the comparison
// that takes as long for the wrong as for the right. Pure functions. Threads: any.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_SIZE = 32 };

struct sha256 {
    uint8_t bytes[SHA256_SIZE];
};

struct sha256 sha256_of(const void *bytes, size_t size);
// Of several pieces with their lengths between them, so that no two lists of pieces are taken for each other.
struct sha256 sha256_of_texts(const char *const *texts, size_t count);
bool sha256_equal(const struct sha256 *a, const struct sha256 *b); // in constant time
void sha256_hex(const struct sha256 *sum, char ret_hex[2 * SHA256_SIZE + 1]);
bool sha256_parse(const char *hex, struct sha256 *ret_sum); // false: not 64 hexadecimal digits
