// SPDX-License-Identifier: Apache-2.0
// QEMU's command line: what must be on it, what must never be, and what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/qemu_args.h"

#include <errno.h>
#include <string.h>

static struct vm_config good_config(void)
{
    return (struct vm_config){.id = "s1",
            .tag = "ramet-test",
            .run_dir = "/run/ramet/vm/s1",
            .shape = {.machine = VM_MACHINE_Q35, .cpus = 2, .memory_mb = 512},
            .kernel_path = "/boot/vmlinux",
            .initrd_path = "/boot/initramfs",
            .disks = {{.export_name = "d", .size_bytes = 1 << 30}},
            .disk_count = 1};
}

static const struct qemu_args_host host = {
        .accel = "tcg", .sandbox = true, .qmp_fd = 3, .agent_fd = 4, .tsc_khz = 2500000};

static struct qemu_args build(const struct vm_config *config)
{
    struct qemu_args args;
    struct error err;
    if (qemu_args_build(config, &host, &args, &err) < 0)
        fail_msg("%s", err.text);
    return args;
}

// The word after `option`, at its n-th place; NULL when there is none.
static const char *value_of(const struct qemu_args *args, const char *option, unsigned nth)
{
    for (unsigned i = 0; i + 1 < args->count; i++) {
        if (strcmp(args->argv[i], option) == 0 && nth-- == 0)
            return args->argv[i + 1];
    }
    return NULL;
}

static bool anywhere(const struct qemu_args *args, const char *text)
{
    for (unsigned i = 0; i < args->count; i++) {
        if (strstr(args->argv[i], text) != NULL)
            return true;
    }
    return false;
}

static void test_what_must_be_there(void **state)
{
    struct vm_config config = good_config();
    struct qemu_args args = build(&config);
    assert_string_equal(value_of(&args, "-name", 0), "ramet-test/s1");
    assert_non_null(strstr(value_of(&args, "-machine", 0), "pc-q35-7.2,"));
    assert_non_null(strstr(value_of(&args, "-machine", 0), "suppress-vmdesc=on"));
    assert_non_null(strstr(value_of(&args, "-machine", 0), "mem-merge=off"));
    assert_string_equal(value_of(&args, "-accel", 0), "tcg,thread=multi,tb-size=64");
    assert_true(anywhere(&args, "migration.send-configuration=off"));
    assert_true(anywhere(&args, "-nodefaults"));
    assert_true(anywhere(&args, "-no-user-config"));
    assert_true(anywhere(&args, "-no-reboot"));
    assert_true(anywhere(&args, "spawn=deny"));
    assert_true(anywhere(&args, "reconnect-delay=86400"));
    assert_true(anywhere(&args, "werror=stop,rerror=report"));
    assert_true(anywhere(&args, "discard=unmap"));
    assert_true(anywhere(&args, "virtio-net"));
    assert_true(anywhere(&args, "name=agent.0"));
    assert_true(anywhere(&args, "virtio-rng-pci"));
    qemu_args_free(&args);
}

// No device or block backend that does DMA into guest memory behind the kernel's back, no balloon, no shared
// memory.
static void test_what_must_never_be_there(void **state)
{
    static const char *const never[] = {"vhost", "vfio", "io_uring", "aio=", "cache.direct", "balloon",
            "share=on", "hostfwd", "restrict=", "hugetlb", "prealloc=on"};
    for (int machine = VM_MACHINE_Q35; machine <= VM_MACHINE_MICROVM; machine++) {
        struct vm_config config = good_config();
        config.shape.machine = (enum vm_machine)machine;
        struct qemu_args args = build(&config);
        for (unsigned i = 0; i < sizeof never / sizeof *never; i++)
            assert_false(anywhere(&args, never[i]));
        qemu_args_free(&args);
    }
}

static void test_boot_and_load_differ(void **state)
{
    struct vm_config config = good_config();
    struct qemu_args args = build(&config);
    assert_non_null(value_of(&args, "-kernel", 0));
    assert_null(value_of(&args, "-incoming", 0));
    assert_true(anywhere(&args, "memory-backend-ram"));
    qemu_args_free(&args);
    config.state = "state";
    config.state_bytes = 5;
    config.memory_image = "/run/ramet/mem/7";
    args = build(&config);
    assert_null(value_of(&args, "-kernel", 0));
    assert_string_equal(value_of(&args, "-incoming", 0), "defer");
    assert_true(anywhere(&args, "memory-backend-file,id=mem,size=512M,mem-path=/run/ramet/mem/7,share=off"));
    qemu_args_free(&args);
}

static void test_commas_are_doubled(void **state)
{
    struct vm_config config = good_config();
    config.state = "state";
    config.state_bytes = 5;
    config.memory_image = "/run/a,share=on/mem/7";
    config.nbd_socket = "/run/b,c/nbd.sock";
    config.disks[0].export_name = "x,read-only=on";
    struct qemu_args args = build(&config);
    assert_true(anywhere(&args, "mem-path=/run/a,,share=on/mem/7,share=off"));
    assert_true(anywhere(&args, "server.path=/run/b,,c/nbd.sock,"));
    assert_true(anywhere(&args, "export=x,,read-only=on,"));
    qemu_args_free(&args);
}

static void test_microvm(void **state)
{
    struct vm_config config = good_config();
    config.shape.machine = VM_MACHINE_MICROVM;
    struct qemu_args args = build(&config);
    assert_true(anywhere(&args, "tsc_early_khz=2500000"));
    assert_true(anywhere(&args, "virtio-blk-device"));
    assert_false(anywhere(&args, "-pci"));
    qemu_args_free(&args);
}

static void test_an_emulated_guest_is_told_its_tsc_rate(void **state)
{
    struct vm_config config = good_config();
    config.shape.machine = VM_MACHINE_Q35;
    struct qemu_args args = build(&config);
    assert_true(anywhere(&args, "tsc_early_khz=2500000"));
    qemu_args_free(&args);
}

static void test_one_network_card_whatever_is_behind_it(void **state)
{
    struct vm_config config = good_config();
    struct qemu_args args = build(&config);
    assert_true(anywhere(&args, "virtio-net"));
    assert_false(anywhere(&args, "-netdev"));
    qemu_args_free(&args);
    struct qemu_args_host with_tap = host;
    with_tap.tap_fd = 5;
    assert_int_equal(qemu_args_build(&config, &with_tap, &args, NULL), 0);
    assert_true(anywhere(&args, "tap,id=net0,fd=5"));
    assert_true(anywhere(&args, "id=nic0,netdev=net0"));
    assert_true(anywhere(&args, "virtio-net"));
    // The host's own services would be the guest's with it.
    assert_false(anywhere(&args, "user,"));
    assert_false(anywhere(&args, "vhost"));
    qemu_args_free(&args);
}

static void refuse(const struct vm_config *config, const char *word)
{
    struct qemu_args args;
    struct error err = {0};
    assert_int_equal(qemu_args_build(config, &host, &args, &err), -EINVAL);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, word);
}

static void test_refusals_name_the_field(void **state)
{
    struct vm_config config = good_config();
    config.shape.cpus = 0;
    refuse(&config, "cpus");
    config = good_config();
    config.shape.memory_mb = 63;
    refuse(&config, "memory_mb");
    config = good_config();
    config.id = "a,b";
    refuse(&config, "id");
    config = good_config();
    config.id = "";
    refuse(&config, "id");
    config = good_config();
    config.tag = "a/b";
    refuse(&config, "tag");
    config = good_config();
    config.run_dir = "relative";
    refuse(&config, "run directory");
    config = good_config();
    config.kernel_path = NULL;
    refuse(&config, "kernel");
    config = good_config();
    config.initrd_path = "/boot/a\nb";
    refuse(&config, "initramfs");
    config = good_config();
    config.preload_library = "/a b/lib.so";
    refuse(&config, "preload library");
    config = good_config();
    config.state = "x";
    config.state_bytes = 1;
    refuse(&config, "memory_image");
    config = good_config();
    config.memory_image = "/mem/1";
    refuse(&config, "device state");
    config = good_config();
    config.disk_count = VM_DISKS_MAX + 1;
    refuse(&config, "disks");
}

static void test_canonical_line_has_no_names_of_this_vm(void **state)
{
    struct vm_config a = good_config(), b = good_config();
    b.id = "other";
    b.run_dir = "/elsewhere";
    b.kernel_path = NULL;
    b.memory_image = "/mem/9";
    b.state = "x";
    b.state_bytes = 1;
    b.disks[0].export_name = "e";
    b.tap_fd = 7;
    struct qemu_args left, right;
    assert_int_equal(qemu_args_build_canonical(&a, "tcg", &left, NULL), 0);
    assert_int_equal(qemu_args_build_canonical(&b, "tcg", &right, NULL), 0);
    assert_int_equal(left.count, right.count);
    for (unsigned i = 0; i < left.count; i++)
        assert_string_equal(left.argv[i], right.argv[i]);
    qemu_args_free(&right);
    b.shape.cpus = 3;
    assert_int_equal(qemu_args_build_canonical(&b, "tcg", &right, NULL), 0);
    bool equal = left.count == right.count;
    for (unsigned i = 0; equal && i < left.count; i++)
        equal = strcmp(left.argv[i], right.argv[i]) == 0;
    assert_false(equal);
    qemu_args_free(&left);
    qemu_args_free(&right);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_what_must_be_there),
            cmocka_unit_test(test_what_must_never_be_there),
            cmocka_unit_test(test_boot_and_load_differ),
            cmocka_unit_test(test_commas_are_doubled),
            cmocka_unit_test(test_microvm),
            cmocka_unit_test(test_an_emulated_guest_is_told_its_tsc_rate),
            cmocka_unit_test(test_one_network_card_whatever_is_behind_it),
            cmocka_unit_test(test_refusals_name_the_field),
            cmocka_unit_test(test_canonical_line_has_no_names_of_this_vm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
