// SPDX-License-Identifier: Apache-2.0
// Plain disks.
#include "tools/ramet/volume.h"

#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_volume(const json_t *json)
{
    printf("%s: %s (%lld bytes)\n", json_fields_get_text(json, "name"),
            output_size((uint64_t)json_fields_get_int(json, "size_bytes")),
            (long long)json_fields_get_int(json, "size_bytes"));
}

// NAME SIZE.
static bool parse_sized(struct cli *cli, const struct verb *verb, char **argv, struct args *ret_args,
        uint64_t *ret_bytes, int *ret_status)
{
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, ret_args, ret_status))
        return false;
    const char *text = ret_args->items[1];
    if (args_size(text, ret_bytes) && *ret_bytes <= INT64_MAX)
        return true;
    *ret_status = cli_fail_usage(verb, "%s is not a size; write bytes, or 512M, 10G, 1T", text);
    return false;
}

static int create(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    uint64_t size;
    int status;
    if (!parse_sized(cli, verb, argv, &args, &size, &status))
        return status;
    return resource_create(cli, verb, strdup("/v1/volumes"),
            json_pack("{s:s, s:I}", "name", args.items[0], "size_bytes", (json_int_t)size), print_volume);
}

static void print_volumes(const json_t *list)
{
    static const char *const heads[] = {"NAME", "KIND", "SIZE", "BYTES", "PARENT", "AGE"};
    struct table *table = table_create(6, heads);
    json_t *volume;
    size_t i;
    json_array_foreach((json_t *)list, i, volume)
    {
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%lld", (long long)json_fields_get_int(volume, "size_bytes"));
        const char *name = json_fields_get_text(volume, "name");
        const char *cells[] = {name[0] == '\0' ? json_fields_get_text(volume, "id") : name,
                json_fields_get_text(volume, "kind"),
                output_size((uint64_t)json_fields_get_int(volume, "size_bytes")), bytes,
                json_fields_get_text(volume, "parent"),
                output_age(json_fields_get_text(volume, "created_at"))};
        table_add(table, cells);
    }
    table_print(table);
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    bool all = false;
    struct args_option options[] = {{"all", 'a', ARGS_FLAG, &all}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    return resource_list(
            cli, verb, strdup(all ? "/v1/volumes?all=1" : "/v1/volumes"), "volumes", print_volumes);
}

static int show(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_named(cli, verb, argv, "GET", "/v1/volumes/", "", resource_print_details);
}

static int fork_volume(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    return resource_create(cli, verb, cli_path("/v1/volumes/", args.items[0], "/fork"),
            json_pack("{s:s}", "name", args.items[1]), print_volume);
}

static void print_snapshot(const json_t *json)
{
    printf("%s: %s\n", json_fields_get_text(json, "name"), json_fields_get_text(json, "state"));
}

static int snapshot(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 2, 0, &args, &status))
        return status;
    json_t *body = args.count == 2 ? json_pack("{s:s}", "name", args.items[1]) : json_object();
    return resource_create(
            cli, verb, cli_path("/v1/volumes/", args.items[0], "/snapshots"), body, print_snapshot);
}

static int remove_all(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_remove(cli, verb, argv, "/v1/volumes/");
}

static int resize(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    uint64_t size;
    int status;
    if (!parse_sized(cli, verb, argv, &args, &size, &status))
        return status;
    return resource_call(cli, verb, "PATCH", cli_path("/v1/volumes/", args.items[0], ""),
            json_pack("{s:I}", "size_bytes", (json_int_t)size), print_volume);
}

static int rename_volume(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    return resource_call(cli, verb, "PATCH", cli_path("/v1/volumes/", args.items[0], ""),
            json_pack("{s:s}", "name", args.items[1]), print_volume);
}

static const struct verb parts[] = {
        {"volume import", "volume import NAME FILE [--format raw|qcow2] [--size BYTES]", NULL, NULL,
                volume_import, .takes = ".f"},
        {"volume export", "volume export NAME FILE [--format raw|qcow2]", NULL, NULL, volume_export,
                .takes = "vf"},
        {"volume create", "volume create NAME SIZE", NULL, NULL, create, .takes = "."},
        {"volume ls", "volume ls [--all]", NULL, NULL, list},
        {"volume show", "volume show NAME", NULL, NULL, show, .takes = "v"},
        {"volume fork", "volume fork VOLUME|SNAPSHOT NEW", NULL, NULL, fork_volume, .takes = "v."},
        {"volume snapshot", "volume snapshot VOLUME [SNAPSHOT]", NULL, NULL, snapshot, .takes = "v."},
        {"volume rm", "volume rm NAME...", NULL, NULL, remove_all, .takes = "v"},
        {"volume resize", "volume resize NAME SIZE", NULL, NULL, resize, .takes = "v."},
        {"volume rename", "volume rename NAME NEW", NULL, NULL, rename_volume, .takes = "v."},
        {"volume diff", "volume diff OLDER NEWER", NULL, NULL, volume_diff, .takes = "v"},
        {"volume map", "volume map NAME", NULL, NULL, volume_map, .takes = "v"},
        {0},
};

const struct verb verb_volume = {"volume",
        "volume import|export|create|ls|show|fork|snapshot|rm|resize|rename|diff|map ...",
        "Plain disks: make, copy in and out, fork, snapshot, compare",
        "  volume import NAME FILE [--format raw|qcow2]   FILE - is standard input (raw); --size: how much "
        "must come from it\n"
        "  volume export NAME FILE [--format raw|qcow2]   of a volume or snapshot, of one instant; FILE - is "
        "standard output\n"
        "  volume create NAME SIZE                        empty; SIZE in bytes, or 512M, 10G, 1T\n"
        "  volume ls [--all]                              --all: those of sandboxes too\n"
        "  volume show NAME\n"
        "  volume fork VOLUME|SNAPSHOT NEW                a new volume, no data is copied\n"
        "  volume snapshot VOLUME [SNAPSHOT]              listed by `ramet snapshots`\n"
        "  volume rm NAME...                              snapshots and forks of it stay\n"
        "  volume resize NAME SIZE\n"
        "  volume rename NAME NEW\n"
        "  volume diff OLDER NEWER                        ranges that differ, and what NEWER holds there\n"
        "  volume map NAME                                what holds data, is zero, or was never written\n"
        "\n"
        "A volume is reached by NBD as nbd+unix:///NAME?socket=RUNDIR/nbd.sock, a snapshot in the same way, "
        "read-only:\n"
        "volumes and snapshots share their names. NAME/disk is the disk of a sandbox.\n"
        "An import is durable when this returns 0, and nothing is left of one that failed.\n",
        .parts = parts};
