// SPDX-License-Identifier: Apache-2.0
// Damaged catalogs: whatever was done to the file, it is either refused in words, or everything in it is
// right and commits go on. Never another content, never the state before, and never the end of the process:
// each batch runs in a child, and the number of the damage it is at stands in shared memory.
#include "tests/unit/checkpoint_fixture.h"

#include <sys/mman.h>
#include <sys/wait.h>

// Under a sanitizer every third batch; all of them elsewhere.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BATCHES_STEP = 3 };
#else
enum { BATCHES_STEP = 1 };
#endif
enum { PAGE = 4096, META_BYTES = 152, BATCH = 50, ROWS = 200, SIZE = 150 };

// One catalog for all: state 21, with free pages and the state before in it.
enum { STATE = 21 };
static struct fixture_state now, next;
static struct fixture_bytes whole, older;
static char directory[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX], lock[FIXTURE_PATH_MAX];
static uint8_t *scratch;
static size_t scratch_room;

// Results of a batch, shared with the child that runs it.
static struct shared {
    uint64_t at;
    uint64_t refused, harmless;
    char words[600];
} * shared;

typedef size_t (*damage_function)(uint64_t number); // changes `scratch`, returns its size

static void verdict(uint64_t number, const char *what, const char *words)
{
    snprintf(shared->words, sizeof shared->words, "damage %llu: %s: %s", (unsigned long long)number, what,
            words);
    _exit(1);
}

// In the child.
static void judge(uint64_t number)
{
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    int reader = checkpoint_db_open(NULL, directory, true, 0, &db, &err);
    db = checkpoint_db_close(reader == 0 ? db : NULL);
    int r = checkpoint_db_open(NULL, directory, false, 0, &db, &err);
    if (r != reader)
        verdict(number, "owner and reader do not agree", err.text);
    if (r < 0) {
        if ((r != -EBADMSG && r != -EPROTO) || strstr(err.text, data) == NULL)
            verdict(number, "wrong refusal", err.text);
        shared->refused++;
        return;
    }
    if (fixture_holds(db, &now, &err) != 1)
        verdict(number, "wrong content", err.text);
    for (unsigned i = 0; i < 2; i++) {
        const struct fixture_state *state = i == 0 ? &next : &now;
        if (checkpoint_db_commit(db, state->rows, state->count, &err) < 0)
            verdict(number, "no commit", err.text);
        if (fixture_holds(db, state, &err) != 1)
            verdict(number, "wrong content after a commit", err.text);
    }
    checkpoint_db_close(db);
    shared->harmless++;
}

static void batch_run(damage_function damage, uint64_t from, uint64_t to)
{
    for (uint64_t number = from; number < to; number++) {
        shared->at = number;
        memcpy(scratch, whole.bytes, whole.size);
        memset(scratch + whole.size, 0, scratch_room - whole.size);
        size_t size = damage(number);
        fixture_store(data, scratch, size);
        judge(number);
    }
    _exit(0);
}

static void damages_run(const char *name, damage_function damage, uint64_t count)
{
    memset(shared, 0, sizeof *shared);
    for (uint64_t from = 0; from < count; from += BATCH * BATCHES_STEP) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            batch_run(damage, from, from + BATCH < count ? from + BATCH : count);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status))
            fail_msg("%s: damage %llu ended the process by signal %d", name, (unsigned long long)shared->at,
                    WTERMSIG(status));
        if (status != 0)
            fail_msg("%s: %s", name, shared->words);
    }
    print_message("%s: %llu refused, %llu harmless\n", name, (unsigned long long)shared->refused,
            (unsigned long long)shared->harmless);
}

// The damages

static uint64_t pages(void)
{
    return whole.size / PAGE;
}

static size_t flip_meta_bit(uint64_t number) // every bit of both meta pages
{
    uint64_t bit = number % (META_BYTES * 8);
    scratch[number / (META_BYTES * 8) * PAGE + bit / 8] ^= (uint8_t)(1u << bit % 8);
    return whole.size;
}

static size_t flip_head_bit(uint64_t number) // of the heads and offsets of all other pages
{
    uint64_t random = fixture_mix(number), bit = (random >> 32) % (48 * 8);
    scratch[(2 + random % (pages() - 2)) * PAGE + bit / 8] ^= (uint8_t)(1u << bit % 8);
    return whole.size;
}

static size_t flip_any_bit(uint64_t number)
{
    uint64_t bit = fixture_mix(number ^ 0x1111) % (whole.size * 8);
    scratch[bit / 8] ^= (uint8_t)(1u << bit % 8);
    return whole.size;
}

static size_t random_bytes(uint64_t number) // a few of them, sometimes many
{
    uint64_t random = fixture_mix(number ^ 0x2222), at = random % whole.size;
    uint64_t count = random >> 60 == 0 ? 5000 : 1 + (random >> 40) % 16;
    for (uint64_t i = 0; i < count && at + i < whole.size; i++)
        scratch[at + i] = (uint8_t)fixture_mix(random + i);
    return whole.size;
}

static size_t small_numbers(uint64_t number) // plausible values where page numbers, counts and sizes stand
{
    uint64_t random = fixture_mix(number ^ 0x3333), at = random % (whole.size / 2 - 1) * 2;
    if (random >> 62 == 0)
        at = random % (META_BYTES / 2) * 2 + (random >> 61 & 1) * PAGE;
    scratch[at] = (uint8_t)((random >> 32) % (pages() + 2));
    scratch[at + 1] = (uint8_t)(random >> 50 & 1);
    return whole.size;
}

static size_t move_pages(uint64_t number) // a page stands in another one's place
{
    uint64_t random = fixture_mix(number ^ 0x4444);
    uint64_t from = random % pages(), to = (random >> 32) % pages();
    memcpy(scratch + to * PAGE, whole.bytes + from * PAGE, PAGE);
    if (random >> 63) // with its number made to fit
        memcpy(scratch + to * PAGE, &to, sizeof to);
    return whole.size;
}

static size_t lost_writes(uint64_t number) // sectors or pages as they were some commits ago, or never written
{
    uint64_t random = fixture_mix(number ^ 0x5555), unit = random & 1 ? PAGE : 512;
    for (uint64_t i = 0; i <= (random >> 8) % 3; i++) {
        uint64_t at = fixture_mix(random + i) % (whole.size / unit) * unit;
        if (random & 2 && at + unit <= older.size)
            memcpy(scratch + at, older.bytes + at, unit);
        else
            memset(scratch + at, 0, unit);
    }
    return whole.size;
}

static size_t cut_or_grown(uint64_t number)
{
    uint64_t random = fixture_mix(number ^ 0x6666);
    if (number < pages())
        return number * PAGE; // to no byte, and to every page
    if (random % 4 == 0)
        return whole.size + (random >> 8) % (scratch_room - whole.size); // zeros at the end
    return random % whole.size;
}

static size_t foreign(uint64_t number)
{
    uint64_t random = fixture_mix(number ^ 0x7777), size = number == 0 ? 1 : random % scratch_room;
    for (uint64_t i = 0; i < size; i++)
        scratch[i] = number % 3 == 0   ? (uint8_t)fixture_mix(random + i)
                     : number % 3 == 1 ? "text\n"[i % 5]
                                       : 0xff;
    return size;
}

static void test_meta_bits(void **state)
{
    damages_run("every bit of the meta pages", flip_meta_bit, 2 * META_BYTES * 8);
}

static void test_damages(void **state)
{
    const struct {
        const char *name;
        damage_function damage;
        uint64_t count;
    } damages[] = {
            {"bits in heads of pages", flip_head_bit, 1500},
            {"bits", flip_any_bit, 1000},
            {"random bytes", random_bytes, 1000},
            {"small numbers", small_numbers, 1500},
            {"pages in others' places", move_pages, 600},
            {"lost writes", lost_writes, 600},
            {"cut or grown", cut_or_grown, 200},
            {"something else", foreign, 30},
    };
    for (unsigned i = 0; i < sizeof damages / sizeof damages[0]; i++)
        damages_run(damages[i].name, damages[i].damage, damages[i].count);
}

// Each bit of each row is looked after by a checksum, so that even what LMDB would not mind is found.
static void test_values_are_covered(void **state)
{
    unsigned found = 0;
    for (size_t row = 1; row < now.count; row += 7) {
        if (now.rows[row].size < 24)
            continue;
        memcpy(scratch, whole.bytes, whole.size);
        for (size_t at = 0; at + now.rows[row].size <= whole.size; at++) // in all copies of it
            if (memcmp(whole.bytes + at, now.rows[row].value, now.rows[row].size) == 0)
                scratch[at + row % now.rows[row].size] ^= 0x10;
        fixture_store(data, scratch, whole.size);
        struct checkpoint_db *db;
        struct error err = {0};
        assert_int_equal(checkpoint_db_open(NULL, directory, true, 0, &db, &err), -EBADMSG);
        found++;
    }
    assert_true(found > 5);
}

// The newest state gone, in every way that leaves LMDB content with the one before: never taken for the
// catalog.
static void test_no_way_back(void **state)
{
    uint64_t even, odd;
    memcpy(&even, whole.bytes + 144, sizeof even);
    memcpy(&odd, whole.bytes + PAGE + 144, sizeof odd);
    uint64_t newest = even > odd ? even : odd;
    uint8_t *page = scratch + (newest % 2) * PAGE;
    for (uint64_t back = 2; back <= newest; back += 2) {
        memcpy(scratch, whole.bytes, whole.size);
        uint64_t transaction = newest - back;
        memcpy(page + 144, &transaction, sizeof transaction);
        fixture_store(data, scratch, whole.size);
        fixture_assert_refused(directory, true, -EBADMSG);
        fixture_assert_refused(directory, false, -EBADMSG);
    }
}

static void test_lock_file(void **state)
{
    for (uint64_t number = 0; number < 60; number++) {
        fixture_store(data, whole.bytes, whole.size);
        size_t size = number % 4 == 0 ? 0 : fixture_mix(number) % 20000;
        memset(scratch, number % 4 == 1 ? 0xff : 0, scratch_room);
        for (size_t i = 0; number % 4 > 1 && i < size; i++)
            scratch[i] = (uint8_t)fixture_mix(number * 100000 + i);
        fixture_store(lock, scratch, size);
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            judge(number);
            _exit(shared->harmless > 0 ? 0 : 2);
        }
        memset(shared, 0, sizeof *shared);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0)
            fail_msg("lock file %llu: status %#x %s", (unsigned long long)number, status, shared->words);
    }
}

static void test_newer_header(void **state)
{
    // The header's version stands after "RMETECPT"; only the checksum beside it is wrong then, which is
    // damage.
    memcpy(scratch, whole.bytes, whole.size);
    unsigned found = 0;
    for (size_t at = 0; at + 48 <= whole.size; at++)
        if (memcmp(scratch + at, "RMETECPT", 8) == 0) {
            scratch[at + 8]++;
            found++;
        }
    assert_true(found >= 2);
    fixture_store(data, scratch, whole.size);
    fixture_assert_refused(directory, true, -EBADMSG);
    // LMDB's own version: said by both meta pages it is a newer format, said by one it is damage.
    memcpy(scratch, whole.bytes, whole.size);
    scratch[20] = 2;
    fixture_store(data, scratch, whole.size);
    fixture_assert_refused(directory, false, -EBADMSG);
    scratch[PAGE + 20] = 2;
    fixture_store(data, scratch, whole.size);
    fixture_assert_refused(directory, false, -EPROTO);
}

static int group_setup(void **state)
{
    static char top[] = "test_checkpoint_damage.XXXXXX";
    if (mkdtemp(top) == NULL)
        return -1;
    *state = top;
    fixture_path(directory, top, "catalog");
    fixture_path(data, directory, "data.mdb");
    fixture_path(lock, directory, "lock.mdb");
    struct checkpoint_db *db = fixture_open(directory, false, 0);
    for (uint64_t number = 1; number <= STATE; number++) {
        fixture_make(&now, number, ROWS, SIZE);
        fixture_commit(db, &now);
        if (number == STATE - 4)
            older = fixture_load(data);
    }
    checkpoint_db_close(db);
    whole = fixture_load(data);
    fixture_make(&next, STATE + 1, ROWS, SIZE);
    scratch_room = whole.size + 40000;
    scratch = malloc(scratch_room);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    print_message("a file of %llu pages, %zu rows\n", (unsigned long long)pages(), now.count);
    return scratch == NULL || shared == MAP_FAILED;
}

static int group_teardown(void **state)
{
    char command[FIXTURE_PATH_MAX];
    snprintf(command, sizeof command, "rm -rf %s", (char *)*state);
    free(whole.bytes);
    free(older.bytes);
    free(scratch);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_meta_bits),
            cmocka_unit_test(test_damages),
            cmocka_unit_test(test_values_are_covered),
            cmocka_unit_test(test_no_way_back),
            cmocka_unit_test(test_newer_header),
            cmocka_unit_test(test_lock_file),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
