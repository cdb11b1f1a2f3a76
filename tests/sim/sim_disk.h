// SPDX-License-Identifier: Apache-2.0
// A simulated disk with one file system on it, wholly in memory: what the files hold for a running process
// ("live") and what a power cut is sure to leave ("durable") are kept apart. Pure data: no scheduling, no
// faults, no time; sim_world.c turns I/O operations into calls of this module.
//
// The model, deliberately as unkind as POSIX allows:
//  - A write is a change: begun (its bytes are on their way), then in effect (readers see them), then
//    completed (the caller knows). Until a sync covers it, a power cut may keep any part of it, by sectors of
//    512 bytes or 4 KiB, in any combination with other such changes.
//  - sim_disk_sync covers the changes completed before its mark, and no promise about any other. A failed
//  sync
//    dooms what it covered: later syncs succeed without making it durable (as Linux does).
//  - A name (create, mkdir, rename, unlink) is durable only after sim_disk_sync_directory of its directory.
//    A rename happens wholly or not at all. A file whose name is durable may still be empty.
//  - A process death drops nothing that is in effect, and lets what is on its way happen wholly, partly or
//  not.
//
// Not thread-safe. Memory exhaustion aborts. Results are >= 0 or -errno.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_disk;
struct sim_node;   // a file or a directory
struct sim_change; // belongs to the disk; valid until sim_disk_change_complete
struct sim_rows;   // sim_checkpoint.h

enum { SIM_DISK_PAGE = 4096 };

// capacity_bytes bounds the sum of allocated pages of all files; 0 = no bound.
struct sim_disk *sim_disk_create(uint64_t capacity_bytes);
struct sim_disk *sim_disk_destroy(struct sim_disk *disk); // accepts NULL, returns NULL
// What one power cut, or one death of the process, leaves; chosen by seed.
struct sim_disk *sim_disk_after_power_cut(const struct sim_disk *disk, uint64_t seed);
struct sim_disk *sim_disk_after_kill(const struct sim_disk *disk, uint64_t seed);

// Names. *ret_change is set when the call changed a name, else NULL.
int sim_disk_open(struct sim_disk *disk, const char *path, int flags, struct sim_node **ret_node,
        struct sim_change **ret_change);
void sim_disk_close(struct sim_disk *disk, struct sim_node *node);
int sim_disk_mkdir(struct sim_disk *disk, const char *path, struct sim_change **ret_change);
int sim_disk_rename(struct sim_disk *disk, const char *from, const char *to, struct sim_change **ret_change);
int sim_disk_unlink(struct sim_disk *disk, const char *path, struct sim_change **ret_change);
int sim_disk_list(struct sim_disk *disk, const char *path, void (*each)(void *context, const char *name),
        void *context);

// Content. A write begins (bytes are copied), takes effect, and is completed; a failed write takes effect or
// not.
int64_t sim_disk_read(const struct sim_node *node, uint64_t offset, void *buffer, size_t size);
struct sim_change *sim_disk_write_begin(
        struct sim_disk *disk, struct sim_node *node, uint64_t offset, const void *bytes, size_t size);
bool sim_disk_has_room(
        const struct sim_disk *disk, const struct sim_node *node, uint64_t offset, size_t size);
void sim_disk_write_effect(struct sim_disk *disk, struct sim_change *change);
// The bytes that a write began with (to see whether its buffer was changed under way).
const void *sim_disk_change_bytes(const struct sim_change *change);
void sim_disk_change_complete(struct sim_disk *disk, struct sim_change *change);
// The change ended with an error: nothing is promised about it, now or after a sync.
void sim_disk_change_fail(struct sim_disk *disk, struct sim_change *change);

// Durability. The mark is taken when the sync is submitted.
uint64_t sim_disk_mark(const struct sim_disk *disk);
void sim_disk_sync(struct sim_disk *disk, struct sim_node *node, uint64_t mark);
void sim_disk_sync_failed(struct sim_disk *disk, struct sim_node *node, uint64_t mark);
int sim_disk_sync_directory(struct sim_disk *disk, const char *path, uint64_t mark);

// Exclusive lock by `owner` (any non-zero number); released by sim_disk_unlock.
int sim_disk_lock(struct sim_node *node, uint64_t owner);
void sim_disk_unlock(struct sim_node *node, uint64_t owner);

// For tests: files by path (by index in name order: sim_disk_path, NULL after the last), size, raw bytes,
// damage.
const char *sim_disk_path(const struct sim_disk *disk, size_t index);
int64_t sim_disk_size(const struct sim_disk *disk, const char *path);
int64_t sim_disk_peek(
        const struct sim_disk *disk, const char *path, uint64_t offset, void *buffer, size_t size);
int sim_disk_flip(struct sim_disk *disk, const char *path, uint64_t offset, unsigned bit);
uint64_t sim_disk_used_bytes(const struct sim_disk *disk);
uint64_t sim_disk_free_bytes(const struct sim_disk *disk); // UINT64_MAX = no bound
uint64_t sim_disk_unsynced_count(const struct sim_disk *disk);

// The simulator's own random numbers (splitmix64): the same on every machine.
uint64_t sim_random(uint64_t *state);
uint64_t sim_random_below(uint64_t *state, uint64_t limit); // limit > 0
