// SPDX-License-Identifier: Apache-2.0
// What runs in a build's machine before it is captured: set-up commands, and what makes the template warm.
#include "vmglue/template_internal.h"

#include "vmglue/contexts.h"
#include "vmglue/environment.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMAND_TIMEOUT_MS = 60 * 60000, WARM_TIMEOUT_MS = 5 * 60000 };

static void on_output(void *context, int stream, const void *bytes, size_t size)
{
    struct template_build *build = context;
    template_log_write(build->log, bytes, size);
}

// A line for the shell, as root; its output goes to the log.
static int run_line(struct template_build *build, struct agent *agent, const char *line, unsigned timeout_ms,
        struct error *err)
{
    char **env;
    int r = environment_strings(json_object_get(build->defaults, "env"), build->request.env, &env, err);
    if (r < 0)
        return r;
    struct agent_exec exec = {.shell_command = line,
            .user = "root",
            .env = (const char *const *)env,
            .timeout_ms = timeout_ms,
            .on_output = on_output,
            .cancelled = template_build_is_cancelled,
            .context = build};
    struct agent_exec_result result = {0};
    r = agent_exec_run(agent, &exec, &result, err);
    environment_free_strings(env);
    if (r < 0)
        return error_prefix(err, "the command could not be run");
    agent_exec_result_free(&result);
    if (template_build_is_cancelled(build))
        return error_set(err, -ECANCELED, "the build was cancelled");
    if (result.timed_out)
        return error_set(err, -EIO, "the command took longer than %u minutes", timeout_ms / 60000);
    if (result.out_of_memory)
        return error_set(err, -EIO, "the build machine ran out of memory; give it more (memory_mb)");
    if (result.exit_code != 0)
        return error_set(err, -EIO, "the command ended with status %d; the log says why", result.exit_code);
    return 0;
}

int template_warm_commands(struct template_build *build, struct error *err)
{
    size_t i, count = json_array_size(build->request.setup);
    json_t *line;
    struct sandbox_agent use;
    if (count == 0)
        return 0;
    template_build_step(build, "running commands");
    int r = sandbox_agent_use(build->all->config.service->sandboxes, build->box, &use, err);
    if (r < 0)
        return r;
    json_array_foreach(build->request.setup, i, line)
    {
        const char *text = json_string_value(line);
        template_log_line(build->log, "$ %s", text);
        r = run_line(build, use.agent, text, COMMAND_TIMEOUT_MS, err);
        if (r < 0) {
            error_prefix(err, "command %zu of %zu (%.100s)", i + 1, count, text);
            break;
        }
    }
    sandbox_agent_done(&use);
    return r;
}

// Starts a daemon of the guest as a job of the agent, so that it is listed as such in every sandbox that is
// made from the template, and waits until it answers.
static int start_daemon(struct template_build *build, struct agent *agent, const char *name,
        const char *command, const char *answers, struct error *err)
{
    char line[200], wait_line[400];
    struct agent_exec exec = {.shell_command = line, .user = "root"};
    struct agent_job job;
    snprintf(line, sizeof line, "exec %s > /var/log/%s.log 2>&1", command, name);
    snprintf(wait_line, sizeof wait_line,
            "while ! %s > /dev/null 2>&1; do pgrep -x %s > /dev/null || { sleep 1; pgrep -x %s > /dev/null "
            "|| "
            "{ tail -n 40 /var/log/%s.log; exit 1; }; }; sleep 0.1; done",
            answers, name, name, name);
    int r = agent_job_start(agent, &exec, name, &job, err);
    if (r == 0)
        r = run_line(build, agent, wait_line, WARM_TIMEOUT_MS, err);
    return r < 0 ? error_prefix(err, "%s does not answer", name) : 0;
}

// containerd first: dockerd would start one of its own, but gives a slow machine no more than 15 s for it.
static int start_docker(struct template_build *build, struct agent *agent, struct error *err)
{
    template_build_step(build, "starting dockerd");
    int r = run_line(build, agent, "command -v containerd && command -v dockerd && command -v docker",
            WARM_TIMEOUT_MS, err);
    if (r < 0)
        return error_prefix(
                err, "warm docker needs the packages docker.io and its kernel modules (base docker-base)");
    r = start_daemon(build, agent, "containerd", "containerd", "ctr version", err);
    return r < 0 ? r
                 : start_daemon(build, agent, "dockerd",
                           "dockerd --containerd=/run/containerd/containerd.sock", "docker info", err);
}

static void on_event(void *context, const char *event, const json_t *data)
{
    struct template_build *build = context;
    const char *text = json_fields_get_text(data, "text");
    if (text[0] != '\0')
        template_log_write(build->log, text, strlen(text));
}

static int run_code(struct template_build *build, struct sandbox_agent *use, struct error *err)
{
    struct contexts_run run = {.id = "default",
            .code = build->request.warm_code,
            .timeout_ms = WARM_TIMEOUT_MS,
            .on_event = on_event,
            .context = build,
            .cancelled = template_build_is_cancelled};
    json_t *execution = NULL;
    template_build_step(build, "running the warm-up code");
    int r = contexts_run(use, &run, &execution, err);
    const json_t *error = json_object_get(execution, "error");
    if (r == 0 && json_is_object(error)) {
        const char *trace = json_fields_get_text(error, "traceback");
        template_log_line(build->log, "%s", trace);
        r = error_set(err, -EIO, "the warm-up code failed: %.60s: %.200s",
                json_fields_get_text(error, "name"), json_fields_get_text(error, "value"));
    }
    json_decref(execution);
    return r;
}

static int start_python(struct template_build *build, struct sandbox_agent *use, struct error *err)
{
    template_build_step(build, "warming a Python kernel");
    int r = contexts_warm(use, template_build_is_cancelled, build, err);
    if (r < 0)
        return error_prefix(
                err, "a warm Python kernel needs the package python3-ipython (base code-interpreter)");
    return build->request.warm_code == NULL ? 0 : run_code(build, use, err);
}

int template_warm_up(struct template_build *build, struct error *err)
{
    struct sandbox_agent use;
    if (build->request.warm == TEMPLATE_WARM_NONE)
        return 0;
    int r = sandbox_agent_use(build->all->config.service->sandboxes, build->box, &use, err);
    if (r < 0)
        return r;
    if (build->request.warm == TEMPLATE_WARM_DOCKER)
        r = start_docker(build, use.agent, err);
    else
        r = start_python(build, &use, err);
    sandbox_agent_done(&use);
    if (r < 0 && template_build_is_cancelled(build)) // its code was interrupted, and failed by that
        return error_set(err, -ECANCELED, "the build was cancelled");
    return r;
}
