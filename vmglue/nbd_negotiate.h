// SPDX-License-Identifier: Apache-2.0
// The handshake of one NBD connection (fixed newstyle) as a state machine without I/O: bytes in, bytes out.
//
// Threads: one at a time. Calls of the source must not block. Errors: a broken or refused option is answered
// and haggling goes on; what cannot be answered ends in NBD_NEGOTIATION_CLOSE. Nothing is kept open by a
// negotiation that has not reached NBD_NEGOTIATION_TRANSMIT.
#pragma once

#include "vmglue/nbd_protocol.h"

struct volume;
struct base;
struct loop;

enum { NBD_DESCRIPTION_MAX = 127 };

// An opened export: one of the two pointers is set.
struct nbd_target {
    struct volume *volume;
    struct base *base;
    struct loop *loop; // where its requests run
    uint64_t size_bytes;
    bool read_only;
    char description[NBD_DESCRIPTION_MAX + 1]; // for people; "" = none
};

struct nbd_negotiation_source {
    int (*open)(void *context, const char *name, struct nbd_target *ret_target); // -ENOENT: no such export
    void (*close)(void *context, struct nbd_target *target);
    // NULL = listing is refused. description may be NULL.
    void (*list)(void *context, void (*each)(void *each_context, const char *name, const char *description),
            void *each_context);
    void *context;
};

// Options longer than this are answered with "too big" and skipped.
enum { NBD_NEGOTIATION_OPTION_MAX = 64 * 1024 };

struct nbd_negotiation {
    const struct nbd_negotiation_source *source;
    struct nbd_writer out; // to be sent before the next step; the caller empties it
    bool greeted;          // client flags received
    bool no_zeroes;
    bool structured;          // agreed: structured replies
    unsigned contexts;        // agreed: a set of nbd_context.h, for the export `context_name`
    uint32_t skip_bytes;      // data of an option that is too big, still to come
    struct nbd_target target; // open after NBD_NEGOTIATION_TRANSMIT, then the caller's
    char context_name[NBD_STRING_MAX + 1];
};

enum nbd_negotiation_step {
    NBD_NEGOTIATION_WAIT,     // nothing done: more bytes are needed
    NBD_NEGOTIATION_ANSWERED, // something was consumed; send `out`, then step again
    NBD_NEGOTIATION_TRANSMIT, // send `out`; then the transmission phase on `target`
    NBD_NEGOTIATION_CLOSE,    // send `out`, then close
};

// Puts the greeting into `out`. nbd_negotiation_end frees the buffer (not the target).
void nbd_negotiation_begin(struct nbd_negotiation *negotiation, const struct nbd_negotiation_source *source);
void nbd_negotiation_end(struct nbd_negotiation *negotiation);
// Takes at most one message from `bytes` (which must be able to hold NBD_OPTION_BYTES +
// NBD_NEGOTIATION_OPTION_MAX).
enum nbd_negotiation_step nbd_negotiation_input(
        struct nbd_negotiation *negotiation, const uint8_t *bytes, size_t size, size_t *ret_consumed);

// Transmission flags and the minimum block size that an export is offered with.
uint16_t nbd_negotiation_flags(const struct nbd_target *target, bool structured);
uint32_t nbd_negotiation_minimum_block_bytes(const struct nbd_target *target);
enum { NBD_PREFERRED_BLOCK_BYTES = 4096, NBD_PAYLOAD_MAX_BYTES = 32 * 1024 * 1024 };
