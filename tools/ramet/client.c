// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/client.h"

#include "blockstore/fd.h"
#include "tools/ramet/connection.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEAD_MAX = 16384,
    BUFFER_BYTES = 65536,
    SILENCE_SECS = 10,
    ALIVE_SECS = 10,
    TRIES = 4,
    RETRY_MAX_SECS = 5
};

struct client {
    const struct server *server;
    int fd;
    bool chunked_out, answered;
    bool chunked, ended;
    int64_t length, left;      // of the answer or of the current chunk
    char buffer[BUFFER_BYTES]; // received and not taken yet
    size_t begin, end;
    char *line; // of client_event
    size_t line_size;
};

static int broken(const struct client *client, struct error *err, int code)
{
    const struct server *server = client->server;
    bool remote = server_is_remote(server);
    if (code == -ETIMEDOUT)
        return error_set(err, code,
                "the daemon%s%s does not answer; is its process stopped? (its log and ps say more)",
                remote ? " at " : "", remote ? server->name : "");
    if (code == -EPROTO)
        return error_set(err, code, "what answers at %s is no Ramet daemon; are address and port right?",
                server->name);
    if (server->kind == SERVER_TCP && !client->answered)
        return error_set(err, code,
                "the connection to %s broke off before an answer came (%s); if its daemon has a certificate, "
                "write https://, else see its log",
                server->name, strerror(-code));
    return error_set(
            err, code, "the connection to the daemon broke off (%s); see the daemon's log", strerror(-code));
}

// Is anybody at home? Asked when a call has been silent for long: a machine that boots takes its time, but
// then the daemon still answers others.
bool client_is_alive(const struct server *server)
{
    char question[HEAD_MAX], answer[16];
    struct error err;
    int fd;
    int size = snprintf(question, sizeof question,
            "GET %s/version HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", server->prefix,
            server->host[0] != '\0' ? server->host : "ramet");
    if (connection_open(server, &fd, &err) < 0)
        return false;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    bool alive = fd_send_all(fd, question, (size_t)size) == 0 && poll(&poll_fd, 1, ALIVE_SECS * 1000) > 0 &&
                 recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0;
    close(fd);
    return alive;
}

static void (*on_wait)(void *context, unsigned seconds);
static void *on_wait_context;

void client_on_wait(void (*waiting)(void *context, unsigned seconds), void *context)
{
    on_wait = waiting;
    on_wait_context = context;
}

// Until there is something to read, or room to write.
static int wait_for(struct client *client, short events)
{
    struct pollfd poll_fd = {.fd = client->fd, .events = events};
    for (unsigned seconds = 1;; seconds++) {
        int ready = poll(&poll_fd, 1, 1000);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return -errno;
        if (on_wait != NULL)
            on_wait(on_wait_context, seconds);
        if (ready == 0 && seconds % SILENCE_SECS == 0 && !client_is_alive(client->server))
            return -ETIMEDOUT;
    }
}

static int send_bytes(struct client *client, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t sent = send(client->fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            size -= (size_t)sent;
            continue;
        }
        int r = errno == EAGAIN ? wait_for(client, POLLOUT) : errno == EINTR ? 0 : -errno;
        if (r < 0)
            return r;
    }
    return 0;
}

static int fill(struct client *client)
{
    ssize_t got;
    if (client->begin == client->end)
        client->begin = client->end = 0;
    if (client->end == sizeof client->buffer)
        return -EMSGSIZE;
    int r = wait_for(client, POLLIN);
    if (r < 0)
        return r;
    do
        got = recv(client->fd, client->buffer + client->end, sizeof client->buffer - client->end, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    if (got == 0)
        return -EPIPE;
    client->end += (size_t)got;
    return 0;
}

void client_credentials(const struct server *server, char *ret_text, size_t capacity)
{
    ret_text[0] = '\0';
    if (server->key[0] != '\0')
        snprintf(ret_text, capacity, "Authorization: Bearer %s\r\n", server->key);
}

// once: the Idempotency-Key, NULL = none.
static int open_call(const struct server *server, const char *method, const char *path,
        const char *content_type, int64_t body_size, const char *once, struct client **ret_client,
        struct error *err)
{
    char head[HEAD_MAX], credentials[SERVER_KEY_MAX + 64], framing[80] = "";
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return error_set(err, -ENOMEM, "no memory");
    client->server = server;
    int r = connection_open(server, &client->fd, err);
    if (r < 0) {
        free(client);
        return r;
    }
    client->chunked_out = body_size < 0;
    if (body_size < 0)
        snprintf(framing, sizeof framing, "Transfer-Encoding: chunked\r\n");
    else if (body_size > 0 || strcmp(method, "GET") != 0)
        snprintf(framing, sizeof framing, "Content-Length: %lld\r\n", (long long)body_size);
    client_credentials(server, credentials, sizeof credentials);
    int size = snprintf(head, sizeof head,
            "%s %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s%s%s%s%s%s%s%s\r\n", method,
            server->prefix, path, server->host[0] != '\0' ? server->host : "ramet", credentials,
            once == NULL ? "" : "Idempotency-Key: ", once == NULL ? "" : once, once == NULL ? "" : "\r\n",
            content_type == NULL ? "" : "Content-Type: ", content_type == NULL ? "" : content_type,
            content_type == NULL ? "" : "\r\n", framing);
    r = size >= (int)sizeof head ? -ENAMETOOLONG : send_bytes(client, head, (size_t)size);
    if (r < 0) {
        error_set(err, r, "a name or path is too long");
        if (r != -ENAMETOOLONG)
            broken(client, err, r);
        client_close(client);
        return r;
    }
    *ret_client = client;
    return 0;
}

int client_open(const struct server *server, const char *method, const char *path, const char *content_type,
        int64_t body_size, struct client **ret_client, struct error *err)
{
    return open_call(server, method, path, content_type, body_size, NULL, ret_client, err);
}

int client_write(struct client *client, const void *bytes, size_t size, struct error *err)
{
    char head[32];
    int r = 0;
    if (size == 0)
        return 0;
    if (client->chunked_out)
        r = send_bytes(client, head, (size_t)snprintf(head, sizeof head, "%zx\r\n", size));
    if (r == 0)
        r = send_bytes(client, bytes, size);
    if (r == 0 && client->chunked_out)
        r = send_bytes(client, "\r\n", 2);
    return r < 0 ? broken(client, err, r) : 0;
}

// Takes the head of the answer out of the buffer: 0 when it was there whole, -EAGAIN otherwise.
static int take_head(struct client *client, int *ret_status)
{
    char *start = client->buffer + client->begin;
    char *stop = memmem(start, client->end - client->begin, "\r\n\r\n", 4);
    size_t size = client->end - client->begin;
    if (memcmp(start, "HTTP/1.", size < 7 ? size : 7) != 0)
        return -EPROTO;
    if (stop == NULL)
        return -EAGAIN;
    *stop = '\0';
    if (sscanf(start, "HTTP/1.%*d %d", ret_status) != 1)
        return -EPROTO;
    client->length = -1;
    client->chunked = false;
    char *rest = start;
    for (char *line = strsep(&rest, "\r\n"); line != NULL; line = strsep(&rest, "\r\n")) {
        if (strncasecmp(line, "Content-Length:", 15) == 0)
            client->length = strtoll(line + 15, NULL, 10);
        else if (strncasecmp(line, "Transfer-Encoding:", 18) == 0 && strcasestr(line, "chunked") != NULL)
            client->chunked = true;
    }
    client->begin = (size_t)(stop + 4 - client->buffer);
    return 0;
}

int client_answer(struct client *client, int *ret_status, struct error *err)
{
    // A daemon that refuses early has answered and closed: its answer counts, not our broken pipe.
    if (client->chunked_out)
        send_bytes(client, "0\r\n\r\n", 5);
    int r, status = 0;
    for (;;) {
        r = take_head(client, &status);
        if (r == 0 && status == 100)
            continue;
        if (r != -EAGAIN)
            break;
        r = fill(client);
        if (r < 0)
            break;
    }
    if (r < 0)
        return broken(client, err, r);
    client->answered = true;
    client->left = client->chunked ? 0 : client->length;
    client->ended = status == 204 || status == 304 || (!client->chunked && client->length == 0);
    *ret_status = status;
    return 0;
}

// Reads the size line of the next chunk.
static int next_chunk(struct client *client)
{
    for (;;) {
        char *start = client->buffer + client->begin;
        char *stop = memmem(start, client->end - client->begin, "\r\n", 2);
        if (stop == start) { // the end of the chunk before
            client->begin += 2;
            continue;
        }
        if (stop != NULL) {
            client->left = strtoll(start, NULL, 16);
            client->begin = (size_t)(stop + 2 - client->buffer);
            client->ended = client->left == 0;
            return 0;
        }
        if (client->begin > 0) { // make room for a line that is cut
            memmove(client->buffer, start, client->end - client->begin);
            client->end -= client->begin;
            client->begin = 0;
        }
        int r = fill(client);
        if (r < 0)
            return r;
    }
}

ssize_t client_read(struct client *client, void *buffer, size_t capacity, struct error *err)
{
    int r = 0;
    if (!client->ended && client->chunked && client->left == 0)
        r = next_chunk(client);
    if (client->ended)
        return 0;
    if (r == 0 && client->begin == client->end)
        r = fill(client);
    if (r == -EPIPE && !client->chunked && client->length < 0) { // the end is the connection's end
        client->ended = true;
        return 0;
    }
    if (r < 0)
        return broken(client, err, r);
    size_t part = client->end - client->begin;
    part = part < capacity ? part : capacity;
    if (client->left >= 0 && (uint64_t)client->left < part)
        part = (size_t)client->left;
    memcpy(buffer, client->buffer + client->begin, part);
    client->begin += part;
    if (client->left >= 0)
        client->left -= (int64_t)part;
    if (!client->chunked && client->left == 0)
        client->ended = true;
    return (ssize_t)part;
}

int client_read_all(struct client *client, char **ret_text, size_t *ret_size, struct error *err)
{
    size_t size = 0, capacity = 4096;
    char *text = malloc(capacity);
    for (;;) {
        if (text != NULL && size + 1 >= capacity) {
            char *larger = realloc(text, capacity *= 2);
            if (larger == NULL)
                free(text);
            text = larger;
        }
        if (text == NULL)
            return error_set(err, -ENOMEM, "no memory for the daemon's answer");
        ssize_t got = client_read(client, text + size, capacity - size - 1, err);
        if (got < 0) {
            free(text);
            return (int)got;
        }
        if (got == 0)
            break;
        size += (size_t)got;
    }
    text[size] = '\0';
    *ret_text = text;
    *ret_size = size;
    return 0;
}

int client_fd(const struct client *client)
{
    return client->fd;
}

struct client *client_close(struct client *client)
{
    if (client == NULL)
        return NULL;
    close(client->fd);
    free(client->line);
    free(client);
    return NULL;
}

int client_error(struct client *client, int status, json_t **ret_json, struct error *err)
{
    char *text;
    size_t size;
    int r = client_read_all(client, &text, &size, err);
    if (r < 0)
        return r;
    json_t *json = json_loadb(text, size, JSON_ALLOW_NUL, NULL);
    const char *message = json_fields_get_text(json_object_get(json, "error"), "message");
    error_set(err, -EREMOTEIO, "%s",
            message[0] != '\0' ? message : "the daemon answered with an error that says nothing");
    if (message[0] == '\0')
        error_prefix(err, "HTTP status %d", status);
    free(text);
    if (ret_json != NULL)
        *ret_json = json;
    else
        json_decref(json);
    return -EREMOTEIO;
}

// One try. *ret_lost: no answer came, so nobody knows what was done.
static int call_once(const struct server *server, const char *method, const char *path, const char *text,
        const char *once, json_t **ret_json, bool *ret_lost, struct error *err)
{
    struct client *client;
    int status = 0;
    size_t size = text == NULL ? 0 : strlen(text);
    char *answer;
    *ret_json = NULL;
    *ret_lost = false;
    int r = open_call(server, method, path, text == NULL ? NULL : "application/json", (int64_t)size, once,
            &client, err);
    if (r < 0)
        return r;
    r = client_write(client, text, size, err);
    if (r == 0 || r == -EPIPE || r == -ECONNRESET) // what it said before it closed counts more
        r = client_answer(client, &status, err);
    *ret_lost = r == -EPIPE || r == -ECONNRESET;
    if (r == 0 && status >= 400)
        r = client_error(client, status, ret_json, err);
    else if (r == 0 && status != 204 && (r = client_read_all(client, &answer, &size, err)) == 0) {
        *ret_json = json_loadb(answer, size, JSON_ALLOW_NUL, NULL);
        free(answer);
        if (*ret_json == NULL)
            r = error_set(
                    err, -EPROTO, "the daemon's answer is no JSON; is it the same version as this program?");
    }
    client_close(client);
    return r;
}

// In how many seconds it is worth another try; 0 = it is not. A wait that a person would take for a hang is
// left to the person.
static double retry_after(const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error"), *details = json_object_get(error, "details");
    const char *code = json_fields_get_text(error, "code");
    bool soon = strncmp(code, "rate_limit.", 11) == 0 || strcmp(code, "capacity.busy") == 0;
    const json_t *after = json_object_get(error, "retry_after_secs");
    if (after == NULL)
        after = json_object_get(details, "retry_after_secs");
    double seconds = json_is_number(after) ? json_number_value(after) : 1;
    return soon && json_fields_get_bool(details, "retryable") && seconds <= RETRY_MAX_SECS
                   ? (seconds > 0.1 ? seconds : 0.1)
                   : 0;
}

// once NULL: sent again only when reading.
static int call(const struct server *server, const char *method, const char *path, json_t *body,
        const char *once, json_t **ret_json, struct error *err)
{
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    bool repeats = once != NULL || strcmp(method, "GET") == 0, lost;
    int r;
    json_decref(body);
    for (unsigned tried = 1;; tried++) {
        r = call_once(server, method, path, text, once, ret_json, &lost, err);
        double seconds = r == -EREMOTEIO ? retry_after(*ret_json) : lost ? 0.2 : 0;
        if (r == 0 || !repeats || seconds == 0 || tried == TRIES)
            break;
        struct error second;
        int fd; // a daemon that is gone is not waited for
        if (lost && connection_open(server, &fd, &second) < 0)
            break;
        if (lost)
            close(fd);
        json_decref(*ret_json);
        poll(NULL, 0, (int)(seconds * 1000));
    }
    free(text);
    return r;
}

int client_call(const struct server *server, const char *method, const char *path, json_t *body,
        json_t **ret_json, struct error *err)
{
    return call(server, method, path, body, NULL, ret_json, err);
}

int client_create(
        const struct server *server, const char *path, json_t *body, json_t **ret_json, struct error *err)
{
    char once[40];
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        abort();
    snprintf(once, sizeof once, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return call(server, "POST", path, body, once, ret_json, err);
}

// One line of the answer without its end, zero-terminated, in client->line. 1, or 0 at the end.
static int read_line(struct client *client, struct error *err)
{
    size_t size = 0;
    for (;;) {
        if (size + 1 >= client->line_size) {
            size_t capacity = client->line_size == 0 ? 4096 : client->line_size * 2;
            char *line = realloc(client->line, capacity);
            if (line == NULL)
                return error_set(err, -ENOMEM, "no memory for the daemon's answer");
            client->line = line;
            client->line_size = capacity;
        }
        // Within what has been received: up to the line's end at most.
        size_t want = 1;
        if (client->begin < client->end && client->left != 0) {
            char *stop = memchr(client->buffer + client->begin, '\n', client->end - client->begin);
            want = stop == NULL ? client->end - client->begin
                                : (size_t)(stop + 1 - client->buffer) - client->begin;
            want = want < client->line_size - size - 1 ? want : client->line_size - size - 1;
        }
        ssize_t got = client_read(client, client->line + size, want, err);
        if (got <= 0) {
            client->line[size] = '\0';
            return got < 0 ? (int)got : 0;
        }
        size += (size_t)got;
        if (client->line[size - 1] == '\n') {
            client->line[size - 1] = '\0';
            return 1;
        }
    }
}

int client_event(struct client *client, char **ret_event, json_t **ret_data, struct error *err)
{
    char *event = NULL;
    json_t *data = NULL;
    for (;;) {
        int r = read_line(client, err);
        if (r <= 0) {
            free(event);
            json_decref(data);
            return r;
        }
        if (client->line[0] == '\0' && event != NULL) {
            *ret_event = event;
            *ret_data = data;
            return 1;
        }
        if (strncmp(client->line, "event: ", 7) == 0) {
            free(event);
            event = strdup(client->line + 7);
        } else if (strncmp(client->line, "data: ", 6) == 0) {
            json_decref(data);
            data = json_loads(client->line + 6, JSON_ALLOW_NUL, NULL);
        }
    }
}

char *client_escape(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    char *escaped = malloc(strlen(text) * 3 + 1), *out = escaped;
    if (escaped == NULL)
        abort();
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                     strchr("-._~/", *c) != NULL; // a slash is one in "web/disk", and harmless in values
        if (plain) {
            *out++ = (char)*c;
        } else {
            *out++ = '%';
            *out++ = hex[*c >> 4];
            *out++ = hex[*c & 15];
        }
    }
    *out = '\0';
    return escaped;
}
