// SPDX-License-Identifier: Apache-2.0
// Connections to ports and sockets of the guest, and terminals: streams behind a descriptor. Declared in
// agent_client.h.
#include "vmglue/agent_client.h"
#include "vmglue/agent_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_GRACE_MS = 2000, SIZE_MAX_CELLS = 4096 };

// The guest says with an empty piece on channel 2 that it has begun, or gives its result at once.
static int await_begun(struct agent_call *call, unsigned limit_ms, struct error *err)
{
    struct agent_piece *piece;
    struct agent_cursor fields;
    int event = agent_call_wait(call, limit_ms, false, &piece);
    if (event == AGENT_EVENT_PIECE) {
        bool right = piece->channel == 2 && piece->size == 0;
        agent_call_taken(call, piece);
        return right ? 0 : error_set(err, -EPROTO, "the guest's agent sent output before it was due");
    }
    if (event == -ETIMEDOUT)
        return error_set(err, -ETIMEDOUT, "the guest did not answer within %u ms", limit_ms);
    int result = agent_call_result(call, &fields, err);
    return result < 0 ? result : error_set(err, -EPROTO, "the guest's agent sent a result before it was due");
}

// Frees fields. *ret_pump's stream has begun; *ret_fd is the user's end.
static int pump_begin(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        unsigned limit_ms, struct agent_pump **ret_pump, int *ret_fd, struct error *err)
{
    struct agent_pump *pump;
    int fd, result = agent_pump_new(agent, &pump, &fd, err);
    if (result < 0) {
        agent_builder_free(fields);
        return result;
    }
    result = agent_call_begin(agent, operation, fields, false, &pump->call, err);
    agent_builder_free(fields);
    if (result == 0 && (result = await_begun(&pump->call, limit_ms, err)) < 0)
        agent_call_end(&pump->call);
    if (result < 0) {
        pump->call.agent = agent;
        agent_pump_free(pump);
        close(fd);
        return result;
    }
    *ret_pump = pump;
    *ret_fd = fd;
    return 0;
}

static int pack_target(struct agent_builder *fields, const char *target, struct error *err)
{
    if (strncmp(target, "tcp:", 4) == 0) {
        char *end;
        unsigned long port = strtoul(target + 4, &end, 10);
        if (target[4] < '0' || target[4] > '9' || *end != 0 || port < 1 || port > 65535)
            return error_set(err, -EINVAL, "\"%.100s\": a port is a number from 1 to 65535", target);
        agent_builder_u32(fields, AGENT_DIAL_TCP);
        agent_builder_u32(fields, (uint32_t)port);
        agent_builder_string(fields, "");
        return 0;
    }
    if (strncmp(target, "unix:/", 6) == 0) {
        agent_builder_u32(fields, AGENT_DIAL_UNIX);
        agent_builder_u32(fields, 0);
        agent_builder_string(fields, target + 5);
        return 0;
    }
    return error_set(err, -EINVAL, "\"%.100s\" is neither tcp:PORT nor unix:/run/PATH", target);
}

int agent_dial(struct agent *agent, const char *target, unsigned timeout_ms, int *ret_fd, struct error *err)
{
    struct agent_builder fields = {0};
    struct agent_pump *pump;
    if (timeout_ms == 0)
        timeout_ms = AGENT_CALL_DEFAULT_MS;
    int result = pack_target(&fields, target, err);
    if (result < 0)
        return result;
    agent_builder_u64(&fields, timeout_ms);
    result = pump_begin(agent, AGENT_DIAL, &fields, timeout_ms + ANSWER_GRACE_MS, &pump, ret_fd, err);
    if (result == 0)
        agent_pump_start(pump);
    return result;
}

struct agent_pty {
    struct agent *agent;
    struct agent_pump *pump;
    int fd;
};

static int check_size(unsigned rows, unsigned columns, struct error *err)
{
    if (rows < 1 || columns < 1 || rows > SIZE_MAX_CELLS || columns > SIZE_MAX_CELLS)
        return error_set(err, -EINVAL, "a terminal has 1 to %d rows and columns, not %u and %u",
                SIZE_MAX_CELLS, rows, columns);
    return 0;
}

int agent_pty_open(struct agent *agent, const struct agent_exec *exec, unsigned rows, unsigned columns,
        const char *term, struct agent_pty **ret_pty, struct error *err)
{
    struct agent_builder fields = {0};
    int result = check_size(rows, columns, err);
    if (result < 0)
        return result;
    struct agent_pty *pty = calloc(1, sizeof *pty);
    if (pty == NULL)
        return error_set(err, -ENOMEM, "no memory for a terminal");
    agent_builder_u32(&fields, rows);
    agent_builder_u32(&fields, columns);
    agent_builder_string(&fields, term != NULL ? term : "xterm-256color");
    agent_pack_exec(&fields, exec);
    pty->agent = agent;
    result = pump_begin(agent, AGENT_PTY, &fields, AGENT_CALL_DEFAULT_MS, &pty->pump, &pty->fd, err);
    if (result < 0) {
        free(pty);
        return result;
    }
    pty->pump->kept = true;
    agent_pump_start(pty->pump);
    *ret_pty = pty;
    return 0;
}

int agent_pty_fd(const struct agent_pty *pty)
{
    return pty->fd;
}

int agent_pty_resize(struct agent_pty *pty, unsigned rows, unsigned columns, struct error *err)
{
    struct agent_builder fields = {0};
    int result = check_size(rows, columns, err);
    if (result < 0)
        return result;
    agent_builder_u32(&fields, pty->pump->call.stream);
    agent_builder_u32(&fields, rows);
    agent_builder_u32(&fields, columns);
    return agent_call_simple(pty->agent, AGENT_PTY_RESIZE, &fields, false, 0, NULL, 0, err);
}

int agent_pty_wait(
        struct agent_pty *pty, unsigned timeout_ms, struct agent_exec_result *ret_result, struct error *err)
{
    struct agent_cursor fields;
    if (timeout_ms == 0)
        timeout_ms = AGENT_CALL_DEFAULT_MS;
    if (agent_call_wait_done(&pty->pump->call, timeout_ms) < 0)
        return error_set(err, -ETIMEDOUT, "the command on the terminal did not end within %u ms", timeout_ms);
    int result = agent_call_result(&pty->pump->call, &fields, err);
    if (result == 0)
        result = agent_exec_unpack(&fields, ret_result, err);
    return result;
}

struct agent_pty *agent_pty_close(struct agent_pty *pty)
{
    if (pty == NULL)
        return NULL;
    agent_pump_drop(pty->pump);
    close(pty->fd);
    free(pty);
    return NULL;
}
