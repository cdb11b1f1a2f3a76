// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_origin.h"

#include "vmglue/json_fields.h"
#include "vmglue/network_policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_machine(
        struct sandboxes *all, const struct doc *doc, struct sandbox_origin *origin, struct error *err)
{
    struct capture_doc capture;
    struct base_info disk;
    int r = capture_doc_parse(doc, &capture, err);
    if (r < 0)
        return r;
    origin->machine = doc->id;
    origin->memory = capture.memory;
    origin->memory_origin = capture.origin;
    origin->compat = capture.compat;
    capture.compat = NULL;
    if (capture.disk_count == 0)
        r = error_set(err, -EBADMSG, "machine snapshot \"%s\" has no disk", doc->name);
    else
        origin->disk = capture.disks[0];
    for (unsigned i = 1; i < capture.disk_count; i++)
        origin->more_bases[origin->more_count++] = capture.disks[i];
    capture_doc_free(&capture);
    if (r == 0 && (r = store_base_get(all->store, origin->disk, &disk)) < 0)
        error_set(err, r, "the disk of machine snapshot \"%s\" cannot be found: %s", doc->name, strerror(-r));
    if (r < 0)
        return r;
    origin->disk_bytes = disk.size_bytes;
    json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    origin->cpus = (unsigned)json_fields_get_int(body, "cpus");
    origin->memory_mb = (unsigned)json_fields_get_int(body, "memory_mb");
    origin->network = network_policy_stored(json_object_get(body, "network"));
    origin->defaults = json_incref(json_object_get(body, "defaults"));
    origin->is_template = json_object_get(body, "template") != NULL;
    for (unsigned i = 0; i < origin->more_count; i++) {
        const json_t *item = json_array_get(json_object_get(body, "disks"), i);
        struct sandbox_disk *more = &origin->more[i];
        more->read_only = json_fields_get_bool(item, "read_only");
        snprintf(more->mount, sizeof more->mount, "%s", json_fields_get_text(item, "mount"));
        snprintf(more->from, sizeof more->from, "%s", json_fields_get_text(item, "from"));
    }
    json_decref(body);
    if (origin->network == NULL || origin->cpus == 0 || origin->memory_mb == 0)
        return error_set(
                err, -EPROTO, "machine snapshot \"%s\" does not say what machine it is of", doc->name);
    return 0;
}

int sandbox_origin_load(
        struct sandboxes *all, struct doc_id machine, struct sandbox_origin *ret_origin, struct error *err)
{
    struct sandbox_origin origin = {0};
    struct doc doc = {0};
    int r = store_doc_get(all->store, machine, &doc);
    if (r < 0)
        return error_set(err, r, "the machine snapshot is gone");
    r = parse_machine(all, &doc, &origin, err);
    if (r == 0 && (r = store_doc_blob(all->store, machine, &origin.state, &origin.state_bytes)) < 0)
        error_set(err, r, "the device state of machine snapshot \"%s\" cannot be read: %s", doc.name,
                strerror(-r));
    doc_free(&doc);
    if (r < 0)
        sandbox_origin_free(&origin);
    else
        *ret_origin = origin;
    return r;
}

int sandbox_origin_find(
        struct sandboxes *all, const char *from, struct sandbox_origin *ret_origin, struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(&all->config.service->disks, from, &ref, err);
    if (r < 0)
        return r;
    if (ref.kind == DISKS_MACHINE && strchr(from, '/') != NULL)
        return error_set(err, -EINVAL, "\"%s\" is a memory image; give the snapshot's name alone", from);
    if (ref.kind == DISKS_MACHINE)
        return sandbox_origin_load(all, ref.doc, ret_origin, err);
    *ret_origin = (struct sandbox_origin){
            .disk_volume = ref.volume, .disk = ref.base, .disk_bytes = ref.size_bytes};
    return 0;
}

int sandbox_origin_of_disk(
        struct sandboxes *all, struct volume_id disk, struct sandbox_origin *ret_origin, struct error *err)
{
    struct volume_info info;
    int r = store_volume_get(all->store, disk, &info);
    if (r < 0)
        return error_set(err, r, "the disk to boot from is gone");
    *ret_origin = (struct sandbox_origin){.disk_volume = disk, .disk_bytes = info.size_bytes};
    return 0;
}

void sandbox_origin_take_more(
        struct sandbox_origin *origin, const struct sandbox_record *record, const struct base_id *bases)
{
    origin->more_count = record->more_count;
    for (unsigned i = 0; i < record->more_count; i++) {
        origin->more[i] = record->more[i];
        origin->more_bases[i] = bases[i];
    }
}

void sandbox_origin_shape(const struct sandbox_origin *origin, struct sandbox_record *record)
{
    if (origin->memory.value == 0)
        return;
    record->cpus = origin->cpus;
    record->memory_mb = origin->memory_mb;
}

void sandbox_origin_free(struct sandbox_origin *origin)
{
    free(origin->state);
    free(origin->compat);
    json_decref(origin->network);
    json_decref(origin->defaults);
    origin->network = origin->defaults = NULL;
    origin->state = NULL;
    origin->compat = NULL;
}

void sandbox_origin_volumes(struct txn *txn, const struct sandbox_origin *origin, uint64_t disk_bytes,
        struct sandbox_record *record)
{
    struct base_id disk = origin->disk.value != 0 ? origin->disk : txn_freeze(txn, origin->disk_volume);
    record->disk = txn_volume_create(txn, "", VOLUME_DISK, disk_bytes, disk);
    record->memory =
            txn_volume_create(txn, "", VOLUME_MEMORY, (uint64_t)record->memory_mb << 20, origin->memory);
    record->mapped = origin->memory;
    // What comes from a template has that one to share with, whatever the template came from.
    record->origin = origin->is_template ? (struct base_id){0} : origin->memory_origin;
    if (origin->memory.value == 0)
        return;
    record->more_count = origin->more_count;
    for (unsigned i = 0; i < origin->more_count; i++) {
        record->more[i] = origin->more[i];
        record->more[i].volume = txn_volume_create(txn, "", VOLUME_DISK, 0, origin->more_bases[i]);
    }
}
