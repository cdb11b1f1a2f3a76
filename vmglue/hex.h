// SPDX-License-Identifier: Apache-2.0
// Bytes as hexadecimal digits, two each. Pure functions; nothing can fail. Threads: any.
#pragma once

#include <stddef.h>
#include <stdint.h>

// In lower case, ended by a zero: 2 * size + 1 bytes.
static inline void hex_encode(const void *bytes, size_t size, char *ret_text)
{
    const uint8_t *in = bytes;
    for (size_t i = 0; i < size; i++) {
        ret_text[2 * i] = "0123456789abcdef"[in[i] >> 4];
        ret_text[2 * i + 1] = "0123456789abcdef"[in[i] & 15];
    }
    ret_text[2 * size] = '\0';
}

// Of either case; -1 = no such digit.
static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// The byte of two digits; -1 = they are none. Looks at the second only when the first is one.
static inline int hex_byte(const char *digits)
{
    int high = hex_digit(digits[0]), low = high < 0 ? -1 : hex_digit(digits[1]);
    return low < 0 ? -1 : high << 4 | low;
}
