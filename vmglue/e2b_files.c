// SPDX-License-Identifier: Apache-2.0
// Files as E2B's clients know them: uploads as forms, and the calls of filesystem.Filesystem.
#include "vmglue/e2b_files.h"

#include "vmglue/e2b_connect.h"
#include "vmglue/e2b_owner.h"
#include "vmglue/e2b_multipart.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 64, ENTRIES_MAX = 100000, FIRST_USER = 1000 };

static bool take_agent(struct http_request *request, struct sandbox_agent *use)
{
    struct error err;
    int r = route_agent_use(request, http_request_param(request, "name"), use, &err);
    if (r < 0)
        http_reply_failure(request, "sandbox", &err);
    return r == 0;
}

static void reply_failure(struct http_request *request, struct sandbox_agent *use, struct error *err)
{
    sandbox_agent_failed(use, err);
    http_reply_failure(request, "file", err);
}

static void health(struct http_request *request)
{
    struct sandbox_agent use;
    if (!take_agent(request, &use))
        return;
    route_agent_done(request, &use);
    http_reply_empty(request, 204);
}

// ---- uploads ----

static ssize_t part_source(void *context, void *buffer, size_t capacity)
{
    return e2b_multipart_read(context, buffer, capacity);
}

static ssize_t body_source(void *context, void *buffer, size_t capacity)
{
    return http_request_read(context, buffer, capacity);
}

void e2b_files_whole_path(const char *path, char ret_path[E2B_PATH_CAPACITY])
{
    size_t size =
            (size_t)snprintf(ret_path, E2B_PATH_CAPACITY, "%s%s", path[0] == '/' ? "" : "/home/user/", path);
    while (size > 1 && size < E2B_PATH_CAPACITY && ret_path[size - 1] == '/')
        ret_path[--size] = '\0';
}

static void add_written(json_t *written, const char *path)
{
    char whole[E2B_PATH_CAPACITY];
    e2b_files_whole_path(path, whole);
    const char *name = strrchr(whole, '/') + 1;
    json_array_append_new(
            written, json_pack("{s:o, s:o, s:s}", "path", json_fields_text(whole, strlen(whole)), "name",
                             json_fields_text(name, strlen(name)), "type", "file"));
}

static int write_file(struct http_request *request, struct sandbox_agent *use, const char *path,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    struct e2b_owner owner;
    char whole[E2B_PATH_CAPACITY];
    e2b_files_whole_path(path, whole);
    e2b_owner_look(&owner, request, use, whole);
    int r = agent_file_write(use->agent, path, 0644, source, context, err);
    return r < 0 ? r : e2b_owner_give(&owner, use, err);
}

static int take_form(
        struct http_request *request, struct sandbox_agent *use, json_t *written, struct error *err)
{
    struct e2b_multipart *form = malloc(sizeof *form);
    const char *given = http_request_query(request, "path");
    if (form == NULL)
        return error_set(err, -ENOMEM, "no memory for an upload");
    int r = e2b_multipart_begin(form, request, err);
    while (r >= 0 && (r = e2b_multipart_next(form, err)) > 0) {
        if (strcmp(form->name, "file") != 0)
            continue;
        const char *path = given != NULL && given[0] != '\0' ? given : form->file_name;
        if (path[0] == '\0')
            r = error_set(err, -EINVAL, "a file of the form has no name, and the query has no path");
        else
            r = write_file(request, use, path, part_source, form, err);
        if (r >= 0)
            add_written(written, path);
    }
    free(form);
    return r;
}

static int take_raw(
        struct http_request *request, struct sandbox_agent *use, json_t *written, struct error *err)
{
    const char *path = http_request_query(request, "path");
    if (path == NULL || path[0] == '\0')
        return error_set(err, -EINVAL, "query parameter path is missing");
    int r = write_file(request, use, path, body_source, request, err);
    if (r >= 0)
        add_written(written, path);
    return r;
}

static void upload(struct http_request *request)
{
    const char *type = http_request_header(request, "Content-Type");
    const char *encoding = http_request_header(request, "Content-Encoding");
    struct sandbox_agent use;
    struct error err;
    int r;
    if (encoding != NULL && strcmp(encoding, "identity") != 0) {
        http_reply_error(
                request, 400, "validation.invalid", "uploads are not taken compressed (%.20s)", encoding);
        return;
    }
    if (!take_agent(request, &use))
        return;
    json_t *written = json_array();
    if (type != NULL && strncmp(type, "application/octet-stream", 24) == 0)
        r = take_raw(request, &use, written, &err);
    else
        r = take_form(request, &use, written, &err);
    if (r < 0) {
        json_decref(written);
        reply_failure(request, &use, &err);
    } else {
        http_reply_json(request, 200, written);
    }
    route_agent_done(request, &use);
}

// ---- entries ----

static json_t *owner_of(uint32_t id)
{
    if (id == 0)
        return json_string("root");
    return id == FIRST_USER ? json_string("user") : json_sprintf("%u", id);
}

static json_t *permissions_of(uint32_t mode)
{
    char text[] = "-rwxrwxrwx";
    text[0] = S_ISDIR(mode) ? 'd' : S_ISLNK(mode) ? 'l' : '-';
    for (int i = 0; i < 9; i++)
        if ((mode & 1u << (8 - i)) == 0)
            text[i + 1] = '-';
    return json_string(text);
}

static json_t *entry_of(const char *path, const struct agent_stat *stat)
{
    const char *slash = strrchr(path, '/');
    const char *type = S_ISREG(stat->mode)   ? "FILE_TYPE_FILE"
                       : S_ISDIR(stat->mode) ? "FILE_TYPE_DIRECTORY"
                       : S_ISLNK(stat->mode) ? "FILE_TYPE_SYMLINK"
                                             : "FILE_TYPE_UNSPECIFIED";
    const char *name = slash == NULL || slash[1] == '\0' ? path : slash + 1;
    return json_pack("{s:o, s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "name",
            json_fields_text(name, strlen(name)), "type", type, "path", json_fields_text(path, strlen(path)),
            "size", json_sprintf("%llu", (unsigned long long)stat->size_bytes), "mode",
            (int)(stat->mode & 07777), "permissions", permissions_of(stat->mode), "owner",
            owner_of(stat->uid), "group", owner_of(stat->gid), "modifiedTime",
            json_fields_time(stat->mtime_ns));
}

static int reply_entry(
        struct http_request *request, struct sandbox_agent *use, const char *path, struct error *err)
{
    struct agent_stat stat;
    char whole[E2B_PATH_CAPACITY];
    int r = agent_file_stat(use->agent, path, &stat, err);
    if (r < 0)
        return r;
    e2b_files_whole_path(path, whole);
    http_reply_json(request, 200, json_pack("{s:o}", "entry", entry_of(whole, &stat)));
    return 0;
}

typedef int file_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err);

static void act_on(struct http_request *request, const char *field, file_act *act)
{
    struct sandbox_agent use;
    struct error err;
    json_t *body;
    int r = http_request_json(request, &body, &err);
    const char *path = r < 0 ? "" : json_fields_get_text(body, field);
    if (r == 0 && path[0] == '\0')
        r = error_set(&err, -EINVAL, "field \"%s\" is missing", field);
    if (r < 0) {
        http_reply_failure(request, "file", &err);
        return;
    }
    if (!take_agent(request, &use))
        return;
    r = act(request, &use, path, body, &err);
    if (r < 0)
        reply_failure(request, &use, &err);
    route_agent_done(request, &use);
}

static int stat_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err)
{
    return reply_entry(request, use, path, err);
}

static int make_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err)
{
    struct agent_stat stat;
    struct error unused;
    if (agent_file_stat(use->agent, path, &stat, &unused) == 0)
        return error_set(err, -EEXIST, "%.200s exists already", path);
    struct e2b_owner owner;
    char whole[E2B_PATH_CAPACITY];
    e2b_files_whole_path(path, whole);
    e2b_owner_look(&owner, request, use, whole);
    int r = agent_file_mkdir(use->agent, path, err);
    if (r >= 0)
        r = e2b_owner_give(&owner, use, err);
    return r < 0 ? r : reply_entry(request, use, path, err);
}

static int move_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err)
{
    const char *to = json_fields_get_text(body, "destination");
    if (to[0] == '\0')
        return error_set(err, -EINVAL, "field \"destination\" is missing");
    int r = agent_file_move(use->agent, path, to, true, err);
    return r < 0 ? r : reply_entry(request, use, to, err);
}

static int remove_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err)
{
    int r = agent_file_remove(use->agent, path, true, err);
    if (r >= 0)
        http_reply_json(request, 200, json_object());
    return r;
}

// ---- lists ----

struct listing {
    json_t *entries;
    char folder[E2B_PATH_CAPACITY];
};

static void add_entry(void *context, const char *name, const struct agent_stat *stat)
{
    struct listing *listing = context;
    char path[E2B_PATH_CAPACITY + 256];
    snprintf(path, sizeof path, "%s/%s", strcmp(listing->folder, "/") == 0 ? "" : listing->folder, name);
    if (json_array_size(listing->entries) < ENTRIES_MAX)
        json_array_append_new(listing->entries, entry_of(path, stat));
}

// The entries of a folder, and behind them those of its folders, level after level.
static int list_act(struct http_request *request, struct sandbox_agent *use, const char *path,
        const json_t *body, struct error *err)
{
    json_int_t depth = json_integer_value(json_object_get(body, "depth"));
    struct listing *listing = calloc(1, sizeof *listing);
    if (listing == NULL)
        return error_set(err, -ENOMEM, "no memory for a list of files");
    listing->entries = json_array();
    e2b_files_whole_path(path, listing->folder);
    if (depth < 1)
        depth = 1;
    int r = agent_file_list(use->agent, path, add_entry, listing, err);
    size_t level_start = 0;
    for (json_int_t level = 1; r >= 0 && level < depth && level < DEPTH_MAX; level++) {
        size_t level_end = json_array_size(listing->entries);
        for (size_t i = level_start; r >= 0 && i < level_end; i++) {
            const json_t *entry = json_array_get(listing->entries, i);
            if (strcmp(json_fields_get_text(entry, "type"), "FILE_TYPE_DIRECTORY") != 0)
                continue;
            snprintf(listing->folder, sizeof listing->folder, "%s", json_fields_get_text(entry, "path"));
            r = agent_file_list(use->agent, listing->folder, add_entry, listing, err);
        }
        level_start = level_end;
    }
    if (r < 0)
        json_decref(listing->entries);
    else
        http_reply_json(request, 200, json_pack("{s:o}", "entries", listing->entries));
    free(listing);
    return r;
}

static void stat_file(struct http_request *request)
{
    act_on(request, "path", stat_act);
}

static void list_folder(struct http_request *request)
{
    act_on(request, "path", list_act);
}

static void make_folder(struct http_request *request)
{
    act_on(request, "path", make_act);
}

static void move_file(struct http_request *request)
{
    act_on(request, "source", move_act);
}

static void remove_file(struct http_request *request)
{
    act_on(request, "path", remove_act);
}

#define IN "/v1/sandboxes/{name}/envd"
const struct http_route routes_e2b_files[] = {
        {"GET", IN "/health", 0, health},
        {"POST", IN "/files", HTTP_STREAM, upload},
        {"POST", IN "/filesystem.Filesystem/Stat", 0, stat_file},
        {"POST", IN "/filesystem.Filesystem/ListDir", 0, list_folder},
        {"POST", IN "/filesystem.Filesystem/MakeDir", 0, make_folder},
        {"POST", IN "/filesystem.Filesystem/Move", 0, move_file},
        {"POST", IN "/filesystem.Filesystem/Remove", 0, remove_file},
        {0},
};
