// SPDX-License-Identifier: Apache-2.0
// Export: the daemon freezes what the volume holds and serves that on an NBD socket while we hold a stream
// open; qemu-img writes it into a temporary neighbour of the target, which is synced and renamed when it is
// whole.
#include "tools/ramet/volume.h"

#include "tools/ramet/qemu_img.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct export
{
    struct cli *cli;
    const struct verb *verb;
    const char *name, *file, *format;
};

static int copy(const struct export *export, const json_t *ready, int lease_fd)
{
    struct progress progress = {.what = export->name};
    struct error err = {0};
    struct stream_file file;
    int status = stream_file_create(export->verb, export->file, &file);
    if (status != CLI_DONE)
        return status;
    char *source = qemu_img_nbd(json_fields_get_text(ready, "socket"));
    int r = qemu_img_convert(source, "raw", file.temporary, export->format, false, lease_fd, &progress, &err);
    free(source);
    if (r == 0)
        return stream_file_publish(export->verb, &file);
    stream_file_discard(&file);
    return cli_fail(export->verb, "%s: %s; nothing was kept", export->file, err.text);
}

static int with_lease(const struct export *export, int64_t *ret_size)
{
    struct client *lease = NULL;
    struct error err = {0};
    json_t *ready = NULL, *body = json_pack("{s:s}", "name", export->name);
    char *event = NULL;
    if (body == NULL)
        return cli_fail(export->verb, "\"%s\" is no name", export->name);
    int status = cli_begin(export->cli, export->verb, "POST", "/v1/exports", body, &lease);
    if (status != CLI_DONE)
        return status;
    int r = client_event(lease, &event, &ready, &err);
    if (r <= 0) {
        status = cli_fail(export->verb, "%s", r < 0 ? err.text : "the daemon ended");
    } else {
        *ret_size = json_fields_get_int(ready, "size_bytes");
        status = copy(export, ready, client_fd(lease));
    }
    free(event);
    json_decref(ready);
    client_close(lease);
    return status;
}

// The raw bytes, as a stream: into a pipe, or from another host, whose sockets are not here.
static int stream_out(const struct export *export, int64_t *ret_size)
{
    struct progress progress = {.what = export->name};
    struct client *client;
    struct stream_file file;
    uint64_t bytes = 0;
    bool to_pipe = strcmp(export->file, "-") == 0;
    char *path = cli_path("/v1/volumes/", export->name, "/content");
    int status = cli_begin(export->cli, export->verb, "GET", path, NULL, &client);
    free(path);
    if (status != CLI_DONE)
        return status;
    if (to_pipe)
        status = stream_receive(export->verb, client, STDOUT_FILENO, "standard output", NULL, &bytes);
    else if ((status = stream_file_create(export->verb, export->file, &file)) == CLI_DONE) {
        status = stream_receive(export->verb, client, file.fd, export->file, &progress, &bytes);
        if (status == CLI_DONE)
            status = stream_file_publish(export->verb, &file);
        else
            stream_file_discard(&file);
    }
    client_close(client);
    *ret_size = (int64_t)bytes;
    return status;
}

int volume_export(struct cli *cli, const struct verb *verb, char **argv)
{
    struct export export = {.cli = cli, .verb = verb, .format = NULL};
    struct args_option options[] = {{"format", 'f', ARGS_TEXT, &export.format}, {0}};
    struct args args;
    struct stat stat;
    int64_t size = 0;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    interrupt_start();
    export.name = args.items[0];
    export.file = args.items[1];
    bool to_pipe = strcmp(export.file, "-") == 0;
    size_t length = strlen(export.file);
    if (export.format == NULL)
        export.format = length > 6 && strcmp(export.file + length - 6, ".qcow2") == 0 ? "qcow2" : "raw";
    if (strcmp(export.format, "raw") != 0 && strcmp(export.format, "qcow2") != 0)
        return cli_fail_usage(verb, "--format %s is not raw or qcow2", export.format);
    if (to_pipe && strcmp(export.format, "raw") != 0)
        return cli_fail_usage(verb, "standard output can only be raw");
    if (to_pipe)
        return stream_out(&export, &size);
    if (lstat(export.file, &stat) == 0 && !S_ISREG(stat.st_mode))
        return cli_fail(verb, "%s exists and is not a plain file; give the name of a file", export.file);
    bool remote = server_is_remote(cli_server(cli));
    if (remote && strcmp(export.format, "raw") != 0)
        return cli_need_local(cli, verb, "export it raw, and then run `qemu-img convert -O qcow2` on it");
    status = remote ? stream_out(&export, &size) : with_lease(&export, &size);
    if (status != CLI_DONE)
        return status;
    if (cli->json) {
        json_t *json = json_pack("{s:s, s:s, s:s, s:I}", "name", export.name, "file", export.file, "format",
                export.format, "size_bytes", (json_int_t)size);
        cli_print_json(json);
        json_decref(json);
    } else {
        printf("%s: %s of %s, written to %s\n", export.name, export.format, output_size((uint64_t)size),
                export.file);
    }
    return CLI_DONE;
}
