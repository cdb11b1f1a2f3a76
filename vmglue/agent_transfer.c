// SPDX-License-Identifier: Apache-2.0
// Parts of files, moves, uploads in pieces, watches, and set-up of a machine's network and disks. Declared in
// agent_client.h.
#include "vmglue/agent_client.h"
#include "vmglue/agent_connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 60000, WATCH_POLL_MS = 100, EVENT_MAX_BYTES = 2 * 4200 };

int agent_file_read_range(struct agent *agent, const char *path, uint64_t offset, uint64_t length,
        int (*sink)(void *context, const void *bytes, size_t size), void *context, uint64_t *ret_size,
        struct error *err)
{
    struct agent_call call;
    struct agent_cursor result_fields;
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    agent_builder_u64(&fields, offset);
    agent_builder_u64(&fields, length);
    int result = agent_call_begin(agent, AGENT_FILE_READ_RANGE, &fields, false, &call, err);
    agent_builder_free(&fields);
    if (result < 0)
        return result;
    result = agent_call_pump(&call, sink, context, err);
    if (result == 0)
        result = agent_call_result(&call, &result_fields, err);
    if (result == 0) {
        uint64_t size = agent_cursor_u64(&result_fields);
        if (result_fields.bad)
            result = error_set(err, -EPROTO, "the guest's agent sent a short result");
        else if (ret_size != NULL)
            *ret_size = size;
    }
    agent_call_end(&call);
    return result;
}

int agent_file_move(struct agent *agent, const char *from, const char *to, bool replace, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, from);
    agent_builder_string(&fields, to);
    agent_builder_u8(&fields, replace);
    return agent_call_simple(agent, AGENT_FILE_MOVE, &fields, false, WAIT_MS, NULL, 0, err);
}

int agent_file_chmod(struct agent *agent, const char *path, uint32_t mode, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    agent_builder_u32(&fields, mode);
    return agent_call_simple(agent, AGENT_FILE_CHMOD, &fields, false, WAIT_MS, NULL, 0, err);
}

static int read_upload(struct agent_call *call, struct agent_upload *ret_upload, struct error *err)
{
    struct agent_cursor fields;
    struct agent_upload upload = {0};
    int result = agent_call_result(call, &fields, err);
    if (result < 0)
        return result;
    snprintf(upload.id, sizeof upload.id, "%s", agent_cursor_string(&fields));
    upload.size_bytes = agent_cursor_u64(&fields);
    upload.crc32c = agent_cursor_u32(&fields);
    if (fields.bad)
        return error_set(err, -EPROTO, "the guest's agent sent a short result");
    *ret_upload = upload;
    return 0;
}

static int no_output(void *context, const void *bytes, size_t size)
{
    return 0;
}

// Frees fields.
static int upload_call(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        struct agent_upload *ret_upload, struct error *err)
{
    struct agent_call call;
    int result = agent_call_begin(agent, operation, fields, false, &call, err);
    agent_builder_free(fields);
    if (result < 0)
        return result;
    result = agent_call_pump(&call, no_output, NULL, err);
    if (result == 0)
        result = read_upload(&call, ret_upload, err);
    agent_call_end(&call);
    return result;
}

int agent_upload_begin(struct agent *agent, const char *path, uint32_t mode, struct agent_upload *ret_upload,
        struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    agent_builder_u32(&fields, mode);
    return upload_call(agent, AGENT_UPLOAD_BEGIN, &fields, ret_upload, err);
}

int agent_upload_get(struct agent *agent, const char *id, struct agent_upload *ret_upload, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, id);
    return upload_call(agent, AGENT_UPLOAD_GET, &fields, ret_upload, err);
}

int agent_upload_write(struct agent *agent, const char *id, uint64_t offset,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct agent_upload *ret_upload, struct error *err)
{
    struct agent_call call;
    struct agent_builder fields = {0};
    agent_builder_string(&fields, id);
    agent_builder_u64(&fields, offset);
    int result = agent_call_upload(agent, AGENT_UPLOAD_WRITE, &fields, source, context, &call, err);
    if (result < 0)
        return result;
    result = read_upload(&call, ret_upload, err);
    agent_call_end(&call);
    return result;
}

int agent_upload_commit(
        struct agent *agent, const char *id, uint64_t size_bytes, const uint32_t *crc32c, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, id);
    agent_builder_u64(&fields, size_bytes);
    agent_builder_u8(&fields, crc32c != NULL);
    agent_builder_u32(&fields, crc32c != NULL ? *crc32c : 0);
    return agent_call_simple(agent, AGENT_UPLOAD_COMMIT, &fields, false, WAIT_MS, NULL, 0, err);
}

int agent_upload_drop(struct agent *agent, const char *id, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, id);
    return agent_call_simple(agent, AGENT_UPLOAD_DROP, &fields, false, WAIT_MS, NULL, 0, err);
}

struct watching {
    const struct agent_watch *watch;
    uint8_t bytes[EVENT_MAX_BYTES + AGENT_PAYLOAD_MAX];
    size_t size;
};

static int no_event(struct error *err)
{
    return error_set(err, -EPROTO, "the guest's agent sent something that is no event of a watch");
}

// Events are cut anywhere between pieces.
static int take_events(struct watching *watching, const void *bytes, size_t size, struct error *err)
{
    if (size > sizeof watching->bytes - watching->size)
        return no_event(err);
    memcpy(watching->bytes + watching->size, bytes, size);
    watching->size += size;
    size_t done = 0;
    int result = 0;
    while (result == 0) {
        struct agent_cursor record = agent_cursor_over(watching->bytes + done, watching->size - done);
        uint32_t length = agent_cursor_u32(&record);
        if (!record.bad && length > EVENT_MAX_BYTES - 4)
            return no_event(err);
        const uint8_t *event = agent_cursor_bytes(&record, length);
        if (event == NULL)
            break;
        struct agent_cursor fields = agent_cursor_over(event, length);
        int kind = (int)agent_cursor_u32(&fields);
        const char *path = agent_cursor_string(&fields), *other = agent_cursor_string(&fields);
        if (fields.bad || kind < AGENT_WATCH_READY || kind > AGENT_WATCH_OVERFLOW)
            return no_event(err);
        result = watching->watch->each(watching->watch->context, kind, path, other);
        done += 4 + (size_t)length;
    }
    memmove(watching->bytes, watching->bytes + done, watching->size - done);
    watching->size -= done;
    return result == 0 ? 0 : error_set(err, result, "the watching was given up: %s", strerror(-result));
}

static int serve_watch(struct agent_call *call, struct watching *watching, struct error *err)
{
    const struct agent_watch *watch = watching->watch;
    for (;;) {
        struct agent_piece *piece;
        struct agent_cursor fields;
        if (watch->cancelled != NULL && watch->cancelled(watch->context))
            return error_set(err, -ECANCELED, "the watching was given up");
        int event = agent_call_wait(call, WATCH_POLL_MS, false, &piece);
        if (event == AGENT_EVENT_DONE)
            return agent_call_result(call, &fields, err);
        int result = event == AGENT_EVENT_PIECE ? 0 : agent_check_silence(call->agent, err);
        if (result < 0)
            return result;
        if (event != AGENT_EVENT_PIECE)
            continue;
        result = take_events(watching, piece->bytes, piece->size, err);
        agent_call_taken(call, piece);
        if (result < 0)
            return result;
    }
}

int agent_watch(struct agent *agent, const struct agent_watch *watch, struct error *err)
{
    struct agent_call call;
    struct agent_builder fields = {0};
    struct watching *watching = calloc(1, sizeof *watching);
    if (watching == NULL)
        return error_set(err, -ENOMEM, "no memory to watch %s", watch->path);
    watching->watch = watch;
    agent_builder_string(&fields, watch->path);
    agent_builder_u8(&fields, watch->recursive);
    int result = agent_call_begin(agent, AGENT_WATCH, &fields, false, &call, err);
    agent_builder_free(&fields);
    if (result == 0) {
        result = serve_watch(&call, watching, err);
        agent_call_end(&call);
    }
    free(watching);
    return result;
}

int agent_network_set(struct agent *agent, const struct agent_network *network, struct error *err)
{
    const char *const words[] = {
            network->address, network->gateway, network->name_servers, network->host_name};
    struct agent_builder fields = {0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        agent_builder_string(&fields, words[i] != NULL ? words[i] : "");
    return agent_call_simple(agent, AGENT_NETWORK, &fields, false, 0, NULL, 0, err);
}

int agent_disk_mount(struct agent *agent, unsigned index, const char *path, bool make, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, index);
    agent_builder_string(&fields, path);
    agent_builder_u8(&fields, make);
    return agent_call_simple(agent, AGENT_DISK_MOUNT, &fields, false, WAIT_MS, NULL, 0, err);
}

int agent_disk_unmount(struct agent *agent, const char *path, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    return agent_call_simple(agent, AGENT_DISK_UNMOUNT, &fields, false, WAIT_MS, NULL, 0, err);
}

int agent_disk_grow(struct agent *agent, unsigned index, uint64_t *ret_bytes, struct error *err)
{
    uint8_t bytes[8];
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, index);
    int result = agent_call_simple(agent, AGENT_DISK_GROW, &fields, false, WAIT_MS, bytes, sizeof bytes, err);
    if (result == 0) {
        struct agent_cursor cursor = agent_cursor_over(bytes, sizeof bytes);
        *ret_bytes = agent_cursor_u64(&cursor);
    }
    return result;
}
