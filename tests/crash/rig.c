// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/crash/chore.h"

int rig_init(struct sim_world *world, const struct store_config *config, char *why, size_t why_size)
{
    struct loop *loop = sim_world_loop(world, 0);
    struct io_op make = {.code = IO_MKDIR, .path = "/data", .mode = 0700},
                 sync = {.code = IO_FSYNC_DIR, .path = "/"};
    int result = (int)io_sync(loop, &make);
    if (result == 0)
        result = (int)io_sync(loop, &sync);
    struct error err = {0};
    if (result == 0)
        result = store_init(loop, RIG_DIRECTORY, config, &err);
    if (result < 0)
        snprintf(why, why_size, "store_init answered %d: %s", result, err.text);
    return result;
}

int rig_open(struct rig *rig, struct sim_world *world, unsigned loop_count,
        const struct store_config *opening, char *why, size_t why_size)
{
    *rig = (struct rig){.world = world, .loop_count = loop_count, .opening = opening};
    for (unsigned i = 0; i < loop_count; i++)
        rig->loops[i] = sim_world_loop(world, i);
    struct store_config config = opening ? *opening : (struct store_config){0};
    config.background = rig->loops[loop_count - 1];
    struct error err = {0};
    int result = store_open(rig->loops, loop_count, RIG_DIRECTORY, &config, &rig->store, &err);
    if (result < 0)
        snprintf(why, why_size, "store_open answered %d: %s", result,
                err.text[0] ? err.text : "(without a word)");
    return result;
}

bool rig_close(struct rig *rig, char *why, size_t why_size)
{
    rig->store = store_close(rig->store);
    if (sim_world_violation(rig->world) != NULL)
        snprintf(why, why_size, "contract of the I/O seam: %s", sim_world_violation(rig->world));
    else if (sim_world_in_flight(rig->world) > 0)
        snprintf(why, why_size, "%u operations are in flight after store_close",
                sim_world_in_flight(rig->world));
    else if (!sim_world_is_cut(rig->world) && sim_world_open_files(rig->world) > 0)
        snprintf(why, why_size, "%u files are open after store_close", sim_world_open_files(rig->world));
    else
        return true;
    return false;
}

// The same disk, recovered a second time after whatever the first recovery has written.
static int recheck(struct rig *rig, const struct picture *first, uint64_t seed, char *why, size_t why_size)
{
    uint64_t random = seed ^ 0x7ec0;
    bool power = sim_random(&random) % 2;
    struct sim_world *again = power ? sim_world_after_power_cut(rig->world, sim_random(&random), NULL)
                                    : sim_world_after_kill(rig->world, sim_random(&random), NULL);
    struct rig_options options = {.loop_count = 1 + (unsigned)(sim_random(&random) % rig->loop_count),
            .opening = rig->opening,
            .seed = seed + 1};
    struct picture second;
    char text[900];
    int result = rig_recover(again, &options, &second, text, sizeof text);
    if (result < 0) {
        snprintf(why, why_size, "second recovery (%s): %s", power ? "power cut" : "kill", text);
        return result;
    }
    if (picture_differ(first, &second, text, sizeof text)) {
        snprintf(why, why_size, "second recovery (%s) differs from the first: %s",
                power ? "power cut" : "kill", text);
        result = -EBADMSG;
    }
    picture_free(&second);
    return result;
}

static int check(struct rig *rig, char *why, size_t why_size)
{
    struct chore chore = {.kind = CHORE_CHECK};
    chore_submit(rig->store, &chore);
    int result = sim_world_run_until(rig->world, &chore.answered);
    if (result < 0) {
        snprintf(why, why_size, "a check after recovery is never answered");
    } else if (chore.result < 0) {
        result = chore.result;
        snprintf(why, why_size, "a check after recovery answered %d: %s", result, chore.err.text);
    } else if (chore.damages > 0) {
        result = -EBADMSG;
        snprintf(why, why_size, "a check after recovery found damage: %s", chore.damage);
    }
    return result;
}

static int look(struct sim_world *world, const struct rig_options *options, struct picture *ret_picture,
        char *why, size_t why_size)
{
    struct rig rig;
    int result = rig_open(&rig, world, options->loop_count, options->opening, why, why_size);
    if (result < 0) {
        if (sim_world_violation(world) != NULL || sim_world_in_flight(world) > 0 ||
                sim_world_open_files(world) > 0)
            snprintf(why, why_size, "a store_open that failed left %u operations, %u files; %s",
                    sim_world_in_flight(world), sim_world_open_files(world),
                    sim_world_violation(world) ? sim_world_violation(world) : "no breach");
        return result;
    }
    result = picture_take(world, rig.store, options->tolerant, ret_picture);
    if (result < 0)
        snprintf(why, why_size, "after recovery: %s answered %d (%s)", ret_picture->where, result,
                strerror(-result));
    if (result == 0 && options->check)
        result = check(&rig, why, why_size);
    if (result == 0 && options->recheck)
        result = recheck(&rig, ret_picture, options->seed, why, why_size);
    char text[400];
    if (!rig_close(&rig, text, sizeof text) && result == 0) {
        snprintf(why, why_size, "%s", text);
        result = -EPROTO;
    }
    if (result < 0)
        picture_free(ret_picture);
    return result;
}

// Recovery is interrupted at an I/O of the seed's choice; what is left is a new world.
static struct sim_world *interrupt(struct sim_world *world, const struct rig_options *options)
{
    uint64_t random = options->seed ^ 0x1417;
    char text[400];
    sim_world_cut_at(world, 1 + sim_random_below(&random, 160));
    struct rig rig;
    if (rig_open(&rig, world, options->loop_count, options->opening, text, sizeof text) == 0)
        rig_close(&rig, text, sizeof text);
    uint64_t seed = sim_random(&random);
    struct sim_world *after = options->first == RIG_CUT_FIRST ? sim_world_after_power_cut(world, seed, NULL)
                                                              : sim_world_after_kill(world, seed, NULL);
    sim_world_destroy(world);
    return after;
}

int rig_recover(struct sim_world *world, const struct rig_options *options, struct picture *ret_picture,
        char *why, size_t why_size)
{
    if (options->first != RIG_NOT_FIRST)
        world = interrupt(world, options);
    int result = look(world, options, ret_picture, why, why_size);
    sim_world_destroy(world);
    return result;
}
