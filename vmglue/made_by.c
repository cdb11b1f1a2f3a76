// SPDX-License-Identifier: Apache-2.0
#include "vmglue/made_by.h"

#include "vmglue/json_fields.h"
#include "vmglue/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOLUME_PREFIX "made-by-"

void made_by_put(const struct made_by *by, json_t *record)
{
    if (by->owner[0] != '\0')
        json_object_set_new(record, "owner", json_string(by->owner));
    if (by->request[0] != '\0')
        json_object_set_new(record, "request", json_string(by->request));
}

struct made_by made_by_take(const json_t *record)
{
    struct made_by by;
    snprintf(by.owner, sizeof by.owner, "%s", json_fields_get_text(record, "owner"));
    snprintf(by.request, sizeof by.request, "%s", json_fields_get_text(record, "request"));
    return by;
}

struct made_by made_by_inherit(const struct made_by *source, const struct made_by *by)
{
    struct made_by made = by == NULL ? (struct made_by){0} : *by;
    memcpy(made.owner, source->owner, sizeof made.owner);
    return made;
}

static void volume_doc_name(struct volume_id volume, char ret_name[STORE_NAME_MAX + 1])
{
    snprintf(ret_name, STORE_NAME_MAX + 1, VOLUME_PREFIX "%" PRIu64, volume.value);
}

int made_by_put_volume(struct txn *txn, struct volume_id volume, const struct made_by *by, struct error *err)
{
    struct doc doc = {.kind = DOC_OTHER};
    if (by == NULL || (by->owner[0] == '\0' && by->request[0] == '\0'))
        return 0;
    JSON_AUTO json_t *body = json_object();
    made_by_put(by, body);
    doc.body = json_dumps(body, JSON_COMPACT);
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the record of who made a volume");
    doc.body_bytes = strlen(doc.body);
    volume_doc_name(volume, doc.name);
    txn_doc_put(txn, &doc, NULL, 0);
    free(doc.body);
    return 0;
}

struct made_by made_by_of_volume(struct store *store, struct volume_id volume)
{
    char name[STORE_NAME_MAX + 1];
    struct made_by by = {0};
    struct doc doc = {0};
    volume_doc_name(volume, name);
    if (store_doc_find(store, DOC_OTHER, name, &doc) == 0) {
        JSON_AUTO json_t *body = json_loadb(doc.body, doc.body_bytes, 0, NULL);
        by = made_by_take(body);
    }
    doc_free(&doc);
    return by;
}

void made_by_delete_volume(struct store *store, struct txn *txn, struct volume_id volume)
{
    char name[STORE_NAME_MAX + 1];
    struct doc doc = {0};
    volume_doc_name(volume, name);
    if (store_doc_find(store, DOC_OTHER, name, &doc) == 0)
        txn_doc_delete(txn, doc.id);
    doc_free(&doc);
}

struct volume_id made_by_volume_of(const struct doc *doc)
{
    return (struct volume_id){names_id(doc->name, VOLUME_PREFIX)};
}

static void count_one(void *context, const struct doc *doc)
{
    unsigned *count = context;
    *count += made_by_volume_of(doc).value != 0;
}

unsigned made_by_count(struct store *store)
{
    unsigned count = 0;
    store_doc_list(store, DOC_OTHER, count_one, &count);
    return count;
}
