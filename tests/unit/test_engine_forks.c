// SPDX-License-Identifier: Apache-2.0
// Forks of forks on real io_uring loops with real threads, while other threads seal, collect and scrub: ten
// thousand operations, each client against its own model of its volumes and snapshots. Then the store is
// opened again and compared, and in the end everything is deleted and space comes back. Meant for the thread
// and address sanitizers too.
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

enum {
    LOOPS = 3,
    CLIENTS = 4,
    BLOCKS = 80,
    OPERATIONS = 2500,
    OPERATIONS_PER_ROUND = 100,
    VOLUMES = 10,
    SNAPSHOTS = 8
};
enum { BYTES = BLOCKS * BLOCK_SIZE };

struct copy { // a volume or a snapshot, as it must be
    bool used;
    struct volume_id volume;
    struct volume *handle;
    struct base_id base;
    struct doc_id doc;
    uint8_t *bytes;
};

// How much background work has been done: clients do not run far ahead of it.
struct rounds {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned done;
};

struct client {
    struct store *store;
    pthread_t thread;
    struct rounds *rounds;
    unsigned number;
    uint64_t random;
    struct copy volumes[VOLUMES], snapshots[SNAPSHOTS];
    char failure[300];
};

static uint64_t draw(struct client *client, uint64_t limit)
{
    client->random = client->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (client->random >> 33) % limit;
}

static bool good(struct client *client, int result, const char *what)
{
    if (result < 0 && client->failure[0] == '\0')
        snprintf(client->failure, sizeof client->failure, "client %u: %s answered %d (%s)", client->number,
                what, result, strerror(-result));
    return client->failure[0] == '\0';
}

static void same(struct client *client, const uint8_t *bytes, const uint8_t *wanted, uint64_t offset,
        uint64_t length, const char *what)
{
    for (uint64_t i = 0; i < length && client->failure[0] == '\0'; i++)
        if (bytes[i] != wanted[offset + i])
            snprintf(client->failure, sizeof client->failure,
                    "client %u: %s differs at byte %llu: %02x, not %02x", client->number, what,
                    (unsigned long long)(offset + i), bytes[i], wanted[offset + i]);
}

static struct copy *any(struct client *client, struct copy *copies, unsigned count)
{
    unsigned first = (unsigned)draw(client, count);
    for (unsigned i = 0; i < count; i++)
        if (copies[(first + i) % count].used)
            return &copies[(first + i) % count];
    return NULL;
}

static struct copy *unused(struct copy *copies, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (!copies[i].used)
            return &copies[i];
    return NULL;
}

static struct copy *put(struct copy *copy, const uint8_t *bytes)
{
    copy->used = true;
    copy->bytes = calloc(1, BYTES);
    if (copy->bytes == NULL)
        abort();
    if (bytes != NULL)
        memcpy(copy->bytes, bytes, BYTES);
    return copy;
}

// Blocks that many clients write, blocks of one's own, and zeros.
static void fill(struct client *client, uint8_t *bytes, uint64_t length)
{
    for (uint64_t at = 0; at < length; at += BLOCK_SIZE) {
        uint64_t part = length - at < BLOCK_SIZE ? length - at : BLOCK_SIZE, dice = draw(client, 10);
        memset(bytes + at, dice < 6 ? (int)dice : (int)(10 + draw(client, 200)), part);
        for (uint64_t i = 0; i < part && dice >= 8; i++)
            bytes[at + i] = (uint8_t)draw(client, 256);
        for (uint64_t i = 0; i + 8 <= part && dice == 7; i += 512)
            memcpy(bytes + at + i, &client->random, 8);
    }
}

// ---- Operations ----

static void do_create(struct client *client)
{
    struct copy *copy = unused(client->volumes, VOLUMES);
    if (copy == NULL)
        return;
    struct error err;
    struct txn *txn = txn_begin(client->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, BYTES, (struct base_id){0});
    txn_volume_domain(txn, id, draw(client, 3));
    if (!good(client, txn_commit_wait(txn, 0, &err), "creating a volume"))
        return;
    put(copy, NULL)->volume = id;
    good(client, volume_open(client->store, id, &copy->handle), "opening a volume");
}

static void do_write(struct client *client)
{
    struct copy *copy = any(client, client->volumes, VOLUMES);
    if (copy == NULL)
        return;
    uint64_t offset = draw(client, BYTES - 1), length = 1 + draw(client, 20000);
    if (draw(client, 3) > 0) {
        offset = offset / BLOCK_SIZE * BLOCK_SIZE;
        length = (1 + draw(client, 14)) * BLOCK_SIZE;
    }
    length = length < BYTES - offset ? length : BYTES - offset;
    uint8_t *bytes = io_buffer_alloc(length);
    fill(client, bytes, length);
    memcpy(copy->bytes + offset, bytes, length);
    good(client, volume_write_wait(copy->handle, offset, bytes, length, draw(client, 20) ? 0 : VOLUME_FUA),
            "a write");
    io_buffer_free(bytes);
}

static void do_zero(struct client *client)
{
    struct copy *copy = any(client, client->volumes, VOLUMES);
    if (copy == NULL)
        return;
    uint64_t first = draw(client, BLOCKS), count = 1 + draw(client, 12);
    count = count < BLOCKS - first ? count : BLOCKS - first;
    memset(copy->bytes + first * BLOCK_SIZE, 0, count * BLOCK_SIZE);
    good(client, volume_zero_wait(copy->handle, first * BLOCK_SIZE, count * BLOCK_SIZE, draw(client, 2), 0),
            "a zero or trim");
}

static void do_read(struct client *client)
{
    struct copy *copy = any(client, client->volumes, VOLUMES);
    if (copy == NULL)
        return;
    uint64_t offset = draw(client, BYTES), length = draw(client, BYTES - offset + 1);
    uint8_t *bytes = malloc(length + 1);
    if (good(client, volume_read_wait(copy->handle, offset, bytes, length), "a read"))
        same(client, bytes, copy->bytes, offset, length, "a volume");
    free(bytes);
}

static void check_snapshot(struct client *client, struct copy *copy, const char *what)
{
    struct base *base = NULL;
    uint8_t *bytes = malloc(BYTES);
    if (good(client, base_open(client->store, copy->base, &base), "opening a base") &&
            good(client, base_read_wait(base, 0, bytes, BYTES), "a read of a base"))
        same(client, bytes, copy->bytes, 0, BYTES, what);
    base_close(base);
    free(bytes);
}

static void do_look_back(struct client *client)
{
    struct copy *copy = any(client, client->snapshots, SNAPSHOTS);
    if (copy != NULL)
        check_snapshot(client, copy, "a snapshot");
}

// A snapshot of a volume, or a fork of it, or both in one.
static void do_freeze(struct client *client)
{
    struct copy *source = any(client, client->volumes, VOLUMES);
    struct copy *child = draw(client, 3) ? unused(client->volumes, VOLUMES) : NULL;
    struct copy *snapshot = draw(client, 3) ? unused(client->snapshots, SNAPSHOTS) : NULL;
    if (source == NULL || (child == NULL && snapshot == NULL))
        return;
    struct error err;
    struct txn *txn = txn_begin(client->store);
    struct base_id base = txn_freeze(txn, source->volume);
    struct volume_id id = {0};
    struct doc_id doc = {0};
    char body[] = "{}";
    struct doc row = {.kind = DOC_SNAPSHOT, .bases = {base}, .base_count = 1, .body = body, .body_bytes = 2};
    if (child != NULL)
        id = txn_volume_create(txn, "", VOLUME_DISK, 0, base);
    if (snapshot != NULL)
        doc = txn_doc_put(txn, &row, NULL, 0);
    if (!good(client, txn_commit_wait(txn, draw(client, 4) ? 0 : TXN_DURABLE, &err), "a fork"))
        return;
    if (child != NULL) {
        put(child, source->bytes)->volume = id;
        good(client, volume_open(client->store, id, &child->handle), "opening a fork");
    }
    if (snapshot != NULL) {
        put(snapshot, source->bytes)->base = base;
        snapshot->doc = doc;
    }
}

static void do_fork_of_snapshot(struct client *client)
{
    struct copy *snapshot = any(client, client->snapshots, SNAPSHOTS);
    struct copy *child = unused(client->volumes, VOLUMES);
    if (snapshot == NULL || child == NULL)
        return;
    struct error err;
    struct txn *txn = txn_begin(client->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, 0, snapshot->base);
    struct base_info info;
    bool public = store_base_get(client->store, snapshot->base, &info) == 0 && info.domain == 0;
    if (public && draw(client, 2)) // a fork of a private base stays where that is
        txn_volume_domain(txn, id, draw(client, 3));
    if (!good(client, txn_commit_wait(txn, 0, &err), "a fork of a snapshot"))
        return;
    put(child, snapshot->bytes)->volume = id;
    good(client, volume_open(client->store, id, &child->handle), "opening a fork of a snapshot");
}

static void forget(struct copy *copy)
{
    free(copy->bytes);
    *copy = (struct copy){0};
}

static void delete_volume(struct client *client, struct copy *copy)
{
    struct error err;
    struct txn *txn = txn_begin(client->store);
    copy->handle = volume_close(copy->handle);
    txn_volume_delete(txn, copy->volume);
    good(client, txn_commit_wait(txn, TXN_RESERVE, &err), "deleting a volume");
    forget(copy);
}

static void delete_snapshot(struct client *client, struct copy *copy)
{
    struct error err;
    struct txn *txn = txn_begin(client->store);
    txn_doc_delete(txn, copy->doc);
    good(client, txn_commit_wait(txn, TXN_RESERVE, &err), "deleting a snapshot");
    forget(copy);
}

static void do_delete(struct client *client)
{
    struct copy *volume = any(client, client->volumes, VOLUMES);
    struct copy *snapshot = any(client, client->snapshots, SNAPSHOTS);
    if (volume != NULL && draw(client, 2))
        delete_volume(client, volume);
    else if (snapshot != NULL)
        delete_snapshot(client, snapshot);
}

static bool count_extent(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    *(uint64_t *)context += length;
    return true;
}

static void do_look(struct client *client)
{
    struct copy *copy = any(client, client->volumes, VOLUMES);
    uint64_t covered = 0;
    if (copy == NULL ||
            !good(client, volume_extents_wait(copy->handle, 0, BYTES, count_extent, &covered), "extents"))
        return;
    if (covered != BYTES)
        good(client, -EINVAL, "extents that leave a hole; counting them");
    struct store_stat stat;
    store_stat(client->store, &stat);
    good(client, stat.failed, "the store");
    good(client, volume_flush_wait(copy->handle), "a flush");
}

static void rounds_wait(struct rounds *rounds, unsigned wanted)
{
    pthread_mutex_lock(&rounds->lock);
    while (rounds->done < wanted)
        pthread_cond_wait(&rounds->changed, &rounds->lock);
    pthread_mutex_unlock(&rounds->lock);
}

static void rounds_add(struct rounds *rounds, unsigned more)
{
    pthread_mutex_lock(&rounds->lock);
    rounds->done += more;
    pthread_cond_broadcast(&rounds->changed);
    pthread_mutex_unlock(&rounds->lock);
}

static void *client_run(void *argument)
{
    struct client *client = argument;
    static void (*const operations[])(struct client *) = {do_write, do_write, do_write, do_write, do_read,
            do_read, do_zero, do_look_back, do_freeze, do_freeze, do_fork_of_snapshot, do_delete, do_look,
            do_create};
    const unsigned count = sizeof operations / sizeof operations[0];
    do_create(client);
    for (unsigned i = 0; i < OPERATIONS && client->failure[0] == '\0'; i++) {
        rounds_wait(client->rounds, i / OPERATIONS_PER_ROUND);
        operations[draw(client, count)](client);
    }
    return NULL;
}

// ---- Background work ----

struct worker {
    struct store *store;
    pthread_t thread;
    struct rounds *rounds;
    unsigned number;
    _Atomic bool *stop;
    unsigned seals, collections, scrubs;
    struct store_gc_result total;
    char failure[400];
};

static void worker_damage(void *context, const char *sentence)
{
    struct worker *worker = context;
    snprintf(worker->failure, sizeof worker->failure, "damage in a sound store: %.300s", sentence);
}

static void *worker_run(void *argument)
{
    struct worker *worker = argument;
    for (unsigned round = worker->number; !atomic_load(worker->stop) && worker->failure[0] == '\0'; round++) {
        struct error err = {0};
        struct store_gc_result gc = {0};
        struct store_scrub_result scrub;
        int result = 0;
        switch (round % 5) {
        case 0:
        case 2:
            result = store_seal(worker->store, &err);
            worker->seals++;
            break;
        case 1:
        case 3:
            result = store_gc(worker->store, round % 10 == 3 ? STORE_GC_RECOMPRESS : 0, &gc, &err);
            worker->collections++;
            worker->total.segments_removed += gc.segments_removed;
            worker->total.segments_rewritten += gc.segments_rewritten;
            break;
        default:
            result = store_scrub(worker->store, worker_damage, worker, &scrub, &err);
            worker->scrubs++;
            break;
        }
        if (result < 0)
            snprintf(worker->failure, sizeof worker->failure, "background work %u answered %d: %.300s",
                    round % 5, result, err.text);
        rounds_add(worker->rounds, 1);
    }
    rounds_add(worker->rounds, OPERATIONS); // nobody waits for one that has ended
    return NULL;
}

static void no_failure(const char *text)
{
    if (text[0] != '\0')
        fail_msg("%s", text);
}

// All that the client knows, once more; handles are opened again.
static void compare(struct client *client)
{
    uint8_t *bytes = malloc(BYTES);
    for (unsigned i = 0; i < VOLUMES; i++) {
        struct copy *copy = &client->volumes[i];
        if (!copy->used)
            continue;
        if (copy->handle == NULL)
            good(client, volume_open(client->store, copy->volume, &copy->handle), "opening a volume again");
        if (good(client, volume_read_wait(copy->handle, 0, bytes, BYTES), "reading all of a volume"))
            same(client, bytes, copy->bytes, 0, BYTES, "a volume in the end");
    }
    for (unsigned i = 0; i < SNAPSHOTS; i++)
        if (client->snapshots[i].used)
            check_snapshot(client, &client->snapshots[i], "a snapshot in the end");
    free(bytes);
}

static void close_handles(struct client *client)
{
    for (unsigned i = 0; i < VOLUMES; i++)
        client->volumes[i].handle = volume_close(client->volumes[i].handle);
}

static void run_all(struct store_fixture *fixture, struct client *clients)
{
    _Atomic bool stop = false;
    struct rounds rounds = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct worker workers[2] = {{0}, {0}};
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].store = fixture->store;
        clients[i].rounds = &rounds;
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_run, &clients[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        workers[i] =
                (struct worker){.store = fixture->store, .number = i * 3, .stop = &stop, .rounds = &rounds};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < CLIENTS; i++)
        no_failure(clients[i].failure);
    for (unsigned i = 0; i < 2; i++)
        no_failure(workers[i].failure);
    assert_true(workers[0].seals + workers[1].seals > 0);
    assert_true(workers[0].collections + workers[1].collections > 0);
    assert_true(workers[0].scrubs + workers[1].scrubs > 0);
    print_message("%u seals, %u collections (%llu segments removed, %llu rewritten), %u scrubs\n",
            workers[0].seals + workers[1].seals, workers[0].collections + workers[1].collections,
            (unsigned long long)(workers[0].total.segments_removed + workers[1].total.segments_removed),
            (unsigned long long)(workers[0].total.segments_rewritten + workers[1].total.segments_rewritten),
            workers[0].scrubs + workers[1].scrubs);
}

static void check_damage(void *context, const char *sentence)
{
    print_message("%s\n", sentence);
}

static void check_store(struct store *store)
{
    struct store_check_result result;
    struct error err = {0};
    if (store_check(store, check_damage, NULL, &result, &err) < 0)
        fail_msg("the check: %s", err.text);
    assert_int_equal(result.damages, 0);
}

static void delete_all(struct store_fixture *fixture, struct client *clients)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        for (unsigned j = 0; j < SNAPSHOTS; j++)
            if (clients[i].snapshots[j].used)
                delete_snapshot(&clients[i], &clients[i].snapshots[j]);
        for (unsigned j = 0; j < VOLUMES; j++)
            if (clients[i].volumes[j].used)
                delete_volume(&clients[i], &clients[i].volumes[j]);
        no_failure(clients[i].failure);
    }
    struct error err = {0};
    struct store_gc_result gc;
    if (store_gc(fixture->store, 0, &gc, &err) < 0)
        fail_msg("the last collection: %s", err.text);
    struct store_stat stat;
    store_stat(fixture->store, &stat);
    assert_int_equal(stat.volumes + stat.bases + stat.docs, 0);
    assert_int_equal(stat.segments, 0);
    assert_int_equal(stat.segment_bytes, 0);
    assert_int_equal(stat.tree_nodes, 0);
}

static void forks_of_forks_beside_background_work(void **state)
{
    const struct store_config config = {.log_file_bytes = 1 << 20,
            .log_budget_bytes = 16 << 20,
            .spare_log_files = 2,
            .seal_log_bytes = 4 << 20,
            .index_cache_bytes = 64 << 10,
            .frame_cache_bytes = 512 << 10,
            .node_cache_bytes = 64 << 10};
    struct store_fixture fixture;
    store_fixture_init(&fixture, "/var/tmp/ramet-forks-XXXXXX", LOOPS, &config);
    fixture.background = 1;
    store_fixture_open(&fixture);
    static struct client clients[CLIENTS];
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = (struct client){.number = i, .random = i * 1007 + 11};
    run_all(&fixture, clients);
    for (unsigned i = 0; i < CLIENTS; i++) {
        compare(&clients[i]);
        close_handles(&clients[i]);
        no_failure(clients[i].failure);
    }
    store_fixture_close(&fixture);
    store_fixture_open(&fixture);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].store = fixture.store;
        compare(&clients[i]);
        no_failure(clients[i].failure);
    }
    check_store(fixture.store);
    delete_all(&fixture, clients);
    check_store(fixture.store);
    store_fixture_remove(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forks_of_forks_beside_background_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
