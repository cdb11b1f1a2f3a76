// SPDX-License-Identifier: Apache-2.0
// Terminals of E2B's clients. One lives as long as the request that opened it; others find it by a number
// that stands for a pid. The list of those that are open is this file's; one lock, held over nothing that
// waits.
#include "vmglue/e2b_process.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_NUMBER = 1 << 30, LOOK_MS = 100, END_WAIT_MS = 5000, CELLS_MAX = 4096, WRITE_WAIT_MS = 10000 };

struct terminal {
    int number;
    char sandbox[64];
    struct agent_pty *pty;
    bool ended;     // somebody asked for it
    unsigned users; // who is at work on it
    struct terminal *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unused = PTHREAD_COND_INITIALIZER;
static struct terminal *terminals; // protected by lock, as is the next number
static int next_number = FIRST_NUMBER;

static json_t *keepalive(void)
{
    return json_pack("{s:{s:{}}}", "event", "keepalive");
}

static unsigned cells(const json_t *size, const char *name, unsigned otherwise)
{
    json_int_t value = json_integer_value(json_object_get(size, name));
    return value < 1 || value > CELLS_MAX ? otherwise : (unsigned)value;
}

static void add(struct terminal *terminal)
{
    pthread_mutex_lock(&lock);
    terminal->number = next_number;
    next_number = next_number == INT32_MAX ? FIRST_NUMBER : next_number + 1;
    terminal->next = terminals;
    terminals = terminal;
    pthread_mutex_unlock(&lock);
}

// Out of the list, and nobody is at work on it any more.
static void drop(struct terminal *terminal)
{
    pthread_mutex_lock(&lock);
    struct terminal **link = &terminals;
    while (*link != terminal)
        link = &(*link)->next;
    *link = terminal->next;
    while (terminal->users > 0)
        pthread_cond_wait(&unused, &lock);
    pthread_mutex_unlock(&lock);
}

static bool is_ended(struct terminal *terminal)
{
    pthread_mutex_lock(&lock);
    bool ended = terminal->ended;
    pthread_mutex_unlock(&lock);
    return ended;
}

static void show(struct e2b_stream *stream, const void *bytes, size_t size)
{
    char *text = route_exec_base64(bytes, size);
    if (text != NULL)
        e2b_connect_send(stream, json_pack("{s:{s:{s:s}}}", "event", "data", "pty", text));
    free(text);
}

// Until the terminal, or its client, is gone. true: it ended by itself.
static bool serve(struct e2b_stream *stream, struct terminal *terminal)
{
    char bytes[16384];
    for (;;) {
        struct pollfd poll_fd = {.fd = agent_pty_fd(terminal->pty), .events = POLLIN};
        int ready = poll(&poll_fd, 1, LOOK_MS);
        ssize_t got = ready > 0 ? recv(poll_fd.fd, bytes, sizeof bytes, 0) : -1;
        if (got > 0)
            show(stream, bytes, (size_t)got);
        if (ready > 0 && (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)))
            return true;
        if (is_ended(terminal))
            return false;
        if (e2b_connect_keep(stream, keepalive) < 0)
            return false;
    }
}

void e2b_pty_run(struct http_request *request, const json_t *body)
{
    struct e2b_stream stream = {.request = request};
    struct route_exec call = {.request = request};
    struct terminal terminal = {0};
    struct agent_exec_result result = {.exit_code = -1, .signal = SIGKILL};
    struct error err;
    json_t *native = NULL;
    const json_t *size = json_object_get(json_object_get(body, "pty"), "size");
    int r = e2b_process_take(&call, body, NULL, &native, &err);
    call.exec.timeout_ms = 0; // a terminal's time is its connection's
    if (r == 0 && (r = agent_pty_open(call.use.agent, &call.exec, cells(size, "rows", 24),
                           cells(size, "cols", 80), NULL, &terminal.pty, &err)) < 0)
        sandbox_agent_failed(&call.use, &err);
    if (r < 0) {
        e2b_connect_end(&stream, NULL, &err);
    } else {
        snprintf(terminal.sandbox, sizeof terminal.sandbox, "%s", http_request_param(request, "name"));
        add(&terminal);
        e2b_connect_send(&stream, json_pack("{s:{s:{s:i}}}", "event", "start", "pid", terminal.number));
        if (serve(&stream, &terminal))
            agent_pty_wait(terminal.pty, END_WAIT_MS, &result, &err);
        drop(&terminal);
        agent_pty_close(terminal.pty);
        e2b_connect_send(&stream, e2b_process_end(result.exit_code, result.signal));
        e2b_connect_end(&stream, NULL, NULL);
    }
    route_exec_end(&call);
    json_decref(native);
}

static int type(struct terminal *terminal, const json_t *body, struct error *err)
{
    const json_t *text = json_object_get(json_object_get(body, "input"), "pty");
    size_t size = 0, done = 0;
    char *bytes = json_is_string(text) ? e2b_connect_bytes(json_string_value(text), &size) : NULL;
    int r = bytes == NULL ? error_set(err, -EINVAL, "field \"input\" must be {\"pty\":\"<base64>\"}") : 0;
    while (r == 0 && done < size) {
        struct pollfd poll_fd = {.fd = agent_pty_fd(terminal->pty), .events = POLLOUT};
        ssize_t put = poll(&poll_fd, 1, WRITE_WAIT_MS) > 0
                              ? send(poll_fd.fd, bytes + done, size - done, MSG_NOSIGNAL)
                              : -1;
        if (put <= 0)
            r = error_set(err, -EAGAIN, "the terminal takes no input");
        else
            done += (size_t)put;
    }
    free(bytes);
    return r;
}

static struct terminal *take(int number, const char *sandbox)
{
    pthread_mutex_lock(&lock);
    struct terminal *terminal = terminals;
    while (terminal != NULL && (terminal->number != number || strcmp(terminal->sandbox, sandbox) != 0))
        terminal = terminal->next;
    if (terminal != NULL)
        terminal->users++;
    pthread_mutex_unlock(&lock);
    return terminal;
}

static void let_go(struct terminal *terminal, bool ends)
{
    pthread_mutex_lock(&lock);
    terminal->ended = terminal->ended || ends;
    if (--terminal->users == 0)
        pthread_cond_broadcast(&unused);
    pthread_mutex_unlock(&lock);
}

bool e2b_pty_is(const json_t *process)
{
    return json_integer_value(json_object_get(process, "pid")) >= FIRST_NUMBER;
}

bool e2b_pty_do(struct http_request *request, const json_t *body, int *ret_result, struct error *err)
{
    const json_t *size = json_object_get(json_object_get(body, "pty"), "size");
    int number = (int)json_integer_value(json_object_get(json_object_get(body, "process"), "pid"));
    int r = 0;
    if (!e2b_pty_is(json_object_get(body, "process")))
        return false;
    struct terminal *terminal = take(number, http_request_param(request, "name"));
    bool types = json_object_get(body, "input") != NULL;
    if (terminal == NULL)
        r = error_set(
                err, -ENOENT, "there is no terminal %d: it ended with the connection that opened it", number);
    else if (types)
        r = type(terminal, body, err);
    else if (size != NULL)
        r = agent_pty_resize(terminal->pty, cells(size, "rows", 24), cells(size, "cols", 80), err);
    if (terminal != NULL)
        let_go(terminal, !types && size == NULL);
    *ret_result = r;
    return true;
}

bool e2b_pty_act(struct http_request *request, const json_t *body)
{
    struct error err;
    int r;
    if (!e2b_pty_do(request, body, &r, &err))
        return false;
    if (r < 0)
        http_reply_failure(request, "process", &err);
    else
        http_reply_json(request, 200, json_object());
    return true;
}
