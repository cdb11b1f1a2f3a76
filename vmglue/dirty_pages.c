// SPDX-License-Identifier: Apache-2.0
// How it works: guest memory is registered with the VMM's userfaultfd in write-protect mode with
// UFFD_FEATURE_WP_ASYNC. The kernel then resolves write faults by itself and leaves the page "written";
// PAGEMAP_SCAN finds written pages and protects them again in one step.
//
// Traps, and what is done about them:
//  - Registering switches fault-around off, so it is done at the first snapshot, not at resume.
//  - Protecting the whole range costs page tables and makes every later scan visit all of memory: only pages
//  found are
//    protected. A page never touched has no entry, and its first write leaves it written.
//  - Whether a page is FILE (a clean page of the image) costs the kernel a look at its struct page: 140 ms
//  for 768 MiB here,
//    against 1 ms without. So a scan asks for WRITTEN, PRESENT or SWAPPED alone, which finds what was written
//    and the clean pages that were mapped since, protects both, and only of those asks what is private. A
//    clean page that is written in between counts twice. (All masks exactly WRITTEN would take a quicker path
//    still, which counts and marks empty entries.)
//  - An anonymous page that was only ever read is the kernel's zero page and counts as written, once: it
//  costs a copy.
//  - Markers of protected pages that were discarded are reported as SWAPPED: counted as private, which only
//  costs.
//  - A full vector ends a scan early: go on at walk_end.
//  - When the last userfaultfd is closed, or memory was mapped anew, CHECK_WPASYNC answers EPERM: the set is
//  lost. A
//    scan that fails half-way has consumed dirtiness too. Both: all private pages are dirty.
//  - A process id may be used again: the pidfd tells after each copy that it was still the VMM.
#include "vmglue/dirty_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, REGIONS_MAX = 4096, VECTORS_MAX = 512 };

// Linux 6.7, younger than Debian 12's headers.
#ifndef PAGEMAP_SCAN
struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PM_SCAN_WP_MATCHING (1 << 0)
#define PM_SCAN_CHECK_WPASYNC (1 << 1)
#define PAGE_IS_WRITTEN (1 << 1)
#define PAGE_IS_FILE (1 << 2)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
_Static_assert(sizeof(struct pm_scan_arg) == 96 && sizeof(struct page_region) == 24, "the kernel's layout");

struct page_set {
    uint64_t *words;
    uint64_t count;
};

struct dirty_pages {
    int pid, pid_fd, uffd, pagemap_fd;
    uint64_t ram_address, page_count, word_count;
    bool tracks;                 // registered, and the last scan found it so
    struct page_set uncommitted; // since the last committed snapshot; holds every page of `round`
    struct page_set round;       // still to be copied
    uint64_t cursor;             // every word of `round` below is empty
    struct page_region *regions, *inner_regions; // REGIONS_MAX each; inner: of a walk inside a walk
    void (*each_present)(void *context, uint64_t offset, uint64_t length); // of dirty_pages_present
    void *present_context;
};

static void page_set_add(struct page_set *set, uint64_t page)
{
    uint64_t bit = 1ULL << (page % 64);
    set->count += (set->words[page / 64] & bit) == 0;
    set->words[page / 64] |= bit;
}

static void page_set_remove(struct page_set *set, uint64_t page)
{
    uint64_t bit = 1ULL << (page % 64);
    set->count -= (set->words[page / 64] & bit) != 0;
    set->words[page / 64] &= ~bit;
}

// ---- Life ----

// Whether [start, end) of the process is mapped, writable and private, without gaps.
static int check_mapping(int pid, uint64_t start, uint64_t end, struct error *err)
{
    char path[64], line[4200];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL) {
        int code = errno == ENOENT ? ESRCH : errno;
        return error_set(err, -code, "cannot read the memory map of process %d: %s", pid, strerror(code));
    }
    uint64_t covered = start;
    while (covered < end && fgets(line, sizeof line, maps) != NULL) {
        uint64_t from, to;
        char permissions[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, permissions) != 3 || to <= covered)
            continue;
        if (from > covered || permissions[1] != 'w' || permissions[3] != 'p')
            break;
        covered = to;
    }
    fclose(maps);
    if (covered >= end)
        return 0;
    return error_set(err, -EFAULT,
            "process %d has no writable private memory at 0x%lx, where its guest memory (0x%lx to 0x%lx) "
            "should be",
            pid, covered, start, end);
}

static int open_descriptors(struct dirty_pages *pages, int uffd, struct error *err)
{
    pages->pid_fd = (int)syscall(SYS_pidfd_open, pages->pid, 0);
    if (pages->pid_fd < 0)
        return error_set(err, -errno, "there is no process %d to snapshot: %s", pages->pid, strerror(errno));
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/pagemap", pages->pid);
    pages->pagemap_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (pages->pagemap_fd < 0)
        return error_set(err, -errno, "cannot open %s: %s (the daemon needs CAP_SYS_PTRACE over its VMMs)",
                path, strerror(errno));
    if (uffd >= 0) {
        pages->uffd = fcntl(uffd, F_DUPFD_CLOEXEC, 0);
        if (pages->uffd < 0)
            return error_set(err, -errno, "cannot duplicate the userfaultfd of process %d: %s", pages->pid,
                    strerror(errno));
    }
    return 0;
}

int dirty_pages_open(int pid, int uffd, uint64_t ram_address, uint64_t ram_bytes,
        struct dirty_pages **ret_pages, struct error *err)
{
    uint64_t end = ram_address + ram_bytes;
    if (ram_bytes == 0 || ram_address % PAGE_BYTES != 0 || ram_bytes % PAGE_BYTES != 0 || end < ram_address)
        return error_set(err, -EINVAL, "guest memory of %lu bytes at 0x%lx is not made of whole pages",
                ram_bytes, ram_address);
    struct dirty_pages *pages = calloc(1, sizeof *pages);
    if (pages == NULL)
        return error_set(err, -ENOMEM, "out of memory");
    *pages = (struct dirty_pages){.pid = pid,
            .pid_fd = -1,
            .uffd = -1,
            .pagemap_fd = -1,
            .ram_address = ram_address,
            .page_count = ram_bytes / PAGE_BYTES,
            .word_count = (ram_bytes / PAGE_BYTES + 63) / 64};
    pages->uncommitted.words = calloc(pages->word_count, sizeof(uint64_t));
    pages->round.words = calloc(pages->word_count, sizeof(uint64_t));
    pages->regions = calloc(REGIONS_MAX, sizeof *pages->regions);
    pages->inner_regions = calloc(REGIONS_MAX, sizeof *pages->inner_regions);
    int result;
    if (pages->uncommitted.words == NULL || pages->round.words == NULL || pages->regions == NULL ||
            pages->inner_regions == NULL)
        result = error_set(err, -ENOMEM, "out of memory");
    else if ((result = open_descriptors(pages, uffd, err)) == 0)
        result = check_mapping(pid, ram_address, end, err);
    if (result < 0) {
        dirty_pages_close(pages);
        return result;
    }
    *ret_pages = pages;
    return 0;
}

struct dirty_pages *dirty_pages_close(struct dirty_pages *pages)
{
    if (pages == NULL)
        return NULL;
    int fds[] = {pages->pid_fd, pages->uffd, pages->pagemap_fd};
    for (unsigned i = 0; i < 3; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(pages->uncommitted.words);
    free(pages->round.words);
    free(pages->regions);
    free(pages->inner_regions);
    free(pages);
    return NULL;
}

// ---- Scanning ----

static bool is_alive(struct dirty_pages *pages)
{
    struct pollfd poll_fd = {.fd = pages->pid_fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 0;
}

// Takes a portion of what a walk found.
typedef int (*found_callback)(struct dirty_pages *pages, const struct page_region *regions, unsigned count);

static int add_regions(struct dirty_pages *pages, const struct page_region *regions, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t page = (regions[i].start - pages->ram_address) / PAGE_BYTES;
        uint64_t end = (regions[i].end - pages->ram_address) / PAGE_BYTES;
        for (; page < end; page++) {
            page_set_add(&pages->uncommitted, page);
            page_set_add(&pages->round, page);
        }
    }
    pages->cursor = 0;
    return 0;
}

static int ignore_regions(struct dirty_pages *pages, const struct page_region *regions, unsigned count)
{
    return 0;
}

// Walks over the pages of [start, end) that are there and have the categories of `mask` (not those of
// `inverted`, which `mask` has too); protects them on the way when `flags` says so. `regions` has room for
// REGIONS_MAX.
static int walk(struct dirty_pages *pages, uint64_t start, uint64_t end, uint64_t mask, uint64_t inverted,
        uint64_t flags, struct page_region *regions, found_callback found)
{
    for (uint64_t at = start; at < end;) {
        struct pm_scan_arg arg = {.size = sizeof arg,
                .flags = flags,
                .start = at,
                .end = end,
                .vec = (uintptr_t)regions,
                .vec_len = REGIONS_MAX,
                .category_mask = mask,
                .category_inverted = inverted,
                .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                .return_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED};
        int count = ioctl(pages->pagemap_fd, PAGEMAP_SCAN, &arg);
        if (count < 0)
            return -errno;
        int result = found(pages, regions, (unsigned)count);
        if (result < 0)
            return result;
        if (arg.walk_end <= at)
            return -EIO; // a kernel that does not move on
        at = arg.walk_end;
    }
    return 0;
}

static uint64_t ram_end(const struct dirty_pages *pages)
{
    return pages->ram_address + pages->page_count * PAGE_BYTES;
}

// Of what was found, only what is private.
static int add_private_of(struct dirty_pages *pages, const struct page_region *regions, unsigned count)
{
    int result = 0;
    for (unsigned i = 0; i < count && result == 0; i++)
        result = walk(pages, regions[i].start, regions[i].end, PAGE_IS_FILE, PAGE_IS_FILE, 0,
                pages->inner_regions, add_regions);
    return result;
}

static int walk_private(struct dirty_pages *pages)
{
    return walk(pages, pages->ram_address, ram_end(pages), PAGE_IS_FILE, PAGE_IS_FILE, 0, pages->regions,
            add_regions);
}

static int walk_written(struct dirty_pages *pages, found_callback found)
{
    return walk(pages, pages->ram_address, ram_end(pages), PAGE_IS_WRITTEN, 0,
            PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, pages->regions, found);
}

// The kernel before 6.7, or a process that lost its address space.
static int scan_pagemap(struct dirty_pages *pages)
{
    enum { ENTRIES = 4096 };
    uint64_t entries[ENTRIES];
    for (uint64_t page = 0; page < pages->page_count;) {
        uint64_t count = pages->page_count - page < ENTRIES ? pages->page_count - page : ENTRIES;
        off_t offset = (off_t)((pages->ram_address / PAGE_BYTES + page) * sizeof(uint64_t));
        ssize_t got = pread(pages->pagemap_fd, entries, count * sizeof(uint64_t), offset);
        if (got <= 0)
            return got == 0 ? -ESRCH : -errno;
        for (uint64_t i = 0; i < (uint64_t)got / sizeof(uint64_t); i++, page++) {
            bool present = entries[i] >> 63 & 1, swapped = entries[i] >> 62 & 1, file = entries[i] >> 61 & 1;
            if ((present || swapped) && !file) {
                page_set_add(&pages->uncommitted, page);
                page_set_add(&pages->round, page);
            }
        }
    }
    pages->cursor = 0;
    return 0;
}

static int scan_failed(struct dirty_pages *pages, int result, struct error *err)
{
    if (!is_alive(pages) || result == -ESRCH)
        return error_set(err, -ESRCH, "the VMM (process %d) is gone", pages->pid);
    return error_set(err, result, "cannot scan the memory of process %d: %s", pages->pid, strerror(-result));
}

static int add_all_private(struct dirty_pages *pages, struct error *err)
{
    int result;
    do {
        result = walk_private(pages);
    } while (result == -EINTR);
    if (result == -ENOTTY || result == -EINVAL)
        result = scan_pagemap(pages);
    if (result < 0 || !is_alive(pages))
        return scan_failed(pages, result < 0 ? result : -ESRCH, err);
    return 0;
}

// Registers guest memory. Repeating it is harmless: a daemon that adopts a VM finds it registered.
static bool start_tracking(struct dirty_pages *pages)
{
    if (pages->uffd < 0)
        return false;
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};
    if (ioctl(pages->uffd, UFFDIO_API, &api) < 0 && errno != EINVAL)
        return false; // EINVAL: said before, by an earlier daemon; or unknown, then registering or the scan
                      // tells
    struct uffdio_register arg = {
            .range = {pages->ram_address, pages->page_count * PAGE_BYTES}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(pages->uffd, UFFDIO_REGISTER, &arg) == 0;
}

int dirty_pages_start(struct dirty_pages *pages, struct error *err)
{
    pages->tracks = start_tracking(pages);
    if (pages->tracks) {
        // Protects what counts as written, so that the next scan sees only what comes after. Order matters: a
        // page written after this is found by the next scan, a page written before is private in the one
        // below.
        pages->tracks = walk_written(pages, ignore_regions) == 0;
    }
    return add_all_private(pages, err);
}

int dirty_pages_scan(struct dirty_pages *pages, struct error *err)
{
    if (!pages->tracks)
        return dirty_pages_start(pages, err);
    int result = walk_written(pages, add_private_of);
    if (result < 0)
        return dirty_pages_start(pages, err);
    return is_alive(pages) ? 0 : scan_failed(pages, -ESRCH, err);
}

static int tell_regions(struct dirty_pages *pages, const struct page_region *regions, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        pages->each_present(pages->present_context, regions[i].start - pages->ram_address,
                regions[i].end - regions[i].start);
    return 0;
}

int dirty_pages_present(struct dirty_pages *pages,
        void (*each)(void *context, uint64_t offset, uint64_t length), void *context, struct error *err)
{
    pages->each_present = each;
    pages->present_context = context;
    int result = walk(
            pages, pages->ram_address, ram_end(pages), PAGE_IS_PRESENT, 0, 0, pages->regions, tell_regions);
    if (result == -ENOTTY || result == -EINVAL)
        return error_set(err, -EOPNOTSUPP, "this kernel does not tell which pages a process has mapped");
    if (result < 0 || !is_alive(pages))
        return scan_failed(pages, result < 0 ? result : -ESRCH, err);
    return 0;
}

bool dirty_pages_tracks(struct dirty_pages *pages)
{
    return pages->tracks;
}

uint64_t dirty_pages_round_count(struct dirty_pages *pages)
{
    return pages->round.count;
}

uint64_t dirty_pages_uncommitted_count(struct dirty_pages *pages)
{
    return pages->uncommitted.count;
}

void dirty_pages_round_all_uncommitted(struct dirty_pages *pages)
{
    memcpy(pages->round.words, pages->uncommitted.words, pages->word_count * sizeof(uint64_t));
    pages->round.count = pages->uncommitted.count;
    pages->cursor = 0;
}

void dirty_pages_committed(struct dirty_pages *pages)
{
    memcpy(pages->uncommitted.words, pages->round.words, pages->word_count * sizeof(uint64_t));
    pages->uncommitted.count = pages->round.count;
}

// ---- Copying ----

// The next pages of the round and the pieces of the VMM's memory that they make.
static unsigned pick_pages(struct dirty_pages *pages, uint64_t *blocks, unsigned max_pages,
        struct iovec *vectors, unsigned *ret_vectors)
{
    unsigned count = 0, vector_count = 0;
    for (uint64_t word = pages->cursor; word < pages->word_count; word++) {
        uint64_t bits = pages->round.words[word];
        if (bits == 0 && count == 0)
            pages->cursor = word + 1;
        for (; bits != 0; bits &= bits - 1) {
            uint64_t page = word * 64 + (uint64_t)__builtin_ctzll(bits);
            bool joins = count > 0 && blocks[count - 1] + 1 == page;
            if (count == max_pages || (!joins && vector_count == VECTORS_MAX))
                goto full;
            if (joins)
                vectors[vector_count - 1].iov_len += PAGE_BYTES;
            else
                vectors[vector_count++] = (struct iovec){
                        (void *)(uintptr_t)(pages->ram_address + page * PAGE_BYTES), PAGE_BYTES};
            blocks[count++] = page;
        }
    }
full:
    *ret_vectors = vector_count;
    return count;
}

static bool is_zero_page(const unsigned char *page)
{
    static const unsigned char zeros[64];
    return memcmp(page, zeros, sizeof zeros) == 0 &&
           memcmp(page, page + sizeof zeros, PAGE_BYTES - sizeof zeros) == 0;
}

static int copy_failed(struct dirty_pages *pages, int code, uint64_t page, struct error *err)
{
    if (!is_alive(pages) || code == ESRCH)
        return error_set(err, -ESRCH, "the VMM (process %d) is gone", pages->pid);
    if (code == EPERM)
        return error_set(err, -EPERM,
                "may not read the memory of process %d: the daemon needs CAP_SYS_PTRACE over its VMMs",
                pages->pid);
    return error_set(err, -code, "guest page %lu (guest address 0x%lx) of process %d cannot be read: %s",
            page, page * PAGE_BYTES, pages->pid, strerror(code));
}

int dirty_pages_next(struct dirty_pages *pages, uint64_t *ret_blocks, void *buffer, bool *ret_zero,
        unsigned max_pages, struct error *err)
{
    struct iovec vectors[VECTORS_MAX];
    unsigned vector_count;
    unsigned count = pick_pages(pages, ret_blocks, max_pages, vectors, &vector_count);
    if (count == 0)
        return 0;
    struct iovec local = {buffer, (size_t)count * PAGE_BYTES};
    ssize_t got = process_vm_readv(pages->pid, &local, 1, vectors, vector_count, 0);
    // A short count ends at a page that cannot be read: that one tells why when it comes first.
    unsigned copied = got > 0 ? (unsigned)(got / PAGE_BYTES) : 0;
    if (copied == 0)
        return copy_failed(pages, got < 0 ? errno : EFAULT, ret_blocks[0], err);
    if (!is_alive(pages))
        return copy_failed(pages, ESRCH, ret_blocks[0], err);
    for (unsigned i = 0; i < copied; i++) {
        ret_zero[i] = is_zero_page((unsigned char *)buffer + (size_t)i * PAGE_BYTES);
        page_set_remove(&pages->round, ret_blocks[i]);
    }
    return (int)copied;
}
