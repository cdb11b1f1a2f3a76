// SPDX-License-Identifier: Apache-2.0
// Memory images over FUSE: what happens to mappings and faults when the daemon dies, and who takes over.
#include "tests/unit/image_daemon.h"

static int reading_pipe[2];

static void stay_in_read(void *context, struct base_id base, uint64_t offset, uint64_t length)
{
    if (offset > 4 * PAGE)
        return;
    say(reading_pipe[1], 'r');
    for (;;)
        pause(); // taken from the kernel, never to be answered
}

// A daemon process that makes an image, puts its mount into the keeper, and dies when killed. It tells the
// base's id.
static pid_t fork_daemon(bool stuck, struct base_id *ret_id)
{
    int told[2];
    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct daemon daemon;
        open_store(&daemon);
        struct mem_fuse_config config = {.store = daemon.store,
                .mountpoint = mountpoint,
                .fuse_fd = -1,
                .on_read = stuck ? stay_in_read : NULL};
        must(mem_fuse_start_config(&config, &daemon.fuse, &err));
        struct base_id id = make_image(&daemon, "a");
        must(keeper_put(directory, "fuse", mem_fuse_device_fd(daemon.fuse), &err));
        if (write(told[1], &id, sizeof id) != (ssize_t)sizeof id)
            _exit(1);
        for (;;)
            pause();
    }
    close(told[1]);
    assert_int_equal(read(told[0], ret_id, sizeof *ret_id), sizeof *ret_id);
    close(told[0]);
    return pid;
}

// A VM in miniature: maps the image, touches pages when told, says whether they were right.
static pid_t fork_mapper(struct base_id id, int to[2], int from[2])
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        close(to[0]);
        return pid;
    }
    int from_test = to[0], to_test = from[1];
    close(to[1]);
    close(from[0]);
    int fd = open_image(id, O_RDONLY);
    unsigned char *image =
            fd < 0 ? MAP_FAILED : mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    say(to_test, image == MAP_FAILED ? 'x' : 'm');
    unsigned char page;
    while (read(from_test, &page, 1) == 1)
        say(to_test, page_is_right(page, image + page * PAGE) ? 'y' : 'n');
    _exit(0);
}

static void test_death_in_mid_read(void **state)
{
    must(keeper_ensure(directory, libexec, &err));
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC) | pipe2(reading_pipe, O_CLOEXEC), 0);
    struct base_id id;
    pid_t daemon_pid = fork_daemon(true, &id);
    pid_t mapper = fork_mapper(id, to, from);
    assert_int_equal(hear(from[0]), 'm');
    say(to[1], 2);                                // a fault ...
    assert_int_equal(hear(reading_pipe[0]), 'r'); // ... is with the daemon ...
    kill(daemon_pid, SIGKILL);                    // ... that dies
    assert_int_equal(wait_exit(daemon_pid), 128 + SIGKILL);
    struct pollfd poll_fd = {.fd = from[0], .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 300), 0); // neither an error nor data: it waits
    struct daemon daemon;
    open_store(&daemon);
    int fuse_fd;
    must(keeper_get(directory, "fuse", &fuse_fd, &err));
    must(mem_fuse_start(daemon.store, mountpoint, fuse_fd, &daemon.fuse, &err));
    close(fuse_fd);
    assert_int_equal(hear(from[0]), 'y');
    for (unsigned page = 10; page < 250; page += 7) { // and it goes on, pages never asked for before included
        say(to[1], (unsigned char)page);
        assert_int_equal(hear(from[0]), 'y');
    }
    int fd = open_image(id, O_RDONLY); // as do new opens
    assert_true(fd >= 0);
    unsigned char bytes[PAGE];
    assert_int_equal(pread(fd, bytes, PAGE, 2000 * PAGE), PAGE);
    assert_true(page_is_right(2000, bytes));
    close(fd);
    uint64_t stored;
    must(mem_fuse_prefetch(
            daemon.fuse, id, &(struct working_set_range){1 << 20, 1 << 20}, 1, NULL, &stored, &err));
    close(to[1]);
    assert_int_equal(wait_exit(mapper), 0);
    assert_true(mem_fuse_connected(daemon.fuse));
    stop_daemon(&daemon);
    close(from[0]);
    close(from[1]);
    close(reading_pipe[0]);
    close(reading_pipe[1]);
}

static void test_quiet_hand_over(void **state)
{
    // A daemon that stops in good order, ten times, with a VM that faults between and while nobody serves.
    must(keeper_ensure(directory, libexec, &err));
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
    struct base_id id;
    pid_t daemon_pid = fork_daemon(false, &id);
    pid_t mapper = fork_mapper(id, to, from);
    assert_int_equal(hear(from[0]), 'm');
    say(to[1], 0);
    assert_int_equal(hear(from[0]), 'y');
    kill(daemon_pid, SIGKILL);
    wait_exit(daemon_pid);
    for (unsigned round = 1; round <= 10; round++) {
        struct daemon daemon;
        say(to[1], (unsigned char)(round * 20)); // nobody serves
        open_store(&daemon);
        int fuse_fd;
        must(keeper_get(directory, "fuse", &fuse_fd, &err));
        must(mem_fuse_start(daemon.store, mountpoint, fuse_fd, &daemon.fuse, &err));
        close(fuse_fd);
        assert_int_equal(hear(from[0]), 'y');
        say(to[1], (unsigned char)(round * 20 + 9));
        assert_int_equal(hear(from[0]), 'y');
        daemon.fuse = mem_fuse_stop(daemon.fuse, round == 10);
        close_store(&daemon);
    }
    close(to[1]);
    assert_int_equal(wait_exit(mapper), 0);
    close(from[0]);
    close(from[1]);
}

static void test_base_gone_after_restart(void **state)
{
    must(keeper_ensure(directory, libexec, &err));
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    must(keeper_put(directory, "fuse", mem_fuse_device_fd(daemon.fuse), &err));
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    unsigned char bytes[PAGE];
    drop_image(&daemon, "a");
    struct base_info info;
    // The open file keeps the base while this daemon serves it.
    assert_int_equal(pread(fd, bytes, PAGE, 0), PAGE);
    assert_true(page_is_right(0, bytes));
    mem_fuse_stop(daemon.fuse, false);
    close_store(&daemon);
    open_store(&daemon);
    int fuse_fd;
    must(keeper_get(directory, "fuse", &fuse_fd, &err));
    must(mem_fuse_start(daemon.store, mountpoint, fuse_fd, &daemon.fuse, &err));
    close(fuse_fd);
    assert_int_equal(store_base_get(daemon.store, id, &info), -ENOENT);
    assert_int_equal(pread(fd, bytes, PAGE, 5 << 20), -1);
    assert_int_equal(errno, ESTALE);
    close(fd);
    assert_int_equal(open_image(id, O_RDONLY), -1);
    assert_true(errno == ESTALE || errno == ENOENT);
    stop_daemon(&daemon);
}

static void test_stale_mount_is_replaced(void **state)
{
    // Three daemons die without a keeper: the mount is dead. The next one clears it away.
    struct base_id id;
    must(keeper_ensure(directory, libexec, &err));
    for (unsigned i = 0; i < 3; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct daemon daemon;
            start_daemon(&daemon);
            kill(getpid(), SIGKILL);
        }
        assert_int_equal(wait_exit(pid), 128 + SIGKILL);
    }
    struct stat st;
    // A ring lets go of its descriptors a moment after its process has ended.
    for (unsigned tries = 0; stat(mountpoint, &st) == 0 || errno == ECONNABORTED; tries++) {
        assert_true(tries < 60000);
        usleep(1000);
    }
    assert_int_equal(errno, ENOTCONN);
    struct daemon daemon;
    start_daemon(&daemon);
    id = make_image(&daemon, "a");
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    close(fd);
    stop_daemon(&daemon);
    assert_int_equal(stat(mountpoint, &st), 0); // the plain directory
}

static void test_dead_connection_is_refused(void **state)
{
    must(keeper_ensure(directory, libexec, &err));
    struct daemon daemon;
    start_daemon(&daemon);
    must(keeper_put(directory, "fuse", mem_fuse_device_fd(daemon.fuse), &err));
    assert_int_equal(umount2(mountpoint, MNT_DETACH), 0); // somebody meddles
    mem_fuse_stop(daemon.fuse, false);
    int fuse_fd;
    must(keeper_get(directory, "fuse", &fuse_fd, &err));
    struct mem_fuse *none = NULL;
    assert_int_equal(mem_fuse_start(daemon.store, mountpoint, fuse_fd, &none, &err), -ENOTCONN);
    assert_non_null(strstr(err.text, "mount anew"));
    assert_null(none);
    close(fuse_fd);
    must(mem_fuse_start(daemon.store, mountpoint, -1, &daemon.fuse, &err));
    stop_daemon(&daemon);
}

static void test_foreign_mount_is_left_alone(void **state)
{
    struct daemon daemon;
    open_store(&daemon);
    assert_int_equal(mkdir(mountpoint, 0755), 0);
    assert_int_equal(mount("none", mountpoint, "tmpfs", 0, NULL), 0);
    struct mem_fuse *none = NULL;
    assert_int_equal(mem_fuse_start(daemon.store, mountpoint, -1, &none, &err), -EBUSY);
    assert_int_equal(umount(mountpoint), 0);
    struct mem_fuse_config config = {
            .store = daemon.store, .mountpoint = mountpoint, .fuse_fd = -1, .readahead_bytes = 1 << 20};
    assert_int_equal(mem_fuse_start_config(&config, &none, &err), -EINVAL);
    assert_null(none);
    close_store(&daemon);
}

int main(void)
{
    int result = prepare();
    if (result != 0)
        return result;
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
            test(test_death_in_mid_read),
            test(test_quiet_hand_over),
            test(test_base_gone_after_restart),
            test(test_stale_mount_is_replaced),
            test(test_dead_connection_is_refused),
            test(test_foreign_mount_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
