// SPDX-License-Identifier: Apache-2.0
// Input of processes that E2B's clients start: a FIFO in the guest that the process reads, whose writing end
// a small shell loop holds open until the input is closed or the process is gone. It lies in a folder of mode
// 0700 with an unguessable name, the process's user's, and only that user works in it: another user of the
// guest can neither be there first nor reach it, and root follows nothing that a user put there. Name and
// user are in the job's name.
//
// Threads: any. For e2b_process.c alone.
#pragma once

#include "vmglue/agent_client.h"
#include "vmglue/json.h"
#include "vmglue/sandbox.h"

enum { E2B_STDIN_NAME_SIZE = AGENT_JOB_NAME_MAX + 1, E2B_STDIN_LINE_MAX = 512 };

struct http_request;

// A name for the job of a process of this user ("" = the default one). -EINVAL: the user's name is too long.
int e2b_stdin_name(const char *user, char ret_name[E2B_STDIN_NAME_SIZE], struct error *err);
// What follows `set -- PROGRAM ARGUMENTS...` in the job's line.
void e2b_stdin_line(const char *name, char ret_line[E2B_STDIN_LINE_MAX]);
// body: {"input":{"stdin":"<base64>"}}. -EBUSY: it takes none (any more).
int e2b_stdin_give(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err);
int e2b_stdin_close(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err);
// Of a job that was killed, with the loop: removes what is left. Jobs without input have nothing.
void e2b_stdin_forget(struct sandbox_agent *use, const struct agent_job *job);
// The route of StreamInput: frames of input in their order, for a process or a terminal.
void e2b_stdin_stream(struct http_request *request);
