// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"

#include <stdio.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 2, 0, &args, &status))
        return status;
    if (args.count > 0) {
        const struct verb *wanted = cli_find_verb(args.items[0]);
        if (wanted == NULL)
            return cli_fail_usage(NULL, "there is no verb \"%s\"", args.items[0]);
        if (args.count == 2)
            return cli_run(cli, wanted, (char *[]){(char *)args.items[1], "--help", NULL});
        cli_help(wanted);
        return CLI_DONE;
    }
    printf("usage: ramet [--run RUNDIR | --server URL] [--json] VERB ...\n\n"
           "Snapshots and forks of running machines, and of plain disks.\n\n");
    for (size_t i = 0; verbs[i] != NULL; i++)
        printf("  %-10s %s\n", verbs[i]->name, verbs[i]->summary);
    printf("\nOptions of every verb:\n"
           "  --run RUNDIR     which daemon of this host (or RAMET_RUN); without it, that of this user:\n"
           "                   %s\n"
           "  --server URL     a daemon by its address (or RAMET_API): http://HOST:PORT, https://HOST:PORT,\n"
           "                   unix:///PATH/api.sock\n"
           "  --key-file FILE  its key (or RAMET_API_KEY; keys are never given as arguments, which others "
           "see)\n"
           "  --ca FILE        trust the certificates of this PEM file instead of the system's (or "
           "RAMET_CA)\n"
           "  --json           print what programs can read\n"
           "\n`ramet help VERB` says more about a verb. Exit status: 0 done, 1 failed, 2 called wrongly.\n",
            cli_run_dir(cli));
    return CLI_DONE;
}

const struct verb verb_help = {
        "help", "help [VERB [PART]]", "Say what there is, or more about a verb", NULL, run};
