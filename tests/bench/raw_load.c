// SPDX-License-Identifier: Apache-2.0
// The limit that storage itself sets: 4 KiB random writes to a plain file, O_DIRECT, each batch followed by
// fdatasync.
//
// usage: raw_load FILE QD SECONDS SPAN_BYTES      the file is written through first, so that no allocation is
// measured A batch is QD writes in flight at once (io_uring), all complete before the fdatasync. Prints one
// JSON object.
#include "blockstore/clock.h"
#include "blockstore/io.h"
#include "blockstore/io_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, QD_MAX = 64, FILL = 1024 * 1024, SAMPLES_MAX = 1024 * 1024 };

static unsigned pending;

static void done(struct io_op *op, int64_t result)
{
    if (result != (op->code == IO_FDATASYNC ? 0 : BLOCK)) {
        fprintf(stderr, "raw_load: I/O: %s\n", strerror(result < 0 ? (int)-result : EIO));
        exit(1);
    }
    pending--;
}

static void wait_all(struct loop *loop)
{
    while (pending)
        if (loop->ops->run_once(loop, true) < 0)
            abort();
}

static uint64_t next_random(void)
{
    static uint64_t value = 0x9e3779b97f4a7c15u;
    value ^= value << 13;
    value ^= value >> 7;
    value ^= value << 17;
    return value;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int fill(const char *path, uint64_t span)
{
    struct stat stat;
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &stat) < 0)
        return -errno;
    if ((uint64_t)stat.st_blocks * 512 >= span)
        return fd;
    uint8_t *buffer = io_buffer_alloc(FILL);
    memset(buffer, 0x5a, FILL);
    for (uint64_t at = 0; at < span; at += FILL)
        if (pwrite(fd, buffer, FILL, (off_t)at) != FILL)
            return -errno;
    io_buffer_free(buffer);
    return fsync(fd) < 0 ? -errno : fd;
}

int main(int argc, char **argv)
{
    struct loop *loop;
    unsigned qd = argc == 5 ? (unsigned)atoi(argv[2]) : 0;
    uint64_t span = argc == 5 ? strtoull(argv[4], NULL, 10) / FILL * FILL : 0;
    if (qd < 1 || qd > QD_MAX || span == 0) {
        fprintf(stderr, "usage: raw_load FILE QD SECONDS SPAN_BYTES\n");
        return 2;
    }
    int fd = fill(argv[1], span), result = io_ring_loop_create(0, 128, &loop);
    if (fd < 0 || result < 0) {
        fprintf(stderr, "raw_load: %s: %s\n", argv[1], strerror(fd < 0 ? -fd : -result));
        return 1;
    }
    uint8_t *buffer = io_buffer_alloc((size_t)qd * BLOCK);
    struct io_op ops[QD_MAX], sync = {.code = IO_FDATASYNC, .fd = fd, .done = done};
    struct iovec iov[QD_MAX];
    uint64_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
    uint64_t batches = 0, duration_ns = (uint64_t)(atof(argv[3]) * 1e9), begin = clock_monotonic_ns(),
             last = begin;
    if (!samples)
        abort();
    while (last - begin < duration_ns && batches < SAMPLES_MAX) {
        for (unsigned i = 0; i < qd; i++) {
            uint8_t *block = buffer + (size_t)i * BLOCK;
            for (size_t at = 0; at < BLOCK; at += 8) {
                uint64_t word = next_random();
                memcpy(block + at, &word, sizeof word);
            }
            iov[i] = (struct iovec){block, BLOCK};
            ops[i] = (struct io_op){.code = IO_WRITE,
                    .fd = fd,
                    .iov = &iov[i],
                    .iov_count = 1,
                    .offset = next_random() % (span / BLOCK) * BLOCK,
                    .done = done};
            pending++;
            loop_submit(loop, &ops[i]);
        }
        wait_all(loop);
        pending++;
        loop_submit(loop, &sync);
        wait_all(loop);
        uint64_t now = clock_monotonic_ns();
        samples[batches++] = now - last;
        last = now;
    }
    qsort(samples, batches, sizeof *samples, compare);
    printf("{\"iops\": %.0f, \"p50_iops\": %.0f, \"requests\": %" PRIu64 "}\n",
            (double)(batches * qd) * 1e9 / (double)(last - begin), qd * 1e9 / (double)samples[batches / 2],
            batches * qd);
    free(samples);
    io_buffer_free(buffer);
    close(fd);
    io_ring_loop_destroy(loop);
    return 0;
}
