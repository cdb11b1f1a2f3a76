// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

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

// Bars need a terminal that can go back in a line.
static bool shows(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
}

static bool line_is_open; // something stands there that is to be taken back

// One line that fits: what goes beyond the edge could not be taken back.
static void show_line(const char *what, const char *rest)
{
    struct winsize size = {0};
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    size_t room = columns - 1, end = strlen(rest);
    char *clean = table_clean(what), *name = table_cut(clean, room > end ? room - end : 0);
    fprintf(stderr, "\r\033[K%s%.*s", name, (int)room, rest);
    fflush(stderr);
    line_is_open = true;
    free(name);
    free(clean);
}

void progress_set(struct progress *progress, double fraction)
{
    enum { WIDTH = 30, NARROW = 60 };
    int percent = (int)(fraction * 100);
    char rest[WIDTH + 16], bar[WIDTH + 1];
    struct winsize size = {0};
    if (!shows() || (progress->shown && percent == progress->last))
        return;
    progress->shown = true;
    progress->last = percent;
    int full = percent * WIDTH / 100;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = '\0';
    bool narrow = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_col < NARROW;
    if (narrow)
        snprintf(rest, sizeof rest, " %d %%", percent);
    else
        snprintf(rest, sizeof rest, " [%s] %3d %%", bar, percent);
    show_line(progress->what, rest);
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
    char rest[80];
    if (!shows())
        return;
    progress->shown = true;
    snprintf(rest, sizeof rest, ": %s", text);
    show_line(progress->what, rest);
}

void progress_leave(void)
{
    if (line_is_open)
        fputs("\r\033[K", stderr);
    line_is_open = false;
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        progress_leave();
    progress->shown = false;
}
