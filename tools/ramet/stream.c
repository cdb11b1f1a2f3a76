// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/stream.h"

#include "blockstore/fd.h"
#include "tools/ramet/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20 };

// Everything from fd into the body. size 0 = unknown. Returns CLI_DONE also when the daemon took no more: its
// answer says why. `name` is for sentences; "-" is standard input.
static int send_all(const struct verb *verb, struct client *client, int fd, uint64_t size, const char *name)
{
    const char *what = strcmp(name, "-") == 0 ? "standard input" : name;
    struct progress progress = {.what = what};
    struct error err = {0};
    char *buffer = malloc(COPY_BYTES);
    uint64_t done = 0;
    int status = buffer == NULL ? cli_fail(verb, "no memory") : CLI_DONE;
    while (status == CLI_DONE) {
        ssize_t got = read(fd, buffer, COPY_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = cli_fail(verb, "%s cannot be read: %s", what, strerror(errno));
        if (got <= 0 || client_write(client, buffer, (size_t)got, &err) < 0)
            break; // when the daemon has refused, its answer says why
        done += (uint64_t)got;
        if (size > 0)
            progress_set(&progress, (double)done / (double)size);
        else
            progress_amount(&progress, done);
    }
    progress_end(&progress);
    free(buffer);
    return status;
}

int stream_read_all(int fd, size_t limit, char **ret_bytes, size_t *ret_size)
{
    size_t size = 0, room = 65536;
    char *bytes = NULL;
    for (;;) {
        bytes = realloc(bytes, size + room + 1);
        if (bytes == NULL)
            abort();
        ssize_t got = fd_read_all(fd, bytes + size, room);
        size += got > 0 ? (size_t)got : 0;
        if (got < 0 || size > limit) {
            free(bytes);
            return got < 0 ? (int)got : -EFBIG;
        }
        if ((size_t)got < room)
            break;
        room = size;
    }
    bytes[size] = '\0';
    *ret_bytes = bytes;
    *ret_size = size;
    return 0;
}

int stream_upload(struct cli *cli, const struct verb *verb, const char *method, const char *path, int fd,
        uint64_t size, const char *name, json_t **ret_json)
{
    struct client *client;
    struct error err = {0};
    char *text = NULL;
    size_t text_size = 0;
    // Chunked, so that a file that shrinks meanwhile ends the call, and not the daemon's patience.
    int r = client_open(cli_server(cli), method, path, "application/octet-stream", -1, &client, &err);
    if (r < 0)
        return cli_fail_call(cli, verb, &err, NULL);
    int status = send_all(verb, client, fd, size, name);
    if (status == CLI_DONE) {
        json_t *failure = NULL;
        int http_status;
        r = client_answer(client, &http_status, &err);
        if (r == 0 && http_status >= 400)
            r = client_error(client, http_status, &failure, &err);
        else if (r == 0)
            r = client_read_all(client, &text, &text_size, &err);
        error_prefix(&err, "%s", strcmp(name, "-") == 0 ? "standard input" : name);
        status = r < 0 ? cli_fail_call(cli, verb, &err, failure) : CLI_DONE;
    }
    client_close(client);
    if (status == CLI_DONE)
        *ret_json = text_size == 0 ? NULL : json_loadb(text, text_size, JSON_ALLOW_NUL, NULL);
    free(text);
    return status;
}

int stream_pass(const struct verb *verb, int fd, const void *bytes, size_t size)
{
    int r = fd_write_all(fd, bytes, size);
    if (r == -EPIPE)
        return CLI_PIPE_CLOSED;
    if (r < 0)
        return cli_fail(verb, "standard %s cannot be written: %s", fd == STDOUT_FILENO ? "output" : "error",
                strerror(-r));
    return CLI_DONE;
}

static void look_for_reader(void *context, unsigned seconds)
{
    struct pollfd poll_fd = {.fd = STDOUT_FILENO};
    if (poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLERR)
        _exit(CLI_PIPE_CLOSED);
}

void stream_end_with_reader(void)
{
    client_on_wait(look_for_reader, NULL);
}

int stream_receive(const struct verb *verb, struct client *client, int fd, const char *name,
        struct progress *progress, uint64_t *ret_bytes)
{
    struct error err = {0};
    char *buffer = malloc(COPY_BYTES);
    ssize_t got;
    uint64_t total = 0;
    int status = buffer == NULL ? cli_fail(verb, "no memory") : CLI_DONE;
    while (status == CLI_DONE && (got = client_read(client, buffer, COPY_BYTES, &err)) != 0) {
        if (got < 0)
            status = cli_fail(verb, "%s", err.text);
        int r = got > 0 ? fd_write_all(fd, buffer, (size_t)got) : 0;
        if (r == -EPIPE && fd == STDOUT_FILENO)
            status = CLI_PIPE_CLOSED;
        else if (r < 0)
            status = cli_fail(verb, "%s cannot be written: %s", name, strerror(-r));
        else if (got > 0)
            total += (uint64_t)got;
        if (progress != NULL)
            progress_amount(progress, total);
    }
    if (progress != NULL)
        progress_end(progress);
    free(buffer);
    *ret_bytes = total;
    return status;
}

static void undo(void *context)
{
    unlink(context);
}

int stream_file_create(const struct verb *verb, const char *path, struct stream_file *ret_file)
{
    struct stream_file file = {.path = path};
    if (asprintf(&file.temporary, "%s.XXXXXX", path) < 0)
        abort();
    file.fd = mkostemp(file.temporary, O_CLOEXEC);
    if (file.fd < 0) {
        int status = errno == ENOENT ? cli_fail(verb,
                                               "the folder that %s is to be in does not exist; make it "
                                               "(mkdir -p), or name another",
                                               path)
                                     : cli_fail(verb, "%s cannot be written: %s", path, strerror(errno));
        free(file.temporary);
        return status;
    }
    file.interrupt = interrupt_add(undo, file.temporary);
    *ret_file = file;
    return CLI_DONE;
}

static int sync_folder(const char *path)
{
    char *copy = strdup(path);
    int fd = copy == NULL ? -1 : open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    free(copy);
    return r;
}

int stream_file_publish(const struct verb *verb, struct stream_file *file)
{
    mode_t mask = umask(0);
    umask(mask);
    // A program that we ran may have written the file by its name; its data is synced through any descriptor.
    int status = CLI_DONE, r;
    if (fchmod(file->fd, file->mode != 0 ? file->mode : 0666 & ~mask) < 0 || fsync(file->fd) < 0 ||
            rename(file->temporary, file->path) < 0) {
        status = cli_fail(verb, "%s cannot be completed: %s", file->path, strerror(errno));
        unlink(file->temporary);
    } else if ((r = sync_folder(file->path)) < 0) { // it is there, and may have taken another's place
        cli_note("note: %s is complete, but its folder cannot be synced (%s): a power cut may still undo it",
                file->path, strerror(-r));
    }
    close(file->fd);
    interrupt_remove(file->interrupt);
    free(file->temporary);
    return status;
}

void stream_file_discard(struct stream_file *file)
{
    unlink(file->temporary);
    close(file->fd);
    interrupt_remove(file->interrupt);
    free(file->temporary);
}
