// SPDX-License-Identifier: Apache-2.0
// One nameless DOC_OTHER doc, made by the first change.
#include "vmglue/environment.h"

#include "snapshot/txn.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MARK[] = "ramet_environment";

enum { VARIABLE_BYTES_MAX = 131071 }; // execve(2): 32 pages with the zero at the end

struct environment {
    struct store *store;
    pthread_mutex_t change; // one change at a time; before lock
    pthread_mutex_t lock;
    json_t *env;       // (lock)
    struct doc_id doc; // (change)
};

static bool is_name(const char *name, bool may_be_odd)
{
    for (const unsigned char *at = (const unsigned char *)name; *at != '\0'; at++)
        if (*at == '=' || (!may_be_odd && (*at <= ' ' || *at == 0x7f)))
            return false;
    return name[0] != '\0';
}

// may_be_odd: what Linux would hand to a program, but no shell can say. It may have been taken before.
static int check_variable(const char *name, const json_t *value, bool may_be_odd, struct error *err)
{
    if (!is_name(name, may_be_odd))
        return error_set(err, -EINVAL,
                "field \"env\": \"%.60s\" cannot be the name of a variable: a name is not empty and has no "
                "blanks, no control characters and no \"=\"",
                name);
    if (strlen(name) + 1 + json_string_length(value) > VARIABLE_BYTES_MAX)
        return error_set(err, -E2BIG,
                "field \"env\": \"%.60s\" is larger than the 128 KiB that Linux hands to a program in one "
                "variable; put it into a file",
                name);
    return 0;
}

int environment_check(const json_t *env, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)env, key, value)
    {
        int r = check_variable(key, value, json_is_null(value), err);
        if (r < 0)
            return r;
    }
    return 0;
}

int environment_strings(const json_t *under, const json_t *over, char ***ret_strings, struct error *err)
{
    JSON_AUTO json_t *all = json_object();
    const char *key;
    json_t *value;
    size_t count = 0;
    if (under != NULL)
        json_object_update(all, (json_t *)under);
    if (over != NULL)
        json_object_update(all, (json_t *)over);
    int r = environment_check(over, err);
    json_object_foreach(all, key, value) r = r < 0 ? r : check_variable(key, value, true, err);
    if (r < 0)
        return r;
    char **strings = calloc(json_object_size(all) + 1, sizeof *strings);
    json_object_foreach(all, key, value)
    {
        if (strings != NULL && asprintf(&strings[count], "%s=%s", key, json_string_value(value)) >= 0)
            count++;
        else
            r = error_set(err, -ENOMEM, "no memory for the environment");
    }
    if (r < 0 || strings == NULL) {
        if (strings != NULL)
            strings[count] = NULL;
        environment_free_strings(strings);
        return error_set(err, -ENOMEM, "no memory for the environment");
    }
    *ret_strings = strings;
    return 0;
}

char **environment_free_strings(char **strings)
{
    for (size_t i = 0; strings != NULL && strings[i] != NULL; i++)
        free(strings[i]);
    free(strings);
    return NULL;
}

static void load_one(void *context, const struct doc *doc)
{
    struct environment *environment = context;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    json_t *env = json_object_get(body, MARK);
    if (!json_is_object(env))
        return;
    json_decref(environment->env);
    environment->env = json_incref(env);
    environment->doc = doc->id;
}

int environment_start(struct store *store, struct environment **ret_environment, struct error *err)
{
    struct environment *environment = calloc(1, sizeof *environment);
    if (environment == NULL || (environment->env = json_object()) == NULL) {
        free(environment);
        return error_set(err, -ENOMEM, "no memory for the environment");
    }
    environment->store = store;
    pthread_mutex_init(&environment->change, NULL);
    pthread_mutex_init(&environment->lock, NULL);
    store_doc_list(store, DOC_OTHER, load_one, environment);
    *ret_environment = environment;
    return 0;
}

struct environment *environment_stop(struct environment *environment)
{
    if (environment == NULL)
        return NULL;
    json_decref(environment->env);
    pthread_mutex_destroy(&environment->change);
    pthread_mutex_destroy(&environment->lock);
    free(environment);
    return NULL;
}

json_t *environment_get(struct environment *environment)
{
    pthread_mutex_lock(&environment->lock);
    json_t *copy = json_deep_copy(environment->env);
    pthread_mutex_unlock(&environment->lock);
    return copy;
}

static int store_it(struct environment *environment, json_t *env, struct error *err)
{
    struct doc doc = {.id = environment->doc, .kind = DOC_OTHER};
    JSON_AUTO json_t *body = json_pack("{s:O}", MARK, env);
    doc.body = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (doc.body == NULL)
        return error_set(err, -ENOMEM, "no memory for the environment");
    doc.body_bytes = strlen(doc.body);
    if (doc.body_bytes > ENVIRONMENT_BYTES_MAX) {
        free(doc.body);
        return error_set(err, -E2BIG, "the environment is larger than %d KiB; big data belongs into files",
                ENVIRONMENT_BYTES_MAX / 1024);
    }
    struct txn *txn = txn_begin(environment->store);
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    free(doc.body);
    int r = txn_commit_wait(txn, TXN_DURABLE, err);
    if (r == 0)
        environment->doc = id;
    return r;
}

static void merge_into(json_t *now, const json_t *change)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)change, key, value)
    {
        if (json_is_null(value))
            json_object_del(now, key);
        else
            json_object_set(now, key, value);
    }
}

int environment_set(
        struct environment *environment, const json_t *env, bool merge, json_t **ret_now, struct error *err)
{
    int r = environment_check(env, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&environment->change);
    json_t *now = merge ? environment_get(environment) : json_object();
    merge_into(now, env);
    r = store_it(environment, now, err);
    if (r == 0 && ret_now != NULL)
        *ret_now = json_deep_copy(now);
    if (r == 0) {
        pthread_mutex_lock(&environment->lock);
        json_t *old = environment->env;
        environment->env = now;
        pthread_mutex_unlock(&environment->lock);
        now = old;
    }
    pthread_mutex_unlock(&environment->change);
    json_decref(now);
    return r;
}
