// SPDX-License-Identifier: Apache-2.0
// Requests that are sent again, in a real store: first, again, other contents, at once, after a restart, too
// late, too many.
#define FIXTURE_FILE_BYTES (8 << 20) // room for as many docs
#include "tests/unit/archive_fixture.h"

#include "vmglue/idempotency.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8 };

static uint64_t test_wall_ns = UINT64_C(1000000000) * 1000000000;

static uint64_t wall_ns(void)
{
    return test_wall_ns;
}

static struct idempotency *start(struct store_fixture *side)
{
    struct idempotency_config config = {.store = side->store, .wall_ns = wall_ns};
    struct idempotency *all;
    struct error err;
    assert_int_equal(idempotency_start(&config, &all, &err), 0);
    return all;
}

static struct idempotency_request ask_for(const char *caller, const char *key, const char *contents)
{
    struct idempotency_request request = {.caller = caller,
            .route = "POST /v1/things",
            .contents = sha256_of(contents, strlen(contents)),
            .count = 3};
    idempotency_tag(caller, key, request.tag);
    return request;
}

static enum idempotency_verdict begin(
        struct idempotency *all, const struct idempotency_request *request, char **ret_answer)
{
    int status = 0;
    struct error err;
    enum idempotency_verdict verdict = idempotency_begin(all, request, NULL, NULL, &status, ret_answer, &err);
    if (verdict == IDEMPOTENCY_REPLAY)
        assert_int_equal(status, 201);
    if (verdict == IDEMPOTENCY_FAILED)
        fail_msg("%s", err.text);
    return verdict;
}

static void expect_answer(
        struct idempotency *all, const struct idempotency_request *request, const char *text)
{
    char *answer = NULL;
    assert_int_equal(begin(all, request, &answer), IDEMPOTENCY_REPLAY);
    if (text == NULL)
        assert_null(answer);
    else
        assert_string_equal(answer, text);
    free(answer);
}

static void test_first_and_again(void **state)
{
    struct world *world = *state;
    struct idempotency *all = start(&world->from);
    char *none = NULL, text[] = "{\"id\":\"\\u00e9\"}";
    struct idempotency_request one = ask_for("key_1", "k", "body"), other = ask_for("key_1", "k", "bodY"),
                               stranger = ask_for("key_2", "k", "body");
    assert_string_not_equal(one.tag, stranger.tag);
    assert_int_equal(begin(all, &one, &none), IDEMPOTENCY_RUN);
    assert_true(idempotency_knows(all, one.tag));
    assert_int_equal(begin(all, &one, &none), IDEMPOTENCY_BUSY);
    assert_int_equal(begin(all, &other, &none), IDEMPOTENCY_CONFLICT);
    assert_int_equal(begin(all, &stranger, &none), IDEMPOTENCY_RUN);
    idempotency_end(all, stranger.tag, IDEMPOTENCY_NOTHING, 0, NULL, 0);
    assert_false(idempotency_knows(all, stranger.tag));
    idempotency_end(all, one.tag, IDEMPOTENCY_MADE, 201, text, strlen(text));
    other.route = "POST /v1/others";
    other.contents = one.contents;
    assert_int_equal(begin(all, &other, &none), IDEMPOTENCY_CONFLICT);
    expect_answer(all, &one, text);
    all = idempotency_stop(all);
    store_fixture_reopen(&world->from);
    all = start(&world->from);
    struct idempotency_open open;
    assert_false(idempotency_next_open(all, &open));
    expect_answer(all, &one, text);
    idempotency_stop(all);
}

static void test_too_large_an_answer(void **state)
{
    struct world *world = *state;
    struct idempotency *all = start(&world->from);
    struct idempotency_request one = ask_for("key_1", "k", "body");
    size_t size = IDEMPOTENCY_ANSWER_MAX + 1;
    char *none = NULL, *large = malloc(size + 1);
    memset(large, 'x', size);
    large[size] = '\0';
    assert_int_equal(begin(all, &one, &none), IDEMPOTENCY_RUN);
    idempotency_end(all, one.tag, IDEMPOTENCY_MADE, 201, large, size);
    expect_answer(all, &one, NULL);
    free(large);
    idempotency_stop(all);
}

// A daemon that ended in the middle of three: the next one finds them, and settles each in its way.
static void test_open_after_a_restart(void **state)
{
    static const enum idempotency_outcome outcomes[] = {
            IDEMPOTENCY_MADE, IDEMPOTENCY_NOTHING, IDEMPOTENCY_LOST};
    static const enum idempotency_verdict verdicts[] = {
            IDEMPOTENCY_FOUND, IDEMPOTENCY_RUN, IDEMPOTENCY_UNKNOWN};
    struct error err;
    struct world *world = *state;
    struct idempotency *all = start(&world->from);
    struct idempotency_request requests[3] = {
            ask_for("key_1", "a", "body"), ask_for("key_1", "b", "body"), ask_for("key_1", "c", "body")};
    char *none = NULL;
    for (int i = 0; i < 3; i++) {
        test_wall_ns++;
        assert_int_equal(begin(all, &requests[i], &none), IDEMPOTENCY_RUN);
    }
    assert_int_equal(idempotency_ask(all, requests[2].tag, &err), 0);
    idempotency_stop(all);
    all = start(&world->from);
    for (int i = 0; i < 3; i++) {
        struct idempotency_open open;
        assert_true(idempotency_next_open(all, &open));
        assert_string_equal(open.tag, requests[i].tag);
        assert_string_equal(open.route, requests[i].route);
        assert_int_equal(open.count, 3);
        assert_int_equal(open.asked, i == 2);
        idempotency_settle(all, open.tag, outcomes[i], 201, outcomes[i] == IDEMPOTENCY_MADE ? "{}" : NULL);
    }
    idempotency_stop(all);
    all = start(&world->from);
    for (int i = 0; i < 3; i++) {
        char *answer = NULL;
        assert_int_equal(begin(all, &requests[i], &answer), verdicts[i]);
        free(answer);
    }
    idempotency_end(all, requests[1].tag, IDEMPOTENCY_NOTHING, 0, NULL, 0);
    // What was not known may be found out later, once; nothing else is settled again.
    idempotency_settle(all, requests[2].tag, IDEMPOTENCY_MADE, 201, "{\"id\":1}");
    for (int i = 0; i < 3; i++)
        idempotency_settle(all, requests[i].tag, IDEMPOTENCY_MADE, 201, "{\"id\":2}");
    for (int i = 0; i < 3; i += 2) {
        char *answer = NULL;
        assert_int_equal(begin(all, &requests[i], &answer), IDEMPOTENCY_FOUND);
        assert_string_equal(answer, i == 0 ? "{}" : "{\"id\":1}");
        free(answer);
    }
    assert_false(idempotency_knows(all, requests[1].tag));
    idempotency_stop(all);
}

static void test_retention(void **state)
{
    struct world *world = *state;
    struct idempotency *all = start(&world->from);
    struct idempotency_request one = ask_for("key_1", "k", "body");
    char *none = NULL;
    assert_int_equal(begin(all, &one, &none), IDEMPOTENCY_RUN);
    idempotency_end(all, one.tag, IDEMPOTENCY_MADE, 201, "{}", 2);
    test_wall_ns += IDEMPOTENCY_KEPT_SECS * UINT64_C(1000000000);
    expect_answer(all, &one, "{}");
    test_wall_ns += 1;
    assert_int_equal(begin(all, &one, &none), IDEMPOTENCY_RUN);
    idempotency_end(all, one.tag, IDEMPOTENCY_MADE, 201, "{}", 2);
    test_wall_ns -= UINT64_C(3600000000000); // set back: nothing is lost by that
    expect_answer(all, &one, "{}");
    idempotency_stop(all);
}

// Of one caller so many; another's stay.
static void test_bounds(void **state)
{
    struct world *world = *state;
    struct idempotency *all = start(&world->from);
    struct idempotency_request quiet = ask_for("key_2", "k", "body"), first, request = {0};
    char *none = NULL, key[32];
    struct error err;
    test_wall_ns++;
    assert_int_equal(begin(all, &quiet, &none), IDEMPOTENCY_RUN);
    idempotency_end(all, quiet.tag, IDEMPOTENCY_MADE, 201, "{}", 2);
    for (int i = 0; i <= IDEMPOTENCY_CALLER_MAX; i++) {
        test_wall_ns++;
        snprintf(key, sizeof key, "key %d", i);
        request = ask_for("key_1", key, "body");
        first = i == 0 ? request : first;
        if (i % 100 == 99)
            assert_int_equal(store_seal(world->from.store, &err), 0); // the fixture's log is small
        assert_int_equal(begin(all, &request, &none), IDEMPOTENCY_RUN);
        idempotency_end(all, request.tag, IDEMPOTENCY_MADE, 201, "{}", 2);
    }
    assert_false(idempotency_knows(all, first.tag));
    assert_true(idempotency_knows(all, request.tag));
    assert_true(idempotency_knows(all, quiet.tag));
    idempotency_stop(all);
}

struct crowd {
    struct idempotency *all;
    atomic_int made;
};

static bool always(void *context)
{
    return true;
}

static void *send_all(void *context)
{
    struct crowd *crowd = context;
    for (int i = 0; i < 20; i++) {
        char key[16], *answer = NULL;
        int status;
        struct error err;
        snprintf(key, sizeof key, "k%d", i);
        struct idempotency_request request = ask_for("key_1", key, "body");
        enum idempotency_verdict verdict =
                idempotency_begin(crowd->all, &request, always, NULL, &status, &answer, &err);
        if (verdict == IDEMPOTENCY_RUN) {
            atomic_fetch_add(&crowd->made, 1);
            idempotency_end(crowd->all, request.tag, IDEMPOTENCY_MADE, 201, key, strlen(key));
        } else if (verdict != IDEMPOTENCY_REPLAY || answer == NULL || strcmp(answer, key) != 0) {
            return (void *)1;
        }
        free(answer);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct world *world = *state;
    struct crowd crowd = {.all = start(&world->from)};
    pthread_t threads[THREADS];
    void *wrong;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &crowd), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(atomic_load(&crowd.made), 20);
    idempotency_stop(crowd.all);
}

static void test_keys(void **state)
{
    char longest[IDEMPOTENCY_KEY_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_false(idempotency_key_is_good(longest));
    assert_true(idempotency_key_is_good(longest + 1));
    assert_true(idempotency_key_is_good("8e03978e-40d5-43dd-bc93-6894a57f9324"));
    assert_false(idempotency_key_is_good(""));
    assert_false(idempotency_key_is_good("a\tb"));
    assert_false(idempotency_key_is_good("\xc3\xa9"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_keys),
            cmocka_unit_test_setup_teardown(test_first_and_again, setup, teardown),
            cmocka_unit_test_setup_teardown(test_too_large_an_answer, setup, teardown),
            cmocka_unit_test_setup_teardown(test_open_after_a_restart, setup, teardown),
            cmocka_unit_test_setup_teardown(test_retention, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bounds, setup, teardown),
            cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
