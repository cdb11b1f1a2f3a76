// SPDX-License-Identifier: Apache-2.0
// Background jobs: commands that belong to no session, with a log of each output and how they ended. They
// stay known after their end until removed, or until newer ones need their place.
//
// Logs are memory of the agent: at most AGENT_JOB_LOG_BYTES each, together a sixteenth of the machine's
// memory; a log grows by doubling, and the oldest ended jobs give theirs up first. Whoever reads a log is
// held back by its window; the job never is.
#pragma once

#include "vmglue/agent_protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct background;
struct job;

// A record for a job that is about to start; its start is answered on the stream. NULL: that was answered.
// mark: the host's, by which it knows the job again.
struct background *background_new(uint32_t stream, const char *name, const char *mark, const char *command);
void background_not_started(struct background *background); // frees it

// From the job: it has a process; output of a channel is there to be read (as read(2), -errno); it ended.
void background_begun(struct background *background, struct job *job);
ssize_t background_read(struct background *background, unsigned channel, int fd, uint64_t limit);
void background_ended(struct background *background, struct job *job);

// The JOB_ operations but for JOB_START. Answers on the stream.
void background_request(uint32_t stream, enum agent_operation operation, struct agent_cursor fields);
bool background_waits(uint32_t stream);
bool background_window(uint32_t stream, unsigned channel, uint32_t bytes);
bool background_cancel(uint32_t stream);
void background_detach_all(void);
void background_quiet(bool quiet);
void background_room(void);
