// SPDX-License-Identifier: Apache-2.0
// The session with the host: takes frames from the port and carries out requests. The states of the machine's
// user processes and what may happen in each are in session.c.
#pragma once

#include "vmglue/agent_protocol.h"

void session_frame(const struct agent_frame *frame);
void session_room(void);
void session_init(void (*power_off)(void)); // what POWEROFF does, after its answer
