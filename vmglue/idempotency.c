// SPDX-License-Identifier: Apache-2.0
#include "vmglue/idempotency.h"

#include "blockstore/clock.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 1024, WAIT_MS = 500 };
#define PREFIX "request-"
static const uint64_t SECOND_NS = 1000000000;

enum state { RUNNING, MADE, LOST, OPEN };
static const char *const state_names[] = {"running", "made", "lost", "running"}; // as stored

// What is in memory of one; the answer is in the store.
struct entry {
    char tag[MADE_BY_REQUEST_SIZE];
    char caller[KEYS_ID_SIZE], route[128];
    struct sha256 contents;
    unsigned count;
    bool asked, found; // a guest was going to be asked; the answer is the thing, found after a crash
    enum state state;  // all under lock
    struct doc_id doc;
    uint64_t started_wall_ns;
    int status;
    struct entry *next;            // in its bucket
    struct entry *older, *younger; // of all
};

struct idempotency {
    struct store *store;
    uint64_t (*wall_ns)(void);
    pthread_mutex_t lock;
    pthread_cond_t changed; // CLOCK_MONOTONIC
    struct entry *buckets[BUCKETS], *oldest, *youngest;
    unsigned count;
};

void idempotency_tag(const char *caller, const char *key, char ret_tag[MADE_BY_REQUEST_SIZE])
{
    const char *texts[] = {"ramet idempotency", caller, key};
    struct sha256 sum = sha256_of_texts(texts, 3);
    char hex[2 * SHA256_SIZE + 1];
    sha256_hex(&sum, hex);
    snprintf(ret_tag, MADE_BY_REQUEST_SIZE, "%.32s", hex);
}

bool idempotency_key_is_good(const char *key)
{
    size_t size = strlen(key);
    for (size_t i = 0; i < size; i++)
        if (key[i] < ' ' || key[i] > '~')
            return false;
    return size > 0 && size <= IDEMPOTENCY_KEY_MAX;
}

// ---- the table ----

static struct entry **bucket_of(struct idempotency *all, const char *tag)
{
    unsigned sum = 0;
    for (const char *c = tag; *c != '\0'; c++)
        sum = sum * 31 + (unsigned char)*c;
    return &all->buckets[sum % BUCKETS];
}

static struct entry *find_locked(struct idempotency *all, const char *tag)
{
    struct entry *entry = *bucket_of(all, tag);
    while (entry != NULL && strcmp(entry->tag, tag) != 0)
        entry = entry->next;
    return entry;
}

static void add_locked(struct idempotency *all, struct entry *entry)
{
    struct entry **bucket = bucket_of(all, entry->tag), *older = all->youngest;
    entry->next = *bucket;
    *bucket = entry;
    while (older != NULL && older->started_wall_ns > entry->started_wall_ns)
        older = older->older; // at a start, or after the clock was set back
    entry->older = older;
    entry->younger = older == NULL ? all->oldest : older->younger;
    *(older == NULL ? &all->oldest : &older->younger) = entry;
    *(entry->younger == NULL ? &all->youngest : &entry->younger->older) = entry;
    all->count++;
}

static void take_out_locked(struct idempotency *all, struct entry *entry)
{
    struct entry **at = bucket_of(all, entry->tag);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    *(entry->older == NULL ? &all->oldest : &entry->older->younger) = entry->younger;
    *(entry->younger == NULL ? &all->youngest : &entry->younger->older) = entry->older;
    all->count--;
}

static bool has_expired(const struct entry *entry, uint64_t now)
{
    return now > entry->started_wall_ns && now - entry->started_wall_ns > IDEMPOTENCY_KEPT_SECS * SECOND_NS;
}

// One to forget before another is added; NULL: none has to go. It is out of the table.
static struct entry *take_superfluous_locked(struct idempotency *all, const char *caller, uint64_t now)
{
    struct entry *own = NULL, *any = NULL, *found = NULL;
    unsigned of_caller = 0;
    for (struct entry *entry = all->oldest; entry != NULL && found == NULL; entry = entry->younger) {
        bool mine = strcmp(entry->caller, caller) == 0;
        of_caller += mine;
        if (entry->state == RUNNING)
            continue;
        if (has_expired(entry, now))
            found = entry;
        if (own == NULL && mine)
            own = entry;
        if (any == NULL)
            any = entry;
    }
    if (found == NULL && of_caller >= IDEMPOTENCY_CALLER_MAX)
        found = own;
    if (found == NULL && all->count >= IDEMPOTENCY_MAX)
        found = any;
    if (found != NULL)
        take_out_locked(all, found);
    return found;
}

// ---- the store ----

static int put_doc(struct idempotency *all, struct entry *entry, const char *answer, size_t answer_size,
        struct error *err)
{
    struct doc doc = {.kind = DOC_OTHER};
    char hex[2 * SHA256_SIZE + 1];
    sha256_hex(&entry->contents, hex);
    JSON_AUTO json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:i, s:b, s:b}", "ramet_request",
            state_names[entry->state], "caller", entry->caller, "route", entry->route, "contents", hex,
            "count", (int)entry->count, "started_wall_ns", (json_int_t)entry->started_wall_ns, "status",
            entry->status, "asked", (int)entry->asked, "found", (int)entry->found);
    doc.body = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the record of a request");
    doc.body_bytes = strlen(doc.body);
    snprintf(doc.name, sizeof doc.name, PREFIX "%s", entry->tag);
    struct txn *txn = txn_begin(all->store);
    if (entry->doc.value != 0)
        txn_doc_delete(txn, entry->doc);
    struct doc_id id = txn_doc_put(txn, &doc, answer, answer_size);
    free(doc.body);
    int r = txn_commit_wait(txn, 0, err);
    pthread_mutex_lock(&all->lock); // who counts what is kept reads it
    if (r == 0)
        entry->doc = id;
    pthread_mutex_unlock(&all->lock);
    return r;
}

static void delete_doc(struct idempotency *all, const struct entry *entry)
{
    if (entry->doc.value == 0)
        return;
    struct txn *txn = txn_begin(all->store);
    txn_doc_delete(txn, entry->doc);
    txn_commit_wait(txn, TXN_RESERVE, NULL); // left over, it expires
}

static void load_one(void *context, const struct doc *doc)
{
    struct idempotency *all = context;
    if (strncmp(doc->name, PREFIX, strlen(PREFIX)) != 0)
        return;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    const char *state = json_fields_get_text(body, "ramet_request");
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        abort();
    entry->state = strcmp(state, "made") == 0 ? MADE : strcmp(state, "lost") == 0 ? LOST : OPEN;
    snprintf(entry->tag, sizeof entry->tag, "%s", doc->name + strlen(PREFIX));
    snprintf(entry->caller, sizeof entry->caller, "%s", json_fields_get_text(body, "caller"));
    snprintf(entry->route, sizeof entry->route, "%s", json_fields_get_text(body, "route"));
    if (!sha256_parse(json_fields_get_text(body, "contents"), &entry->contents)) {
        free(entry); // not one that this version wrote: its tag is unknown here
        return;
    }
    entry->count = (unsigned)json_fields_get_int(body, "count");
    entry->started_wall_ns = (uint64_t)json_fields_get_int(body, "started_wall_ns");
    entry->status = (int)json_fields_get_int(body, "status");
    entry->asked = json_fields_get_bool(body, "asked");
    entry->found = json_fields_get_bool(body, "found");
    entry->doc = doc->id;
    add_locked(all, entry);
}

// malloc'ed; NULL: there is none.
static char *load_answer(struct idempotency *all, struct doc_id id)
{
    void *bytes = NULL;
    size_t size = 0;
    char *answer = store_doc_blob(all->store, id, &bytes, &size) < 0 ? NULL : strndup(bytes, size);
    free(bytes);
    return answer;
}

int idempotency_start(
        const struct idempotency_config *config, struct idempotency **ret_all, struct error *err)
{
    struct idempotency *all = calloc(1, sizeof *all);
    pthread_condattr_t attributes;
    if (all == NULL)
        return error_set(err, -ENOMEM, "no memory for the record of requests");
    all->store = config->store;
    all->wall_ns = config->wall_ns == NULL ? clock_wall_ns : config->wall_ns;
    pthread_mutex_init(&all->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    store_doc_list(all->store, DOC_OTHER, load_one, all);
    *ret_all = all;
    return 0;
}

struct idempotency *idempotency_stop(struct idempotency *all)
{
    if (all == NULL)
        return NULL;
    for (struct entry *entry = all->oldest, *next; entry != NULL; entry = next) {
        next = entry->younger;
        free(entry);
    }
    pthread_mutex_destroy(&all->lock);
    pthread_cond_destroy(&all->changed);
    free(all);
    return NULL;
}

// ---- begin and end ----

// Makes room, then adds. NULL: no memory.
static struct entry *add_running_locked(
        struct idempotency *all, const struct idempotency_request *request, uint64_t now)
{
    struct entry *superfluous, *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return NULL;
    snprintf(entry->tag, sizeof entry->tag, "%s", request->tag);
    snprintf(entry->caller, sizeof entry->caller, "%s", request->caller);
    snprintf(entry->route, sizeof entry->route, "%s", request->route);
    entry->contents = request->contents;
    entry->count = request->count;
    entry->state = RUNNING;
    entry->started_wall_ns = now;
    add_locked(all, entry);
    while ((superfluous = take_superfluous_locked(all, request->caller, now)) != NULL) {
        pthread_mutex_unlock(&all->lock);
        delete_doc(all, superfluous);
        free(superfluous);
        pthread_mutex_lock(&all->lock);
    }
    return entry;
}

static void forget_locked(struct idempotency *all, struct entry *entry)
{
    take_out_locked(all, entry);
    pthread_cond_broadcast(&all->changed);
}

static enum idempotency_verdict judge_locked(struct entry *entry, const struct idempotency_request *request)
{
    if (!sha256_equal(&entry->contents, &request->contents) || strcmp(entry->route, request->route) != 0)
        return IDEMPOTENCY_CONFLICT;
    return entry->state == MADE   ? (entry->found ? IDEMPOTENCY_FOUND : IDEMPOTENCY_REPLAY)
           : entry->state == LOST ? IDEMPOTENCY_UNKNOWN
                                  : IDEMPOTENCY_BUSY;
}

static void wait_locked(struct idempotency *all)
{
    struct timespec until = clock_deadline(WAIT_MS);
    pthread_cond_timedwait(&all->changed, &all->lock, &until);
}

enum idempotency_verdict idempotency_begin(struct idempotency *all, const struct idempotency_request *request,
        bool (*wait)(void *context), void *context, int *ret_status, char **ret_answer, struct error *err)
{
    enum idempotency_verdict verdict = IDEMPOTENCY_RUN;
    struct entry *entry;
    struct doc_id doc = {0};
    pthread_mutex_lock(&all->lock);
    while ((entry = find_locked(all, request->tag)) != NULL) {
        if (entry->state != RUNNING && has_expired(entry, all->wall_ns())) {
            take_out_locked(all, entry);
            pthread_mutex_unlock(&all->lock);
            delete_doc(all, entry);
            free(entry);
            pthread_mutex_lock(&all->lock);
            continue;
        }
        verdict = judge_locked(entry, request);
        if (verdict != IDEMPOTENCY_BUSY || wait == NULL || !wait(context))
            break;
        wait_locked(all);
    }
    bool repeats = verdict == IDEMPOTENCY_REPLAY || verdict == IDEMPOTENCY_FOUND;
    if (entry != NULL && repeats) {
        *ret_status = entry->status;
        doc = entry->doc;
    }
    if (entry == NULL) {
        verdict = IDEMPOTENCY_RUN;
        entry = add_running_locked(all, request, all->wall_ns());
        if (entry == NULL)
            verdict = IDEMPOTENCY_FAILED;
    }
    pthread_mutex_unlock(&all->lock);
    if (repeats)
        *ret_answer = load_answer(all, doc);
    if (verdict == IDEMPOTENCY_FAILED)
        error_set(err, -ENOMEM, "no memory for the record of a request");
    // Nobody else changes one that runs.
    if (verdict == IDEMPOTENCY_RUN && put_doc(all, entry, NULL, 0, err) < 0) {
        pthread_mutex_lock(&all->lock);
        forget_locked(all, entry);
        pthread_mutex_unlock(&all->lock);
        free(entry);
        verdict = IDEMPOTENCY_FAILED;
    }
    return verdict;
}

void idempotency_end(struct idempotency *all, const char *tag, enum idempotency_outcome outcome, int status,
        const char *answer, size_t answer_size)
{
    pthread_mutex_lock(&all->lock);
    struct entry *entry = find_locked(all, tag);
    struct entry copy = *entry;
    pthread_mutex_unlock(&all->lock);
    bool fits = answer_size <= IDEMPOTENCY_ANSWER_MAX;
    if (outcome == IDEMPOTENCY_NOTHING) {
        delete_doc(all, &copy);
    } else {
        copy.state = outcome == IDEMPOTENCY_MADE ? MADE : LOST;
        copy.status = status;
        // A store that has failed leaves the one that says "running": the next daemon looks for the thing.
        put_doc(all, &copy, fits ? answer : NULL, fits ? answer_size : 0, NULL);
    }
    pthread_mutex_lock(&all->lock);
    entry->state = copy.state;
    entry->status = copy.status;
    entry->doc = copy.doc;
    if (outcome == IDEMPOTENCY_NOTHING)
        take_out_locked(all, entry);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    if (outcome == IDEMPOTENCY_NOTHING)
        free(entry);
}

int idempotency_ask(struct idempotency *all, const char *tag, struct error *err)
{
    pthread_mutex_lock(&all->lock);
    struct entry *entry = find_locked(all, tag);
    entry->asked = true;
    pthread_mutex_unlock(&all->lock); // nobody else changes one that runs
    return put_doc(all, entry, NULL, 0, err);
}

bool idempotency_knows(struct idempotency *all, const char *tag)
{
    pthread_mutex_lock(&all->lock);
    bool known = find_locked(all, tag) != NULL;
    pthread_mutex_unlock(&all->lock);
    return known;
}

unsigned idempotency_kept(struct idempotency *all)
{
    unsigned kept = 0;
    pthread_mutex_lock(&all->lock);
    for (const struct entry *entry = all->oldest; entry != NULL; entry = entry->younger)
        kept += entry->doc.value != 0;
    pthread_mutex_unlock(&all->lock);
    return kept;
}

// ---- after a start ----

bool idempotency_next_open(struct idempotency *all, struct idempotency_open *ret_open)
{
    struct entry *entry = all->oldest;
    while (entry != NULL && entry->state != OPEN)
        entry = entry->younger;
    if (entry == NULL)
        return false;
    *ret_open = (struct idempotency_open){.count = entry->count, .asked = entry->asked};
    memcpy(ret_open->tag, entry->tag, sizeof ret_open->tag);
    memcpy(ret_open->route, entry->route, sizeof ret_open->route);
    return true;
}

void idempotency_settle(struct idempotency *all, const char *tag, enum idempotency_outcome outcome,
        int status, const char *answer)
{
    pthread_mutex_lock(&all->lock);
    struct entry *entry = find_locked(all, tag);
    bool mine = entry != NULL && (entry->state == OPEN || entry->state == LOST);
    if (mine) { // it does not make way while it is changed
        entry->state = RUNNING;
        entry->found = outcome == IDEMPOTENCY_MADE;
    }
    pthread_mutex_unlock(&all->lock);
    if (mine)
        idempotency_end(all, tag, outcome, status, answer, answer == NULL ? 0 : strlen(answer));
}
