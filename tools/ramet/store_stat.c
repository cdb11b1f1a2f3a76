// SPDX-License-Identifier: Apache-2.0
// What takes how much space.
#include "tools/ramet/output.h"
#include "tools/ramet/store.h"
#include "vmglue/json_fields.h"

#include <stdio.h>

// The parts of "physical" add up to it.
static const struct line {
    const char *label, *field, *note;
} lines[] = {
        {"logical", "logical_bytes", "sizes of all volumes"},
        {"mapped", "mapped_bytes", "data that volumes and snapshots refer to, each counted by itself"},
        {"unique", "unique_bytes", "of it, every block once (as of the last `ramet store gc`)"},
        {"physical", "physical_bytes", "on disk:"},
        {"  log", "log_bytes", "not sealed yet, and spare files"},
        {"  segments", "segment_bytes", "sealed"},
        {"  catalog", "catalog_bytes", ""},
        {"  other", "other_bytes", ""},
        {"reclaimable", "reclaimable_bytes", "`ramet store gc` frees about this much"},
        {"pinned", "leaving_bytes", "replaced, but still being read"},
        {"free", "free_bytes", "on the file system"},
        {"log budget", "log_budget_bytes", "the log never takes more"},
};

static void print_stat(const json_t *json)
{
    printf("%-12s %s\n%-12s %s\n%-12s %s\n", "store", json_fields_get_text(json, "directory"), "id",
            json_fields_get_text(json, "id"), "state", json_fields_get_text(json, "state"));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        printf("%-12s %10s  %-16lld %s\n", lines[i].label,
                output_size((uint64_t)json_fields_get_int(json, lines[i].field)),
                (long long)json_fields_get_int(json, lines[i].field), lines[i].note);
    printf("%-12s %lld volumes, %lld bases, %lld segments, %lld checkpoints since the start\n", "there are",
            (long long)json_fields_get_int(json, "volumes"), (long long)json_fields_get_int(json, "bases"),
            (long long)json_fields_get_int(json, "segments"),
            (long long)json_fields_get_int(json, "checkpoints"));
    printf("%-12s %lld entries, %s, %s\n", "fingerprints",
            (long long)json_fields_get_int(json, "fingerprint_entries"),
            output_size((uint64_t)json_fields_get_int(json, "fingerprint_bytes")),
            json_fields_get_bool(json, "fingerprints_loaded") ? "loaded" : "being loaded");
    const char *error = json_fields_get_text(json, "background_error");
    printf("%-12s %s\n", "background", error[0] == '\0' ? "fine" : error);
}

int store_stat_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    json_t *json = cli_call(cli, verb, "GET", "/v1/store", NULL);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        print_stat(json);
    json_decref(json);
    return CLI_DONE;
}
