// SPDX-License-Identifier: Apache-2.0
// Templates: machine snapshots that `create` resumes from, each made by a build: a disk, a machine that boots
// from it, its agent's answer, set-up commands, a warm-up, the snapshot under the template's name; then the
// machine is removed. A template is a DOC_MACHINE doc whose body has "template": true.
//
// Builds run one at a time, in the order in which they came, on a thread of their own. What a build has made
// so far stands in a journal doc, and its files below STORE/templates, so that the next daemon removes
// what this one left when it was killed; the builder's processes and mounts end with the daemon by
// themselves (template_child.h). A failed build leaves its log, for as long as this daemon runs.
//
// Threads: any that is not a loop. Durability: a template is durable when its build is "ready". Errors:
// -ENOENT, -EEXIST, -EINVAL, -EBUSY, -ENOSPC, -EAGAIN, each with a sentence.
#pragma once

#include "vmglue/json.h"
#include "vmglue/made_by.h"
#include "vmglue/service.h"

#include <stdint.h>
#include <sys/types.h>

struct templates;

struct template_config {
    struct service *service; // with sandboxes started
    const char *libexec_dir; // from it the builder's programs are found
    const char *kernel_dir;
    void (*log)(void *context, const char *message);
    void *context;
};
// Removes what builds of a dead daemon left.
int template_start_all(const struct template_config *config, struct templates **ret_all, struct error *err);
// Cancels every build, waits until nothing is left of them, and takes no more. Before sandbox_quiesce_all.
void template_quiesce_all(struct templates *all);
struct templates *template_stop_all(struct templates *all); // accepts NULL

// {"templates":[...]}.
json_t *template_list(struct templates *all);
int template_show(struct templates *all, const char *name, json_t **ret_json, struct error *err);
// The log of the build that made it; malloc'ed. -ENOENT also when it was not kept.
int template_log_of(struct templates *all, const char *name, char **ret_text, struct error *err);
int template_remove(struct templates *all, const char *name, struct error *err);

// body: as in API.md. The answer is the Build. The template has the owner of `by`, or of the sandbox that it
// is made of; who has an owner replaces its own templates alone.
int template_build_begin(struct templates *all, const json_t *body, const struct made_by *by,
        json_t **ret_json, struct error *err);
int template_build_made_by(struct templates *all, const char *id, struct made_by *ret_by, struct error *err);
json_t *template_build_list(struct templates *all); // {"builds":[...]}, oldest first
int template_build_show(struct templates *all, const char *id, json_t **ret_json, struct error *err);
// One that has ended is a success. It returns at once; the build's state tells when nothing is left of it.
int template_build_cancel(struct templates *all, const char *id, json_t **ret_json, struct error *err);
// The log from *position on, as template_log_read; -ENOENT with *err.
ssize_t template_build_read_log(struct templates *all, const char *id, uint64_t *position, char *buffer,
        size_t capacity, unsigned wait_ms, struct error *err);

int template_upload(struct templates *all, ssize_t (*source)(void *context, void *buffer, size_t capacity),
        void *context, json_t **ret_json, struct error *err);
int template_upload_remove(struct templates *all, const char *id, struct error *err);
