// SPDX-License-Identifier: Apache-2.0
// pause, resume, restore, promote, update: what may be done to a sandbox between create and rm.
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/network_option.h"
#include "tools/ramet/life_options.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_each.h"
#include "tools/ramet/sandbox_print.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run_pause(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 4096, 0, &args, &status))
        return status;
    return sandbox_each(cli, verb, &args, "POST", "/pause", "{}");
}

static int run_resume(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 4096, 0, &args, &status))
        return status;
    return sandbox_each(cli, verb, &args, "POST", "/resume", "{}");
}

// One call on one sandbox; prints the answer's sandbox. steals body.
static int call_one(struct cli *cli, const struct verb *verb, const char *method, const char *name,
        const char *after, json_t *body)
{
    return resource_call(
            cli, verb, method, cli_path("/v1/sandboxes/", name, after), body, sandbox_print_line);
}

static int run_restore(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    return call_one(
            cli, verb, "POST", args.items[0], "/restore", json_pack("{s:s}", "snapshot", args.items[1]));
}

static int run_promote(struct cli *cli, const struct verb *verb, char **argv)
{
    bool keep = false;
    const char *name = NULL;
    struct args_option options[] = {
            {"keep-siblings", 0, ARGS_FLAG, &keep}, {"name", 'n', ARGS_TEXT, &name}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    char *path = cli_path("/v1/sandboxes/", args.items[0], "/promote");
    json_t *json = cli_call(
            cli, verb, "POST", path, json_pack("{s:b, s:s?}", "cleanup_siblings", (int)!keep, "name", name));
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    const json_t *item;
    const char *id;
    size_t i;
    if (cli->json)
        cli_print_json(json);
    else
        sandbox_print_line(json_object_get(json, "winner"));
    json_array_foreach(json_object_get(json, "deleted"), i, item)
    {
        if (!cli->json)
            printf("%s: removed\n", json_string_value(item));
    }
    bool failed = json_object_size(json_object_get(json, "failures")) > 0;
    json_object_foreach(json_object_get(json, "failures"), id, item)
    {
        cli_fail(verb, "%s is still there: %s", id, json_string_value(item));
    }
    json_decref(json);
    return failed ? CLI_FAILED : CLI_DONE;
}

static int run_update(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *name = NULL, *network = NULL;
    bool persistent = false, not_persistent = false, good = true;
    struct life_options life = {0};
    struct args_list labels = {0};
    struct env_option env = {0};
    struct args_option options[] = {{"name", 'n', ARGS_TEXT, &name}, {"ttl", 0, ARGS_TEXT, &life.ttl},
            {"idle", 0, ARGS_TEXT, &life.idle}, {"persistent", 0, ARGS_FLAG, &persistent},
            {"on-timeout", 0, ARGS_TEXT, &life.on_timeout}, {"auto-start", 0, ARGS_FLAG, &life.auto_start},
            {"no-auto-start", 0, ARGS_FLAG, &life.no_auto_start},
            {"not-persistent", 0, ARGS_FLAG, &not_persistent}, {"label", 'l', ARGS_LIST, &labels},
            ENV_OPTION_ROWS(env), {"network", 0, ARGS_TEXT, &network}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    if (persistent && not_persistent)
        return cli_fail_usage(verb, "--persistent and --not-persistent exclude each other");
    json_t *body = json_object();
    cli_set_text(body, "name", name);
    if (network != NULL)
        json_object_set_new(body, "network", network_option(network));
    if (persistent || not_persistent)
        json_object_set_new(body, "persistent", json_boolean(persistent));
    json_t *pairs = cli_pairs(verb, "label", &labels, &good);
    if (good && pairs != NULL)
        json_object_set_new(body, "labels", pairs);
    pairs = good ? env_option_read(verb, &env, &good) : NULL;
    if (good && pairs != NULL)
        json_object_set_new(body, "env", pairs);
    if (!good || !life_options_add(verb, &life, body)) {
        json_decref(body);
        return CLI_USAGE;
    }
    if (json_object_size(body) == 0) {
        json_decref(body);
        return cli_fail_usage(verb, "say what is to change: --name, --ttl, --idle, --label, --env ...");
    }
    return call_one(cli, verb, "PATCH", args.items[0], "", body);
}

const struct verb verb_pause = {"pause", "pause NAME...", "Let sandboxes stand still in memory",
        "Nothing in it runs until `ramet resume`; its ttl goes on. It can be snapshotted and forked "
        "meanwhile.\n",
        run_pause, .takes = "s"};
const struct verb verb_resume = {
        "resume", "resume NAME...", "Let paused sandboxes go on", NULL, run_resume, .takes = "s"};
const struct verb verb_restore = {"restore", "restore NAME SNAPSHOT",
        "Make a sandbox what a snapshot holds, in place",
        "Its disks and memory become the snapshot's; name, id, labels and limits stay. What it was is gone. "
        "One "
        "that\nis stopped stays so and goes on from the snapshot at its next start.\n",
        run_restore, .takes = "sS"};
const struct verb verb_promote = {"promote", "promote NAME [--name NEW] [--keep-siblings]",
        "Keep one branch of a fork and remove its siblings",
        "  -n, --name NEW     call it so; with its parent's name, the two swap names\n"
        "  --keep-siblings    remove nothing\n"
        "\n"
        "What was forked from the siblings goes with them. The parent stays.\n",
        run_promote, .takes = "s"};
const struct verb verb_update = {"update", "update NAME [options]",
        "Change a sandbox's name, limits, labels or environment",
        "  -n, --name NEW       rename it\n"
        "  --ttl SECS           stop it, with its memory, so long after now; 0 = never\n"
        "  --idle SECS          stop it when nobody worked with it for so long; 0 = never\n"
        "  --on-timeout WHAT    what --ttl and --idle do: stop or delete\n"
        "  --auto-start, --no-auto-start   whether calls into it start it when it is stopped\n"
        "  --persistent, --not-persistent  whether it is kept when it was stopped for long\n"
        "  --network KIND       full, none, or what it may reach (as in `ramet create`), at once; "
        "connections "
        "that it does\n"
        "                       not allow end\n"
        "  -l, --label K=V      replaces all labels; may be given often\n"
        "  -e, --env K=V        replaces the environment of its commands; may be given often; K alone: as it "
        "is here\n"
        "  --env-file FILE      such lines from a file\n",
        run_update, .takes = "s"};
