// SPDX-License-Identifier: Apache-2.0
// The EXEC, PTY and JOB_START operations: reads the request and starts the command as a job.
#pragma once

#include "vmglue/agent_protocol.h"

#include <stdbool.h>

// fields: the request behind its operation. Answers on the stream, now if it is refused.
void exec_start(uint32_t stream, enum agent_operation operation, struct agent_cursor fields);

struct job_terminal;
bool exec_terminal_size(const struct job_terminal *terminal); // whether a terminal can have it
