// SPDX-License-Identifier: Apache-2.0
// A store on real files and loops, in a folder of its own. A failure fails the test, with the store's
// sentence.
#pragma once

#include "blockstore/io_ring.h"
#include "snapshot/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STORE_FIXTURE_LOOPS_MAX = 8 };

struct store_fixture {
    char directory[200];
    unsigned shards;     // loops that have volumes
    unsigned background; // the loop of background work, which may be one beyond the shards; 0 = the store's
                         // choice
    struct store_config config; // how it is opened the next time
    struct loop *loops[STORE_FIXTURE_LOOPS_MAX];
    struct store *store; // NULL while it is closed
    uint64_t random;     // for the test's own draws
};

static inline unsigned store_fixture_loops(const struct store_fixture *f)
{
    return f->background >= f->shards ? f->background + 1 : f->shards;
}

static inline int store_fixture_try_open(struct store_fixture *f, struct error *err)
{
    for (unsigned i = 0; i < store_fixture_loops(f); i++)
        assert_int_equal(io_ring_loop_create(i, 64, &f->loops[i]), 0);
    struct store_config config = f->config;
    if (f->background != 0)
        config.background = f->loops[f->background];
    int r = store_open(f->loops, f->shards, f->directory, &config, &f->store, err);
    for (unsigned i = 0; i < store_fixture_loops(f); i++) {
        if (r < 0)
            f->loops[i] = io_ring_loop_destroy(f->loops[i]);
        else
            assert_int_equal(io_ring_thread_start(f->loops[i]), 0);
    }
    if (r < 0)
        f->store = NULL;
    return r;
}

static inline void store_fixture_open(struct store_fixture *f)
{
    struct error err = {0};
    if (store_fixture_try_open(f, &err) < 0)
        fail_msg("open: %s", err.text);
}

// For a test that does more between: nothing runs on the loops any more, only store_close drives them.
static inline void store_fixture_stop_threads(struct store_fixture *f)
{
    for (unsigned i = 0; i < store_fixture_loops(f); i++)
        io_ring_thread_stop(f->loops[i]);
}

static inline void store_fixture_close_stopped(struct store_fixture *f)
{
    f->store = store_close(f->store);
    for (unsigned i = 0; i < store_fixture_loops(f); i++)
        f->loops[i] = io_ring_loop_destroy(f->loops[i]);
}

// One that is closed stays so.
static inline void store_fixture_close(struct store_fixture *f)
{
    if (f->store == NULL)
        return;
    store_fixture_stop_threads(f);
    store_fixture_close_stopped(f);
}

static inline void store_fixture_reopen(struct store_fixture *f)
{
    store_fixture_close(f);
    store_fixture_open(f);
}

// An empty store in the folder that is named and not there yet; it is not open.
static inline void store_fixture_make(struct store_fixture *f)
{
    struct error err = {0};
    struct loop *loop;
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    int r = store_init(loop, f->directory, &f->config, &err);
    io_ring_loop_destroy(loop);
    if (r < 0)
        fail_msg("init: %s", err.text);
}

// The same in a folder of its own. directory: as mkdtemp has it.
static inline void store_fixture_init(
        struct store_fixture *f, const char *directory, unsigned shards, const struct store_config *config)
{
    *f = (struct store_fixture){.shards = shards, .config = *config, .random = 7};
    snprintf(f->directory, sizeof f->directory, "%s", directory);
    assert_non_null(mkdtemp(f->directory));
    store_fixture_make(f);
}

// Closes it if it is open, and removes its folder.
static inline void store_fixture_remove(struct store_fixture *f)
{
    char command[sizeof f->directory + 8];
    store_fixture_close(f);
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    assert_int_equal(system(command), 0);
}
