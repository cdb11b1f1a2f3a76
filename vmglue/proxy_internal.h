// SPDX-License-Identifier: Apache-2.0
// Shared by the files proxy*.c that move bytes, not for anybody else.
#pragma once

#include "vmglue/proxy_head.h"
#include "vmglue/proxy_request.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_urls.h"

enum { PROXY_LOOK_MS = 250 }; // between two looks whether anybody still wants it

// One request, and its connection into the guest.
struct proxy {
    struct http_request *request;
    const struct proxy_request *asked;
    const char *token; // the one of asked->tokens that is known
    struct sandbox_url url;
    struct sandbox_agent use;
    struct urls *urls;
    struct urls_connection connection;
    bool upgraded; // what comes from the guest is no HTTP any more
    char *bytes;   // of PROXY_HEAD_MAX: what came from the guest
    size_t start, size;
};

bool proxy_is_over(const struct proxy *proxy); // the URL was revoked or has expired
bool proxy_must_stop(void *proxy);             // that, or the daemon ends
bool proxy_is_left(struct proxy *proxy);       // that, or the client is gone altogether

// ---- proxy_guest.c: what goes to the guest's server, and what comes ----
// 0 all was sent, 1 the guest answers and takes no more, -EPIPE the guest's side is closed, -ECANCELED nobody
// wants it any more.
int proxy_guest_send(struct proxy *proxy, const char *bytes, size_t size);
// A client that waits for a word before it sends the body gets the guest's: 0 the body may come, otherwise as
// proxy_guest_send. What is no such word stays to be read.
int proxy_guest_ask_leave(struct proxy *proxy);
// The request's body. As proxy_guest_send, and 1 also when there is an answer already and the guest has
// closed.
int proxy_guest_send_body(struct proxy *proxy);
// More from the guest behind what is there: bytes, 0 at its end, -ECANCELED, or -EPIPE (it broke).
ssize_t proxy_guest_read(struct proxy *proxy);

// ---- proxy_answer.c: the guest's answer to the client ----
void proxy_answer_ended(struct proxy *proxy); // replies: nobody wants it any more
__attribute__((format(printf, 2, 3))) void proxy_answer_bad(struct proxy *proxy, const char *format, ...);
void proxy_answer_unknown(struct http_request *request); // replies: there is no such URL
// The answer's head, after those of 1xx. 0, or it has replied.
int proxy_answer_read(struct proxy *proxy, struct proxy_answer *answer);
void proxy_answer_pass_headers(struct proxy *proxy, const struct proxy_answer *answer);
// The whole body by pieces. 0, -EPROTO (broken off or not proper), -ECANCELED.
int proxy_answer_pass_body(struct proxy *proxy, const struct proxy_answer *answer,
        int (*put)(void *context, const void *bytes, size_t size), void *context);
