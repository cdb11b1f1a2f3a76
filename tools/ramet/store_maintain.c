// SPDX-License-Identifier: Apache-2.0
// Work on the whole store through its daemon: seal, gc, scrub; check also without one.
#include "tools/ramet/local_store.h"
#include "tools/ramet/output.h"
#include "tools/ramet/store.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void show_waiting(void *context, unsigned seconds)
{
    struct progress *progress = context;
    char text[32];
    snprintf(text, sizeof text, "%u s", seconds);
    progress_text(progress, text);
}

// A call that may take long.
static json_t *call_long(
        struct cli *cli, const struct verb *verb, const char *path, const char *what, json_t *body)
{
    struct progress progress = {.what = what};
    client_on_wait(show_waiting, &progress);
    struct error err = {0};
    json_t *json = NULL;
    int r = client_call(cli_server(cli), "POST", path, body, &json, &err);
    client_on_wait(NULL, NULL);
    progress_end(&progress);
    if (r < 0) {
        cli_fail_call(cli, verb, &err, json);
        return NULL;
    }
    return json;
}

static uint64_t figure(const json_t *json, const char *name)
{
    return (uint64_t)json_fields_get_int(json, name);
}

int store_seal_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    json_t *json = call_long(cli, verb, "/v1/store/seal", "sealing", json_object());
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    json_decref(json);
    return CLI_DONE;
}

int store_gc_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    bool recompress = false;
    struct args_option options[] = {{"recompress", 0, ARGS_FLAG, &recompress}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    json_t *json = call_long(
            cli, verb, "/v1/store/gc", "collecting", json_pack("{s:b}", "recompress", (int)recompress));
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        printf("%s freed: %llu of %llu blocks were needed no more; %llu segments removed, %llu written "
               "anew\n",
                output_size(figure(json, "freed_bytes")), (unsigned long long)figure(json, "dead_blocks"),
                (unsigned long long)(figure(json, "dead_blocks") + figure(json, "live_blocks")),
                (unsigned long long)figure(json, "segments_removed"),
                (unsigned long long)figure(json, "segments_rewritten"));
    json_decref(json);
    return CLI_DONE;
}

// What a scrub or check found; damage is a failure.
static int report(struct cli *cli, const struct verb *verb, json_t *json, const char *what)
{
    uint64_t damages = figure(json, "damages");
    json_t *sentence;
    size_t i;
    if (cli->json) {
        cli_print_json(json);
    } else {
        json_array_foreach(json_object_get(json, "damaged"), i, sentence)
        {
            printf("%s\n", json_string_value(sentence));
        }
        printf("%s: %s\n", what, damages == 0 ? "no damage" : "damaged");
    }
    json_decref(json);
    if (damages == 0)
        return CLI_DONE;
    return cli_fail(verb, "%llu damages; restore what they name from an archive or a snapshot elsewhere",
            (unsigned long long)damages);
}

int store_scrub_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    char what[80];
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    json_t *json = call_long(cli, verb, "/v1/store/scrub", "reading everything", json_object());
    if (json == NULL)
        return CLI_FAILED;
    snprintf(what, sizeof what, "%llu segments, %s", (unsigned long long)figure(json, "segments"),
            output_size(figure(json, "bytes")));
    return report(cli, verb, json, what);
}

static int report_check(struct cli *cli, const struct verb *verb, json_t *json)
{
    char what[160];
    snprintf(what, sizeof what, "%llu volumes, %llu bases, %llu blocks, %llu segments, %llu log records",
            (unsigned long long)figure(json, "volumes"), (unsigned long long)figure(json, "bases"),
            (unsigned long long)figure(json, "blocks"), (unsigned long long)figure(json, "segments"),
            (unsigned long long)figure(json, "log_records"));
    return report(cli, verb, json, what);
}

// Does the daemon that answers (if one does) own this directory? NULL = any.
static bool daemon_owns(struct cli *cli, const char *directory)
{
    struct error err;
    json_t *json = NULL;
    struct stat here, there;
    if (client_call(cli_server(cli), "GET", "/v1/store", NULL, &json, &err) < 0) {
        json_decref(json);
        return false;
    }
    bool owns = directory == NULL ||
                (stat(directory, &here) == 0 && stat(json_fields_get_text(json, "directory"), &there) == 0 &&
                        here.st_dev == there.st_dev && here.st_ino == there.st_ino);
    json_decref(json);
    return owns;
}

static int rebuild(struct cli *cli, const struct verb *verb, const char *directory)
{
    if (directory == NULL)
        directory = cli_store_dir(cli);
    if (daemon_owns(cli, directory))
        return cli_fail(verb, "a daemon owns %s; end it first (`ramet down`)", directory);
    int status = local_store_rebuild(verb, directory);
    if (status == CLI_DONE && cli->json) {
        json_t *json = json_pack("{s:s, s:s}", "directory", directory, "state", "rebuilt");
        cli_print_json(json);
        json_decref(json);
    } else if (status == CLI_DONE) {
        printf("%s: the catalog is new; the one before lies beside it as catalog.old. `ramet store check %s` "
               "looks at all of it\n",
                directory, directory);
    }
    return status;
}

int store_check_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    bool rebuild_catalog = false;
    struct args_option options[] = {{"rebuild-catalog", 0, ARGS_FLAG, &rebuild_catalog}, {0}};
    struct args args;
    json_t *json = NULL;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    const char *directory = args.count == 1 ? args.items[0] : NULL;
    if (rebuild_catalog)
        return rebuild(cli, verb, directory);
    if (daemon_owns(cli, directory)) {
        json = call_long(cli, verb, "/v1/store/check", "checking", json_object());
        status = json == NULL ? CLI_FAILED : CLI_DONE;
    } else {
        status = local_store_check(verb, directory == NULL ? cli_store_dir(cli) : directory, &json);
    }
    return status == CLI_DONE ? report_check(cli, verb, json) : status;
}
