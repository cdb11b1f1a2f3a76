// SPDX-License-Identifier: Apache-2.0
#include "tools/rametd/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void log_line(const char *format, ...)
{
    char text[1400], line[1500], date[32];
    struct timespec now;
    struct tm tm;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c != '\0'; c++) // a message is one line, whatever a guest or file put into it
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    int size = snprintf(line, sizeof line, "%s.%03ldZ rametd: %s\n", date, now.tv_nsec / 1000000, text);
    ssize_t written = write(STDERR_FILENO, line, (size_t)size); // one call: lines of threads do not mix
    (void)written;
}
