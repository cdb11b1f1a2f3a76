// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/local_store.h"
#include "tools/ramet/sandbox_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int init(
        struct cli *cli, const struct verb *verb, const char *directory, uint64_t file_bytes, uint64_t budget)
{
    int status = local_store_init(verb, directory, file_bytes, budget);
    if (status == CLI_DONE && cli->json) {
        json_t *json = json_pack("{s:s, s:s}", "directory", directory, "state", "made");
        cli_print_json(json);
        json_decref(json);
    } else if (status == CLI_DONE) {
        printf("%s: an empty store; `ramet up --store %s` starts its daemon\n", directory, directory);
    }
    return status;
}

static int stat_store(struct cli *cli, const struct verb *verb)
{
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
    uint64_t file_bytes = 0, budget = 0;
    struct args_option options[] = {
            {"log-file", 0, ARGS_SIZE, &file_bytes}, {"log-budget", 0, ARGS_SIZE, &budget}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 2, 0, &args, &status))
        return status;
    if (strcmp(args.items[0], "init") == 0)
        return init(cli, verb, args.count == 2 ? args.items[1] : cli_store_dir(cli), file_bytes, budget);
    if (strcmp(args.items[0], "stat") == 0 && args.count == 1)
        return stat_store(cli, verb);
    return cli_fail_usage(verb, "usage: ramet %s", verb->usage);
}

const struct verb verb_store = {"store", "store init [DIR] [--log-budget SIZE] | store stat",
        "Make an empty store, or show how the running daemon's is used",
        "  --log-budget SIZE   init: the log never takes more than this (default: 48G)\n"
        "  --log-file SIZE     init: size of one log file (default: 64M)\n",
        run};
