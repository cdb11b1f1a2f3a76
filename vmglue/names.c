// SPDX-License-Identifier: Apache-2.0
#include "vmglue/names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void names_init(struct names *names, struct store *store)
{
    names->store = store;
    names->reserved_count = 0;
    pthread_mutex_init(&names->lock, NULL);
}

// Words that the command line puts where a sandbox's name may stand (`ramet snapshot ls`).
static bool is_verb_word(const char *name)
{
    static const char *const words[] = {"ls", "list", "show", "rm", "delete", "create", "help", "all"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], name) == 0)
            return true;
    return false;
}

int names_check(const char *what, const char *name, struct error *err)
{
    size_t length = strlen(name);
    if (length == 0)
        return error_set(
                err, -EINVAL, "the %s's name is empty; use 1 to %d of a-z, 0-9 and -", what, NAMES_MAX);
    if (length > NAMES_MAX)
        return error_set(err, -EINVAL,
                "the %s's name \"%.50s...\" has %zu characters; at most %d are allowed", what, name, length,
                NAMES_MAX);
    if (name[0] == '-')
        return error_set(err, -EINVAL,
                "the %s's name \"%s\" begins with -; begin it with a letter or a digit", what, name);
    for (const char *c = name; *c != '\0'; c++)
        if ((*c < 'a' || *c > 'z') && (*c < '0' || *c > '9') && *c != '-')
            return error_set(err, -EINVAL,
                    "the %s's name \"%s\" holds a character that is not allowed; use a-z, 0-9 "
                    "and -",
                    what, name);
    if (strcmp(what, "sandbox") == 0 && is_verb_word(name))
        return error_set(err, -EINVAL,
                "\"%s\" is a word of the command line and cannot name a sandbox; choose another "
                "name",
                name);
    return 0;
}

static const char *taken_by(struct names *names, enum names_space space, const char *name)
{
    struct volume_info volume;
    struct doc doc = {0};
    static const struct {
        enum doc_kind kind;
        const char *what;
    } kinds[] = {
            {DOC_SANDBOX, "sandbox"}, {DOC_SNAPSHOT, "disk snapshot"}, {DOC_MACHINE, "machine snapshot"}};
    if (space == NAMES_DATA && store_volume_find(names->store, name, &volume) == 0)
        return "volume";
    for (size_t i = space == NAMES_SANDBOX ? 0 : 1; i < (space == NAMES_SANDBOX ? 1 : 3); i++) {
        if (store_doc_find(names->store, kinds[i].kind, name, &doc) != 0)
            continue;
        doc_free(&doc);
        return kinds[i].what;
    }
    return NULL;
}

static bool is_reserved_locked(struct names *names, enum names_space space, const char *name)
{
    for (unsigned i = 0; i < names->reserved_count; i++)
        if (names->reserved[i].space == space && strcmp(names->reserved[i].name, name) == 0)
            return true;
    return false;
}

int names_reserve(
        struct names *names, enum names_space space, const char *what, const char *name, struct error *err)
{
    int r = names_check(what, name, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&names->lock);
    const char *owner = NULL;
    if (is_reserved_locked(names, space, name))
        r = error_set(err, -EEXIST,
                "something called \"%s\" is being made at this moment; choose another name", name);
    else if ((owner = taken_by(names, space, name)) != NULL)
        r = error_set(err, -EEXIST,
                "there is a %s called \"%s\" already; remove it first or choose another name", owner, name);
    else if (names->reserved_count == NAMES_RESERVED_MAX)
        r = error_set(err, -EAGAIN, "too many things are being made at once; try again");
    if (r == 0) {
        names->reserved[names->reserved_count].space = space;
        snprintf(names->reserved[names->reserved_count++].name, NAMES_MAX + 1, "%s", name);
    }
    pthread_mutex_unlock(&names->lock);
    return r;
}

void names_release(struct names *names, enum names_space space, const char *name)
{
    pthread_mutex_lock(&names->lock);
    for (unsigned i = 0; i < names->reserved_count; i++) {
        if (names->reserved[i].space != space || strcmp(names->reserved[i].name, name) != 0)
            continue;
        names->reserved[i] = names->reserved[--names->reserved_count];
        break;
    }
    pthread_mutex_unlock(&names->lock);
}

int names_make(struct names *names, enum names_space space, const char *what, const char *prefix,
        char *ret_name, struct error *err)
{
    for (;;) {
        uint32_t random = 0;
        char name[NAMES_MAX + 1];
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return error_set(err, -EIO, "no random bytes from the kernel to make a name");
        snprintf(name, sizeof name, "%.31s-%08x", prefix, random);
        int r = names_reserve(names, space, what, name, err);
        if (r == -EEXIST)
            continue;
        if (r == 0)
            memcpy(ret_name, name, sizeof name);
        return r;
    }
}

uint64_t names_id(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(text, prefix, length) != 0 || text[length] < '1' || text[length] > '9')
        return 0;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text + length, &end, 10);
    return *end == '\0' && errno == 0 ? number : 0;
}
