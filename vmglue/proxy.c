// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy.h"

#include "vmglue/proxy_head.h"
#include "vmglue/proxy_request.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_urls.h"
#include "vmglue/socket_pump.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DIAL_MS = 15000, LOOK_MS = 250, STALL_LOOKS = 8, INFORMATION_MAX = 16, REFUSAL_MAX = 1 << 20 };

struct proxy {
    struct http_request *request;
    const struct proxy_request *asked;
    struct sandbox_url url;
    struct sandbox_agent use;
    struct urls *urls;
    struct urls_connection connection;
    uint64_t ends_wall_ns;
    char *bytes; // of PROXY_HEAD_MAX: what came from the guest
    size_t start, size;
};

static uint64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// The URL was revoked or has expired.
static bool is_over(const struct proxy *proxy)
{
    return urls_is_ended(proxy->urls, &proxy->connection) ||
           (proxy->url.expires_wall_ns != 0 && wall_ns() >= proxy->url.expires_wall_ns);
}

static bool must_stop(void *context)
{
    struct proxy *proxy = context;
    return http_request_is_stopping(proxy->request) || is_over(proxy);
}

static void reply_unknown(struct http_request *request)
{
    http_reply_error(request, 404, "url.not_found",
            "this URL is not known, has expired or was revoked; `ramet url create SANDBOX PORT` makes one");
}

// What a call of ours says when the guest cannot be asked.
static void reply_unreachable(struct proxy *proxy, struct error *err)
{
    struct http_request *request = proxy->request;
    if (err->code == -ECONNREFUSED)
        http_reply_error(request, 502, "port.refused", "%s", err->text);
    else if (err->code == -EMFILE)
        http_reply_error(request, 503, "capacity.connections", "%s", err->text);
    else if (err->code == -EBUSY && strstr(err->text, "is starting") != NULL)
        http_reply_error(request, 503, "capacity.starting", "%s", err->text);
    else if (err->code == -ENOENT)
        reply_unknown(request); // removed a moment ago
    else
        http_reply_failure(request, "sandbox", err);
}

// Finds the URL and connects. false: it has replied.
static bool proxy_connect(struct proxy *proxy)
{
    struct service *service = service_of(proxy->request);
    const struct proxy_request *asked = proxy->asked;
    struct error err;
    char target[24];
    bool known = sandbox_url_find(service->sandboxes, asked->token, &proxy->url) &&
                 (asked->preview_port == 0 ||
                         (asked->preview_port == proxy->url.port &&
                                 (strcmp(asked->preview_sandbox, proxy->url.sandbox_id) == 0 ||
                                         strcmp(asked->preview_sandbox, proxy->url.sandbox_name) == 0)));
    char *shown = proxy_request_shown(asked, known ? proxy->url.id : "url");
    http_request_show_path(proxy->request, shown == NULL ? "[url]" : shown);
    free(shown);
    if (!known) {
        reply_unknown(proxy->request);
        return false;
    }
    if (asked->complaint != NULL) {
        http_reply_error(proxy->request, 400, "validation.invalid", "%s", asked->complaint);
        return false;
    }
    int r = sandbox_agent_use(service->sandboxes, proxy->url.sandbox_id, &proxy->use, &err);
    if (r < 0) {
        reply_unreachable(proxy, &err);
        return false;
    }
    snprintf(target, sizeof target, "tcp:%u", proxy->url.port);
    memcpy(proxy->connection.id, proxy->url.id, sizeof proxy->connection.id);
    proxy->bytes = malloc(PROXY_HEAD_MAX);
    r = proxy->bytes == NULL ? error_set(&err, -ENOMEM, "no memory for a connection")
                             : agent_dial(proxy->use.agent, target, DIAL_MS, &proxy->connection.fd, &err);
    if (r < 0) {
        sandbox_agent_failed(&proxy->use, &err);
        reply_unreachable(proxy, &err);
        sandbox_agent_done(&proxy->use);
        free(proxy->bytes);
        return false;
    }
    urls_open(proxy->urls, &proxy->connection);
    struct sandbox_url again; // it may have been revoked between the two
    if (!sandbox_url_find(service->sandboxes, asked->token, &again))
        urls_end(proxy->urls, &proxy->connection);
    return true;
}

static void proxy_end(struct proxy *proxy)
{
    urls_close(proxy->urls, &proxy->connection);
    close(proxy->connection.fd);
    sandbox_agent_done(&proxy->use);
    free(proxy->bytes);
}

static bool is_left(struct proxy *proxy)
{
    return must_stop(proxy) || http_request_is_gone(proxy->request);
}

// 0 all was sent, 1 the guest answers and takes no more, -EPIPE the guest's side is closed, -ECANCELED nobody
// wants it any more.
static int guest_send(struct proxy *proxy, const char *bytes, size_t size)
{
    int fd = proxy->connection.fd;
    unsigned stalled = 0;
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            stalled = 0;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        if (poll(&poll_fd, 1, LOOK_MS) > 0)
            continue;
        if (is_left(proxy))
            return -ECANCELED;
        char byte;
        if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && ++stalled >= STALL_LOOKS)
            return 1;
    }
    return 0;
}

static int send_chunk(struct proxy *proxy, const char *bytes, size_t size)
{
    char line[24];
    int r = guest_send(proxy, line, (size_t)snprintf(line, sizeof line, "%zx\r\n", size));
    if (r == 0)
        r = guest_send(proxy, bytes, size);
    return r != 0 ? r : guest_send(proxy, "\r\n", 2);
}

// As guest_send, and 1 also when there is an answer already and the guest has closed.
static int send_body(struct proxy *proxy)
{
    bool chunked = proxy->asked->chunked;
    if (!chunked && proxy->asked->length <= 0)
        return 0;
    char *bytes = malloc(PROXY_HEAD_MAX);
    int r = bytes == NULL ? -ECANCELED : 0;
    while (r == 0) {
        ssize_t got = http_request_read_wait(proxy->request, bytes, PROXY_HEAD_MAX, LOOK_MS);
        if (got == 0)
            break;
        if (got == -EAGAIN)
            r = must_stop(proxy) ? -ECANCELED : 0;
        else if (got < 0)
            r = -ECANCELED;
        else
            r = chunked ? send_chunk(proxy, bytes, (size_t)got) : guest_send(proxy, bytes, (size_t)got);
        struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLRDHUP};
        if (r == 0 && got == -EAGAIN && poll(&poll_fd, 1, 0) > 0)
            r = 1; // the guest has said all that it will
    }
    free(bytes);
    return r == 0 && chunked ? guest_send(proxy, "0\r\n\r\n", 5) : r;
}

// More from the guest behind what is there: bytes, 0 at its end, -ECANCELED, or -EPIPE (it broke).
static ssize_t guest_read(struct proxy *proxy)
{
    if (proxy->size == 0)
        proxy->start = 0;
    if (proxy->start > 0 && proxy->start + proxy->size == PROXY_HEAD_MAX) {
        memmove(proxy->bytes, proxy->bytes + proxy->start, proxy->size);
        proxy->start = 0;
    }
    for (;;) {
        char *to = proxy->bytes + proxy->start + proxy->size;
        ssize_t got =
                recv(proxy->connection.fd, to, (size_t)(proxy->bytes + PROXY_HEAD_MAX - to), MSG_DONTWAIT);
        if (got == 0 && must_stop(proxy))
            return -ECANCELED; // it was shut down from our side
        if (got >= 0) {
            proxy->size += (size_t)got;
            return got;
        }
        if (errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLIN};
        if (poll(&poll_fd, 1, LOOK_MS) == 0 && is_left(proxy))
            return -ECANCELED;
    }
}

static void reply_bad(struct proxy *proxy, const char *why)
{
    http_reply_error(proxy->request, 502, "port.bad_answer",
            "the server on port %u of sandbox \"%s\" did not answer in proper HTTP: %s", proxy->url.port,
            proxy->url.sandbox_name, why);
}

static void reply_ended(struct proxy *proxy)
{
    if (is_over(proxy))
        reply_unknown(proxy->request);
    else
        http_reply_error(proxy->request, 503, "capacity.stopping",
                "the call was ended before the guest's server answered");
}

// The answer's head, after those of 1xx. 0, or it has replied.
static int read_answer(struct proxy *proxy, struct proxy_answer *answer)
{
    struct error err;
    for (unsigned i = 0; i < INFORMATION_MAX; i++) {
        ssize_t head;
        while ((head = proxy_head_size(proxy->bytes + proxy->start, proxy->size)) == 0) {
            ssize_t got = guest_read(proxy);
            if (got > 0)
                continue;
            if (got == -ECANCELED)
                reply_ended(proxy);
            else
                reply_bad(proxy, proxy->size == 0 ? "it closed the connection without an answer"
                                                  : "it broke off in its answer's head");
            return -EPIPE;
        }
        if (head < 0) {
            reply_bad(proxy, "its answer's head is longer than 64 KiB");
            return -EPROTO;
        }
        char *text = proxy->bytes + proxy->start;
        proxy->start += (size_t)head;
        proxy->size -= (size_t)head;
        if (proxy_head_parse(text, (size_t)head, http_request_method(proxy->request), answer, &err) < 0) {
            reply_bad(proxy, err.text);
            return -EPROTO;
        }
        if (answer->status == 101 && proxy->asked->upgrade)
            return 0;
        if (answer->status == 101)
            break;
        if (answer->status >= 200)
            return 0;
    }
    reply_bad(proxy, answer->status == 101 ? "it changes to a protocol that nobody asked for"
                                           : "it sends nothing but interim answers");
    return -EPROTO;
}

static bool is_dropped(const struct proxy *proxy, const char *name, const char *connection)
{
    // Our server writes the first two; the last three would act on our own site when the guest's stands below
    // it.
    static const char *const own[] = {"Content-Length", "Date", "Alt-Svc", NULL};
    static const char *const below[] = {
            "Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", NULL};
    for (size_t i = 0; own[i] != NULL; i++)
        if (strcasecmp(name, own[i]) == 0)
            return true;
    for (size_t i = 0; proxy->asked->prefix[0] != '\0' && below[i] != NULL; i++)
        if (strcasecmp(name, below[i]) == 0)
            return true;
    return proxy_head_is_hop(name, connection);
}

static void pass_headers(struct proxy *proxy, const struct proxy_answer *answer)
{
    const char *prefix = proxy->asked->prefix, *connection = proxy_head_field(answer, "Connection");
    connection = connection == NULL ? "" : connection;
    for (unsigned i = 0; i < answer->field_count; i++) {
        const struct proxy_field *field = &answer->fields[i];
        char *changed = NULL;
        if (is_dropped(proxy, field->name, connection))
            continue;
        if (prefix[0] != '\0' && (strcasecmp(field->name, "Location") == 0 ||
                                         strcasecmp(field->name, "Content-Location") == 0))
            changed = proxy_head_location(field->value, prefix, proxy->asked->host);
        else if (prefix[0] != '\0' && strcasecmp(field->name, "Set-Cookie") == 0)
            changed = proxy_head_cookie(field->value, prefix);
        http_reply_header(proxy->request, field->name, changed != NULL ? changed : field->value);
        free(changed);
    }
    if (proxy->asked->preview_set_cookie) {
        char cookie[160];
        snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Lax", URLS_PREVIEW_NAME,
                proxy->asked->token);
        http_reply_header(proxy->request, "Set-Cookie", cookie);
    }
}

// Hands out what is there of the body. 0 go on, 1 complete, negative: broken.
static int pass_bytes(struct proxy *proxy, const struct proxy_answer *answer, struct proxy_chunks *chunks,
        uint64_t *left, int (*put)(void *context, const void *bytes, size_t size), void *context)
{
    int r = 0;
    while (proxy->size > 0 && r == 0) {
        const char *body = proxy->bytes + proxy->start;
        size_t taken = proxy->size, size = proxy->size;
        if (answer->framing == PROXY_CHUNKED) {
            r = proxy_chunks_take(chunks, body, proxy->size, &taken, &body, &size);
        } else if (answer->framing == PROXY_LENGTH) {
            taken = size = proxy->size < *left ? proxy->size : (size_t)*left;
            *left -= size;
            r = *left == 0;
        }
        proxy->start += taken;
        proxy->size -= taken;
        if (size > 0 && put(context, body, size) < 0)
            return -ECANCELED;
    }
    return r;
}

// The whole body by pieces. 0, -EPROTO (broken off or not proper), -ECANCELED.
static int pass_body(struct proxy *proxy, const struct proxy_answer *answer,
        int (*put)(void *context, const void *bytes, size_t size), void *context)
{
    struct proxy_chunks chunks = {0};
    uint64_t left = answer->length;
    if (answer->framing == PROXY_NO_BODY || (answer->framing == PROXY_LENGTH && left == 0))
        return 0;
    for (;;) {
        int r = pass_bytes(proxy, answer, &chunks, &left, put, context);
        if (r != 0)
            return r > 0 ? 0 : r;
        ssize_t got = guest_read(proxy);
        if (got == 0 && answer->framing == PROXY_UNTIL_CLOSE)
            return 0;
        if (got <= 0)
            return got == -ECANCELED ? -ECANCELED : -EPROTO;
    }
}

static int put_reply(void *context, const void *bytes, size_t size)
{
    return http_reply_write(context, bytes, size);
}

static bool reply_redirect(struct proxy *proxy)
{
    const char *method = http_request_method(proxy->request);
    char *to = NULL;
    if (!proxy->asked->redirect || (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0))
        return false;
    if (asprintf(&to, "%s%s", proxy->asked->prefix, proxy->asked->target) < 0)
        abort();
    http_reply_header(proxy->request, "Location", to);
    http_reply_empty(proxy->request, 308);
    free(to);
    return true;
}

// 0 the guest has the request or its answer is to be read; otherwise it has replied.
static int ask(struct proxy *proxy, int (*body)(struct proxy *proxy))
{
    char peer[64];
    size_t size;
    http_request_address(proxy->request, peer, sizeof peer);
    char *head = proxy_request_head(proxy->asked, http_request_method(proxy->request),
            service_of(proxy->request)->tcp_is_tls && peer[0] != '\0', peer, &size);
    int r = head == NULL ? -ECANCELED : guest_send(proxy, head, size);
    free(head);
    if (r == 0)
        r = body(proxy);
    // A guest that has closed may have answered before; if not, reading will say so.
    if (r == -ECANCELED)
        reply_ended(proxy);
    return r == -ECANCELED ? r : 0;
}

static void relay(struct http_request *request)
{
    struct proxy proxy = {
            .request = request, .asked = http_request_data(request), .urls = service_of(request)->urls};
    struct proxy_answer answer;
    if (!proxy_connect(&proxy))
        return;
    if (!reply_redirect(&proxy) && ask(&proxy, send_body) == 0 && read_answer(&proxy, &answer) == 0) {
        bool known = answer.has_length && answer.framing != PROXY_CHUNKED;
        pass_headers(&proxy, &answer);
        http_reply_begin(request, answer.status, "", known ? (int64_t)answer.length : -1);
        if (pass_body(&proxy, &answer, put_reply, request) < 0)
            http_reply_abort(request);
    }
    proxy_end(&proxy);
}

// ---- connections that become something else ----

static int no_body(struct proxy *proxy)
{
    return 0;
}

// What the guest said behind its head goes first, and so does what the client said.
static void upgraded(struct http_request *request, void *context, int fd, const void *bytes, size_t size)
{
    struct proxy *proxy = context;
    if (fd >= 0 && (size == 0 || guest_send(proxy, bytes, size) == 0))
        socket_pump_run(proxy->connection.fd, fd, proxy->bytes + proxy->start, proxy->size, must_stop, proxy);
    proxy_end(proxy);
    free(proxy);
}

struct refusal {
    char *bytes;
    size_t size;
};

static int put_refusal(void *context, const void *bytes, size_t size)
{
    struct refusal *refusal = context;
    if (refusal->size + size > REFUSAL_MAX)
        return -EFBIG;
    memcpy(refusal->bytes + refusal->size, bytes, size);
    refusal->size += size;
    return 0;
}

// The guest's server does not change the protocol, but answers. The answer's fields lie in the buffer that
// its body would be read into, so the body gets another.
static void reply_refusal(struct proxy *proxy, const struct proxy_answer *answer)
{
    struct refusal refusal = {.bytes = malloc(REFUSAL_MAX)};
    char *head = proxy->bytes, *body = malloc(PROXY_HEAD_MAX);
    bool whole = refusal.bytes != NULL && body != NULL;
    if (whole) {
        memcpy(body, head + proxy->start, proxy->size);
        proxy->bytes = body;
        proxy->start = 0;
        whole = pass_body(proxy, answer, put_refusal, &refusal) == 0;
        proxy->bytes = head;
        proxy->size = 0;
    }
    free(body);
    if (!whole) {
        reply_bad(proxy, "its answer to an upgrade breaks off or is longer than 1 MiB");
    } else {
        pass_headers(proxy, answer);
        http_reply_bytes(proxy->request, answer->status, "", refusal.bytes, refusal.size);
    }
    free(refusal.bytes);
}

// false: it has replied, or hands the connection over to nobody.
static bool begin_upgrade(struct proxy *proxy)
{
    struct proxy_answer answer;
    if (ask(proxy, no_body) < 0 || read_answer(proxy, &answer) < 0)
        return false;
    if (answer.status != 101) {
        reply_refusal(proxy, &answer);
        return false;
    }
    const char *protocol = proxy_head_field(&answer, "Upgrade");
    if (protocol == NULL || protocol[0] == '\0') {
        reply_bad(proxy, "it changes the protocol without saying to which");
        return false;
    }
    pass_headers(proxy, &answer);
    http_reply_upgrade(proxy->request, protocol, NULL, NULL, upgraded, proxy);
    return true;
}

static void relay_upgrade(struct http_request *request)
{
    struct proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL)
        abort();
    proxy->request = request;
    proxy->asked = http_request_data(request);
    proxy->urls = service_of(request)->urls;
    if (!proxy_connect(proxy)) {
        free(proxy);
        return;
    }
    if (!begin_upgrade(proxy)) {
        proxy_end(proxy);
        free(proxy);
    }
}

const struct http_route *proxy_choose(void *context, struct http_request *request)
{
    static const struct http_route streams = {"*", "/u/{token}", HTTP_STREAM | HTTP_OPEN, relay},
                                   changes = {"*", "/u/{token}", HTTP_OPEN, relay_upgrade};
    const struct service *service = context;
    struct proxy_request *asked = proxy_request_take(request, service->url_host);
    if (asked == NULL)
        return NULL;
    http_request_set_data(request, asked, proxy_request_free);
    // A request with a body is never one that changes the protocol: it would have to be kept whole first.
    asked->upgrade = asked->upgrade && !asked->chunked && asked->length <= 0;
    return asked->upgrade ? &changes : &streams;
}
