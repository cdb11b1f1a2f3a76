// SPDX-License-Identifier: Apache-2.0
// Calls: a thread asks, and waits for pieces and the result; declared in agent_connection.h.
#include "blockstore/clock.h"
#include "vmglue/agent_client.h"
#include "vmglue/agent_connection_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int post_request_locked(
        struct agent *agent, struct agent_call *call, const struct agent_builder *request)
{
    int result = 0;
    for (size_t done = 0; result == 0 && done < request->size;) {
        size_t size = request->size - done < AGENT_PAYLOAD_MAX ? request->size - done : AGENT_PAYLOAD_MAX;
        bool more = done + size < request->size;
        result = agent_post_locked(
                agent, call, AGENT_REQUEST, more ? AGENT_FLAG_MORE : 0, request->bytes + done, size);
        done += size;
    }
    return result;
}

// What a machine's agent cannot do because the machine was resumed from a snapshot of an older release.
static int too_old(enum agent_operation operation, struct error *err)
{
    static const char *const names[] = {
            [AGENT_DIAL] = "connections to the guest's ports",
            [AGENT_PTY] = "terminals",
            [AGENT_PTY_RESIZE] = "terminals",
            [AGENT_JOB_START] = "background jobs",
            [AGENT_JOB_LIST] = "background jobs",
            [AGENT_JOB_GET] = "background jobs",
            [AGENT_JOB_WAIT] = "background jobs",
            [AGENT_JOB_SIGNAL] = "background jobs",
            [AGENT_JOB_REMOVE] = "background jobs",
            [AGENT_JOB_READ_LOGS] = "background jobs",
            [AGENT_FILE_READ_RANGE] = "reading parts of files",
            [AGENT_FILE_APPEND] = "appending to files",
            [AGENT_FILE_MOVE] = "moving files",
            [AGENT_FILE_CHMOD] = "changing modes of files",
            [AGENT_UPLOAD_BEGIN] = "uploads in pieces",
            [AGENT_UPLOAD_WRITE] = "uploads in pieces",
            [AGENT_UPLOAD_GET] = "uploads in pieces",
            [AGENT_UPLOAD_COMMIT] = "uploads in pieces",
            [AGENT_UPLOAD_DROP] = "uploads in pieces",
            [AGENT_WATCH] = "watching files",
            [AGENT_NETWORK] = "setting the network up",
            [AGENT_DISK_MOUNT] = "mounting disks",
            [AGENT_DISK_UNMOUNT] = "mounting disks",
            [AGENT_DISK_GROW] = "growing file systems",
    };
    const char *name = operation < sizeof names / sizeof *names ? names[operation] : NULL;
    return error_set(err, -EOPNOTSUPP,
            "%s: not known to the agent in this machine, which comes from a snapshot of an older release; a "
            "start from the disk alone gives it the present one",
            name != NULL ? name : "this request");
}

int agent_call_begin(struct agent *agent, enum agent_operation operation, const struct agent_builder *fields,
        bool passes_gate, struct agent_call *ret_call, struct error *err)
{
    if (operation > AGENT_POWEROFF && agent->version < 2)
        return too_old(operation, err);
    struct agent_builder request = {0};
    agent_builder_u32(&request, operation);
    if (fields != NULL) {
        agent_builder_bytes(&request, fields->bytes, fields->size);
        request.failed = request.failed || fields->failed;
    }
    *ret_call = (struct agent_call){.agent = agent, .passes_gate = passes_gate, .credit = AGENT_WINDOW_BYTES};
    ret_call->last = &ret_call->first;
    if (request.failed || request.size > AGENT_REQUEST_MAX) {
        agent_builder_free(&request);
        return error_set(err, -E2BIG, "the request is larger than the %d MiB that a guest takes",
                AGENT_REQUEST_MAX >> 20);
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ret_call->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_lock(&agent->lock);
    if (++agent->last_stream == 0)
        ++agent->last_stream;
    ret_call->stream = agent->last_stream;
    int result = post_request_locked(agent, ret_call, &request);
    if (result == 0) {
        ret_call->next = agent->calls;
        agent->calls = ret_call;
        agent->users++;
    }
    pthread_mutex_unlock(&agent->lock);
    agent_builder_free(&request);
    if (result < 0) {
        pthread_cond_destroy(&ret_call->changed);
        return error_set(err, result, "%s",
                result == -ENOMEM ? "no memory for a request to the guest"
                                  : "the connection to the guest is gone: has the machine stopped?");
    }
    return 0;
}

void agent_call_end(struct agent_call *call)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    struct agent_call **link = &agent->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (!call->done)
        agent_post_locked(agent, call, AGENT_CANCEL, 0, NULL, 0);
    if (--agent->users == 0)
        pthread_cond_broadcast(&agent->idle);
    pthread_mutex_unlock(&agent->lock);
    for (struct agent_piece *piece = call->first, *next; piece != NULL; piece = next) {
        next = piece->next;
        free(piece);
    }
    free(call->result);
    pthread_cond_destroy(&call->changed);
}

int agent_call_wait_done(struct agent_call *call, unsigned limit_ms)
{
    struct timespec until = clock_deadline(limit_ms);
    int result = 0;
    pthread_mutex_lock(&call->agent->lock);
    while (!call->done && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&call->changed, &call->agent->lock, &until);
    result = call->done ? 0 : -ETIMEDOUT;
    pthread_mutex_unlock(&call->agent->lock);
    return result;
}

int agent_call_wait(
        struct agent_call *call, unsigned limit_ms, bool credit_too, struct agent_piece **ret_piece)
{
    struct agent *agent = call->agent;
    struct timespec until = clock_deadline(limit_ms);
    int result = 0;
    pthread_mutex_lock(&agent->lock);
    while (result == 0) {
        if (call->first != NULL) {
            *ret_piece = call->first;
            call->first = call->first->next;
            if (call->first == NULL)
                call->last = &call->first;
            result = AGENT_EVENT_PIECE;
        } else if (call->done) {
            result = AGENT_EVENT_DONE;
        } else if (credit_too && call->credit > 0) {
            result = AGENT_EVENT_CREDIT;
        } else if (pthread_cond_timedwait(&call->changed, &agent->lock, &until) == ETIMEDOUT) {
            result = -ETIMEDOUT;
        }
    }
    pthread_mutex_unlock(&agent->lock);
    return result;
}

void agent_call_taken(struct agent_call *call, struct agent_piece *piece)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    unsigned channel = piece->channel;
    call->waiting_bytes[channel] -= (uint32_t)piece->size;
    call->owed_bytes[channel] += (uint32_t)piece->size;
    call->waiting_empty -= piece->size == 0;
    if (call->owed_bytes[channel] >= AGENT_WINDOW_BYTES / 4 && !call->done) {
        struct agent_builder grant = {0};
        agent_builder_u32(&grant, call->owed_bytes[channel]);
        if (!grant.failed &&
                agent_post_locked(agent, call, AGENT_WINDOW, (uint16_t)(channel << AGENT_FLAG_CHANNEL_SHIFT),
                        grant.bytes, grant.size) == 0)
            call->owed_bytes[channel] = 0;
        agent_builder_free(&grant);
    }
    pthread_mutex_unlock(&agent->lock);
    free(piece);
}

size_t agent_call_credit(struct agent_call *call)
{
    pthread_mutex_lock(&call->agent->lock);
    size_t credit = call->credit;
    pthread_mutex_unlock(&call->agent->lock);
    return credit;
}

int agent_call_send(struct agent_call *call, const void *bytes, size_t size, bool end)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    int result = size > call->credit || size > AGENT_PAYLOAD_MAX ? -EINVAL : 0;
    if (result == 0)
        result = agent_post_locked(agent, call, AGENT_DATA, end ? AGENT_FLAG_END : 0, bytes, size);
    if (result == 0) {
        call->credit -= (uint32_t)size;
        call->unsent_bytes += (uint32_t)size;
    }
    pthread_mutex_unlock(&agent->lock);
    return result;
}

void agent_call_cancel(struct agent_call *call)
{
    pthread_mutex_lock(&call->agent->lock);
    agent_post_locked(call->agent, call, AGENT_CANCEL, 0, NULL, 0);
    pthread_mutex_unlock(&call->agent->lock);
}

int agent_call_result(struct agent_call *call, struct agent_cursor *ret_fields, struct error *err)
{
    if (call->failure == -EPROTO)
        return error_set(err, -EPROTO,
                "the guest's agent sent something that is not its protocol; the machine must be started "
                "again");
    if (call->failure < 0)
        return error_set(err, -EPIPE, "the connection to the guest is gone: has the machine stopped?");
    struct agent_cursor fields = agent_cursor_over(call->result, call->result_size);
    int status = (int)agent_cursor_u32(&fields);
    const char *sentence = agent_cursor_string(&fields);
    if (fields.bad || status > 0 || status < -4095)
        return error_set(err, -EPROTO, "the guest's agent sent a result that cannot be read");
    *ret_fields = fields;
    if (status == 0)
        return 0;
    char clean[sizeof err->text];
    agent_clean_text(sentence, clean, sizeof clean);
    return error_set(err, status, "%s", clean);
}

int agent_call_simple(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        bool passes_gate, unsigned limit_ms, void *ret_bytes, size_t ret_size, struct error *err)
{
    struct agent_call call;
    struct agent_cursor rest;
    struct agent_piece *piece;
    if (limit_ms == 0)
        limit_ms = AGENT_CALL_DEFAULT_MS;
    int result = agent_call_begin(agent, operation, fields, passes_gate, &call, err);
    if (fields != NULL)
        agent_builder_free(fields);
    if (result < 0)
        return result;
    while ((result = agent_call_wait(&call, limit_ms, false, &piece)) == AGENT_EVENT_PIECE)
        agent_call_taken(&call, piece);
    if (result == -ETIMEDOUT)
        error_set(err, result, "the guest did not answer within %u ms", limit_ms);
    else if ((result = agent_call_result(&call, &rest, err)) == 0 && ret_bytes != NULL) {
        const uint8_t *bytes = agent_cursor_bytes(&rest, ret_size);
        if (bytes == NULL)
            result = error_set(err, -EPROTO, "the guest's agent sent a short result");
        else
            memcpy(ret_bytes, bytes, ret_size);
    }
    agent_call_end(&call);
    return result;
}
