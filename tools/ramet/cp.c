// SPDX-License-Identifier: Apache-2.0
// One file in or out of a sandbox. A file appears under its name only when all of it is there, on either
// side.
#include "tools/ramet/cli.h"
#include "tools/ramet/stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
    char *box; // NULL = here
    const char *path;
};

// "NAME:PATH" is in a sandbox, unless a slash comes first ("./a:b").
static struct place parse_place(const char *text)
{
    const char *colon = strchr(text, ':'), *slash = strchr(text, '/');
    if (colon == NULL || colon == text || (slash != NULL && slash < colon))
        return (struct place){NULL, text};
    return (struct place){strndup(text, (size_t)(colon - text)), colon + 1};
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    size_t length = strlen(folder);
    if (asprintf(&path, "%s%s%s", folder, length > 0 && folder[length - 1] != '/' ? "/" : "", name) < 0)
        abort();
    return path;
}

static char *files_path(const char *box, const char *call, const char *path, const char *more)
{
    char *head = cli_path("/v1/sandboxes/", box, call), *url = cli_path(head, path, more);
    free(head);
    return url;
}

// Is that path a folder in the sandbox? Then the file goes into it.
static bool is_remote_folder(struct cli *cli, const struct place *place)
{
    struct error err;
    json_t *json = NULL;
    char *url = files_path(place->box, "/files/stat?path=", place->path, "");
    bool folder = client_call(cli_server(cli), "GET", url, NULL, &json, &err) == 0 &&
                  strcmp(json_fields_get_text(json, "type"), "dir") == 0;
    free(url);
    json_decref(json);
    return folder;
}

static int copy_in(struct cli *cli, const struct verb *verb, const char *from, const struct place *to)
{
    bool from_stdin = strcmp(from, "-") == 0;
    int fd = from_stdin ? STDIN_FILENO : open(from, O_RDONLY | O_CLOEXEC), status, http_status;
    struct stat stat = {0};
    struct client *client;
    struct error err = {0};
    json_t *failure = NULL;
    if (fd < 0 || fstat(fd, &stat) < 0)
        return cli_fail(verb, "%s cannot be opened: %s", from, strerror(errno));
    if (S_ISDIR(stat.st_mode)) {
        close(fd);
        return cli_fail(
                verb, "%s is a folder; pack it: tar c %s | ramet exec -i %s tar x", from, from, to->box);
    }
    bool into = !from_stdin &&
                (to->path[0] == '\0' || to->path[strlen(to->path) - 1] == '/' || is_remote_folder(cli, to));
    char *path = into ? join(to->path, base_name(from)) : strdup(to->path), mode[24];
    snprintf(mode, sizeof mode, "&mode=%o", from_stdin ? 0644 : stat.st_mode & 0777);
    char *url = files_path(to->box, "/files/content?path=", path, mode);
    bool sized = S_ISREG(stat.st_mode) && !from_stdin;
    int r = client_open(cli_server(cli), "PUT", url, "application/octet-stream", -1, &client, &err);
    if (r < 0) {
        status = cli_fail(verb, "%s", err.text);
    } else {
        status = stream_send(verb, client, fd, sized ? (uint64_t)stat.st_size : 0, from);
        if (status == 0 && (r = client_answer(client, &http_status, &err)) == 0 && http_status >= 400)
            r = client_error(client, http_status, &failure, &err);
        if (status == 0 && r < 0)
            status = cli_fail_call(cli, verb, &err, failure);
        client_close(client);
    }
    free(url);
    free(path);
    if (!from_stdin)
        close(fd);
    return status;
}

static int receive_file(const struct verb *verb, struct client *client, const char *path)
{
    struct stream_file file;
    uint64_t bytes;
    int status = stream_file_create(verb, path, &file);
    if (status != CLI_DONE)
        return status;
    status = stream_receive(verb, client, file.fd, path, NULL, &bytes);
    if (status == CLI_DONE)
        return stream_file_publish(verb, &file);
    stream_file_discard(&file);
    return status;
}

static int copy_out(struct cli *cli, const struct verb *verb, const struct place *from, const char *to)
{
    struct client *client;
    struct error err = {0};
    struct stat stat;
    json_t *failure = NULL;
    uint64_t bytes;
    int status, http_status;
    bool into = lstat(to, &stat) == 0 && S_ISDIR(stat.st_mode);
    char *path = into ? join(to, base_name(from->path)) : strdup(to);
    char *url = files_path(from->box, "/files/content?path=", from->path, "");
    int r = client_open(cli_server(cli), "GET", url, NULL, 0, &client, &err);
    if (r < 0) {
        status = cli_fail(verb, "%s", err.text);
    } else {
        if ((r = client_answer(client, &http_status, &err)) == 0 && http_status >= 400)
            r = client_error(client, http_status, &failure, &err);
        if (r < 0)
            status = cli_fail_call(cli, verb, &err, failure);
        else if (strcmp(to, "-") == 0)
            status = stream_receive(verb, client, STDOUT_FILENO, "standard output", NULL, &bytes);
        else
            status = receive_file(verb, client, path);
        client_close(client);
    }
    free(url);
    free(path);
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    struct place from = parse_place(args.items[0]), to = parse_place(args.items[1]);
    if (from.box == NULL && to.box != NULL)
        status = copy_in(cli, verb, args.items[0], &to);
    else if (from.box != NULL && to.box == NULL)
        status = copy_out(cli, verb, &from, args.items[1]);
    else
        status = cli_fail_usage(verb, "one of the two must be in a sandbox, written NAME:PATH");
    if (status == CLI_DONE && cli->json && strcmp(args.items[1], "-") != 0) {
        json_t *json = json_pack("{s:s, s:s}", "from", args.items[0], "to", args.items[1]);
        cli_print_json(json);
        json_decref(json);
    }
    free(from.box);
    free(to.box);
    return status;
}

const struct verb verb_cp = {"cp", "cp FILE NAME:PATH | cp NAME:PATH FILE",
        "Copy a file into a sandbox or out of it",
        "  -  as FILE means standard input or output\n"
        "\n"
        "Paths in a sandbox are below /home/user unless they begin with /. Folders that are missing there "
        "are made.\n"
        "A file appears only when all of it has been copied.\n",
        run, .takes = "p"};
