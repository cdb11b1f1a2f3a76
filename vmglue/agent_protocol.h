// SPDX-License-Identifier: Apache-2.0
// The guest agent's wire protocol (AGENT.md), shared by the host's client and the agent inside the guest:
// frames, their checksums, a decoder that finds its way back after damage, and checked packing of messages.
//
// Threads: none of these objects locks; one thread at a time each. Units: bytes. No I/O happens here.
// Untrusted bytes are read through agent_decoder and agent_cursor only; neither ever reads outside its bytes.
// Errors: -ENOMEM; a cursor or builder that failed stays failed, so a caller checks once, at the end.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AGENT_VERSION_OLDEST = 1, // that of agents in older snapshots
    AGENT_VERSION = 2,
    AGENT_HEADER_BYTES = 40,
    AGENT_PAYLOAD_MAX = 32768,      // a longer length is no frame
    AGENT_REQUEST_MAX = 4 << 20,    // of all pieces of one request (ARG_MAX and some)
    AGENT_WINDOW_BYTES = 256 << 10, // credit that every channel starts with, each way
};

enum agent_frame_type {
    AGENT_HELLO = 1,     // host: starts a session, ends every other
    AGENT_HELLO_ACK = 2, // guest
    AGENT_REQUEST = 3,   // host: opens a stream; AGENT_FLAG_MORE: the next REQUEST of the stream goes on
    AGENT_RESULT = 4,    // guest: the stream's last frame
    AGENT_DATA = 5,      // both: bytes of a channel; AGENT_FLAG_END: no more will come
    AGENT_WINDOW = 6,    // both: u32 more bytes may be sent on the channel
    AGENT_CANCEL = 7,    // host: kill the exec, give up the write; a RESULT still comes
    AGENT_BROKEN = 8,    // guest: this session is over (sentence); say HELLO again
};

enum {
    AGENT_FLAG_MORE = 1,
    AGENT_FLAG_END = 2,
    AGENT_FLAG_CHANNEL_SHIFT = 8, // DATA and WINDOW: 0 stdin or file content, 1 stdout or content, 2 stderr
};

enum agent_operation {
    AGENT_PING = 1,
    AGENT_EXEC = 2,
    AGENT_FILE_STAT = 3,
    AGENT_FILE_READ = 4,
    AGENT_FILE_WRITE = 5,
    AGENT_FILE_LIST = 6,
    AGENT_FILE_REMOVE = 7,
    AGENT_FILE_MKDIR = 8,
    AGENT_FREEZE = 9,
    AGENT_THAW = 10,
    AGENT_AFTER_FORK = 11,
    AGENT_SET_CLOCK = 12,
    AGENT_SYNC = 13,
    AGENT_POWEROFF = 14,
    // Version 2.
    AGENT_DIAL = 15,
    AGENT_PTY = 16,
    AGENT_PTY_RESIZE = 17,
    AGENT_JOB_START = 18,
    AGENT_JOB_LIST = 19,
    AGENT_JOB_GET = 20,
    AGENT_JOB_WAIT = 21,
    AGENT_JOB_SIGNAL = 22,
    AGENT_JOB_REMOVE = 23,
    AGENT_JOB_READ_LOGS = 24,
    AGENT_FILE_READ_RANGE = 25,
    AGENT_FILE_APPEND = 26,
    AGENT_FILE_MOVE = 27,
    AGENT_FILE_CHMOD = 28,
    AGENT_UPLOAD_BEGIN = 29,
    AGENT_UPLOAD_WRITE = 30,
    AGENT_UPLOAD_GET = 31,
    AGENT_UPLOAD_COMMIT = 32,
    AGENT_UPLOAD_DROP = 33,
    AGENT_WATCH = 34,
    AGENT_NETWORK = 35,
    AGENT_DISK_MOUNT = 36,
    AGENT_DISK_UNMOUNT = 37,
    AGENT_DISK_GROW = 38,
    AGENT_OPERATION_END,
};

enum { AGENT_DIAL_TCP = 1, AGENT_DIAL_UNIX = 2 };
enum { AGENT_JOB_RUNNING = 1, AGENT_JOB_TIMED_OUT = 2, AGENT_JOB_OUT_OF_MEMORY = 4 }; // flags of a job
enum { AGENT_JOB_INPUT_MAX = 1 << 20 };
enum agent_watch_kind {
    AGENT_WATCH_READY = 1, // from now on nothing is missed
    AGENT_WATCH_CREATED = 2,
    AGENT_WATCH_CHANGED = 3,
    AGENT_WATCH_ATTRIBUTES = 4,
    AGENT_WATCH_REMOVED = 5,
    AGENT_WATCH_MOVED = 6,    // has two paths
    AGENT_WATCH_OVERFLOW = 7, // events were lost: look at everything anew
};

enum { AGENT_EXEC_SHELL = 1, AGENT_EXEC_STDIN = 2 };                 // flags in an EXEC request
enum { AGENT_EXEC_TIMED_OUT = 1, AGENT_EXEC_OUT_OF_MEMORY = 2 };     // flags in its RESULT
enum { AGENT_STATE_FROZEN = 1, AGENT_STATE_FILESYSTEMS_FROZEN = 2 }; // flags in HELLO_ACK

struct agent_frame {
    uint64_t epoch;
    uint32_t sequence; // counts the sender's frames within the epoch
    uint32_t stream;   // 0 = the session itself
    uint16_t type, flags;
    uint32_t size;
    const uint8_t *payload; // from a decoder: valid until the next call on it
};

uint32_t agent_crc32c(uint32_t crc, const void *bytes, size_t size); // CRC-32C (Castagnoli), start with 0
void agent_frame_header(const struct agent_frame *frame, uint8_t ret_header[AGENT_HEADER_BYTES]);

// Finds frames in a byte stream. Bytes that are no frame, whose checksums are wrong, or that belong to
// another session are skipped by looking for the next marker, never by trusting their length.
struct agent_decoder {
    uint8_t *bytes;
    size_t start, end, capacity;
    uint64_t epoch;         // the session; frames of others are skipped
    bool accept_hello;      // ... but for HELLO (the guest's side)
    uint64_t skipped_bytes; // that were in no frame of ours
};
int agent_decoder_init(struct agent_decoder *decoder, bool accept_hello);
void agent_decoder_free(struct agent_decoder *decoder);
void agent_decoder_reset(struct agent_decoder *decoder); // forgets a partial frame
// Where to put the next bytes; there is always room while frames are taken out as they come.
void *agent_decoder_space(struct agent_decoder *decoder, size_t *ret_size);
void agent_decoder_filled(struct agent_decoder *decoder, size_t size);
bool agent_decoder_next(struct agent_decoder *decoder, struct agent_frame *ret_frame);

// Reads packed fields; after running over the end `bad` is set and every field is zero or "".
struct agent_cursor {
    const uint8_t *at, *end;
    bool bad;
};
struct agent_cursor agent_cursor_over(const void *bytes, size_t size);
uint8_t agent_cursor_u8(struct agent_cursor *cursor);
uint32_t agent_cursor_u32(struct agent_cursor *cursor);
uint64_t agent_cursor_u64(struct agent_cursor *cursor);
const uint8_t *agent_cursor_bytes(
        struct agent_cursor *cursor, size_t size);            // NULL when there are not so many
const char *agent_cursor_string(struct agent_cursor *cursor); // inside the packed bytes, zero-terminated

// Packs fields into memory of its own.
struct agent_builder {
    uint8_t *bytes;
    size_t size, capacity;
    bool failed;
};
void agent_builder_free(struct agent_builder *builder);
void agent_builder_u8(struct agent_builder *builder, uint8_t value);
void agent_builder_u32(struct agent_builder *builder, uint32_t value);
void agent_builder_u64(struct agent_builder *builder, uint64_t value);
void agent_builder_bytes(struct agent_builder *builder, const void *bytes, size_t size);
void agent_builder_string(struct agent_builder *builder, const char *string); // u32 length, bytes, a zero

// Copies a sentence that came from a guest, cut to size: what is no UTF-8 and what moves a terminal's cursor
// becomes '?'.
void agent_clean_text(const char *text, char *ret_text, size_t size);
