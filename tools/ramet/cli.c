// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"

#include "tools/ramet/hint.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/output.h"
#include "tools/ramet/suggest.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What a program that reads standard output is told with --json.
static struct {
    bool wanted, asked; // --json was parsed; it stands somewhere among the words
    bool said, lines;   // a document is out; documents are lines
} output;

void cli_help(const struct verb *verb)
{
    printf("usage: ramet %s\n\n%s.\n", verb->usage, verb->summary);
    if (verb->details != NULL)
        printf("\n%s", verb->details);
}

enum { OPTIONS_MAX = 40, PARTS_MAX = 32 };

void cli_common_options(struct cli *cli, struct args_option *ret_options)
{
    const struct args_option options[CLI_COMMON_OPTIONS] = {{"json", 0, ARGS_FLAG, &cli->json},
            {"help", 'h', ARGS_FLAG, &cli->help}, {"run", 0, ARGS_TEXT, &cli->run_dir},
            {"server", 0, ARGS_TEXT, &cli->server_url}, {"key-file", 0, ARGS_TEXT, &cli->key_file},
            {"ca", 0, ARGS_TEXT, &cli->ca_file}};
    memcpy(ret_options, options, sizeof options);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value == NULL || value[0] == '\0' ? NULL : value;
}

// Which daemon, with which key.
static bool find_server(struct cli *cli, const struct verb *verb, int *ret_status)
{
    struct error err = {0};
    struct server server;
    const char *url = cli->server_url, *key = variable("RAMET_API_KEY"),
               *file = cli->key_file != NULL ? cli->key_file : variable("RAMET_API_KEY_FILE"),
               *ca = cli->ca_file != NULL ? cli->ca_file : variable("RAMET_CA");
    int r = 0;
    if (url == NULL && cli->run_dir == NULL)
        url = variable("RAMET_API");
    if (url == NULL)
        server_of_run_dir(cli_run_dir(cli), &server);
    else
        r = server_parse(url, &server, &err);
    // The owner of a socket needs no key, and one of another daemon's would be refused.
    bool wants_key = r == 0 && (server_is_remote(&server) || cli->key_file != NULL);
    if (wants_key && file != NULL)
        r = server_read_key(&server, file, &err);
    else if (wants_key && key != NULL)
        r = server_set_key(&server, key, "RAMET_API_KEY", &err);
    if (r == 0 && ca != NULL)
        snprintf(server.ca_file, sizeof server.ca_file, "%s", ca);
    if (r < 0) {
        *ret_status = cli_fail_usage(verb, "%s", err.text);
        return false;
    }
    if (server.kind == SERVER_TCP && server.key[0] != '\0' && !server_is_loopback(&server) &&
            !cli->server_known)
        cli_note("note: the key goes to %s in clear text; a daemon with a certificate (https://) keeps it "
                 "secret",
                server.name);
    cli->server = server;
    cli->server_known = true;
    return true;
}

const struct server *cli_server(struct cli *cli)
{
    return &cli->server;
}

int cli_need_local(struct cli *cli, const struct verb *verb, const char *instead)
{
    if (!server_is_remote(&cli->server))
        return CLI_DONE;
    return cli_fail_usage(
            verb, "this works on the daemon's own host only, not with %s: %s", cli->server.name, instead);
}

int cli_use_local(struct cli *cli, const struct verb *verb)
{
    if (cli->server_url != NULL && server_is_remote(&cli->server))
        return cli_fail_usage(verb,
                "this works on the daemon's own host only: log in to the one of %s, and run it there",
                cli->server.name);
    if (cli->server_url == NULL)
        server_of_run_dir(cli_run_dir(cli), &cli->server);
    return CLI_DONE;
}

bool cli_parse(struct cli *cli, const struct verb *verb, char **argv, const struct args_option *options,
        unsigned minimum, unsigned maximum, unsigned stop_at, struct args *ret_args, int *ret_status)
{
    struct args_option all[OPTIONS_MAX] = {{0}};
    char message[512];
    unsigned count = CLI_COMMON_OPTIONS;
    cli_common_options(cli, all);
    for (; options != NULL && options->name != NULL; options++)
        all[count++] = *options;
    if (cli->describe != NULL) {
        for (unsigned i = 0; i < count; i++)
            cli->describe(cli->describe_context, &all[i]);
        *ret_status = CLI_DONE;
        return false;
    }
    int r = args_parse(argv, all, 0, 4096, stop_at, verb->usage, ret_args, message, sizeof message);
    output.wanted = cli->json;
    if (r == 0 && cli->help) {
        cli_help(verb);
        *ret_status = CLI_DONE;
        return false;
    }
    if (r == 0 && (ret_args->count < minimum || ret_args->count > maximum)) {
        if (ret_args->count > maximum)
            snprintf(message, sizeof message, "\"%s\" is too much; usage: ramet %s", ret_args->items[maximum],
                    verb->usage);
        else
            snprintf(message, sizeof message, "an argument is missing; usage: ramet %s", verb->usage);
        r = -EINVAL;
    }
    if (r < 0)
        *ret_status = cli_fail_usage(verb, "%s", message);
    return r == 0 && find_server(cli, verb, ret_status);
}

static const char *part_name(const struct verb *verb, const struct verb *part)
{
    return part->name + strlen(verb->name) + 1;
}

const struct verb *cli_find_part(const struct verb *verb, const char *name)
{
    for (const struct verb *part = verb->parts; part != NULL && part->name != NULL; part++)
        if (strcmp(part_name(verb, part), name) == 0)
            return part;
    return NULL;
}

static int fail_no_part(const struct verb *verb, const char *word)
{
    const char *names[PARTS_MAX + 1];
    char list[256] = "";
    size_t used = 0, count = 0;
    for (const struct verb *part = verb->parts; part->name != NULL && count < PARTS_MAX; part++) {
        const char *before = count == 0 ? "" : part[1].name == NULL ? " or " : ", ";
        names[count++] = part_name(verb, part);
        used += (size_t)snprintf(
                list + used, used < sizeof list ? sizeof list - used : 0, "%s%s", before, names[count - 1]);
    }
    names[count] = NULL;
    if (word == NULL)
        return cli_fail_usage(verb, "say what: %s", list);
    const char *nearest = suggest_nearest(word, names);
    if (nearest != NULL)
        return cli_fail_usage(verb, "there is no \"%s %s\"; did you mean \"%s %s\"?", verb->name, word,
                verb->name, nearest);
    return cli_fail_usage(verb, "there is no \"%s %s\"; there are %s", verb->name, word, list);
}

int cli_run_part(struct cli *cli, const struct verb *verb, const struct verb *parts, char **argv)
{
    struct verb whole = *verb;
    whole.parts = parts;
    // Options that every verb takes may also stand before the part's name.
    struct args_option options[CLI_COMMON_OPTIONS + 1] = {{0}};
    char message[512];
    cli_common_options(cli, options);
    int taken = args_take_options(argv, options, message, sizeof message);
    if (taken < 0 && verb->run == NULL)
        return cli_fail_usage(verb, "%s", message);
    argv += taken > 0 ? taken : 0;
    if (argv[0] == NULL && cli->help) {
        cli_help(&whole);
        return CLI_DONE;
    }
    if (verb->run != NULL && (argv[0] == NULL || argv[0][0] == '-')) // it means something alone, too
        return verb->run(cli, verb, argv);
    const struct verb *part = argv[0] == NULL ? NULL : cli_find_part(&whole, argv[0]);
    if (part == NULL)
        return fail_no_part(&whole, argv[0]);
    // What is not said of the part is said of all of them.
    struct verb one = *part;
    if (one.summary == NULL)
        one.summary = verb->summary;
    if (one.details == NULL)
        one.details = verb->details;
    return one.run(cli, &one, argv + 1);
}

int cli_run(struct cli *cli, const struct verb *verb, char **argv)
{
    return verb->parts != NULL ? cli_run_part(cli, verb, verb->parts, argv) : verb->run(cli, verb, argv);
}

const char *cli_run_dir(struct cli *cli)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *given = getenv("RAMET_RUN");
    if (cli->run_dir != NULL)
        return cli->run_dir;
    if (given != NULL && given[0] != '\0')
        return given;
    // Without a session's folder a user reaches root's daemon where that is allowed, else has one of his own.
    bool session = runtime != NULL && runtime[0] != '\0';
    if (geteuid() == 0 || (!session && access("/run/ramet/api.sock", W_OK) == 0))
        return "/run/ramet";
    if (session)
        snprintf(cli->run_default, sizeof cli->run_default, "%s/ramet", runtime);
    else
        snprintf(cli->run_default, sizeof cli->run_default, "/tmp/ramet-%u", (unsigned)geteuid());
    return cli->run_default;
}

const char *cli_store_dir(struct cli *cli)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME"), *given = getenv("RAMET_STORE");
    if (cli->store_dir != NULL)
        return cli->store_dir;
    if (given != NULL && given[0] != '\0')
        return given;
    if (geteuid() == 0 || (data == NULL && home == NULL))
        return "/var/lib/ramet/store";
    if (data != NULL)
        snprintf(cli->store_default, sizeof cli->store_default, "%s/ramet/store", data);
    else
        snprintf(cli->store_default, sizeof cli->store_default, "%s/.local/share/ramet/store", home);
    return cli->store_default;
}

void cli_expect_json(char **argv)
{
    for (; *argv != NULL && strcmp(*argv, "--") != 0; argv++)
        output.asked |= strcmp(*argv, "--json") == 0;
}

// An object like the API's. The text is UTF-8.
static json_t *failure(const char *code, const char *text)
{
    return json_pack("{s:{s:s, s:s}, s:s}", "error", "code", code, "message", text, "message", text);
}

// Whoever has printed a document has said in it what there is to say, unless documents are lines, of which
// this is the last.
static void say_json(const char *code, const char *text)
{
    if (output.said && !output.lines)
        return;
    json_t *json = failure(code, text);
    if (output.lines)
        cli_print_json_line(json);
    else
        cli_print_json(json);
    json_decref(json);
}

// A sentence may hold what a guest said: a terminal must not act on that. malloc'ed.
static char *make_clean(const char *format, va_list args)
{
    char *text;
    if (vasprintf(&text, format, args) < 0)
        abort();
    char *clean = table_clean(text);
    free(text);
    return clean;
}

static void say(const struct verb *verb, const char *text)
{
    bool color = table_wants_color(STDERR_FILENO);
    fflush(stdout); // in the order in which it happened
    fprintf(stderr, "%sramet%s%s:%s %s\n", color ? "\033[31m" : "", verb == NULL ? "" : " ",
            verb == NULL ? "" : verb->name, color ? "\033[0m" : "", text);
}

int cli_fail(const struct verb *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = make_clean(format, args);
    va_end(args);
    say(verb, text);
    if (output.wanted)
        say_json("client.failed", text);
    free(text);
    return CLI_FAILED;
}

int cli_fail_usage(const struct verb *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = make_clean(format, args);
    va_end(args);
    say(verb, text);
    // "volume create" is explained by `ramet help volume`.
    int first = verb == NULL ? 0 : (int)strcspn(verb->name, " ");
    fprintf(stderr, "`ramet help%s%.*s` says more\n", verb == NULL ? "" : " ", first,
            verb == NULL ? "" : verb->name);
    if (output.wanted || output.asked)
        say_json("client.usage", text);
    free(text);
    return CLI_USAGE;
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = make_clean(format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s\n", text);
    free(text);
}

void cli_print_json(const json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    putchar('\n');
    output.said = true;
}

void cli_print_json_line(const json_t *json)
{
    json_dumpf(json, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
    putchar('\n');
    fflush(stdout);
    output.said = output.lines = true;
}

int cli_fail_call(struct cli *cli, const struct verb *verb, const struct error *err, json_t *json)
{
    if (cli->json && json != NULL && !output.said)
        cli_print_json(json);
    return cli_fail_one(cli, verb, err, json, NULL);
}

int cli_fail_one(
        struct cli *cli, const struct verb *verb, const struct error *err, json_t *json, json_t *results)
{
    char code[64], *text = table_clean(err->text);
    snprintf(code, sizeof code, "%s", json_fields_get_text(json_object_get(json, "error"), "code"));
    say(verb, text);
    if (cli->json && results != NULL)
        json_array_append_new(
                results, json != NULL ? json_incref(json) : failure("client.unreachable", text));
    else if (cli->json && json == NULL)
        say_json("client.unreachable", text);
    json_decref(json);
    free(text);
    if (err->code == -EREMOTEIO)
        hint_after(cli, code, err->text);
    else
        hint_unreachable(cli);
    return CLI_FAILED;
}

// On a terminal, a wait is seen to be one.
static void show_waiting(void *context, unsigned seconds)
{
    char text[32];
    snprintf(text, sizeof text, "%u s", seconds);
    if (seconds >= 2)
        progress_text(context, text);
}

// Ctrl-C ends this program, and not what the daemon has begun: half a machine would be nobody's.
static void say_interrupted(void *context)
{
    const struct verb *verb = context;
    const char *space = strchr(verb->name, ' ');
    cli_note("ramet %s: interrupted; the daemon finishes what it has begun: `ramet %.*sls` shows what came "
             "of it",
            verb->name, space == NULL ? 0 : (int)(space - verb->name) + 1, verb->name);
}

int cli_try(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body,
        json_t **ret_json, struct error *err)
{
    struct progress progress = {.what = verb->name};
    struct interrupt *interrupt = NULL;
    if (method == NULL) {
        interrupt_start();
        interrupt = interrupt_add(say_interrupted, (void *)verb);
    }
    client_on_wait(show_waiting, &progress);
    int r = method == NULL ? client_create(cli_server(cli), path, body, ret_json, err)
                           : client_call(cli_server(cli), method, path, body, ret_json, err);
    client_on_wait(NULL, NULL);
    interrupt_remove(interrupt);
    progress_end(&progress);
    return r;
}

json_t *cli_call(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body)
{
    struct error err = {0};
    json_t *json = NULL;
    if (cli_try(cli, verb, method, path, body, &json, &err) < 0) {
        cli_fail_call(cli, verb, &err, json);
        return NULL;
    }
    return json == NULL ? json_object() : json;
}

json_t *cli_create(struct cli *cli, const struct verb *verb, const char *path, json_t *body)
{
    return cli_call(cli, verb, NULL, path, body);
}

int cli_take_answer(struct cli *cli, const struct verb *verb, struct client *client)
{
    struct error err = {0};
    json_t *failure = NULL;
    int status, r = client_answer(client, &status, &err);
    if (r == 0 && status >= 400)
        r = client_error(client, status, &failure, &err);
    return r < 0 ? cli_fail_call(cli, verb, &err, failure) : CLI_DONE;
}

int cli_begin(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body,
        struct client **ret_client)
{
    struct client *client;
    struct error err = {0};
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    size_t size = text == NULL ? 0 : strlen(text);
    json_decref(body);
    int r = client_open(cli_server(cli), method, path, text == NULL ? NULL : "application/json",
            (int64_t)size, &client, &err);
    if (r == 0 && (r = client_write(client, text, size, &err)) < 0)
        client_close(client);
    free(text);
    if (r < 0)
        return cli_fail_call(cli, verb, &err, NULL);
    int status = cli_take_answer(cli, verb, client);
    if (status == CLI_DONE)
        *ret_client = client;
    else
        client_close(client);
    return status;
}

char *cli_path(const char *before, const char *name, const char *after)
{
    char *escaped = client_escape(name), *path = NULL;
    if (asprintf(&path, "%s%s%s", before, escaped, after) < 0)
        abort();
    free(escaped);
    return path;
}

void cli_set_text(json_t *body, const char *field, const char *value)
{
    if (value != NULL)
        json_object_set_new(body, field, json_string(value));
}

json_t *cli_pairs(const struct verb *verb, const char *option, const struct args_list *list, bool *ret_good)
{
    *ret_good = true;
    if (list->count == 0)
        return NULL;
    json_t *object = json_object();
    for (unsigned i = 0; i < list->count; i++) {
        const char *equals = strchr(list->items[i], '=');
        json_t *value = equals == NULL ? NULL : json_string(equals + 1);
        if (equals == NULL || equals == list->items[i] || value == NULL) {
            cli_fail_usage(verb, "--%s %s is not NAME=VALUE in UTF-8", option, list->items[i]);
            *ret_good = false;
            json_decref(object);
            return NULL;
        }
        char *name = strndup(list->items[i], (size_t)(equals - list->items[i]));
        json_object_set_new(object, name, value);
        free(name);
    }
    return object;
}
