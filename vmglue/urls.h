// SPDX-License-Identifier: Apache-2.0
// Exposed ports: URLs with a secret token that lead to a server inside a sandbox (proxy.h moves the bytes).
//
// A token is 40 hexadecimal digits, 160 bits from the kernel's generator; it is shown once, and the sandbox's
// record holds its SHA-256. It stands in the path ("/u/TOKEN/...") or is the first label of the host
// ("TOKEN.localhost", "TOKEN.NAME"). The third form is a host "PORT-SANDBOX.NAME" with the token in the
// header X-Preview-Token, the query parameter preview_token or the cookie of that name.
//
// This file knows tokens, connections that are open, and by an index of the tokens' hashes which sandbox a
// token is of; which tokens there are is in the sandboxes' records (sandbox_urls.c). Threads: any; one lock,
// held over nothing that waits, after that of the sandboxes.
#pragma once

#include "vmglue/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { URLS_TOKEN_SIZE = 41, URLS_ID_SIZE = 24, URLS_PER_SANDBOX = 64 };
#define URLS_PREVIEW_HEADER "X-Preview-Token"
#define URLS_PREVIEW_NAME "preview_token"

void urls_new_token(char ret_token[URLS_TOKEN_SIZE]);
void urls_new_id(char ret_id[URLS_ID_SIZE]);
bool urls_token_parse(const char *text, size_t size, char ret_token[URLS_TOKEN_SIZE]); // of either case
// Writes over whatever in a text could be a token: for logs.
void urls_mask(char *text);
// The token at the beginning of a request's target; *ret_rest is where the guest's path begins in it ("",
// "?...", "/...").
bool urls_token_of_target(const char *target, char ret_token[URLS_TOKEN_SIZE], size_t *ret_rest);
// The token that a Host header begins with. name: the operator's, NULL = none.
bool urls_token_of_host(const char *host, const char *name, char ret_token[URLS_TOKEN_SIZE]);
// "3000-web.localhost": port and sandbox.
bool urls_preview_of_host(
        const char *host, const char *name, unsigned *ret_port, char *ret_sandbox, size_t sandbox_capacity);
// Whether a Host header (without what is before its first dot) is one under which URLs are served.
bool urls_is_served(const char *host_rest, const char *name);

struct urls; // the connections that are open
struct urls_connection {
    char id[URLS_ID_SIZE]; // of the URL
    int fd;                // into the guest
    bool ended;            // (lock) the URL is gone
    struct urls_connection *next, *previous;
};
struct urls *urls_create(void);
struct urls *urls_destroy(struct urls *urls); // accepts NULL; none is open
void urls_open(struct urls *urls, struct urls_connection *connection);
void urls_close(struct urls *urls, struct urls_connection *connection); // then its fd may be closed
void urls_end(struct urls *urls, struct urls_connection *connection);   // as if its URL was revoked
bool urls_is_ended(struct urls *urls, const struct urls_connection *connection);
// Breaks every connection of that URL, and remembers that it is no more until it is in no record either.
void urls_revoke(struct urls *urls, const char *id);
bool urls_is_revoked(struct urls *urls, const char *id);
void urls_forget(struct urls *urls, const char *id);

// The index. What a guess is compared with is chosen by the guess's own hash, and the comparison takes as
// long for every other one: how long it takes says nothing about any token. Put and drop take turns in pairs.
enum { URLS_SANDBOX_SIZE = 24 };
void urls_index_put(struct urls *urls, const struct sha256 *hash, const char *sandbox_id);
void urls_index_drop(struct urls *urls, const struct sha256 *hash);
bool urls_index_find(struct urls *urls, const struct sha256 *hash, char ret_sandbox_id[URLS_SANDBOX_SIZE]);
