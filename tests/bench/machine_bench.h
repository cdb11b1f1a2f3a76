// SPDX-License-Identifier: Apache-2.0
// Benchmarks of machines: rows 10, 11 and 12 of the list of goals. Each part adds its rows.
#pragma once

#include "tests/e2e/cases.h"
#include "vmglue/json.h"

struct bench {
    struct rig *rig;
    bool quick;
    unsigned others; // machines that run idle beside what is measured
    json_t *rows;
};

struct samples {
    double values[512];
    unsigned count;
};
void samples_add(struct samples *samples, double value);
double samples_percentile(struct samples *samples, unsigned percent); // nearest rank; 50 = median

// ours, peer and ratio are what the table shows; met < 0: no goal for this row.
void bench_row(struct bench *bench, int number, const char *measure, double ours, double peer, double ratio,
        const char *goal, int met, const char *unit, const char *peer_name);
// Smaller is better: the ratio says how many times smaller ours is.
void bench_row_times(struct bench *bench, int number, const char *measure, double ours, double peer,
        double times, const char *unit, const char *peer_name);
void bench_delete(struct rig *rig, struct doc_id snapshot);

// machine_others.c: boots one, and resumes `count` idle ones from its snapshot, which is deleted.
struct others;
struct others *others_start(struct rig *rig, unsigned count);
struct others *others_end(struct others *others);
void bench_forget_image(struct rig *rig, struct base_id image); // drops its pages from the page cache

void bench_start(struct bench *bench);
void bench_pause(struct bench *bench);
void bench_memory(struct bench *bench);
void bench_branch(struct bench *bench);
