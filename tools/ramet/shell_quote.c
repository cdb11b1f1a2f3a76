// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/shell_quote.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void *need(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

static bool is_plain(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
    return word[0] != '\0' && word[strspn(word, plain)] == '\0';
}

char *shell_quote_join(const char *const *words)
{
    size_t room = 1;
    for (size_t i = 0; words[i] != NULL; i++)
        room += strlen(words[i]) * 4 + 3;
    char *line = need(malloc(room)), *out = line;
    for (size_t i = 0; words[i] != NULL; i++) {
        if (i > 0)
            *out++ = ' ';
        // A first word like A=b would be an assignment, so it is quoted too.
        if (is_plain(words[i]) && !(i == 0 && strchr(words[i], '=') != NULL)) {
            out = stpcpy(out, words[i]);
            continue;
        }
        *out++ = '\'';
        for (const char *c = words[i]; *c != '\0'; c++) {
            if (*c == '\'')
                out = stpcpy(out, "'\\''");
            else
                *out++ = *c;
        }
        *out++ = '\'';
    }
    *out = '\0';
    return line;
}

char *shell_quote_base64(const void *bytes, size_t size)
{
    const unsigned char *in = bytes;
    char *text = need(malloc((size + 2) / 3 * 4 + 1)), *out = text;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)in[i] << 16;
        three |= i + 1 < size ? (uint32_t)in[i + 1] << 8 : 0;
        three |= i + 2 < size ? in[i + 2] : 0;
        *out++ = digits[three >> 18];
        *out++ = digits[three >> 12 & 63];
        *out++ = i + 1 < size ? digits[three >> 6 & 63] : '=';
        *out++ = i + 2 < size ? digits[three & 63] : '=';
    }
    *out = '\0';
    return text;
}

char *shell_quote_from_base64(const char *text, size_t *ret_size)
{
    unsigned char *bytes = need(malloc(strlen(text) / 4 * 3 + 4));
    size_t size = 0;
    uint32_t bits = 0;
    unsigned have = 0;
    for (; *text != '\0' && *text != '='; text++) {
        const char *digit = strchr(digits, *text);
        if (digit == NULL)
            continue;
        bits = bits << 6 | (uint32_t)(digit - digits);
        have += 6;
        if (have >= 8) {
            have -= 8;
            bytes[size++] = (unsigned char)(bits >> have);
        }
    }
    bytes[size] = '\0';
    *ret_size = size;
    return (char *)bytes;
}
