// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/table.h"

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

enum { GAP = 2, CUT_TO = 8 };

struct table {
    unsigned columns;
    const char *heads[TABLE_COLUMNS_MAX];
    char *(*rows)[TABLE_COLUMNS_MAX];
    size_t count, capacity;
    size_t widths[TABLE_COLUMNS_MAX];
};

// ---- characters ----

// One character of UTF-8; what is none counts as one byte of U+FFFD. Returns how many bytes it is.
static size_t take_character(const char *text, wchar_t *ret_character)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t size = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc2 ? 2 : 0;
    uint32_t value = size == 1 ? at[0] : size == 2 ? at[0] & 0x1f : size == 3 ? at[0] & 0x0f : at[0] & 0x07;
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80)
            size = 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    *ret_character = size == 0 ? 0xfffd : (wchar_t)value;
    return size == 0 ? 1 : size;
}

// The C library knows the widths of all characters, in a UTF-8 locale; that of the user may be another.
static int character_width(wchar_t character)
{
    static locale_t utf8;
    if (character < 0x20 || (character >= 0x7f && character < 0xa0))
        return -1;
    if (character < 0x7f)
        return 1;
    if (utf8 == 0)
        utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (utf8 == 0)
        return 1;
    locale_t before = uselocale(utf8);
    int width = wcwidth(character);
    uselocale(before);
    return width;
}

char *table_clean(const char *text)
{
    char *clean = malloc(strlen(text) * 3 + 1), *out = clean;
    if (clean == NULL)
        abort();
    while (*text != '\0') {
        wchar_t character;
        size_t size = take_character(text, &character);
        bool broken = character == 0xfffd && size == 1;
        if (character == '\n' || character == '\t')
            *out++ = ' ';
        else if (broken)
            out = stpcpy(out, "\xef\xbf\xbd");
        else if (character_width(character) < 0)
            *out++ = '?';
        else
            out = mempcpy(out, text, size);
        text += size;
    }
    *out = '\0';
    return clean;
}

size_t table_width(const char *text)
{
    size_t width = 0;
    while (*text != '\0') {
        wchar_t character;
        text += take_character(text, &character);
        int one = character_width(character);
        width += one < 0 ? 1 : (size_t)one;
    }
    return width;
}

// ---- the table ----

struct table *table_create(unsigned columns, const char *const *heads)
{
    struct table *table = calloc(1, sizeof *table);
    if (table == NULL || columns > TABLE_COLUMNS_MAX)
        abort();
    table->columns = columns;
    memcpy(table->heads, heads, columns * sizeof *heads);
    return table;
}

void table_add(struct table *table, const char *const *cells)
{
    if (table->count == table->capacity) {
        table->capacity = table->capacity == 0 ? 32 : table->capacity * 2;
        table->rows = realloc(table->rows, table->capacity * sizeof *table->rows);
        if (table->rows == NULL)
            abort();
    }
    for (unsigned c = 0; c < table->columns; c++) {
        const char *cell = cells[c] == NULL || cells[c][0] == '\0' ? "-" : cells[c];
        table->rows[table->count][c] = table_clean(cell);
    }
    table->count++;
}

bool table_wants_color(int fd)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && (none == NULL || none[0] == '\0') && term != NULL && strcmp(term, "dumb") != 0;
}

// What a cell's whole text says about a thing's state.
static const char *color_of(const char *cell)
{
    static const struct {
        const char *word, *color;
    } colors[] = {{"running", "32"}, {"ready", "32"}, {"idle", "32"}, {"busy", "36"}, {"paused", "33"},
            {"starting", "33"}, {"creating", "33"}, {"stopping", "33"}, {"writing", "33"}, {"queued", "33"},
            {"stopped", "2"}, {"ended", "2"}, {"failed", "31"}, {"removing", "31"}, {"unavailable", "31"},
            {"out of memory", "31"}, {"timed out", "31"}};
    for (size_t i = 0; i < sizeof colors / sizeof colors[0]; i++)
        if (strcmp(cell, colors[i].word) == 0)
            return colors[i].color;
    return NULL;
}

char *table_cut(const char *text, size_t width)
{
    size_t used = 0, room = table_width(text) > width ? (width > 0 ? width - 1 : 0) : width;
    char *cut = malloc(strlen(text) + 4), *out = cut;
    if (cut == NULL)
        abort();
    while (*text != '\0') {
        wchar_t character;
        size_t size = take_character(text, &character);
        int one = character_width(character);
        if (used + (one < 0 ? 1 : (size_t)one) > room)
            break;
        out = mempcpy(out, text, size);
        used += one < 0 ? 1 : (size_t)one;
        text += size;
    }
    if (*text != '\0' && width > 0)
        out = stpcpy(out, "\xe2\x80\xa6");
    *out = '\0';
    return cut;
}

// Returns how many columns it took.
static size_t print_cut(const char *text, size_t width)
{
    char *cut = table_cut(text, width);
    size_t used = table_width(cut);
    fputs(cut, stdout);
    free(cut);
    return used;
}

static void print_row(const struct table *table, const char *const *cells, bool bold, bool color)
{
    for (unsigned c = 0; c < table->columns; c++) {
        bool last = c + 1 == table->columns;
        const char *paint = !color ? NULL : bold ? "1" : color_of(cells[c]);
        if (paint != NULL)
            printf("\033[%sm", paint);
        size_t used = print_cut(cells[c], table->widths[c]);
        if (paint != NULL)
            fputs("\033[0m", stdout);
        if (!last)
            printf("%*s", (int)(table->widths[c] - used + GAP), "");
    }
    putchar('\n');
}

static size_t terminal_width(void)
{
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 0;
}

// Takes from the widest column, again and again, until all fits or nothing more can be taken.
static void fit(struct table *table, size_t room)
{
    size_t total = (table->columns - 1) * GAP;
    for (unsigned c = 0; c < table->columns; c++)
        total += table->widths[c];
    while (total > room) {
        unsigned widest = 0;
        for (unsigned c = 1; c < table->columns; c++)
            if (table->widths[c] >= table->widths[widest])
                widest = c;
        if (table->widths[widest] <= CUT_TO)
            return;
        table->widths[widest]--;
        total--;
    }
}

void table_print(struct table *table)
{
    bool terminal = isatty(STDOUT_FILENO), color = table_wants_color(STDOUT_FILENO);
    for (unsigned c = 0; c < table->columns; c++) {
        table->widths[c] = terminal ? table_width(table->heads[c]) : 1;
        for (size_t r = 0; r < table->count; r++) {
            size_t width = table_width(table->rows[r][c]);
            table->widths[c] = width > table->widths[c] ? width : table->widths[c];
        }
    }
    size_t room = terminal ? terminal_width() : 0;
    if (room > 0)
        fit(table, room);
    if (terminal) // also where there is nothing: else a person sees no answer at all
        print_row(table, table->heads, true, color);
    for (size_t r = 0; r < table->count; r++) {
        print_row(table, (const char *const *)table->rows[r], false, color);
        for (unsigned c = 0; c < table->columns; c++)
            free(table->rows[r][c]);
    }
    free(table->rows);
    free(table);
}
