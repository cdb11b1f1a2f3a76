// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_print.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>

static void print_names(const json_t *list)
{
    size_t i;
    json_t *box;
    json_array_foreach((json_t *)list, i, box) puts(json_fields_get_text(box, "name"));
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *state = NULL, *label = NULL;
    bool quiet = false;
    struct args_option options[] = {{"state", 0, ARGS_TEXT, &state}, {"label", 'l', ARGS_TEXT, &label},
            {"quiet", 'q', ARGS_FLAG, &quiet}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    char *path =
            state == NULL ? cli_path("/v1/sandboxes", "", "") : cli_path("/v1/sandboxes?state=", state, "");
    if (label != NULL) {
        char *more = cli_path(state == NULL ? "?label=" : "&label=", label, "");
        char *joined = cli_path(path, "", more);
        free(path);
        free(more);
        path = joined;
    }
    return resource_list(cli, verb, path, "sandboxes", quiet ? print_names : sandbox_print_table);
}

const struct verb verb_ls = {"ls", "ls [--state STATE] [--label K=V] [--quiet]", "List the sandboxes",
        "  --state STATE   only those: running, paused, stopped, failed\n"
        "  -l, --label K=V only those with this label\n"
        "  -q, --quiet     their names alone: ramet rm $(ramet ls -q)\n",
        run};
