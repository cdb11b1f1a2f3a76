// SPDX-License-Identifier: Apache-2.0
// The server's environment: variables that the commands of every sandbox get, unless it was made with
// "environment": false. Layers, each over those before it: the template's, this one, the sandbox's, the
// call's.
//
// It is looked up when a command is started, so it is in no snapshot's record and no sandbox's: what goes on
// from a snapshot has what is set now. Processes that run keep what they were started with, as processes do.
// Values go to the store and to guests, and are never in logs, events, errors or arguments of processes.
//
// Threads: any that is not a loop. A change is durable when the call returns.
#pragma once

#include "snapshot/store.h"
#include "vmglue/json.h"

struct environment;

enum { ENVIRONMENT_BYTES_MAX = 200 * 1024 };

int environment_start(struct store *store, struct environment **ret_environment, struct error *err);
struct environment *environment_stop(struct environment *environment); // accepts NULL
json_t *environment_get(struct environment *environment);              // a new object of strings
// Replaces it, or with `merge` sets what is a string and removes what is null. *ret_now (may be NULL) is a
// new object. -EINVAL names the variable, -E2BIG when it gets too large.
int environment_set(
        struct environment *environment, const json_t *env, bool merge, json_t **ret_now, struct error *err);
// Variables of a request's field "env" (what its nulls name may be an odd name of before): -EINVAL names the
// first whose name is none and says what one is, -E2BIG the first that no program could be given.
int environment_check(const json_t *env, struct error *err);
// "NAME=value" of `under` and of `over`, a request's, over it (either may be NULL), NULL-terminated,
// malloc'ed; checked.
int environment_strings(const json_t *under, const json_t *over, char ***ret_strings, struct error *err);
char **environment_free_strings(char **strings); // accepts NULL
