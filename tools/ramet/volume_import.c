// SPDX-License-Identifier: Apache-2.0
// Import: the daemon opens a nameless volume on an NBD socket of its own for as long as we hold a stream
// open; qemu-img fills it; then it gets its name, durably. Whatever ends us ends the import. Standard input
// goes as a stream of bytes.
//
// What a raw disk holds was written by a guest, so its first bytes must not decide how it is read (a guest
// can write the head of a qcow2 file that names a file of ours). A file is taken for qcow2 only when it is
// called so, by --format or by its name.
#include "tools/ramet/volume.h"

#include "tools/ramet/qemu_img.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct import {
    struct cli *cli;
    const struct verb *verb;
    const char *name, *file, *format;
    json_t *(*complete)(void *context, const char *import_id); // NULL = it becomes a volume of its name
    void *context;
    struct qemu_img_info info;
    struct stat before;
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), size = strlen(end);
    return length >= size && strcmp(text + length - size, end) == 0;
}

// Sets import->format and info, or says why not.
static int choose_format(struct import *import)
{
    struct error err = {0};
    struct qemu_img_info probed;
    const struct verb *verb = import->verb;
    const char *file = import->file;
    bool given = import->format != NULL;
    if (given && strcmp(import->format, "raw") != 0 && strcmp(import->format, "qcow2") != 0)
        return cli_fail_usage(verb, "--format %s is not raw or qcow2", import->format);
    if (!given) {
        if (qemu_img_probe(file, NULL, &probed, &err) < 0)
            return cli_fail(verb, "%s: %s; if it is a raw disk, say --format raw", file, err.text);
        if (probed.encrypted || strcmp(probed.format, "luks") == 0)
            return cli_fail(verb,
                    "%s is encrypted (%s); decrypt it first (qemu-img convert with its secret), or say "
                    "--format raw to take its bytes as they are",
                    file, probed.format);
        bool named = ends_with(file, ".qcow2") || ends_with(file, ".qcow");
        if (strcmp(probed.format, "raw") != 0 && !(strcmp(probed.format, "qcow2") == 0 && named))
            return cli_fail(verb,
                    "%s looks like a %s image, but a raw disk can look like that too; say --format raw to "
                    "take its "
                    "bytes as they are%s",
                    file, probed.format, strcmp(probed.format, "qcow2") == 0 ? ", or --format qcow2" : "");
        import->format = strcmp(probed.format, "qcow2") == 0 ? "qcow2" : "raw";
    }
    if (qemu_img_probe(file, import->format, &import->info, &err) < 0)
        return cli_fail(verb, "%s cannot be read as %s: %s", file, import->format, err.text);
    if (import->info.encrypted)
        return cli_fail(verb, "%s is encrypted; decrypt it first (qemu-img convert with its secret)", file);
    if (import->info.corrupt)
        return cli_fail(verb, "%s is marked corrupt; repair it first (qemu-img check -r all)", file);
    if (import->info.backing[0] != '\0')
        cli_note("note: %s lies over %s, which is read too", file, import->info.backing);
    if (import->info.snapshots > 0)
        cli_note("note: the %u snapshots inside %s are not taken along", import->info.snapshots, file);
    if (import->info.bitmaps > 0)
        cli_note("note: the %u dirty bitmaps inside %s are not taken along", import->info.bitmaps, file);
    return CLI_DONE;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

// Gives the import up and returns when nothing is left of it: the name is free when this command has failed.
static void cancel(struct import *import, const json_t *ready)
{
    struct error err;
    json_t *json = NULL;
    char *path = cli_path("/v1/imports/", json_fields_get_text(ready, "import"), "");
    client_call(cli_server(import->cli), "DELETE", path, NULL, &json,
            &err); // a daemon that is gone forgets it anyway
    json_decref(json);
    free(path);
}

// The copy, and the name at the end. Runs while `lease` is open.
static int copy(struct import *import, const json_t *ready, int lease_fd, json_t **ret_volume)
{
    const struct verb *verb = import->verb;
    struct progress progress = {.what = import->name};
    struct error err = {0};
    struct stat after;
    char *target = qemu_img_nbd(json_fields_get_text(ready, "socket"));
    int status = CLI_DONE;
    int r = qemu_img_convert(import->file, import->format, target, "raw", true, lease_fd, &progress, &err);
    free(target);
    if (r < 0)
        status = cli_fail(verb, "%s: %s; nothing was kept", import->file, err.text);
    else if (stat(import->file, &after) < 0 || !is_same(&import->before, &after))
        status = cli_fail(verb, "%s changed while it was read; nothing was kept", import->file);
    if (status == CLI_DONE) {
        const char *id = json_fields_get_text(ready, "import");
        char *path = cli_path("/v1/imports/", id, "/commit");
        *ret_volume = import->complete != NULL ? import->complete(import->context, id)
                                               : cli_call(import->cli, verb, "POST", path, json_object());
        free(path);
        status = *ret_volume == NULL ? CLI_FAILED : CLI_DONE;
    }
    if (status != CLI_DONE)
        cancel(import, ready);
    return status;
}

// Opens the lease: a stream of events whose first says where to write.
static int with_lease(struct import *import, uint64_t size_bytes, json_t **ret_volume)
{
    struct client *lease = NULL;
    struct error err = {0};
    json_t *ready = NULL,
           *body = json_pack("{s:s, s:I}", "name", import->name, "size_bytes", (json_int_t)size_bytes);
    char *event = NULL;
    if (body == NULL)
        return cli_fail(import->verb, "\"%.60s\" cannot be the name of a volume", import->name);
    int status = cli_begin(import->cli, import->verb, "POST", "/v1/imports", body, &lease);
    if (status != CLI_DONE)
        return status;
    int r = client_event(lease, &event, &ready, &err);
    if (r <= 0)
        status = cli_fail(import->verb, "%s", r < 0 ? err.text : "the daemon ended");
    else
        status = copy(import, ready, client_fd(lease), ret_volume);
    free(event);
    json_decref(ready);
    client_close(lease);
    return status;
}

static void pass_notice_on(const json_t *volume)
{
    const char *notice = json_fields_get_text(volume, "notice");
    if (notice[0] != '\0')
        cli_note("note: %s", notice);
}

static int import_file(struct import *given, json_t **ret_json)
{
    struct import import = *given;
    const struct verb *verb = import.verb;
    const char *file = import.file;
    if (stat(file, &import.before) < 0)
        return cli_fail(verb, "%s cannot be read: %s", file, strerror(errno));
    if (!S_ISREG(import.before.st_mode) && !S_ISBLK(import.before.st_mode))
        return cli_fail(verb, "%s is not a file; for a pipe give - and feed it into this command", file);
    if (S_ISREG(import.before.st_mode) && import.before.st_size == 0)
        return cli_fail(verb, "%s is empty; a volume needs at least one byte", file);
    int status = choose_format(&import);
    if (status != CLI_DONE)
        return status;
    bool raw = strcmp(import.format, "raw") == 0 && S_ISREG(import.before.st_mode);
    uint64_t size = raw ? (uint64_t)import.before.st_size : import.info.virtual_bytes;
    status = with_lease(&import, size, ret_json);
    if (import.complete != NULL)
        return status;
    if (status == CLI_DONE && (uint64_t)json_fields_get_int(*ret_json, "size_bytes") > size)
        cli_note("note: %llu bytes of zeros fill the last sector of 512",
                (unsigned long long)((uint64_t)json_fields_get_int(*ret_json, "size_bytes") - size));
    if (status == CLI_DONE)
        pass_notice_on(*ret_json);
    return status;
}

static int import_stream(struct cli *cli, const struct verb *verb, const char *name, int fd, const char *file,
        uint64_t expected, json_t **ret_volume)
{
    char after[64] = "/content";
    if (expected != 0)
        snprintf(after, sizeof after, "/content?size_bytes=%llu", (unsigned long long)expected);
    char *path = cli_path("/v1/volumes/", name, after);
    int status = stream_upload(cli, verb, "PUT", path, fd, expected, file, ret_volume);
    free(path);
    if (status != CLI_DONE)
        return status;
    if (json_fields_get_int(*ret_volume, "padding_bytes") > 0)
        cli_note("note: %lld bytes of zeros fill the last sector of 512",
                (long long)json_fields_get_int(*ret_volume, "padding_bytes"));
    pass_notice_on(*ret_volume);
    return CLI_DONE;
}

// To another host, whose sockets are not here: the raw bytes, as a stream.
static int import_remote(struct import *import, json_t **ret_volume)
{
    const struct verb *verb = import->verb;
    static const char raw_first[] =
            "make a raw file of it first (qemu-img convert -O raw FILE RAW), and import that";
    if (import->format != NULL && strcmp(import->format, "raw") != 0)
        return cli_need_local(import->cli, verb, raw_first);
    int fd = open(import->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &import->before) < 0)
        return cli_fail(verb, "%s cannot be read: %s", import->file, strerror(errno));
    int status = choose_format(import);
    if (status == CLI_DONE && (strcmp(import->format, "raw") != 0 || !S_ISREG(import->before.st_mode)))
        status = cli_need_local(import->cli, verb, raw_first);
    if (status == CLI_DONE)
        status = import_stream(import->cli, verb, import->name, fd, import->file,
                (uint64_t)import->before.st_size, ret_volume);
    close(fd);
    return status;
}

int volume_import_file(struct cli *cli, const struct verb *verb, const char *name, const char *file,
        const char *format, json_t **ret_volume)
{
    struct import import = {.cli = cli, .verb = verb, .name = name, .file = file, .format = format};
    return server_is_remote(cli_server(cli)) ? import_remote(&import, ret_volume)
                                             : import_file(&import, ret_volume);
}

int volume_import_disk(struct cli *cli, const struct verb *verb, const char *file, const char *format,
        json_t *(*complete)(void *context, const char *import_id), void *context, json_t **ret_json)
{
    char name[40];
    uint64_t random = 0;
    int status = cli_need_local(
            cli, verb, "import the disk first (`ramet volume import`), and build with --volume");
    if (status != CLI_DONE)
        return status;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        abort();
    snprintf(name, sizeof name, "import-%016" PRIx64, random);
    struct import import = {.cli = cli,
            .verb = verb,
            .name = name,
            .file = file,
            .format = format,
            .complete = complete,
            .context = context};
    return import_file(&import, ret_json);
}

int volume_import(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *format = NULL;
    uint64_t size = 0;
    struct args_option options[] = {{"format", 'f', ARGS_TEXT, &format}, {"size", 0, ARGS_SIZE, &size}, {0}};
    struct args args;
    json_t *volume = NULL;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    bool from_stdin = strcmp(args.items[1], "-") == 0;
    if (from_stdin && format != NULL && strcmp(format, "raw") != 0)
        return cli_fail_usage(
                verb, "standard input can only be raw; save the %s image into a file first", format);
    if (!from_stdin && size != 0)
        return cli_fail_usage(
                verb, "--size says how much must come from standard input; a file has its own size");
    status = from_stdin ? import_stream(cli, verb, args.items[0], STDIN_FILENO, "-", size, &volume)
                        : volume_import_file(cli, verb, args.items[0], args.items[1], format, &volume);
    if (status == CLI_DONE && cli->json)
        cli_print_json(volume);
    else if (status == CLI_DONE)
        printf("%s: %s (%lld bytes), imported\n", args.items[0],
                output_size((uint64_t)json_fields_get_int(volume, "size_bytes")),
                (long long)json_fields_get_int(volume, "size_bytes"));
    json_decref(volume);
    return status;
}
