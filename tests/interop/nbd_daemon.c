// SPDX-License-Identifier: Apache-2.0
// A small daemon for tests: a store, its NBD exports, and commands on standard input.
//
// usage: nbd_daemon STORE SOCKET [LOOPS [NEGOTIATION_MS [LOG_BUDGET_BYTES [PAYLOAD_BYTES [STALL_MS
//   [CACHE_BYTES]]]]]]       (0 = the usual value; CACHE_BYTES: of uncompressed frames)
//   create NAME BYTES | many PREFIX COUNT (PREFIX0 of one block, PREFIX1 of two, ...) | fork SNAPSHOT NAME |
//   snapshot VOLUME NAME | rm NAME | resize NAME BYTES | stat | flush
// Every command is answered by one line, "ok ..." or "error TEXT". The store is made when the directory holds
// none. Exports: volumes by name, then snapshots by name. It ends, cleanly, at the end of its input.
#include "blockstore/clock.h"
#include "blockstore/io_ring.h"
#include "snapshot/txn.h"
#include "vmglue/nbd_budget.h"
#include "vmglue/nbd_server.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOPS_MAX = 8 };

static struct store *store;
static struct nbd_budget budget;

static void die(const struct error *err)
{
    fprintf(stderr, "nbd_daemon: %s\n", err->text);
    exit(1);
}

// ---- Exports ----

static void resolve(void *context, const char *name, struct nbd_export *ret_export)
{
    struct volume_info volume;
    struct doc doc;
    if (store_volume_find(store, name, &volume) >= 0) {
        ret_export->found = true;
        ret_export->volume = volume.id;
        snprintf(ret_export->description, sizeof ret_export->description, "volume %s", name);
    } else if (store_doc_find(store, DOC_SNAPSHOT, name, &doc) >= 0) {
        ret_export->found = doc.base_count > 0;
        ret_export->base = doc.bases[0];
        snprintf(ret_export->description, sizeof ret_export->description, "snapshot %s", name);
        doc_free(&doc);
    }
}

struct listing {
    void (*each)(void *context, const char *name, const char *description);
    void *context;
};

static void list_volume(void *context, const struct volume_info *info)
{
    struct listing *listing = context;
    if (info->name[0])
        listing->each(listing->context, info->name, "volume");
}

static void list_doc(void *context, const struct doc *doc)
{
    struct listing *listing = context;
    listing->each(listing->context, doc->name, "snapshot");
}

static void list(void *context, void (*each)(void *each_context, const char *name, const char *description),
        void *each_context)
{
    struct listing listing = {each, each_context};
    store_volume_list(store, list_volume, &listing);
    store_doc_list(store, DOC_SNAPSHOT, list_doc, &listing);
}

// ---- Commands ----

static int find_snapshot(const char *name, struct doc *ret_doc, struct error *err)
{
    int result = store_doc_find(store, DOC_SNAPSHOT, name, ret_doc);
    return result < 0 ? error_set(err, result, "no snapshot named %s", name) : 0;
}

static int find_volume(const char *name, struct volume_info *ret_info, struct error *err)
{
    int result = store_volume_find(store, name, ret_info);
    return result < 0 ? error_set(err, result, "no volume named %s", name) : 0;
}

static int command_create(const char *name, const char *bytes, struct error *err)
{
    struct txn *txn = txn_begin(store);
    txn_volume_create(txn, name, VOLUME_DISK, strtoull(bytes, NULL, 10), (struct base_id){0});
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static int command_many(const char *prefix, const char *count, struct error *err)
{
    int result = 0;
    for (unsigned i = 0, total = (unsigned)atoi(count); i < total && result >= 0; i++) {
        char name[STORE_NAME_MAX + 1];
        struct txn *txn = txn_begin(store);
        snprintf(name, sizeof name, "%s%u", prefix, i);
        txn_volume_create(txn, name, VOLUME_DISK, (i + 1) * (uint64_t)BLOCK_SIZE, (struct base_id){0});
        result = txn_commit_wait(txn, 0, err);
    }
    return result;
}

static int command_fork(const char *snapshot, const char *name, struct error *err)
{
    struct doc doc;
    int result = find_snapshot(snapshot, &doc, err);
    if (result < 0)
        return result;
    struct txn *txn = txn_begin(store);
    txn_volume_create(txn, name, VOLUME_DISK, 0, doc.bases[0]);
    doc_free(&doc);
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static int command_snapshot(const char *volume, const char *name, struct error *err)
{
    struct volume_info info;
    int result = find_volume(volume, &info, err);
    if (result < 0)
        return result;
    struct txn *txn = txn_begin(store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .base_count = 1, .body = "{}", .body_bytes = 2};
    doc.bases[0] = txn_freeze(txn, info.id);
    snprintf(doc.name, sizeof doc.name, "%s", name);
    txn_doc_put(txn, &doc, NULL, 0);
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static int command_rm(const char *name, struct error *err)
{
    struct volume_info info;
    struct doc doc;
    if (store_volume_find(store, name, &info) >= 0) {
        struct txn *txn = txn_begin(store);
        txn_volume_delete(txn, info.id);
        return txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
    }
    int result = find_snapshot(name, &doc, err);
    if (result < 0)
        return result;
    struct txn *txn = txn_begin(store);
    txn_doc_delete(txn, doc.id);
    doc_free(&doc);
    return txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
}

static int command_resize(const char *name, const char *bytes, struct error *err)
{
    struct volume_info info;
    int result = find_volume(name, &info, err);
    if (result < 0)
        return result;
    struct txn *txn = txn_begin(store);
    txn_volume_resize(txn, info.id, strtoull(bytes, NULL, 10));
    return txn_commit_wait(txn, TXN_DURABLE, err);
}

static int command_forktime(const char *volume, const char *count, struct error *err)
{
    struct volume_info info;
    int result = find_volume(volume, &info, err);
    if (result < 0)
        return result;
    printf("ok [");
    for (long i = 0, total = atol(count); i < total; i++) {
        uint64_t begin_ns = clock_monotonic_ns();
        struct txn *txn = txn_begin(store);
        struct volume_id child = txn_volume_create(txn, "", VOLUME_DISK, 0, txn_freeze(txn, info.id));
        result = txn_commit_wait(txn, TXN_DURABLE, err);
        uint64_t ns = clock_monotonic_ns() - begin_ns;
        if (result < 0)
            return result;
        printf("%s%" PRIu64, i ? "," : "", ns);
        txn = txn_begin(store);
        txn_volume_delete(txn, child);
        result = txn_commit_wait(txn, 0, err);
        if (result < 0)
            return result;
    }
    printf("]\n");
    return 0;
}

static void print_stat(struct nbd_server *server)
{
    struct store_stat stat;
    struct nbd_server_stat nbd;
    uint64_t enters = 0;
    store_stat(store, &stat);
    size_t payload_bytes, payload_peak_bytes;
    nbd_server_stat(server, &nbd);
    nbd_budget_stat(&budget, &payload_bytes, &payload_peak_bytes);
    for (unsigned i = 0; i < store_loop_count(store); i++)
        enters += io_ring_enter_count(store_loop(store, i));
    printf("ok {\"log_used_bytes\":%" PRIu64 ",\"written_bytes_total\":%" PRIu64
           ",\"sync_count_total\":%" PRIu64 ",\"live_block_refs\":%" PRIu64 ",\"volumes\":%" PRIu64
           ",\"recovered_records\":%" PRIu64 ",\"connections\":%u,\"connections_total\":%" PRIu64
           ",\"requests_total\":%" PRIu64 ",\"errors_total\":%" PRIu64 ",\"receives_total\":%" PRIu64
           ",\"sends_total\":%" PRIu64 ",\"enters\":%" PRIu64
           ",\"payload_bytes\":%zu,\"payload_peak_bytes\":%zu}\n",
            stat.log_used_bytes, stat.written_bytes_total, stat.sync_count_total, stat.live_block_refs,
            stat.volumes, stat.recovered_records, nbd_server_connections(server), nbd.connections_total,
            nbd.requests_total, nbd.errors_total, nbd.receives_total, nbd.sends_total, enters, payload_bytes,
            payload_peak_bytes);
}

static void run_command(struct nbd_server *server, char *line)
{
    char *save = NULL;
    const char *verb = strtok_r(line, " \n", &save);
    const char *first = strtok_r(NULL, " \n", &save);
    const char *second = strtok_r(NULL, " \n", &save);
    struct error err = {.text = "unknown command, or words are missing"};
    int result = -EINVAL;
    if (verb && strcmp(verb, "stat") == 0) {
        print_stat(server);
        return;
    }
    if (verb && second && strcmp(verb, "forktime") == 0) {
        if (command_forktime(first, second, &err) < 0)
            printf("error %s\n", err.text);
        return;
    }
    if (verb && strcmp(verb, "flush") == 0) {
        result = store_flush(store);
        snprintf(err.text, sizeof err.text, "flush: %s", strerror(-result));
    } else if (verb && strcmp(verb, "seal") == 0) {
        result = store_seal(store, &err);
    } else if (verb && strcmp(verb, "gc") == 0) {
        struct store_gc_result collected;
        result = store_gc(store, 0, &collected, &err);
    } else if (verb && first && strcmp(verb, "rm") == 0) {
        result = command_rm(first, &err);
    } else if (verb && second && strcmp(verb, "create") == 0) {
        result = command_create(first, second, &err);
    } else if (verb && second && strcmp(verb, "many") == 0) {
        result = command_many(first, second, &err);
    } else if (verb && second && strcmp(verb, "fork") == 0) {
        result = command_fork(first, second, &err);
    } else if (verb && second && strcmp(verb, "snapshot") == 0) {
        result = command_snapshot(first, second, &err);
    } else if (verb && second && strcmp(verb, "resize") == 0) {
        result = command_resize(first, second, &err);
    }
    if (result < 0)
        printf("error %s\n", err.text);
    else
        printf("ok\n");
}

// ---- Start ----

static void open_store(struct loop **loops, unsigned loop_count, const char *directory,
        uint64_t log_budget_bytes, uint64_t cache_bytes)
{
    // A log with a budget is small and in small files; the store then has a quota, so that a test can fill
    // it.
    const struct store_config config = {.log_file_bytes = log_budget_bytes ? 1024 * 1024 : 0,
            .log_budget_bytes = log_budget_bytes,
            .quota_bytes = 3 * log_budget_bytes,
            .frame_cache_bytes = cache_bytes};
    struct error err;
    char superblock[4096];
    snprintf(superblock, sizeof superblock, "%s/superblock", directory);
    if (access(superblock, F_OK) < 0 && store_init(loops[0], directory, &config, &err) < 0)
        die(&err);
    if (store_open(loops, loop_count, directory, &config, &store, &err) < 0)
        die(&err);
}

static uint64_t argument(int argc, char **argv, int index)
{
    return argc > index ? strtoull(argv[index], NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    struct loop *loops[LOOPS_MAX];
    struct error err;
    struct nbd_server *server;
    int listen_fd;
    if (argc < 3) {
        fprintf(stderr, "usage: nbd_daemon STORE SOCKET [LOOPS [NEGOTIATION_MS [LOG_BUDGET_BYTES "
                        "[PAYLOAD_BYTES [STALL_MS [CACHE_BYTES]]]]]]\n");
        return 2;
    }
    unsigned loop_count = argc > 3 ? (unsigned)atoi(argv[3]) : 2;
    if (loop_count < 1 || loop_count > LOOPS_MAX)
        return 2;
    for (unsigned i = 0; i < loop_count; i++) {
        int result = io_ring_loop_create(i, 256, &loops[i]);
        if (result < 0) {
            fprintf(stderr, "nbd_daemon: no io_uring: %s\n", strerror(-result));
            return 1;
        }
    }
    open_store(loops, loop_count, argv[1], argument(argc, argv, 5), argument(argc, argv, 8));
    uint64_t payload_bytes = argument(argc, argv, 6);
    nbd_budget_init(&budget, payload_bytes ? payload_bytes : NBD_BUDGET_DEFAULT_BYTES);
    for (unsigned i = 0; i < loop_count; i++) {
        if (io_ring_thread_start(loops[i]) < 0)
            return 1;
    }
    if (unix_socket_listen(argv[2], SOCK_STREAM, 0600, &listen_fd, &err) < 0)
        die(&err);
    struct nbd_server_config config = {
            .store = store,
            .loop = loops[0],
            .listen_fd = listen_fd,
            .negotiation_timeout_ns = argument(argc, argv, 4) * 1000000,
            .budget = &budget,
            .stall_timeout_ns = argument(argc, argv, 7) * 1000000,
            .resolve = resolve,
            .list = list,
    };
    if (nbd_server_start(&config, &server, &err) < 0)
        die(&err);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    char line[1024];
    while (fgets(line, sizeof line, stdin))
        run_command(server, line);
    nbd_server_stop(server);
    close(listen_fd);
    for (unsigned i = 0; i < loop_count; i++)
        io_ring_thread_stop(loops[i]);
    store_close(store);
    for (unsigned i = 0; i < loop_count; i++)
        io_ring_loop_destroy(loops[i]);
    return 0;
}
