// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_print.h"

#include <string.h>

static int change(struct cli *cli, const struct verb *verb, const char *snapshot, const char *name,
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

static int update(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *name = NULL;
    struct args_list labels = {0};
    struct args_option options[] = {{"name", 'n', ARGS_TEXT, &name}, {"label", 'l', ARGS_LIST, &labels}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    return change(cli, verb, args.items[0], name, &labels);
}

static int rename_one(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args_list labels = {0};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    return change(cli, verb, args.items[0], args.items[1], &labels);
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    return resource_list(cli, verb, strdup("/v1/snapshots"), "snapshots", sandbox_print_snapshots);
}

static int show(struct cli *cli, const struct verb *verb, char **argv)
{
    bool wait = false;
    struct args_option options[] = {{"wait", 'w', ARGS_FLAG, &wait}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    return resource_call(cli, verb, "GET", cli_path("/v1/snapshots/", args.items[0], wait ? "?wait=1" : ""),
            NULL, resource_print_details);
}

static int remove_all(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 4096, 0, &args, &status))
        return status;
    return resource_remove(cli, verb, "/v1/snapshots/", args.items, "", false);
}

static const struct verb parts[] = {
        {"snapshots ls", "snapshots [ls]", "List the snapshots", "", list},
        {"snapshots show", "snapshots show NAME [--wait]", "Show a snapshot",
                "  -w, --wait   wait until it is ready\n", show, .takes = "S"},
        {"snapshots rename", "snapshots rename NAME NEW", "Give a snapshot another name", "", rename_one,
                .takes = "S."},
        {"snapshots update", "snapshots update NAME [--name NEW] [--label K=V]...",
                "Change a snapshot's name or labels",
                "  -n, --name NEW    its new name\n"
                "  -l, --label K=V   its labels from now on, in place of all it had; may be given often\n",
                update, .takes = "S"},
        {"snapshots rm", "snapshots rm NAME...", "Remove snapshots",
                "That never harms what was made from them.\n", remove_all, .takes = "S"},
        {0},
};

const struct verb verb_snapshots = {"snapshots", "snapshots [ls|show|rename|update|rm ...]",
        "List, show, rename and remove snapshots of sandboxes and volumes",
        "  snapshots                     list them\n"
        "  snapshots show NAME [--wait]  one; --wait: when it is ready\n"
        "  snapshots rename NAME NEW\n"
        "  snapshots update NAME [-n, --name NEW] [-l, --label K=V]...   labels replace all it had\n"
        "  snapshots rm NAME...          never harms what was made from them\n",
        list, .parts = parts};
