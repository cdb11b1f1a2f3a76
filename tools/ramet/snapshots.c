// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/sandbox_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int list(struct cli *cli, const struct verb *verb)
{
    json_t *json = cli_call(cli, verb, "GET", "/v1/snapshots", NULL);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json_object_get(json, "snapshots"));
    else
        sandbox_print_snapshots(json_object_get(json, "snapshots"));
    json_decref(json);
    return CLI_DONE;
}

static int show(struct cli *cli, const struct verb *verb, const char *name, bool wait)
{
    char *path = cli_path("/v1/snapshots/", name, wait ? "?wait=1" : "");
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        sandbox_print_details(json);
    json_decref(json);
    return CLI_DONE;
}

static int remove_all(struct cli *cli, const struct verb *verb, const char **names)
{
    int status = CLI_DONE;
    for (; *names != NULL; names++) {
        char *path = cli_path("/v1/snapshots/", *names, "");
        json_t *json = cli_call(cli, verb, "DELETE", path, NULL);
        free(path);
        if (json == NULL)
            status = CLI_FAILED;
        else if (!cli->json)
            printf("%s: removed\n", *names);
        json_decref(json);
    }
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool wait = false;
    struct args_option options[] = {{"wait", 'w', ARGS_FLAG, &wait}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 4096, 0, &args, &status))
        return status;
    const char *what = args.count == 0 ? "ls" : args.items[0];
    if (strcmp(what, "ls") == 0 && args.count <= 1)
        return list(cli, verb);
    if (strcmp(what, "show") == 0 && args.count == 2)
        return show(cli, verb, args.items[1], wait);
    if (strcmp(what, "rm") == 0 && args.count >= 2)
        return remove_all(cli, verb, args.items + 1);
    return cli_fail_usage(verb, "usage: ramet %s", verb->usage);
}

const struct verb verb_snapshots = {"snapshots",
        "snapshots [ls] | snapshots show NAME [--wait] | snapshots rm NAME...",
        "List, show and remove snapshots of sandboxes and volumes",
        "  -w, --wait   with show: wait until the snapshot is ready\n"
        "\n"
        "Removing a snapshot never harms what was made from it.\n",
        run};
