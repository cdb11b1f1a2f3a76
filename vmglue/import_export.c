// SPDX-License-Identifier: Apache-2.0
#include "vmglue/import_export.h"

#include "snapshot/passing.h"
#include "vmglue/nbd_server.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR_BYTES = 512, STREAM_BYTES = 1 << 20, ID_SIZE = 24 };
static const uint64_t STREAM_MAX_BYTES = 1ull << 46;

// The socket that both kinds have: NBD on a path of its own, serving one volume or base.
struct window {
    char path[256];
    int listen_fd;
    struct nbd_server *server;
    struct nbd_export export;
};

struct import_session {
    struct import_export *all;
    char id[ID_SIZE], name[NAMES_MAX + 1];
    struct volume_id volume;
    struct doc_id doc;
    uint64_t size_bytes;
    struct window window;
    bool committing, done, cancelled, ending; // protected by all->lock
    struct import_session *next;              // protected by all->lock
};

struct export_session {
    struct import_export *all;
    struct disks_pin pin;
    struct window window;
};

struct import_export {
    struct store *store;
    struct disks *disks;
    char folder[200];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct import_session *imports;
};

int import_export_start(struct store *store, struct disks *disks, const char *run_dir,
        struct import_export **ret_all, struct error *err)
{
    struct import_export *all = calloc(1, sizeof *all);
    if (all == NULL)
        return error_set(err, -ENOMEM, "no memory");
    all->store = store;
    all->disks = disks;
    snprintf(all->folder, sizeof all->folder, "%s/transfer", run_dir);
    if (mkdir(all->folder, 0700) < 0 && errno != EEXIST) {
        int code = -errno;
        free(all);
        return error_set(err, code, "the folder %s/transfer cannot be made: %s", run_dir, strerror(-code));
    }
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    *ret_all = all;
    return 0;
}

struct import_export *import_export_stop(struct import_export *all)
{
    if (all == NULL)
        return NULL;
    rmdir(all->folder);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

static void resolve_window(void *context, const char *name, struct nbd_export *ret_export)
{
    const struct window *window = context;
    if (name[0] == '\0')
        *ret_export = window->export;
}

static void random_id(const char *prefix, char *ret_id)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        abort(); // the kernel gives these once it has booted
    snprintf(ret_id, ID_SIZE, "%s%016" PRIx64, prefix, random);
}

static int window_open(struct import_export *all, const char *id, struct window *window, struct error *err)
{
    snprintf(window->path, sizeof window->path, "%s/%s.sock", all->folder, id);
    int r = unix_socket_listen(window->path, SOCK_STREAM | SOCK_NONBLOCK, 0600, &window->listen_fd, err);
    if (r < 0)
        return r;
    struct nbd_server_config config = {.store = all->store,
            .loop = store_loop(all->store, 0),
            .listen_fd = window->listen_fd,
            .resolve = resolve_window,
            .context = window};
    r = nbd_server_start(&config, &window->server, err);
    if (r < 0) {
        close(window->listen_fd);
        unlink(window->path);
    }
    return r;
}

static void window_close(struct window *window)
{
    if (window->server == NULL)
        return;
    window->server = nbd_server_stop(window->server);
    close(window->listen_fd);
    unlink(window->path);
}

// A nameless volume that dies with this process unless it is named.
static int volume_begin(struct import_export *all, uint64_t size_bytes, struct volume_id *ret_volume,
        struct doc_id *ret_doc, struct error *err)
{
    struct doc doc = passing_doc();
    doc.volume_count = 1;
    struct txn *txn = txn_begin(all->store);
    struct volume_id volume = txn_volume_create(txn, "", VOLUME_DISK, size_bytes, (struct base_id){0});
    doc.volumes[0] = volume;
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    int r = txn_commit_wait(txn, 0, err);
    if (r == 0) {
        *ret_volume = volume;
        *ret_doc = id;
    }
    return r;
}

static int volume_name(struct import_export *all, struct volume_id volume, struct doc_id doc,
        const char *name, uint64_t size_bytes, struct error *err)
{
    struct txn *txn = txn_begin(all->store);
    txn_doc_delete(txn, doc);
    if (size_bytes != 0)
        txn_volume_resize(txn, volume, size_bytes);
    txn_volume_rename(txn, volume, name);
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static void volume_drop(struct import_export *all, struct volume_id volume, struct doc_id doc)
{
    struct txn *txn = txn_begin(all->store);
    txn_doc_delete(txn, doc);
    txn_volume_delete(txn, volume);
    txn_commit_wait(txn, TXN_RESERVE, NULL); // a failed store drops it at its next start
}

int import_export_import(struct import_export *all, const char *name, uint64_t size_bytes,
        struct import_session **ret_session, struct error *err)
{
    if (size_bytes == 0)
        return error_set(err, -EINVAL, "the image is empty; a volume needs at least one byte");
    if (size_bytes > 1ull << DISKS_SIZE_MAX_SHIFT)
        return error_set(
                err, -EINVAL, "an image of %" PRIu64 " bytes is too large; the most is 64 PiB", size_bytes);
    struct import_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return error_set(err, -ENOMEM, "no memory for the import");
    session->all = all;
    session->size_bytes = (size_bytes + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
    int r = names_reserve(all->disks->names, NAMES_DATA, "volume", name, err);
    if (r < 0)
        goto out_free;
    snprintf(session->name, sizeof session->name, "%s", name);
    random_id("imp_", session->id);
    r = volume_begin(all, session->size_bytes, &session->volume, &session->doc, err);
    if (r < 0)
        goto out_name;
    session->window.export = (struct nbd_export){.found = true, .volume = session->volume};
    r = window_open(all, session->id, &session->window, err);
    if (r < 0)
        goto out_volume;
    pthread_mutex_lock(&all->lock);
    session->next = all->imports;
    all->imports = session;
    pthread_mutex_unlock(&all->lock);
    *ret_session = session;
    return 0;

out_volume:
    volume_drop(all, session->volume, session->doc);
out_name:
    names_release(all->disks->names, NAMES_DATA, name);
out_free:
    free(session);
    return r;
}

const char *import_export_import_id(const struct import_session *session)
{
    return session->id;
}

const char *import_export_import_socket(const struct import_session *session)
{
    return session->window.path;
}

static struct import_session *find_locked(struct import_export *all, const char *id)
{
    struct import_session *session = all->imports;
    while (session != NULL && strcmp(session->id, id) != 0)
        session = session->next;
    return session;
}

int import_export_cancel(struct import_export *all, const char *id, struct error *err)
{
    struct import_session *session;
    pthread_mutex_lock(&all->lock);
    bool found = find_locked(all, id) != NULL;
    while ((session = find_locked(all, id)) != NULL) { // until its owner has let go of it
        session->cancelled = true;
        pthread_cond_wait(&all->changed, &all->lock);
    }
    pthread_mutex_unlock(&all->lock);
    return found ? 0 : error_set(err, -ENOENT, "there is no import \"%.40s\"; it has ended", id);
}

// The session stays until end_last_step; nothing writes into its volume any more.
static int begin_last_step(
        struct import_export *all, const char *id, struct import_session **ret_session, struct error *err)
{
    pthread_mutex_lock(&all->lock);
    struct import_session *session = find_locked(all, id);
    bool mine = session != NULL && !session->committing && !session->ending && !session->cancelled &&
                !session->done;
    if (mine)
        session->committing = true; // from here on the session stays until we are through
    pthread_mutex_unlock(&all->lock);
    if (!mine)
        return error_set(err, -ENOENT, "no import \"%.40s\" waits to be completed; it has ended", id);
    window_close(&session->window); // answers what is in flight first
    *ret_session = session;
    return 0;
}

static void end_last_step(struct import_session *session, bool done)
{
    struct import_export *all = session->all;
    if (done)
        names_release(all->disks->names, NAMES_DATA, session->name); // the volume has it now, or needs none
    pthread_mutex_lock(&all->lock);
    session->committing = false;
    session->done = done;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

int import_export_commit(
        struct import_export *all, const char *id, struct volume_id *ret_volume, struct error *err)
{
    struct import_session *session;
    int r = begin_last_step(all, id, &session, err);
    if (r < 0)
        return r;
    r = volume_name(all, session->volume, session->doc, session->name, 0, err);
    if (r == 0)
        *ret_volume = session->volume;
    end_last_step(session, r == 0);
    return r;
}

int import_export_take(struct import_export *all, const char *id, struct volume_id *ret_volume,
        struct doc_id *ret_passing, struct error *err)
{
    struct import_session *session;
    int r = begin_last_step(all, id, &session, err);
    if (r < 0)
        return r;
    *ret_volume = session->volume;
    *ret_passing = session->doc;
    end_last_step(session, true);
    return 0;
}

bool import_export_import_is_over(struct import_session *session)
{
    pthread_mutex_lock(&session->all->lock);
    bool over = session->done || session->cancelled;
    pthread_mutex_unlock(&session->all->lock);
    return over;
}

struct import_session *import_export_import_end(struct import_session *session)
{
    if (session == NULL)
        return NULL;
    struct import_export *all = session->all;
    pthread_mutex_lock(&all->lock);
    while (session->committing)
        pthread_cond_wait(&all->changed, &all->lock);
    session->ending = true;
    pthread_mutex_unlock(&all->lock);
    window_close(&session->window);
    if (!session->done) {
        volume_drop(all, session->volume, session->doc);
        names_release(all->disks->names, NAMES_DATA, session->name);
    }
    pthread_mutex_lock(&all->lock);
    struct import_session **link = &all->imports;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    free(session);
    return NULL;
}

static bool is_zero(const char *bytes, size_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

// Writes what is not zero, in runs of whole blocks; the volume is new, so zeros are there already.
static int write_sparse(struct volume *volume, uint64_t offset, char *bytes, size_t size)
{
    size_t start = 0, at = 0;
    while (at <= size) {
        size_t block = size - at < BLOCK_SIZE ? size - at : BLOCK_SIZE;
        if (at < size && !is_zero(bytes + at, block)) {
            at += block;
            continue;
        }
        if (at > start) {
            int r = volume_write_wait(volume, offset + start, bytes + start, at - start, 0);
            if (r < 0)
                return r;
        }
        if (at == size)
            break;
        at += block;
        start = at;
    }
    return 0;
}

// Reads until the buffer is full or the source ends.
static ssize_t fill(ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        char *buffer, size_t capacity)
{
    size_t used = 0;
    while (used < capacity) {
        ssize_t got = source(context, buffer + used, capacity - used);
        if (got < 0)
            return got;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static int copy_stream(struct volume *volume, uint64_t limit_bytes,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, uint64_t *ret_bytes,
        struct error *err)
{
    char *buffer = io_buffer_alloc(STREAM_BYTES);
    uint64_t offset = 0;
    int r = 0;
    for (;;) {
        ssize_t got = fill(source, context, buffer, STREAM_BYTES);
        if (got < 0) {
            r = error_set(
                    err, (int)got, "the data broke off after %" PRIu64 " bytes; nothing was kept", offset);
            break;
        }
        if ((uint64_t)got > limit_bytes - offset) {
            r = error_set(err, -EINVAL,
                    "more than the %" PRIu64 " bytes came that were announced or are allowed; "
                    "nothing was kept",
                    limit_bytes);
            break;
        }
        if (got > 0)
            r = write_sparse(volume, offset, buffer, (size_t)got);
        if (r < 0) {
            error_set(
                    err, r, "writing at byte %" PRIu64 " failed: %s; nothing was kept", offset, strerror(-r));
            break;
        }
        offset += (uint64_t)got;
        if (got < STREAM_BYTES)
            break;
    }
    io_buffer_free(buffer);
    *ret_bytes = offset;
    return r;
}

int import_export_import_stream(struct import_export *all, const char *name, uint64_t expected_bytes,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct volume_id *ret_volume, uint64_t *ret_padding, struct error *err)
{
    struct volume_id id;
    struct doc_id doc;
    struct volume *volume = NULL;
    uint64_t bytes = 0, limit = expected_bytes == 0 ? STREAM_MAX_BYTES : expected_bytes;
    if (limit > 1ull << DISKS_SIZE_MAX_SHIFT)
        return error_set(err, -EINVAL, "an image of %" PRIu64 " bytes is too large", limit);
    int r = names_reserve(all->disks->names, NAMES_DATA, "volume", name, err);
    if (r < 0)
        return r;
    uint64_t room = (limit + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
    r = volume_begin(all, room, &id, &doc, err);
    if (r < 0)
        goto out;
    r = volume_open(all->store, id, &volume);
    if (r < 0)
        error_set(err, r, "the new volume cannot be opened: %s", strerror(-r));
    else
        r = copy_stream(volume, limit, source, context, &bytes, err);
    volume = volume_close(volume);
    if (r == 0 && bytes == 0)
        r = error_set(err, -EINVAL, "no data came; a volume needs at least one byte");
    if (r == 0 && expected_bytes != 0 && bytes != expected_bytes)
        r = error_set(err, -EINVAL,
                "%" PRIu64 " bytes were announced, but only %" PRIu64 " came; nothing was kept",
                expected_bytes, bytes);
    uint64_t size = (bytes + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
    if (r == 0)
        r = volume_name(all, id, doc, name, size == room ? 0 : size, err);
    if (r < 0) {
        volume_drop(all, id, doc);
    } else {
        *ret_volume = id;
        *ret_padding = size - bytes;
    }
out:
    names_release(all->disks->names, NAMES_DATA, name);
    return r;
}

int import_export_export(
        struct import_export *all, const char *name, struct export_session **ret_session, struct error *err)
{
    char id[ID_SIZE];
    struct export_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return error_set(err, -ENOMEM, "no memory for the export");
    session->all = all;
    int r = disks_pin(all->disks, name, &session->pin, err);
    if (r == 0) {
        random_id("exp_", id);
        session->window.export =
                (struct nbd_export){.found = true, .read_only = true, .base = session->pin.id};
        r = window_open(all, id, &session->window, err);
        if (r < 0)
            disks_unpin(all->disks, &session->pin);
    }
    if (r < 0) {
        free(session);
        return r;
    }
    *ret_session = session;
    return 0;
}

const char *import_export_export_socket(const struct export_session *session)
{
    return session->window.path;
}

uint64_t import_export_export_size(const struct export_session *session)
{
    return base_size_bytes(session->pin.base);
}

struct export_session *import_export_export_end(struct export_session *session)
{
    if (session == NULL)
        return NULL;
    window_close(&session->window);
    disks_unpin(session->all->disks, &session->pin);
    free(session);
    return NULL;
}
