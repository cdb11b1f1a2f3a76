// SPDX-License-Identifier: Apache-2.0
// What each command means on a volume or a base, and how its reply reads.
//
// A request is judged once, by its header alone (nbd_request_admit): a refused write's payload is still
// received, and dropped. READ and BLOCK_STATUS use structured replies when these were agreed; all other
// commands have no payload in their replies and get simple ones, which the protocol allows and which are the
// shortest.
#include "vmglue/nbd_connection.h"

#include <errno.h>
#include <string.h>

enum {
    STATUS_DESCRIPTORS = 1023,   // with the context id they fill 8 KiB
    STATUS_SPAN_BYTES = 1 << 30, // looked at for one reply: bounds the time on the loop
};

static uint64_t size_bytes(const struct nbd_connection *connection)
{
    const struct nbd_target *target = &connection->target;
    return target->volume ? volume_size_bytes(target->volume) : target->size_bytes;
}

static bool changes_data(unsigned type)
{
    return type == NBD_CMD_WRITE || type == NBD_CMD_TRIM || type == NBD_CMD_WRITE_ZEROES;
}

static unsigned allowed_flags(unsigned type)
{
    switch (type) {
    case NBD_CMD_READ:
        return NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_DF;
    case NBD_CMD_WRITE_ZEROES:
        return NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO;
    case NBD_CMD_BLOCK_STATUS:
        return NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_REQ_ONE;
    default:
        return NBD_CMD_FLAG_FUA;
    }
}

static int judge(struct nbd_connection *connection, const struct nbd_request_header *header)
{
    if (header->type > NBD_CMD_BLOCK_STATUS || header->flags & ~allowed_flags(header->type))
        return -EINVAL;
    if (header->type == NBD_CMD_FLUSH)
        return 0;
    if (changes_data(header->type) && connection->target.read_only)
        return -EPERM;
    if ((header->type == NBD_CMD_READ || header->type == NBD_CMD_WRITE) &&
            header->length > NBD_PAYLOAD_MAX_BYTES)
        return -EINVAL;
    uint64_t size = size_bytes(connection);
    if (header->offset > size || header->length > size - header->offset) {
        bool adds = header->type == NBD_CMD_WRITE || header->type == NBD_CMD_WRITE_ZEROES;
        return adds ? -ENOSPC : -EINVAL;
    }
    if (header->type == NBD_CMD_BLOCK_STATUS && (!connection->allocation || header->length == 0))
        return -EINVAL;
    return 0;
}

void nbd_request_admit(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    request->refused = judge(connection, header);
    request->buffer = NULL;
    request->buffer_bytes = 0;
    if (request->refused)
        return;
    if (header->type == NBD_CMD_READ || header->type == NBD_CMD_WRITE)
        request->buffer_bytes = header->length;
    else if (header->type == NBD_CMD_BLOCK_STATUS)
        request->buffer_bytes = 4 + 8 * STATUS_DESCRIPTORS;
}

static void reply_error_chunk(struct nbd_request *request, int result)
{
    const char *text = result == -EBADMSG  ? "stored bytes are damaged"
                       : result == -ESTALE ? "the store has stopped; restart it"
                       : result == -EINVAL ? "outside the export, or not a valid request"
                                           : "the request failed";
    size_t text_bytes = strlen(text);
    nbd_protocol_chunk(request->reply, NBD_CHUNK_DONE, NBD_CHUNK_ERROR, request->header.cookie,
            (uint32_t)(6 + text_bytes));
    nbd_protocol_put_u32(request->reply + NBD_CHUNK_BYTES, nbd_protocol_error(result));
    nbd_protocol_put_u16(request->reply + NBD_CHUNK_BYTES + 4, (uint16_t)text_bytes);
    memcpy(request->reply + NBD_CHUNK_BYTES + 6, text, text_bytes);
    request->reply_bytes = (unsigned)(NBD_CHUNK_BYTES + 6 + text_bytes);
}

static void reply_read(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    request->reply_payload_bytes = header->length;
    if (!connection->structured) {
        nbd_protocol_simple_reply(request->reply, 0, header->cookie);
        request->reply_bytes = NBD_SIMPLE_REPLY_BYTES;
    } else if (header->length == 0) {
        nbd_protocol_chunk(request->reply, NBD_CHUNK_DONE, NBD_CHUNK_NONE, header->cookie, 0);
        request->reply_bytes = NBD_CHUNK_BYTES;
    } else {
        nbd_protocol_chunk(
                request->reply, NBD_CHUNK_DONE, NBD_CHUNK_OFFSET_DATA, header->cookie, 8 + header->length);
        nbd_protocol_put_u64(request->reply + NBD_CHUNK_BYTES, header->offset);
        request->reply_bytes = NBD_CHUNK_BYTES + 8;
    }
}

static void finish(struct nbd_connection *connection, struct nbd_request *request, int result)
{
    unsigned type = request->header.type;
    bool answers_in_chunks = connection->structured && (type == NBD_CMD_READ || type == NBD_CMD_BLOCK_STATUS);
    request->reply_payload_bytes = 0;
    connection->counted.errors_total += result < 0;
    if (result < 0 && answers_in_chunks) {
        reply_error_chunk(request, result);
    } else if (result < 0 || type != NBD_CMD_READ) {
        nbd_protocol_simple_reply(request->reply, nbd_protocol_error(result), request->header.cookie);
        request->reply_bytes = NBD_SIMPLE_REPLY_BYTES;
    } else {
        reply_read(connection, request);
    }
    nbd_connection_reply(connection, request);
}

static void io_done(struct volume_io *io, int result)
{
    struct nbd_request *request = io->context;
    finish(request->connection, request, result);
}

static void submit(struct nbd_connection *connection, struct nbd_request *request, enum volume_op op,
        uint64_t offset, uint64_t length)
{
    struct volume_io *io = &request->io;
    *io = (struct volume_io){
            .op = op,
            .flags = request->header.flags & NBD_CMD_FLAG_FUA && changes_data(request->header.type)
                             ? VOLUME_FUA
                             : 0,
            .offset = offset,
            .length = length,
            .buffer = request->buffer,
            .done = io_done,
            .context = request,
    };
    if (connection->target.volume)
        volume_submit(connection->target.volume, io);
    else
        base_submit(connection->target.base, connection->loop, io);
}

static void execute_trim(struct nbd_connection *connection, struct nbd_request *request)
{
    // TRIM is a hint: rounding inward to whole blocks saves the edges from being rewritten.
    uint64_t end = request->header.offset + request->header.length;
    uint64_t begin = (request->header.offset + BLOCK_SIZE - 1) & ~(uint64_t)(BLOCK_SIZE - 1);
    if (end != size_bytes(connection))
        end &= ~(uint64_t)(BLOCK_SIZE - 1);
    if (begin >= end)
        finish(connection, request, 0);
    else
        submit(connection, request, VOLUME_TRIM, begin, end - begin);
}

static void execute_write_zeroes(struct nbd_connection *connection, struct nbd_request *request)
{
    uint64_t begin = request->header.offset, end = begin + request->header.length;
    bool ends_on_block = end % BLOCK_SIZE == 0 || end == size_bytes(connection);
    bool whole_blocks = begin % BLOCK_SIZE == 0 && ends_on_block;
    uint64_t first_whole = (begin + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
    bool has_whole_block = whole_blocks || first_whole + BLOCK_SIZE <= end;
    // Without a whole block in it, the range costs at least what writing it costs.
    if (request->header.flags & NBD_CMD_FLAG_FAST_ZERO && !has_whole_block) {
        finish(connection, request, -EOPNOTSUPP);
        return;
    }
    bool may_unmap = whole_blocks && !(request->header.flags & NBD_CMD_FLAG_NO_HOLE);
    submit(connection, request, may_unmap ? VOLUME_TRIM : VOLUME_ZERO, begin, end - begin);
}

struct status {
    uint8_t *descriptors;
    unsigned count, limit;
};

static bool add_extent(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct status *status = context;
    uint32_t flags = kind == EXTENT_DATA   ? 0
                     : kind == EXTENT_ZERO ? NBD_STATE_ZERO
                                           : NBD_STATE_HOLE | NBD_STATE_ZERO;
    uint8_t *descriptor = status->descriptors + 8 * status->count;
    nbd_protocol_put_u32(descriptor, (uint32_t)length);
    nbd_protocol_put_u32(descriptor + 4, flags);
    return ++status->count < status->limit;
}

static void execute_block_status(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    const struct nbd_target *target = &connection->target;
    uint64_t length = header->length < STATUS_SPAN_BYTES ? header->length : STATUS_SPAN_BYTES;
    uint8_t *bytes = request->buffer;
    struct status status = {
            .descriptors = bytes + 4,
            .limit = header->flags & NBD_CMD_FLAG_REQ_ONE ? 1 : STATUS_DESCRIPTORS,
    };
    int result = target->volume ? volume_extents(target->volume, header->offset, length, add_extent, &status)
                                : base_extents(target->base, header->offset, length, add_extent, &status);
    if (result >= 0 && status.count == 0)
        result = -EIO;
    if (result < 0) {
        finish(connection, request, result);
        return;
    }
    uint32_t payload_bytes = 4 + 8 * status.count;
    nbd_protocol_put_u32(bytes, NBD_NEGOTIATION_CONTEXT_ID);
    nbd_protocol_chunk(request->reply, NBD_CHUNK_DONE, NBD_CHUNK_BLOCK_STATUS, header->cookie, payload_bytes);
    request->reply_bytes = NBD_CHUNK_BYTES;
    request->reply_payload_bytes = payload_bytes;
    nbd_connection_reply(connection, request);
}

void nbd_request_execute(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    if (request->refused || (header->length == 0 && header->type != NBD_CMD_FLUSH)) {
        finish(connection, request, request->refused);
        return;
    }
    switch (header->type) {
    case NBD_CMD_READ:
        submit(connection, request, VOLUME_READ, header->offset, header->length);
        break;
    case NBD_CMD_WRITE:
        submit(connection, request, VOLUME_WRITE, header->offset, header->length);
        break;
    case NBD_CMD_FLUSH:
        if (connection->target.volume)
            submit(connection, request, VOLUME_FLUSH, 0, 0);
        else
            finish(connection, request, 0);
        break;
    case NBD_CMD_TRIM:
        execute_trim(connection, request);
        break;
    case NBD_CMD_WRITE_ZEROES:
        execute_write_zeroes(connection, request);
        break;
    case NBD_CMD_BLOCK_STATUS:
        execute_block_status(connection, request);
        break;
    default: // NBD_CMD_CACHE: there is nothing nearer to the reader than the page cache to put it in
        finish(connection, request, 0);
        break;
    }
}
