// SPDX-License-Identifier: Apache-2.0
// Memory images: a read-only FUSE mount with one immutable regular file per base, named by the base's id in
// decimal ("MOUNT/42"). VMMs map an image MAP_PRIVATE: clean pages of all forks are one page-cache copy.
//
// Nothing is remembered per open file, and the node id is the base id + 1 (1 is the root), so a new daemon on
// the same store goes on where a dead one stopped. A base must be kept by something in the catalog (the
// DOC_SANDBOX that maps it) for as long as a VM maps it: an image whose base is gone answers ESTALE.
//
// Who may read: root and the daemon's own user; others when may_open says so. Only O_RDONLY. The directory
// can be searched by all (a name must be known) and listed by root and the daemon's user. Without root the
// mount is for the daemon's own user alone. Threads: start, stop, prefetch and forget from any thread that is
// not a loop and that holds nothing a READ needs. One thread of its own takes requests and answers what needs
// no data; READs are answered from the store's loops, any number at a time. The loops must run from before
// start until after stop. Errors: a damaged block is EIO to the reader (SIGBUS in a VMM), never zeros.
#pragma once

#include "snapshot/volume.h"
#include "snapshot/working_set.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct mem_fuse;

enum {
    MEM_FUSE_READAHEAD_NONE = -1,
    MEM_FUSE_READAHEAD_DEFAULT =
            16 * 1024, // fetches twice what a resumed guest touches, with two thirds of the READs
    MEM_FUSE_BACKGROUND_DEFAULT = 256, // read-ahead requests in flight; the kernel's own default is 12
};

struct mem_fuse_config {
    struct store *store;
    const char *mountpoint; // made when missing
    int fuse_fd; // -1: mounts (a stale mount of ours there is detached first); otherwise adopts the
                 // connection of an earlier daemon, from the keeper (duplicated), and has the kernel resend
                 // what was in flight (Linux 6.9)
    int readahead_bytes;     // 0 = default; up to 128 KiB. Only at mounting: an adopted mount keeps its own
    unsigned max_background; // 0 = default. Only at mounting
    // Whether a process that is neither root nor of the daemon's user may open an image. NULL = no. Both
    // callbacks run on the receiving thread: they must not wait, and not touch files below the mountpoint.
    bool (*may_open)(void *context, struct base_id base, uid_t uid, pid_t pid);
    // Each READ as it comes, before it is answered: what is missing from the page cache (to record a working
    // set).
    void (*on_read)(void *context, struct base_id base, uint64_t offset, uint64_t length);
    void *context;
};

// -ENOTCONN: the adopted connection is dead (unmounted or aborted): drop it from the keeper and mount anew.
int mem_fuse_start_config(
        const struct mem_fuse_config *config, struct mem_fuse **ret_fuse, struct error *err);
// The same with everything else by default.
int mem_fuse_start(struct store *store, const char *mountpoint, int fuse_fd, struct mem_fuse **ret_fuse,
        struct error *err);
int mem_fuse_device_fd(struct mem_fuse *fuse); // for the keeper; owned by fuse
bool mem_fuse_connected(
        struct mem_fuse *fuse); // false: unmounted or aborted by somebody else; readers get errors
// Answers what is in flight, then lets go. unmount false: leaves the mount to the keeper's copy of the
// descriptor (there must be one: with the last descriptor every reader gets errors for ever). Accepts NULL.
struct mem_fuse *mem_fuse_stop(struct mem_fuse *fuse, bool unmount);
uint64_t mem_fuse_read_bytes(struct mem_fuse *fuse); // served since start
uint64_t mem_fuse_read_count(struct mem_fuse *fuse);

// Puts ranges of an image (bytes; rounded outwards to whole pages, cut at the image's end) into the page
// cache that all its forks share, in this order, before anybody faults on them; what is cached is skipped,
// and small holes may be filled along. Waits for the store, and gives way to READs. *cancel (may be NULL) set
// true ends it early: -ECANCELED. *ret_stored_bytes (may be NULL): what was not cached, on failure too.
int mem_fuse_prefetch(struct mem_fuse *fuse, struct base_id image, const struct working_set_range *ranges,
        unsigned count, const atomic_bool *cancel, uint64_t *ret_stored_bytes, struct error *err);
// Lets the kernel drop an image's cached pages as soon as nobody maps it: for bases that were deleted.
void mem_fuse_forget(struct mem_fuse *fuse, struct base_id base);
