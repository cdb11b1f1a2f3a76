// SPDX-License-Identifier: Apache-2.0
// The EXEC operation: reads the request and starts the command as a job.
#pragma once

#include "vmglue/agent_protocol.h"

// fields: the request behind its operation. Answers on the stream, now if it is refused.
void exec_start(uint32_t stream, struct agent_cursor fields);
