// SPDX-License-Identifier: Apache-2.0
#include "vmglue/contexts_internal.h"
#include "vmglue/environment.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define DRIVER "/run/ramet/context/supervisor.py"

enum {
    LISTEN_MS = 60000,   // until a supervisor listens, on a machine that is busy
    LISTEN_STEP_MS = 20, // between two looks whether it does
};

static const char *const default_ids[] = {"python", "bash"};

// ---- names ----

int contexts_check_id(const char *id, struct error *err)
{
    size_t size = strlen(id);
    if (size < 1 || size > CONTEXTS_ID_MAX || strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != size)
        return error_set(err, -EINVAL,
                "\"%.60s\" cannot be a context's id: 1 to %d characters of a-z, 0-9 and -", id,
                CONTEXTS_ID_MAX);
    return 0;
}

static int check_language(const char *language, struct error *err)
{
    if (strcmp(language, "python") == 0 || strcmp(language, "bash") == 0)
        return 0;
    return error_set(
            err, -EINVAL, "there is no language \"%.40s\" for contexts; choose python or bash", language);
}

const char *contexts_default_language(const char **id)
{
    if (strcmp(*id, "default") == 0)
        *id = "python";
    for (size_t i = 0; i < sizeof default_ids / sizeof default_ids[0]; i++)
        if (strcmp(*id, default_ids[i]) == 0)
            return default_ids[i];
    return NULL;
}

static bool parse_place(const struct agent_job *job, struct contexts_place *ret_place)
{
    int end = 0;
    if (sscanf(job->name, "context:%15[a-z]:%40[a-z0-9-]%n", ret_place->language, ret_place->id, &end) != 2 ||
            job->name[end] != '\0')
        return false;
    ret_place->job = *job;
    return true;
}

// ---- what is there ----

struct search {
    const char *id; // NULL = all
    struct contexts_place *places;
    size_t count;
};

static void look_at_job(void *context, const struct agent_job *job)
{
    struct search *search = context;
    struct contexts_place place;
    if (!parse_place(job, &place) || (search->id != NULL && strcmp(place.id, search->id) != 0))
        return;
    for (size_t i = 0; i < search->count; i++)
        if (strcmp(search->places[i].id, place.id) == 0) { // the newest of that id
            if (job->id > search->places[i].job.id)
                search->places[i] = place;
            return;
        }
    if (search->count < AGENT_JOBS_MAX)
        search->places[search->count++] = place;
}

// malloc'ed.
static int find_places(struct sandbox_agent *use, const char *id, struct contexts_place **ret_places,
        size_t *ret_count, struct error *err)
{
    struct search search = {id, calloc(AGENT_JOBS_MAX, sizeof(struct contexts_place)), 0};
    if (search.places == NULL)
        return error_set(err, -ENOMEM, "no memory for the list of contexts");
    int r = agent_job_list(use->agent, look_at_job, &search, err);
    if (r < 0) {
        free(search.places);
        return r;
    }
    *ret_places = search.places;
    *ret_count = search.count;
    return 0;
}

int contexts_find(
        struct sandbox_agent *use, const char *id, struct contexts_place *ret_place, struct error *err)
{
    struct contexts_place *places = NULL;
    size_t count = 0;
    int r = contexts_check_id(id, err);
    if (r == 0)
        r = find_places(use, id, &places, &count, err);
    if (r < 0)
        return r;
    if (count > 0)
        *ret_place = places[0];
    free(places);
    return count > 0 ? 0 : error_set(err, -ENOENT, "there is no context \"%s\" in this sandbox", id);
}

// ---- descriptions ----

static json_t *describe(struct sandbox_agent *use, const struct contexts_place *place)
{
    JSON_AUTO json_t *answer = NULL;
    struct error err = {0};
    json_t *json = json_pack("{s:s, s:s, s:o}", "id", place->id, "language", place->language, "created_at",
            json_fields_time(place->job.started_ns));
    if (!place->job.running) {
        char reason[128];
        snprintf(reason, sizeof reason,
                place->job.out_of_memory ? "ended: the machine is out of memory"
                : place->job.signal != 0 ? "its processes were killed by signal %d"
                                         : "its processes ended with status %d",
                place->job.signal != 0 ? place->job.signal : place->job.exit_code);
        json_object_set_new(json, "state", json_string("ended"));
        json_object_set_new(json, "reason", json_string(reason));
        return json;
    }
    int r = contexts_ask(
            use, place->id, json_pack("{s:s}", "op", "status"), CONTEXTS_ANSWER_MS, &answer, &err);
    const char *state = r < 0 ? "unavailable" : json_fields_get_text(answer, "state");
    const char *reason = r < 0 ? err.text : json_fields_get_text(answer, "reason");
    json_object_set_new(json, "state", json_fields_text(state, strnlen(state, 40)));
    json_object_set_new(
            json, "execution_count", json_integer(json_fields_get_int(answer, "execution_count")));
    json_object_set_new(json, "queued", json_integer(json_fields_get_int(answer, "queued")));
    if (reason[0] != '\0')
        json_object_set_new(json, "reason", json_fields_text(reason, strnlen(reason, 1024)));
    return json;
}

int contexts_list(struct sandbox_agent *use, json_t **ret_list, struct error *err)
{
    struct contexts_place *places = NULL;
    size_t count = 0;
    int r = find_places(use, NULL, &places, &count, err);
    if (r < 0)
        return r;
    *ret_list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(*ret_list, describe(use, &places[i]));
    free(places);
    return 0;
}

int contexts_show(struct sandbox_agent *use, const char *id, json_t **ret_json, struct error *err)
{
    struct contexts_place place;
    contexts_default_language(&id);
    int r = contexts_find(use, id, &place, err);
    if (r == 0)
        *ret_json = describe(use, &place);
    return r;
}

// ---- making one ----

// The driver comes with the initramfs; its sockets' folder is everybody's, as /tmp is.
static int prepare_guest(struct sandbox_agent *use, struct error *err)
{
    struct agent_exec_result result = {0};
    struct agent_stat stat;
    const struct agent_exec exec = {
            .shell_command = "mkdir -p " CONTEXTS_SOCKETS " && chmod 1777 " CONTEXTS_SOCKETS,
            .user = "root",
            .timeout_ms = CONTEXTS_ANSWER_MS};
    int r = agent_file_stat(use->agent, DRIVER, &stat, err);
    if (r == -ENOENT)
        return error_set(err, -ENOTSUP,
                "this machine was booted without the programs of code contexts; boot it anew (`ramet stop "
                "NAME`, `ramet start "
                "--cold NAME`)");
    if (r < 0)
        return r;
    r = agent_exec_run(use->agent, &exec, &result, err);
    if (r == 0 && result.exit_code != 0)
        r = error_set(err, -EIO, "the folder " CONTEXTS_SOCKETS " cannot be made in the guest: %.300s",
                result.err == NULL ? "" : result.err);
    agent_exec_result_free(&result);
    return r;
}

// What a job that has ended wrote last.
struct words {
    char text[400];
    size_t size;
};

static int keep_words(void *context, int stream, uint64_t offset, const void *bytes, size_t size)
{
    struct words *words = context;
    (void)offset;
    if (stream != 2)
        return 0;
    size_t room = sizeof words->text - 1, taken = size < room ? size : room;
    size_t kept = words->size + taken > room ? room - taken : words->size;
    memmove(words->text, words->text + words->size - kept, kept);
    memcpy(words->text + kept, (const char *)bytes + size - taken, taken);
    words->size = kept + taken;
    words->text[words->size] = '\0';
    return 0;
}

static int has_ended(struct sandbox_agent *use, const struct agent_job *job, struct error *err)
{
    struct words words = {0};
    struct agent_job last;
    struct error ignored = {0};
    const struct agent_job_logs logs = {.id = job->id, .sink = keep_words, .context = &words};
    agent_job_logs(use->agent, &logs, &last, &ignored);
    for (size_t i = 0; i < words.size; i++)
        if ((unsigned char)words.text[i] < ' ' || (unsigned char)words.text[i] > '~')
            words.text[i] = ' ';
    agent_job_remove(use->agent, job->id, true, &ignored);
    return error_set(err, -ENOTSUP, "the code context's processes ended with status %d as they began%s%s",
            job->exit_code, words.size > 0 ? ": " : "", words.text);
}

int contexts_await(struct sandbox_agent *use, const char *id, uint32_t job_id, int *ret_fd, struct error *err)
{
    uint64_t limit = contexts_now_ms() + LISTEN_MS;
    for (;;) {
        struct agent_job job;
        int r = contexts_dial(use, id, ret_fd, err);
        if (r != -ENOENT && r != -ECONNREFUSED)
            return r;
        r = agent_job_get(use->agent, job_id, &job, err);
        if (r == 0 && !job.running)
            return has_ended(use, &job, err);
        if (r < 0 && r != -ENOENT)
            return r;
        if (contexts_now_ms() > limit)
            return error_set(err, -ETIMEDOUT,
                    "the code context \"%s\" does not listen; remove it (`ramet context rm`) and make it "
                    "again",
                    id);
        nanosleep(&(struct timespec){0, LISTEN_STEP_MS * 1000000}, NULL);
    }
}

static int start_job(struct sandbox_agent *use, const struct contexts_create *create, const char *id,
        const char *language, struct agent_job *ret_job, struct error *err)
{
    char name[AGENT_JOB_NAME_MAX + 1], path[128], **env = NULL;
    const char *user = json_fields_get_text(use->defaults, "user");
    const char *argv[12] = {
            "/usr/bin/env", "python3", "-I", "-S", DRIVER, "--socket", path, "--language", language};
    struct agent_exec exec = {.argv = argv, .user = create->user != NULL ? create->user : user};
    if (exec.user[0] == '\0')
        exec.user = NULL;
    snprintf(name, sizeof name, "context:%s:%s", language, id);
    snprintf(path, sizeof path, CONTEXTS_SOCKETS "/%s.sock", id);
    exec.cwd = create->cwd;
    exec.mark = create->mark;
    int r = environment_strings(use->env, create->env, &env, err);
    exec.env = (const char *const *)env;
    if (r == 0)
        r = agent_job_start(use->agent, &exec, name, ret_job, err);
    environment_free_strings(env);
    return r;
}

int contexts_start(struct sandbox_agent *use, const struct contexts_create *create, const char *id,
        const char *language, int *ret_fd, struct error *err)
{
    struct contexts_place *places = NULL;
    struct agent_job job = {0};
    size_t count = 0, running = 0;
    int r = find_places(use, NULL, &places, &count, err);
    for (size_t i = 0; r == 0 && i < count; i++) {
        running += places[i].job.running;
        if (strcmp(places[i].id, id) != 0)
            continue;
        if (places[i].job.running)
            r = error_set(err, -EEXIST, "there is a context \"%s\" already", id);
        else
            r = agent_job_remove(use->agent, places[i].job.id, true, err);
    }
    if (r == 0 && running >= CONTEXTS_MAX)
        r = error_set(
                err, -EBUSY, "this sandbox has %d contexts, and that is the most; remove one", CONTEXTS_MAX);
    if (r == 0)
        r = prepare_guest(use, err);
    if (r == 0)
        r = start_job(use, create, id, language, &job, err);
    if (r == 0 && (r = contexts_await(use, id, job.id, ret_fd, err)) < 0)
        agent_job_remove(use->agent, job.id, true, NULL);
    free(places);
    return r;
}

static int created(struct sandbox_agent *use, const char *id, int fd, json_t **ret_json, struct error *err)
{
    JSON_AUTO json_t *answer = NULL;
    struct contexts_place place;
    int r = contexts_send(fd, json_pack("{s:s, s:b}", "op", "status", "wait", 1), err);
    if (r == 0)
        r = contexts_receive(fd, CONTEXTS_START_MS, &answer, err);
    if (r == 0 && strcmp(json_fields_get_text(answer, "state"), "unavailable") == 0)
        r = error_set(err, -ENOTSUP, "%.480s", json_fields_get_text(answer, "reason"));
    if (r == 0)
        r = contexts_find(use, id, &place, err);
    if (r == 0)
        *ret_json = describe(use, &place);
    return r;
}

int contexts_create(
        struct sandbox_agent *use, const struct contexts_create *create, json_t **ret_json, struct error *err)
{
    char made[CONTEXTS_ID_MAX + 1];
    uint32_t random;
    const char *language = create->language == NULL ? "python" : create->language, *id = create->id;
    int fd;
    if (id == NULL) {
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return error_set(err, -EIO, "the kernel gave no random bytes for an id");
        snprintf(made, sizeof made, "ctx-%08x", random);
        id = made;
    }
    int r = contexts_check_id(id, err);
    if (r == 0)
        r = check_language(language, err);
    if (r == 0 && create->id != NULL) {
        const char *fixed = contexts_default_language(&id);
        if (fixed != NULL && strcmp(fixed, language) != 0)
            r = error_set(err, -EINVAL, "the context \"%s\" is one of %s", id, fixed);
    }
    if (r == 0)
        r = contexts_start(use, create, id, language, &fd, err);
    if (r < 0)
        return r;
    r = created(use, id, fd, ret_json, err);
    close(fd);
    struct error ignored;
    if (r < 0)
        contexts_remove(use, id, &ignored);
    return r;
}

int contexts_marked(struct sandbox_agent *use, const char *mark, json_t **ret_json, struct error *err)
{
    struct contexts_place place;
    struct agent_job job;
    int fd, r = agent_job_marked(use->agent, mark, &job, err);
    if (r == 0 && !parse_place(&job, &place))
        r = error_set(err, -ENOENT, "there is no context with this mark");
    if (r == 0 && !job.running) {
        *ret_json = describe(use, &place);
        return 0;
    }
    if (r == 0)
        r = contexts_await(use, place.id, job.id, &fd, err);
    if (r < 0)
        return r;
    r = created(use, place.id, fd, ret_json, err);
    close(fd);
    return r;
}

int contexts_remove(struct sandbox_agent *use, const char *id, struct error *err)
{
    struct contexts_place place;
    struct error ignored;
    char path[128];
    contexts_default_language(&id);
    int r = contexts_find(use, id, &place, err);
    if (r == 0)
        r = agent_job_remove(use->agent, place.job.id, true, err);
    if (r == 0) {
        snprintf(path, sizeof path, CONTEXTS_SOCKETS "/%s.sock", place.id);
        agent_file_remove(use->agent, path, false, &ignored);
    }
    return r;
}

int contexts_ended(const struct contexts_place *place, struct error *err)
{
    return error_set(err, -EBUSY,
            "the processes of context \"%s\" have ended; remove it (`ramet context rm`) and make it again",
            place->id);
}

int contexts_interrupt(
        struct sandbox_agent *use, const char *id, bool kill, bool *ret_interrupted, struct error *err)
{
    JSON_AUTO json_t *answer = NULL;
    struct contexts_place place;
    contexts_default_language(&id);
    int r = contexts_find(use, id, &place, err);
    if (r == 0 && !place.job.running)
        r = contexts_ended(&place, err);
    if (r == 0)
        r = contexts_ask(use, id, json_pack("{s:s, s:b}", "op", "interrupt", "kill", (int)kill),
                CONTEXTS_ANSWER_MS, &answer, err);
    if (r == 0)
        *ret_interrupted = json_fields_get_bool(answer, "interrupted");
    return r;
}

int contexts_restart(struct sandbox_agent *use, const char *id, json_t **ret_json, struct error *err)
{
    JSON_AUTO json_t *answer = NULL;
    struct contexts_place place;
    bool is_default = contexts_default_language(&id) != NULL;
    int r = contexts_find(use, id, &place, err);
    if (r == 0 && !place.job.running) {
        const struct contexts_create create = {.id = id, .language = place.language};
        return is_default ? contexts_create(use, &create, ret_json, err) : contexts_ended(&place, err);
    }
    if (r == 0)
        r = contexts_ask(use, id, json_pack("{s:s}", "op", "restart"), CONTEXTS_START_MS, &answer, err);
    if (r == 0)
        *ret_json = describe(use, &place);
    return r;
}
