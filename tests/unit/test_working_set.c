// SPDX-License-Identifier: Apache-2.0
// The bytes of a working set, its bounds, and its life in a store beside its snapshot.
#include "tests/unit/collect_fixture.h"

#include "snapshot/working_set.h"

enum { PAGE = WORKING_SET_PAGE_BYTES, IMAGE_PAGES = 100000 };
static const uint64_t IMAGE_BYTES = (uint64_t)IMAGE_PAGES * PAGE;
static struct error err;

static struct working_set make(void)
{
    struct working_set set;
    assert_int_equal(working_set_init(&set, IMAGE_BYTES), 0);
    assert_true(working_set_add(&set, 3 * PAGE, 2 * PAGE));
    assert_true(working_set_add(&set, 5 * PAGE, PAGE)); // joins
    assert_true(working_set_add(&set, 7 * PAGE, PAGE));
    assert_true(working_set_add(&set, IMAGE_BYTES - PAGE, PAGE));
    return set;
}

static void test_ranges_come_back(void **state)
{
    struct working_set set = make(), again;
    uint8_t *bytes;
    size_t size;
    assert_int_equal(set.count, 3);
    assert_int_equal(set.pages, 5);
    assert_int_equal(working_set_encode(&set, &bytes, &size), 0);
    assert_int_equal(size, WORKING_SET_HEADER_BYTES + 3 * 8);
    assert_memory_equal(bytes, "RAMETWS1\1\0\0\0\3\0\0\0", 16);
    assert_memory_equal(bytes + WORKING_SET_HEADER_BYTES, "\3\0\0\0\3\0\0\0\7\0\0\0\1\0\0\0", 16);
    assert_int_equal(working_set_decode(bytes, size, IMAGE_BYTES, &again, &err), 0);
    assert_int_equal(again.count, set.count);
    assert_int_equal(again.pages, set.pages);
    assert_memory_equal(again.ranges, set.ranges, set.count * sizeof *set.ranges);
    free(bytes);
    working_set_free(&set);
    working_set_free(&again);
}

static void test_what_does_not_fit_is_left_out(void **state)
{
    struct working_set set;
    assert_int_equal(working_set_init(&set, 4095), -EINVAL);
    assert_int_equal(working_set_init(&set, 0), -EINVAL);
    assert_int_equal(working_set_init(&set, IMAGE_BYTES), 0);
    assert_false(working_set_add(&set, IMAGE_BYTES, PAGE));
    assert_false(working_set_add(&set, IMAGE_BYTES - PAGE, 2 * PAGE));
    assert_false(working_set_add(&set, 1, PAGE));
    assert_false(working_set_add(&set, 0, 0));
    assert_true(working_set_add(&set, 10 * PAGE, PAGE));
    assert_false(working_set_add(&set, 9 * PAGE, PAGE)); // not in order
    assert_false(set.full);
    assert_false(working_set_add(&set, 11 * PAGE, (uint64_t)WORKING_SET_PAGES_MAX * PAGE));
    assert_true(set.full);
    working_set_free(&set);
    assert_int_equal(working_set_init(&set, IMAGE_BYTES), 0);
    for (unsigned i = 0; i < WORKING_SET_RANGES_MAX; i++)
        assert_true(working_set_add(&set, 2ull * i * PAGE, PAGE));
    assert_false(working_set_add(&set, 2ull * WORKING_SET_RANGES_MAX * PAGE, PAGE));
    assert_true(set.full);
    assert_true(
            working_set_add(&set, (2ull * WORKING_SET_RANGES_MAX - 1) * PAGE, PAGE)); // but the last may grow
    working_set_free(&set);
}

static void test_damage_is_told(void **state)
{
    struct working_set set = make(), again;
    uint8_t *bytes;
    size_t size;
    assert_int_equal(working_set_encode(&set, &bytes, &size), 0);
    for (size_t i = 0; i < size; i++) {
        for (unsigned bit = 0; bit < 8; bit += 7) {
            bytes[i] ^= (uint8_t)(1 << bit);
            int result = working_set_decode(bytes, size, IMAGE_BYTES, &again, &err);
            assert_true(result == -EBADMSG || (result == -EPROTO && i >= 8 && i < 12));
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(working_set_decode(bytes, cut, IMAGE_BYTES, &again, &err), -EBADMSG);
    assert_int_equal(working_set_decode(bytes, size, IMAGE_BYTES + PAGE, &again, &err), -EBADMSG);
    // Sums that fit are not enough: two ranges the wrong way round.
    struct working_set_range swapped = set.ranges[0];
    set.ranges[0] = set.ranges[1];
    set.ranges[1] = swapped;
    free(bytes);
    assert_int_equal(working_set_encode(&set, &bytes, &size), 0);
    assert_int_equal(working_set_decode(bytes, size, IMAGE_BYTES, &again, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "not in order"));
    free(bytes);
    working_set_free(&set);
}

static struct doc_id put_machine(struct store_fixture *f, const char *name)
{
    struct doc doc = {.kind = DOC_MACHINE, .body = (char *)"{}", .body_bytes = 2};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    struct txn *txn = txn_begin(f->store);
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
    return id;
}

static void delete_machine(struct store_fixture *f, struct doc_id id, bool with_set)
{
    struct txn *txn = txn_begin(f->store);
    txn_doc_delete(txn, id);
    if (with_set)
        working_set_delete(f->store, txn, id);
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
}

static void test_lives_with_its_snapshot(void **state)
{
    struct store_config config = {.log_file_bytes = 1 << 20, .log_budget_bytes = 12 << 20};
    struct store_fixture *f = fixture_new("", &config);
    struct working_set set = make(), again;
    unsigned removed = 7;
    struct doc_id a = put_machine(f, "a"), b = put_machine(f, "b");
    assert_int_equal(working_set_load(f->store, a, IMAGE_BYTES, &again, &err), -ENOENT);
    assert_int_equal(working_set_save(f->store, (struct doc_id){4711}, &set, &err), -ENOENT);
    assert_int_equal(working_set_save(f->store, a, &set, &err), 0);
    assert_int_equal(working_set_save(f->store, a, &set, &err), -EEXIST);
    assert_int_equal(working_set_save(f->store, b, &set, &err), 0);
    store_fixture_reopen(f);
    assert_true(working_set_exists(f->store, a));
    assert_int_equal(working_set_load(f->store, a, IMAGE_BYTES, &again, &err), 0);
    assert_int_equal(again.pages, 5);
    working_set_free(&again);
    assert_int_equal(store_seal(f->store, &err), 0);
    assert_int_equal(working_set_load(f->store, a, IMAGE_BYTES, &again, &err), 0);
    working_set_free(&again);
    delete_machine(f, a, true);
    assert_false(working_set_exists(f->store, a));
    delete_machine(f, b, false); // as when the set was saved while its snapshot went
    assert_true(working_set_exists(f->store, b));
    assert_int_equal(working_set_clean_up(f->store, &removed, &err), 0);
    assert_int_equal(removed, 1);
    assert_false(working_set_exists(f->store, b));
    assert_int_equal(working_set_clean_up(f->store, &removed, &err), 0);
    assert_int_equal(removed, 0);
    working_set_free(&set);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_ranges_come_back),
            cmocka_unit_test(test_what_does_not_fit_is_left_out),
            cmocka_unit_test(test_damage_is_told),
            cmocka_unit_test(test_lives_with_its_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
