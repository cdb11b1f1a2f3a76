// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/sandbox_each.h"

#include "tools/ramet/sandbox_print.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sandbox_each(struct cli *cli, const struct verb *verb, const struct args *args, const char *method,
        const char *after, const char *body)
{
    int status = CLI_DONE;
    json_t *results = json_array();
    for (unsigned i = 0; i < args->count; i++) {
        struct error err = {0};
        json_t *json = NULL;
        char *path = cli_path("/v1/sandboxes/", args->items[i], after);
        int r = cli_try(
                cli, verb, method, path, body == NULL ? NULL : json_loads(body, 0, NULL), &json, &err);
        free(path);
        if (r < 0) {
            status = cli_fail_one(cli, verb, &err, json, results);
            continue;
        }
        if (!cli->json)
            sandbox_print_line(json);
        json_array_append_new(results, json);
    }
    if (cli->json)
        cli_print_json(args->count == 1 ? json_array_get(results, 0) : results);
    json_decref(results);
    return status;
}
