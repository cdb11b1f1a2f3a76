// SPDX-License-Identifier: Apache-2.0
// `ramet snapshot NAME` takes one. Words like ls, show and rm cannot be names of sandboxes (vmglue/names.c),
// so `ramet snapshot ls` can only mean the list, and is the same as `ramet snapshots`.
#include "tools/ramet/cli.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <string.h>

static void print(const json_t *json)
{
    printf("%s: %s, paused for %s, %s new\n", json_fields_get_text(json, "name"),
            json_fields_get_text(json, "state"),
            output_ms(json_number_value(json_object_get(json, "pause_ms"))),
            output_size((uint64_t)json_fields_get_int(json, "new_bytes")));
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    if (argv[0] != NULL &&
            (strcmp(argv[0], "ls") == 0 || strcmp(argv[0], "show") == 0 || strcmp(argv[0], "rm") == 0))
        return cli_run(cli, &verb_snapshots, argv);
    const char *name = NULL;
    bool wait = false, best_effort = false, good = true;
    struct args_list labels = {0};
    struct args_option options[] = {{"name", 'n', ARGS_TEXT, &name}, {"wait", 'w', ARGS_FLAG, &wait},
            {"best-effort", 0, ARGS_FLAG, &best_effort}, {"label", 'l', ARGS_LIST, &labels}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    json_t *pairs = cli_pairs(verb, "label", &labels, &good);
    if (!good)
        return CLI_USAGE;
    json_t *body = json_pack("{s:b, s:b}", "wait", (int)wait, "best_effort", (int)best_effort);
    if (name != NULL)
        json_object_set_new(body, "name", json_string(name));
    if (pairs != NULL)
        json_object_set_new(body, "labels", pairs);
    return resource_create(cli, verb, cli_path("/v1/sandboxes/", args.items[0], "/snapshots"), body, print);
}

const struct verb verb_snapshot = {"snapshot",
        "snapshot NAME [--name SNAPSHOT] [--wait] [--label K=V] [--best-effort]",
        "Snapshot a running sandbox: memory, disk and device state of one instant",
        "  -n, --name SNAPSHOT  how to call it (default: one is made)\n"
        "  -w, --wait           return when it is ready: it survives power loss then\n"
        "  -l, --label K=V      may be given often\n"
        "  --best-effort        go on when the guest cannot freeze its processes; forks may draw equal "
        "random bytes then\n"
        "\n"
        "The sandbox runs on. `ramet snapshots` lists snapshots, shows and removes them (so do `ramet "
        "snapshot ls`, `show`\n"
        "and `rm`: no sandbox can have such a name).\n",
        run, .takes = "s"};
