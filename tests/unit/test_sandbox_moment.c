// SPDX-License-Identifier: Apache-2.0
// A06: deadlines follow what nobody can set, and the wall clock only across reboots of the host.
#include "vmglue/sandbox_moment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t S = UINT64_C(1000000000), WALL = UINT64_C(1800000000) * UINT64_C(1000000000);

static struct sandbox_moment moment(const char *boot, uint64_t boot_s, int64_t wall_s)
{
    struct sandbox_moment at = {.boot_ns = boot_s * S, .wall_ns = WALL + (uint64_t)(wall_s * (int64_t)S)};
    strcpy(at.boot_id, boot);
    return at;
}

static uint64_t elapsed_s(struct sandbox_moment from, struct sandbox_moment now)
{
    return sandbox_moment_elapsed_ns(&from, &now) / S;
}

static void test_a_set_clock_moves_no_deadline(void **state)
{
    struct sandbox_moment from = moment("one", 100, 0);
    assert_int_equal(elapsed_s(from, moment("one", 160, 60)), 60);
    assert_int_equal(elapsed_s(from, moment("one", 160, 60 + 7200)), 60);
    assert_int_equal(elapsed_s(from, moment("one", 160, 60 - 7200)), 60);
}

static void test_across_reboots_the_wall_clock_counts(void **state)
{
    struct sandbox_moment from = moment("one", 90000, 0);
    assert_int_equal(elapsed_s(from, moment("two", 5, 600)), 600);
    assert_int_equal(elapsed_s(from, moment("two", 5, -600)), 0); // set back: never negative
}

static void test_never_has_not_begun(void **state)
{
    struct sandbox_moment never = {0};
    assert_int_equal(elapsed_s(never, moment("one", 160, 60)), 0);
}

static void test_steps_are_seen(void **state)
{
    struct sandbox_moment from = moment("one", 100, 0), now = moment("one", 160, 60);
    assert_int_equal(sandbox_moment_wall_step_ns(&from, &now), 0);
    now = moment("one", 160, 60 + 299); // a clock that is being put right
    assert_int_equal(sandbox_moment_wall_step_ns(&from, &now), 0);
    now = moment("one", 160, 60 + 7200);
    assert_int_equal(sandbox_moment_wall_step_ns(&from, &now) / (int64_t)S, 7200);
    now = moment("one", 160, 60 - 7200);
    assert_int_equal(sandbox_moment_wall_step_ns(&from, &now) / (int64_t)S, -7200);
    now = moment("two", 160, 60 + 7200);
    assert_int_equal(sandbox_moment_wall_step_ns(&from, &now), 0);
}

static void test_people_see_the_new_time(void **state)
{
    struct sandbox_moment from = moment("one", 100, 0), now = moment("one", 160, 60);
    assert_int_equal((sandbox_moment_wall_after_ns(&from, 3600000, &now) - WALL) / S, 3600);
    now = moment("one", 160, 60 + 7200);
    assert_int_equal((sandbox_moment_wall_after_ns(&from, 3600000, &now) - WALL) / S, 3600 + 7200);
}

static void test_now(void **state)
{
    struct sandbox_moment a = sandbox_moment_now(), b = sandbox_moment_now();
    assert_true(a.boot_id[0] != '\0');
    assert_string_equal(a.boot_id, b.boot_id);
    assert_true(b.boot_ns >= a.boot_ns && a.wall_ns > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_a_set_clock_moves_no_deadline),
            cmocka_unit_test(test_across_reboots_the_wall_clock_counts),
            cmocka_unit_test(test_never_has_not_begun),
            cmocka_unit_test(test_steps_are_seen),
            cmocka_unit_test(test_people_see_the_new_time),
            cmocka_unit_test(test_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
