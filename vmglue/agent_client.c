// SPDX-License-Identifier: Apache-2.0
#include "vmglue/agent_client.h"

#include "blockstore/clock.h"
#include "vmglue/agent_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    OUTPUT_LIMIT_BYTES = 16 << 20,
    EXEC_GRACE_MS = 30000, // beyond the guest's own time-out
    FREEZE_GRACE_MS = 2000,
    CANCEL_POLL_MS = 100,
    CLOCK_ERROR_NS = 20000000, // half a round trip is believed up to here
};

int agent_ping(struct agent *agent, unsigned timeout_ms, struct error *err)
{
    uint64_t began_ns = clock_monotonic_ns();
    int result = agent_call_simple(agent, AGENT_PING, NULL, false, timeout_ms, NULL, 0, err);
    if (result == 0)
        agent_note_round_trip(agent, clock_monotonic_ns() - began_ns);
    return result;
}

struct collected {
    char *bytes;
    size_t size, capacity, limit;
    bool truncated;
};

// Keeps the first `limit` bytes.
static int collect(struct collected *output, const void *bytes, size_t size)
{
    size_t take = output->limit - output->size < size ? output->limit - output->size : size;
    output->truncated = output->truncated || take < size;
    if (output->capacity - output->size < take + 1) {
        size_t capacity = output->capacity * 2 + take + 1;
        char *grown = realloc(output->bytes, capacity);
        if (grown == NULL)
            return -ENOMEM;
        output->bytes = grown;
        output->capacity = capacity;
    }
    memcpy(output->bytes + output->size, bytes, take);
    output->size += take;
    output->bytes[output->size] = 0;
    return 0;
}

struct exec_run {
    const struct agent_exec *exec;
    struct agent_call call;
    struct collected output[2];
    size_t stdin_sent;
    bool stdin_ended, cancel_sent;
    uint64_t deadline_ns; // UINT64_MAX = none
};

static void pack_strings(struct agent_builder *fields, const char *const *strings)
{
    uint32_t count = 0;
    while (strings != NULL && strings[count] != NULL)
        count++;
    agent_builder_u32(fields, count);
    for (uint32_t i = 0; i < count; i++)
        agent_builder_string(fields, strings[i]);
}

void agent_pack_exec(struct agent_builder *fields, const struct agent_exec *exec)
{
    const char *const shell[] = {exec->shell_command, NULL};
    agent_builder_u32(fields, (exec->shell_command != NULL ? AGENT_EXEC_SHELL : 0) |
                                      (exec->stdin_size == 0 ? 0 : AGENT_EXEC_STDIN));
    agent_builder_u64(fields, exec->timeout_ms);
    agent_builder_string(fields, exec->user ? exec->user : "");
    agent_builder_string(fields, exec->cwd ? exec->cwd : "");
    pack_strings(fields, exec->shell_command ? shell : exec->argv);
    pack_strings(fields, exec->env);
}

static int exec_begin(struct agent *agent, struct exec_run *run, struct error *err)
{
    struct agent_builder fields = {0};
    run->stdin_ended = run->exec->stdin_size == 0;
    agent_pack_exec(&fields, run->exec);
    int result = agent_call_begin(agent, AGENT_EXEC, &fields, false, &run->call, err);
    agent_builder_free(&fields);
    return result;
}

static void exec_piece(struct exec_run *run, struct agent_piece *piece)
{
    const struct agent_exec *exec = run->exec;
    int stream = piece->channel == 2 ? 2 : 1;
    if (exec->on_output != NULL)
        exec->on_output(exec->context, stream, piece->bytes, piece->size);
    else if (collect(&run->output[stream - 1], piece->bytes, piece->size) < 0)
        run->output[stream - 1].truncated = true;
    agent_call_taken(&run->call, piece);
}

static void exec_send_stdin(struct exec_run *run)
{
    const struct agent_exec *exec = run->exec;
    size_t size = exec->stdin_size - run->stdin_sent, credit = agent_call_credit(&run->call);
    size = size < AGENT_PAYLOAD_MAX ? size : AGENT_PAYLOAD_MAX;
    size = size < credit ? size : credit;
    bool last = run->stdin_sent + size == exec->stdin_size;
    if (agent_call_send(&run->call, (const char *)exec->stdin_bytes + run->stdin_sent, size, last) == 0) {
        run->stdin_sent += size;
        run->stdin_ended = last;
    }
}

// Until the result is there.
static int exec_serve(struct exec_run *run, struct error *err)
{
    const struct agent_exec *exec = run->exec;
    for (;;) {
        struct agent_piece *piece;
        uint64_t now = clock_monotonic_ns();
        if (now >= run->deadline_ns)
            return error_set(err, -ETIMEDOUT,
                    "the guest did not end the command within its time limit of %u ms", exec->timeout_ms);
        uint64_t left_ms =
                run->deadline_ns == UINT64_MAX ? UINT64_MAX : (run->deadline_ns - now) / 1000000 + 1;
        unsigned wait_ms = agent_quiet_ms(run->call.agent);
        wait_ms = left_ms < wait_ms ? (unsigned)left_ms : wait_ms;
        if (exec->cancelled != NULL && !run->cancel_sent) {
            if (exec->cancelled(exec->context)) {
                agent_call_cancel(&run->call);
                run->cancel_sent = true;
                run->deadline_ns = now + EXEC_GRACE_MS * 1000000ull;
            } else {
                wait_ms = CANCEL_POLL_MS;
            }
        }
        switch (agent_call_wait(&run->call, wait_ms, !run->stdin_ended, &piece)) {
        case AGENT_EVENT_PIECE:
            exec_piece(run, piece);
            break;
        case AGENT_EVENT_CREDIT:
            exec_send_stdin(run);
            break;
        case AGENT_EVENT_DONE:
            return 0;
        default: { // the time limit, or time to ask whether to cancel
            int silent = agent_check_silence(run->call.agent, err);
            if (silent < 0)
                return silent;
            break;
        }
        }
    }
}

int agent_exec_unpack(struct agent_cursor *fields, struct agent_exec_result *ret_result, struct error *err)
{
    struct agent_exec_result filled = {
            .exit_code = (int)agent_cursor_u32(fields), .signal = (int)agent_cursor_u32(fields)};
    uint32_t flags = agent_cursor_u32(fields);
    filled.duration_ms = agent_cursor_u64(fields);
    if (fields->bad)
        return error_set(err, -EPROTO, "the guest's agent sent a short result");
    filled.timed_out = flags & AGENT_EXEC_TIMED_OUT;
    filled.out_of_memory = flags & AGENT_EXEC_OUT_OF_MEMORY;
    *ret_result = filled;
    return 0;
}

static int exec_result(struct exec_run *run, struct agent_exec_result *ret_result, struct error *err)
{
    struct agent_cursor fields;
    struct agent_exec_result filled;
    int result = agent_call_result(&run->call, &fields, err);
    if (result == 0)
        result = agent_exec_unpack(&fields, &filled, err);
    if (result < 0)
        return result;
    for (int i = 0; i < 2 && run->exec->on_output == NULL; i++) {
        if (run->output[i].bytes == NULL && collect(&run->output[i], "", 0) < 0)
            return error_set(err, -ENOMEM, "no memory for the command's output");
    }
    filled.truncated = run->output[0].truncated || run->output[1].truncated;
    filled.out = run->output[0].bytes;
    filled.out_size = run->output[0].size;
    filled.err = run->output[1].bytes;
    filled.err_size = run->output[1].size;
    *ret_result = filled;
    return 0;
}

int agent_exec_run(struct agent *agent, const struct agent_exec *exec, struct agent_exec_result *ret_result,
        struct error *err)
{
    struct exec_run run = {.exec = exec, .deadline_ns = UINT64_MAX};
    if (exec->shell_command == NULL && (exec->argv == NULL || exec->argv[0] == NULL))
        return error_set(err, -EINVAL, "no command was given");
    for (int i = 0; i < 2; i++)
        run.output[i].limit = exec->output_limit_bytes ? exec->output_limit_bytes : OUTPUT_LIMIT_BYTES;
    if (exec->timeout_ms != 0)
        run.deadline_ns = clock_monotonic_ns() + ((uint64_t)exec->timeout_ms + EXEC_GRACE_MS) * 1000000;
    int result = exec_begin(agent, &run, err);
    if (result < 0)
        return result;
    result = exec_serve(&run, err);
    if (result == 0)
        result = exec_result(&run, ret_result, err);
    agent_call_end(&run.call);
    for (int i = 0; i < 2 && result < 0; i++)
        free(run.output[i].bytes);
    return result;
}

void agent_exec_result_free(struct agent_exec_result *result)
{
    free(result->out);
    free(result->err);
    result->out = result->err = NULL;
}

// When the guest does not answer at all it may still freeze later: the thaw that is sent behind makes that
// harmless.
static void undo_freeze(struct agent *agent)
{
    struct agent_call call;
    if (agent_call_begin(agent, AGENT_THAW, NULL, true, &call, NULL) == 0)
        agent_call_end(&call);
}

int agent_freeze(struct agent *agent, unsigned timeout_ms, struct error *err)
{
    struct agent_builder fields = {0};
    if (timeout_ms == 0)
        timeout_ms = AGENT_CALL_DEFAULT_MS;
    if (agent_gate_shut(agent) < 0)
        return error_set(err, -EBUSY, "the machine is being frozen already");
    agent_builder_u64(&fields, timeout_ms);
    struct error local = {0};
    int result = agent_call_simple(
            agent, AGENT_FREEZE, &fields, true, timeout_ms + FREEZE_GRACE_MS, NULL, 0, &local);
    if (result < 0) {
        undo_freeze(agent);
        agent_gate_open(agent);
        error_set(err, result, "%s", local.text);
    }
    return result;
}

int agent_thaw(struct agent *agent, struct error *err)
{
    int result = agent_call_simple(agent, AGENT_THAW, NULL, true, 0, NULL, 0, err);
    if (result == 0)
        agent_gate_open(agent);
    return result;
}

int agent_clock_offset(struct agent *agent, unsigned timeout_ms, int64_t *ret_offset_ns,
        uint64_t *ret_doubt_ns, struct error *err)
{
    uint8_t fields[16];
    uint64_t began_ns = clock_monotonic_ns();
    int result = agent_call_simple(agent, AGENT_PING, NULL, false, timeout_ms, fields, sizeof fields, err);
    if (result < 0)
        return result;
    // Before the end of the round trip is read: what a busy host puts between the two is a part of the doubt.
    uint64_t now_ns = clock_wall_ns(), half_ns = (clock_monotonic_ns() - began_ns) / 2;
    agent_note_round_trip(agent, 2 * half_ns);
    struct agent_cursor cursor = agent_cursor_over(fields, sizeof fields);
    // A guest may say anything; the difference wraps, and is only compared.
    *ret_offset_ns = (int64_t)(agent_cursor_u64(&cursor) - (now_ns - half_ns));
    *ret_doubt_ns = half_ns;
    return 0;
}

static uint64_t host_realtime_ns(struct agent *agent)
{
    uint64_t half_ns = agent_best_round_trip_ns(agent) / 2;
    return clock_wall_ns() + (half_ns < CLOCK_ERROR_NS ? half_ns : CLOCK_ERROR_NS);
}

int agent_after_fork(
        struct agent *agent, const struct agent_identity *identity, unsigned timeout_ms, struct error *err)
{
    static const uint8_t zeros[sizeof identity->seed];
    struct agent_builder fields = {0};
    if (memcmp(identity->seed, zeros, sizeof zeros) == 0)
        return error_set(err, -EINVAL, "the seed for the guest's random generator is all zeros");
    agent_builder_bytes(&fields, identity->seed, sizeof identity->seed);
    agent_builder_u64(&fields, identity->realtime_ns ? identity->realtime_ns : host_realtime_ns(agent));
    agent_builder_string(&fields, identity->machine_id);
    agent_builder_string(&fields, identity->hostname);
    agent_builder_bytes(&fields, identity->mac, sizeof identity->mac);
    int result = agent_call_simple(agent, AGENT_AFTER_FORK, &fields, true, timeout_ms, NULL, 0, err);
    if (result == 0)
        agent_gate_open(agent);
    return result;
}

int agent_set_clock(struct agent *agent, struct error *err)
{
    struct agent_builder fields = {0};
    int result = agent_ping(agent, 0, err);
    if (result < 0)
        return result;
    agent_builder_u64(&fields, host_realtime_ns(agent));
    return agent_call_simple(agent, AGENT_SET_CLOCK, &fields, false, 0, NULL, 0, err);
}

int agent_sync(struct agent *agent, bool freeze_filesystems, unsigned timeout_ms, struct error *err)
{
    struct agent_builder fields = {0};
    if (timeout_ms == 0)
        timeout_ms = AGENT_CALL_DEFAULT_MS;
    agent_builder_u64(&fields, timeout_ms);
    agent_builder_u8(&fields, freeze_filesystems);
    return agent_call_simple(agent, AGENT_SYNC, &fields, false, timeout_ms + FREEZE_GRACE_MS, NULL, 0, err);
}

int agent_poweroff(struct agent *agent, struct error *err)
{
    return agent_call_simple(agent, AGENT_POWEROFF, NULL, true, 0, NULL, 0, err);
}
