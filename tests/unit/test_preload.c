// SPDX-License-Identifier: Apache-2.0
// The preload library inside a small program (this one, run again with a role) and inside QEMU, against the
// host's end.
#include "vmglue/preload/preload_wire.h"
#include "vmglue/preload_host.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RAM_BYTES = 64 << 20, REPORT_MS = 60000, ORIGIN_FD = 40, EXTENTS_FD = 41 };

static char self[3000], library[4096], directory[128], image[200], socket_path[200];
static struct error err;

// ---- The role inside ----

#define inside(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "inside, line %d: %s (errno %d)\n", __LINE__, #condition, errno);                \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static bool vm_flag(const void *address, const char *flag)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    inside(smaps != NULL);
    char line[600], start[40];
    bool here = false, found = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)address);
    while (fgets(line, sizeof line, smaps) != NULL) {
        if (strchr(line, '-') != NULL && strncmp(line, "VmFlags", 7) != 0 && line[0] != ' ' &&
                strchr(line, ':') > strchr(line, '-'))
            here = strncmp(line, start, strlen(start)) == 0;
        if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    fclose(smaps);
    return found;
}

static void check_opens(const char *path, bool is_image)
{
    static const char *const plain[] = {"open", "open64", "__open_2", "__open64_2"};
    static const char *const at[] = {"openat", "openat64", "__openat_2", "__openat64_2"};
    for (unsigned i = 0; i < 8; i++) {
        void *symbol = dlsym(RTLD_DEFAULT, i < 4 ? plain[i] : at[i - 4]);
        inside(symbol != NULL);
        int fd;
        if (i < 4)
            fd = ((int (*)(const char *, int, ...))symbol)(path, O_RDWR | O_CLOEXEC);
        else
            fd = ((int (*)(int, const char *, int, ...))symbol)(AT_FDCWD, path, O_RDWR | O_CLOEXEC);
        inside(fd >= 0);
        inside((fcntl(fd, F_GETFL) & O_ACCMODE) == (is_image ? O_RDONLY : O_RDWR));
        inside(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        inside((write(fd, "x", 1) == 1) == !is_image);
        close(fd);
    }
}

static int run_image_role(const char *image_path, const char *other_path)
{
    inside(getenv("LD_PRELOAD") == NULL && getenv("RAMET_PRELOAD_SOCKET") == NULL);
    check_opens(image_path, true);
    check_opens(other_path, false);
    int created = open("created", O_RDWR | O_CREAT | O_EXCL, 0640);
    struct stat st;
    inside(created >= 0 && fstat(created, &st) == 0 && (st.st_mode & 07777) == 0640);
    inside(fallocate(created, 0, 0, 8192) == 0);
    inside(fallocate(created, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
    int fd = open(image_path, O_RDWR | O_TRUNC); // nor may it be truncated
    inside(fd >= 0 && fstat(fd, &st) == 0 && st.st_size == RAM_BYTES);
    inside(mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    char *ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    inside(ram != MAP_FAILED);
    inside(ram[0] == 'i' && ram[4096] == 'm');
    ram[0] = 'w';
    inside(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 && errno == EOPNOTSUPP);
    inside(madvise(ram, RAM_BYTES, MADV_HUGEPAGE) == 0 && !vm_flag(ram, " hg"));
    inside(madvise(ram, RAM_BYTES, MADV_MERGEABLE) == 0 && !vm_flag(ram, " mg"));
    inside(madvise(ram, RAM_BYTES, MADV_DONTFORK) == 0 && vm_flag(ram, " dc"));
    inside(madvise(ram, 4096, MADV_DONTNEED) < 0 && errno == EINVAL && ram[0] == 'w');
    char *own = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own[0] = 'o';
    inside(madvise(own, 8192, MADV_DONTNEED) == 0 && own[0] == 0);
    inside(write(1, "mapped", 6) == 6);
    char byte;
    inside(read(0, &byte, 1) == 0); // until the test has looked
    return 0;
}

static int run_anonymous_role(void)
{
    char *reserve = mmap(NULL, RAM_BYTES + (2 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *decoy = mmap(NULL, RAM_BYTES - 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inside(reserve != MAP_FAILED && decoy != MAP_FAILED);
    char *ram = mmap(reserve + 4096, RAM_BYTES, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    inside(ram == reserve + 4096);
    inside(vm_flag(ram, " nh"));
    inside(write(1, &ram, sizeof ram) == (ssize_t)sizeof ram);
    char byte;
    inside(read(0, &byte, 1) == 0);
    return 0;
}

// The image says 'm' on its second page; the origin 'o' on its second and third. `own_pages`: what the
// extents say is from the image, "1" or "all".
static int run_origin_role(const char *image_path, const char *own_pages)
{
    int fd = open(image_path, O_RDONLY);
    char *ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    inside(ram != MAP_FAILED);
    inside(getenv("RAMET_PRELOAD_ORIGIN_FD") == NULL && fcntl(ORIGIN_FD, F_GETFD) < 0);
    bool all = strcmp(own_pages, "all") == 0;
    inside(ram[0] == (all ? 'i' : 0) && ram[4096] == 'm' && ram[8192] == (all ? 0 : 'o'));
    inside(ram[RAM_BYTES - 1] == (all ? 0 : 'e'));
    ram[8192] = 'w'; // private, whatever it is of
    inside(madvise(ram + 8192, 4096, MADV_DONTNEED) < 0 && errno == EINVAL && ram[8192] == 'w');
    inside(write(1, "mapped", 6) == 6);
    char byte;
    inside(read(0, &byte, 1) == 0);
    return 0;
}

// ---- The host's side ----

struct child {
    pid_t pid;
    int to, from;
};

static struct child start_child(char *const argv[], const char *ram_bytes, bool with_image)
{
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    struct child child = {.pid = fork(), .to = to[1], .from = from[0]};
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        setenv("LD_PRELOAD", library, 1);
        setenv("RAMET_PRELOAD_SOCKET", socket_path, 1);
        if (with_image)
            setenv("RAMET_PRELOAD_IMAGE", image, 1);
        if (ram_bytes != NULL)
            setenv("RAMET_PRELOAD_RAM_BYTES", ram_bytes, 1);
        if (getenv("RAMET_PRELOAD_ORIGIN_FD") != NULL) {
            dup2(open("origin", O_RDONLY), ORIGIN_FD);
            dup2(open("extents", O_RDONLY), EXTENTS_FD);
        }
        execvp(argv[0], argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    return child;
}

static int end_child(struct child *child)
{
    int status;
    close(child->to);
    close(child->from);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Guest memory is mapped in that process where the report says it is.
static void assert_mapped(const struct preload_report *report, const char *file)
{
    char path[64], line[600], range[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)report->pid);
    snprintf(range, sizeof range, "%lx-%lx rw-p", (unsigned long)report->ram_address,
            (unsigned long)(report->ram_address + report->ram_bytes));
    FILE *maps = fopen(path, "r");
    assert_non_null(maps);
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = strncmp(line, range, strlen(range)) == 0 && (file == NULL || strstr(line, file) != NULL);
    fclose(maps);
    if (!found)
        fail_msg("%s does not have %s of %s", path, range, file == NULL ? "anonymous memory" : file);
}

static void receive(int listen_fd, pid_t pid, bool from_image, struct preload_report *report)
{
    err.text[0] = '\0';
    if (preload_receive(listen_fd, pid, REPORT_MS, report, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(report->pid, pid);
    assert_int_equal(report->uid, getuid());
    assert_int_equal(report->ram_bytes, RAM_BYTES);
    assert_int_equal(report->from_image, from_image);
    assert_int_equal(report->uffd_errno, 0);
    char link[64], target[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", report->uffd);
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    assert_non_null(strstr(target, "userfaultfd"));
    close(report->uffd);
}

static int setup(void **state)
{
    snprintf(directory, sizeof directory, "/tmp/ramet-preload-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    assert_int_equal(chdir(directory), 0);
    snprintf(image, sizeof image, "%s/image", directory);
    snprintf(socket_path, sizeof socket_path, "%s/uffd.sock", directory);
    int fd = open(image, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, RAM_BYTES), 0);
    assert_int_equal(pwrite(fd, "i", 1, 0), 1);
    assert_int_equal(pwrite(fd, "m", 1, 4096), 1);
    close(fd);
    fd = open("other", O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    int *listen_fd = malloc(sizeof *listen_fd);
    assert_int_equal(preload_listen(socket_path, listen_fd, &err), 0);
    *state = listen_fd;
    return 0;
}

static int teardown(void **state)
{
    close(*(int *)*state);
    free(*state);
    char command[200];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return chdir("/") < 0 || system(command) != 0;
}

static void test_image(void **state)
{
    char *const argv[] = {self, "image", image, "other", NULL};
    struct child child = start_child(argv, NULL, true);
    struct preload_report report;
    char said[8] = "";
    receive(*(int *)*state, child.pid, true, &report);
    assert_int_equal(read(child.from, said, 6), 6);
    assert_string_equal(said, "mapped");
    assert_mapped(&report, "/image");
    assert_int_equal(end_child(&child), 0);
}

static void test_anonymous(void **state)
{
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%d", RAM_BYTES);
    char *const argv[] = {self, "anonymous", NULL};
    struct child child = start_child(argv, bytes, false);
    struct preload_report report;
    uintptr_t address;
    receive(*(int *)*state, child.pid, false, &report);
    assert_int_equal(read(child.from, &address, sizeof address), sizeof address);
    assert_int_equal(address, report.ram_address); // neither the reservation nor the decoy
    assert_int_equal(end_child(&child), 0);
}

// The report's range, made of mappings of both files without a gap, private and writable.
static unsigned count_mappings(const struct preload_report *report, const char *file)
{
    char path[64], line[600], permissions[5];
    unsigned long from, to;
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)report->pid);
    FILE *maps = fopen(path, "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %4s", &from, &to, permissions) == 3 && from >= report->ram_address &&
                to <= report->ram_address + report->ram_bytes && strstr(line, file) != NULL) {
            assert_string_equal(permissions, "rw-p");
            count++;
        }
    fclose(maps);
    return count;
}

static void write_extents(const void *bytes, size_t size)
{
    int fd = open("extents", O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static void run_origin(
        int listen_fd, const char *own_pages, unsigned image_mappings, unsigned origin_mappings)
{
    char *const argv[] = {self, "origin", image, (char *)own_pages, NULL};
    struct preload_report report;
    char said[8] = "";
    setenv("RAMET_PRELOAD_ORIGIN_FD", "40", 1);
    setenv("RAMET_PRELOAD_EXTENTS_FD", "41", 1);
    struct child child = start_child(argv, NULL, true);
    unsetenv("RAMET_PRELOAD_ORIGIN_FD");
    unsetenv("RAMET_PRELOAD_EXTENTS_FD");
    receive(listen_fd, child.pid, true, &report);
    assert_int_equal(read(child.from, said, 6), 6);
    assert_int_equal(count_mappings(&report, "/image"), image_mappings);
    assert_int_equal(count_mappings(&report, "/origin"), origin_mappings);
    assert_int_equal(end_child(&child), 0);
}

static void test_origin(void **state)
{
    struct {
        struct preload_extents_header header;
        struct preload_extent extents[2];
    } list = {{PRELOAD_EXTENTS_MAGIC, 1, RAM_BYTES}, {{4096, 4096}}};
    int origin = open("origin", O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(origin, RAM_BYTES), 0);
    assert_int_equal(pwrite(origin, "o", 1, 4096), 1);
    assert_int_equal(pwrite(origin, "o", 1, 8192), 1);
    assert_int_equal(pwrite(origin, "e", 1, RAM_BYTES - 1), 1);
    close(origin);
    write_extents(&list, sizeof list.header + sizeof list.extents[0]);
    run_origin(*(int *)*state, "1", 1, 2);
    // Lists that are not sound: the image alone.
    static const struct preload_extent wrong[][2] = {{{4096, 0}}, {{4096, 100}}, {{4097, 4096}},
            {{RAM_BYTES, 4096}}, {{4096, RAM_BYTES}}, {{8192, 4096}, {4096, 4096}},
            {{4096, 8192}, {8192, 4096}}, {{4096, UINT64_MAX - 4095}}};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(list.extents, wrong[i], sizeof list.extents);
        list.header.count = wrong[i][1].length == 0 ? 1 : 2;
        write_extents(&list, sizeof list.header + list.header.count * sizeof list.extents[0]);
        run_origin(*(int *)*state, "all", 1, 0);
    }
    write_extents(&list, sizeof list.header); // cut short
    run_origin(*(int *)*state, "all", 1, 0);
    list.header = (struct preload_extents_header){PRELOAD_EXTENTS_MAGIC, PRELOAD_EXTENTS_MAX + 1, RAM_BYTES};
    write_extents(&list, sizeof list);
    run_origin(*(int *)*state, "all", 1, 0);
    list.header = (struct preload_extents_header){PRELOAD_EXTENTS_MAGIC, 0, RAM_BYTES + 4096};
    write_extents(&list, sizeof list.header);
    run_origin(*(int *)*state, "all", 1, 0);
    write_extents("", 0);
    run_origin(*(int *)*state, "all", 1, 0);
}

static void test_nobody_listens(void **state)
{
    assert_int_equal(unlink(socket_path), 0);
    char *const argv[] = {self, "image", image, "other", NULL};
    struct child child = start_child(argv, NULL, true);
    char said[8] = "";
    assert_int_equal(read(child.from, said, 6), 6); // it runs on
    assert_int_equal(end_child(&child), 0);
}

static void test_other_process_is_turned_away(void **state)
{
    struct preload_report report;
    int fd;
    assert_int_equal(unix_socket_connect(socket_path, SOCK_STREAM, &fd), 0);
    char *const argv[] = {self, "image", image, "other", NULL};
    struct child child = start_child(argv, NULL, true);
    receive(*(int *)*state, child.pid, true, &report); // not this process's connection, which came first
    close(fd);
    char said[8] = "";
    assert_int_equal(read(child.from, said, 6), 6);
    assert_int_equal(end_child(&child), 0);
}

static void test_garbage_report(void **state)
{
    struct preload_report report;
    int fd;
    assert_int_equal(unix_socket_connect(socket_path, SOCK_STREAM, &fd), 0);
    assert_int_equal(unix_socket_send(fd, "this is no report of guest memory, is it?", 40, 0), 0);
    assert_int_equal(preload_receive(*(int *)*state, 0, REPORT_MS, &report, &err), -EPROTO);
    close(fd);
    assert_int_equal(unix_socket_connect(socket_path, SOCK_STREAM, &fd), 0);
    assert_int_equal(unix_socket_send(fd, "short", 5, -1), 0);
    close(fd);
    assert_int_equal(preload_receive(*(int *)*state, 0, REPORT_MS, &report, &err), -EPROTO);
    assert_int_equal(preload_receive(*(int *)*state, 0, 1, &report, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "LD_PRELOAD"));
}

// ---- QEMU ----

static bool image_is_open_read_only(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *fds = opendir(path);
    assert_non_null(fds);
    unsigned found = 0, writable = 0;
    for (struct dirent *entry; (entry = readdir(fds)) != NULL;) {
        char link[400], target[4096];
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        ssize_t size = readlink(link, target, sizeof target - 1);
        if (size <= 0)
            continue;
        target[size] = '\0';
        if (strcmp(target, image) != 0)
            continue;
        char info[400], line[100];
        unsigned flags = O_RDWR;
        snprintf(info, sizeof info, "/proc/%d/fdinfo/%s", (int)pid, entry->d_name);
        FILE *file = fopen(info, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file) != NULL)
            sscanf(line, "flags: %o", &flags);
        fclose(file);
        found++;
        writable += (flags & O_ACCMODE) != O_RDONLY;
    }
    closedir(fds);
    return found > 0 && writable == 0;
}

static void expect_line(FILE *from, const char *what)
{
    char line[4096];
    do {
        if (fgets(line, sizeof line, from) == NULL)
            fail_msg("QEMU ended before it said %s", what);
    } while (strstr(line, what) == NULL);
}

static void run_qemu(int listen_fd, const char *machine, bool from_image)
{
    char object[400], machine_option[200], bytes[32];
    snprintf(bytes, sizeof bytes, "%d", RAM_BYTES);
    if (from_image)
        snprintf(object, sizeof object, "memory-backend-file,id=mem,size=64M,mem-path=%s,share=off", image);
    else
        snprintf(object, sizeof object, "memory-backend-ram,id=mem,size=64M,share=off");
    snprintf(machine_option, sizeof machine_option, "%s,memory-backend=mem", machine);
    char *const argv[] = {"qemu-system-x86_64", "-S", "-M", machine_option, "-object", object, "-m", "64",
            "-accel", "tcg,thread=multi,tb-size=64", "-nodefaults", "-no-user-config", "-display", "none",
            "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", "-qmp",
            "stdio", NULL};
    struct child child = start_child(argv, from_image ? NULL : bytes, from_image);
    struct preload_report report;
    receive(listen_fd, child.pid, from_image, &report);
    FILE *from = fdopen(child.from, "r");
    assert_non_null(from);
    expect_line(from, "QMP");
    static const char commands[] = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"cont\"}\n"
                                   "{\"execute\":\"query-status\",\"id\":\"q\"}\n";
    assert_int_equal(write(child.to, commands, sizeof commands - 1), sizeof commands - 1);
    expect_line(from, "\"running\": true");
    assert_mapped(&report, from_image ? image : NULL);
    if (from_image)
        assert_true(image_is_open_read_only(child.pid));
    assert_int_equal(write(child.to, "{\"execute\":\"quit\"}\n", 19), 19);
    expect_line(from, "SHUTDOWN");
    fclose(from);
    child.from = open("/dev/null", O_RDONLY);
    assert_int_equal(end_child(&child), 0);
}

static void skip_without_qemu(void)
{
    if (system("command -v qemu-system-x86_64 >/dev/null") != 0) {
        print_message("skipped: qemu-system-x86_64 is not installed\n");
        skip();
    }
}

static void test_qemu_cold(void **state)
{
    skip_without_qemu();
    run_qemu(*(int *)*state, "pc-q35-7.2", false);
}

static void test_qemu_cold_microvm(void **state)
{
    skip_without_qemu();
    run_qemu(*(int *)*state, "microvm", false);
}

static void test_qemu_image(void **state)
{
    skip_without_qemu();
    run_qemu(*(int *)*state, "pc-q35-7.2", true);
}

static void test_qemu_image_microvm(void **state)
{
    skip_without_qemu();
    run_qemu(*(int *)*state, "microvm", true);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "image") == 0)
        return run_image_role(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "origin") == 0)
        return run_origin_role(argv[2], argv[3]);
    if (argc == 2 && strcmp(argv[1], "anonymous") == 0)
        return run_anonymous_role();
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size < 0)
        return 1;
    self[size] = '\0';
    char copy[sizeof self];
    strcpy(copy, self);
    snprintf(library, sizeof library, "%s/../vmglue/libramet-preload.so", dirname(copy));
    if (access(library, F_OK) < 0) {
        printf("skipped: %s is not built (sanitizers do not work with it)\n", library);
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
            test(test_image),
            test(test_anonymous),
            test(test_origin),
            test(test_nobody_listens),
            test(test_other_process_is_turned_away),
            test(test_garbage_report),
            test(test_qemu_cold),
            test(test_qemu_cold_microvm),
            test(test_qemu_image),
            test(test_qemu_image_microvm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
