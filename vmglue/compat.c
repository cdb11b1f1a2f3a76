// SPDX-License-Identifier: Apache-2.0
// Kernel and initramfs are compared although a loaded guest has its kernel in memory: when it reboots, it
// gets the ones that are there then, and its modules and agent must fit them.
#include "vmglue/compat.h"

#include "blockstore/digest.h"
#include "vmglue/json.h"
#include "vmglue/qemu_args.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { FORMAT = 1, CACHE_SIZE = 16, DIGEST_TEXT = 64 };

// ---- Digests of files ----

struct cached_digest {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
    char text[DIGEST_TEXT];
};

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cached_digest cache[CACHE_SIZE]; // protected by cache_lock
static unsigned cache_next;                    // protected by cache_lock

static bool cache_find(const struct stat *stat, char *ret_text)
{
    bool found = false;
    pthread_mutex_lock(&cache_lock);
    for (unsigned i = 0; i < CACHE_SIZE && !found; i++) {
        const struct cached_digest *entry = &cache[i];
        found = entry->text[0] != 0 && entry->device == stat->st_dev && entry->inode == stat->st_ino &&
                entry->size == stat->st_size && entry->modified.tv_sec == stat->st_mtim.tv_sec &&
                entry->modified.tv_nsec == stat->st_mtim.tv_nsec;
        if (found)
            strcpy(ret_text, entry->text);
    }
    pthread_mutex_unlock(&cache_lock);
    return found;
}

static void cache_put(const struct stat *stat, const char *text)
{
    pthread_mutex_lock(&cache_lock);
    struct cached_digest *entry = &cache[cache_next++ % CACHE_SIZE];
    *entry = (struct cached_digest){
            .device = stat->st_dev, .inode = stat->st_ino, .size = stat->st_size, .modified = stat->st_mtim};
    snprintf(entry->text, sizeof entry->text, "%s", text);
    pthread_mutex_unlock(&cache_lock);
}

// "SIZE:DIGEST": tells builds apart, proves nothing.
static int digest_file(const char *what, const char *path, char *ret_text, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return error_set(err, -error, "cannot read the %s %s: %s", what, path, strerror(error));
    }
    if (!S_ISREG(stat.st_mode) || stat.st_size == 0) {
        close(fd);
        return error_set(err, -EINVAL, "the %s %s is %s", what, path,
                S_ISREG(stat.st_mode) ? "an empty file" : "not a file");
    }
    int result = 0;
    if (!cache_find(&stat, ret_text)) {
        void *bytes = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            result = error_set(err, -errno, "cannot read the %s %s: %s", what, path, strerror(errno));
        } else {
            snprintf(ret_text, DIGEST_TEXT, "%lld:%016llx%016llx", (long long)stat.st_size,
                    (unsigned long long)digest_bytes(bytes, (size_t)stat.st_size, 0),
                    (unsigned long long)digest_bytes(bytes, (size_t)stat.st_size, 1));
            munmap(bytes, (size_t)stat.st_size);
            cache_put(&stat, ret_text);
        }
    }
    close(fd);
    return result;
}

static int find_program(const char *name, char *ret_path, size_t size, struct error *err)
{
    if (strchr(name, '/') != NULL) {
        snprintf(ret_path, size, "%s", name);
        return 0;
    }
    const char *at = getenv("PATH");
    for (at = at != NULL ? at : "/usr/bin:/bin"; *at != 0;) {
        size_t length = strcspn(at, ":");
        snprintf(ret_path, size, "%.*s/%s", (int)length, at, name);
        if (access(ret_path, X_OK) == 0)
            return 0;
        at += length + (at[length] == ':');
    }
    return error_set(err, -ENOENT, "%s is not installed (Debian: apt-get install qemu-system-x86)", name);
}

// ---- Describing ----

// Under KVM, "max" is whatever the host has; under emulation it is the build's and the same everywhere.
static void describe_cpu(const char *accel, char *ret_text, size_t size)
{
    snprintf(ret_text, size, "max");
#if defined(__x86_64__)
    if (strcmp(accel, "kvm") == 0) {
        unsigned words[5][4] = {{0}};
        static const unsigned leaves[5] = {0, 1, 7, 0x80000001u, 0x80000008u};
        for (unsigned i = 0; i < 5; i++)
            __get_cpuid_count(leaves[i], 0, &words[i][0], &words[i][1], &words[i][2], &words[i][3]);
        words[1][1] &= 0x00ffffffu; // the number of the processor that happens to run this
        snprintf(ret_text, size, "max on host %016llx",
                (unsigned long long)digest_bytes(words, sizeof words, 0));
    }
#endif
}

static json_t *describe_disks(const struct vm_config *config)
{
    json_t *disks = json_array();
    for (unsigned i = 0; i < config->disk_count && i < VM_DISKS_MAX; i++)
        json_array_append_new(
                disks, json_pack("{s:I, s:b}", "size_bytes", (json_int_t)config->disks[i].size_bytes,
                               "read_only", (int)config->disks[i].read_only));
    return disks;
}

static json_t *describe_line(const struct vm_config *config, const char *accel, struct error *err)
{
    struct qemu_args args;
    if (qemu_args_build_canonical(config, accel, &args, err) < 0)
        return NULL;
    json_t *line = json_array();
    for (unsigned i = 0; i < args.count; i++)
        json_array_append_new(line, json_string(args.argv[i]));
    qemu_args_free(&args);
    return line;
}

static int add_digest(
        json_t *record, const char *field, const char *what, const char *path, struct error *err)
{
    char text[DIGEST_TEXT];
    int result = path != NULL ? digest_file(what, path, text, err) : 0;
    if (result == 0)
        json_object_set_new(record, field, path != NULL ? json_string(text) : json_null());
    return result;
}

int compat_describe(const struct vm_config *config, const char *accel, char **ret_json, struct error *err)
{
    char vmm[512], cpu[64];
    int result = find_program(
            config->vmm_path != NULL ? config->vmm_path : "qemu-system-x86_64", vmm, sizeof vmm, err);
    if (result < 0)
        return result;
    describe_cpu(accel, cpu, sizeof cpu);
    json_t *line = describe_line(config, accel, err);
    if (line == NULL)
        return -ENOMEM;
    JSON_AUTO json_t *record = json_pack("{s:i, s:s, s:s, s:I, s:I, s:s, s:s, s:s?, s:s?, s:o, s:o}",
            "format", FORMAT, "vmm", "qemu", "machine", vm_machine_name(config->shape.machine), "cpus",
            (json_int_t)config->shape.cpus, "memory_mb", (json_int_t)config->shape.memory_mb, "accel", accel,
            "cpu_model", cpu, "image_id", config->image_id, "memory_id", config->memory_id, "disks",
            describe_disks(config), "command_line", line);
    if (record == NULL)
        return error_set(
                err, -EINVAL, "the VM's configuration cannot be written as JSON: its texts must be UTF-8");
    json_object_set_new(record, "network_device", json_true());
    // Where all that is to be found again; what it is made of counts, not its name.
    json_object_set_new(
            record, "runtime", config->runtime != NULL ? json_string(config->runtime) : json_null());
    result = add_digest(record, "vmm_build", "VMM", vmm, err);
    if (result == 0)
        result = add_digest(record, "kernel", "kernel", config->kernel_path, err);
    if (result == 0)
        result = add_digest(record, "initramfs", "initramfs", config->initrd_path, err);
    if (result < 0)
        return result;
    char *text = json_dumps(record, JSON_COMPACT);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for a compatibility record");
    *ret_json = text;
    return 0;
}

// ---- Comparing ----

static const struct {
    const char *field, *label, *remedy;
    bool optional; // compared only when both have it
} fields[] = {
        {"vmm", "the kind of VMM", "use the VMM that took the snapshot", false},
        {"machine", "the machine type", "start it with the machine type of the snapshot", false},
        {"cpus", "the number of CPUs",
                "start it with the number of the snapshot; a running machine's size is fixed", false},
        {"memory_mb", "the memory size (MiB)",
                "start it with the size of the snapshot; a running machine's size is fixed", false},
        {"network_device", "the presence of a network device",
                "every machine has one now; boot a new one from the snapshot's disk", false},
        {"disks", "the disks", "give it the disks of the snapshot, in its order and sizes", false},
        {"accel", "the accelerator",
                "run it on a host (or with the setting) that has the accelerator of the snapshot", false},
        {"cpu_model", "the CPU model", "run it on a host with the same CPU", false},
        {"vmm_build", "the VMM's build",
                "install the build that took the snapshot, or point the daemon to a kept copy of it", false},
        {"kernel", "the kernel", "point the daemon to the kernel folder that the snapshot was made with",
                true},
        {"initramfs", "the initramfs",
                "point the daemon to the kernel folder that the snapshot was made with", true},
        {"image_id", "the image of the disk", "use a snapshot that was made from this image", true},
        {"command_line", "the VMM's command line", "use the version of this program that took the snapshot",
                false},
};

// For arrays: the first element that differs, which says more than both lists.
static void narrow(const json_t **a, const json_t **b)
{
    if (!json_is_array(*a) || !json_is_array(*b))
        return;
    size_t size = json_array_size(*a) > json_array_size(*b) ? json_array_size(*a) : json_array_size(*b);
    for (size_t i = 0; i < size; i++) {
        const json_t *left = json_array_get(*a, i), *right = json_array_get(*b, i);
        if (left == NULL || right == NULL || !json_equal(left, right)) {
            *a = left;
            *b = right;
            return;
        }
    }
}

static char *show(const json_t *value)
{
    return value == NULL ? strdup("nothing") : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
}

int compat_compare(const char *saved, const char *now, struct error *err)
{
    JSON_AUTO json_t *a = json_loads(saved, 0, NULL);
    JSON_AUTO json_t *b = json_loads(now, 0, NULL);
    if (!json_is_object(a) || !json_is_object(b))
        return error_set(err, -EBADMSG,
                "the snapshot's compatibility record is not one: the snapshot cannot be resumed");
    json_t *format = json_object_get(a, "format");
    if (!json_is_integer(format) || json_integer_value(format) != FORMAT)
        return error_set(err, -EPROTO,
                "the snapshot's compatibility record has format %lld and this program knows %d: use the "
                "program that wrote it",
                (long long)json_integer_value(format), FORMAT);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *left = json_object_get(a, fields[i].field),
                     *right = json_object_get(b, fields[i].field);
        bool missing = left == NULL || right == NULL || json_is_null(left) || json_is_null(right);
        if ((fields[i].optional && missing) || json_equal(left, right))
            continue;
        narrow(&left, &right);
        char *left_text = show(left), *right_text = show(right);
        error_set(err, -EINVAL, "%s of the snapshot is %s, and of the machine to start %s: %s",
                fields[i].label, left_text != NULL ? left_text : "?", right_text != NULL ? right_text : "?",
                fields[i].remedy);
        free(left_text);
        free(right_text);
        return -EINVAL;
    }
    return 0;
}
