// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_events.h"

#include "blockstore/clock.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct kept {
    char sandbox_id[24], type[24];
    json_t *data;
};

struct sandbox_events {
    uint32_t epoch; // of this daemon
    pthread_mutex_t lock;
    pthread_cond_t added;
    bool ended;                            // (lock)
    uint64_t next;                         // (lock) sequence of the next event; the first is 1
    struct kept ring[SANDBOX_EVENTS_KEPT]; // (lock) sequence modulo its size
};

struct sandbox_events *sandbox_events_create(void)
{
    struct sandbox_events *events = calloc(1, sizeof *events);
    pthread_condattr_t monotonic;
    if (events == NULL)
        return NULL;
    if (getrandom(&events->epoch, sizeof events->epoch, 0) != sizeof events->epoch)
        abort(); // the kernel gives these once it has booted
    events->next = 1;
    pthread_mutex_init(&events->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&events->added, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return events;
}

struct sandbox_events *sandbox_events_destroy(struct sandbox_events *events)
{
    if (events == NULL)
        return NULL;
    for (size_t i = 0; i < SANDBOX_EVENTS_KEPT; i++)
        json_decref(events->ring[i].data);
    pthread_cond_destroy(&events->added);
    pthread_mutex_destroy(&events->lock);
    free(events);
    return NULL;
}

void sandbox_events_add(struct sandbox_events *events, const char *sandbox_id, const char *type, json_t *data)
{
    if (data == NULL)
        return;
    json_object_set_new(data, "type", json_string(type));
    json_object_set_new(data, "time", json_fields_time(clock_wall_ns()));
    pthread_mutex_lock(&events->lock);
    struct kept *kept = &events->ring[events->next++ % SANDBOX_EVENTS_KEPT];
    json_t *old = kept->data;
    kept->data = data;
    snprintf(kept->sandbox_id, sizeof kept->sandbox_id, "%s", sandbox_id);
    snprintf(kept->type, sizeof kept->type, "%s", type);
    pthread_cond_broadcast(&events->added);
    pthread_mutex_unlock(&events->lock);
    json_decref(old);
}

void sandbox_events_end(struct sandbox_events *events)
{
    pthread_mutex_lock(&events->lock);
    events->ended = true;
    pthread_cond_broadcast(&events->added);
    pthread_mutex_unlock(&events->lock);
}

static uint64_t oldest_locked(const struct sandbox_events *events)
{
    return events->next > SANDBOX_EVENTS_KEPT ? events->next - SANDBOX_EVENTS_KEPT : 1;
}

// "EPOCH-SEQUENCE", exactly as it was given.
static bool parse_id(const struct sandbox_events *events, const char *text, uint64_t *ret_sequence)
{
    unsigned epoch;
    uint64_t sequence;
    char again[SANDBOX_EVENT_ID_SIZE];
    if (sscanf(text, "%8x-%" SCNu64, &epoch, &sequence) != 2 || epoch != events->epoch)
        return false;
    snprintf(again, sizeof again, "%08x-%" PRIu64, epoch, sequence);
    *ret_sequence = sequence;
    return strcmp(again, text) == 0;
}

struct sandbox_events_cursor sandbox_events_begin(
        struct sandbox_events *events, const char *last_id, bool from_now)
{
    struct sandbox_events_cursor cursor = {0};
    uint64_t last;
    pthread_mutex_lock(&events->lock);
    uint64_t oldest = oldest_locked(events);
    if (last_id == NULL)
        cursor.next = from_now ? events->next : oldest;
    else if (parse_id(events, last_id, &last) && last + 1 >= oldest && last < events->next)
        cursor.next = last + 1;
    else
        cursor = (struct sandbox_events_cursor){.next = oldest, .gap = true};
    pthread_mutex_unlock(&events->lock);
    return cursor;
}

static void give_gap(const struct sandbox_events *events, struct sandbox_events_cursor *cursor,
        struct sandbox_event *ret_event)
{
    cursor->gap = false;
    snprintf(ret_event->id, sizeof ret_event->id, "%08x-%" PRIu64, events->epoch, cursor->next - 1);
    snprintf(ret_event->type, sizeof ret_event->type, "gap");
    ret_event->data = json_pack("{s:s, s:s}", "type", "gap", "message",
            "events before this one are not known any more; read the sandboxes' states anew");
}

// The next one that is there already. Lock held.
static bool find_locked(struct sandbox_events *events, struct sandbox_events_cursor *cursor,
        const char *sandbox_id, struct sandbox_event *ret_event)
{
    if (cursor->next < oldest_locked(events)) { // overtaken by the ring
        cursor->next = oldest_locked(events);
        cursor->gap = true;
    }
    if (cursor->gap) {
        give_gap(events, cursor, ret_event);
        return true;
    }
    while (cursor->next < events->next) {
        uint64_t sequence = cursor->next++;
        const struct kept *kept = &events->ring[sequence % SANDBOX_EVENTS_KEPT];
        if (sandbox_id != NULL && strcmp(kept->sandbox_id, sandbox_id) != 0)
            continue;
        snprintf(ret_event->id, sizeof ret_event->id, "%08x-%" PRIu64, events->epoch, sequence);
        memcpy(ret_event->type, kept->type, sizeof ret_event->type);
        ret_event->data = json_deep_copy(kept->data);
        return true;
    }
    return false;
}

int sandbox_events_next(struct sandbox_events *events, struct sandbox_events_cursor *cursor,
        const char *sandbox_id, unsigned wait_ms, struct sandbox_event *ret_event)
{
    struct timespec until = clock_deadline(wait_ms);
    pthread_mutex_lock(&events->lock);
    bool found = find_locked(events, cursor, sandbox_id, ret_event);
    while (!found && wait_ms > 0 && !events->ended &&
            pthread_cond_timedwait(&events->added, &events->lock, &until) == 0)
        found = find_locked(events, cursor, sandbox_id, ret_event);
    pthread_mutex_unlock(&events->lock);
    return found;
}
