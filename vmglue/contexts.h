// SPDX-License-Identifier: Apache-2.0
// Code contexts: processes in the guest that keep their state from one piece of code to the next
// (guest/context).
//
// The host keeps nothing of them: a context is a job of the guest's agent, named "context:LANGUAGE:ID", with
// a socket that is named after it. So it survives whatever its machine survives: snapshots, forks, other
// daemons. Threads: any; calls wait. One run at a time in a context, up to 16 wait, more are -EAGAIN. Errors:
// -ENOENT no such context, -EEXIST, -EINVAL, -ENOTSUP the guest cannot (no IPython, an old agent), -EPIPE the
// guest is gone, -EPROTO.
#pragma once

#include "vmglue/context_stream.h"
#include "vmglue/sandbox.h"

#include <stdint.h>

enum { CONTEXTS_ID_MAX = 40, CONTEXTS_MAX = 32 };

struct contexts_create {
    const char *id;       // NULL = one is made
    const char *language; // NULL = "python"; or "bash"
    const char *cwd;      // NULL = the user's home
    const char *user;     // NULL = the sandbox's, or "user"
    const json_t *env;    // over the sandbox's own; may be NULL
    const char *mark;     // of the job that it is; NULL = none
};
// Answers when it can run code. Contexts in JSON: id language state (starting, idle, busy, unavailable,
// ended) reason created_at execution_count queued.
int contexts_create(struct sandbox_agent *use, const struct contexts_create *create, json_t **ret_json,
        struct error *err);
// The one that was made with this mark, when it can run code. -ENOENT.
int contexts_marked(struct sandbox_agent *use, const char *mark, json_t **ret_json, struct error *err);
int contexts_list(struct sandbox_agent *use, json_t **ret_list, struct error *err); // an array
int contexts_show(struct sandbox_agent *use, const char *id, json_t **ret_json, struct error *err);
int contexts_remove(
        struct sandbox_agent *use, const char *id, struct error *err); // ends all that its code started
// What still runs a few seconds after a second interrupt (or one with kill) is ended with the context's
// state.
int contexts_interrupt(
        struct sandbox_agent *use, const char *id, bool kill, bool *ret_interrupted, struct error *err);
// New processes under the same id; answers when they can run code.
int contexts_restart(struct sandbox_agent *use, const char *id, json_t **ret_json, struct error *err);

struct contexts_run {
    const char *id; // "python", "bash" and "default" (which is "python") are made when they are first used
    const char *code;
    uint64_t timeout_ms;           // 0 = none
    context_stream_event on_event; // may be NULL
    void *context;
    bool (*cancelled)(
            void *context); // asked every 100 ms; true = interrupt it, and end it when it does not end
};
// *ret_execution: the API's Execution (context_stream.h).
int contexts_run(
        struct sandbox_agent *use, const struct contexts_run *run, json_t **ret_execution, struct error *err);
// Makes the default context and lets it go, once, the ways that code will go (imports, a table, a figure),
// without a trace. For templates and for machines that wait: what runs in the guest is not trusted to end, so
// it is given up in the end, and when cancelled (asked as in contexts_run) says so.
int contexts_warm(
        struct sandbox_agent *use, bool (*cancelled)(void *context), void *context, struct error *err);
