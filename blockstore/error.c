// SPDX-License-Identifier: Apache-2.0
#include "blockstore/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *err, int code, const char *format, ...)
{
    if (err == NULL)
        return code;
    va_list args;
    va_start(args, format);
    err->code = code;
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
}

int error_prefix(struct error *err, const char *format, ...)
{
    if (err == NULL)
        return -1;
    char rest[sizeof err->text], head[160];
    memcpy(rest, err->text, sizeof rest);
    va_list args;
    va_start(args, format);
    vsnprintf(head, sizeof head, format, args);
    va_end(args);
    snprintf(err->text, sizeof err->text, "%s: %.*s", head, (int)(sizeof rest - sizeof head - 2), rest);
    return err->code;
}
