// SPDX-License-Identifier: Apache-2.0
// Company for what is measured: machines that do nothing.
#include "tests/bench/machine_bench.h"

#include <stdio.h>
#include <stdlib.h>

struct others {
    unsigned count;
    struct machine *machines[];
};

struct others *others_start(struct rig *rig, unsigned count)
{
    struct others *others = calloc(1, sizeof *others + count * sizeof others->machines[0]);
    if (others == NULL)
        rig_fail("no memory");
    if (count == 0)
        return others;
    struct machine *first = machine_boot(rig, "others");
    struct capture_request request = machine_capture_request(first, NULL);
    struct capture_result snapshot;
    machine_capture(&request, &snapshot);
    machine_end(first, false);
    for (; others->count < count; others->count++) {
        char id[32];
        snprintf(id, sizeof id, "other-%u", others->count);
        others->machines[others->count] = machine_resume(rig, id, snapshot.ids.machine);
    }
    bench_delete(rig, snapshot.ids.machine);
    fprintf(stderr, "  %u idle machines run\n", count);
    return others;
}

struct others *others_end(struct others *others)
{
    for (unsigned i = 0; i < others->count; i++)
        machine_end(others->machines[i], false);
    free(others);
    return NULL;
}
