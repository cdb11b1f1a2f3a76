// SPDX-License-Identifier: Apache-2.0
// The superblock: STORE/superblock, two checksummed copies of one 4 KiB block, written once at creation.
//
//   off  size  field                               off  size  field
//     0     8  magic "RAMETST1"                      48     8  log file bytes
//     8     4  format version (1)                    56     8  log budget bytes
//    12     4  feature words that a reader must know 64     4  spare log files
//    16    16  uuid                                  72    32  fingerprint secret
//    32     8  checksum (XXH3-64, field zero)       104     8  created, wall clock ns
//    40     8  features that a reader may ignore
// A reader refuses a higher version and any unknown must-know feature (-EPROTO).
#pragma once

#include "blockstore/error.h"
#include "blockstore/io.h"
#include "blockstore/task.h"

struct superblock {
    uint32_t version, must_features;
    uint64_t may_features;
    uint8_t uuid[16];
    uint64_t log_file_bytes, log_budget_bytes;
    uint32_t spare_log_files;
    uint8_t secret[32];
    uint64_t created_wall_ns;
};

// One copy (4 KiB). 0, -EBADMSG, or -EPROTO (*ret_superblock is filled then).
int superblock_decode(const void *block, struct superblock *ret_superblock);
// Looks at both copies: damaged() gets a sentence for each thing that is not as it was written.
int superblock_check(struct task *task, const char *directory,
        void (*damaged)(void *context, const char *sentence), void *context, struct error *err);

// Both drive the loop (start-up only).
int superblock_write(
        struct loop *loop, const char *directory, const struct superblock *superblock, struct error *err);
int superblock_read(
        struct loop *loop, const char *directory, struct superblock *ret_superblock, struct error *err);
