// SPDX-License-Identifier: Apache-2.0
// D09: collecting while what was found dead is wanted again. Threads import the same image over and over and
// delete it, fork a snapshot that shares it, keep bases by handles only, and write at random, all while the
// store is collected without a pause. Meant for the thread sanitizer as well.
#include "tests/unit/collect_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#if defined(__SANITIZE_THREAD__)
enum { COLLECTIONS = 6, IMAGE_BLOCKS = 192 }; // each takes long there
#else
enum { COLLECTIONS = 12, IMAGE_BLOCKS = 192 };
#endif

struct actor {
    struct store_fixture f; // a copy: names and random numbers of its own
    pthread_t thread;
    unsigned number;
    char failure[200];
};

static _Atomic bool stop;
static struct base_id shared_base;
static uint64_t image[IMAGE_BLOCKS];

static bool good(struct actor *actor, int64_t result, const char *what)
{
    if (result < 0 && actor->failure[0] == 0)
        snprintf(actor->failure, sizeof actor->failure, "actor %u: %s answered %lld", actor->number, what,
                (long long)result);
    return actor->failure[0] == 0;
}

static bool commit(struct actor *actor, struct txn *txn, const char *what)
{
    struct error err = {0};
    return good(actor, txn_commit_wait(txn, TXN_RESERVE, &err), what);
}

static bool volume_is(struct actor *actor, struct volume *volume, const uint64_t *numbers, const char *what)
{
    uint8_t *bytes = io_buffer_alloc(IMAGE_BLOCKS * BLOCK_SIZE);
    if (good(actor, volume_read_wait(volume, 0, bytes, IMAGE_BLOCKS * BLOCK_SIZE), what) &&
            fixture_differs(bytes, numbers, IMAGE_BLOCKS) >= 0)
        snprintf(actor->failure, sizeof actor->failure, "actor %u: %s: block %lld differs", actor->number,
                what, (long long)fixture_differs(bytes, numbers, IMAGE_BLOCKS));
    io_buffer_free(bytes);
    return actor->failure[0] == 0;
}

static bool make(struct actor *actor, struct base_id parent, struct volume **ret_volume)
{
    struct txn *txn = txn_begin(actor->f.store);
    struct volume_id id = txn_volume_create(
            txn, "", VOLUME_DISK, parent.value != 0 ? 0 : IMAGE_BLOCKS * BLOCK_SIZE, parent);
    return commit(actor, txn, "a create") && good(actor, volume_open(actor->f.store, id, ret_volume), "open");
}

static bool discard(struct actor *actor, struct volume *volume)
{
    struct volume_id id = volume_get_id(volume);
    volume_close(volume);
    struct txn *txn = txn_begin(actor->f.store);
    txn_volume_delete(txn, id);
    return commit(actor, txn, "a delete");
}

static void *import(void *argument)
{
    struct actor *actor = argument;
    struct volume *volume;
    while (!atomic_load(&stop) && make(actor, (struct base_id){0}, &volume)) {
        for (unsigned at = 0; at < IMAGE_BLOCKS && actor->failure[0] == 0; at += 32)
            good(actor, fixture_write(volume, at, image + at, 32), "an import");
        if (fixture_random(&actor->f, 8) == 0)
            good(actor, store_seal(actor->f.store, NULL), "a seal");
        if (!volume_is(actor, volume, image, "an imported volume") || !discard(actor, volume))
            break;
    }
    return NULL;
}

static void *fork_and_look(void *argument)
{
    struct actor *actor = argument;
    struct volume *volume;
    uint64_t numbers[IMAGE_BLOCKS];
    while (!atomic_load(&stop) && make(actor, shared_base, &volume)) {
        memcpy(numbers, image, sizeof numbers);
        for (int i = 0; i < 10 && actor->failure[0] == 0; i++) {
            uint64_t at = fixture_random(&actor->f, IMAGE_BLOCKS);
            numbers[at] = 1 + fixture_random(&actor->f, 300); // often a block of the image
            good(actor, fixture_write(volume, at, &numbers[at], 1), "a write to a fork");
        }
        if (!volume_is(actor, volume, numbers, "a fork") || !discard(actor, volume))
            break;
    }
    return NULL;
}

static void *keep_by_handle(void *argument)
{
    struct actor *actor = argument;
    struct volume *volume;
    uint8_t *bytes = io_buffer_alloc(IMAGE_BLOCKS * BLOCK_SIZE);
    while (!atomic_load(&stop) && make(actor, shared_base, &volume)) {
        uint64_t numbers[IMAGE_BLOCKS];
        memcpy(numbers, image, sizeof numbers);
        numbers[7] = 1000000 + fixture_random(&actor->f, 1000000);
        good(actor, fixture_write(volume, 7, &numbers[7], 1), "a write");
        struct txn *txn = txn_begin(actor->f.store);
        struct doc doc = {.kind = DOC_OTHER, .body = "", .base_count = 1};
        doc.bases[0] = txn_freeze(txn, volume_get_id(volume));
        struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
        struct base *base;
        if (!commit(actor, txn, "a freeze") ||
                !good(actor, base_open(actor->f.store, doc.bases[0], &base), "opening a base"))
            break;
        txn = txn_begin(actor->f.store);
        txn_doc_delete(txn, id);
        commit(actor, txn, "deleting the doc");
        discard(actor, volume);
        for (int i = 0; i < 3 && actor->failure[0] == 0; i++) {
            if (i == 0)
                good(actor, store_seal(actor->f.store, NULL), "a seal");
            good(actor, base_read_wait(base, 0, bytes, IMAGE_BLOCKS * BLOCK_SIZE), "a read of a base");
            if (fixture_differs(bytes, numbers, IMAGE_BLOCKS) >= 0)
                good(actor, -EILSEQ, "the bytes of a base");
        }
        base_close(base);
        if (actor->failure[0] != 0)
            break;
    }
    io_buffer_free(bytes);
    return NULL;
}

static void *write_at_random(void *argument)
{
    struct actor *actor = argument;
    struct volume *volume;
    uint64_t numbers[IMAGE_BLOCKS] = {0};
    if (!make(actor, (struct base_id){0}, &volume))
        return NULL;
    while (!atomic_load(&stop) && actor->failure[0] == 0) {
        uint64_t at = fixture_random(&actor->f, IMAGE_BLOCKS);
        numbers[at] = fixture_random(&actor->f, 400);
        good(actor, fixture_write(volume, at, &numbers[at], 1), "a random write");
        if (fixture_random(&actor->f, 100) == 0)
            volume_is(actor, volume, numbers, "a random volume");
    }
    volume_is(actor, volume, numbers, "a random volume");
    volume_close(volume);
    return NULL;
}

static void D09_the_doomed_are_wanted_again(void **state)
{
    static void *(*const roles[])(void *) = {
            import, import, fork_and_look, keep_by_handle, write_at_random, write_at_random};
    enum { ACTORS = sizeof roles / sizeof roles[0] };
    struct store_fixture *f = *state;
    for (unsigned i = 0; i < IMAGE_BLOCKS; i++)
        image[i] = 1 + i;
    struct volume *volume = fixture_volume(f, "first", IMAGE_BLOCKS);
    for (unsigned at = 0; at < IMAGE_BLOCKS; at += 64)
        assert_int_equal(fixture_write(volume, at, image + at, 64), 0);
    fixture_snapshot(f, volume_get_id(volume), "shared", 0, &shared_base);
    atomic_store(&stop, false);
    struct actor *actors = calloc(ACTORS, sizeof *actors);
    for (unsigned i = 0; i < ACTORS; i++) {
        actors[i].f = *f;
        actors[i].f.random = i + 1;
        actors[i].number = i;
        assert_int_equal(pthread_create(&actors[i].thread, NULL, roles[i], &actors[i]), 0);
    }
    struct store_gc_result total = {0};
    // On a slow machine the actors may not have made anything by then that can be removed.
    for (unsigned i = 0; i < COLLECTIONS || total.segments_removed == 0 || total.segments_rewritten == 0;
            i++) {
        struct store_gc_result result = fixture_collect(f, i % 4 == 3 ? STORE_GC_RECOMPRESS : 0);
        total.segments_removed += result.segments_removed;
        total.segments_rewritten += result.segments_rewritten;
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < ACTORS; i++) {
        pthread_join(actors[i].thread, NULL);
        if (actors[i].failure[0] != 0)
            fail_msg("%s", actors[i].failure);
    }
    fixture_expect(volume, image, IMAGE_BLOCKS);
    free(actors);
    volume_close(volume);
}

static int setup(void **state)
{
    const struct store_config config = {.log_file_bytes = 1 << 20,
            .log_budget_bytes = 16 << 20,
            .seal_log_bytes = 6 << 20,
            .node_cache_bytes = 1 << 20,
            .frame_cache_bytes = 1 << 20};
    *state = fixture_new("", &config);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(D09_the_doomed_are_wanted_again, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
