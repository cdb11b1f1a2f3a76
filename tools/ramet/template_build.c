// SPDX-License-Identifier: Apache-2.0
// `template build`: hands the source over, follows the build's log, and says what came of it. Interrupted, it
// cancels the build.
#include "tools/ramet/template_build.h"

#include "tools/ramet/env_option.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/output.h"
#include "tools/ramet/stream.h"
#include "tools/ramet/volume.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CODE_MAX_BYTES = 1 << 20 };

struct build {
    struct cli *cli;
    const struct verb *verb;
    const char *packages, *base, *tar, *oci, *image, *disk, *format, *from, *volume, *size, *warm, *warm_code,
            *network;
    uint64_t cpus, memory, disk_gb;
    struct args_list setup, labels;
    struct env_option env;
    bool replace, detach;
    json_t *body; // owned until it is sent
    char id[64];  // of the build, once it is known
};

static json_t *split(const char *text)
{
    json_t *list = json_array();
    while (*text != '\0') {
        size_t length = strcspn(text, ", ");
        if (length > 0)
            json_array_append_new(list, json_stringn(text, length));
        text += length + (text[length] != '\0');
    }
    return list;
}

static json_t *list_of(const struct args_list *list)
{
    json_t *json = json_array();
    for (unsigned i = 0; i < list->count; i++)
        json_array_append_new(json, json_string(list->items[i]));
    return json;
}

static int read_code(struct build *build)
{
    char *text = malloc(CODE_MAX_BYTES + 1);
    FILE *file = fopen(build->warm_code, "re");
    if (file == NULL || text == NULL) {
        int code = file == NULL ? errno : ENOMEM;
        if (file != NULL)
            fclose(file);
        free(text);
        return cli_fail(build->verb, "%s cannot be read: %s", build->warm_code, strerror(code));
    }
    size_t size = fread(text, 1, CODE_MAX_BYTES + 1, file);
    int code_of = ferror(file) ? errno : 0; // a folder, for one, can be opened
    fclose(file);
    if (code_of != 0) {
        free(text);
        return cli_fail(build->verb, "%s cannot be read: %s", build->warm_code, strerror(code_of));
    }
    json_t *code = size > CODE_MAX_BYTES ? NULL : json_stringn(text, size);
    free(text);
    if (code == NULL)
        return cli_fail(build->verb, "%s is no Python code in UTF-8 of at most 1 MiB", build->warm_code);
    json_object_set_new(build->body, "warm_code", code);
    return CLI_DONE;
}

static int make_body(struct build *build, const char *name)
{
    bool good = true;
    json_t *body = build->body = json_object(), *pairs;
    cli_set_text(body, "name", name);
    cli_set_text(body, "base", build->base);
    cli_set_text(body, "image", build->image);
    cli_set_text(body, "sandbox", build->from);
    cli_set_text(body, "volume", build->volume);
    cli_set_text(body, "size", build->size);
    cli_set_text(body, "warm", build->warm);
    cli_set_text(body, "network", build->network);
    if (build->packages != NULL)
        json_object_set_new(body, "packages", split(build->packages));
    if (build->cpus != 0)
        json_object_set_new(body, "cpus", json_integer((json_int_t)build->cpus));
    if (build->memory != 0)
        json_object_set_new(body, "memory_mb", json_integer((json_int_t)build->memory));
    if (build->disk_gb != 0)
        json_object_set_new(body, "disk_gb", json_integer((json_int_t)build->disk_gb));
    if (build->setup.count > 0)
        json_object_set_new(body, "setup", list_of(&build->setup));
    if (build->replace)
        json_object_set_new(body, "replace", json_true());
    if ((pairs = cli_pairs(build->verb, "label", &build->labels, &good)) != NULL)
        json_object_set_new(body, "labels", pairs);
    if (good && (pairs = env_option_read(build->verb, &build->env, &good)) != NULL)
        json_object_set_new(body, "env", pairs);
    if (!good)
        return CLI_USAGE;
    return build->warm_code == NULL ? CLI_DONE : read_code(build);
}

// ---- the source ----

// Sends a file (or "-", standard input) and puts the upload's id into the body.
static int send_file(struct build *build, const char *field, const char *name)
{
    struct stat st;
    bool from_stdin = strcmp(name, "-") == 0;
    int fd = from_stdin ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);
    json_t *json = NULL;
    if (fd < 0 || fstat(fd, &st) < 0)
        return cli_fail(build->verb, "%s cannot be read: %s", name, strerror(errno));
    int status = S_ISDIR(st.st_mode)
                         ? cli_fail(build->verb, "%s is a folder; make an archive of it: tar -C %s -c .",
                                   name, name)
                         : stream_upload(build->cli, build->verb, "PUT", "/v1/templates/uploads", fd,
                                   S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0, name, &json);
    if (!from_stdin)
        close(fd);
    if (status == CLI_DONE)
        cli_set_text(build->body, field, json_fields_get_text(json, "upload"));
    json_decref(json);
    return status;
}

static json_t *begin(struct build *build)
{
    json_t *json = cli_create(build->cli, build->verb, "/v1/templates", build->body);
    build->body = NULL;
    return json;
}

static json_t *begin_with_import(void *context, const char *import_id)
{
    struct build *build = context;
    cli_set_text(build->body, "import", import_id);
    return begin(build);
}

// ---- following ----

static void cancel(void *context)
{
    struct build *build = context;
    struct error err;
    json_t *json = NULL;
    char *path = cli_path("/v1/templates/builds/", build->id, "");
    if (client_call(cli_server(build->cli), "DELETE", path, NULL, &json, &err) == 0)
        cli_note("cancelled");
}

// The build as it ended; NULL with a sentence.
static json_t *follow(struct build *build)
{
    struct client *client;
    struct error err = {0};
    json_t *data, *ended = NULL;
    char *event, *path = cli_path("/v1/templates/builds/", build->id, "/logs?follow=1");
    int status = cli_begin(build->cli, build->verb, "GET", path, NULL, &client);
    free(path);
    if (status != CLI_DONE)
        return NULL;
    while (client_event(client, &event, &data, &err) > 0) {
        if (strcmp(event, "log") == 0)
            fputs(json_fields_get_text(data, "text"), stderr);
        else if (strcmp(event, "build") == 0)
            ended = json_incref(data);
        free(event);
        json_decref(data);
    }
    client_close(client);
    if (ended == NULL)
        cli_fail(build->verb, "%s",
                err.text[0] != '\0' ? err.text : "the daemon ended, and the build with it");
    return ended;
}

static int report(struct build *build, json_t *json)
{
    const char *name = json_fields_get_text(json, "name");
    const char *state = json_fields_get_text(json, "state");
    int status = CLI_DONE;
    if (build->cli->json)
        cli_print_json(json);
    if (strcmp(state, "failed") == 0)
        status = cli_fail(
                build->verb, "%s: %s", name, json_fields_get_text(json_object_get(json, "error"), "message"));
    else if (!build->cli->json && strcmp(state, "ready") == 0)
        printf("%s: ready after %.1f s; `ramet create --from %s` goes on from it\n", name,
                json_number_value(json_object_get(json, "seconds")), name);
    else if (!build->cli->json)
        printf("%s: %s; `ramet template log %s` shows how far it is\n", build->id, state, build->id);
    json_decref(json);
    return status;
}

static int run_build(struct build *build)
{
    json_t *json = NULL;
    int status = CLI_DONE;
    if (build->tar != NULL)
        status = send_file(build, "tar", build->tar);
    if (status == CLI_DONE && build->oci != NULL)
        status = send_file(build, "oci", build->oci);
    if (status == CLI_DONE && build->disk != NULL)
        status = volume_import_disk(
                build->cli, build->verb, build->disk, build->format, begin_with_import, build, &json);
    else if (status == CLI_DONE && (json = begin(build)) == NULL)
        status = CLI_FAILED;
    if (status != CLI_DONE)
        return status;
    snprintf(build->id, sizeof build->id, "%s", json_fields_get_text(json, "id"));
    if (build->detach)
        return report(build, json);
    json_decref(json);
    interrupt_start();
    struct interrupt *interrupt = interrupt_add(cancel, build);
    json = follow(build);
    interrupt_remove(interrupt);
    return json == NULL ? CLI_FAILED : report(build, json);
}

static int check_sources(const struct build *build)
{
    const char *const given[] = {
            build->packages, build->tar, build->oci, build->disk, build->from, build->volume};
    unsigned count = 0;
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        count += given[i] != NULL;
    if (count > 1)
        return cli_fail_usage(build->verb, "a template has one source: choose one of --packages, --tar, "
                                           "--oci, --disk, --from, --volume");
    if (build->format != NULL && build->disk == NULL)
        return cli_fail_usage(build->verb, "--format says what the file of --disk is");
    return CLI_DONE;
}

int template_build(struct cli *cli, const struct verb *verb, char **argv)
{
    struct build build = {.cli = cli, .verb = verb};
    struct args_option options[] = {{"packages", 'p', ARGS_TEXT, &build.packages},
            {"base", 0, ARGS_TEXT, &build.base}, {"tar", 0, ARGS_TEXT, &build.tar},
            {"oci", 0, ARGS_TEXT, &build.oci}, {"image", 0, ARGS_TEXT, &build.image},
            {"disk", 0, ARGS_TEXT, &build.disk}, {"format", 'f', ARGS_TEXT, &build.format},
            {"from", 0, ARGS_TEXT, &build.from}, {"volume", 0, ARGS_TEXT, &build.volume},
            {"size", 0, ARGS_TEXT, &build.size}, {"cpus", 0, ARGS_NUMBER, &build.cpus},
            {"memory-mb", 'm', ARGS_NUMBER, &build.memory}, {"disk-gb", 0, ARGS_NUMBER, &build.disk_gb},
            {"network", 0, ARGS_TEXT, &build.network}, {"warm", 0, ARGS_TEXT, &build.warm},
            {"warm-code", 0, ARGS_TEXT, &build.warm_code}, {"setup", 0, ARGS_LIST, &build.setup},
            {"label", 'l', ARGS_LIST, &build.labels}, ENV_OPTION_ROWS(build.env),
            {"replace", 0, ARGS_FLAG, &build.replace}, {"detach", 'd', ARGS_FLAG, &build.detach}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    status = check_sources(&build);
    if (status == CLI_DONE)
        status = make_body(&build, args.items[0]);
    if (status == CLI_DONE)
        status = run_build(&build);
    json_decref(build.body);
    return status;
}
