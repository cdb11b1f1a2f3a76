// SPDX-License-Identifier: Apache-2.0
// promote: one branch of a fork is kept, its siblings go with all that was forked from them.
//
// One record decides: it marks every loser as being removed and gives the winner its name. What is left to do
// then, a next daemon completes.
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_internal.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct promotion {
    struct sandboxes *all;
    struct sandbox *winner, *parent; // parent: in op when it swaps names, else NULL
    char (*ids)[SANDBOX_ID_SIZE];    // of the losers
    size_t count;
    struct sandbox **losers; // in op
    size_t begun;
    json_t *failures;
};

static bool is_among(const struct promotion *promotion, const char *id)
{
    for (size_t i = 0; i < promotion->count; i++)
        if (strcmp(promotion->ids[i], id) == 0)
            return true;
    return false;
}

// Siblings, then whoever has a parent among them, until there are no more. Never the winner or its line.
static int find_losers(struct promotion *promotion, struct error *err)
{
    struct sandboxes *all = promotion->all;
    const struct sandbox_record *winner = &promotion->winner->record;
    size_t total = 0;
    bool grew = true;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        total++;
    promotion->ids = calloc(total + 1, sizeof *promotion->ids);
    promotion->losers = calloc(total + 1, sizeof *promotion->losers);
    while (promotion->ids != NULL && promotion->losers != NULL && grew) {
        grew = false;
        for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
            const struct sandbox_record *record = &sandbox->record;
            bool loses = strcmp(record->tree, winner->tree) == 0 || is_among(promotion, record->parent_id);
            if (sandbox->removed || sandbox == promotion->winner || !loses || is_among(promotion, record->id))
                continue;
            memcpy(promotion->ids[promotion->count++], record->id, SANDBOX_ID_SIZE);
            grew = true;
        }
    }
    pthread_mutex_unlock(&all->lock);
    return promotion->ids == NULL || promotion->losers == NULL ? error_set(err, -ENOMEM, "no memory") : 0;
}

// One that is busy for too long stays and is told among the failures.
static void take_losers(struct promotion *promotion)
{
    struct error err;
    for (size_t i = 0; i < promotion->count; i++) {
        struct sandbox *sandbox;
        int r = sandbox_begin(promotion->all, promotion->ids[i], "being removed", &sandbox, &err);
        if (r == 0)
            promotion->losers[promotion->begun++] = sandbox;
        else if (r != -ENOENT)
            json_object_set_new(
                    promotion->failures, promotion->ids[i], json_fields_text(err.text, strlen(err.text)));
    }
}

static int decide(struct promotion *promotion, const char *name, struct error *err)
{
    struct sandbox_record winner = sandbox_record_copy(&promotion->winner->record), parent = {0};
    struct txn *txn = txn_begin(promotion->all->store);
    int r = 0;
    if (promotion->parent != NULL) { // no two may have one name at a time, so the winner has none meanwhile
        parent = sandbox_record_copy(&promotion->parent->record);
        memcpy(parent.name, winner.name, sizeof parent.name);
        winner.name[0] = '\0';
        r = sandbox_record_put(txn, &winner, err);
        if (r == 0)
            r = sandbox_record_put(txn, &parent, err);
    }
    if (name != NULL)
        snprintf(winner.name, sizeof winner.name, "%s", name);
    winner.tree[0] = winner.parent_id[0] = '\0'; // the choice is made
    if (r == 0)
        r = sandbox_record_put(txn, &winner, err);
    for (size_t i = 0; r == 0 && i < promotion->begun; i++) {
        struct sandbox_record loser = sandbox_record_copy(&promotion->losers[i]->record);
        loser.state = SANDBOX_REMOVING;
        r = sandbox_record_put(txn, &loser, err);
        sandbox_record_free(&loser);
    }
    if (r < 0)
        txn_abort(txn);
    else
        r = txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
    if (r == 0) {
        sandbox_record_set(promotion->winner, &winner);
        if (promotion->parent != NULL)
            sandbox_record_set(promotion->parent, &parent);
    }
    for (size_t i = 0; r == 0 && i < promotion->begun; i++) {
        struct sandbox_record loser = sandbox_record_copy(&promotion->losers[i]->record);
        loser.state = SANDBOX_REMOVING;
        sandbox_record_set(promotion->losers[i], &loser);
        sandbox_record_free(&loser);
    }
    sandbox_record_free(&winner);
    sandbox_record_free(&parent);
    return r;
}

static json_t *remove_losers(struct promotion *promotion, json_t *ids)
{
    json_t *deleted = json_array();
    for (size_t i = 0; i < promotion->begun; i++) {
        struct sandbox *sandbox = promotion->losers[i];
        struct error err;
        if (sandbox_remove_begun(sandbox, &err) == 0) {
            json_array_append_new(deleted, json_string(sandbox->record.name));
            json_array_append_new(ids, json_string(sandbox->record.id));
        } else {
            json_object_set_new(
                    promotion->failures, sandbox->record.id, json_fields_text(err.text, strlen(err.text)));
        }
        sandbox_step(promotion->winner, STEP_PROMOTE_REMOVED);
        sandbox_finish(sandbox);
    }
    promotion->begun = 0;
    return deleted;
}

// The parent when it has the name asked for; in op then. *ret_reserved: the name is free and now reserved.
static int take_name(struct promotion *promotion, const char *name, bool *ret_reserved, struct error *err)
{
    struct names *names = &promotion->all->config.service->names;
    const struct sandbox_record *winner = &promotion->winner->record;
    struct sandbox *parent;
    if (name == NULL || strcmp(name, winner->name) == 0)
        return 0;
    if (winner->parent_id[0] != '\0' &&
            sandbox_begin(promotion->all, winner->parent_id, "being renamed", &parent, NULL) == 0) {
        if (strcmp(parent->record.name, name) == 0) {
            promotion->parent = parent;
            return 0;
        }
        sandbox_finish(parent);
    }
    int r = names_reserve(names, NAMES_SANDBOX, "sandbox", name, err);
    *ret_reserved = r == 0;
    return r;
}

static int check(struct promotion *promotion, const struct sandbox_promote *promote, struct error *err)
{
    const struct sandbox_record *record = &promotion->winner->record;
    if (record->tree[0] == '\0')
        return error_set(err, -EBUSY,
                "sandbox \"%s\" is no branch of a fork (or was promoted already); `ramet fork` makes "
                "branches",
                record->name);
    if (promote->tree != NULL && strcmp(promote->tree, record->tree) != 0)
        return error_set(err, -EINVAL, "field \"tree_id\": sandbox \"%s\" is of tree %s, not %.60s",
                record->name, record->tree, promote->tree);
    return 0;
}

static int run(struct promotion *promotion, const struct sandbox_promote *promote, json_t **ret_json,
        struct error *err)
{
    struct sandboxes *all = promotion->all;
    char tree[SANDBOX_TREE_SIZE], id[SANDBOX_ID_SIZE];
    bool reserved = false;
    int r = check(promotion, promote, err);
    if (r < 0)
        return r;
    memcpy(tree, promotion->winner->record.tree, sizeof tree);
    memcpy(id, promotion->winner->record.id, sizeof id);
    r = take_name(promotion, promote->name, &reserved, err);
    if (r == 0 && !promote->keep_siblings)
        r = find_losers(promotion, err);
    if (r == 0) {
        take_losers(promotion);
        r = decide(promotion, promote->name, err);
    }
    if (reserved)
        names_release(&all->config.service->names, NAMES_SANDBOX, promote->name);
    if (promotion->parent != NULL)
        sandbox_finish(promotion->parent);
    if (r == 0) {
        sandbox_step(promotion->winner, STEP_PROMOTE_RECORDED);
        json_t *ids = json_array(), *deleted = remove_losers(promotion, ids);
        *ret_json = json_pack("{s:o, s:s, s:o, s:o, s:O}", "winner", sandbox_json(promotion->winner),
                "tree_id", tree, "deleted", deleted, "deleted_ids", ids, "failures", promotion->failures);
    }
    while (promotion->begun > 0)
        sandbox_finish(promotion->losers[--promotion->begun]);
    return r;
}

int sandbox_promote(struct sandboxes *all, const char *name, const struct sandbox_promote *promote,
        json_t **ret_json, struct error *err)
{
    struct promotion promotion = {.all = all, .failures = json_object()};
    pthread_mutex_lock(&all->promote_lock); // two siblings promoted at a time would wait for each other
    int r = sandbox_begin(all, name, "being promoted", &promotion.winner, err);
    if (r == 0) {
        r = run(&promotion, promote, ret_json, err);
        sandbox_finish(promotion.winner);
    }
    pthread_mutex_unlock(&all->promote_lock);
    json_decref(promotion.failures);
    free(promotion.ids);
    free(promotion.losers);
    return r;
}
