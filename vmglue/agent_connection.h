// SPDX-License-Identifier: Apache-2.0
// One connection to a guest agent: HELLO, an I/O thread, streams with windows, and the gate that holds frames
// back while a machine is frozen. agent_client.c and agent_files.c are written on it; nobody else needs it.
//
// Threads: any. The agent's lock is a leaf: nothing is called with it held.
#pragma once

#include "blockstore/error.h"
#include "vmglue/agent_protocol.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { AGENT_CALL_DEFAULT_MS = 30000 };

struct agent;

struct agent_piece { // output of a stream, in the order it came
    struct agent_piece *next;
    unsigned channel;
    bool end; // no more will come on the channel
    size_t size;
    uint8_t bytes[];
};

// A stream. Lives on its caller's stack between begin and end; fields are protected by the agent's lock.
struct agent_call {
    struct agent *agent;
    struct agent_call *next;
    uint32_t stream;
    bool passes_gate; // freeze and what ends it
    bool done;        // the RESULT came, or the connection ended
    int failure;      // -EPIPE, -EPROTO: the connection ended
    pthread_cond_t changed;
    struct agent_piece *first, **last;
    uint32_t waiting_bytes[3], owed_bytes[3]; // received and not taken; taken and not granted again
    uint32_t waiting_empty;                   // pieces without bytes, which no window holds back
    uint32_t credit;                          // what may be sent on channel 0
    uint32_t unsent_bytes;                    // taken from credit, and not given to the socket yet
    uint8_t *result;
    size_t result_size;
};

enum agent_event { AGENT_EVENT_PIECE = 1, AGENT_EVENT_DONE = 2, AGENT_EVENT_CREDIT = 3 };

// -EOPNOTSUPP when the guest's agent speaks an older version than the operation needs.
// Opens a stream with a request (may be larger than a frame). fields may be NULL.
int agent_call_begin(struct agent *agent, enum agent_operation operation, const struct agent_builder *fields,
        bool passes_gate, struct agent_call *ret_call, struct error *err);
// Waits for a piece of output (then the caller frees it after use and says agent_call_taken), the end, or,
// when asked for, credit. limit_ms from now: -ETIMEDOUT. Pieces come before the end.
int agent_call_wait(
        struct agent_call *call, unsigned limit_ms, bool credit_too, struct agent_piece **ret_piece);
// Only until the result is there, whoever takes the pieces: 0, -ETIMEDOUT.
int agent_call_wait_done(struct agent_call *call, unsigned limit_ms);
void agent_call_taken(
        struct agent_call *call, struct agent_piece *piece); // frees it and lets the guest send more
size_t agent_call_credit(struct agent_call *call);
int agent_call_send(struct agent_call *call, const void *bytes, size_t size, bool end); // at most the credit
void agent_call_cancel(struct agent_call *call);
// After AGENT_EVENT_DONE: the guest's status, its sentence in *err, and a cursor over the operation's fields.
int agent_call_result(struct agent_call *call, struct agent_cursor *ret_fields, struct error *err);
// Ends it, done or not; later frames of its stream are ignored. Always called after a begin that succeeded.
void agent_call_end(struct agent_call *call);

// A request without output: begin, wait, result, end. fields is freed. ret_bytes (may be NULL): the
// operation's fields.
int agent_call_simple(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        bool passes_gate, unsigned limit_ms, void *ret_bytes, size_t ret_size, struct error *err);

// EXEC's fields, which PTY and JOB_START have at their end, too.
struct agent_exec;
void agent_pack_exec(struct agent_builder *fields, const struct agent_exec *exec);
struct agent_exec_result;
int agent_exec_unpack(struct agent_cursor *fields, struct agent_exec_result *ret_result, struct error *err);

// Of agent_files.c: gives each piece of output to `take` until the end; a negative answer of it ends the
// call.
int agent_call_pump(struct agent_call *call, int (*take)(void *context, const void *bytes, size_t size),
        void *context, struct error *err);
// Opens the stream, sends what source gives, waits for the result. fields is freed. ret_fields (may be NULL)
// are valid until agent_call_end, which the caller says when this succeeded.
int agent_call_upload(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct agent_call *ret_call, struct error *err);

// Shut: frames of calls that do not pass it are kept. -EBUSY: it is shut already.
int agent_gate_shut(struct agent *agent);
void agent_gate_open(struct agent *agent);
// For calls that wait without a limit. When nothing at all has come for a while the guest is pinged;
// -ETIMEDOUT with words when it does not answer, though nobody holds it still. Else 0.
int agent_check_silence(struct agent *agent, struct error *err);
enum { AGENT_QUIET_MS = 30000, AGENT_ANSWER_MS = 60000 }; // how long "a while" and the answer may be
void agent_set_patience(struct agent *agent, unsigned quiet_ms, unsigned answer_ms); // tests have less
unsigned agent_quiet_ms(struct agent *agent);
uint64_t agent_best_round_trip_ns(struct agent *agent);
void agent_note_round_trip(struct agent *agent, uint64_t ns);
