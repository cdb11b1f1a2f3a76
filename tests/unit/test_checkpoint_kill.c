// SPDX-License-Identifier: Apache-2.0
// Checkpoints and death: owners killed in the middle of commits or of making the catalog, readers killed in
// the middle of reading.
#include "tests/unit/checkpoint_fixture.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    OWNERS = 60,
    CREATORS = 30,
    READERS = 60,
    ROWS = 120,
    SIZE = 200
}; // starting a process takes long there
#else
enum { OWNERS = 200, CREATORS = 100, READERS = 200, ROWS = 120, SIZE = 200 };
#endif

static struct fixture_state now;

static pid_t start(
        void (*run)(const char *path, int acks, uint64_t number), const char *path, int acks, uint64_t number)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run(path, acks, number);
        _exit(3); // they run until they are killed, or fail
    }
    return child;
}

// Kills the child; 0, or its exit status when it had ended by itself.
static int end(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == SIGKILL ? 0 : -WTERMSIG(status);
}

// Lets the child run on for a while that the seed tells, up to twice `mean_us`. Where in its work it is then
// is the host's affair: nothing is awaited here.
static void let_run(uint64_t seed, uint64_t mean_us)
{
    struct timespec time = {.tv_nsec = (long)(fixture_mix(seed) % (2 * mean_us) * 1000)};
    nanosleep(&time, NULL);
}

static void die_of(const struct error *err)
{
    fprintf(stderr, "%s\n", err->text);
    _exit(2);
}

// An owner: goes on from what it finds, tells each state that was committed.
static void owner_run(const char *path, int acks, uint64_t unused)
{
    struct checkpoint_db *db;
    struct error err = {0};
    uint64_t number;
    if (checkpoint_db_open(NULL, path, false, 0, &db, &err) < 0 || fixture_number(db, &number, &err) < 0)
        die_of(&err);
    for (;;) {
        fixture_make(&now, ++number, ROWS, SIZE);
        if (checkpoint_db_commit(db, now.rows, now.count, &err) < 0)
            die_of(&err);
        if (write(acks, &number, sizeof number) != sizeof number)
            _exit(4);
    }
}

static uint64_t ack_wait(int acks)
{
    uint64_t number;
    assert_int_equal(read(acks, &number, sizeof number), sizeof number);
    return number;
}

// The catalog is exactly one state, that one or the next; returns which.
static uint64_t state_check(const char *path, uint64_t acknowledged)
{
    struct checkpoint_db *db = fixture_open(path, true, 0);
    struct error err = {0};
    uint64_t number;
    assert_int_equal(fixture_number(db, &number, &err), 0);
    assert_in_range(number, acknowledged, acknowledged + 1);
    fixture_make(&now, number, ROWS, SIZE);
    fixture_assert_holds(db, &now);
    checkpoint_db_close(db);
    return number;
}

static void test_owner_killed(void **state)
{
    char path[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    uint64_t acknowledged = 0, ahead = 0;
    for (uint64_t round = 0; round < OWNERS; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = start(owner_run, path, pipes[1], 0);
        close(pipes[1]);
        for (uint64_t i = 0; i < 1 + fixture_mix(round) % 4; i++)
            acknowledged = ack_wait(pipes[0]);
        let_run(round, 800);
        assert_int_equal(end(child), 0);
        uint64_t number;
        while (read(pipes[0], &number, sizeof number) == sizeof number)
            acknowledged = number;
        close(pipes[0]);
        number = state_check(path, acknowledged);
        ahead += number > acknowledged;
        acknowledged = number;
    }
    print_message("%d owners killed at state %llu, %llu of them between commit and answer\n", OWNERS,
            (unsigned long long)acknowledged, (unsigned long long)ahead);
}

static void test_creator_killed(void **state)
{
    char path[FIXTURE_PATH_MAX], command[2 * FIXTURE_PATH_MAX];
    unsigned made = 0;
    fixture_path(path, *state, "catalog");
    snprintf(command, sizeof command, "rm -rf %s", path);
    for (uint64_t round = 0; round < CREATORS; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = start(owner_run, path, pipes[1], 0);
        close(pipes[1]);
        let_run(round, 2500);
        assert_int_equal(end(child), 0);
        uint64_t number, acknowledged = 0;
        while (read(pipes[0], &number, sizeof number) == sizeof number)
            acknowledged = number;
        close(pipes[0]);
        struct checkpoint_db *db = NULL;
        struct error err = {0};
        int r = checkpoint_db_open(NULL, path, true, 0, &db, &err);
        checkpoint_db_close(db);
        made += r == 0;
        assert_true(r == 0 || (r == -ENOENT && acknowledged == 0));
        checkpoint_db_close(fixture_open(path, false, 0)); // goes on whatever was left
        db = fixture_open(path, true, 0);
        assert_int_equal(fixture_number(db, &number, &err), 0);
        assert_in_range(number, acknowledged, acknowledged + 1);
        checkpoint_db_close(db);
        assert_int_equal(system(command), 0);
    }
    print_message("%d owners killed while they made a catalog: %u times it was there\n", CREATORS, made);
}

// A reader: everything it ever reads is a whole state, and states only go forward.
static void reader_run(const char *path, int acks, uint64_t unused)
{
    uint64_t before = 0, number;
    for (unsigned round = 0;; round++) {
        struct checkpoint_db *db;
        struct error err = {0};
        int r = checkpoint_db_open(NULL, path, true, 0, &db, &err);
        if (r < 0)
            die_of(&err);
        // The state may change between the two readings; then the numbers differ and it is tried again.
        if (fixture_number(db, &number, &err) < 0)
            die_of(&err);
        fixture_make(&now, number, ROWS, SIZE);
        r = fixture_holds(db, &now, &err);
        if (r < 0)
            die_of(&err);
        uint64_t after;
        if (r == 0 && (fixture_number(db, &after, &err) < 0 || after == number))
            _exit(5); // neither this state nor a newer one
        if (number < before)
            _exit(6);
        before = number;
        checkpoint_db_close(db);
        if (round == 0 && write(acks, &number, sizeof number) != sizeof number)
            _exit(4);
    }
}

static void test_readers_killed(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct checkpoint_db *owner = fixture_open(path, false, 0);
    uint64_t number = 0;
    struct stat early, late;
    struct fixture_state *mine = malloc(sizeof *mine);
    fixture_make(mine, ++number, ROWS, SIZE);
    fixture_commit(owner, mine);
    for (uint64_t round = 0; round < READERS; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = start(reader_run, path, pipes[1], 0);
        close(pipes[1]);
        ack_wait(pipes[0]); // it has read once, and reads on
        for (unsigned i = 0; i < 3; i++) {
            fixture_make(mine, ++number, ROWS, SIZE);
            fixture_commit(owner, mine);
        }
        let_run(round, 300);
        assert_int_equal(end(child), 0);
        close(pipes[0]);
        assert_int_equal(stat(data, round < 20 ? &early : &late), 0);
    }
    // 126 readers is what LMDB has slots for; and a reader that died must not keep old pages: of three states
    // a round, of which one that reads slowly may hold its own round's.
    assert_true(late.st_size <= early.st_size * 3);
    fixture_assert_holds(owner, mine);
    checkpoint_db_close(owner);
    assert_int_equal(state_check(path, number), number);
    free(mine);
}

// Readers against an owner that commits as fast as it can.
static void test_readers_and_owner(void **state)
{
    enum { TOGETHER = 3 };
    char path[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    int acks[2], unused[2];
    assert_int_equal(pipe(acks), 0);
    assert_int_equal(pipe(unused), 0);
    pid_t owner = start(owner_run, path, acks[1], 0), readers[TOGETHER];
    ack_wait(acks[0]);
    for (unsigned i = 0; i < TOGETHER; i++)
        readers[i] = start(reader_run, path, unused[1], 0);
    for (unsigned i = 0; i < 500; i++)
        ack_wait(acks[0]);
    for (unsigned i = 0; i < TOGETHER; i++)
        assert_int_equal(end(readers[i]), 0);
    assert_int_equal(end(owner), 0);
    for (unsigned i = 0; i < 2; i++) {
        close(acks[i]);
        close(unused[i]);
    }
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
            IN_DIRECTORY(test_owner_killed),
            IN_DIRECTORY(test_creator_killed),
            IN_DIRECTORY(test_readers_killed),
            IN_DIRECTORY(test_readers_and_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
