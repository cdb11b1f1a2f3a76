// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_load.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { DEPTH = 8, BATCH_BLOCKS_MAX = 256, PIECE = BATCH_BLOCKS_MAX * BLOCK_SIZE, SAMPLES_MAX = 1024 * 1024 };

void store_load_die(const char *what, int result)
{
    fprintf(stderr, "store_bench: %s: %s\n", what, strerror(-result));
    exit(1);
}

// ---- Content ----

uint64_t store_load_mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t program_word(uint64_t random)
{
    uint64_t kind = random >> 60, low = random & 0xffffffff;
    if (kind < 9)
        return 0;
    if (kind < 13)
        return UINT64_C(0x7f3a40000000) | (low & 0xfffff0);
    return kind < 15 ? low & 0xff : low;
}

void store_load_page(void *page, uint64_t seed, uint64_t block, enum content content)
{
    uint64_t state = store_load_mix(store_load_mix(seed) ^ block) | 1;
    for (size_t at = 0; at < BLOCK_SIZE; at += sizeof state) {
        uint64_t word = content == CONTENT_RANDOM ? draw(&state) : program_word(draw(&state));
        memcpy((uint8_t *)page + at, &word, sizeof word);
    }
}

uint64_t store_load_block(const struct pages *pages, uint64_t i)
{
    return pages->first + i * pages->stride + store_load_mix(pages->seed + i) % pages->stride;
}

static int open_file(const char *path, int flags, uint64_t *ret_size)
{
    struct stat stat;
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) < 0)
        store_load_die(path, -errno);
    *ret_size = (uint64_t)stat.st_size;
    return fd;
}

static void write_page(int fd, const char *path, const void *page, uint64_t block)
{
    if (pwrite(fd, page, BLOCK_SIZE, (off_t)(block << BLOCK_SHIFT)) != BLOCK_SIZE)
        store_load_die(path, errno ? -errno : -EIO);
}

void store_load_pages_file(const char *path, const struct pages *pages)
{
    uint8_t page[BLOCK_SIZE];
    uint64_t size;
    int fd = open_file(path, O_WRONLY, &size);
    for (uint64_t i = 0; i < pages->count; i++) {
        uint64_t block = store_load_block(pages, i);
        if (block >= size >> BLOCK_SHIFT)
            store_load_die(path, -ERANGE);
        store_load_page(page, pages->seed, block, pages->content);
        write_page(fd, path, page, block);
    }
    close(fd);
}

void store_load_memory_file(const char *path, uint64_t seed, const char *source)
{
    uint8_t page[BLOCK_SIZE];
    uint64_t size, source_size;
    int fd = open_file(path, O_WRONLY, &size), from = open_file(source, O_RDONLY, &source_size);
    for (uint64_t block = 0; block < size >> BLOCK_SHIFT; block++) {
        uint64_t random = store_load_mix(store_load_mix(seed) ^ block);
        if (random % 4 < 2)
            continue;
        if (random % 4 == 2) {
            off_t at = (off_t)((random >> 8) % (source_size >> BLOCK_SHIFT) << BLOCK_SHIFT);
            if (pread(from, page, BLOCK_SIZE, at) != BLOCK_SIZE)
                store_load_die(source, errno ? -errno : -EIO);
        } else {
            store_load_page(page, seed, block, CONTENT_PROGRAM);
        }
        write_page(fd, path, page, block);
    }
    close(from);
    close(fd);
}

// ---- Writers ----

// Requests in flight and their buffers.
struct writer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned free_count, free[DEPTH];
    int failure;
    struct volume *volume;
    struct volume_io io[DEPTH];
    uint8_t *buffers[DEPTH];
    uint64_t blocks[DEPTH][BATCH_BLOCKS_MAX];
};

static void written(struct volume_io *io, int result)
{
    struct writer *writer = io->context;
    pthread_mutex_lock(&writer->lock);
    writer->free[writer->free_count++] = (unsigned)(io - writer->io);
    if (result < 0)
        writer->failure = result;
    pthread_cond_signal(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static void writer_begin(struct writer *writer, struct volume *volume)
{
    *writer = (struct writer){.volume = volume, .free_count = DEPTH};
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    for (unsigned i = 0; i < DEPTH; i++) {
        writer->free[i] = i;
        writer->buffers[i] = io_buffer_alloc(PIECE);
    }
}

static unsigned writer_take(struct writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    while (writer->free_count == 0)
        pthread_cond_wait(&writer->changed, &writer->lock);
    unsigned slot = writer->free[--writer->free_count];
    int failure = writer->failure;
    pthread_mutex_unlock(&writer->lock);
    if (failure < 0)
        store_load_die("a write failed", failure);
    return slot;
}

static void writer_submit(
        struct writer *writer, unsigned slot, enum volume_op op, uint64_t offset, uint64_t length)
{
    bool scattered = op == VOLUME_WRITE_BLOCKS;
    writer->io[slot] = (struct volume_io){.op = op,
            .offset = scattered ? 0 : offset,
            .length = scattered ? 0 : length,
            .buffer = writer->buffers[slot],
            .blocks = scattered ? writer->blocks[slot] : NULL,
            .block_count = scattered ? (unsigned)(length >> BLOCK_SHIFT) : 0,
            .done = written,
            .context = writer};
    volume_submit(writer->volume, &writer->io[slot]);
}

static void writer_end(struct writer *writer)
{
    for (unsigned i = 0; i < DEPTH; i++)
        writer_take(writer);
    for (unsigned i = 0; i < DEPTH; i++)
        io_buffer_free(writer->buffers[i]);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    int result = volume_flush_wait(writer->volume);
    if (result < 0)
        store_load_die("the flush failed", result);
}

void store_load_pages(struct volume *volume, const struct pages *pages)
{
    static struct writer writer;
    unsigned batch = pages->batch < BATCH_BLOCKS_MAX ? pages->batch : BATCH_BLOCKS_MAX;
    writer_begin(&writer, volume);
    for (uint64_t i = 0; i < pages->count;) {
        unsigned slot = writer_take(&writer), taken = 0;
        for (; taken < batch && i < pages->count; taken++, i++) {
            writer.blocks[slot][taken] = store_load_block(pages, i);
            store_load_page(writer.buffers[slot] + (size_t)taken * BLOCK_SIZE, pages->seed,
                    writer.blocks[slot][taken], pages->content);
        }
        bool run = pages->stride == 1 || taken == 1;
        writer_submit(&writer, slot, run ? VOLUME_WRITE : VOLUME_WRITE_BLOCKS,
                writer.blocks[slot][0] << BLOCK_SHIFT, (uint64_t)taken << BLOCK_SHIFT);
    }
    writer_end(&writer);
}

uint64_t store_load_copy(struct volume *volume, const char *path)
{
    static struct writer writer;
    uint64_t size, bytes = 0;
    int fd = open_file(path, O_RDONLY, &size);
    off_t at = 0, end;
    if (size > volume_size_bytes(volume))
        store_load_die(path, -EFBIG);
    writer_begin(&writer, volume);
    while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
        end = lseek(fd, at, SEEK_HOLE);
        while (at < end) {
            unsigned slot = writer_take(&writer);
            ssize_t got = pread(fd, writer.buffers[slot], end - at < PIECE ? (size_t)(end - at) : PIECE, at);
            if (got <= 0)
                store_load_die(path, got < 0 ? -errno : -EIO);
            writer_submit(&writer, slot, VOLUME_WRITE, (uint64_t)at, (uint64_t)got);
            at += got;
            bytes += (uint64_t)got;
        }
    }
    if (errno != ENXIO)
        store_load_die(path, -errno);
    close(fd);
    writer_end(&writer);
    return bytes;
}

void store_load_compare(struct volume *volume, const char *path)
{
    uint64_t size;
    int fd = open_file(path, O_RDONLY, &size);
    uint8_t *ours = io_buffer_alloc(PIECE), *theirs = io_buffer_alloc(PIECE);
    off_t at = 0, end;
    while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
        end = lseek(fd, at, SEEK_HOLE);
        for (size_t length; at < end; at += (off_t)length) {
            length = end - at < PIECE ? (size_t)(end - at) : PIECE;
            int result = volume_read_wait(volume, (uint64_t)at, ours, length);
            if (result < 0 || pread(fd, theirs, length, at) != (ssize_t)length)
                store_load_die(path, result < 0 ? result : -EIO);
            if (memcmp(ours, theirs, length) != 0) {
                fprintf(stderr, "store_bench: the volume differs from %s in the MiB at %lld\n", path,
                        (long long)at);
                exit(1);
            }
        }
    }
    if (errno != ENXIO)
        store_load_die(path, -errno);
    io_buffer_free(theirs);
    io_buffer_free(ours);
    close(fd);
}

// ---- Latencies ----

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t store_load_median(uint64_t *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, ascending);
    return samples[count / 2];
}

void store_load_reads(struct volume *volume, const struct places *places, uint64_t duration_ns,
        _Atomic bool *go_on, struct latencies *ret_latencies)
{
    static uint64_t samples[SAMPLES_MAX];
    uint64_t state = store_load_mix(clock_monotonic_ns()) | 1, begin = clock_monotonic_ns(), before = begin;
    uint64_t blocks = places->span_bytes >> BLOCK_SHIFT;
    uint64_t distance = volume_size_bytes(volume) / places->runs >> BLOCK_SHIFT << BLOCK_SHIFT;
    uint8_t *page = io_buffer_alloc(BLOCK_SIZE);
    size_t count = 0;
    while (before - begin < duration_ns || *go_on) {
        uint64_t random = draw(&state);
        uint64_t offset = (random >> 32) % places->runs * distance + (random % blocks << BLOCK_SHIFT);
        int result = volume_read_wait(volume, offset, page, BLOCK_SIZE);
        uint64_t now = clock_monotonic_ns();
        if (result < 0)
            store_load_die("a read failed", result);
        samples[count++ % SAMPLES_MAX] = now - before;
        before = now;
    }
    io_buffer_free(page);
    size_t kept = count < SAMPLES_MAX ? count : SAMPLES_MAX;
    if (kept == 0)
        store_load_die("there was no time to read", -ETIME);
    uint64_t p50 = store_load_median(samples, kept);
    *ret_latencies = (struct latencies){p50, samples[kept - 1 - kept / 100], count};
}
