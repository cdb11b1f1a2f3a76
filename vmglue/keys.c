// SPDX-License-Identifier: Apache-2.0
#include "blockstore/clock.h"
#include "vmglue/hex.h"
#include "vmglue/keys_internal.h"

#include "snapshot/txn.h"
#include "vmglue/names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static const uint64_t SECOND_NS = 1000000000;
enum { STORE_USED_SECS = 60, FORGET_SECS = 86400 };

static const char *const preset_names[] = {[KEYS_ADMIN] = "admin", [KEYS_CI] = "ci", [KEYS_READ] = "read"};

const char *keys_preset_name(enum keys_preset preset)
{
    return preset_names[preset];
}

bool keys_preset_parse(const char *name, enum keys_preset *ret_preset)
{
    for (unsigned i = 0; i < sizeof preset_names / sizeof preset_names[0]; i++) {
        if (strcmp(name, preset_names[i]) != 0)
            continue;
        *ret_preset = (enum keys_preset)i;
        return true;
    }
    return false;
}

struct key **keys_bucket(struct keys *keys, const char *lookup)
{
    uint64_t sum = 14695981039346656037u;
    for (unsigned i = 0; i < KEYS_LOOKUP_DIGITS && lookup[i] != '\0'; i++)
        sum = (sum ^ (uint8_t)lookup[i]) * 1099511628211u;
    return &keys->buckets[sum % KEYS_BUCKETS];
}

static bool is_expired(const struct key *key, uint64_t now)
{
    return key->info.expires_wall_ns != 0 && key->info.expires_wall_ns <= now;
}

static struct key *find_lookup(struct keys *keys, const char *lookup)
{
    for (struct key *key = *keys_bucket(keys, lookup); key != NULL; key = key->next)
        if (strncmp(key->info.id + 4, lookup, KEYS_LOOKUP_DIGITS) == 0)
            return key;
    return NULL;
}

// By id or name; names are for people, so a walk is fine.
static struct key *find(struct keys *keys, const char *id)
{
    if (strncmp(id, "key_", 4) == 0)
        return strlen(id) == 4 + KEYS_LOOKUP_DIGITS ? find_lookup(keys, id + 4) : NULL;
    for (unsigned i = 0; i < KEYS_BUCKETS; i++)
        for (struct key *key = keys->buckets[i]; key != NULL; key = key->next)
            if (strcmp(key->info.name, id) == 0)
                return key;
    return NULL;
}

static void end_callers(struct key *key)
{
    for (struct keys_caller *caller = key->callers; caller != NULL; caller = caller->next) {
        if (!caller->ended)
            caller->end(caller);
        caller->ended = true;
    }
}

static void take_out(struct keys *keys, struct key *key)
{
    pthread_mutex_lock(&keys->lock);
    struct key **at = keys_bucket(keys, key->info.id + 4);
    while (*at != key)
        at = &(*at)->next;
    *at = key->next;
    keys->count--;
    end_callers(key);
    for (struct keys_caller *caller = key->callers, *next; caller != NULL; caller = next) {
        next = caller->next; // they leave later, and then find nothing to leave
        caller->next = caller->previous = caller;
    }
    pthread_mutex_unlock(&keys->lock);
}

// Takes away what expired so long ago; change_lock held. A store that has failed keeps them.
static void forget_expired(struct keys *keys, uint64_t age_ns)
{
    for (;;) {
        uint64_t now = clock_wall_ns();
        struct key *old = NULL;
        pthread_mutex_lock(&keys->lock);
        for (unsigned i = 0; i < KEYS_BUCKETS && old == NULL; i++)
            for (struct key *key = keys->buckets[i]; key != NULL && old == NULL; key = key->next)
                if (is_expired(key, now) && now - key->info.expires_wall_ns >= age_ns)
                    old = key;
        pthread_mutex_unlock(&keys->lock);
        if (old == NULL || keys_record_delete(keys, old, NULL) < 0)
            return;
        take_out(keys, old);
        free(old);
    }
}

// ---- the thread ----

// Ends what has expired; when the next one does, at most a minute from now.
static uint64_t expire(struct keys *keys, uint64_t now)
{
    uint64_t next = now + STORE_USED_SECS * SECOND_NS;
    for (unsigned i = 0; i < KEYS_BUCKETS; i++) {
        for (struct key *key = keys->buckets[i]; key != NULL; key = key->next) {
            if (is_expired(key, now))
                end_callers(key);
            else if (key->info.expires_wall_ns != 0 && key->info.expires_wall_ns < next)
                next = key->info.expires_wall_ns;
        }
    }
    return next;
}

static bool take_used(struct keys *keys, struct key *ret_copy)
{
    pthread_mutex_lock(&keys->lock);
    bool found = false;
    for (unsigned i = 0; !found && i < KEYS_BUCKETS; i++) {
        for (struct key *key = keys->buckets[i]; !found && key != NULL; key = key->next) {
            found = key->used && key->pass != keys->pass;
            if (!found)
                continue;
            key->used = false;
            key->pass = keys->pass;
            *ret_copy = *key;
        }
    }
    pthread_mutex_unlock(&keys->lock);
    return found;
}

void keys_store_used(struct keys *keys)
{
    struct key copy;
    pthread_mutex_lock(&keys->change_lock);
    forget_expired(keys, FORGET_SECS * SECOND_NS);
    keys->pass++;
    while (take_used(keys, &copy))
        keys_record_put(keys, &copy, 0, NULL);
    pthread_mutex_unlock(&keys->change_lock);
}

static void *run(void *context)
{
    struct keys *keys = context;
    uint64_t stored = clock_wall_ns();
    pthread_mutex_lock(&keys->lock);
    while (!keys->stopping) {
        uint64_t now = clock_wall_ns();
        if (now - stored >= STORE_USED_SECS * SECOND_NS) { // also when the clock was set back
            stored = now;
            pthread_mutex_unlock(&keys->lock);
            keys_store_used(keys);
            pthread_mutex_lock(&keys->lock);
            continue;
        }
        uint64_t next = expire(keys, now);
        struct timespec until = clock_timespec(next);
        if (!keys->stopping)
            pthread_cond_timedwait(&keys->changed, &keys->lock, &until);
    }
    pthread_mutex_unlock(&keys->lock);
    return NULL;
}

int keys_start(struct store *store, struct keys **ret_keys, struct error *err)
{
    struct keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL)
        return error_set(err, -ENOMEM, "no memory for the keys");
    keys->store = store;
    keys->most = KEYS_MAX;
    pthread_mutex_init(&keys->change_lock, NULL);
    pthread_mutex_init(&keys->lock, NULL);
    pthread_cond_init(&keys->changed, NULL);
    int r = keys_record_load(keys, err);
    if (r == 0 && pthread_create(&keys->thread, NULL, run, keys) != 0)
        r = error_set(err, -EAGAIN, "no thread for the keys");
    keys->runs = r == 0;
    if (r < 0)
        keys_stop(keys);
    else
        *ret_keys = keys;
    return r;
}

struct keys *keys_stop(struct keys *keys)
{
    if (keys == NULL)
        return NULL;
    if (keys->runs) {
        pthread_mutex_lock(&keys->lock);
        keys->stopping = true;
        pthread_cond_broadcast(&keys->changed);
        pthread_mutex_unlock(&keys->lock);
        pthread_join(keys->thread, NULL);
        keys_store_used(keys);
    }
    for (unsigned i = 0; i < KEYS_BUCKETS; i++) {
        while (keys->buckets[i] != NULL) {
            struct key *key = keys->buckets[i];
            keys->buckets[i] = key->next;
            free(key);
        }
    }
    pthread_mutex_destroy(&keys->change_lock);
    pthread_mutex_destroy(&keys->lock);
    pthread_cond_destroy(&keys->changed);
    free(keys);
    return NULL;
}

// ---- make, show, revoke ----

static int draw(struct key *key, char ret_secret[KEYS_SECRET_SIZE], struct error *err)
{
    uint8_t random[(KEYS_LOOKUP_DIGITS + KEYS_SECRET_DIGITS) / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return error_set(err, -EIO, "the kernel gave no random bytes for a key: %s", strerror(errno));
    memcpy(ret_secret, "e2b_", 4);
    hex_encode(random, sizeof random, ret_secret + 4);
    snprintf(key->info.id, sizeof key->info.id, "key_%.*s", KEYS_LOOKUP_DIGITS, ret_secret + 4);
    key->sum = sha256_of(ret_secret, strlen(ret_secret));
    explicit_bzero(random, sizeof random);
    return 0;
}

// What its maker may give, and until when.
static int check_maker(const struct keys_create *create, struct keys_info *info, struct error *err)
{
    const struct keys_info *maker = create->maker;
    info->expires_wall_ns =
            create->life_ms == 0 ? 0 : info->created_wall_ns + create->life_ms * (SECOND_NS / 1000);
    if (maker == NULL)
        return 0;
    snprintf(info->created_by, sizeof info->created_by, "%s", maker->id);
    if (maker->preset != KEYS_ADMIN)
        return error_set(err, -EACCES,
                "a key with preset \"%s\" makes no keys; use one with preset \"admin\", or `ramet key "
                "create` on the daemon's host",
                keys_preset_name(maker->preset));
    if (maker->expires_wall_ns == 0)
        return 0;
    if (info->expires_wall_ns > maker->expires_wall_ns)
        return error_set(err, -EACCES,
                "no key outlives the one that makes it, and that one expires before: give a smaller "
                "expires_in_secs, or leave it out to have both expire together");
    if (info->expires_wall_ns == 0)
        info->expires_wall_ns = maker->expires_wall_ns;
    return 0;
}

// Since its request was let in, the maker may have been revoked. change_lock held: it is not during this.
static int check_maker_lives(struct keys *keys, const struct keys_info *maker, struct error *err)
{
    pthread_mutex_lock(&keys->lock);
    const struct key *key = maker == NULL ? NULL : find(keys, maker->id);
    bool lives = maker == NULL || (key != NULL && !is_expired(key, clock_wall_ns()));
    pthread_mutex_unlock(&keys->lock);
    return lives ? 0 : error_set(err, -EACCES, "the key that asks for this one was revoked, or has expired");
}

static int add(struct keys *keys, const struct key *made, struct error *err)
{
    pthread_mutex_lock(&keys->lock);
    bool crowded = keys->count >= keys->most;
    pthread_mutex_unlock(&keys->lock);
    if (crowded)
        forget_expired(keys, 0);
    pthread_mutex_lock(&keys->lock);
    bool taken = find(keys, made->info.name) != NULL || find(keys, made->info.id) != NULL;
    bool full = keys->count >= keys->most;
    pthread_mutex_unlock(&keys->lock);
    if (taken)
        return error_set(err, -EEXIST,
                "there is a key called \"%s\"; choose another name, or revoke it with `ramet key rm %s`",
                made->info.name, made->info.name);
    if (full)
        return error_set(err, -ENOSPC, "there are %u keys, which is the most; remove some", keys->most);
    struct key *key = malloc(sizeof *key);
    if (key == NULL)
        return error_set(err, -ENOMEM, "no memory for a key");
    *key = *made;
    int r = keys_record_put(keys, key, TXN_DURABLE, err);
    if (r < 0) {
        free(key);
        return r;
    }
    pthread_mutex_lock(&keys->lock);
    struct key **bucket = keys_bucket(keys, key->info.id + 4);
    key->next = *bucket;
    *bucket = key;
    keys->count++;
    pthread_cond_broadcast(&keys->changed); // it may be the next to expire
    pthread_mutex_unlock(&keys->lock);
    return 0;
}

int keys_create(struct keys *keys, const struct keys_create *create, struct keys_info *ret_info,
        char ret_secret[KEYS_SECRET_SIZE], struct error *err)
{
    struct key made = {.info = {.preset = create->preset, .created_wall_ns = clock_wall_ns()}};
    char secret[KEYS_SECRET_SIZE];
    int r = names_check("key", create->name, err);
    if (r == 0 && create->life_ms > KEYS_LIFE_MAX_SECS * UINT64_C(1000))
        r = error_set(err, -EINVAL, "field \"expires_in_secs\" is more than a hundred years");
    if (r == 0)
        r = check_maker(create, &made.info, err);
    if (r == 0)
        r = draw(&made, secret, err);
    if (r < 0)
        return r;
    snprintf(made.info.name, sizeof made.info.name, "%s", create->name);
    if (create->request != NULL)
        snprintf(made.request, sizeof made.request, "%s", create->request);
    pthread_mutex_lock(&keys->change_lock);
    r = check_maker_lives(keys, create->maker, err);
    if (r == 0)
        r = add(keys, &made, err);
    pthread_mutex_unlock(&keys->change_lock);
    if (r == 0) {
        *ret_info = made.info;
        memcpy(ret_secret, secret, sizeof secret);
    }
    explicit_bzero(secret, sizeof secret);
    return r;
}

static int no_such(const char *id, struct error *err)
{
    return error_set(err, -ENOENT, "there is no key called \"%.80s\"; `ramet key ls` lists them", id);
}

int keys_show(struct keys *keys, const char *id, struct keys_info *ret_info, struct error *err)
{
    pthread_mutex_lock(&keys->lock);
    struct key *key = find(keys, id);
    if (key != NULL)
        *ret_info = key->info;
    pthread_mutex_unlock(&keys->lock);
    return key == NULL ? no_such(id, err) : 0;
}

int keys_find_request(struct keys *keys, const char *request, struct keys_info *ret_info)
{
    int r = -ENOENT;
    pthread_mutex_lock(&keys->lock);
    for (unsigned i = 0; i < KEYS_BUCKETS; i++) {
        for (struct key *key = keys->buckets[i]; key != NULL; key = key->next) {
            if (strcmp(key->request, request) != 0)
                continue;
            *ret_info = key->info;
            r = 0;
        }
    }
    pthread_mutex_unlock(&keys->lock);
    return r;
}

int keys_remove(struct keys *keys, const char *id, struct error *err)
{
    pthread_mutex_lock(&keys->change_lock);
    pthread_mutex_lock(&keys->lock);
    struct key *key = find(keys, id);
    pthread_mutex_unlock(&keys->lock);
    int r = key == NULL ? no_such(id, err) : keys_record_delete(keys, key, err);
    if (r == 0) {
        take_out(keys, key);
        free(key);
    }
    pthread_mutex_unlock(&keys->change_lock);
    return r;
}

static int by_age(const void *a, const void *b)
{
    const struct key *const *x = a, *const *y = b;
    uint64_t one = (*x)->info.created_wall_ns, other = (*y)->info.created_wall_ns;
    return one < other ? -1 : one > other ? 1 : strcmp((*x)->info.id, (*y)->info.id);
}

void keys_list(struct keys *keys, void (*each)(void *context, const struct keys_info *info), void *context)
{
    pthread_mutex_lock(&keys->lock);
    struct key **all = calloc(keys->count + 1, sizeof *all);
    if (all == NULL)
        abort();
    unsigned count = 0;
    for (unsigned i = 0; i < KEYS_BUCKETS; i++)
        for (struct key *key = keys->buckets[i]; key != NULL; key = key->next)
            all[count++] = key;
    qsort(all, count, sizeof *all, by_age);
    for (unsigned i = 0; i < count; i++)
        each(context, &all[i]->info);
    pthread_mutex_unlock(&keys->lock);
    free(all);
}

// ---- who asks ----

static void admit_locked(struct keys *keys, struct key *key, uint64_t now, struct keys_caller *caller)
{
    key->info.last_used_wall_ns = now;
    key->used = true;
    caller->key = key->info;
    caller->keys = keys;
    caller->ended = false;
    caller->previous = NULL;
    caller->next = key->callers;
    if (caller->next != NULL)
        caller->next->previous = caller;
    key->callers = caller;
}

int keys_admit(struct keys *keys, const char *secret, struct keys_caller *caller)
{
    if (strncmp(secret, "e2b_", 4) != 0 || strlen(secret) != KEYS_SECRET_SIZE - 1)
        return -ENOENT;
    struct sha256 sum = sha256_of(secret, KEYS_SECRET_SIZE - 1);
    int r = -ENOENT;
    pthread_mutex_lock(&keys->lock);
    struct key *key = find_lookup(keys, secret + 4);
    uint64_t now = clock_wall_ns();
    if (key != NULL && sha256_equal(&sum, &key->sum))
        r = is_expired(key, now) ? -ETIME : 0;
    if (r == 0)
        admit_locked(keys, key, now, caller);
    pthread_mutex_unlock(&keys->lock);
    return r;
}

// ---- tokens ----

// Twice, so that nobody who has one sum can make another from it.
static struct sha256 token_sum(const struct key *key, const char *scope)
{
    char hex[2 * SHA256_SIZE + 1], inner[2 * SHA256_SIZE + 1];
    sha256_hex(&key->sum, hex);
    const char *first[] = {"ramet token", hex, scope};
    struct sha256 sum = sha256_of_texts(first, sizeof first / sizeof first[0]);
    sha256_hex(&sum, inner);
    const char *second[] = {"ramet token", hex, inner};
    sum = sha256_of_texts(second, sizeof second / sizeof second[0]);
    explicit_bzero(hex, sizeof hex);
    explicit_bzero(inner, sizeof inner);
    return sum;
}

int keys_token(struct keys *keys, const char *key_id, const char *scope, char ret_token[KEYS_TOKEN_SIZE])
{
    char hex[2 * SHA256_SIZE + 1];
    pthread_mutex_lock(&keys->lock);
    const struct key *key = find(keys, key_id);
    struct sha256 sum = {0};
    if (key != NULL)
        sum = token_sum(key, scope);
    pthread_mutex_unlock(&keys->lock);
    if (key == NULL)
        return -ENOENT;
    sha256_hex(&sum, hex);
    snprintf(ret_token, KEYS_TOKEN_SIZE, "rmt_%.*s_%s", KEYS_LOOKUP_DIGITS, key_id + 4, hex);
    return 0;
}

int keys_admit_token(struct keys *keys, const char *token, const char *scope, struct keys_caller *caller)
{
    struct sha256 given;
    if (strncmp(token, "rmt_", 4) != 0 || strlen(token) != KEYS_TOKEN_SIZE - 1 ||
            token[4 + KEYS_LOOKUP_DIGITS] != '_' || !sha256_parse(token + 5 + KEYS_LOOKUP_DIGITS, &given))
        return -ENOENT;
    int r = -ENOENT;
    pthread_mutex_lock(&keys->lock);
    struct key *key = find_lookup(keys, token + 4);
    uint64_t now = clock_wall_ns();
    struct sha256 sum = {0};
    if (key != NULL)
        sum = token_sum(key, scope);
    if (key != NULL && sha256_equal(&sum, &given))
        r = is_expired(key, now) ? -ETIME : 0;
    if (r == 0)
        admit_locked(keys, key, now, caller);
    pthread_mutex_unlock(&keys->lock);
    return r;
}

void keys_leave(struct keys_caller *caller)
{
    struct keys *keys = caller->keys;
    if (keys == NULL)
        return;
    pthread_mutex_lock(&keys->lock);
    bool linked = caller->next != caller; // its key is still there
    if (linked && caller->next != NULL)
        caller->next->previous = caller->previous;
    if (linked && caller->previous != NULL)
        caller->previous->next = caller->next;
    else if (linked)
        find_lookup(keys, caller->key.id + 4)->callers = caller->next;
    pthread_mutex_unlock(&keys->lock);
    caller->keys = NULL;
}
