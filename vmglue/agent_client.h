// SPDX-License-Identifier: Apache-2.0
// Host side of the guest agent's protocol (AGENT.md): one connection per running VM, many requests at once.
//
// Threads: any; a connection has a reader thread of its own, and calls may be made from many threads at a time.
// Calls wait for the guest's answer, at most timeout_ms (-ETIMEDOUT); 0 = 30 s.
// Errors: -EPIPE the connection or the VM is gone; -EPROTO the peer does not speak the protocol; otherwise the
// guest's own errno, with its sentence in *err.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct agent;

// Connects to the VMM's agent socket and says HELLO with a fresh random epoch; waits until the guest answers
// (a booting guest may take seconds). A HELLO ends every stream and request of earlier epochs in the guest.
int agent_connect(const char *socket_path, unsigned timeout_ms, struct agent **ret_agent, struct error *err);
struct agent *agent_disconnect(struct agent *agent);    // accepts NULL; requests in flight end with -EPIPE

int agent_ping(struct agent *agent, unsigned timeout_ms, struct error *err);

struct agent_exec {
    const char *const *argv;        // NULL-terminated; or
    const char *shell_command;      // run by /bin/bash -c (sh when there is no bash)
    const char *const *env;         // "NAME=value" additions, NULL-terminated; NULL = none
    const char *cwd;                // NULL = the user's home
    const char *user;               // NULL = "user"
    const void *stdin_bytes;        // given, then end of file; NULL = empty
    size_t stdin_size;
    unsigned timeout_ms;            // 0 = none: the whole process group is killed then
    size_t output_limit_bytes;      // per stream, for agent_exec_run; 0 = 16 MiB
    // Called from the reader thread for each piece of output (1 stdout, 2 stderr); NULL = collect.
    void (*on_output)(void *context, int stream, const void *bytes, size_t size);
    void *context;
};
struct agent_exec_result {
    int exit_code;                  // 128 + signal when killed by one
    int signal;                     // 0 = exited
    bool timed_out, truncated;
    uint64_t duration_ms;
    char *out, *err;                // malloc'ed, zero-terminated, NULL when on_output was given
    size_t out_size, err_size;
};
int agent_exec_run(struct agent *agent, const struct agent_exec *exec, struct agent_exec_result *ret_result, struct error *err);
void agent_exec_result_free(struct agent_exec_result *result);

struct agent_stat {
    uint64_t size_bytes, mtime_ns;
    uint32_t mode, uid, gid;        // st_mode
};
int agent_file_stat(struct agent *agent, const char *path, struct agent_stat *ret_stat, struct error *err);
// Streams a file; sink returns < 0 to stop. Relative paths are below /home/user.
int agent_file_read(struct agent *agent, const char *path, int (*sink)(void *context, const void *bytes, size_t size), void *context,
        struct error *err);
// source returns bytes given, 0 at the end, < 0 to abort. The file appears whole or not at all; parents are made.
int agent_file_write(struct agent *agent, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err);
int agent_file_list(struct agent *agent, const char *path,
        void (*each)(void *context, const char *name, const struct agent_stat *stat), void *context, struct error *err);
int agent_file_remove(struct agent *agent, const char *path, bool recursive, struct error *err);
int agent_file_mkdir(struct agent *agent, const char *path, struct error *err);

// Freezes the cgroup of all user processes and drains output to a frame boundary; after success the guest sends
// nothing until thaw or after_fork. -ETIMEDOUT: the guest was thawed again and nothing has changed.
int agent_freeze(struct agent *agent, unsigned timeout_ms, struct error *err);
int agent_thaw(struct agent *agent, struct error *err);          // in the source, after cont

struct agent_identity {
    uint8_t seed[64];               // fresh host randomness, credited to the kernel
    uint64_t realtime_ns;           // 0 = the client fills in the host's clock as it sends
    char machine_id[33];            // 32 hex digits
    char hostname[65];
    uint8_t mac[6];                 // all zero = leave
};
// In a child or a resumed machine: reseed, clock, machine id, hostname, then thaw. Fails closed: on any error
// user processes stay frozen and the machine must not be handed out.
int agent_after_fork(struct agent *agent, const struct agent_identity *identity, unsigned timeout_ms, struct error *err);
int agent_set_clock(struct agent *agent, struct error *err);
int agent_sync(struct agent *agent, bool freeze_filesystems, unsigned timeout_ms, struct error *err);   // sync, then FIFREEZE if asked
int agent_poweroff(struct agent *agent, struct error *err);
