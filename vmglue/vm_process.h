// SPDX-License-Identifier: Apache-2.0
// Processes of VMMs: starting one detached from the daemon, knowing it again, waiting for it, ending it.
//
// A process is named by pid and start time together, and held by a pidfd, so that a recycled pid is never
// mistaken. Threads: any; no state.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vm_confine; // vm_confine.h

struct vm_process_identity {
    pid_t pid;
    uint64_t start_time_ticks;      // /proc/PID/stat, field 22
    uint64_t exe_device, exe_inode; // of /proc/PID/exe
};

struct vm_process_spawn {
    char *const *argv;      // argv[0] is looked up in PATH when it has no slash
    const char *const *env; // the whole environment
    const char *working_dir;
    const char *log_path; // stdout and stderr, truncated
    const int *fds;       // become descriptors 3, 4, ... of the child; everything else is closed
    unsigned fd_count;
    // NULL = no confinement. With it argv[0] is a path that the confined process sees, and so is working_dir.
    const struct vm_confine *confine;
    int netns_fd; // network namespace it enters; 0 = an empty one when confined, else the caller's
};
// A session of its own, default signals, no parent-death signal. *ret_pid_fd is the caller's to close. A
// confined process is the first of its pid namespace; its pid here is the host's.
int vm_process_spawn(const struct vm_process_spawn *spawn, struct vm_process_identity *ret_identity,
        int *ret_pid_fd, struct error *err);

int vm_process_identify(pid_t pid, struct vm_process_identity *ret_identity); // -ESRCH
// A pidfd for exactly this process; -ESRCH when it is gone or the pid means another one now.
int vm_process_open(const struct vm_process_identity *identity, int *ret_pid_fd);
// Whether its command line says "-name TAG/ID"; ret_id may be NULL.
bool vm_process_has_tag(pid_t pid, const char *tag, char *ret_id, size_t id_size);
// A copy of the process's descriptor of that kind, e.g. "anon_inode:[userfaultfd]"; -ENOENT.
int vm_process_take_fd(pid_t pid, int pid_fd, const char *kind, int *ret_fd);
// 0 when it has ended (and reaps it when it is our child), -ETIMEDOUT otherwise.
int vm_process_wait(int pid_fd, unsigned timeout_ms);
// The same at once for a process that has ended, with words on how: "was killed by signal 7", "" when it is
// not known.
void vm_process_reap(int pid_fd, char *buffer, size_t size);
int vm_process_kill(int pid_fd, unsigned timeout_ms); // SIGKILL, then wait
// The last lines of a log as one line, for error messages; "" when there are none.
void vm_process_last_words(const char *log_path, char *buffer, size_t size);
