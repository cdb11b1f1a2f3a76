// SPDX-License-Identifier: Apache-2.0
// Uploaded root file systems that wait for the build that takes them: files in a folder below the store. What
// nobody takes is removed after an hour, and with the daemon's next start.
//
// Threads: any. Errors: -ENOENT, -ENOSPC, -EINVAL, each with a sentence.
#pragma once

#include "vmglue/json.h"

#include "blockstore/error.h"

#include <stdint.h>
#include <sys/types.h>

struct template_spool;

enum { TEMPLATE_SPOOL_NAME = 40 };

// limit_bytes: of all files in it together. Removes what is in the folder.
int template_spool_open(
        const char *folder, uint64_t limit_bytes, struct template_spool **ret_spool, struct error *err);
struct template_spool *template_spool_close(struct template_spool *spool); // and its files; accepts NULL

// A stream into a new file; source returns bytes, 0 at the end, < 0 to give up. {"upload","size_bytes"}.
int template_spool_take(struct template_spool *spool,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, json_t **ret_json,
        struct error *err);
// The file's path, at least PATH_MAX bytes; it stays until template_spool_release. One user at a time.
int template_spool_use(struct template_spool *spool, const char *id, char *ret_path, struct error *err);
void template_spool_give_back(struct template_spool *spool, const char *id); // another one may use it
void template_spool_release(struct template_spool *spool, const char *id);   // it was used: it goes
int template_spool_remove(struct template_spool *spool, const char *id, struct error *err); // -EBUSY: in use
void template_spool_expire(struct template_spool *spool); // removes what nobody took
