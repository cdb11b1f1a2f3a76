// SPDX-License-Identifier: Apache-2.0
// The URLs of exposed ports, as part of a sandbox's record: they live with it over stops, resumes, restores,
// renames and restarts of the daemon, and end with it. A fork has none of its parent's: two machines cannot
// answer at one address. Whoever holds a token reaches that one port, so a record holds the token's hash
// alone.
//
// Threads: any that is not a loop. Times are the wall clock's: a URL outlives reboots.
#pragma once

#include "vmglue/sandbox.h"
#include "vmglue/sha256.h"
#include "vmglue/urls.h"

struct sandbox_url {
    char id[URLS_ID_SIZE];
    char sandbox_id[24], sandbox_name[NAMES_MAX + 1];
    unsigned port;
    uint64_t expires_wall_ns; // 0 = never
};

// Durable. ret_json: {"id","host_port","created_at","expires_at"}. -EMFILE: the sandbox has
// URLS_PER_SANDBOX.
// request: made_by.request, or "".
int sandbox_url_add(struct sandboxes *all, const char *name, unsigned port, uint64_t ttl_ms,
        const char *token, const char *request, json_t **ret_json, struct error *err);
// The one that a request made, as sandbox_url_add answers it.
bool sandbox_url_find_request(struct sandboxes *all, const char *request, json_t **ret_json);
int sandbox_url_list(struct sandboxes *all, const char *name, json_t **ret_list, struct error *err);
// At once, open connections too; a failure leaves it revoked until this daemon ends. -ENOENT also when the
// sandbox has no such URL; *ret_is_url says which it was.
int sandbox_url_remove(
        struct sandboxes *all, const char *name, const char *id, bool *ret_is_url, struct error *err);
// false: no URL has this token, or it has expired. By the index of urls.h: an unknown token waits for
// nobody's lock but the index's.
bool sandbox_url_find(struct sandboxes *all, const char *token, struct sandbox_url *ret_url);
// The index follows what a record has; arrays as in the record, or NULL. Of those that no record has any more
// nothing is remembered. With the sandboxes' lock or without.
void sandbox_url_index(struct sandboxes *all, const char *sandbox_id, const json_t *old, const json_t *urls);
