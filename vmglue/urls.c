// SPDX-License-Identifier: Apache-2.0
#include "vmglue/urls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "vmglue/hex.h"

enum { TOKEN_DIGITS = URLS_TOKEN_SIZE - 1, BUCKETS = 4096 };

struct revoked {
    struct revoked *next;
    char id[URLS_ID_SIZE];
};
struct indexed {
    struct indexed *next; // in its bucket
    struct sha256 hash;
    char sandbox_id[URLS_SANDBOX_SIZE];
};
struct urls {
    pthread_mutex_t lock;
    struct indexed *buckets[BUCKETS]; // protected by lock
    struct revoked *revoked;          // protected by lock
    struct urls_connection *list;     // protected by lock
};

static void random_hex(char *ret_text, size_t digits)
{
    uint8_t bytes[TOKEN_DIGITS / 2];
    if (getrandom(bytes, digits / 2, 0) != (ssize_t)(digits / 2))
        abort(); // the kernel gives these once it has booted
    hex_encode(bytes, digits / 2, ret_text);
}

void urls_new_token(char ret_token[URLS_TOKEN_SIZE])
{
    random_hex(ret_token, TOKEN_DIGITS);
}

void urls_new_id(char ret_id[URLS_ID_SIZE])
{
    memcpy(ret_id, "url_", 4);
    random_hex(ret_id + 4, 12);
}

// Hosts are of either case.
static bool take_token(const char *text, char ret_token[URLS_TOKEN_SIZE])
{
    for (size_t i = 0; i < TOKEN_DIGITS; i++) {
        char c = text[i];
        if (hex_digit(c) < 0)
            return false;
        ret_token[i] = c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
    }
    ret_token[TOKEN_DIGITS] = '\0';
    return true;
}

bool urls_token_parse(const char *text, size_t size, char ret_token[URLS_TOKEN_SIZE])
{
    return size == TOKEN_DIGITS && take_token(text, ret_token);
}

void urls_mask(char *text)
{
    for (char *at = text; *at != '\0';) {
        size_t digits = strspn(at, "0123456789abcdefABCDEF");
        if (digits >= TOKEN_DIGITS)
            memset(at, '.', digits);
        at += digits > 0 ? digits : 1;
    }
}

bool urls_token_of_target(const char *target, char ret_token[URLS_TOKEN_SIZE], size_t *ret_rest)
{
    if (strncmp(target, "/u/", 3) != 0 || !take_token(target + 3, ret_token))
        return false;
    char after = target[3 + TOKEN_DIGITS];
    *ret_rest = 3 + TOKEN_DIGITS;
    return after == '\0' || after == '/' || after == '?';
}

// The host without its port is `name`.
static bool is_host(const char *host, const char *name)
{
    size_t size = strlen(name), of_name = strcspn(name, ":");
    if (of_name < size) // the operator gave a port to show; any is fine here
        size = of_name;
    return strncasecmp(host, name, size) == 0 && (host[size] == '\0' || host[size] == ':');
}

bool urls_is_served(const char *host_rest, const char *name)
{
    return is_host(host_rest, "localhost") || (name != NULL && is_host(host_rest, name));
}

bool urls_token_of_host(const char *host, const char *name, char ret_token[URLS_TOKEN_SIZE])
{
    return strnlen(host, TOKEN_DIGITS + 1) > TOKEN_DIGITS && host[TOKEN_DIGITS] == '.' &&
           take_token(host, ret_token) && urls_is_served(host + TOKEN_DIGITS + 1, name);
}

bool urls_preview_of_host(
        const char *host, const char *name, unsigned *ret_port, char *ret_sandbox, size_t sandbox_capacity)
{
    size_t digits = strspn(host, "0123456789"), label = strcspn(host, ".");
    if (digits < 1 || digits > 5 || host[digits] != '-' || host[label] != '.' || label <= digits + 1 ||
            label - digits - 1 >= sandbox_capacity || !urls_is_served(host + label + 1, name))
        return false;
    *ret_port = (unsigned)strtoul(host, NULL, 10);
    snprintf(ret_sandbox, sandbox_capacity, "%.*s", (int)(label - digits - 1), host + digits + 1);
    for (char *c = ret_sandbox; *c != '\0'; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    return *ret_port >= 1 && *ret_port <= 65535;
}

struct urls *urls_create(void)
{
    struct urls *urls = calloc(1, sizeof *urls);
    if (urls == NULL)
        abort();
    pthread_mutex_init(&urls->lock, NULL);
    return urls;
}

struct urls *urls_destroy(struct urls *urls)
{
    if (urls == NULL)
        return NULL;
    while (urls->revoked != NULL) {
        struct revoked *one = urls->revoked;
        urls->revoked = one->next;
        free(one);
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        while (urls->buckets[i] != NULL) {
            struct indexed *one = urls->buckets[i];
            urls->buckets[i] = one->next;
            free(one);
        }
    }
    pthread_mutex_destroy(&urls->lock);
    free(urls);
    return NULL;
}

void urls_open(struct urls *urls, struct urls_connection *connection)
{
    pthread_mutex_lock(&urls->lock);
    connection->previous = NULL;
    connection->next = urls->list;
    if (urls->list != NULL)
        urls->list->previous = connection;
    urls->list = connection;
    pthread_mutex_unlock(&urls->lock);
}

void urls_close(struct urls *urls, struct urls_connection *connection)
{
    pthread_mutex_lock(&urls->lock);
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        urls->list = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    pthread_mutex_unlock(&urls->lock);
}

void urls_end(struct urls *urls, struct urls_connection *connection)
{
    pthread_mutex_lock(&urls->lock);
    connection->ended = true;
    pthread_mutex_unlock(&urls->lock);
}

bool urls_is_ended(struct urls *urls, const struct urls_connection *connection)
{
    pthread_mutex_lock(&urls->lock);
    bool ended = connection->ended;
    pthread_mutex_unlock(&urls->lock);
    return ended;
}

void urls_revoke(struct urls *urls, const char *id)
{
    struct revoked *revoked = calloc(1, sizeof *revoked);
    if (revoked == NULL)
        abort();
    snprintf(revoked->id, sizeof revoked->id, "%s", id);
    pthread_mutex_lock(&urls->lock);
    struct revoked *before = urls->revoked;
    while (before != NULL && strcmp(before->id, id) != 0)
        before = before->next;
    revoked->next = before == NULL ? urls->revoked : NULL;
    if (before == NULL)
        urls->revoked = revoked;
    else
        free(revoked);
    for (struct urls_connection *one = urls->list; one != NULL; one = one->next) {
        if (strcmp(one->id, id) != 0)
            continue;
        one->ended = true;
        shutdown(one->fd, SHUT_RDWR); // wakes who waits on it
    }
    pthread_mutex_unlock(&urls->lock);
}

bool urls_is_revoked(struct urls *urls, const char *id)
{
    pthread_mutex_lock(&urls->lock);
    const struct revoked *revoked = urls->revoked;
    while (revoked != NULL && strcmp(revoked->id, id) != 0)
        revoked = revoked->next;
    pthread_mutex_unlock(&urls->lock);
    return revoked != NULL;
}

void urls_forget(struct urls *urls, const char *id)
{
    pthread_mutex_lock(&urls->lock);
    for (struct revoked **link = &urls->revoked; *link != NULL;) {
        struct revoked *one = *link;
        if (strcmp(one->id, id) == 0) {
            *link = one->next;
            free(one);
        } else {
            link = &one->next;
        }
    }
    pthread_mutex_unlock(&urls->lock);
}

// ---- the index ----

// The hashes are of random tokens, so their first bytes spread as evenly as any sum of them.
static struct indexed **bucket_of(struct urls *urls, const struct sha256 *hash)
{
    return &urls->buckets[((unsigned)hash->bytes[0] << 8 | hash->bytes[1]) % BUCKETS];
}

// What points to it; to NULL when there is none. Lock held.
static struct indexed **find_locked(struct urls *urls, const struct sha256 *hash)
{
    struct indexed **at = bucket_of(urls, hash);
    while (*at != NULL && !sha256_equal(&(*at)->hash, hash))
        at = &(*at)->next;
    return at;
}

void urls_index_put(struct urls *urls, const struct sha256 *hash, const char *sandbox_id)
{
    struct indexed *one = calloc(1, sizeof *one);
    if (one == NULL)
        abort();
    one->hash = *hash;
    snprintf(one->sandbox_id, sizeof one->sandbox_id, "%s", sandbox_id);
    pthread_mutex_lock(&urls->lock);
    struct indexed **bucket = bucket_of(urls, hash);
    one->next = *bucket;
    *bucket = one;
    pthread_mutex_unlock(&urls->lock);
}

void urls_index_drop(struct urls *urls, const struct sha256 *hash)
{
    pthread_mutex_lock(&urls->lock);
    struct indexed **at = find_locked(urls, hash), *one = *at;
    if (one != NULL)
        *at = one->next;
    pthread_mutex_unlock(&urls->lock);
    free(one);
}

bool urls_index_find(struct urls *urls, const struct sha256 *hash, char ret_sandbox_id[URLS_SANDBOX_SIZE])
{
    pthread_mutex_lock(&urls->lock);
    const struct indexed *one = *find_locked(urls, hash);
    if (one != NULL)
        memcpy(ret_sandbox_id, one->sandbox_id, URLS_SANDBOX_SIZE);
    pthread_mutex_unlock(&urls->lock);
    return one != NULL;
}
