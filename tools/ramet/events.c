// SPDX-License-Identifier: Apache-2.0
// events and logs: what happens to sandboxes, and what a guest wrote to its console.
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_event(const json_t *event)
{
    static const char *const hidden[] = {"time", "type", "sandbox", "sandbox_id", "id", NULL};
    const char *key;
    json_t *value;
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
}

static void print_events(const json_t *list)
{
    json_t *event;
    size_t i;
    json_array_foreach((json_t *)list, i, event) print_event(event);
}

// A line of a guest's console, which is text of the guest's.
static void print_line(const json_t *line)
{
    char *clean = table_clean(json_fields_get_text(line, "text"));
    puts(clean);
    free(clean);
}

static int follow(struct cli *cli, const struct verb *verb, const char *path, resource_print *print)
{
    struct client *client;
    struct error err = {0};
    json_t *data;
    char *event;
    int r, status = cli_begin(cli, verb, "GET", path, NULL, &client);
    if (status != CLI_DONE)
        return status;
    stream_end_with_reader();
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        if (cli->json)
            cli_print_json_line(data);
        else
            print(data);
        free(event);
        json_decref(data);
        if (fflush(stdout) != 0) // main says why
            break;
    }
    client_close(client);
    return r < 0 ? cli_fail(verb, "%s", err.text) : CLI_DONE;
}

static int run_events(struct cli *cli, const struct verb *verb, char **argv)
{
    bool follows = false;
    struct args_option options[] = {{"follow", 'f', ARGS_FLAG, &follows}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    const char *after = follows ? "/events?follow=1" : "/events?follow=0";
    char *path =
            args.count == 0 ? cli_path("/v1", "", after) : cli_path("/v1/sandboxes/", args.items[0], after);
    if (!follows)
        return resource_list(cli, verb, path, "events", print_events);
    status = follow(cli, verb, path, print_event);
    free(path);
    return status;
}

// As text: a console may hold any bytes.
static int logs_json(struct cli *cli, const struct verb *verb, const char *path)
{
    struct client *client;
    struct error err = {0};
    char *text;
    size_t size;
    int status = cli_begin(cli, verb, "GET", path, NULL, &client);
    if (status != CLI_DONE)
        return status;
    if (client_read_all(client, &text, &size, &err) < 0) {
        status = cli_fail(verb, "%s", err.text);
    } else {
        json_t *json = json_pack("{s:o}", "text", json_fields_text(text, size));
        cli_print_json(json);
        json_decref(json);
        free(text);
    }
    client_close(client);
    return status;
}

static int run_logs(struct cli *cli, const struct verb *verb, char **argv)
{
    uint64_t bytes = 64 << 10;
    bool follows = false;
    struct args_option options[] = {
            {"bytes", 0, ARGS_SIZE, &bytes}, {"follow", 'f', ARGS_FLAG, &follows}, {0}};
    struct args args;
    struct client *client;
    uint64_t received = 0;
    char after[64];
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    snprintf(after, sizeof after, "/logs?tail_bytes=%llu", (unsigned long long)bytes);
    char *path = cli_path("/v1/sandboxes/", args.items[0], follows ? "/logs?follow=1" : after);
    if (follows)
        status = follow(cli, verb, path, print_line);
    else if (cli->json)
        status = logs_json(cli, verb, path);
    else if ((status = cli_begin(cli, verb, "GET", path, NULL, &client)) == CLI_DONE) {
        status = stream_receive(verb, client, STDOUT_FILENO, "standard output", NULL, &received);
        client_close(client);
        if (status == CLI_DONE && received == 0)
            cli_note("%s has written nothing to its console; what its commands print is in `ramet job logs`",
                    args.items[0]);
    }
    free(path);
    return status;
}

const struct verb verb_events = {"events", "events [NAME] [--follow]",
        "Show what happened to sandboxes under this daemon",
        "  -f, --follow   go on with what happens from now on; with --json one object a line\n", run_events,
        .takes = "s"};
const struct verb verb_logs = {"logs", "logs NAME [--bytes SIZE | --follow]",
        "Show what a guest wrote to its console: its kernel and its system",
        "  --bytes SIZE   so much of its end (default: 64K, at most 1M)\n"
        "  -f, --follow   all that is kept, and go on with what comes; with --json one object a line\n"
        "\n"
        "What a command printed is in `ramet job logs`.\n",
        run_logs, .takes = "s"};
