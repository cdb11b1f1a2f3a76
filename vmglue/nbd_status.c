// SPDX-License-Identifier: Apache-2.0
// BLOCK_STATUS: the engine says once what the range holds, and each agreed context tells its part of it in a
// chunk of its own. Extents, headers and descriptors lie in the request's one buffer.
//
// Neighbours that are the same in one context are merged there. An answer never goes beyond the range asked
// for, so the rule that only the last descriptor may do so holds by itself; it may end before the range's end
// when the range is in more pieces than there is room for.
#include "vmglue/nbd_connection.h"
#include "vmglue/nbd_context.h"

#include <errno.h>

enum {
    BUFFER_BYTES = 32 * 1024,
    CHUNK_HEAD_BYTES = NBD_CHUNK_BYTES + 4, // header and context number
    EXTENTS_MAX = (BUFFER_BYTES - NBD_CONTEXT_COUNT * CHUNK_HEAD_BYTES) /
                  ((int)sizeof(struct volume_extent) + NBD_CONTEXT_COUNT * 8),
    // Enough for the first piece of one context where another one changes on the way.
    EXTENTS_FOR_ONE = 64,
};

size_t nbd_status_buffer_bytes(void)
{
    return BUFFER_BYTES;
}

static uint32_t flags_of(enum nbd_context context, const struct volume_extent *extent)
{
    if (context == NBD_CONTEXT_SHARED)
        return extent->shared ? NBD_SHARED_SAME : 0;
    return extent->kind == EXTENT_DATA   ? 0
           : extent->kind == EXTENT_ZERO ? NBD_STATE_ZERO
                                         : NBD_STATE_HOLE | NBD_STATE_ZERO;
}

// Returns where the next chunk goes.
static uint8_t *put_chunk(
        uint8_t *to, const struct nbd_request *request, enum nbd_context context, bool last_chunk)
{
    const struct volume_extents *call = &request->extents;
    bool only_one = request->header.flags & NBD_CMD_FLAG_REQ_ONE;
    uint8_t *at = to + CHUNK_HEAD_BYTES;
    uint32_t length = 0, flags = 0;
    for (unsigned i = 0; i < call->count; i++) {
        uint32_t own_flags = flags_of(context, &call->extents[i]);
        if (length && own_flags != flags) {
            if (only_one)
                break;
            nbd_protocol_put_u32(at, length);
            nbd_protocol_put_u32(at + 4, flags);
            at += 8;
            length = 0;
        }
        flags = own_flags;
        length += (uint32_t)call->extents[i].length;
    }
    nbd_protocol_put_u32(at, length);
    nbd_protocol_put_u32(at + 4, flags);
    at += 8;
    nbd_protocol_chunk(to, last_chunk ? NBD_CHUNK_DONE : 0, NBD_CHUNK_BLOCK_STATUS, request->header.cookie,
            (uint32_t)(at - to) - NBD_CHUNK_BYTES);
    nbd_protocol_put_u32(to + NBD_CHUNK_BYTES, nbd_context_wire_id(context));
    return at;
}

static void extents_done(struct volume_extents *call, int result)
{
    struct nbd_request *request = call->context;
    struct nbd_connection *connection = request->connection;
    if (result >= 0 && call->count == 0)
        result = -EIO;
    if (result < 0) {
        nbd_request_finish(connection, request, result);
        return;
    }
    uint8_t *begin = (uint8_t *)(call->extents + EXTENTS_MAX), *at = begin;
    for (unsigned i = 0; i < NBD_CONTEXT_COUNT; i++)
        if (connection->contexts & 1u << i)
            at = put_chunk(at, request, i, connection->contexts >> (i + 1) == 0);
    request->own_iov[0] = (struct iovec){begin, (size_t)(at - begin)};
    request->iov = request->own_iov;
    request->iov_count = 1;
    nbd_connection_reply(connection, request);
}

void nbd_status_execute(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_target *target = &connection->target;
    bool only_one = request->header.flags & NBD_CMD_FLAG_REQ_ONE;
    bool wants_shared = connection->contexts & 1u << NBD_CONTEXT_SHARED;
    request->extents = (struct volume_extents){
            .offset = request->header.offset,
            .length = request->header.length,
            .flags = wants_shared ? EXTENTS_SHARED : 0,
            .extents = request->buffer,
            .capacity = !only_one      ? EXTENTS_MAX
                        : wants_shared ? EXTENTS_FOR_ONE
                                       : 1,
            .done = extents_done,
            .context = request,
    };
    if (target->volume)
        volume_extents_submit(target->volume, &request->extents);
    else
        base_extents_submit(target->base, connection->loop, &request->extents);
}
