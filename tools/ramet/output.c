// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct table {
    unsigned columns;
    const char *heads[TABLE_COLUMNS_MAX];
    char *(*rows)[TABLE_COLUMNS_MAX];
    size_t count, capacity;
};

struct table *table_create(unsigned columns, const char *const *heads)
{
    struct table *table = calloc(1, sizeof *table);
    if (table == NULL)
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
    for (unsigned c = 0; c < table->columns; c++)
        table->rows[table->count][c] = strdup(cells[c] == NULL ? "" : cells[c]);
    table->count++;
}

// Characters, not bytes: names of files may be any text.
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_row(const struct table *table, const char *const *cells, const size_t *widths)
{
    for (unsigned c = 0; c < table->columns; c++) {
        const char *cell = cells[c][0] == '\0' ? "-" : cells[c];
        if (c + 1 == table->columns)
            printf("%s\n", cell);
        else
            printf("%s%*s", cell, (int)(widths[c] - width_of(cell) + 2), "");
    }
}

void table_print(struct table *table)
{
    size_t widths[TABLE_COLUMNS_MAX] = {0};
    bool terminal = isatty(STDOUT_FILENO);
    for (unsigned c = 0; c < table->columns; c++) {
        widths[c] = terminal ? width_of(table->heads[c]) : 1;
        for (size_t r = 0; r < table->count; r++)
            if (width_of(table->rows[r][c]) > widths[c])
                widths[c] = width_of(table->rows[r][c]);
    }
    if (terminal && table->count > 0)
        print_row(table, table->heads, widths);
    for (size_t r = 0; r < table->count; r++) {
        print_row(table, (const char *const *)table->rows[r], widths);
        for (unsigned c = 0; c < table->columns; c++)
            free(table->rows[r][c]);
    }
    free(table->rows);
    free(table);
}

static char *next_buffer(void)
{
    static char buffers[8][32];
    static unsigned turn;
    return buffers[turn++ % 8];
}

const char *output_size(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *text = next_buffer();
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

const char *output_ms(double ms)
{
    char *text = next_buffer();
    if (ms >= 10000)
        snprintf(text, 32, "%.1f s", ms / 1000);
    else
        snprintf(text, 32, ms < 10 ? "%.2f ms" : "%.0f ms", ms);
    return text;
}

const char *output_age(const char *rfc3339)
{
    struct tm tm = {0};
    char *text = next_buffer();
    if (strptime(rfc3339, "%Y-%m-%dT%H:%M:%S", &tm) == NULL)
        return "";
    double seconds = difftime(time(NULL), timegm(&tm));
    if (seconds < 0)
        seconds = 0;
    if (seconds < 120)
        snprintf(text, 32, "%.0f s", seconds);
    else if (seconds < 7200)
        snprintf(text, 32, "%.0f min", seconds / 60);
    else if (seconds < 172800)
        snprintf(text, 32, "%.0f h", seconds / 3600);
    else
        snprintf(text, 32, "%.0f d", seconds / 86400);
    return text;
}

void progress_set(struct progress *progress, double fraction)
{
    enum { WIDTH = 30 };
    int percent = (int)(fraction * 100);
    if (!isatty(STDERR_FILENO) || (progress->shown && percent == progress->last))
        return;
    progress->shown = true;
    progress->last = percent;
    int full = percent * WIDTH / 100;
    fprintf(stderr, "\r%s [", progress->what);
    for (int i = 0; i < WIDTH; i++)
        fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3d %%", percent);
}

void progress_amount(struct progress *progress, uint64_t bytes)
{
    int mebibytes = (int)(bytes >> 20 & 0x7fffffff);
    if (progress->shown && mebibytes == progress->last)
        return;
    progress->last = mebibytes;
    progress_text(progress, output_size(bytes));
}

void progress_text(struct progress *progress, const char *text)
{
    if (!isatty(STDERR_FILENO))
        return;
    progress->shown = true;
    fprintf(stderr, "\r\033[K%s: %s", progress->what, text);
    fflush(stderr);
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}
