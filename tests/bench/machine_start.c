// SPDX-License-Identifier: Apache-2.0
// Row 10: from nothing to an answer, by resuming a snapshot and by booting the same template. Both begin with
// the creation of volumes and end with the guest's answer; a resume includes the after-fork step.
#include "blockstore/clock.h"
#include "tests/bench/machine_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char warm_program[] = "import asyncio, decimal, email, http.client, json, re, sqlite3, "
                                   "statistics, unittest, urllib.request, xml.dom.minidom\n"
                                   "while True:\n"
                                   "    with open('in') as question:\n"
                                   "        code = question.read()\n"
                                   "    with open('out', 'w') as answer:\n"
                                   "        answer.write(str(eval(code)))\n";

static void start_warm(struct machine *machine)
{
    free(machine_shell(machine,
            "rm -f in out; mkfifo in out; cat > warm.py <<'END'\n%sEND\n"
            "setsid nohup python3 warm.py > warm.log 2>&1 < /dev/null &",
            warm_program));
}

static void ask_warm(struct machine *machine)
{
    char *answer = machine_shell(machine, "echo 'json.dumps(re.findall(\"a\", \"banana\"))' > in; cat out");
    if (strcmp(answer, "[\"a\", \"a\", \"a\"]") != 0)
        rig_fail("the warm interpreter answered '%s'", answer);
    free(answer);
}

// Where a resume's milliseconds go.
static void tell_stages(struct machine *machine, uint64_t begin, uint64_t command_ns)
{
    const struct machine_stages *at = &machine->stages;
    const struct vm_start_times *times = &machine->vm->times;
    if (getenv("RAMET_BENCH_VERBOSE") != NULL)
        fprintf(stderr,
                "    volumes %.1f, spawn %.1f, load %.1f, hello %.1f, after-fork %.1f, command %.1f ms; %llu "
                "READs, %.1f MiB\n",
                (double)(at->made_ns - begin) / 1e6, (double)times->spawn_ns / 1e6,
                (double)times->load_ns / 1e6, (double)(at->connected_ns - at->loaded_ns) / 1e6,
                (double)(at->ready_ns - at->connected_ns) / 1e6, (double)command_ns / 1e6,
                (unsigned long long)mem_fuse_read_count(machine->rig->fuse),
                (double)mem_fuse_read_bytes(machine->rig->fuse) / (1 << 20));
}

struct starts {
    struct samples answer, command, warm; // ms
};

static double since_ms(uint64_t begin)
{
    return (double)(clock_monotonic_ns() - begin) / 1e6;
}

static void measure_boot(struct rig *rig, struct starts *starts)
{
    uint64_t begin = clock_monotonic_ns();
    struct machine *machine = machine_boot(rig, "boot");
    samples_add(&starts->answer, (double)machine->ready_ns / 1e6);
    free(machine_shell(machine, "true"));
    samples_add(&starts->command, since_ms(begin));
    start_warm(machine);
    ask_warm(machine);
    samples_add(&starts->warm, since_ms(begin));
    machine_end(machine, false);
}

// Two machines: one is asked for a command, the other for the interpreter's answer.
static void measure_resume(
        struct rig *rig, struct doc_id snapshot, struct base_id cold, struct starts *starts)
{
    if (cold.value != 0)
        bench_forget_image(rig, cold);
    uint64_t begin = clock_monotonic_ns();
    struct machine *machine = machine_resume(rig, "resume", snapshot);
    samples_add(&starts->answer, (double)machine->ready_ns / 1e6);
    uint64_t asked = clock_monotonic_ns();
    free(machine_shell(machine, "true"));
    samples_add(&starts->command, since_ms(begin));
    tell_stages(machine, begin, clock_monotonic_ns() - asked);
    machine_end(machine, false);
    if (cold.value != 0)
        bench_forget_image(rig, cold);
    begin = clock_monotonic_ns();
    machine = machine_resume(rig, "resume", snapshot);
    ask_warm(machine);
    samples_add(&starts->warm, since_ms(begin));
    machine_end(machine, false);
}

static void measure_take(struct rig *rig, struct doc_id snapshot, struct starts *starts)
{
    for (unsigned i = 0; i < 2; i++) {
        struct machine *machine = machine_resume(rig, "parked", snapshot);
        ask_warm(machine); // what is waiting in a template of warm kernels is touched too
        machine_park(machine);
        uint64_t begin = clock_monotonic_ns();
        machine_take(machine);
        if (i == 0)
            samples_add(&starts->answer, since_ms(begin));
        if (i == 0)
            free(machine_shell(machine, "true"));
        else
            ask_warm(machine);
        samples_add(i == 0 ? &starts->command : &starts->warm, since_ms(begin));
        machine_end(machine, false);
    }
}

static void rows_of(struct bench *bench, const char *how, struct starts *ours, struct starts *boot)
{
    char text[120];
    snprintf(text, sizeof text, "%s to the agent's first answer (agent-base)", how);
    bench_row_times(bench, 10, text, samples_percentile(&ours->answer, 50),
            samples_percentile(&boot->answer, 50), 20, "ms", "cold boot of the same template");
    snprintf(text, sizeof text, "%s to a first command's result", how);
    bench_row_times(bench, 10, text, samples_percentile(&ours->command, 50),
            samples_percentile(&boot->command, 50), 20, "ms", "cold boot of the same template");
    snprintf(text, sizeof text, "%s to a warm Python's answer (standard library)", how);
    bench_row_times(bench, 10, text, samples_percentile(&ours->warm, 50), samples_percentile(&boot->warm, 50),
            20, "ms", "cold boot, start and imports");
}

static void row_of_set(struct bench *bench, const char *what, struct samples *with, struct samples *without)
{
    char text[120];
    double ours = samples_percentile(with, 50), peer = samples_percentile(without, 50);
    snprintf(text, sizeof text, "resume with the working set prefetched, %s", what);
    bench_row(bench, 10, text, ours, peer, peer / ours, "-", -1, "ms", "the same without");
}

static void rows_of_sets(struct bench *bench, const char *cache, struct starts *with, struct starts *without)
{
    char text[80];
    snprintf(text, sizeof text, "%s page cache, to the agent's answer", cache);
    row_of_set(bench, text, &with->answer, &without->answer);
    snprintf(text, sizeof text, "%s page cache, to a command's result", cache);
    row_of_set(bench, text, &with->command, &without->command);
    snprintf(text, sizeof text, "%s page cache, to a warm Python's answer", cache);
    row_of_set(bench, text, &with->warm, &without->warm);
}

static struct capture_result make_snapshot(struct rig *rig)
{
    struct error err;
    struct machine *template = machine_boot(rig, "template");
    start_warm(template);
    ask_warm(template);
    struct capture_request request = machine_capture_request(template, NULL);
    struct capture_result snapshot;
    machine_capture(&request, &snapshot);
    machine_end(template, false);
    if (store_seal(rig->store, &err) < 0) // as a template is after some time: in compressed segments
        rig_fail("%s", err.text);
    // The first resume brings the image's pages into the page cache, as the first of many forks does.
    struct machine *first = machine_resume(rig, "first", snapshot.ids.machine);
    free(machine_shell(first, "true"));
    ask_warm(first);
    machine_record_working_set(first, snapshot.ids.machine);
    machine_end(first, false);
    return snapshot;
}

void bench_start(struct bench *bench)
{
    struct rig *rig = bench->rig;
    unsigned repeats = bench->quick ? 3 : 9;
    struct starts boot = {0}, take = {0}, warm[2] = {0}, cold[2] = {0}; // [1]: with the working set
    struct capture_result snapshot = make_snapshot(rig);
    struct doc_id id = snapshot.ids.machine;
    for (unsigned i = 0; i < repeats; i++) {
        measure_boot(rig, &boot);
        for (unsigned with = 0; with < 2; with++) {
            rig->working_sets = with != 0;
            measure_resume(rig, id, (struct base_id){0}, &warm[with]);
            measure_resume(rig, id, snapshot.ids.memory, &cold[with]);
        }
        rig->working_sets = false;
        measure_take(rig, id, &take);
    }
    rows_of(bench, "resume", &warm[1], &boot);
    rows_of(bench, "a parked machine taken", &take, &boot);
    rows_of_sets(bench, "cold", &cold[1], &cold[0]);
    rows_of_sets(bench, "warm", &warm[1], &warm[0]);
    bench_delete(rig, id);
}
