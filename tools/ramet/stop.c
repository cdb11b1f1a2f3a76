// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/sandbox_each.h"

#include <stdio.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool disk_only = false, force = false;
    struct args_option options[] = {
            {"disk-only", 0, ARGS_FLAG, &disk_only}, {"force", 'f', ARGS_FLAG, &force}, {0}};
    struct args args;
    char body[64];
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 4096, 0, &args, &status))
        return status;
    snprintf(body, sizeof body, "{\"memory\":%s,\"force\":%s}", disk_only ? "false" : "true",
            force ? "true" : "false");
    return sandbox_each(cli, verb, &args, "POST", "/stop", body);
}

const struct verb verb_stop = {"stop", "stop NAME... [--disk-only] [--force]",
        "Stop sandboxes and keep memory and disk",
        "  --disk-only   sync the file systems and keep the disk alone: the next start boots\n"
        "  -f, --force   also when the guest does not answer; with --disk-only as a power cut would\n",
        run, .takes = "s"};
