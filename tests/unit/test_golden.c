// SPDX-License-Identifier: Apache-2.0
// A store of format 1, kept in tests/golden/store-1.tar.gz: every later program reads it. And the same store
// with a version or a must-know feature raised in each of its structures: refused in words that say so.
//
// It was written by this program: test_golden --write DIRECTORY (rich_store.h says what is in it).
#include "tests/unit/rich_store.h"

#include "blockstore/checkpoint_db.h"
#include "blockstore/digest.h"
#include "blockstore/superblock.h"
#include "snapshot/checkpoint.h"

#include <sys/stat.h>

struct golden {
    struct rich rich;
    char top[200];
    uint64_t seed;
};

static const char *archive(void)
{
    static char path[1000];
    snprintf(path, sizeof path, "%s", __FILE__);
    char *tests = strstr(path, "unit/test_golden.c");
    assert_non_null(tests);
    strcpy(tests, "golden/store-1.tar.gz");
    return path;
}

// The model without the store.
static void model_only(struct rich *rich)
{
    FILE *file;
    char path[600];
    rich_model(rich);
    snprintf(path, sizeof path, "%s.model", rich->of.directory);
    file = fopen(path, "rb");
    assert_non_null(file);
    for (unsigned i = 0; i < RICH_ROOTS; i++)
        assert_int_equal(fread(rich->roots[i].seeds, sizeof rich->roots[i].seeds[0], RICH_BLOCKS_MAX, file),
                RICH_BLOCKS_MAX);
    fclose(file);
}

static void write_model(const struct rich *rich)
{
    char path[600];
    snprintf(path, sizeof path, "%s.model", rich->of.directory);
    FILE *file = fopen(path, "wb");
    for (unsigned i = 0; i < RICH_ROOTS; i++)
        fwrite(rich->roots[i].seeds, sizeof rich->roots[i].seeds[0], RICH_BLOCKS_MAX, file);
    fclose(file);
}

static void unpack(struct golden *golden)
{
    rich_run("rm -rf %s/store-1* && tar -xzf %s -C %s", golden->top, archive(), golden->top);
}

static int setup(void **state)
{
    struct golden *golden = calloc(1, sizeof *golden);
    strcpy(golden->top, "/tmp/test_golden.XXXXXX");
    assert_non_null(mkdtemp(golden->top));
    snprintf(golden->rich.of.directory, sizeof golden->rich.of.directory, "%.150s/store-1", golden->top);
    unpack(golden);
    model_only(&golden->rich);
    struct superblock sb;
    struct loop *loop;
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    assert_int_equal(superblock_read(loop, golden->rich.of.directory, &sb, NULL), 0);
    io_ring_loop_destroy(loop);
    golden->seed = store_seed(sb.uuid);
    *state = golden;
    return 0;
}

static int teardown(void **state)
{
    struct golden *golden = *state;
    rich_close(&golden->rich);
    rich_run("rm -rf %s", golden->top);
    free(golden);
    return 0;
}

static void test_reads(void **state)
{
    struct golden *golden = *state;
    struct volume_info info;
    for (unsigned round = 0; round < 3; round++) {
        rich_must_open(&golden->rich, round == 0);
        rich_expect_right(&golden->rich);
        rich_expect_clean(&golden->rich);
        assert_int_equal(store_volume_find(golden->rich.of.store, "gone", &info), -ENOENT);
        assert_int_equal(store_volume_find(golden->rich.of.store, "memory", &info), 0);
        assert_int_equal(info.domain, RICH_DOMAIN);
        assert_int_equal(info.kind, VOLUME_MEMORY);
        if (round == 1) {
            rich_write(&golden->rich, RICH_DISK, 650, 3, 9900);
            rich_seal(&golden->rich);
        }
        rich_close(&golden->rich);
    }
}

// ---- Something newer in each structure ----

static void must_refuse(struct golden *golden, const char *words)
{
    struct error err = {0};
    for (unsigned read_only = 0; read_only < 2; read_only++) {
        int r = rich_open(&golden->rich, read_only, &err);
        if (r != -EPROTO || strstr(err.text, words) == NULL || strstr(err.text, "newer") == NULL)
            fail_msg("answered %d, \"%s\"; expected \"%s\"", r, err.text, words);
    }
    unpack(golden);
}

static uint8_t *read_file(const char *path, size_t *ret_size)
{
    struct stat stat_of;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(stat(path, &stat_of), 0);
    uint8_t *bytes = malloc((size_t)stat_of.st_size);
    *ret_size = fread(bytes, 1, (size_t)stat_of.st_size, file);
    assert_int_equal(*ret_size, stat_of.st_size);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    free(bytes);
}

static void put_sum(uint8_t *at, uint64_t sum)
{
    for (unsigned i = 0; i < 8; i++)
        at[i] = (uint8_t)(sum >> (8 * i));
}

static void resum(uint8_t *block, unsigned sum_at, uint64_t seed)
{
    memset(block + sum_at, 0, 8);
    put_sum(block + sum_at, digest_bytes(block, BLOCK_SIZE, seed));
}

static void test_newer_superblock(void **state)
{
    struct golden *golden = *state;
    for (unsigned at = 8; at <= 12; at += 4) {
        char path[600];
        size_t size;
        snprintf(path, sizeof path, "%s/superblock", golden->rich.of.directory);
        uint8_t *bytes = read_file(path, &size);
        for (unsigned copy = 0; copy < 2; copy++) {
            bytes[copy * BLOCK_SIZE + at] ^= 2;
            resum(bytes + copy * BLOCK_SIZE, 32, 0);
        }
        write_file(path, bytes, size);
        must_refuse(golden, golden->rich.of.directory);
    }
}

// Finds the first record of this kind in the newest log file.
static uint8_t *find_record(struct golden *golden, uint8_t *bytes, size_t size, enum record_kind kind,
        struct record *ret_record, struct record_arrays *arrays)
{
    for (size_t at = 0; at < size; at += BLOCK_SIZE)
        if (record_decode(bytes + at, golden->seed, arrays, ret_record) == 0 && ret_record->kind == kind)
            return bytes + at;
    return NULL;
}

static void change_header(struct golden *golden, unsigned at, unsigned bits)
{
    char path[600];
    size_t size;
    rich_file(&golden->rich, "log", true, path, sizeof path);
    uint8_t *bytes = read_file(path, &size);
    bytes[at] ^= (uint8_t)bits;
    resum(bytes, 8, golden->seed);
    write_file(path, bytes, size);
    must_refuse(golden, strrchr(path, '/'));
}

static void test_newer_records(void **state)
{
    struct golden *golden = *state;
    change_header(golden, 3, '1' ^ '2'); // magic
    change_header(golden, 4, 64);        // kind
    change_header(golden, 6, 1);         // flags
}

static void change_body(struct golden *golden, enum record_kind kind, unsigned at, const char *words)
{
    char path[600];
    size_t size;
    struct record record;
    struct record_arrays *arrays = malloc(sizeof *arrays);
    rich_file(&golden->rich, "log", true, path, sizeof path);
    uint8_t *bytes = read_file(path, &size),
            *header = find_record(golden, bytes, size, kind, &record, arrays);
    assert_non_null(header);
    unsigned sums_at = RECORD_FIXED_BYTES + RECORD_EXTENT_BYTES * record.extent_count;
    if (record.body_blocks == 0) {
        header[sums_at + 8 * record.payload_blocks + at] ^= 2;
    } else {
        header[BLOCK_SIZE + at] ^= 2;
        put_sum(header + sums_at, digest_block(header + BLOCK_SIZE));
    }
    resum(header, 8, golden->seed);
    write_file(path, bytes, size);
    free(arrays);
    must_refuse(golden, words);
}

static void test_newer_bodies(void **state)
{
    struct golden *golden = *state;
    enum { VERSION = 0, MUST = 4, IN_META = 13 };
    change_body(golden, RECORD_IMAGE, VERSION, "image");
    change_body(golden, RECORD_IMAGE, MUST, "image");
    change_body(golden, RECORD_TXN, VERSION, "transaction");
    change_body(golden, RECORD_TXN, MUST, "transaction");
    change_body(golden, RECORD_ROOTS, IN_META + VERSION, "copy of a checkpoint");
    change_body(golden, RECORD_ROOTS, IN_META + MUST, "copy of a checkpoint");
}

static void test_newer_catalog_header(void **state)
{
    struct golden *golden = *state;
    for (unsigned field = 8; field <= 12; field += 4) {
        char path[600];
        size_t size;
        snprintf(path, sizeof path, "%s/catalog/data.mdb", golden->rich.of.directory);
        uint8_t *bytes = read_file(path, &size);
        for (size_t at = 0; at + 48 <= size; at++)
            if (memcmp(bytes + at, "RMETECPT", 8) == 0) {
                bytes[at + field] ^= 2;
                put_sum(bytes + at + 40, digest_bytes(bytes + at, 40, UINT64_C(0x636865636b70)));
            }
        write_file(path, bytes, size);
        must_refuse(golden, "catalog");
    }
}

struct rows {
    struct checkpoint_row row[200];
    size_t count;
};

static int keep_row(void *context, const struct checkpoint_row *row)
{
    struct rows *rows = context;
    assert_true(rows->count < 200);
    uint8_t *value = malloc(row->size + 1);
    memcpy(value, row->value, row->size);
    rows->row[rows->count] = *row;
    rows->row[rows->count++].value = value;
    return 0;
}

static void change_rows(struct golden *golden, unsigned at, uint8_t kind)
{
    char path[600];
    struct checkpoint_db *db;
    struct rows rows = {.count = 0};
    snprintf(path, sizeof path, "%s/catalog", golden->rich.of.directory);
    assert_int_equal(checkpoint_db_open(NULL, path, false, 0, &db, NULL), 0);
    assert_int_equal(checkpoint_db_read(db, keep_row, &rows, NULL), 0);
    assert_int_equal(rows.row[0].kind, CHECKPOINT_META);
    if (kind == 0)
        ((uint8_t *)rows.row[0].value)[at] ^= 2;
    else
        rows.row[rows.count++] = (struct checkpoint_row){kind, 1, rows.row[0].value, 8};
    assert_int_equal(checkpoint_db_commit(db, rows.row, rows.count, NULL), 0);
    checkpoint_db_close(db);
    for (size_t i = 0; i < rows.count - (kind == 0 ? 0 : 1); i++)
        free((void *)rows.row[i].value);
    must_refuse(golden, "of the catalog");
}

static void test_newer_rows(void **state)
{
    struct golden *golden = *state;
    change_rows(golden, 0, 0); // version
    change_rows(golden, 4, 0); // must-know features
    change_rows(golden, 0, CHECKPOINT_DOC + 1);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        static struct rich rich;
        snprintf(rich.of.directory, sizeof rich.of.directory, "%s", argv[2]);
        rich_make(&rich);
        rich_close(&rich);
        write_model(&rich);
        return 0;
    }
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_reads, setup, teardown),
            cmocka_unit_test_setup_teardown(test_newer_superblock, setup, teardown),
            cmocka_unit_test_setup_teardown(test_newer_records, setup, teardown),
            cmocka_unit_test_setup_teardown(test_newer_bodies, setup, teardown),
            cmocka_unit_test_setup_teardown(test_newer_catalog_header, setup, teardown),
            cmocka_unit_test_setup_teardown(test_newer_rows, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
