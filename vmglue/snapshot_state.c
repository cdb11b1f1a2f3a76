// SPDX-License-Identifier: Apache-2.0
#include "vmglue/snapshot_state.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct pending {
    struct doc_id id;
    struct pending *next;
};

struct snapshot_state {
    struct store *store;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pending *pending; // protected by lock, as is what follows
    bool stopping;
    int failed;
};

static bool is_pending_locked(struct snapshot_state *state, struct doc_id id)
{
    for (struct pending *p = state->pending; p != NULL; p = p->next)
        if (p->id.value == id.value)
            return true;
    return false;
}

// Takes the whole list off, syncs once, and only then lets the list go: while it is being synced it is still
// pending.
static void *sync_thread(void *context)
{
    struct snapshot_state *state = context;
    pthread_mutex_lock(&state->lock);
    for (;;) {
        while (!state->stopping && (state->pending == NULL || state->failed != 0))
            pthread_cond_wait(&state->changed, &state->lock);
        struct pending *last = state->pending; // all from here on are covered by the sync
        if (last == NULL || state->failed != 0)
            break;
        pthread_mutex_unlock(&state->lock);
        int r = store_flush(state->store);
        pthread_mutex_lock(&state->lock);
        state->failed = r;
        if (r == 0) {
            struct pending **link = &state->pending;
            while (*link != last)
                link = &(*link)->next;
            *link = NULL;
            while (last != NULL) {
                struct pending *next = last->next;
                free(last);
                last = next;
            }
        }
        pthread_cond_broadcast(&state->changed);
    }
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

int snapshot_state_start(struct store *store, struct snapshot_state **ret_state, struct error *err)
{
    int r = store_flush(store);
    if (r < 0)
        return error_set(err, r, "the store's log cannot be synced: %s", strerror(-r));
    struct snapshot_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        return error_set(err, -ENOMEM, "no memory");
    state->store = store;
    pthread_mutex_init(&state->lock, NULL);
    pthread_cond_init(&state->changed, NULL);
    if (pthread_create(&state->thread, NULL, sync_thread, state) != 0) {
        free(state);
        return error_set(err, -EAGAIN, "no thread for syncing snapshots");
    }
    *ret_state = state;
    return 0;
}

struct snapshot_state *snapshot_state_stop(struct snapshot_state *state)
{
    if (state == NULL)
        return NULL;
    pthread_mutex_lock(&state->lock);
    state->stopping = true;
    pthread_cond_broadcast(&state->changed);
    pthread_mutex_unlock(&state->lock);
    pthread_join(state->thread, NULL);
    while (state->pending != NULL) {
        struct pending *next = state->pending->next;
        free(state->pending);
        state->pending = next;
    }
    pthread_cond_destroy(&state->changed);
    pthread_mutex_destroy(&state->lock);
    free(state);
    return NULL;
}

void snapshot_state_written(struct snapshot_state *state, struct doc_id id)
{
    struct pending *pending = calloc(1, sizeof *pending);
    if (pending == NULL)
        abort();
    pending->id = id;
    pthread_mutex_lock(&state->lock);
    pending->next = state->pending;
    state->pending = pending;
    pthread_cond_broadcast(&state->changed);
    pthread_mutex_unlock(&state->lock);
}

bool snapshot_state_is_ready(struct snapshot_state *state, struct doc_id id)
{
    pthread_mutex_lock(&state->lock);
    bool ready = !is_pending_locked(state, id);
    pthread_mutex_unlock(&state->lock);
    return ready;
}

int snapshot_state_wait(struct snapshot_state *state, struct doc_id id)
{
    pthread_mutex_lock(&state->lock);
    while (is_pending_locked(state, id) && state->failed == 0)
        pthread_cond_wait(&state->changed, &state->lock);
    int result = is_pending_locked(state, id) ? state->failed : 0;
    pthread_mutex_unlock(&state->lock);
    return result;
}
