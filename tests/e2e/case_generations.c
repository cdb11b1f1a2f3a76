// SPDX-License-Identifier: Apache-2.0
// Ten generations of resume, change, snapshot under load: what any generation wrote is there in all later
// ones, memory and disk fit each other, and every disk passes fsck. Field reports have changes lost from the
// second resume on.
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void change(struct machine *machine, unsigned generation)
{
    free(machine_shell(machine,
            "head -c 1500000 /dev/urandom > gen-%u; md5sum gen-%u >> sums; echo %u >> generations; touch "
            "/dev/shm/gen-%u; hostname >> names",
            generation, generation, generation, generation));
}

static void check(struct machine *machine, unsigned generation)
{
    char *out = machine_shell(machine,
            "md5sum --quiet -c sums; [ \"$(wc -l < generations)\" = %u ] || echo wrong number of "
            "generations; "
            "for i in $(seq %u); do [ -e /dev/shm/gen-$i ] || echo generation $i is not in memory; done; "
            "sudo dmesg | grep -E 'I/O error|EXT4-fs (error|warning)|BUG:|Oops|lockup|stall|orrupt' || true",
            generation, generation);
    if (out[0] != 0)
        rig_fail("generation %u: %s", generation, out);
    free(out);
    load_check(machine);
}

void case_generations(struct rig *rig, unsigned generations)
{
    struct machine *machine = machine_boot(rig, "gen-0");
    load_install(machine);
    load_start(machine);
    struct doc_id last = {0};
    for (unsigned generation = 1; generation <= generations; generation++) {
        change(machine, generation);
        load_wait(machine, load_count(machine) + 20);
        struct capture_request request = machine_capture_request(machine, NULL);
        struct capture_result result;
        machine_capture(&request, &result);
        uint64_t at_snapshot = load_count(machine);
        machine_end(machine, false);
        if (last.value != 0) { // its data lives on in what came after it
            struct error err;
            struct txn *txn = txn_begin(rig->store);
            txn_doc_delete(txn, last);
            if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
                rig_fail("%s", err.text);
        }
        last = result.ids.machine;
        if (generation == 1 || generation == generations / 2)
            load_check_disk(rig, result.ids.disks[0], false);
        char id[20];
        snprintf(id, sizeof id, "gen-%u", generation);
        machine = machine_resume(rig, id, last);
        check(machine, generation);
        printf("generation %u: pause %.1f ms, processes stood still %.1f ms, %llu pages, %llu of them in the "
               "pause; load at step %llu\n",
                generation, (double)result.figures.pause_ns / 1e6, (double)result.figures.freeze_ns / 1e6,
                (unsigned long long)result.figures.pages, (unsigned long long)result.figures.last_pages,
                (unsigned long long)at_snapshot);
    }
    load_stop(machine);
    check(machine, generations);
    struct error err;
    if (agent_poweroff(machine->agent, &err) < 0)
        rig_fail("power off: %s", err.text);
    machine_wait_event(machine, &machine->exited, "the guest's power-off");
    struct txn *txn = txn_begin(rig->store);
    struct base_id disk = txn_freeze(txn, machine->disk);
    struct doc doc = {.kind = DOC_SNAPSHOT, .name = "last-disk", .bases = {disk}, .base_count = 1};
    txn_doc_put(txn, &doc, NULL, 0);
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("%s", err.text);
    load_check_disk(rig, disk, true);
    machine_end(machine, false);
    printf("%u generations: every file, line and page is there, disks are clean\n", generations);
}
