// SPDX-License-Identifier: Apache-2.0
// A session's memory is its template's image with the session's own extents over it, generation after
// generation, each resumed from a snapshot of the one before. Every generation's memory is compared with
// what its snapshot holds, and the three of most interest page by page through the VMM's own mappings; write
// tracking has to work over all of these mappings, also after the kernel reclaimed some.
#include "tests/e2e/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void change(struct machine *machine, unsigned generation)
{
    free(machine_shell(machine,
            "head -c 1000000 /dev/urandom > /dev/shm/gen-%u; md5sum /dev/shm/gen-%u >> /dev/shm/sums",
            generation, generation));
}

static void check_content(struct machine *machine, unsigned generation)
{
    char *out = machine_shell(machine,
            "md5sum --quiet -c /dev/shm/sums; wc -l < /dev/shm/sums | grep -qx %u || echo sums", generation);
    if (out[0] != 0)
        rig_fail("generation %u: %s", generation, out);
    free(out);
    load_check(machine);
}

static void delete_snapshot(struct rig *rig, struct doc_id snapshot)
{
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    txn_doc_delete(txn, snapshot);
    working_set_delete(rig->store, txn, snapshot);
    if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
        rig_fail("%s", err.text);
}

static void expect_equal(struct machine *machine, struct base_id id, bool mapped, unsigned generation)
{
    uint64_t first = 0, differ = mapped ? ram_compare_mapped(machine, id, &first)
                                        : ram_compare(machine, machine->image, id, &first);
    if (differ != 0)
        rig_fail("generation %u: %llu pages differ%s, the first is %llu (%u extents of its own)", generation,
                (unsigned long long)differ, mapped ? " as mapped" : "", (unsigned long long)first,
                machine->extents);
}

// Takes a snapshot and leaves the machine stopped.
static struct capture_result capture(struct machine *machine)
{
    struct capture_request request = machine_capture_request(machine, NULL);
    struct capture_result result;
    request.leave_paused = true;
    machine_capture(&request, &result);
    return result;
}

void case_sharing(struct rig *rig, unsigned generations)
{
    rig->share = rig->working_sets = true;
    struct machine *machine = machine_boot(rig, "template");
    load_install(machine);
    load_start(machine);
    struct capture_result last = capture(machine);
    struct base_id template = last.ids.memory;
    machine_end(machine, false);
    uint64_t total_own = 0;
    for (unsigned generation = 1; generation <= generations; generation++) {
        char id[20];
        snprintf(id, sizeof id, "gen-%u", generation);
        machine = machine_load(rig, id, last.ids.machine);
        bool looked_at = generation == 2 || generation == generations / 2 || generation == generations;
        if (generation > 1 && (machine->origin.value != template.value || machine->extents == 0))
            rig_fail("generation %u is not mapped over the template (%u extents)", generation,
                    machine->extents);
        expect_equal(machine, last.ids.memory, looked_at, generation);
        total_own += machine->own_bytes;
        printf("generation %u: %u extents, %.1f MiB of its own\n", generation, machine->extents,
                (double)machine->own_bytes / (1 << 20));
        machine_go(machine, true);
        if (generation > 1)
            check_content(machine, generation - 1);
        change(machine, generation);
        load_wait(machine, load_count(machine) + 10);
        if (generation % 3 == 0)
            ram_reclaim(machine);
        struct capture_result next = capture(machine);
        expect_equal(machine, next.ids.memory, looked_at, generation);
        if (ram_compare(machine, machine->image, last.ids.memory, NULL) == 0)
            rig_fail("generation %u changed nothing", generation);
        if (generation == 1)
            machine_record_working_set(
                    machine, next.ids.machine); // the next one's prefetch covers both images
        machine_end(machine, false);
        delete_snapshot(rig, last.ids.machine); // the template's doc too: its image lives on in the others'
        last = next;
    }
    machine = machine_resume(rig, "last", last.ids.machine);
    load_stop(machine);
    check_content(machine, generations);
    machine_end(machine, false);
    delete_snapshot(rig, last.ids.machine);
    struct base_info info;
    if (store_base_get(rig->store, template, &info) != -ENOENT)
        rig_fail("the template's image is kept by nobody and still there");
    printf("%u generations over one template: no page wrong, %.1f MiB of their own on average\n", generations,
            (double)total_own / generations / (1 << 20));
}
