// SPDX-License-Identifier: Apache-2.0
// ramet: the command line. One file per verb; this one finds the verb.
#include "tools/ramet/cli.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct verb *const verbs[] = {&verb_up, &verb_down, &verb_create, &verb_ls, &verb_show, &verb_exec,
        &verb_run, &verb_context, &verb_shell, &verb_job, &verb_forward, &verb_cp, &verb_snapshot,
        &verb_snapshots, &verb_fork, &verb_promote, &verb_restore, &verb_pause, &verb_resume, &verb_stop,
        &verb_start, &verb_update, &verb_rm, &verb_events, &verb_logs, &verb_volume, &verb_template,
        &verb_store, &verb_memory, &verb_help, &verb_version, NULL};

const struct verb *cli_find_verb(const char *name)
{
    for (size_t i = 0; verbs[i] != NULL; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}

void cli_help(const struct verb *verb)
{
    printf("usage: ramet %s\n\n%s.\n", verb->usage, verb->summary);
    if (verb->details != NULL)
        printf("\n%s", verb->details);
}

enum { COMMON = 3, OPTIONS_MAX = 24 };

bool cli_parse(struct cli *cli, const struct verb *verb, char **argv, const struct args_option *options,
        unsigned minimum, unsigned maximum, unsigned stop_at, struct args *ret_args, int *ret_status)
{
    struct args_option all[OPTIONS_MAX] = {{"json", 0, ARGS_FLAG, &cli->json},
            {"help", 'h', ARGS_FLAG, &cli->help}, {"run", 0, ARGS_TEXT, &cli->run_dir}};
    char message[512];
    unsigned count = COMMON;
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
    return r == 0;
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
    if (client_call(cli_run_dir(cli), method, path, body, &json, &err) < 0) {
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

static void find_libexec(struct cli *cli)
{
    const char *given = getenv("RAMET_LIBEXEC");
    if (given != NULL && given[0] != '\0') {
        snprintf(cli->libexec_dir, sizeof cli->libexec_dir, "%s", given);
        return;
    }
    ssize_t size = readlink("/proc/self/exe", cli->libexec_dir, sizeof cli->libexec_dir - 1);
    cli->libexec_dir[size < 0 ? 0 : size] = '\0';
    char *slash = strrchr(cli->libexec_dir, '/');
    if (slash != NULL)
        *slash = '\0';
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    signal(SIGPIPE, SIG_IGN);
    find_libexec(&cli);
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--run") == 0 && i + 1 < argc)
            cli.run_dir = argv[++i];
        else if (strncmp(argv[i], "--run=", 6) == 0)
            cli.run_dir = argv[i] + 6;
        else if (strcmp(argv[i], "--json") == 0)
            cli.json = true;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return verb_help.run(&cli, &verb_help, (char *[]){NULL});
        else if (strcmp(argv[i], "--version") == 0)
            return verb_version.run(&cli, &verb_version, (char *[]){NULL});
        else
            return cli_fail_usage(NULL,
                    strcmp(argv[i], "--run") == 0 ? "%s needs a directory" : "unknown option %s", argv[i]);
    }
    if (i >= argc) {
        verb_help.run(&cli, &verb_help, (char *[]){NULL});
        return CLI_USAGE;
    }
    const struct verb *verb = cli_find_verb(argv[i]);
    if (verb == NULL)
        return cli_fail_usage(NULL, "there is no verb \"%s\"", argv[i]);
    int status = verb->run(&cli, verb, argv + i + 1);
    if (fflush(stdout) != 0 && status == CLI_DONE)
        return cli_fail(verb, "the output cannot be written: %s", strerror(errno));
    return status;
}
