// SPDX-License-Identifier: Apache-2.0
// The server's environment. Values are shown only when asked for, and can come by standard input, so that
// they stand in no list of processes and no shell's history.
#include "tools/ramet/cli.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE_BYTES_MAX = 200 * 1024 };

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    bool values = false;
    struct args_option options[] = {{"values", 0, ARGS_FLAG, &values}, {0}};
    struct args args;
    const char *key;
    json_t *value;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    JSON_AUTO json_t *json = cli_call(cli, verb, "GET", "/v1/environment", NULL);
    JSON_AUTO json_t *names = json_array();
    if (json == NULL)
        return CLI_FAILED;
    json_object_foreach(json_object_get(json, "env"), key, value)
    {
        json_array_append_new(names, json_string(key));
        if (!cli->json)
            printf("%s%s%s\n", key, values ? "=" : "", values ? json_string_value(value) : "");
    }
    if (cli->json)
        cli_print_json(values ? json_object_get(json, "env") : names);
    return CLI_DONE;
}

// All of standard input, without its last line end; NULL: it has said why.
static json_t *read_value(const struct verb *verb)
{
    char *bytes = NULL;
    size_t size;
    json_t *value = NULL;
    if (isatty(STDIN_FILENO))
        cli_note("reading the value from this terminal, up to Ctrl-D");
    int r = stream_read_all(STDIN_FILENO, VALUE_BYTES_MAX, &bytes, &size);
    if (r == -EFBIG)
        cli_fail(
                verb, "the value is larger than %d KiB; big data belongs into files", VALUE_BYTES_MAX / 1024);
    else if (r < 0)
        cli_fail(verb, "standard input cannot be read: %s", strerror(-r));
    else if ((value = json_stringn(bytes, size - (size > 0 && bytes[size - 1] == '\n'))) == NULL)
        cli_fail(verb, "the value is not UTF-8; a variable can hold it as base64");
    free(bytes);
    return value;
}

static int set(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 4096, 0, &args, &status))
        return status;
    JSON_AUTO json_t *env = json_object();
    for (unsigned i = 0; i < args.count; i++) {
        const char *equals = strchr(args.items[i], '=');
        char *name = equals == NULL ? strdup(args.items[i])
                                    : strndup(args.items[i], (size_t)(equals - args.items[i]));
        if (equals == NULL && args.count > 1) {
            free(name);
            return cli_fail_usage(verb,
                    "\"%s\" has no =; a value comes from standard input when it is the only one",
                    args.items[i]);
        }
        json_t *value = equals == NULL ? read_value(verb) : json_string(equals + 1);
        int r = value == NULL ? -1 : json_object_set_new(env, name, value);
        if (value != NULL && r < 0)
            cli_fail(verb, "\"%s\" is not UTF-8", name);
        else if (equals != NULL && value == NULL)
            cli_fail(verb, "the value of \"%s\" is not UTF-8; a variable can hold it as base64", name);
        free(name);
        if (r < 0)
            return CLI_FAILED;
    }
    return resource_call(cli, verb, "PATCH", strdup("/v1/environment"), json_pack("{s:O}", "env", env), NULL);
}

static int unset(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 4096, 0, &args, &status))
        return status;
    JSON_AUTO json_t *env = json_object();
    for (unsigned i = 0; i < args.count; i++)
        if (json_object_set_new(env, args.items[i], json_null()) < 0)
            return cli_fail_usage(verb, "\"%s\" is not UTF-8", args.items[i]);
    return resource_call(cli, verb, "PATCH", strdup("/v1/environment"), json_pack("{s:O}", "env", env), NULL);
}

static const struct verb parts[] = {
        {"env ls", "env ls [--values]", "List the server's variables",
                "  --values   show their values too, which may be secrets\n", list, .takes = "."},
        {"env set", "env set NAME=VALUE... | env set NAME < FILE",
                "Set variables of the server's environment",
                "A name has no blanks, no control characters and no =.\n"
                "NAME alone takes its value from standard input, without the last line end: so a secret is "
                "in "
                "no list of\n"
                "processes and no shell's history.\n",
                set, .takes = "."},
        {"env unset", "env unset NAME...", "Remove variables from the server's environment",
                "One that is not set is no failure.\n", unset, .takes = "."},
        {0},
};

const struct verb verb_env = {"env", "env ls [--values] | env set NAME=VALUE... | env unset NAME...",
        "Show and change the variables that the commands of every sandbox get",
        "What is set here counts for commands, jobs, terminals and code contexts that are started from now "
        "on, in every\n"
        "sandbox that was not made with --no-environment. Over a template's variables it counts, and under "
        "those that a\n"
        "sandbox (`create --env`) or a call (`exec --env`) brings. It is in no snapshot: what goes on from "
        "one has what\n"
        "is set then. Processes that run keep what they were started with.\n"
        "\n"
        "  env ls [--values]\n"
        "  env set NAME=VALUE... | env set NAME < FILE\n"
        "  env unset NAME...\n",
        .parts = parts};
