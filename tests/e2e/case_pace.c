// SPDX-License-Identifier: Apache-2.0
// A guest that writes memory faster than it can be copied: the snapshot gives up with words and bounded work,
// the guest runs on as if nothing had been, and best effort takes the snapshot all the same, whole.
#include "tests/e2e/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRITTEN_MB = 24, LIMIT_PAGES = 4096 };

// Rewrites its memory whenever it is asked to.
static void start_writer(struct machine *machine)
{
    free(machine_shell(machine,
            "mkfifo go gone; cat > write.py <<'END'\nimport os\na = [bytearray(os.urandom(1 << 20)) * %d for "
            "i in "
            "range(3)]\nn = 0\nwhile True:\n with open('gone', 'w') as f: f.write(str(n))\n "
            "open('go').read()\n"
            " n += 1\n a[0][:] = a[1 + n %% 2]\nEND\n"
            "setsid nohup python3 write.py > write.log 2>&1 < /dev/null & cat gone",
            WRITTEN_MB));
}

static unsigned rewrite(struct machine *machine)
{
    char *out = machine_shell(machine, "echo > go; cat gone");
    unsigned count = (unsigned)strtoul(out, NULL, 10);
    free(out);
    return count;
}

struct pace {
    struct machine *machine;
    bool writes;
    unsigned rounds;
};

// Between a round's scan and its copy: all that the next one will find is written now. Frozen, it writes no
// more.
static void write_on(void *context, const char *step, uint64_t done_pages, uint64_t left_pages)
{
    struct pace *pace = context;
    if (strcmp(step, "copying") != 0)
        pace->writes = false;
    if (pace->writes)
        rewrite(pace->machine);
    pace->rounds++;
}

void case_pace(struct rig *rig)
{
    struct machine *machine = machine_boot(rig, "writer");
    struct pace pace = {.machine = machine, .writes = true};
    struct capture_result result;
    struct error err = {0};
    start_writer(machine);
    struct capture_request request = machine_capture_request(machine, NULL);
    request.max_frozen_pages = request.max_pause_pages = LIMIT_PAGES;
    request.progress = write_on;
    request.context = &pace;
    int got = capture_machine(&request, &result, &err);
    if (got != -EBUSY || strstr(err.text, "faster than it can be copied") == NULL || pace.rounds > 25)
        rig_fail("a guest that writes all the time: %d after %u rounds, %s", got, pace.rounds,
                got == 0 ? "a snapshot" : err.text);
    printf("%s\n", err.text);
    unsigned before = rewrite(machine); // neither paused nor frozen
    if (before < pace.rounds)
        rig_fail("the guest wrote %u times in %u rounds", before, pace.rounds);

    pace = (struct pace){.machine = machine, .writes = true};
    request.best_effort = true;
    machine_capture(&request, &result);
    if (rewrite(machine) <= before || !result.figures.unique)
        rig_fail("after a snapshot with best effort the guest does not go on");
    printf("best effort: its processes stood still for %.0f ms, its CPUs for %.1f ms, %llu pages in the "
           "pause\n",
            (double)result.figures.freeze_ns / 1e6, (double)result.figures.pause_ns / 1e6,
            (unsigned long long)result.figures.last_pages);
    struct machine *child = machine_resume(rig, "child", result.ids.machine);
    rewrite(child);
    machine_end(child, false);

    // Calm, the same as ever, and the pause stays within the bound.
    request = machine_capture_request(machine, NULL);
    request.leave_paused = true;
    machine_capture(&request, &result);
    if (result.figures.last_pages > LIMIT_PAGES)
        rig_fail("%llu pages were copied in the pause", (unsigned long long)result.figures.last_pages);
    uint64_t first = 0;
    if (ram_compare(machine, machine->image, result.ids.memory, &first) != 0)
        rig_fail("page %llu of the snapshot is not the guest's", (unsigned long long)first);
    machine_end(machine, false);
}
