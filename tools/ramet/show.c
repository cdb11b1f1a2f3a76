// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_named(cli, verb, argv, "GET", "/v1/sandboxes/", "", resource_print_details);
}

const struct verb verb_show = {"show", "show NAME", "Show everything about a sandbox",
        "Its state, limits, labels and network, and of one that runs what it uses of the host's memory.\n",
        run, .takes = "s"};

static int run_metrics(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_named(cli, verb, argv, "GET", "/v1/sandboxes/", "/metrics", resource_print_details);
}

const struct verb verb_metrics = {"metrics", "metrics NAME",
        "Show what a sandbox uses: CPU, memory, disk, network",
        "Counts since its start. `ramet memory` and `ramet store stat` have the figures of all together.\n",
        run_metrics, .takes = "s"};
