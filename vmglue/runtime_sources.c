// SPDX-License-Identifier: Apache-2.0
// All libraries go flat into lib/, which the confined VMM gets as LD_LIBRARY_PATH: whatever search paths this
// host has (ld.so.conf, RUNPATH), they need not exist in the bundle. Only the loader has a path that is fixed
// by the program; it lies in lib64/ or lib/ of the VMM's root.
#include "vmglue/runtime_sources.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { PATH_SIZE = 512, OUTPUT_SIZE = 64 << 10, PROGRAM_TIMEOUT_MS = 20000 };

// What our command lines (q35 and microvm, a kernel by -kernel, no option ROMs of network cards) make QEMU
// open in its data folders, by tracing it: firmware of either machine, the APIC's helper, and the three ways
// to start a kernel.
static const char *const firmware[] = {"bios-256k.bin", "bios-microvm.bin", "kvmvapic.bin",
        "linuxboot_dma.bin", "linuxboot.bin", "multiboot_dma.bin", "multiboot.bin", "pvh.bin"};
// Of its modules only this one: KVM, NBD and virtio are built in.
static const char *const modules[] = {"accel-tcg-x86_64.so"};
// Opened by the C library itself when a thread ends early.
static const char unwinder[] = "libgcc_s.so.1";

// ---- The list ----

static int add(struct runtime_sources *sources, const char *path, const char *folder, const char *name,
        mode_t mode, struct error *err)
{
    struct runtime_source source = {.mode = mode};
    if ((size_t)snprintf(source.target, sizeof source.target, "%s%s%s", folder, folder[0] == '\0' ? "" : "/",
                name) >= sizeof source.target)
        return error_set(err, -ENAMETOOLONG, "the name of %s is too long for a runtime bundle", path);
    for (unsigned i = 0; i < sources->count; i++)
        if (strcmp(sources->items[i].target, source.target) == 0)
            return 0; // another program needs it too
    if (sources->count == RUNTIME_SOURCES_MAX)
        return error_set(err, -E2BIG, "the VMM needs more than %d files", RUNTIME_SOURCES_MAX);
    source.path = strdup(path);
    if (source.path == NULL)
        return error_set(err, -ENOMEM, "no memory for the list of a runtime's files");
    sources->items[sources->count++] = source;
    return 0;
}

void runtime_sources_free(struct runtime_sources *sources)
{
    if (sources == NULL)
        return;
    for (unsigned i = 0; i < sources->count; i++)
        free(sources->items[i].path);
    free(sources);
}

// ---- Asking programs ----

// Until the end of what it prints, or the time limit.
static size_t read_all(int fd, char *buffer, size_t size)
{
    size_t used = 0;
    for (uint64_t end = clock_monotonic_ms() + PROGRAM_TIMEOUT_MS, now;
            (now = clock_monotonic_ms()) < end && used < size - 1;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, (int)(end - now)) <= 0)
            continue;
        ssize_t got = read(fd, buffer + used, size - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    buffer[used] = '\0';
    return used;
}

// Runs a program with an empty environment and reads its standard output. Returns its exit status or -errno.
static int run(const char *const *argv, char *buffer, size_t size)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    char *const none[] = {NULL};
    pid_t pid = 0;
    if (error == 0)
        error = posix_spawn(&pid, argv[0], &actions, NULL, (char *const *)argv, none);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    int status = 0;
    if (error == 0) {
        read_all(ends[0], buffer, size);
        kill(pid, SIGKILL); // one that closed its output and did not end; no effect on one that ended
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    close(ends[0]);
    return error != 0 ? -error : WIFEXITED(status) ? WEXITSTATUS(status) : -ECANCELED;
}

// ---- The program and its loader ----

static int find_vmm(const char *name, char *ret_path, size_t size, struct error *err)
{
    const char *wanted = name != NULL ? name : "qemu-system-x86_64", *at = getenv("PATH");
    if (strchr(wanted, '/') != NULL) {
        snprintf(ret_path, size, "%s", wanted);
        return 0;
    }
    for (at = at != NULL ? at : "/usr/bin:/bin"; *at != '\0';) {
        size_t length = strcspn(at, ":");
        snprintf(ret_path, size, "%.*s/%s", (int)length, at, wanted);
        if (access(ret_path, X_OK) == 0)
            return 0;
        at += length + (at[length] == ':');
    }
    return error_set(err, -ENOENT, "%s is not installed (Debian: apt-get install qemu-system-x86)", wanted);
}

// The loader that an ELF program names; "" when it is static.
static int parse_interpreter(const uint8_t *bytes, size_t size, char *ret_path, size_t capacity)
{
    Elf64_Ehdr header;
    if (size < sizeof header)
        return -ENOEXEC;
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
            header.e_phentsize != sizeof(Elf64_Phdr))
        return -ENOEXEC;
    ret_path[0] = '\0';
    for (unsigned i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr program;
        uint64_t at = header.e_phoff + (uint64_t)i * sizeof program;
        if (at > size || size - at < sizeof program)
            return -ENOEXEC;
        memcpy(&program, bytes + at, sizeof program);
        if (program.p_type != PT_INTERP)
            continue;
        if (program.p_offset > size || size - program.p_offset < program.p_filesz ||
                program.p_filesz >= capacity)
            return -ENOEXEC;
        memcpy(ret_path, bytes + program.p_offset, program.p_filesz);
        ret_path[program.p_filesz] = '\0';
    }
    return 0;
}

static int find_interpreter(const char *program, char *ret_path, size_t size, struct error *err)
{
    int fd = open(program, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) < 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return error_set(err, -error, "the VMM %s cannot be read: %s", program, strerror(error));
    }
    void *bytes =
            stat.st_size > 0 ? mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    int result =
            bytes == MAP_FAILED ? -ENOEXEC : parse_interpreter(bytes, (size_t)stat.st_size, ret_path, size);
    if (bytes != MAP_FAILED)
        munmap(bytes, (size_t)stat.st_size);
    return result == 0
                   ? 0
                   : error_set(err, -ENOEXEC,
                             "%s is no 64-bit ELF program, so a confined VMM cannot be made of it: name the "
                             "emulator itself with --vmm, or run with --no-confine",
                             program);
}

// ---- Libraries ----

// A line of the loader's list: "NAME => /PATH (0x...)" or "/PATH (0x...)"; false for other lines (the vdso).
static bool parse_library(char *line, const char **ret_path)
{
    char *arrow = strstr(line, " => "), *path = arrow != NULL ? arrow + 4 : line + strspn(line, " \t");
    char *end = strstr(path, " (0x");
    if (path[0] != '/' || end == NULL)
        return false;
    *end = '\0';
    *ret_path = path;
    return true;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

// What `file` (a program or library) needs, by the word of the loader.
static int add_libraries(
        struct runtime_sources *sources, const char *loader, const char *file, struct error *err)
{
    const char *argv[] = {loader, "--list", file, NULL};
    char *text = malloc(OUTPUT_SIZE), *rest = text;
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for a list of libraries");
    int result = run(argv, text, OUTPUT_SIZE);
    if (result != 0)
        result = error_set(err, result < 0 ? result : -ENOEXEC,
                "the loader %s does not say which libraries %s needs: is it a program of this system?",
                loader, file);
    for (char *line; result == 0 && (line = strsep(&rest, "\n")) != NULL;) {
        const char *path;
        if (strstr(line, "not found") != NULL)
            result = error_set(err, -ENOENT, "a library that %s needs is not installed:%s", file, line);
        else if (parse_library(line, &path) && strcmp(last_part(path), last_part(loader)) != 0)
            result = add(sources, path, "lib", last_part(path), 0444, err);
    }
    free(text);
    return result;
}

// The folder of the C library, where others of the system are.
static bool system_folder(const struct runtime_sources *sources, char *ret_path, size_t size)
{
    for (unsigned i = 0; i < sources->count; i++)
        if (strcmp(sources->items[i].target, "lib/libc.so.6") == 0) {
            const char *path = sources->items[i].path;
            snprintf(ret_path, size, "%.*s", (int)(last_part(path) - path - 1), path);
            return true;
        }
    return false;
}

static int add_modules(struct runtime_sources *sources, const char *loader, struct error *err)
{
    char folder[PATH_SIZE], path[PATH_SIZE + 64];
    int result = 0;
    if (!system_folder(sources, folder, sizeof folder))
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, unwinder);
    if (access(path, R_OK) == 0)
        result = add(sources, path, "lib", unwinder, 0444, err);
    for (size_t i = 0; i < sizeof modules / sizeof *modules && result == 0; i++) {
        snprintf(path, sizeof path, "%s/qemu/%s", folder, modules[i]);
        if (access(path, R_OK) < 0)
            continue; // built in
        result = add(sources, path, "lib/qemu", modules[i], 0444, err);
        if (result == 0)
            result = add_libraries(sources, loader, path, err);
    }
    return result;
}

// ---- Firmware ----

// `VMM -L help` prints its data folders. One that prints none has what it needs in itself.
static int add_firmware(struct runtime_sources *sources, const char *vmm, struct error *err)
{
    const char *argv[] = {vmm, "-L", "help", NULL};
    char text[4096] = "", *rest = text, path[PATH_SIZE];
    int result = 0;
    if (run(argv, text, sizeof text) != 0)
        return 0;
    for (char *folder; result == 0 && (folder = strsep(&rest, "\n")) != NULL;) {
        for (size_t i = 0; folder[0] == '/' && i < sizeof firmware / sizeof *firmware && result == 0; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, firmware[i]);
            if (access(path, R_OK) == 0) // the first folder wins, as for QEMU
                result = add(sources, path, "share", firmware[i], 0444, err);
        }
    }
    return result;
}

// ---- All ----

static int find_dynamic(struct runtime_sources *sources, const char *vmm, const char *loader,
        const char *preload, struct error *err)
{
    // The folder is part of the program: "/lib64/ld-linux-x86-64.so.2".
    const char *name = last_part(loader);
    char folder[PATH_SIZE];
    snprintf(folder, sizeof folder, "%.*s", (int)(name - loader - 2), loader + 1);
    if (strcmp(folder, "lib64") != 0 && strcmp(folder, "lib") != 0)
        return error_set(err, -ENOTSUP,
                "%s has its loader at %s, where a confined VMM would not find it: run with --no-confine", vmm,
                loader);
    int result = add(sources, loader, folder, name, 0555, err);
    if (result == 0)
        result = add_libraries(sources, loader, vmm, err);
    if (result == 0 && preload != NULL)
        result = add_libraries(sources, loader, preload, err);
    if (result == 0)
        result = add_modules(sources, loader, err);
    return result;
}

int runtime_sources_find(
        const struct runtime_origin *origin, struct runtime_sources **ret_sources, struct error *err)
{
    char vmm[PATH_SIZE], loader[PATH_SIZE];
    struct runtime_sources *sources = calloc(1, sizeof *sources);
    if (sources == NULL)
        return error_set(err, -ENOMEM, "no memory for the list of a runtime's files");
    int result = find_vmm(origin->vmm_path, vmm, sizeof vmm, err);
    if (result == 0)
        result = find_interpreter(vmm, loader, sizeof loader, err);
    if (result == 0)
        result = add(sources, vmm, "", RUNTIME_VMM, 0555, err);
    if (result == 0 && loader[0] == '/')
        result = find_dynamic(sources, vmm, loader, origin->preload_path, err);
    if (result == 0)
        result = add_firmware(sources, vmm, err);
    if (result == 0 && origin->preload_path != NULL)
        result = add(sources, origin->preload_path, "", RUNTIME_PRELOAD, 0444, err);
    if (result == 0 && origin->kernel_path != NULL)
        result = add(sources, origin->kernel_path, "", RUNTIME_KERNEL, 0444, err);
    if (result == 0 && origin->initrd_path != NULL)
        result = add(sources, origin->initrd_path, "", RUNTIME_INITRD, 0444, err);
    if (result < 0)
        runtime_sources_free(sources);
    else
        *ret_sources = sources;
    return result;
}
