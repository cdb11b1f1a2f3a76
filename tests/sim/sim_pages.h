// SPDX-License-Identifier: Apache-2.0
// The bytes of one simulated file: reference-counted 4 KiB pages, copied on write; a missing page is zeros.
// Not thread-safe; memory exhaustion aborts.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sim_page;

struct sim_pages { // all zero = an empty file
    struct sim_page **page;
    size_t page_count;
    size_t allocated;
    uint64_t size; // bytes
};

// Reads up to the end of the file; returns how much.
size_t sim_pages_read(const struct sim_pages *pages, uint64_t offset, void *buffer, size_t size);
void sim_pages_write(struct sim_pages *pages, uint64_t offset, const void *bytes, size_t size);
void sim_pages_extend(struct sim_pages *pages, uint64_t size); // with zeros; never shrinks
// Makes *pages (what it held is dropped) share all pages of *from.
void sim_pages_copy(struct sim_pages *pages, const struct sim_pages *from);
void sim_pages_free(struct sim_pages *pages); // leaves an empty file
size_t sim_pages_allocated(const struct sim_pages *pages);
size_t sim_pages_missing(
        const struct sim_pages *pages, uint64_t offset, size_t size); // pages a write would add
