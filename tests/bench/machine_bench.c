// SPDX-License-Identifier: Apache-2.0
// usage: machine_bench [--quick] [--json FILE] [--others N] [start] [pause] [memory] [branch]
// With --others, everything is measured beside N idle machines (growth), and rows say so.
// Prints JSON rows (and writes them to FILE); progress goes to standard error. Medians of interleaved
// measurements.
#include "tests/bench/machine_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void samples_add(struct samples *samples, double value)
{
    if (samples->count < sizeof samples->values / sizeof *samples->values)
        samples->values[samples->count++] = value;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double samples_percentile(struct samples *samples, unsigned percent)
{
    if (samples->count == 0)
        rig_fail("a benchmark measured nothing");
    qsort(samples->values, samples->count, sizeof *samples->values, compare);
    unsigned rank = (samples->count * percent + 99) / 100;
    return samples->values[rank > 0 ? rank - 1 : 0];
}

static double rounded(double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.4g", value);
    return strtod(text, NULL);
}

void bench_row(struct bench *bench, int number, const char *measure, double ours, double peer, double ratio,
        const char *goal, int met, const char *unit, const char *peer_name)
{
    char text[200];
    if (bench->others == 0)
        snprintf(text, sizeof text, "%s", measure);
    else
        snprintf(text, sizeof text, "%s, beside %u idle machines", measure, bench->others);
    measure = text;
    json_t *row = json_pack("{s:i, s:s, s:f, s:f, s:f, s:s, s:s, s:s}", "row", number, "measure", measure,
            "ours", rounded(ours), "peer", rounded(peer), "ratio", rounded(ratio), "goal", goal, "unit", unit,
            "peer_name", peer_name);
    json_object_set_new(row, "met", met < 0 ? json_null() : json_boolean(met));
    json_array_append_new(bench->rows, row);
    fprintf(stderr, "  row %d: %s: %.4g against %.4g %s (%s), ratio %.4g, goal %s%s\n", number, measure, ours,
            peer, unit, peer_name, ratio, goal,
            met < 0 ? ""
            : met   ? ": met"
                    : ": not met");
}

void bench_row_times(struct bench *bench, int number, const char *measure, double ours, double peer,
        double times, const char *unit, const char *peer_name)
{
    char goal[32];
    snprintf(goal, sizeof goal, ">= %g", times);
    bench_row(bench, number, measure, ours, peer, peer / ours, goal, peer / ours >= times, unit, peer_name);
}

void bench_delete(struct rig *rig, struct doc_id snapshot)
{
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    txn_doc_delete(txn, snapshot);
    if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
        rig_fail("%s", err.text);
}

int main(int argc, char **argv)
{
    const char *json_path = NULL;
    unsigned count = 0;
    bool quick = false, start = false, pause_part = false, memory = false, branch = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json_path = argv[++i];
        else if (strcmp(argv[i], "--others") == 0 && i + 1 < argc)
            count = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "start") == 0)
            start = true;
        else if (strcmp(argv[i], "pause") == 0)
            pause_part = true;
        else if (strcmp(argv[i], "memory") == 0)
            memory = true;
        else if (strcmp(argv[i], "branch") == 0)
            branch = true;
        else {
            fprintf(stderr, "usage: machine_bench [--quick] [--json FILE] [--others N] [start] [pause] "
                            "[memory] [branch]\n");
            return 2;
        }
    }
    struct rig rig;
    rig_open(&rig, "bench");
    struct bench bench = {.rig = &rig, .quick = quick, .others = count, .rows = json_array()};
    struct others *others = others_start(&rig, count);
    bool all = !start && !pause_part && !memory && !branch;
    if (all || start)
        bench_start(&bench);
    if (all || pause_part)
        bench_pause(&bench);
    if (all || memory)
        bench_memory(&bench);
    if (all || branch)
        bench_branch(&bench);
    others_end(others);
    rig_close(&rig);
    json_dumpf(bench.rows, stdout, JSON_INDENT(1));
    printf("\n");
    if (json_path != NULL && json_dump_file(bench.rows, json_path, JSON_INDENT(1)) != 0)
        rig_fail("cannot write %s", json_path);
    json_decref(bench.rows);
    return 0;
}
