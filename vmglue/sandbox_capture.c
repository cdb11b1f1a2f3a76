// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_capture.h"

#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *disks_json(const struct sandbox_record *record)
{
    json_t *disks = json_array();
    for (unsigned i = 0; i < record->more_count; i++) {
        const struct sandbox_disk *disk = &record->more[i];
        json_array_append_new(disks, json_pack("{s:b, s:s, s:s}", "read_only", (int)disk->read_only, "mount",
                                             disk->mount, "from", disk->from));
    }
    return disks;
}

// The members of a machine snapshot's doc that are ours; malloc'ed JSON.
static char *make_body(const struct sandbox_record *record, const json_t *labels, const char *inner,
        const struct made_by *by)
{
    json_t *body = json_pack("{s:s, s:s, s:i, s:i, s:O}", "parent", record->name, "parent_id", record->id,
            "cpus", (int)record->cpus, "memory_mb", (int)record->memory_mb, "network", record->network);
    if (body != NULL && record->more_count > 0)
        json_object_set_new(body, "disks", disks_json(record));
    if (body != NULL && labels != NULL)
        json_object_set_new(body, "labels", json_deep_copy(labels));
    if (body != NULL && record->defaults != NULL)
        json_object_set(body, "defaults", record->defaults);
    if (body != NULL && inner != NULL)
        json_object_set_new(body, "inner", json_string(inner));
    struct made_by made = made_by_inherit(&record->by, by);
    if (body != NULL)
        made_by_put(&made, body);
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static void note_progress(void *context, const char *step, uint64_t done_pages, uint64_t left_pages)
{
    static const struct {
        const char *name;
        enum sandbox_step step;
    } steps[] = {{"copying", STEP_CAPTURE_COPYING}, {"freezing", STEP_CAPTURE_FREEZING},
            {"pausing", STEP_CAPTURE_PAUSING}};
    struct sandbox_capture *capture = context;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (strcmp(steps[i].name, step) == 0)
            sandbox_step(capture->sandbox, steps[i].step);
}

static int extend(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err)
{
    struct sandbox_capture *capture = context;
    sandbox_step(capture->sandbox, STEP_CAPTURE_COMMITTING);
    return capture->extend == NULL ? 0 : capture->extend(capture->context, txn, ids, err);
}

struct base_id sandbox_memory_origin(const struct sandbox *sandbox)
{
    return sandbox->record.origin.value != 0 ? sandbox->record.origin : sandbox->record.mapped;
}

int sandbox_capture_begin(struct sandbox *sandbox, const json_t *labels, const char *inner,
        const struct made_by *by, struct sandbox_capture *ret_capture, struct error *err)
{
    const struct sandbox_record *record = &sandbox->record;
    char *body = make_body(record, labels, inner, by);
    if (body == NULL)
        return error_set(err, -ENOMEM, "no memory for the description of a snapshot");
    *ret_capture = (struct sandbox_capture){.sandbox = sandbox,
            .body = body,
            .request = {.store = sandbox->all->store,
                    .vm = sandbox->vm,
                    .agent = sandbox->agent,
                    .dirty = sandbox->dirty,
                    .memory = sandbox->memory,
                    .origin = sandbox_memory_origin(sandbox),
                    .paused = record->state == SANDBOX_PAUSED,
                    .frozen = record->pause_frozen,
                    .body = body}};
    struct capture_request *request = &ret_capture->request;
    request->disks[request->disk_count++] = record->disk;
    for (unsigned i = 0; i < record->more_count; i++)
        request->disks[request->disk_count++] = record->more[i].volume;
    return 0;
}

int sandbox_capture_run(struct sandbox_capture *capture, struct capture_result *ret_result, struct error *err)
{
    capture->request.extend = extend;
    capture->request.progress = note_progress;
    capture->request.context = capture;
    return capture_machine(&capture->request, ret_result, err);
}

void sandbox_capture_end(struct sandbox_capture *capture)
{
    free(capture->body);
    capture->body = NULL;
}
