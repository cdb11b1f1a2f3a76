// SPDX-License-Identifier: Apache-2.0
// Keys in a real store: what is let in, when that ends, and threads that come while keys come and go. The
// hash beneath them, by its published vectors.
#include "tests/unit/archive_fixture.h"

#include "blockstore/clock.h"
#include "vmglue/keys_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

enum { CALLERS = 4, ROUNDS = 200, KEYS_FEW = 20 };

static void test_hash(void **state)
{
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    struct sha256 sum = sha256_of("abc", 3), other;
    char hex[2 * SHA256_SIZE + 1];
    sha256_hex(&sum, hex);
    assert_string_equal(hex, abc);
    assert_true(sha256_parse(abc, &other));
    assert_true(sha256_equal(&sum, &other));
    other.bytes[31] ^= 1;
    assert_false(sha256_equal(&sum, &other));
    assert_false(sha256_parse("ba78", &other));
    assert_false(sha256_parse("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD", &other));
    sum = sha256_of_texts((const char *[]){"ab", "c"}, 2);
    other = sha256_of_texts((const char *[]){"a", "bc"}, 2);
    assert_false(sha256_equal(&sum, &other));
}

static void no_end(struct keys_caller *caller)
{
    atomic_fetch_add((atomic_int *)caller->context, 1);
}

static int admit(struct keys *keys, const char *secret)
{
    atomic_int ends = 0;
    struct keys_caller caller = {.end = no_end, .context = &ends};
    int r = keys_admit(keys, secret, &caller);
    keys_leave(&caller);
    return r;
}

static void make(struct keys *keys, const struct keys_create *create, struct keys_info *ret_info,
        char secret[KEYS_SECRET_SIZE])
{
    struct error err = {0};
    if (keys_create(keys, create, ret_info, secret, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_life(void **state)
{
    struct world *world = *state;
    struct keys *keys;
    struct keys_info info, shown;
    struct error err;
    char secret[KEYS_SECRET_SIZE], changed[KEYS_SECRET_SIZE];
    assert_int_equal(keys_start(world->from.store, &keys, &err), 0);
    make(keys, &(struct keys_create){.name = "one", .preset = KEYS_CI, .request = "abc"}, &info, secret);
    assert_int_equal(strlen(secret), KEYS_SECRET_SIZE - 1);
    assert_int_equal(admit(keys, secret), 0);
    for (size_t i = 0; i < KEYS_SECRET_SIZE - 1; i++) { // any other digit is another key
        memcpy(changed, secret, sizeof changed);
        changed[i] = changed[i] == '0' ? '1' : '0';
        assert_int_equal(admit(keys, changed), -ENOENT);
    }
    assert_int_equal(admit(keys, ""), -ENOENT);
    assert_int_equal(admit(keys, "e2b_"), -ENOENT);
    assert_int_equal(keys_create(keys, &(struct keys_create){.name = "one"}, &shown, changed, &err), -EEXIST);
    assert_int_equal(keys_create(keys, &(struct keys_create){.name = "A b"}, &shown, changed, &err), -EINVAL);
    keys = keys_stop(keys);
    store_fixture_reopen(&world->from);
    assert_int_equal(keys_start(world->from.store, &keys, &err), 0);
    assert_int_equal(admit(keys, secret), 0);
    assert_int_equal(keys_show(keys, "one", &shown, &err), 0);
    assert_string_equal(shown.id, info.id);
    assert_int_equal(shown.preset, KEYS_CI);
    assert_true(shown.last_used_wall_ns >= info.created_wall_ns);
    assert_int_equal(keys_find_request(keys, "abc", &shown), 0);
    assert_int_equal(keys_find_request(keys, "abd", &shown), -ENOENT);
    assert_int_equal(keys_remove(keys, info.id, &err), 0);
    assert_int_equal(admit(keys, secret), -ENOENT);
    assert_int_equal(keys_remove(keys, info.id, &err), -ENOENT);
    keys_stop(keys);
}

static void test_makers(void **state)
{
    struct world *world = *state;
    struct keys *keys;
    struct keys_info admin, child;
    struct error err;
    char secret[KEYS_SECRET_SIZE];
    assert_int_equal(keys_start(world->from.store, &keys, &err), 0);
    make(keys, &(struct keys_create){.name = "admin", .life_ms = 3600000}, &admin, secret);
    make(keys, &(struct keys_create){.name = "child", .maker = &admin}, &child, secret);
    assert_int_equal(child.expires_wall_ns, admin.expires_wall_ns);
    assert_string_equal(child.created_by, admin.id);
    struct keys_create longer = {.name = "longer", .maker = &admin, .life_ms = 7200000};
    assert_int_equal(keys_create(keys, &longer, &child, secret, &err), -EACCES);
    // A request that was let in before its key was revoked makes none any more.
    struct keys_info gone = admin;
    assert_int_equal(keys_remove(keys, child.id, &err), 0);
    memcpy(gone.id, child.id, sizeof gone.id);
    struct keys_create late = {.name = "late", .preset = KEYS_READ, .maker = &gone};
    assert_int_equal(keys_create(keys, &late, &child, secret, &err), -EACCES);
    for (int preset = KEYS_CI; preset <= KEYS_READ; preset++) {
        admin.preset = (enum keys_preset)preset;
        struct keys_create weak = {.name = "weak", .preset = KEYS_READ, .maker = &admin};
        assert_int_equal(keys_create(keys, &weak, &child, secret, &err), -EACCES);
    }
    keys_stop(keys);
}

// Ends come once, for who is still there, whether the key is revoked (no life_ms) or expires. False: it
// expired before all were in and one had left, on a slow machine.
static bool ends_come_once(struct keys *keys, uint64_t life_ms)
{
    struct keys_info info;
    struct error err;
    char secret[KEYS_SECRET_SIZE];
    atomic_int ends = 0, ends_of_who_left = 0;
    struct keys_caller callers[CALLERS];
    bool all_in = true;
    make(keys, &(struct keys_create){.name = "one", .life_ms = life_ms}, &info, secret);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct keys_caller){.end = no_end, .context = i == 1 ? &ends_of_who_left : &ends};
        int r = keys_admit(keys, secret, &callers[i]);
        assert_true(r == 0 || (r == -ETIME && life_ms != 0));
        all_in = all_in && r == 0;
    }
    keys_leave(&callers[1]);
    all_in = all_in && atomic_load(&ends_of_who_left) == 0;
    if (life_ms == 0)
        assert_int_equal(keys_remove(keys, "one", &err), 0);
    while (all_in && atomic_load(&ends) < CALLERS - 1)
        usleep(1000); // the test's time limit ends this
    if (all_in)
        assert_int_equal(admit(keys, secret), life_ms == 0 ? -ENOENT : -ETIME);
    for (int i = 0; i < CALLERS; i++)
        keys_leave(&callers[i]);
    assert_true(!all_in || atomic_load(&ends) == CALLERS - 1);
    assert_true(!all_in || atomic_load(&ends_of_who_left) == 0);
    if (life_ms != 0)
        assert_int_equal(keys_remove(keys, "one", &err), 0);
    return all_in;
}

static void test_ends(void **state)
{
    struct world *world = *state;
    struct keys *keys;
    struct error err;
    assert_int_equal(keys_start(world->from.store, &keys, &err), 0);
    assert_true(ends_come_once(keys, 0));
    for (uint64_t life_ms = 300; !ends_come_once(keys, life_ms); life_ms *= 4)
        assert_true(life_ms < 60000);
    keys_stop(keys);
}

// Short-lived keys are no end of keys: those that expired make way.
static void test_full(void **state)
{
    struct world *world = *state;
    struct keys *keys;
    struct keys_info info;
    struct error err;
    char secret[KEYS_SECRET_SIZE], name[KEYS_NAME_SIZE];
    int r = 0;
    assert_int_equal(keys_start(world->from.store, &keys, &err), 0);
    keys->most = KEYS_FEW;
    make(keys, &(struct keys_create){.name = "stays"}, &info, secret);
    for (int i = 0; i <= KEYS_FEW && r == 0; i++) {
        snprintf(name, sizeof name, "brief-%d", i);
        r = keys_create(keys, &(struct keys_create){.name = name, .life_ms = 1}, &info, secret, &err);
        while (r == 0 && clock_wall_ns() <= info.expires_wall_ns)
            usleep(1000); // a fast machine would make all of them within one's life
    }
    if (r < 0)
        fail_msg("%s", err.text);
    assert_int_equal(keys_show(keys, "stays", &info, &err), 0);
    assert_int_equal(keys_show(keys, name, &info, &err), 0);
    assert_int_equal(keys_show(keys, "brief-0", &info, &err), -ENOENT);
    for (int i = 0; r == 0; i++) { // those that last do not
        snprintf(name, sizeof name, "long-%d", i);
        r = keys_create(keys, &(struct keys_create){.name = name}, &info, secret, &err);
    }
    assert_int_equal(r, -ENOSPC);
    keys_stop(keys);
}

struct crowd {
    struct keys *keys;
    char secrets[2][KEYS_SECRET_SIZE];
    atomic_int ends;
    atomic_bool stop;
};

static void *ask(void *context)
{
    struct crowd *crowd = context;
    for (unsigned i = 0; !atomic_load(&crowd->stop); i++) {
        struct keys_caller a = {.end = no_end, .context = &crowd->ends}, b = a;
        int kept = keys_admit(crowd->keys, crowd->secrets[0], &a);
        keys_admit(crowd->keys, crowd->secrets[1], &b);
        if (i % 2 == 0)
            keys_leave(&a);
        keys_leave(&b);
        keys_leave(&a);
        if (kept != 0)
            return (void *)1;
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct world *world = *state;
    struct crowd crowd = {0};
    struct keys_info info;
    struct error err;
    char secret[KEYS_SECRET_SIZE];
    pthread_t threads[CALLERS];
    void *wrong = NULL;
    assert_int_equal(keys_start(world->from.store, &crowd.keys, &err), 0);
    make(crowd.keys, &(struct keys_create){.name = "stays"}, &info, crowd.secrets[0]);
    make(crowd.keys, &(struct keys_create){.name = "goes"}, &info, crowd.secrets[1]);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &crowd), 0);
    assert_int_equal(keys_remove(crowd.keys, "goes", &err), 0);
    for (int i = 0; i < ROUNDS / 10; i++) {
        keys_store_used(crowd.keys); // ends, although there is always something used
        make(crowd.keys, &(struct keys_create){.name = "more", .life_ms = 1}, &info, secret);
        assert_int_equal(keys_remove(crowd.keys, info.id, &err), 0);
    }
    atomic_store(&crowd.stop, true);
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    keys_stop(crowd.keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_hash),
            cmocka_unit_test_setup_teardown(test_life, setup, teardown),
            cmocka_unit_test_setup_teardown(test_makers, setup, teardown),
            cmocka_unit_test_setup_teardown(test_ends, setup, teardown),
            cmocka_unit_test_setup_teardown(test_full, setup, teardown),
            cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
