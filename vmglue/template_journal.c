// SPDX-License-Identifier: Apache-2.0
// The journal of a build: a DOC_OTHER doc that names the build's volume and, in its body, its machine. It is
// there before either is; a daemon that finds one at its start removes all three. The machine's snapshot has
// the machine's name until the build is published, so it is found the same way.
#include "vmglue/template_internal.h"

#include "snapshot/working_set.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK[] = "template_build";

static int put_journal(struct template_build *build, struct txn *txn, struct error *err)
{
    struct doc doc = {.id = build->journal, .kind = DOC_OTHER};
    JSON_AUTO json_t *body = json_pack("{s:s, s:s}", MARK, build->id, "box", build->box);
    doc.body = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the build's journal");
    doc.body_bytes = strlen(doc.body);
    if (build->disk.value != 0)
        doc.volumes[doc.volume_count++] = build->disk;
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    if (build->journal.value == 0)
        build->journal = id;
    free(doc.body);
    return 0;
}

static int commit(struct template_build *build, struct txn *txn, struct error *err)
{
    int r = put_journal(build, txn, err);
    if (r < 0)
        txn_abort(txn);
    else
        r = txn_commit_wait(txn, 0, err);
    return r;
}

int template_journal_begin(struct template_build *build, struct error *err)
{
    int r = commit(build, txn_begin(build->all->store), err);
    if (r < 0)
        build->journal.value = 0;
    return r;
}

static int commit_volume(
        struct template_build *build, struct txn *txn, struct volume_id volume, struct error *err)
{
    build->disk = volume;
    int r = commit(build, txn, err);
    if (r < 0)
        build->disk.value = 0;
    return r;
}

int template_journal_volume(struct template_build *build, uint64_t size_bytes, struct error *err)
{
    struct txn *txn = txn_begin(build->all->store);
    struct volume_id volume = txn_volume_create(txn, "", VOLUME_DISK, size_bytes, (struct base_id){0});
    return commit_volume(build, txn, volume, err);
}

int template_journal_adopt(struct template_build *build, struct error *err)
{
    struct txn *txn = txn_begin(build->all->store);
    txn_doc_delete(txn, build->passing);
    int r = commit_volume(build, txn, build->imported, err);
    if (r == 0)
        build->imported.value = build->passing.value = 0;
    return r;
}

int template_journal_fork(struct template_build *build, const char *from, struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(&build->all->config.service->disks, from, &ref, err);
    if (r < 0)
        return r;
    if (ref.kind == DISKS_MACHINE)
        return error_set(err, -EINVAL,
                "\"%.60s\" is a machine snapshot; give a volume or a disk snapshot to boot from", from);
    struct txn *txn = txn_begin(build->all->store);
    struct base_id base = ref.base.value != 0 ? ref.base : txn_freeze(txn, ref.volume);
    struct volume_id volume = txn_volume_create(txn, "", VOLUME_DISK, 0, base);
    return commit_volume(build, txn, volume, err);
}

static json_t *describe(const struct template_build *build)
{
    const struct template_request *request = &build->request;
    json_t *json = json_pack("{s:s, s:s, s:s}", "id", build->id, "source",
            template_request_source_name(request->source), "warm", template_request_warm_name(request->warm));
    json_object_set_new(json, "started_at", json_fields_time(build->started_ns));
    return json;
}

// The members that make a machine snapshot a template.
static int mark(const struct template_build *build, struct doc *doc, struct error *err)
{
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (!json_is_object(body))
        return error_set(err, -EBADMSG, "the snapshot of the build machine has no usable description");
    json_object_set_new(body, "template", json_true());
    json_object_set_new(body, "build", describe(build));
    made_by_put(&build->by, body);
    json_t *kept = json_object_get(body, "defaults"); // of the sandbox that was captured
    if (build->defaults != NULL && kept != NULL)
        json_object_update_recursive(kept, build->defaults);
    else if (build->defaults != NULL)
        json_object_set(body, "defaults", build->defaults);
    if (build->request.labels != NULL)
        json_object_set(body, "labels", (json_t *)build->request.labels);
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the template's description");
    if (strlen(text) > DOC_BODY_MAX) {
        free(text);
        return error_set(err, -E2BIG, "labels and env of a template together must stay below %d KiB",
                DOC_BODY_MAX / 1024);
    }
    free(doc->body);
    doc->body = text;
    doc->body_bytes = strlen(text);
    snprintf(doc->name, sizeof doc->name, "%s", build->request.name);
    return 0;
}

bool template_is_replaceable(const struct template_build *build, const json_t *body)
{
    struct made_by its = made_by_take(body);
    return build->by.owner[0] == '\0' || strcmp(its.owner, build->by.owner) == 0;
}

// What the name means now: since the build began, the template that was to be replaced may have been removed,
// and something else may have got its name.
static int find_replaced(struct template_build *build, struct doc *ret_old, struct error *err)
{
    const char *name = build->request.name;
    if (build->reserved_name)
        return 0;
    if (store_doc_find(build->all->store, DOC_MACHINE, name, ret_old) == 0) {
        JSON_AUTO json_t *body = json_loadb(ret_old->body, ret_old->body_bytes, 0, NULL);
        if (json_fields_get_bool(body, "template") && template_is_replaceable(build, body))
            return 0;
        return error_set(
                err, -EEXIST, "\"%s\" has become something else than a template to replace; it stays", name);
    }
    int r = names_reserve(&build->all->config.service->names, NAMES_DATA, "template", name, err);
    build->reserved_name = r == 0;
    return r;
}

int template_journal_publish(struct template_build *build, struct error *err)
{
    struct store *store = build->all->store;
    struct doc doc = {0}, old = {0};
    int r = store_doc_find(store, DOC_MACHINE, build->box, &doc);
    if (r < 0)
        return error_set(err, r, "the snapshot of the build machine is gone: somebody removed it");
    r = mark(build, &doc, err);
    if (r == 0)
        r = find_replaced(build, &old, err);
    if (r == 0) {
        struct txn *txn = txn_begin(store);
        if (old.id.value != 0) {
            txn_doc_delete(txn, old.id);
            working_set_delete(store, txn, old.id);
        }
        txn_doc_put(txn, &doc, NULL, 0);
        r = txn_commit_wait(txn, TXN_DURABLE, err);
    }
    doc_free(&doc);
    doc_free(&old);
    return r;
}

// The machine of that name with all it has; whether it is gone.
static bool remove_box(struct templates *all, const char *box)
{
    struct error err;
    int r = sandbox_remove(all->config.service->sandboxes, box, &err);
    if (r < 0 && r != -ENOENT)
        template_say(all, "the build machine %s cannot be removed now (%s); the next daemon does it", box,
                err.text);
    return r == 0 || r == -ENOENT;
}

static int remove_rest(struct templates *all, struct doc_id journal, const char *box,
        const struct volume_id *volumes, unsigned volume_count)
{
    struct doc snapshot = {0};
    struct txn *txn = txn_begin(all->store);
    if (store_doc_find(all->store, DOC_MACHINE, box, &snapshot) == 0) {
        txn_doc_delete(txn, snapshot.id);
        working_set_delete(all->store, txn, snapshot.id);
    }
    doc_free(&snapshot);
    txn_doc_delete(txn, journal);
    for (unsigned i = 0; i < volume_count; i++)
        txn_volume_delete(txn, volumes[i]);
    return txn_commit_wait(txn, TXN_RESERVE, NULL);
}

void template_journal_end(struct template_build *build)
{
    if (build->journal.value == 0)
        return;
    if (build->box_made && !remove_box(build->all, build->box))
        return;
    remove_rest(build->all, build->journal, build->box, &build->disk, build->disk.value != 0);
    build->journal.value = build->disk.value = 0;
}

struct left_over {
    struct doc_id id;
    char box[NAMES_MAX + 1];
    struct volume_id volumes[DOC_REFS_MAX];
    unsigned volume_count;
    struct left_over *next;
};

static void collect(void *context, const struct doc *doc)
{
    struct left_over **list = context;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (json_fields_get_text(body, MARK)[0] == '\0')
        return;
    struct left_over *left = calloc(1, sizeof *left);
    if (left == NULL)
        abort();
    left->id = doc->id;
    snprintf(left->box, sizeof left->box, "%s", json_fields_get_text(body, "box"));
    left->volume_count = doc->volume_count;
    memcpy(left->volumes, doc->volumes, sizeof left->volumes);
    left->next = *list;
    *list = left;
}

unsigned template_journal_clean_up(struct templates *all)
{
    struct left_over *list = NULL;
    unsigned count = 0;
    store_doc_list(all->store, DOC_OTHER, collect, &list);
    while (list != NULL) {
        struct left_over *left = list;
        list = left->next;
        if (remove_box(all, left->box))
            remove_rest(all, left->id, left->box, left->volumes, left->volume_count);
        count++;
        free(left);
    }
    return count;
}
