// SPDX-License-Identifier: Apache-2.0
#include "vmglue/e2b_stdin.h"

#include "vmglue/e2b_process.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"
#include "vmglue/urls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_TIMEOUT_MS = 30000, SECRET_DIGITS = 24 };

// The job's name: stdin-SECRET-USER. The folder's: FOLDER SECRET.
static const char mark[] = "stdin-";
#define FOLDER "/tmp/.ramet-stdin-"

int e2b_stdin_name(const char *user, char ret_name[E2B_STDIN_NAME_SIZE], struct error *err)
{
    char token[URLS_TOKEN_SIZE];
    urls_new_token(token);
    int size = snprintf(ret_name, E2B_STDIN_NAME_SIZE, "%s%.*s-%s", mark, (int)SECRET_DIGITS, token, user);
    if (size >= E2B_STDIN_NAME_SIZE)
        return error_set(err, -EINVAL,
                "a process with input cannot be of the user \"%s\": the name is too long", user);
    return 0;
}

void e2b_stdin_line(const char *name, char ret_line[E2B_STDIN_LINE_MAX])
{
    // In place of a kill -0: of a process that changed its user that says no.
    snprintf(ret_line, E2B_STDIN_LINE_MAX,
            "; d=" FOLDER "%.*s; mkdir -m 700 $d && mkfifo -m 600 $d/in || exit 126; (while [ -d /proc/$$ ]; "
            "do sleep 1 >/dev/null; done; rm -rf $d) >$d/in 2>/dev/null & echo $! >$d/pid; exec \"$@\" "
            "<$d/in",
            (int)SECRET_DIGITS, name + strlen(mark));
}

static bool is_fed(const struct agent_job *job)
{
    size_t size = strlen(mark);
    return strncmp(job->name, mark, size) == 0 &&
           strspn(job->name + size, "0123456789abcdef") == SECRET_DIGITS &&
           job->name[size + SECRET_DIGITS] == '-';
}

// Runs a line with the folder in $d, as the process's user.
static int run_there(struct sandbox_agent *use, const struct agent_job *job, const char *act,
        const void *bytes, size_t size, struct agent_exec_result *ret_result, struct error *err)
{
    char line[512];
    const char *user = job->name + strlen(mark) + SECRET_DIGITS + 1;
    const char *otherwise = json_string_value(json_object_get(use->defaults, "user"));
    snprintf(line, sizeof line, "d=" FOLDER "%.*s; %s", (int)SECRET_DIGITS, job->name + strlen(mark), act);
    struct agent_exec exec = {.shell_command = line,
            .user = user[0] != '\0' ? user : otherwise,
            .cwd = "/",
            .stdin_bytes = bytes,
            .stdin_size = size,
            .timeout_ms = INPUT_TIMEOUT_MS};
    return agent_exec_run(use->agent, &exec, ret_result, err);
}

// A process that has just begun has no FIFO yet.
#define WAIT                                                                                                 \
    "i=0; until [ -p $d/in ] && [ -s $d/pid ]; do i=$((i + 1)); [ $i -lt 100 ] && [ -d /proc/%d ] || exit "  \
    "1; "                                                                                                    \
    "sleep 0.1; done; %s"

static int at_fifo(struct sandbox_agent *use, const struct agent_job *job, const char *act, const void *bytes,
        size_t size, struct error *err)
{
    char line[400];
    struct agent_exec_result result;
    if (!is_fed(job))
        return error_set(err, -EBUSY, "process %d takes no input: it was started without stdin", job->pid);
    snprintf(line, sizeof line, WAIT, job->pid, act);
    int r = run_there(use, job, line, bytes, size, &result, err);
    if (r < 0)
        return r;
    if (result.timed_out)
        r = error_set(
                err, -EAGAIN, "process %d has taken no input for %d s", job->pid, INPUT_TIMEOUT_MS / 1000);
    else if (result.exit_code != 0)
        r = error_set(err, -EBUSY, "process %d takes no input: it is closed", job->pid);
    agent_exec_result_free(&result);
    return r;
}

int e2b_stdin_give(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err)
{
    const json_t *text = json_object_get(json_object_get(body, "input"), "stdin");
    size_t size = 0;
    void *bytes = json_is_string(text) ? e2b_connect_bytes(json_string_value(text), &size) : NULL;
    if (bytes == NULL)
        return error_set(err, -EINVAL, "field \"input\" must be {\"stdin\":\"<base64>\"}");
    // nocreat: what opens a FIFO in /tmp as if to make it is refused by the kernel.
    int r = at_fifo(use, job,
            "exec dd of=$d/in bs=64k iflag=fullblock oflag=append conv=nocreat,notrunc status=none", bytes,
            size, err);
    free(bytes);
    return r;
}

int e2b_stdin_close(
        struct sandbox_agent *use, const struct agent_job *job, const json_t *body, struct error *err)
{
    return at_fifo(use, job, "p=$(cat $d/pid) && rm -rf $d && kill $p", NULL, 0, err);
}

void e2b_stdin_forget(struct sandbox_agent *use, const struct agent_job *job)
{
    struct agent_exec_result result;
    struct error unused; // what cannot be removed now goes with the sandbox
    if (is_fed(job) && run_there(use, job, "rm -rf $d", NULL, 0, &result, &unused) == 0)
        agent_exec_result_free(&result);
}

// ---- as a stream ----

struct input_stream {
    struct http_request *request;
    struct sandbox_agent use; // of a process; a terminal needs none
    struct agent_job job;
    json_t *process; // who is fed, {"pid":N}
    bool is_terminal;
};

// The first frame says whom.
static int begin(struct input_stream *input, const json_t *start, struct error *err)
{
    int r = 0;
    if (!json_is_object(json_object_get(start, "process")))
        return error_set(err, -EINVAL,
                "the first frame must be {\"start\":{\"process\":{\"pid\":N}}}: whose input it is");
    if (input->process != NULL)
        return error_set(err, -EINVAL, "there is a second frame with \"start\"");
    input->process = json_incref(json_object_get(start, "process"));
    input->is_terminal = e2b_pty_is(input->process);
    if (input->is_terminal)
        return 0;
    r = route_agent_use(input->request, http_request_param(input->request, "name"), &input->use, err);
    return r < 0 ? r : e2b_process_find(&input->use, start, &input->job, err);
}

static int feed(struct input_stream *input, const json_t *frame, struct error *err)
{
    const json_t *start = json_object_get(frame, "start"), *data = json_object_get(frame, "data");
    if (start != NULL)
        return begin(input, start, err);
    if (data == NULL)
        return 0; // a keepalive
    if (input->process == NULL)
        return error_set(err, -EINVAL, "the first frame has no \"start\": whose input it is");
    if (!input->is_terminal)
        return e2b_stdin_give(&input->use, &input->job, data, err);
    json_t *body =
            json_pack("{s:O, s:O}", "process", input->process, "input", json_object_get(data, "input"));
    int r = error_set(err, -EINVAL, "field \"data\" must be {\"input\":{\"pty\":\"<base64>\"}}");
    if (body != NULL)
        e2b_pty_do(input->request, body, &r, err);
    json_decref(body);
    return r;
}

void e2b_stdin_stream(struct http_request *request)
{
    struct e2b_stream stream = {.request = request};
    struct input_stream input = {.request = request};
    struct error err;
    json_t *frame = NULL;
    int r;
    while ((r = e2b_connect_next(request, &frame, &err)) > 0) {
        r = feed(&input, frame, &err);
        json_decref(frame);
        if (r < 0)
            break;
    }
    if (r < 0 && input.use.sandbox != NULL)
        sandbox_agent_failed(&input.use, &err);
    if (r == 0)
        e2b_connect_send(&stream, json_object());
    e2b_connect_end(&stream, NULL, r < 0 ? &err : NULL);
    if (input.use.sandbox != NULL)
        route_agent_done(request, &input.use);
    json_decref(input.process);
}
