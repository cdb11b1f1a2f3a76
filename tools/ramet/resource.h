// SPDX-License-Identifier: Apache-2.0
// Verbs that are one call: show, list, remove, change. With --json they print the API's own object (a list:
// its array), otherwise what `print` makes of it.
//
// Each takes its path from the caller and frees it; returns an exit status, and has said what was wrong.
#pragma once

#include "tools/ramet/cli.h"

typedef void resource_print(const json_t *json);

// method with an optional body (stolen); print NULL = nothing is printed without --json.
int resource_call(struct cli *cli, const struct verb *verb, const char *method, char *path, json_t *body,
        resource_print *print);
// POST of what makes something.
int resource_create(
        struct cli *cli, const struct verb *verb, char *path, json_t *body, resource_print *print);
// GET; field: the member that is the list.
int resource_list(
        struct cli *cli, const struct verb *verb, char *path, const char *field, resource_print *print);
// DELETE of each name below `before`, up to the end of the NULL-terminated list. All are tried.
int resource_remove(struct cli *cli, const struct verb *verb, const char *before, const char *const *names,
        const char *after, bool missing_is_fine);
// malloc'ed: /v1/sandboxes/SANDBOX/KIND, then /ID when there is an id, then `after` as it is.
char *resource_path(const char *sandbox, const char *kind, const char *id, const char *after);
// malloc'ed: a call about a file of a sandbox. call: what follows /files/ up to the path ("stat?path=").
char *resource_file_path(const char *sandbox, const char *call, const char *path, const char *after);
// A whole object, a line for each member; for resource_print.
void resource_print_details(const json_t *object);

// Whole verbs without options, from their arguments on.
// NAME: a call about the one thing of that name below `before`.
int resource_run_named(struct cli *cli, const struct verb *verb, char **argv, const char *method,
        const char *before, const char *after, resource_print *print);
// NAME...: DELETE of each below `before`.
int resource_run_remove(struct cli *cli, const struct verb *verb, char **argv, const char *before);
// SANDBOX: what it has of a kind ("urls").
int resource_run_list_of(
        struct cli *cli, const struct verb *verb, char **argv, const char *kind, resource_print *print);
// SANDBOX ID...: DELETE of each of them.
int resource_run_remove_of(struct cli *cli, const struct verb *verb, char **argv, const char *kind);
