// SPDX-License-Identifier: Apache-2.0
// Snapshots and forks in mid-sentence: while a flood of output, uploads and downloads run through the
// source's agent, it is captured again and again, and each child is asked at once. Transfers in the source
// end with the right bytes; a child's first answer holds nothing of its parent's streams; its clock is the
// host's.
#include "blockstore/clock.h"
#include "tests/e2e/cases.h"

#include "vmglue/agent_protocol.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRANSFER_BYTES = 12 << 20, FLOOD_LINES = 400000, CLOCK_ERROR_MS = 500 };

struct traffic {
    struct machine *source;
    atomic_bool stop;
    unsigned floods, transfers;
    uint32_t flood_crc, transfer_crc;
    const uint8_t *content;
    size_t given;
};

static void add_crc(void *context, int stream, const void *bytes, size_t size)
{
    struct traffic *traffic = context;
    if (stream == 1)
        traffic->flood_crc = agent_crc32c(traffic->flood_crc, bytes, size);
}

static uint32_t expected_flood(void)
{
    uint32_t crc = 0;
    char line[20];
    for (unsigned i = 1; i <= FLOOD_LINES; i++)
        crc = agent_crc32c(crc, line, (size_t)snprintf(line, sizeof line, "%u\n", i));
    return crc;
}

static void *flood(void *argument)
{
    struct traffic *traffic = argument;
    uint32_t expected = expected_flood();
    while (!traffic->stop) {
        char command[80];
        snprintf(command, sizeof command, "seq %u | tee /dev/stderr; exit 5", FLOOD_LINES);
        struct agent_exec exec = {.shell_command = command, .on_output = add_crc, .context = traffic};
        struct agent_exec_result result;
        struct error err;
        traffic->flood_crc = 0;
        if (agent_exec_run(traffic->source->agent, &exec, &result, &err) < 0)
            rig_fail("the flood: %s", err.text);
        if (result.exit_code != 5 || traffic->flood_crc != expected)
            rig_fail("the flood ended with %d and %s bytes", result.exit_code,
                    traffic->flood_crc == expected ? "the right" : "wrong");
        traffic->floods++;
    }
    return NULL;
}

static ssize_t give(void *context, void *buffer, size_t capacity)
{
    struct traffic *traffic = context;
    size_t size = TRANSFER_BYTES - traffic->given;
    size = size < capacity ? size : capacity;
    memcpy(buffer, traffic->content + traffic->given, size);
    traffic->given += size;
    return (ssize_t)size;
}

static int take(void *context, const void *bytes, size_t size)
{
    struct traffic *traffic = context;
    traffic->transfer_crc = agent_crc32c(traffic->transfer_crc, bytes, size);
    return 0;
}

static void *transfer(void *argument)
{
    struct traffic *traffic = argument;
    uint32_t expected = agent_crc32c(0, traffic->content, TRANSFER_BYTES);
    while (!traffic->stop) {
        struct error err;
        traffic->given = 0;
        traffic->transfer_crc = 0;
        if (agent_file_write(traffic->source->agent, "upload", 0, give, traffic, &err) < 0)
            rig_fail("the upload: %s", err.text);
        if (agent_file_read(traffic->source->agent, "upload", take, traffic, &err) < 0)
            rig_fail("the download: %s", err.text);
        if (traffic->transfer_crc != expected)
            rig_fail("a file that was uploaded and downloaded again has other bytes");
        traffic->transfers++;
    }
    return NULL;
}

static double clock_error_ms(struct machine *machine)
{
    double begin = (double)clock_wall_ns() / 1e6;
    char *out = machine_shell(machine, "date +%%s%%N");
    double end = (double)clock_wall_ns() / 1e6, guest = strtod(out, NULL) / 1e6;
    free(out);
    return guest < begin ? guest - begin : guest > end ? guest - end : 0;
}

static void ask_child(struct machine *child)
{
    char expected[60], *out = machine_shell(child, "echo I am $(hostname); echo here >&2");
    snprintf(expected, sizeof expected, "I am %s\n", child->id);
    if (strcmp(out, expected) != 0)
        rig_fail("the first answer of %s is '%.200s'", child->id, out);
    free(out);
    // The time travels with the after-fork step: it may be late by as long as a slow host needed for that.
    double error_ms = clock_error_ms(child),
           step_ms = (double)(child->stages.ready_ns - child->stages.connected_ns) / 1e6,
           bound_ms = step_ms > CLOCK_ERROR_MS ? step_ms : CLOCK_ERROR_MS;
    if (error_ms > bound_ms || error_ms < -bound_ms)
        rig_fail("the clock of %s is %.0f ms wrong", child->id, error_ms);
    // The parent's processes go on in the child, though nobody reads their output: the flood ends by itself.
    free(machine_shell(child,
            "while pgrep -x seq > /dev/null; do sleep 0.05; done; [ ! -e upload ] || ls -la upload; "
            "ls -A | grep -F .ramet- && exit 1; true"));
}

void case_traffic(struct rig *rig, unsigned rounds)
{
    struct traffic traffic = {.source = machine_boot(rig, "source")};
    uint8_t *content = malloc(TRANSFER_BYTES);
    for (size_t i = 0; content != NULL && i < TRANSFER_BYTES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 11);
    traffic.content = content;
    pthread_t threads[2];
    if (content == NULL || pthread_create(&threads[0], NULL, flood, &traffic) != 0 ||
            pthread_create(&threads[1], NULL, transfer, &traffic) != 0)
        rig_fail("cannot start the traffic");
    for (unsigned round = 1; round <= rounds; round++) {
        struct capture_request request = machine_capture_request(traffic.source, NULL);
        struct capture_result result;
        char id[20];
        machine_capture(&request, &result);
        snprintf(id, sizeof id, "child-%u", round);
        struct machine *child = machine_resume(rig, id, result.ids.machine);
        ask_child(child);
        printf("round %u: processes stood still %.1f ms, pause %.1f ms; child ready in %.0f ms\n", round,
                (double)result.figures.freeze_ns / 1e6, (double)result.figures.pause_ns / 1e6,
                (double)child->ready_ns / 1e6);
        machine_end(child, false);
        struct error err;
        struct txn *txn = txn_begin(rig->store);
        txn_doc_delete(txn, result.ids.machine);
        if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
            rig_fail("%s", err.text);
    }
    traffic.stop = true;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("%u rounds: %u floods of %u lines on both streams and %u transfers of %u MiB each way went "
           "through the source\n",
            rounds, traffic.floods, FLOOD_LINES, traffic.transfers, TRANSFER_BYTES >> 20);
    machine_end(traffic.source, false);
    free(content);
}
