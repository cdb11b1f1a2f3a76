// SPDX-License-Identifier: Apache-2.0
// The QEMU driver with programs that are no QEMU: they fail, hang, or have no seccomp filter. Each start
// fails with the program's words and leaves nothing running. (Real machines are in tests/e2e.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct world {
    char folder[40], vmm[64], kernel[64], run_dir[64], tag[40];
    struct vm_config config;
} world;

static void put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static int set_up(void **state)
{
    strcpy(world.folder, "/tmp/qemu-test-XXXXXX");
    assert_non_null(mkdtemp(world.folder));
    snprintf(world.vmm, sizeof world.vmm, "%s/vmm", world.folder);
    snprintf(world.kernel, sizeof world.kernel, "%s/kernel", world.folder);
    snprintf(world.run_dir, sizeof world.run_dir, "%s/run, dir", world.folder);
    snprintf(world.tag, sizeof world.tag, "qemu-test-%d", (int)getpid());
    mkdir(world.run_dir, 0700);
    put_file(world.kernel, "a kernel");
    world.config = (struct vm_config){.id = "one",
            .tag = world.tag,
            .run_dir = world.run_dir,
            .vmm_path = world.vmm,
            .shape = {.machine = VM_MACHINE_Q35, .cpus = 1, .memory_mb = 64},
            .accel = VM_ACCEL_TCG,
            .kernel_path = world.kernel,
            .timeout_ms = 60000};
    return 0;
}

static int tear_down(void **state)
{
    char command[80];
    snprintf(command, sizeof command, "rm -rf '%s'", world.folder);
    return system(command);
}

static void count_process(void *context, pid_t pid, const char *id)
{
    ++*(unsigned *)context;
}

// A start that fails with this code and these words, and leaves no process.
static void fail_to_start(int code, const char *words)
{
    struct vm *vm = NULL;
    struct error err = {0};
    assert_int_equal(vm_start(&qemu_driver, &world.config, &vm, &err), code);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, words);
    unsigned left = 0;
    assert_int_equal(vm_find_strays(world.tag, count_process, &left), 0);
    assert_int_equal(left, 0);
}

static void test_last_words(void **state)
{
    put_file(world.vmm, "#!/bin/sh\necho 'vmm: the disk is on fire' >&2\nexit 1\n");
    fail_to_start(-EPIPE, "the disk is on fire");
}

static void test_a_build_without_the_filter(void **state)
{
    put_file(world.vmm, "#!/bin/sh\ncase \"$*\" in *-sandbox*) echo '-sandbox on: seccomp support is "
                        "disabled' >&2; exit 1;; esac\n"
                        "echo 'started without it' >&2\nexit 1\n");
    fail_to_start(-EPIPE, "started without it");
}

static void test_a_silent_program(void **state)
{
    // It starts nothing: until a child became another program, it would have the tag, too.
    put_file(world.vmm, "#!/usr/bin/env python3\nimport signal\nsignal.pause()\n");
    world.config.timeout_ms = 300;
    fail_to_start(-ETIMEDOUT, "did not greet");
}

static void test_a_program_that_does_not_speak_qmp(void **state)
{
    put_file(world.vmm, "#!/usr/bin/env python3\nimport socket\nlistener = socket.socket(fileno=3)\npeer, _ "
                        "= listener.accept()\n"
                        "peer.sendall(b'220 mail.example ESMTP\\r\\n')\npeer.recv(100)\n");
    fail_to_start(-EPIPE, "before it greeted");
}

static void test_missing_program(void **state)
{
    world.config.vmm_path = "no-such-vmm";
    fail_to_start(-ENOENT, "not installed");
}

static void test_missing_run_directory(void **state)
{
    put_file(world.vmm, "#!/bin/sh\nexit 1\n");
    world.config.run_dir = "/nonexistent/run";
    fail_to_start(-ENOENT, "/nonexistent/run");
}

static void test_wrong_configuration(void **state)
{
    world.config.id = NULL;
    fail_to_start(-EINVAL, "id");
}

static void adopt(int code, const char *words)
{
    struct vm *vm = NULL;
    struct error err = {0};
    assert_int_equal(vm_adopt(&qemu_driver, world.run_dir, NULL, NULL, &vm, &err), code);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, words);
}

static void test_adoption(void **state)
{
    char path[80], text[400];
    snprintf(path, sizeof path, "%s/vm.json", world.run_dir);
    adopt(-ESRCH, "no VM was started");
    put_file(path, "{\"pid\": 1");
    adopt(-EBADMSG, "vm.json");
    put_file(path, "{\"pid\": \"one\"}");
    adopt(-EBADMSG, "vm.json");
    // This very process is not the VM that the record names: another start time, another program, no tag.
    snprintf(text, sizeof text,
            "{\"pid\": %d, \"start_time_ticks\": 1, \"exe_device\": 1, \"exe_inode\": 1, \"tag\": \"t\", "
            "\"id\": \"i\", "
            "\"accel\": \"tcg\", \"compat\": \"{}\"}",
            (int)getpid());
    put_file(path, text);
    adopt(-ESRCH, "is gone");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_last_words, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_a_build_without_the_filter, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_a_silent_program, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_a_program_that_does_not_speak_qmp, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_missing_program, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_missing_run_directory, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_wrong_configuration, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_adoption, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
