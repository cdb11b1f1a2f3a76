// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void cli_help(const struct verb *verb)
{
    printf("usage: ramet %s\n\n%s.\n", verb->usage, verb->summary);
    if (verb->details != NULL)
        printf("\n%s", verb->details);
}

enum { OPTIONS_MAX = 40 };

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
    int r = args_parse(argv, all, 0, 4096, stop_at, verb->usage, ret_args, message, sizeof message);
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

int cli_run_part(struct cli *cli, const struct verb *verb, const struct verb *parts, char **argv)
{
    size_t skip = strlen(verb->name) + 1, used = 0;
    char list[256] = "";
    if (argv[0] != NULL && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        cli_help(verb);
        return CLI_DONE;
    }
    for (size_t i = 0; parts[i].name != NULL; i++) {
        const char *name = parts[i].name + skip;
        if (argv[0] == NULL || strcmp(argv[0], name) != 0) {
            const char *before = i == 0 ? "" : parts[i + 1].name == NULL ? " or " : ", ";
            used += (size_t)snprintf(
                    list + used, used < sizeof list ? sizeof list - used : 0, "%s%s", before, name);
            continue;
        }
        struct verb part = parts[i];
        part.summary = verb->summary;
        part.details = verb->details;
        return part.run(cli, &part, argv + 1);
    }
    if (argv[0] == NULL)
        return cli_fail_usage(verb, "say what: %s", list);
    return cli_fail_usage(verb, "there is no \"%s %s\"", verb->name, argv[0]);
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

static void say(const struct verb *verb, const char *format, va_list args)
{
    fprintf(stderr, "ramet%s%s: ", verb == NULL ? "" : " ", verb == NULL ? "" : verb->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int cli_fail(const struct verb *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(verb, format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_fail_usage(const struct verb *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(verb, format, args);
    va_end(args);
    // "volume create" is explained by `ramet help volume`.
    int first = verb == NULL ? 0 : (int)strcspn(verb->name, " ");
    fprintf(stderr, "`ramet help%s%.*s` says more\n", verb == NULL ? "" : " ", first,
            verb == NULL ? "" : verb->name);
    return CLI_USAGE;
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void cli_print_json(const json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    putchar('\n');
}

int cli_fail_call(struct cli *cli, const struct verb *verb, const struct error *err, json_t *json)
{
    if (cli->json && json != NULL)
        cli_print_json(json);
    json_decref(json);
    return cli_fail(verb, "%s", err->text);
}

json_t *cli_call(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body)
{
    struct error err = {0};
    json_t *json = NULL;
    if (client_call(cli_server(cli), method, path, body, &json, &err) < 0) {
        cli_fail_call(cli, verb, &err, json);
        return NULL;
    }
    return json == NULL ? json_object() : json;
}

json_t *cli_create(struct cli *cli, const struct verb *verb, const char *path, json_t *body)
{
    struct error err = {0};
    json_t *json = NULL;
    if (client_create(cli_server(cli), path, body, &json, &err) < 0) {
        cli_fail_call(cli, verb, &err, json);
        return NULL;
    }
    return json == NULL ? json_object() : json;
}

char *cli_path(const char *before, const char *name, const char *after)
{
    char *escaped = client_escape(name), *path = NULL;
    if (asprintf(&path, "%s%s%s", before, escaped, after) < 0)
        abort();
    free(escaped);
    return path;
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
