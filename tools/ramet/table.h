// SPDX-License-Identifier: Apache-2.0
// Tables. On a terminal with a head line, aligned by what characters take there, cut to its width, states in
// colour; in a pipe plain lines, one a row, columns in the same order, nothing cut. Whatever a cell holds, it
// stays in its line: control characters, which may come from a guest, are shown as question marks.
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 12 };
struct table;
struct table *table_create(unsigned columns, const char *const *heads);
// A row of texts (copied).
void table_add(struct table *table, const char *const *cells);
void table_print(struct table *table); // to stdout, and frees it

// Columns that a text takes on a terminal.
size_t table_width(const char *text);
// At most so many columns of it, with an ellipsis in the last one when it is longer; malloc'ed.
char *table_cut(const char *text, size_t width);
// The same text without what a terminal would act on; malloc'ed.
char *table_clean(const char *text);
// Is this descriptor a terminal that wants colours? (NO_COLOR, TERM=dumb)
bool table_wants_color(int fd);
