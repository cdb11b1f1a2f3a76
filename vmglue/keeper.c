// SPDX-License-Identifier: Apache-2.0
#include "vmglue/keeper_client.h"
#include "vmglue/keeper_guard.h"
#include "vmglue/keeper_wire.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int set_timeouts(int fd)
{
    struct timeval limit = {.tv_sec = 10};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0)
        return -errno;
    return 0;
}

int keeper_client_connect(const char *run_dir, int *ret_fd, struct error *err)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/keeper.sock", run_dir) >= sizeof path)
        return error_set(err, -ENAMETOOLONG, "the run directory's name is too long: %.100s...", run_dir);
    int fd;
    int result = unix_socket_connect(path, SOCK_SEQPACKET, &fd);
    if (result == -ENOENT || result == -ECONNREFUSED)
        return error_set(
                err, -ENOTCONN, "no keeper answers at %s: start one (the daemon does at its start)", path);
    if (result < 0)
        return error_set(err, result, "cannot reach the keeper at %s: %s", path, strerror(-result));
    result = set_timeouts(fd);
    if (result < 0) {
        close(fd);
        return error_set(
                err, result, "cannot set a time limit on the keeper's socket: %s", strerror(-result));
    }
    *ret_fd = fd;
    return 0;
}

static int check_name(const char *name, struct error *err)
{
    size_t size = strlen(name);
    bool good = size >= 1 && size <= KEEPER_NAME_MAX;
    for (const char *c = name; good && *c != '\0'; c++)
        good = *c > ' ' && *c < 0x7f;
    if (good)
        return 0;
    return error_set(err, -EINVAL,
            "\"%.140s\" is no name for the keeper: 1 to %d visible ASCII characters are allowed", name,
            KEEPER_NAME_MAX);
}

static int send_request(int fd, enum keeper_op op, const char *name, int pass_fd)
{
    struct keeper_request request = {
            .magic = KEEPER_MAGIC, .op = (uint16_t)op, .name_bytes = (uint16_t)strlen(name)};
    memcpy(request.name, name, request.name_bytes);
    int result = unix_socket_send(fd, &request, KEEPER_REQUEST_HEAD + request.name_bytes, pass_fd);
    return result == -EAGAIN ? -ETIMEDOUT : result;
}

// Receives one well-formed reply; *ret_fd is a descriptor or -1. Returns 0 (whatever reply->result says) or
// -errno.
static int receive_reply(int fd, struct keeper_reply *reply, int *ret_fd)
{
    int got_fd = -1;
    ssize_t got = unix_socket_receive(fd, reply, sizeof *reply, 0, &got_fd);
    if (got == -EAGAIN)
        return -ETIMEDOUT;
    if (got < 0)
        return (int)got;
    bool good = (size_t)got >= KEEPER_REPLY_HEAD && reply->magic == KEEPER_MAGIC &&
                (size_t)got == KEEPER_REPLY_HEAD + reply->names_bytes &&
                (reply->names_bytes == 0 || reply->names[reply->names_bytes - 1] == '\0');
    if (!good) {
        if (got_fd >= 0)
            close(got_fd);
        return got == 0 ? -ENOTCONN : -EBADMSG;
    }
    *ret_fd = got_fd;
    return 0;
}

// One request and its reply on a connected socket. *ret_fd: the caller's, or -1.
static int exchange(
        int fd, enum keeper_op op, const char *name, int pass_fd, struct keeper_reply *reply, int *ret_fd)
{
    int result = send_request(fd, op, name, pass_fd);
    if (result == -EPIPE)
        result = -ENOTCONN;
    if (result == 0)
        result = receive_reply(fd, reply, ret_fd);
    return result == 0 ? reply->result : result;
}

static int refused(struct error *err, int result, const char *what, const char *name)
{
    if (result == -ENOENT)
        return error_set(err, result, "the keeper holds nothing named \"%s\"", name);
    if (result == -EPERM)
        return error_set(err, result, "the keeper belongs to another user: run as the user who started it");
    if (result == -ENOSPC)
        return error_set(
                err, result, "the keeper holds as many descriptors as it may: drop some, or raise its limit");
    return error_set(err, result, "the keeper could not %s \"%s\": %s", what, name, strerror(-result));
}

static int call(const char *run_dir, enum keeper_op op, const char *what, const char *name, int pass_fd,
        int *ret_fd, struct error *err)
{
    int result = check_name(name, err);
    int fd;
    if (result < 0 || (result = keeper_client_connect(run_dir, &fd, err)) < 0)
        return result;
    struct keeper_reply reply;
    int got_fd = -1;
    result = exchange(fd, op, name, pass_fd, &reply, &got_fd);
    close(fd);
    if (result == 0 && ret_fd != NULL && got_fd < 0)
        result = -EBADMSG;
    if (result < 0 || ret_fd == NULL) {
        if (got_fd >= 0)
            close(got_fd);
        return result < 0 ? refused(err, result, what, name) : 0;
    }
    *ret_fd = got_fd;
    return 0;
}

int keeper_client_put(const char *run_dir, const char *name, int fd, struct error *err)
{
    if (fd < 0)
        return error_set(err, -EBADF, "there is no descriptor to keep as \"%s\"", name);
    return call(run_dir, KEEPER_PUT, "keep", name, fd, NULL, err);
}

int keeper_put(const char *run_dir, const char *name, int fd, struct error *err)
{
    // Noted first: a keeper that dies now is replaced by one that has it.
    keeper_guard_note(run_dir, name, fd);
    int result = keeper_client_put(run_dir, name, fd, err);
    if (result == -ENOTCONN && keeper_guard_revive(run_dir, err) == 0)
        result = keeper_client_put(run_dir, name, fd, err);
    if (result < 0)
        keeper_guard_note(run_dir, name, -1);
    return result;
}

int keeper_get(const char *run_dir, const char *name, int *ret_fd, struct error *err)
{
    return call(run_dir, KEEPER_GET, "give back", name, -1, ret_fd, err);
}

int keeper_drop(const char *run_dir, const char *name, struct error *err)
{
    keeper_guard_note(run_dir, name, -1);
    return call(run_dir, KEEPER_DROP, "drop", name, -1, NULL, err);
}

int keeper_list(
        const char *run_dir, void (*each)(void *context, const char *name), void *context, struct error *err)
{
    int fd;
    int result = keeper_client_connect(run_dir, &fd, err);
    if (result < 0)
        return result;
    char after[KEEPER_NAME_MAX + 1] = "";
    struct keeper_reply reply;
    do {
        int got_fd = -1;
        result = exchange(fd, KEEPER_LIST, after, -1, &reply, &got_fd);
        if (got_fd >= 0)
            close(got_fd);
        if (result < 0)
            break;
        for (uint32_t at = 0; at < reply.names_bytes; at += (uint32_t)strlen(reply.names + at) + 1) {
            each(context, reply.names + at);
            snprintf(after, sizeof after, "%s", reply.names + at);
        }
    } while (reply.more && reply.names_bytes > 0);
    close(fd);
    return result < 0 ? refused(err, result, "list", "its names") : 0;
}

int keeper_stop(const char *run_dir, struct error *err)
{
    int fd;
    int result = keeper_client_connect(run_dir, &fd, err);
    if (result == -ENOTCONN)
        return 0;
    if (result < 0)
        return result;
    struct keeper_reply reply;
    int got_fd = -1;
    result = exchange(fd, KEEPER_STOP, "", -1, &reply, &got_fd);
    // It has let go of everything when it answers; the connection ends with the process.
    while (result == 0 && (result = receive_reply(fd, &reply, &got_fd)) == 0)
        ;
    close(fd);
    if (result == -ENOTCONN || result == -ECONNRESET)
        return 0;
    return refused(err, result, "end, asked by", "stop");
}

static int ping(const char *run_dir, struct error *err)
{
    int fd;
    int result = keeper_client_connect(run_dir, &fd, err);
    if (result < 0)
        return result;
    struct keeper_reply reply;
    int got_fd = -1;
    result = exchange(fd, KEEPER_PING, "", -1, &reply, &got_fd);
    if (got_fd >= 0)
        close(got_fd);
    close(fd);
    if (result == -ECONNRESET)
        result = -ENOTCONN; // it was about to end
    return result < 0 ? refused(err, result, "answer to", "ping") : 0;
}

// Runs the program with its standard output on the pipe: it says "ready", or a sentence about what is wrong.
static int spawn_program(const char *program, const char *run_dir, int pipe_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int result = posix_spawn_file_actions_init(&actions);
    if (result != 0)
        return -result;
    result = posix_spawnattr_init(&attributes);
    if (result != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return -result;
    }
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    result = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (result == 0)
        result = posix_spawn_file_actions_adddup2(&actions, pipe_fd, 1);
    if (result == 0)
        result = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    char *const argv[] = {(char *)program, (char *)run_dir, NULL};
    if (result == 0)
        result = posix_spawn(ret_pid, program, &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return -result;
}

static int start_program(const char *run_dir, const char *libexec_dir, struct error *err)
{
    char program[4096];
    if ((size_t)snprintf(program, sizeof program, "%s/ramet-keeper", libexec_dir) >= sizeof program)
        return error_set(
                err, -ENAMETOOLONG, "the helpers' directory has too long a name: %.100s...", libexec_dir);
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    pid_t pid;
    int result = spawn_program(program, run_dir, pipe_fds[1], &pid);
    close(pipe_fds[1]);
    if (result < 0) {
        close(pipe_fds[0]);
        return error_set(err, result, "cannot start %s: %s (RAMET_LIBEXEC names the helpers' directory)",
                program, strerror(-result));
    }
    char said[400] = "";
    size_t size = 0;
    ssize_t got;
    while (size < sizeof said - 1 && ((got = read(pipe_fds[0], said + size, sizeof said - 1 - size)) > 0 ||
                                             (got < 0 && errno == EINTR)))
        size += got > 0 ? (size_t)got : 0;
    close(pipe_fds[0]);
    said[size] = '\0';
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ; // the first process ends at once; somebody else may have reaped it
    if (strcmp(said, "ready\n") == 0)
        return 0;
    said[strcspn(said, "\n")] = '\0';
    return error_set(
            err, -EIO, "%s did not come up: %s", program, said[0] ? said : "it ended without a word");
}

int keeper_ensure(const char *run_dir, const char *libexec_dir, struct error *err)
{
    int result = ping(run_dir, err);
    if (result != -ENOTCONN)
        return result;
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/keeper.start", run_dir) >= sizeof path)
        return error_set(err, -ENAMETOOLONG, "the run directory's name is too long: %.100s...", run_dir);
    // One starter at a time; whoever comes second finds the first one's keeper.
    int lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_fd < 0)
        return error_set(err, -errno, "cannot make %s: %s", path, strerror(errno));
    do {
        result = flock(lock_fd, LOCK_EX) < 0 ? -errno : 0;
    } while (result == -EINTR);
    if (result < 0)
        error_set(err, result, "cannot lock %s: %s", path, strerror(-result));
    else if ((result = ping(run_dir, err)) == -ENOTCONN)
        result = start_program(run_dir, libexec_dir, err);
    close(lock_fd);
    return result;
}
