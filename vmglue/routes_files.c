// SPDX-License-Identifier: Apache-2.0
// Files in a sandbox: raw bytes in and out, listing, folders, removal. Relative paths are below /home/user.
#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// The path= parameter and the agent; on failure it has replied.
static bool begin(struct http_request *request, const char *const *known, struct sandbox_agent *ret_use,
        const char **ret_path)
{
    struct error err;
    const char *path = http_request_query(request, "path");
    int r = http_request_check_query(request, known, &err);
    if (r == 0 && (path == NULL || path[0] == '\0'))
        r = error_set(&err, -EINVAL, "query parameter path is missing");
    if (r == 0)
        r = sandbox_agent_use(
                service_of(request)->sandboxes, http_request_param(request, "name"), ret_use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return false;
    }
    *ret_path = path;
    return true;
}

static void reply_failure(struct http_request *request, const struct sandbox_agent *use, struct error *err)
{
    sandbox_agent_failed(use, err);
    http_reply_failure(request, "file", err);
}

static const char *const path_only[] = {"path", NULL};

struct read_context {
    struct http_request *request;
    bool begun;
};

static int send_piece(void *context, const void *bytes, size_t size)
{
    struct read_context *reader = context;
    if (!reader->begun)
        http_reply_begin(reader->request, 200, "application/octet-stream", -1);
    reader->begun = true;
    return http_reply_write(reader->request, bytes, size);
}

static void get_content(struct http_request *request)
{
    struct read_context reader = {.request = request};
    struct sandbox_agent use;
    struct error err;
    const char *path;
    if (!begin(request, path_only, &use, &path))
        return;
    int r = agent_file_read(use.agent, path, send_piece, &reader, &err);
    if (r < 0 && reader.begun)
        http_reply_abort(request); // the length was not told: the client sees a broken transfer
    else if (r < 0)
        reply_failure(request, &use, &err);
    else if (!reader.begun)
        http_reply_begin(request, 200, "application/octet-stream", 0);
    sandbox_agent_done(&use);
}

static ssize_t take_piece(void *context, void *buffer, size_t capacity)
{
    return http_request_read(context, buffer, capacity);
}

static int take_mode(struct http_request *request, uint32_t *ret_mode, struct error *err)
{
    const char *text = http_request_query(request, "mode");
    char *end;
    if (text == NULL)
        return 0;
    unsigned long mode = strtoul(text, &end, 8);
    if (text[0] == '\0' || *end != '\0' || mode > 07777)
        return error_set(err, -EINVAL, "query parameter mode=%.20s is no octal file mode such as 644", text);
    *ret_mode = (uint32_t)mode;
    return 0;
}

static void put_content(struct http_request *request)
{
    static const char *const known[] = {"path", "mode", NULL};
    struct sandbox_agent use;
    struct error err;
    const char *path;
    uint32_t mode = 0644;
    if (take_mode(request, &mode, &err) < 0) {
        http_reply_failure(request, "file", &err);
        return;
    }
    if (!begin(request, known, &use, &path))
        return;
    int r = agent_file_write(use.agent, path, mode, take_piece, request, &err);
    if (r < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    sandbox_agent_done(&use);
}

static void delete_content(struct http_request *request)
{
    static const char *const known[] = {"path", "recursive", NULL};
    struct sandbox_agent use;
    struct error err;
    const char *path, *recursive = http_request_query(request, "recursive");
    if (!begin(request, known, &use, &path))
        return;
    if (agent_file_remove(use.agent, path, recursive != NULL && strcmp(recursive, "1") == 0, &err) < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    sandbox_agent_done(&use);
}

static json_t *stat_json(const char *name, const struct agent_stat *stat)
{
    const char *type = S_ISREG(stat->mode)   ? "file"
                       : S_ISDIR(stat->mode) ? "dir"
                       : S_ISLNK(stat->mode) ? "link"
                                             : "other";
    return json_pack("{s:o, s:s, s:I, s:o, s:i, s:i, s:o}", "name", json_fields_text(name, strlen(name)),
            "type", type, "size", (json_int_t)stat->size_bytes, "mode",
            json_sprintf("%04o", stat->mode & 07777), "uid", (int)stat->uid, "gid", (int)stat->gid,
            "modified_at", json_fields_time(stat->mtime_ns));
}

static void add_entry(void *context, const char *name, const struct agent_stat *stat)
{
    json_array_append_new(context, stat_json(name, stat));
}

static void list_files(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    const char *path;
    if (!begin(request, path_only, &use, &path))
        return;
    json_t *entries = json_array();
    int r = agent_file_list(use.agent, path, add_entry, entries, &err);
    if (r < 0) {
        json_decref(entries);
        reply_failure(request, &use, &err);
    } else {
        http_reply_json(request, 200, json_pack("{s:s, s:o}", "path", path, "entries", entries));
    }
    sandbox_agent_done(&use);
}

static void stat_file(struct http_request *request)
{
    struct sandbox_agent use;
    struct agent_stat stat;
    struct error err;
    const char *path;
    if (!begin(request, path_only, &use, &path))
        return;
    if (agent_file_stat(use.agent, path, &stat, &err) < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_json(request, 200, stat_json(path, &stat));
    sandbox_agent_done(&use);
}

static void make_folder(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    const char *path;
    if (!begin(request, path_only, &use, &path))
        return;
    if (agent_file_mkdir(use.agent, path, &err) < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    sandbox_agent_done(&use);
}

const struct http_route routes_files[] = {
        {"GET", "/v1/sandboxes/{name}/files/content", HTTP_STREAM, get_content},
        {"PUT", "/v1/sandboxes/{name}/files/content", HTTP_STREAM, put_content},
        {"DELETE", "/v1/sandboxes/{name}/files/content", 0, delete_content},
        {"GET", "/v1/sandboxes/{name}/files", 0, list_files},
        {"GET", "/v1/sandboxes/{name}/files/stat", 0, stat_file},
        {"POST", "/v1/sandboxes/{name}/files/dir", 0, make_folder},
        {0},
};
