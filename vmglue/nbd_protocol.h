// SPDX-License-Identifier: Apache-2.0
// The NBD protocol as bytes: constants, a checked cursor for what comes in, a growing writer for what goes
// out.
//
// Source: the NBD protocol document of the NetworkBlockDevice project (doc/proto.md), fixed newstyle,
// structured replies, base:allocation. All numbers on the wire are big-endian. Threads: plain data, no shared
// state. Errors: a cursor that is read past its end turns bad, stays bad, and yields zeros; callers read
// everything they want and ask once.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NBD_MAGIC 0x4e42444d41474943ull        // "NBDMAGIC"
#define NBD_OPTION_MAGIC 0x49484156454F5054ull // "IHAVEOPT"
#define NBD_OPTION_REPLY_MAGIC 0x3e889045565a9ull
#define NBD_REQUEST_MAGIC 0x25609513u
#define NBD_SIMPLE_REPLY_MAGIC 0x67446698u
#define NBD_STRUCTURED_REPLY_MAGIC 0x668e33efu

enum {
    NBD_REQUEST_BYTES = 28,
    NBD_SIMPLE_REPLY_BYTES = 16,
    NBD_CHUNK_BYTES = 20,
    NBD_OPTION_BYTES = 16, // magic, option, length
    NBD_STRING_MAX = 4096,
};

enum { NBD_HANDSHAKE_FIXED_NEWSTYLE = 1 << 0, NBD_HANDSHAKE_NO_ZEROES = 1 << 1 };

enum nbd_option {
    NBD_OPT_EXPORT_NAME = 1,
    NBD_OPT_ABORT = 2,
    NBD_OPT_LIST = 3,
    NBD_OPT_STARTTLS = 5,
    NBD_OPT_INFO = 6,
    NBD_OPT_GO = 7,
    NBD_OPT_STRUCTURED_REPLY = 8,
    NBD_OPT_LIST_META_CONTEXT = 9,
    NBD_OPT_SET_META_CONTEXT = 10,
};

enum nbd_option_reply {
    NBD_REP_ACK = 1,
    NBD_REP_SERVER = 2,
    NBD_REP_INFO = 3,
    NBD_REP_META_CONTEXT = 4,
};
#define NBD_REP_ERR_UNSUP 0x80000001u
#define NBD_REP_ERR_POLICY 0x80000002u
#define NBD_REP_ERR_INVALID 0x80000003u
#define NBD_REP_ERR_UNKNOWN 0x80000006u
#define NBD_REP_ERR_TOO_BIG 0x80000009u

enum nbd_info {
    NBD_INFO_EXPORT = 0,
    NBD_INFO_NAME = 1,
    NBD_INFO_DESCRIPTION = 2,
    NBD_INFO_BLOCK_SIZE = 3,
};

enum nbd_transmission_flag {
    NBD_FLAG_HAS_FLAGS = 1 << 0,
    NBD_FLAG_READ_ONLY = 1 << 1,
    NBD_FLAG_SEND_FLUSH = 1 << 2,
    NBD_FLAG_SEND_FUA = 1 << 3,
    NBD_FLAG_SEND_TRIM = 1 << 5,
    NBD_FLAG_SEND_WRITE_ZEROES = 1 << 6,
    NBD_FLAG_SEND_DF = 1 << 7,
    NBD_FLAG_CAN_MULTI_CONN = 1 << 8,
    NBD_FLAG_SEND_CACHE = 1 << 10,
    NBD_FLAG_SEND_FAST_ZERO = 1 << 11,
};

enum nbd_command {
    NBD_CMD_READ = 0,
    NBD_CMD_WRITE = 1,
    NBD_CMD_DISC = 2,
    NBD_CMD_FLUSH = 3,
    NBD_CMD_TRIM = 4,
    NBD_CMD_CACHE = 5,
    NBD_CMD_WRITE_ZEROES = 6,
    NBD_CMD_BLOCK_STATUS = 7,
};

enum nbd_command_flag {
    NBD_CMD_FLAG_FUA = 1 << 0,
    NBD_CMD_FLAG_NO_HOLE = 1 << 1,
    NBD_CMD_FLAG_DF = 1 << 2,
    NBD_CMD_FLAG_REQ_ONE = 1 << 3,
    NBD_CMD_FLAG_FAST_ZERO = 1 << 4,
};

enum { NBD_CHUNK_DONE = 1 << 0 }; // flag of the last chunk of a reply
enum nbd_chunk {
    NBD_CHUNK_NONE = 0,
    NBD_CHUNK_OFFSET_DATA = 1,
    NBD_CHUNK_OFFSET_HOLE = 2,
    NBD_CHUNK_BLOCK_STATUS = 5,
    NBD_CHUNK_ERROR = 32769,
};

enum { NBD_STATE_HOLE = 1 << 0, NBD_STATE_ZERO = 1 << 1 }; // base:allocation

enum nbd_error {
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_ENOMEM = 12,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
    NBD_EOVERFLOW = 75,
    NBD_ENOTSUP = 95,
    NBD_ESHUTDOWN = 108,
};
// The wire's number for 0 or -errno; what has no number of its own is EIO.
uint32_t nbd_protocol_error(int result);

struct nbd_cursor {
    const uint8_t *at, *end;
    bool bad;
};
struct nbd_cursor nbd_cursor_over(const void *bytes, size_t size);
uint16_t nbd_cursor_u16(struct nbd_cursor *cursor);
uint32_t nbd_cursor_u32(struct nbd_cursor *cursor);
uint64_t nbd_cursor_u64(struct nbd_cursor *cursor);
const uint8_t *nbd_cursor_bytes(struct nbd_cursor *cursor, size_t size); // NULL when there are not so many
size_t nbd_cursor_left(const struct nbd_cursor *cursor);
// A 32-bit length and that many bytes: copied with a terminating zero into `text` (NBD_STRING_MAX + 1 bytes).
// Longer strings and strings with a zero byte turn the cursor bad.
void nbd_cursor_string(struct nbd_cursor *cursor, char *text);
// True when nothing was missing and nothing is left over.
bool nbd_cursor_finished(const struct nbd_cursor *cursor);

// A request header. Returns false when the magic is wrong: the stream is out of step and cannot be continued.
struct nbd_request_header {
    uint16_t flags, type;
    uint64_t cookie, offset;
    uint32_t length;
};
bool nbd_protocol_decode_request(
        const uint8_t bytes[NBD_REQUEST_BYTES], struct nbd_request_header *ret_header);

// Headers of replies; `to` has room for the bytes named.
void nbd_protocol_simple_reply(uint8_t to[NBD_SIMPLE_REPLY_BYTES], uint32_t error, uint64_t cookie);
void nbd_protocol_chunk(uint8_t to[NBD_CHUNK_BYTES], unsigned flags, enum nbd_chunk type, uint64_t cookie,
        uint32_t payload_bytes);
void nbd_protocol_put_u16(uint8_t *to, uint16_t value);
void nbd_protocol_put_u32(uint8_t *to, uint32_t value);
void nbd_protocol_put_u64(uint8_t *to, uint64_t value);

// A growing buffer of bytes to send. Zero-initialised is empty. Memory exhaustion aborts.
struct nbd_writer {
    uint8_t *bytes;
    size_t size, capacity;
};
void nbd_writer_bytes(struct nbd_writer *writer, const void *bytes, size_t size);
void nbd_writer_zeros(struct nbd_writer *writer, size_t size);
void nbd_writer_u16(struct nbd_writer *writer, uint16_t value);
void nbd_writer_u32(struct nbd_writer *writer, uint32_t value);
void nbd_writer_u64(struct nbd_writer *writer, uint64_t value);
void nbd_writer_option_reply(
        struct nbd_writer *writer, uint32_t option, uint32_t type, uint32_t payload_bytes);
void nbd_writer_free(struct nbd_writer *writer);
