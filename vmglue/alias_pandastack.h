// SPDX-License-Identifier: Apache-2.0
// How native answers look to PandaStack's clients. Each steals `body` and returns it with more in it; what
// would be of another type than the native field is replaced only for those who asked in these words
// (call->theirs). NULL stands for an empty answer. Threads: the request's.
#pragma once

#include "vmglue/alias.h"

typedef json_t *alias_answer(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body);
typedef json_t *alias_event(
        const struct alias_call *call, struct http_request *request, const char **event, json_t *data);

alias_answer alias_pandastack_sandbox, alias_pandastack_sandboxes, alias_pandastack_children,
        alias_pandastack_promoted, alias_pandastack_exec, alias_pandastack_written, alias_pandastack_files,
        alias_pandastack_file, alias_pandastack_context, alias_pandastack_contexts,
        alias_pandastack_execution, alias_pandastack_preview;
alias_event alias_pandastack_exec_event, alias_pandastack_log_event, alias_pandastack_build_event;

// What is not of one sandbox: alias_pandastack_store.c.
alias_answer alias_pandastack_snapshot, alias_pandastack_snapshots, alias_pandastack_template,
        alias_pandastack_templates, alias_pandastack_build, alias_pandastack_builds, alias_pandastack_volume,
        alias_pandastack_volumes, alias_pandastack_token, alias_pandastack_tokens;

// The member `from`, when there is one, under another name too.
void alias_pandastack_copy(json_t *json, const char *name, const char *from);
