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
// Whether the connection has ended, by agent_break or by itself: a new one is to be made.
bool agent_is_broken(struct agent *agent);

// True when the guest said in its HELLO that user processes or file systems are frozen: a daemon that finds
// its source machine so (the one before it died between freeze and thaw) calls agent_thaw; a child's daemon
// calls agent_after_fork.
bool agent_was_frozen(const struct agent *agent);

// The protocol's version that both sides speak. An agent in an older snapshot may speak 1 only; it knows
// nothing of the calls marked [2]: they fail with -EOPNOTSUPP and a sentence that says what to do.
unsigned agent_version(const struct agent *agent);

int agent_ping(struct agent *agent, unsigned timeout_ms, struct error *err);
// By how much the guest's clock is ahead of the host's, right to within *ret_doubt_ns (half the round trip).
int agent_clock_offset(struct agent *agent, unsigned timeout_ms, int64_t *ret_offset_ns,
        uint64_t *ret_doubt_ns, struct error *err);

struct agent_exec {
    const char *const *argv;   // NULL-terminated; or
    const char *shell_command; // run by /bin/bash -c (sh when there is no bash)
    const char *const *env;    // "NAME=value" additions, NULL-terminated; NULL = none
    const char *cwd;           // NULL = the user's home
    const char *user;          // NULL = "user"
    const char *mark;          // of a job: by which it is known again (agent_job.mark). NULL = none
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

// ---- More of files [2] ----

// Bytes from offset on, at most length; *ret_size is the whole file's.
int agent_file_read_range(struct agent *agent, const char *path, uint64_t offset, uint64_t length,
        int (*sink)(void *context, const void *bytes, size_t size), void *context, uint64_t *ret_size,
        struct error *err);
// At the end of the file, which is made if need be: all of it, or nothing.
int agent_file_append(struct agent *agent, const char *path, uint32_t mode,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err);
// Files and directories, within a file system; parents of `to` are made. -EEXIST unless replace.
int agent_file_move(struct agent *agent, const char *from, const char *to, bool replace, struct error *err);
int agent_file_chmod(struct agent *agent, const char *path, uint32_t mode, struct error *err);

// Uploads that can be cut off and gone on with: the bytes stay aside until committed, and are removed when
// nobody touched them for a day. They are on the machine's disk: they outlive sessions, and are in snapshots.
struct agent_upload {
    char id[17];
    uint64_t size_bytes; // so far
    uint32_t crc32c;     // of those, by agent_upload_get
};
int agent_upload_begin(struct agent *agent, const char *path, uint32_t mode, struct agent_upload *ret_upload,
        struct error *err);
// From offset on, at most what there is: what was behind is cut off. What was given before a failure is kept.
// -EBUSY: another call writes to it.
int agent_upload_write(struct agent *agent, const char *id, uint64_t offset,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct agent_upload *ret_upload, struct error *err);
int agent_upload_get(struct agent *agent, const char *id, struct agent_upload *ret_upload, struct error *err);
// The file appears. -EINVAL: it has not that size; -EBADMSG: nor that sum (NULL = not compared).
int agent_upload_commit(
        struct agent *agent, const char *id, uint64_t size_bytes, const uint32_t *crc32c, struct error *err);
int agent_upload_drop(struct agent *agent, const char *id, struct error *err);

struct agent_watch {
    const char *path;
    bool recursive;
    // kind: AGENT_WATCH_*; other: the new name of what was moved, else "". < 0 ends the call with that.
    int (*each)(void *context, int kind, const char *path, const char *other);
    void *context;
    bool (*cancelled)(
            void *context); // asked every 100 ms; true = the call ends with -ECANCELED; NULL = never
};
// Until the watched thing itself is gone (0), or it is ended. Of a slow caller the guest keeps 16384 events.
int agent_watch(struct agent *agent, const struct agent_watch *watch, struct error *err);

// ---- Set-up [2] ----

struct agent_network {        // NULL = as it is
    const char *address;      // "10.0.2.15/24"
    const char *gateway;      // or "none"
    const char *name_servers; // up to three, spaces between, or "none"
    const char *host_name;    // in the hosts file, as this machine
};
int agent_network_set(struct agent *agent, const struct agent_network *network, struct error *err);
// index: 0 is the root disk, 1 the next one. make: a file system, when the disk is empty.
int agent_disk_mount(struct agent *agent, unsigned index, const char *path, bool make, struct error *err);
int agent_disk_unmount(struct agent *agent, const char *path, struct error *err);
// The mounted ext4 takes the disk's present size.
int agent_disk_grow(struct agent *agent, unsigned index, uint64_t *ret_bytes, struct error *err);

// ---- Connections into the guest [2] ----
//
// Connects to "tcp:PORT" (the guest's 127.0.0.1, then ::1) or "unix:/run/PATH" (as root; no links, one file
// system) and gives a connected stream socket of the host, non-blocking, close-on-exec, the caller's to
// close. The connection's I/O thread moves bytes both ways; what is not taken on one side holds the other
// back. shutdown(SHUT_WR) arrives as the end of input there, and the other way round. Closing it, or a reset
// in the guest, ends both sides. It ends with the connection: agent_disconnect, a fork's child, a restarted
// daemon. -ECONNREFUSED, -ENOENT, -ETIMEDOUT ... with words. timeout_ms 0 = 30 s.
int agent_dial(struct agent *agent, const char *target, unsigned timeout_ms, int *ret_fd, struct error *err);

// ---- Jobs [2]: commands that belong to no connection ----
//
// A job lives in the guest: it outlives sessions, the daemon, snapshots and forks (each child has its own
// copy with the same id). Of each stream the guest keeps the last AGENT_JOB_LOG_BYTES (less when it has
// little memory); offsets count every byte ever written. The guest knows at most AGENT_JOBS_MAX: the oldest
// that ended make way for new ones.
enum {
    AGENT_JOB_LOG_BYTES = 1 << 20,
    AGENT_JOBS_MAX = 256,
    AGENT_JOB_NAME_MAX = 64,
    AGENT_JOB_MARK_MAX = 32
};

struct agent_job_log {
    uint64_t first, end; // the first byte that is kept, and one behind the last that was written
};
struct agent_job {
    uint32_t id;                       // never used twice in a machine's life
    char name[AGENT_JOB_NAME_MAX + 1]; // "" = none; one job of a name runs at a time
    char mark[AGENT_JOB_MARK_MAX + 1]; // "" = none, or an agent that knows of no marks
    char command[200]; // the first argument or the shell's line, cut, cleaned of control bytes
    bool running;
    int pid;
    int exit_code, signal; // as in agent_exec_result, once it ended
    bool timed_out, out_of_memory;
    uint64_t started_ns, ended_ns; // the guest's wall clock; 0 = still running
    uint64_t duration_ms;
    struct agent_job_log out, err;
};

// Of the exec: argv or shell_command, env, cwd, user, stdin (up to 1 MiB), timeout_ms. name may be NULL.
// -EEXIST: a job of that name runs. Returns once the command was executed or could not be (*err says why).
int agent_job_start(struct agent *agent, const struct agent_exec *exec, const char *name,
        struct agent_job *ret_job, struct error *err);
int agent_job_get(struct agent *agent, uint32_t id, struct agent_job *ret_job, struct error *err); // -ENOENT
// The newest job of that name.
int agent_job_find(struct agent *agent, const char *name, struct agent_job *ret_job, struct error *err);
// The one that was started with this mark, which is not "".
int agent_job_marked(struct agent *agent, const char *mark, struct agent_job *ret_job, struct error *err);
int agent_job_list(struct agent *agent, void (*each)(void *context, const struct agent_job *job),
        void *context, struct error *err);
// Until it ended; -ETIMEDOUT (and *ret_job untouched): it runs on. timeout_ms 0 = 30 s.
int agent_job_wait(
        struct agent *agent, uint32_t id, unsigned timeout_ms, struct agent_job *ret_job, struct error *err);
// To its first process, or to every process of its cgroup. -ESRCH: it ended.
int agent_job_signal(struct agent *agent, uint32_t id, int signal, bool whole, struct error *err);
// Forgets it and its log. -EBUSY while it runs, unless kill: then all its processes are killed first.
int agent_job_remove(struct agent *agent, uint32_t id, bool kill, struct error *err);

struct agent_job_logs {
    uint32_t id;
    uint64_t out_offset, err_offset; // where to begin; UINT64_MAX = at the present end
    bool follow;                     // go on until the job ended and all was given
    // stream 1 or 2. A piece whose offset is beyond the end of the one before: bytes between were dropped.
    // < 0 ends the call with that.
    int (*sink)(void *context, int stream, uint64_t offset, const void *bytes, size_t size);
    void *context;
    bool (*cancelled)(
            void *context); // asked every 100 ms; true = the call ends with -ECANCELED; NULL = never
};
int agent_job_logs(
        struct agent *agent, const struct agent_job_logs *logs, struct agent_job *ret_job, struct error *err);

// ---- Terminals [2] ----
//
// A command on a terminal of its own, as leader of a session with job control. Closing hangs up: the session
// gets SIGHUP, and what is left of it two seconds later is killed. So does the end of the connection.
struct agent_pty;
int agent_pty_open(struct agent *agent,
        const struct agent_exec *exec, // no command = the user's login shell; no stdin, no callbacks
        unsigned rows, unsigned columns, const char *term, // term NULL = "xterm-256color"; sizes 1 to 4096
        struct agent_pty **ret_pty, struct error *err);
// A stream socket as of agent_dial, owned by the pty: what is typed goes in, what the terminal shows comes
// out; end of file when the terminal is gone. Do not close it.
int agent_pty_fd(const struct agent_pty *pty);
int agent_pty_resize(struct agent_pty *pty, unsigned rows, unsigned columns, struct error *err);
// How the command ended, once it did: -ETIMEDOUT, -EPIPE. Output may still wait in the descriptor.
int agent_pty_wait(
        struct agent_pty *pty, unsigned timeout_ms, struct agent_exec_result *ret_result, struct error *err);
struct agent_pty *agent_pty_close(struct agent_pty *pty); // accepts NULL; before agent_disconnect

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
