// SPDX-License-Identifier: Apache-2.0
// Ranges of volumes: what differs, and what there is.
#include "tools/ramet/volume.h"

#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>

static void print_ranges(const json_t *json, const char *last_head)
{
    const char *const heads[] = {"OFFSET", "LENGTH", last_head};
    struct table *table = table_create(3, heads);
    json_t *range;
    size_t i;
    json_array_foreach(json_object_get(json, "ranges"), i, range)
    {
        char offset[32], length[32];
        snprintf(offset, sizeof offset, "%lld", (long long)json_fields_get_int(range, "offset"));
        snprintf(length, sizeof length, "%lld", (long long)json_fields_get_int(range, "length"));
        table_add(table, (const char *const[]){offset, length, json_fields_get_text(range, "kind")});
    }
    table_print(table);
}

int volume_diff(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    char *after = cli_path("/diff?from=", args.items[0], ""),
         *path = cli_path("/v1/volumes/", args.items[1], after);
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    free(path);
    free(after);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json) {
        cli_print_json(json);
    } else {
        print_ranges(json, "NOW");
        cli_note("%s changed from %s to %s",
                output_size((uint64_t)json_fields_get_int(json, "changed_bytes")), args.items[0],
                args.items[1]);
    }
    json_decref(json);
    return CLI_DONE;
}

int volume_map(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    char *path = cli_path("/v1/volumes/", args.items[0], "/map");
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json) {
        cli_print_json(json);
    } else {
        print_ranges(json, "KIND");
        cli_note("%s of data in %s", output_size((uint64_t)json_fields_get_int(json, "data_bytes")),
                output_size((uint64_t)json_fields_get_int(json, "size_bytes")));
    }
    json_decref(json);
    return CLI_DONE;
}
