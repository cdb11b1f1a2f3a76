// SPDX-License-Identifier: Apache-2.0
// The engine on real io_uring loops with real threads, meant for the thread and address sanitizers: every
// client thread has volumes of its own that it knows byte for byte, forks them and looks into the forks; all
// of them also write into one shared volume that is frozen all the time. Then the store is reopened and
// compared once more.
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

enum { LOOPS = 3, CLIENTS = 4, VOLUME_BLOCKS = 96, ROUNDS = 600, SHARED_ROUNDS = 500, FREEZES = 150 };
enum { VOLUME_BYTES = VOLUME_BLOCKS * BLOCK_SIZE };

struct client {
    struct store *store;
    pthread_t thread;
    unsigned number;
    uint64_t random;
    struct volume *volume;
    struct volume_id id;
    struct doc_id last_doc;
    uint8_t model[VOLUME_BYTES];
    struct shared *shared;
    char failure[200];
};

// One block per client, which holds a counter: it only grows.
struct shared {
    struct store *store;
    struct volume *volume;
    _Atomic uint64_t begun[CLIENTS], answered[CLIENTS];
    char failure[200];
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

static bool same(
        struct client *client, const uint8_t *bytes, uint64_t offset, uint64_t length, const char *what)
{
    for (uint64_t i = 0; i < length && client->failure[0] == '\0'; i++)
        if (bytes[i] != client->model[offset + i])
            snprintf(client->failure, sizeof client->failure, "client %u: %s differs at byte %llu",
                    client->number, what, (unsigned long long)(offset + i));
    return client->failure[0] == '\0';
}

static void do_write(struct client *client)
{
    uint64_t offset = draw(client, VOLUME_BYTES - 1), length = 1 + draw(client, 40000);
    if (draw(client, 2)) {
        offset = offset / BLOCK_SIZE * BLOCK_SIZE;
        length = (1 + draw(client, 12)) * BLOCK_SIZE;
    }
    length = length < VOLUME_BYTES - offset ? length : VOLUME_BYTES - offset;
    uint8_t *bytes = io_buffer_alloc(length);
    memset(bytes, 1 + (int)draw(client, 255), length);
    memcpy(client->model + offset, bytes, length);
    good(client,
            volume_write_wait(client->volume, offset, bytes, length, draw(client, 10) == 0 ? VOLUME_FUA : 0),
            "a write");
    io_buffer_free(bytes);
}

static void do_scatter(struct client *client)
{
    uint64_t blocks[16];
    unsigned count = 0;
    for (uint64_t block = draw(client, 20); block < VOLUME_BLOCKS && count < 16; block += 1 + draw(client, 9))
        blocks[count++] = block;
    uint8_t *bytes = io_buffer_alloc((size_t)count * BLOCK_SIZE + 1);
    for (unsigned i = 0; i < count; i++) {
        memset(bytes + (size_t)i * BLOCK_SIZE, (int)(1 + draw(client, 255)), BLOCK_SIZE);
        memcpy(client->model + blocks[i] * BLOCK_SIZE, bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
    }
    good(client, volume_write_blocks_wait(client->volume, blocks, count, bytes), "scattered blocks");
    io_buffer_free(bytes);
}

static void do_zero(struct client *client)
{
    uint64_t first = draw(client, VOLUME_BLOCKS), count = 1 + draw(client, 10);
    count = count < VOLUME_BLOCKS - first ? count : VOLUME_BLOCKS - first;
    memset(client->model + first * BLOCK_SIZE, 0, count * BLOCK_SIZE);
    good(client, volume_zero_wait(client->volume, first * BLOCK_SIZE, count * BLOCK_SIZE, draw(client, 2), 0),
            "a zero or trim");
}

static void do_read(struct client *client)
{
    uint64_t offset = draw(client, VOLUME_BYTES), length = draw(client, VOLUME_BYTES - offset + 1);
    uint8_t *bytes = malloc(length + 1);
    if (good(client, volume_read_wait(client->volume, offset, bytes, length), "a read"))
        same(client, bytes, offset, length, "a read");
    free(bytes);
}

static void delete_fork(struct client *client, struct volume_id child, struct doc_id doc)
{
    struct txn *txn = txn_begin(client->store);
    struct error err;
    txn_volume_delete(txn, child);
    txn_doc_delete(txn, doc);
    good(client, txn_commit_wait(txn, TXN_RESERVE, &err), "deleting a fork");
}

// A fork holds what the volume held, whatever either of them does afterwards.
static void do_fork(struct client *client)
{
    struct txn *txn = txn_begin(client->store);
    struct base_id base = txn_freeze(txn, client->id);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, 0, base);
    char body[] = "{}";
    struct doc put = {.kind = DOC_SNAPSHOT, .bases = {base}, .base_count = 1, .body = body, .body_bytes = 2};
    uint8_t blob[5000];
    memset(blob, (int)client->number + 7, sizeof blob);
    struct doc_id doc = txn_doc_put(txn, &put, blob, sizeof blob);
    struct error err;
    struct volume *child = NULL;
    struct base *frozen = NULL;
    if (!good(client, txn_commit_wait(txn, draw(client, 3) == 0 ? TXN_DURABLE : 0, &err), "a fork") ||
            !good(client, volume_open(client->store, id, &child), "opening a fork") ||
            !good(client, base_open(client->store, base, &frozen), "opening a base"))
        return;
    uint8_t *before = malloc(VOLUME_BYTES), *bytes = malloc(VOLUME_BYTES);
    memcpy(before, client->model, VOLUME_BYTES);
    memset(bytes, 0xee, 3 * BLOCK_SIZE);
    good(client, volume_write_wait(child, 5 * BLOCK_SIZE, bytes, 3 * BLOCK_SIZE, 0), "a write to a fork");
    do_write(client);
    if (good(client, base_read_wait(frozen, 0, bytes, VOLUME_BYTES), "a read of a base") &&
            memcmp(bytes, before, VOLUME_BYTES) != 0)
        good(client, -EBADMSG, "a base that changed; comparing it");
    memset(before + 5 * BLOCK_SIZE, 0xee, 3 * BLOCK_SIZE);
    if (good(client, volume_read_wait(child, 0, bytes, VOLUME_BYTES), "a read of a fork") &&
            memcmp(bytes, before, VOLUME_BYTES) != 0)
        good(client, -EBADMSG, "a fork that is not as it was made; comparing it");
    void *stored = NULL;
    size_t stored_bytes = 0;
    if (good(client, store_doc_blob(client->store, doc, &stored, &stored_bytes), "a blob") &&
            (stored_bytes != sizeof blob || memcmp(stored, blob, sizeof blob) != 0))
        good(client, -EBADMSG, "a blob with other bytes; comparing it");
    free(stored);
    free(before);
    free(bytes);
    base_close(frozen);
    volume_close(child);
    delete_fork(client, id, doc);
}

static bool count_extent(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    *(uint64_t *)context += length;
    return true;
}

static void do_look(struct client *client)
{
    uint64_t covered = 0;
    if (good(client, volume_extents_wait(client->volume, 0, VOLUME_BYTES, count_extent, &covered),
                "extents") &&
            covered != VOLUME_BYTES)
        good(client, -EINVAL, "extents that leave a hole; counting them");
    struct store_stat stat;
    store_stat(client->store, &stat);
    struct volume_info info;
    good(client, store_volume_get(client->store, client->id, &info), "volume_get");
    good(client, stat.failed, "the store");
}

static void write_shared(struct client *client, uint64_t value)
{
    struct shared *shared = client->shared;
    uint64_t *block = io_buffer_alloc(BLOCK_SIZE);
    for (unsigned i = 0; i < BLOCK_SIZE / sizeof *block; i++)
        block[i] = value;
    atomic_store(&shared->begun[client->number], value);
    good(client,
            volume_write_wait(shared->volume, (uint64_t)client->number * BLOCK_SIZE, block, BLOCK_SIZE, 0),
            "a shared write");
    atomic_store(&shared->answered[client->number], value);
    io_buffer_free(block);
}

static void *client_run(void *argument)
{
    struct client *client = argument;
    for (unsigned round = 0; round < ROUNDS && client->failure[0] == '\0'; round++) {
        unsigned dice = (unsigned)draw(client, 100);
        if (round < SHARED_ROUNDS)
            write_shared(client, round + 1);
        if (dice < 40)
            do_write(client);
        else if (dice < 50)
            do_scatter(client);
        else if (dice < 60)
            do_zero(client);
        else if (dice < 80)
            do_read(client);
        else if (dice < 88)
            do_fork(client);
        else if (dice < 94)
            good(client, volume_flush_wait(client->volume), "a flush");
        else
            do_look(client);
    }
    return NULL;
}

// Every freeze holds, for each client, a counter between what was answered before it and what was begun after
// it.
static bool freeze_shared(struct shared *shared)
{
    uint64_t low[CLIENTS], high[CLIENTS];
    struct error err;
    struct txn *txn = txn_begin(shared->store);
    char body[] = "{}";
    for (unsigned i = 0; i < CLIENTS; i++)
        low[i] = atomic_load(&shared->answered[i]);
    struct base_id id = txn_freeze(txn, volume_get_id(shared->volume));
    struct doc put = {.kind = DOC_OTHER, .bases = {id}, .base_count = 1, .body = body, .body_bytes = 2};
    struct doc_id doc = txn_doc_put(txn, &put, NULL, 0);
    struct base *base = NULL;
    if (txn_commit_wait(txn, 0, &err) < 0 || base_open(shared->store, id, &base) < 0) {
        snprintf(shared->failure, sizeof shared->failure, "freezing the shared volume: %.150s", err.text);
        return false;
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        high[i] = atomic_load(&shared->begun[i]);
    uint64_t *first = malloc(CLIENTS * BLOCK_SIZE), *second = malloc(CLIENTS * BLOCK_SIZE);
    int result = base_read_wait(base, 0, first, CLIENTS * BLOCK_SIZE);
    if (result == 0)
        result = base_read_wait(base, 0, second, CLIENTS * BLOCK_SIZE);
    for (unsigned i = 0; i < CLIENTS && result == 0; i++) {
        uint64_t value = first[i * BLOCK_SIZE / 8];
        for (unsigned j = 0; j < BLOCK_SIZE / 8; j++)
            if (first[i * BLOCK_SIZE / 8 + j] != value || second[i * BLOCK_SIZE / 8 + j] != value)
                result = -EBADMSG;
        if (value < low[i] || value > high[i])
            snprintf(shared->failure, sizeof shared->failure,
                    "a base holds %llu of client %u, not between %llu and %llu", (unsigned long long)value, i,
                    (unsigned long long)low[i], (unsigned long long)high[i]);
    }
    if (result < 0)
        snprintf(shared->failure, sizeof shared->failure, "reading a base of the shared volume: %d", result);
    free(first);
    free(second);
    base_close(base);
    txn = txn_begin(shared->store);
    txn_doc_delete(txn, doc);
    if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
        snprintf(shared->failure, sizeof shared->failure, "deleting a doc: %.150s", err.text);
    return shared->failure[0] == '\0';
}

static void *freezer_run(void *argument)
{
    struct shared *shared = argument;
    for (unsigned i = 0; i < FREEZES && freeze_shared(shared); i++) {
    }
    return NULL;
}

static struct volume_id create_volume(struct store *store, uint64_t size_bytes)
{
    struct error err;
    struct txn *txn = txn_begin(store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, size_bytes, (struct base_id){0});
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
    return id;
}

static void no_failure(const char *text)
{
    if (text[0] != '\0')
        fail_msg("%s", text);
}

static void threads_agree_with_their_models(void **state)
{
    const struct store_config config = {
            .log_file_bytes = 1 << 20, .log_budget_bytes = 256 << 20, .spare_log_files = 2};
    struct store_fixture fixture;
    store_fixture_init(&fixture, "/var/tmp/ramet-threads-XXXXXX", LOOPS, &config);
    store_fixture_open(&fixture);
    static struct client clients[CLIENTS];
    static struct shared shared;
    shared.store = fixture.store;
    struct volume_id shared_id = create_volume(fixture.store, CLIENTS * BLOCK_SIZE);
    assert_int_equal(volume_open(fixture.store, shared_id, &shared.volume), 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] =
                (struct client){.store = fixture.store, .number = i, .random = i * 77 + 5, .shared = &shared};
        clients[i].id = create_volume(fixture.store, VOLUME_BYTES);
        assert_int_equal(volume_open(fixture.store, clients[i].id, &clients[i].volume), 0);
    }
    pthread_t freezer;
    for (unsigned i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_run, &clients[i]), 0);
    assert_int_equal(pthread_create(&freezer, NULL, freezer_run, &shared), 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    pthread_join(freezer, NULL);
    for (unsigned i = 0; i < CLIENTS; i++) {
        no_failure(clients[i].failure);
        volume_close(clients[i].volume);
    }
    no_failure(shared.failure);
    volume_close(shared.volume);
    store_fixture_close(&fixture);

    store_fixture_open(&fixture);
    uint8_t *bytes = malloc(VOLUME_BYTES);
    for (unsigned i = 0; i < CLIENTS; i++) {
        assert_int_equal(volume_open(fixture.store, clients[i].id, &clients[i].volume), 0);
        assert_int_equal(volume_read_wait(clients[i].volume, 0, bytes, VOLUME_BYTES), 0);
        same(&clients[i], bytes, 0, VOLUME_BYTES, "the volume after reopening");
        no_failure(clients[i].failure);
        volume_close(clients[i].volume);
    }
    assert_int_equal(volume_open(fixture.store, shared_id, &shared.volume), 0);
    assert_int_equal(volume_read_wait(shared.volume, 0, bytes, CLIENTS * BLOCK_SIZE), 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        assert_int_equal(((uint64_t *)bytes)[i * BLOCK_SIZE / 8], SHARED_ROUNDS);
    volume_close(shared.volume);
    free(bytes);
    store_fixture_remove(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_agree_with_their_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
