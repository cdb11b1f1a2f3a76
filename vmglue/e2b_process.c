// SPDX-License-Identifier: Apache-2.0
// Processes as E2B's clients know them: jobs of the guest's agent, found by their pid, so that they go on
// when a client leaves and can be connected to again. What one is fed: e2b_stdin.c. Terminals: e2b_pty.c.
#include "vmglue/e2b_process.h"

#include "vmglue/e2b_stdin.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USER_MAX = 64 };

// ---- what is run ----

static size_t quoted_size(const char *word)
{
    size_t size = 3;
    for (; *word != '\0'; word++)
        size += *word == '\'' ? 4 : 1;
    return size;
}

static char *put_quoted(char *at, const char *word)
{
    *at++ = ' ';
    *at++ = '\'';
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            at = stpcpy(at, "'\\''");
        else
            *at++ = *word;
    }
    *at++ = '\'';
    *at = '\0';
    return at;
}

static const char words_first[] = "set --", words_last[] = "exec";

// A line for the shell that becomes this program; malloc'ed. feed: a name of e2b_stdin.h, NULL = no input.
static char *line_of(const json_t *process, const char *feed)
{
    char feeds[E2B_STDIN_LINE_MAX] = "";
    const char *command = json_fields_get_text(process, "cmd");
    const json_t *args = json_object_get(process, "args"), *item;
    size_t i, size = sizeof feeds + 32 + quoted_size(command);
    if (feed != NULL)
        e2b_stdin_line(feed, feeds);
    json_array_foreach(args, i, item) size +=
            quoted_size(json_is_string(item) ? json_string_value(item) : "");
    char *line = malloc(size), *at = line;
    if (line == NULL)
        return NULL;
    // With a feed, the words come first: a job's command is cut, and these are what is looked for in it.
    at = stpcpy(at, feed != NULL ? words_first : words_last);
    at = put_quoted(at, command);
    json_array_foreach(args, i, item) at =
            put_quoted(at, json_is_string(item) ? json_string_value(item) : "");
    stpcpy(at, feeds);
    return line;
}

int e2b_process_take(
        struct route_exec *call, const json_t *body, char *ret_feed, json_t **ret_native, struct error *err)
{
    const json_t *process = json_object_get(body, "process");
    const char *timeout = http_request_header(call->request, "Connect-Timeout-Ms");
    char user[USER_MAX];
    if (!json_is_object(process) || json_fields_get_text(process, "cmd")[0] == '\0')
        return error_set(err, -EINVAL, "field \"process\" has no \"cmd\": the program to run");
    e2b_connect_user(call->request, user, sizeof user);
    bool feeds = ret_feed != NULL && json_is_true(json_object_get(body, "stdin"));
    int r = feeds ? e2b_stdin_name(user, ret_feed, err) : 0;
    if (r < 0)
        return r;
    char *line = line_of(process, feeds ? ret_feed : NULL);
    if (line == NULL)
        return error_set(err, -ENOMEM, "no memory for a command");
    json_t *native = json_object();
    json_object_set_new(native, "command", json_string(line));
    free(line);
    if (json_is_object(json_object_get(process, "envs")))
        json_object_set(native, "env", json_object_get(process, "envs"));
    if (json_fields_get_text(process, "cwd")[0] != '\0')
        json_object_set(native, "cwd", json_object_get(process, "cwd"));
    if (user[0] != '\0')
        json_object_set_new(native, "user", json_string(user));
    if (timeout != NULL && strtoul(timeout, NULL, 10) > 0)
        json_object_set_new(native, "timeout_secs", json_real((double)strtoul(timeout, NULL, 10) / 1000));
    r = route_exec_take(call, native, true, err);
    *ret_native = native; // what was taken lies in it
    if (r < 0 && call->use.sandbox == NULL && (r == -ENOENT || r == -EBUSY || r == -ESHUTDOWN)) {
        error_prefix(err, "the sandbox was not found running");
        err->code = r = -EAGAIN; // Connect's "unavailable"
    }
    return r;
}

// ---- its output ----

// Of a job's output the guest keeps the last part alone: what a slow reader missed is told, not left out.
struct e2b_output {
    struct e2b_stream stream;
    uint64_t next[3], missed; // of each stream, UINT64_MAX = not known yet
};

static json_t *event(const char *name, json_t *data)
{
    return json_pack("{s:{s:o}}", "event", name, data);
}

static json_t *keepalive(void)
{
    return event("keepalive", json_object());
}

static int send_piece(void *context, int stream, uint64_t offset, const void *bytes, size_t size)
{
    struct e2b_output *output = context;
    if (output->next[stream] != UINT64_MAX && offset > output->next[stream]) {
        output->missed = offset - output->next[stream];
        return -EOVERFLOW;
    }
    output->next[stream] = offset + size;
    char *text = route_exec_base64(bytes, size);
    if (text == NULL)
        return -ENOMEM;
    json_t *data = json_pack("{s:s}", stream == 1 ? "stdout" : "stderr", text);
    free(text);
    return e2b_connect_send(&output->stream, event("data", data));
}

static bool is_over(void *context)
{
    struct e2b_output *output = context;
    return e2b_connect_keep(&output->stream, keepalive) < 0;
}

json_t *e2b_process_end(int exit_code, int signal)
{
    json_t *end = json_object();
    char words[64];
    if (signal != 0)
        snprintf(words, sizeof words, "signal: %s", strsignal(signal));
    else
        snprintf(words, sizeof words, "exit status %d", exit_code);
    json_object_set_new(end, "exitCode", json_integer(signal != 0 ? -1 : exit_code));
    json_object_set_new(end, "exited", json_boolean(signal == 0));
    json_object_set_new(end, "status", json_string(words));
    if (signal != 0 || exit_code != 0)
        json_object_set_new(end, "error", json_string(words));
    return event("end", end);
}

static void follow(
        struct e2b_output *output, struct sandbox_agent *use, const struct agent_job *job, bool from_now)
{
    struct agent_job_logs logs = {.id = job->id,
            .out_offset = from_now ? UINT64_MAX : 0,
            .err_offset = from_now ? UINT64_MAX : 0,
            .follow = true,
            .sink = send_piece,
            .cancelled = is_over,
            .context = output};
    struct agent_job done = *job;
    struct error err;
    e2b_connect_send(&output->stream, event("start", json_pack("{s:i}", "pid", job->pid)));
    output->next[1] = output->next[2] = from_now ? UINT64_MAX : 0;
    int r = agent_job_logs(use->agent, &logs, &done, &err);
    if (r < 0 && output->missed > 0) {
        error_set(&err, -EOVERFLOW,
                "%llu bytes of the output were not taken in time and are lost; the command goes on. Let it "
                "write to a file",
                (unsigned long long)output->missed);
        e2b_connect_end(&output->stream, "data_loss", &err);
    } else if (r < 0) {
        sandbox_agent_failed(use, &err);
        if (r != -ECANCELED)
            e2b_connect_end(&output->stream, NULL, &err);
    } else if (done.timed_out) {
        error_set(&err, -ETIMEDOUT, "the command did not end in the time that it was given, and was stopped");
        e2b_connect_end(&output->stream, "deadline_exceeded", &err);
        e2b_stdin_forget(use, job);
    } else {
        e2b_connect_send(&output->stream, e2b_process_end(done.exit_code, done.signal));
        e2b_connect_end(&output->stream, NULL, NULL);
        if (done.signal != 0)
            e2b_stdin_forget(use, job);
    }
}

static void start(struct http_request *request)
{
    struct e2b_output output = {.stream = {.request = request}};
    struct route_exec call = {.request = request};
    struct agent_job job;
    struct error err;
    char feed[E2B_STDIN_NAME_SIZE] = "";
    json_t *body = NULL, *native = NULL;
    int r = e2b_connect_ask(request, &body, &err);
    if (r == 0 && json_is_object(json_object_get(body, "pty"))) {
        e2b_pty_run(request, body);
        json_decref(body);
        return;
    }
    if (r == 0)
        r = e2b_process_take(&call, body, feed, &native, &err);
    if (r == 0 &&
            (r = agent_job_start(call.use.agent, &call.exec, feed[0] == '\0' ? NULL : feed, &job, &err)) < 0)
        sandbox_agent_failed(&call.use, &err);
    if (r < 0)
        e2b_connect_end(&output.stream, NULL, &err);
    else
        follow(&output, &call.use, &job, false);
    route_exec_end(&call);
    json_decref(native);
    json_decref(body);
}

// ---- found again ----

struct search {
    int pid;
    bool found;
    struct agent_job job; // the newest of that pid
};

static void look(void *context, const struct agent_job *job)
{
    struct search *search = context;
    if (!job->running || job->pid != search->pid || (search->found && search->job.id > job->id))
        return;
    search->job = *job;
    search->found = true;
}

int e2b_process_find(
        struct sandbox_agent *use, const json_t *body, struct agent_job *ret_job, struct error *err)
{
    const json_t *pid = json_object_get(json_object_get(body, "process"), "pid");
    struct search search = {.pid = (int)json_integer_value(pid)};
    if (!json_is_integer(pid))
        return error_set(err, -EINVAL, "field \"process\" must be {\"pid\":N}; tags are not served");
    int r = agent_job_list(use->agent, look, &search, err);
    if (r == 0 && !search.found)
        r = error_set(err, -ENOENT, "no process with pid %d runs", search.pid);
    if (r == 0)
        *ret_job = search.job;
    return r;
}

static void connect_again(struct http_request *request)
{
    struct e2b_output output = {.stream = {.request = request}};
    struct sandbox_agent use = {0};
    struct agent_job job;
    struct error err;
    json_t *body = NULL;
    int r = e2b_connect_ask(request, &body, &err);
    if (r == 0)
        r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r == 0)
        r = e2b_process_find(&use, body, &job, &err);
    if (r < 0)
        e2b_connect_end(&output.stream, NULL, &err);
    else
        follow(&output, &use, &job, true);
    if (use.sandbox != NULL)
        route_agent_done(request, &use);
    json_decref(body);
}

// The words of a shell line that line_of made; what was cut off at its end is left out.
static json_t *config_of(const char *line)
{
    json_t *args = json_array();
    const char *at = NULL;
    if (strncmp(line, words_last, strlen(words_last)) == 0)
        at = line + strlen(words_last) + 1;
    else if (strncmp(line, words_first, strlen(words_first)) == 0)
        at = line + strlen(words_first) + 1;
    while (at != NULL && *at == '\'') {
        char word[256];
        size_t used = 0;
        for (at++; *at != '\0' && used + 1 < sizeof word; at++) {
            if (strncmp(at, "'\\''", 4) == 0)
                at += 3;
            else if (*at == '\'')
                break;
            word[used++] = *at;
        }
        json_array_append_new(args, json_fields_text(word, used));
        at = *at == '\'' && at[1] == ' ' ? at + 2 : NULL;
    }
    json_t *command = json_array_size(args) > 0 ? json_incref(json_array_get(args, 0))
                                                : json_fields_text(line, strlen(line));
    if (json_array_size(args) > 0)
        json_array_remove(args, 0);
    return json_pack("{s:o, s:o}", "cmd", command, "args", args);
}

static void add_process(void *context, const struct agent_job *job)
{
    if (job->running && strncmp(job->name, "context:", 8) != 0)
        json_array_append_new(
                context, json_pack("{s:i, s:o}", "pid", job->pid, "config", config_of(job->command)));
}

static void list(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    int r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    json_t *all = json_array();
    r = agent_job_list(use.agent, add_process, all, &err);
    if (r < 0) {
        sandbox_agent_failed(&use, &err);
        http_reply_failure(request, "job", &err);
        json_decref(all);
    } else {
        http_reply_json(request, 200, json_pack("{s:o}", "processes", all));
    }
    route_agent_done(request, &use);
}

// ---- unary calls on one process ----

typedef int process_act(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err);

static void act_on(struct http_request *request, process_act *act)
{
    struct sandbox_agent use = {0};
    struct agent_job job;
    struct error err;
    json_t *body;
    int r = http_request_json(request, &body, &err);
    if (r == 0 && e2b_pty_act(request, body))
        return; // it was a terminal's
    const char *kind = "sandbox";
    if (r == 0)
        r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r == 0) {
        kind = "process";
        r = e2b_process_find(&use, body, &job, &err);
    }
    if (r == 0)
        r = act(&use, &job, body, &err);
    if (r < 0 && use.sandbox != NULL)
        sandbox_agent_failed(&use, &err);
    if (r < 0)
        http_reply_failure(request, kind, &err);
    else
        http_reply_json(request, 200, json_object());
    if (use.sandbox != NULL)
        route_agent_done(request, &use);
}

static int send_signal(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err)
{
    const char *name = json_fields_get_text(body, "signal");
    if (strcmp(name, "SIGNAL_SIGKILL") != 0 && strcmp(name, "SIGNAL_SIGTERM") != 0)
        return error_set(err, -EINVAL, "field \"signal\" must be SIGNAL_SIGKILL or SIGNAL_SIGTERM");
    bool kills = strcmp(name, "SIGNAL_SIGKILL") == 0;
    int r = agent_job_signal(use->agent, job->id, kills ? SIGKILL : SIGTERM, kills, err);
    if (r == 0 && kills)
        e2b_stdin_forget(use, job);
    return r;
}

static int resize(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err)
{
    return error_set(err, -EINVAL, "process %d has no terminal", job->pid);
}

static void input(struct http_request *request)
{
    act_on(request, e2b_stdin_give);
}

static void close_input(struct http_request *request)
{
    act_on(request, e2b_stdin_close);
}

static void signal_process(struct http_request *request)
{
    act_on(request, send_signal);
}

static void update(struct http_request *request)
{
    act_on(request, resize);
}

#define IN "/v1/sandboxes/{name}/envd/process.Process"
const struct http_route routes_e2b_process[] = {
        {"POST", IN "/Start", HTTP_STREAM, start},
        {"POST", IN "/Connect", HTTP_STREAM, connect_again},
        {"POST", IN "/List", 0, list},
        {"POST", IN "/SendInput", 0, input},
        {"POST", IN "/StreamInput", HTTP_STREAM, e2b_stdin_stream},
        {"POST", IN "/CloseStdin", 0, close_input},
        {"POST", IN "/SendSignal", 0, signal_process},
        {"POST", IN "/Update", 0, update},
        {0},
};
