// SPDX-License-Identifier: Apache-2.0
// Archives from strangers. The input is tried as it is, and once more with all checksums made right, since
// they are no secret: what comes out must obey the contract of archive_decode.h whatever it says.
#include "blockstore/cursor.h"
#include "blockstore/digest.h"
#include "snapshot/archive_decode.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

struct memory {
    const uint8_t *bytes;
    size_t size, at;
};

static ssize_t read_some(void *context, void *buffer, size_t capacity)
{
    struct memory *memory = context;
    size_t left = memory->size - memory->at, part = left < capacity ? left : capacity;
    memcpy(buffer, memory->bytes + memory->at, part);
    memory->at += part;
    return (ssize_t)part;
}

struct check {
    const struct archive_contents *contents;
    unsigned bases;
    uint64_t at;
    bool verified;
};

static void must(bool holds)
{
    if (!holds)
        abort();
}

static int take_contents(void *context, const struct archive_contents *contents, struct error *err)
{
    struct check *check = context;
    must(check->contents == NULL);
    check->contents = contents;
    for (unsigned i = 0; i < contents->base_count; i++) {
        must(strlen(contents->bases[i].name) <= STORE_NAME_MAX && contents->bases[i].size_bytes > 0);
        must(contents->bases[i].parent == ARCHIVE_NO_PARENT || contents->bases[i].parent < i);
    }
    for (unsigned i = 0; i < contents->doc_count; i++)
        for (unsigned k = 0; k < contents->docs[i].base_count; k++)
            must(contents->docs[i].bases[k] < contents->base_count);
    return 0;
}

static int take_range(void *context, unsigned base, enum extent_kind kind, uint64_t offset, uint64_t length,
        const void *bytes, struct error *err)
{
    struct check *check = context;
    must(base == check->bases && base < check->contents->base_count && length > 0 && offset >= check->at);
    must(length <= check->contents->bases[base].size_bytes - offset);
    must((bytes != NULL) == (kind == EXTENT_DATA));
    if (bytes != NULL)
        digest_bytes(bytes, length, 0); // all of it can be read
    check->at = offset + length;
    return 0;
}

static int take_end(void *context, unsigned base, struct error *err)
{
    struct check *check = context;
    must(base == check->bases++);
    check->at = 0;
    return 0;
}

static int take_doc(void *context, unsigned doc, bool is_blob, uint64_t offset, const void *bytes,
        size_t length, struct error *err)
{
    struct check *check = context;
    must(doc < check->contents->doc_count && check->bases == check->contents->base_count);
    const struct archive_doc *row = &check->contents->docs[doc];
    must(offset + length <= (is_blob ? row->blob_bytes : row->body_bytes));
    digest_bytes(bytes, length, 0);
    return 0;
}

static int take_all(void *context, struct error *err)
{
    struct check *check = context;
    must(check->bases == check->contents->base_count);
    check->verified = true;
    return 0;
}

static void decode(const uint8_t *bytes, size_t size)
{
    struct memory memory = {bytes, size, 0};
    struct check check = {0};
    struct archive_visitor visitor = {.context = &check,
            .contents = take_contents,
            .range = take_range,
            .end = take_end,
            .doc = take_doc,
            .verified = take_all};
    struct archive_result result;
    struct error err = {0};
    int r = archive_decode(read_some, &memory, &visitor, &result, &err);
    must(r == 0 ? result.archive_bytes == size && check.verified : err.text[0] != '\0' && !check.verified);
}

static void put_u64(uint8_t *at, uint64_t value)
{
    struct cursor c = cursor_make(at, 8);
    cursor_put_u64(&c, value);
}

// Header, heads and payloads, as long as there is enough for them.
static void make_sums_right(uint8_t *bytes, size_t size)
{
    if (size < ARCHIVE_HEADER_BYTES)
        return;
    memcpy(bytes, "RAMETARC\1\0\0\0\100\0\0\0\0\0\0\0\0\0\0\0", 24);
    put_u64(bytes + ARCHIVE_HEADER_BYTES - 8, digest_bytes(bytes, ARCHIVE_HEADER_BYTES - 8, 0));
    uint64_t running = digest_bytes(bytes, ARCHIVE_HEADER_BYTES, 0);
    for (size_t at = ARCHIVE_HEADER_BYTES; size - at >= ARCHIVE_HEAD_BYTES;) {
        uint8_t *head = bytes + at;
        memcpy(head, "RARC", 4);
        struct cursor c = cursor_make(head + 12, 4);
        size_t stored = cursor_get_u32(&c);
        if (stored > size - at - ARCHIVE_HEAD_BYTES)
            stored = size - at - ARCHIVE_HEAD_BYTES;
        if (head[4] == ARCHIVE_TRAILER && stored >= ARCHIVE_TRAILER_BYTES)
            put_u64(head + ARCHIVE_HEAD_BYTES + 24, running);
        put_u64(head + 32, digest_bytes(head + ARCHIVE_HEAD_BYTES, stored, running));
        put_u64(head + 40, digest_bytes(head, 40, running));
        running = digest_bytes(head, ARCHIVE_HEAD_BYTES, running);
        at += ARCHIVE_HEAD_BYTES + stored;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    decode(bytes, size);
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    make_sums_right(copy, size);
    decode(copy, size);
    free(copy);
    return 0;
}
