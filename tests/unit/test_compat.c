// SPDX-License-Identifier: Apache-2.0
// The compatibility record: equal machines agree, every difference that matters is named with both values and
// a remedy.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/compat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/compat-test-XXXXXX";
static char vmm[64], other_vmm[64], kernel[64];

static void put_file(char path[64], const char *name, const char *text)
{
    snprintf(path, 64, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static int set_up(void **state)
{
    assert_non_null(mkdtemp(folder));
    put_file(vmm, "vmm", "a build");
    put_file(other_vmm, "vmm2", "another build");
    put_file(kernel, "kernel", "a kernel");
    return 0;
}

static int tear_down(void **state)
{
    unlink(vmm);
    unlink(other_vmm);
    unlink(kernel);
    return rmdir(folder);
}

static struct vm_config good_config(void)
{
    return (struct vm_config){.id = "s1",
            .tag = "t",
            .run_dir = "/run/s1",
            .vmm_path = vmm,
            .shape = {.machine = VM_MACHINE_Q35, .cpus = 2, .memory_mb = 512},
            .kernel_path = kernel,
            .image_id = "agent-base",
            .disks = {{.export_name = "d", .size_bytes = 1 << 30}},
            .disk_count = 1};
}

static char *describe(const struct vm_config *config)
{
    char *text = NULL;
    struct error err;
    if (compat_describe(config, "tcg", &text, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

// Compares a good machine's record with `config`'s.
static int compare(const struct vm_config *config, struct error *err)
{
    struct vm_config good = good_config();
    char *saved = describe(&good), *now = describe(config);
    int result = compat_compare(saved, now, err);
    free(saved);
    free(now);
    return result;
}

static void test_same_machine_elsewhere(void **state)
{
    struct vm_config config = good_config();
    config.id = "s2";
    config.run_dir = "/run/s2";
    config.kernel_path = NULL; // a loaded guest has its own
    config.memory_id = "17";
    config.shape.mac[5] = 9;
    config.tap_fd = 7; // the same device
    struct error err = {0};
    if (compare(&config, &err) < 0)
        fail_msg("%s", err.text);
}

static void differ(const struct vm_config *config, const char *field, const char *value)
{
    struct error err = {0};
    assert_int_equal(compare(config, &err), -EINVAL);
    if (strstr(err.text, field) == NULL || strstr(err.text, value) == NULL || strchr(err.text, ':') == NULL)
        fail_msg("'%s' does not name '%s' and '%s'", err.text, field, value);
}

static void test_each_difference_is_named(void **state)
{
    struct vm_config config = good_config();
    config.shape.memory_mb = 1024;
    differ(&config, "memory size", "1024");
    config = good_config();
    config.shape.cpus = 4;
    differ(&config, "number of CPUs", "4");
    config = good_config();
    config.shape.machine = VM_MACHINE_MICROVM;
    differ(&config, "machine type", "microvm");
    config = good_config();
    config.disks[0].size_bytes = 4096;
    differ(&config, "disks", "4096");
    config = good_config();
    config.disk_count = 0;
    differ(&config, "disks", "nothing");
    config = good_config();
    config.image_id = "other-image";
    differ(&config, "image", "other-image");
    config = good_config();
    config.kernel_path = other_vmm;
    differ(&config, "the kernel of the snapshot", "13:");
    config = good_config();
    config.vmm_path = other_vmm;
    differ(&config, "build", "13:");
}

static void test_accelerator(void **state)
{
    struct vm_config config = good_config();
    char *saved = describe(&config), *now = NULL;
    struct error err;
    assert_int_equal(compat_describe(&config, "kvm", &now, &err), 0);
    assert_int_equal(compat_compare(saved, now, &err), -EINVAL);
    assert_non_null(strstr(err.text, "accelerator"));
    free(saved);
    free(now);
}

static void test_damaged_and_newer_records(void **state)
{
    struct vm_config config = good_config();
    char *now = describe(&config);
    struct error err;
    assert_int_equal(compat_compare("{", now, &err), -EBADMSG);
    assert_int_equal(compat_compare("[]", now, &err), -EBADMSG);
    assert_int_equal(compat_compare("{\"format\": 99}", now, &err), -EPROTO);
    free(now);
}

static void test_a_changed_file_has_another_digest(void **state)
{
    struct vm_config config = good_config();
    char *before = describe(&config);
    put_file(vmm, "vmm", "A build"); // the same size
    char *after = describe(&config);
    struct error err;
    assert_int_equal(compat_compare(before, after, &err), -EINVAL);
    put_file(vmm, "vmm", "a build");
    free(before);
    free(after);
}

static void test_missing_program(void **state)
{
    struct vm_config config = good_config();
    config.vmm_path = "no-such-vmm";
    char *text = NULL;
    struct error err;
    assert_int_equal(compat_describe(&config, "tcg", &text, &err), -ENOENT);
    assert_non_null(strstr(err.text, "apt-get install"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_same_machine_elsewhere),
            cmocka_unit_test(test_each_difference_is_named),
            cmocka_unit_test(test_accelerator),
            cmocka_unit_test(test_damaged_and_newer_records),
            cmocka_unit_test(test_a_changed_file_has_another_digest),
            cmocka_unit_test(test_missing_program),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
