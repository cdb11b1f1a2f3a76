// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/sandbox_print.h"

#include <stdlib.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    char *path = cli_path("/v1/sandboxes/", args.items[0], "");
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        sandbox_print_details(json);
    json_decref(json);
    return CLI_DONE;
}

const struct verb verb_show = {"show", "show NAME", "Show everything about a sandbox", NULL, run};
