// SPDX-License-Identifier: Apache-2.0
// Files and folders in and out of sandboxes, and between them. Whatever is copied appears under its name only
// when all of it is there.
#include "tools/ramet/cli.h"
#include "tools/ramet/cp_tree.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/resource.h"
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

enum kind { MISSING, PLAIN, FOLDER };

struct place {
    char *box; // NULL = here
    char *path;
    bool contents; // "FOLDER/.": what is in it
    bool slash;    // a slash stands at the end: it is a folder
    enum kind kind;
    unsigned mode;
    uint64_t size; // 0 = not known
};

struct cp {
    struct cli *cli;
    const struct verb *verb;
};

// "NAME:PATH" is in a sandbox, unless a slash comes first ("./a:b").
static struct place parse_place(const char *text)
{
    const char *colon = strchr(text, ':'), *slash = strchr(text, '/');
    bool there = colon != NULL && colon != text && (slash == NULL || colon < slash);
    struct place place = {.box = there ? strndup(text, (size_t)(colon - text)) : NULL};
    const char *path = there ? colon + 1 : text;
    size_t size = strlen(path);
    place.path = strdup(path);
    if (size >= 2 && strcmp(path + size - 2, "/.") == 0) {
        place.contents = true;
        place.path[--size] = '\0';
    }
    if ((place.path == NULL) || (there && place.box == NULL))
        abort();
    place.slash = size > 0 && place.path[size - 1] == '/';
    while (size > 1 && place.path[size - 1] == '/')
        place.path[--size] = '\0';
    return place;
}

static void free_place(struct place *place)
{
    free(place->box);
    free(place->path);
}

static bool is_pipe(const struct place *place)
{
    return place->box == NULL && strcmp(place->path, "-") == 0;
}

static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    size_t length = strlen(folder);
    if (asprintf(&path, "%s%s%s", folder, length > 0 && folder[length - 1] != '/' ? "/" : "", name) < 0)
        abort();
    return path;
}

// ---- what there is ----

// CLI_DONE also when nothing is there.
static int look_there(const struct cp *cp, struct place *place, const char *path)
{
    struct error err = {0};
    json_t *json = NULL;
    char *url = resource_file_path(place->box, "stat?path=", path[0] == '\0' ? "." : path, "");
    int r = client_call(cli_server(cp->cli), "GET", url, NULL, &json, &err);
    free(url);
    if (r < 0) {
        const char *code = json_fields_get_text(json_object_get(json, "error"), "code");
        if (strcmp(code, "file.not_found") != 0)
            return cli_fail_call(cp->cli, cp->verb, &err, json);
        json_decref(json);
        place->kind = MISSING;
        return CLI_DONE;
    }
    const char *type = json_fields_get_text(json, "type");
    place->kind = strcmp(type, "dir") == 0 ? FOLDER : PLAIN;
    place->mode = (unsigned)strtoul(json_fields_get_text(json, "mode"), NULL, 8) & 0777;
    place->size = (uint64_t)json_fields_get_int(json, "size");
    bool link = strcmp(type, "link") == 0;
    json_decref(json);
    if (!link)
        return CLI_DONE;
    // A link that was named is followed: does it lead to a folder?
    char *within = join(path, ".");
    int status = look_there(cp, place, within);
    free(within);
    if (place->kind != FOLDER)
        *place = (struct place){place->box, place->path, place->contents, place->slash, PLAIN, 0, 0};
    return status;
}

static int look_here(const struct cp *cp, struct place *place)
{
    struct stat stat_here;
    if (stat(place->path, &stat_here) < 0) {
        place->kind = MISSING;
        return errno == ENOENT || errno == ENOTDIR
                       ? CLI_DONE
                       : cli_fail(cp->verb, "%s cannot be looked at: %s", place->path, strerror(errno));
    }
    place->kind = S_ISDIR(stat_here.st_mode) ? FOLDER : PLAIN;
    place->mode = stat_here.st_mode & 0777;
    place->size = S_ISREG(stat_here.st_mode) ? (uint64_t)stat_here.st_size : 0;
    return CLI_DONE;
}

static int look(const struct cp *cp, struct place *place)
{
    if (is_pipe(place)) {
        place->kind = PLAIN;
        place->mode = 0644;
        return CLI_DONE;
    }
    return place->box == NULL ? look_here(cp, place) : look_there(cp, place, place->path);
}

// The last part of a path; malloc'ed. "." and ".." have none of their own.
static char *base_name(const struct place *place)
{
    char *path = place->box == NULL ? realpath(place->path, NULL) : NULL;
    const char *text = place->path, *slash = strrchr(text, '/'), *name = slash == NULL ? text : slash + 1;
    bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || name[0] == '\0';
    if (dots && path != NULL)
        name = strrchr(path, '/') + 1;
    char *copy = strdup(name);
    free(path);
    return copy;
}

// ---- single files ----

static int copy_in(const struct cp *cp, const struct place *from, const struct place *to)
{
    bool from_stdin = is_pipe(from);
    json_t *json = NULL;
    char mode[24];
    int fd = from_stdin ? STDIN_FILENO : open(from->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cli_fail(cp->verb, "%s cannot be opened: %s", from->path, strerror(errno));
    snprintf(mode, sizeof mode, "&mode=%o", from->mode);
    char *url = resource_file_path(to->box, "content?path=", to->path, mode);
    int status = stream_upload(cp->cli, cp->verb, "PUT", url, fd, from->size, from->path, &json);
    json_decref(json);
    free(url);
    if (!from_stdin)
        close(fd);
    return status;
}

static int receive_file(const struct cp *cp, struct client *client, const char *path, unsigned mode)
{
    struct progress progress = {.what = path};
    struct stream_file file;
    struct stat there;
    uint64_t bytes;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) { // /dev/null, a pipe
        int fd = open(path, O_WRONLY | O_CLOEXEC), written;
        if (fd < 0)
            return cli_fail(cp->verb, "%s cannot be written: %s", path, strerror(errno));
        written = stream_receive(cp->verb, client, fd, path, &progress, &bytes);
        close(fd);
        return written;
    }
    int status = stream_file_create(cp->verb, path, &file);
    if (status != CLI_DONE)
        return status;
    file.mode = mode;
    status = stream_receive(cp->verb, client, file.fd, path, &progress, &bytes);
    if (status == CLI_DONE)
        return stream_file_publish(cp->verb, &file);
    stream_file_discard(&file);
    return status;
}

static int copy_out(const struct cp *cp, const struct place *from, const struct place *to)
{
    struct client *client;
    uint64_t bytes;
    char *url = resource_file_path(from->box, "content?path=", from->path, "");
    int status = cli_begin(cp->cli, cp->verb, "GET", url, NULL, &client);
    free(url);
    if (status != CLI_DONE)
        return status;
    status = is_pipe(to) ? stream_receive(cp->verb, client, STDOUT_FILENO, "standard output", NULL, &bytes)
                         : receive_file(cp, client, to->path, from->mode);
    client_close(client);
    return status;
}

// From one sandbox to another, through this program.
static int copy_across(const struct cp *cp, const struct place *from, const struct place *to)
{
    struct client *in, *out;
    struct error err = {0};
    char buffer[65536], mode[24], *url = resource_file_path(from->box, "content?path=", from->path, "");
    ssize_t got;
    int status = cli_begin(cp->cli, cp->verb, "GET", url, NULL, &in);
    free(url);
    if (status != CLI_DONE)
        return status;
    snprintf(mode, sizeof mode, "&mode=%o", from->mode == 0 ? 0644 : from->mode);
    url = resource_file_path(to->box, "content?path=", to->path, mode);
    int r = client_open(cli_server(cp->cli), "PUT", url, "application/octet-stream", -1, &out, &err);
    free(url);
    if (r < 0) {
        client_close(in);
        return cli_fail_call(cp->cli, cp->verb, &err, NULL);
    }
    while ((got = client_read(in, buffer, sizeof buffer, &err)) > 0)
        if (client_write(out, buffer, (size_t)got, &err) < 0)
            break; // its answer says why
    status = got < 0 ? cli_fail(cp->verb, "%s", err.text) : cli_take_answer(cp->cli, cp->verb, out);
    client_close(in);
    client_close(out);
    return status;
}

// ---- what becomes what ----

static int copy_folder(const struct cp *cp, const struct place *from, const struct place *to, bool to_exists)
{
    if (is_pipe(to))
        return cli_fail_usage(cp->verb,
                "a folder does not go to standard output; `ramet exec %s tar -c %s` makes an archive",
                from->box, from->path);
    struct cp_tree tree = {cp->cli, cp->verb, from->box, to->box, from->path[0] == '\0' ? "." : from->path,
            to->path, to_exists};
    return cp_tree_copy(&tree);
}

static int copy_file(const struct cp *cp, const struct place *from, const struct place *to)
{
    if (from->box != NULL && to->box != NULL)
        return copy_across(cp, from, to);
    return from->box == NULL ? copy_in(cp, from, to) : copy_out(cp, from, to);
}

static const char *shown(const struct place *place)
{
    return place->path[0] == '\0' ? "the home folder" : place->path;
}

// `target` as it was given and looked at. Into it, when it is a folder; else it is the new name.
static int copy_one(const struct cp *cp, struct place *from, const struct place *target)
{
    int status = look(cp, from);
    if (status != CLI_DONE)
        return status;
    if (from->kind == MISSING)
        return cli_fail(cp->verb, "there is no %s%s%s%s", shown(from), from->box == NULL ? "" : " in ",
                from->box == NULL ? "" : from->box,
                from->box != NULL && strpbrk(from->path, "*?[") != NULL
                        ? "; a name there is taken as it is, patterns are none"
                        : "");
    if (from->kind == PLAIN && from->contents)
        return cli_fail(cp->verb, "%s is a file; /. behind a name means what is in a folder", from->path);
    // "NAME:.." has no name that is known here.
    const char *slash = strrchr(from->path, '/'), *last = slash == NULL ? from->path : slash + 1;
    from->contents |= from->box != NULL && strcmp(last, "..") == 0;
    bool into = (target->kind == FOLDER || target->slash) && !from->contents;
    if (from->kind == FOLDER && target->kind == PLAIN && !is_pipe(target))
        return cli_fail(cp->verb, "%s is a folder, and %s is a file", shown(from), target->path);
    if (into && is_pipe(from))
        return cli_fail_usage(
                cp->verb, "%s is a folder; say how the file is to be called there", shown(target));
    char *base = into ? base_name(from) : NULL;
    struct place to = *target;
    to.path = into ? join(target->path, base) : strdup(target->path);
    if (into) { // it may be there already
        to.kind = MISSING;
        if (from->kind == FOLDER && target->kind == FOLDER)
            status = look(cp, &to);
    }
    if (status == CLI_DONE && into && to.box == NULL && target->kind == MISSING &&
            mkdir(target->path, 0777) < 0 && errno != EEXIST)
        status = cli_fail(cp->verb, "the folder %s cannot be made: %s", target->path, strerror(errno));
    if (status == CLI_DONE && from->kind == FOLDER && to.kind == PLAIN && !is_pipe(&to))
        status = cli_fail(cp->verb, "%s is a folder, and %s is a file", shown(from), to.path);
    else if (status == CLI_DONE)
        status = from->kind == FOLDER ? copy_folder(cp, from, &to, to.kind == FOLDER)
                                      : copy_file(cp, from, &to);
    free(base);
    free(to.path);
    return status;
}

static int copy_all(const struct cp *cp, const struct args *args)
{
    struct place target = parse_place(args->items[args->count - 1]);
    int status = look(cp, &target);
    if (status == CLI_DONE && args->count > 2 && target.kind != FOLDER && !target.slash)
        status = cli_fail(
                cp->verb, "%s is no folder, so several things cannot be copied into it", target.path);
    for (unsigned i = 0; status == CLI_DONE && i + 1 < args->count; i++) {
        struct place from = parse_place(args->items[i]);
        if (from.box == NULL && target.box == NULL)
            status = cli_fail_usage(cp->verb, "one of the two must be in a sandbox, written NAME:PATH");
        else
            status = copy_one(cp, &from, &target);
        free_place(&from);
    }
    free_place(&target);
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    bool recursive = false; // as cp has it; folders are always copied whole
    struct args_option options[] = {{"recursive", 'r', ARGS_FLAG, &recursive}, {0}};
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 4096, 0, &args, &status))
        return status;
    interrupt_start();
    status = copy_all(&(struct cp){cli, verb}, &args);
    const char *to = args.items[args.count - 1];
    if (status == CLI_DONE && cli->json && strcmp(to, "-") != 0) {
        json_t *from = json_array();
        for (unsigned i = 0; i + 1 < args.count; i++)
            json_array_append_new(from, json_string(args.items[i]));
        json_t *json =
                json_pack("{s:O, s:s}", "from", args.count == 2 ? json_array_get(from, 0) : from, "to", to);
        cli_print_json(json);
        json_decref(from);
        json_decref(json);
    }
    return status;
}

const struct verb verb_cp = {"cp", "cp FROM... TO, each FILE or NAME:PATH",
        "Copy files and folders into a sandbox, out of it, or from one to another",
        "  -r, --recursive   nothing more: folders are copied with all that is in them anyway\n"
        "\n"
        "NAME:PATH is in the sandbox NAME, below its user's home unless PATH begins with /; ./a:b is a file "
        "here.\n"
        "  - as FROM is standard input, as TO standard output\n"
        "  TO that is a folder, or ends in /, takes what is copied under its own name; else TO is the new "
        "name\n"
        "  FOLDER/. is what is in the folder, without it\n"
        "Folders that are missing above TO in a sandbox are made, here they are not. A folder that exists "
        "is\n"
        "merged with what comes. Modes stay, symbolic links stay links (one that is named itself is\n"
        "followed). What is copied appears only when all of it is there, and belongs to whom the folder\n"
        "belongs to.\n",
        run, .takes = "p"};
