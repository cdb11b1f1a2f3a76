// SPDX-License-Identifier: Apache-2.0
// What each command means on a volume or a base.
//
// A request is judged once, by its header alone (nbd_request_admit): a refused write's payload is still
// received, and dropped. The size it is judged by is the one of that moment: a volume may be resized while
// clients use it, and the engine looks again.
#include "vmglue/nbd_connection.h"

#include <errno.h>
#include <stddef.h>

enum {
    CACHE_PIECE_BYTES = 256 * 1024,
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

static unsigned allowed_flags(const struct nbd_connection *connection, unsigned type)
{
    switch (type) {
    case NBD_CMD_READ:
        return NBD_CMD_FLAG_FUA | (connection->structured ? NBD_CMD_FLAG_DF : 0);
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
    if (header->type > NBD_CMD_BLOCK_STATUS || header->flags & ~allowed_flags(connection, header->type))
        return -EINVAL;
    if (header->type == NBD_CMD_FLUSH)
        return header->offset || header->length ? -EINVAL : 0; // reserved
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
    if (header->type == NBD_CMD_BLOCK_STATUS && (!connection->contexts || header->length == 0))
        return -EINVAL;
    if (header->type == NBD_CMD_CACHE && header->length > NBD_PAYLOAD_MAX_BYTES)
        return -EOPNOTSUPP;
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
    else if (header->type == NBD_CMD_CACHE)
        request->buffer_bytes = header->length < CACHE_PIECE_BYTES ? header->length : CACHE_PIECE_BYTES;
    else if (header->type == NBD_CMD_BLOCK_STATUS)
        request->buffer_bytes = nbd_status_buffer_bytes();
}

void nbd_request_finish(struct nbd_connection *connection, struct nbd_request *request, int result)
{
    unsigned type = request->header.type;
    bool answers_in_chunks = connection->structured && (type == NBD_CMD_READ || type == NBD_CMD_BLOCK_STATUS);
    connection->counted.errors_total += result < 0;
    if (result < 0 && answers_in_chunks)
        nbd_reply_error_chunk(request, result);
    else if (result < 0 || type != NBD_CMD_READ)
        nbd_reply_simple(request, result);
    else if (connection->structured)
        nbd_reply_data_chunks(request);
    else
        nbd_reply_data(request);
    nbd_connection_reply(connection, request);
}

static void io_done(struct volume_io *io, int result)
{
    struct nbd_request *request = io->context;
    nbd_request_finish(request->connection, request, result);
}

static void submit_to(struct nbd_connection *connection, struct nbd_request *request, enum volume_op op,
        uint64_t offset, uint64_t length, void (*done)(struct volume_io *io, int result))
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
            .done = done,
            .context = request,
    };
    if (connection->target.volume)
        volume_submit(connection->target.volume, io);
    else
        base_submit(connection->target.base, connection->loop, io);
}

static void submit(struct nbd_connection *connection, struct nbd_request *request, enum volume_op op,
        uint64_t offset, uint64_t length)
{
    submit_to(connection, request, op, offset, length, io_done);
}

// CACHE reads its range piece by piece into one buffer, so that what lies behind the engine (files, frames,
// nodes) has been seen once; between two pieces the loop does other work.
static void cache_piece(struct nbd_connection *connection, struct nbd_request *request);

static void cache_work(struct loop_work *work)
{
    struct nbd_request *request = (struct nbd_request *)((char *)work - offsetof(struct nbd_request, work));
    cache_piece(request->connection, request);
}

static void cache_done(struct volume_io *io, int result)
{
    struct nbd_request *request = io->context;
    request->done_bytes += (uint32_t)io->length;
    if (result < 0 || request->done_bytes == request->header.length) {
        nbd_request_finish(request->connection, request, result);
        return;
    }
    request->work.run = cache_work;
    loop_post(request->connection->loop, &request->work);
}

static void cache_piece(struct nbd_connection *connection, struct nbd_request *request)
{
    uint32_t left = request->header.length - request->done_bytes;
    if (connection->broken || connection->stop_ran)
        nbd_request_finish(connection, request, -ESHUTDOWN); // nobody waits for it any more
    else
        submit_to(connection, request, VOLUME_READ, request->header.offset + request->done_bytes,
                left < CACHE_PIECE_BYTES ? left : CACHE_PIECE_BYTES, cache_done);
}

static void execute_trim(struct nbd_connection *connection, struct nbd_request *request)
{
    // TRIM is a hint: rounding inward to whole blocks saves the edges from being rewritten.
    uint64_t end = request->header.offset + request->header.length;
    uint64_t begin = (request->header.offset + BLOCK_SIZE - 1) & ~(uint64_t)(BLOCK_SIZE - 1);
    if (end != size_bytes(connection))
        end &= ~(uint64_t)(BLOCK_SIZE - 1);
    if (begin >= end)
        nbd_request_finish(connection, request, 0);
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
        nbd_request_finish(connection, request, -EOPNOTSUPP);
        return;
    }
    bool may_unmap = whole_blocks && !(request->header.flags & NBD_CMD_FLAG_NO_HOLE);
    submit(connection, request, may_unmap ? VOLUME_TRIM : VOLUME_ZERO, begin, end - begin);
}

void nbd_request_execute(struct nbd_connection *connection, struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    if (request->refused || (header->length == 0 && header->type != NBD_CMD_FLUSH)) {
        nbd_request_finish(connection, request, request->refused);
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
            nbd_request_finish(connection, request, 0);
        break;
    case NBD_CMD_TRIM:
        execute_trim(connection, request);
        break;
    case NBD_CMD_WRITE_ZEROES:
        execute_write_zeroes(connection, request);
        break;
    case NBD_CMD_BLOCK_STATUS:
        nbd_status_execute(connection, request);
        break;
    default: // NBD_CMD_CACHE
        request->done_bytes = 0;
        cache_piece(connection, request);
        break;
    }
}
