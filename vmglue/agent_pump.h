// SPDX-License-Identifier: Apache-2.0
// A stream whose bytes go through a local socket instead of a waiting thread: the connection's I/O thread
// moves them both ways, and holds each side back when the other does not take what there is.
//
// Channel 0 goes to the guest, channel 1 comes from it; END on either is a half-closed socket. The user's end
// is one of a socket pair; when the user has closed it, what he had written goes to the guest, and the stream
// is ended. A guest that does not take it keeps no place from others: only so many of these wait, the oldest
// go.
#pragma once

#include "vmglue/agent_connection_internal.h"

enum { AGENT_PUMPS_MAX = 256, AGENT_PUMPS_LEFT_MAX = 64 };

struct agent_pump {
    struct agent_pump *next;
    struct agent_call call; // begun by the owner before agent_pump_start
    bool kept;              // the owner ends it by agent_pump_drop; else the I/O thread does, when it is over
    bool dropped, over;     // protected by the agent's lock
    bool left;              // protected by it too: the user has closed his end, and it counts as one of these
    // The I/O thread's:
    int fd; // our end, -1 when closed
    struct agent_piece *piece;
    size_t piece_written;
    bool readable, writable, hung_up, input_ended;
    size_t slot; // in the poll array, 0 = none
};

// *ret_fd: the user's end. Then the request is begun on pump->call and the pump started, or freed.
int agent_pump_new(struct agent *agent, struct agent_pump **ret_pump, int *ret_fd, struct error *err);
void agent_pump_free(struct agent_pump *pump); // one that was not started; its call was ended
void agent_pump_start(struct agent_pump *pump);
void agent_pump_drop(struct agent_pump *pump); // of a kept one: ends the stream, frees it

// For the I/O thread.
void agent_pump_work(struct agent *agent);
struct pollfd *agent_pump_polls(struct agent *agent, size_t reserved, size_t *ret_count);
void agent_pump_polled(struct agent *agent, const struct pollfd *polls);
void agent_pump_end_all(struct agent *agent);
