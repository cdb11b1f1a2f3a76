// SPDX-License-Identifier: Apache-2.0
#include "vmglue/disks.h"

#include "snapshot/passing.h"
#include "snapshot/working_set.h"
#include "vmglue/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int resolve_doc(struct store *store, struct doc *doc, enum disks_kind kind, struct disks_ref *ret_ref)
{
    struct disks_ref ref = {.kind = kind, .doc = doc->id, .read_only = true};
    int r = 0;
    snprintf(ref.name, sizeof ref.name, "%s", doc->name);
    if (kind == DISKS_SANDBOX_DISK) {
        struct volume_info volume;
        r = doc->volume_count == 0 ? -ENOENT : store_volume_get(store, doc->volumes[0], &volume);
        if (r == 0) {
            ref.volume = volume.id;
            ref.size_bytes = volume.size_bytes;
        }
    } else {
        // A machine snapshot's first base is its memory, the disks follow; a disk snapshot has one base.
        struct base_info base;
        unsigned index = kind == DISKS_MACHINE ? 1 : 0;
        r = index >= doc->base_count ? -ENOENT : store_base_get(store, doc->bases[index], &base);
        if (r == 0) {
            ref.base = base.id;
            ref.size_bytes = base.size_bytes;
        }
    }
    if (r == 0)
        *ret_ref = ref;
    return r;
}

struct id_search {
    const char *id;
    char *name;
};

static void match_id(void *context, const struct doc *doc)
{
    struct id_search *search = context;
    if (search->name != NULL || memmem(doc->body, doc->body_bytes, search->id, strlen(search->id)) == NULL)
        return;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    const char *id = json_string_value(json_object_get(body, "id"));
    if (id != NULL && strcmp(id, search->id) == 0)
        search->name = strdup(doc->name);
}

// A sandbox's doc by its name or id.
static int find_sandbox(struct store *store, const char *head, struct doc *ret_doc)
{
    struct id_search search = {head, NULL};
    if (strncmp(head, "sbx_", 4) != 0)
        return store_doc_find(store, DOC_SANDBOX, head, ret_doc);
    store_doc_list(store, DOC_SANDBOX, match_id, &search);
    int r = search.name == NULL ? -ENOENT : store_doc_find(store, DOC_SANDBOX, search.name, ret_doc);
    free(search.name);
    return r;
}

static int resolve_suffixed(
        struct store *store, const char *name, const char *slash, struct disks_ref *ret_ref)
{
    char head[STORE_NAME_MAX + 1];
    struct doc doc = {0};
    snprintf(head, sizeof head, "%.*s", (int)(slash - name), name);
    int r = -ENOENT;
    if (strcmp(slash, "/disk") == 0) {
        r = find_sandbox(store, head, &doc);
        if (r == 0)
            r = resolve_doc(store, &doc, DISKS_SANDBOX_DISK, ret_ref);
    } else if (strcmp(slash, "/memory") == 0) {
        uint64_t id = names_id(head, "snap_");
        r = id != 0 ? store_doc_get(store, (struct doc_id){id}, &doc)
                    : store_doc_find(store, DOC_MACHINE, head, &doc);
        struct base_info base;
        if (r == 0)
            r = doc.kind != DOC_MACHINE || doc.base_count == 0 ? -ENOENT
                                                               : store_base_get(store, doc.bases[0], &base);
        if (r == 0) {
            *ret_ref = (struct disks_ref){.kind = DISKS_MACHINE,
                    .doc = doc.id,
                    .base = base.id,
                    .read_only = true,
                    .size_bytes = base.size_bytes};
            snprintf(ret_ref->name, sizeof ret_ref->name, "%s", doc.name);
        }
    }
    doc_free(&doc);
    return r;
}

int disks_resolve(struct store *store, const char *name, struct disks_ref *ret_ref)
{
    struct volume_info volume;
    struct doc doc = {0};
    const char *slash = strchr(name, '/');
    uint64_t id;
    int r;
    if (strlen(name) > STORE_NAME_MAX || name[0] == '\0')
        return -ENOENT;
    if (slash != NULL)
        return resolve_suffixed(store, name, slash, ret_ref);
    if ((id = names_id(name, "vol_")) != 0)
        r = store_volume_get(store, (struct volume_id){id}, &volume);
    else
        r = store_volume_find(store, name, &volume);
    if (r == 0) {
        if (volume.name[0] == '\0')
            return -ENOENT; // a sandbox's or an unfinished import's: not reached by number
        *ret_ref = (struct disks_ref){
                .kind = DISKS_VOLUME, .volume = volume.id, .size_bytes = volume.size_bytes};
        snprintf(ret_ref->name, sizeof ret_ref->name, "%s", volume.name);
        return 0;
    }
    // One without a name is what a stopped sandbox goes on from: not reached by number either.
    if ((id = names_id(name, "snap_")) != 0) {
        r = store_doc_get(store, (struct doc_id){id}, &doc);
        if (r == 0 && doc.name[0] == '\0') {
            doc_free(&doc);
            return -ENOENT;
        }
    } else if ((r = store_doc_find(store, DOC_SNAPSHOT, name, &doc)) != 0)
        r = store_doc_find(store, DOC_MACHINE, name, &doc);
    if (r == 0)
        r = doc.kind == DOC_SNAPSHOT  ? resolve_doc(store, &doc, DISKS_SNAPSHOT, ret_ref)
            : doc.kind == DOC_MACHINE ? resolve_doc(store, &doc, DISKS_MACHINE, ret_ref)
                                      : -ENOENT;
    doc_free(&doc);
    return r;
}

int disks_find(struct disks *disks, const char *name, struct disks_ref *ret_ref, struct error *err)
{
    int r = disks_resolve(disks->store, name, ret_ref);
    if (r < 0)
        return error_set(err, r,
                "there is no volume or snapshot called \"%.80s\"; `ramet template ls`, `ramet volume ls` and "
                "`ramet snapshots` "
                "list what there is",
                name);
    return 0;
}

static int check_size(uint64_t size_bytes, struct error *err)
{
    if (size_bytes == 0)
        return error_set(err, -EINVAL, "a volume of 0 bytes cannot be made; give its size, e.g. 10G");
    if (size_bytes > 1ull << DISKS_SIZE_MAX_SHIFT)
        return error_set(
                err, -EINVAL, "a volume of %" PRIu64 " bytes is too large; the most is 64 PiB", size_bytes);
    return 0;
}

static int find_volume(struct disks *disks, const char *name, struct disks_ref *ret_ref, struct error *err)
{
    int r = disks_resolve(disks->store, name, ret_ref);
    if (r == 0 && ret_ref->kind == DISKS_SANDBOX_DISK)
        return error_set(
                err, -EBUSY, "\"%s\" belongs to a sandbox; snapshot or stop the sandbox instead", name);
    if (r == 0 && ret_ref->kind != DISKS_VOLUME)
        return error_set(err, -EINVAL,
                "\"%s\" is a snapshot and never changes; `ramet volume fork %s NEW` makes a volume "
                "of it",
                name, name);
    if (r < 0)
        return error_set(err, r, "there is no volume called \"%.80s\"; `ramet volume ls` lists them", name);
    return 0;
}

// The volume, and who made it, in one record.
static int commit_volume(struct disks *disks, struct txn *txn, struct volume_id id, const struct made_by *by,
        struct error *err)
{
    int r = made_by_put_volume(txn, id, by, err);
    if (r < 0)
        txn_abort(txn);
    return r < 0 ? r : txn_commit_wait(txn, TXN_DURABLE, err);
}

int disks_create(struct disks *disks, const char *name, uint64_t size_bytes, const struct made_by *by,
        struct volume_id *ret_id, struct error *err)
{
    int r = check_size(size_bytes, err);
    if (r == 0)
        r = names_reserve(disks->names, NAMES_DATA, "volume", name, err);
    if (r < 0)
        return r;
    struct txn *txn = txn_begin(disks->store);
    struct volume_id id = txn_volume_create(txn, name, VOLUME_DISK, size_bytes, (struct base_id){0});
    r = commit_volume(disks, txn, id, by, err);
    names_release(disks->names, NAMES_DATA, name);
    if (r == 0)
        *ret_id = id;
    return r;
}

int disks_fork(struct disks *disks, const char *from, const char *name, uint64_t size_bytes,
        const struct made_by *by, struct volume_id *ret_id, struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(disks, from, &ref, err);
    if (r == 0 && size_bytes != 0)
        r = check_size(size_bytes, err);
    if (r == 0 && size_bytes != 0 && size_bytes < ref.size_bytes)
        r = error_set(err, -EINVAL, "\"%s\" has %" PRIu64 " bytes; a fork of %" PRIu64 " would lose its end",
                from, ref.size_bytes, size_bytes);
    if (r == 0)
        r = names_reserve(disks->names, NAMES_DATA, "volume", name, err);
    if (r < 0)
        return r;
    struct txn *txn = txn_begin(disks->store);
    struct base_id base = ref.base.value != 0 ? ref.base : txn_freeze(txn, ref.volume);
    struct volume_id id = txn_volume_create(txn, name, VOLUME_DISK, size_bytes, base);
    r = commit_volume(disks, txn, id, by, err);
    names_release(disks->names, NAMES_DATA, name);
    if (r == 0)
        *ret_id = id;
    return r;
}

struct made_by disks_made_by(struct disks *disks, const struct disks_ref *ref)
{
    struct made_by by = {0};
    struct doc doc = {0};
    if (ref->doc.value == 0)
        return made_by_of_volume(disks->store, ref->volume);
    if (store_doc_get(disks->store, ref->doc, &doc) == 0) {
        JSON_AUTO json_t *body = json_loadb(doc.body, doc.body_bytes, 0, NULL);
        by = made_by_take(body);
    }
    doc_free(&doc);
    return by;
}

// The body of a snapshot's doc; malloc'ed.
static char *describe_snapshot(struct disks *disks, const struct disks_ref *ref, const struct made_by *by)
{
    struct made_by source = disks_made_by(disks, ref), made = made_by_inherit(&source, by);
    JSON_AUTO json_t *body = json_object();
    json_object_set_new(
            body, "parent", json_sprintf("%s%s", ref->name, ref->kind == DISKS_SANDBOX_DISK ? "/disk" : ""));
    made_by_put(&made, body);
    return json_dumps(body, JSON_COMPACT);
}

int disks_snapshot(struct disks *disks, const char *volume, const char *name, const struct made_by *by,
        struct doc_id *ret_id, struct error *err)
{
    struct disks_ref ref;
    char made[NAMES_MAX + 1];
    int r = disks_resolve(disks->store, volume, &ref);
    if (r < 0 || ref.volume.value == 0)
        return find_volume(disks, volume, &ref, err);
    struct doc doc = {.kind = DOC_SNAPSHOT, .body = describe_snapshot(disks, &ref, by)};
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the description of a snapshot");
    doc.body_bytes = strlen(doc.body);
    if (name == NULL)
        r = names_make(disks->names, NAMES_DATA, "snapshot", "snap", made, err);
    else
        r = names_reserve(disks->names, NAMES_DATA, "snapshot", name, err);
    if (r == 0) {
        name = name == NULL ? made : name;
        snprintf(doc.name, sizeof doc.name, "%s", name);
        struct txn *txn = txn_begin(disks->store);
        doc.bases[0] = txn_freeze(txn, ref.volume);
        doc.base_count = 1;
        struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
        r = txn_commit_wait(txn, TXN_DURABLE, err);
        names_release(disks->names, NAMES_DATA, name);
        if (r == 0)
            *ret_id = id;
    }
    free(doc.body);
    return r;
}

int disks_change_volume(
        struct disks *disks, const char *name, const char *new_name, uint64_t size_bytes, struct error *err)
{
    struct disks_ref ref;
    int r = find_volume(disks, name, &ref, err);
    if (r == 0 && size_bytes != 0)
        r = check_size(size_bytes, err);
    if (r == 0 && new_name != NULL)
        r = names_reserve(disks->names, NAMES_DATA, "volume", new_name, err);
    if (r < 0 || (size_bytes == 0 && new_name == NULL))
        return r;
    struct txn *txn = txn_begin(disks->store);
    if (size_bytes != 0)
        txn_volume_resize(txn, ref.volume, size_bytes);
    if (new_name != NULL)
        txn_volume_rename(txn, ref.volume, new_name);
    r = txn_commit_wait(txn, TXN_DURABLE, err);
    if (new_name != NULL)
        names_release(disks->names, NAMES_DATA, new_name);
    return r;
}

int disks_delete_volume(struct disks *disks, const char *name, struct error *err)
{
    struct disks_ref ref;
    int r = find_volume(disks, name, &ref, err);
    if (r < 0)
        return r;
    struct txn *txn = txn_begin(disks->store);
    txn_volume_delete(txn, ref.volume);
    made_by_delete_volume(disks->store, txn, ref.volume);
    r = txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
    if (r == -EBUSY)
        return error_set(err, r,
                "volume \"%s\" is in use: an NBD client is connected to it, or an export or import runs; "
                "end that first",
                name);
    return r;
}

static int find_snapshot(struct disks *disks, const char *name, struct disks_ref *ret_ref, struct error *err)
{
    struct disks_ref ref;
    if (disks_resolve(disks->store, name, &ref) < 0 || strchr(name, '/') != NULL)
        return error_set(
                err, -ENOENT, "there is no snapshot called \"%.80s\"; `ramet snapshots` lists them", name);
    if (ref.kind == DISKS_VOLUME)
        return error_set(
                err, -EINVAL, "\"%s\" is a volume, not a snapshot; `ramet volume ls` lists volumes", name);
    *ret_ref = ref;
    return 0;
}

static int put_changed(
        struct disks *disks, struct doc *doc, const char *new_name, const json_t *labels, struct error *err)
{
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (body == NULL)
        body = json_object();
    if (labels != NULL)
        json_object_set(body, "labels", (json_t *)labels);
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the description of a snapshot");
    struct doc changed = *doc;
    changed.body = text;
    changed.body_bytes = strlen(text);
    if (new_name != NULL)
        snprintf(changed.name, sizeof changed.name, "%s", new_name);
    struct txn *txn = txn_begin(disks->store);
    txn_doc_put(txn, &changed, NULL, 0);
    int r = txn_commit_wait(txn, TXN_DURABLE, err);
    free(text);
    return r;
}

int disks_change_snapshot(struct disks *disks, const char *name, const char *new_name, const json_t *labels,
        struct doc_id *ret_id, struct error *err)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; // two changes of one would lose the first's
    struct disks_ref ref;
    struct doc doc = {0};
    int r = new_name == NULL ? 0 : names_check("snapshot", new_name, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&turn);
    r = find_snapshot(disks, name, &ref, err);
    if (r == 0)
        r = store_doc_get(disks->store, ref.doc, &doc);
    if (r == -ENOENT && doc.id.value == 0)
        r = error_set(err, r, "there is no snapshot called \"%.80s\"; `ramet snapshots` lists them", name);
    if (r == 0 && new_name != NULL && strcmp(new_name, doc.name) == 0)
        new_name = NULL;
    bool reserved = false;
    if (r == 0 && new_name != NULL) {
        r = names_reserve(disks->names, NAMES_DATA, "snapshot", new_name, err);
        reserved = r == 0;
    }
    if (r == 0)
        r = put_changed(disks, &doc, new_name, labels, err);
    if (reserved)
        names_release(disks->names, NAMES_DATA, new_name);
    pthread_mutex_unlock(&turn);
    doc_free(&doc);
    if (r == 0)
        *ret_id = ref.doc;
    return r;
}

int disks_delete_snapshot(struct disks *disks, const char *name, struct error *err)
{
    struct disks_ref ref;
    int r = find_snapshot(disks, name, &ref, err);
    if (r < 0)
        return r;
    struct txn *txn = txn_begin(disks->store);
    txn_doc_delete(txn, ref.doc);
    working_set_delete(disks->store, txn, ref.doc);
    return txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
}

int disks_pin(struct disks *disks, const char *name, struct disks_pin *ret_pin, struct error *err)
{
    struct disks_pin pin = {0};
    int r = disks_find(disks, name, &pin.ref, err);
    if (r < 0)
        return r;
    struct base_id base = pin.ref.base;
    if (base.value == 0) {
        struct doc doc = passing_doc();
        struct txn *txn = txn_begin(disks->store);
        doc.bases[0] = base = txn_freeze(txn, pin.ref.volume);
        doc.base_count = 1;
        pin.doc = txn_doc_put(txn, &doc, NULL, 0);
        r = txn_commit_wait(txn, 0, err);
        if (r < 0)
            return r;
    }
    pin.id = base;
    r = base_open(disks->store, base, &pin.base);
    if (r < 0) {
        disks_unpin(disks, &pin);
        return error_set(err, r, "\"%s\" cannot be opened: %s", name, strerror(-r));
    }
    *ret_pin = pin;
    return 0;
}

void disks_unpin(struct disks *disks, struct disks_pin *pin)
{
    pin->base = base_close(pin->base);
    if (pin->doc.value == 0)
        return;
    struct txn *txn = txn_begin(disks->store);
    txn_doc_delete(txn, pin->doc);
    txn_commit_wait(txn, TXN_RESERVE, NULL); // a failed store cleans up at its next start
    pin->doc.value = 0;
}
