// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_print.h"

#include <string.h>

static int update(struct cli *cli, const struct verb *verb, const char *snapshot, const char *name,
        const struct args_list *list)
{
    bool good;
    json_t *labels = cli_pairs(verb, "label", list, &good), *body = json_object();
    if (!good) {
        json_decref(body);
        return CLI_USAGE;
    }
    if (name != NULL)
        json_object_set_new(body, "name", json_string(name));
    if (labels != NULL)
        json_object_set_new(body, "labels", labels);
    return resource_call(
            cli, verb, "PATCH", cli_path("/v1/snapshots/", snapshot, ""), body, resource_print_details);
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool wait = false;
    const char *name = NULL;
    struct args_list labels = {0};
    struct args_option options[] = {{"wait", 'w', ARGS_FLAG, &wait}, {"name", 'n', ARGS_TEXT, &name},
            {"label", 'l', ARGS_LIST, &labels}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 4096, 0, &args, &status))
        return status;
    const char *what = args.count == 0 ? "ls" : args.items[0];
    if (strcmp(what, "ls") == 0 && args.count <= 1)
        return resource_list(cli, verb, strdup("/v1/snapshots"), "snapshots", sandbox_print_snapshots);
    if (strcmp(what, "show") == 0 && args.count == 2)
        return resource_call(cli, verb, "GET",
                cli_path("/v1/snapshots/", args.items[1], wait ? "?wait=1" : ""), NULL,
                resource_print_details);
    if (strcmp(what, "rm") == 0 && args.count >= 2)
        return resource_remove(cli, verb, "/v1/snapshots/", args.items + 1, "", false);
    if (strcmp(what, "update") == 0 && args.count == 2)
        return update(cli, verb, args.items[1], name, &labels);
    return cli_fail_usage(verb, "usage: ramet %s", verb->usage);
}

const struct verb verb_snapshots = {"snapshots",
        "snapshots [ls] | snapshots show NAME [--wait] | snapshots rm NAME... | snapshots update NAME "
        "[options]",
        "List, show, rename and remove snapshots of sandboxes and volumes",
        "  -w, --wait   with show: wait until the snapshot is ready\n"
        "  -n, --name NAME   with update: its new name\n"
        "  -l, --label NAME=VALUE  with update: its labels from now on, in place of all it had\n"
        "\n"
        "Removing a snapshot never harms what was made from it.\n",
        run};
