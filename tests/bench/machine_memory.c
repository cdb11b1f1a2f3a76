// SPDX-License-Identifier: Apache-2.0
// Row 12: host memory of guests just after resume. A guest's memory costs its private pages and its share of
// the page cache of the image it maps. Each is stopped once its agent has answered, so that the count is of
// that moment.
#include "tests/bench/machine_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SESSIONS = 10 };

struct usage {
    double private_mib, vmm_mib; // of the guest's memory; of everything else in the process
};

// Sums the field over the mappings inside guest memory (inside) or all others.
static double smaps_mib(
        struct machine *machine, const struct vm_memory *memory, const char *field, bool inside)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)machine->vm->pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        rig_fail("cannot read %s: %s", path, strerror(errno));
    unsigned long long start, end, kib;
    bool counted = false;
    double sum = 0;
    char name[64];
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            counted = (start >= memory->address && end <= memory->address + memory->bytes) == inside;
        else if (counted && sscanf(line, "%63[^:]: %llu kB", name, &kib) == 2 && strcmp(name, field) == 0)
            sum += (double)kib / 1024;
    }
    fclose(file);
    return sum;
}

static struct usage usage_of(struct machine *machine)
{
    struct vm_memory memory;
    struct error err;
    if (vm_get_memory(machine->vm, &memory, &err) < 0)
        rig_fail("%s", err.text);
    // Not Anonymous: a private page may be in swap, which is memory of the host too.
    return (struct usage){.private_mib = smaps_mib(machine, &memory, "Anonymous", true) +
                                         smaps_mib(machine, &memory, "Swap", true),
            .vmm_mib = smaps_mib(machine, &memory, "Anonymous", false)};
}

static double resident_mib(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        rig_fail("cannot open %s: %s", path, strerror(errno));
    size_t size = (size_t)stat.st_size, pages = size / 4096, resident = 0;
    void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *there = malloc(pages);
    if (mapped == MAP_FAILED || mincore(mapped, size, there) != 0)
        rig_fail("cannot ask what of %s is in memory: %s", path, strerror(errno));
    for (size_t i = 0; i < pages; i++)
        resident += there[i] & 1;
    munmap(mapped, size);
    free(there);
    close(fd);
    return (double)resident * 4096 / (1 << 20);
}

static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static struct machine *resume_and_stop(
        struct rig *rig, const char *prefix, unsigned number, struct doc_id snapshot)
{
    char id[32], path[200];
    struct error err;
    snprintf(id, sizeof id, "%s-%u", prefix, number);
    struct machine *machine = machine_load(rig, id, snapshot);
    if (rig->own_memory_files) {
        machine_memory_path(machine, path, sizeof path);
        drop_cache(path); // written a moment ago; what the guest reads of it comes back
    }
    machine_go(machine, true);
    if (vm_pause(machine->vm, 60000, &err) < 0)
        rig_fail("%s", err.text);
    return machine;
}

// MiB per guest: private pages, and all together with the page cache of what they map.
struct family {
    double private_mib, total_mib, vmm_mib;
};

static struct family family_of(struct machine **machines, unsigned count, bool one_image)
{
    struct family family = {0};
    char path[200];
    for (unsigned i = 0; i < count; i++) {
        struct usage usage = usage_of(machines[i]);
        family.private_mib += usage.private_mib / count;
        family.vmm_mib += usage.vmm_mib / count;
        family.total_mib += usage.private_mib / count;
        machine_memory_path(machines[i], path, sizeof path);
        if (i == 0 || !one_image)
            family.total_mib += resident_mib(path) / count;
    }
    return family;
}

static struct family measure_forks(struct rig *rig, unsigned count, bool own_files, struct doc_id snapshot)
{
    struct machine **machines = calloc(count, sizeof(struct machine *));
    rig->own_memory_files = own_files;
    for (unsigned i = 0; i < count; i++)
        machines[i] = resume_and_stop(rig, own_files ? "own" : "fork", i, snapshot);
    struct family family = family_of(machines, count, !own_files);
    for (unsigned i = 0; i < count; i++)
        machine_end(machines[i], false);
    rig->own_memory_files = false;
    free(machines);
    return family;
}

void bench_forget_image(struct rig *rig, struct base_id image)
{
    char path[160];
    snprintf(path, sizeof path, "%s/mem/%llu", rig->directory, (unsigned long long)image.value);
    drop_cache(path);
}

// The sessions stopped just after resume: everything together, the template's page cache once. What is in
// the page cache is only what they touch.
static double sessions_mib(
        struct rig *rig, const struct doc_id *snapshots, unsigned count, struct base_id template)
{
    struct machine *sessions[SESSIONS];
    char path[160];
    bench_forget_image(rig, template);
    for (unsigned i = 0; i < count; i++) {
        sessions[i] = resume_and_stop(rig, "session", i, snapshots[i]);
        if (getenv("RAMET_BENCH_VERBOSE") != NULL)
            fprintf(stderr, "    session %u: %u extents, %.1f MiB in them\n", i, sessions[i]->extents,
                    (double)sessions[i]->own_bytes / (1 << 20));
    }
    double total = family_of(sessions, count, false).total_mib * count;
    if (rig->share) {
        snprintf(path, sizeof path, "%s/mem/%llu", rig->directory, (unsigned long long)template.value);
        total += resident_mib(path);
    }
    for (unsigned i = 0; i < count; i++) {
        struct base_id image = sessions[i]->image;
        machine_end(sessions[i], false);
        bench_forget_image(rig, image);
    }
    return total;
}

// Each of ten sessions resumes the template, changes 4 MiB, is snapshotted, ended, and resumed from its own
// snapshot.
static void measure_sessions(
        struct bench *bench, struct doc_id template, struct base_id template_image, double template_mib)
{
    struct rig *rig = bench->rig;
    struct doc_id snapshots[SESSIONS];
    double changed_mib = 0;
    unsigned count = bench->quick ? 3 : SESSIONS;
    rig->share = true;
    for (unsigned i = 0; i < count; i++) {
        struct machine *machine = machine_resume(rig, "session", template);
        free(machine_shell(machine, "head -c 4000000 /dev/urandom > /dev/shm/changes"));
        struct capture_request request = machine_capture_request(machine, NULL);
        struct capture_result result;
        machine_capture(&request, &result);
        snapshots[i] = result.ids.machine;
        changed_mib += usage_of(machine).private_mib;
        machine_end(machine, false);
    }
    double total = sessions_mib(rig, snapshots, count, template_image), bound = changed_mib + template_mib;
    rig->share = false;
    double apart = sessions_mib(rig, snapshots, count, template_image);
    bench_row(bench, 12, "sessions of one template, each resumed from its own snapshot, all together", total,
            bound, total / bound, "<= 1.3", total / bound <= 1.3, "MiB",
            "their own changes and the template once");
    bench_row(bench, 12, "the same, and what it would be without sharing", total, apart, apart / total, "-",
            -1, "MiB", "the same sessions, each from its own image alone");
    for (unsigned i = 0; i < count; i++)
        bench_delete(rig, snapshots[i]);
}

void bench_memory(struct bench *bench)
{
    struct rig *rig = bench->rig;
    unsigned forks = bench->quick ? 8 : 100, peers = bench->quick ? 3 : 8;
    struct machine *template = machine_boot(rig, "template");
    struct capture_request request = machine_capture_request(template, NULL);
    struct capture_result snapshot;
    machine_capture(&request, &snapshot);
    machine_end(template, false);
    struct family ours = measure_forks(rig, forks, false, snapshot.ids.machine);
    char path[200], text[120];
    snprintf(path, sizeof path, "%s/mem/%llu", rig->directory, (unsigned long long)snapshot.ids.memory.value);
    double template_mib = resident_mib(path);
    struct family own = measure_forks(rig, peers, true, snapshot.ids.machine);
    double over = ours.total_mib - ours.private_mib;
    snprintf(
            text, sizeof text, "guest memory of %u forks of one snapshot, each, beyond private pages", forks);
    bench_row(bench, 12, text, over, 2, over / 2, "<= 1", over <= 2, "MiB", "the goal of 2 MiB");
    bench_row(bench, 12, "guest memory of a fork, all", ours.total_mib, own.total_mib,
            own.total_mib / ours.total_mib, "-", -1, "MiB", "the same VMs, each with its own memory file");
    bench_row(bench, 12, "the VMM's own memory beside it", ours.vmm_mib, own.vmm_mib,
            own.vmm_mib / ours.vmm_mib, "-", -1, "MiB", "the same VMs, each with its own memory file");
    measure_sessions(bench, snapshot.ids.machine, snapshot.ids.memory, template_mib);
    bench_delete(rig, snapshot.ids.machine);
}
