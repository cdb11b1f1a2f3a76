// SPDX-License-Identifier: Apache-2.0
// What came of requests that an earlier daemon was in the middle of: the thing that one made has the
// request's tag in its own record, or, inside a guest, as the mark of its job.
#include "vmglue/gate_internal.h"

#include "vmglue/contexts.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_urls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a call makes, and where it is looked for after a crash.
enum made {
    MADE_NOTHING,
    MADE_SANDBOX,
    MADE_FORK,
    MADE_SNAPSHOT,
    MADE_VOLUME,
    MADE_KEY,
    MADE_URL,
    MADE_JOB,
    MADE_CONTEXT
};
static const struct {
    const char *route;
    enum made made;
} makers[] = {
        {"POST /v1/sandboxes", MADE_SANDBOX}, {"POST /v1/sandboxes/{name}/fork", MADE_FORK},
        {"POST /v1/sandboxes/{name}/snapshots", MADE_SNAPSHOT}, {"POST /v1/volumes", MADE_VOLUME},
        {"POST /v1/volumes/{name}/fork", MADE_VOLUME}, {"POST /v1/volumes/{name}/snapshots", MADE_SNAPSHOT},
        {"POST /v1/volumes/{name}/{part}/fork", MADE_VOLUME},
        {"POST /v1/volumes/{name}/{part}/snapshots", MADE_SNAPSHOT}, {"POST /v1/keys", MADE_KEY},
        {"POST /v1/sandboxes/{name}/urls", MADE_URL}, {"POST /v1/sandboxes/{name}/jobs", MADE_JOB},
        {"POST /v1/sandboxes/{name}/contexts", MADE_CONTEXT},
        {"POST /v1/templates", MADE_NOTHING}, // a build ends with its daemon, and leaves nothing
};

static enum made maker(const char *route)
{
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        if (strcmp(makers[i].route, route) == 0)
            return makers[i].made;
    return MADE_NOTHING;
}

bool gate_settle_asks_guest(const char *route)
{
    enum made made = maker(route);
    return made == MADE_JOB || made == MADE_CONTEXT;
}

struct search {
    const char *tag;
    struct doc_id doc; // of a snapshot
    struct volume_id volume;
};

static void match_snapshot(void *context, const struct doc *doc)
{
    struct search *search = context;
    if (search->doc.value != 0 || doc->name[0] == '\0' ||
            memmem(doc->body, doc->body_bytes, search->tag, strlen(search->tag)) == NULL)
        return;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (strcmp(made_by_take(body).request, search->tag) == 0)
        search->doc = doc->id;
}

static void match_volume(void *context, const struct doc *doc)
{
    struct search *search = context;
    struct volume_id volume = made_by_volume_of(doc);
    JSON_AUTO json_t *body = volume.value == 0 ? NULL : json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (volume.value != 0 && strcmp(made_by_take(body).request, search->tag) == 0)
        search->volume = volume;
}

static json_t *find_snapshot(struct gate *gate, const char *tag)
{
    struct search search = {.tag = tag};
    store_doc_list(gate->service->store, DOC_SNAPSHOT, match_snapshot, &search);
    store_doc_list(gate->service->store, DOC_MACHINE, match_snapshot, &search);
    return search.doc.value == 0 ? NULL : route_json_snapshot_by_id(gate->service, search.doc);
}

static json_t *find_volume(struct gate *gate, const char *tag)
{
    struct search search = {.tag = tag};
    store_doc_list(gate->service->store, DOC_OTHER, match_volume, &search);
    return search.volume.value == 0 ? NULL : route_json_volume_by_id(gate->service, search.volume);
}

// Nobody was told of them: a fork is whole or is not.
static void remove_children(struct gate *gate, json_t *children, json_t *snapshot)
{
    size_t i;
    json_t *child;
    struct error err; // the log has it
    json_array_foreach(children, i, child)
            sandbox_remove(gate->service->sandboxes, json_fields_get_text(child, "id"), &err);
    if (snapshot != NULL)
        disks_delete_snapshot(&gate->service->disks, json_fields_get_text(snapshot, "id"), NULL);
}

// The figures of the capture went with the daemon.
static json_t *find_fork(struct gate *gate, const struct idempotency_open *open)
{
    json_t *children = sandbox_list_made_by(gate->service->sandboxes, open->tag);
    json_t *snapshot = find_snapshot(gate, open->tag), *parent = NULL, *first = json_array_get(children, 0);
    if (json_array_size(children) < open->count) {
        remove_children(gate, children, snapshot);
        json_decref(children);
        json_decref(snapshot);
        return NULL;
    }
    sandbox_show(gate->service->sandboxes, json_fields_get_text(first, "parent_id"), &parent, NULL);
    json_t *json = json_pack("{s:s, s:s, s:s?, s:O, s:i, s:i, s:i}", "tree_id",
            json_fields_get_text(first, "tree_id"), "parent",
            parent == NULL ? json_fields_get_text(first, "from") : json_fields_get_text(parent, "name"),
            "snapshot", snapshot == NULL ? NULL : json_fields_get_text(snapshot, "name"), "children",
            children, "pause_ms", 0, "frozen_ms", 0, "new_bytes", 0);
    json_decref(children);
    json_decref(snapshot);
    json_decref(parent);
    return json;
}

static json_t *find_sandbox(struct gate *gate, const char *tag)
{
    json_t *list = sandbox_list_made_by(gate->service->sandboxes, tag);
    json_t *json = json_incref(json_array_get(list, 0));
    json_decref(list);
    return json;
}

static json_t *find_key(struct gate *gate, const char *tag)
{
    struct keys_info info;
    return keys_find_request(gate->keys, tag, &info) < 0 ? NULL : gate_key_json(&info);
}

static json_t *find_url(struct gate *gate, const char *tag)
{
    json_t *json = NULL;
    return sandbox_url_find_request(gate->service->sandboxes, tag, &json) ? json : NULL;
}

static json_t *find_made(struct gate *gate, const struct idempotency_open *open)
{
    switch (maker(open->route)) {
    case MADE_SANDBOX:
        return find_sandbox(gate, open->tag);
    case MADE_FORK:
        return find_fork(gate, open);
    case MADE_SNAPSHOT:
        return find_snapshot(gate, open->tag);
    case MADE_VOLUME:
        return find_volume(gate, open->tag);
    case MADE_KEY:
        return find_key(gate, open->tag);
    case MADE_URL:
        return find_url(gate, open->tag);
    default: // a build ends with its daemon, and leaves nothing; guests are asked later
        return NULL;
    }
}

// The thing, or what could not be found of it.
static void settle(struct gate *gate, const char *tag, const char *route, json_t *json)
{
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    char *kept = text == NULL ? NULL : gate_repeat_without_secrets(route, text, strlen(text));
    idempotency_settle(gate->idempotency, tag, text != NULL ? IDEMPOTENCY_MADE : IDEMPOTENCY_NOTHING, 201,
            kept != NULL ? kept : text);
    free(kept);
    free(text);
}

void gate_settle_recover(struct gate *gate)
{
    struct idempotency_open open;
    while (idempotency_next_open(gate->idempotency, &open)) {
        if (open.asked) { // the guest does not answer yet, or does not run
            idempotency_settle(gate->idempotency, open.tag, IDEMPOTENCY_LOST, 0, NULL);
            continue;
        }
        JSON_AUTO json_t *json = find_made(gate, &open);
        settle(gate, open.tag, open.route, json);
    }
}

bool gate_settle_ask(struct gate *gate, struct http_request *request, const struct idempotency_request *asked)
{
    struct sandbox_agent use;
    struct agent_job job;
    struct error err;
    JSON_AUTO json_t *json = NULL;
    if (sandbox_agent_use(gate->service->sandboxes, http_request_param(request, "name"), &use, &err) < 0)
        return false;
    int r;
    if (maker(asked->route) == MADE_CONTEXT) {
        r = contexts_marked(&use, asked->tag, &json, &err);
    } else {
        r = agent_job_marked(use.agent, asked->tag, &job, &err);
        json = r < 0 ? NULL : route_json_job(&job);
    }
    if (r < 0)
        sandbox_agent_failed(&use, &err);
    sandbox_agent_done(&use);
    if (json == NULL)
        return false;
    settle(gate, asked->tag, asked->route, json);
    return true;
}
