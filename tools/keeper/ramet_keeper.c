// SPDX-License-Identifier: Apache-2.0
// ramet-keeper RUNDIR [IDLE_SECONDS]: holds descriptors under names for a daemon that may die
// (vmglue/keeper.h).
//
// It must never be the part that fails: one thread, one poll loop, no file but its socket and its lock, fixed
// limits, and it never waits for a client. States:
//   starting   foreground: takes RUNDIR/keeper.lock (held for life), listens, becomes a daemon by forking
//   twice,
//              says "ready" on standard output
//   serving    one request and one reply per packet; a client that does not take its reply is hung up on
//   ending     told so, SIGTERM, or alone for IDLE_SECONDS with nothing held or with a name that is not its
//   own any
//              more: removes its socket, closes what it holds, releases the lock
#include "vmglue/keeper_wire.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = 64, IDLE_SECONDS = 60, LOCK_SECONDS = 10, REST_MS = 100 };
#define OOM_SCORE "-950"
enum { SLOT_LISTEN, SLOT_SIGNAL, SLOT_CLIENTS };

struct held {
    char name[KEEPER_NAME_MAX + 1];
    int fd;
};

static struct {
    char socket_path[4096];
    struct stat socket_stat; // to see whether the name still is ours
    int lock_fd, listen_fd, signal_fd;
    uid_t uid;
    unsigned idle_seconds;
    struct held *held; // by name, ascending
    unsigned held_count;
    int clients[CLIENTS_MAX];
    bool refused[CLIENTS_MAX]; // another user: every request is answered with -EPERM
    unsigned client_count;
    bool rests; // a client could not be taken, for want of a descriptor
    bool ending;
    int ending_client; // who asked; hears of it last
} keeper;

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    exit(1);
}

// ---- What is held ----

// Index of the first name that is not below `name`; *ret_found says whether it is equal.
static unsigned held_search(const char *name, bool *ret_found)
{
    unsigned low = 0, high = keeper.held_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (strcmp(keeper.held[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_found = low < keeper.held_count && strcmp(keeper.held[low].name, name) == 0;
    return low;
}

static int held_put(const char *name, int fd)
{
    bool found;
    unsigned at = held_search(name, &found);
    if (found) {
        close(keeper.held[at].fd);
        keeper.held[at].fd = fd;
        return 0;
    }
    if (keeper.held_count == KEEPER_HELD_MAX)
        return -ENOSPC;
    memmove(&keeper.held[at + 1], &keeper.held[at], (keeper.held_count - at) * sizeof *keeper.held);
    keeper.held_count++;
    snprintf(keeper.held[at].name, sizeof keeper.held[at].name, "%s", name);
    keeper.held[at].fd = fd;
    return 0;
}

static int held_drop(const char *name)
{
    bool found;
    unsigned at = held_search(name, &found);
    if (!found)
        return -ENOENT;
    close(keeper.held[at].fd);
    keeper.held_count--;
    memmove(&keeper.held[at], &keeper.held[at + 1], (keeper.held_count - at) * sizeof *keeper.held);
    return 0;
}

static void held_list(const char *after, struct keeper_reply *reply)
{
    bool found;
    unsigned at = held_search(after, &found);
    for (at += found; at < keeper.held_count; at++) {
        size_t size = strlen(keeper.held[at].name) + 1;
        if (reply->names_bytes + size > sizeof reply->names) {
            reply->more = 1;
            return;
        }
        memcpy(reply->names + reply->names_bytes, keeper.held[at].name, size);
        reply->names_bytes += (uint32_t)size;
    }
}

// ---- Requests ----

static bool request_is_sound(const struct keeper_request *request, size_t size)
{
    if (size < KEEPER_REQUEST_HEAD || request->magic != KEEPER_MAGIC ||
            request->name_bytes > KEEPER_NAME_MAX || size != KEEPER_REQUEST_HEAD + request->name_bytes)
        return false;
    for (unsigned i = 0; i < request->name_bytes; i++) {
        if (request->name[i] <= ' ' || request->name[i] >= 0x7f)
            return false;
    }
    bool named = request->op == KEEPER_PUT || request->op == KEEPER_GET || request->op == KEEPER_DROP;
    return !named || request->name_bytes > 0;
}

// Takes *fd (and sets it to -1) when it keeps it. Returns the descriptor to send along, or -1.
static int serve(const struct keeper_request *request, int *fd, struct keeper_reply *reply)
{
    char name[KEEPER_NAME_MAX + 1];
    memcpy(name, request->name, request->name_bytes);
    name[request->name_bytes] = '\0';
    bool found;
    unsigned at;
    switch (request->op) {
    case KEEPER_PING:
        return -1;
    case KEEPER_PUT:
        reply->result = *fd < 0 ? -EBADF : held_put(name, *fd);
        if (reply->result == 0)
            *fd = -1;
        return -1;
    case KEEPER_GET:
        at = held_search(name, &found);
        reply->result = found ? 0 : -ENOENT;
        return found ? keeper.held[at].fd : -1;
    case KEEPER_DROP:
        reply->result = held_drop(name);
        return -1;
    case KEEPER_LIST:
        held_list(name, reply);
        return -1;
    case KEEPER_STOP:
        keeper.ending = true;
        return -1;
    default:
        reply->result = -ENOSYS;
        return -1;
    }
}

// Returns false when the client is to be hung up on.
static bool serve_client(int client, bool refused)
{
    struct keeper_request request = {0};
    struct keeper_reply reply = {.magic = KEEPER_MAGIC};
    int fd = -1, send_fd = -1;
    ssize_t got = unix_socket_receive(client, &request, sizeof request, MSG_DONTWAIT, &fd);
    if (got == -EAGAIN)
        return true;
    if (got == 0 || (got < 0 && got != -EMSGSIZE)) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool sound = !refused && got > 0 && request_is_sound(&request, (size_t)got);
    if (refused)
        reply.result = -EPERM;
    else if (sound)
        send_fd = serve(&request, &fd, &reply);
    else
        reply.result = got == -EMSGSIZE ? -EMSGSIZE : -EINVAL;
    if (fd >= 0)
        close(fd);
    if (keeper.ending) {
        keeper.ending_client = client;
        return true;
    }
    return unix_socket_send(client, &reply, KEEPER_REPLY_HEAD + reply.names_bytes, send_fd) == 0 && sound;
}

static void accept_client(void)
{
    int client = accept4(keeper.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) {
        keeper.rests = errno != EINTR && errno != ECONNABORTED && errno != EAGAIN;
        return;
    }
    pid_t pid;
    uid_t uid;
    bool allowed = unix_socket_peer(client, &pid, &uid) == 0 && (uid == keeper.uid || uid == 0);
    // The refusal waits for the request: a reply sent before it would be lost with the connection.
    keeper.refused[keeper.client_count] = !allowed;
    keeper.clients[keeper.client_count++] = client;
}

// ---- Life ----

static void raise_limits(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    // Every VM of this daemon hangs on this process: the last to go when memory is short (root only; else no
    // matter).
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "-900", 4) < 0) {
            // not allowed: stays as it is
        }
        close(fd);
    }
}

static void lock_is_held(int signal_number)
{
    static const char text[] =
            "another ramet-keeper holds keeper.lock in the run directory and does not answer: end it\n";
    _exit(write(1, text, sizeof text - 1) < 0 ? 2 : 1);
}

static void lock_run_dir(const char *run_dir)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/keeper.lock", run_dir) >= sizeof path)
        fail("the run directory's name is too long: %.100s...", run_dir);
    keeper.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (keeper.lock_fd < 0)
        fail("cannot make %s: %s; does the run directory exist, and is it yours?", path, strerror(errno));
    // A predecessor that is just ending releases it in a moment; one that lives and does not answer never
    // does.
    signal(SIGALRM, lock_is_held);
    alarm(LOCK_SECONDS);
    if (flock(keeper.lock_fd, LOCK_EX) < 0)
        fail("cannot lock %s: %s", path, strerror(errno));
    alarm(0);
}

static void become_daemon(void)
{
    for (int round = 0; round < 2; round++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("cannot fork: %s", strerror(errno));
        if (pid > 0)
            _exit(0);
        if (round == 0)
            setsid();
    }
    if (chdir("/") < 0)
        fail("cannot change to the root directory: %s", strerror(errno));
}

static void say_ready(void)
{
    if (write(1, "ready\n", 6) < 0) {
        // whoever started it is gone: serve the next
    }
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= 2 && null_fd >= 0; fd++)
        dup2(null_fd, fd);
    if (null_fd > 2)
        close(null_fd);
}

static void start(const char *run_dir)
{
    raise_limits();
    keeper.uid = geteuid();
    keeper.held = calloc(KEEPER_HELD_MAX, sizeof *keeper.held);
    char *absolute = realpath(run_dir, NULL);
    if (keeper.held == NULL || absolute == NULL)
        fail("cannot use the run directory %s: %s", run_dir, strerror(errno));
    if ((size_t)snprintf(keeper.socket_path, sizeof keeper.socket_path, "%s/keeper.sock", absolute) >=
            sizeof keeper.socket_path)
        fail("the run directory's name is too long: %.100s...", absolute);
    lock_run_dir(absolute);
    free(absolute);
    struct error err;
    if (unix_socket_listen(
                keeper.socket_path, SOCK_SEQPACKET | SOCK_NONBLOCK, 0600, &keeper.listen_fd, &err) < 0)
        fail("%s", err.text);
    if (stat(keeper.socket_path, &keeper.socket_stat) < 0)
        fail("cannot stat %s: %s", keeper.socket_path, strerror(errno));
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    keeper.signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (keeper.signal_fd < 0)
        fail("cannot make a signal descriptor: %s", strerror(errno));
}

static bool name_is_ours(void)
{
    struct stat now;
    return stat(keeper.socket_path, &now) == 0 && now.st_dev == keeper.socket_stat.st_dev &&
           now.st_ino == keeper.socket_stat.st_ino;
}

static void poll_once(void)
{
    struct pollfd fds[SLOT_CLIENTS + CLIENTS_MAX] = {
            [SLOT_LISTEN] = {keeper.listen_fd, POLLIN, 0}, [SLOT_SIGNAL] = {keeper.signal_fd, POLLIN, 0}};
    unsigned count = keeper.client_count;
    bool rests = keeper.rests;
    keeper.rests = false;
    if (count == CLIENTS_MAX || rests)
        fds[SLOT_LISTEN].fd = -1; // the next ones wait in the backlog
    for (unsigned i = 0; i < count; i++)
        fds[SLOT_CLIENTS + i] = (struct pollfd){keeper.clients[i], POLLIN, 0};
    int ready = poll(fds, SLOT_CLIENTS + count,
            rests        ? REST_MS
            : count == 0 ? (int)keeper.idle_seconds * 1000
                         : -1);
    if (ready == 0 && !rests && (keeper.held_count == 0 || !name_is_ours()))
        keeper.ending = true;
    if (ready <= 0)
        return;
    if (fds[SLOT_SIGNAL].revents)
        keeper.ending = true;
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        bool keep = fds[SLOT_CLIENTS + i].revents == 0 || serve_client(keeper.clients[i], keeper.refused[i]);
        if (keep) {
            keeper.refused[kept] = keeper.refused[i];
            keeper.clients[kept++] = keeper.clients[i];
        } else {
            close(keeper.clients[i]);
        }
    }
    keeper.client_count = kept;
    if (fds[SLOT_LISTEN].revents)
        accept_client();
}

static void finish(void)
{
    for (unsigned i = 0; i < keeper.held_count; i++)
        close(keeper.held[i].fd);
    if (name_is_ours())
        unlink(keeper.socket_path);
    close(keeper.lock_fd);
    if (keeper.ending_client >= 0) {
        struct keeper_reply reply = {.magic = KEEPER_MAGIC};
        unix_socket_send(keeper.ending_client, &reply, KEEPER_REPLY_HEAD, -1);
    }
    free(keeper.held);
}

// Machines cannot live without what is held here, and the daemon can: it goes last of all.
static void outlive_all(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, OOM_SCORE, sizeof OOM_SCORE - 1) < 0)
        errno = 0; // not permitted: it is as likely to go as others
    close(fd);
}

int main(int argc, char **argv)
{
    char *end = "";
    keeper.idle_seconds = argc == 3 ? (unsigned)strtoul(argv[2], &end, 10) : IDLE_SECONDS;
    if (argc < 2 || argc > 3 || *end != '\0' || keeper.idle_seconds == 0 || keeper.idle_seconds > 86400)
        fail("usage: ramet-keeper RUNDIR [IDLE_SECONDS (1 to 86400)]");
    if (close_range(3, ~0U, 0) < 0)
        fail("cannot close inherited descriptors: %s", strerror(errno));
    umask(077);
    outlive_all();
    keeper.ending_client = -1;
    start(argv[1]);
    become_daemon();
    say_ready();
    while (!keeper.ending)
        poll_once();
    finish();
    return 0;
}
