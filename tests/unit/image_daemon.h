// SPDX-License-Identifier: Apache-2.0
// For the tests of memory images over FUSE: a daemon in miniature (store, loops, mount) and images with a
// known pattern. Daemons and VMs are processes forked by the test, which itself runs no thread until it has
// forked those.
#pragma once

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

static inline void must(int result)
{
    if (result < 0)
        fail_msg("%d: %s", result, err.text);
}

// What the test image holds: a pattern, and a hole in each 64 pages.
static inline void fill_page(uint64_t page, unsigned char *bytes)
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

static inline bool page_is_right(uint64_t page, const void *bytes)
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

static inline void open_store(struct daemon *daemon)
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

static inline void close_store(struct daemon *daemon)
{
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_thread_stop(daemon->loops[i]);
    daemon->store = store_close(daemon->store);
    for (unsigned i = 0; i < LOOPS; i++)
        daemon->loops[i] = io_ring_loop_destroy(daemon->loops[i]);
}

// A base with the test pattern, kept by a doc of that name.
static inline struct base_id make_image(struct daemon *daemon, const char *name)
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

static inline void drop_image(struct daemon *daemon, const char *name)
{
    struct doc doc;
    must(store_doc_find(daemon->store, DOC_SNAPSHOT, name, &doc));
    struct txn *txn = txn_begin(daemon->store);
    txn_doc_delete(txn, doc.id);
    must(txn_commit_wait(txn, 0, &err));
    doc_free(&doc);
}

static inline void start_daemon(struct daemon *daemon)
{
    open_store(daemon);
    must(mem_fuse_start(daemon->store, mountpoint, -1, &daemon->fuse, &err));
}

static inline void stop_daemon(struct daemon *daemon)
{
    daemon->fuse = mem_fuse_stop(daemon->fuse, true);
    close_store(daemon);
}

static inline int open_image(struct base_id id, int flags)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%llu", mountpoint, (unsigned long long)id.value);
    return open(path, flags | O_CLOEXEC);
}

// ---- Processes ----

static inline void say(int fd, unsigned char byte)
{
    if (write(fd, &byte, 1) != 1)
        _exit(99);
}

// Waits for a byte; fails after a generous while.
static inline unsigned char hear(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    unsigned char byte = 0;
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    return byte;
}

static inline int wait_exit(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static inline int setup(void **state)
{
    snprintf(directory, sizeof directory, "/tmp/ramet-fuse-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    assert_int_equal(chmod(directory, 0755), 0);
    snprintf(store_path, sizeof store_path, "%s/store", directory);
    snprintf(mountpoint, sizeof mountpoint, "%s/mem", directory);
    return 0;
}

static inline int teardown(void **state)
{
    keeper_stop(directory, NULL);
    while (umount2(mountpoint, MNT_DETACH) == 0)
        ;
    return nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

// Prepares the helpers' directory; 77 when the tests cannot run here.
static inline int prepare(void)
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
    return 0;
}
