// SPDX-License-Identifier: Apache-2.0
// Who waits for a background job: for its end, or for what it writes.
#include "vmglue/guest/background_internal.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/job_internal.h"
#include "vmglue/guest/port.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_HEAD_BYTES = 12 };

struct listener {
    struct listener *next;
    uint32_t stream;
    const struct background *background;
    bool logs, follow;
    uint32_t credit;
    uint64_t at[2], until[2];
};

static struct listener *listeners;

static struct listener *find(uint32_t stream)
{
    struct listener *one = listeners;
    while (one != NULL && one->stream != stream)
        one = one->next;
    return one;
}

static void listener_free(struct listener *listener)
{
    struct listener **link = &listeners;
    while (*link != listener)
        link = &(*link)->next;
    *link = listener->next;
    free(listener);
}

// Sends one piece of a log. False: there is none, or it must wait.
static bool send_record(struct listener *listener, unsigned i)
{
    const struct background_log *log = &listener->background->log[i];
    uint64_t first = background_log_first(log), limit = listener->follow ? log->end : listener->until[i];
    if (listener->at[i] < first)
        listener->at[i] = first;
    if (listener->at[i] >= limit || listener->credit <= RECORD_HEAD_BYTES || !port_has_room())
        return false;
    size_t size;
    const uint8_t *bytes = background_log_at(log, listener->at[i], &size);
    size_t most = (listener->credit < AGENT_PAYLOAD_MAX ? listener->credit : AGENT_PAYLOAD_MAX) -
                  (size_t)RECORD_HEAD_BYTES;
    size = size < most ? size : most;
    size = limit - listener->at[i] < size ? (size_t)(limit - listener->at[i]) : size;
    struct agent_builder record = {0};
    agent_builder_u32(&record, i + 1);
    agent_builder_u64(&record, listener->at[i]);
    agent_builder_bytes(&record, bytes, size);
    bool sent = !record.failed;
    if (sent) {
        port_send(AGENT_DATA, 1 << AGENT_FLAG_CHANNEL_SHIFT, listener->stream, record.bytes, record.size);
        listener->credit -= (uint32_t)record.size;
        listener->at[i] += size;
    }
    agent_builder_free(&record);
    return sent;
}

static bool all_sent(const struct listener *listener)
{
    for (unsigned i = 0; i < 2 && listener->logs; i++) {
        const struct background_log *log = &listener->background->log[i];
        uint64_t limit = listener->follow ? log->end : listener->until[i];
        if (listener->at[i] < limit && limit > background_log_first(log))
            return false;
    }
    return true;
}

// May free it.
static void listener_update(struct listener *listener)
{
    if (job_is_quiet())
        return;
    while (listener->logs && (send_record(listener, 0) || send_record(listener, 1)))
        ;
    bool waits_for_end = !listener->logs || listener->follow;
    if ((waits_for_end && listener->background->job != NULL) || !all_sent(listener))
        return;
    background_answer(listener->stream, listener->background);
    listener_free(listener);
}

static void update_all(const struct background *of)
{
    for (struct listener *one = listeners, *next; one != NULL; one = next) {
        next = one->next;
        if (of == NULL || one->background == of)
            listener_update(one);
    }
}

void background_listeners_update(const struct background *background)
{
    update_all(background);
}

void background_listeners_end(const struct background *background)
{
    for (struct listener *one = listeners, *next; one != NULL; one = next) {
        next = one->next;
        if (one->background != background)
            continue;
        if (!job_is_quiet())
            job_result(one->stream, -ENOENT, "the job was removed", NULL);
        listener_free(one);
    }
}

void background_listen(uint32_t stream, enum agent_operation operation, struct agent_cursor fields)
{
    bool logs = operation == AGENT_JOB_READ_LOGS;
    uint32_t id = agent_cursor_u32(&fields);
    uint64_t at[2] = {0};
    for (int i = 0; i < 2 && logs; i++)
        at[i] = agent_cursor_u64(&fields);
    bool follow = logs && agent_cursor_u8(&fields) != 0;
    const struct background *background = fields.bad ? NULL : background_find(id, "");
    struct listener *listener = background == NULL ? NULL : calloc(1, sizeof *listener);
    if (listener == NULL) {
        job_result(stream,
                fields.bad           ? -EINVAL
                : background == NULL ? -ENOENT
                                     : -ENOMEM,
                fields.bad           ? "the request cannot be read"
                : background == NULL ? "there is no such job"
                                     : "the agent has no memory",
                NULL);
        return;
    }
    *listener = (struct listener){.next = listeners,
            .stream = stream,
            .background = background,
            .logs = logs,
            .follow = follow,
            .credit = AGENT_WINDOW_BYTES};
    for (int i = 0; i < 2; i++) {
        listener->until[i] = background->log[i].end;
        listener->at[i] = at[i] < listener->until[i] ? at[i] : listener->until[i];
    }
    listeners = listener;
    listener_update(listener);
}

bool background_waits(uint32_t stream)
{
    return find(stream) != NULL;
}

bool background_window(uint32_t stream, unsigned channel, uint32_t bytes)
{
    struct listener *listener = find(stream);
    if (listener == NULL || channel != 1)
        return false;
    listener->credit = bytes > UINT32_MAX - listener->credit ? UINT32_MAX : listener->credit + bytes;
    listener_update(listener);
    return true;
}

bool background_cancel(uint32_t stream)
{
    struct listener *listener = find(stream);
    if (listener == NULL)
        return false;
    if (!job_is_quiet())
        job_result(stream, -ECANCELED, "given up", NULL);
    listener_free(listener);
    return true;
}

void background_detach_all(void)
{
    while (listeners != NULL)
        listener_free(listeners);
    for (struct background *one = background_list; one != NULL; one = one->next)
        one->start_stream = one->remove_stream = 0;
}

void background_room(void)
{
    update_all(NULL);
}
