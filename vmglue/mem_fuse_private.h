// SPDX-License-Identifier: Apache-2.0
// Shared by mem_fuse.c and mem_fuse_prefetch.c, not for anybody else.
#pragma once

#include "vmglue/mem_fuse.h"

struct store *mem_fuse_store(struct mem_fuse *fuse);
const char *mem_fuse_mountpoint(struct mem_fuse *fuse);
// Waits while READs are being answered, but not longer than that.
void mem_fuse_let_readers_go(struct mem_fuse *fuse, unsigned timeout_ms);
// Puts whole pages into the page cache of an image whose inode the kernel knows. Waits for a READ of the same
// pages: never on a thread that answers READs.
int mem_fuse_put_pages(
        struct mem_fuse *fuse, struct base_id image, uint64_t offset, void *bytes, size_t size);
