// SPDX-License-Identifier: Apache-2.0
// A store in one process, driven by commands on standard input: what the benchmarks of the engine itself use.
//
// usage: store_bench STORE      (made when the directory holds none; one shard, one loop for background work)
//   create NAME BYTES disk|memory | snapshot VOLUME NAME | fork SNAPSHOT NAME | rm NAME | stat
//   pages NAME SEED FIRST STRIDE COUNT r|p BATCH     generated blocks, durable (store_load.h)
//   copy FILE NAME | compare FILE NAME               what a file holds, durable | it is equal, or the program
//   ends seal | gc | recompress                           the background work of that name, waited for reads
//   NAME SECONDS SPAN_BYTES                    random 4 KiB reads, one in flight reads_gc NAME SPAN_BYTES the
//   same for as long as a collection takes that runs beside forktime NAME COUNT | opentime NAME COUNT
//   medians: a durable fork; open and read the first block index COUNT CAP_BYTES the fingerprint index alone,
//   given so many entries
// and, for files: pages_file FILE SEED FIRST STRIDE COUNT r|p | memory_file FILE SEED SOURCE
// Each command is answered by one JSON object in a line; "ns" is how long it took. Anything that fails ends
// the program with a sentence. At the start it says how long opening took.
#include "blockstore/clock.h"
#include "blockstore/fingerprint.h"
#include "blockstore/io_ring.h"
#include "tests/bench/store_load.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOPS = 2, WORDS_MAX = 9, TIMES_MAX = 1000 };

static struct store *store;

static void check(int result, const struct error *err)
{
    if (result < 0) {
        fprintf(stderr, "store_bench: %s\n", err->text);
        exit(1);
    }
}

static uint64_t number(const char *word)
{
    return strtoull(word, NULL, 10);
}

// ---- Names ----

static struct volume_info find_volume(const char *name)
{
    struct volume_info info;
    int result = store_volume_find(store, name, &info);
    if (result < 0)
        store_load_die(name, result);
    return info;
}

static struct volume *open_volume(const char *name)
{
    struct volume *volume;
    int result = volume_open(store, find_volume(name).id, &volume);
    if (result < 0)
        store_load_die(name, result);
    return volume;
}

static void commit(struct txn *txn)
{
    struct error err;
    check(txn_commit_wait(txn, TXN_DURABLE, &err), &err);
}

static void create(char **words)
{
    struct txn *txn = txn_begin(store);
    txn_volume_create(txn, words[1], words[3][0] == 'm' ? VOLUME_MEMORY : VOLUME_DISK, number(words[2]),
            (struct base_id){0});
    commit(txn);
}

static void snapshot(char **words)
{
    struct txn *txn = txn_begin(store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .base_count = 1, .body = "{}", .body_bytes = 2};
    doc.bases[0] = txn_freeze(txn, find_volume(words[1]).id);
    snprintf(doc.name, sizeof doc.name, "%s", words[2]);
    txn_doc_put(txn, &doc, NULL, 0);
    commit(txn);
}

static struct doc find_snapshot(const char *name)
{
    struct doc doc;
    int result = store_doc_find(store, DOC_SNAPSHOT, name, &doc);
    if (result < 0)
        store_load_die(name, result);
    return doc;
}

static void fork_snapshot(char **words)
{
    struct doc doc = find_snapshot(words[1]);
    struct base_info base;
    struct txn *txn = txn_begin(store);
    int result = store_base_get(store, doc.bases[0], &base);
    if (result < 0)
        store_load_die(words[1], result);
    txn_volume_create(txn, words[2], base.kind, 0, doc.bases[0]);
    doc_free(&doc);
    commit(txn);
}

static void rm(char **words)
{
    struct txn *txn = txn_begin(store);
    struct volume_info info;
    if (store_volume_find(store, words[1], &info) >= 0) {
        txn_volume_delete(txn, info.id);
    } else {
        struct doc doc = find_snapshot(words[1]);
        txn_doc_delete(txn, doc.id);
        doc_free(&doc);
    }
    commit(txn);
}

// ---- Work ----

static struct pages pages_of(char **words)
{
    return (struct pages){.seed = number(words[2]),
            .first = number(words[3]),
            .stride = number(words[4]),
            .count = number(words[5]),
            .content = (enum content)words[6][0]};
}

static void pages(char **words)
{
    struct pages pages = pages_of(words);
    struct volume *volume = open_volume(words[1]);
    pages.batch = (unsigned)number(words[7]);
    store_load_pages(volume, &pages);
    volume_close(volume);
}

static void pages_file(char **words)
{
    struct pages pages = pages_of(words);
    store_load_pages_file(words[1], &pages);
}

static void memory_file(char **words)
{
    store_load_memory_file(words[1], number(words[2]), words[3]);
}

static void copy(char **words)
{
    struct volume *volume = open_volume(words[2]);
    printf("\"bytes\":%" PRIu64 ",", store_load_copy(volume, words[1]));
    volume_close(volume);
}

static void compare(char **words)
{
    struct volume *volume = open_volume(words[2]);
    store_load_compare(volume, words[1]);
    volume_close(volume);
}

static void seal(char **words)
{
    struct error err;
    (void)words;
    check(store_seal(store, &err), &err);
}

static void collect(unsigned flags)
{
    struct error err;
    struct store_gc_result result;
    check(store_gc(store, flags, &result, &err), &err);
    printf("\"live_slots\":%" PRIu64 ",\"dead_slots\":%" PRIu64 ",\"freed_bytes\":%" PRIu64
           ",\"rewritten_bytes\":%" PRIu64 ",",
            result.live_slots, result.dead_slots, result.freed_bytes, result.rewritten_bytes);
}

static void gc(char **words)
{
    collect(words[0][0] == 'r' ? STORE_GC_RECOMPRESS : 0);
}

static void print_latencies(const struct latencies *latencies)
{
    printf("\"p50_ns\":%" PRIu64 ",\"p99_ns\":%" PRIu64 ",\"count\":%" PRIu64 ",", latencies->p50_ns,
            latencies->p99_ns, latencies->count);
}

static void reads(char **words)
{
    _Atomic bool go_on = false;
    struct latencies latencies;
    struct volume *volume = open_volume(words[1]);
    struct places places = {number(words[3]), number(words[4])};
    store_load_reads(volume, &places, (uint64_t)(atof(words[2]) * 1e9), &go_on, &latencies);
    volume_close(volume);
    print_latencies(&latencies);
}

static void *collect_beside(void *go_on)
{
    collect(0);
    *(_Atomic bool *)go_on = false;
    return NULL;
}

static void reads_gc(char **words)
{
    _Atomic bool go_on = true;
    struct latencies latencies;
    struct volume *volume = open_volume(words[1]);
    pthread_t thread;
    int result = pthread_create(&thread, NULL, collect_beside, &go_on);
    if (result > 0)
        store_load_die("no thread", -result);
    struct places places = {number(words[2]), 1};
    store_load_reads(volume, &places, 0, &go_on, &latencies);
    pthread_join(thread, NULL);
    volume_close(volume);
    print_latencies(&latencies);
}

// ---- Medians ----

static void print_median(uint64_t *samples, size_t count)
{
    if (count == 0)
        store_load_die("nothing was measured", -EINVAL);
    printf("\"median_ns\":%" PRIu64 ",", store_load_median(samples, count));
}

static void forktime(char **words)
{
    uint64_t samples[TIMES_MAX];
    size_t count = number(words[2]) < TIMES_MAX ? number(words[2]) : TIMES_MAX;
    struct volume_info info = find_volume(words[1]);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = clock_monotonic_ns();
        struct txn *txn = txn_begin(store);
        struct volume_id child = txn_volume_create(txn, "", info.kind, 0, txn_freeze(txn, info.id));
        commit(txn);
        samples[i] = clock_monotonic_ns() - begin;
        txn = txn_begin(store);
        txn_volume_delete(txn, child);
        commit(txn);
    }
    print_median(samples, count);
}

static void opentime(char **words)
{
    uint64_t samples[TIMES_MAX];
    size_t count = number(words[2]) < TIMES_MAX ? number(words[2]) : TIMES_MAX;
    uint8_t *page = io_buffer_alloc(BLOCK_SIZE);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = clock_monotonic_ns();
        struct volume *volume = open_volume(words[1]);
        int result = volume_read_wait(volume, 0, page, BLOCK_SIZE);
        if (result < 0)
            store_load_die(words[1], result);
        samples[i] = clock_monotonic_ns() - begin;
        volume_close(volume);
    }
    io_buffer_free(page);
    print_median(samples, count);
}

static struct fingerprint fingerprint_number(uint64_t i)
{
    return (struct fingerprint){store_load_mix(2 * i), store_load_mix(2 * i + 1)};
}

static void index_alone(char **words)
{
    uint64_t count = number(words[1]), found = 0;
    struct fingerprint_index *index = fingerprint_index_new(number(words[2]));
    struct fingerprint_index_stat stat;
    enum { TRIED = 100000 };
    uint64_t step = count / TRIED + 1, tried = 0;
    for (uint64_t i = 0; i < count; i++)
        fingerprint_index_put(index, fingerprint_number(i), locator_segment(i / 16384 + 1, i % 16384));
    for (uint64_t i = 0; i < count; i += step, tried++) {
        locator_t candidates[FINGERPRINT_CANDIDATES_MAX];
        found += fingerprint_index_find(index, fingerprint_number(i), candidates) > 0;
    }
    fingerprint_index_stat(index, &stat);
    fingerprint_index_free(index);
    printf("\"entries\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"evicted\":%" PRIu64 ",\"found_share\":%.4f,",
            stat.entries, stat.bytes, stat.evicted, (double)found / (double)tried);
}

static void print_stat(char **words)
{
    struct store_stat stat;
    (void)words;
    store_stat(store, &stat);
    printf("\"log_used_bytes\":%" PRIu64 ",\"written_bytes_total\":%" PRIu64 ",\"segments\":%" PRIu64
           ",\"segment_bytes\":%" PRIu64 ",\"segment_slots_present\":%" PRIu64 ",\"catalog_bytes\":%" PRIu64
           ",\"fingerprint_entries\":%" PRIu64 ",\"fingerprint_bytes\":%" PRIu64 ",\"sealed_blocks\":%" PRIu64
           ",\"dedup_hits\":%" PRIu64 ",\"zero_blocks\":%" PRIu64 ",",
            stat.log_used_bytes, stat.written_bytes_total, stat.segments, stat.segment_bytes,
            stat.segment_slots_present, stat.catalog_bytes, stat.fingerprint_entries, stat.fingerprint_bytes,
            stat.sealed_blocks, stat.dedup_hits, stat.zero_blocks);
}

// ---- Commands ----

static const struct command {
    const char *name;
    int words; // with its name
    void (*run)(char **words);
} commands[] = {{"create", 4, create}, {"snapshot", 3, snapshot}, {"fork", 3, fork_snapshot}, {"rm", 2, rm},
        {"stat", 1, print_stat}, {"pages", 8, pages}, {"copy", 3, copy}, {"compare", 3, compare},
        {"seal", 1, seal}, {"gc", 1, gc}, {"recompress", 1, gc}, {"reads", 5, reads},
        {"reads_gc", 3, reads_gc}, {"forktime", 3, forktime}, {"opentime", 3, opentime},
        {"index", 3, index_alone}, {"pages_file", 7, pages_file}, {"memory_file", 4, memory_file}};

static void run_line(char *line)
{
    char *words[WORDS_MAX] = {NULL}, *save = NULL;
    int count = 0;
    for (char *word = strtok_r(line, " \n", &save); word && count < WORDS_MAX;
            word = strtok_r(NULL, " \n", &save))
        words[count++] = word;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (count != commands[i].words || strcmp(words[0], commands[i].name) != 0)
            continue;
        uint64_t begin = clock_monotonic_ns();
        printf("{");
        commands[i].run(words);
        printf("\"ns\":%" PRIu64 "}\n", clock_monotonic_ns() - begin);
        return;
    }
    store_load_die(count ? words[0] : "an empty line", -EINVAL);
}

int main(int argc, char **argv)
{
    struct loop *loops[LOOPS];
    struct store_config config = {0};
    struct store_stat stat;
    struct error err;
    char superblock[4096], line[8192];
    if (argc != 2) {
        fprintf(stderr, "usage: store_bench STORE (commands on standard input)\n");
        return 2;
    }
    for (unsigned i = 0; i < LOOPS; i++) {
        int result = io_ring_loop_create(i, 256, &loops[i]);
        if (result < 0)
            store_load_die("no io_uring", result);
    }
    snprintf(superblock, sizeof superblock, "%s/superblock", argv[1]);
    if (access(superblock, F_OK) < 0)
        check(store_init(loops[0], argv[1], &config, &err), &err);
    config.background = loops[1];
    uint64_t begin = clock_monotonic_ns();
    check(store_open(loops, 1, argv[1], &config, &store, &err), &err);
    uint64_t open_ns = clock_monotonic_ns() - begin;
    for (unsigned i = 0; i < LOOPS; i++)
        if (io_ring_thread_start(loops[i]) < 0)
            store_load_die("no thread", -EAGAIN);
    store_stat(store, &stat);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"recovered_records\":%" PRIu64 ",\"recovered_bytes\":%" PRIu64 ",\"recovery_ns\":%" PRIu64
           ",\"ns\":%" PRIu64 "}\n",
            stat.recovered_records, stat.recovered_bytes, stat.recovery_ns, open_ns);
    while (fgets(line, sizeof line, stdin))
        run_line(line);
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_thread_stop(loops[i]);
    store_close(store);
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_loop_destroy(loops[i]);
    return 0;
}
