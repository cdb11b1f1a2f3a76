// SPDX-License-Identifier: Apache-2.0
// Files of the guest; the calls are declared in agent_client.h.
#include "vmglue/agent_client.h"
#include "vmglue/agent_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STALL_MS = 60000, ENTRY_MAX_BYTES = 4096, LISTING_MAX_BYTES = 16 << 20 };

static int begin(struct agent *agent, enum agent_operation operation, const char *path,
        struct agent_call *ret_call, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    int result = agent_call_begin(agent, operation, &fields, false, ret_call, err);
    agent_builder_free(&fields);
    return result;
}

static int stalled(struct error *err)
{
    return error_set(err, -ETIMEDOUT, "the guest did nothing for %d s", STALL_MS / 1000);
}

static void read_stat(struct agent_cursor *fields, struct agent_stat *ret_stat)
{
    ret_stat->size_bytes = agent_cursor_u64(fields);
    ret_stat->mtime_ns = agent_cursor_u64(fields);
    ret_stat->mode = agent_cursor_u32(fields);
    ret_stat->uid = agent_cursor_u32(fields);
    ret_stat->gid = agent_cursor_u32(fields);
}

int agent_file_stat(struct agent *agent, const char *path, struct agent_stat *ret_stat, struct error *err)
{
    uint8_t bytes[28];
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    int result =
            agent_call_simple(agent, AGENT_FILE_STAT, &fields, false, STALL_MS, bytes, sizeof bytes, err);
    if (result == 0) {
        struct agent_cursor cursor = agent_cursor_over(bytes, sizeof bytes);
        read_stat(&cursor, ret_stat);
    }
    return result;
}

// Gives each piece of output to `take` until the end; a negative answer of it ends the call with that.
int agent_call_pump(struct agent_call *call, int (*take)(void *context, const void *bytes, size_t size),
        void *context, struct error *err)
{
    for (;;) {
        struct agent_piece *piece;
        struct agent_cursor fields;
        int event = agent_call_wait(call, STALL_MS, false, &piece);
        if (event == -ETIMEDOUT)
            return stalled(err);
        if (event == AGENT_EVENT_DONE)
            return agent_call_result(call, &fields, err);
        int result = piece->size > 0 ? take(context, piece->bytes, piece->size) : 0;
        agent_call_taken(call, piece);
        if (result < 0)
            return error_set(err, result, "the reading of the file was given up");
    }
}

int agent_file_read(struct agent *agent, const char *path,
        int (*sink)(void *context, const void *bytes, size_t size), void *context, struct error *err)
{
    struct agent_call call;
    int result = begin(agent, AGENT_FILE_READ, path, &call, err);
    if (result < 0)
        return result;
    result = agent_call_pump(&call, sink, context, err);
    agent_call_end(&call);
    return result;
}

struct listing {
    uint8_t bytes[2 * ENTRY_MAX_BYTES + 65536];
    size_t size, total;
    void (*each)(void *context, const char *name, const struct agent_stat *stat);
    void *context;
};

// Entries are cut anywhere between pieces.
static int take_entries(void *context, const void *bytes, size_t size)
{
    struct listing *listing = context;
    if (size > sizeof listing->bytes - listing->size)
        return -EPROTO;
    memcpy(listing->bytes + listing->size, bytes, size);
    listing->size += size;
    size_t done = 0;
    for (;;) {
        struct agent_cursor record = agent_cursor_over(listing->bytes + done, listing->size - done);
        uint32_t length = agent_cursor_u32(&record);
        if (!record.bad && length > ENTRY_MAX_BYTES)
            return -EPROTO;
        const uint8_t *entry = agent_cursor_bytes(&record, length);
        if (entry == NULL)
            break;
        struct agent_cursor fields = agent_cursor_over(entry, length);
        struct agent_stat stat;
        const char *name = agent_cursor_string(&fields);
        read_stat(&fields, &stat);
        if (fields.bad)
            return -EPROTO;
        if ((listing->total += length) > LISTING_MAX_BYTES) // the caller keeps them all
            return -E2BIG;
        listing->each(listing->context, name, &stat);
        done += 4 + (size_t)length;
    }
    memmove(listing->bytes, listing->bytes + done, listing->size - done);
    listing->size -= done;
    return 0;
}

int agent_file_list(struct agent *agent, const char *path,
        void (*each)(void *context, const char *name, const struct agent_stat *stat), void *context,
        struct error *err)
{
    struct agent_call call;
    struct listing *listing = calloc(1, sizeof *listing);
    if (listing == NULL)
        return error_set(err, -ENOMEM, "no memory to list %s", path);
    listing->each = each;
    listing->context = context;
    int result = begin(agent, AGENT_FILE_LIST, path, &call, err);
    if (result == 0) {
        result = agent_call_pump(&call, take_entries, listing, err);
        agent_call_end(&call);
        if (result == -E2BIG)
            error_set(err, result, "%s has more entries than one answer holds: list it in the machine", path);
    }
    free(listing);
    return result;
}

// Sends what source gives until its end: 0, or what source or the sending said. An answer that comes early
// ends it, too.
static int send_content(struct agent_call *call,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    uint8_t buffer[AGENT_PAYLOAD_MAX];
    for (;;) {
        struct agent_piece *piece;
        int event = agent_call_wait(call, STALL_MS, true, &piece);
        if (event == -ETIMEDOUT)
            return stalled(err);
        if (event == AGENT_EVENT_DONE)
            return 0;
        if (event == AGENT_EVENT_PIECE) {
            agent_call_taken(call, piece);
            continue;
        }
        size_t capacity = agent_call_credit(call);
        ssize_t got = source(context, buffer, capacity < sizeof buffer ? capacity : sizeof buffer);
        if (got < 0)
            return error_set(err, (int)got, "the upload was cut off: the file was not written");
        int result = agent_call_send(call, buffer, (size_t)got, got == 0);
        if (result < 0)
            return error_set(err, result, "the connection to the guest is gone: the file was not written");
        if (got == 0)
            return 0;
    }
}

static int no_output(void *context, const void *bytes, size_t size)
{
    return 0;
}

int agent_call_upload(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct agent_call *ret_call, struct error *err)
{
    int result = agent_call_begin(agent, operation, fields, false, ret_call, err);
    agent_builder_free(fields);
    if (result < 0)
        return result;
    result = send_content(ret_call, source, context, err);
    if (result == 0) {
        result = agent_call_pump(ret_call, no_output, NULL, err);
    } else {
        // Until the guest says that nothing is left of it.
        agent_call_cancel(ret_call);
        agent_call_pump(ret_call, no_output, NULL, NULL);
    }
    if (result < 0)
        agent_call_end(ret_call);
    return result;
}

static int write_with(struct agent *agent, enum agent_operation operation, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    struct agent_call call;
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    agent_builder_u32(&fields, mode);
    int result = agent_call_upload(agent, operation, &fields, source, context, &call, err);
    if (result == 0)
        agent_call_end(&call);
    return result;
}

int agent_file_write(struct agent *agent, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    return write_with(agent, AGENT_FILE_WRITE, path, mode, source, context, err);
}

int agent_file_append(struct agent *agent, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    return write_with(agent, AGENT_FILE_APPEND, path, mode, source, context, err);
}

static int path_call(
        struct agent *agent, enum agent_operation operation, const char *path, int flag, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, path);
    if (flag >= 0)
        agent_builder_u8(&fields, (uint8_t)flag);
    return agent_call_simple(agent, operation, &fields, false, STALL_MS, NULL, 0, err);
}

int agent_file_remove(struct agent *agent, const char *path, bool recursive, struct error *err)
{
    return path_call(agent, AGENT_FILE_REMOVE, path, recursive, err);
}

int agent_file_mkdir(struct agent *agent, const char *path, struct error *err)
{
    return path_call(agent, AGENT_FILE_MKDIR, path, -1, err);
}
