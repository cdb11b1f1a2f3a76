// SPDX-License-Identifier: Apache-2.0
// Memory images over FUSE, on a real store: what readers and mappers get, and what they cannot do.
#include "tests/unit/image_daemon.h"

#include <sched.h>
#include <sys/sysmacros.h>

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

// Without root: in a mount namespace whose /dev/fuse everybody may use, as another user.
static void run_unprivileged(void)
{
    char node[300];
    snprintf(node, sizeof node, "%s/fuse", directory);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mknod(node, S_IFCHR | 0666, makedev(10, 229)) < 0 || chmod(node, 0666) < 0 ||
            mount(node, "/dev/fuse", NULL, MS_BIND, NULL) < 0 || chown(directory, 65534, 65534) < 0 ||
            setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
        _exit(90);
    struct daemon daemon;
    start_daemon(&daemon);
    struct base_id id = make_image(&daemon, "a");
    int fd = open_image(id, O_RDONLY);
    unsigned char bytes[PAGE];
    if (fd < 0 || pread(fd, bytes, PAGE, 5 * PAGE) != PAGE || !page_is_right(5, bytes))
        _exit(91);
    close(fd);
    if (open_image(id, O_RDWR) >= 0 || errno != EROFS)
        _exit(92);
    mem_fuse_stop(daemon.fuse, false); // a stale mount, to be detached by the next start
    struct stat st;
    if (stat(mountpoint, &st) == 0 || errno != ENOTCONN)
        _exit(93);
    if (mem_fuse_start(daemon.store, mountpoint, -1, &daemon.fuse, &err) < 0 ||
            (fd = open_image(id, O_RDONLY)) < 0)
        _exit(94);
    close(fd);
    stop_daemon(&daemon);
    _exit(stat(mountpoint, &st) == 0 ? 0 : 95);
}

static void test_without_root(void **state)
{
    if (access("/usr/bin/fusermount3", X_OK) < 0) {
        print_message("skipped: fusermount3 is not installed\n");
        skip();
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_unprivileged();
    assert_int_equal(wait_exit(pid), 0);
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
    must(mem_fuse_prefetch(daemon.fuse, id, &(struct working_set_range){0, PAGE}, 1, NULL, NULL, &err));
    struct working_set_range damaged = {DAMAGED_PAGE * PAGE, PAGE};
    assert_int_equal(mem_fuse_prefetch(daemon.fuse, id, &damaged, 1, NULL, NULL, &err), -EBADMSG);
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
    struct working_set_range ranges[] = {{PAGE * 16, 3 << 20}, {IMAGE_BYTES + 5 * PAGE, PAGE},
            {1000 * PAGE + 5, 1}, {IMAGE_BYTES - PAGE, UINT64_MAX}};
    uint64_t stored = 0;
    must(mem_fuse_prefetch(daemon.fuse, id, ranges, 4, NULL, &stored, &err));
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
    must(mem_fuse_prefetch(daemon.fuse, id, ranges, 4, NULL, &stored, &err));
    assert_int_equal(stored, 0); // all there
    // Cancelled, nothing more comes.
    atomic_bool cancel = true;
    struct working_set_range late = {1500 * PAGE, PAGE};
    assert_int_equal(mem_fuse_prefetch(daemon.fuse, id, &late, 1, &cancel, &stored, &err), -ECANCELED);
    assert_int_equal(stored, 0);
    // Close neighbours are fetched as one, with the hole between them.
    struct working_set_range near[] = {{1500 * PAGE, PAGE}, {1503 * PAGE, PAGE}, {1600 * PAGE, PAGE}};
    must(mem_fuse_prefetch(daemon.fuse, id, near, 3, NULL, &stored, &err));
    assert_int_equal(stored, 5 * PAGE);
    assert_true(mem_fuse_prefetch(daemon.fuse, (struct base_id){4711}, ranges, 1, NULL, NULL, &err) < 0);
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

int main(void)
{
    int result = prepare();
    if (result != 0)
        return result;
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
            test(test_reads_equal_the_base),
            test(test_names),
            test(test_mappings_share_and_keep_apart),
            test(test_nobody_can_write),
            test(test_other_users),
            test(test_without_root),
            test(test_parallel_faults),
            test(test_damage_is_an_error),
            test(test_prefetch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
