// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/args.h"

#include "tools/ramet/suggest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 64 };

bool args_size(const char *text, uint64_t *ret_bytes)
{
    static const char units[] = "KMGTP";
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || errno != 0)
        return false;
    unsigned shift = 0;
    if (*end != '\0') {
        const char *unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (unit == NULL || *unit == '\0')
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (strcmp(end, "iB") == 0 || strcmp(end, "ib") == 0)
            end += 2;
    }
    if (*end != '\0' || (shift > 0 && number > UINT64_MAX >> shift))
        return false;
    *ret_bytes = (uint64_t)number << shift;
    return true;
}

static bool parse_number(const char *text, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return false;
    *ret_value = number;
    return true;
}

static const struct args_option *find_long(const struct args_option *options, const char *name, size_t size)
{
    for (; options->name != NULL; options++)
        if (strlen(options->name) == size && memcmp(options->name, name, size) == 0)
            return options;
    return NULL;
}

static const struct args_option *find_letter(const struct args_option *options, char letter)
{
    for (; options->name != NULL; options++)
        if (options->letter != 0 && options->letter == letter)
            return options;
    return NULL;
}

static int store_value(
        const struct args_option *option, const char *value, char *message, size_t message_size)
{
    struct args_list *list = option->target;
    switch (option->kind) {
    case ARGS_FLAG:
        *(bool *)option->target = true;
        return 0;
    case ARGS_TEXT:
        *(const char **)option->target = value;
        return 0;
    case ARGS_NUMBER:
        if (parse_number(value, option->target))
            return 0;
        snprintf(message, message_size, "--%s %s is not a whole number", option->name, value);
        return -EINVAL;
    case ARGS_SIZE:
        if (args_size(value, option->target))
            return 0;
        snprintf(message, message_size, "--%s %s is not a size; write bytes, or 512M, 10G, 1T", option->name,
                value);
        return -EINVAL;
    case ARGS_LIST:
        if (list->count < ARGS_LIST_MAX) {
            list->items[list->count++] = value;
            return 0;
        }
        snprintf(message, message_size, "--%s is given too often", option->name);
        return -EINVAL;
    }
    return -EINVAL;
}

static const char *nearest_option(const struct args_option *options, const char *text)
{
    const char *names[OPTIONS_MAX + 1];
    char word[64];
    unsigned count = 0;
    for (; options->name != NULL && count < OPTIONS_MAX; options++)
        names[count++] = options->name;
    names[count] = NULL;
    if (strncmp(text, "--", 2) != 0)
        return NULL;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text + 2, "="), text + 2);
    return suggest_nearest(word, names);
}

// One argument that begins with a dash. Returns how many arguments it took, or -EINVAL.
static int take_option(char **at, const struct args_option *options, char *message, size_t message_size)
{
    const char *text = at[0];
    const struct args_option *option;
    const char *value = NULL;
    if (text[1] == '-') {
        size_t size = strcspn(text + 2, "=");
        option = find_long(options, text + 2, size);
        value = text[2 + size] == '=' ? text + 3 + size : NULL;
    } else {
        option = find_letter(options, text[1]);
        value = text[2] != '\0' ? text + 2 : NULL;
    }
    if (option == NULL) {
        const char *nearest = nearest_option(options, text);
        snprintf(message, message_size, "unknown option %s%s%s%s", text,
                nearest == NULL ? "" : "; did you mean --", nearest == NULL ? "" : nearest,
                nearest == NULL ? "" : "?");
        return -EINVAL;
    }
    if (option->kind == ARGS_FLAG && value != NULL && text[1] == '-') {
        snprintf(message, message_size, "--%s takes no value", option->name);
        return -EINVAL;
    }
    if (option->kind == ARGS_FLAG && value != NULL) { // "-it" is "-i -t"
        *(bool *)option->target = true;
        memmove(at[0] + 1, at[0] + 2, strlen(at[0] + 2) + 1);
        return take_option(at, options, message, message_size);
    }
    int taken = 1;
    if (option->kind != ARGS_FLAG && value == NULL) {
        value = at[1];
        taken = 2;
    }
    if (option->kind != ARGS_FLAG && value == NULL) {
        snprintf(message, message_size, "--%s needs a value", option->name);
        return -EINVAL;
    }
    int r = store_value(option, value, message, message_size);
    return r < 0 ? r : taken;
}

int args_parse(char **argv, const struct args_option *options, unsigned minimum, unsigned maximum,
        unsigned stop_at, const char *usage, struct args *ret_args, char *message, size_t message_size)
{
    struct args args = {.items = (const char **)argv};
    bool only_items = false;
    for (char **at = argv; *at != NULL;) {
        char *text = *at;
        if (!only_items && strcmp(text, "--") == 0) {
            only_items = true;
            at++;
            continue;
        }
        if (!only_items && text[0] == '-' && text[1] != '\0') {
            int taken = take_option(at, options, message, message_size);
            if (taken < 0)
                return taken;
            at += taken;
            continue;
        }
        args.items[args.count++] = text;
        at++;
        if (stop_at > 0 && args.count > stop_at)
            only_items = true;
    }
    args.items[args.count] = NULL;
    if (args.count < minimum || args.count > maximum) {
        if (args.count > maximum)
            snprintf(
                    message, message_size, "\"%s\" is too much; usage: ramet %s", args.items[maximum], usage);
        else
            snprintf(message, message_size, "an argument is missing; usage: ramet %s", usage);
        return -EINVAL;
    }
    *ret_args = args;
    return 0;
}

int args_take_options(char **argv, const struct args_option *options, char *message, size_t message_size)
{
    int count = 0;
    while (argv[count] != NULL && argv[count][0] == '-' && argv[count][1] != '\0') {
        int taken = take_option(argv + count, options, message, message_size);
        if (taken < 0)
            return taken;
        count += taken;
    }
    return count;
}
