// SPDX-License-Identifier: Apache-2.0
// Dirty tracking: what a scan finds, case by case, with private memory of an image and with anonymous memory.
#include "tests/unit/dirty_subject.h"

static void test_only_private_pages_at_first(void **state)
{
    struct fixture *fixture = *state;
    uint64_t first = 0;
    tell(&fixture->subject, READ_PAGE, 1000, 500, 0);
    tell(&fixture->subject, WRITE_PAGE, 5000, 10, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_true(dirty_pages_tracks(fixture->pages));
    dirty_pages_round_all_uncommitted(fixture->pages);
    if (fixture->image_fd >= 0) {
        // Neither clean pages of the image nor pages never touched.
        assert_int_equal(dirty_pages_round_count(fixture->pages), 10);
        assert_int_equal(copy_round(fixture->pages, &first), 10);
        assert_int_equal(first, 5000);
    } else {
        // The kernel's zero page under pages that were read may count: it is zero. Pages never touched do
        // not.
        assert_in_range(dirty_pages_round_count(fixture->pages), 10, 510);
        copy_round(fixture->pages, NULL);
    }
    assert_same_as(&fixture->subject);
}

static void test_exact_after_commit(void **state)
{
    struct fixture *fixture = *state;
    uint64_t first = 0;
    tell(&fixture->subject, WRITE_PAGE, 0, 3000, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_int_equal(snapshot(fixture->pages, NULL), 3000);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    tell(&fixture->subject, WRITE_PAGE, 77, 1, 2); // written again
    assert_int_equal(snapshot(fixture->pages, &first), 1);
    assert_int_equal(first, 77);
    tell(&fixture->subject, WRITE_PAGE, 7000, 5, 3); // first touch
    assert_int_equal(snapshot(fixture->pages, &first), 5);
    assert_int_equal(first, 7000);
    tell(&fixture->subject, READ_PAGE, 6000, 100, 0); // read, then written
    tell(&fixture->subject, WRITE_PAGE, 6050, 1, 3);
    uint64_t count = snapshot(fixture->pages, &first);
    assert_true(fixture->image_fd < 0 ? count >= 1 && count <= 100 : count == 1 && first == 6050);
    tell(&fixture->subject, READ_PAGE, 0, 3000, 0);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    assert_same_as(&fixture->subject);
}

static void test_kernel_writes(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 64, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, KERNEL_WRITE, 32, 64, 9); // half of it protected, half never touched
    assert_int_equal(snapshot(fixture->pages, NULL), 64);
    assert_same_as(&fixture->subject);
}

static void test_every_other_page(void **state)
{
    // More pieces than one vector of the scan, of the copy, or of the caller holds.
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    for (uint64_t page = 1; page < RAM_PAGES; page += 2)
        tell(&fixture->subject, WRITE_PAGE, page, 1, (unsigned)page);
    assert_int_equal(snapshot(fixture->pages, NULL), RAM_PAGES / 2);
    assert_same_and_absorb(fixture);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
}

static void test_failed_snapshot_keeps_the_set(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 100, 50, 1);
    must(dirty_pages_scan(fixture->pages, &err));
    uint64_t blocks[20];
    bool zero[20];
    unsigned char buffer[20 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 20, &err), 20);
    // ... and the store had no room. Later:
    tell(&fixture->subject, WRITE_PAGE, 4000, 1, 1);
    assert_int_equal(snapshot(fixture->pages, NULL), 51);
    assert_same_as(&fixture->subject);
}

static void test_commit_keeps_what_was_not_copied(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 10, 5, 1);
    must(dirty_pages_scan(fixture->pages, &err));
    copy_round(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 900, 7, 1);
    must(dirty_pages_scan(fixture->pages, &err)); // the next snapshot's, while this one is being committed
    dirty_pages_committed(fixture->pages);
    assert_int_equal(dirty_pages_uncommitted_count(fixture->pages), 7);
    assert_int_equal(snapshot(fixture->pages, NULL), 7);
    assert_same_as(&fixture->subject);
}

static void test_discarded_then_written(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, DISCARD, 0, 100, 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    assert_same_as(&fixture->subject);
}

static void test_zero_pages(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 20, 2, 1);
    tell(&fixture->subject, ZERO_PAGE, 21, 1, 0);
    must(dirty_pages_scan(fixture->pages, &err));
    uint64_t blocks[4];
    bool zero[4];
    unsigned char buffer[4 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 4, &err), 2);
    assert_int_equal(blocks[0], 20);
    assert_false(zero[0]);
    assert_true(zero[1]);
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 4, &err), 0);
}

static void test_swapped(void **state)
{
    struct fixture *fixture = *state;
    FILE *swaps = fopen("/proc/swaps", "r");
    char line[256];
    bool any = swaps != NULL && fgets(line, sizeof line, swaps) != NULL &&
               fgets(line, sizeof line, swaps) != NULL;
    if (swaps != NULL)
        fclose(swaps);
    if (!any) {
        print_message("skipped: this machine has no swap space\n");
        skip();
    }
    tell(&fixture->subject, WRITE_PAGE, 0, 300, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, PAGE_OUT, 0, 300, 0); // protected, then out
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 2); // out, then written
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    tell(&fixture->subject, WRITE_PAGE, 100, 100, 3); // written, then out
    tell(&fixture->subject, PAGE_OUT, 0, 300, 0);
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    tell(&fixture->subject, READ_PAGE, 0, 300, 0); // in again
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    assert_same_as(&fixture->subject);
}

int main(void)
{
    if (!can_track()) {
        printf("skipped: this kernel does not track writes asynchronously (Linux 6.7 and later do)\n");
        return 77;
    }
#define both(name)                                                                                           \
    cmocka_unit_test_setup_teardown(name, setup_image, teardown),                                            \
            cmocka_unit_test_setup_teardown(name, setup_anonymous, teardown)
    const struct CMUnitTest tests[] = {
            both(test_only_private_pages_at_first),
            both(test_exact_after_commit),
            both(test_kernel_writes),
            both(test_every_other_page),
            both(test_failed_snapshot_keeps_the_set),
            both(test_commit_keeps_what_was_not_copied),
            both(test_discarded_then_written),
            both(test_zero_pages),
            both(test_swapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
