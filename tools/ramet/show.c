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

static int run_metrics(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    return resource_call(cli, verb, "GET", cli_path("/v1/sandboxes/", args.items[0], "/metrics"), NULL,
            resource_print_details);
}

const struct verb verb_metrics = {"metrics", "metrics NAME",
        "Show what a sandbox uses: CPU, memory, disk, network",
        "Counts since its start. `ramet memory` and `ramet store stat` have the figures of all together.\n",
        run_metrics, .takes = "s"};
