// SPDX-License-Identifier: Apache-2.0
// Two stores and streams in memory: what the tests of archives share.
#pragma once

#include "snapshot/archive.h"
#include "snapshot/passing.h"
#include "tests/unit/store_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef FIXTURE_FILE_BYTES
#define FIXTURE_FILE_BYTES (1 << 20)
#endif
enum { SHARDS = 2, FILE_BYTES = FIXTURE_FILE_BYTES, BUDGET_FILES = 24 };

struct world {
    struct store_fixture from, to;
};

static inline void side_make(struct store_fixture *side)
{
    const struct store_config config = {
            .log_file_bytes = FILE_BYTES, .log_budget_bytes = (uint64_t)FILE_BYTES * BUDGET_FILES};
    store_fixture_init(side, "test_archive.XXXXXX", SHARDS, &config);
    store_fixture_open(side);
}

static inline int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    side_make(&world->from);
    side_make(&world->to);
    *state = world;
    return 0;
}

static inline int teardown(void **state)
{
    struct world *world = *state;
    store_fixture_remove(&world->from);
    store_fixture_remove(&world->to);
    free(world);
    return 0;
}

// ---- Streams in memory ----

struct memory {
    uint8_t *bytes;
    size_t size, capacity, at;
    size_t step; // bytes per read, 0 = as many as wanted: pipes give what they have
};

static inline int memory_write(void *context, const void *bytes, size_t size)
{
    struct memory *memory = context;
    if (memory->size + size > memory->capacity) {
        memory->capacity = (memory->size + size) * 2;
        memory->bytes = realloc(memory->bytes, memory->capacity);
    }
    memcpy(memory->bytes + memory->size, bytes, size);
    memory->size += size;
    return 0;
}

static inline ssize_t memory_read(void *context, void *buffer, size_t capacity)
{
    struct memory *memory = context;
    size_t left = memory->size - memory->at, part = left < capacity ? left : capacity;
    if (memory->step != 0 && part > memory->step)
        part = memory->step;
    memcpy(buffer, memory->bytes + memory->at, part);
    memory->at += part;
    return (ssize_t)part;
}

static inline int import(struct store_fixture *side, struct memory *memory, struct error *err)
{
    struct archive_import_config config = {.read = memory_read, .context = memory};
    struct archive_result result;
    memory->at = 0;
    return archive_import(side->store, &config, &result, err);
}

// ---- Content ----

static inline void pattern(uint8_t *bytes, size_t size, unsigned seed)
{
    uint64_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(x >> 56);
    }
}

static inline void put(struct store *store, struct volume_id id, uint64_t offset, size_t size, unsigned seed)
{
    uint8_t *bytes = malloc(size);
    struct volume *volume;
    pattern(bytes, size, seed);
    assert_int_equal(volume_open(store, id, &volume), 0);
    assert_int_equal(volume_write_wait(volume, offset, bytes, size, 0), 0);
    volume_close(volume);
    free(bytes);
}

static inline void zero(struct store *store, struct volume_id id, uint64_t offset, size_t size, bool trim)
{
    struct volume *volume;
    assert_int_equal(volume_open(store, id, &volume), 0);
    assert_int_equal(volume_zero_wait(volume, offset, size, trim, 0), 0);
    volume_close(volume);
}

static inline void commit(struct txn *txn)
{
    struct error err = {0};
    if (txn_commit_wait(txn, 0, &err) < 0)
        fail_msg("%s", err.text);
}

static inline struct volume_id create(
        struct store *store, const char *name, enum volume_kind kind, uint64_t size, struct base_id parent)
{
    struct txn *txn = txn_begin(store);
    struct volume_id id = txn_volume_create(txn, name, kind, size, parent);
    commit(txn);
    return id;
}

static inline struct doc_id freeze(struct store *store, enum doc_kind kind, const char *name,
        const struct volume_id *volumes, unsigned count, const void *blob, size_t blob_bytes)
{
    char body[80];
    struct doc doc = {.kind = kind, .base_count = count, .body = body};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    struct txn *txn = txn_begin(store);
    for (unsigned i = 0; i < count; i++)
        doc.bases[i] = txn_freeze(txn, volumes[i]);
    doc.body_bytes =
            (size_t)snprintf(body, sizeof body, "{\"first\":%llu}", (unsigned long long)doc.bases[0].value);
    struct doc_id id = txn_doc_put(txn, &doc, blob, blob_bytes);
    commit(txn);
    return id;
}

static inline void export_docs(
        struct store *store, const struct doc_id *docs, unsigned count, struct memory *memory)
{
    struct archive_root roots[8] = {0};
    struct archive_result result;
    struct error err = {0};
    for (unsigned i = 0; i < count; i++)
        roots[i].doc = docs[i];
    if (archive_export(store, roots, count, memory_write, memory, &result, &err) < 0)
        fail_msg("export: %s", err.text);
    assert_int_equal(result.archive_bytes, memory->size);
}

static inline void expect_counts(struct store *store, unsigned volumes, unsigned bases, unsigned docs)
{
    struct store_stat stat;
    store_stat(store, &stat);
    assert_int_equal(stat.volumes, volumes);
    assert_int_equal(stat.bases, bases);
    assert_int_equal(stat.docs, docs);
}
