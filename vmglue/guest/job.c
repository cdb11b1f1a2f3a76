// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/job.h"

#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "vmglue/guest/background.h"
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/dial.h"
#include "vmglue/guest/files.h"
#include "vmglue/guest/job_internal.h"
#include "vmglue/guest/port.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// What a terminal's session has after SIGHUP.
enum { HANG_UP_NS = 2000000000 };

struct job *job_list;
static bool quiet;
static uint32_t last_id;

bool job_is_quiet(void)
{
    return quiet;
}

struct job *job_find(uint32_t stream)
{
    struct job *job = job_list;
    while (job != NULL && (job->stream != stream || stream == 0))
        job = job->next;
    return job;
}

bool job_exists(uint32_t stream)
{
    return job_find(stream) != NULL;
}

void job_result(uint32_t stream, int status, const char *sentence, const struct agent_builder *fields)
{
    struct agent_builder result = {0};
    agent_builder_u32(&result, (uint32_t)status);
    agent_builder_string(&result, sentence);
    if (fields != NULL)
        agent_builder_bytes(&result, fields->bytes, fields->size);
    if (!result.failed)
        port_send(AGENT_RESULT, 0, stream, result.bytes, result.size);
    agent_builder_free(&result);
}

static void job_free(struct job *job)
{
    struct job **link = &job_list;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    loop_timer_clear(&job->deadline);
    free(job->failure_bytes);
    free(job);
}

static uint64_t out_of_memory_kills(void)
{
    char text[8192];
    fd_read_text(AT_FDCWD, "/proc/vmstat", text, sizeof text);
    const char *at = strstr(text, "\noom_kill ");
    return at == NULL ? 0 : strtoull(at + 10, NULL, 10);
}

bool job_no_memory(const struct job *job)
{
    return WIFSIGNALED(job->wait_status) && WTERMSIG(job->wait_status) == SIGKILL && !job->timed_out &&
           out_of_memory_kills() > job->oom_kills_before;
}

static void send_exec_result(struct job *job)
{
    struct job_failure failure = {0};
    if (job->failure_size == sizeof failure) {
        memcpy(&failure, job->failure_bytes, sizeof failure);
        failure.sentence[sizeof failure.sentence - 1] = 0;
    }
    if (failure.stage == JOB_REFUSED || failure.code == -E2BIG) {
        job_result(job->stream, failure.code, failure.sentence, NULL);
        return;
    }
    if (failure.stage == JOB_NOT_EXECUTED)
        port_send(AGENT_DATA, 2 << AGENT_FLAG_CHANNEL_SHIFT, job->stream, failure.sentence,
                strlen(failure.sentence));
    int number = WIFSIGNALED(job->wait_status) ? WTERMSIG(job->wait_status) : 0;
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, (uint32_t)(number ? 128 + number : WEXITSTATUS(job->wait_status)));
    agent_builder_u32(&fields, (uint32_t)number);
    agent_builder_u32(&fields, (job->timed_out ? AGENT_EXEC_TIMED_OUT : 0) |
                                       (job_no_memory(job) ? AGENT_EXEC_OUT_OF_MEMORY : 0));
    agent_builder_u64(&fields, (clock_monotonic_ns() - job->started_ns) / 1000000);
    job_result(job->stream, 0, "", &fields);
    agent_builder_free(&fields);
}

// A helper writes its packed result itself: status, sentence, fields.
static void send_helper_result(struct job *job)
{
    if (job->timed_out)
        job_result(job->stream, -ETIMEDOUT, "the disk did not finish in time", NULL);
    else if (job->failure_size == 0)
        job_result(job->stream, -EIO, "the agent's helper process was killed", NULL);
    else
        port_send(AGENT_RESULT, 0, job->stream, job->failure_bytes, job->failure_size);
}

// Over when both directions are, or at once when it was reset.
static void connection_progress(struct job *job)
{
    if (job->reset < 0) {
        job_input_close(job, false);
        job_output_close(&job->out[0]);
    }
    if (quiet || job->in.source.fd >= 0 || job->out[0].source.fd >= 0)
        return;
    if (job->stream != 0)
        job_result(job->stream, job->reset, job->reset < 0 ? strerror(-job->reset) : "", NULL);
    job_free(job);
}

// Ends the stream when the process is gone and what it had written was sent. Outputs that processes it left
// behind hold open are read on and thrown away, so that those do not die of SIGPIPE.
void job_progress(struct job *job)
{
    bool sent = true;
    for (int i = 0; i < 2; i++)
        sent = sent && (job->out[i].source.fd < 0 || job->out[i].remaining == 0);
    if (job->connection) {
        connection_progress(job);
        return;
    }
    if (!job->exited || quiet || (!sent && (job->stream != 0 || job->background != NULL)))
        return;
    if (job->background != NULL) {
        background_ended(job->background, job);
        job->background = NULL;
    }
    job_input_close(job, false);
    if (!job->hangs_up)
        loop_timer_clear(&job->deadline);
    if (job->stream != 0) {
        job_collect_failure(job);
        if (job->exec)
            send_exec_result(job);
        else
            send_helper_result(job);
        job->stream = 0;
    }
    job_collect_failure(job);
    for (int i = 0; i < 2; i++) {
        job->out[i].discard = true;
        job_output_update(&job->out[i]);
    }
    if (job->out[0].source.fd < 0 && job->out[1].source.fd < 0 && !job->hangs_up)
        job_free(job);
}

static void deadline_passed(struct loop_timer *timer)
{
    struct job *job = (struct job *)((char *)timer - offsetof(struct job, deadline));
    if (job->exited) // in time; only what it wrote was not taken yet, or the machine stood still
        return;
    job->timed_out = true;
    job_kill(job);
    if (job->operation == AGENT_SYNC)
        files_thaw_in_background();
}

static void hang_up_over(struct loop_timer *timer)
{
    struct job *job = (struct job *)((char *)timer - offsetof(struct job, deadline));
    cgroup_exec_kill(job->id); // also when the leader itself is gone
    job_kill(job);
    job->hangs_up = false;
    job_progress(job);
}

// The kernel sends SIGHUP to the session when our ends of the terminal are closed.
static void hang_up(struct job *job)
{
    if (job->hangs_up)
        return;
    job->hangs_up = true;
    job_input_close(job, false);
    job_output_close(&job->out[0]);
    job->deadline.fire = hang_up_over;
    loop_timer_set(&job->deadline, clock_monotonic_ns() + HANG_UP_NS);
    job_progress(job);
}

static void linger_over(struct loop_timer *timer)
{
    struct job *job = (struct job *)((char *)timer - offsetof(struct job, deadline));
    job->reset = -ECONNABORTED;
    job_progress(job);
}

// The host reads no more; what it had sent is still handed over.
static void connection_drop(struct job *job)
{
    job->stream = 0;
    job_output_close(&job->out[0]);
    job->in.end = true;
    job->deadline.fire = linger_over;
    loop_timer_set(&job->deadline, clock_monotonic_ns() + HANG_UP_NS);
    job_input_flush(job);
    job_progress(job);
}

void job_kill(struct job *job)
{
    if (job->connection) {
        job->reset = -ECONNABORTED;
        return;
    }
    if (job->exited)
        return;
    if (!job->exec || cgroup_exec_kill(job->id) < 0)
        kill(job->exec ? -job->pid : job->pid, SIGKILL);
    kill(job->pid, SIGKILL);
}

int job_start(const struct job_config *config)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return -ENOMEM;
    job->stream = config->stream;
    job->exec = config->exec;
    job->operation = config->operation;
    job->id = ++last_id;
    job->started_ns = clock_monotonic_ns();
    job->oom_kills_before = config->exec ? out_of_memory_kills() : 0;
    job->ends_with_session = config->ends_with_session;
    job->background = config->background;
    int result = job_spawn(job, config);
    if (result < 0) {
        free(job);
        return result;
    }
    job->next = job_list;
    job_list = job;
    if (job->background != NULL)
        background_begun(job->background, job);
    if (config->input_bytes != NULL) {
        job->in.bytes = config->input_bytes;
        job->in.stored = config->input_size;
        job->in.end = true;
        job_input_flush(job);
    }
    if (config->timeout_ms > 0) {
        job->deadline.fire = deadline_passed;
        uint64_t limit_ms = config->timeout_ms < UINT32_MAX ? config->timeout_ms : UINT32_MAX;
        loop_timer_set(&job->deadline, job->started_ns + limit_ms * 1000000);
    }
    job_output_update(&job->out[0]);
    job_output_update(&job->out[1]);
    return 0;
}

int job_connection(uint32_t stream, int fd)
{
    struct job *job = calloc(1, sizeof *job);
    int other = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (job == NULL || other < 0) {
        int result = job == NULL ? -ENOMEM : -errno;
        free(job);
        if (other >= 0)
            close(other);
        return result;
    }
    *job = (struct job){.next = job_list,
            .stream = stream,
            .operation = AGENT_DIAL,
            .connection = true,
            .status_fd = -1,
            .commit_fd = -1};
    job->in.source.fd = other;
    job->in.job = job;
    job->out[0] = (struct job_output){
            .source.fd = fd, .job = job, .channel = 1, .credit = AGENT_WINDOW_BYTES, .remaining = UINT64_MAX};
    job->out[1].source.fd = -1;
    job_list = job;
    job_output_update(&job->out[0]);
    return 0;
}

int job_resize(uint32_t stream, const struct job_terminal *terminal)
{
    struct job *job = job_find(stream);
    if (job == NULL || job->out[0].source.fd < 0)
        return -ENOENT;
    struct winsize size = {
            .ws_row = (unsigned short)terminal->rows, .ws_col = (unsigned short)terminal->columns};
    return job->terminal ? (ioctl(job->out[0].source.fd, TIOCSWINSZ, &size) < 0 ? -errno : 0) : -ENOTTY;
}

bool job_cancel(uint32_t stream)
{
    struct job *job = job_find(stream);
    if (job == NULL)
        return false;
    // A write notices that its input ended without the commit byte and removes what it made.
    if (job->operation == AGENT_FILE_WRITE || job->operation == AGENT_FILE_APPEND ||
            job->operation == AGENT_UPLOAD_WRITE)
        job_input_close(job, false);
    else if (job->terminal)
        hang_up(job);
    else if (job->connection)
        connection_drop(job);
    else
        job_kill(job);
    return true;
}

void job_detach_all(void)
{
    for (struct job *job = job_list, *next; job != NULL; job = next) {
        next = job->next;
        if (job->background != NULL)
            continue;
        job->stream = 0;
        if (job->terminal && !job->exited) {
            hang_up(job);
            continue;
        }
        if (job->connection) {
            job->reset = -ECONNABORTED; // at once: the child of a fork shares nothing with its parent's peers
            connection_progress(job);
            continue;
        }
        if (job->ends_with_session)
            job_kill(job);
        if (job->exec) {
            job->in.end = true;
            job_input_flush(job);
        } else {
            job_input_close(job, false);
        }
        for (int i = 0; i < 2; i++)
            job->out[i].discard = true;
        job_output_update(&job->out[0]);
        job_output_update(&job->out[1]);
        job_progress(job);
    }
}

void job_quiet(bool now_quiet)
{
    quiet = now_quiet;
    for (struct job *job = job_list, *next; job != NULL; job = next) {
        next = job->next;
        job_output_update(&job->out[0]);
        job_output_update(&job->out[1]);
        if (quiet)
            continue;
        job_input_flush(job); // grants what was owed all the while
        job_progress(job);
    }
    background_quiet(quiet);
    dial_quiet(quiet);
}

void job_room(void)
{
    for (struct job *job = job_list; job != NULL; job = job->next) {
        job_output_update(&job->out[0]);
        job_output_update(&job->out[1]);
    }
    background_room();
}

static void terminal_over(struct loop_timer *timer)
{
    struct job *job = (struct job *)((char *)timer - offsetof(struct job, deadline));
    job_output_close(&job->out[0]);
    job_progress(job);
}

// Somebody may have opened the terminal anew by its name: its end is not waited for for ever.
static void terminal_limit(struct job *job)
{
    job->deadline.fire = terminal_over;
    loop_timer_set(&job->deadline, clock_monotonic_ns() + HANG_UP_NS);
}

static void process_ended(pid_t pid, int status)
{
    struct job *job = job_list;
    while (job != NULL && (job->pid != pid || job->exited || job->connection))
        job = job->next;
    if (job == NULL)
        return; // an orphan that came to us
    job->exited = true;
    job->wait_status = status;
    if (job->exec)
        cgroup_exec_done(job->id);
    // A terminal is hung up by the kernel when its session's leader ends: its end can be read.
    for (int i = 0; i < 2 && !job->terminal; i++)
        job_output_bound(&job->out[i]);
    if (job->terminal && !job->hangs_up)
        terminal_limit(job);
    job_progress(job);
}

void job_reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        process_ended(pid, status);
    cgroup_sweep();
}
