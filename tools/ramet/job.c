// SPDX-License-Identifier: Apache-2.0
// Jobs: commands in a sandbox that go on when nobody looks.
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/shell_quote.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *how_it_ended(const json_t *job, char *text, size_t size)
{
    if (strcmp(json_fields_get_text(job, "state"), "running") == 0)
        return "running";
    if (json_fields_get_bool(job, "out_of_memory"))
        snprintf(text, size, "out of memory");
    else if (json_fields_get_bool(job, "timed_out"))
        snprintf(text, size, "timed out");
    else
        snprintf(text, size, "exit %lld", (long long)json_fields_get_int(job, "exit_code"));
    return text;
}

static void print_job(const json_t *json)
{
    char text[40];
    printf("job %lld%s%s: %s\n", (long long)json_fields_get_int(json, "id"),
            json_fields_get_text(json, "name")[0] != '\0' ? " " : "", json_fields_get_text(json, "name"),
            how_it_ended(json, text, sizeof text));
}

static json_t *command_body(const struct verb *verb, const struct args *args)
{
    char *line = args->count == 2 ? strdup(args->items[1]) : shell_quote_join(args->items + 1);
    json_t *command = json_string(line);
    free(line);
    if (command == NULL)
        cli_fail_usage(verb, "the command is not UTF-8; put it into a script and copy that with `ramet cp`");
    return command == NULL ? NULL : json_pack("{s:o}", "command", command);
}

static int start(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *name = NULL, *cwd = NULL, *user = NULL;
    struct env_option env = {0};
    bool good = true;
    struct args_option options[] = {{"name", 'n', ARGS_TEXT, &name}, {"cwd", 'w', ARGS_TEXT, &cwd},
            {"user", 'u', ARGS_TEXT, &user}, ENV_OPTION_ROWS(env), {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 4096, 1, &args, &status))
        return status;
    json_t *pairs = env_option_read(verb, &env, &good), *body = good ? command_body(verb, &args) : NULL;
    if (body == NULL) {
        json_decref(pairs);
        return CLI_USAGE;
    }
    if (pairs != NULL)
        json_object_set_new(body, "env", pairs);
    cli_set_text(body, "name", name);
    cli_set_text(body, "cwd", cwd);
    cli_set_text(body, "user", user);
    return resource_create(cli, verb, resource_path(args.items[0], "jobs", NULL, ""), body, print_job);
}

static void print_jobs(const json_t *list)
{
    static const char *const heads[] = {"ID", "NAME", "STATE", "OUTPUT", "AGE", "COMMAND"};
    struct table *table = table_create(6, heads);
    json_t *job;
    size_t index;
    json_array_foreach((json_t *)list, index, job)
    {
        char id[24], state[40];
        int64_t bytes = json_fields_get_int(json_object_get(job, "stdout"), "next_offset") +
                        json_fields_get_int(json_object_get(job, "stderr"), "next_offset");
        snprintf(id, sizeof id, "%lld", (long long)json_fields_get_int(job, "id"));
        const char *cells[] = {id, json_fields_get_text(job, "name"), how_it_ended(job, state, sizeof state),
                output_size((uint64_t)bytes), output_age(json_fields_get_text(job, "started_at")),
                json_fields_get_text(job, "command")};
        table_add(table, cells);
    }
    table_print(table);
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_list_of(cli, verb, argv, "jobs", print_jobs);
}

static int show(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    return resource_call(
            cli, verb, "GET", resource_path(args.items[0], "jobs", args.items[1], ""), NULL, print_job);
}

// Passes its exit status on.
static int wait_for(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    for (;;) {
        char *path = resource_path(args.items[0], "jobs", args.items[1], "?wait_secs=60");
        json_t *json = cli_call(cli, verb, "GET", path, NULL);
        free(path);
        if (json == NULL)
            return CLI_FAILED;
        if (strcmp(json_fields_get_text(json, "state"), "running") != 0) {
            status = (int)json_fields_get_int(json, "exit_code");
            if (cli->json)
                cli_print_json(json);
            else
                print_job(json);
            json_decref(json);
            return status;
        }
        json_decref(json);
    }
}

static int show_events(const struct verb *verb, struct client *client)
{
    struct error err = {0};
    char *event;
    json_t *data;
    int r;
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        bool out = strcmp(event, "stdout") == 0, end = strcmp(event, "end") == 0,
             error = strcmp(event, "error") == 0;
        int status = end ? CLI_DONE : CLI_FAILED, passed = CLI_DONE;
        if (out || strcmp(event, "stderr") == 0) {
            size_t size;
            char *bytes = shell_quote_from_base64(json_fields_get_text(data, "base64"), &size);
            passed = stream_pass(verb, out ? STDOUT_FILENO : STDERR_FILENO, bytes, size);
            free(bytes);
        } else if (strcmp(event, "gap") == 0) {
            long long lost = json_fields_get_int(data, "to") - json_fields_get_int(data, "from");
            if (lost >= 0)
                cli_note("ramet job logs: %lld bytes of %s are not kept any more", lost,
                        json_fields_get_text(data, "stream"));
            else
                cli_note("ramet job logs: %s is not what it was before; here is all of it",
                        json_fields_get_text(data, "stream"));
        } else if (error) {
            cli_fail(verb, "%s", json_fields_get_text(data, "message"));
        }
        free(event);
        json_decref(data);
        if (end || error || passed != CLI_DONE)
            return passed != CLI_DONE ? passed : status;
    }
    return cli_fail(verb, "%s", r < 0 ? err.text : "the daemon ended; the job may go on");
}

// One object a line: the event's own, with its kind.
static int events_json(const struct verb *verb, struct client *client)
{
    struct error err = {0};
    char *event;
    json_t *data;
    int r;
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        bool last = strcmp(event, "end") == 0 || strcmp(event, "error") == 0, end = strcmp(event, "end") == 0;
        json_object_set_new(data, "event", json_string(event));
        cli_print_json_line(data);
        free(event);
        json_decref(data);
        if (last || ferror(stdout))
            return end ? CLI_DONE : CLI_FAILED;
    }
    return cli_fail(verb, "%s", r < 0 ? err.text : "the daemon ended; the job may go on");
}

static int logs(struct cli *cli, const struct verb *verb, char **argv)
{
    bool follow = false;
    struct args_option options[] = {{"follow", 'f', ARGS_FLAG, &follow}, {0}};
    struct args args;
    struct client *client;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    char after[64];
    snprintf(after, sizeof after, "/logs?follow=%d%s", (int)follow, cli->json ? "" : "&encoding=base64");
    char *path = resource_path(args.items[0], "jobs", args.items[1], after);
    status = cli_begin(cli, verb, "GET", path, NULL, &client);
    free(path);
    if (status != CLI_DONE)
        return status;
    stream_end_with_reader();
    status = cli->json ? events_json(verb, client) : show_events(verb, client);
    client_close(client);
    return status;
}

static int kill_job(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *name = NULL;
    struct args_option options[] = {{"signal", 's', ARGS_TEXT, &name}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    char *end = NULL;
    long number = name == NULL ? 0 : strtol(name, &end, 10);
    json_t *signal = name == NULL                  ? json_string("TERM")
                     : end != name && *end == '\0' ? json_integer(number)
                                                   : json_string(name);
    return resource_call(cli, verb, "POST", resource_path(args.items[0], "jobs", args.items[1], "/signal"),
            json_pack("{s:o}", "signal", signal), NULL);
}

static int remove_job(struct cli *cli, const struct verb *verb, char **argv)
{
    bool force = false;
    struct args_option options[] = {{"force", 'f', ARGS_FLAG, &force}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    char *folder = resource_path(args.items[0], "jobs", NULL, "/");
    status = resource_remove(cli, verb, folder, args.items + 1, force ? "?kill=1" : "", false);
    free(folder);
    return status;
}

static const struct verb parts[] = {
        {"job start", "job start NAME [--name JOB] [options] [--] COMMAND [ARGUMENT...]", "Start a job", NULL,
                start, .takes = "s."},
        {"job ls", "job ls NAME", "The sandbox's jobs, newest first", NULL, list, .takes = "s"},
        {"job show", "job show NAME JOB", "One job", NULL, show, .takes = "sj"},
        {"job wait", "job wait NAME JOB", "Wait for its end and pass its exit status on", NULL, wait_for,
                .takes = "sj"},
        {"job logs", "job logs NAME JOB [--follow]",
                "What it wrote, as far as it is kept (the last MiB of each stream)", NULL, logs,
                .takes = "sj"},
        {"job kill", "job kill NAME JOB [--signal TERM]", "Signal all its processes", NULL, kill_job,
                .takes = "sj"},
        {"job rm", "job rm NAME JOB [--force]", "Forget it and its log (with --force also while it runs)",
                NULL, remove_job, .takes = "sj"},
        {0},
};

const struct verb verb_job = {"job", "job start|ls|show|wait|logs|kill|rm NAME ...",
        "Commands in a sandbox that go on when nobody looks",
        "  job start NAME [--name JOB] [options] [--] COMMAND [ARGUMENT...]\n"
        "    -n, --name JOB, -w, --cwd FOLDER, -u, --user NAME, -e, --env K=V, --env-file FILE\n"
        "  job ls NAME\n"
        "  job show NAME JOB\n"
        "  job wait NAME JOB              passes the job's exit status on\n"
        "  job logs NAME JOB [--follow]\n"
        "  job kill NAME JOB [--signal TERM]\n"
        "  job rm NAME JOB [--force]\n"
        "\n"
        "JOB is a job's id or name. Jobs outlive the daemon and go on in snapshots and forks.\n",
        .parts = parts};
