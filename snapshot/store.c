// SPDX-License-Identifier: Apache-2.0
// Making, opening and closing a store; answers about what it holds.
#include "snapshot/store_private.h"

#include "blockstore/cursor.h"
#include "blockstore/fingerprint.h"
#include "blockstore/superblock.h"
#include "snapshot/background.h"
#include "snapshot/checkpoint.h"
#include "snapshot/space.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t DEFAULT_LOG_FILE_BYTES = UINT64_C(64) << 20;
static const uint64_t DEFAULT_LOG_BUDGET_BYTES = UINT64_C(4) << 30;
static const uint64_t DEFAULT_CACHE_BYTES = UINT64_C(64) << 20;
static const uint64_t DEFAULT_FINGERPRINT_BYTES = UINT64_C(256) << 20;
enum { DEFAULT_SPARE_LOG_FILES = 2, DEFAULT_SEAL_SHARE = 4 };

static char *path_of(const char *directory, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        abort();
    return path;
}

uint64_t store_seed(const uint8_t uuid[16])
{
    struct cursor c = cursor_make((void *)uuid, 16);
    return cursor_get_u64(&c);
}

static struct log_config log_config_of(const struct superblock *sb, const char *log_directory)
{
    return (struct log_config){.directory = log_directory,
            .file_bytes = sb->log_file_bytes,
            .budget_bytes = sb->log_budget_bytes,
            .spare_files = sb->spare_log_files,
            .seed = store_seed(sb->uuid)};
}

// ---- Making one ----

static void empty_image(void *context, void **ret_bytes, size_t *ret_size)
{
    *ret_bytes = NULL;
    *ret_size = 0;
}

static void count_name(void *context, const char *name)
{
    bool *ours = context;
    static const char *const known[] = {"log", "segments", "catalog", "lock", "superblock.new", "lost+found"};
    bool match = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        match = match || strcmp(name, known[i]) == 0;
    *ours = *ours && match;
}

// Makes the directory, or accepts one that is empty or holds a store whose making was cut short.
static int make_directory(struct loop *loop, const char *directory, struct error *err)
{
    struct io_op make = {.code = IO_MKDIR, .path = directory, .mode = 0700};
    int r = (int)io_sync(loop, &make);
    if (r < 0 && r != -EEXIST)
        return error_set(err, r, "cannot make %s: %s", directory, strerror(-r));
    bool ours = true;
    r = loop->ops->list_dir(loop, directory, count_name, &ours);
    if (r < 0)
        return error_set(err, r, "cannot list %s: %s", directory, strerror(-r));
    if (!ours)
        return error_set(err, -EEXIST,
                "%s is not empty (a store may be there already); give an empty or new directory", directory);
    return 0;
}

// The store's own name must be durable too, or all of it is gone with its directory entry.
static int sync_parent(struct loop *loop, const char *directory, struct error *err)
{
    size_t end = strlen(directory);
    while (end > 1 && directory[end - 1] == '/')
        end--;
    while (end > 0 && directory[end - 1] != '/')
        end--;
    char *parent =
            end > 0 ? strndup(directory, end) : strdup("."); // with its slash, so that "/" stays itself
    if (parent == NULL)
        abort();
    struct io_op sync = {.code = IO_FSYNC_DIR, .path = parent};
    int r = (int)io_sync(loop, &sync);
    if (r == -EACCES) // somebody else made the directory there, in a place that is not ours to read
        r = 0;
    if (r < 0)
        error_set(err, r, "cannot sync %s: %s", parent, strerror(-r));
    free(parent);
    return r;
}

// An empty directory of the store's; what an earlier, unfinished making left in it goes.
static int make_inside(struct loop *loop, const char *directory, const char *name, struct error *err);

static void remove_name(void *context, const char *name)
{
    void **pair = context;
    char *path = path_of(pair[1], name);
    struct io_op op = {.code = IO_UNLINK, .path = path};
    io_sync(pair[0], &op);
    free(path);
}

static int make_inside(struct loop *loop, const char *directory, const char *name, struct error *err)
{
    char *path = path_of(directory, name);
    struct io_op make = {.code = IO_MKDIR, .path = path, .mode = 0700};
    int r = (int)io_sync(loop, &make);
    void *pair[2] = {loop, path};
    if (r == -EEXIST)
        r = loop->ops->list_dir(loop, path, remove_name, pair);
    if (r < 0)
        error_set(err, r, "cannot make %s: %s", path, strerror(-r));
    free(path);
    return r;
}

int store_init(struct loop *loop, const char *directory, const struct store_config *config, struct error *err)
{
    struct superblock sb = {.log_file_bytes = DEFAULT_LOG_FILE_BYTES,
            .log_budget_bytes = DEFAULT_LOG_BUDGET_BYTES,
            .spare_log_files = DEFAULT_SPARE_LOG_FILES,
            .created_wall_ns = loop->ops->wall_ns(loop)};
    if (config != NULL && config->log_file_bytes != 0)
        sb.log_file_bytes = config->log_file_bytes;
    if (config != NULL && config->log_budget_bytes != 0)
        sb.log_budget_bytes = config->log_budget_bytes;
    if (config != NULL && config->spare_log_files != 0)
        sb.spare_log_files = config->spare_log_files;
    loop->ops->random(loop, sb.uuid, sizeof sb.uuid);
    loop->ops->random(loop, sb.secret, sizeof sb.secret);
    int r = make_directory(loop, directory, err);
    if (r < 0)
        return r;
    char *log_directory = path_of(directory, "log");
    static const char *const inside[] = {"log", "segments", "catalog"};
    for (unsigned i = 0; r == 0 && i < sizeof inside / sizeof inside[0]; i++)
        r = make_inside(loop, directory, inside[i], err);
    struct log_config log_config = log_config_of(&sb, log_directory);
    log_config.image = empty_image;
    if (r == 0)
        r = log_create(loop, &log_config, err);
    if (r == 0)
        r = sync_parent(loop, directory, err);
    if (r == 0)
        r = superblock_write(loop, directory, &sb, err);
    free(log_directory);
    return r;
}

// ---- Opening and closing ----

static void compose_image(void *context, void **ret_bytes, size_t *ret_size)
{
    struct store *store = context;
    pthread_mutex_lock(&store->lock);
    catalog_encode_image(store, ret_bytes, ret_size);
    pthread_mutex_unlock(&store->lock);
}

// Readers share it; it need not be there for them.
int store_lock(struct loop *loop, const char *directory, bool read_only, int *ret_fd, struct error *err)
{
    char *path = path_of(directory, "lock");
    struct io_op open = {
            .code = IO_OPEN, .path = path, .flags = read_only ? O_RDONLY : O_RDWR | O_CREAT, .mode = 0600};
    int64_t fd = io_sync(loop, &open);
    int r = fd == -ENOENT && read_only ? 0
            : fd < 0                   ? (int)fd
                                       : loop->ops->lock_file(loop, (int)fd, read_only);
    *ret_fd = fd < 0 ? -1 : (int)fd;
    if (r == -EBUSY)
        error_set(err, r,
                "store %s is in use by another process (see who holds it: fuser %s); stop that daemon first",
                directory, path);
    else if (r < 0)
        error_set(err, r, "cannot lock %s: %s", path, strerror(-r));
    free(path);
    return r < 0 ? r : 0;
}

static struct store *store_new(
        struct loop **loops, unsigned loop_count, const char *directory, const struct store_config *config)
{
    struct loop *background = config != NULL ? config->background : NULL;
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL || (store->directory = strdup(directory)) == NULL ||
            (store->loops = malloc((loop_count + 1) * sizeof *loops)) == NULL)
        abort();
    memcpy(store->loops, loops, loop_count * sizeof *loops);
    store->loop_count = loop_count;
    store->extra_loop = background != NULL && background->index == loop_count;
    if (store->extra_loop)
        store->loops[loop_count] = background;
    if (config != NULL)
        store->config = *config;
    store->read_only = store->config.read_only;
    store->lock_fd = -1;
    store->txn_tail = &store->txn_head;
    pthread_mutex_init(&store->lock, NULL);
    return store;
}

static void store_free(struct store *store)
{
    store->space.log = NULL;
    recovery_finish(store);
    txn_stop_all(store);
    checkpoint_close(store);
    catalog_free(store);
    node_cache_free(store->node_cache);
    fingerprint_index_free(store->fingerprints);
    pthread_mutex_destroy(&store->lock);
    free(store->directory);
    free(store->loops);
    free(store);
}

static uint64_t or_default(uint64_t value, uint64_t instead)
{
    return value != 0 ? value : instead;
}

static void fill_config(struct store *store, const struct superblock *sb)
{
    struct store_config *config = &store->config;
    config->log_file_bytes = sb->log_file_bytes;
    config->log_budget_bytes = sb->log_budget_bytes;
    config->seal_log_bytes = or_default(config->seal_log_bytes, sb->log_budget_bytes / DEFAULT_SEAL_SHARE);
    config->index_cache_bytes = or_default(config->index_cache_bytes, DEFAULT_CACHE_BYTES);
    config->frame_cache_bytes = or_default(config->frame_cache_bytes, DEFAULT_CACHE_BYTES);
    config->node_cache_bytes = or_default(config->node_cache_bytes, DEFAULT_CACHE_BYTES);
    config->fingerprint_bytes = or_default(config->fingerprint_bytes, DEFAULT_FINGERPRINT_BYTES);
}

static void open_segments(struct store *store, const struct superblock *sb)
{
    char *directory = path_of(store->directory, "segments");
    struct segments_config config = {.directory = directory,
            .seed = store_seed(sb->uuid),
            .index_cache_bytes = store->config.index_cache_bytes,
            .frame_cache_bytes = store->config.frame_cache_bytes,
            .read_only = store->read_only};
    memcpy(config.secret, sb->secret, sizeof config.secret);
    store->segments = segments_new(&config);
    store->node_cache = node_cache_new(store->segments, store->config.node_cache_bytes);
    store->space.cache = store->node_cache;
    store->fingerprints = fingerprint_index_new(store->config.fingerprint_bytes);
    free(directory);
}

static bool may_fill(void *context)
{
    struct store *store = context;
    return store->background == NULL || space_may_fill(store);
}

static bool may_grow(void *context)
{
    struct store *store = context;
    return store->background == NULL || space_may_grow(store); // at the opening nothing grows
}

static int open_log(struct store *store, const struct superblock *sb, struct error *err)
{
    char *log_directory = path_of(store->directory, "log");
    struct log_config config = log_config_of(sb, log_directory);
    config.image = compose_image;
    config.context = store;
    config.only_by_checkpoint = true;
    config.start_file = store->checkpoint->rows.meta.start_file;
    config.durable_seq = store->end_seq;
    config.pressure_files = store->config.seal_log_bytes / config.file_bytes;
    config.pressure = background_pressure;
    config.may_grow = may_grow;
    config.may_fill = may_fill;
    struct log_replay replay = {.image = recovery_image,
            .record = recovery_record,
            .roots = checkpoint_roots_record,
            .context = store,
            .read_only = store->read_only};
    uint64_t start = loop_now_ns(store->loops[0]);
    store->catalog.next_id = 1;
    int r = log_open(store->loops, store->loop_count + (store->extra_loop ? 1 : 0), &config, &replay,
            &store->space.log, err);
    store->log = store->space.log;
    store->recovery_ns = loop_now_ns(store->loops[0]) - start;
    free(log_directory);
    return r;
}

int store_open(struct loop **loops, unsigned loop_count, const char *directory,
        const struct store_config *config, struct store **ret_store, struct error *err)
{
    struct store *store = store_new(loops, loop_count, directory, config);
    struct superblock sb;
    int r = superblock_read(loops[0], directory, &sb, err);
    if (r == 0)
        r = store_lock(loops[0], directory, store->read_only, &store->lock_fd, err);
    if (r == 0)
        r = store_end_read(store, err);
    if (r == 0) {
        if (config != NULL && config->log_budget_bytes != 0)
            sb.log_budget_bytes = config->log_budget_bytes;
        memcpy(store->uuid, sb.uuid, sizeof store->uuid);
        memcpy(store->secret, sb.secret, sizeof store->secret);
        store->created_wall_ns = sb.created_wall_ns;
        fill_config(store, &sb);
        open_segments(store, &sb);
        r = checkpoint_open(store, err);
    }
    if (r == 0)
        r = open_log(store, &sb, err);
    if (r == 0 && !store->read_only)
        r = checkpoint_clear_files(store, err);
    if (r < 0) {
        store->space.log = NULL;
        store->log = log_close(store->log);
        store->segments = segments_free(store->segments, loops[0]);
        log_close_fd(loops[0], store->lock_fd);
        store_free(store);
        return r;
    }
    recovery_finish(store);
    store->background = background_new(store);
    background_start(store);
    *ret_store = store;
    return 0;
}

struct store *store_close(struct store *store)
{
    if (store == NULL)
        return NULL;
    struct loop *loop = store->loops[0];
    background_close(store);
    while (store->txn_running || store->txn_head != NULL)
        for (unsigned i = 0; i < store->loop_count; i++)
            store->loops[i]->ops->run_once(store->loops[i], false);
    store_end_write(store);
    store->space.log = NULL; // trees go without telling the log
    store->log = log_close(store->log);
    struct loop *background = store->config.background;
    while (segments_closing(store->segments)) {
        for (unsigned i = 0; i < store->loop_count; i++)
            store->loops[i]->ops->run_once(store->loops[i], false);
        if (background != NULL)
            background->ops->run_once(background, false);
    }
    store->segments = segments_free(store->segments, loop);
    log_close_fd(loop, store->lock_fd);
    store_free(store);
    return NULL;
}

struct loop *store_loop(struct store *store, unsigned index)
{
    return store->loops[index];
}

unsigned store_loop_count(struct store *store)
{
    return store->loop_count;
}

const char *store_directory(struct store *store)
{
    return store->directory;
}

void store_uuid(struct store *store, uint8_t ret_uuid[16])
{
    memcpy(ret_uuid, store->uuid, sizeof store->uuid);
}

static void stat_sealed(struct store *store, struct store_stat *stat)
{
    struct segments_stat segments;
    struct fingerprint_index_stat fingerprints;
    segments_stat(store->segments, &segments);
    fingerprint_index_stat(store->fingerprints, &fingerprints);
    stat->segments = segments.segments;
    stat->segment_bytes = segments.file_bytes;
    stat->segment_slots_present = segments.present;
    stat->leaving_bytes = segments.leaving_bytes;
    stat->fingerprint_entries = fingerprints.entries;
    stat->fingerprint_bytes = fingerprints.bytes;
    stat->fingerprints_loaded = background_loaded(store);
    stat->background_error = background_error(store);
    stat->checkpoints = store->checkpoint->checkpoints;
    stat->sealed_blocks = store->checkpoint->sealed_blocks;
    stat->dedup_hits = store->checkpoint->dedup_hits;
    stat->zero_blocks = store->checkpoint->zero_blocks;
    const struct collect_memory *memory = &store->checkpoint->memory;
    stat->segment_slots_dead = atomic_load(&memory->dead_slots);
    stat->unique_bytes = atomic_load(&memory->unique_blocks) * BLOCK_SIZE;
    stat->mapped_bytes = atomic_load(&memory->mapped_blocks) * BLOCK_SIZE;
    struct space_use use;
    space_measure(store, &use);
    stat->physical_log_bytes = use.log_bytes;
    stat->physical_segment_bytes = use.segment_bytes;
    stat->catalog_bytes = use.catalog_bytes;
    stat->other_bytes = use.other_bytes;
    stat->physical_bytes = use.log_bytes + use.segment_bytes + use.catalog_bytes + use.other_bytes;
}

void store_stat(struct store *store, struct store_stat *ret_stat)
{
    struct log_stat log;
    log_stat(store->log, &log);
    *ret_stat = (struct store_stat){
            .log_budget_bytes = log.budget_bytes,
            .log_used_bytes = log.used_bytes,
            .log_spare_bytes = log.spare_bytes,
            .live_block_refs = log.live_refs,
            .written_bytes_total = log.written_bytes,
            .sync_count_total = log.sync_count,
            .tree_nodes = atomic_load(&store->space.nodes),
            .appended_seq = log.appended_seq,
            .acknowledged_seq = log.acknowledged_seq,
            .durable_seq = log.durable_seq,
            .recovered_records = log.recovered_records,
            .recovered_bytes = log.recovered_bytes,
            .recovery_ns = store->recovery_ns,
            .failed = log.failed,
            .checkpoint_log_file = log.checkpoint_file,
    };
    stat_sealed(store, ret_stat);
    pthread_mutex_lock(&store->lock);
    ret_stat->volumes = store->catalog.volume_count;
    ret_stat->bases = store->catalog.base_count;
    ret_stat->docs = store->catalog.doc_count;
    for (unsigned i = 0; i < store->catalog.volume_count; i++)
        ret_stat->logical_bytes += store->catalog.volumes[i]->info.size_bytes;
    pthread_mutex_unlock(&store->lock);
}

// ---- Answers: copies, taken under the lock ----

static int volume_answer(struct volume *volume, struct volume_info *ret_info)
{
    if (volume == NULL)
        return -ENOENT;
    *ret_info = volume->info;
    return 0;
}

int store_volume_find(struct store *store, const char *name, struct volume_info *ret_info)
{
    pthread_mutex_lock(&store->lock);
    int r = name[0] == 0 ? -ENOENT : volume_answer(catalog_volume_named(store, name), ret_info);
    pthread_mutex_unlock(&store->lock);
    return r;
}

int store_volume_get(struct store *store, struct volume_id id, struct volume_info *ret_info)
{
    pthread_mutex_lock(&store->lock);
    int r = volume_answer(catalog_volume(store, id.value), ret_info);
    pthread_mutex_unlock(&store->lock);
    return r;
}

void store_volume_list(
        struct store *store, void (*each)(void *context, const struct volume_info *info), void *context)
{
    pthread_mutex_lock(&store->lock);
    unsigned count = store->catalog.volume_count;
    struct volume_info *copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL)
        abort();
    for (unsigned i = 0; i < count; i++)
        copy[i] = store->catalog.volumes[i]->info;
    pthread_mutex_unlock(&store->lock);
    for (unsigned i = 0; i < count; i++)
        each(context, &copy[i]);
    free(copy);
}

static struct base_info base_answer(const struct base *base)
{
    struct base_info info = base->info;
    info.users = base->doc_refs + base->opens;
    return info;
}

int store_base_get(struct store *store, struct base_id id, struct base_info *ret_info)
{
    pthread_mutex_lock(&store->lock);
    struct base *base = catalog_base(store, id.value);
    if (base != NULL)
        *ret_info = base_answer(base);
    pthread_mutex_unlock(&store->lock);
    return base == NULL ? -ENOENT : 0;
}

void store_base_list(
        struct store *store, void (*each)(void *context, const struct base_info *info), void *context)
{
    pthread_mutex_lock(&store->lock);
    unsigned count = store->catalog.base_count;
    struct base_info *copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL)
        abort();
    for (unsigned i = 0; i < count; i++)
        copy[i] = base_answer(store->catalog.bases[i]);
    pthread_mutex_unlock(&store->lock);
    for (unsigned i = 0; i < count; i++)
        each(context, &copy[i]);
    free(copy);
}

int store_doc_find(struct store *store, enum doc_kind kind, const char *name, struct doc *ret_doc)
{
    pthread_mutex_lock(&store->lock);
    struct doc_row *row = name[0] == 0 ? NULL : catalog_doc_named(store, kind, name);
    int r = row == NULL ? -ENOENT : doc_copy(&row->doc, ret_doc);
    pthread_mutex_unlock(&store->lock);
    return r;
}

int store_doc_get(struct store *store, struct doc_id id, struct doc *ret_doc)
{
    pthread_mutex_lock(&store->lock);
    struct doc_row *row = catalog_doc(store, id.value);
    int r = row == NULL ? -ENOENT : doc_copy(&row->doc, ret_doc);
    pthread_mutex_unlock(&store->lock);
    return r;
}

void store_doc_list(struct store *store, enum doc_kind kind,
        void (*each)(void *context, const struct doc *doc), void *context)
{
    pthread_mutex_lock(&store->lock);
    unsigned count = 0;
    struct doc *copy = malloc((store->catalog.doc_count + 1) * sizeof *copy);
    if (copy == NULL)
        abort();
    for (unsigned i = 0; i < store->catalog.doc_count; i++)
        if (store->catalog.docs[i]->doc.kind == kind)
            doc_copy(&store->catalog.docs[i]->doc, &copy[count++]);
    pthread_mutex_unlock(&store->lock);
    for (unsigned i = 0; i < count; i++) {
        each(context, &copy[i]);
        doc_free(&copy[i]);
    }
    free(copy);
}
