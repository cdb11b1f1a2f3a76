// SPDX-License-Identifier: Apache-2.0
// events and logs: what happens to sandboxes, and what a guest wrote to its console.
#include "tools/ramet/cli.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_event(struct cli *cli, const json_t *event)
{
    static const char *const hidden[] = {"time", "type", "sandbox", "sandbox_id", "id", NULL};
    const char *key;
    json_t *value;
    if (cli->json) {
        cli_print_json(event);
        fflush(stdout);
        return;
    }
    printf("%s %s %s", json_fields_get_text(event, "time"), json_fields_get_text(event, "sandbox"),
            json_fields_get_text(event, "type"));
    json_object_foreach((json_t *)event, key, value)
    {
        size_t i = 0;
        while (hidden[i] != NULL && strcmp(hidden[i], key) != 0)
            i++;
        char *text = hidden[i] != NULL || json_is_null(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        if (text != NULL)
            printf(" %s=%s", key, text);
        free(text);
    }
    putchar('\n');
    fflush(stdout);
}

static int follow(struct cli *cli, const struct verb *verb, const char *path)
{
    struct client *client;
    struct error err = {0};
    json_t *failure = NULL, *data;
    char *event;
    int http_status, r = client_open(cli_server(cli), "GET", path, "application/json", 0, &client, &err);
    if (r < 0)
        return cli_fail(verb, "%s", err.text);
    r = client_answer(client, &http_status, &err);
    if (r == 0 && http_status >= 400)
        r = client_error(client, http_status, &failure, &err);
    if (r < 0) {
        client_close(client);
        return cli_fail_call(cli, verb, &err, failure);
    }
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        print_event(cli, data);
        free(event);
        json_decref(data);
    }
    client_close(client);
    return r < 0 ? cli_fail(verb, "%s", err.text) : CLI_DONE;
}

static int list(struct cli *cli, const struct verb *verb, const char *path)
{
    json_t *json = cli_call(cli, verb, "GET", path, NULL), *event;
    size_t i;
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json_object_get(json, "events"));
    json_array_foreach(json_object_get(json, "events"), i, event)
    {
        if (!cli->json)
            print_event(cli, event);
    }
    json_decref(json);
    return CLI_DONE;
}

static int run_events(struct cli *cli, const struct verb *verb, char **argv)
{
    bool follows = false;
    struct args_option options[] = {{"follow", 'f', ARGS_FLAG, &follows}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    const char *query = follows ? "?follow=1" : "?follow=0";
    char *path = args.count == 0 ? NULL : cli_path("/v1/sandboxes/", args.items[0], "/events"), *whole = NULL;
    if (asprintf(&whole, "%s%s", path == NULL ? "/v1/events" : path, query) < 0)
        whole = NULL;
    status = whole == NULL ? cli_fail(verb, "no memory")
             : follows     ? follow(cli, verb, whole)
                           : list(cli, verb, whole);
    free(path);
    free(whole);
    return status;
}

static int run_logs(struct cli *cli, const struct verb *verb, char **argv)
{
    uint64_t bytes = 64 << 10;
    struct args_option options[] = {{"bytes", 0, ARGS_SIZE, &bytes}, {0}};
    struct args args;
    struct client *client;
    struct error err = {0};
    json_t *failure = NULL;
    uint64_t received;
    char after[64];
    int status, http_status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    snprintf(after, sizeof after, "/logs?tail_bytes=%llu", (unsigned long long)bytes);
    char *path = cli_path("/v1/sandboxes/", args.items[0], after);
    int r = client_open(cli_server(cli), "GET", path, "application/json", 0, &client, &err);
    free(path);
    if (r < 0)
        return cli_fail(verb, "%s", err.text);
    r = client_answer(client, &http_status, &err);
    if (r == 0 && http_status >= 400)
        r = client_error(client, http_status, &failure, &err);
    status = r < 0 ? cli_fail_call(cli, verb, &err, failure)
                   : stream_receive(verb, client, STDOUT_FILENO, "-", NULL, &received);
    client_close(client);
    return status;
}

const struct verb verb_events = {"events", "events [NAME] [--follow]",
        "Show what happened to sandboxes under this daemon",
        "  -f, --follow   go on with what happens from now on; with --json one object a line\n", run_events};
const struct verb verb_logs = {"logs", "logs NAME [--bytes SIZE]",
        "Show the end of what a guest wrote to its console",
        "  --bytes SIZE   so much of it (default: 64K, at most 1M)\n", run_logs};
