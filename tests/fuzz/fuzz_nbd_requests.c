// SPDX-License-Identifier: Apache-2.0
// The transmission phase of an NBD connection, without sockets, threads or a store: the loop, the volume and
// the server are toys (nbd_toys.h), and the input says what the client asks for, in which pieces its bytes
// arrive and are taken, and in which order the volume finishes what was begun.
//
// The input is a script of six-byte steps, so that nearly every one becomes a well-formed header with odd
// values in it (a fuzzer that has to find the magic number finds nothing else). What is checked: every
// request is answered exactly once and in whole chunks; the answer is what the rules say for that command,
// range and flags; reads show what writes left; nothing is in flight, kept or taken from the budget after the
// end.
#include "tests/fuzz/nbd_toys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SHARED_BYTES = 256 * 1024 }; // less than the requests of one connection can ask for, so that some wait

// ---- Answers ----

static struct nbd_writer answers;

// What the rules say; volumes that change their size leave it open between this and a refusal of the range.
static uint32_t expected_error(const struct wish *wish)
{
    static const uint16_t allowed[] = {[NBD_CMD_READ] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_DF,
            [NBD_CMD_WRITE] = NBD_CMD_FLAG_FUA,
            [NBD_CMD_FLUSH] = NBD_CMD_FLAG_FUA,
            [NBD_CMD_TRIM] = NBD_CMD_FLAG_FUA,
            [NBD_CMD_CACHE] = NBD_CMD_FLAG_FUA,
            [NBD_CMD_WRITE_ZEROES] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
            [NBD_CMD_BLOCK_STATUS] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_REQ_ONE};
    bool adds = wish->type == NBD_CMD_WRITE || wish->type == NBD_CMD_WRITE_ZEROES;
    if (wish->type > NBD_CMD_BLOCK_STATUS || wish->flags & ~allowed[wish->type])
        return NBD_EINVAL;
    if (wish->type == NBD_CMD_READ && wish->flags & NBD_CMD_FLAG_DF && !client.structured)
        return NBD_EINVAL;
    if (wish->type == NBD_CMD_FLUSH)
        return wish->offset || wish->length ? NBD_EINVAL : 0;
    if (client.read_only && (adds || wish->type == NBD_CMD_TRIM))
        return NBD_EPERM;
    if (wish->type == NBD_CMD_READ && wish->length > NBD_PAYLOAD_MAX_BYTES)
        return NBD_EINVAL;
    if (wish->offset > volume_bytes || wish->length > volume_bytes - wish->offset)
        return adds ? NBD_ENOSPC : NBD_EINVAL;
    if (wish->type == NBD_CMD_BLOCK_STATUS && (!client.structured || wish->length == 0))
        return NBD_EINVAL;
    return 0;
}

static void check_error(const struct wish *wish, uint32_t error)
{
    uint32_t expected = expected_error(wish);
    bool fast = wish->type == NBD_CMD_WRITE_ZEROES && wish->flags & NBD_CMD_FLAG_FAST_ZERO;
    if (error == expected ||
            (fast && error == NBD_ENOTSUP && wish->length && (expected == 0 || client.resized)))
        return;
    check(client.resized && (error == 0 || error == NBD_EINVAL || error == NBD_ENOSPC));
}

static struct wish *answered(uint64_t cookie)
{
    check(cookie >= 1 && cookie <= client.count);
    struct wish *wish = &client.wishes[cookie - 1];
    check(wish->answers == 0);
    return wish;
}

static void check_status(const struct wish *wish, struct nbd_cursor payload, unsigned number)
{
    uint64_t total = 0, last = 0;
    uint32_t flags_before = 0;
    check(nbd_cursor_u32(&payload) == number); // of the context, each once and in order
    check(nbd_cursor_left(&payload) >= 8 && nbd_cursor_left(&payload) % 8 == 0);
    for (unsigned i = 0; nbd_cursor_left(&payload); i++) {
        check(i == 0 || !(wish->flags & NBD_CMD_FLAG_REQ_ONE));
        last = nbd_cursor_u32(&payload);
        uint32_t flags = nbd_cursor_u32(&payload);
        check(last > 0 && (i == 0 || flags != flags_before)); // equal neighbours are one
        flags_before = flags;
        total += last;
    }
    check(total <= wish->length);
}

// One whole structured reply, which begins at the cursor; chunks of two replies are never mixed.
static void check_chunks(struct nbd_cursor *cursor)
{
    static uint8_t data[VOLUME_BYTES];
    uint64_t cookie = 0, covered = 0;
    unsigned contents = 0, statuses = 0;
    for (bool done = false; !done;) {
        check(nbd_cursor_u32(cursor) == NBD_STRUCTURED_REPLY_MAGIC);
        done = nbd_cursor_u16(cursor) & NBD_CHUNK_DONE;
        unsigned type = nbd_cursor_u16(cursor);
        uint64_t this_cookie = nbd_cursor_u64(cursor);
        uint32_t size = nbd_cursor_u32(cursor);
        struct nbd_cursor payload = nbd_cursor_over(nbd_cursor_bytes(cursor, size), size);
        check(!cursor->bad && (cookie == 0 || cookie == this_cookie));
        cookie = this_cookie;
        struct wish *wish = answered(cookie);
        if (type == NBD_CHUNK_ERROR) {
            check(done && contents == 0 && statuses == 0);
            check_error(wish, nbd_cursor_u32(&payload));
            check(nbd_cursor_left(&payload) == 2u + nbd_cursor_u16(&payload));
            wish->answers++;
            return;
        }
        if (type == NBD_CHUNK_BLOCK_STATUS) {
            check(wish->type == NBD_CMD_BLOCK_STATUS);
            check_status(wish, payload, ++statuses);
        } else if (type == NBD_CHUNK_OFFSET_DATA || type == NBD_CHUNK_OFFSET_HOLE) {
            check(wish->type == NBD_CMD_READ && nbd_cursor_u64(&payload) == wish->offset + covered);
            size_t length =
                    type == NBD_CHUNK_OFFSET_HOLE ? nbd_cursor_u32(&payload) : nbd_cursor_left(&payload);
            check(length > 0 && length <= wish->length - covered);
            if (type == NBD_CHUNK_OFFSET_HOLE)
                memset(data + covered, 0, length);
            else
                memcpy(data + covered, nbd_cursor_bytes(&payload, length), length);
            covered += length;
            contents++;
            check(contents == 1 || !(wish->flags & NBD_CMD_FLAG_DF));
        } else {
            check(type == NBD_CHUNK_NONE && done);
        }
        check(nbd_cursor_finished(&payload) || type == NBD_CHUNK_BLOCK_STATUS);
    }
    struct wish *wish = answered(cookie);
    check_error(wish, 0);
    check(wish->type != NBD_CMD_READ || covered == wish->length);
    check(wish->type != NBD_CMD_READ || covered == 0 || sum_of(data, covered) == wish->sum);
    check(wish->type != NBD_CMD_BLOCK_STATUS || statuses == NBD_CONTEXT_COUNT);
    wish->answers++;
}

static void check_simple(struct nbd_cursor *cursor)
{
    nbd_cursor_u32(cursor);
    uint32_t error = nbd_cursor_u32(cursor);
    struct wish *wish = answered(nbd_cursor_u64(cursor));
    check(!client.structured || wish->type != NBD_CMD_READ);
    check_error(wish, error);
    if (wish->type == NBD_CMD_READ && error == 0) {
        const uint8_t *data = nbd_cursor_bytes(cursor, wish->length);
        check(data && (wish->length == 0 || sum_of(data, wish->length) == wish->sum));
    }
    wish->answers++;
}

static void check_answers(void)
{
    struct nbd_cursor cursor = nbd_cursor_over(answers.bytes, answers.size);
    while (nbd_cursor_left(&cursor)) {
        struct nbd_cursor ahead = cursor;
        if (nbd_cursor_u32(&ahead) == NBD_SIMPLE_REPLY_MAGIC)
            check_simple(&cursor);
        else
            check_chunks(&cursor);
    }
    check(!cursor.bad);
    for (unsigned i = 0; i < client.count; i++)
        check(client.wishes[i].answers == 1);
}

// ---- Running ----

static void deliver(size_t most)
{
    struct io_op *op = pending.receive;
    size_t left = stream.size - stream_at, take = op->iov[0].iov_len;
    take = take < left ? take : left;
    take = take < most ? take : most;
    if (take)
        memcpy(op->iov[0].iov_base, stream.bytes + stream_at, take);
    stream_at += take;
    pending.receive = NULL;
    op->done(op, (int64_t)take);
}

static void take_sent(size_t most)
{
    struct io_op *op = pending.send;
    size_t taken = 0;
    pending.send = NULL;
    if (client.deaf) {
        op->done(op, -EPIPE);
        return;
    }
    for (unsigned i = 0; i < op->iov_count && taken < most; i++) {
        size_t size = op->iov[i].iov_len < most - taken ? op->iov[i].iov_len : most - taken;
        nbd_writer_bytes(&answers, op->iov[i].iov_base, size);
        taken += size;
    }
    op->done(op, (int64_t)taken);
}

static void run_work(void)
{
    struct loop_work *work = pending.first_work;
    pending.first_work = work->next;
    if (!work->next)
        pending.last_work = &pending.first_work;
    work->run(work);
}

static void finish_one(unsigned which)
{
    struct volume_io *io = pending.ios[which %= pending.io_count];
    pending.ios[which] = pending.ios[--pending.io_count];
    finish_io(io);
}

// One event, as the script has it; true = there was one of that kind.
static bool turn(unsigned what, size_t amount)
{
    if (what < 90 && pending.receive && stream_at < stream.size)
        deliver(amount);
    else if (what < 130 && pending.send)
        take_sent(amount);
    else if (what < 200 && pending.io_count)
        finish_one((unsigned)amount);
    else if (what < 230 && pending.first_work)
        run_work();
    else if (what < 245 && pending.extents_count)
        finish_extents(pending.extents[--pending.extents_count]);
    else if (what == 250)
        client.deaf = true;
    else if (what == 251 && !client.read_only) {
        volume_bytes = amount * 16 % VOLUME_BYTES + 1;
        client.resized = true;
    } else
        return false;
    return true;
}

static void drain(bool to_the_end)
{
    while (!connection_gone) {
        if (pending.first_work)
            run_work();
        else if (pending.io_count)
            finish_one(0);
        else if (pending.extents_count)
            finish_extents(pending.extents[--pending.extents_count]);
        else if (pending.send)
            take_sent(SIZE_MAX);
        else if (pending.receive && (to_the_end || stream_at < stream.size))
            deliver(SIZE_MAX);
        else
            break;
    }
}

static void put_option(uint32_t option, const void *data, uint32_t size)
{
    nbd_writer_u64(&stream, NBD_OPTION_MAGIC);
    nbd_writer_u32(&stream, option);
    nbd_writer_u32(&stream, size);
    nbd_writer_bytes(&stream, data, size);
}

static void shake_hands(void)
{
    static const char contexts[] = "\0\0\0\0"
                                   "\0\0\0\2"
                                   "\0\0\0\17"
                                   "base:allocation"
                                   "\0\0\0\14"
                                   "ramet:shared";
    nbd_writer_u32(&stream, NBD_HANDSHAKE_FIXED_NEWSTYLE | NBD_HANDSHAKE_NO_ZEROES);
    if (client.structured) {
        put_option(NBD_OPT_STRUCTURED_REPLY, "", 0);
        put_option(NBD_OPT_SET_META_CONTEXT, contexts, sizeof contexts - 1);
    }
    put_option(NBD_OPT_GO, "\0\0\0\0\0", 6);
    drain(false);
    check(pending.receive && !pending.send);
    answers.size = stream.size = stream_at = 0;
}

static void begin(uint64_t size)
{
    struct nbd_connection *connection = calloc(1, sizeof *connection);
    connection->server = &server;
    connection->loop = &loop;
    connection->fd = dup(STDERR_FILENO); // only shut down and closed
    pending.last_work = &pending.first_work;
    connection_gone = false;
    volume_bytes = size;
    nbd_budget_init(&budget, 0);
    budget.limit_bytes = SHARED_BYTES;
    nbd_connection_start(connection, 1);
    shake_hands();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t used, peak;
    script = data;
    script_end = data + size;
    unsigned options = next_byte();
    client.structured = options & 1;
    client.read_only = options % 8 == 6 || options % 8 == 7;
    client.resized = client.deaf = false;
    client.asks_for_much = (options & 224) == 96;
    begin(options & 16 ? VOLUME_BYTES - 3000 : VOLUME_BYTES);
    put_wishes();
    while (!connection_gone && script < script_end) {
        unsigned what = next_byte();
        turn(what, 1 + (size_t)next_byte() * (what % 2 ? 1 : 800));
    }
    drain(true);
    check(connection_gone && !pending.receive && !pending.send && !pending.first_work);
    check(!pending.io_count && !pending.extents_count && !pending.timer);
    if (!client.deaf)
        check_answers();
    nbd_budget_stat(&budget, &used, &peak);
    check(used == 0 && peak <= SHARED_BYTES);
    nbd_writer_free(&stream);
    nbd_writer_free(&answers);
    stream_at = 0;
    return 0;
}
