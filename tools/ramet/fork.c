// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/output.h"
#include "tools/ramet/sandbox_print.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    uint64_t count = UINT64_MAX;
    const char *snapshot = NULL;
    bool best_effort = false, good = true;
    struct args_list names = {0}, labels = {0};
    struct env_option env = {0};
    struct args_option options[] = {{"count", 'c', ARGS_NUMBER, &count}, {"name", 'n', ARGS_LIST, &names},
            {"label", 'l', ARGS_LIST, &labels}, ENV_OPTION_ROWS(env), {"snapshot", 0, ARGS_TEXT, &snapshot},
            {"best-effort", 0, ARGS_FLAG, &best_effort}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    json_t *label_pairs = cli_pairs(verb, "label", &labels, &good);
    json_t *env_pairs = good ? env_option_read(verb, &env, &good) : NULL;
    if (!good) {
        json_decref(label_pairs);
        return CLI_USAGE;
    }
    json_t *body = json_pack("{s:b}", "best_effort", (int)best_effort);
    if (count != UINT64_MAX)
        json_object_set_new(body, "count", json_integer((json_int_t)count));
    if (names.count > 0) {
        json_t *list = json_array();
        for (unsigned i = 0; i < names.count; i++)
            json_array_append_new(list, json_string(names.items[i]));
        json_object_set_new(body, "names", list);
    }
    if (label_pairs != NULL)
        json_object_set_new(body, "labels", label_pairs);
    if (env_pairs != NULL)
        json_object_set_new(body, "env", env_pairs);
    cli_set_text(body, "snapshot", snapshot);
    char *path = cli_path("/v1/sandboxes/", args.items[0], "/fork");
    json_t *json = cli_create(cli, verb, path, body), *child;
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json) {
        cli_print_json(json);
    } else {
        size_t i;
        json_array_foreach(json_object_get(json, "children"), i, child) sandbox_print_line(child);
        printf("%s was paused for %s\n", args.items[0],
                output_ms(json_number_value(json_object_get(json, "pause_ms"))));
    }
    json_decref(json);
    return CLI_DONE;
}

const struct verb verb_fork = {"fork",
        "fork NAME [--count N] [--name CHILD]... [--snapshot SNAPSHOT] [options]",
        "Fork a running sandbox: copies that go on from the same instant",
        "  -c, --count N        how many (default: 1, or as many as names)\n"
        "  -n, --name CHILD     name of a child; may be given often (default: names are made)\n"
        "  --snapshot SNAPSHOT  also keep the instant under this name\n"
        "  -l, --label K=V      labels of the children (default: the parent's)\n"
        "  -e, --env K=V        more environment for the children's commands; K alone: as it is here\n"
        "  --env-file FILE      such lines from a file\n"
        "  --best-effort        go on when the guest cannot freeze its processes; forks may draw equal "
        "random bytes then\n"
        "\n"
        "The sandbox itself runs on. Either all children run, or none is left.\n",
        run, .takes = "s"};
