// SPDX-License-Identifier: Apache-2.0
// What takes how much of the host's memory.
#include "tools/ramet/cli.h"

#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <stdio.h>

static const struct line {
    const char *label, *field, *note;
} lines[] = {
        {"budget", "budget_bytes", "what all machines together may grow to (rametd --memory-budget)"},
        {"counted", "counted_bytes", "of it, by those that run"},
        {"free", "free_bytes", "of it, for more machines"},
        {"private", "private_bytes", "guest memory that one machine alone has"},
        {"shared", "shared_bytes", "guest memory mapped from snapshots, each machine's by itself"},
        {"  once", "shared_part_bytes", "of it, every page once"},
        {"swapped", "swapped_bytes", "guest memory in swap"},
        {"VMMs", "vmm_bytes", "everything else in the machines' processes"},
};

static void print_memory(const json_t *json)
{
    const json_t *host = json_object_get(json, "host");
    bool is_short = json_fields_get_text(json, "state")[0] == 's';
    printf("%-10s %lld that run\n", "machines", (long long)json_fields_get_int(json, "machines"));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (json_is_null(json_object_get(json, lines[i].field)))
            continue; // no budget
        printf("%-10s %10s  %s\n", lines[i].label,
                output_size((uint64_t)json_fields_get_int(json, lines[i].field)), lines[i].note);
    }
    printf("%-10s %10s  available", "host",
            output_size((uint64_t)json_fields_get_int(host, "available_bytes")));
    printf(" of %s", output_size((uint64_t)json_fields_get_int(host, "total_bytes")));
    printf("; short below %s%s\n", output_size((uint64_t)json_fields_get_int(json, "low_bytes")),
            is_short ? ": it is short, and idle sandboxes are stopped" : "");
    long long unknown = json_fields_get_int(json, "unknown"),
              stopped = json_fields_get_int(json, "stopped_total");
    if (stopped > 0)
        printf("%-10s %lld idle sandboxes since the daemon's start, for want of memory\n", "stopped",
                stopped);
    if (unknown > 0)
        printf("%-10s %lld machines have not told yet what they use\n", "unknown", unknown);
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    json_t *json = cli_call(cli, verb, "GET", "/v1/memory", NULL);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        print_memory(json);
    json_decref(json);
    return CLI_DONE;
}

const struct verb verb_memory = {"memory", "memory", "Show what takes how much of the host's memory",
        "A machine counts as 96 MiB and its guest's memory divided by the overcommit factor (rametd\n"
        "--memory-overcommit), or what it has already when that is more. What does not fit into the budget "
        "is not started.\n"
        "When the host gets short of memory, sandboxes that nobody uses are stopped with their memory, the "
        "one idle\n"
        "longest first, but never persistent ones; `ramet start` brings them back. `ramet show NAME` has the "
        "figures of one.\n",
        run};
