// SPDX-License-Identifier: Apache-2.0
#include "blockstore/fd.h"
#include "tools/ramet/cli.h"
#include "tools/ramet/shell_quote.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CODE_MAX_BYTES = 8 << 20, STATUS_TIMED_OUT = 124 };

// What `run --save` writes, in this order of preference for what is shown of a Result without text.
static const struct {
    const char *field, *suffix;
    bool base64;
} saved[] = {{"png", "png", true}, {"svg", "svg", false}, {"jpeg", "jpg", true}, {"pdf", "pdf", true},
        {"html", "html", false}};

struct run_state {
    const struct verb *verb;
    const char *save_dir;
    unsigned saved_count;
    int status, closed;
};

// What cannot be written ends the run.
static void write_text(struct run_state *state, int fd, const json_t *text)
{
    if (state->closed == CLI_DONE)
        state->closed = stream_pass(state->verb, fd, json_string_value(text), json_string_length(text));
}

// ---- code ----

static char *read_code(const struct verb *verb, int fd, const char *name)
{
    char *text;
    size_t size;
    int r = stream_read_all(fd, CODE_MAX_BYTES, &text, &size);
    if (r == -EFBIG)
        cli_fail(verb, "%s is larger than 8 MiB; copy it into the sandbox with `ramet cp` and import it",
                name);
    else if (r < 0)
        cli_fail(verb, "%s cannot be read: %s", name, strerror(-r));
    if (r < 0)
        return NULL;
    if (strlen(text) != size) {
        cli_fail(verb, "%s is no text: it holds a zero character", name);
        free(text);
        return NULL;
    }
    return text;
}

static bool is_file(const char *word)
{
    const char *dot = strrchr(word, '.');
    struct stat stat_of;
    return dot != NULL && (strcmp(dot, ".py") == 0 || strcmp(dot, ".sh") == 0) &&
           strchr(word, '\n') == NULL && stat(word, &stat_of) == 0 && S_ISREG(stat_of.st_mode);
}

// CODE, "-" for standard input, or a file's name. malloc'ed; NULL when it has failed.
static char *take_code(const struct verb *verb, const char *word)
{
    if (word == NULL && isatty(STDIN_FILENO))
        cli_note("reading code from this terminal, up to Ctrl-D");
    if (word == NULL || strcmp(word, "-") == 0)
        return read_code(verb, STDIN_FILENO, "standard input");
    if (!is_file(word))
        return strdup(word);
    int fd = open(word, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        cli_fail(verb, "%s cannot be read: %s", word, strerror(errno));
        return NULL;
    }
    char *text = read_code(verb, fd, word);
    close(fd);
    return text;
}

// ---- what comes ----

static void save_content(struct run_state *state, const json_t *result, size_t kind)
{
    const json_t *value = json_object_get(result, saved[kind].field);
    size_t size = json_string_length(value);
    char *path, *bytes = NULL;
    struct stream_file file;
    if (!json_is_string(value))
        return;
    if (saved[kind].base64)
        bytes = shell_quote_from_base64(json_string_value(value), &size);
    if (asprintf(&path, "%s/%u.%s", state->save_dir, state->saved_count, saved[kind].suffix) < 0)
        abort();
    if (stream_file_create(state->verb, path, &file) != CLI_DONE) {
        state->status = CLI_FAILED;
    } else {
        const char *from = bytes != NULL ? bytes : json_string_value(value);
        int r = fd_write_all(file.fd, from, size);
        if (r < 0) {
            state->status = cli_fail(state->verb, "%s cannot be written: %s", path, strerror(-r));
            stream_file_discard(&file);
        } else if (stream_file_publish(state->verb, &file) != CLI_DONE) {
            state->status = CLI_FAILED;
        } else {
            cli_note("saved %s", path);
        }
    }
    free(path);
    free(bytes);
}

// The text of a value; of a picture that is not saved, a word that there was one.
static void show_result(struct run_state *state, const json_t *result)
{
    const json_t *text = json_object_get(result, "text");
    bool has_picture = false;
    if (state->save_dir != NULL)
        state->saved_count++;
    for (size_t i = 0; i < sizeof saved / sizeof saved[0]; i++) {
        has_picture |= strcmp(saved[i].field, "html") != 0 && json_object_get(result, saved[i].field) != NULL;
        if (state->save_dir != NULL)
            save_content(state, result, i);
    }
    if (has_picture && strcmp(json_fields_get_text(result, "type"), "display") == 0) {
        if (state->save_dir == NULL)
            cli_note("ramet run: a figure came; --save FOLDER writes it to a file");
    } else if (json_is_string(text)) {
        write_text(state, STDOUT_FILENO, text);
        if (state->closed == CLI_DONE)
            state->closed = stream_pass(state->verb, STDOUT_FILENO, "\n", 1);
    }
}

static void show_end(struct run_state *state, const json_t *done)
{
    const char *lost = json_fields_get_text(done, "state_lost");
    if (json_fields_get_bool(done, "truncated"))
        cli_note("ramet run: there was more output than is kept; the rest was dropped");
    if (lost[0] != '\0')
        cli_note("ramet run: variables were lost: %s", lost);
    if (json_fields_get_bool(done, "timed_out")) {
        cli_fail(state->verb, "the code took too long and was interrupted");
        state->status = STATUS_TIMED_OUT;
    } else if (state->status == CLI_DONE && json_is_integer(json_object_get(done, "exit_code"))) {
        state->status = (int)json_fields_get_int(done, "exit_code");
    }
}

static void show_error(struct run_state *state, const json_t *error)
{
    const char *traceback = json_fields_get_text(error, "traceback");
    if (traceback[0] != '\0')
        fprintf(stderr, "%s\n", traceback);
    else
        fprintf(stderr, "%s: %s\n", json_fields_get_text(error, "name"),
                json_fields_get_text(error, "value"));
    state->status = CLI_FAILED;
}

static int follow(struct run_state *state, struct client *client)
{
    struct error err = {0};
    char *event;
    json_t *data;
    int r;
    while ((r = client_event(client, &event, &data, &err)) > 0) {
        bool last = strcmp(event, "done") == 0, failed = strcmp(event, "failed") == 0;
        if (strcmp(event, "stdout") == 0 || strcmp(event, "stderr") == 0)
            write_text(state, strcmp(event, "stdout") == 0 ? STDOUT_FILENO : STDERR_FILENO,
                    json_object_get(data, "text"));
        else if (strcmp(event, "result") == 0 || strcmp(event, "display") == 0 ||
                 strcmp(event, "update_display") == 0)
            show_result(state, data);
        else if (strcmp(event, "error") == 0)
            show_error(state, data);
        else if (last)
            show_end(state, data);
        else if (failed)
            state->status = cli_fail(state->verb, "%s", json_fields_get_text(data, "message"));
        free(event);
        json_decref(data);
        if (last || failed || state->closed != CLI_DONE)
            return state->closed != CLI_DONE ? state->closed : state->status;
    }
    return cli_fail(state->verb, "%s", r < 0 ? err.text : "the daemon ended before the code did");
}

static int stream(struct cli *cli, struct run_state *state, const char *path, json_t *body)
{
    struct client *client;
    int status = cli_begin(cli, state->verb, "POST", path, body, &client);
    if (status != CLI_DONE)
        return status;
    status = follow(state, client);
    client_close(client);
    return status;
}

static int whole(struct cli *cli, struct run_state *state, const char *path, json_t *body)
{
    json_t *json = cli_call(cli, state->verb, "POST", path, body);
    if (json == NULL)
        return CLI_FAILED;
    size_t i;
    json_t *result;
    cli_print_json(json);
    if (state->save_dir != NULL)
        json_array_foreach(json_object_get(json, "results"), i, result)
        {
            state->saved_count++;
            for (size_t kind = 0; kind < sizeof saved / sizeof saved[0]; kind++)
                save_content(state, result, kind);
        }
    if (json_is_object(json_object_get(json, "error")))
        state->status = CLI_FAILED;
    show_end(state, json);
    json_decref(json);
    return state->status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *context = "default", *timeout = NULL;
    struct run_state state = {.verb = verb};
    struct args_option options[] = {{"context", 'c', ARGS_TEXT, &context},
            {"timeout", 0, ARGS_TEXT, &timeout}, {"save", 's', ARGS_TEXT, &state.save_dir}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 2, 0, &args, &status))
        return status;
    char *end = NULL;
    double seconds = timeout == NULL ? 0 : strtod(timeout, &end);
    if (timeout != NULL && (end == timeout || *end != '\0' || !(seconds > 0)))
        return cli_fail_usage(verb, "--timeout %s is no number of seconds", timeout);
    if (state.save_dir != NULL && mkdir(state.save_dir, 0777) < 0 && errno != EEXIST)
        return cli_fail(verb, "the folder %s cannot be made: %s", state.save_dir, strerror(errno));
    char *code = take_code(verb, args.count > 1 ? args.items[1] : NULL);
    if (code == NULL)
        return CLI_FAILED;
    json_t *text = json_string(code);
    free(code);
    if (text == NULL)
        return cli_fail_usage(verb, "the code is no UTF-8 text");
    json_t *body = json_pack("{s:o}", "code", text);
    if (timeout != NULL)
        json_object_set_new(body, "timeout_secs", json_real(seconds));
    char *sandbox = cli_path("/v1/sandboxes/", args.items[0], "/contexts/");
    char *path = cli_path(sandbox, context, cli->json ? "/run" : "/run/stream");
    status = cli->json ? whole(cli, &state, path, body) : stream(cli, &state, path, body);
    free(sandbox);
    free(path);
    return status;
}

const struct verb verb_run = {"run", "run NAME [options] [CODE | FILE.py | -]",
        "Run code in a sandbox, where variables stay from one call to the next",
        "  -c, --context ID   \"python\" (default) and \"bash\" are made when they are first used;\n"
        "                     `ramet context new` makes others\n"
        "  --timeout SECS     interrupt it after so long (status 124); variables stay where they can\n"
        "  -s, --save FOLDER  write figures and tables there: 1.png, 2.html, ...\n"
        "\n"
        "Prints what the code prints, as it comes, and the last expression's value. Without CODE, or with "
        "-,\n"
        "it reads standard input. Lines may be IPython's: %pip install, !command, await.\n"
        "The sandbox needs IPython: `ramet create NAME --from code-interpreter`.\n"
        "With --json the whole Execution is printed when the code ends.\n",
        run, .takes = "sf"};
