// SPDX-License-Identifier: Apache-2.0
// The `user` cgroup (v2) that everything an exec starts lives in, and one cgroup below it for each exec.
// Freezing `user` freezes all of them; killing an exec's cgroup ends its whole tree, setsid'ed children too.
//
// Errors: -errno; -EOPNOTSUPP when there is no cgroup v2.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// root: a mounted cgroup v2 directory; `user` is made below it.
int cgroup_init(const char *root);
bool cgroup_available(void);
void cgroup_remove_all(void); // kills what is left and removes `user` (tests)

// Makes `user` the root that processes see: at `root` in the file system, and by a cgroup namespace that
// exec's children enter. What they make there, a container engine's cgroups too, is then below `user` and is
// frozen with it.
int cgroup_confine(const char *root);
// This process and what it becomes: into `user`, which it sees as the root.
int cgroup_take_self(void);
int cgroup_enter(void); // in an exec's child, before it gives root up

int cgroup_exec_make(uint32_t id); // returns a directory descriptor for CLONE_INTO_CGROUP
int cgroup_exec_kill(uint32_t id);
int cgroup_exec_signal(uint32_t id, int signal); // to each process in it; -ESRCH: there is none
void cgroup_exec_done(uint32_t id);              // removed when its last process is gone
void cgroup_sweep(void);                         // removes those that became empty
int cgroup_user_kill(void);
bool cgroup_user_populated(void);

int cgroup_freeze(bool frozen); // asks; the kernel does it when every process reached a safe point
int cgroup_is_frozen(void);     // 1 all are, 0 not yet
int cgroup_events_fd(void);     // becomes ready (EPOLLPRI) when the answer may have changed
// Names a process that keeps the cgroup from freezing: "NAME (pid 12, waiting in fuse_wait)".
void cgroup_describe_unfrozen(char *ret_text, size_t size);
