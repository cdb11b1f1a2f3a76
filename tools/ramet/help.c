// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/man.h"

#include <stdio.h>
#include <stdlib.h>

static const char options_text[] =
        "  --server URL     a daemon by its address (or RAMET_API): http://HOST:PORT, https://HOST:PORT,\n"
        "                   unix:///PATH/api.sock\n"
        "  --key-file FILE  its key (or RAMET_API_KEY; keys are never given as arguments, which others see)\n"
        "  --ca FILE        trust the certificates of this PEM file instead of the system's (or RAMET_CA)\n"
        "  --json           print what programs can read: what the API answers, failures too\n"
        "  -h, --help       say more about a verb\n";

static const char first_steps[] =
        "    ramet up                                 start a daemon (as root)\n"
        "    ramet template build agent-base          make something to start from, once\n"
        "    ramet create box --from agent-base       a sandbox\n"
        "    ramet shell box                          a terminal in it\n"
        "    ramet snapshot box --name before         keep this instant\n"
        "    ramet fork box --count 3                 three more that go on from here, as box-1f2e3d4c ...\n"
        "    ramet promote box-1f2e3d4c --name box    keep that one, and remove the two others\n"
        "    ramet stop box; ramet start box          tomorrow it goes on where it was, memory and all\n";

static void print_page(void)
{
    man_begin("ramet", 1, "snapshots and forks of running machines, and of plain disks");
    man_section("SYNOPSIS");
    man_paragraph("ramet [--run RUNDIR | --server URL] [--json] VERB [ARGUMENT...]");
    man_section("DESCRIPTION");
    man_paragraph(
            "Speaks to rametd(1), which owns a store and runs sandboxes: through its unix socket, or by "
            "TCP and TLS with a key.");
    man_section("FIRST STEPS");
    man_text(first_steps);
    man_section("OPTIONS OF EVERY VERB");
    man_text("  --run RUNDIR     which daemon of this host (or RAMET_RUN); without it, that of this user\n");
    man_text(options_text);
    man_section("VERBS");
    for (size_t i = 0; verbs[i] != NULL; i++) {
        char *usage;
        man_subsection(verbs[i]->name);
        if (asprintf(&usage, "ramet %s\n\n%s.\n", verbs[i]->usage, verbs[i]->summary) < 0)
            abort();
        man_text(usage);
        free(usage);
        if (verbs[i]->details == NULL)
            continue;
        puts(".sp");
        man_text(verbs[i]->details);
    }
    man_section("EXIT STATUS");
    man_paragraph("0 done, 1 failed, 2 called wrongly, 124 a command took too long, 141 nobody reads the "
                  "output any more. exec, shell, run and job "
                  "wait pass "
                  "their command's status on.");
    man_section("JSON");
    man_paragraph(
            "With --json standard output holds one document, also when something fails: the API's answer, or "
            "{\"error\": {\"code\", \"message\"}, \"message\"} with a code of the API or client.usage, "
            "client.unreachable, client.failed. Several names make a list of such documents. What is "
            "followed "
            "(events, logs, job logs) is one object a line. Sentences stay on standard error.");
    man_section("ENVIRONMENT");
    man_text("  RAMET_RUN           the daemon's run directory (--run)\n"
             "  RAMET_API           its address (--server); --run goes before it\n"
             "  RAMET_API_KEY       the key for it\n"
             "  RAMET_API_KEY_FILE  the file of the key (--key-file)\n"
             "  RAMET_CA            certificates to trust (--ca)\n"
             "  RAMET_STORE         the store that `ramet up` starts a daemon for\n"
             "  RAMET_KERNEL_DIR    the guests' kernel\n"
             "  RAMET_LIBEXEC       where the helper programs are\n"
             "  HTTPS_PROXY         a proxy to reach https:// addresses through\n"
             "  NO_COLOR            no colours, even on a terminal\n");
    man_section("SEE ALSO");
    man_paragraph("rametd(1)");
}

static int help_about(struct cli *cli, const char *word, const char *part)
{
    const struct verb *wanted = cli_find_verb(word);
    if (wanted == NULL)
        return cli_fail_no_verb(word);
    if (part != NULL && wanted->parts == NULL)
        return cli_fail_usage(NULL, "\"%s\" has no parts", word);
    if (part != NULL)
        return cli_run(cli, wanted, (char *[]){(char *)part, "--help", NULL});
    cli_help(wanted);
    return CLI_DONE;
}

static void print_verbs_json(void)
{
    json_t *list = json_array();
    for (size_t i = 0; verbs[i] != NULL; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "verb", verbs[i]->name, "usage",
                                            verbs[i]->usage, "summary", verbs[i]->summary));
    cli_print_json(list);
    json_decref(list);
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool page = false;
    struct args_option options[] = {{"man", 0, ARGS_FLAG, &page}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 2, 0, &args, &status))
        return status;
    if (args.count > 0)
        return help_about(cli, args.items[0], args.items[1]);
    if (page) {
        print_page();
        return CLI_DONE;
    }
    if (cli->json) {
        print_verbs_json();
        return CLI_DONE;
    }
    printf("usage: ramet [--run RUNDIR | --server URL] [--json] VERB ...\n\n"
           "Snapshots and forks of running machines, and of plain disks.\n\n");
    for (size_t i = 0; verbs[i] != NULL; i++)
        printf("  %-10s %s\n", verbs[i]->name, verbs[i]->summary);
    printf("\nOptions of every verb:\n"
           "  --run RUNDIR     which daemon of this host (or RAMET_RUN); without it, that of this user:\n"
           "                   %s\n"
           "%s"
           "\nFirst steps:\n%s"
           "\n`ramet help VERB` says more about a verb. Exit status: 0 done, 1 failed, 2 called wrongly.\n",
            cli_run_dir(cli), options_text, first_steps);
    return CLI_DONE;
}

const struct verb verb_help = {"help", "help [VERB [PART]]", "Say what there is, or more about a verb",
        "  --man   the whole manual page, for man(1)\n", run};
