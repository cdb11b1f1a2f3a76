// SPDX-License-Identifier: Apache-2.0
// The connection itself, for agent_connection.c (frames and the I/O thread), agent_call.c (streams that a
// thread waits for) and agent_pump.c (streams that end in a descriptor).
#pragma once

#include "vmglue/agent_connection.h"

#include <poll.h>

struct agent_pump;

struct agent_outgoing {
    struct agent_outgoing *next;
    struct agent_frame frame; // its sequence is set when its turn comes
    uint8_t bytes[AGENT_HEADER_BYTES];
    uint8_t payload[];
};

struct agent_queue {
    struct agent_outgoing *first, **last;
};

struct agent {
    int fd, wake_fd;
    bool was_frozen;
    uint64_t epoch;
    struct agent_decoder decoder; // the I/O thread's, as are the next four
    uint32_t send_sequence, receive_sequence;
    struct agent_outgoing *sending;
    size_t sent_bytes;
    struct pollfd *polls; // the I/O thread's, too
    size_t poll_capacity;
    pthread_t thread;

    pthread_mutex_t lock; // protects the rest
    pthread_cond_t idle;
    struct agent_queue ready, held;
    bool gate_shut, closing;
    int failure; // once set the connection is over
    uint32_t last_stream;
    unsigned users; // calls begun and not ended
    struct agent_call *calls;
    uint64_t round_trip_ns;
    uint64_t heard_ns; // when anything came last
    unsigned quiet_ms, answer_ms;
    struct agent_pump *pumps;        // taken out by the I/O thread alone
    unsigned pump_count, pumps_left; // whose user is there; whose user has closed his end
    unsigned version;                // never changes
};

int agent_post_locked(struct agent *agent, const struct agent_call *call, uint16_t type, uint16_t flags,
        const void *bytes, size_t size);
void agent_wake(struct agent *agent);
