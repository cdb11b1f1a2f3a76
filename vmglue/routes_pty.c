// SPDX-License-Identifier: Apache-2.0
// A terminal in a sandbox over a WebSocket: binary messages are the terminal's bytes, both ways; text
// messages are JSON: {"resize":{"rows","columns"}} from the client, {"exit":{...}} from here, before the
// close.
//
// Close codes: 1000 the command ended; 1001 the sandbox or the daemon goes; 1002, 1003, 1007, 1009 what the
// client sent cannot be; 1011 an error, with its sentence as the reason. Whoever closes first: the terminal
// is hung up.
#include "blockstore/clock.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_exec.h"
#include "vmglue/route_json.h"
#include "vmglue/websocket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LOOK_MS = 250,         // how often it is looked whether the server stops
    PING_MS = 20000,       // silence after which the client is asked whether it is there
    GONE_MS = 3 * PING_MS, // ... and after which it is not
    CLOSE_MS = 2000,
    CONTROL_MAX = 4096,
    CELLS_MAX = 4096, // rows and columns
};

#define PROTOCOL "ramet.pty"

struct terminal {
    struct route_exec call;
    struct agent_pty *pty;
    struct http_request *request;
    int fd;
    struct websocket websocket;
    uint8_t typed[WEBSOCKET_MESSAGE_MAX]; // for the terminal, from start on
    size_t typed_start, typed_size;
    uint8_t out[65536 + WEBSOCKET_HEADER_MAX]; // for the client, from start on
    size_t out_start, out_size;
    uint64_t heard_ns, pinged_ns;
    bool shown_all, closed_by_client;
    int close_code; // 0 = go on
    char reason[120];
};

static void close_with(struct terminal *terminal, int code, const char *reason)
{
    if (terminal->close_code != 0)
        return;
    terminal->close_code = code;
    snprintf(terminal->reason, sizeof terminal->reason, "%.119s", reason);
}

static size_t out_room(const struct terminal *terminal)
{
    size_t used = terminal->out_start + terminal->out_size + WEBSOCKET_HEADER_MAX;
    return used < sizeof terminal->out ? sizeof terminal->out - used : 0;
}

// The message is dropped when there is no room: callers look first where that matters.
static void queue(struct terminal *terminal, enum websocket_opcode opcode, const void *bytes, size_t size)
{
    uint8_t header[WEBSOCKET_HEADER_MAX];
    if (size > out_room(terminal))
        return;
    size_t head = websocket_header(opcode, size, NULL, header);
    uint8_t *at = terminal->out + terminal->out_start + terminal->out_size;
    memcpy(at, header, head);
    if (size > 0)
        memcpy(at + head, bytes, size);
    terminal->out_size += head + size;
}

static void take_resize(struct terminal *terminal, const json_t *resize)
{
    uint64_t rows = 0, columns = 0;
    struct error err;
    int r = json_fields_uint(resize, "rows", 1, 4096, &rows, &err);
    if (r > 0)
        r = json_fields_uint(resize, "columns", 1, 4096, &columns, &err);
    if (r == 0)
        r = error_set(&err, -EINVAL, "resize needs rows and columns, 1 to 4096 each");
    if (r > 0 && (r = agent_pty_resize(terminal->pty, (unsigned)rows, (unsigned)columns, &err)) == -ENOENT)
        r = 0;   // it has just ended
    if (r < 0) { // refused with words, and it goes on
        json_t *answer =
                json_pack("{s:{s:o}}", "error", "message", json_fields_text(err.text, strlen(err.text)));
        char *text = json_dumps(answer, JSON_COMPACT);
        if (text != NULL)
            queue(terminal, WEBSOCKET_TEXT, text, strlen(text));
        free(text);
        json_decref(answer);
    }
}

static void take_message(struct terminal *terminal, const struct websocket_message *message)
{
    json_t *json;
    switch (message->opcode) {
    case WEBSOCKET_BINARY:
        memcpy(terminal->typed, message->bytes, message->size);
        terminal->typed_start = 0;
        terminal->typed_size = message->size;
        break;
    case WEBSOCKET_PING:
        queue(terminal, WEBSOCKET_PONG, message->bytes, message->size);
        break;
    case WEBSOCKET_CLOSE:
        terminal->closed_by_client = true;
        close_with(terminal, WEBSOCKET_CLOSE_NORMAL, "");
        break;
    case WEBSOCKET_TEXT:
        json = message->size > CONTROL_MAX ? NULL
                                           : json_loadb((const char *)message->bytes, message->size, 0, NULL);
        if (json_is_object(json) && json_is_object(json_object_get(json, "resize")) &&
                json_object_size(json) == 1)
            take_resize(terminal, json_object_get(json, "resize"));
        else
            close_with(terminal, WEBSOCKET_CLOSE_UNSUPPORTED,
                    "a text message must be {\"resize\":{\"rows\":R,\"columns\":C}}; what is typed is "
                    "binary");
        json_decref(json);
        break;
    default:
        break; // a pong: that something came is noted
    }
}

// Bytes of the client. While what was typed waits for the terminal no more is read.
static void take_bytes(
        struct terminal *terminal, const uint8_t *bytes, size_t size, uint8_t *rest, size_t *rest_size)
{
    size_t done = 0;
    terminal->heard_ns = clock_monotonic_ns();
    *rest_size = 0;
    while (done < size && terminal->close_code == 0) {
        struct websocket_message message;
        size_t taken;
        if (terminal->typed_size > 0) {
            *rest_size = size - done;
            memmove(rest, bytes + done, *rest_size);
            return;
        }
        int r = websocket_take(&terminal->websocket, bytes + done, size - done, &taken, &message);
        done += taken;
        if (r < 0)
            close_with(terminal, -r,
                    -r == WEBSOCKET_CLOSE_TOO_BIG ? "a message has at most 1 MiB"
                                                  : "that is no frame of RFC 6455");
        else if (r > 0)
            take_message(terminal, &message);
    }
}

static void write_typed(struct terminal *terminal)
{
    ssize_t sent = send(agent_pty_fd(terminal->pty), terminal->typed + terminal->typed_start,
            terminal->typed_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (sent < 0) { // the terminal is gone: nobody reads it
        terminal->typed_size = 0;
        return;
    }
    terminal->typed_start += (size_t)sent;
    terminal->typed_size -= (size_t)sent;
}

static void read_shown(struct terminal *terminal)
{
    uint8_t bytes[32768];
    size_t room = out_room(terminal);
    ssize_t got =
            recv(agent_pty_fd(terminal->pty), bytes, room < sizeof bytes ? room : sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        terminal->shown_all = true;
    else
        queue(terminal, WEBSOCKET_BINARY, bytes, (size_t)got);
}

static void write_out(struct terminal *terminal)
{
    ssize_t sent = send(terminal->fd, terminal->out + terminal->out_start, terminal->out_size,
            MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        terminal->closed_by_client = true, close_with(terminal, WEBSOCKET_CLOSE_GOING_AWAY, "");
    if (sent <= 0)
        return;
    terminal->out_start += (size_t)sent;
    terminal->out_size -= (size_t)sent;
    if (terminal->out_size == 0)
        terminal->out_start = 0;
}

// The terminal is gone: how its command ended, and why when that is not known.
static void say_end(struct terminal *terminal)
{
    struct agent_exec_result result;
    struct error err;
    if (agent_pty_wait(terminal->pty, CLOSE_MS, &result, &err) < 0) {
        sandbox_agent_failed(&terminal->call.use, &err);
        close_with(terminal, err.code == -ESHUTDOWN ? WEBSOCKET_CLOSE_GOING_AWAY : WEBSOCKET_CLOSE_ERROR,
                err.text);
        return;
    }
    json_t *json = json_pack("{s:{s:i, s:i, s:I}}", "exit", "exit_code", result.exit_code, "signal",
            result.signal, "duration_ms", (json_int_t)result.duration_ms);
    char *text = json_dumps(json, JSON_COMPACT);
    if (text != NULL)
        queue(terminal, WEBSOCKET_TEXT, text, strlen(text));
    free(text);
    json_decref(json);
    close_with(terminal, WEBSOCKET_CLOSE_NORMAL, "");
}

static void look_around(struct terminal *terminal)
{
    uint64_t now = clock_monotonic_ns();
    if (terminal->typed_size > 0) // it is not listened to now, so its pongs are not heard
        terminal->heard_ns = now;
    uint64_t silent_ms = (now - terminal->heard_ns) / 1000000;
    if (http_request_is_stopping(terminal->request))
        close_with(terminal, WEBSOCKET_CLOSE_GOING_AWAY, "the daemon is ending; connect again");
    if (sandbox_agent_is_over(&terminal->call.use)) // and its last output is not taken
        close_with(terminal, WEBSOCKET_CLOSE_GOING_AWAY, "the sandbox has ended");
    if (silent_ms > GONE_MS) {
        terminal->closed_by_client = true;
        close_with(terminal, WEBSOCKET_CLOSE_GOING_AWAY, "");
    } else if (silent_ms > PING_MS && now - terminal->pinged_ns > PING_MS * 1000000ull) {
        terminal->pinged_ns = now;
        queue(terminal, WEBSOCKET_PING, "", 0);
    }
}

static void read_client(struct terminal *terminal, uint8_t *rest, size_t *rest_size)
{
    uint8_t bytes[32768];
    ssize_t got = recv(terminal->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
        take_bytes(terminal, bytes, (size_t)got, rest, rest_size);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        terminal->closed_by_client = true;
        close_with(terminal, WEBSOCKET_CLOSE_GOING_AWAY, "");
    }
}

static void serve(struct terminal *terminal, const void *first, size_t first_size)
{
    static const size_t rest_capacity = 65536;
    uint8_t *rest = malloc(rest_capacity);
    size_t rest_size = 0;
    if (rest == NULL)
        return;
    take_bytes(terminal, first, first_size < rest_capacity ? first_size : rest_capacity, rest, &rest_size);
    while (terminal->close_code == 0) {
        bool typing = terminal->typed_size > 0;
        bool room = out_room(terminal) > 4096;
        struct pollfd polls[2] = {
                {.fd = terminal->fd,
                        .events = (short)((typing ? 0 : POLLIN) | (terminal->out_size > 0 ? POLLOUT : 0))},
                {.fd = agent_pty_fd(terminal->pty),
                        .events = (short)((typing ? POLLOUT : 0) | (room ? POLLIN : 0))}};
        if (polls[1].events == 0) // a hang-up would be reported again and again
            polls[1].fd = -1;
        if (!typing && rest_size > 0) {
            take_bytes(terminal, rest, rest_size, rest, &rest_size);
            continue;
        }
        poll(polls, 2, LOOK_MS);
        look_around(terminal);
        if (typing)
            write_typed(terminal);
        if (room && polls[1].revents & ~POLLOUT)
            read_shown(terminal);
        if (terminal->out_size > 0)
            write_out(terminal);
        if (!typing && polls[0].revents & ~POLLOUT)
            read_client(terminal, rest, &rest_size);
        if (typing && polls[0].revents & (POLLHUP | POLLERR))
            read_client(terminal, rest, &rest_size);
        if (terminal->shown_all && terminal->close_code == 0)
            say_end(terminal);
    }
    free(rest);
}

// What is queued and the close frame, as far as the client takes them.
static void say_goodbye(struct terminal *terminal)
{
    uint8_t payload[2 + sizeof terminal->reason];
    size_t length = json_fields_utf8_whole(terminal->reason, strlen(terminal->reason));
    payload[0] = (uint8_t)(terminal->close_code >> 8);
    payload[1] = (uint8_t)terminal->close_code;
    memcpy(payload + 2, terminal->reason, length);
    queue(terminal, WEBSOCKET_CLOSE, payload, 2 + length);
    uint64_t until_ns = clock_monotonic_ns() + CLOSE_MS * 1000000ull;
    while (terminal->out_size > 0 && clock_monotonic_ns() < until_ns) {
        struct pollfd one = {.fd = terminal->fd, .events = POLLOUT};
        if (poll(&one, 1, LOOK_MS) > 0 && one.revents & (POLLHUP | POLLERR))
            break;
        write_out(terminal);
    }
}

// What the client still sends is taken until it has closed, too: bytes left unread would break the connection
// off, and the close frame with it.
static void await_close(struct terminal *terminal)
{
    uint8_t bytes[32768];
    uint64_t until_ns = clock_monotonic_ns() + CLOSE_MS * 1000000ull;
    shutdown(terminal->fd, SHUT_WR);
    while (clock_monotonic_ns() < until_ns && !http_request_is_stopping(terminal->request)) {
        struct pollfd one = {.fd = terminal->fd, .events = POLLIN};
        if (poll(&one, 1, LOOK_MS) <= 0)
            continue;
        ssize_t got = recv(terminal->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return;
    }
}

static void upgraded(struct http_request *request, void *context, int fd, const void *bytes, size_t size)
{
    struct terminal *terminal = context;
    terminal->fd = fd;
    terminal->heard_ns = clock_monotonic_ns();
    if (fd >= 0) {
        serve(terminal, bytes, size);
        say_goodbye(terminal);
    }
    terminal->pty = agent_pty_close(terminal->pty);
    if (fd >= 0 && !terminal->closed_by_client)
        await_close(terminal);
    route_exec_end(&terminal->call);
    websocket_free(&terminal->websocket);
    free(terminal);
}

static int take_handshake(
        struct http_request *request, char ret_accept[WEBSOCKET_KEY_BYTES], struct error *err)
{
    const char *upgrade = http_request_header(request, "Upgrade"),
               *key = http_request_header(request, "Sec-WebSocket-Key");
    const char *version = http_request_header(request, "Sec-WebSocket-Version");
    if (upgrade == NULL || strcasecmp(upgrade, "websocket") != 0)
        return error_set(err, -EINVAL, "a terminal is a WebSocket: the request needs \"Upgrade: websocket\"");
    if (version == NULL || strcmp(version, "13") != 0)
        return error_set(err, -EINVAL, "the header Sec-WebSocket-Version must be 13");
    if (key == NULL || websocket_accept(key, ret_accept) < 0)
        return error_set(err, -EINVAL, "the header Sec-WebSocket-Key must be base64 of 16 bytes");
    return 0;
}

// Browsers give up a WebSocket whose server chose none of the subprotocols that they offered, and they must
// offer one to send a key (gate.c).
static void choose_protocol(struct http_request *request)
{
    const char *offered = http_request_header(request, "Sec-WebSocket-Protocol");
    for (const char *at = offered == NULL ? "" : offered; *at != '\0';) {
        at += strspn(at, ", \t");
        size_t size = strcspn(at, ", \t");
        if (size == strlen(PROTOCOL) && strncmp(at, PROTOCOL, size) == 0) {
            http_reply_header(request, "Sec-WebSocket-Protocol", PROTOCOL);
            return;
        }
        at += size;
    }
}

// The query's words as the object that exec's body would be.
static int take_query(
        struct http_request *request, json_t *body, unsigned *rows, unsigned *columns, struct error *err)
{
    static const char *const known[] = {"rows", "columns", "term", "command", "user", "cwd", NULL};
    static const char *const texts[] = {"command", "user", "cwd", NULL};
    uint64_t tall = 24, wide = 80;
    int r = http_request_check_query(request, known, err);
    if (r == 0)
        r = route_json_query_range(request, "rows", 1, CELLS_MAX, &tall, err);
    if (r >= 0)
        r = route_json_query_range(request, "columns", 1, CELLS_MAX, &wide, err);
    if (r < 0)
        return r;
    for (size_t i = 0; texts[i] != NULL; i++) {
        const char *text = http_request_query(request, texts[i]);
        json_t *value = text == NULL ? NULL : json_string(text);
        if (text != NULL && value == NULL)
            return error_set(err, -EINVAL, "query parameter %s is no UTF-8", texts[i]);
        if (value != NULL)
            json_object_set_new(body, texts[i], value);
    }
    *rows = (unsigned)tall;
    *columns = (unsigned)wide;
    return 0;
}

static void open_terminal(struct http_request *request)
{
    char accept[WEBSOCKET_KEY_BYTES];
    struct error err;
    struct terminal *terminal = calloc(1, sizeof *terminal);
    json_t *body = json_object();
    unsigned rows = 0, columns = 0;
    int r = terminal == NULL || body == NULL ? error_set(&err, -ENOMEM, "no memory for a terminal")
                                             : take_handshake(request, accept, &err);
    if (r == 0)
        r = take_query(request, body, &rows, &columns, &err);
    if (r == 0) {
        terminal->request = terminal->call.request = request;
        websocket_init(&terminal->websocket, true);
        r = route_exec_take(&terminal->call, body, false, &err);
    }
    if (r >= 0) {
        r = agent_pty_open(terminal->call.use.agent, &terminal->call.exec, rows, columns,
                http_request_query(request, "term"), &terminal->pty, &err);
        if (r < 0)
            sandbox_agent_failed(&terminal->call.use, &err);
    }
    json_decref(body);
    if (r >= 0) {
        choose_protocol(request);
        http_reply_upgrade(request, "websocket", "Sec-WebSocket-Accept", accept, upgraded, terminal);
        return;
    }
    if (terminal != NULL)
        route_exec_end(&terminal->call);
    free(terminal);
    http_reply_failure(request, "pty", &err);
}

const struct http_route routes_pty[] = {
        {"GET", "/v1/sandboxes/{name}/exec/pty", 0, open_terminal},
        {0},
};
