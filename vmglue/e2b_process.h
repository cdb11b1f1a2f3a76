// SPDX-License-Identifier: Apache-2.0
// What e2b_process.c and e2b_pty.c share. Not for anybody else.
#pragma once

#include "vmglue/e2b_connect.h"
#include "vmglue/route_exec.h"

// From their StartRequest: takes the agent and fills call->exec. *ret_native (a new reference, set on failure
// too when it was made) holds what it points at: released after route_exec_end. ret_feed, of
// E2B_STDIN_NAME_SIZE, gets the job's name when it takes input; NULL = it has none.
int e2b_process_take(
        struct route_exec *call, const json_t *body, char *ret_feed, json_t **ret_native, struct error *err);
// The running job that {"process":{"pid":N}} means.
int e2b_process_find(
        struct sandbox_agent *use, const json_t *body, struct agent_job *ret_job, struct error *err);
json_t *e2b_process_end(int exit_code, int signal); // the event of an end

// ---- e2b_pty.c ----
void e2b_pty_run(struct http_request *request, const json_t *body); // a StartRequest with "pty"
// SendInput, SendSignal, Update of a terminal's pid: true, and it has replied.
bool e2b_pty_act(struct http_request *request, const json_t *body);
bool e2b_pty_is(const json_t *process); // whether {"pid":N} is a terminal's
// The same without a reply. false: it is no terminal's.
bool e2b_pty_do(struct http_request *request, const json_t *body, int *ret_result, struct error *err);
