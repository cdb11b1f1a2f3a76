// SPDX-License-Identifier: Apache-2.0
// One build from beginning to end. Whatever ends it early, template_journal_end takes all of it away.
#include "vmglue/template_internal.h"

#include "vmglue/template_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool template_build_is_cancelled(void *context)
{
    struct template_build *build = context;
    pthread_mutex_lock(&build->all->lock);
    bool cancelled = build->cancelled;
    pthread_mutex_unlock(&build->all->lock);
    return cancelled;
}

void template_build_step(struct template_build *build, const char *step)
{
    template_log_line(build->log, "== %s", step);
    pthread_mutex_lock(&build->all->lock);
    snprintf(build->step, sizeof build->step, "%s", step);
    pthread_mutex_unlock(&build->all->lock);
}

static int check_cancelled(struct template_build *build, struct error *err)
{
    return template_build_is_cancelled(build) ? error_set(err, -ECANCELED, "the build was cancelled") : 0;
}

static int boot(struct template_build *build, struct error *err)
{
    const struct template_request *request = &build->request;
    JSON_AUTO json_t *labels = json_pack("{s:s}", "template-build", build->id);
    struct sandbox_create create = {.name = build->box,
            .no_environment = true, // processes that go into the template would hold it for ever
            .from = request->name,
            .disk = build->disk,
            .cpus = request->shape.cpus,
            .memory_mb = request->shape.memory_mb,
            .disk_bytes = request->shape.disk_bytes,
            .network = request->network,
            .labels = labels};
    json_t *json = NULL;
    template_build_step(build, "booting");
    build->box_made = true; // it may be there from now on
    int r = sandbox_create(build->all->config.service->sandboxes, &create, &json, err);
    json_decref(json);
    return r < 0 ? error_prefix(err, "the machine did not start") : 0;
}

static int capture(struct template_build *build, const char *box, struct error *err)
{
    struct sandbox_snapshot snapshot = {.name = build->box, .wait = true};
    json_t *json = NULL;
    template_build_step(build, "capturing the machine");
    int r = sandbox_snapshot(build->all->config.service->sandboxes, box, &snapshot, &json, err);
    json_decref(json);
    return r < 0 ? r : template_journal_publish(build, err);
}

static int make_machine(struct template_build *build, struct error *err)
{
    int r = template_source_disk(build, err);
    if (r == 0)
        r = check_cancelled(build, err);
    if (r == 0)
        r = boot(build, err);
    if (r == 0)
        r = check_cancelled(build, err);
    if (r == 0)
        r = template_warm_commands(build, err);
    if (r == 0)
        r = template_warm_up(build, err);
    return r == 0 ? check_cancelled(build, err) : r;
}

// The env of the request goes over that of the image.
static void merge_env(struct template_build *build)
{
    if (build->request.env == NULL)
        return;
    if (build->defaults == NULL)
        build->defaults = json_object();
    json_t *env = json_object_get(build->defaults, "env");
    if (env == NULL)
        json_object_set(build->defaults, "env", (json_t *)build->request.env);
    else
        json_object_update(env, (json_t *)build->request.env);
}

int template_build_run(struct template_build *build, struct error *err)
{
    bool of_box = build->request.source == TEMPLATE_BOX;
    int r = template_journal_begin(build, err);
    if (r == 0 && !of_box)
        r = make_machine(build, err);
    if (r == 0) {
        merge_env(build);
        r = capture(build, of_box ? build->request.what : build->box, err);
    }
    template_build_step(build, "cleaning up");
    template_journal_end(build);
    template_files_remove(build->folder);
    return r;
}
