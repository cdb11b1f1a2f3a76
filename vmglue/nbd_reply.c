// SPDX-License-Identifier: Apache-2.0
// How replies read. READ and BLOCK_STATUS use structured replies when these were agreed; all other commands
// have no payload in their replies and get simple ones, which the protocol allows and which are the shortest.
//
// A structured read finds its holes in the bytes that were read, so what a reply calls a hole is zero in
// every case, whoever wrote zeros there. Data and holes alternate; a hole is worth a chunk when it is one
// whole block, and in long reads a sixteenth of the read, which bounds the chunks of a reply. Their headers
// and the iovecs lie in the first hole of the buffer, whose bytes nobody needs.
#include "vmglue/nbd_connection.h"

#include <errno.h>
#include <string.h>

enum {
    RUNS_MAX = 2 * NBD_REPLY_HOLES + 1,
    HEAD_BYTES = 32, // room for the header of a chunk
    HOLE_BYTES = NBD_CHUNK_BYTES + 12,
    DATA_BYTES = NBD_CHUNK_BYTES + 8,
};
_Static_assert(HOLE_BYTES <= HEAD_BYTES && DATA_BYTES <= HEAD_BYTES, "headers fit");
_Static_assert(sizeof(struct iovec) * NBD_REPLY_IOV + HEAD_BYTES * RUNS_MAX + 16 <= BLOCK_SIZE,
        "iovecs and headers fit into the smallest hole");

struct run {
    uint32_t begin, end; // in the buffer
    bool hole;
};

static void set_iov(struct nbd_request *request, size_t head_bytes, size_t payload_bytes)
{
    request->iov = request->own_iov;
    request->own_iov[0] = (struct iovec){request->head, head_bytes};
    request->own_iov[1] = (struct iovec){request->buffer, payload_bytes};
    request->iov_count = payload_bytes ? 2 : 1;
}

void nbd_reply_simple(struct nbd_request *request, int result)
{
    nbd_protocol_simple_reply(request->head, nbd_protocol_error(result), request->header.cookie);
    set_iov(request, NBD_SIMPLE_REPLY_BYTES, 0);
}

void nbd_reply_error_chunk(struct nbd_request *request, int result)
{
    const char *text = result == -EBADMSG  ? "stored bytes are damaged"
                       : result == -ESTALE ? "the store has stopped; restart it"
                       : result == -EINVAL ? "outside the export, or not a valid request"
                                           : "the request failed";
    size_t text_bytes = strlen(text);
    nbd_protocol_chunk(request->head, NBD_CHUNK_DONE, NBD_CHUNK_ERROR, request->header.cookie,
            (uint32_t)(6 + text_bytes));
    nbd_protocol_put_u32(request->head + NBD_CHUNK_BYTES, nbd_protocol_error(result));
    nbd_protocol_put_u16(request->head + NBD_CHUNK_BYTES + 4, (uint16_t)text_bytes);
    memcpy(request->head + NBD_CHUNK_BYTES + 6, text, text_bytes);
    set_iov(request, NBD_CHUNK_BYTES + 6 + text_bytes, 0);
}

void nbd_reply_data(struct nbd_request *request)
{
    nbd_protocol_simple_reply(request->head, 0, request->header.cookie);
    set_iov(request, NBD_SIMPLE_REPLY_BYTES, request->header.length);
}

static bool is_zero(const uint8_t *bytes, size_t size)
{
    // Data mostly shows in its first bytes; for the rest, a block is compared with itself, shifted.
    for (size_t i = 0; i < size && i < 16; i++)
        if (bytes[i])
            return false;
    return size <= 16 || memcmp(bytes, bytes + 16, size - 16) == 0;
}

// Where the block of the export ends that has `at` in it.
static uint32_t piece_end(const struct nbd_request_header *header, uint32_t at)
{
    uint32_t left = BLOCK_SIZE - (uint32_t)((header->offset + at) % BLOCK_SIZE);
    return header->length - at < left ? header->length : at + left;
}

static unsigned find_runs(const struct nbd_request *request, struct run *runs)
{
    const struct nbd_request_header *header = &request->header;
    const uint8_t *bytes = request->buffer;
    uint32_t length = header->length, data_begin = 0, at = 0;
    uint32_t least = length / NBD_REPLY_HOLES > BLOCK_SIZE ? length / NBD_REPLY_HOLES : BLOCK_SIZE;
    unsigned count = 0;
    while (at < length) {
        uint32_t end = at;
        while (end < length && is_zero(bytes + end, piece_end(header, end) - end))
            end = piece_end(header, end);
        if (end - at >= least || end - at == length) {
            if (data_begin < at)
                runs[count++] = (struct run){data_begin, at, false};
            runs[count++] = (struct run){at, end, true};
            data_begin = end;
        }
        at = end < length ? piece_end(header, end) : length;
    }
    if (data_begin < length)
        runs[count++] = (struct run){data_begin, length, false};
    return count;
}

// Returns the header's length.
static size_t put_head(uint8_t *to, const struct nbd_request_header *header, const struct run *run, bool last)
{
    uint32_t length = run->end - run->begin;
    unsigned flags = last ? NBD_CHUNK_DONE : 0;
    if (run->hole) {
        nbd_protocol_chunk(to, flags, NBD_CHUNK_OFFSET_HOLE, header->cookie, 12);
        nbd_protocol_put_u32(to + NBD_CHUNK_BYTES + 8, length);
    } else {
        nbd_protocol_chunk(to, flags, NBD_CHUNK_OFFSET_DATA, header->cookie, 8 + length);
    }
    nbd_protocol_put_u64(to + NBD_CHUNK_BYTES, header->offset + run->begin);
    return run->hole ? HOLE_BYTES : DATA_BYTES;
}

static void put_chunks(struct nbd_request *request, const struct run *runs, unsigned count)
{
    uint8_t *bytes = request->buffer;
    unsigned first_hole = runs[0].hole ? 0 : 1;
    uintptr_t room = ((uintptr_t)(bytes + runs[first_hole].begin) + 15) & ~(uintptr_t)15;
    struct iovec *iov = (struct iovec *)room;
    uint8_t *head = (uint8_t *)(iov + NBD_REPLY_IOV);
    request->iov = iov;
    request->iov_count = 0;
    for (unsigned i = 0; i < count; i++, head += HEAD_BYTES) {
        size_t size = put_head(head, &request->header, &runs[i], i + 1 == count);
        iov[request->iov_count++] = (struct iovec){head, size};
        if (!runs[i].hole)
            iov[request->iov_count++] = (struct iovec){bytes + runs[i].begin, runs[i].end - runs[i].begin};
    }
}

void nbd_reply_data_chunks(struct nbd_request *request)
{
    const struct nbd_request_header *header = &request->header;
    struct run runs[RUNS_MAX];
    if (header->length == 0) {
        nbd_protocol_chunk(request->head, NBD_CHUNK_DONE, NBD_CHUNK_NONE, header->cookie, 0);
        set_iov(request, NBD_CHUNK_BYTES, 0);
        return;
    }
    unsigned count = find_runs(request, runs);
    if (count > 1 && header->flags & NBD_CMD_FLAG_DF) {
        runs[0] = (struct run){0, header->length, false};
        count = 1;
    }
    if (count > 1)
        put_chunks(request, runs, count);
    else
        set_iov(request, put_head(request->head, header, &runs[0], true), runs[0].hole ? 0 : header->length);
}
