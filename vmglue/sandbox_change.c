// SPDX-License-Identifier: Apache-2.0
// What may be changed of a sandbox while it is there: name, labels, env, deadlines. One record each.
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void replace(json_t **map, const json_t *with)
{
    if (with == NULL)
        return;
    json_decref(*map);
    *map = json_deep_copy(with);
}

static int apply(struct sandbox *sandbox, const struct sandbox_change *change, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    replace(&record.labels, change->labels);
    replace(&record.env, change->env);
    if (change->set_ttl) {
        record.ttl_ms = change->ttl_ms;
        if (sandbox_is_live(sandbox))
            record.since = sandbox_moment_now();
    }
    if (change->set_idle)
        record.idle_ms = change->idle_ms;
    if (change->set_persistent)
        record.persistent = change->persistent;
    if (change->set_on_timeout)
        record.delete_on_timeout = change->delete_on_timeout;
    if (change->set_auto_start)
        record.auto_start = change->auto_start;
    if (change->name != NULL)
        snprintf(record.name, sizeof record.name, "%s", change->name);
    replace(&record.network, change->network);
    // What can be refused comes first: all of it is changed or nothing.
    int r = change->network == NULL ? 0 : sandbox_network_lead(sandbox, record.network, err);
    if (r == 0) {
        r = sandbox_record_commit(sandbox, &record, TXN_DURABLE, err);
        if (r < 0 && change->network != NULL)
            sandbox_network_back(sandbox);
    }
    sandbox_record_free(&record);
    return r;
}

int sandbox_change(struct sandboxes *all, const char *name, const struct sandbox_change *change,
        json_t **ret_json, struct error *err)
{
    struct names *names = &all->config.service->names;
    struct sandbox *sandbox;
    bool renames = false;
    struct sandbox_change wanted = *change;
    json_t *network = NULL;
    char notice[256];
    int r = wanted.network == NULL
                    ? 0
                    : sandbox_network_choose(all, wanted.network, NULL, &network, notice, sizeof notice, err);
    if (r == 0)
        r = sandbox_begin(all, name, "being changed", &sandbox, err);
    if (r < 0) {
        json_decref(network);
        return r;
    }
    if (wanted.name != NULL && strcmp(wanted.name, sandbox->record.name) == 0)
        wanted.name = NULL; // it is called so
    if (wanted.name != NULL) {
        r = names_reserve(names, NAMES_SANDBOX, "sandbox", wanted.name, err);
        renames = r == 0;
    }
    if (r == 0)
        r = apply(sandbox, &wanted, err);
    if (renames)
        names_release(names, NAMES_SANDBOX, wanted.name);
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_finish(sandbox);
    json_decref(network);
    return r;
}
