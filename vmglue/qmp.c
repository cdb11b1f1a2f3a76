// SPDX-License-Identifier: Apache-2.0
// One reader thread per connection splits the stream into lines, gives answers to the waiting call whose id
// they carry, and events to the callback. A call that gave up takes its entry out of the list, so that a late
// answer finds nobody.
#include "vmglue/qmp.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { QMP_LINE_MAX = 16 << 20, QMP_SEND_TIMEOUT_S = 10 };

struct qmp_wait {
    json_int_t id;
    json_t *answer; // the whole object, once it is here
    struct qmp_wait *next;
};

struct qmp {
    int fd;
    pthread_t reader;
    qmp_event_callback on_event;
    void *context;

    pthread_mutex_t send_lock; // rank 1: one command's bytes at a time
    pthread_mutex_t lock;      // rank 2: protects what follows
    pthread_cond_t changed;
    struct qmp_wait *waits;
    json_int_t last_id;
    bool greeted, closed, drained; // drained: the last event has been delivered
};

// Takes the reference over: jansson's counts are not for two threads at a time.
static void deliver_answer(struct qmp *qmp, json_t *object)
{
    json_t *id = json_object_get(object, "id");
    bool taken = false;
    pthread_mutex_lock(&qmp->lock);
    for (struct qmp_wait *wait = qmp->waits; wait != NULL; wait = wait->next) {
        if (wait->answer == NULL && json_is_integer(id) && json_integer_value(id) == wait->id) {
            wait->answer = object;
            taken = true;
            pthread_cond_broadcast(&qmp->changed);
            break;
        }
    }
    pthread_mutex_unlock(&qmp->lock);
    if (!taken)
        json_decref(object);
}

// Returns false when the peer does not speak QMP.
static bool handle_line(struct qmp *qmp, const char *line, size_t size)
{
    if (size == 0 || (size == 1 && line[0] == '\r'))
        return true;
    JSON_AUTO json_t *object = json_loadb(line, size, 0, NULL);
    if (!json_is_object(object))
        return false;
    const char *event = json_string_value(json_object_get(object, "event"));
    if (event != NULL) {
        if (qmp->on_event != NULL)
            qmp->on_event(qmp->context, event, json_object_get(object, "data"));
    } else if (json_object_get(object, "QMP") != NULL) {
        pthread_mutex_lock(&qmp->lock);
        qmp->greeted = true;
        pthread_cond_broadcast(&qmp->changed);
        pthread_mutex_unlock(&qmp->lock);
    } else {
        json_t *answer = object;
        object = NULL;
        deliver_answer(qmp, answer);
    }
    return true;
}

static void read_lines(struct qmp *qmp)
{
    size_t used = 0, capacity = 64 << 10;
    char *buffer = malloc(capacity);
    while (buffer != NULL) {
        if (used == capacity) {
            char *bigger = capacity < QMP_LINE_MAX ? realloc(buffer, capacity * 2) : NULL;
            if (bigger == NULL)
                break;
            buffer = bigger;
            capacity *= 2;
        }
        ssize_t got = recv(qmp->fd, buffer + used, capacity - used, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
        size_t start = 0;
        char *end;
        bool good = true;
        while (good && (end = memchr(buffer + start, '\n', used - start)) != NULL) {
            good = handle_line(qmp, buffer + start, (size_t)(end - buffer) - start);
            start = (size_t)(end - buffer) + 1;
        }
        if (!good)
            break;
        memmove(buffer, buffer + start, used - start);
        used -= start;
    }
    free(buffer);
}

static void *reader_main(void *argument)
{
    struct qmp *qmp = argument;
    read_lines(qmp);
    shutdown(qmp->fd, SHUT_RDWR);
    pthread_mutex_lock(&qmp->lock);
    qmp->closed = true;
    pthread_cond_broadcast(&qmp->changed);
    pthread_mutex_unlock(&qmp->lock);
    if (qmp->on_event != NULL)
        qmp->on_event(qmp->context, NULL, NULL);
    pthread_mutex_lock(&qmp->lock);
    qmp->drained = true;
    pthread_cond_broadcast(&qmp->changed);
    pthread_mutex_unlock(&qmp->lock);
    return NULL;
}

static int open_socket(const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return error_set(err, -ENAMETOOLONG,
                "the control socket's path %s is longer than the %zu bytes a unix socket may have: use a "
                "shorter run directory",
                path, sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set(err, -errno, "no socket for QMP: %s", strerror(errno));
    struct timeval limit = {.tv_sec = QMP_SEND_TIMEOUT_S};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(fd);
        return error_set(
                err, -error, "cannot connect to QEMU's control socket %s: %s", path, strerror(error));
    }
    return fd;
}

// Waits under the lock until *flag or the end of the connection.
static int wait_flag(struct qmp *qmp, const bool *flag, unsigned timeout_ms)
{
    struct timespec deadline = clock_deadline(timeout_ms);
    int result = 0;
    pthread_mutex_lock(&qmp->lock);
    while (!*flag && !qmp->closed && result == 0)
        result = pthread_cond_clockwait(&qmp->changed, &qmp->lock, CLOCK_MONOTONIC, &deadline);
    result = *flag ? 0 : qmp->closed ? -EPIPE : -ETIMEDOUT;
    pthread_mutex_unlock(&qmp->lock);
    return result;
}

static int greet(struct qmp *qmp, const char *path, unsigned timeout_ms, struct error *err)
{
    int result = wait_flag(qmp, &qmp->greeted, timeout_ms);
    if (result == -ETIMEDOUT)
        return error_set(err, result, "QEMU did not greet on %s within %u ms", path, timeout_ms);
    if (result < 0)
        return error_set(err, result, "QEMU closed its control socket %s before it greeted", path);
    return qmp_execute(qmp, "qmp_capabilities", NULL, timeout_ms, NULL, err);
}

int qmp_connect(const char *socket_path, unsigned timeout_ms, qmp_event_callback on_event, void *context,
        struct qmp **ret_qmp, struct error *err)
{
    int fd = open_socket(socket_path, err);
    if (fd < 0)
        return fd;
    struct qmp *qmp = calloc(1, sizeof *qmp);
    if (qmp == NULL) {
        close(fd);
        return error_set(err, -ENOMEM, "no memory for a QMP connection");
    }
    *qmp = (struct qmp){.fd = fd, .on_event = on_event, .context = context};
    pthread_mutex_init(&qmp->send_lock, NULL);
    pthread_mutex_init(&qmp->lock, NULL);
    pthread_cond_init(&qmp->changed, NULL);
    int error = pthread_create(&qmp->reader, NULL, reader_main, qmp);
    if (error != 0) {
        close(fd);
        free(qmp);
        return error_set(err, -error, "no thread for a QMP connection: %s", strerror(error));
    }
    int result = greet(qmp, socket_path, timeout_ms, err);
    if (result < 0) {
        qmp_close(qmp);
        return result;
    }
    *ret_qmp = qmp;
    return 0;
}

struct qmp *qmp_close(struct qmp *qmp)
{
    if (qmp == NULL)
        return NULL;
    shutdown(qmp->fd, SHUT_RDWR);
    pthread_join(qmp->reader, NULL);
    close(qmp->fd);
    pthread_cond_destroy(&qmp->changed);
    pthread_mutex_destroy(&qmp->lock);
    pthread_mutex_destroy(&qmp->send_lock);
    free(qmp);
    return NULL;
}

// Sends all of `text`; the descriptor, if any, goes with its first byte.
static int send_text(struct qmp *qmp, const char *text, size_t size, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    int result = 0;
    pthread_mutex_lock(&qmp->send_lock);
    for (size_t sent = 0; sent < size;) {
        struct iovec part = {.iov_base = (char *)text + sent, .iov_len = size - sent};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (fd >= 0 && sent == 0) {
            message.msg_control = control.bytes;
            message.msg_controllen = sizeof control.bytes;
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            *header = (struct cmsghdr){
                    .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
            memcpy(CMSG_DATA(header), &fd, sizeof fd);
        }
        ssize_t got = sendmsg(qmp->fd, &message, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            result = errno == EAGAIN ? -ETIMEDOUT : -EPIPE;
            shutdown(qmp->fd, SHUT_RDWR); // half a command is out: the stream is of no more use
            break;
        }
        sent += (size_t)got;
    }
    pthread_mutex_unlock(&qmp->send_lock);
    return result;
}

static int send_command(
        struct qmp *qmp, const char *command, json_t *arguments, json_int_t id, int fd, struct error *err)
{
    JSON_AUTO json_t *object = json_pack("{s:s, s:I}", "execute", command, "id", id);
    if (object != NULL && arguments != NULL)
        json_object_set_new(object, "arguments", arguments);
    else
        json_decref(arguments);
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text == NULL)
        return error_set(err, -EINVAL, "the QMP command %s cannot be written as JSON: its text must be UTF-8",
                command);
    int result = send_text(qmp, text, strlen(text), fd);
    free(text);
    if (result == -ETIMEDOUT)
        return error_set(
                err, result, "QEMU did not take the command %s within %d s", command, QMP_SEND_TIMEOUT_S);
    if (result < 0)
        return error_set(err, result, "QEMU's control connection has ended (at the command %s)", command);
    return 0;
}

static void unlink_wait_locked(struct qmp *qmp, struct qmp_wait *wait)
{
    struct qmp_wait **at = &qmp->waits;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
}

static int take_answer(json_t *object, const char *command, json_t **ret_answer, struct error *err)
{
    json_t *error = json_object_get(object, "error");
    if (error != NULL) {
        const char *words = json_string_value(json_object_get(error, "desc"));
        return error_set(err, -EREMOTEIO, "QEMU refused the command %s: %s", command,
                words != NULL ? words : "without a reason");
    }
    if (ret_answer != NULL)
        *ret_answer = json_incref(json_object_get(object, "return"));
    return 0;
}

int qmp_execute_fd(struct qmp *qmp, const char *command, json_t *arguments, int fd, unsigned timeout_ms,
        json_t **ret_answer, struct error *err)
{
    struct qmp_wait wait = {0};
    pthread_mutex_lock(&qmp->lock);
    wait.id = ++qmp->last_id;
    wait.next = qmp->waits;
    qmp->waits = &wait;
    pthread_mutex_unlock(&qmp->lock);

    struct timespec deadline = clock_deadline(timeout_ms);
    int result = send_command(qmp, command, arguments, wait.id, fd, err);
    int waited = 0;
    pthread_mutex_lock(&qmp->lock);
    while (result == 0 && wait.answer == NULL && !qmp->closed && waited == 0)
        waited = pthread_cond_clockwait(&qmp->changed, &qmp->lock, CLOCK_MONOTONIC, &deadline);
    unlink_wait_locked(qmp, &wait);
    bool closed = qmp->closed;
    pthread_mutex_unlock(&qmp->lock);

    JSON_AUTO json_t *answer = wait.answer;
    if (result < 0)
        return result;
    if (answer != NULL)
        return take_answer(answer, command, ret_answer, err);
    if (closed)
        return error_set(
                err, -EPIPE, "QEMU's control connection ended before it answered the command %s", command);
    return error_set(err, -ETIMEDOUT, "QEMU did not answer the command %s within %u ms", command, timeout_ms);
}

int qmp_execute(struct qmp *qmp, const char *command, json_t *arguments, unsigned timeout_ms,
        json_t **ret_answer, struct error *err)
{
    return qmp_execute_fd(qmp, command, arguments, -1, timeout_ms, ret_answer, err);
}

int qmp_send(struct qmp *qmp, const char *command, json_t *arguments, struct error *err)
{
    pthread_mutex_lock(&qmp->lock);
    json_int_t id = ++qmp->last_id;
    pthread_mutex_unlock(&qmp->lock);
    return send_command(qmp, command, arguments, id, -1, err);
}

int qmp_wait_closed(struct qmp *qmp, unsigned timeout_ms)
{
    struct timespec deadline = clock_deadline(timeout_ms);
    int waited = 0;
    pthread_mutex_lock(&qmp->lock);
    while (!qmp->drained && waited == 0)
        waited = pthread_cond_clockwait(&qmp->changed, &qmp->lock, CLOCK_MONOTONIC, &deadline);
    bool drained = qmp->drained;
    pthread_mutex_unlock(&qmp->lock);
    return drained ? 0 : -ETIMEDOUT;
}
