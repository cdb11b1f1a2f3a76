// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/sandbox_each.h"

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool cold = false;
    struct args_option options[] = {{"cold", 0, ARGS_FLAG, &cold}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 4096, 0, &args, &status))
        return status;
    return sandbox_each(cli, verb, &args, "POST", "/start", cold ? "{\"cold\":true}" : "{}");
}

const struct verb verb_start = {"start", "start NAME... [--cold]",
        "Let stopped sandboxes go on where they were",
        "  --cold   forget the memory and boot from the disk\n", run, .takes = "s"};
