// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy.h"

#include "blockstore/clock.h"
#include "vmglue/gate.h"
#include "vmglue/proxy_internal.h"
#include "vmglue/route_agent.h"
#include "vmglue/service.h"
#include "vmglue/socket_pump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIAL_MS = 15000, REFUSAL_MAX = 1 << 20 };

bool proxy_is_over(const struct proxy *proxy)
{
    return urls_is_ended(proxy->urls, &proxy->connection) ||
           (proxy->url.expires_wall_ns != 0 && clock_wall_ns() >= proxy->url.expires_wall_ns);
}

bool proxy_must_stop(void *context)
{
    struct proxy *proxy = context;
    return http_request_is_stopping(proxy->request) || proxy_is_over(proxy);
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
        proxy_answer_unknown(request); // removed a moment ago
    else
        http_reply_failure(request, "sandbox", err);
}

// Of the tokens that came, the one that is known and fits the host: a neighbour's cookie does not hide ours.
static bool find_url(struct proxy *proxy)
{
    const struct proxy_request *asked = proxy->asked;
    for (unsigned i = 0; i < asked->tokens.count; i++) {
        proxy->token = asked->tokens.list[i];
        if (sandbox_url_find(service_of(proxy->request)->sandboxes, proxy->token, &proxy->url) &&
                (asked->preview_port == 0 ||
                        (asked->preview_port == proxy->url.port &&
                                (strcmp(asked->preview_sandbox, proxy->url.sandbox_id) == 0 ||
                                        strcmp(asked->preview_sandbox, proxy->url.sandbox_name) == 0))))
            return true;
    }
    return false;
}

// Finds the URL and connects. false: it has replied.
static bool proxy_connect(struct proxy *proxy)
{
    struct service *service = service_of(proxy->request);
    const struct proxy_request *asked = proxy->asked;
    struct error err;
    char target[24];
    bool known = find_url(proxy);
    char *shown = proxy_request_shown(asked, known ? proxy->url.id : "url");
    http_request_show_path(proxy->request, shown == NULL ? "[url]" : shown);
    free(shown);
    if (!known) {
        if (!gate_refuses_guess(proxy->request))
            proxy_answer_unknown(proxy->request);
        return false;
    }
    if (asked->complaint != NULL) {
        http_reply_error(proxy->request, 400, "validation.invalid", "%s", asked->complaint);
        return false;
    }
    http_request_stay(proxy->request);
    int r = sandbox_wake(service->sandboxes, proxy->url.sandbox_id, false, &err);
    if (r == 0)
        r = route_agent_use(proxy->request, proxy->url.sandbox_id, &proxy->use, &err);
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
        route_agent_done(proxy->request, &proxy->use);
        free(proxy->bytes);
        return false;
    }
    urls_open(proxy->urls, &proxy->connection);
    struct sandbox_url again; // it may have been revoked between the two
    if (!sandbox_url_find(service->sandboxes, proxy->token, &again))
        urls_end(proxy->urls, &proxy->connection);
    return true;
}

static void proxy_end(struct proxy *proxy)
{
    urls_close(proxy->urls, &proxy->connection);
    close(proxy->connection.fd);
    route_agent_done(proxy->request, &proxy->use);
    free(proxy->bytes);
}

bool proxy_is_left(struct proxy *proxy)
{
    return proxy_must_stop(proxy) || http_request_is_cut(proxy->request);
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
static int ask(struct proxy *proxy, bool with_body)
{
    char peer[64];
    size_t size;
    http_request_address(proxy->request, peer, sizeof peer);
    char *head = proxy_request_head(proxy->asked, http_request_method(proxy->request),
            service_of(proxy->request)->tcp_is_tls && peer[0] != '\0', peer, &size);
    int r = head == NULL ? -ECANCELED : proxy_guest_send(proxy, head, size);
    free(head);
    if (r == 0 && with_body)
        r = proxy_guest_ask_leave(proxy);
    if (r == 0 && with_body)
        r = proxy_guest_send_body(proxy);
    // A guest that has closed may have answered before; if not, reading will say so.
    if (r == -ECANCELED)
        proxy_answer_ended(proxy);
    return r == -ECANCELED ? r : 0;
}

static void relay(struct http_request *request)
{
    struct proxy proxy = {
            .request = request, .asked = http_request_data(request), .urls = service_of(request)->urls};
    struct proxy_answer answer;
    if (!proxy_connect(&proxy))
        return;
    if (!reply_redirect(&proxy) && ask(&proxy, true) == 0 && proxy_answer_read(&proxy, &answer) == 0) {
        bool known = answer.has_length && answer.framing != PROXY_CHUNKED;
        proxy_answer_pass_headers(&proxy, &answer);
        http_reply_begin(request, answer.status, "", known ? (int64_t)answer.length : -1);
        if (proxy_answer_pass_body(&proxy, &answer, put_reply, request) < 0)
            http_reply_abort(request);
    }
    proxy_end(&proxy);
}

// ---- connections that become something else ----

static bool upgraded_must_stop(void *context)
{
    struct proxy *proxy = context;
    return proxy_must_stop(proxy) || sandbox_agent_is_over(&proxy->use);
}

// What the guest said behind its head goes first, and so does what the client said.
static void upgraded(struct http_request *request, void *context, int fd, const void *bytes, size_t size)
{
    struct proxy *proxy = context;
    proxy->upgraded = true;
    if (fd >= 0 && (size == 0 || proxy_guest_send(proxy, bytes, size) == 0))
        socket_pump_run(proxy->connection.fd, fd, proxy->bytes + proxy->start, proxy->size,
                upgraded_must_stop, proxy);
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
        whole = proxy_answer_pass_body(proxy, answer, put_refusal, &refusal) == 0;
        proxy->bytes = head;
        proxy->size = 0;
    }
    free(body);
    if (!whole) {
        proxy_answer_bad(proxy, "its answer to an upgrade breaks off or is longer than 1 MiB");
    } else {
        proxy_answer_pass_headers(proxy, answer);
        http_reply_bytes(proxy->request, answer->status, "", refusal.bytes, refusal.size);
    }
    free(refusal.bytes);
}

// false: it has replied, or hands the connection over to nobody.
static bool begin_upgrade(struct proxy *proxy)
{
    struct proxy_answer answer;
    if (ask(proxy, false) < 0 || proxy_answer_read(proxy, &answer) < 0)
        return false;
    if (answer.status != 101) {
        reply_refusal(proxy, &answer);
        return false;
    }
    const char *protocol = proxy_head_field(&answer, "Upgrade");
    if (protocol == NULL || protocol[0] == '\0') {
        proxy_answer_bad(proxy, "it changes the protocol without saying to which");
        return false;
    }
    proxy_answer_pass_headers(proxy, &answer);
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
