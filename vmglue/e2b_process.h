// SPDX-License-Identifier: Apache-2.0
// What e2b_process.c and e2b_pty.c share. Not for anybody else.
#pragma once

#include "vmglue/e2b_connect.h"
#include "vmglue/route_exec.h"

// From their StartRequest: takes the agent and fills call->exec. *ret_native (a new reference, set on failure
// too when it was made) holds what it points at: released after route_exec_end.
int e2b_process_take(struct route_exec *call, const json_t *body, bool need_command, json_t **ret_native,
        struct error *err);
json_t *e2b_process_end(int exit_code, int signal); // the event of an end

// ---- e2b_pty.c ----
void e2b_pty_run(struct http_request *request, const json_t *body); // a StartRequest with "pty"
// SendInput, SendSignal, Update of a terminal's pid: true, and it has replied.
bool e2b_pty_act(struct http_request *request, const json_t *body);
