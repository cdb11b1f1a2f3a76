// SPDX-License-Identifier: Apache-2.0
// D01, the way out of a full store, by quota and on a full file system; and figures that add up to what du
// says.
#include "tests/unit/collect_fixture.h"

#include "snapshot/checkpoint.h"

#include <fcntl.h>
#include <sys/mount.h>
#undef BLOCK_SIZE // it has another one

enum { VOLUME_BLOCKS = 2048, VOLUMES = 24, PIECE = 64, RESTS_MAX = 600, REST_US = 100 * 1000 };

struct filled {
    struct volume *volumes[VOLUMES];
    uint64_t written[VOLUMES]; // blocks; block i of volume v has number 1 + v * VOLUME_BLOCKS + i
    unsigned count;
};

static int write_piece(struct store_fixture *f, struct filled *filled, unsigned v)
{
    uint64_t numbers[PIECE];
    for (unsigned i = 0; i < PIECE; i++)
        numbers[i] = 1 + v * VOLUME_BLOCKS + filled->written[v] + i;
    int r = fixture_write(filled->volumes[v], filled->written[v], numbers, PIECE);
    filled->written[v] += r == 0 ? PIECE : 0;
    return r;
}

// Until the store refuses; the answer.
static int write_until_full(struct store_fixture *f, struct filled *filled)
{
    for (unsigned v = 0; v < filled->count; v++)
        while (filled->written[v] < VOLUME_BLOCKS) {
            int r = write_piece(f, filled, v);
            if (r < 0)
                return r;
        }
    return 0;
}

static void make_volumes(struct store_fixture *f, struct filled *filled)
{
    for (; filled->count < VOLUMES; filled->count++) {
        char name[16];
        snprintf(name, sizeof name, "v%u", filled->count);
        filled->volumes[filled->count] = fixture_volume(f, name, VOLUME_BLOCKS);
    }
}

static void expect_all(struct filled *filled)
{
    uint8_t *bytes = io_buffer_alloc(PIECE * BLOCK_SIZE);
    for (unsigned v = 0; v < filled->count; v++)
        for (uint64_t at = 0; filled->volumes[v] != NULL && at < filled->written[v]; at += PIECE) {
            uint64_t numbers[PIECE];
            for (unsigned i = 0; i < PIECE; i++)
                numbers[i] = 1 + v * VOLUME_BLOCKS + at + i;
            assert_int_equal(
                    volume_read_wait(filled->volumes[v], at * BLOCK_SIZE, bytes, PIECE * BLOCK_SIZE), 0);
            assert_int_equal(fixture_differs(bytes, numbers, PIECE), -1);
        }
    io_buffer_free(bytes);
}

static void close_volumes(struct filled *filled)
{
    for (unsigned v = 0; v < filled->count; v++)
        filled->volumes[v] = volume_close(filled->volumes[v]);
}

static void open_volumes(struct store_fixture *f, struct filled *filled)
{
    for (unsigned v = 0; v < filled->count; v++) {
        char name[16];
        struct volume_info info;
        snprintf(name, sizeof name, "v%u", v);
        if (store_volume_find(f->store, name, &info) == 0)
            assert_int_equal(volume_open(f->store, info.id, &filled->volumes[v]), 0);
    }
}

static void delete_one(struct store_fixture *f, struct filled *filled, unsigned v)
{
    fixture_delete_volume(f, filled->volumes[v]);
    filled->volumes[v] = NULL;
    filled->written[v] = VOLUME_BLOCKS; // nothing more is written there
}

// Room is there again: it may be seen with the first try that fails.
static void expect_room(struct store_fixture *f, struct filled *filled, unsigned v)
{
    int r = write_piece(f, filled, v);
    for (unsigned i = 0; i < RESTS_MAX && r == -ENOSPC; i++) {
        usleep(REST_US); // the store asks the file system again in its own time
        r = write_piece(f, filled, v);
    }
    assert_int_equal(r, 0);
}

static unsigned last_with_room(const struct filled *filled)
{
    for (unsigned v = VOLUMES; v-- > 0;)
        if (filled->volumes[v] != NULL && filled->written[v] < VOLUME_BLOCKS)
            return v;
    fail_msg("the store never became full");
    return 0;
}

// ---- Trims of a full store ----

enum { TRIMS = 16, TRIMS_MAX = 2000, SINGLES_MAX = 1 << 16 };

// Block by block, so that nothing is left which only a large write could not have.
static int write_singles_until_full(struct volume *volume)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < SINGLES_MAX; i++) {
        uint64_t number = 1 + i;
        r = fixture_write(volume, i % VOLUME_BLOCKS, &number, 1);
    }
    return r;
}

static int trim_some(struct volume *volume, unsigned i, unsigned flags)
{
    uint64_t block = i % (VOLUME_BLOCKS / PIECE) * PIECE;
    return volume_zero_wait(volume, block * BLOCK_SIZE, PIECE * BLOCK_SIZE, true, flags);
}

// A guest that deletes files: each of its trims must find room, in whatever place the log stands.
static void expect_trims(struct volume *volume)
{
    for (unsigned i = 0; i < TRIMS; i++)
        assert_int_equal(trim_some(volume, i, i % 4 == 3 ? VOLUME_FUA : 0), 0);
}

// They must not take what deletions need.
static void trim_until_refused(struct volume *volume)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < TRIMS_MAX; i++)
        r = trim_some(volume, i, 0);
    if (r != 0)
        assert_int_equal(r, -ENOSPC);
}

static void D01_out_of_a_full_quota(void **state)
{
    const struct store_config config = {.log_file_bytes = 1 << 20,
            .log_budget_bytes = 16 << 20,
            .quota_bytes = 64 << 20,
            .spare_log_files = 1};
    struct store_fixture *f = fixture_new("", &config);
    struct filled *filled = calloc(1, sizeof *filled);
    struct volume *singles = fixture_volume(f, "singles", VOLUME_BLOCKS);
    make_volumes(f, filled);
    assert_int_equal(write_until_full(f, filled), -ENOSPC);
    assert_int_equal(write_singles_until_full(singles), -ENOSPC);
    struct store_stat stat = fixture_stat(f);
    assert_int_equal(stat.failed, 0);
    assert_true(stat.physical_bytes <= (UINT64_C(68) << 20)); // the quota, the reserve, the catalog
    assert_true(stat.physical_bytes >= (UINT64_C(48) << 20));
    expect_all(filled);
    unsigned v = last_with_room(filled);
    for (unsigned i = 0; i < TRIMS_MAX; i++) // a checkpoint works here, and makes room for them
        assert_int_equal(trim_some(singles, i, 0), 0);
    delete_one(f, filled, 0);
    delete_one(f, filled, 1);
    volume_close(singles);
    fixture_collect(f, 0);
    expect_room(f, filled, v);
    expect_all(filled);
    close_volumes(filled);
    store_fixture_reopen(f);
    open_volumes(f, filled);
    expect_all(filled);
    close_volumes(filled);
    free(filled);
    fixture_free(f);
}

// Writers find room again by deletions alone: the store collects of itself.
static void space_comes_back_by_itself(void **state)
{
    const struct store_config config = {
            .log_file_bytes = 1 << 20, .log_budget_bytes = 16 << 20, .quota_bytes = 64 << 20};
    struct store_fixture *f = fixture_new("", &config);
    struct filled *filled = calloc(1, sizeof *filled);
    make_volumes(f, filled);
    assert_int_equal(write_until_full(f, filled), -ENOSPC);
    unsigned v = last_with_room(filled);
    for (unsigned i = 0; i < 4; i++)
        delete_one(f, filled, i);
    for (int i = 0; i < 20; i++)
        expect_room(f, filled, v);
    expect_all(filled);
    close_volumes(filled);
    free(filled);
    fixture_free(f);
}

static uint64_t du(const char *directory)
{
    char command[300];
    unsigned long long kib = 0;
    snprintf(command, sizeof command, "du -s --block-size=1024 %s", directory);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%llu", &kib), 1);
    pclose(pipe);
    return kib * 1024;
}

static bool is_near(uint64_t bytes, uint64_t real)
{
    return bytes * 100 >= real * 99 && bytes * 99 <= real * 100;
}

static bool figures_agree(struct store_fixture *f)
{
    struct store_stat stat = fixture_stat(f);
    uint64_t sum = stat.log_used_bytes + stat.log_spare_bytes + stat.segment_bytes + stat.leaving_bytes +
                   stat.catalog_bytes + stat.other_bytes;
    uint64_t real = du(f->directory);
    return is_near(stat.physical_bytes, real) && is_near(sum, real);
}

// A spare file of the log that is being written is seen by du before the log counts it: the figures are those
// of a store at rest.
static void figures_add_up_to_what_du_says(void **state)
{
    const struct store_config config = {
            .log_file_bytes = 1 << 20, .log_budget_bytes = 32 << 20, .seal_log_bytes = 1 << 30};
    struct store_fixture *f = fixture_new("", &config);
    struct filled *filled = calloc(1, sizeof *filled);
    make_volumes(f, filled);
    for (unsigned i = 0; i < 3 * VOLUME_BLOCKS / PIECE; i++)
        assert_int_equal(write_piece(f, filled, i / (VOLUME_BLOCKS / PIECE)), 0);
    fixture_collect(f, 0);
    for (unsigned tries = 0; !figures_agree(f); tries++) {
        assert_true(tries < RESTS_MAX);
        usleep(REST_US);
    }
    close_volumes(filled);
    free(filled);
    fixture_free(f);
}

// ---- A file system of its own ----

static char mounted[64];

static int unmount(void **state)
{
    if (mounted[0] != 0) {
        umount2(mounted, MNT_DETACH);
        rmdir(mounted);
        mounted[0] = 0;
    }
    return 0;
}

static void mount_small(const char *size)
{
    char options[64];
    strcpy(mounted, "mounted.XXXXXX");
    assert_non_null(mkdtemp(mounted));
    snprintf(options, sizeof options, "size=%s", size);
    if (mount("tmpfs", mounted, "tmpfs", 0, options) < 0) {
        int failed = errno;
        rmdir(mounted);
        mounted[0] = 0;
        printf("a small file system cannot be mounted here (%s): D01 on a full file system is not tested\n",
                strerror(failed));
        skip();
    }
}

// All that is left; the file.
static void fill_from_outside(char path[96])
{
    uint8_t bytes[4096];
    memset(bytes, 7, sizeof bytes);
    snprintf(path, 96, "%s/outside", mounted);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    while (write(fd, bytes, sizeof bytes) > 0)
        ;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

// By the reserve: whether a full store has room for one more snapshot is not what is tried here.
static struct doc_id snapshot_by_reserve(struct store_fixture *f, struct volume_id id)
{
    struct txn *txn = txn_begin(f->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .name = "s", .body = "{}", .body_bytes = 2, .base_count = 1};
    doc.bases[0] = txn_freeze(txn, id);
    struct doc_id doc_id = txn_doc_put(txn, &doc, NULL, 0);
    fixture_commit(txn, TXN_RESERVE);
    return doc_id;
}

static void D01_out_of_a_full_file_system(void **state)
{
    const struct store_config config = {.log_file_bytes = 1 << 20,
            .log_budget_bytes = 16 << 20,
            .reserve_bytes = 24 << 20}; // all that the log holds
    mount_small("140m");
    struct store_fixture *f = fixture_new(mounted, &config);
    struct filled *filled = calloc(1, sizeof *filled);
    struct volume *singles = fixture_volume(f, "singles", VOLUME_BLOCKS);
    char outside[96];
    make_volumes(f, filled);
    assert_int_equal(write_until_full(f, filled), -ENOSPC); // 1: guests first
    assert_int_equal(write_singles_until_full(singles), -ENOSPC);
    unsigned v = last_with_room(filled);
    assert_int_equal(fixture_stat(f).failed, 0);
    struct doc_id doc = snapshot_by_reserve(f, volume_get_id(filled->volumes[0]));
    fill_from_outside(outside);
    assert_int_equal(write_until_full(f, filled), -ENOSPC);
    assert_int_equal(write_singles_until_full(singles), -ENOSPC);
    expect_trims(singles); // 2: each of these must work now
    trim_until_refused(singles);
    fixture_delete_doc(f, doc);
    singles = volume_close(singles);
    close_volumes(filled);
    store_fixture_reopen(f); // with not a byte free
    open_volumes(f, filled);
    expect_all(filled);
    delete_one(f, filled, 0);
    delete_one(f, filled, 1);
    delete_one(f, filled, 2);
    fixture_collect(f, 0); // a store without room may have done some of it by itself
    assert_true(fixture_stat(f).segment_slots_dead <= 3 * VOLUME_BLOCKS / 2);
    expect_room(f, filled, v); // what was deleted is room, without a restart
    expect_all(filled);
    assert_int_equal(write_until_full(f, filled), -ENOSPC);
    assert_int_equal(unlink(outside), 0); // 3
    v = last_with_room(filled);
    expect_room(f, filled, v);
    expect_all(filled);
    assert_int_equal(fixture_stat(f).failed, 0);
    close_volumes(filled);
    free(filled);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(D01_out_of_a_full_quota),
            cmocka_unit_test(space_comes_back_by_itself),
            cmocka_unit_test(figures_add_up_to_what_du_says),
            cmocka_unit_test_teardown(D01_out_of_a_full_file_system, unmount),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
