// SPDX-License-Identifier: Apache-2.0
// A load generator over NBD for benchmarks: the same lean client for every server that is compared.
//
// usage: nbd_load SOCKET EXPORT read|write|flush QD SECONDS SPAN_BYTES
//   read   4 KiB random reads, QD in flight
//   write  4 KiB random writes, QD in flight
//   flush  like write, and a FLUSH after every QD writes, answered before the next write is sent
//   first  one 4 KiB read at offset 0 after connecting; prints how long connect, handshake and read took
// Prints one JSON object: iops, p50_us and p99_us (of a request; of a whole batch with its FLUSH), p50_iops
// (QD requests in the median time: what other work on the machine disturbs least), requests, seconds.
// Threads: one.
#include "blockstore/clock.h"
#include "vmglue/nbd_protocol.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BLOCK = 4096, QD_MAX = 64, SAMPLES_MAX = 4 * 1024 * 1024, INPUT = 512 * 1024 };

struct load {
    int fd;
    bool writes, flushes;
    unsigned qd;
    uint64_t blocks;
    uint64_t random;
    uint64_t sent_ns[QD_MAX];
    uint32_t *samples; // latencies in ns
    size_t sample_count;
    uint8_t output[QD_MAX * (NBD_REQUEST_BYTES + BLOCK)];
    size_t output_bytes;
    uint8_t input[INPUT];
    size_t input_bytes;
};

static void die(const char *what)
{
    fprintf(stderr, "nbd_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void send_all(int fd, const void *bytes, size_t size)
{
    while (size) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0)
            die("send");
        bytes = (const char *)bytes + sent;
        size -= (size_t)sent;
    }
}

static void receive_all(int fd, void *bytes, size_t size)
{
    while (size) {
        ssize_t got = recv(fd, bytes, size, 0);
        if (got <= 0)
            die("the server closed the connection");
        bytes = (char *)bytes + got;
        size -= (size_t)got;
    }
}

// ---- Handshake ----

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die(path);
    return fd;
}

static uint64_t negotiate(int fd, const char *export)
{
    uint8_t greeting[18], reply[20], data[4096];
    struct nbd_writer out = {0};
    uint64_t size_bytes = 0;
    receive_all(fd, greeting, sizeof greeting);
    nbd_writer_u32(&out, NBD_HANDSHAKE_FIXED_NEWSTYLE | NBD_HANDSHAKE_NO_ZEROES);
    nbd_writer_u64(&out, NBD_OPTION_MAGIC);
    nbd_writer_u32(&out, NBD_OPT_GO);
    nbd_writer_u32(&out, (uint32_t)(strlen(export) + 6));
    nbd_writer_u32(&out, (uint32_t)strlen(export));
    nbd_writer_bytes(&out, export, strlen(export));
    nbd_writer_u16(&out, 0);
    send_all(fd, out.bytes, out.size);
    nbd_writer_free(&out);
    for (;;) {
        receive_all(fd, reply, sizeof reply);
        struct nbd_cursor cursor = nbd_cursor_over(reply + 12, 8);
        uint32_t type = nbd_cursor_u32(&cursor), bytes = nbd_cursor_u32(&cursor);
        if (bytes > sizeof data || type >= NBD_REP_ERR_UNSUP) {
            errno = EPROTO;
            die(export);
        }
        receive_all(fd, data, bytes);
        if (type == NBD_REP_ACK)
            return size_bytes;
        cursor = nbd_cursor_over(data, bytes);
        if (nbd_cursor_u16(&cursor) == NBD_INFO_EXPORT)
            size_bytes = nbd_cursor_u64(&cursor);
    }
}

// ---- Load ----

static uint64_t next_random(struct load *load)
{
    load->random ^= load->random << 13;
    load->random ^= load->random >> 7;
    load->random ^= load->random << 17;
    return load->random;
}

static void put_request(struct load *load, unsigned type, unsigned slot, uint64_t offset, uint32_t length)
{
    uint8_t *to = load->output + load->output_bytes;
    nbd_protocol_put_u32(to, NBD_REQUEST_MAGIC);
    nbd_protocol_put_u16(to + 4, 0);
    nbd_protocol_put_u16(to + 6, (uint16_t)type);
    nbd_protocol_put_u64(to + 8, slot);
    nbd_protocol_put_u64(to + 16, offset);
    nbd_protocol_put_u32(to + 24, length);
    load->output_bytes += NBD_REQUEST_BYTES;
    if (type == NBD_CMD_WRITE) {
        // Content that neither compresses nor repeats.
        for (size_t i = 0; i < BLOCK; i += 8) {
            uint64_t word = next_random(load);
            memcpy(to + NBD_REQUEST_BYTES + i, &word, sizeof word);
        }
        load->output_bytes += BLOCK;
    }
}

static void issue(struct load *load, unsigned slot, uint64_t now)
{
    load->sent_ns[slot] = now;
    put_request(load, load->writes ? NBD_CMD_WRITE : NBD_CMD_READ, slot,
            next_random(load) % load->blocks * BLOCK, BLOCK);
}

// Takes the replies that are completely here; answers their number and puts their slots into `slots`.
static unsigned take_replies(struct load *load, unsigned slots[QD_MAX])
{
    unsigned count = 0;
    size_t at = 0, reply_bytes = NBD_SIMPLE_REPLY_BYTES + (load->writes ? 0 : BLOCK);
    uint64_t now = clock_monotonic_ns();
    while (load->input_bytes - at >= reply_bytes) {
        struct nbd_cursor cursor = nbd_cursor_over(load->input + at, NBD_SIMPLE_REPLY_BYTES);
        uint32_t magic = nbd_cursor_u32(&cursor), error = nbd_cursor_u32(&cursor);
        uint64_t slot = nbd_cursor_u64(&cursor);
        if (magic != NBD_SIMPLE_REPLY_MAGIC || error || slot >= QD_MAX) {
            errno = error ? (int)error : EPROTO;
            die("reply");
        }
        if (load->sample_count < SAMPLES_MAX && !load->flushes)
            load->samples[load->sample_count++] = (uint32_t)(now - load->sent_ns[slot]);
        slots[count++] = (unsigned)slot;
        at += reply_bytes;
    }
    memmove(load->input, load->input + at, load->input_bytes - at);
    load->input_bytes -= at;
    return count;
}

static void send_output(struct load *load)
{
    send_all(load->fd, load->output, load->output_bytes);
    load->output_bytes = 0;
}

static unsigned wait_replies(struct load *load, unsigned slots[QD_MAX])
{
    unsigned count;
    while ((count = take_replies(load, slots)) == 0) {
        ssize_t got = recv(load->fd, load->input + load->input_bytes, INPUT - load->input_bytes, 0);
        if (got <= 0)
            die("the server closed the connection");
        load->input_bytes += (size_t)got;
    }
    return count;
}

static uint64_t run(struct load *load, uint64_t duration_ns)
{
    unsigned slots[QD_MAX], in_flight = load->qd;
    uint64_t begin = clock_monotonic_ns(), now = begin, done = 0;
    for (unsigned i = 0; i < load->qd; i++)
        issue(load, i, now);
    send_output(load);
    while (in_flight) {
        unsigned count = wait_replies(load, slots);
        bool go_on;
        now = clock_monotonic_ns();
        go_on = now - begin < duration_ns;
        done += count;
        in_flight -= count;
        if (load->flushes) {
            if (in_flight)
                continue;
            put_request(load, NBD_CMD_FLUSH, 0, 0, 0);
            send_output(load);
            wait_replies(load, slots);
            now = clock_monotonic_ns();
            if (load->sample_count < SAMPLES_MAX)
                load->samples[load->sample_count++] = (uint32_t)(now - load->sent_ns[0]);
            count = load->qd;
            for (unsigned i = 0; i < count; i++)
                slots[i] = i;
        }
        for (unsigned i = 0; go_on && i < count; i++, in_flight++)
            issue(load, slots[i], now);
        if (load->output_bytes)
            send_output(load);
    }
    load->sent_ns[0] = clock_monotonic_ns() - begin;
    return done;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int first_byte(const char *socket_path, const char *export)
{
    uint8_t reply[NBD_SIMPLE_REPLY_BYTES + BLOCK];
    static struct load load;
    uint64_t begin = clock_monotonic_ns();
    load.fd = connect_to(socket_path);
    negotiate(load.fd, export);
    put_request(&load, NBD_CMD_READ, 0, 0, BLOCK);
    send_output(&load);
    receive_all(load.fd, reply, sizeof reply);
    printf("{\"first_byte_us\": %.1f}\n", (double)(clock_monotonic_ns() - begin) / 1000);
    return 0;
}

int main(int argc, char **argv)
{
    static struct load load;
    if (argc == 4 && strcmp(argv[3], "first") == 0)
        return first_byte(argv[1], argv[2]);
    if (argc != 7 || atoi(argv[4]) < 1 || atoi(argv[4]) > QD_MAX) {
        fprintf(stderr, "usage: nbd_load SOCKET EXPORT read|write|flush|first [QD SECONDS SPAN_BYTES]\n");
        return 2;
    }
    load.flushes = strcmp(argv[3], "flush") == 0;
    load.writes = load.flushes || strcmp(argv[3], "write") == 0;
    load.qd = (unsigned)atoi(argv[4]);
    load.blocks = strtoull(argv[6], NULL, 10) / BLOCK;
    load.random = 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
    load.samples = malloc(SAMPLES_MAX * sizeof *load.samples);
    load.fd = connect_to(argv[1]);
    uint64_t size_bytes = negotiate(load.fd, argv[2]);
    if (!load.samples || load.blocks == 0 || load.blocks > size_bytes / BLOCK) {
        fprintf(stderr, "nbd_load: the span must be between 4096 and the export's size, %" PRIu64 "\n",
                size_bytes);
        return 2;
    }
    uint64_t done = run(&load, (uint64_t)(atof(argv[5]) * 1e9));
    double seconds = (double)load.sent_ns[0] / 1e9;
    qsort(load.samples, load.sample_count, sizeof *load.samples, compare);
    double p50_us = load.samples[load.sample_count / 2] / 1e3;
    double p99_us = load.samples[load.sample_count / 100 * 99] / 1e3;
    printf("{\"iops\": %.0f, \"p50_iops\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"requests\": %" PRIu64
           ", \"seconds\": %.3f}\n",
            (double)done / seconds, load.qd * 1e6 / p50_us, p50_us, p99_us, done, seconds);
    return 0;
}
