// SPDX-License-Identifier: Apache-2.0
// A small store with something of everything, and a model of what it holds: sealed and unsealed blocks, zeros
// and holes, forks, a snapshot, a machine snapshot with device state, a memory volume in a dedup domain of
// its own, something deleted. All of it is the same each time, so it also makes the golden store.
#pragma once

#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    RICH_SHARDS = 2,
    RICH_FILE_BYTES = 256 << 10,
    RICH_BUDGET_FILES = 24,
    RICH_ROOTS = 6,
    RICH_BLOCKS_MAX = 1200,
    RICH_BLOB_BYTES = 10000,
    RICH_DOMAIN = 7,
};

struct rich_root { // the model of a volume or base: what each block holds
    const char *name;
    bool is_base;
    enum doc_kind doc; // of a base: the doc that keeps it
    unsigned doc_base; // its place there
    unsigned blocks;
    uint32_t seeds[RICH_BLOCKS_MAX]; // 0 = reads as zero
};

enum { RICH_DISK, RICH_MEMORY, RICH_CHILD, RICH_ONE, RICH_MACHINE_DISK, RICH_MACHINE_MEMORY };

struct rich {
    struct store_fixture of;
    struct rich_root roots[RICH_ROOTS];
};

static inline void rich_block(uint32_t seed, uint8_t *bytes)
{
    uint32_t state = seed * 2654435761u + 12345;
    memset(bytes, 0, BLOCK_SIZE);
    if (seed == 0)
        return;
    unsigned random_bytes = seed % 3 == 0 ? BLOCK_SIZE : 256; // a third of the blocks does not compress
    for (unsigned i = 0; i < BLOCK_SIZE; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = i < random_bytes ? (uint8_t)(state >> 24) : (uint8_t)('a' + (seed + i / 64) % 26);
    }
}

static inline void rich_blob(uint8_t *bytes)
{
    for (unsigned i = 0; i < RICH_BLOB_BYTES; i++)
        bytes[i] = (uint8_t)(i * 13 + (i >> 7));
}

// ---- Opening ----

static inline int rich_open_with(struct rich *rich, const struct store_config *config, struct error *err)
{
    rich->of.shards = RICH_SHARDS;
    rich->of.config = *config;
    return store_fixture_try_open(&rich->of, err);
}

static inline int rich_open(struct rich *rich, bool read_only, struct error *err)
{
    struct store_config config = {.read_only = read_only};
    return rich_open_with(rich, &config, err);
}

static inline void rich_close(struct rich *rich)
{
    store_fixture_close(&rich->of);
}

static inline void rich_must_open(struct rich *rich, bool read_only)
{
    struct error err = {0};
    if (rich_open(rich, read_only, &err) < 0)
        fail_msg("open %s: %s", rich->of.directory, err.text);
}

// ---- Filling ----

static inline void rich_commit(struct txn *txn)
{
    struct error err = {0};
    if (txn_commit_wait(txn, TXN_DURABLE, &err) < 0)
        fail_msg("commit: %s", err.text);
}

static inline struct volume *rich_volume(struct rich *rich, const char *name)
{
    struct volume_info info;
    struct volume *volume;
    assert_int_equal(store_volume_find(rich->of.store, name, &info), 0);
    assert_int_equal(volume_open(rich->of.store, info.id, &volume), 0);
    return volume;
}

static inline void rich_write(struct rich *rich, unsigned root, unsigned block, unsigned count, uint32_t seed)
{
    struct volume *volume = rich_volume(rich, rich->roots[root].name);
    uint8_t *bytes = io_buffer_alloc((size_t)count * BLOCK_SIZE);
    for (unsigned i = 0; i < count; i++) {
        rich->roots[root].seeds[block + i] = seed + i;
        rich_block(seed + i, bytes + (size_t)i * BLOCK_SIZE);
    }
    assert_int_equal(
            volume_write_wait(volume, (uint64_t)block * BLOCK_SIZE, bytes, (uint64_t)count * BLOCK_SIZE, 0),
            0);
    io_buffer_free(bytes);
    volume_close(volume);
}

static inline void rich_zero(struct rich *rich, unsigned root, unsigned block, unsigned count, bool trim)
{
    struct volume *volume = rich_volume(rich, rich->roots[root].name);
    for (unsigned i = 0; i < count; i++)
        rich->roots[root].seeds[block + i] = 0;
    assert_int_equal(
            volume_zero_wait(volume, (uint64_t)block * BLOCK_SIZE, (uint64_t)count * BLOCK_SIZE, trim, 0), 0);
    volume_close(volume);
}

static inline void rich_seal(struct rich *rich)
{
    struct error err = {0};
    if (store_seal(rich->of.store, &err) < 0)
        fail_msg("seal: %s", err.text);
}

static inline void rich_create(
        struct rich *rich, unsigned root, enum volume_kind kind, struct base_id parent, uint64_t domain)
{
    struct txn *txn = txn_begin(rich->of.store);
    struct volume_id id = txn_volume_create(
            txn, rich->roots[root].name, kind, (uint64_t)rich->roots[root].blocks * BLOCK_SIZE, parent);
    if (domain != 0)
        txn_volume_domain(txn, id, domain);
    rich_commit(txn);
}

static inline struct volume_id rich_id(struct rich *rich, const char *name)
{
    struct volume_info info;
    assert_int_equal(store_volume_find(rich->of.store, name, &info), 0);
    return info.id;
}

static inline struct base_id rich_snapshot(struct rich *rich, const char *volume, const char *name)
{
    struct txn *txn = txn_begin(rich->of.store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .body = (char *)"{}", .body_bytes = 2, .base_count = 1};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    doc.bases[0] = txn_freeze(txn, rich_id(rich, volume));
    struct base_id base = doc.bases[0];
    txn_doc_put(txn, &doc, NULL, 0);
    rich_commit(txn);
    return base;
}

static inline void rich_machine(struct rich *rich)
{
    uint8_t blob[RICH_BLOB_BYTES];
    struct txn *txn = txn_begin(rich->of.store);
    struct doc doc = {.kind = DOC_MACHINE, .body = (char *)"{\"cpus\":2}", .body_bytes = 10, .base_count = 2};
    snprintf(doc.name, sizeof doc.name, "machine");
    doc.bases[0] = txn_freeze(txn, rich_id(rich, "disk"));
    doc.bases[1] = txn_freeze(txn, rich_id(rich, "memory"));
    rich_blob(blob);
    txn_doc_put(txn, &doc, blob, sizeof blob);
    rich_commit(txn);
}

static inline void rich_copy_model(struct rich *rich, unsigned to, unsigned from)
{
    memcpy(rich->roots[to].seeds, rich->roots[from].seeds, sizeof rich->roots[to].seeds);
}

static inline void rich_model(struct rich *rich)
{
    static const struct {
        const char *name;
        bool is_base;
        enum doc_kind doc;
        unsigned doc_base, blocks;
    } roots[RICH_ROOTS] = {{"disk", false, 0, 0, 1000}, {"memory", false, 0, 0, 512},
            {"child", false, 0, 0, 1100}, {"one", true, DOC_SNAPSHOT, 0, 1000},
            {"machine", true, DOC_MACHINE, 0, 1000}, {"machine", true, DOC_MACHINE, 1, 512}};
    for (unsigned i = 0; i < RICH_ROOTS; i++)
        rich->roots[i] = (struct rich_root){.name = roots[i].name,
                .is_base = roots[i].is_base,
                .doc = roots[i].doc,
                .doc_base = roots[i].doc_base,
                .blocks = roots[i].blocks};
}

static inline void rich_first_half(struct rich *rich)
{
    rich_create(rich, RICH_DISK, VOLUME_DISK, (struct base_id){0}, 0);
    rich_create(rich, RICH_MEMORY, VOLUME_MEMORY, (struct base_id){0}, RICH_DOMAIN);
    rich_write(rich, RICH_DISK, 0, 40, 1000);
    rich_write(rich, RICH_DISK, 600, 6, 2000);
    rich_zero(rich, RICH_DISK, 100, 8, false);
    struct base_id one = rich_snapshot(rich, "disk", "one");
    rich_copy_model(rich, RICH_ONE, RICH_DISK);
    rich_create(rich, RICH_CHILD, VOLUME_DISK, one, 0);
    rich_copy_model(rich, RICH_CHILD, RICH_DISK);
    rich_write(rich, RICH_CHILD, 10, 3, 3000);
    rich_write(rich, RICH_CHILD, 1090, 2, 3100);
    rich_seal(rich);
}

static inline void rich_second_half(struct rich *rich)
{
    struct base_id none = {0};
    rich_write(rich, RICH_MEMORY, 0, 10, 1000); // as public blocks: shared
    rich_write(rich, RICH_MEMORY, 300, 12, 4000);
    rich_write(rich, RICH_DISK, 4, 3, 5000);
    rich_zero(rich, RICH_DISK, 20, 5, true);
    rich_machine(rich);
    rich_copy_model(rich, RICH_MACHINE_DISK, RICH_DISK);
    rich_copy_model(rich, RICH_MACHINE_MEMORY, RICH_MEMORY);
    struct txn *txn = txn_begin(rich->of.store);
    struct volume_id gone = txn_volume_create(txn, "gone", VOLUME_DISK, 1 << 20, none);
    rich_commit(txn);
    rich_seal(rich);
    txn = txn_begin(rich->of.store);
    txn_volume_delete(txn, gone);
    rich_commit(txn);
    // What stays in the log:
    rich_write(rich, RICH_DISK, 30, 4, 6000);
    rich_write(rich, RICH_MEMORY, 305, 2, 6100);
    rich_zero(rich, RICH_CHILD, 601, 2, false);
    rich_zero(rich, RICH_CHILD, 0, 2, true);
    assert_int_equal(store_flush(rich->of.store), 0);
}

// Makes the store in rich->of.directory (which does not exist, or is empty) and leaves it open.
static inline void rich_make(struct rich *rich)
{
    rich->of.config = (struct store_config){.log_file_bytes = RICH_FILE_BYTES,
            .log_budget_bytes = (uint64_t)RICH_FILE_BYTES * RICH_BUDGET_FILES,
            .spare_log_files = 1};
    store_fixture_make(&rich->of);
    rich_model(rich);
    rich_must_open(rich, false);
    rich_first_half(rich);
    rich_second_half(rich);
}

// ---- Comparing ----

struct rich_reads {
    unsigned right, failed, wrong; // blocks
    unsigned missing;              // roots that are not there
};

static inline int rich_root_read(
        struct rich *rich, const struct rich_root *root, unsigned block, unsigned count, uint8_t *bytes)
{
    uint64_t offset = (uint64_t)block * BLOCK_SIZE, size = (uint64_t)count * BLOCK_SIZE;
    int r;
    if (!root->is_base) {
        struct volume_info info;
        struct volume *volume;
        if (store_volume_find(rich->of.store, root->name, &info) < 0 ||
                volume_open(rich->of.store, info.id, &volume) < 0)
            return -ENOENT;
        r = volume_read_wait(volume, offset, bytes, size);
        volume_close(volume);
        return r;
    }
    struct doc doc;
    struct base *base;
    if (store_doc_find(rich->of.store, root->doc, root->name, &doc) < 0)
        return -ENOENT;
    r = doc.base_count > root->doc_base ? base_open(rich->of.store, doc.bases[root->doc_base], &base)
                                        : -ENOENT;
    doc_free(&doc);
    if (r < 0)
        return -ENOENT;
    r = base_read_wait(base, offset, bytes, size);
    base_close(base);
    return r;
}

static inline void rich_compare_root(
        struct rich *rich, const struct rich_root *root, struct rich_reads *reads)
{
    uint8_t *bytes = io_buffer_alloc((size_t)root->blocks * BLOCK_SIZE), want[BLOCK_SIZE];
    int all = rich_root_read(rich, root, 0, root->blocks, bytes);
    if (all == -ENOENT)
        reads->missing++;
    for (unsigned i = 0; all != -ENOENT && i < root->blocks; i++) {
        uint8_t *at = bytes + (size_t)i * BLOCK_SIZE;
        int r = all < 0 ? rich_root_read(rich, root, i, 1, at) : 0;
        rich_block(root->seeds[i], want);
        if (r < 0)
            reads->failed++;
        else if (memcmp(at, want, BLOCK_SIZE) == 0)
            reads->right++;
        else
            reads->wrong++;
    }
    io_buffer_free(bytes);
}

// Reads every block of every root, and the device state (counted as one block).
static inline struct rich_reads rich_compare(struct rich *rich)
{
    struct rich_reads reads = {0};
    struct doc doc;
    void *bytes;
    size_t size;
    for (unsigned i = 0; i < RICH_ROOTS; i++)
        rich_compare_root(rich, &rich->roots[i], &reads);
    if (store_doc_find(rich->of.store, DOC_MACHINE, "machine", &doc) < 0)
        return reads;
    uint8_t blob[RICH_BLOB_BYTES];
    rich_blob(blob);
    int r = store_doc_blob(rich->of.store, doc.id, &bytes, &size);
    if (r < 0)
        reads.failed++;
    else if (size == sizeof blob && memcmp(bytes, blob, size) == 0)
        reads.right++;
    else
        reads.wrong++;
    if (r == 0)
        free(bytes);
    doc_free(&doc);
    return reads;
}

static inline void rich_expect_right(struct rich *rich)
{
    struct rich_reads reads = rich_compare(rich);
    assert_int_equal(reads.missing, 0);
    assert_int_equal(reads.failed, 0);
    assert_int_equal(reads.wrong, 0);
    assert_true(reads.right > 4000);
}

// ---- Checking ----

struct rich_found {
    unsigned count;
    char text[16384]; // all sentences
};

static inline void rich_note(void *context, const char *sentence)
{
    struct rich_found *found = context;
    size_t used = strlen(found->text);
    found->count++;
    snprintf(found->text + used, sizeof found->text - used, "%s\n", sentence);
}

static inline struct store_check_result rich_check(struct rich *rich, struct rich_found *found)
{
    struct error err = {0};
    struct store_check_result result = {0};
    *found = (struct rich_found){0};
    if (store_check(rich->of.store, rich_note, found, &result, &err) < 0)
        fail_msg("check: %s", err.text);
    return result;
}

static inline void rich_expect_clean(struct rich *rich)
{
    struct rich_found found;
    struct store_check_result result = rich_check(rich, &found);
    if (result.damages != 0)
        fail_msg("check found: %s", found.text);
    assert_int_equal(result.volumes, 3);
    if (result.nodes <= 3 || result.blocks <= 60 || result.segments < 2 || result.log_records < 2)
        fail_msg("%d nodes, %d blocks, %d segments, %d records", (int)result.nodes, (int)result.blocks,
                (int)result.segments, (int)result.log_records);
}

static inline void rich_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void rich_run(const char *format, ...)
{
    char command[1400];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0)
        fail_msg("%s failed", command);
}

// ---- Files ----

// For cmocka: one in a folder of its own; beside it a test may have made DIRECTORY.other.
static inline int rich_setup(void **state)
{
    struct rich *rich = calloc(1, sizeof *rich);
    strcpy(rich->of.directory, "rich_store.XXXXXX");
    assert_non_null(mkdtemp(rich->of.directory));
    rich_make(rich);
    *state = rich;
    return 0;
}

static inline int rich_teardown(void **state)
{
    struct rich *rich = *state;
    rich_close(rich);
    rich_run("rm -rf %s %s.other", rich->of.directory, rich->of.directory);
    free(rich);
    return 0;
}

// The name of the file in STORE/FOLDER that comes last (or first) in order, "" when there is none.
static inline void rich_file(struct rich *rich, const char *folder, bool last, char *ret_path, size_t size)
{
    char directory[256];
    snprintf(directory, sizeof directory, "%s/%s", rich->of.directory, folder);
    struct dirent **names;
    int count = scandir(directory, &names, NULL, alphasort), found = -1;
    for (int i = 0; i < count; i++)
        if (names[i]->d_name[0] >= '0' && names[i]->d_name[0] <= '9' && (last || found < 0))
            found = i;
    ret_path[0] = 0;
    if (found >= 0)
        snprintf(ret_path, size, "%s/%s", directory, names[found]->d_name);
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

static inline void rich_flip(const char *path, uint64_t offset, unsigned bits)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= (uint8_t)bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}
