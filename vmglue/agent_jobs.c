// SPDX-License-Identifier: Apache-2.0
// Jobs of the guest that belong to no connection; the calls are declared in agent_client.h.
#include "vmglue/agent_client.h"
#include "vmglue/agent_connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_POLL_MS = 100, RECORD_HEAD_BYTES = 12 };

static int read_job(struct agent_cursor *fields, struct agent_job *ret_job)
{
    struct agent_job job = {.id = agent_cursor_u32(fields)};
    agent_clean_text(agent_cursor_string(fields), job.name, sizeof job.name);
    agent_clean_text(agent_cursor_string(fields), job.command, sizeof job.command);
    uint32_t flags = agent_cursor_u32(fields);
    job.running = flags & AGENT_JOB_RUNNING;
    job.timed_out = flags & AGENT_JOB_TIMED_OUT;
    job.out_of_memory = flags & AGENT_JOB_OUT_OF_MEMORY;
    job.pid = (int)agent_cursor_u32(fields);
    job.exit_code = (int)agent_cursor_u32(fields);
    job.signal = (int)agent_cursor_u32(fields);
    job.started_ns = agent_cursor_u64(fields);
    job.ended_ns = agent_cursor_u64(fields);
    job.duration_ms = agent_cursor_u64(fields);
    job.out.first = agent_cursor_u64(fields);
    job.out.end = agent_cursor_u64(fields);
    job.err.first = agent_cursor_u64(fields);
    job.err.end = agent_cursor_u64(fields);
    if (!fields->bad && fields->at < fields->end) // older agents say nothing of it
        agent_clean_text(agent_cursor_string(fields), job.mark, sizeof job.mark);
    if (fields->bad)
        return -EPROTO;
    *ret_job = job;
    return 0;
}

static int short_result(struct error *err)
{
    return error_set(err, -EPROTO, "the guest's agent sent a job that cannot be read");
}

// The result of a call that ended is a job.
static int job_result(struct agent_call *call, struct agent_job *ret_job, struct error *err)
{
    struct agent_cursor fields;
    int result = agent_call_result(call, &fields, err);
    if (result == 0 && read_job(&fields, ret_job) < 0)
        result = short_result(err);
    return result;
}

// Frees fields.
static int job_call(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        unsigned limit_ms, struct agent_job *ret_job, struct error *err)
{
    struct agent_call call;
    struct agent_piece *piece;
    int event, result = agent_call_begin(agent, operation, fields, false, &call, err);
    agent_builder_free(fields);
    if (result < 0)
        return result;
    while ((event = agent_call_wait(&call, limit_ms, false, &piece)) == AGENT_EVENT_PIECE)
        agent_call_taken(&call, piece);
    if (event == -ETIMEDOUT)
        result = error_set(err, event,
                operation == AGENT_JOB_WAIT ? "the job did not end within %u ms: it runs on"
                                            : "the guest did not answer within %u ms",
                limit_ms);
    else
        result = job_result(&call, ret_job, err);
    agent_call_end(&call);
    return result;
}

int agent_job_start(struct agent *agent, const struct agent_exec *exec, const char *name,
        struct agent_job *ret_job, struct error *err)
{
    struct agent_builder fields = {0};
    if (exec->shell_command == NULL && (exec->argv == NULL || exec->argv[0] == NULL))
        return error_set(err, -EINVAL, "no command was given");
    if (name != NULL && strlen(name) > AGENT_JOB_NAME_MAX)
        return error_set(err, -EINVAL, "the name of a job has at most %d bytes", AGENT_JOB_NAME_MAX);
    if (exec->stdin_size > AGENT_JOB_INPUT_MAX)
        return error_set(err, -E2BIG, "a job takes at most %d bytes of input: put them into a file",
                AGENT_JOB_INPUT_MAX);
    agent_builder_string(&fields, name != NULL ? name : "");
    agent_builder_u32(&fields, (uint32_t)exec->stdin_size);
    agent_builder_bytes(&fields, exec->stdin_bytes, exec->stdin_size);
    agent_pack_exec(&fields, exec);
    agent_builder_string(&fields, exec->mark != NULL ? exec->mark : "");
    return job_call(agent, AGENT_JOB_START, &fields, AGENT_CALL_DEFAULT_MS, ret_job, err);
}

int agent_job_get(struct agent *agent, uint32_t id, struct agent_job *ret_job, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, id);
    agent_builder_string(&fields, "");
    return job_call(agent, AGENT_JOB_GET, &fields, AGENT_CALL_DEFAULT_MS, ret_job, err);
}

int agent_job_find(struct agent *agent, const char *name, struct agent_job *ret_job, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, 0);
    agent_builder_string(&fields, name);
    return job_call(agent, AGENT_JOB_GET, &fields, AGENT_CALL_DEFAULT_MS, ret_job, err);
}

struct by_mark {
    const char *mark;
    struct agent_job *ret_job;
    bool found;
};

static void look_at_mark(void *context, const struct agent_job *job)
{
    struct by_mark *search = context;
    if (strcmp(job->mark, search->mark) != 0)
        return;
    *search->ret_job = *job;
    search->found = true;
}

int agent_job_marked(struct agent *agent, const char *mark, struct agent_job *ret_job, struct error *err)
{
    struct by_mark search = {mark, ret_job, false};
    int r = agent_job_list(agent, look_at_mark, &search, err);
    if (r == 0 && !search.found)
        r = error_set(err, -ENOENT, "there is no job with this mark");
    return r;
}

int agent_job_list(struct agent *agent, void (*each)(void *context, const struct agent_job *job),
        void *context, struct error *err)
{
    struct agent_call call;
    struct agent_piece *piece;
    struct agent_cursor fields;
    unsigned count = 0;
    int event, result = agent_call_begin(agent, AGENT_JOB_LIST, NULL, false, &call, err);
    if (result < 0)
        return result;
    // Each piece is one job. An agent knows so many, and a list without an end would be kept by who asked.
    while (count++ <= AGENT_JOBS_MAX &&
            (event = agent_call_wait(&call, AGENT_CALL_DEFAULT_MS, false, &piece)) == AGENT_EVENT_PIECE) {
        struct agent_job job;
        fields = agent_cursor_over(piece->bytes, piece->size);
        if (read_job(&fields, &job) == 0)
            each(context, &job);
        else
            result = short_result(err);
        agent_call_taken(&call, piece);
    }
    if (event == -ETIMEDOUT)
        result = error_set(err, event, "the guest did not answer within %d ms", AGENT_CALL_DEFAULT_MS);
    else if (result == 0)
        result = event == AGENT_EVENT_PIECE ? short_result(err) : agent_call_result(&call, &fields, err);
    agent_call_end(&call);
    return result;
}

int agent_job_wait(
        struct agent *agent, uint32_t id, unsigned timeout_ms, struct agent_job *ret_job, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, id);
    return job_call(
            agent, AGENT_JOB_WAIT, &fields, timeout_ms ? timeout_ms : AGENT_CALL_DEFAULT_MS, ret_job, err);
}

int agent_job_signal(struct agent *agent, uint32_t id, int signal, bool whole, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, id);
    agent_builder_u32(&fields, (uint32_t)signal);
    agent_builder_u8(&fields, whole);
    return agent_call_simple(agent, AGENT_JOB_SIGNAL, &fields, false, 0, NULL, 0, err);
}

int agent_job_remove(struct agent *agent, uint32_t id, bool kill, struct error *err)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, id);
    agent_builder_u8(&fields, kill);
    return agent_call_simple(agent, AGENT_JOB_REMOVE, &fields, false, 0, NULL, 0, err);
}

// Each piece is a record: u32 stream, u64 offset, bytes.
static int give_record(const struct agent_job_logs *logs, const struct agent_piece *piece, struct error *err)
{
    struct agent_cursor record = agent_cursor_over(piece->bytes, piece->size);
    uint32_t stream = agent_cursor_u32(&record);
    uint64_t offset = agent_cursor_u64(&record);
    if (record.bad || stream < 1 || stream > 2)
        return error_set(err, -EPROTO, "the guest's agent sent a piece of a log that cannot be read");
    int result = logs->sink(logs->context, (int)stream, offset, record.at, piece->size - RECORD_HEAD_BYTES);
    return result < 0 ? error_set(err, result, "the reading of the job's log was given up") : 0;
}

static int serve_logs(struct agent_call *call, const struct agent_job_logs *logs, struct error *err)
{
    unsigned silent_ms = 0;
    for (;;) {
        struct agent_piece *piece;
        int result;
        if (logs->cancelled != NULL && logs->cancelled(logs->context))
            return error_set(err, -ECANCELED, "the reading of the job's log was given up");
        int event = agent_call_wait(call, LOG_POLL_MS, false, &piece);
        if (event == AGENT_EVENT_DONE)
            return 0;
        if (event == AGENT_EVENT_PIECE) {
            result = give_record(logs, piece, err);
            agent_call_taken(call, piece);
            if (result < 0)
                return result;
            silent_ms = 0;
        } else if ((result = agent_check_silence(call->agent, err)) < 0) {
            return result;
        } else if (!logs->follow && (silent_ms += LOG_POLL_MS) >= AGENT_CALL_DEFAULT_MS) {
            return error_set(err, -ETIMEDOUT, "the guest did not answer within %d ms", AGENT_CALL_DEFAULT_MS);
        }
    }
}

int agent_job_logs(
        struct agent *agent, const struct agent_job_logs *logs, struct agent_job *ret_job, struct error *err)
{
    struct agent_call call;
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, logs->id);
    agent_builder_u64(&fields, logs->out_offset);
    agent_builder_u64(&fields, logs->err_offset);
    agent_builder_u8(&fields, logs->follow);
    int result = agent_call_begin(agent, AGENT_JOB_READ_LOGS, &fields, false, &call, err);
    agent_builder_free(&fields);
    if (result < 0)
        return result;
    result = serve_logs(&call, logs, err);
    if (result == 0)
        result = job_result(&call, ret_job, err);
    agent_call_end(&call);
    return result;
}
