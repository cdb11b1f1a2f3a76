// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/picture_diff.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct diff_call {
    struct base_diff diff;
    bool done;
    int result;
};

static void diff_done(struct base_diff *diff, int result)
{
    struct diff_call *call = (struct diff_call *)diff;
    call->done = true;
    call->result = result;
}

// Sets kinds[] of each block that is reported to the kind that is said.
static int take_diff(
        const struct rig *rig, struct base *older, struct base *newer, uint8_t *kinds, uint64_t count)
{
    struct volume_extent extents[3]; // few, so that it goes on from the middle
    struct diff_call call = {.diff = {.older = older,
                                     .newer = newer,
                                     .extents = extents,
                                     .capacity = sizeof extents / sizeof extents[0],
                                     .done = diff_done}};
    do {
        call.done = false;
        call.diff.offset = call.diff.next_offset;
        base_diff_submit(&call.diff, store_loop(rig->store, 0));
        if (sim_world_run_until(rig->world, &call.done) < 0) {
            return -EDEADLK;
        }
        for (unsigned i = 0; call.result == 0 && i < call.diff.count; i++)
            for (uint64_t at = extents[i].offset / BLOCK_SIZE;
                    at * BLOCK_SIZE < extents[i].offset + extents[i].length && at < count; at++)
                kinds[at] = (uint8_t)extents[i].kind;
    } while (call.result == 0 && !call.diff.finished);
    return call.result;
}

// What is wrong with the answer for one block, or NULL.
static const char *fault_of(
        const struct picture_content *older, const struct picture_content *newer, uint64_t i, uint8_t said)
{
    const uint8_t *x = older->bytes + i * BLOCK_SIZE, *y = newer->bytes + i * BLOCK_SIZE;
    uint8_t before = older->kinds[i], now = newer->kinds[i];
    bool bytes = memcmp(x, y, BLOCK_SIZE) == 0, same = bytes && before == now;
    // Zeros that were written may have been sealed since the pictures were taken.
    bool sealed = bytes && picture_same_kind(EXTENT_DATA, EXTENT_ZERO, y) && before != EXTENT_UNMAPPED &&
                  now != EXTENT_UNMAPPED;
    if (said == 0)
        return same || sealed ? NULL : "misses";
    if (!picture_same_kind(said, now, y))
        return "gives the wrong kind to";
    return same && !sealed ? "reports, although it is the same," : NULL;
}

bool picture_diff_check(const struct rig *rig, const struct picture_base *older,
        const struct picture_base *newer, char *why, size_t why_size)
{
    struct base *a, *b;
    uint64_t count = newer->content.count;
    why[0] = '\0';
    if (older->content.count != count || older->content.size_bytes >= UINT64_C(1) << 40 ||
            base_open(rig->store, older->info.id, &a) < 0)
        return true;
    if (base_open(rig->store, newer->info.id, &b) == 0) {
        uint8_t kinds[count + 1];
        memset(kinds, 0, sizeof kinds);
        int result = take_diff(rig, a, b, kinds, count);
        if (result < 0)
            snprintf(why, why_size, "base_diff answered %d", result);
        for (uint64_t i = 0; i < count && result == 0; i++) {
            const char *fault = fault_of(&older->content, &newer->content, i, kinds[i]);
            if (fault != NULL)
                snprintf(why, why_size, "base_diff %llu %llu %s block %llu (kinds %u and %u, said %u)",
                        (unsigned long long)older->info.id.value, (unsigned long long)newer->info.id.value,
                        fault, (unsigned long long)i, older->content.kinds[i], newer->content.kinds[i],
                        kinds[i]);
        }
        base_close(b);
    }
    base_close(a);
    return why[0] == '\0';
}
