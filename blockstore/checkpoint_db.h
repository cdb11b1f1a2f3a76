// SPDX-License-Identifier: Apache-2.0
// The checkpoint: small rows in STORE/catalog (LMDB), always replaced by one transaction. It says where
// replay of the log begins, which segments there are, and the sealed roots of volumes and bases.
//
// Threads: one at a time (the checkpointing task, or start-up). Calls block. Durability: a commit that
// answered 0 is durable; one that failed has changed nothing. After -ENOSPC the next may be tried; after a
// failure of the disk all further ones answer -ESTALE. LMDB does its own I/O,
// outside the seam: a loop whose ops->checkpoint_db is set (the simulator) brings its own implementation, in
// which a commit is one atomic step.
#pragma once

#include "blockstore/error.h"
#include "blockstore/io.h"

enum { CHECKPOINT_VALUE_MAX = 1024 };

struct checkpoint_row {
    uint8_t kind;
    uint64_t id;
    const void *value;
    size_t size; // at most CHECKPOINT_VALUE_MAX
};

typedef int (*checkpoint_row_callback)(void *context, const struct checkpoint_row *row);

struct checkpoint_db;

// The seam. checkpoint_db.c calls these or LMDB.
struct checkpoint_db_ops {
    int (*open)(
            struct loop *loop, const char *directory, bool read_only, void **ret_handle, struct error *err);
    int (*read)(void *handle, checkpoint_row_callback each, void *context);
    int (*commit)(void *handle, const struct checkpoint_row *rows, size_t count);
    void (*close)(void *handle);
};

// `directory` (STORE/catalog) is made when it is missing, unless read_only. read_only: never writes, takes no
// lock, and works beside a running owner and in a directory that may not be written to. The owner is alone:
// whoever opens for writing holds the store's lock. The whole content is checked. -ENOENT: there is no
// checkpoint yet (read_only); -EBADMSG: damaged, cut, empty, missing beside its lock file, or something
// else; -EPROTO: of a newer program. map_bytes: the most that the file can grow to, 0 = default.
int checkpoint_db_open(struct loop *loop, const char *directory, bool read_only, uint64_t map_bytes,
        struct checkpoint_db **ret_db, struct error *err);
struct checkpoint_db *checkpoint_db_close(struct checkpoint_db *db);
// All rows, ascending by kind and id. each() returns < 0 to stop with that result.
int checkpoint_db_read(
        struct checkpoint_db *db, checkpoint_row_callback each, void *context, struct error *err);
// Makes the content exactly `rows` (ascending by kind and id, no doubles); writes only what differs.
int checkpoint_db_commit(
        struct checkpoint_db *db, const struct checkpoint_row *rows, size_t count, struct error *err);
// A commit failed, and so did putting back what it wrote: the next opening may find those rows. What they
// name must stay.
bool checkpoint_db_in_doubt(const struct checkpoint_db *db);
