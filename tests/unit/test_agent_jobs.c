// SPDX-License-Identifier: Apache-2.0
// Jobs that outlive their session: start, logs, wait, signals, ends.
#include "tests/unit/agent_raw.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

static struct agent_job start(struct guest *guest, const char *command, const char *name)
{
    struct agent_job job;
    struct error err;
    if (agent_job_start(guest->agent, &(struct agent_exec){.shell_command = command}, name, &job, &err) < 0)
        fail_msg("%s: %s", command, err.text);
    return job;
}

static struct agent_job await_end(struct guest *guest, uint32_t id)
{
    struct agent_job job;
    struct error err;
    if (agent_job_wait(guest->agent, id, PATIENCE_MS, &job, &err) < 0)
        fail_msg("%s", err.text);
    assert_false(job.running);
    return job;
}

struct log {
    char *text[3];
    size_t size[3];
    uint64_t first[3], next[3];
    int gaps, pieces;
};

static int take(void *context, int stream, uint64_t offset, const void *bytes, size_t size)
{
    struct log *log = context;
    if (log->size[stream] == 0)
        log->first[stream] = offset;
    else if (offset != log->next[stream])
        log->gaps++;
    log->next[stream] = offset + size;
    log->text[stream] = realloc(log->text[stream], log->size[stream] + size + 1);
    memcpy(log->text[stream] + log->size[stream], bytes, size);
    log->size[stream] += size;
    log->text[stream][log->size[stream]] = 0;
    log->pieces++;
    return 0;
}

static void log_free(struct log *log)
{
    free(log->text[1]);
    free(log->text[2]);
    *log = (struct log){0};
}

static void read_log(struct guest *guest, uint32_t id, uint64_t out, bool follow, struct log *log)
{
    struct agent_job job;
    struct error err;
    struct agent_job_logs logs = {
            .id = id, .out_offset = out, .follow = follow, .sink = take, .context = log};
    if (agent_job_logs(guest->agent, &logs, &job, &err) < 0)
        fail_msg("%s", err.text);
}

static void reconnect(struct guest *guest)
{
    struct error err;
    guest->agent = agent_disconnect(guest->agent);
    if (agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err) < 0)
        fail_msg("%s", err.text);
}

// After the host died it asks for the job that it had asked for: by its mark, in another session.
static void a_job_is_known_again_by_its_mark(void **state)
{
    struct guest *guest = *state;
    const char *mark = "0123456789abcdef0123456789abcdef";
    struct agent_job job, found;
    struct error err;
    start(guest, "exit 0", NULL); // without one
    const struct agent_exec exec = {.shell_command = "exit 5", .mark = mark};
    assert_int_equal(agent_job_start(guest->agent, &exec, "marked", &job, &err), 0);
    assert_string_equal(job.mark, mark);
    reconnect(guest);
    assert_int_equal(agent_job_marked(guest->agent, mark, &found, &err), 0);
    assert_int_equal(found.id, job.id);
    assert_string_equal(found.name, "marked");
    assert_int_equal(
            agent_job_marked(guest->agent, "0123456789abcdef0123456789abcdee", &found, &err), -ENOENT);
    const struct agent_exec bad = {.shell_command = "exit 5", .mark = "0123456789abcdef0123456789abcdef0"};
    assert_int_equal(agent_job_start(guest->agent, &bad, NULL, &found, &err), -EINVAL);
    await_end(guest, job.id);
    assert_int_equal(agent_job_marked(guest->agent, mark, &found, &err), 0);
    assert_int_equal(found.exit_code, 5);
    assert_int_equal(agent_job_remove(guest->agent, job.id, false, &err), 0);
}

static void a_job_runs_and_ends_with_its_log(void **state)
{
    struct log log = {0};
    struct agent_job job = start(*state, "echo out; echo err >&2; exit 3", "first");
    assert_string_equal(job.name, "first");
    assert_string_equal(job.command, "echo out; echo err >&2; exit 3");
    job = await_end(*state, job.id);
    assert_int_equal(job.exit_code, 3);
    assert_int_equal(job.signal, 0);
    assert_true(job.ended_ns >= job.started_ns && job.started_ns > 0);
    assert_int_equal(job.out.end, 4);
    read_log(*state, job.id, 0, false, &log);
    assert_string_equal(log.text[1], "out\n");
    assert_string_equal(log.text[2], "err\n");
    log_free(&log);
    read_log(*state, job.id, 2, true, &log);
    assert_string_equal(log.text[1], "t\n");
    log_free(&log);
    read_log(*state, job.id, UINT64_MAX, false, &log);
    assert_int_equal(log.size[1], 0);
    log_free(&log);
}

static void a_job_outlives_its_session(void **state)
{
    struct guest *guest = *state;
    struct error err;
    struct log log = {0};
    char command[300], path[200];
    snprintf(path, sizeof path, "%s/go", guest->directory);
    snprintf(command, sizeof command, "echo one; while [ ! -e %s ]; do sleep 0.02; done; echo two", path);
    struct agent_job job = start(guest, command, NULL);
    assert_true(job.running);
    reconnect(guest);
    assert_int_equal(agent_job_get(guest->agent, job.id, &job, &err), 0);
    assert_true(job.running);
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    close(fd);
    read_log(guest, job.id, 0, true, &log); // follows to the end
    assert_string_equal(log.text[1], "one\ntwo\n");
    log_free(&log);
    assert_int_equal(await_end(guest, job.id).exit_code, 0);
}

static void what_cannot_start_is_said(void **state)
{
    struct guest *guest = *state;
    struct agent_job job = {.id = 4711};
    struct error err;
    const char *missing[] = {"/no/such/program", NULL};
    assert_int_equal(
            agent_job_start(guest->agent, &(struct agent_exec){.argv = missing}, NULL, &job, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/no/such/program"));
    assert_int_equal(
            agent_job_start(guest->agent, &(struct agent_exec){.shell_command = "true", .cwd = "/no/such"},
                    NULL, &job, &err),
            -ENOENT);
    assert_int_equal(
            agent_job_start(guest->agent,
                    &(struct agent_exec){.shell_command = "true", .user = "nobody-here"}, NULL, &job, &err),
            -EINVAL);
    assert_int_equal(agent_job_start(guest->agent, &(struct agent_exec){0}, NULL, &job, &err), -EINVAL);
    assert_int_equal(job.id, 4711);
    assert_int_equal(agent_job_get(guest->agent, 99999, &job, &err), -ENOENT);
    assert_int_equal(agent_job_find(guest->agent, "nobody", &job, &err), -ENOENT);
    assert_int_equal(agent_job_wait(guest->agent, 99999, 0, &job, &err), -ENOENT);
    assert_int_equal(agent_job_remove(guest->agent, 99999, true, &err), -ENOENT);
}

static void one_of_a_name_runs(void **state)
{
    struct guest *guest = *state;
    struct agent_job job = start(guest, "sleep 1000", "server"), other;
    struct error err;
    assert_int_equal(agent_job_start(guest->agent, &(struct agent_exec){.shell_command = "true"}, "server",
                             &other, &err),
            -EEXIST);
    assert_int_equal(agent_job_wait(guest->agent, job.id, 50, &other, &err), -ETIMEDOUT);
    assert_int_equal(agent_job_remove(guest->agent, job.id, false, &err), -EBUSY);
    assert_int_equal(agent_job_remove(guest->agent, job.id, true, &err), 0);
    assert_int_equal(agent_job_get(guest->agent, job.id, &other, &err), -ENOENT);
    other = start(guest, "true", "server");
    await_end(guest, other.id);
    assert_int_equal(agent_job_find(guest->agent, "server", &job, &err), 0);
    assert_int_equal(job.id, other.id);
}

static void signals_reach_one_or_all(void **state)
{
    struct guest *guest = *state;
    struct error err;
    if (!have_cgroup(guest))
        skip();
    struct agent_job job =
            start(guest, "trap 'echo usr' USR1; echo ready; while :; do sleep 0.02; done", NULL);
    while (job.out.end == 0)
        assert_int_equal(agent_job_get(guest->agent, job.id, &job, &err), 0);
    assert_int_equal(agent_job_signal(guest->agent, job.id, SIGUSR1, false, &err), 0);
    while (job.out.end < 10)
        assert_int_equal(agent_job_get(guest->agent, job.id, &job, &err), 0);
    assert_int_equal(agent_job_signal(guest->agent, job.id, 99, false, &err), -EINVAL);
    assert_int_equal(agent_job_signal(guest->agent, job.id, SIGTERM, true, &err), 0);
    job = await_end(guest, job.id);
    assert_int_equal(job.signal, SIGTERM);
    assert_int_equal(job.exit_code, 128 + SIGTERM);
    assert_int_equal(agent_job_signal(guest->agent, job.id, SIGTERM, false, &err), -ESRCH);
    job = start(guest, "setsid sleep 1000 & disown; exit 0", NULL);
    job = await_end(guest, job.id);
    assert_int_equal(agent_job_signal(guest->agent, job.id, SIGKILL, true, &err), 0); // what it left behind
}

static void X01_a_flood_is_kept_to_its_last_mebibyte(void **state)
{
    struct guest *guest = *state;
    struct log log = {0};
    struct agent_job job = start(guest,
            "(seq 0 3000000 | head -c 20000000) & seq 0 3000000 | head -c 20000000 >&2; wait; exit 3", NULL);
    job = await_end(guest, job.id);
    assert_int_equal(job.exit_code, 3);
    assert_int_equal(job.out.end, 20000000);
    assert_int_equal(job.err.end, 20000000);
    assert_int_equal(job.out.end - job.out.first, AGENT_JOB_LOG_BYTES);
    read_log(guest, job.id, 0, false, &log);
    assert_int_equal(log.first[1], job.out.first); // the gap is to be seen
    assert_int_equal(log.size[1], AGENT_JOB_LOG_BYTES);
    assert_int_equal(log.size[2], AGENT_JOB_LOG_BYTES);
    assert_int_equal(log.gaps, 0);
    struct agent_exec_result tail = shell(guest, "seq 0 3000000 | head -c 20000000 | tail -c 1048576");
    assert_int_equal(tail.out_size, AGENT_JOB_LOG_BYTES);
    assert_memory_equal(tail.out, log.text[1], AGENT_JOB_LOG_BYTES);
    assert_memory_equal(tail.out, log.text[2], AGENT_JOB_LOG_BYTES);
    agent_exec_result_free(&tail);
    log_free(&log);
}

static void X02_X03_bytes_and_cut_characters_pass(void **state)
{
    struct guest *guest = *state;
    struct log log = {0};
    struct agent_job job = start(guest,
            "printf '\\xff\\x00\\x80'; for b in '\\xe2' '\\x94' '\\x80' '\\xf0' '\\x9f' '\\x98' '\\x80'; do "
            "printf "
            "$b; sleep 0.01; done",
            NULL);
    read_log(guest, job.id, 0, true, &log);
    assert_int_equal(log.size[1], 10);
    assert_memory_equal(log.text[1], "\xff\x00\x80\xe2\x94\x80\xf0\x9f\x98\x80", 10);
    log_free(&log);
}

static void input_is_given_and_ends(void **state)
{
    struct guest *guest = *state;
    struct agent_job job;
    struct error err;
    struct log log = {0};
    static char bytes[AGENT_JOB_LOG_BYTES];
    memset(bytes, 'z', sizeof bytes);
    struct agent_exec exec = {
            .shell_command = "sleep 0.1; wc -c", .stdin_bytes = bytes, .stdin_size = sizeof bytes};
    assert_int_equal(agent_job_start(guest->agent, &exec, NULL, &job, &err), 0);
    read_log(guest, job.id, 0, true, &log);
    assert_int_equal(atoi(log.text[1]), AGENT_JOB_LOG_BYTES);
    log_free(&log);
    job = start(guest, "cat; echo end", NULL); // X06: none is an end at once
    read_log(guest, job.id, 0, true, &log);
    assert_string_equal(log.text[1], "end\n");
    log_free(&log);
}

static void a_time_limit_ends_it(void **state)
{
    struct guest *guest = *state;
    struct agent_job job;
    struct error err;
    struct agent_exec exec = {.shell_command = "sleep 1000", .timeout_ms = 50};
    assert_int_equal(agent_job_start(guest->agent, &exec, NULL, &job, &err), 0);
    job = await_end(guest, job.id);
    assert_true(job.timed_out);
    assert_int_equal(job.signal, SIGKILL);
}

static bool give_up(void *context)
{
    return ++*(int *)context > 2;
}

static void following_can_be_given_up(void **state)
{
    struct guest *guest = *state;
    struct error err;
    int asked = 0;
    struct agent_job job = start(guest, "sleep 1000", NULL);
    struct agent_job_logs logs = {
            .id = job.id, .follow = true, .sink = take, .context = &asked, .cancelled = give_up};
    assert_int_equal(agent_job_logs(guest->agent, &logs, &job, &err), -ECANCELED);
    assert_int_equal(agent_job_remove(guest->agent, job.id, true, &err), 0);
}

static void count(void *context, const struct agent_job *job)
{
    ++*(int *)context;
}

static void the_oldest_ended_make_way(void **state)
{
    struct guest *guest = *state;
    struct error err;
    struct agent_job first = start(guest, "true", NULL), keeper = start(guest, "sleep 1000", "keeper"), job;
    await_end(guest, first.id);
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        await_end(guest, start(guest, "true", NULL).id); // those that run make no way
    int known = 0;
    assert_int_equal(agent_job_list(guest->agent, count, &known, &err), 0);
    assert_int_equal(known, AGENT_JOBS_MAX);
    assert_int_equal(agent_job_get(guest->agent, first.id, &job, &err), -ENOENT);
    assert_int_equal(agent_job_find(guest->agent, "keeper", &job, &err), 0);
    assert_true(job.running);
    assert_int_equal(agent_job_remove(guest->agent, keeper.id, true, &err), 0);
}

static void X08_the_end_of_a_killed_one_is_told(void **state)
{
    struct guest *guest = *state;
    struct agent_job job = await_end(guest, start(guest, "kill -9 $$", NULL).id);
    assert_int_equal(job.signal, 9);
    assert_int_equal(job.exit_code, 137);
    assert_int_equal(await_end(guest, start(guest, "exit 300", NULL).id).exit_code, 44);
}

static void a_job_stands_still_while_frozen(void **state)
{
    struct guest *guest = *state;
    struct error err;
    if (!have_cgroup(guest))
        skip();
    struct agent_job job = start(guest, "while :; do echo x; sleep 0.01; done", NULL);
    while (job.out.end == 0)
        assert_int_equal(agent_job_get(guest->agent, job.id, &job, &err), 0);
    assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
    reconnect(guest); // as the daemon of a fork does
    assert_true(agent_was_frozen(guest->agent));
    assert_int_equal(agent_thaw(guest->agent, &err), 0);
    uint64_t before = job.out.end;
    while (job.out.end <= before + 10)
        assert_int_equal(agent_job_get(guest->agent, job.id, &job, &err), 0);
    assert_int_equal(agent_job_remove(guest->agent, job.id, true, &err), 0);
}

static char process_state(pid_t pid)
{
    char path[40], text[300] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t got = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    const char *end = strrchr(text, ')');
    return got == 0 || end == NULL ? 0 : end[2];
}

static void await_state(pid_t pid, char state)
{
    for (int i = 0; process_state(pid) != state; i++) {
        assert_true(i < PATIENCE_MS);
        usleep(1000);
    }
}

static void ask(struct raw *raw, uint32_t stream, enum agent_operation operation, uint32_t id)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, operation);
    agent_builder_u32(&fields, id);
    for (int i = 0; i < 2 && operation == AGENT_JOB_READ_LOGS; i++)
        agent_builder_u64(&fields, 0);
    if (operation == AGENT_JOB_READ_LOGS)
        agent_builder_u8(&fields, 0);
    raw_request(raw, stream, &fields);
}

enum { ASKERS = 14 }; // the first two wait for the end of a job, the others read a log

// Counts results, until all are there, or (limit_ms 0) while more lies there.
static void count_results(struct raw *raw, unsigned *results, int limit_ms)
{
    struct agent_frame frame;
    unsigned missing = 0;
    for (unsigned i = 1; i <= ASKERS; i++)
        missing += results[i] == 0;
    while ((limit_ms == 0 || missing > 0) && raw_next(raw, &frame, limit_ms)) {
        if (frame.type != AGENT_RESULT)
            continue;
        assert_in_range(frame.stream, 1, ASKERS);
        missing -= results[frame.stream]++ == 0;
    }
}

// More is asked for than goes into the connection, of which nothing is taken. Then, while the agent stands
// still, a job ends, and all that was held back finds room at the same moment.
static void one_round(struct guest *guest, uint32_t log_id, uint64_t epoch)
{
    struct agent_job job = start(guest, "exec sleep 1000", NULL);
    struct raw raw;
    struct error err;
    unsigned results[ASKERS + 1] = {0};
    int unread = 1, status;
    lend(guest, &raw, epoch);
    for (uint32_t i = 1; i <= ASKERS; i++)
        ask(&raw, i, i <= 2 ? AGENT_JOB_WAIT : AGENT_JOB_READ_LOGS, i <= 2 ? job.id : log_id);
    while (unread > 0 || process_state(guest->pid) != 'S') // it has done what it can
        assert_int_equal(ioctl(raw.fd, SIOCOUTQ, &unread), 0);
    assert_int_equal(kill(guest->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(guest->pid, &status, WUNTRACED), guest->pid);
    assert_int_equal(kill(job.pid, SIGKILL), 0);
    await_state(job.pid, 'Z');
    count_results(&raw, results, 0);
    assert_int_equal(kill(guest->pid, SIGCONT), 0);
    count_results(&raw, results, PATIENCE_MS);
    raw_simple(&raw, ASKERS + 1, AGENT_PING);
    struct agent_frame frame;
    while (raw_next(&raw, &frame, PATIENCE_MS) && frame.stream != ASKERS + 1)
        results[frame.stream] += frame.type == AGENT_RESULT;
    for (uint32_t i = 1; i <= ASKERS; i++)
        assert_int_equal(results[i], 1);
    take_back(guest, &raw);
    assert_int_equal(agent_job_remove(guest->agent, job.id, false, &err), 0);
}

static void each_is_answered_once_when_a_full_port_gets_room(void **state)
{
    struct guest *guest = *state;
    struct error err;
    struct agent_job log = start(guest, "head -c 60000 /dev/zero", NULL);
    await_end(guest, log.id);
    for (uint64_t round = 0; round < 10; round++)
        one_round(guest, log.id, 900 + round);
    assert_int_equal(agent_job_remove(guest->agent, log.id, false, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_job_runs_and_ends_with_its_log),
            cmocka_unit_test(a_job_is_known_again_by_its_mark),
            cmocka_unit_test(a_job_outlives_its_session),
            cmocka_unit_test(what_cannot_start_is_said),
            cmocka_unit_test(one_of_a_name_runs),
            cmocka_unit_test(signals_reach_one_or_all),
            cmocka_unit_test(X01_a_flood_is_kept_to_its_last_mebibyte),
            cmocka_unit_test(X02_X03_bytes_and_cut_characters_pass),
            cmocka_unit_test(input_is_given_and_ends),
            cmocka_unit_test(a_time_limit_ends_it),
            cmocka_unit_test(following_can_be_given_up),
            cmocka_unit_test(the_oldest_ended_make_way),
            cmocka_unit_test(X08_the_end_of_a_killed_one_is_told),
            cmocka_unit_test(a_job_stands_still_while_frozen),
            cmocka_unit_test(each_is_answered_once_when_a_full_port_gets_room),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
