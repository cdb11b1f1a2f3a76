// SPDX-License-Identifier: Apache-2.0
// The beginning of a session: connects to the VMM's socket and says HELLO until the guest answers.
// Blocks until the deadline at most; the thread that connects, before the session has others.
#pragma once

#include "blockstore/error.h"
#include "vmglue/agent_protocol.h"

struct agent_hello {
    int fd; // connected, non-blocking
    uint64_t epoch;
    uint32_t version;
    uint32_t state; // AGENT_STATE_*
    uint64_t round_trip_ns;
};

// Blocks up to timeout_ms. The decoder is left with the session's epoch and the bytes behind the answer.
int agent_hello(const char *socket_path, unsigned timeout_ms, struct agent_decoder *decoder,
        struct agent_hello *ret_hello, struct error *err);
