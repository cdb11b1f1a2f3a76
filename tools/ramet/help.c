// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"

#include <stdio.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 1, 0, &args, &status))
        return status;
    if (args.count == 1) {
        const struct verb *wanted = cli_find_verb(args.items[0]);
        if (wanted == NULL)
            return cli_fail_usage(NULL, "there is no verb \"%s\"", args.items[0]);
        cli_help(wanted);
        return CLI_DONE;
    }
    printf("usage: ramet [--run RUNDIR] [--json] VERB ...\n\n"
           "Snapshots and forks of running machines, and of plain disks.\n\n");
    for (size_t i = 0; verbs[i] != NULL; i++)
        printf("  %-10s %s\n", verbs[i]->name, verbs[i]->summary);
    printf("\n--run RUNDIR (or RAMET_RUN) says which daemon; without it, that of this user (%s).\n"
           "--json prints what programs can read. `ramet help VERB` says more about a verb.\n"
           "Exit status: 0 done, 1 failed, 2 called wrongly.\n",
            cli_run_dir(cli));
    return CLI_DONE;
}

const struct verb verb_help = {"help", "help [VERB]", "Say what there is, or more about a verb", NULL, run};
