// SPDX-License-Identifier: Apache-2.0
#include "vmglue/e2b_owner.h"

#include "vmglue/alias.h"
#include "vmglue/e2b_connect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHOWN_TIMEOUT_MS = 30000 };

static void find_user(struct e2b_owner *owner, struct http_request *request)
{
    const struct alias_call *call = http_request_words(request);
    e2b_connect_user(request, owner->user, sizeof owner->user);
    if (owner->user[0] == '\0' && call != NULL) // of /files: the query's "username"
        snprintf(owner->user, sizeof owner->user, "%.*s", (int)sizeof owner->user - 1, call->asked[0]);
    if (owner->user[0] == '\0')
        snprintf(owner->user, sizeof owner->user, "user");
}

void e2b_owner_look(
        struct e2b_owner *owner, struct http_request *request, struct sandbox_agent *use, const char *path)
{
    struct agent_stat stat;
    struct error unused;
    find_user(owner, request);
    owner->top[0] = '\0';
    for (const char *at = path; at != NULL;) {
        at = strchr(at + 1, '/');
        size_t size = at == NULL ? strlen(path) : (size_t)(at - path);
        snprintf(owner->top, sizeof owner->top, "%.*s", (int)size, path);
        if (agent_file_stat(use->agent, owner->top, &stat, &unused) < 0)
            return;
    }
    owner->top[0] = '\0';
}

int e2b_owner_give(const struct e2b_owner *owner, struct sandbox_agent *use, struct error *err)
{
    struct agent_stat stat;
    struct agent_exec_result result;
    char who[sizeof owner->user + 1];
    if (owner->top[0] == '\0' || strcmp(owner->user, "root") == 0 ||
            agent_file_stat(use->agent, owner->top, &stat, err) < 0 || stat.uid != 0)
        return 0; // the agent gave it to the user
    snprintf(who, sizeof who, "%s:", owner->user);
    const char *const argv[] = {"chown", "-Rh", "--", who, owner->top, NULL};
    struct agent_exec exec = {.argv = argv, .user = "root", .cwd = "/", .timeout_ms = CHOWN_TIMEOUT_MS};
    int r = agent_exec_run(use->agent, &exec, &result, err);
    if (r < 0)
        return r;
    if (result.exit_code != 0)
        r = error_set(err, -EINVAL, "%.200s cannot be given to the user \"%s\"; is there one?", owner->top,
                owner->user);
    agent_exec_result_free(&result);
    return r;
}
