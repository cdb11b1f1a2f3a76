// SPDX-License-Identifier: Apache-2.0
// Jobs in a sandbox: commands that go on when their caller leaves. Their logs are read whole or followed as
// server-sent events, whose ids are the offsets of both streams: a client that connects again misses nothing
// that is kept, and is told of what is not ("gap").
#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"
#include "vmglue/route_exec.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double WAIT_MAX_SECS = 3600;
static const uint64_t FROM_END = UINT64_MAX; // an offset that stands for the present end
enum { WAIT_STEP_MS = 1000 };                // between two looks whether the client still waits

static void start_job(struct http_request *request)
{
    static const char *const more[] = {"name", NULL};
    struct route_exec call = {.request = request};
    struct agent_job job;
    struct error err;
    json_t *body;
    if (route_exec_begin(&call, more, &body)) {
        const char *name = NULL;
        int r = json_fields_string(body, "name", &name, &err);
        if (r >= 0 && name != NULL && name[0] >= '0' && name[0] <= '9')
            r = error_set(&err, -EINVAL,
                    "field \"name\": a job's name does not begin with a digit, as its id does");
        if (r >= 0 && name != NULL && name[0] == '\0')
            r = error_set(&err, -EINVAL, "field \"name\" is empty; leave it out for a job without a name");
        call.exec.mark = gate_request_tag(request);
        if (r >= 0)
            r = gate_request_asks(request, &err);
        if (r >= 0)
            r = agent_job_start(call.use.agent, &call.exec, name, &job, &err);
        if (r == -EEXIST)
            error_set(&err, r, "a job called \"%.60s\" runs already; end it, or choose another name", name);
        if (r < 0) {
            sandbox_agent_failed(&call.use, &err);
            http_reply_failure(request, "job", &err);
        } else {
            http_reply_json(request, 201, route_json_job(&job));
        }
    }
    route_exec_end(&call);
}

// The agent, and the job that the path names by its id or name. On failure it has replied.
static bool begin(struct http_request *request, const char *const *known, struct sandbox_agent *ret_use,
        struct agent_job *ret_job)
{
    struct error err;
    int r = http_request_check_query(request, known, &err);
    if (r == 0)
        r = route_agent_use(request, http_request_param(request, "name"), ret_use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return false;
    }
    const char *text = ret_job == NULL ? NULL : http_request_param(request, "id");
    char *end = NULL;
    unsigned long id = text == NULL ? 0 : strtoul(text, &end, 10);
    if (text != NULL && text[0] >= '0' && text[0] <= '9')
        r = *end != '\0' || id == 0 || id > UINT32_MAX
                    ? -ENOENT
                    : agent_job_get(ret_use->agent, (uint32_t)id, ret_job, &err);
    else if (text != NULL)
        r = agent_job_find(ret_use->agent, text, ret_job, &err);
    if (r == -ENOENT && text != NULL)
        error_set(&err, r, "there is no job \"%.60s\" in this sandbox; `ramet job ls %.40s` lists them", text,
                http_request_param(request, "name"));
    if (r < 0) {
        sandbox_agent_failed(ret_use, &err);
        http_reply_failure(request, "job", &err);
        route_agent_done(request, ret_use);
    }
    return r >= 0;
}

static void reply_failure(struct http_request *request, struct sandbox_agent *use, struct error *err)
{
    sandbox_agent_failed(use, err);
    http_reply_failure(request, "job", err);
}

static void add_job(void *context, const struct agent_job *job)
{
    json_array_append_new(context, route_json_job(job));
}

static void list_jobs(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct sandbox_agent use;
    struct error err;
    if (!begin(request, known, &use, NULL))
        return;
    json_t *jobs = json_array();
    if (agent_job_list(use.agent, add_job, jobs, &err) < 0) {
        json_decref(jobs);
        reply_failure(request, &use, &err);
    } else {
        http_reply_json(request, 200, json_pack("{s:o}", "jobs", jobs));
    }
    route_agent_done(request, &use);
}

// Until the job ended, the time is over, or nobody waits for the answer any more.
static int await_end(struct http_request *request, struct sandbox_agent *use, unsigned wait_ms,
        struct agent_job *job, struct error *err)
{
    uint32_t id = job->id;
    int r = -ETIMEDOUT;
    while (r == -ETIMEDOUT && wait_ms > 0 && !http_request_is_gone(request) &&
            !http_request_is_stopping(request)) {
        unsigned part_ms = wait_ms < WAIT_STEP_MS ? wait_ms : WAIT_STEP_MS;
        r = agent_job_wait(use->agent, id, part_ms, job, err);
        wait_ms -= part_ms;
    }
    return r == -ETIMEDOUT ? agent_job_get(use->agent, id, job, err) : r;
}

// With wait_secs the answer comes when it ended, or the time is over: "state" says which.
static void get_job(struct http_request *request)
{
    static const char *const known[] = {"wait_secs", NULL};
    struct sandbox_agent use;
    struct agent_job job;
    struct error err;
    const char *text = http_request_query(request, "wait_secs");
    char *end = NULL;
    double secs = text == NULL ? 0 : strtod(text, &end);
    if (text != NULL && (end == text || *end != '\0' || !(secs >= 0 && secs <= WAIT_MAX_SECS))) {
        http_reply_error(request, 400, "validation.invalid",
                "query parameter wait_secs must be a number from 0 to %.0f", WAIT_MAX_SECS);
        return;
    }
    if (!begin(request, known, &use, &job))
        return;
    int r = job.running && secs > 0 ? await_end(request, &use, (unsigned)(secs * 1000) + 1, &job, &err) : 0;
    if (r < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_json(request, 200, route_json_job(&job));
    route_agent_done(request, &use);
}

static void delete_job(struct http_request *request)
{
    static const char *const known[] = {"kill", NULL};
    struct sandbox_agent use;
    struct agent_job job;
    struct error err;
    bool kill = false;
    if (route_json_query_flag(request, "kill", &kill, &err) < 0) {
        http_reply_failure(request, "job", &err);
        return;
    }
    if (!begin(request, known, &use, &job))
        return;
    if (agent_job_remove(use.agent, job.id, kill, &err) < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    route_agent_done(request, &use);
}

// "TERM", "SIGTERM" or 15.
static int take_signal(const json_t *body, int *ret_signal, struct error *err)
{
    const json_t *value = json_object_get(body, "signal");
    const char *text = json_string_value(value);
    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= 64) {
        *ret_signal = (int)json_integer_value(value);
        return 0;
    }
    if (text != NULL && strncmp(text, "SIG", 3) == 0)
        text += 3;
    for (int number = 1; text != NULL && number < 32; number++) {
        const char *name = sigabbrev_np(number);
        if (name != NULL && strcmp(name, text) == 0) {
            *ret_signal = number;
            return 0;
        }
    }
    return error_set(err, -EINVAL, "field \"signal\" must be a signal's name (\"TERM\") or number (1 to 64)");
}

static void signal_job(struct http_request *request)
{
    static const char *const known[] = {"signal", "whole", NULL}, *const no_query[] = {NULL};
    struct sandbox_agent use;
    struct agent_job job;
    struct error err;
    json_t *body;
    int number = SIGTERM;
    bool whole = true;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = take_signal(body, &number, &err);
    if (r >= 0)
        r = json_fields_bool(body, "whole", &whole, &err);
    if (r < 0) {
        http_reply_failure(request, "job", &err);
        return;
    }
    if (!begin(request, no_query, &use, &job))
        return;
    r = agent_job_signal(use.agent, job.id, number, whole, &err);
    if (r == -ESRCH)
        error_set(&err, -EBUSY,
                whole ? "no process of job %u is left, so there is nothing to signal"
                      : "the first process of job %u has ended; leave \"whole\" out to signal what is left "
                        "of it",
                job.id);
    if (r < 0)
        reply_failure(request, &use, &err);
    else
        http_reply_empty(request, 204);
    route_agent_done(request, &use);
}

struct log_reader {
    struct http_request *request;
    bool base64;
    uint64_t next[3]; // offset behind what was sent, per stream
    struct route_exec_rest rest[3];
};

static int send_event(struct log_reader *reader, const char *event, json_t *data)
{
    char id[60];
    snprintf(id, sizeof id, "%llu.%llu", (unsigned long long)reader->next[1],
            (unsigned long long)reader->next[2]);
    return http_reply_event_id(reader->request, id, event, data);
}

static int send_text(struct log_reader *reader, int stream, const char *bytes, size_t size)
{
    if (size == 0)
        return 0;
    json_t *data = route_exec_text(bytes, size, reader->base64);
    json_object_set_new(data, "offset", json_integer((json_int_t)reader->next[stream]));
    reader->next[stream] += size;
    return send_event(reader, stream == 1 ? "stdout" : "stderr", data);
}

static int send_gap(struct log_reader *reader, int stream, uint64_t from, uint64_t to)
{
    return send_event(reader, "gap",
            json_pack("{s:s, s:I, s:I}", "stream", stream == 1 ? "stdout" : "stderr", "from",
                    (json_int_t)from, "to", (json_int_t)to));
}

static int send_piece(void *context, int stream, uint64_t offset, const void *bytes, size_t size)
{
    struct log_reader *reader = context;
    uint64_t expected = reader->next[stream] + reader->rest[stream].size;
    int r = 0;
    if (offset != expected) {
        r = send_text(reader, stream, reader->rest[stream].bytes, reader->rest[stream].size);
        reader->rest[stream].size = 0;
        uint64_t from = reader->next[stream];
        reader->next[stream] = offset;
        if (r == 0)
            r = send_gap(reader, stream, from, offset);
    }
    char *text;
    size_t whole = route_exec_cut(&reader->rest[stream], bytes, size, &text);
    if (r == 0)
        r = send_text(reader, stream, text, whole);
    free(text);
    return r;
}

static bool is_gone(void *context)
{
    return http_request_is_gone(((struct log_reader *)context)->request);
}

static int take_offset(
        struct http_request *request, const char *name, uint64_t *ret_offset, struct error *err)
{
    const char *text = http_request_query(request, name);
    if (text != NULL && strcmp(text, "end") == 0) {
        *ret_offset = FROM_END;
        return 0;
    }
    int r = route_json_query_uint(request, name, ret_offset, err);
    return r < 0 ? r : 0;
}

// Last-Event-ID ("OUT.ERR") goes over the query's offsets.
static int take_offsets(struct http_request *request, struct agent_job_logs *logs, struct error *err)
{
    int r = take_offset(request, "stdout", &logs->out_offset, err);
    if (r == 0)
        r = take_offset(request, "stderr", &logs->err_offset, err);
    const char *last = http_request_header(request, "Last-Event-ID");
    unsigned long long out, error;
    char rest;
    if (r < 0 || last == NULL)
        return r;
    if (sscanf(last, "%llu.%llu%c", &out, &error, &rest) != 2)
        return error_set(err, -EINVAL, "the header Last-Event-ID \"%.40s\" is no id of this stream", last);
    logs->out_offset = out < INT64_MAX ? out : INT64_MAX;
    logs->err_offset = error < INT64_MAX ? error : INT64_MAX;
    return 0;
}

// Where one stream begins. An offset behind the end is of another log, or of a time before a restore: what
// was missed cannot be told, so a gap says that, and all that is kept follows.
static uint64_t begin_stream(
        struct log_reader *reader, int stream, uint64_t asked, const struct agent_job_log *log)
{
    reader->next[stream] = asked < log->end ? asked : log->end;
    if (asked <= log->end || asked == FROM_END)
        return asked;
    reader->next[stream] = log->first;
    send_gap(reader, stream, asked, log->first);
    return log->first;
}

// Events stdout, stderr, gap, and at last "end" with the job. Without follow it ends with what there is.
static void job_logs(struct http_request *request)
{
    static const char *const known[] = {"follow", "stdout", "stderr", "encoding", NULL};
    struct log_reader reader = {.request = request};
    struct agent_job_logs logs = {.sink = send_piece, .context = &reader, .cancelled = is_gone};
    struct sandbox_agent use;
    struct agent_job job;
    struct error err;
    const char *encoding = http_request_query(request, "encoding");
    int r = take_offsets(request, &logs, &err);
    if (r == 0)
        r = route_json_query_flag(request, "follow", &logs.follow, &err);
    if (r >= 0 && encoding != NULL && strcmp(encoding, "base64") != 0 && strcmp(encoding, "text") != 0)
        r = error_set(&err, -EINVAL, "query parameter encoding must be text or base64");
    if (r < 0) {
        http_reply_failure(request, "job", &err);
        return;
    }
    if (!begin(request, known, &use, &job))
        return;
    logs.id = job.id;
    reader.base64 = encoding != NULL && strcmp(encoding, "base64") == 0;
    http_reply_begin_events(request);
    logs.out_offset = begin_stream(&reader, 1, logs.out_offset, &job.out);
    logs.err_offset = begin_stream(&reader, 2, logs.err_offset, &job.err);
    r = agent_job_logs(use.agent, &logs, &job, &err);
    for (int stream = 1; stream <= 2 && r == 0; stream++)
        send_text(&reader, stream, reader.rest[stream].bytes, reader.rest[stream].size);
    if (r == 0) {
        send_event(&reader, "end", route_json_job(&job));
    } else {
        sandbox_agent_failed(&use, &err);
        http_reply_event_failure(request, "error", "job", &err);
    }
    route_agent_done(request, &use);
}

const struct http_route routes_jobs[] = {
        {"POST", "/v1/sandboxes/{name}/jobs", HTTP_CREATES, start_job},
        {"GET", "/v1/sandboxes/{name}/jobs", 0, list_jobs},
        {"GET", "/v1/sandboxes/{name}/jobs/{id}", 0, get_job},
        {"DELETE", "/v1/sandboxes/{name}/jobs/{id}", 0, delete_job},
        {"POST", "/v1/sandboxes/{name}/jobs/{id}/signal", 0, signal_job},
        {"GET", "/v1/sandboxes/{name}/jobs/{id}/logs", HTTP_STREAM, job_logs},
        {0},
};
