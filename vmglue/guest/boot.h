// SPDX-License-Identifier: Apache-2.0
// The machine's start and end.
// Kernel command line: root=DEVICE rootfstype= (stage 1), ramet.hostname=NAME, ramet.init=agent|PATH, and the
// words of network.h.
//
// A root disk with an init of its own (systemd as /sbin/init, or what ramet.init names) is started with it:
// that is process 1 then, in the cgroup `user` and a cgroup namespace whose root that is, so that it is
// frozen and thawed with everything it starts. The agent lives beside it, outside of that cgroup. Otherwise
// the agent is process 1.
#pragma once

#include <stdbool.h>
#include <stddef.h>

void boot_say(const char *format, ...)
        __attribute__((format(printf, 1, 2))); // to the kernel's log and the console
void boot_parameter(const char *name, const char *fallback, char *ret_value, size_t size);
void boot_write_setting(const char *path, const char *text);

void boot_initramfs(
        char **argv); // stage 1: modules, root disk, then this program again on it; does not return
void boot_root(void); // on the root disk: mounts, limits, network, identity; returns in the agent's process
void boot_power_off(void); // ends user processes, syncs, powers off; does not return
void boot_restart(void);   // the same with a reset
bool boot_has_own_init(void);

// boot_init.c
bool boot_start_init(void); // true: process 1 became the disk's init, and this is another process
// The files of stage 1's /context are put into /run/ramet/context, read-only for users.
void boot_keep_files(void); // in stage 1
void boot_carried_files(void);
