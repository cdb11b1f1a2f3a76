// SPDX-License-Identifier: Apache-2.0
// Keys in the store: one nameless DOC_OTHER doc each. Not one byte of it helps to make the key again.
#include "vmglue/keys_internal.h"

#include "snapshot/txn.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK[] = "ramet_key";

int keys_record_put(struct keys *keys, struct key *key, unsigned flags, struct error *err)
{
    struct doc doc = {.id = key->doc, .kind = DOC_OTHER};
    const struct keys_info *info = &key->info;
    char hex[2 * SHA256_SIZE + 1];
    sha256_hex(&key->sum, hex);
    JSON_AUTO json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s}", MARK, info->id, "name",
            info->name, "preset", keys_preset_name(info->preset), "sha256", hex, "created_wall_ns",
            (json_int_t)info->created_wall_ns, "expires_wall_ns", (json_int_t)info->expires_wall_ns,
            "last_used_wall_ns", (json_int_t)info->last_used_wall_ns, "created_by", info->created_by);
    if (body != NULL && key->request[0] != '\0')
        json_object_set_new(body, "request", json_string(key->request));
    doc.body = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the key's record");
    doc.body_bytes = strlen(doc.body);
    struct txn *txn = txn_begin(keys->store);
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    free(doc.body);
    int r = txn_commit_wait(txn, flags, err);
    if (r == 0)
        key->doc = id;
    return r;
}

int keys_record_delete(struct keys *keys, const struct key *key, struct error *err)
{
    struct txn *txn = txn_begin(keys->store);
    txn_doc_delete(txn, key->doc);
    return txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
}

struct load {
    struct keys *keys;
    unsigned bad;
};

static void load_one(void *context, const struct doc *doc)
{
    struct load *load = context;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    const char *id = json_fields_get_text(body, MARK), *name = json_fields_get_text(body, "name");
    if (id[0] == '\0')
        return;
    struct key *key = calloc(1, sizeof *key);
    if (key == NULL)
        abort();
    struct keys_info *info = &key->info;
    if (strlen(id) != 4 + KEYS_LOOKUP_DIGITS || strlen(name) >= sizeof info->name ||
            !keys_preset_parse(json_fields_get_text(body, "preset"), &info->preset) ||
            !sha256_parse(json_fields_get_text(body, "sha256"), &key->sum)) {
        load->bad++;
        free(key);
        return;
    }
    memcpy(info->id, id, strlen(id) + 1);
    memcpy(info->name, name, strlen(name) + 1);
    snprintf(info->created_by, sizeof info->created_by, "%s", json_fields_get_text(body, "created_by"));
    info->created_wall_ns = (uint64_t)json_fields_get_int(body, "created_wall_ns");
    info->expires_wall_ns = (uint64_t)json_fields_get_int(body, "expires_wall_ns");
    info->last_used_wall_ns = (uint64_t)json_fields_get_int(body, "last_used_wall_ns");
    snprintf(key->request, sizeof key->request, "%s", json_fields_get_text(body, "request"));
    key->doc = doc->id;
    struct key **bucket = keys_bucket(load->keys, info->id + 4);
    key->next = *bucket;
    *bucket = key;
    load->keys->count++;
}

int keys_record_load(struct keys *keys, struct error *err)
{
    struct load load = {keys, 0};
    store_doc_list(keys->store, DOC_OTHER, load_one, &load);
    if (load.bad > 0)
        return error_set(err, -EPROTO,
                "%u keys in the store are not as this version writes them; start the daemon that made them",
                load.bad);
    return 0;
}
