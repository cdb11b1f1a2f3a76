// SPDX-License-Identifier: Apache-2.0
// Heads of HTTP/1.1 messages for the proxy into guests: what a guest's server answers is parsed strictly (RFC
// 9112; what two readers could take for different things is refused), and what goes either way is filtered.
//
// Threads: any; no I/O. A guest's bytes are untrusted: heads are bounded, nothing in them can end a line of
// ours. Errors: -EPROTO with words that say what the guest's answer has wrong.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PROXY_HEAD_MAX = 65536, PROXY_FIELDS_MAX = 128, PROXY_CHUNK_LINE_MAX = 4096 };

struct proxy_field {
    const char *name, *value;
};
enum proxy_framing { PROXY_NO_BODY, PROXY_LENGTH, PROXY_CHUNKED, PROXY_UNTIL_CLOSE };

struct proxy_answer {
    int status;
    struct proxy_field fields[PROXY_FIELDS_MAX]; // point into the head
    unsigned field_count;
    enum proxy_framing framing;
    bool has_length; // also of an answer to HEAD
    uint64_t length;
};

// How long the head is that begins here, with its empty line; 0 = more bytes are needed; -EMSGSIZE = it is
// longer than PROXY_HEAD_MAX.
ssize_t proxy_head_size(const char *bytes, size_t size);
// Parses a whole head in place (it is cut into strings). method: of the request that it answers.
int proxy_head_parse(
        char *head, size_t size, const char *method, struct proxy_answer *ret_answer, struct error *err);
const char *proxy_head_field(const struct proxy_answer *answer, const char *name); // NULL = none
// A header field's name and value as they may stand in a message of ours.
bool proxy_head_is_name(const char *name, size_t size);
bool proxy_head_is_value(const char *value, size_t size);
// Whether a list of words, by commas, has this one (of either case).
bool proxy_head_lists(const char *list, const char *word);
// Belongs to one connection, not to the message: dropped both ways. connection: the values of the Connection
// fields, by commas ("" = none).
bool proxy_head_is_hop(const char *name, const char *connection);

// A chunked body, decoded piece by piece; trailers are dropped.
struct proxy_chunks {
    int state;
    uint64_t left;
    unsigned line_size; // of the present line of sizes or trailers
    bool digits;
};
// Takes bytes up to the end of one run of the body: 0 go on, 1 the body is complete, -EPROTO. *ret_taken is
// always set; *ret_body points into bytes (size 0: none).
int proxy_chunks_take(struct proxy_chunks *chunks, const char *bytes, size_t size, size_t *ret_taken,
        const char **ret_body, size_t *ret_body_size);

// Where the guest's site stands below a path of ours: "/u/TOKEN". Results are malloc'ed; NULL = no memory.
// host: of the request, "" = unknown.
char *proxy_head_location(const char *value, const char *prefix, const char *host);
char *proxy_head_cookie(const char *value, const char *prefix);
