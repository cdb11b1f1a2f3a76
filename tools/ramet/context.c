// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say_id(const json_t *json)
{
    puts(json_fields_get_text(json, "id"));
}

static void say_interrupted(const json_t *json)
{
    cli_note(json_fields_get_bool(json, "interrupted") ? "interrupted" : "nothing ran there");
}

static void print_contexts(const json_t *list)
{
    static const char *const heads[] = {"ID", "LANGUAGE", "STATE", "RUNS", "AGE"};
    struct table *table = table_create(5, heads);
    size_t i;
    json_t *each;
    json_array_foreach((json_t *)list, i, each)
    {
        char runs[24];
        int64_t next = json_fields_get_int(each, "execution_count");
        snprintf(runs, sizeof runs, "%lld", (long long)(next > 0 ? next - 1 : 0));
        const char *cells[] = {json_fields_get_text(each, "id"), json_fields_get_text(each, "language"),
                json_fields_get_text(each, "state"), runs,
                output_age(json_fields_get_text(each, "created_at"))};
        table_add(table, cells);
    }
    table_print(table);
}

static int run_ls(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_list_of(cli, verb, argv, "contexts", print_contexts);
}

static int run_new(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *language = NULL, *cwd = NULL, *user = NULL;
    struct env_option env = {0};
    struct args_option options[] = {{"language", 'l', ARGS_TEXT, &language}, {"cwd", 'w', ARGS_TEXT, &cwd},
            {"user", 'u', ARGS_TEXT, &user}, ENV_OPTION_ROWS(env), {0}};
    struct args args;
    bool good = true;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 2, 0, &args, &status))
        return status;
    json_t *pairs = env_option_read(verb, &env, &good), *body = json_object();
    if (!good) {
        json_decref(body);
        return CLI_USAGE;
    }
    cli_set_text(body, "id", args.count > 1 ? args.items[1] : NULL);
    cli_set_text(body, "language", language);
    cli_set_text(body, "cwd", cwd);
    cli_set_text(body, "user", user);
    if (pairs != NULL)
        json_object_set_new(body, "env", pairs);
    return resource_create(cli, verb, resource_path(args.items[0], "contexts", NULL, ""), body, say_id);
}

static int run_rm(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_remove_of(cli, verb, argv, "contexts");
}

static int run_interrupt(struct cli *cli, const struct verb *verb, char **argv)
{
    bool kill = false;
    struct args_option options[] = {{"kill", 'k', ARGS_FLAG, &kill}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 2, 0, &args, &status))
        return status;
    return resource_call(cli, verb, "POST",
            resource_path(
                    args.items[0], "contexts", args.count > 1 ? args.items[1] : "default", "/interrupt"),
            json_pack("{s:b}", "kill", (int)kill), say_interrupted);
}

static int run_restart(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 2, 0, &args, &status))
        return status;
    return resource_call(cli, verb, "POST",
            resource_path(args.items[0], "contexts", args.count > 1 ? args.items[1] : "default", "/restart"),
            NULL, say_id);
}

static const struct verb parts[] = {{"context ls", "context ls NAME", NULL, NULL, run_ls, .takes = "s."},
        {"context new", "context new NAME [ID] [options]", NULL, NULL, run_new, .takes = "s."},
        {"context rm", "context rm NAME ID...", NULL, NULL, run_rm, .takes = "s."},
        {"context interrupt", "context interrupt NAME [ID] [--kill]", NULL, NULL, run_interrupt,
                .takes = "s."},
        {"context restart", "context restart NAME [ID]", NULL, NULL, run_restart, .takes = "s."}, {0}};

const struct verb verb_context = {"context", "context ls|new|rm|interrupt|restart NAME [ID] [options]",
        "Processes in a sandbox that keep variables between runs of code",
        "  context ls NAME                 what there is, with its state and count of runs\n"
        "  context new NAME [ID]           makes one, and prints its id when it can run code\n"
        "    -l, --language python|bash    default: python\n"
        "    -w, --cwd FOLDER, -u, --user NAME, -e, --env K=V, --env-file FILE\n"
        "  context rm NAME ID...           ends it, and all that its code started\n"
        "  context interrupt NAME [ID]     as Ctrl-C does; a second time, or with --kill, what does not end\n"
        "                                  within seconds is ended together with its variables\n"
        "  context restart NAME [ID]       begins anew, with nothing\n"
        "\n"
        "`ramet run` runs code in them. \"python\" and \"bash\" are made when they are first used.\n"
        "Variables stay over stop and start, snapshots and forks of the sandbox.\n",
        .parts = parts};
