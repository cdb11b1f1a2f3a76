// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"

#include "vmglue/json_fields.h"

#include <stdio.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    struct error err;
    json_t *daemon = NULL;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    bool running = client_call(cli_server(cli), "GET", "/version", NULL, &daemon, &err) == 0;
    if (cli->json) {
        json_t *json = json_pack("{s:s, s:o}", "version", RAMET_VERSION, "daemon",
                running ? json_incref(json_object_get(daemon, "version")) : json_null());
        cli_print_json(json);
        json_decref(json);
    } else {
        printf("ramet %s\n", RAMET_VERSION);
        if (running)
            printf("rametd %s\n", json_fields_get_text(daemon, "version"));
    }
    json_decref(daemon);
    return CLI_DONE;
}

const struct verb verb_version = {
        "version", "version", "Print the version of this program and of the daemon", NULL, run};
