// SPDX-License-Identifier: Apache-2.0
// The distance counts letters that were left out, added, changed, or swapped with their neighbour (optimal
// string alignment).
#include "tools/ramet/suggest.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_MAX = 64 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, size_t a_size, const char *b, size_t b_size)
{
    unsigned rows[3][WORD_MAX + 1]; // two rows back, one row back, this one
    for (size_t j = 0; j <= b_size; j++)
        rows[1][j] = (unsigned)j;
    for (size_t i = 1; i <= a_size; i++) {
        rows[2][0] = (unsigned)i;
        for (size_t j = 1; j <= b_size; j++) {
            unsigned best = rows[1][j - 1] + (a[i - 1] != b[j - 1]);
            best = least(best, least(rows[1][j], rows[2][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = least(best, rows[0][j - 2] + 1);
            rows[2][j] = best;
        }
        memcpy(rows[0], rows[1], sizeof rows[0]);
        memcpy(rows[1], rows[2], sizeof rows[1]);
    }
    return rows[1][b_size];
}

const char *suggest_nearest(const char *word, const char *const *words)
{
    const char *nearest = NULL;
    size_t size = strlen(word);
    // A third of the letters may be wrong; more is another word.
    unsigned limit = size < 3 ? 1 : (unsigned)(size / 3) + 1, best = limit + 1;
    if (size == 0 || size > WORD_MAX)
        return NULL;
    for (; *words != NULL; words++) {
        size_t other = strlen(*words);
        if (other > WORD_MAX || other == 0)
            continue;
        // "temp" for "template" is no typing error, yet meant.
        unsigned found =
                size >= 3 && strncmp(word, *words, size) == 0 ? 1 : distance(word, size, *words, other);
        if (found < best && found < (size > other ? size : other)) {
            best = found;
            nearest = *words;
        }
    }
    return nearest;
}
