// SPDX-License-Identifier: Apache-2.0
// How native answers look to E2B's clients: their objects take the place of ours, since their routes are
// their own. Each steals `body` and returns what goes out, NULL with *status 204 for nothing.
// Threads: the request's.
#pragma once

#include "vmglue/alias.h"

typedef json_t *alias_e2b_answer(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body);

alias_e2b_answer alias_e2b_created, alias_e2b_connected, alias_e2b_detail, alias_e2b_listed,
        alias_e2b_nothing, alias_e2b_snapshot, alias_e2b_snapshots, alias_e2b_forked, alias_e2b_context,
        alias_e2b_contexts, alias_e2b_metrics;
bool alias_e2b_enter_pause(struct http_request *request);
bool alias_e2b_enter_connect(struct http_request *request);

// What of it clients may expect: which of their calls exist.
#define ALIAS_E2B_ENVD_VERSION "0.5.6"
