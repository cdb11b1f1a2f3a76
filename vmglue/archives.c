// SPDX-License-Identifier: Apache-2.0
#include "vmglue/archives.h"

#include "vmglue/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Export ----

static int take_root(struct disks *disks, const char *name, struct disks_pin *pin, struct archive_root *root,
        struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(disks, name, &ref, err);
    if (r < 0)
        return r;
    if (strchr(name, '/') != NULL)
        return error_set(err, -EINVAL,
                "\"%s\" is a part of something; export the snapshot as a whole, or take one of the sandbox "
                "(`ramet snapshot`) first",
                name);
    if (ref.kind != DISKS_VOLUME) {
        root->doc = ref.doc;
        return 0;
    }
    r = disks_pin(disks, name, pin, err);
    root->volume_name = pin->ref.name;
    root->base = pin->id;
    return r;
}

int archives_export(struct disks *disks, const char *const *names, unsigned name_count,
        archive_write_callback write, void *context, struct archive_result *ret_result, struct error *err)
{
    struct disks_pin *pins = calloc(name_count + 1, sizeof *pins);
    struct archive_root *roots = calloc(name_count + 1, sizeof *roots);
    int r = pins == NULL || roots == NULL ? error_set(err, -ENOMEM, "no memory for the export") : 0;
    for (unsigned i = 0; i < name_count && r == 0; i++) {
        for (unsigned k = 0; k < i && r == 0; k++)
            if (strcmp(names[k], names[i]) == 0)
                r = error_set(err, -EINVAL, "\"%s\" is named twice", names[i]);
        if (r == 0)
            r = take_root(disks, names[i], &pins[i], &roots[i], err);
    }
    if (r == 0)
        r = archive_export(disks->store, roots, name_count, write, context, ret_result, err);
    for (unsigned i = 0; pins != NULL && i < name_count; i++)
        if (pins[i].base != NULL)
            disks_unpin(disks, &pins[i]);
    free(pins);
    free(roots);
    return r;
}

// ---- Import ----

struct import {
    struct disks *disks;
    const char *prefix;
    archive_read_callback read;
    void (*imported)(void *context, struct volume_id volume, struct doc_id doc);
    void *context;
    char (*reserved)[NAMES_MAX + 1];
    unsigned reserved_count, reserved_capacity;
};

static ssize_t read_on(void *context, void *buffer, size_t capacity)
{
    struct import *import = context;
    return import->read(import->context, buffer, capacity);
}

static void tell_imported(void *context, struct volume_id volume, struct doc_id doc)
{
    struct import *import = context;
    import->imported(import->context, volume, doc);
}

// The prefix, and the same rules as for names that are given by people.
static int choose_name(void *context, enum doc_kind doc, char name[STORE_NAME_MAX + 1], struct error *err)
{
    struct import *import = context;
    char whole[2 * STORE_NAME_MAX];
    const char *what = doc == 0 ? "volume" : "snapshot";
    snprintf(whole, sizeof whole, "%s%s", import->prefix, name);
    if (import->reserved_count == import->reserved_capacity) {
        unsigned capacity = import->reserved_capacity == 0 ? 16 : import->reserved_capacity * 2;
        void *larger = realloc(import->reserved, capacity * sizeof *import->reserved);
        if (larger == NULL)
            return error_set(err, -ENOMEM, "no memory for the import");
        import->reserved = larger;
        import->reserved_capacity = capacity;
    }
    int r = names_reserve(import->disks->names, NAMES_DATA, what, whole, err);
    if (r < 0) {
        char why[sizeof err->text];
        snprintf(why, sizeof why, "%s", err->text);
        return error_set(err, r,
                "the archive's %s \"%.80s\" cannot have its name here: %.300s (--prefix gives "
                "others)",
                what, name, why);
    }
    memcpy(import->reserved[import->reserved_count++], whole, strlen(whole) + 1);
    memcpy(name, whole, strlen(whole) + 1);
    return 0;
}

static int map_base(json_t *number, const struct archive_base_map *bases, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (json_is_integer(number) && (uint64_t)json_integer_value(number) == bases[i].old.value)
            return json_integer_set(number, (json_int_t)bases[i].now.value);
    return -1;
}

// A machine's description names its bases by number (capture_doc.c).
static int change_body(void *context, const struct doc *doc, const struct archive_base_map *bases,
        unsigned count, char **ret_body, size_t *ret_body_bytes, struct error *err)
{
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    json_t *machine = json_object_get(body, "machine"), *disk;
    int r = json_is_object(body) && (doc->kind != DOC_MACHINE || json_is_object(machine)) ? 0 : -1;
    if (r == 0 && doc->kind == DOC_MACHINE) {
        size_t i;
        json_t *origin = json_object_get(machine, "origin_base");
        r = map_base(json_object_get(machine, "memory_base"), bases, count);
        if (r == 0 && json_integer_value(origin) != 0)
            r = map_base(origin, bases, count);
        json_array_foreach(json_object_get(machine, "disk_bases"), i, disk)
        {
            r = r < 0 ? r : map_base(disk, bases, count);
        }
    }
    if (r < 0)
        return error_set(err, -EINVAL,
                "the archive's snapshot \"%s\" has no description that this program can read; nothing was "
                "kept",
                doc->name);
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the import");
    *ret_body = text;
    *ret_body_bytes = strlen(text);
    return 0;
}

int archives_import(struct disks *disks, const char *prefix, archive_read_callback read,
        void (*imported)(void *context, struct volume_id volume, struct doc_id doc), void *context,
        struct archive_result *ret_result, struct error *err)
{
    struct import import = {
            .disks = disks, .prefix = prefix, .read = read, .imported = imported, .context = context};
    struct archive_import_config config = {.read = read_on,
            .context = &import,
            .choose_name = choose_name,
            .change_body = change_body,
            .imported = tell_imported};
    if (strlen(prefix) > NAMES_MAX)
        return error_set(err, -EINVAL, "the prefix is longer than %d characters", NAMES_MAX);
    int r = archive_import(disks->store, &config, ret_result, err);
    for (unsigned i = 0; i < import.reserved_count; i++)
        names_release(disks->names, NAMES_DATA, import.reserved[i]);
    free(import.reserved);
    return r;
}
