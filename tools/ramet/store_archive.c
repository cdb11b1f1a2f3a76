// SPDX-License-Identifier: Apache-2.0
// Archives: volumes and snapshots into one file that can be verified, and into any store.
#include "tools/ramet/store.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Sends the names; the answer's body is the archive.
static int start_export(
        struct cli *cli, const struct verb *verb, const struct args *args, struct client **ret_client)
{
    json_t *names = json_array();
    for (unsigned i = 0; i + 1 < args->count; i++) {
        if (json_array_append_new(names, json_string(args->items[i])) == 0)
            continue;
        json_decref(names);
        return cli_fail(verb, "\"%s\" is no name", args->items[i]);
    }
    return cli_begin(cli, verb, "POST", "/v1/store/export", json_pack("{s:o}", "names", names), ret_client);
}

static int receive_file(const struct verb *verb, struct client *client, const char *path, uint64_t *ret_bytes)
{
    struct progress progress = {.what = path};
    struct stream_file file;
    int status = stream_file_create(verb, path, &file);
    if (status != CLI_DONE)
        return status;
    status = stream_receive(verb, client, file.fd, path, &progress, ret_bytes);
    if (status == CLI_DONE)
        return stream_file_publish(verb, &file);
    stream_file_discard(&file);
    return status;
}

int store_export_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    struct client *client = NULL;
    struct stat stat;
    uint64_t bytes = 0;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 4096, 0, &args, &status))
        return status;
    interrupt_start();
    const char *file = args.items[args.count - 1];
    bool to_pipe = strcmp(file, "-") == 0;
    if (to_pipe && isatty(STDOUT_FILENO))
        return cli_fail_usage(verb, "an archive is not for a terminal; send it into a file or pipe");
    if (!to_pipe && lstat(file, &stat) == 0 && !S_ISREG(stat.st_mode))
        return cli_fail(verb, "%s exists and is not a plain file; give the name of a file", file);
    status = start_export(cli, verb, &args, &client);
    if (status != CLI_DONE)
        return status;
    status = to_pipe ? stream_receive(verb, client, STDOUT_FILENO, "standard output", NULL, &bytes)
                     : receive_file(verb, client, file, &bytes);
    client_close(client);
    if (status != CLI_DONE || to_pipe)
        return status;
    if (cli->json) {
        json_t *json = json_pack("{s:s, s:I}", "file", file, "archive_bytes", (json_int_t)bytes);
        cli_print_json(json);
        json_decref(json);
    } else {
        printf("%s: %s, an archive of %u\n", file, output_size(bytes), args.count - 1);
    }
    return CLI_DONE;
}

static void print_imported(const json_t *json)
{
    static const char *const heads[] = {"NAME", "KIND", "SIZE"};
    struct table *table = table_create(3, heads);
    json_t *thing;
    size_t i;
    json_array_foreach(json_object_get(json, "volumes"), i, thing)
    {
        table_add(table, (const char *const[]){json_fields_get_text(thing, "name"), "volume",
                                 output_size((uint64_t)json_fields_get_int(thing, "size_bytes"))});
    }
    json_array_foreach(json_object_get(json, "snapshots"), i, thing)
    {
        bool machine = strcmp(json_fields_get_text(thing, "kind"), "machine") == 0;
        table_add(table, (const char *const[]){json_fields_get_text(thing, "name"),
                                 machine ? "machine snapshot" : "snapshot",
                                 output_size((uint64_t)json_fields_get_int(thing, "logical_bytes"))});
    }
    table_print(table);
}

// Sends the file; the answer says what there is now.
static int send_archive(struct cli *cli, const struct verb *verb, int fd, uint64_t size, const char *name,
        const char *prefix, json_t **ret_json)
{
    char *path =
            prefix == NULL ? strdup("/v1/store/import") : cli_path("/v1/store/import?prefix=", prefix, "");
    int status = stream_upload(cli, verb, "POST", path, fd, size, name, ret_json);
    free(path);
    if (status == CLI_DONE && *ret_json == NULL)
        status = cli_fail(verb, "the daemon's answer is no JSON");
    return status;
}

int store_import_verb(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *prefix = NULL;
    struct args_option options[] = {{"prefix", 0, ARGS_TEXT, &prefix}, {0}};
    struct args args;
    struct stat stat = {0};
    json_t *json = NULL;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    const char *file = args.items[0];
    bool from_stdin = strcmp(file, "-") == 0;
    int fd = from_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) < 0)
        return cli_fail(verb, "%s cannot be read: %s", file, strerror(errno));
    status = send_archive(
            cli, verb, fd, S_ISREG(stat.st_mode) ? (uint64_t)stat.st_size : 0, file, prefix, &json);
    if (!from_stdin)
        close(fd);
    if (status == CLI_DONE && cli->json)
        cli_print_json(json);
    else if (status == CLI_DONE)
        print_imported(json);
    json_decref(json);
    return status;
}
