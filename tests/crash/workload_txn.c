// SPDX-License-Identifier: Apache-2.0
// Transactions of the clients: every change to the catalog, alone and in combination.
#include "tests/crash/workload_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/txn.h"

static void release_exclusive(struct slot *slot)
{
    if (slot != NULL)
        slot->exclusive = false;
}

void workload_reopen(struct workload *workload, struct slot *slot)
{
    int result = volume_open(workload->store, (struct volume_id){slot->volume->object.id}, &slot->handle);
    if (result < 0)
        workload_fail(workload, "volume %llu cannot be opened: %d",
                (unsigned long long)slot->volume->object.id, result);
}

static void check_txn(struct client *client, int result, const struct error *err)
{
    struct workload *workload = client->workload;
    if (client->wanted != 0 && result != client->wanted && !workload_tolerated(workload, result))
        workload_fail(
                workload, "a transaction that must be refused with %d answered %d", client->wanted, result);
    // What a failed change left in doubt may be gone.
    bool missed = (client->may_miss || workload->options.faults) && result == -ENOENT;
    if (client->wanted == 0 && !missed)
        workload_check_result(client, result, "a transaction");
    if (result < 0 && !sim_world_is_cut(workload->world) && (err == NULL || err->text[0] == '\0'))
        workload_fail(workload, "a transaction failed with %d and without a word", result);
}

static void txn_done(void *context, int result, const struct error *err)
{
    struct client *client = context;
    struct workload *workload = client->workload;
    if (sim_world_is_cut(workload->world)) {
        release_exclusive(client->created);
        workload_finished(client);
        return;
    }
    check_txn(client, result, err);
    model_end(workload->model, client->op, result, client->durable);
    struct slot *created = client->created;
    if (created != NULL && result == 0)
        workload_reopen(workload, created);
    else if (created != NULL)
        created->volume = NULL;
    release_exclusive(created);
    if (client->deletes && result == 0) {
        client->slot[0]->volume = NULL;
        client->slot[0]->in_flight--;
        client->slot[0]->exclusive = false;
        client->slot[0] = NULL;
    } else if (client->deletes) {
        struct slot *slot = client->slot[0];
        struct volume_id id = {slot->volume->object.id};
        bool in_doubt = result == -EIO || result == -ESTALE; // it may be gone all the same
        if (!in_doubt)
            workload_reopen(workload, slot);
        else if (volume_open(workload->store, id, &slot->handle) < 0)
            slot->volume = NULL;
        release_exclusive(slot);
    } else if (client->rename_or_resize && !(result == -EIO || result == -ESTALE)) {
        release_exclusive(client->slot[0]); // a volume whose size is in doubt is left alone
    }
    workload_finished(client);
}

static void begin_txn(struct client *client)
{
    client->op = model_begin(client->workload->model, MODEL_TXN);
    client->created = NULL;
    client->deletes = client->rename_or_resize = client->may_miss = false;
    client->wanted = 0;
    client->durable = workload_chance(client->workload, 30);
}

static void commit(struct client *client, struct txn *txn, unsigned flags)
{
    txn_commit(txn, flags | (client->durable ? TXN_DURABLE : 0), txn_done, client);
}

static struct slot *free_slot(struct workload *workload)
{
    unsigned used = 0;
    struct slot *found = NULL;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        if (workload->slot[i].volume != NULL)
            used++;
        else if (found == NULL)
            found = &workload->slot[i];
    }
    return used < workload->options.max_volumes ? found : NULL;
}

static void new_name(struct workload *workload, char *name, size_t size)
{
    unsigned number = workload->names++;
    if (workload_chance(workload, 20))
        name[0] = '\0';
    else
        snprintf(name, size, "v%llu-%u", (unsigned long long)workload->model->next_id, number);
}

static uint64_t new_size(struct workload *workload)
{
    uint64_t size = (1 + workload_pick(workload, workload->options.max_blocks)) * BLOCK_SIZE;
    return workload_chance(workload, 20) ? size + 512 * (1 + workload_pick(workload, 7)) : size;
}

static void add_volume(struct client *client, struct txn *txn, struct slot *slot, const char *name,
        uint64_t size, struct model_base *parent)
{
    struct workload *workload = client->workload;
    enum volume_kind kind = workload_chance(workload, 20) ? VOLUME_MEMORY : VOLUME_DISK;
    struct volume_id id = txn_volume_create(txn, name, kind, parent && size == parent->size_bytes ? 0 : size,
            (struct base_id){parent ? parent->id : 0});
    slot->volume = model_volume_add(workload->model, client->op, id.value, kind, size, name, parent);
    bool private = parent != NULL && parent->domain != 0; // its forks stay where it is
    if (workload->options.domains && !private && workload_chance(workload, 40)) {
        slot->volume->domain = workload_pick(workload, 3);
        txn_volume_domain(txn, id, slot->volume->domain);
    }
    slot->handle = NULL;
    slot->in_flight = 0;
    slot->walk = 0;
    slot->exclusive = true;
    client->created = slot;
}

bool workload_start_create(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = free_slot(workload);
    if (slot == NULL)
        return false;
    bool vast_exists = !workload->options.vast;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        vast_exists = vast_exists || (workload->slot[i].volume && workload->slot[i].volume->vast);
    struct model_base *parent = workload_chance(workload, 50) ? workload_base_of_a_doc(workload) : NULL;
    uint64_t size = vast_exists ? new_size(workload) : LAYOUT_VAST_BYTES;
    if (parent != NULL)
        size = parent->size_bytes +
               (parent->vast || workload_chance(workload, 60) ? 0 : workload_pick(workload, 8) * BLOCK_SIZE);
    char name[40];
    new_name(workload, name, sizeof name);
    begin_txn(client);
    client->may_miss = parent != NULL;
    struct txn *txn = txn_begin(workload->store);
    add_volume(client, txn, slot, name, size, parent);
    commit(client, txn, 0);
    return true;
}

static void doc_state(struct client *client, struct model_doc *doc, struct doc *put, const char *name)
{
    struct workload *workload = client->workload;
    struct model_state *state = model_change(workload->model, client->op, &doc->object);
    state->exists = true;
    state->body_seed = sim_random(&workload->random);
    state->body_bytes = 8 + workload_pick(workload, workload_chance(workload, 10) ? 9000 : 200);
    snprintf(state->name, sizeof state->name, "%s", name);
    state->base_count = put->base_count;
    state->volume_count = put->volume_count;
    for (unsigned i = 0; i < put->base_count; i++)
        state->base[i] = put->bases[i].value;
    for (unsigned i = 0; i < put->volume_count; i++)
        state->volume[i] = put->volumes[i].value;
    put->body_bytes = state->body_bytes;
    put->body = malloc(state->body_bytes + 1);
    memcpy(put->body, &state->body_seed, 8);
    fill_bytes(state->body_seed, 8, put->body + 8, state->body_bytes - 8);
    put->body[put->body_bytes] = '\0';
    snprintf(put->name, sizeof put->name, "%s", name);
}

static void put_new_doc(
        struct client *client, struct txn *txn, enum doc_kind kind, struct doc *put, size_t blob_bytes)
{
    struct workload *workload = client->workload;
    char name[40];
    new_name(workload, name, sizeof name);
    put->kind = kind;
    uint64_t seed = sim_random(&workload->random);
    void *blob = blob_bytes > 0 ? malloc(blob_bytes) : NULL;
    if (blob != NULL) {
        memcpy(blob, &seed, 8);
        fill_bytes(seed, 8, (uint8_t *)blob + 8, blob_bytes - 8);
    }
    // The id is known only after the put, the body must be there before: the model's row is made first.
    struct model_doc *doc = model_doc_add(workload->model, 0, kind, seed, blob_bytes);
    doc_state(client, doc, put, name);
    doc->object.id = txn_doc_put(txn, put, blob, blob_bytes).value;
    free(put->body);
    free(blob);
}

static struct model_base *freeze(struct client *client, struct txn *txn, struct slot *slot, unsigned place)
{
    client->slot[place] = slot;
    slot->in_flight++;
    struct base_id id = txn_freeze(txn, (struct volume_id){slot->volume->object.id});
    return model_base_add(client->workload->model, client->op, id.value, slot->volume);
}

// A fork of a running volume, a snapshot, or both in one.
bool workload_start_fork(struct client *client, bool child, bool doc)
{
    struct workload *workload = client->workload;
    struct slot *slot = workload_any_slot(workload), *created = child ? free_slot(workload) : NULL;
    if (slot == NULL || (child && created == NULL))
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    struct model_base *base = freeze(client, txn, slot, 0);
    char name[40];
    new_name(workload, name, sizeof name);
    if (child)
        add_volume(client, txn, created, name, base->size_bytes, base);
    if (doc) {
        struct doc put = {.bases = {{base->id}}, .base_count = 1};
        put_new_doc(client, txn, DOC_SNAPSHOT, &put, 0);
    }
    commit(client, txn, 0);
    return true;
}

bool workload_start_machine(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *disk = workload_any_slot(workload), *memory = workload_any_slot(workload);
    if (disk == NULL || disk == memory)
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    struct doc put = {.base_count = 2};
    put.bases[0].value = freeze(client, txn, disk, 0)->id;
    put.bases[1].value = freeze(client, txn, memory, 1)->id;
    if (workload_chance(workload, 40)) {
        put.volumes[0].value = disk->volume->object.id;
        put.volume_count = 1;
    }
    put_new_doc(client, txn, DOC_MACHINE, &put,
            8 + workload_pick(workload, workload_chance(workload, 20) ? 60000 : 9000));
    commit(client, txn, 0);
    return true;
}

static struct model_doc *any_doc(struct workload *workload)
{
    struct model *model = workload->model;
    for (unsigned attempt = 0; attempt < 8 && model->doc_count > 0; attempt++) {
        struct model_doc *doc = model->doc[workload_pick(workload, model->doc_count)];
        const struct model_state *state = model_latest(&doc->object);
        if (state->exists && state->op->ended != 0)
            return doc;
    }
    return NULL;
}

bool workload_start_doc_change(struct client *client, bool delete)
{
    struct workload *workload = client->workload;
    struct model_doc *doc = any_doc(workload);
    if (doc == NULL)
        return false;
    const struct model_state before = *model_latest(&doc->object);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    if (delete) {
        txn_doc_delete(txn, (struct doc_id){doc->object.id});
        struct model_state *state = model_change(workload->model, client->op, &doc->object);
        state->exists = false;
        commit(client, txn, TXN_RESERVE);
        return true;
    }
    struct doc put = {.id = {doc->object.id}, .kind = doc->kind, .base_count = before.base_count};
    for (unsigned i = 0; i < before.base_count; i++)
        put.bases[i].value = before.base[i];
    doc_state(client, doc, &put, before.name);
    txn_doc_put(txn, &put, NULL, 0);
    free(put.body);
    commit(client, txn, 0);
    return true;
}

static bool named_by_doc(const struct workload *workload, uint64_t volume)
{
    for (size_t i = 0; i < workload->model->doc_count; i++) {
        // Any state that is not certainly gone counts: a delete or replacement may be under way.
        const struct model_object *object = &workload->model->doc[i]->object;
        for (size_t j = object->state_count; j-- > 1;) {
            const struct model_state *state = &object->state[j];
            for (unsigned k = 0; k < state->volume_count && state->exists && !state->op->rejected; k++)
                if (state->volume[k] == volume)
                    return true;
            if (state->op->ended != 0 && state->op->promised)
                break;
        }
    }
    return false;
}

static struct slot *slot_for_change(struct workload *workload)
{
    struct slot *slot = workload_any_slot(workload);
    return slot != NULL && slot->in_flight == 0 ? slot : NULL;
}

bool workload_start_delete(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL || named_by_doc(workload, slot->volume->object.id))
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    txn_volume_delete(txn, (struct volume_id){slot->volume->object.id});
    client->slot[0] = slot;
    slot->in_flight++;
    if (workload_chance(workload, 15)) { // while it is open
        client->wanted = -EBUSY;
        slot->exclusive = true;
        client->rename_or_resize = true;
        commit(client, txn, TXN_RESERVE);
        return true;
    }
    slot->handle = volume_close(slot->handle);
    slot->exclusive = true;
    client->deletes = true;
    struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
    state->exists = false;
    commit(client, txn, TXN_RESERVE);
    return true;
}

bool workload_start_rename(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL)
        return false;
    char name[40];
    new_name(workload, name, sizeof name);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    // Sometimes a name that another volume keeps meanwhile.
    struct slot *other = workload_any_slot(workload);
    const struct model_state *taken = model_latest(&other->volume->object);
    if (other != slot && taken->name[0] != '\0' && workload_chance(workload, 30)) {
        txn_volume_rename(txn, (struct volume_id){slot->volume->object.id}, taken->name);
        client->wanted = -EEXIST;
        client->slot[1] = other;
        other->in_flight++;
    } else {
        txn_volume_rename(txn, (struct volume_id){slot->volume->object.id}, name);
        struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
        snprintf(state->name, sizeof state->name, "%s", name);
    }
    client->slot[0] = slot;
    slot->in_flight++;
    slot->exclusive = true;
    client->rename_or_resize = true;
    commit(client, txn, 0);
    return true;
}

bool workload_start_resize(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL || slot->volume->vast)
        return false;
    uint64_t before = workload_size_of(slot), size = new_size(workload);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    txn_volume_resize(txn, (struct volume_id){slot->volume->object.id}, size);
    struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
    state->size_bytes = size;
    model_resized(workload->model, client->op, slot->volume, before, size);
    client->slot[0] = slot;
    slot->in_flight++;
    slot->exclusive = true;
    client->rename_or_resize = true;
    commit(client, txn, TXN_RESERVE);
    return true;
}
