// SPDX-License-Identifier: Apache-2.0
// What happens to sandboxes, in order, kept for those who ask: the last some thousand events of this daemon.
//
// An id names one event of one daemon's life ("a1b2c3d4-17"). Who comes back with the id of the last event it
// saw gets what came after it; when that cannot be told (too old, another daemon's, no id of ours) it gets
// one "gap" event first, never silence. Threads: any; the lock is a leaf.
#pragma once

#include "vmglue/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { SANDBOX_EVENT_ID_SIZE = 32, SANDBOX_EVENTS_KEPT = 4096 };

struct sandbox_events;

struct sandbox_events *sandbox_events_create(void);                           // NULL: no memory
struct sandbox_events *sandbox_events_destroy(struct sandbox_events *events); // accepts NULL
// Adds "time" and "type" to data, which is stolen. sandbox_id "" = of no sandbox.
void sandbox_events_add(
        struct sandbox_events *events, const char *sandbox_id, const char *type, json_t *data);

struct sandbox_events_cursor {
    uint64_t next; // sequence of the event to give
    bool gap;      // to be told first
};
// last_id NULL: from the oldest kept, or, with from_now, from now on.
struct sandbox_events_cursor sandbox_events_begin(
        struct sandbox_events *events, const char *last_id, bool from_now);
struct sandbox_event {
    char id[SANDBOX_EVENT_ID_SIZE];
    char type[24];
    json_t *data; // the caller's
};
// Nobody waits for events any more: for the end of the daemon.
void sandbox_events_end(struct sandbox_events *events);
// 1 and an event, or 0 when none came within wait_ms. sandbox_id NULL = of all.
int sandbox_events_next(struct sandbox_events *events, struct sandbox_events_cursor *cursor,
        const char *sandbox_id, unsigned wait_ms, struct sandbox_event *ret_event);
