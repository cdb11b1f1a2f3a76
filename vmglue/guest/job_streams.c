// SPDX-License-Identifier: Apache-2.0
// The pipes of a job: output becomes DATA frames as long as there is credit and room, input comes from them.
#include "blockstore/clock.h"
#include "vmglue/guest/background.h"
#include "vmglue/guest/job_internal.h"
#include "vmglue/guest/port.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// A program that prints many small pieces is read at most every 2 ms, so that they travel together; the first
// piece never waits. What nobody listens to is read at a pace that costs nothing.
enum { SMALL_BYTES = 4096, SMALL_PAUSE_NS = 2000000, DISCARD_PAUSE_NS = 10000000 };

static uint8_t scratch[65536];

static void pause_over(struct loop_timer *timer)
{
    job_output_update((struct job_output *)((char *)timer - offsetof(struct job_output, pause)));
}

void job_output_close(struct job_output *output)
{
    if (output->source.fd < 0)
        return;
    loop_disarm(&output->source);
    loop_timer_clear(&output->pause);
    close(output->source.fd);
    output->source.fd = -1;
}

static void output_pause(struct job_output *output, uint64_t ns)
{
    output->pause.fire = pause_over;
    output->pause_until_ns = clock_monotonic_ns() + ns;
}

// What a socket's end, or a reset, means for the stream.
static void connection_ended(struct job *job, int result)
{
    if (result < 0)
        job->reset = result;
    else if (job->stream != 0)
        port_send(AGENT_DATA, 1 << AGENT_FLAG_CHANNEL_SHIFT | AGENT_FLAG_END, job->stream, NULL, 0);
}

static void output_ended(struct job_output *output, int result)
{
    job_output_close(output);
    if (output->job->connection)
        connection_ended(output->job, result);
    job_progress(output->job);
}

static bool output_kept(const struct job_output *output)
{
    return output->job->background != NULL;
}

// A background job's output goes straight into its log.
static void output_to_log(struct job_output *output)
{
    ssize_t got =
            background_read(output->job->background, output->channel, output->source.fd, output->remaining);
    if (got == 0 || (got < 0 && got != -EAGAIN && got != -EINTR)) {
        output_ended(output, 0);
        return;
    }
    if (got > 0 && output->remaining != UINT64_MAX)
        output->remaining -= (uint64_t)got;
    else if (got > 0 && got < SMALL_BYTES)
        output_pause(output, SMALL_PAUSE_NS);
    job_output_update(output);
    if (output->remaining == 0)
        job_progress(output->job);
}

static void output_ready(struct loop_source *source, uint32_t events)
{
    struct job_output *output = (struct job_output *)source;
    struct job *job = output->job;
    if (output_kept(output)) {
        output_to_log(output);
        return;
    }
    size_t limit = output->discard ? sizeof scratch : AGENT_PAYLOAD_MAX;
    if (!output->discard && output->credit < limit)
        limit = output->credit;
    if (!output->discard && output->remaining < limit)
        limit = output->remaining;
    ssize_t got = read(source->fd, scratch, limit);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        output_ended(output, got < 0 ? -errno : 0);
        return;
    }
    if (got > 0 && output->discard) {
        output_pause(output, DISCARD_PAUSE_NS);
    } else if (got > 0) {
        port_send(AGENT_DATA, (uint16_t)(output->channel << AGENT_FLAG_CHANNEL_SHIFT), job->stream, scratch,
                (size_t)got);
        output->credit -= (uint32_t)got;
        if (output->remaining != UINT64_MAX)
            output->remaining -= (uint64_t)got;
        else if (got < SMALL_BYTES)
            output_pause(output, SMALL_PAUSE_NS);
    }
    job_output_update(output);
    if (output->remaining == 0)
        job_progress(job);
}

void job_output_update(struct job_output *output)
{
    if (output->source.fd < 0)
        return;
    bool wanted = !job_is_quiet() && (output->discard || (output_kept(output) && output->remaining > 0) ||
                                             (output->job->stream != 0 && output->credit > 0 &&
                                                     output->remaining > 0 && port_has_room()));
    bool pausing = wanted && clock_monotonic_ns() < output->pause_until_ns;
    output->source.ready = output_ready;
    if (wanted && !pausing) {
        loop_timer_clear(&output->pause);
        loop_arm(&output->source, EPOLLIN);
        return;
    }
    loop_disarm(&output->source);
    if (pausing)
        loop_timer_set(&output->pause, output->pause_until_ns);
    else
        loop_timer_clear(&output->pause);
}

void job_output_bound(struct job_output *output)
{
    int waiting = 0;
    if (output->source.fd < 0)
        return;
    if (ioctl(output->source.fd, FIONREAD, &waiting) < 0 || waiting < 0)
        waiting = 0;
    output->remaining = (uint64_t)waiting;
    output->pause_until_ns = 0;
    job_output_update(output);
}

void job_collect_failure(struct job *job)
{
    if (job->status_fd < 0)
        return;
    ssize_t got = read(job->status_fd, scratch, AGENT_PAYLOAD_MAX);
    close(job->status_fd);
    job->status_fd = -1;
    if (got > 0 && (job->failure_bytes = malloc((size_t)got)) != NULL) {
        memcpy(job->failure_bytes, scratch, (size_t)got);
        job->failure_size = (size_t)got;
    }
}

static void input_grant(struct job *job)
{
    struct job_input *in = &job->in;
    if (job->stream == 0 || job_is_quiet() || in->credit_owed == 0)
        return;
    if (in->credit_owed < AGENT_WINDOW_BYTES / 4 && in->stored > 0)
        return;
    struct agent_builder grant = {0};
    agent_builder_u32(&grant, in->credit_owed);
    if (!grant.failed)
        port_send(AGENT_WINDOW, 0, job->stream, grant.bytes, grant.size);
    agent_builder_free(&grant);
    in->credit_owed = 0;
}

void job_input_close(struct job *job, bool commit)
{
    struct job_input *in = &job->in;
    if (commit && job->commit_fd >= 0) {
        ssize_t ignored = write(job->commit_fd, "", 1);
        (void)ignored;
    }
    if (job->commit_fd >= 0)
        close(job->commit_fd);
    job->commit_fd = -1;
    if (in->source.fd >= 0) {
        loop_disarm(&in->source);
        if (job->connection)
            shutdown(in->source.fd, SHUT_WR);
        close(in->source.fd);
    }
    in->source.fd = -1;
    free(in->bytes);
    in->bytes = NULL;
    in->start = in->stored = 0;
}

static void input_ready(struct loop_source *source, uint32_t events)
{
    struct job *job = ((struct job_input *)source)->job;
    job_input_flush(job);
    if (job->connection)
        job_progress(job);
}

void job_input_flush(struct job *job)
{
    struct job_input *in = &job->in;
    while (in->source.fd >= 0 && in->stored > 0) {
        ssize_t written = write(in->source.fd, in->bytes + in->start, in->stored);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            break;
        if (written < 0) { // it closed its input: the rest is of no use to anybody
            in->credit_owed += (uint32_t)in->stored;
            job_input_close(job, false);
            break; // a connection's other end says by itself whether it was reset
        }
        in->start += (size_t)written;
        in->stored -= (size_t)written;
        in->credit_owed += (uint32_t)written;
    }
    if (in->source.fd >= 0 && in->stored == 0 && in->end && !job->terminal)
        job_input_close(job, true);
    in->source.ready = input_ready;
    if (in->source.fd >= 0 && in->stored > 0)
        loop_arm(&in->source, EPOLLOUT);
    else if (in->source.fd >= 0)
        loop_disarm(&in->source);
    input_grant(job);
}

bool job_data(uint32_t stream, unsigned channel, const void *bytes, size_t size, bool end)
{
    struct job *job = job_find(stream);
    if (job == NULL || channel != 0)
        return false;
    struct job_input *in = &job->in;
    if (in->source.fd < 0) {
        in->credit_owed += (uint32_t)size;
        input_grant(job);
        return true;
    }
    if (in->bytes == NULL)
        in->bytes = malloc(AGENT_WINDOW_BYTES);
    if (in->bytes == NULL || size > AGENT_WINDOW_BYTES - in->stored) {
        job_kill(job); // no memory, or more than the window
        job_progress(job);
        return true;
    }
    if (in->start + in->stored + size > AGENT_WINDOW_BYTES) {
        memmove(in->bytes, in->bytes + in->start, in->stored);
        in->start = 0;
    }
    if (size > 0)
        memcpy(in->bytes + in->start + in->stored, bytes, size);
    in->stored += size;
    in->end = in->end || end;
    job_input_flush(job);
    if (job->connection)
        job_progress(job);
    return true;
}

bool job_window(uint32_t stream, unsigned channel, uint32_t bytes)
{
    struct job *job = job_find(stream);
    if (job == NULL || channel < 1 || channel > 2)
        return false;
    struct job_output *output = &job->out[channel - 1];
    output->credit = bytes > UINT32_MAX - output->credit ? UINT32_MAX : output->credit + bytes;
    job_output_update(output);
    return true;
}
