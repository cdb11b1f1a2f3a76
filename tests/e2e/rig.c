// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/rig.h"

#include "blockstore/io_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, MIB = 1 << 20 };

extern char **environ;

static char scratch[64];
static struct rig *open_rig;

void rig_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

void rig_skip(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("skipped: ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
    fflush(stdout);
    exit(77);
}

uint64_t rig_random(void)
{
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) != sizeof value)
        rig_fail("no random bytes");
    return value;
}

int rig_run(const char *log, const char *const *argv)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid;
    int error = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ), status = 0;
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        rig_fail("cannot run %s: %s", argv[0], strerror(error));
    if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
        rig_fail("%s did not end by itself", argv[0]);
    return WEXITSTATUS(status);
}

// ---- Ending, also from a failure ----

static void end_stray(void *context, pid_t pid, const char *id)
{
    vm_kill_stray(scratch + 5, pid, 10000, NULL); // the tag: the scratch directory's name
}

static void clean_up(void)
{
    if (scratch[0] == 0)
        return;
    vm_find_strays(scratch + 5, end_stray, NULL);
    if (open_rig != NULL)
        mem_fuse_stop(open_rig->fuse, true);
    const char *const remove[] = {"rm", "-rf", "--one-file-system", scratch, NULL};
    if (getenv("RAMET_KEEP_SCRATCH") == NULL)
        rig_run("/dev/null", remove);
    else
        fprintf(stderr, "kept: %s\n", scratch);
}

static void on_signal(int number)
{
    exit(128 + number); // a test that is interrupted must not leave VMs; nothing here is in the middle of
                        // malloc for long
}

// ---- Opening ----

static void import_image(struct rig *rig, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        rig_fail("cannot open %s: %s", path, strerror(errno));
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    struct volume_id id =
            txn_volume_create(txn, "image", VOLUME_DISK, (uint64_t)stat.st_size, (struct base_id){0});
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("%s", err.text);
    struct volume *volume;
    if (volume_open(rig->store, id, &volume) < 0)
        rig_fail("cannot open the image's volume");
    char *buffer = io_buffer_alloc(CHUNK);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
        at -= at % BLOCK_SIZE;
        off_t end = lseek(fd, at, SEEK_HOLE);
        while (at < end) {
            ssize_t got = pread(fd, buffer, CHUNK, at);
            if (got <= 0 || volume_write_wait(volume, (uint64_t)at, buffer, (uint64_t)got, 0) < 0)
                rig_fail("cannot copy %s into the store", path);
            at += got;
        }
    }
    io_buffer_free(buffer);
    close(fd);
    volume_close(volume);
    txn = txn_begin(rig->store);
    struct base_id base = txn_freeze(txn, id);
    struct doc doc = {.kind = DOC_SNAPSHOT, .name = "image", .bases = {base}, .base_count = 1};
    txn_doc_put(txn, &doc, NULL, 0);
    if (txn_commit_wait(txn, TXN_DURABLE, &err) < 0)
        rig_fail("%s", err.text);
    rig->image = base;
    rig->image_bytes = (uint64_t)stat.st_size;
}

static void find_preload(struct rig *rig)
{
    const char *folder = getenv("RAMET_LIBEXEC");
    char self[400];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    self[size > 0 ? size : 0] = 0;
    *strrchr(self, '/') = 0;
    if (folder != NULL)
        snprintf(rig->preload, sizeof rig->preload, "%s/libramet-preload.so", folder);
    else
        snprintf(rig->preload, sizeof rig->preload, "%s/../../vmglue/libramet-preload.so", self);
    if (access(rig->preload, R_OK) != 0)
        rig_skip("%s is not built here (sanitizer builds have none)", rig->preload);
}

static void need(struct rig *rig, const char **ret_image)
{
    rig->kernel_dir = getenv("RAMET_KERNEL_DIR");
    *ret_image = getenv("RAMET_IMAGE");
    if (rig->kernel_dir == NULL || *ret_image == NULL)
        rig_skip("RAMET_KERNEL_DIR and RAMET_IMAGE name no kernel and disk to boot from (tools/image/ensure "
                 "makes them)");
    if (access(*ret_image, R_OK) != 0)
        rig_skip("the disk image %s cannot be read", *ret_image);
    if (access("/dev/fuse", R_OK | W_OK) != 0 || getuid() != 0)
        rig_skip("memory images need /dev/fuse and root");
    const char *const qemu[] = {"qemu-system-x86_64", "-version", NULL};
    if (access("/usr/bin/qemu-system-x86_64", X_OK) != 0 || rig_run("/dev/null", qemu) != 0)
        rig_skip("QEMU is not installed (qemu-system-x86)");
}

void rig_open(struct rig *rig, const char *name)
{
    const char *image;
    *rig = (struct rig){.shape = {.machine = VM_MACHINE_Q35, .cpus = 1, .memory_mb = 256}};
    need(rig, &image);
    find_preload(rig);
    snprintf(scratch, sizeof scratch, "/tmp/ramet-%.20s-XXXXXX", name);
    if (mkdtemp(scratch) == NULL)
        rig_fail("cannot make %s: %s", scratch, strerror(errno));
    strcpy(rig->directory, scratch);
    open_rig = rig;
    atexit(clean_up);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    setvbuf(stdout, NULL, _IOLBF, 0);

    struct error err;
    char path[128];
    struct store_config config = {.log_budget_bytes = (uint64_t)12 << 30};
    snprintf(path, sizeof path, "%s/store", rig->directory);
    if (io_ring_loop_create(0, 256, &rig->loop) < 0)
        rig_fail("cannot make an io_uring loop");
    if (store_init(rig->loop, path, &config, &err) < 0 ||
            store_open(&rig->loop, 1, path, NULL, &rig->store, &err) < 0)
        rig_fail("%s", err.text);
    if (io_ring_thread_start(rig->loop) < 0)
        rig_fail("cannot start the loop");
    snprintf(path, sizeof path, "%s/mem", rig->directory);
    mkdir(path, 0700);
    if (mem_fuse_start(rig->store, path, -1, &rig->fuse, &err) < 0)
        rig_fail("%s", err.text);
    snprintf(path, sizeof path, "%s/vm", rig->directory);
    mkdir(path, 0700);
    import_image(rig, image);
}

void rig_close(struct rig *rig)
{
    open_rig = NULL;
    rig->fuse = mem_fuse_stop(rig->fuse, true);
    io_ring_thread_stop(rig->loop);
    rig->store = store_close(rig->store);
    rig->loop = io_ring_loop_destroy(rig->loop);
}

void rig_export(struct rig *rig, struct base_id id, const char *path)
{
    struct base *base;
    if (base_open(rig->store, id, &base) < 0)
        rig_fail("cannot open a base to export");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char *buffer = io_buffer_alloc(CHUNK), *zeros = calloc(1, CHUNK);
    uint64_t size = base_size_bytes(base);
    for (uint64_t at = 0; at < size; at += CHUNK) {
        uint64_t length = size - at < CHUNK ? size - at : CHUNK;
        int result = base_read_wait(base, at, buffer, length);
        if (result < 0)
            rig_fail("cannot read a base at %llu: %s", (unsigned long long)at, strerror(-result));
        if (memcmp(buffer, zeros, length) != 0 && pwrite(fd, buffer, length, (off_t)at) != (ssize_t)length)
            rig_fail("cannot write %s: %s", path, strerror(errno));
    }
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        rig_fail("cannot write %s: %s", path, strerror(errno));
    close(fd);
    free(zeros);
    io_buffer_free(buffer);
    base_close(base);
}
