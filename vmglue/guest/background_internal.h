// SPDX-License-Identifier: Apache-2.0
// What background.c (jobs), background_log.c (their logs) and background_read.c (who waits for them) share.
#pragma once

#include "vmglue/guest/background.h"
#include "vmglue/guest/loop.h"

enum {
    BACKGROUND_LOG_BYTES = 1 << 20,
    BACKGROUND_JOBS_MAX = 256,
    BACKGROUND_NAME_MAX = 64,
    BACKGROUND_MARK_MAX = 32
};

struct background_log {
    uint8_t *bytes; // of capacity; the byte at offset o is at o % capacity
    size_t capacity, kept;
    uint64_t end; // bytes ever written
};

struct background {
    struct loop_source status; // tells when the command was executed
    struct background *next;   // newest first
    uint32_t id, cgroup_id;
    uint32_t start_stream, remove_stream; // to be answered; 0 = none
    char name[BACKGROUND_NAME_MAX + 1];
    char mark[BACKGROUND_MARK_MAX + 1];
    char command[200];
    struct job *job; // NULL once it ended
    bool started, doomed, timed_out, out_of_memory;
    int pid, exit_code, signal;
    uint64_t started_ns, ended_ns, began_monotonic_ns, duration_ms;
    struct background_log log[2];
};

extern struct background *background_list;
struct background *background_find(uint32_t id, const char *name); // id 0: by name
void background_pack(const struct background *background, struct agent_builder *fields);
void background_answer(uint32_t stream, const struct background *background);

// background_log.c
ssize_t background_log_read(struct background_log *log, int fd, uint64_t limit);
uint64_t background_log_first(const struct background_log *log);
// Bytes at the offset (first <= offset < end) that lie in one piece.
const uint8_t *background_log_at(const struct background_log *log, uint64_t offset, size_t *ret_size);
void background_log_free(struct background_log *log);

// background_read.c
void background_listeners_update(const struct background *background); // there is more, or it ended
void background_listeners_end(const struct background *background);    // it is going to be freed
void background_listen(uint32_t stream, enum agent_operation operation, struct agent_cursor fields);
