// SPDX-License-Identifier: Apache-2.0
// Rows in LMDB. LMDB does the committing only: everything is read through checkpoint_file.h, which trusts
// nothing and needs neither lock nor reader's slot. So readers beside a running owner leave nothing behind
// when they are killed, work in directories that they may not write to, and the owner is never brought down
// by a damaged file: before each commit the whole file is checked, then LMDB follows it.
//
// The environment is made in DIRECTORY/creating and only its finished data file moves to its place. An empty
// or missing data.mdb beside a lock.mdb is therefore damage, never a new catalog.
#include "blockstore/checkpoint_db.h"

#include "blockstore/checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAP_BYTES_DEFAULT (UINT64_C(16) << 30) // of address space; the file is as large as its rows
#define MIB (UINT64_C(1) << 20)

struct checkpoint_db {
    const struct checkpoint_db_ops *ops; // of the simulator; NULL: LMDB
    void *handle;
    bool read_only;
    bool failed; // the disk fails: no more commits
    bool in_doubt;
    uint64_t map_bytes;
    char *directory, *data_path;
    int fd;       // data.mdb, for reading
    MDB_env *env; // NULL: read_only, or to be opened again
    MDB_dbi dbi;
};

static int from_lmdb(int code)
{
    switch (code) {
    case MDB_SUCCESS:
        return 0;
    case MDB_MAP_FULL:
    case MDB_TXN_FULL:
    case EDQUOT:
        return -ENOSPC;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
        return -EBADMSG;
    case MDB_VERSION_MISMATCH:
        return -EPROTO;
    default:
        return code > 0 ? -code : -EIO;
    }
}

// Files and directories

static int make_path(const char *directory, const char *name, char ret_path[PATH_MAX], struct error *err)
{
    if (snprintf(ret_path, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
        return error_set(err, -ENAMETOOLONG, "the path of %s/%s is too long", directory, name);
    return 0;
}

static int sync_directory(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r < 0 ? error_set(err, r, "cannot sync the directory %s: %s", path, strerror(-r)) : 0;
}

static int sync_parent(const char *path, struct error *err)
{
    char parent[PATH_MAX];
    return make_path(path, "..", parent, err) < 0 ? -ENAMETOOLONG : sync_directory(parent, err);
}

// What a creation that was interrupted, or is finished, leaves behind.
static int creating_remove(const char *creating, struct error *err)
{
    static const char *const names[] = {"data.mdb", "lock.mdb"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[PATH_MAX];
        int r = make_path(creating, names[i], path, err);
        if (r < 0)
            return r;
        if (unlink(path) < 0 && errno != ENOENT) {
            r = -errno;
            return error_set(err, r, "cannot remove %s: %s", path, strerror(-r));
        }
    }
    if (rmdir(creating) < 0 && errno != ENOENT) {
        int r = -errno;
        return error_set(err, r, "cannot remove the directory %s: %s", creating, strerror(-r));
    }
    return 0;
}

// Whether there is a catalog: 1, or 0 when there has never been one.
static int catalog_exists(const struct checkpoint_db *db, struct error *err)
{
    struct stat stat;
    if (lstat(db->data_path, &stat) == 0)
        return 1;
    int r = -errno;
    if (r != -ENOENT)
        return error_set(err, r, "cannot look for %s: %s", db->data_path, strerror(-r));
    char lock[PATH_MAX];
    r = make_path(db->directory, "lock.mdb", lock, err);
    if (r < 0)
        return r;
    if (lstat(lock, &stat) == 0)
        return error_set(err, -EBADMSG,
                "%s is missing: %s is there, so there was one; put a copy of it back, or rebuild the catalog",
                db->data_path, lock);
    r = -errno;
    return r == -ENOENT ? 0 : error_set(err, r, "cannot look for %s: %s", lock, strerror(-r));
}

// LMDB

static int env_open(
        const char *directory, uint64_t map_bytes, MDB_env **ret_env, MDB_dbi *ret_dbi, struct error *err)
{
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi dbi = 0;
    int dead = 0;
    int code = mdb_env_create(&env);
    if (code == 0)
        code = mdb_env_set_mapsize(env, map_bytes);
    if (code == 0)
        code = mdb_env_open(env, directory, MDB_NOTLS, 0600);
    if (code == 0) // slots of other programs' readers that died would keep the file growing
        code = mdb_reader_check(env, &dead);
    if (code == 0)
        code = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
    if (code == 0)
        code = mdb_dbi_open(txn, NULL, 0, &dbi);
    if (code == 0)
        code = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    if (code == 0) {
        *ret_env = env;
        *ret_dbi = dbi;
        return 0;
    }
    if (env != NULL)
        mdb_env_close(env);
    if (code == ENOMEM)
        return error_set(err, -ENOMEM,
                "cannot reserve %llu MiB of address space for the catalog %s: raise the limit of address "
                "space "
                "(ulimit -v), or open the catalog with a smaller map",
                (unsigned long long)(map_bytes / MIB), directory);
    return error_set(err, from_lmdb(code), "cannot open the catalog %s: %s", directory, mdb_strerror(code));
}

static int put(MDB_txn *txn, MDB_dbi dbi, const void *key, size_t key_size, const void *value, size_t size)
{
    MDB_val k = {key_size, (void *)key}, v = {size, (void *)value};
    return mdb_put(txn, dbi, &k, &v, 0);
}

static int put_header(MDB_txn *txn, MDB_dbi dbi, const struct checkpoint_row *rows, size_t count)
{
    uint8_t header[CHECKPOINT_HEADER_BYTES];
    checkpoint_file_header(rows, count, mdb_txn_id(txn), header);
    return put(txn, dbi, "", CHECKPOINT_HEADER_KEY_BYTES, header, sizeof header);
}

// A catalog without rows, whole and durable.
static int creating_fill(const char *creating, struct error *err)
{
    MDB_env *env;
    MDB_dbi dbi;
    int r = env_open(creating, MIB, &env, &dbi, err);
    if (r < 0)
        return r;
    MDB_txn *txn;
    int code = mdb_txn_begin(env, NULL, 0, &txn);
    if (code == 0) {
        code = put_header(txn, dbi, NULL, 0);
        if (code == 0)
            code = mdb_txn_commit(txn);
        else
            mdb_txn_abort(txn);
    }
    mdb_env_close(env);
    if (code != 0)
        return error_set(
                err, from_lmdb(code), "cannot write a new catalog in %s: %s", creating, mdb_strerror(code));
    return 0;
}

static int catalog_create(struct checkpoint_db *db, const char *creating, struct error *err)
{
    char made[PATH_MAX];
    int r = make_path(creating, "data.mdb", made, err);
    if (r == 0)
        r = creating_remove(creating, err);
    if (r < 0)
        return r;
    if (mkdir(creating, 0700) < 0) {
        r = -errno;
        return error_set(err, r, "cannot make the directory %s: %s", creating, strerror(-r));
    }
    r = creating_fill(creating, err);
    if (r < 0)
        return r;
    if (rename(made, db->data_path) < 0) {
        r = -errno;
        return error_set(err, r, "cannot rename %s to %s: %s", made, db->data_path, strerror(-r));
    }
    r = sync_directory(db->directory, err);
    if (r == 0)
        r = sync_parent(db->directory, err);
    return r;
}

static int owner_prepare(struct checkpoint_db *db, struct error *err)
{
    char creating[PATH_MAX];
    int r = make_path(db->directory, "creating", creating, err);
    if (r < 0)
        return r;
    if (mkdir(db->directory, 0700) < 0 && errno != EEXIST) {
        r = -errno;
        return error_set(err, r, "cannot make the directory %s: %s", db->directory, strerror(-r));
    }
    r = catalog_exists(db, err);
    if (r == 0)
        r = catalog_create(db, creating, err);
    return r < 0 ? r : creating_remove(creating, err);
}

// Opening

static int data_open(struct checkpoint_db *db, struct error *err)
{
    int r = db->read_only ? catalog_exists(db, err) : owner_prepare(db, err);
    if (r < 0)
        return r;
    if (db->read_only && r == 0)
        return error_set(err, -ENOENT, "there is no catalog in %s yet", db->directory);
    // Never waits, whatever stands there under that name.
    db->fd = open(db->data_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat stat;
    if (db->fd < 0 || fstat(db->fd, &stat) < 0) {
        r = -errno; // the name is there: a link to nothing must not pass for "no catalog yet"
        return error_set(err, r == -ENOENT ? -EIO : r, "cannot open %s: %s", db->data_path, strerror(-r));
    }
    if (!S_ISREG(stat.st_mode))
        return error_set(err, -EBADMSG, "%s is not a regular file", db->data_path);
    struct checkpoint_file file;
    r = checkpoint_file_read(db->fd, db->data_path, &file, err);
    if (r < 0)
        return r;
    checkpoint_file_done(&file);
    return db->read_only ? 0 : env_open(db->directory, db->map_bytes, &db->env, &db->dbi, err);
}

static uint64_t map_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes == 0 ? MAP_BYTES_DEFAULT : (bytes + page - 1) / page * page;
}

int checkpoint_db_open(struct loop *loop, const char *directory, bool read_only, uint64_t map_bytes,
        struct checkpoint_db **ret_db, struct error *err)
{
    struct checkpoint_db *db = calloc(1, sizeof *db);
    if (db == NULL)
        return error_set(err, -ENOMEM, "no memory to open the catalog %s", directory);
    db->fd = -1;
    db->read_only = read_only;
    db->map_bytes = map_round(map_bytes);
    db->directory = strdup(directory);
    int r = db->directory == NULL || asprintf(&db->data_path, "%s/data.mdb", directory) < 0 ? -ENOMEM : 0;
    if (r < 0)
        r = error_set(err, r, "no memory to open the catalog %s", directory);
    else if (loop != NULL && loop->ops->checkpoint_db != NULL)
        r = loop->ops->checkpoint_db->open(loop, directory, read_only, &db->handle, err);
    else
        r = data_open(db, err);
    if (r < 0) {
        checkpoint_db_close(db);
        return r;
    }
    db->ops = loop != NULL ? loop->ops->checkpoint_db : NULL;
    *ret_db = db;
    return 0;
}

struct checkpoint_db *checkpoint_db_close(struct checkpoint_db *db)
{
    if (db == NULL)
        return NULL;
    if (db->ops != NULL)
        db->ops->close(db->handle);
    if (db->env != NULL)
        mdb_env_close(db->env);
    if (db->fd >= 0)
        close(db->fd);
    free(db->data_path);
    free(db->directory);
    free(db);
    return NULL;
}

bool checkpoint_db_in_doubt(const struct checkpoint_db *db)
{
    return db->in_doubt;
}

// Reading and committing

int checkpoint_db_read(
        struct checkpoint_db *db, checkpoint_row_callback each, void *context, struct error *err)
{
    if (db->ops != NULL) {
        int r = db->ops->read(db->handle, each, context);
        return r < 0 ? error_set(err, r, "cannot read the catalog %s: %s", db->directory, strerror(-r)) : 0;
    }
    struct checkpoint_file file;
    int r = checkpoint_file_read(db->fd, db->data_path, &file, err);
    if (r < 0)
        return r;
    for (size_t i = 0; r >= 0 && i < file.count; i++) {
        r = each(context, &file.rows[i]);
        if (r < 0)
            error_set(err, r, "row %zu of the catalog %s (kind %u, id %llu) was not accepted: %s", i,
                    db->directory, file.rows[i].kind, (unsigned long long)file.rows[i].id, strerror(-r));
    }
    checkpoint_file_done(&file);
    return r < 0 ? r : 0;
}

static int row_order(const struct checkpoint_row *a, const struct checkpoint_row *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int rows_check(const struct checkpoint_row *rows, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].size > CHECKPOINT_VALUE_MAX || (i > 0 && row_order(&rows[i - 1], &rows[i]) >= 0))
            return error_set(err, -EINVAL,
                    "row %zu of a checkpoint (kind %u, id %llu, %zu bytes) is too large or out of order", i,
                    rows[i].kind, (unsigned long long)rows[i].id, rows[i].size);
    return 0;
}

static int put_row(MDB_txn *txn, MDB_dbi dbi, const struct checkpoint_row *row)
{
    uint8_t key[CHECKPOINT_KEY_BYTES], frame[CHECKPOINT_FRAME_MAX];
    checkpoint_file_key(row, key);
    return put(txn, dbi, key, sizeof key, frame, checkpoint_file_frame(row, frame));
}

static int remove_row(MDB_txn *txn, MDB_dbi dbi, const struct checkpoint_row *row)
{
    uint8_t key[CHECKPOINT_KEY_BYTES];
    checkpoint_file_key(row, key);
    MDB_val k = {sizeof key, key};
    return mdb_del(txn, dbi, &k, NULL);
}

// Writes what differs between what the file has and what is wanted; both ascend. Without a transaction it
// only looks: returns 1 at the first difference. Codes of LMDB.
static int rows_merge(MDB_txn *txn, MDB_dbi dbi, const struct checkpoint_file *has,
        const struct checkpoint_row *rows, size_t count)
{
    size_t h = 0, w = 0;
    int code = 0;
    while (code == 0 && (h < has->count || w < count)) {
        int order = h == has->count ? 1 : w == count ? -1 : row_order(&has->rows[h], &rows[w]);
        bool same = order == 0 && has->rows[h].size == rows[w].size &&
                    (rows[w].size == 0 || memcmp(has->rows[h].value, rows[w].value, rows[w].size) == 0);
        if (!same && txn == NULL)
            return 1;
        if (order < 0)
            code = remove_row(txn, dbi, &has->rows[h]);
        else if (!same)
            code = put_row(txn, dbi, &rows[w]);
        h += order <= 0;
        w += order >= 0;
    }
    return code;
}

// After a failure LMDB is not asked again: the file is put back to where it was, and it begins anew with the
// next commit.
static int commit_undo(struct checkpoint_db *db, const struct checkpoint_file *has, struct error *err)
{
    mdb_env_close(db->env);
    db->env = NULL;
    int fd = open(db->data_path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        int r = -errno;
        return error_set(err, r, "cannot open %s: %s", db->data_path, strerror(-r));
    }
    int r = checkpoint_pages_restore(fd, db->data_path, &has->state, err);
    close(fd);
    return r;
}

static int commit_failed(
        struct checkpoint_db *db, const struct checkpoint_file *has, int code, struct error *err)
{
    int r = from_lmdb(code);
    if (code == MDB_MAP_FULL) // found out before anything was written
        return error_set(err, r,
                "the catalog %s does not fit into its map of %llu MiB, and stays as it was: open it with a "
                "larger map, or delete volumes and snapshots",
                db->directory, (unsigned long long)(db->map_bytes / MIB));
    struct error undo;
    if (commit_undo(db, has, &undo) < 0) {
        db->failed = db->in_doubt = true;
        return error_set(err, r,
                "cannot write the catalog %s: %s; then: %s; open it again to see whether it is whole",
                db->directory, mdb_strerror(code), undo.text);
    }
    if (r == -ENOSPC)
        return error_set(err, r,
                "no space left to write the catalog %s, which stays as it was (%s): free some on its file "
                "system",
                db->directory, mdb_strerror(code));
    db->failed = true;
    return error_set(err, r, "cannot write the catalog %s, which stays as it was: %s", db->directory,
            mdb_strerror(code));
}

static int commit_changes(struct checkpoint_db *db, const struct checkpoint_file *has,
        const struct checkpoint_row *rows, size_t count, struct error *err)
{
    if (db->env == NULL) {
        int r = env_open(db->directory, db->map_bytes, &db->env, &db->dbi, err);
        if (r < 0)
            return r;
    }
    MDB_txn *txn;
    int code = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (code != 0)
        return commit_failed(db, has, code, err);
    if (mdb_txn_id(txn) != has->state.transaction + 1) {
        mdb_txn_abort(txn);
        return error_set(err, -EBUSY, "another process writes to the catalog %s", db->directory);
    }
    code = rows_merge(txn, db->dbi, has, rows, count);
    if (code == 0)
        code = put_header(txn, db->dbi, rows, count);
    if (code == 0)
        code = mdb_txn_commit(txn);
    else
        mdb_txn_abort(txn);
    return code == 0 ? 0 : commit_failed(db, has, code, err);
}

int checkpoint_db_commit(
        struct checkpoint_db *db, const struct checkpoint_row *rows, size_t count, struct error *err)
{
    int r = rows_check(rows, count, err);
    if (r < 0)
        return r;
    if (db->read_only)
        return error_set(err, -EROFS, "the catalog %s is open for reading only", db->directory);
    if (db->ops != NULL) {
        r = db->ops->commit(db->handle, rows, count);
        return r < 0 ? error_set(err, r, "cannot write the catalog %s: %s", db->directory, strerror(-r)) : 0;
    }
    if (db->failed)
        return error_set(err, -ESTALE,
                "an earlier commit to the catalog %s failed: look after its disk, then restart",
                db->directory);
    struct checkpoint_file has;
    r = checkpoint_file_read(db->fd, db->data_path, &has, err);
    if (r < 0)
        return r;
    if (rows_merge(NULL, 0, &has, rows, count) != 0)
        r = commit_changes(db, &has, rows, count, err);
    checkpoint_file_done(&has);
    return r;
}
