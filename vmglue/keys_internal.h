// SPDX-License-Identifier: Apache-2.0
// Shared by keys.c and keys_record.c, not for anybody else.
//
// Locks, by rank: change_lock (one key is made or revoked at a time; held over commits), then lock (the
// table).
#pragma once

#include "vmglue/keys.h"
#include "vmglue/sha256.h"

#include <pthread.h>

enum { KEYS_BUCKETS = 1024, KEYS_LOOKUP_DIGITS = 16, KEYS_SECRET_DIGITS = 40 };

struct key {
    struct keys_info info; // all under lock
    struct sha256 sum;
    struct doc_id doc;
    char request[KEYS_REQUEST_SIZE]; // that made it, or ""
    bool used;                       // last_used is not stored yet
    unsigned pass;                   // of keys_store_used that took it last
    struct keys_caller *callers;     // who goes on with it
    struct key *next;
};

struct keys {
    struct store *store;
    pthread_mutex_t change_lock, lock;
    pthread_cond_t changed; // CLOCK_REALTIME: a clock that is set wakes it
    pthread_t thread;       // ends what expires, stores what was used
    unsigned pass;          // of keys_store_used (change_lock)
    bool runs, stopping;    // stopping: (lock)
    struct key *buckets[KEYS_BUCKETS];
    unsigned count;
    unsigned most; // KEYS_MAX; a test takes fewer
};

struct key **keys_bucket(struct keys *keys, const char *lookup); // its 16 digits
// Stores when keys were used last, each once: the next use of a busy one comes before it is written. A store
// that has failed keeps none; nobody is told, the figure is for people.
void keys_store_used(struct keys *keys);
// ---- keys_record.c ----
int keys_record_put(struct keys *keys, struct key *key, unsigned flags, struct error *err);
int keys_record_delete(struct keys *keys, const struct key *key, struct error *err);
int keys_record_load(struct keys *keys, struct error *err);
