// SPDX-License-Identifier: Apache-2.0
// Files in a sandbox: raw bytes in and out, listing, folders, removal. Relative paths are below /home/user.
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/route_agent.h"

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
        r = route_agent_use(request, http_request_param(request, "name"), ret_use, &err);
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

struct range {
    uint64_t offset, length;
    bool from_end; // the last `length` bytes
};

// "bytes=2-4", "bytes=2-", "bytes=-3". What is another unit, several ranges or nonsense is not looked at, as
// RFC 9110 has it.
static bool take_range(const char *header, struct range *ret_range)
{
    unsigned long long first, last;
    char rest;
    *ret_range = (struct range){0};
    if (header == NULL || strncmp(header, "bytes=", 6) != 0 ||
            strspn(header + 6, "0123456789-") != strlen(header + 6))
        return false;
    header += 6;
    if (header[0] == '-') {
        ret_range->from_end = true;
        if (sscanf(header + 1, "%llu%c", &last, &rest) != 1)
            return false;
        ret_range->length = last;
        return true;
    }
    int fields = sscanf(header, "%llu-%llu%c", &first, &last, &rest);
    const char *dash = strchr(header, '-');
    if (fields < 1 || fields > 2 || dash == NULL || (fields == 1 && dash[1] != '\0') ||
            (fields == 2 && last < first))
        return false;
    ret_range->offset = first;
    ret_range->length = fields == 2 && last - first < UINT64_MAX ? last - first + 1 : UINT64_MAX;
    return true;
}

// The file is asked for its size first: the answer's head names it. A file that is cut meanwhile breaks the
// answer off.
static void get_range(
        struct http_request *request, struct sandbox_agent *use, const char *path, struct range range)
{
    struct read_context reader = {.request = request, .begun = true};
    struct agent_stat stat;
    struct error err;
    char told[80];
    if (agent_file_stat(use->agent, path, &stat, &err) < 0) {
        reply_failure(request, use, &err);
        return;
    }
    uint64_t size = stat.size_bytes;
    if (range.from_end) {
        range.length = range.length < size ? range.length : size;
        range.offset = size - range.length;
    }
    if (S_ISREG(stat.mode) && (range.offset >= size || range.length == 0)) {
        snprintf(told, sizeof told, "bytes */%llu", (unsigned long long)size);
        http_reply_header(request, "Content-Range", told);
        http_reply_error(request, 416, "validation.range",
                "%.200s has %llu bytes: the range begins behind its end", path, (unsigned long long)size);
        return;
    }
    range.length = range.length < size - range.offset ? range.length : size - range.offset;
    snprintf(told, sizeof told, "bytes %llu-%llu/%llu", (unsigned long long)range.offset,
            (unsigned long long)(range.offset + range.length - 1), (unsigned long long)size);
    http_reply_header(request, "Content-Range", told);
    if (S_ISREG(stat.mode))
        http_reply_begin(request, 206, "application/octet-stream", (int64_t)range.length);
    if (agent_file_read_range(
                use->agent, path, range.offset, range.length, send_piece, &reader, &size, &err) < 0) {
        if (S_ISREG(stat.mode))
            http_reply_abort(request);
        else
            reply_failure(request, use, &err);
    }
}

static void get_content(struct http_request *request)
{
    struct read_context reader = {.request = request};
    struct sandbox_agent use;
    struct range range;
    struct error err;
    const char *path;
    if (!begin(request, path_only, &use, &path))
        return;
    if (take_range(http_request_header(request, "Range"), &range)) {
        get_range(request, &use, path, range);
        route_agent_done(request, &use);
        return;
    }
    int r = agent_file_read(use.agent, path, send_piece, &reader, &err);
    if (r < 0 && reader.begun)
        http_reply_abort(request); // the length was not told: the client sees a broken transfer
    else if (r < 0)
        reply_failure(request, &use, &err);
    else if (!reader.begun)
        http_reply_begin(request, 200, "application/octet-stream", 0);
    route_agent_done(request, &use);
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
    route_agent_done(request, &use);
}

static void delete_content(struct http_request *request)
{
    static const char *const known[] = {"path", "recursive", NULL};
    struct sandbox_agent use;
    struct error err;
    const char *path;
    bool recursive = false;
    if (route_json_query_flag(request, "recursive", &recursive, &err) < 0) {
        http_reply_failure(request, "file", &err);
        return;
    }
    if (!begin(request, known, &use, &path))
        return;
    if (agent_file_remove(use.agent, path, recursive, &err) < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    route_agent_done(request, &use);
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
        http_reply_json(request, 200,
                json_pack("{s:o, s:o}", "path", json_fields_text(path, strlen(path)), "entries", entries));
    }
    route_agent_done(request, &use);
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
    route_agent_done(request, &use);
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
    route_agent_done(request, &use);
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
