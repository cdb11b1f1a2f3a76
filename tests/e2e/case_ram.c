// SPDX-License-Identifier: Apache-2.0
// Whole-RAM comparison: snapshot a machine under memory and disk load, leave it stopped, and compare every
// page of its memory with the composed image. First a cold-booted source, then one resumed from an image; and
// what a child has mapped before its first instruction. Idle tests do not find lost pages: the loss is in an
// earlier round, under load.
#include "tests/e2e/cases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK_PAGES = 256 };

struct totals {
    uint64_t pages, zero_pages, last_pages, last_max, pause_ns, pause_max_ns, freeze_ns, rounds;
};

// By way of its mappings, whatever they are of.
static void read_mapped(struct machine *machine, const struct vm_memory *memory, uint64_t page, char *buffer)
{
    struct iovec to = {.iov_base = buffer, .iov_len = CHUNK_PAGES * BLOCK_SIZE};
    struct iovec from = {
            .iov_base = (void *)(memory->address + page * BLOCK_SIZE), .iov_len = CHUNK_PAGES * BLOCK_SIZE};
    if (process_vm_readv(machine->vm->pid, &to, 1, &from, 1, 0) != CHUNK_PAGES * BLOCK_SIZE)
        rig_fail("cannot read the memory of %s: %s", machine->id, strerror(errno));
}

// Pages that the VMM holds no copy of are those of its image (nothing for a cold boot).
static void read_guest(struct machine *machine, const struct vm_memory *memory, int pagemap,
        struct base *image, uint64_t page, char *buffer)
{
    uint64_t entries[CHUNK_PAGES];
    off_t at = (off_t)((memory->address / BLOCK_SIZE + page) * sizeof *entries);
    if (pread(pagemap, entries, sizeof entries, at) != (ssize_t)sizeof entries)
        rig_fail("cannot read the page map of %s: %s", machine->id, strerror(errno));
    if (image == NULL)
        memset(buffer, 0, CHUNK_PAGES * BLOCK_SIZE);
    else if (base_read_wait(image, page * BLOCK_SIZE, buffer, CHUNK_PAGES * BLOCK_SIZE) < 0)
        rig_fail("cannot read the image of %s", machine->id);
    for (unsigned i = 0; i < CHUNK_PAGES; i++) {
        if ((entries[i] >> 62) == 0)
            continue; // neither present nor swapped
        struct iovec to = {.iov_base = buffer + (size_t)i * BLOCK_SIZE, .iov_len = BLOCK_SIZE};
        struct iovec from = {
                .iov_base = (void *)(memory->address + (page + i) * BLOCK_SIZE), .iov_len = BLOCK_SIZE};
        if (process_vm_readv(machine->vm->pid, &to, 1, &from, 1, 0) != BLOCK_SIZE)
            rig_fail("cannot read the memory of %s: %s", machine->id, strerror(errno));
    }
}

static uint64_t compare_all(
        struct machine *machine, struct base_id image_id, bool mapped, struct base_id id, uint64_t *ret_first)
{
    struct vm_memory memory;
    struct error err;
    struct base *base = NULL, *image = NULL;
    if (vm_get_memory(machine->vm, &memory, &err) < 0)
        rig_fail("%s", err.text);
    if (base_open(machine->rig->store, id, &base) < 0 ||
            (image_id.value != 0 && base_open(machine->rig->store, image_id, &image) < 0))
        rig_fail("cannot open a memory base");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)machine->vm->pid);
    int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    char *guest = malloc(CHUNK_PAGES * BLOCK_SIZE), *composed = io_buffer_alloc(CHUNK_PAGES * BLOCK_SIZE);
    uint64_t differ = 0;
    for (uint64_t page = 0; page < memory.bytes / BLOCK_SIZE; page += CHUNK_PAGES) {
        if (mapped)
            read_mapped(machine, &memory, page, guest);
        else
            read_guest(machine, &memory, pagemap, image, page, guest);
        if (base_read_wait(base, page * BLOCK_SIZE, composed, CHUNK_PAGES * BLOCK_SIZE) < 0)
            rig_fail("cannot read the composed memory at page %llu", (unsigned long long)page);
        for (unsigned i = 0; i < CHUNK_PAGES; i++) {
            if (memcmp(guest + (size_t)i * BLOCK_SIZE, composed + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) != 0 &&
                    differ++ == 0 && ret_first != NULL)
                *ret_first = page + i;
        }
    }
    close(pagemap);
    free(guest);
    io_buffer_free(composed);
    base_close(base);
    base_close(image);
    return differ;
}

uint64_t ram_compare(struct machine *machine, struct base_id image_id, struct base_id id, uint64_t *ret_first)
{
    return compare_all(machine, image_id, false, id, ret_first);
}

uint64_t ram_compare_mapped(struct machine *machine, struct base_id id, uint64_t *ret_first)
{
    return compare_all(machine, (struct base_id){0}, true, id, ret_first);
}

// Asks the kernel to reclaim what it can of guest memory, as a host short of memory would: clean pages of the
// image that a scan has protected go, and come back when the guest reads or writes them.
void ram_reclaim(struct machine *machine)
{
    struct vm_memory memory;
    struct error err;
    if (vm_get_memory(machine->vm, &memory, &err) < 0)
        rig_fail("%s", err.text);
    enum { PORTION = 64 << 20 };
    for (uint64_t at = 0; at < memory.bytes; at += PORTION) {
        struct iovec range = {.iov_base = (void *)(memory.address + at), .iov_len = PORTION};
        if (process_madvise(machine->vm->pid_fd, &range, 1, MADV_PAGEOUT, 0) < 0)
            rig_fail("cannot ask for reclaim of guest memory: %s", strerror(errno));
    }
}

static void go_on(struct machine *machine)
{
    struct error err;
    if (vm_continue(machine->vm, &err) < 0 || agent_thaw(machine->agent, &err) < 0)
        rig_fail("%s", err.text);
}

static void add_figures(struct totals *totals, const struct capture_figures *figures)
{
    totals->pages += figures->pages;
    totals->zero_pages += figures->zero_pages;
    totals->last_pages += figures->last_pages;
    totals->last_max = figures->last_pages > totals->last_max ? figures->last_pages : totals->last_max;
    totals->rounds += figures->rounds;
}

// The last snapshot is kept in *last, the ones before are deleted.
static void rounds_of(struct machine *machine, struct base_id image, unsigned rounds,
        struct capture_result *last, struct totals *totals)
{
    for (unsigned round = 0; round < rounds; round++) {
        struct capture_request request = machine_capture_request(machine, NULL);
        struct capture_result result;
        if (image.value != 0 && round % 3 == 1)
            ram_reclaim(machine);
        request.leave_paused = true;
        machine_capture(&request, &result);
        uint64_t first = 0, differ = ram_compare(machine, image, result.ids.memory, &first);
        if (differ != 0)
            rig_fail("%s, round %u: %llu pages of the snapshot differ from the guest's memory, the first is "
                     "%llu",
                    machine->id, round, (unsigned long long)differ, (unsigned long long)first);
        // The comparison can fail: the snapshot before this one is not what the guest has now.
        if (last->ids.machine.value != 0) {
            if (round == 0 ? false : ram_compare(machine, image, last->ids.memory, NULL) == 0)
                rig_fail("%s, round %u: the load changed no page between two snapshots", machine->id, round);
            if (round > 0) {
                struct error err;
                struct txn *txn = txn_begin(machine->rig->store);
                txn_doc_delete(txn, last->ids.machine);
                if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
                    rig_fail("%s", err.text);
            }
        }
        go_on(machine);
        *last = result;
        add_figures(totals, &result.figures);
    }
}

void case_ram(struct rig *rig, unsigned rounds)
{
    struct totals totals = {0};
    struct capture_result cold = {0}, resumed = {0};
    struct machine *source = machine_boot(rig, "source");
    load_install(source);
    load_start(source);
    unsigned half = rounds / 2;
    rounds_of(source, (struct base_id){0}, half, &cold, &totals);
    load_check(source);
    source = machine_end(source, false);

    struct machine *child = machine_load(rig, "child", cold.ids.machine);
    if (ram_compare(child, cold.ids.memory, cold.ids.memory, NULL) != 0)
        rig_fail("loading a snapshot changed guest memory");
    machine_go(child, true);
    load_wait(child, load_count(child) + 10);
    rounds_of(child, cold.ids.memory, rounds - half, &resumed, &totals);
    load_stop(child);
    load_check(child);
    machine_end(child, false);
    printf("%u snapshots under load, whole RAM compared: 0 wrong pages; %llu pages copied in %llu rounds, "
           "%llu of them zero; "
           "in the pause %.0f on average, %llu at most\n",
            rounds, (unsigned long long)totals.pages, (unsigned long long)totals.rounds,
            (unsigned long long)totals.zero_pages, (double)totals.last_pages / rounds,
            (unsigned long long)totals.last_max);
}
