// SPDX-License-Identifier: Apache-2.0
// Row 10: from nothing to an answer, by resuming a snapshot and by booting the same template. Both begin with
// the creation of volumes and end with the guest's answer; a resume includes the after-fork step.
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

void bench_start(struct bench *bench)
{
    struct rig *rig = bench->rig;
    unsigned repeats = bench->quick ? 3 : 7;
    struct samples boot = {0}, boot_command = {0}, boot_warm = {0}, resume = {0}, resume_command = {0},
                   resume_warm = {0};
    struct machine *template = machine_boot(rig, "template");
    start_warm(template);
    ask_warm(template);
    struct capture_request request = machine_capture_request(template, NULL);
    struct capture_result snapshot;
    machine_capture(&request, &snapshot);
    machine_end(template, false);
    // The first resume brings the image's pages into the page cache, as the first of many forks does.
    machine_end(machine_resume(rig, "first", snapshot.ids.machine), false);
    for (unsigned i = 0; i < repeats; i++) {
        uint64_t begin = rig_now_ns();
        struct machine *machine = machine_boot(rig, "boot");
        samples_add(&boot, (double)machine->ready_ns / 1e6);
        free(machine_shell(machine, "true"));
        samples_add(&boot_command, (double)(rig_now_ns() - begin) / 1e6);
        start_warm(machine);
        ask_warm(machine);
        samples_add(&boot_warm, (double)(rig_now_ns() - begin) / 1e6);
        machine_end(machine, false);

        begin = rig_now_ns();
        machine = machine_resume(rig, "resume", snapshot.ids.machine);
        samples_add(&resume, (double)machine->ready_ns / 1e6);
        uint64_t asked = rig_now_ns();
        free(machine_shell(machine, "true"));
        samples_add(&resume_command, (double)(rig_now_ns() - begin) / 1e6);
        tell_stages(machine, begin, rig_now_ns() - asked);
        machine_end(machine, false);

        begin = rig_now_ns();
        machine = machine_resume(rig, "resume", snapshot.ids.machine);
        ask_warm(machine);
        samples_add(&resume_warm, (double)(rig_now_ns() - begin) / 1e6);
        machine_end(machine, false);
    }
    bench_row_times(bench, 10, "resume to the agent's first answer (agent-base)",
            samples_percentile(&resume, 50), samples_percentile(&boot, 50), 20, "ms",
            "cold boot of the same template");
    bench_row_times(bench, 10, "resume to a first command's result", samples_percentile(&resume_command, 50),
            samples_percentile(&boot_command, 50), 20, "ms", "cold boot of the same template");
    bench_row_times(bench, 10, "resume to a warm Python's answer (standard library)",
            samples_percentile(&resume_warm, 50), samples_percentile(&boot_warm, 50), 20, "ms",
            "cold boot, start and imports");
    bench_delete(rig, snapshot.ids.machine);
}
