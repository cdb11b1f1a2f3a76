// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_print.h"

#include <string.h>

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
        return resource_list(cli, verb, strdup("/v1/snapshots"), "snapshots", sandbox_print_snapshots);
    if (strcmp(what, "show") == 0 && args.count == 2)
        return resource_call(cli, verb, "GET",
                cli_path("/v1/snapshots/", args.items[1], wait ? "?wait=1" : ""), NULL,
                resource_print_details);
    if (strcmp(what, "rm") == 0 && args.count >= 2)
        return resource_remove(cli, verb, "/v1/snapshots/", args.items + 1, "", false);
    return cli_fail_usage(verb, "usage: ramet %s", verb->usage);
}

const struct verb verb_snapshots = {"snapshots",
        "snapshots [ls] | snapshots show NAME [--wait] | snapshots rm NAME...",
        "List, show and remove snapshots of sandboxes and volumes",
        "  -w, --wait   with show: wait until the snapshot is ready\n"
        "\n"
        "Removing a snapshot never harms what was made from it.\n",
        run};
