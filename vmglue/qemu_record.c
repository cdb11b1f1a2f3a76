// SPDX-License-Identifier: Apache-2.0
// vm.json is replaced by rename, so that it is whole or not there. It need not survive power loss: neither
// does the VM.
#include "vmglue/qemu_vm.h"

#include "vmglue/qemu_process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int qemu_record_write(struct qemu_vm *vm, struct error *err)
{
    JSON_AUTO json_t *record =
            json_pack("{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "pid", (json_int_t)vm->identity.pid,
                    "start_time_ticks", (json_int_t)vm->identity.start_time_ticks, "exe_device",
                    (json_int_t)vm->identity.exe_device, "exe_inode", (json_int_t)vm->identity.exe_inode,
                    "tag", vm->tag, "id", vm->id, "accel", vm->vm.accel, "compat", vm->vm.compat);
    char *path = qemu_process_path(vm->run_dir, "vm.json"),
         *temporary = qemu_process_path(vm->run_dir, "vm.json.new");
    int result = 0;
    if (record == NULL || path == NULL || temporary == NULL)
        result = error_set(err, -ENOMEM, "no memory for the record of a VM process");
    else if (json_dump_file(record, temporary, JSON_INDENT(1)) != 0 || rename(temporary, path) != 0)
        result = error_set(err, -errno, "cannot write %s: %s", path, strerror(errno));
    free(path);
    free(temporary);
    return result;
}

int qemu_record_read(struct qemu_vm *vm, struct error *err)
{
    char *path = qemu_process_path(vm->run_dir, "vm.json");
    if (path == NULL)
        return error_set(err, -ENOMEM, "no memory for a path");
    json_error_t words;
    JSON_AUTO json_t *record = json_load_file(path, 0, &words);
    json_int_t pid, start, device, inode;
    const char *tag, *id, *accel, *compat;
    int result = 0;
    if (record == NULL && access(path, F_OK) != 0)
        result = error_set(err, -ESRCH, "no VM was started in %s: %s is not there", vm->run_dir, path);
    else if (json_unpack_ex(record, &words, 0, "{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "pid", &pid,
                     "start_time_ticks", &start, "exe_device", &device, "exe_inode", &inode, "tag", &tag,
                     "id", &id, "accel", &accel, "compat", &compat) != 0)
        result = error_set(err, -EBADMSG,
                "%s is not the record of a VM process (%s): end the process by hand if there is one", path,
                words.text);
    free(path);
    if (result < 0)
        return result;
    vm->identity = (struct vm_process_identity){.pid = (pid_t)pid,
            .start_time_ticks = (uint64_t)start,
            .exe_device = (uint64_t)device,
            .exe_inode = (uint64_t)inode};
    vm->tag = strdup(tag);
    vm->id = strdup(id);
    vm->vm.accel = strdup(accel);
    vm->vm.compat = strdup(compat);
    if (vm->tag == NULL || vm->id == NULL || vm->vm.accel == NULL || vm->vm.compat == NULL)
        return error_set(err, -ENOMEM, "no memory for the record of a VM process");
    return 0;
}
