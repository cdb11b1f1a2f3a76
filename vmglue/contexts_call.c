// SPDX-License-Identifier: Apache-2.0
#include "blockstore/clock.h"
#include "vmglue/contexts_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    LIST_STEP_MS = 20,     // between two looks at the guest's list of jobs
    STEP_MS = 100,         // between two questions whether the client is still there
    GIVE_UP_MS = 15000,    // from an interrupt that kills to the run's end
    REQUEST_MAX = 8 << 20, // below what the supervisor takes (LINE_MAX in output.py)
    ANSWER_MAX = 1 << 20,  // bytes of an answer that is no run's
    PIECE_BYTES = 1 << 18,
};

uint64_t contexts_now_ms(void)
{
    return clock_boot_ns() / 1000000;
}

int contexts_dial(struct sandbox_agent *use, const char *id, int *ret_fd, struct error *err)
{
    char target[128];
    snprintf(target, sizeof target, "unix:" CONTEXTS_SOCKETS "/%s.sock", id);
    return agent_dial(use->agent, target, CONTEXTS_ANSWER_MS, ret_fd, err);
}

static int gone(struct error *err)
{
    return error_set(err, -EPIPE,
            "the connection to the code context ended; what it ran goes on in the guest, and nobody hears "
            "it");
}

static void wait_for(int fd, short events)
{
    struct pollfd poller = {fd, events, 0};
    poll(&poller, 1, STEP_MS); // whatever it says, the next call on fd tells
}

// Bytes, 0 when there are none now, -EPIPE at the end.
static ssize_t receive(int fd, void *buffer, size_t capacity, struct error *err)
{
    ssize_t got = recv(fd, buffer, capacity, 0);
    if (got > 0)
        return got;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : gone(err);
}

int contexts_send(int fd, json_t *request, struct error *err)
{
    char *text = json_dumps(request, JSON_COMPACT);
    size_t size = text == NULL ? 0 : strlen(text) + 1, done = 0;
    uint64_t limit = contexts_now_ms() + CONTEXTS_ANSWER_MS;
    json_decref(request);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the request");
    if (size > REQUEST_MAX) {
        free(text);
        return error_set(err, -E2BIG,
                "the code is larger than the %d MiB of JSON that a context takes: put it into a file of the "
                "sandbox and run that",
                REQUEST_MAX >> 20);
    }
    text[size - 1] = '\n'; // in the place of the zero
    int r = 0;
    while (r == 0 && done < size) {
        ssize_t sent = send(fd, text + done, size - done, MSG_NOSIGNAL);
        if (sent > 0)
            done += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            r = gone(err);
        else if (contexts_now_ms() > limit)
            r = error_set(err, -ETIMEDOUT, "the code context does not take requests; restart its sandbox");
        else
            wait_for(fd, POLLOUT);
    }
    free(text);
    return r;
}

int contexts_receive(int fd, unsigned wait_ms, json_t **ret_answer, struct error *err)
{
    uint64_t limit = contexts_now_ms() + wait_ms;
    size_t size = 0;
    char *text = malloc(ANSWER_MAX), *end = NULL;
    int r = text == NULL ? error_set(err, -ENOMEM, "no memory for an answer") : 0;
    while (r == 0 && end == NULL) {
        ssize_t got = receive(fd, text + size, ANSWER_MAX - size, err);
        if (got < 0)
            r = (int)got;
        else if (got == 0 && contexts_now_ms() > limit)
            r = error_set(err, -ETIMEDOUT, "the code context did not answer in time");
        else if (got == 0)
            wait_for(fd, POLLIN);
        else
            end = memchr(text + size, '\n', (size_t)got);
        size += got > 0 ? (size_t)got : 0;
        if (r == 0 && end == NULL && size == ANSWER_MAX)
            r = error_set(err, -EPROTO, "the code context's answer does not end");
    }
    if (r == 0)
        r = context_stream_answer(text, (size_t)(end - text), ret_answer, err);
    free(text);
    return r;
}

int contexts_ask(struct sandbox_agent *use, const char *id, json_t *request, unsigned wait_ms,
        json_t **ret_answer, struct error *err)
{
    int fd, r = contexts_dial(use, id, &fd, err);
    if (r == -ENOENT || r == -ECONNREFUSED)
        r = error_set(err, -EBUSY,
                "the context \"%s\" does not listen: it just begins, or its code took its socket away", id);
    if (r < 0) {
        json_decref(request);
        return r;
    }
    r = contexts_send(fd, request, err);
    if (r == 0)
        r = contexts_receive(fd, wait_ms, ret_answer, err);
    close(fd);
    return r;
}

// Another call makes it right now. Its job has the name at once, and is listed when it runs.
static int await_other(struct sandbox_agent *use, const char *id, int *ret_fd, struct error *err)
{
    uint64_t limit = contexts_now_ms() + CONTEXTS_ANSWER_MS;
    struct contexts_place place;
    int r;
    while ((r = contexts_find(use, id, &place, err)) == -ENOENT && contexts_now_ms() < limit)
        nanosleep(&(struct timespec){0, LIST_STEP_MS * 1000000}, NULL);
    return r == 0 ? contexts_await(use, id, place.job.id, ret_fd, err) : r;
}

// A connection to the context. One that is made when it is first used is made; one of those whose processes
// have ended (the code may kill them) begins anew, and *ret_lost says so.
static int reach(struct sandbox_agent *use, const char *id, int *ret_fd, bool *ret_lost, struct error *err)
{
    struct contexts_place place;
    const char *language = contexts_default_language(&id);
    int r = contexts_check_id(id, err);
    if (r == 0)
        r = contexts_dial(use, id, ret_fd, err);
    if (r != -ENOENT && r != -ECONNREFUSED)
        return r;
    r = contexts_find(use, id, &place, err);
    if (r == 0 && place.job.running) // it is just being made
        return contexts_await(use, id, place.job.id, ret_fd, err);
    if (language == NULL)
        return r < 0 ? r : contexts_ended(&place, err);
    if (r < 0 && r != -ENOENT)
        return r;
    *ret_lost = r == 0;
    const struct contexts_create create = {.id = id, .language = language};
    r = contexts_start(use, &create, id, language, ret_fd, err);
    return r == -EEXIST ? await_other(use, id, ret_fd, err) : r;
}

// Passes on what comes until the run has ended.
static int follow(int fd, const struct contexts_run *run, const char *name, struct context_stream *stream,
        struct error *err)
{
    uint64_t give_up_ms = 0;
    char *piece = malloc(PIECE_BYTES);
    int r = piece == NULL ? error_set(err, -ENOMEM, "no memory to hear a code context") : 0;
    while (r == 0) {
        ssize_t got = receive(fd, piece, PIECE_BYTES, err);
        if (got < 0)
            r = (int)got;
        else if (got > 0)
            r = context_stream_feed(stream, piece, (size_t)got, err);
        else
            wait_for(fd, POLLIN);
        if (r != 0 || run->cancelled == NULL)
            continue;
        if (give_up_ms == 0 && run->cancelled(run->context)) {
            give_up_ms = contexts_now_ms() + GIVE_UP_MS;
            r = contexts_send(
                    fd, json_pack("{s:s, s:s, s:b}", "op", "interrupt", "run", name, "kill", 1), err);
        } else if (give_up_ms != 0 && contexts_now_ms() > give_up_ms) {
            r = error_set(
                    err, -ECANCELED, "the run was given up, and its context does not say that it ended");
        }
    }
    free(piece);
    return r;
}

static int call(struct sandbox_agent *use, const struct contexts_run *run, const char *op,
        json_t **ret_execution, struct error *err)
{
    uint64_t random;
    char name[20];
    bool lost = false;
    int fd, r = reach(use, run->id, &fd, &lost, err);
    if (r < 0)
        return r;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = contexts_now_ms(); // the name only tells one run of a connection from another
    snprintf(name, sizeof name, "%016llx", (unsigned long long)random);
    struct context_stream *stream = context_stream_create(name, run->on_event, run->context);
    r = contexts_send(fd,
            json_pack("{s:s, s:s, s:s, s:I}", "op", op, "run", name, "code", run->code, "timeout_ms",
                    (json_int_t)run->timeout_ms),
            err);
    if (r == 0)
        r = follow(fd, run, name, stream, err);
    close(fd);
    if (r > 0) {
        *ret_execution = context_stream_execution(stream);
        if (lost && json_is_null(json_object_get(*ret_execution, "state_lost")))
            json_object_set_new(*ret_execution, "state_lost",
                    json_string("the context's processes had ended; this run began with nothing"));
    }
    context_stream_destroy(stream);
    return r < 0 ? r : 0;
}

int contexts_run(
        struct sandbox_agent *use, const struct contexts_run *run, json_t **ret_execution, struct error *err)
{
    return call(use, run, "run", ret_execution, err);
}

struct warming {
    bool (*cancelled)(void *context);
    void *context;
    uint64_t until_ms;
};

static bool warming_is_over(void *context)
{
    const struct warming *warming = context;
    return contexts_now_ms() > warming->until_ms || warming->cancelled(warming->context);
}

int contexts_warm(
        struct sandbox_agent *use, bool (*cancelled)(void *context), void *context, struct error *err)
{
    struct warming warming = {cancelled, context, contexts_now_ms() + 2 * CONTEXTS_START_MS};
    const struct contexts_run run = {.id = "python",
            .code = "",
            .timeout_ms = CONTEXTS_START_MS,
            .cancelled = warming_is_over,
            .context = &warming};
    json_t *execution = NULL;
    int r = call(use, &run, "warm", &execution, err);
    const json_t *error = json_object_get(execution, "error");
    if (r == 0 && json_is_object(error))
        r = error_set(err, -ENOTSUP, "the code context cannot be warmed up: %.400s",
                json_string_value(json_object_get(error, "value")));
    json_decref(execution);
    return r;
}
