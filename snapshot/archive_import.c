// SPDX-License-Identifier: Apache-2.0
// Reading an archive into a store. Each base of it is filled as a nameless volume, a difference as a fork of
// its frozen parent, which also relates the two in this store. Passing docs keep what is being made: one for
// each base, and one for each doc with a blob (it is put with that blob, and becomes the doc itself at the
// end). One transaction at the end puts the docs, names the volumes and removes everything else; without it
// the next start removes the passing docs, so a killed import leaves nothing.
#include "snapshot/archive_decode.h"
#include "snapshot/passing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct made { // of one base of the archive
    struct volume_id volume;
    struct base_id frozen; // 0 = not, or not yet
    struct doc_id passing;
    bool begun, is_parent;
};

struct importer {
    struct store *store;
    const struct archive_import_config *config;
    const struct archive_contents *contents;
    struct made *made;
    struct doc *docs;                  // what will be put; id: put already, as a passing one
    void *blob;                        // of the doc whose turn it is
    char (*names)[STORE_NAME_MAX + 1]; // of volumes
    struct volume *open;               // the base whose turn it is
    unsigned base_count, doc_count;    // of the arrays
};

static int choose(struct importer *m, enum doc_kind kind, const char *name, char *ret_name, struct error *err)
{
    memcpy(ret_name, name, strlen(name) + 1);
    if (m->config->choose_name == NULL || name[0] == '\0')
        return 0;
    return m->config->choose_name(m->config->context, kind, ret_name, err);
}

static int take_contents(void *context, const struct archive_contents *contents, struct error *err)
{
    struct importer *m = context;
    int r = 0;
    m->contents = contents;
    m->made = calloc(contents->base_count + 1, sizeof *m->made);
    m->names = calloc(contents->base_count + 1, sizeof *m->names);
    m->docs = calloc(contents->doc_count + 1, sizeof *m->docs);
    m->blob = malloc(DOC_BLOB_MAX);
    if (m->made == NULL || m->names == NULL || m->docs == NULL || m->blob == NULL)
        return error_set(err, -ENOMEM, "no memory for the import");
    m->base_count = contents->base_count;
    m->doc_count = contents->doc_count;
    for (unsigned i = 0; i < contents->base_count && r == 0; i++) {
        const struct archive_base *base = &contents->bases[i];
        if (base->parent != ARCHIVE_NO_PARENT)
            m->made[base->parent].is_parent = true;
        if (base->role == ARCHIVE_ROLE_VOLUME)
            r = choose(m, 0, base->name, m->names[i], err);
    }
    for (unsigned i = 0; i < contents->doc_count && r == 0; i++) {
        const struct archive_doc *from = &contents->docs[i];
        struct doc *doc = &m->docs[i];
        doc->kind = from->kind;
        doc->body_bytes = from->body_bytes;
        doc->body = calloc(1, from->body_bytes + 1);
        if (doc->body == NULL)
            return error_set(err, -ENOMEM, "no memory for the import");
        r = choose(m, from->kind, from->name, doc->name, err);
    }
    return r;
}

// The volume for a base, known to a passing doc from its first moment.
static int begin_base(struct importer *m, unsigned index, struct error *err)
{
    const struct archive_base *base = &m->contents->bases[index];
    struct made *made = &m->made[index];
    struct base_id parent = {0};
    struct doc doc = passing_doc();
    if (base->parent != ARCHIVE_NO_PARENT)
        parent = m->made[base->parent].frozen;
    struct txn *txn = txn_begin(m->store);
    struct volume_id volume = txn_volume_create(txn, "", base->kind, base->size_bytes, parent);
    if (m->config->domain != 0)
        txn_volume_domain(txn, volume, m->config->domain);
    doc.volumes[0] = volume;
    doc.volume_count = 1;
    struct doc_id passing = txn_doc_put(txn, &doc, NULL, 0);
    int r = txn_commit_wait(txn, 0, err);
    if (r < 0)
        return r;
    made->begun = true;
    made->volume = volume;
    made->passing = passing;
    r = volume_open(m->store, volume, &m->open);
    return r < 0 ? error_set(err, r, "the new volume cannot be opened: %s", strerror(-r)) : 0;
}

static int take_range(void *context, unsigned index, enum extent_kind kind, uint64_t offset, uint64_t length,
        const void *bytes, struct error *err)
{
    struct importer *m = context;
    bool differs = m->contents->bases[index].parent != ARCHIVE_NO_PARENT;
    int r = m->made[index].begun ? 0 : begin_base(m, index, err);
    if (r < 0)
        return r;
    if (kind == EXTENT_DATA)
        r = volume_write_wait(m->open, offset, bytes, length, 0);
    else if (kind == EXTENT_ZERO || differs) // a new volume is unmapped already
        r = volume_zero_wait(m->open, offset, length, kind == EXTENT_UNMAPPED, 0);
    if (r == -ENOSPC)
        return error_set(err, r,
                "the store is full: remove volumes or snapshots (`ramet store gc` frees their space), or "
                "raise its budget");
    return r < 0 ? error_set(err, r, "writing into the store failed: %s", strerror(-r)) : 0;
}

static int take_end(void *context, unsigned index, struct error *err)
{
    struct importer *m = context;
    struct made *made = &m->made[index];
    int r = made->begun ? 0 : begin_base(m, index, err);
    m->open = volume_close(m->open);
    if (r < 0 || (m->contents->bases[index].role == ARCHIVE_ROLE_VOLUME && !made->is_parent))
        return r;
    struct doc doc = passing_doc();
    struct txn *txn = txn_begin(m->store);
    doc.id = made->passing;
    doc.volumes[0] = made->volume;
    doc.volume_count = 1;
    struct base_id frozen = doc.bases[0] = txn_freeze(txn, made->volume);
    doc.base_count = 1;
    txn_doc_put(txn, &doc, NULL, 0);
    r = txn_commit_wait(txn, 0, err);
    if (r == 0)
        made->frozen = frozen;
    return r;
}

static int take_doc(void *context, unsigned index, bool is_blob, uint64_t offset, const void *bytes,
        size_t length, struct error *err)
{
    struct importer *m = context;
    size_t blob_bytes = m->contents->docs[index].blob_bytes;
    memcpy((is_blob ? (char *)m->blob : m->docs[index].body) + offset, bytes, length);
    if (!is_blob || offset + length < blob_bytes)
        return 0;
    struct doc doc = passing_doc();
    struct txn *txn = txn_begin(m->store);
    struct doc_id id = txn_doc_put(txn, &doc, m->blob, blob_bytes);
    int r = txn_commit_wait(txn, 0, err);
    if (r == 0)
        m->docs[index].id = id;
    return r;
}

// ---- The end ----

static int change_bodies(struct importer *m, struct error *err)
{
    int r = 0;
    if (m->config->change_body == NULL)
        return 0;
    struct archive_base_map *map = calloc(m->contents->base_count + 1, sizeof *map);
    if (map == NULL)
        return error_set(err, -ENOMEM, "no memory for the import");
    for (unsigned i = 0; i < m->contents->base_count; i++) {
        map[i].old.value = m->contents->bases[i].source_id;
        map[i].now = m->made[i].frozen;
    }
    for (unsigned i = 0; i < m->contents->doc_count && r == 0; i++) {
        char *body = NULL;
        size_t size = 0;
        r = m->config->change_body(
                m->config->context, &m->docs[i], map, m->contents->base_count, &body, &size, err);
        if (r < 0)
            break;
        free(m->docs[i].body);
        m->docs[i].body = body;
        m->docs[i].body_bytes = size;
    }
    free(map);
    return r;
}

// Docs first: what they name must be kept by something all the time.
static int commit(struct importer *m, struct doc_id *docs, struct error *err)
{
    struct txn *txn = txn_begin(m->store);
    for (unsigned i = 0; i < m->contents->doc_count; i++) {
        const struct archive_doc *from = &m->contents->docs[i];
        struct doc *doc = &m->docs[i];
        doc->base_count = from->base_count;
        for (unsigned k = 0; k < from->base_count; k++)
            doc->bases[k] = m->made[from->bases[k]].frozen;
        docs[i] = txn_doc_put(txn, doc, NULL, 0); // the blob stays
    }
    for (unsigned i = 0; i < m->contents->base_count; i++) {
        txn_doc_delete(txn, m->made[i].passing);
        if (m->names[i][0] != '\0')
            txn_volume_rename(txn, m->made[i].volume, m->names[i]);
        else
            txn_volume_delete(txn, m->made[i].volume);
    }
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static int finish(struct importer *m, struct error *err)
{
    struct doc_id *docs = calloc(m->contents->doc_count + 1, sizeof *docs);
    if (docs == NULL)
        return error_set(err, -ENOMEM, "no memory for the import");
    int r = change_bodies(m, err);
    if (r == 0)
        r = commit(m, docs, err);
    for (unsigned i = 0; r == 0 && m->config->imported != NULL && i < m->contents->base_count; i++)
        if (m->names[i][0] != '\0')
            m->config->imported(m->config->context, m->made[i].volume, (struct doc_id){0});
    for (unsigned i = 0; r == 0 && m->config->imported != NULL && i < m->contents->doc_count; i++)
        m->config->imported(m->config->context, (struct volume_id){0}, docs[i]);
    free(docs);
    return r;
}

// A failed store drops all this at its next start.
static void give_up(struct importer *m)
{
    m->open = volume_close(m->open);
    for (unsigned i = 0; i < m->doc_count; i++) {
        if (m->docs[i].id.value == 0)
            continue;
        struct txn *txn = txn_begin(m->store);
        txn_doc_delete(txn, m->docs[i].id);
        txn_commit_wait(txn, TXN_RESERVE, NULL);
    }
    for (unsigned i = m->base_count; i-- > 0;) {
        if (!m->made[i].begun)
            continue;
        struct txn *txn = txn_begin(m->store);
        txn_doc_delete(txn, m->made[i].passing);
        txn_volume_delete(txn, m->made[i].volume);
        txn_commit_wait(txn, TXN_RESERVE, NULL);
    }
}

static int verified(void *context, struct error *err)
{
    return finish(context, err);
}

static void free_importer(struct importer *m)
{
    for (unsigned i = 0; i < m->doc_count; i++)
        free(m->docs[i].body);
    free(m->made);
    free(m->names);
    free(m->docs);
    free(m->blob);
}

int archive_import(struct store *store, const struct archive_import_config *config,
        struct archive_result *ret_result, struct error *err)
{
    struct importer m = {.store = store, .config = config};
    struct archive_visitor visitor = {.context = &m,
            .contents = take_contents,
            .range = take_range,
            .end = take_end,
            .doc = take_doc,
            .verified = verified};
    int r = archive_decode(config->read, config->context, &visitor, ret_result, err);
    if (r < 0)
        give_up(&m);
    free_importer(&m);
    return r;
}
