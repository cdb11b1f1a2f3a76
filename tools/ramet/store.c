// SPDX-License-Identifier: Apache-2.0
// The store as a whole.
#include "tools/ramet/store.h"

#include "tools/ramet/local_store.h"
#include "tools/ramet/sandbox_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int init(struct cli *cli, const struct verb *verb, char **argv)
{
    uint64_t file_bytes = 0, budget = 0;
    struct args_option options[] = {
            {"log-file", 0, ARGS_SIZE, &file_bytes}, {"log-budget", 0, ARGS_SIZE, &budget}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    const char *directory = args.count == 1 ? args.items[0] : cli_store_dir(cli);
    status = local_store_init(verb, directory, file_bytes, budget);
    if (status == CLI_DONE && cli->json) {
        json_t *json = json_pack("{s:s, s:s}", "directory", directory, "state", "made");
        cli_print_json(json);
        json_decref(json);
    } else if (status == CLI_DONE) {
        printf("%s: an empty store; `ramet up --store %s` starts its daemon\n", directory, directory);
    }
    return status;
}

static int stat_store(struct cli *cli, const struct verb *verb, char **argv)
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
        sandbox_print_details(json);
    json_decref(json);
    return CLI_DONE;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    static const struct verb parts[] = {
            {"store init", "store init [DIR] [--log-budget SIZE] [--log-file SIZE]", NULL, NULL, init},
            {"store stat", "store stat", NULL, NULL, stat_store},
            {"store export", "store export NAME... FILE", NULL, NULL, store_export},
            {"store import", "store import FILE [--prefix TEXT]", NULL, NULL, store_import},
            {0},
    };
    return cli_run_part(cli, verb, parts, argv);
}

const struct verb verb_store = {"store", "store init|stat|export|import ...",
        "The store as a whole: make one, see how it is used, archives",
        "  store init [DIR]               an empty store\n"
        "    --log-budget SIZE            the log never takes more than this (default: 48G)\n"
        "    --log-file SIZE              size of one log file (default: 64M)\n"
        "  store stat                     how the running daemon's store is used\n"
        "  store export NAME... FILE      volumes and snapshots, with all they consist of, into one file (- "
        "is "
        "standard output)\n"
        "  store import FILE              everything in such a file (- is standard input), or nothing\n"
        "    --prefix TEXT                put before every name\n",
        run};
