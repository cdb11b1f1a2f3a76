// SPDX-License-Identifier: Apache-2.0
// Shared by model_judge.c (catalog, passes) and model_block.c (the bytes of one block).
#pragma once

#include "tests/crash/fill.h"
#include "tests/crash/layout.h"
#include "tests/crash/model.h"

enum { CANDIDATES_MAX = 64, PARTS_MAX = 64 };

struct judge {
    struct model *model;
    const struct picture *picture; // NULL when only one read is judged
    enum model_mode mode;
    uint64_t before;  // live: what was answered before this moment is required
    uint64_t reached; // power cut: what was answered before this moment is in the log's surviving prefix
    char witness[96]; // what proved that
    bool gathering;   // first pass: no verdicts
    char *why;
    size_t why_size;
    bool guilty;
};

// What decides whether an operation must be there.
struct rule {
    const struct judge *judge;
    const struct model_base *base; // NULL = a volume or the catalog
};

// A run of bytes of one block that the same operations cover.
struct part {
    unsigned from, to;
    const struct model_entry *shown[CANDIDATES_MAX];
    unsigned shown_count;
};

__attribute__((format(printf, 2, 3))) void model_block_blame(struct judge *judge, const char *format, ...);
void model_block_reached(struct judge *judge, uint64_t moment, const char *what, uint64_t number);
bool model_block_required(const struct rule *rule, const struct model_op *op);
void model_block_judge(struct judge *judge, const struct rule *rule, const char *what,
        const struct model_base *parent, const struct model_history *history, uint64_t index, uint64_t number,
        const uint8_t *bytes, unsigned from, unsigned to);
void model_block_judge_content(struct judge *judge, const struct rule *rule, const char *what,
        const struct model_base *parent, const struct model_history *block, bool vast,
        const struct picture_content *content);
