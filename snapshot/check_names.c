// SPDX-License-Identifier: Apache-2.0
// The roots of a check: a share of every tree, taken in one turn between two transactions, and what people
// call them.
#include "snapshot/check_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct turn {
    struct store *store;
    struct task_event event;
};

static void turn_begun(void *context)
{
    struct turn *turn = context;
    task_event_set(&turn->event, 0);
}

static void turn_ended(void *context)
{
    struct turn *turn = context;
    txn_exclusive_end(turn->store);
}

// ---- Names ----

static char *print(const char *what, const char *name, uint64_t id)
{
    char *text = NULL;
    int r = name[0] != 0 ? asprintf(&text, "%s \"%s\"", what, name)
                         : asprintf(&text, "%s %llu", what, (unsigned long long)id);
    if (r < 0)
        abort();
    return text;
}

static const char *kind_name(enum doc_kind kind)
{
    return kind == DOC_SNAPSHOT  ? "snapshot"
           : kind == DOC_MACHINE ? "machine snapshot"
           : kind == DOC_SANDBOX ? "sandbox"
                                 : "document";
}

// What keeps a base: its documents are what people know.
static char *base_name_locked(const struct catalog *catalog, uint64_t id)
{
    char *name = NULL;
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        const struct doc *doc = &catalog->docs[i]->doc;
        bool names = false;
        for (unsigned k = 0; k < doc->base_count; k++)
            names = names || doc->bases[k].value == id;
        if (!names)
            continue;
        char *one = print(kind_name(doc->kind), doc->name, doc->id.value), *both = NULL;
        if (asprintf(&both, "%s%s%s", name != NULL ? name : "", name != NULL ? ", " : "", one) < 0)
            abort();
        free(one);
        free(name);
        name = both;
    }
    return name != NULL ? name : print("base", "", id);
}

char *check_root_name(const struct check *check, const struct check_root *root)
{
    struct store *store = check->store;
    char *name;
    pthread_mutex_lock(&store->lock);
    const struct volume *volume = catalog_volume(store, root->id);
    const struct doc_row *row = catalog_doc(store, root->id);
    if (root->kind == CHECKPOINT_BASE)
        name = base_name_locked(&store->catalog, root->id);
    else if (root->kind == CHECKPOINT_VOLUME)
        name = print("volume", volume != NULL ? volume->info.name : "", root->id);
    else
        name = print(row != NULL ? kind_name(row->doc.kind) : "document", row != NULL ? row->doc.name : "",
                root->id);
    pthread_mutex_unlock(&store->lock);
    return name;
}

// ---- Taking ----

static struct check_root *add_root(struct check *check, enum checkpoint_kind kind, uint64_t id)
{
    struct check_root *root = &check->roots[check->root_count++];
    *root = (struct check_root){.kind = kind, .id = id, .tree = tree_empty(1)};
    return root;
}

static void take_bases_and_docs(void *context) // loop 0
{
    struct check *check = context;
    struct store *store = check->store;
    pthread_mutex_lock(&store->lock);
    const struct catalog *catalog = &store->catalog;
    check->roots = calloc(
            catalog->volume_count + catalog->base_count + catalog->doc_count + 1, sizeof *check->roots);
    if (check->roots == NULL)
        abort();
    for (unsigned i = 0; i < catalog->base_count; i++) {
        const struct base *base = catalog->bases[i];
        struct check_root *root = add_root(check, CHECKPOINT_BASE, base->info.id.value);
        root->parent = base->info.parent.value;
        root->domain = base->info.domain;
        root->blocks = volume_blocks_of(base->info.size_bytes);
        root->tree = tree_share(tree_look(&base->tree));
    }
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        const struct doc_row *row = catalog->docs[i];
        struct check_root *root = add_root(check, CHECKPOINT_DOC, row->doc.id.value);
        root->blob = row->blob_first;
        root->blob_blocks = volume_blocks_of(row->doc.blob_bytes);
        if (locator_is_log(root->blob))
            log_ref(store->log, root->blob, root->blob_blocks);
    }
    for (unsigned i = 0; i < catalog->volume_count; i++) {
        const struct volume *volume = catalog->volumes[i];
        struct check_root *root = add_root(check, CHECKPOINT_VOLUME, volume->info.id.value);
        root->parent = volume->info.parent.value;
        root->domain = volume->info.domain;
        root->blocks = volume_blocks_of(volume->info.size_bytes);
    }
    pthread_mutex_unlock(&store->lock);
}

struct volume_share {
    struct store *store;
    struct volume *volume;
    struct tree tree;
};

// From here on the volume copies what it changes: the nodes under the share stay as they are.
static void share_volume(void *context) // the volume's loop
{
    struct volume_share *share = context;
    share->tree = tree_share(share->volume->tree);
    share->volume->owner = tree_new_owner(&share->store->space);
}

static void take_volumes(struct check *check)
{
    struct store *store = check->store;
    for (size_t i = 0; i < check->root_count; i++) {
        struct check_root *root = &check->roots[i];
        if (root->kind != CHECKPOINT_VOLUME)
            continue;
        pthread_mutex_lock(&store->lock); // volumes do not come and go during the turn
        struct volume_share share = {.store = store, .volume = catalog_volume(store, root->id)};
        pthread_mutex_unlock(&store->lock);
        if (share.volume == NULL)
            continue;
        share.tree = root->tree;
        task_call(check->task, share.volume->loop, share_volume, &share);
        root->tree = share.tree;
    }
}

static const struct check_root *base_find(const struct check *check, uint64_t id)
{
    size_t low = 0, high = check->root_count;
    while (low < high) { // bases come first, ascending
        size_t middle = (low + high) / 2;
        const struct check_root *root = &check->roots[middle];
        if (root->kind == CHECKPOINT_BASE && root->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < check->root_count && check->roots[low].kind == CHECKPOINT_BASE &&
                 check->roots[low].id == id;
    return found ? &check->roots[low] : NULL;
}

// A fork may be put into another domain than its base: then what it holds is of both.
static void note_domains(struct check *check)
{
    check->mixed_domains = calloc(check->root_count + 1, sizeof *check->mixed_domains);
    if (check->mixed_domains == NULL)
        abort();
    for (size_t i = 0; i < check->root_count; i++) {
        const struct check_root *root = &check->roots[i], *parent = base_find(check, root->parent);
        bool pure =
                parent == NULL ? root->parent == 0 : parent->domain == root->domain || parent->domain == 0;
        if (!pure && !check_domain_mixed(check, root->domain))
            check->mixed_domains[check->mixed_count++] = root->domain;
    }
}

bool check_domain_mixed(const struct check *check, uint64_t domain)
{
    for (size_t i = 0; i < check->mixed_count; i++)
        if (check->mixed_domains[i] == domain)
            return true;
    return false;
}

void check_roots_take(struct check *check)
{
    struct turn turn = {.store = check->store};
    struct loop *loop = check->store->loops[0];
    task_event_init(check->task, &turn.event);
    txn_exclusive_begin(check->store, turn_begun, &turn);
    if (task_wait(check->task, &turn.event) < 0)
        return;
    task_call(check->task, loop, take_bases_and_docs, check);
    take_volumes(check);
    task_call(check->task, loop, turn_ended, &turn);
    note_domains(check);
}

void check_roots_drop(struct check *check)
{
    struct store *store = check->store;
    cut_grace(check->task, store);
    for (size_t i = 0; i < check->root_count; i++) {
        struct check_root *root = &check->roots[i];
        tree_drop(&store->space, &root->tree);
        if (locator_is_log(root->blob) && store->space.log != NULL)
            log_unref(store->log, root->blob, root->blob_blocks);
    }
    free(check->roots);
    free(check->mixed_domains);
}
