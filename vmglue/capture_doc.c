// SPDX-License-Identifier: Apache-2.0
// The body of a DOC_MACHINE doc: the caller's members, and beside them "machine": what this layer needs to
// load it.
#include "vmglue/capture.h"
#include "vmglue/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1 };

static json_t *figures_json(const struct capture_figures *figures)
{
    if (figures == NULL)
        return json_null();
    return json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:b}",
            "pause_ns", (json_int_t)figures->pause_ns, "freeze_ns", (json_int_t)figures->freeze_ns,
            "quiesce_ns", (json_int_t)figures->quiesce_ns, "settle_ns", (json_int_t)figures->settle_ns,
            "stop_ns", (json_int_t)figures->stop_ns, "state_ns", (json_int_t)figures->state_ns, "scan_ns",
            (json_int_t)figures->scan_ns, "copy_ns", (json_int_t)figures->copy_ns, "commit_ns",
            (json_int_t)figures->commit_ns, "continue_ns", (json_int_t)figures->continue_ns, "total_ns",
            (json_int_t)figures->total_ns, "rounds", (int)figures->rounds, "pages",
            (json_int_t)figures->pages, "zero_pages", (json_int_t)figures->zero_pages, "last_pages",
            (json_int_t)figures->last_pages, "bytes", (json_int_t)figures->bytes, "state_bytes",
            (json_int_t)figures->state_bytes, "unique", (int)figures->unique);
}

int capture_doc_body(const struct capture_request *request, const struct capture_ids *ids,
        const struct capture_figures *figures, char **ret_body, struct error *err)
{
    JSON_AUTO json_t *body = request->body != NULL ? json_loads(request->body, 0, NULL) : json_object();
    JSON_AUTO json_t *compat = json_loads(request->vm->compat, 0, NULL);
    if (!json_is_object(body) || !json_is_object(compat))
        return error_set(err, -EINVAL, "the %s for a machine snapshot is no JSON object",
                json_is_object(body) ? "compatibility record" : "body");
    json_t *disks = json_array();
    for (unsigned i = 0; i < request->disk_count; i++)
        json_array_append_new(disks, json_integer((json_int_t)ids->disks[i].value));
    json_object_set_new(body, "machine",
            json_pack("{s:i, s:I, s:I, s:o, s:O, s:o}", "format", FORMAT, "memory_base",
                    (json_int_t)ids->memory.value, "origin_base", (json_int_t)request->origin.value,
                    "disk_bases", disks, "compat", compat, "figures", figures_json(figures)));
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the body of a machine snapshot");
    if (strlen(text) > DOC_BODY_MAX) {
        free(text);
        return error_set(err, -E2BIG,
                "the labels and texts of the snapshot are larger than %d KiB: shorten them",
                DOC_BODY_MAX / 1024);
    }
    *ret_body = text;
    return 0;
}

int capture_doc_parse(const struct doc *doc, struct capture_doc *ret_doc, struct error *err)
{
    struct capture_doc parsed = {0};
    JSON_AUTO json_t *body = doc->body != NULL ? json_loads(doc->body, 0, NULL) : NULL;
    json_t *machine = json_object_get(body, "machine");
    json_int_t memory = 0, origin = 0;
    int format = 0;
    json_t *disks = NULL, *compat = NULL;
    if (json_unpack(machine, "{s:i, s:I, s?:I, s:o, s:o}", "format", &format, "memory_base", &memory,
                "origin_base", &origin, "disk_bases", &disks, "compat", &compat) != 0 ||
            !json_is_array(disks) || json_array_size(disks) > VM_DISKS_MAX || !json_is_object(compat))
        return error_set(err, -EBADMSG,
                "the snapshot '%s' has no usable description of its machine: it cannot be resumed",
                doc->name);
    if (format != FORMAT)
        return error_set(err, -EPROTO,
                "the snapshot '%s' has format %d and this program knows %d: use the program that wrote it",
                doc->name, format, FORMAT);
    parsed.memory.value = (uint64_t)memory;
    parsed.origin.value = (uint64_t)origin;
    for (; parsed.disk_count < json_array_size(disks); parsed.disk_count++)
        parsed.disks[parsed.disk_count].value =
                (uint64_t)json_integer_value(json_array_get(disks, parsed.disk_count));
    parsed.compat = json_dumps(compat, JSON_COMPACT);
    if (parsed.compat == NULL)
        return error_set(err, -ENOMEM, "no memory for the description of a machine");
    *ret_doc = parsed;
    return 0;
}

void capture_doc_free(struct capture_doc *doc)
{
    free(doc->compat);
    *doc = (struct capture_doc){0};
}
