// SPDX-License-Identifier: Apache-2.0
// A capture (capture.h) of a sandbox: its disks, its record's words, running or paused. Shared by snapshot,
// fork, stop, restore. All (op).
#pragma once

#include "vmglue/sandbox_internal.h"

struct sandbox_capture {
    struct sandbox *sandbox;
    struct capture_request request; // filled; what is special is set between begin and run
    char *body;                     // malloc'ed
    // As in capture_request; context is its first argument.
    int (*extend)(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err);
    void *context;
};
// labels: JSON object or NULL. inner: "stop", "fork", or NULL = the user's. by: of the request, or NULL; the
// owner is the sandbox's.
int sandbox_capture_begin(struct sandbox *sandbox, const json_t *labels, const char *inner,
        const struct made_by *by, struct sandbox_capture *ret_capture, struct error *err);
int sandbox_capture_run(
        struct sandbox_capture *capture, struct capture_result *ret_result, struct error *err);
void sandbox_capture_end(struct sandbox_capture *capture);
struct base_id sandbox_memory_origin(
        const struct sandbox *sandbox); // of its snapshots (memory_map.h); 0 = none
