// SPDX-License-Identifier: Apache-2.0
// A02 without sockets: exactly what is missing, or one gap; also when the ring overtakes a slow reader.
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_events.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { HANG_MS = 60000, WRITERS = 4, EACH = 3000 };

static void add(struct sandbox_events *events, const char *sandbox, int number)
{
    sandbox_events_add(events, sandbox, "state", json_pack("{s:i}", "number", number));
}

// The next event's number, -1 a gap, -2 none.
static int next(struct sandbox_events *events, struct sandbox_events_cursor *cursor, const char *sandbox,
        unsigned wait_ms, char *ret_id)
{
    struct sandbox_event event;
    if (sandbox_events_next(events, cursor, sandbox, wait_ms, &event) == 0)
        return -2;
    int number = strcmp(event.type, "gap") == 0 ? -1 : (int)json_fields_get_int(event.data, "number");
    if (ret_id != NULL)
        strcpy(ret_id, event.id);
    json_decref(event.data);
    return number;
}

static void test_what_is_missing(void **state)
{
    struct sandbox_events *events = sandbox_events_create();
    char ids[4][SANDBOX_EVENT_ID_SIZE];
    for (int i = 0; i < 4; i++)
        add(events, i % 2 == 0 ? "sbx_a" : "sbx_b", i);
    struct sandbox_events_cursor cursor = sandbox_events_begin(events, NULL, false);
    for (int i = 0; i < 4; i++)
        assert_int_equal(next(events, &cursor, NULL, 0, ids[i]), i);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -2);
    cursor = sandbox_events_begin(events, NULL, true);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -2);
    cursor = sandbox_events_begin(events, ids[1], true);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), 2);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), 3);
    cursor = sandbox_events_begin(events, ids[1], true); // an id of another one's stream
    assert_int_equal(next(events, &cursor, "sbx_a", 0, NULL), 2);
    assert_int_equal(next(events, &cursor, "sbx_a", 0, NULL), -2);
    cursor = sandbox_events_begin(events, ids[3], true);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -2);
    sandbox_events_destroy(events);
}

static void test_gaps(void **state)
{
    struct sandbox_events *events = sandbox_events_create(), *other = sandbox_events_create();
    char id[SANDBOX_EVENT_ID_SIZE], text[64];
    add(events, "sbx_a", 0);
    add(other, "sbx_a", 0);
    struct sandbox_events_cursor cursor = sandbox_events_begin(other, NULL, false);
    next(other, &cursor, NULL, 0, id);
    static const char *const bad[] = {"", "x", "-1", "00000000-1", "1-1-1", NULL};
    for (size_t i = 0; bad[i] != NULL; i++) {
        cursor = sandbox_events_begin(events, bad[i], true);
        assert_int_equal(next(events, &cursor, NULL, 0, NULL), -1);
        assert_int_equal(next(events, &cursor, NULL, 0, NULL), 0);
        assert_int_equal(next(events, &cursor, NULL, 0, NULL), -2);
    }
    cursor = sandbox_events_begin(events, id, true); // another daemon's
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -1);
    cursor = sandbox_events_begin(events, NULL, false);
    next(events, &cursor, NULL, 0, id);
    snprintf(text, sizeof text, "%s9", id); // of the future
    cursor = sandbox_events_begin(events, text, true);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -1);
    for (int i = 1; i <= SANDBOX_EVENTS_KEPT; i++)
        add(events, "sbx_a", i);
    cursor = sandbox_events_begin(events, id, true); // the one after it is the oldest that is kept
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), 1);
    add(events, "sbx_a", SANDBOX_EVENTS_KEPT + 1);
    cursor = sandbox_events_begin(events, id, true); // and now it is gone
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), -1);
    assert_int_equal(next(events, &cursor, NULL, 0, NULL), 2);
    sandbox_events_destroy(events);
    sandbox_events_destroy(other);
}

static void *write_many(void *context)
{
    for (int i = 0; i < EACH; i++)
        add(context, "sbx_a", i);
    return NULL;
}

// A reader that keeps up with four writers, or is told where it did not.
static void test_threads(void **state)
{
    struct sandbox_events *events = sandbox_events_create();
    struct sandbox_events_cursor cursor = sandbox_events_begin(events, NULL, true);
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, events), 0);
    int seen = 0, gaps = 0;
    uint64_t last = 0;
    while (last < WRITERS * EACH) {
        int number = next(events, &cursor, NULL, HANG_MS, NULL);
        assert_int_not_equal(number, -2);
        assert_true(cursor.next > last || number == -1);
        gaps += number == -1;
        seen += number >= 0;
        last = cursor.next - 1;
    }
    assert_true(seen == WRITERS * EACH || (gaps > 0 && seen < WRITERS * EACH));
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    sandbox_events_destroy(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_what_is_missing),
            cmocka_unit_test(test_gaps),
            cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
