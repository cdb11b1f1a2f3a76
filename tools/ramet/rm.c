// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool force = false;
    struct args_option options[] = {{"force", 'f', ARGS_FLAG, &force}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 4096, 0, &args, &status))
        return status;
    return resource_remove(cli, verb, "/v1/sandboxes/", args.items, "", force);
}

const struct verb verb_rm = {"rm", "rm NAME... [--force]",
        "Remove sandboxes with their disks, running or not",
        "  -f, --force   one that does not exist is no failure\n"
        "\n"
        "Snapshots and forks of a removed sandbox stay.\n",
        run, .takes = "s"};
