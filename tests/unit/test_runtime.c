// SPDX-License-Identifier: Apache-2.0
// Runtime bundles, of the shell in the place of a VMM: made, used again, changed, damaged, lost, removed; and
// a program that runs from one, confined.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/runtime.h"
#include "vmglue/vm_confine.h"
#include "vmglue/vm_process.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct rig {
    char folder[64], kernel[96], initrd[96], store[96];
    struct runtimes *runtimes;
    unsigned made, mended, removed;
};

static void count_words(void *context, const char *message)
{
    struct rig *rig = context;
    rig->made += strstr(message, "was made of what is installed") != NULL;
    rig->mended += strstr(message, "made again") != NULL;
    rig->removed += strstr(message, "was removed") != NULL;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void reopen(struct rig *rig)
{
    struct error err;
    struct runtimes_config config = {.folder = rig->store,
            .origin = {.vmm_path = "/bin/sh", .kernel_path = rig->kernel, .initrd_path = rig->initrd},
            .log = count_words,
            .context = rig};
    rig->runtimes = runtimes_close(rig->runtimes);
    if (runtimes_open(&config, &rig->runtimes, &err) < 0)
        fail_msg("%s", err.text);
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);
    snprintf(rig->folder, sizeof rig->folder, "/tmp/runtime-test-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
    snprintf(rig->kernel, sizeof rig->kernel, "%s/kernel", rig->folder);
    snprintf(rig->initrd, sizeof rig->initrd, "%s/initrd", rig->folder);
    snprintf(rig->store, sizeof rig->store, "%s/runtimes", rig->folder);
    write_file(rig->kernel, "a kernel");
    write_file(rig->initrd, "");
    reopen(rig);
    *state = rig;
    return 0;
}

static int remove_entry(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    return remove(path);
}

static int tear_down(void **state)
{
    struct rig *rig = *state;
    runtimes_close(rig->runtimes);
    nftw(rig->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(rig);
    return 0;
}

static struct runtime hold_current(struct rig *rig)
{
    struct runtime runtime;
    struct error err;
    if (runtimes_hold_current(rig->runtimes, &runtime, &err) < 0)
        fail_msg("%s", err.text);
    return runtime;
}

static bool is_there(const struct runtime *runtime)
{
    return access(runtime->root, F_OK) == 0;
}

static bool nobody_needs(void *context, const char *name)
{
    return false;
}

static bool needs_this(void *context, const char *name)
{
    return strcmp(context, name) == 0;
}

static void made_once_and_used_again(void **state)
{
    struct rig *rig = *state;
    struct runtime first = hold_current(rig), second = hold_current(rig);
    assert_string_equal(first.name, second.name);
    assert_true(runtime_bundle_is_name(first.name));
    assert_int_equal(access(first.vmm, X_OK), 0);
    assert_int_equal(access(first.kernel, R_OK), 0);
    assert_string_equal(first.preload, ""); // there was none
    reopen(rig);                            // another daemon
    struct runtime third = hold_current(rig);
    assert_string_equal(first.name, third.name);
    assert_int_equal(rig->made, 1);
    // Written again with the same bytes it is copied to be compared, and is the same.
    write_file(rig->kernel, "a kernel");
    struct runtime fourth = hold_current(rig);
    assert_string_equal(first.name, fourth.name);
}

static void another_one_after_an_upgrade(void **state)
{
    struct rig *rig = *state;
    struct runtime old = hold_current(rig), again;
    struct error err;
    write_file(rig->kernel, "another kernel");
    struct runtime new = hold_current(rig);
    assert_string_not_equal(old.name, new.name);
    runtimes_put(rig->runtimes, new.name);
    runtimes_collect(rig->runtimes, nobody_needs, NULL);
    assert_true(is_there(&old)); // it is held
    runtimes_put(rig->runtimes, old.name);
    runtimes_collect(rig->runtimes, needs_this, old.name);
    assert_true(is_there(&old));
    reopen(rig);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), 0);
    runtimes_put(rig->runtimes, old.name);
    runtimes_collect(rig->runtimes, nobody_needs, NULL);
    assert_false(is_there(&old));
    assert_true(is_there(&new)); // of what is installed
    assert_int_equal(rig->removed, 1);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -ENOENT);
    assert_non_null(strstr(err.text, old.name));
}

static void damage(const struct runtime *runtime)
{
    int fd = open(runtime->kernel, O_WRONLY);
    assert_int_equal(pwrite(fd, "X", 1, 2), 1);
    close(fd);
}

static void damage_is_said_or_mended(void **state)
{
    struct rig *rig = *state;
    struct runtime old = hold_current(rig), again;
    struct error err;
    damage(&old);
    again = hold_current(rig); // the installed files are the same: it was made again
    assert_string_equal(again.name, old.name);
    assert_int_equal(rig->mended, 1);
    write_file(rig->kernel, "another kernel");
    hold_current(rig);
    damage(&old);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "boot/vmlinux has other bytes"));
    assert_int_equal(truncate(old.kernel, 1), 0);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "boot/vmlinux has another size"));
    assert_int_equal(unlink(old.initrd), 0);
    char manifest[512];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", old.root);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -EBADMSG);
    assert_int_equal(chmod(manifest, 0600), 0);
    write_file(manifest, "{\"format\": 1, \"files\": []}\n");
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "manifest.json"));
}

// Permissions count too: a writable or unreadable file is not what was verified.
static void permissions_count(void **state)
{
    struct rig *rig = *state;
    struct runtime old = hold_current(rig), again;
    struct error err;
    write_file(rig->kernel, "another kernel");
    hold_current(rig);
    assert_int_equal(chmod(old.kernel, 0666), 0);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), -EBADMSG);
    assert_int_equal(chmod(old.kernel, 0444), 0);
    assert_int_equal(runtimes_hold(rig->runtimes, old.name, &again, &err), 0);
}

static void half_a_bundle_is_cleared_away(void **state)
{
    struct rig *rig = *state;
    struct runtime current = hold_current(rig);
    char half[160];
    snprintf(half, sizeof half, "%s/making.new", rig->store);
    assert_int_equal(mkdir(half, 0755), 0);
    reopen(rig);
    assert_int_not_equal(access(half, F_OK), 0);
    assert_true(is_there(&current));
}

static void what_cannot_be_bundled_is_said(void **state)
{
    struct rig *rig = *state;
    struct runtime_sources *sources;
    struct error err;
    struct runtime runtime;
    char script[96];
    snprintf(script, sizeof script, "%s/script", rig->folder);
    write_file(script, "#!/bin/sh\n");
    struct runtime_origin origin = {.vmm_path = script};
    assert_int_equal(runtime_sources_find(&origin, &sources, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, script));
    origin.vmm_path = "/nowhere/vmm";
    assert_int_equal(runtime_sources_find(&origin, &sources, &err), -ENOENT);
    assert_int_equal(unlink(rig->kernel), 0);
    assert_int_equal(runtimes_hold_current(rig->runtimes, &runtime, &err), -ENOENT);
    assert_non_null(strstr(err.text, rig->kernel));
}

// ---- Running from it ----

static void run_confined(
        struct rig *rig, struct vm_confine *confine, const char *script, char *ret_said, size_t size)
{
    char log[96], *argv[] = {"/runtime/bin/qemu-system-x86_64", "-c", (char *)script, NULL};
    const char *environment[] = {"LD_LIBRARY_PATH=/runtime/lib", NULL};
    snprintf(log, sizeof log, "%s/log", rig->folder);
    struct vm_process_spawn spawn = {
            .argv = argv, .env = environment, .working_dir = "/", .log_path = log, .confine = confine};
    struct vm_process_identity identity;
    struct error err;
    int pid_fd;
    int result = vm_process_spawn(&spawn, &identity, &pid_fd, &err);
    if (result == -EPERM) { // root of a container that may not mount
        print_message("skipped: %s\n", err.text);
        skip();
    }
    if (result < 0)
        fail_msg("%s", err.text);
    assert_int_equal(vm_process_wait(pid_fd, 60000), 0);
    close(pid_fd);
    vm_process_last_words(log, ret_said, size);
}

static void confine(struct rig *rig, const struct runtime *runtime, struct vm_confine *ret_confine)
{
    struct error err;
    char scratch[96];
    snprintf(scratch, sizeof scratch, "%s/scratch", rig->folder);
    mkdir(scratch, 0700);
    assert_int_equal(vm_confine_make(ret_confine, runtime->root, scratch, 2000000123, &err), 0);
}

static void a_program_runs_from_it_confined(void **state)
{
    struct rig *rig = *state;
    struct runtime runtime = hold_current(rig);
    struct vm_confine confined;
    struct error err;
    char said[600], script[300];
    if (geteuid() != 0)
        skip();
    confine(rig, &runtime, &confined);
    assert_int_equal(chmod(rig->kernel, 0644), 0);
    assert_int_equal(vm_confine_add(&confined, rig->kernel, "/given", false, &err), 0);
    run_confined(rig, &confined, "echo $$ /* /dev/*", said, sizeof said);
    assert_string_equal(said, "1 /dev /given /lib /lib64 /runtime /dev/null /dev/urandom");
    run_confined(rig, &confined, "read a b < /given; echo $a-$b; ulimit -c; umask", said, sizeof said);
    assert_string_equal(said, "a-kernel;0;0077");
    snprintf(script, sizeof script,
            "for f in /x /given /runtime/x /dev/x; do (echo > $f) 2> /dev/null && echo wrote $f; done; "
            "kill -0 %d 2> /dev/null && echo saw it; cd /.. && echo *",
            (int)getpid());
    run_confined(rig, &confined, script, said, sizeof said);
    assert_string_equal(said, "dev given lib lib64 runtime");
}

static int prctl_dumpable(void)
{
    return prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
}

static void a_failed_start_says_where(void **state)
{
    struct rig *rig = *state;
    struct runtime runtime = hold_current(rig);
    struct vm_confine confined;
    struct error err;
    char *argv[] = {"/runtime/bin/qemu-system-x86_64", NULL}, log[96];
    const char *environment[] = {NULL};
    struct vm_process_identity identity;
    int pid_fd, before = prctl_dumpable();
    if (geteuid() != 0)
        skip();
    confine(rig, &runtime, &confined);
    snprintf(log, sizeof log, "%s/log", rig->folder);
    struct vm_process_spawn spawn = {.argv = argv,
            .env = environment,
            .working_dir = "/nowhere",
            .log_path = log,
            .confine = &confined};
    int result = vm_process_spawn(&spawn, &identity, &pid_fd, &err);
    if (result == -EPERM) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    assert_int_equal(result, -ENOENT);
    spawn.working_dir = "/";
    assert_int_equal(vm_confine_add(&confined, "/nowhere", "/given", true, &err), 0);
    assert_int_equal(vm_process_spawn(&spawn, &identity, &pid_fd, &err), -ENOENT);
    assert_non_null(strstr(err.text, "taking its files"));
    assert_int_equal(prctl_dumpable(), before); // this process can be looked at as before
}

static void paths_are_translated(void **state)
{
    struct rig *rig = *state;
    struct vm_confine confined;
    struct error err;
    char path[VM_CONFINE_PATH];
    assert_int_equal(vm_confine_make(&confined, "/store/runtimes/1", "/run/x", 1, &err), 0);
    assert_int_equal(vm_confine_add(&confined, "/run/mem/42", "/memory", false, &err), 0);
    assert_int_equal(vm_confine_path(&confined, "/store/runtimes/1/boot/k", path, sizeof path), 0);
    assert_string_equal(path, "/runtime/boot/k");
    assert_int_equal(vm_confine_path(&confined, "/run/mem/42", path, sizeof path), 0);
    assert_string_equal(path, "/memory");
    assert_int_equal(vm_confine_path(&confined, "/run/mem/421", path, sizeof path), -ENOENT);
    assert_int_equal(vm_confine_path(&confined, "/store/runtimes/12", path, sizeof path), -ENOENT);
    assert_int_equal(vm_confine_path(&confined, "/etc/passwd", path, sizeof path), -ENOENT);
    (void)rig;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(made_once_and_used_again, set_up, tear_down),
            cmocka_unit_test_setup_teardown(another_one_after_an_upgrade, set_up, tear_down),
            cmocka_unit_test_setup_teardown(damage_is_said_or_mended, set_up, tear_down),
            cmocka_unit_test_setup_teardown(permissions_count, set_up, tear_down),
            cmocka_unit_test_setup_teardown(half_a_bundle_is_cleared_away, set_up, tear_down),
            cmocka_unit_test_setup_teardown(what_cannot_be_bundled_is_said, set_up, tear_down),
            cmocka_unit_test_setup_teardown(a_program_runs_from_it_confined, set_up, tear_down),
            cmocka_unit_test_setup_teardown(a_failed_start_says_where, set_up, tear_down),
            cmocka_unit_test_setup_teardown(paths_are_translated, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
