// SPDX-License-Identifier: Apache-2.0
// A mount outlives its daemon, and node ids in it are base ids of one store: served from another store it
// would give running guests another machine's memory. So the keeper holds it under a name with the store's id
// in it.
#include "tools/rametd/memory_images.h"

#include "tools/rametd/log.h"
#include "vmglue/hex.h"
#include "vmglue/image_access.h"
#include "vmglue/keeper.h"
#include "vmglue/keeper_guard.h"
#include "vmglue/mem_fuse.h"
#include "vmglue/vm.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char PREFIX[] = "fuse-"; // then the store's id, in hex
enum { NAME_SIZE = sizeof PREFIX + 32 };

static void log_event(void *context, const char *message)
{
    log_line("%s", message);
}

// What `ls` asks about the mount point is answered from the kernel's memory from now on, and so also while no
// daemon serves it: a look at the run directory must not wait for the next one.
static void remember_mount(const char *mountpoint)
{
    struct stat st;
    char value[64];
    if (stat(mountpoint, &st) == 0)
        (void)!getxattr(mountpoint, "security.selinux", value, sizeof value);
}

static void make_name(struct store *store, char ret_name[NAME_SIZE])
{
    uint8_t uuid[16];
    store_uuid(store, uuid);
    memcpy(ret_name, PREFIX, sizeof PREFIX - 1);
    hex_encode(uuid, sizeof uuid, ret_name + sizeof PREFIX - 1);
}

struct search {
    const char *own;
    char other[KEEPER_NAME_MAX + 1]; // a mount of another store
    unsigned guests;                 // of that store
    pid_t guest;                     // one of them
};

static void find_other(void *context, const char *name)
{
    struct search *search = context;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 && strcmp(name, search->own) != 0)
        snprintf(search->other, sizeof search->other, "%.*s", KEEPER_NAME_MAX, name);
}

static void count_guest(void *context, pid_t pid, const char *id)
{
    struct search *search = context;
    search->guests++;
    search->guest = pid;
}

// Another store's mount is dropped when none of its guests lives.
static int check_others(const char *run_dir, const char *name, struct error *err)
{
    for (;;) {
        struct search search = {.own = name};
        char tag[2 * KEEPER_NAME_MAX];
        int r = keeper_list(run_dir, find_other, &search, err);
        if (r < 0 || search.other[0] == '\0')
            return r;
        snprintf(tag, sizeof tag, "ramet-%s", search.other + sizeof PREFIX - 1);
        vm_find_strays(tag, count_guest, &search);
        if (search.guests > 0)
            return error_set(err, -EBUSY,
                    "%u sandboxes of another store still run from %s (one is process %d): start rametd with "
                    "their store and end them, or give this store a run directory of its own with --run",
                    search.guests, run_dir, (int)search.guest);
        r = keeper_drop(run_dir, search.other, err);
        if (r < 0)
            return r;
        log_line("the memory images of another store, whose sandboxes are gone, were given up");
    }
}

static int mount_or_adopt(const char *run_dir, struct store *store, struct image_access *access,
        const char *name, struct mem_fuse **ret_fuse, struct error *err)
{
    char mountpoint[PATH_MAX];
    int fuse_fd = -1;
    snprintf(mountpoint, sizeof mountpoint, "%s/mem", run_dir);
    int r = keeper_get(run_dir, name, &fuse_fd, err);
    if (r < 0 && r != -ENOENT)
        return r;
    bool adopted = fuse_fd >= 0;
    struct mem_fuse_config config = {.store = store,
            .mountpoint = mountpoint,
            .fuse_fd = fuse_fd,
            .may_open = image_access_may_open,
            .context = access};
    r = mem_fuse_start_config(&config, ret_fuse, err);
    if (r == -ENOTCONN && adopted) {
        // Somebody unmounted it: guests that mapped it are lost, the rest goes on.
        log_line("%s", err->text);
        adopted = false;
        config.fuse_fd = -1;
        r = mem_fuse_start_config(&config, ret_fuse, err);
    }
    if (fuse_fd >= 0)
        close(fuse_fd); // mem_fuse has a duplicate
    if (r == 0)
        remember_mount(mountpoint);
    if (r == 0 && !adopted)
        r = keeper_put(run_dir, name, mem_fuse_device_fd(*ret_fuse), err);
    return r;
}

int memory_images_start(const char *run_dir, const char *libexec_dir, struct store *store,
        struct image_access *access, struct keeper_guard **ret_guard, struct mem_fuse **ret_fuse,
        struct error *err)
{
    char name[NAME_SIZE];
    make_name(store, name);
    int r = keeper_ensure(run_dir, libexec_dir, err);
    if (r == 0)
        r = keeper_guard_start(run_dir, libexec_dir, log_event, NULL, ret_guard, err);
    if (r == 0)
        r = check_others(run_dir, name, err);
    if (r == 0)
        r = mount_or_adopt(run_dir, store, access, name, ret_fuse, err);
    return r;
}
