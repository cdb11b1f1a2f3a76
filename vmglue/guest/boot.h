// SPDX-License-Identifier: Apache-2.0
// The machine's start and end, for the first process only.
// Kernel command line: root=DEVICE rootfstype= (stage 1), ramet.hostname=NAME.
#pragma once

#include <stddef.h>

void boot_say(const char *format, ...)
        __attribute__((format(printf, 1, 2))); // to the kernel's log and the console
void boot_parameter(const char *name, const char *fallback, char *ret_value, size_t size);

void boot_initramfs(
        char **argv);      // stage 1: modules, root disk, then this program again on it; does not return
void boot_root(void);      // on the root disk: mounts, limits, network, identity
void boot_power_off(void); // ends user processes, syncs, powers off; does not return
void boot_restart(void);   // the same with a reset
