// SPDX-License-Identifier: Apache-2.0
// The surroundings of a connection for fuzz_nbd_requests.c: requests out of a script, a volume in memory that
// checks what is asked of it, a loop that does nothing by itself, a server without a listener. One instance,
// in static variables; included once.
#pragma once

#include "vmglue/nbd_connection.h"
#include "vmglue/nbd_context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOLUME_BYTES = 1 << 20, REQUESTS_MAX = 200, PENDING_MAX = 256 };

static void check(bool right)
{
    if (!right)
        abort();
}

static uint8_t content[VOLUME_BYTES]; // what the volume holds
static uint64_t volume_bytes;

// ---- The client's requests ----

struct wish {
    uint16_t flags, type;
    uint64_t offset;
    uint32_t length;
    unsigned answers;
    bool begun, finished; // an operation of the volume
    uint64_t sum;         // of what a read found
};

static struct {
    bool structured, read_only, resized, deaf;
    bool asks_for_much; // so much that it must wait for memory
    unsigned count;     // of wishes that the server can see
    struct wish wishes[REQUESTS_MAX];
} client;

static const uint8_t *script, *script_end;

static unsigned next_byte(void)
{
    return script < script_end ? *script++ : 0;
}

static unsigned next_two(void)
{
    unsigned low = next_byte();
    return low | next_byte() << 8;
}

static void choose(struct wish *wish)
{
    static const uint16_t types[] = {NBD_CMD_READ, NBD_CMD_WRITE, NBD_CMD_READ, NBD_CMD_FLUSH, NBD_CMD_TRIM,
            NBD_CMD_CACHE, NBD_CMD_WRITE_ZEROES, NBD_CMD_BLOCK_STATUS, NBD_CMD_READ, NBD_CMD_WRITE};
    static const uint16_t flags[] = {0, 0, 0, NBD_CMD_FLAG_FUA, NBD_CMD_FLAG_DF, NBD_CMD_FLAG_NO_HOLE,
            NBD_CMD_FLAG_REQ_ONE, NBD_CMD_FLAG_FAST_ZERO};
    static const uint32_t lengths[] = {0, 1, 100, 511, 512, 4096, 4097, 8192, 8192, 20000, 40961, 70000};
    unsigned kind = next_byte(), flag = next_byte(), place = next_byte(), at = next_two(), size = next_byte();
    *wish = (struct wish){.type = kind < 240 ? types[kind % 10] : (uint16_t)kind,
            .flags = flag < 250 ? flags[flag % 8] : 1 << 9,
            .length = lengths[client.asks_for_much ? 9 + size % 3 : size % 12]};
    if (place < 100)
        wish->offset = (uint64_t)(at % 256) * BLOCK_SIZE;
    else if (place < 200)
        wish->offset = at * 16u + place % 16;
    else if (place < 240)
        wish->offset = volume_bytes - (at % 2 ? wish->length : at % 5000);
    else
        wish->offset = UINT64_MAX - at;
    if (size == 255 && wish->type != NBD_CMD_WRITE)
        wish->length = place % 2 ? UINT32_MAX : 33u << 20;
    if (wish->type == NBD_CMD_FLUSH && flag < 128)
        wish->offset = wish->length = 0;
}

static uint8_t payload_byte(uint64_t cookie, size_t at)
{
    return at / 5000 % 3 == 1 ? 0 : (uint8_t)(cookie * 31 + at); // some of it zero
}

static uint64_t sum_of(const uint8_t *bytes, size_t size)
{
    uint64_t sum = size, word;
    for (; size >= sizeof word; bytes += sizeof word, size -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15;
        sum ^= sum >> 29;
    }
    for (; size; size--)
        sum = sum * 31 + *bytes++;
    return sum;
}

static struct nbd_writer stream; // what the client sends
static size_t stream_at;

static void put_wish(const struct wish *wish, uint64_t cookie)
{
    nbd_writer_u32(&stream, NBD_REQUEST_MAGIC);
    nbd_writer_u16(&stream, wish->flags);
    nbd_writer_u16(&stream, wish->type);
    nbd_writer_u64(&stream, cookie);
    nbd_writer_u64(&stream, wish->offset);
    nbd_writer_u32(&stream, wish->length);
    if (wish->type != NBD_CMD_WRITE)
        return;
    size_t at = stream.size;
    nbd_writer_zeros(&stream, wish->length);
    for (uint32_t i = 0; i < wish->length; i++)
        stream.bytes[at + i] = payload_byte(cookie, i);
}

// Cookies are numbers from 1 on. What follows a DISC or a wrong magic number is never answered.
static void put_wishes(void)
{
    unsigned count = next_byte() % (REQUESTS_MAX + 1);
    client.count = 0;
    for (bool open = true; client.count < count && open && script < script_end;) {
        struct wish *wish = &client.wishes[client.count];
        choose(wish);
        if (wish->type == 241 || wish->type == 242) {
            open = false;
            if (wish->type == 242)
                nbd_writer_zeros(&stream, NBD_REQUEST_BYTES);
            wish->type = NBD_CMD_DISC;
        } else {
            client.count++;
        }
        put_wish(wish, client.count);
    }
}

// ---- The volume ----

static struct {
    struct volume_io *ios[PENDING_MAX]; // begun, not finished
    unsigned io_count;
    struct volume_extents *extents[PENDING_MAX];
    unsigned extents_count;
    struct loop_work *first_work, **last_work;
    struct io_op *receive, *send;
    struct loop_timer *timer;
} pending;

static struct wish *wish_of(const struct volume_io *io)
{
    uint64_t cookie = ((const struct nbd_request *)io->context)->header.cookie;
    check(cookie >= 1 && cookie <= client.count);
    return &client.wishes[cookie - 1];
}

static void check_io(const struct volume_io *io, const struct wish *wish)
{
    bool changes =
            wish->type == NBD_CMD_WRITE || wish->type == NBD_CMD_TRIM || wish->type == NBD_CMD_WRITE_ZEROES;
    bool exact =
            wish->type == NBD_CMD_READ || wish->type == NBD_CMD_WRITE || wish->type == NBD_CMD_WRITE_ZEROES;
    check(((io->flags & VOLUME_FUA) != 0) == (changes && wish->flags & NBD_CMD_FLAG_FUA));
    check(!changes || !client.read_only);
    if (io->op == VOLUME_FLUSH) {
        check(wish->type == NBD_CMD_FLUSH);
        return;
    }
    check(io->length > 0);
    check(io->offset >= wish->offset && io->offset - wish->offset <= wish->length - io->length);
    check(!exact || (io->offset == wish->offset && io->length == wish->length));
    check((io->op == VOLUME_READ) == (wish->type == NBD_CMD_READ || wish->type == NBD_CMD_CACHE));
    check((io->op == VOLUME_WRITE) == (wish->type == NBD_CMD_WRITE));
    if (io->op == VOLUME_TRIM && !client.resized)
        check(io->offset % BLOCK_SIZE == 0 &&
                ((io->offset + io->length) % BLOCK_SIZE == 0 || io->offset + io->length == volume_bytes));
    for (uint64_t i = 0; io->op == VOLUME_WRITE && i < io->length; i++)
        check(((const uint8_t *)io->buffer)[i] ==
                payload_byte(((const struct nbd_request *)io->context)->header.cookie, i));
}

static void finish_io(struct volume_io *io)
{
    struct wish *wish = wish_of(io);
    int result = 0;
    check_io(io, wish);
    if (io->op != VOLUME_FLUSH && (io->offset > volume_bytes || io->length > volume_bytes - io->offset))
        result = -EINVAL;
    else if (io->op == VOLUME_READ)
        memcpy(io->buffer, content + io->offset, io->length);
    else if (io->op == VOLUME_WRITE)
        memcpy(content + io->offset, io->buffer, io->length);
    else if (io->op != VOLUME_FLUSH)
        memset(content + io->offset, 0, io->length);
    if (io->op == VOLUME_READ && wish->type == NBD_CMD_READ && result == 0)
        wish->sum = sum_of(io->buffer, io->length);
    io->done(io, result);
}

static void begin_io(struct volume_io *io)
{
    // Some finish at once, inside the call, as reads of holes do.
    if (next_byte() % 3 == 0 || pending.io_count == PENDING_MAX)
        finish_io(io);
    else
        pending.ios[pending.io_count++] = io;
}

uint64_t volume_size_bytes(struct volume *volume)
{
    return volume_bytes;
}

void volume_submit(struct volume *volume, struct volume_io *io)
{
    begin_io(io);
}

void base_submit(struct base *base, struct loop *unused, struct volume_io *io)
{
    check(io->op == VOLUME_READ);
    begin_io(io);
}

static uint64_t status_step(uint64_t at)
{
    return 4096 + at * 7919 % 65536 / 4096 * 4096;
}

// Pieces of several kinds, now and then the same as the one before, as no engine would say it but as it may.
static void finish_extents(struct volume_extents *call)
{
    uint64_t at = call->offset, end = call->offset + call->length, step;
    bool shares = call->flags & EXTENTS_SHARED;
    call->count = 0;
    call->covered_bytes = 0;
    if (call->offset > volume_bytes || call->length > volume_bytes - call->offset) {
        call->done(call, -EINVAL);
        return;
    }
    for (; at < end && call->count < call->capacity; at += step) {
        step = status_step(at) - at % BLOCK_SIZE;
        step = step < end - at ? step : end - at;
        call->extents[call->count++] = (struct volume_extent){.offset = at,
                .length = step,
                .kind = EXTENT_DATA + at / BLOCK_SIZE % 3,
                .shared = shares && at / BLOCK_SIZE % 5 < 3};
    }
    call->covered_bytes = at - call->offset;
    call->done(call, 0);
}

static void begin_extents(struct volume_extents *call)
{
    if (next_byte() % 2 == 0 || pending.extents_count == PENDING_MAX)
        finish_extents(call);
    else
        pending.extents[pending.extents_count++] = call;
}

void volume_extents_submit(struct volume *volume, struct volume_extents *call)
{
    begin_extents(call);
}

void base_extents_submit(struct base *base, struct loop *unused, struct volume_extents *call)
{
    begin_extents(call);
}

// ---- The loop ----

static void toy_submit(struct loop *unused, struct io_op *op)
{
    struct io_op **slot = op->code == IO_RECV ? &pending.receive : &pending.send;
    check((op->code == IO_RECV || op->code == IO_SENDMSG) && !*slot);
    *slot = op;
}

static void toy_post(struct loop *unused, struct loop_work *work)
{
    work->next = NULL;
    *pending.last_work = work;
    pending.last_work = &work->next;
}

static void toy_add_timer(struct loop *unused, struct loop_timer *timer)
{
    check(!pending.timer || pending.timer == timer);
    pending.timer = timer;
    timer->armed = true;
}

static void toy_cancel_timer(struct loop *unused, struct loop_timer *timer)
{
    check(pending.timer == timer);
    pending.timer = NULL;
    timer->armed = false;
}

static uint64_t toy_now(struct loop *unused)
{
    return 0;
}

static const struct loop_ops toy_ops = {.submit = toy_submit,
        .post = toy_post,
        .add_timer = toy_add_timer,
        .cancel_timer = toy_cancel_timer,
        .now_ns = toy_now};
static struct loop loop = {.ops = &toy_ops};

// ---- The server ----

struct nbd_server {
    int unused;
};

static struct nbd_server server;
static struct nbd_budget budget;
static bool connection_gone;

static int open_export(void *context, const char *name, struct nbd_target *ret_target)
{
    // Never looked into: the volume's functions are those above.
    *ret_target =
            (struct nbd_target){.loop = &loop, .size_bytes = volume_bytes, .read_only = client.read_only};
    if (client.read_only)
        ret_target->base = (struct base *)&server;
    else
        ret_target->volume = (struct volume *)&server;
    return 0;
}

static void close_export(void *context, struct nbd_target *target)
{
}

const struct nbd_negotiation_source *nbd_server_source(struct nbd_server *unused)
{
    static const struct nbd_negotiation_source source = {.open = open_export, .close = close_export};
    return &source;
}

void nbd_server_close_target(struct nbd_target *target)
{
    target->volume = NULL;
    target->base = NULL;
}

struct nbd_budget *nbd_server_budget(struct nbd_server *unused)
{
    return &budget;
}

uint64_t nbd_server_stall_ns(struct nbd_server *unused)
{
    return 1;
}

bool nbd_server_set_loop(struct nbd_server *unused, struct nbd_connection *connection, struct loop *other)
{
    return true;
}

void nbd_server_count(struct nbd_server *unused, struct nbd_connection *connection)
{
    connection->counted = (struct nbd_server_stat){0};
}

bool nbd_server_forget(struct nbd_server *unused, struct nbd_connection *connection)
{
    connection_gone = true;
    return true;
}
