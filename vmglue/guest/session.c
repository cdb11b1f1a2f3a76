// SPDX-License-Identifier: Apache-2.0
// States of the user cgroup:
//   RUNNING    all requests are carried out.
//   FREEZING   asked to freeze; nothing is read from jobs any more. Ends in FROZEN, or at the deadline in
//   RUNNING. FROZEN     every user process stands still and the answer to FREEZE was the last frame sent.
//   Nothing is sent
//              until THAW, AFTER_FORK or a HELLO asks for it. EXEC is refused.
// HELLO changes the session, never the state: in a child only AFTER_FORK may thaw, and when it fails nothing
// does.
#include "vmglue/guest/session.h"

#include "blockstore/clock.h"
#include "vmglue/guest/background.h"
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/dial.h"
#include "vmglue/guest/exec.h"
#include "vmglue/guest/files.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/loop.h"
#include "vmglue/guest/network.h"
#include "vmglue/guest/port.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { PARTIAL_REQUESTS = 16 };

static enum { RUNNING, FREEZING, FROZEN } state;
static bool filesystems_frozen;
static uint32_t freeze_stream; // 0: the session that asked for it is over, and nobody is answered
static uint64_t freeze_began_ns;
static struct loop_timer freeze_deadline;
static struct loop_source freeze_events = {.fd = -1};
static void (*power_off_handler)(void);

// Requests of which more pieces are to come.
static struct {
    uint32_t stream; // 0 = free
    struct agent_builder bytes;
} partial[PARTIAL_REQUESTS];

static void freeze_finish(void)
{
    loop_timer_clear(&freeze_deadline);
    loop_disarm(&freeze_events);
}

static void freeze_answer(int status, const char *sentence, const struct agent_builder *fields)
{
    if (freeze_stream != 0)
        job_result(freeze_stream, status, sentence, fields);
    freeze_stream = 0;
}

static void freeze_check(struct loop_source *source, uint32_t events)
{
    if (state != FREEZING || cgroup_is_frozen() != 1)
        return;
    freeze_finish();
    state = FROZEN;
    struct agent_builder fields = {0};
    agent_builder_u64(&fields, (clock_monotonic_ns() - freeze_began_ns) / 1000);
    freeze_answer(0, "", &fields);
    agent_builder_free(&fields);
}

static void freeze_too_late(struct loop_timer *timer)
{
    char who[200], sentence[300];
    cgroup_describe_unfrozen(who, sizeof who);
    freeze_finish();
    cgroup_freeze(false);
    state = RUNNING;
    job_quiet(false);
    snprintf(sentence, sizeof sentence, "the user processes did not stand still in time: %s", who);
    freeze_answer(-ETIMEDOUT, sentence, NULL);
}

static void do_freeze(uint32_t stream, struct agent_cursor fields)
{
    uint64_t timeout_ms = agent_cursor_u64(&fields);
    if (fields.bad || state == FREEZING) {
        job_result(stream, fields.bad ? -EINVAL : -EBUSY, "the machine is being frozen already", NULL);
        return;
    }
    freeze_stream = stream;
    freeze_began_ns = clock_monotonic_ns();
    int result = cgroup_freeze(true);
    if (result < 0) {
        job_result(stream, result, "the kernel does not let the user processes be frozen", NULL);
        return;
    }
    state = FREEZING;
    job_quiet(true);
    freeze_deadline.fire = freeze_too_late;
    loop_timer_set(
            &freeze_deadline, freeze_began_ns + (timeout_ms < 3600000 ? timeout_ms : 3600000) * 1000000);
    freeze_events.fd = cgroup_events_fd();
    freeze_events.ready = freeze_check;
    loop_arm(&freeze_events, EPOLLPRI | EPOLLET);
    freeze_check(&freeze_events, 0);
}

static int thaw_filesystems(void)
{
    int result = filesystems_frozen ? files_freeze_filesystems(false) : 0;
    if (result == 0)
        filesystems_frozen = false;
    return result;
}

// Lets user processes go on. -errno: they stay as they are.
static int thaw(void)
{
    int result = thaw_filesystems();
    if (result == 0 && cgroup_available())
        result = cgroup_freeze(false);
    if (result < 0)
        return result;
    if (state == FREEZING)
        freeze_finish();
    state = RUNNING;
    return 0;
}

static void do_thaw(uint32_t stream)
{
    int result = thaw();
    job_result(stream, result,
            result < 0 ? "the kernel does not let the user processes or file systems go on" : "", NULL);
    if (result == 0)
        job_quiet(false);
}

static void do_after_fork(uint32_t stream, struct agent_cursor fields)
{
    char sentence[300] = "the request cannot be read";
    struct identity identity = {
            .seed = agent_cursor_bytes(&fields, 64), .realtime_ns = agent_cursor_u64(&fields)};
    identity.machine_id = agent_cursor_string(&fields);
    identity.hostname = agent_cursor_string(&fields);
    identity.mac = agent_cursor_bytes(&fields, 6);
    int result = fields.bad ? -EINVAL : thaw_filesystems(); // the machine id is a file
    if (result == 0)
        result = identity_change(&identity, sentence, sizeof sentence);
    if (result == 0 && (result = thaw()) < 0)
        snprintf(sentence, sizeof sentence, "letting the user processes go on: %s", strerror(-result));
    job_result(stream, result, result < 0 ? sentence : "", NULL);
    if (result == 0)
        job_quiet(false);
}

static void do_set_clock(uint32_t stream, struct agent_cursor fields)
{
    uint64_t realtime_ns = agent_cursor_u64(&fields);
    int result = fields.bad ? -EINVAL : identity_set_clock(realtime_ns);
    job_result(stream, result, result < 0 ? "the clock cannot be set" : "", NULL);
}

static void do_ping(uint32_t stream)
{
    struct agent_builder fields = {0};
    agent_builder_u64(&fields, clock_wall_ns());
    agent_builder_u64(&fields, clock_monotonic_ns());
    job_result(stream, 0, "", &fields);
    agent_builder_free(&fields);
}

static void do_resize(uint32_t stream, struct agent_cursor fields)
{
    uint32_t of = agent_cursor_u32(&fields);
    struct job_terminal terminal = {.rows = agent_cursor_u32(&fields), .columns = agent_cursor_u32(&fields)};
    bool good = !fields.bad && exec_terminal_size(&terminal);
    int result = good ? job_resize(of, &terminal) : -EINVAL;
    job_result(stream, result,
            !good        ? "a terminal has 1 to 4096 rows and columns"
            : result < 0 ? "the terminal is gone"
                         : "",
            NULL);
}

// Once it was asked for it may have happened, whatever became of the helper.
static void note_filesystem_freeze(struct agent_cursor fields)
{
    agent_cursor_u64(&fields);
    filesystems_frozen = agent_cursor_u8(&fields) != 0 || filesystems_frozen;
}

static void do_request(uint32_t stream, struct agent_cursor fields)
{
    uint32_t operation = agent_cursor_u32(&fields);
    switch (operation) {
    case AGENT_PING:
        do_ping(stream);
        break;
    case AGENT_EXEC:
    case AGENT_PTY:
    case AGENT_JOB_START:
        if (state == RUNNING)
            exec_start(stream, operation, fields);
        else
            job_result(stream, -EBUSY, "the machine's user processes are frozen", NULL);
        break;
    case AGENT_DIAL:
        if (state == RUNNING)
            dial_start(stream, fields);
        else
            job_result(stream, -EBUSY, "the machine's user processes are frozen", NULL);
        break;
    case AGENT_NETWORK:
        network_start(stream, fields);
        break;
    case AGENT_PTY_RESIZE:
        do_resize(stream, fields);
        break;
    case AGENT_JOB_LIST:
    case AGENT_JOB_GET:
    case AGENT_JOB_WAIT:
    case AGENT_JOB_SIGNAL:
    case AGENT_JOB_REMOVE:
    case AGENT_JOB_READ_LOGS:
        background_request(stream, operation, fields);
        break;
    case AGENT_FREEZE:
        do_freeze(stream, fields);
        break;
    case AGENT_THAW:
        do_thaw(stream);
        break;
    case AGENT_AFTER_FORK:
        do_after_fork(stream, fields);
        break;
    case AGENT_SET_CLOCK:
        do_set_clock(stream, fields);
        break;
    case AGENT_POWEROFF:
        job_result(stream, 0, "", NULL);
        power_off_handler();
        break;
    default:
        if (operation == AGENT_SYNC)
            note_filesystem_freeze(fields);
        if ((operation >= AGENT_FILE_STAT && operation <= AGENT_FILE_MKDIR) || operation == AGENT_SYNC ||
                (operation >= AGENT_FILE_READ_RANGE && operation < AGENT_OPERATION_END))
            files_start(stream, operation, fields);
        else
            job_result(stream, -ENOSYS,
                    "the agent in this machine does not know this request: it is older than the daemon",
                    NULL);
    }
}

static void partial_clear(void)
{
    for (int i = 0; i < PARTIAL_REQUESTS; i++) {
        agent_builder_free(&partial[i].bytes);
        partial[i].stream = 0;
    }
}

// Pieces of a request are put together; the last one carries it out.
static void take_request(const struct agent_frame *frame)
{
    int slot = -1;
    for (int i = 0; i < PARTIAL_REQUESTS; i++) {
        if (partial[i].stream == frame->stream)
            slot = i;
        else if (slot < 0 && partial[i].stream == 0)
            slot = i;
    }
    bool begun = slot >= 0 && partial[slot].stream == frame->stream;
    bool more = frame->flags & AGENT_FLAG_MORE;
    if (!begun && (job_exists(frame->stream) || dial_waits(frame->stream) || background_waits(frame->stream)))
        return;
    if (!begun && !more) {
        do_request(frame->stream, agent_cursor_over(frame->payload, frame->size));
        return;
    }
    if (slot < 0) {
        job_result(frame->stream, -EAGAIN, "too many large requests at once", NULL);
        return;
    }
    struct agent_builder *bytes = &partial[slot].bytes;
    partial[slot].stream = frame->stream;
    agent_builder_bytes(bytes, frame->payload, frame->size);
    if (bytes->size > AGENT_REQUEST_MAX)
        bytes->failed = true;
    if (more && !bytes->failed)
        return;
    if (bytes->failed)
        job_result(frame->stream, -E2BIG,
                "the request is larger than an agent takes, or there is no memory for it", NULL);
    else
        do_request(frame->stream, agent_cursor_over(bytes->bytes, bytes->size));
    agent_builder_free(bytes);
    partial[slot].stream = 0;
}

static void detach_all(void)
{
    freeze_stream = 0; // in another session that number is another call
    dial_detach_all();
    background_detach_all();
    job_detach_all();
}

static void take_hello(const struct agent_frame *frame)
{
    struct agent_cursor fields = agent_cursor_over(frame->payload, frame->size);
    uint32_t oldest = agent_cursor_u32(&fields), newest = agent_cursor_u32(&fields);
    bool understood = !fields.bad && oldest <= AGENT_VERSION && newest >= AGENT_VERSION_OLDEST;
    uint32_t version = newest < AGENT_VERSION ? newest : AGENT_VERSION; // an older daemon may have come back
    partial_clear();
    detach_all();
    port_session(frame->epoch);
    job_quiet(state == FREEZING);
    struct agent_builder reply = {0};
    agent_builder_u32(&reply, understood ? version : 0);
    agent_builder_u32(&reply, (state != RUNNING ? AGENT_STATE_FROZEN : 0) |
                                      (filesystems_frozen ? AGENT_STATE_FILESYSTEMS_FROZEN : 0));
    agent_builder_string(&reply, RAMET_VERSION);
    port_send(AGENT_HELLO_ACK, 0, 0, reply.bytes, reply.size);
    agent_builder_free(&reply);
    if (!understood)
        port_session(0);
}

static void session_lost(void)
{
    partial_clear();
    detach_all();
}

void session_frame(const struct agent_frame *frame)
{
    unsigned channel = frame->flags >> AGENT_FLAG_CHANNEL_SHIFT;
    struct agent_cursor fields = agent_cursor_over(frame->payload, frame->size);
    uint32_t window_bytes = frame->type == AGENT_WINDOW ? agent_cursor_u32(&fields) : 0;
    switch (frame->type) {
    case AGENT_HELLO:
        take_hello(frame);
        break;
    case AGENT_BROKEN:
        session_lost();
        break;
    case AGENT_REQUEST:
        if (frame->stream != 0)
            take_request(frame);
        break;
    case AGENT_DATA:
        job_data(frame->stream, channel, frame->payload, frame->size, frame->flags & AGENT_FLAG_END);
        break;
    case AGENT_WINDOW:
        if (!background_window(frame->stream, channel, window_bytes))
            job_window(frame->stream, channel, window_bytes);
        break;
    case AGENT_CANCEL:
        if (!background_cancel(frame->stream) && !dial_cancel(frame->stream))
            job_cancel(frame->stream);
        break;
    default:
        break; // of a newer host, and not necessary: requests are answered with -ENOSYS instead
    }
}

void session_room(void)
{
    job_room();
}

void session_init(void (*power_off)(void))
{
    power_off_handler = power_off;
}
