// SPDX-License-Identifier: Apache-2.0
// Memory images over FUSE, on a real store: what readers and mappers get, what they cannot do, and what
// happens to faults when the daemon dies. Daemons and VMs are processes forked by the test, which itself runs
// no thread until it has forked those.
#include "blockstore/io_ring.h"
#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "vmglue/keeper.h"
#include "vmglue/mem_fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <ftw.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LOOPS = 2, DAMAGED_PAGE = 900 };
#define IMAGE_BYTES ((uint64_t)8 << 20)

static char directory[128], store_path[200], mountpoint[200], libexec[4096];
static struct error err;

static void must(int result)
{
    if (result < 0)
        fail_msg("%d: %s", result, err.text);
}

// What the test image holds: a pattern, and a hole in each 64 pages.
static void fill_page(uint64_t page, unsigned char *bytes)
{
    if (page % 64 >= 48) {
        memset(bytes, 0, PAGE);
        return;
    }
    for (unsigned i = 0; i < PAGE; i += 8) {
        uint64_t value = page * 0x9e3779b97f4a7c15 + i;
        memcpy(bytes + i, &value, 8);
    }
}

static bool page_is_right(uint64_t page, const void *bytes)
{
    unsigned char expected[PAGE];
    fill_page(page, expected);
    return memcmp(bytes, expected, PAGE) == 0;
}

// ---- A daemon: store, loops, mount ----

struct daemon {
    struct loop *loops[LOOPS];
    struct store *store;
    struct mem_fuse *fuse;
};

static void open_store(struct daemon *daemon)
{
    for (unsigned i = 0; i < LOOPS; i++)
        must(io_ring_loop_create(i, 64, &daemon->loops[i]));
    if (access(store_path, F_OK) < 0) {
        struct store_config config = {.log_file_bytes = 16 << 20, .spare_log_files = 1};
        must(store_init(daemon->loops[0], store_path, &config, &err));
    }
    must(store_open(daemon->loops, LOOPS, store_path, NULL, &daemon->store, &err));
    for (unsigned i = 0; i < LOOPS; i++)
        must(io_ring_thread_start(daemon->loops[i]));
}

static void close_store(struct daemon *daemon)
{
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_thread_stop(daemon->loops[i]);
    daemon->store = store_close(daemon->store);
    for (unsigned i = 0; i < LOOPS; i++)
        daemon->loops[i] = io_ring_loop_destroy(daemon->loops[i]);
}

// A base with the test pattern, kept by a doc of that name.
static struct base_id make_image(struct daemon *daemon, const char *name)
{
    struct txn *txn = txn_begin(daemon->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_MEMORY, IMAGE_BYTES, (struct base_id){0});
    must(txn_commit_wait(txn, 0, &err));
    struct volume *volume;
    must(volume_open(daemon->store, id, &volume));
    unsigned char *bytes = io_buffer_alloc(48 * PAGE);
    for (uint64_t page = 0; page < IMAGE_BYTES / PAGE; page += 64) {
        for (unsigned i = 0; i < 48; i++)
            fill_page(page + i, bytes + i * PAGE);
        must(volume_write_wait(volume, page * PAGE, bytes, 48 * PAGE, 0));
    }
    io_buffer_free(bytes);
    txn = txn_begin(daemon->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .base_count = 1};
    doc.bases[0] = txn_freeze(txn, id);
    snprintf(doc.name, sizeof doc.name, "%s", name);
    txn_doc_put(txn, &doc, NULL, 0);
    must(txn_commit_wait(txn, TXN_DURABLE, &err));
    volume_close(volume);
    return doc.bases[0];
}

static void drop_image(struct daemon *daemon, const char *name)
{
    struct doc doc;
    must(store_doc_find(daemon->store, DOC_SNAPSHOT, name, &doc));
    struct txn *txn = txn_begin(daemon->store);
    txn_doc_delete(txn, doc.id);
    must(txn_commit_wait(txn, 0, &err));
    doc_free(&doc);
}

static void start_daemon(struct daemon *daemon)
{
    open_store(daemon);
    must(mem_fuse_start(daemon->store, mountpoint, -1, &daemon->fuse, &err));
}

static void stop_daemon(struct daemon *daemon)
{
    daemon->fuse = mem_fuse_stop(daemon->fuse, true);
    close_store(daemon);
}

static int open_image(struct base_id id, int flags)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%llu", mountpoint, (unsigned long long)id.value);
    return open(path, flags | O_CLOEXEC);
}

// ---- Processes ----

static void say(int fd, unsigned char byte)
{
    if (write(fd, &byte, 1) != 1)
        _exit(99);
}

// Waits for a byte; fails after a generous while.
static unsigned char hear(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    unsigned char byte = 0;
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    return byte;
}

static int wait_exit(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int setup(void **state)
{
    snprintf(directory, sizeof directory, "/tmp/ramet-fuse-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    assert_int_equal(chmod(directory, 0755), 0);
    snprintf(store_path, sizeof store_path, "%s/store", directory);
    snprintf(mountpoint, sizeof mountpoint, "%s/mem", directory);
    return 0;
}

static int teardown(void **state)
{
    keeper_stop(directory, NULL);
    while (umount2(mountpoint, MNT_DETACH) == 0)
        ;
    return nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

// ---- Reading ----

static void test_reads_equal_the_base(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, IMAGE_BYTES);
    assert_true(S_ISREG(st.st_mode) && st.st_nlink == 1);
    unsigned char *bytes = malloc(IMAGE_BYTES + 1);
    unsigned char *base = malloc(IMAGE_BYTES);
    assert_int_equal(pread(fd, bytes, IMAGE_BYTES + 1, 0), IMAGE_BYTES);
    struct base *handle;
    must(base_open(daemon.store, id, &handle));
    must(base_read_wait(handle, 0, base, IMAGE_BYTES));
    base_close(handle);
    assert_memory_equal(bytes, base, IMAGE_BYTES);
    for (uint64_t page = 0; page < IMAGE_BYTES / PAGE; page++)
        assert_true(page_is_right(page, bytes + page * PAGE));
    assert_int_equal(pread(fd, bytes, 100, IMAGE_BYTES), 0);
    assert_int_equal(pread(fd, bytes, 100, IMAGE_BYTES - 10), 10);
    assert_true(mem_fuse_read_bytes(daemon.fuse) >= IMAGE_BYTES);
    assert_true(mem_fuse_read_count(daemon.fuse) > 0);
    free(bytes);
    free(base);
    close(fd);
    stop_daemon(&daemon);
}

static void test_names(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    static const char *const none[] = {"x", "1x", "0", "01", "-1", "+1", " 1", "999999",
            "18446744073709551615", "18446744073709551616", "99999999999999999999999", "..1"};
    char path[400];
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++) {
        snprintf(path, sizeof path, "%s/%s", mountpoint, none[i]);
        assert_int_equal(open(path, O_RDONLY), -1);
        assert_int_equal(errno, ENOENT);
    }
    DIR *dir = opendir(mountpoint);
    assert_non_null(dir);
    unsigned found = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        found += strtoull(entry->d_name, NULL, 10) == id.value;
    closedir(dir);
    assert_int_equal(found, 1);
    stop_daemon(&daemon);
}

static void test_mappings_share_and_keep_apart(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    int fd = open_image(id, O_RDONLY), other_fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0 && other_fd >= 0);
    unsigned char *one = mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    unsigned char *two = mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, other_fd, 0);
    assert_true(one != MAP_FAILED && two != MAP_FAILED);
    for (uint64_t page = 0; page < IMAGE_BYTES / PAGE; page++)
        assert_true(page_is_right(page, one + page * PAGE));
    uint64_t reads = mem_fuse_read_count(daemon.fuse);
    memset(one, 0xaa, PAGE);
    for (uint64_t page = 0; page < IMAGE_BYTES / PAGE; page++)
        assert_true(page_is_right(page, two + page * PAGE));
    assert_int_equal(
            mem_fuse_read_count(daemon.fuse), reads); // the second mapper's pages are the first one's
    int again = open_image(id, O_RDONLY);             // keep_cache: nor does another open drop them
    assert_true(again >= 0);
    unsigned char page_bytes[PAGE];
    assert_int_equal(pread(again, page_bytes, PAGE, 0), PAGE);
    assert_true(page_is_right(0, page_bytes));
    assert_int_equal(mem_fuse_read_count(daemon.fuse), reads);
    close(again);
    munmap(one, IMAGE_BYTES);
    munmap(two, IMAGE_BYTES);
    close(fd);
    close(other_fd);
    stop_daemon(&daemon);
}

static void test_nobody_can_write(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    assert_int_equal(open_image(id, O_RDWR), -1);
    assert_int_equal(errno, EROFS);
    assert_int_equal(open_image(id, O_WRONLY), -1);
    assert_int_equal(errno, EROFS);
    assert_true(open_image(id, O_RDONLY | O_TRUNC) < 0);
    assert_true(open_image((struct base_id){4711}, O_RDWR | O_CREAT) < 0);
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(open(path, O_RDWR), -1); // nor by the back door
    assert_ptr_equal(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EACCES);
    unsigned char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(shared != MAP_FAILED);
    assert_int_equal(mprotect(shared, PAGE, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_true(ftruncate(fd, 0) < 0);
    assert_true(page_is_right(0, shared));
    munmap(shared, PAGE);
    close(fd);
    stop_daemon(&daemon);
}

// ---- Who may read ----

static struct base_id allowed_base;

static bool allow_one(void *context, struct base_id base, uid_t uid, pid_t pid)
{
    return uid == 65534 && base.value == allowed_base.value && pid > 0;
}

// Tries as another user: bit 0 the first image opened, 1 the second, 2 the directory listed.
static int try_as_nobody(struct base_id first, struct base_id second)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
            _exit(90);
        int got = (open_image(first, O_RDONLY) >= 0) | (open_image(second, O_RDONLY) >= 0) << 1;
        _exit(got | (opendir(mountpoint) != NULL) << 2);
    }
    return wait_exit(pid);
}

static void test_other_users(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id one = make_image(&daemon, "a"), two = make_image(&daemon, "b");
    assert_int_equal(try_as_nobody(one, two), 0);
    mem_fuse_stop(daemon.fuse, true);
    allowed_base = two;
    struct mem_fuse_config config = {
            .store = daemon.store, .mountpoint = mountpoint, .fuse_fd = -1, .may_open = allow_one};
    must(mem_fuse_start_config(&config, &daemon.fuse, &err));
    assert_int_equal(try_as_nobody(one, two), 2);
    stop_daemon(&daemon);
}

// ---- Many at once ----

struct toucher {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const unsigned char *image;
    uint64_t page;
    bool right;
};

static void *touch(void *context)
{
    struct toucher *toucher = context;
    pthread_barrier_wait(toucher->barrier);
    toucher->right = true;
    for (unsigned i = 0; i < 16; i++) // pages of its own, far apart
        toucher->right &=
                page_is_right(toucher->page + i * 128, toucher->image + (toucher->page + i * 128) * PAGE);
    return NULL;
}

static void test_parallel_faults(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    const unsigned char *image = mmap(NULL, IMAGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(image != MAP_FAILED);
    pthread_barrier_t barrier;
    static struct toucher touchers[64];
    pthread_barrier_init(&barrier, NULL, 64);
    for (unsigned i = 0; i < 64; i++) {
        touchers[i] = (struct toucher){.barrier = &barrier, .image = image, .page = i * 2};
        assert_int_equal(pthread_create(&touchers[i].thread, NULL, touch, &touchers[i]), 0);
    }
    for (unsigned i = 0; i < 64; i++) {
        pthread_join(touchers[i].thread, NULL);
        assert_true(touchers[i].right);
    }
    pthread_barrier_destroy(&barrier);
    munmap((void *)image, IMAGE_BYTES);
    close(fd);
    stop_daemon(&daemon);
}

// ---- Damage ----

static bool damage_done;

// Flips a byte of the block's only copy in the store's files.
static int damage_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    unsigned char wanted[PAGE];
    fill_page(DAMAGED_PAGE, wanted);
    if (type != FTW_F || st->st_size < PAGE)
        return 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    unsigned char *bytes = mmap(NULL, (size_t)st->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    unsigned char *found = memmem(bytes, (size_t)st->st_size, wanted, PAGE);
    if (found != NULL) {
        found[100] ^= 1;
        damage_done = true;
    }
    assert_int_equal(msync(bytes, (size_t)st->st_size, MS_SYNC), 0);
    munmap(bytes, (size_t)st->st_size);
    close(fd);
    return 0;
}

static void exit_on_bus_error(int number)
{
    _exit(77);
}

static void test_damage_is_an_error(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    damage_done = false;
    assert_int_equal(nftw(store_path, damage_file, 16, FTW_PHYS), 0);
    assert_true(damage_done);
    int fd = open_image(id, O_RDONLY);
    assert_true(fd >= 0);
    unsigned char bytes[PAGE];
    must(mem_fuse_prefetch(daemon.fuse, id, &(struct mem_fuse_range){0, PAGE}, 1, NULL, &err));
    struct mem_fuse_range damaged = {DAMAGED_PAGE * PAGE, PAGE};
    assert_int_equal(mem_fuse_prefetch(daemon.fuse, id, &damaged, 1, NULL, &err), -EBADMSG);
    assert_int_equal(pread(fd, bytes, PAGE, DAMAGED_PAGE * PAGE), -1);
    assert_int_equal(errno, EIO);
    // Neighbours are fine, also those that the same read-ahead asked for.
    assert_int_equal(pread(fd, bytes, PAGE, (DAMAGED_PAGE - 1) * PAGE), PAGE);
    assert_true(page_is_right(DAMAGED_PAGE - 1, bytes));
    assert_int_equal(pread(fd, bytes, PAGE, (DAMAGED_PAGE + 1) * PAGE), PAGE);
    assert_true(page_is_right(DAMAGED_PAGE + 1, bytes));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGBUS, exit_on_bus_error);
        const volatile unsigned char *image =
                mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        _exit(image == MAP_FAILED ? 1 : image[DAMAGED_PAGE * PAGE] == 0 ? 2 : 3);
    }
    assert_int_equal(wait_exit(pid), 77);
    close(fd);
    stop_daemon(&daemon);
}

// ---- Prefetch ----

static void test_prefetch(void **state)
{
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    // The second lies beyond the end, the third is not aligned, the fourth reaches beyond the end.
    struct mem_fuse_range ranges[] = {{PAGE * 16, 3 << 20}, {IMAGE_BYTES + 5 * PAGE, PAGE},
            {1000 * PAGE + 5, 1}, {IMAGE_BYTES - PAGE, UINT64_MAX}};
    uint64_t stored = 0;
    must(mem_fuse_prefetch(daemon.fuse, id, ranges, 4, &stored, &err));
    assert_int_equal(stored, (3 << 20) + PAGE + PAGE);
    assert_int_equal(mem_fuse_read_count(daemon.fuse), 0);
    int fd = open_image(id, O_RDONLY);
    const unsigned char *image = mmap(NULL, IMAGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(image != MAP_FAILED);
    assert_int_equal(
            madvise((void *)image, IMAGE_BYTES, MADV_RANDOM), 0); // the test's own read-ahead would blur
    for (uint64_t page = 16; page < 16 + (3 << 20) / PAGE; page++)
        assert_true(page_is_right(page, image + page * PAGE));
    assert_true(page_is_right(1000, image + 1000 * PAGE));
    assert_true(page_is_right(IMAGE_BYTES / PAGE - 1, image + IMAGE_BYTES - PAGE));
    assert_int_equal(mem_fuse_read_count(daemon.fuse), 0); // nobody had to ask
    assert_true(page_is_right(5, image + 5 * PAGE));
    assert_true(mem_fuse_read_count(daemon.fuse) > 0);
    must(mem_fuse_prefetch(daemon.fuse, id, ranges, 4, &stored, &err));
    assert_int_equal(stored, 0); // all there
    assert_true(mem_fuse_prefetch(daemon.fuse, (struct base_id){4711}, ranges, 1, NULL, &err) < 0);
    assert_non_null(strstr(err.text, "4711"));
    munmap((void *)image, IMAGE_BYTES);
    close(fd);
    mem_fuse_forget(daemon.fuse, id);
    fd = open_image(id, O_RDONLY);
    unsigned char bytes[PAGE];
    uint64_t reads = mem_fuse_read_count(daemon.fuse);
    assert_int_equal(pread(fd, bytes, PAGE, 16 * PAGE), PAGE);
    assert_true(page_is_right(16, bytes));
    assert_true(mem_fuse_read_count(daemon.fuse) > reads); // its pages were let go
    close(fd);
    stop_daemon(&daemon);
}

// ---- The daemon dies ----

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
    must(mem_fuse_prefetch(daemon.fuse, id, &(struct mem_fuse_range){1 << 20, 1 << 20}, 1, &stored, &err));
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
    assert_int_equal(stat(mountpoint, &st), -1);
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
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (geteuid() != 0 || device < 0) {
        printf("skipped: needs root and /dev/fuse\n");
        return 77;
    }
    close(device);
    char exe[3000];
    ssize_t size = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (size < 0)
        return 1;
    exe[size] = '\0';
    snprintf(libexec, sizeof libexec, "%s/../tools", dirname(exe));
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
            test(test_reads_equal_the_base),
            test(test_names),
            test(test_mappings_share_and_keep_apart),
            test(test_nobody_can_write),
            test(test_other_users),
            test(test_parallel_faults),
            test(test_damage_is_an_error),
            test(test_prefetch),
            test(test_death_in_mid_read),
            test(test_quiet_hand_over),
            test(test_base_gone_after_restart),
            test(test_stale_mount_is_replaced),
            test(test_dead_connection_is_refused),
            test(test_foreign_mount_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
