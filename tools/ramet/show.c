// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    return resource_call(
            cli, verb, "GET", cli_path("/v1/sandboxes/", args.items[0], ""), NULL, resource_print_details);
}

const struct verb verb_show = {"show", "show NAME", "Show everything about a sandbox",
        "Its state, limits, labels and network, and of one that runs what it uses of the host's memory.\n",
        run, .takes = "s"};
