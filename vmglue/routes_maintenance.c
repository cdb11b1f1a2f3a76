// SPDX-License-Identifier: Apache-2.0
// /v1/store/seal, gc, scrub, check: work on the whole store. Each answers when it is done, however long that
// takes; they run one after another, beside everything else.
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum { SENTENCES_MAX = 10000 };

// Sentences come from another thread.
struct damages {
    pthread_mutex_t lock;
    json_t *list; // protected by lock
};

static void add_damage(void *context, const char *sentence)
{
    struct damages *damages = context;
    pthread_mutex_lock(&damages->lock);
    if (json_array_size(damages->list) < SENTENCES_MAX)
        json_array_append_new(damages->list, json_fields_text(sentence, strlen(sentence)));
    pthread_mutex_unlock(&damages->lock);
}

struct figure {
    const char *name;
    uint64_t value;
};

static json_t *figures_json(const struct figure *figures, size_t count)
{
    json_t *json = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(json, figures[i].name, json_integer((json_int_t)figures[i].value));
    return json;
}

// The body, which may hold `flag` alone.
static int take_flag(struct http_request *request, const char *flag, bool *ret_flag, struct error *err)
{
    const char *const known[] = {flag, NULL};
    json_t *body;
    int r = route_json_body(request, known, &body, err);
    if (r == 0 && flag != NULL)
        r = json_fields_bool(body, flag, ret_flag, err);
    return r < 0 ? r : 0;
}

static void reply(struct http_request *request, int result, const struct figure *figures, size_t count,
        struct damages *damages, const struct error *err)
{
    if (result < 0) {
        if (damages != NULL)
            json_decref(damages->list);
        http_reply_failure(request, "store", err);
        return;
    }
    json_t *json = figures_json(figures, count);
    if (damages != NULL)
        json_object_set_new(json, "damaged", damages->list);
    http_reply_json(request, 200, json);
}

static void seal_store(struct http_request *request)
{
    struct error err;
    int r = take_flag(request, NULL, NULL, &err);
    if (r == 0)
        r = store_seal(service_of(request)->store, &err);
    reply(request, r, NULL, 0, NULL, &err);
}

static void collect_store(struct http_request *request)
{
    struct store_gc_result result = {0};
    bool recompress = false;
    struct error err;
    int r = take_flag(request, "recompress", &recompress, &err);
    if (r == 0)
        r = store_gc(service_of(request)->store, recompress ? STORE_GC_RECOMPRESS : 0, &result, &err);
    const struct figure figures[] = {{"live_blocks", result.live_slots}, {"dead_blocks", result.dead_slots},
            {"freed_bytes", result.freed_bytes}, {"rewritten_bytes", result.rewritten_bytes},
            {"segments_removed", result.segments_removed}, {"segments_rewritten", result.segments_rewritten}};
    reply(request, r, figures, sizeof figures / sizeof figures[0], NULL, &err);
}

static void scrub_store(struct http_request *request)
{
    struct damages damages = {.lock = PTHREAD_MUTEX_INITIALIZER, .list = json_array()};
    struct store_scrub_result result = {0};
    struct error err;
    int r = take_flag(request, NULL, NULL, &err);
    if (r == 0)
        r = store_scrub(service_of(request)->store, add_damage, &damages, &result, &err);
    const struct figure figures[] = {{"segments", result.segments}, {"bytes", result.bytes},
            {"damages", result.damages}, {"position", result.position}};
    reply(request, r, figures, sizeof figures / sizeof figures[0], &damages, &err);
}

static void check_store(struct http_request *request)
{
    struct damages damages = {.lock = PTHREAD_MUTEX_INITIALIZER, .list = json_array()};
    struct store_check_result result = {0};
    struct error err;
    int r = take_flag(request, NULL, NULL, &err);
    if (r == 0)
        r = store_check(service_of(request)->store, add_damage, &damages, &result, &err);
    const struct figure figures[] = {{"volumes", result.volumes}, {"bases", result.bases},
            {"docs", result.docs}, {"nodes", result.nodes}, {"blocks", result.blocks},
            {"segments", result.segments}, {"log_records", result.log_records}, {"damages", result.damages}};
    reply(request, r, figures, sizeof figures / sizeof figures[0], &damages, &err);
}

const struct http_route routes_maintenance[] = {
        {"POST", "/v1/store/seal", 0, seal_store},
        {"POST", "/v1/store/gc", 0, collect_store},
        {"POST", "/v1/store/scrub", 0, scrub_store},
        {"POST", "/v1/store/check", 0, check_store},
        {0},
};
