// SPDX-License-Identifier: Apache-2.0
// Row 11: how long a snapshot stops its source, as vCPUs feel it (stop to cont) and as processes feel it
// (freeze to thaw), idle and under load; beside it the same VM saved by QEMU's own `migrate` to a file,
// stopped as that is.
#include "blockstore/clock.h"
#include "tests/bench/machine_bench.h"

#include "vmglue/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COMMAND_MS = 60000 };

struct pauses {
    struct samples stop, freeze, scan; // ms
};

static void take(struct machine *machine, struct pauses *pauses)
{
    struct capture_request request = machine_capture_request(machine, NULL);
    struct capture_result result;
    machine_capture(&request, &result);
    const struct capture_figures *figures = &result.figures;
    samples_add(&pauses->stop, (double)figures->pause_ns / 1e6);
    samples_add(&pauses->freeze, (double)figures->freeze_ns / 1e6);
    samples_add(&pauses->scan, (double)figures->scan_ns / 1e6);
    if (getenv("RAMET_BENCH_VERBOSE") != NULL)
        fprintf(stderr,
                "    pause %.2f (stop %.2f state %.2f scan %.2f copy %.2f commit %.2f cont %.2f) freeze %.2f "
                "(quiesce %.2f settle %.2f) ms, "
                "%u rounds, %llu pages, %llu last\n",
                (double)figures->pause_ns / 1e6, (double)figures->stop_ns / 1e6,
                (double)figures->state_ns / 1e6, (double)figures->scan_ns / 1e6,
                (double)figures->copy_ns / 1e6, (double)figures->commit_ns / 1e6,
                (double)figures->continue_ns / 1e6, (double)figures->freeze_ns / 1e6,
                (double)figures->quiesce_ns / 1e6, (double)figures->settle_ns / 1e6, figures->rounds,
                (unsigned long long)figures->pages, (unsigned long long)figures->last_pages);
    bench_delete(machine->rig, result.ids.machine);
}

// ---- The peer ----

static void command(struct qmp *qmp, const char *name, json_t *arguments, int fd)
{
    struct error err;
    if (qmp_execute_fd(qmp, name, arguments, fd, COMMAND_MS, NULL, &err) < 0)
        rig_fail("%s", err.text);
}

static void wait_migrated(struct qmp *qmp)
{
    for (;;) {
        JSON_AUTO json_t *answer = NULL;
        struct error err;
        if (qmp_execute(qmp, "query-migrate", NULL, COMMAND_MS, &answer, &err) < 0)
            rig_fail("%s", err.text);
        const char *status = json_string_value(json_object_get(answer, "status"));
        if (status != NULL && strcmp(status, "completed") == 0)
            return;
        if (status == NULL || strcmp(status, "failed") == 0)
            rig_fail("QEMU's migrate to a file failed");
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

// The pause in ms of `stop`, `migrate` to a file in the page cache, `cont`.
static double migrate_pause(struct machine *machine)
{
    char path[160], file[160];
    struct qmp *qmp;
    struct error err;
    machine->vm = vm_close(machine->vm); // its control socket serves one at a time
    snprintf(path, sizeof path, "%s/qmp.sock", machine->run_dir);
    snprintf(file, sizeof file, "%s/migrated", machine->run_dir);
    if (qmp_connect(path, COMMAND_MS, NULL, NULL, &qmp, &err) < 0)
        rig_fail("%s", err.text);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    command(qmp, "migrate-set-parameters", json_pack("{s:I}", "max-bandwidth", (json_int_t)1 << 40), -1);
    command(qmp, "getfd", json_pack("{s:s}", "fdname", "out"), fd);
    uint64_t begin = clock_monotonic_ns();
    command(qmp, "stop", NULL, -1);
    command(qmp, "migrate", json_pack("{s:s}", "uri", "fd:out"), -1);
    wait_migrated(qmp);
    command(qmp, "cont", NULL, -1);
    double pause = (double)(clock_monotonic_ns() - begin) / 1e6;
    qmp_close(qmp);
    close(fd);
    unlink(file);
    machine_adopt(machine);
    return pause;
}

// ---- Measuring ----

// The goal is about the usual pause; the p99 has one of its own, against the idle median.
static void row_p99(
        struct bench *bench, const char *measure, double ours, double migrate, const char *peer_name)
{
    bench_row(bench, 11, measure, ours, migrate, migrate / ours, "-", -1, "ms", peer_name);
}

static void rows_of(struct bench *bench, const char *when, struct pauses *pauses, struct samples *peer)
{
    char text[120];
    double migrate = samples_percentile(peer, 50);
    static const char peer_name[] = "stop, QEMU's migrate to a file, cont";
    snprintf(text, sizeof text, "pause of the vCPUs, %s, p50", when);
    bench_row_times(bench, 11, text, samples_percentile(&pauses->stop, 50), migrate, 100, "ms", peer_name);
    snprintf(text, sizeof text, "pause of the vCPUs, %s, p99", when);
    row_p99(bench, text, samples_percentile(&pauses->stop, 99), migrate, peer_name);
    snprintf(text, sizeof text, "pause of user processes, %s, p50", when);
    bench_row_times(bench, 11, text, samples_percentile(&pauses->freeze, 50), migrate, 100, "ms", peer_name);
    snprintf(text, sizeof text, "pause of user processes, %s, p99", when);
    row_p99(bench, text, samples_percentile(&pauses->freeze, 99), migrate, peer_name);
}

static void row_within(struct bench *bench, const char *measure, double ours, double peer, double most,
        const char *peer_name)
{
    char goal[32];
    snprintf(goal, sizeof goal, "<= %g", most);
    bench_row(bench, 11, measure, ours, peer, ours / peer, goal, ours / peer <= most, "ms", peer_name);
}

static void measure(struct machine *machine, unsigned count, unsigned peers, bool steps,
        struct pauses *pauses, struct samples *peer)
{
    struct pauses first = {0};
    take(machine, &first); // copies all of memory and starts tracking
    for (unsigned i = 0; i < count; i++) {
        if (steps)
            load_wait(machine, load_count(machine) + 3);
        take(machine, pauses);
    }
    for (unsigned i = 0; i < peers; i++)
        samples_add(peer, migrate_pause(machine));
}

// A larger guest, most of whose memory was touched; then the same with 64 MiB rewritten before each snapshot.
static void measure_large(struct bench *bench, struct samples *idle)
{
    struct rig *rig = bench->rig;
    unsigned small_mb = rig->shape.memory_mb, count = bench->quick ? 7 : 25, touched_mb = 768;
    struct pauses large = {0}, dirtied = {0};
    struct samples peer = {0};
    unsigned peers = bench->quick ? 1 : 3;
    rig->shape.memory_mb = 1024;
    struct machine *machine = machine_boot(rig, "large");
    free(machine_shell(machine,
            "mkfifo go gone; cat > touch.py <<'END'\nimport os\nb = bytearray(%u << 20)\nm = os.urandom(1 << "
            "20)\n"
            "for i in range(0, len(b), 1 << 20): b[i:i + (1 << 20)] = m\nn = 0\n"
            "while True:\n open('gone', 'w').write('x')\n open('go').read()\n n += 1\n"
            " for i in range(0, 64 << 20, 4096): b[i] = n %% 251\nEND\n"
            "setsid nohup python3 touch.py > touch.log 2>&1 < /dev/null & cat gone",
            touched_mb));
    measure(machine, count, peers, false, &large, &peer);
    for (unsigned i = 0; i < count; i++) {
        free(machine_shell(machine, "echo > go; cat gone"));
        take(machine, &dirtied);
    }
    machine_end(machine, false);
    rig->shape.memory_mb = small_mb;
    double base = samples_percentile(idle, 50), at_large = samples_percentile(&large.stop, 50);
    bench_row_times(bench, 11, "pause of the vCPUs, 1024 MiB guest, 768 MiB touched, idle, p50", at_large,
            samples_percentile(&peer, 50), 100, "ms", "stop, QEMU's migrate to a file, cont");
    row_within(bench, "pause of a 1024 MiB guest, 768 MiB touched, idle, p50", at_large, base, 1.5,
            "the 256 MiB guest");
    row_within(bench, "the same, 64 MiB rewritten before each snapshot, p50",
            samples_percentile(&dirtied.stop, 50), at_large, 1.5, "nothing rewritten");
    double scan = samples_percentile(&large.scan, 50) / ((double)touched_mb / 1024);
    bench_row(bench, 11, "scan in the pause, per touched GiB", scan, 0.7, scan / 0.7, "<= 1", scan <= 0.7,
            "ms", "the goal itself");
}

void bench_pause(struct bench *bench)
{
    struct rig *rig = bench->rig;
    unsigned count = bench->quick ? 10 : 100, peers = bench->quick ? 3 : 5;
    struct pauses idle = {0}, busy = {0};
    struct samples idle_peer = {0}, busy_peer = {0};
    struct machine *machine = machine_boot(rig, "pause");
    load_install(machine);
    measure(machine, count, peers, false, &idle, &idle_peer);
    load_start(machine);
    measure(machine, count, peers, true, &busy, &busy_peer);
    load_stop(machine);
    load_check(machine);
    machine_end(machine, false);
    rows_of(bench, "idle", &idle, &idle_peer);
    rows_of(bench, "memory and disk load", &busy, &busy_peer);
    row_within(bench, "pause of the vCPUs under load, p99", samples_percentile(&busy.stop, 99),
            samples_percentile(&idle.stop, 50), 5, "idle median");
    measure_large(bench, &idle.stop);
}
