// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/background.h"

#include "blockstore/clock.h"
#include "vmglue/guest/background_internal.h"
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/job_internal.h"
#include "vmglue/guest/port.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

struct background *background_list;
static uint32_t last_id;

struct background *background_find(uint32_t id, const char *name)
{
    struct background *one = background_list;
    while (one != NULL && (!one->started || (id != 0 ? one->id != id : strcmp(one->name, name) != 0)))
        one = one->next;
    return one;
}

void background_pack(const struct background *background, struct agent_builder *fields)
{
    bool running = background->job != NULL;
    agent_builder_u32(fields, background->id);
    agent_builder_string(fields, background->name);
    agent_builder_string(fields, background->command);
    agent_builder_u32(fields, (running ? AGENT_JOB_RUNNING : 0) |
                                      (background->timed_out ? AGENT_JOB_TIMED_OUT : 0) |
                                      (background->out_of_memory ? AGENT_JOB_OUT_OF_MEMORY : 0));
    agent_builder_u32(fields, (uint32_t)background->pid);
    agent_builder_u32(fields, (uint32_t)background->exit_code);
    agent_builder_u32(fields, (uint32_t)background->signal);
    agent_builder_u64(fields, background->started_ns);
    agent_builder_u64(fields, background->ended_ns);
    agent_builder_u64(fields, running ? (clock_monotonic_ns() - background->began_monotonic_ns) / 1000000
                                      : background->duration_ms);
    for (int i = 0; i < 2; i++) {
        agent_builder_u64(fields, background_log_first(&background->log[i]));
        agent_builder_u64(fields, background->log[i].end);
    }
    agent_builder_string(fields, background->mark);
}

void background_answer(uint32_t stream, const struct background *background)
{
    struct agent_builder fields = {0};
    background_pack(background, &fields);
    job_result(stream, fields.failed ? -ENOMEM : 0, "", &fields);
    agent_builder_free(&fields);
}

static void background_free(struct background *background)
{
    background_listeners_end(background);
    struct background **link = &background_list;
    while (*link != background)
        link = &(*link)->next;
    *link = background->next;
    if (background->status.fd >= 0) {
        loop_disarm(&background->status);
        close(background->status.fd);
    }
    background_log_free(&background->log[0]);
    background_log_free(&background->log[1]);
    free(background);
}

// Room for one more: the oldest that ended makes way.
static bool make_way(void)
{
    struct background *oldest_ended = NULL;
    int count = 0;
    for (struct background *one = background_list; one != NULL; one = one->next) {
        count++;
        if (one->job == NULL && one->started)
            oldest_ended = one;
    }
    if (count >= BACKGROUND_JOBS_MAX && oldest_ended != NULL) {
        background_free(oldest_ended);
        count--;
    }
    return count < BACKGROUND_JOBS_MAX;
}

static bool name_runs(const char *name)
{
    for (struct background *one = background_list; one != NULL; one = one->next) {
        if (name[0] != 0 && strcmp(one->name, name) == 0 && (one->job != NULL || !one->started))
            return true;
    }
    return false;
}

struct background *background_new(uint32_t stream, const char *name, const char *mark, const char *command)
{
    if (strlen(name) > BACKGROUND_NAME_MAX || strlen(mark) > BACKGROUND_MARK_MAX) {
        job_result(stream, -EINVAL, "the name of a job is too long", NULL);
        return NULL;
    }
    if (name_runs(name)) {
        job_result(stream, -EEXIST, "a job of this name runs already; end it, or choose another name", NULL);
        return NULL;
    }
    if (!make_way()) {
        job_result(stream, -EAGAIN, "too many jobs run in this machine; end some", NULL);
        return NULL;
    }
    struct background *background = calloc(1, sizeof *background);
    if (background == NULL) {
        job_result(stream, -ENOMEM, "the agent has no memory for a job", NULL);
        return NULL;
    }
    background->id = ++last_id;
    background->start_stream = stream;
    background->status.fd = -1;
    snprintf(background->name, sizeof background->name, "%s", name);
    snprintf(background->mark, sizeof background->mark, "%s", mark);
    snprintf(background->command, sizeof background->command, "%s", command);
    background->next = background_list;
    background_list = background;
    return background;
}

void background_not_started(struct background *background)
{
    background_free(background);
}

// What came over the status descriptor: nothing, if the command was executed. May free it: false then.
static bool settle_start(struct background *background)
{
    struct job_failure failure = {0};
    if (background->status.fd < 0)
        return true;
    ssize_t got = read(background->status.fd, &failure, sizeof failure);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    loop_disarm(&background->status);
    close(background->status.fd);
    background->status.fd = -1;
    if (got != sizeof failure) {
        background->started = true;
        if (background->start_stream != 0)
            background_answer(background->start_stream, background);
        background->start_stream = 0;
        return true;
    }
    failure.sentence[sizeof failure.sentence - 1] = 0;
    failure.sentence[strcspn(failure.sentence, "\n")] = 0;
    if (background->start_stream != 0)
        job_result(background->start_stream, failure.code < 0 ? failure.code : -EIO, failure.sentence, NULL);
    if (background->job != NULL)
        background->job->background = NULL;
    background_free(background);
    return false;
}

static void status_ready(struct loop_source *source, uint32_t events)
{
    settle_start((struct background *)source);
}

void background_begun(struct background *background, struct job *job)
{
    background->job = job;
    background->pid = job->pid;
    background->cgroup_id = job->id;
    background->started_ns = clock_wall_ns();
    background->began_monotonic_ns = job->started_ns;
    background->status = (struct loop_source){.fd = job->status_fd, .ready = status_ready};
    job->status_fd = -1;
    loop_arm(&background->status, EPOLLIN);
}

ssize_t background_read(struct background *background, unsigned channel, int fd, uint64_t limit)
{
    ssize_t got = background_log_read(&background->log[channel - 1], fd, limit);
    if (got > 0)
        background_listeners_update(background);
    return got;
}

void background_ended(struct background *background, struct job *job)
{
    int status = job->wait_status, number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (!settle_start(background))
        return;
    background->started = true;
    background->signal = number;
    background->exit_code = number ? 128 + number : WEXITSTATUS(status);
    background->timed_out = job->timed_out;
    background->out_of_memory = job_no_memory(job);
    background->ended_ns = clock_wall_ns();
    background->duration_ms = (clock_monotonic_ns() - job->started_ns) / 1000000;
    background->job = NULL;
    background_listeners_update(background);
    if (!background->doomed)
        return;
    if (background->remove_stream != 0)
        job_result(background->remove_stream, 0, "", NULL);
    background_free(background);
}

static void do_list(uint32_t stream)
{
    // A few hundred bytes each and a few hundred of them: within a stream's window.
    for (struct background *one = background_list; one != NULL; one = one->next) {
        struct agent_builder fields = {0};
        background_pack(one, &fields);
        if (one->started && !fields.failed)
            port_send(AGENT_DATA, 1 << AGENT_FLAG_CHANNEL_SHIFT, stream, fields.bytes, fields.size);
        agent_builder_free(&fields);
    }
    job_result(stream, 0, "", NULL);
}

static void do_signal(uint32_t stream, struct background *background, int number, bool whole)
{
    if (number < 1 || number > 64) {
        job_result(stream, -EINVAL, "there is no signal of this number", NULL);
        return;
    }
    int result = -ESRCH;
    if (whole)
        result = cgroup_exec_signal(background->cgroup_id, number);
    if (whole && result == -EOPNOTSUPP && background->job != NULL)
        result = kill(-background->pid, number) < 0 ? -errno : 0;
    if (!whole && background->job != NULL && !background->job->exited)
        result = kill(background->pid, number) < 0 ? -errno : 0;
    job_result(stream, result, result < 0 ? "no process of the job is left" : "", NULL);
}

static void do_remove(uint32_t stream, struct background *background, bool with_kill)
{
    if (background->job != NULL && !with_kill) {
        job_result(stream, -EBUSY, "the job runs: end it first, or remove it with its processes", NULL);
        return;
    }
    if (background->doomed) {
        job_result(stream, -EBUSY, "the job is being removed already", NULL);
        return;
    }
    if (with_kill)
        cgroup_exec_kill(background->cgroup_id);
    if (background->job != NULL) {
        background->doomed = true;
        background->remove_stream = stream;
        job_kill(background->job);
        return;
    }
    background_free(background);
    job_result(stream, 0, "", NULL);
}

void background_request(uint32_t stream, enum agent_operation operation, struct agent_cursor fields)
{
    if (operation == AGENT_JOB_LIST) {
        do_list(stream);
        return;
    }
    if (operation == AGENT_JOB_WAIT || operation == AGENT_JOB_READ_LOGS) {
        background_listen(stream, operation, fields);
        return;
    }
    uint32_t id = agent_cursor_u32(&fields);
    const char *name = operation == AGENT_JOB_GET ? agent_cursor_string(&fields) : "";
    int number = operation == AGENT_JOB_SIGNAL ? (int)agent_cursor_u32(&fields) : 0;
    bool flag = operation != AGENT_JOB_GET && agent_cursor_u8(&fields) != 0;
    struct background *background =
            fields.bad || (id == 0 && name[0] == 0) ? NULL : background_find(id, name);
    if (background == NULL)
        job_result(stream, fields.bad ? -EINVAL : -ENOENT,
                fields.bad ? "the request cannot be read" : "there is no such job", NULL);
    else if (operation == AGENT_JOB_SIGNAL)
        do_signal(stream, background, number, flag);
    else if (operation == AGENT_JOB_REMOVE)
        do_remove(stream, background, flag);
    else
        background_answer(stream, background);
}

// While nothing may be sent no start is settled: its answer would be due.
void background_quiet(bool quiet)
{
    for (struct background *one = background_list; one != NULL; one = one->next) {
        if (one->status.fd >= 0 && quiet)
            loop_disarm(&one->status);
        else if (one->status.fd >= 0)
            loop_arm(&one->status, EPOLLIN);
    }
    if (!quiet)
        background_room();
}
