// SPDX-License-Identifier: Apache-2.0
// The DIAL operation: connects to a port or a socket of this machine; the stream then is that connection.
#pragma once

#include "vmglue/agent_protocol.h"

#include <stdbool.h>

// fields: the request behind its operation. Answers on the stream.
void dial_start(uint32_t stream, struct agent_cursor fields);
bool dial_waits(uint32_t stream);
bool dial_cancel(uint32_t stream);
void dial_detach_all(void);
void dial_quiet(bool quiet);
