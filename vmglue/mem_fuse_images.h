// SPDX-License-Identifier: Apache-2.0
// The bases that a FUSE mount of memory images has open, and the READs in flight on them. Used by mem_fuse.c
// alone.
//
// A base is opened when somebody opens its file or reads from it, and closed when nobody does. Opens are
// counted for this daemon's own only: files opened before an adoption are read by one opening of the base per
// READ, and their base is kept by the catalog. Threads: any, also loops: the lock is held for moments.
// Errors: -ESTALE the store has no such base.
#pragma once

#include "snapshot/volume.h"

#include <stddef.h>
#include <stdint.h>

struct mem_fuse_images;

struct mem_fuse_images *mem_fuse_images_create(struct store *store); // NULL: out of memory
// Closes every base; no READ may be in flight. Accepts NULL, returns NULL.
struct mem_fuse_images *mem_fuse_images_destroy(struct mem_fuse_images *images);
int mem_fuse_images_open(struct mem_fuse_images *images, struct base_id id);
void mem_fuse_images_release(struct mem_fuse_images *images, struct base_id id);
// The base stays until the READ has ended.
int mem_fuse_images_begin_read(struct mem_fuse_images *images, struct base_id id, struct base **ret_base);
void mem_fuse_images_end_read(struct mem_fuse_images *images, struct base_id id);
// Until no READ is in flight, at most so long (0 = for ever); not on a loop.
void mem_fuse_images_wait(struct mem_fuse_images *images, unsigned timeout_ms);
// Ids of all bases there are, ascending; *ret_ids is malloc'ed. -ENOMEM.
int mem_fuse_images_list(struct mem_fuse_images *images, uint64_t **ret_ids, size_t *ret_count);
