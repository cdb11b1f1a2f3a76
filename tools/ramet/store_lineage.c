// SPDX-License-Identifier: Apache-2.0
// What came from what, as a tree.
#include "tools/ramet/output.h"
#include "tools/ramet/store.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 }; // deeper ones are shown, but no further to the right

static bool is_child_of(const json_t *node, const char *parent)
{
    return strcmp(json_fields_get_text(node, "parent"), parent) == 0;
}

static void print_node(const json_t *node)
{
    int64_t fresh = json_fields_get_int(node, "new_bytes"), size = json_fields_get_int(node, "logical_bytes");
    const char *from = json_fields_get_text(node, "from");
    printf("%s  %s, %s, %s", json_fields_get_text(node, "name"), json_fields_get_text(node, "kind"),
            json_fields_get_text(node, "state"), output_size((uint64_t)size));
    if (json_object_get(node, "new_bytes") != NULL)
        printf(" (%s new)", output_size((uint64_t)fresh));
    if (json_fields_get_text(node, "parent")[0] == '\0' && from[0] != '\0')
        printf(", from %s", from);
    printf(", %s old\n", output_age(json_fields_get_text(node, "created_at")));
}

// before: what stands left of the children of this one.
static void print_below(const json_t *nodes, const char *parent, const char *before, unsigned depth)
{
    size_t left = 0, i;
    const json_t *node;
    json_array_foreach(nodes, i, node) left += is_child_of(node, parent);
    json_array_foreach(nodes, i, node)
    {
        char *deeper = NULL;
        if (!is_child_of(node, parent))
            continue;
        bool last = --left == 0;
        if (depth > 0)
            printf("%s%s", before, last ? "└─ " : "├─ ");
        print_node(node);
        if (asprintf(&deeper, "%s%s", before,
                    depth == 0 || depth > DEPTH_MAX ? ""
                    : last                          ? "   "
                                                    : "│  ") < 0)
            abort();
        print_below(nodes, json_fields_get_text(node, "id"), deeper, depth + 1);
        free(deeper);
    }
}

int store_lineage_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    JSON_AUTO json_t *json = cli_call(cli, verb, "GET", "/v1/store/lineage", NULL);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json_object_get(json, "nodes"));
    else
        print_below(json_object_get(json, "nodes"), "", "", 0);
    return CLI_DONE;
}
