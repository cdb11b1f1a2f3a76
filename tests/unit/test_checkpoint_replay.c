// SPDX-License-Identifier: Apache-2.0
// Power cuts and failing disks under LMDB's own file. This program stands between LMDB and the kernel: the
// functions below take the place of the C library's. It keeps every write to the data file and every sync,
// then makes the file as it would be after each prefix of them, with what was not synced there, gone or torn,
// and opens that: it must be the state before or after a commit, and whole. It also lets each call fail in
// turn.
#include "tests/unit/checkpoint_fixture.h"

#include <sys/syscall.h>
#include <sys/uio.h>

enum { SECTOR = 512, EVENTS_MAX = 4096 };

enum event_kind { EVENT_WRITE, EVENT_SYNC };
struct event {
    enum event_kind kind;
    bool through; // of a descriptor with O_DSYNC: durable by itself
    uint64_t offset;
    size_t size;
    uint8_t *bytes;
};

// What the functions below do with calls on the data file.
static struct {
    dev_t device;
    ino_t inode; // 0: nothing is watched
    bool keep;
    struct event events[EVENTS_MAX];
    size_t count;
    bool no_sync; // replaying: nobody needs this file to be durable
    uint64_t calls, fail_at;
    bool for_good; // all calls from that one on fail
    int error;     // 0: write only half
} disk;

static bool watched(int fd)
{
    struct stat stat;
    return disk.inode != 0 && fstat(fd, &stat) == 0 && stat.st_ino == disk.inode &&
           stat.st_dev == disk.device;
}

static void watch(const char *path)
{
    struct stat stat_now;
    assert_int_equal(stat(path, &stat_now), 0);
    disk.device = stat_now.st_dev;
    disk.inode = stat_now.st_ino;
}

static void keep(enum event_kind kind, bool through, uint64_t offset, const void *bytes, size_t size)
{
    if (!disk.keep)
        return;
    assert_true(disk.count < EVENTS_MAX);
    struct event *event = &disk.events[disk.count++];
    *event = (struct event){kind, through, offset, size, malloc(size + 1)};
    if (size > 0)
        memcpy(event->bytes, bytes, size);
}

static bool fails_now(void)
{
    disk.calls++;
    return disk.for_good ? disk.fail_at != 0 && disk.calls >= disk.fail_at : disk.calls == disk.fail_at;
}

static ssize_t raw_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return syscall(SYS_pwrite64, fd, bytes, size, offset);
}

// Named by hand: the C library's header makes pwrite64 of it, which LMDB does not call.
ssize_t lmdb_pwrite(int fd, const void *bytes, size_t size, off_t offset) __asm__("pwrite");

ssize_t lmdb_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    if (!watched(fd))
        return raw_pwrite(fd, bytes, size, offset);
    if (fails_now()) {
        errno = disk.error;
        return disk.error != 0 ? -1 : raw_pwrite(fd, bytes, size / 2, offset);
    }
    keep(EVENT_WRITE, fcntl(fd, F_GETFL) & O_DSYNC, (uint64_t)offset, bytes, size);
    return raw_pwrite(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    if (!watched(fd))
        return syscall(SYS_writev, fd, iov, count);
    if (fails_now()) {
        errno = disk.error;
        return disk.error != 0 ? -1 : syscall(SYS_writev, fd, iov, count / 2);
    }
    off_t offset = lseek(fd, 0, SEEK_CUR);
    for (int i = 0; i < count; i++) {
        keep(EVENT_WRITE, fcntl(fd, F_GETFL) & O_DSYNC, (uint64_t)offset, iov[i].iov_base, iov[i].iov_len);
        offset += (off_t)iov[i].iov_len;
    }
    return syscall(SYS_writev, fd, iov, count);
}

static int sync_call(int fd, long number)
{
    if (watched(fd)) {
        if (fails_now() && disk.error != 0) {
            errno = disk.error;
            return -1;
        }
        keep(EVENT_SYNC, false, 0, NULL, 0);
    }
    return disk.no_sync ? 0 : (int)syscall(number, fd);
}

int fdatasync(int fd)
{
    return sync_call(fd, SYS_fdatasync);
}

int fsync(int fd)
{
    return sync_call(fd, SYS_fsync);
}

// Without O_DSYNC while replaying: LMDB opens the file a second time with it, for meta pages.
int lmdb_open(const char *path, int flags, mode_t mode) __asm__("open");

int lmdb_open(const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_open, path, disk.no_sync ? flags & ~O_DSYNC : flags, mode);
}

static void disk_reset(void)
{
    for (size_t i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    memset(&disk, 0, sizeof disk);
}

// Recording: states 1 .. COMMITS after `base`, each with the number of events when it was answered.
enum { COMMITS = 30 };

struct history {
    struct fixture_bytes base; // the file with state 0 committed
    size_t answered[COMMITS + 1];
};

static struct fixture_state now;

// Rows that come, go, shrink and grow: small commits, and some that rewrite everything.
static void state_make(uint64_t number)
{
    fixture_make(&now, number + 1, number % 9 == 8 ? 20 : number % 9 == 4 ? 400 : 120, 150);
}

static void history_make(const char *path, const char *data, struct history *history)
{
    struct checkpoint_db *db = fixture_open(path, false, 0);
    state_make(0);
    fixture_commit(db, &now);
    history->base = fixture_load(data);
    watch(data);
    disk.keep = true;
    history->answered[0] = 0;
    for (uint64_t number = 1; number <= COMMITS; number++) {
        state_make(number);
        fixture_commit(db, &now);
        history->answered[number] = disk.count;
        assert_true(disk.count > history->answered[number - 1]);
    }
    disk.keep = false;
    disk.inode = 0;
    checkpoint_db_close(db);
}

// The file being made.
struct image {
    uint8_t *bytes;
    size_t size, room;
};

static void image_begin(struct image *image, const struct history *history)
{
    image->room = 8 << 20;
    if (image->bytes == NULL)
        image->bytes = malloc(image->room);
    memset(image->bytes, 0, image->room);
    memcpy(image->bytes, history->base.bytes, history->base.size);
    image->size = history->base.size;
}

static void image_apply(struct image *image, const struct event *event, size_t from, size_t to)
{
    assert_true(event->offset + event->size <= image->room);
    memcpy(image->bytes + event->offset + from, event->bytes + from, to - from);
    if (event->offset + to > image->size)
        image->size = event->offset + to;
}

// Everything up to `end` was issued. Synced writes are there; of the others each sector is there or not.
// Which: seed 0: none, 1: all, else by chance, with much, half or little that is lost.
static void image_cut(struct image *image, const struct history *history, size_t end, uint64_t seed)
{
    image_begin(image, history);
    size_t synced = 0;
    for (size_t i = 0; i < end; i++)
        if (disk.events[i].kind == EVENT_SYNC)
            synced = i;
    for (size_t i = 0; i < end; i++) {
        const struct event *event = &disk.events[i];
        if (event->kind != EVENT_WRITE)
            continue;
        // One that is being issued is not durable yet, whatever the descriptor says.
        bool durable = i < synced || (event->through && i + 1 < end);
        for (size_t at = 0; at < event->size; at += SECTOR) {
            uint64_t chance = fixture_mix(seed * 1000003 + i * 4099 + at) % 16;
            size_t to = at + SECTOR < event->size ? at + SECTOR : event->size;
            if (durable || (seed > 0 && (seed == 1 || chance < 4 + 4 * (seed % 3))))
                image_apply(image, event, at, to);
        }
    }
}

// Which state the directory holds; fails the test when it is none of the two, or cannot be continued from.
static uint64_t state_judge(const char *path, uint64_t before, uint64_t after, const char *what)
{
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    if (checkpoint_db_open(NULL, path, false, 0, &db, &err) < 0)
        fail_msg("%s: %s", what, err.text);
    uint64_t number;
    if (fixture_number(db, &number, &err) < 0)
        fail_msg("%s: %s", what, err.text);
    number--; // state_make counts from 1
    if (number != before && number != after)
        fail_msg("%s: state %llu instead of %llu or %llu", what, (unsigned long long)number,
                (unsigned long long)before, (unsigned long long)after);
    state_make(number);
    fixture_assert_holds(db, &now);
    for (uint64_t next = number + 1; next < number + 3; next++) { // and on from there
        state_make(next);
        fixture_commit(db, &now);
        fixture_assert_holds(db, &now);
    }
    checkpoint_db_close(db);
    return number;
}

static uint64_t replay_one(
        const char *directory, struct image *image, size_t end, uint64_t commit, bool answered, uint64_t seed)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX], lock[FIXTURE_PATH_MAX], what[100];
    fixture_path(path, directory, "copy");
    fixture_path(data, path, "data.mdb");
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    fixture_store(data, image->bytes, image->size);
    unlink(fixture_path(lock, path, "lock.mdb"));
    snprintf(what, sizeof what, "events %zu, commit %llu, seed %llu", end, (unsigned long long)commit,
            (unsigned long long)seed);
    return state_judge(path, answered ? commit : commit - 1, commit, what);
}

static void test_every_prefix(void **state)
{
    enum { SEEDS = 6 };
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct history history;
    history_make(path, data, &history);
    size_t writes = 0, syncs = 0;
    for (size_t i = 0; i < disk.count; i++)
        if (disk.events[i].kind == EVENT_WRITE)
            writes++, syncs += disk.events[i].through;
        else
            syncs++;
    print_message("%d commits: %zu writes, %zu of them or after them synced\n", COMMITS, writes, syncs);
    assert_true(syncs >= 2 * COMMITS); // pages, then the meta page
    disk.no_sync = true;
    struct image image = {0};
    uint64_t commit = 1, opened = 0, early = 0;
    for (size_t end = 1; end <= disk.count; end++) {
        while (end > history.answered[commit])
            commit++;
        bool answered = end == history.answered[commit];
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            image_cut(&image, &history, end, seed);
            // An answered commit has nothing unsynced, except that a cut may come before the last call
            // returns.
            early += replay_one(*state, &image, end, commit, answered && seed == 1, seed) == commit;
            opened++;
        }
    }
    print_message("%llu files opened, %llu with the commit under way\n", (unsigned long long)opened,
            (unsigned long long)early);
    free(image.bytes);
    free(history.base.bytes);
    disk_reset();
}

// What was answered survives whatever the next commit had issued: seed 0 loses everything that was not
// synced.
static void test_answered_is_durable(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct history history;
    history_make(path, data, &history);
    disk.no_sync = true;
    struct image image = {0};
    for (uint64_t commit = 1; commit < COMMITS; commit++) {
        image_cut(&image, &history, history.answered[commit] + 1, 0);
        replay_one(*state, &image, history.answered[commit] + 1, commit, true, 0);
    }
    free(image.bytes);
    free(history.base.bytes);
    disk_reset();
}

// Each call of a commit fails in turn, once or with all that follow. The state stays as it was. After "no
// space" the next commit on the same handle works, after anything else further ones are refused.
static bool fail_one_call(const char *path, const char *data, uint64_t fail_at, int error, bool for_good)
{
    struct checkpoint_db *db = fixture_open(path, false, 0);
    struct error err = {0};
    char what[100];
    snprintf(what, sizeof what, "call %llu%s fails with %d", (unsigned long long)fail_at,
            for_good ? " and all after it" : "", error);
    state_make(0);
    fixture_commit(db, &now);
    watch(data);
    disk.calls = 0;
    disk.fail_at = fail_at;
    disk.error = error;
    disk.for_good = for_good;
    state_make(4);
    int r = checkpoint_db_commit(db, now.rows, now.count, &err);
    bool no_space = error == ENOSPC || error == EDQUOT;
    disk.inode = 0;
    if (r < 0 && no_space && !for_good) {
        assert_int_equal(r, -ENOSPC);
        state_make(0);
        fixture_assert_holds(db, &now);
        state_make(4);
        fixture_commit(db, &now);
    } else if (r < 0) {
        assert_int_equal(r, no_space ? -ENOSPC : -EIO);
        assert_non_null(strstr(err.text, path));
        r = checkpoint_db_commit(db, now.rows, now.count, &err);
        assert_true(no_space ? r == 0 || r == -ESTALE : r == -ESTALE);
        uint64_t is = r == 0 ? 4 : 0;
        checkpoint_db_close(db);
        state_judge(path, is, is, what);
        return true;
    }
    checkpoint_db_close(db);
    state_judge(path, 4, 4, what);
    return r < 0;
}

static void test_calls_fail(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    checkpoint_db_close(fixture_open(path, false, 0));
    const struct {
        int error;
        bool for_good;
    } faults[] = {{EIO, false}, {ENOSPC, false}, {EDQUOT, false}, {0, false}, {EIO, true}, {ENOSPC, true}};
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        uint64_t fail_at = 1;
        while (fail_one_call(path, data, fail_at, faults[i].error, faults[i].for_good))
            fail_at++;
        print_message("error %d%s: %llu calls\n", faults[i].error, faults[i].for_good ? " for good" : "",
                (unsigned long long)fail_at - 1);
        assert_true(fail_at > 3);
        disk_reset();
    }
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
            IN_DIRECTORY(test_every_prefix),
            IN_DIRECTORY(test_answered_is_durable),
            IN_DIRECTORY(test_calls_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
