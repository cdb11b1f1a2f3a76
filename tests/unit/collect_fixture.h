// SPDX-License-Identifier: Apache-2.0
// A store on real files and loops for the tests of collecting and scrubbing, and volumes of which every block
// is known by a number: the same number gives the same bytes, 0 gives zeros.
#pragma once

#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FIXTURE_LOOPS = 3 };

static inline uint64_t fixture_random(struct store_fixture *f, uint64_t limit)
{
    f->random = f->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (f->random >> 33) % limit;
}

static inline struct store_fixture *fixture_new(const char *parent, const struct store_config *config)
{
    struct store_fixture *f = calloc(1, sizeof *f);
    char directory[sizeof f->directory];
    snprintf(directory, sizeof directory, "%s%sfixture.XXXXXX", parent, parent[0] != 0 ? "/" : "");
    store_fixture_init(f, directory, FIXTURE_LOOPS, config);
    store_fixture_open(f);
    return f;
}

static inline void fixture_free(struct store_fixture *f)
{
    store_fixture_remove(f);
    free(f);
}

// ---- Blocks by number ----

static inline void fixture_block(uint8_t *block, uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15);
    if (number == 0) {
        memset(block, 0, BLOCK_SIZE);
        return;
    }
    for (unsigned i = 0; i < BLOCK_SIZE; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(block + i, &x, 8);
    }
}

static inline int fixture_write(
        struct volume *volume, uint64_t block, const uint64_t *numbers, unsigned count)
{
    uint8_t *bytes = io_buffer_alloc((size_t)count * BLOCK_SIZE);
    for (unsigned i = 0; i < count; i++)
        fixture_block(bytes + (size_t)i * BLOCK_SIZE, numbers[i]);
    int r = volume_write_wait(volume, block * BLOCK_SIZE, bytes, (uint64_t)count * BLOCK_SIZE, 0);
    io_buffer_free(bytes);
    return r;
}

// The first block that is not what its number says, or -1.
static inline int64_t fixture_differs(const uint8_t *bytes, const uint64_t *numbers, unsigned count)
{
    uint8_t want[BLOCK_SIZE];
    for (unsigned i = 0; i < count; i++) {
        fixture_block(want, numbers[i]);
        if (memcmp(want, bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) != 0)
            return i;
    }
    return -1;
}

static inline void fixture_expect(struct volume *volume, const uint64_t *numbers, unsigned count)
{
    uint8_t *bytes = io_buffer_alloc((size_t)count * BLOCK_SIZE);
    int r = volume_read_wait(volume, 0, bytes, (uint64_t)count * BLOCK_SIZE);
    if (r < 0)
        fail_msg("a read answered %d", r);
    int64_t at = fixture_differs(bytes, numbers, count);
    if (at >= 0)
        fail_msg("block %lld is not what was written", (long long)at);
    io_buffer_free(bytes);
}

static inline void fixture_expect_base(struct base *base, const uint64_t *numbers, unsigned count)
{
    uint8_t *bytes = io_buffer_alloc((size_t)count * BLOCK_SIZE);
    int r = base_read_wait(base, 0, bytes, (uint64_t)count * BLOCK_SIZE);
    if (r < 0)
        fail_msg("a read of a base answered %d", r);
    int64_t at = fixture_differs(bytes, numbers, count);
    if (at >= 0)
        fail_msg("block %lld of a base is not what was written", (long long)at);
    io_buffer_free(bytes);
}

// ---- Changes ----

static inline void fixture_commit(struct txn *txn, unsigned flags)
{
    struct error err = {0};
    int r = txn_commit_wait(txn, flags, &err);
    if (r < 0)
        fail_msg("commit: %s", err.text);
}

static inline struct volume *fixture_volume(struct store_fixture *f, const char *name, uint64_t blocks)
{
    struct txn *txn = txn_begin(f->store);
    struct volume_id id = txn_volume_create(txn, name, VOLUME_DISK, blocks * BLOCK_SIZE, (struct base_id){0});
    fixture_commit(txn, 0);
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    return volume;
}

static inline struct volume *fixture_fork(struct store_fixture *f, const char *name, struct base_id base)
{
    struct txn *txn = txn_begin(f->store);
    struct volume_id id = txn_volume_create(txn, name, VOLUME_DISK, 0, base);
    fixture_commit(txn, 0);
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    return volume;
}

static inline struct doc_id fixture_snapshot(struct store_fixture *f, struct volume_id id, const char *name,
        size_t blob_bytes, struct base_id *ret_base)
{
    struct txn *txn = txn_begin(f->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .body = "{}", .body_bytes = 2, .base_count = 1};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    *ret_base = doc.bases[0] = txn_freeze(txn, id);
    uint8_t *blob = malloc(blob_bytes + 1);
    memset(blob, name[0], blob_bytes + 1);
    struct doc_id doc_id = txn_doc_put(txn, &doc, blob, blob_bytes);
    free(blob);
    fixture_commit(txn, 0);
    return doc_id;
}

static inline void fixture_delete_volume(struct store_fixture *f, struct volume *volume)
{
    struct volume_id id = volume_get_id(volume);
    volume_close(volume);
    struct txn *txn = txn_begin(f->store);
    txn_volume_delete(txn, id);
    fixture_commit(txn, TXN_RESERVE);
}

static inline void fixture_delete_doc(struct store_fixture *f, struct doc_id id)
{
    struct txn *txn = txn_begin(f->store);
    txn_doc_delete(txn, id);
    fixture_commit(txn, TXN_RESERVE);
}

static inline void fixture_seal(struct store_fixture *f)
{
    struct error err = {0};
    int r = store_seal(f->store, &err);
    if (r < 0)
        fail_msg("seal: %s", err.text);
}

static inline struct store_gc_result fixture_collect(struct store_fixture *f, unsigned flags)
{
    struct store_gc_result result;
    struct error err = {0};
    int r = store_gc(f->store, flags, &result, &err);
    if (r < 0)
        fail_msg("collect: %s", err.text);
    return result;
}

static inline struct store_stat fixture_stat(struct store_fixture *f)
{
    struct store_stat stat;
    store_stat(f->store, &stat);
    return stat;
}

static inline unsigned fixture_segment_files(struct store_fixture *f)
{
    char path[300];
    unsigned count = 0;
    snprintf(path, sizeof path, "%s/segments", f->directory);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(directory);
    return count;
}
