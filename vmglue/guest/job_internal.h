// SPDX-License-Identifier: Apache-2.0
// What job.c, job_spawn.c and job_streams.c share: the job itself.
#pragma once

#include "vmglue/guest/job.h"
#include "vmglue/guest/loop.h"

#include <stddef.h>
#include <sys/types.h>

struct job;

struct job_output {
    struct loop_source source; // fd -1 when closed
    struct job *job;
    unsigned channel;
    uint32_t credit;
    bool discard;
    uint64_t remaining;      // bytes in the pipe when the process ended; UINT64_MAX before
    struct loop_timer pause; // small pieces are given time to become bigger ones
    uint64_t pause_until_ns;
};

struct job_input {
    struct loop_source source; // fd -1 when closed
    struct job *job;
    uint8_t *bytes;
    size_t start, stored;
    uint32_t credit_owed; // written, not yet granted again
    bool end;             // close when all is written
};

struct job {
    struct job *next;
    uint32_t stream; // 0 = nobody listens any more
    uint32_t id;     // names its cgroup
    bool exec, exited, timed_out;
    bool terminal, connection; // in and out[0] are two descriptors of one terminal or socket
    bool hangs_up;             // the terminal was taken away
    bool ends_with_session;
    struct background *background;
    int reset; // of a connection: -errno that ended it
    uint16_t operation;
    pid_t pid;
    int wait_status;
    uint64_t started_ns, oom_kills_before;
    struct job_input in;
    struct job_output out[2];
    int status_fd, commit_fd;
    uint8_t *failure_bytes; // what came over the status descriptor
    size_t failure_size;
    struct loop_timer deadline;
};

extern struct job *job_list;
bool job_is_quiet(void);
struct job *job_find(uint32_t stream);
void job_kill(struct job *job);
void job_progress(struct job *job); // may free it

bool job_no_memory(const struct job *job); // the kernel killed it for memory

// job_spawn.c
int job_spawn(struct job *job, const struct job_config *config);

// job_streams.c
void job_output_update(struct job_output *output); // watches it, or not, as credit and room are
void job_output_bound(struct job_output *output);  // the process ended: no more than is in the pipe now
void job_input_flush(struct job *job);
void job_input_close(struct job *job, bool commit);
void job_output_close(struct job_output *output);
void job_collect_failure(struct job *job);
