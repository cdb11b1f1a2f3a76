// SPDX-License-Identifier: Apache-2.0
#include "vmglue/image_access.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct grant {
    struct grant *next;
    uid_t uid;
    struct base_id base;
};

struct image_access {
    pthread_mutex_t lock;
    struct grant *grants; // (lock) a few for each running sandbox
};

struct image_access *image_access_new(void)
{
    struct image_access *access = calloc(1, sizeof *access);
    if (access != NULL)
        pthread_mutex_init(&access->lock, NULL);
    return access;
}

struct image_access *image_access_free(struct image_access *access)
{
    if (access == NULL)
        return NULL;
    while (access->grants != NULL) {
        struct grant *grant = access->grants;
        access->grants = grant->next;
        free(grant);
    }
    pthread_mutex_destroy(&access->lock);
    free(access);
    return NULL;
}

int image_access_allow(struct image_access *access, uid_t uid, struct base_id base)
{
    struct grant *grant = calloc(1, sizeof *grant);
    if (grant == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&access->lock);
    *grant = (struct grant){.next = access->grants, .uid = uid, .base = base};
    access->grants = grant;
    pthread_mutex_unlock(&access->lock);
    return 0;
}

void image_access_forget(struct image_access *access, uid_t uid)
{
    pthread_mutex_lock(&access->lock);
    for (struct grant **link = &access->grants; *link != NULL;) {
        struct grant *grant = *link;
        if (grant->uid != uid) {
            link = &grant->next;
            continue;
        }
        *link = grant->next;
        free(grant);
    }
    pthread_mutex_unlock(&access->lock);
}

bool image_access_may_open(void *context, struct base_id base, uid_t uid, pid_t pid)
{
    struct image_access *access = context;
    bool found = false;
    pthread_mutex_lock(&access->lock);
    for (const struct grant *grant = access->grants; grant != NULL && !found; grant = grant->next)
        found = grant->uid == uid && grant->base.value == base.value;
    pthread_mutex_unlock(&access->lock);
    return found;
}
