// SPDX-License-Identifier: Apache-2.0
// The API's keys: who may call it over TCP.
//
// A key is "e2b_" and 56 hexadecimal digits: the first 16 are what it is found by (its id is "key_" and
// these), the other 40 are its secret, 160 bits from the kernel's generator. It is shown once; the store
// keeps the SHA-256 of the whole. A slow hash (scrypt, argon2) is for secrets that people think up, where
// trying all of them is within reach; of 2^160 random ones nobody tries a part worth naming, however quick a
// try is, and every request would pay for the slowness. The hashes are compared in constant time.
//
// A key is a nameless DOC_OTHER doc with "ramet_key" in its body; all are in memory as well, by their id.
// When one was last used is stored within a minute, and at the end. One that expired is shown for a day (and
// told apart from one that never was), then it goes; at KEYS_MAX it goes at once.
//
// Threads: any that is not a loop. Durability: a key that is made or revoked is durable when the call
// returns. Errors: -ENOENT, -EEXIST, -EINVAL, -EACCES, -ENOSPC, each with a sentence.
#pragma once

#include "blockstore/error.h"
#include "snapshot/store.h"

#include <stdbool.h>
#include <stdint.h>

struct keys;

enum keys_preset { KEYS_ADMIN, KEYS_CI, KEYS_READ };
enum {
    KEYS_ID_SIZE = 24,     // "key_" and 16 digits
    KEYS_SECRET_SIZE = 61, // "e2b_", 56 digits and a zero
    KEYS_NAME_SIZE = 41,
    KEYS_REQUEST_SIZE = 33, // of made_by.h
    KEYS_MAX = 1000,
    KEYS_LIFE_MAX_SECS = 100 * 366 * 86400u,
};

struct keys_info {
    char id[KEYS_ID_SIZE], name[KEYS_NAME_SIZE];
    enum keys_preset preset;
    uint64_t created_wall_ns, expires_wall_ns, last_used_wall_ns; // 0 = never
    char created_by[KEYS_ID_SIZE];                                // "" = the owner, over the unix socket
};

// One who asks with a key, from keys_admit to keys_leave.
struct keys_caller {
    struct keys_info key; // as it was then
    // Called when the key is revoked or expires, once, with a lock held: quick, and calls nothing of keys.
    void (*end)(struct keys_caller *caller);
    void *context;
    struct keys *keys; // the rest is keys.c's
    bool ended;
    struct keys_caller *next, *previous;
};

const char *keys_preset_name(enum keys_preset preset);
bool keys_preset_parse(const char *name, enum keys_preset *ret_preset);

int keys_start(struct store *store, struct keys **ret_keys, struct error *err);
struct keys *keys_stop(struct keys *keys); // when nobody is admitted any more. Accepts NULL

struct keys_create {
    const char *name;
    enum keys_preset preset;
    uint64_t life_ms;              // 0 = for ever, or as long as its maker
    const struct keys_info *maker; // NULL = the owner
    const char *request;           // made_by.request, or ""
};
// Only an admin key makes keys, and none that outlives it (-EACCES).
int keys_create(struct keys *keys, const struct keys_create *create, struct keys_info *ret_info,
        char ret_secret[KEYS_SECRET_SIZE], struct error *err);
// By id or name.
int keys_show(struct keys *keys, const char *id, struct keys_info *ret_info, struct error *err);
// The one that a request made.
int keys_find_request(struct keys *keys, const char *request, struct keys_info *ret_info);
// Ends all that goes on with it before it returns.
int keys_remove(struct keys *keys, const char *id, struct error *err);
// Calls each() for all, oldest first, with a lock held.
void keys_list(struct keys *keys, void (*each)(void *context, const struct keys_info *info), void *context);

// Fills caller->key and counts the caller in; `end` and `context` are set already. -ENOENT: no such key
// (never made, revoked, or not the secret), -ETIME: it has expired. Then caller is as before.
int keys_admit(struct keys *keys, const char *secret, struct keys_caller *caller);
// A token that stands for a key in calls about one thing (`scope`, such as a sandbox's id): it needs no place
// in the store, cannot be turned into the key, and ends with it. -ENOENT: no such key.
enum { KEYS_TOKEN_SIZE = 86 }; // "rmt_", 16 digits of the key's id, "_", 64 digits and a zero
int keys_token(struct keys *keys, const char *key_id, const char *scope, char ret_token[KEYS_TOKEN_SIZE]);
// As keys_admit, for such a token.
int keys_admit_token(struct keys *keys, const char *token, const char *scope, struct keys_caller *caller);
// After it, `end` is not called and does not run. One that was not admitted (keys NULL) is let be.
void keys_leave(struct keys_caller *caller);
