// SPDX-License-Identifier: Apache-2.0
#include "blockstore/clock.h"
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/shell.h"
#include "tools/ramet/shell_quote.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STDIN_MAX_BYTES = 16 << 20, STATUS_TIMED_OUT = 124, QUIET_MS = 10000, ANSWER_MS = 10000 };

// A command that prints nothing and a machine that hangs look alike from here. So when nothing has come for a
// while the machine is asked something small beside it, once: it answers, or a line says that it does not.
struct quiet {
    struct cli *cli;
    const char *name;
    uint64_t since_ms, asked_ms; // when anything came last; 0 = not asked since
    struct client *question;
    bool said;
};

static void quiet_ask(struct quiet *quiet, uint64_t now_ms)
{
    struct error err;
    quiet->asked_ms = now_ms;
    char *path = resource_file_path(quiet->name, "stat?path=", "/", "");
    if (client_open(cli_server(quiet->cli), "GET", path, NULL, 0, &quiet->question, &err) < 0)
        quiet->question = NULL; // the call itself will say what is wrong with the daemon
    free(path);
}

// Each second in which nothing comes.
static void quiet_look(void *context, unsigned seconds)
{
    struct quiet *quiet = context;
    uint64_t now_ms = clock_monotonic_ms();
    if (quiet->asked_ms == 0 && !quiet->said && now_ms - quiet->since_ms >= QUIET_MS) {
        quiet_ask(quiet, now_ms);
        return;
    }
    if (quiet->question == NULL)
        return;
    struct pollfd poll_fd = {.fd = client_fd(quiet->question), .events = POLLIN};
    bool answers = poll(&poll_fd, 1, 0) > 0;
    if (!answers && now_ms - quiet->asked_ms < ANSWER_MS)
        return;
    quiet->question = client_close(quiet->question);
    quiet->said = !answers;
    if (!answers)
        cli_note("ramet exec: %s does not answer: it is being started, is very busy, or hangs; "
                 "`ramet logs %s` shows its console, Ctrl-C gives up, `ramet stop --force %s` stops it with "
                 "its memory",
                quiet->name, quiet->name, quiet->name);
}

static void quiet_begin(struct quiet *quiet, struct cli *cli, const char *name)
{
    *quiet = (struct quiet){.cli = cli, .name = name, .since_ms = clock_monotonic_ms()};
    client_on_wait(quiet_look, quiet);
}

static void quiet_heard(struct quiet *quiet)
{
    quiet->question = client_close(quiet->question);
    quiet->since_ms = clock_monotonic_ms();
    quiet->asked_ms = 0;
}

static void quiet_end(struct quiet *quiet)
{
    client_on_wait(NULL, NULL);
    client_close(quiet->question);
}

// Standard input up to its end, as base64: JSON cannot carry every byte.
static char *read_stdin(const struct verb *verb)
{
    char *bytes;
    size_t size;
    int r = stream_read_all(STDIN_FILENO, STDIN_MAX_BYTES, &bytes, &size);
    if (r == -EFBIG)
        cli_fail(verb,
                "standard input is larger than 16 MiB; copy it with `ramet cp - NAME:FILE` and read the "
                "file");
    else if (r < 0)
        cli_fail(verb, "standard input cannot be read: %s", strerror(-r));
    if (r < 0)
        return NULL;
    char *text = shell_quote_base64(bytes, size);
    free(bytes);
    return text;
}

static int finish(const struct verb *verb, const json_t *result)
{
    if (json_fields_get_bool(result, "timed_out")) {
        cli_fail(verb, "the command took too long and was ended");
        return STATUS_TIMED_OUT;
    }
    if (json_fields_get_bool(result, "out_of_memory"))
        cli_note("ramet exec: the guest's kernel ended the command: out of memory");
    return (int)json_fields_get_int(result, "exit_code");
}

// Passes output on as it comes. Returns the status.
static int follow(const struct verb *verb, struct client *client, struct quiet *quiet)
{
    struct error err = {0};
    char *event;
    json_t *data;
    int r;
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        bool out = strcmp(event, "stdout") == 0, last = strcmp(event, "exit") == 0,
             error = strcmp(event, "error") == 0, ended = last || error;
        int status = CLI_FAILED;
        quiet_heard(quiet);
        if (out || strcmp(event, "stderr") == 0) {
            size_t size;
            char *bytes = shell_quote_from_base64(json_fields_get_text(data, "base64"), &size);
            status = stream_pass(verb, out ? STDOUT_FILENO : STDERR_FILENO, bytes, size);
            ended = status != CLI_DONE; // and with this program its command
            free(bytes);
        } else if (last) {
            status = finish(verb, data);
        } else if (error) {
            cli_fail(verb, "%s", json_fields_get_text(data, "message"));
        }
        free(event);
        json_decref(data);
        if (ended)
            return status;
    }
    return cli_fail(verb, "%s", r < 0 ? err.text : "the daemon ended before the command did");
}

static int stream(struct cli *cli, const struct verb *verb, const char *name, json_t *body)
{
    struct client *client;
    struct quiet quiet;
    char *path = cli_path("/v1/sandboxes/", name, "/exec/stream");
    quiet_begin(&quiet, cli, name);
    int status = cli_begin(cli, verb, "POST", path, body, &client);
    free(path);
    if (status == CLI_DONE) {
        status = follow(verb, client, &quiet);
        client_close(client);
    }
    quiet_end(&quiet);
    return status;
}

#define SHELL_NAME "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// exec -t: a terminal takes no environment of its own, so the line sets it.
static int in_terminal(struct cli *cli, const struct verb *verb, const char *name, const char *line,
        json_t *env, const char *timeout, const char *user, const char *cwd)
{
    if (timeout != NULL)
        return cli_fail_usage(verb, "--timeout does not go with --tty: end the command by Ctrl-C");
    if (cli->json)
        return cli_fail_usage(verb, "--json does not go with --tty");
    const char *key;
    json_t *value;
    char *whole = strdup(line);
    json_object_foreach(env, key, value)
    {
        if (key[strspn(key, SHELL_NAME)] != '\0' || (key[0] >= '0' && key[0] <= '9')) {
            free(whole);
            return cli_fail_usage(verb,
                    "\"%s\": with --tty a variable's name has letters, digits and _ alone, no digit first",
                    key);
        }
        char *quoted = shell_quote_join((const char *const[]){json_string_value(value), NULL}), *longer;
        if (asprintf(&longer, "export %s=%s; %s", key, quoted, whole) < 0)
            abort();
        free(quoted);
        free(whole);
        whole = longer;
    }
    int status = shell_run(cli, verb, name, whole, user, cwd);
    free(whole);
    return status;
}

// The result when the command has ended, as JSON.
static int whole(struct cli *cli, const struct verb *verb, const char *name, json_t *body)
{
    char *path = cli_path("/v1/sandboxes/", name, "/exec");
    json_t *json = cli_call(cli, verb, "POST", path, body);
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    cli_print_json(json);
    int status = finish(verb, json);
    json_decref(json);
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *cwd = NULL, *user = NULL, *timeout = NULL;
    struct env_option env = {0};
    bool with_stdin = false, tty = false, good = true;
    struct args_option options[] = {{"cwd", 'w', ARGS_TEXT, &cwd}, {"user", 'u', ARGS_TEXT, &user},
            {"timeout", 0, ARGS_TEXT, &timeout}, ENV_OPTION_ROWS(env), {"stdin", 'i', ARGS_FLAG, &with_stdin},
            {"tty", 't', ARGS_FLAG, &tty}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 4096, 1, &args, &status))
        return status;
    json_t *pairs = env_option_read(verb, &env, &good);
    char *end = NULL;
    double seconds = timeout == NULL ? 0 : strtod(timeout, &end);
    if (good && timeout != NULL && (end == timeout || *end != '\0' || !(seconds > 0))) {
        json_decref(pairs);
        return cli_fail_usage(verb, "--timeout %s is no number of seconds", timeout);
    }
    if (!good)
        return CLI_USAGE;
    // One word is a line for the shell; several are a command and its arguments, each kept as it is.
    char *line = args.count == 2 ? strdup(args.items[1]) : shell_quote_join(args.items + 1);
    if (tty) {
        status = in_terminal(cli, verb, args.items[0], line, pairs, timeout, user, cwd);
        json_decref(pairs);
        free(line);
        return status;
    }
    json_t *command = json_string(line);
    free(line);
    if (command == NULL) {
        json_decref(pairs);
        return cli_fail_usage(
                verb, "the command is not UTF-8; put it into a script and copy that with `ramet cp`");
    }
    json_t *body = json_pack("{s:o, s:s}", "command", command, "encoding", cli->json ? "text" : "base64");
    if (pairs != NULL)
        json_object_set_new(body, "env", pairs);
    cli_set_text(body, "cwd", cwd);
    cli_set_text(body, "user", user);
    if (timeout != NULL)
        json_object_set_new(body, "timeout_secs", json_real(seconds));
    if (with_stdin) {
        char *text = read_stdin(verb);
        if (text == NULL) {
            json_decref(body);
            return CLI_FAILED;
        }
        json_object_set_new(body, "stdin_base64", json_string(text));
        free(text);
    }
    return cli->json ? whole(cli, verb, args.items[0], body) : stream(cli, verb, args.items[0], body);
}

const struct verb verb_exec = {"exec", "exec NAME [options] [--] COMMAND [ARGUMENT...]",
        "Run a command in a sandbox and pass its output and exit status on",
        "  -i, --stdin        give it this program's standard input, up to its end (else it reads nothing)\n"
        "  -t, --tty          in a terminal, as `ramet shell` does; -it is the same\n"
        "  --timeout SECS     end it and all that it started after so long (status 124)\n"
        "  -w, --cwd FOLDER   default: the user's home\n"
        "  -u, --user NAME    default: user\n"
        "  -e, --env K=V      may be given often; K alone takes the value from this environment\n"
        "  --env-file FILE    such lines from a file\n"
        "\n"
        "A single COMMAND is a line for /bin/bash; with ARGUMENTs each word stays as it is. Options of this "
        "program "
        "stand\n"
        "before COMMAND.\n"
        "When nothing comes for ten seconds it asks whether the sandbox still answers, and says so when it "
        "does not.\n"
        "With --json the whole result is printed when the command ends.\n",
        run, .takes = "s."};
