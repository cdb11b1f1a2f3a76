// SPDX-License-Identifier: Apache-2.0
// What does not depend on the VMM: names of kinds, and finding processes that an earlier daemon left behind.
#include "vmglue/vm.h"

#include "vmglue/vm_process.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const machine_names[] = {[VM_MACHINE_Q35] = "q35", [VM_MACHINE_MICROVM] = "microvm"};

enum { MACHINES = sizeof machine_names / sizeof *machine_names };

const char *vm_machine_name(enum vm_machine machine)
{
    return (unsigned)machine < MACHINES ? machine_names[machine] : "unknown";
}

int vm_machine_parse(const char *text, enum vm_machine *ret_machine)
{
    for (unsigned i = 0; i < MACHINES; i++) {
        if (strcmp(text, machine_names[i]) == 0) {
            *ret_machine = (enum vm_machine)i;
            return 0;
        }
    }
    return -EINVAL;
}

int vm_find_strays(const char *tag, void (*each)(void *context, pid_t pid, const char *id), void *context)
{
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return -errno;
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL) {
        char *end, id[80];
        long pid = strtol(entry->d_name, &end, 10);
        if (*end == 0 && pid > 0 && vm_process_has_tag((pid_t)pid, tag, id, sizeof id))
            each(context, (pid_t)pid, id);
    }
    closedir(proc);
    return 0;
}

int vm_kill_stray(const char *tag, pid_t pid, unsigned timeout_ms, struct error *err)
{
    struct vm_process_identity identity;
    int pid_fd;
    if (vm_process_identify(pid, &identity) < 0 || vm_process_open(&identity, &pid_fd) < 0)
        return error_set(err, -ESRCH, "the process %d is gone already", (int)pid);
    int result = 0;
    if (!vm_process_has_tag(
                pid, tag, NULL, 0)) // looked at after the pidfd was taken: it is this process's line
        result = error_set(err, -ESRCH, "the process %d is none of this store's VMs", (int)pid);
    else if ((result = vm_process_kill(pid_fd, timeout_ms)) < 0)
        error_set(err, result,
                "the VM process %d did not end within %u ms of SIGKILL: see what it waits for in "
                "/proc/%d/stack",
                (int)pid, timeout_ms, (int)pid);
    close(pid_fd);
    return result;
}
