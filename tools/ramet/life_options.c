// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/life_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "90", "1.5", "10m", "8h", "7d".
static bool parse_seconds(const char *text, double *ret_seconds)
{
    static const struct {
        char letter;
        double seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    errno = 0;
    double seconds = strtod(text, &end);
    if (end == text || errno != 0 || !(seconds >= 0))
        return false;
    for (size_t i = 0; *end != '\0' && i < sizeof units / sizeof units[0]; i++)
        if (*end == units[i].letter && end[1] == '\0') {
            *ret_seconds = seconds * units[i].seconds;
            return true;
        }
    *ret_seconds = seconds;
    return *end == '\0';
}

static bool add_seconds(const struct verb *verb, const char *option, const char *text, json_t *body)
{
    char field[32];
    double seconds;
    if (text == NULL)
        return true;
    if (!parse_seconds(text, &seconds)) {
        cli_fail_usage(verb, "--%s %s is no time; write seconds, or 10m, 8h, 7d (0 = none)", option, text);
        return false;
    }
    snprintf(field, sizeof field, "%s_secs", option);
    json_object_set_new(body, field, json_real(seconds));
    return true;
}

bool life_options_add(const struct verb *verb, const struct life_options *options, json_t *body)
{
    if (options->auto_start && options->no_auto_start) {
        cli_fail_usage(verb, "--auto-start and --no-auto-start exclude each other");
        return false;
    }
    if (options->on_timeout != NULL)
        json_object_set_new(body, "on_timeout", json_string(options->on_timeout));
    if (options->auto_start || options->no_auto_start)
        json_object_set_new(body, "auto_start", json_boolean(options->auto_start));
    return add_seconds(verb, "ttl", options->ttl, body) && add_seconds(verb, "idle", options->idle, body);
}

static json_t *parse_disk(const char *text)
{
    char what[256];
    const char *colon = strchr(text, ':');
    size_t length = colon == NULL ? strlen(text) : (size_t)(colon - text);
    uint64_t bytes;
    if (length == 0 || length >= sizeof what)
        return NULL;
    memcpy(what, text, length);
    what[length] = '\0';
    json_t *disk = json_object();
    // A size has a unit, so that a volume may be called "10".
    if (args_size(what, &bytes) && (what[length - 1] == 'G' || what[length - 1] == 'T'))
        json_object_set_new(disk, "size_gb", json_integer((json_int_t)(bytes >> 30)));
    else
        json_object_set_new(disk, "volume", json_string(what));
    if (colon == NULL)
        return disk;
    const char *mount = colon + 1, *how = strrchr(mount, ':');
    bool read_only = how != NULL && strcmp(how, ":ro") == 0;
    if (strcmp(mount, "ro") == 0)
        json_object_set_new(disk, "read_only", json_true());
    else
        json_object_set_new(
                disk, "mount", json_stringn(mount, read_only ? (size_t)(how - mount) : strlen(mount)));
    if (read_only)
        json_object_set_new(disk, "read_only", json_true());
    return disk;
}

bool life_options_add_disks(const struct verb *verb, const struct args_list *disks, json_t *body)
{
    if (disks->count == 0)
        return true;
    json_t *list = json_array();
    json_object_set_new(body, "disks", list);
    for (unsigned i = 0; i < disks->count; i++) {
        json_t *disk = parse_disk(disks->items[i]);
        if (disk == NULL) {
            cli_fail_usage(verb,
                    "--add-disk %s: write a size (10G) or a volume's name, then :/where/to/mount and :ro as "
                    "wanted",
                    disks->items[i]);
            return false;
        }
        json_array_append_new(list, disk);
    }
    return true;
}
