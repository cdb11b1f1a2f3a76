// SPDX-License-Identifier: Apache-2.0
// A resumed guest that reboots (it has no firmware left: a new process must boot its disk), and shapes that
// must be refused.
#include "tests/e2e/cases.h"

#include "vmglue/compat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void case_reboot(struct rig *rig)
{
    struct machine *source = machine_boot(rig, "source");
    struct capture_request request = machine_capture_request(source, "before");
    struct capture_result result;
    machine_capture(&request, &result);
    machine_end(source, false);
    struct machine *child = machine_resume(rig, "child", result.ids.machine);
    free(machine_shell(child, "echo after the resume > note; touch /dev/shm/in-memory; sync"));
    struct agent_exec exec = {
            .shell_command = "sudo sh -c 'echo b > /proc/sysrq-trigger'", .timeout_ms = 60000};
    struct agent_exec_result ignored;
    if (agent_exec_run(child->agent, &exec, &ignored, NULL) == 0)
        agent_exec_result_free(&ignored);
    machine_wait_event(child, &child->reset, "the guest's reboot");
    machine_wait_event(child, &child->exited, "the end of its process");
    struct volume_id disk = child->disk;
    machine_end(child, true);
    struct machine *again = machine_boot_disk(rig, "again", disk);
    char *note = machine_shell(again, "cat note; ls /dev/shm");
    if (strcmp(note, "after the resume\n") != 0)
        rig_fail("after the reboot the guest has: %s", note);
    free(note);
    machine_end(again, false);
    printf("a resumed guest rebooted: a new process booted from its disk as it was\n");
}

// Describes a machine like the rig's with one thing changed, and expects a refusal that says so.
static void refuse(
        struct rig *rig, const char *saved, struct vm_shape shape, uint64_t disk_bytes, const char *word)
{
    char kernel[400];
    snprintf(kernel, sizeof kernel, "%s/vmlinux", rig->kernel_dir);
    struct vm_config config = {.id = "x",
            .tag = "x",
            .run_dir = "/x",
            .kernel_path = kernel,
            .shape = shape,
            .disks = {{.export_name = "", .size_bytes = disk_bytes}},
            .disk_count = 1};
    struct error err;
    enum vm_accel accel;
    char *now = NULL;
    config.initrd_path = NULL;
    struct vm_config probe = config;
    probe.shape = rig->shape;
    if (vm_probe_accel(&probe, &accel, &err) < 0 ||
            compat_describe(&config, accel == VM_ACCEL_KVM ? "kvm" : "tcg", &now, &err) < 0)
        rig_fail("%s", err.text);
    if (compat_compare(saved, now, &err) != -EINVAL)
        rig_fail("a wrong %s was not refused", word);
    if (strstr(err.text, word) == NULL)
        rig_fail("the refusal '%s' does not speak of the %s", err.text, word);
    printf("refused: %s\n", err.text);
    free(now);
}

void case_shape(struct rig *rig)
{
    struct machine *source = machine_boot(rig, "source");
    struct capture_request request = machine_capture_request(source, "shape");
    struct capture_result result;
    machine_capture(&request, &result);
    machine_end(source, false);
    struct doc doc;
    struct capture_doc parsed;
    struct error err;
    if (store_doc_find(rig->store, DOC_MACHINE, "shape", &doc) < 0 ||
            capture_doc_parse(&doc, &parsed, &err) < 0)
        rig_fail("the snapshot cannot be read back");
    struct vm_shape shape = rig->shape;
    shape.memory_mb *= 2;
    refuse(rig, parsed.compat, shape, rig->image_bytes, "memory size");
    shape = rig->shape;
    shape.cpus++;
    refuse(rig, parsed.compat, shape, rig->image_bytes, "number of CPUs");
    shape = rig->shape;
    shape.machine = shape.machine == VM_MACHINE_Q35 ? VM_MACHINE_MICROVM : VM_MACHINE_Q35;
    refuse(rig, parsed.compat, shape, rig->image_bytes, "machine type");
    refuse(rig, parsed.compat, rig->shape, rig->image_bytes * 2, "disks");
    capture_doc_free(&parsed);
    doc_free(&doc);

    // A second snapshot of the same name is refused before anything is paused.
    struct machine *child = machine_resume(rig, "child", result.ids.machine);
    request = machine_capture_request(child, "shape");
    if (capture_machine(&request, &result, &err) != -EEXIST || strstr(err.text, "shape") == NULL)
        rig_fail("a second snapshot of one name was not refused with its name");
    free(machine_shell(child, "true"));
    machine_end(child, false);
}
