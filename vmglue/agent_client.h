// SPDX-License-Identifier: Apache-2.0
// Host side of the guest agent's protocol (AGENT.md): one connection per running VM, many requests at once.
//
// Threads: any; a connection has an I/O thread of its own, and calls may be made from many threads at a time.
// Calls wait for the guest's answer, at most timeout_ms (-ETIMEDOUT); 0 = 30 s. Callbacks run in the calling
// thread: a slow one delays its own call alone, and what waits for it is bounded (256 KiB a stream). Errors:
// -EPIPE the connection or the VM is gone; -EPROTO the peer does not speak the protocol; otherwise the
// guest's own errno, with its sentence in *err.
//
// Between agent_freeze and agent_thaw or agent_after_fork nothing but those is sent: other calls wait (their
// time runs). Execs go on in the guest when a connection ends, whatever the reason: their output is thrown
// away from then on, time-outs still hold. A child has its parent's running execs in that state.
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
struct agent *agent_disconnect(struct agent *agent); // accepts NULL; requests in flight end with -EPIPE
// Ends requests in flight, and later ones, with -EPIPE; the handle stays until agent_disconnect. For an owner
// whose users are still inside of calls.
void agent_break(struct agent *agent);

// True when the guest said in its HELLO that user processes are frozen: a daemon that finds its source
// machine so (the one before it died between freeze and thaw) calls agent_thaw; a child's daemon calls
// agent_after_fork.
bool agent_was_frozen(const struct agent *agent);

int agent_ping(struct agent *agent, unsigned timeout_ms, struct error *err);

struct agent_exec {
    const char *const *argv;   // NULL-terminated; or
    const char *shell_command; // run by /bin/bash -c (sh when there is no bash)
    const char *const *env;    // "NAME=value" additions, NULL-terminated; NULL = none
    const char *cwd;           // NULL = the user's home
    const char *user;          // NULL = "user"
    const void *stdin_bytes;   // given, then end of file; NULL = empty
    size_t stdin_size;
    unsigned timeout_ms;       // 0 = none; then everything that it started is killed, setsid'ed children too
    size_t output_limit_bytes; // per stream, for agent_exec_run; 0 = 16 MiB
    // Called from the calling thread for each piece of output (1 stdout, 2 stderr); NULL = collect.
    void (*on_output)(void *context, int stream, const void *bytes, size_t size);
    void *context;
    // Asked after each piece of output and every 100 ms; true = kill it, the result then has its signal. NULL
    // = never.
    bool (*cancelled)(void *context);
};
struct agent_exec_result {
    int exit_code;             // 128 + signal when killed by one; 127 no such command, 126 not executable
    int signal;                // 0 = exited
    bool timed_out, truncated; // truncated: the first output_limit_bytes were kept
    bool out_of_memory;        // the kernel killed it for memory
    uint64_t duration_ms;
    char *out, *err; // malloc'ed, zero-terminated, NULL when on_output was given
    size_t out_size, err_size;
};
// A command that ends leaves what it put into the background running. -EINVAL and others: it could not begin
// (no such user, working directory, environment entry without a name), and *err says why.
int agent_exec_run(struct agent *agent, const struct agent_exec *exec, struct agent_exec_result *ret_result,
        struct error *err);
void agent_exec_result_free(struct agent_exec_result *result);

struct agent_stat {
    uint64_t size_bytes, mtime_ns;
    uint32_t mode, uid, gid; // st_mode
};
int agent_file_stat(struct agent *agent, const char *path, struct agent_stat *ret_stat, struct error *err);
// Streams a file; sink returns < 0 to stop. Relative paths are below /home/user.
int agent_file_read(struct agent *agent, const char *path,
        int (*sink)(void *context, const void *bytes, size_t size), void *context, struct error *err);
// source returns bytes given, 0 at the end, < 0 to abort. The file appears whole or not at all; parents are
// made.
int agent_file_write(struct agent *agent, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err);
int agent_file_list(struct agent *agent, const char *path,
        void (*each)(void *context, const char *name, const struct agent_stat *stat), void *context,
        struct error *err);
int agent_file_remove(struct agent *agent, const char *path, bool recursive, struct error *err);
int agent_file_mkdir(struct agent *agent, const char *path, struct error *err);

// Freezes the cgroup of all user processes and drains output to a frame boundary; after success the guest
// sends nothing until thaw or after_fork. -ETIMEDOUT: the guest was thawed again and nothing has changed.
int agent_freeze(struct agent *agent, unsigned timeout_ms, struct error *err);
int agent_thaw(struct agent *agent, struct error *err); // in the source, after cont

struct agent_identity {
    uint8_t seed[64];     // fresh host randomness, credited to the kernel
    uint64_t realtime_ns; // 0 = the client fills in the host's clock as it sends
    char machine_id[33];  // 32 hex digits
    char hostname[65];
    uint8_t mac[6]; // all zero = leave
};
// In a child or a resumed machine: reseed, clock, machine id, hostname, network card, then thaw. Fails
// closed: on any error user processes stay frozen and the machine must not be handed out. An empty machine id
// or host name stays as it is.
int agent_after_fork(
        struct agent *agent, const struct agent_identity *identity, unsigned timeout_ms, struct error *err);
int agent_set_clock(struct agent *agent, struct error *err);
// sync, then FIFREEZE of every disk file system if asked: until agent_thaw or agent_after_fork whatever
// writes then waits.
int agent_sync(struct agent *agent, bool freeze_filesystems, unsigned timeout_ms, struct error *err);
// Answered before the guest begins to end its processes; the VMM ends when it is off.
int agent_poweroff(struct agent *agent, struct error *err);
