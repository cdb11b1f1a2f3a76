// SPDX-License-Identifier: Apache-2.0
// Export: the daemon freezes what the volume holds and serves that on an NBD socket while we hold a stream
// open; qemu-img writes it into a temporary neighbour of the target, which is synced and renamed when it is
// whole.
#include "tools/ramet/volume.h"

#include "tools/ramet/output.h"
#include "tools/ramet/qemu_img.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STREAM_BYTES = 1 << 20 };

struct export
{
    struct cli *cli;
    const struct verb *verb;
    const char *name, *file, *format;
};

static int sync_path(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r;
}

// Data, name and folder are on disk before exit 0.
static int publish(const struct export *export, const char *temporary)
{
    char *copy = strdup(export->file);
    mode_t mask = umask(0);
    umask(mask);
    int r = chmod(temporary, 0666 & ~mask) < 0 ? -errno : sync_path(temporary, O_RDONLY);
    if (r == 0)
        r = rename(temporary, export->file) < 0 ? -errno : sync_path(dirname(copy), O_RDONLY | O_DIRECTORY);
    free(copy);
    return r < 0 ? cli_fail(export->verb, "%s cannot be completed: %s", export->file, strerror(-r))
                 : CLI_DONE;
}

static int copy(const struct export *export, const json_t *ready, int lease_fd)
{
    struct progress progress = {.what = export->name};
    struct error err = {0};
    char *temporary = NULL, *source = qemu_img_nbd(json_fields_get_text(ready, "socket"));
    if (asprintf(&temporary, "%s.XXXXXX", export->file) < 0)
        abort();
    int status, fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        status = cli_fail(export->verb, "%s cannot be written: %s", export->file, strerror(errno));
    } else {
        close(fd);
        int r = qemu_img_convert(source, "raw", temporary, export->format, false, lease_fd, &progress, &err);
        status = r < 0 ? cli_fail(export->verb, "%s: %s; nothing was kept", export->file, err.text)
                       : publish(export, temporary);
        if (status != CLI_DONE)
            unlink(temporary);
    }
    free(temporary);
    free(source);
    return status;
}

static int with_lease(const struct export *export, int64_t *ret_size)
{
    struct client *lease = NULL;
    struct error err = {0};
    json_t *failure = NULL, *ready = NULL, *body = json_pack("{s:s}", "name", export->name);
    char *event = NULL, *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    int http_status = 0, status = CLI_FAILED;
    json_decref(body);
    if (text == NULL)
        return cli_fail(export->verb, "\"%s\" is no name", export->name);
    int r = client_open(cli_run_dir(export->cli), "POST", "/v1/exports", "application/json",
            (int64_t)strlen(text), &lease, &err);
    if (r == 0)
        r = client_write(lease, text, strlen(text), &err);
    if (r == 0)
        r = client_answer(lease, &http_status, &err);
    if (r == 0 && http_status >= 400)
        r = client_error(lease, http_status, &failure, &err);
    if (r == 0 && (r = client_event(lease, &event, &ready, &err)) == 0)
        r = error_set(&err, -EPIPE, "the daemon ended");
    if (r < 0) {
        cli_fail_call(export->cli, export->verb, &err, failure);
    } else {
        *ret_size = json_fields_get_int(ready, "size_bytes");
        status = copy(export, ready, client_fd(lease));
    }
    free(text);
    free(event);
    json_decref(ready);
    client_close(lease);
    return status;
}

static int to_stdout(struct cli *cli, const struct verb *verb, const char *name)
{
    struct client *client;
    struct error err = {0};
    json_t *failure = NULL;
    int http_status, status = CLI_DONE;
    char *path = cli_path("/v1/volumes/", name, "/content"), *buffer = malloc(STREAM_BYTES);
    int r = client_open(cli_run_dir(cli), "GET", path, NULL, 0, &client, &err);
    free(path);
    if (r < 0) {
        free(buffer);
        return cli_fail(verb, "%s", err.text);
    }
    r = client_answer(client, &http_status, &err);
    if (r == 0 && http_status >= 400)
        r = client_error(client, http_status, &failure, &err);
    ssize_t got = r;
    while (r == 0 && status == CLI_DONE && (got = client_read(client, buffer, STREAM_BYTES, &err)) > 0)
        if (fwrite(buffer, 1, (size_t)got, stdout) != (size_t)got)
            status = cli_fail(verb, "standard output cannot be written: %s", strerror(errno));
    if (r < 0 || got < 0)
        status = cli_fail_call(cli, verb, &err, failure);
    free(buffer);
    client_close(client);
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
        return to_stdout(cli, verb, export.name);
    if (lstat(export.file, &stat) == 0 && !S_ISREG(stat.st_mode))
        return cli_fail(verb, "%s exists and is not a plain file; give the name of a file", export.file);
    status = with_lease(&export, &size);
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
