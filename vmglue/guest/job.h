// SPDX-License-Identifier: Apache-2.0
// A job: one child process that works for a stream, with its input, outputs and result. An exec and each file
// operation is one, so that neither a slow disk nor a full pipe ever stops the agent itself. A connection to
// a port of the guest is a job without a process. A background job has no stream: its output goes into logs.
//
// Outputs are read only while the stream has credit and the port has room, so memory is bounded by the
// windows. When a session ends, its execs run on: their output is read and thrown away, so that no write of
// theirs fails. Helpers of an ended session are given up: a half-written file never appears.
#pragma once

#include "vmglue/agent_protocol.h"

#include <stdbool.h>
#include <stdint.h>

// What the child runs; in the user cgroup for an exec. Descriptors: 0 input, 1 output, 2 second output,
// JOB_STATUS_FD takes a struct job_failure, or a helper's packed result; JOB_COMMIT_FD gives a byte when the
// input was whole. Returns the exit code.
typedef int job_child(void *argument);

enum { JOB_STATUS_FD = 3, JOB_COMMIT_FD = 4 };

enum job_stage { JOB_REFUSED = 1, JOB_NOT_EXECUTED = 2 };
struct job_failure { // the child could not begin (JOB_REFUSED) or execve failed
    int32_t stage, code;
    char sentence[480];
};

struct background;
struct job_terminal {
    unsigned rows, columns;
};

struct job_config {
    uint32_t stream;
    bool exec;                           // else a helper
    bool ends_with_session;              // a helper that would not end by itself
    const struct job_terminal *terminal; // of an exec: its input and outputs; NULL = pipes
    struct background *background;       // of an exec without a stream: who gets its output and its end
    bool input;                          // the stream brings bytes; else /dev/null
    uint64_t timeout_ms;                 // 0 = none
    uint16_t operation;
    job_child *child;
    void *argument;       // needed until job_start returns
    uint8_t *input_bytes; // malloc'ed, the job's once it started: all of its input; NULL = the stream's
    size_t input_size;
};
// Starts it; the RESULT is sent by the job. On failure nothing was sent. -EAGAIN: too many processes or
// streams.
int job_start(const struct job_config *config);
// The same for a socket that is connected: the stream has its descriptor from now on, unless this fails.
int job_connection(uint32_t stream, int fd);
int job_resize(uint32_t stream, const struct job_terminal *terminal); // -ENOENT, -ENOTTY

// Sends a RESULT frame: status, sentence, then `fields` (may be NULL).
void job_result(uint32_t stream, int status, const char *sentence, const struct agent_builder *fields);

// Frames for a stream; false: no such stream (it may just have ended).
bool job_data(uint32_t stream, unsigned channel, const void *bytes, size_t size, bool end);
bool job_window(uint32_t stream, unsigned channel, uint32_t bytes);
bool job_cancel(uint32_t stream);

void job_detach_all(void);  // the session is over
void job_quiet(bool quiet); // quiet: nothing is read from jobs and no result is sent
void job_room(void);        // the port has room again
void job_reap(void);        // SIGCHLD
bool job_exists(uint32_t stream);
