// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/picture.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/layout.h"

enum { RUN_MAX = 32 }; // blocks per read

struct taking {
    struct sim_world *world;
    struct store *store;
    struct picture *picture;
    bool tolerant;
    unsigned pending;
};

// One run of blocks being read.
struct run {
    struct volume_io io;
    struct taking *taking;
    struct picture_content *content;
    struct volume *volume;
    struct base *base;
    uint64_t index, count;
};

static void *zalloc(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (memory == NULL)
        abort();
    return memory;
}

__attribute__((format(printf, 3, 4))) static void failed(
        struct taking *taking, int result, const char *format, ...)
{
    if (taking->picture->first_error != 0)
        return;
    taking->picture->first_error = result;
    va_list args;
    va_start(args, format);
    vsnprintf(taking->picture->where, sizeof taking->picture->where, format, args);
    va_end(args);
}

static int settle(struct taking *taking)
{
    while (taking->pending > 0)
        if (sim_world_step(taking->world) == 0)
            return -EDEADLK;
    return 0;
}

// ---- Contents ----

static void start_run(struct taking *taking, struct picture_content *content, struct volume *volume,
        struct base *base, uint64_t index, uint64_t count);

static void run_done(struct volume_io *io, int result)
{
    struct run *run = (struct run *)io;
    struct taking *taking = run->taking;
    taking->pending--;
    if (result < 0) {
        failed(taking, result, "reading %s at byte %llu", run->volume ? "a volume" : "a base",
                (unsigned long long)io->offset);
        if (run->count > 1 && taking->tolerant)
            for (uint64_t i = 0; i < run->count; i++) // find out which of them
                start_run(taking, run->content, run->volume, run->base, run->index + i, 1);
        else
            memset(run->content->kinds + run->index, PICTURE_UNREADABLE, run->count);
    } else {
        memcpy(run->content->bytes + run->index * BLOCK_SIZE, io->buffer, io->length);
    }
    io_buffer_free(io->buffer);
    free(run);
}

static void start_run(struct taking *taking, struct picture_content *content, struct volume *volume,
        struct base *base, uint64_t index, uint64_t count)
{
    struct run *run = zalloc(sizeof *run);
    run->taking = taking;
    run->content = content;
    run->volume = volume;
    run->base = base;
    run->index = index;
    run->count = count;
    uint64_t offset = layout_number(layout_is_vast(content->size_bytes), index) * BLOCK_SIZE;
    uint64_t length = count * BLOCK_SIZE;
    if (length > content->size_bytes - offset)
        length = content->size_bytes - offset;
    run->io = (struct volume_io){.op = VOLUME_READ,
            .offset = offset,
            .length = length,
            .done = run_done,
            .buffer = io_buffer_alloc(count * BLOCK_SIZE)};
    taking->pending++;
    if (volume != NULL)
        volume_submit(volume, &run->io);
    else
        base_submit(base, sim_world_loop(taking->world, index % store_loop_count(taking->store)), &run->io);
}

static void start_reads(
        struct taking *taking, struct picture_content *content, struct volume *volume, struct base *base)
{
    bool vast = layout_is_vast(content->size_bytes);
    for (uint64_t index = 0; index < content->count;) {
        uint64_t count = 1;
        while (count < RUN_MAX && index + count < content->count &&
                layout_number(vast, index + count) == layout_number(vast, index) + count)
            count++;
        start_run(taking, content, volume, base, index, count);
        index += count;
    }
}

static void take_extent(
        struct picture_content *content, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    bool vast = layout_is_vast(content->size_bytes);
    uint64_t covered = 0;
    for (uint64_t index = layout_first_index(vast, offset); index < content->count; index++) {
        uint64_t begin = layout_number(vast, index) * BLOCK_SIZE;
        if (begin >= offset + length)
            break;
        if (content->kinds[index] != PICTURE_UNREADABLE)
            content->kinds[index] = kind;
        covered += BLOCK_SIZE;
    }
    if (vast && kind == EXTENT_DATA && covered < length)
        content->data_outside = true;
}

struct extents_call {
    struct volume_extents extents; // first
    struct taking *taking;
    struct volume *volume; // or:
    struct base *base;
    struct picture_content *content;
    struct volume_extent room[16]; // often too little: then it goes on from there
};

static void extents_next(struct extents_call *call);

static void extents_done(struct volume_extents *extents, int result)
{
    struct extents_call *call = (struct extents_call *)extents;
    for (unsigned i = 0; result == 0 && i < extents->count; i++)
        take_extent(call->content, call->room[i].offset, call->room[i].length, call->room[i].kind);
    if (result < 0) {
        failed(call->taking, result, "extents of a %s", call->volume != NULL ? "volume" : "base");
        for (uint64_t i = 0; i < call->content->count; i++)
            if (call->content->kinds[i] == 0)
                call->content->kinds[i] = PICTURE_UNKNOWN;
    }
    extents->offset += extents->covered_bytes;
    extents->length -= extents->covered_bytes;
    if (result == 0 && extents->length > 0)
        extents_next(call);
    else
        call->taking->pending--;
}

static void extents_next(struct extents_call *call)
{
    if (call->volume != NULL)
        volume_extents_submit(call->volume, &call->extents);
    else
        base_extents_submit(call->base, sim_world_loop(call->taking->world, 0), &call->extents);
}

static void start_extents(struct extents_call *call, struct taking *taking, struct volume *volume,
        struct base *base, struct picture_content *content)
{
    *call = (struct extents_call){.extents = {.length = content->size_bytes,
                                          .extents = call->room,
                                          .capacity = sizeof call->room / sizeof call->room[0],
                                          .done = extents_done},
            .taking = taking,
            .volume = volume,
            .base = base,
            .content = content};
    taking->pending++;
    extents_next(call);
}

static void content_prepare(struct picture_content *content, uint64_t size_bytes)
{
    content->size_bytes = size_bytes;
    content->count = layout_count(size_bytes);
    content->bytes = zalloc(content->count * BLOCK_SIZE);
    content->kinds = zalloc(content->count);
}

static int take_volume(struct taking *taking, struct picture_volume *shown)
{
    struct volume *volume;
    int result = volume_open(taking->store, shown->info.id, &volume);
    if (result < 0) {
        failed(taking, result, "opening volume %llu", (unsigned long long)shown->info.id.value);
        return result;
    }
    content_prepare(&shown->content, shown->info.size_bytes);
    struct extents_call call;
    start_extents(&call, taking, volume, NULL, &shown->content);
    result = settle(taking);
    start_reads(taking, &shown->content, volume, NULL);
    if (result == 0)
        result = settle(taking);
    volume_close(volume);
    return result;
}

static int take_base(struct taking *taking, struct picture_base *shown)
{
    struct base *base;
    int result = base_open(taking->store, shown->info.id, &base);
    if (result < 0) {
        failed(taking, result, "opening base %llu", (unsigned long long)shown->info.id.value);
        return result;
    }
    content_prepare(&shown->content, shown->info.size_bytes);
    struct extents_call call;
    start_extents(&call, taking, NULL, base, &shown->content);
    result = settle(taking);
    start_reads(taking, &shown->content, NULL, base);
    if (result == 0)
        result = settle(taking);
    base_close(base);
    return result;
}

// ---- Catalog ----

static void list_volume(void *context, const struct volume_info *info)
{
    struct picture *picture = context;
    picture->volumes = realloc(picture->volumes, (picture->volume_count + 1) * sizeof *picture->volumes);
    picture->volumes[picture->volume_count++] = (struct picture_volume){.info = *info};
}

static void list_base(void *context, const struct base_info *info)
{
    struct picture *picture = context;
    picture->bases = realloc(picture->bases, (picture->base_count + 1) * sizeof *picture->bases);
    picture->bases[picture->base_count++] = (struct picture_base){.info = *info};
}

static void list_doc(void *context, const struct doc *doc)
{
    struct picture *picture = context;
    picture->docs = realloc(picture->docs, (picture->doc_count + 1) * sizeof *picture->docs);
    struct picture_doc *shown = &picture->docs[picture->doc_count++];
    *shown = (struct picture_doc){.doc = *doc};
    shown->doc.body = zalloc(doc->body_bytes + 1);
    if (doc->body_bytes > 0)
        memcpy(shown->doc.body, doc->body, doc->body_bytes);
}

struct blob_call {
    struct taking *taking;
    struct picture_doc *shown;
};

static void blob_done(void *context, int result, void *bytes, size_t size)
{
    struct blob_call *call = context;
    call->shown->blob = bytes;
    call->shown->blob_bytes = size;
    call->shown->blob_result = result;
    if (result < 0)
        failed(call->taking, result, "the blob of doc %llu", (unsigned long long)call->shown->doc.id.value);
    call->taking->pending--;
}

static int take_blob(struct taking *taking, struct picture_doc *shown)
{
    if (shown->doc.blob_bytes == 0)
        return 0;
    struct blob_call call = {taking, shown};
    taking->pending++;
    store_doc_blob_read(taking->store, shown->doc.id, blob_done, &call);
    return settle(taking);
}

int picture_take(struct sim_world *world, struct store *store, bool tolerant, struct picture *ret_picture)
{
    *ret_picture = (struct picture){0};
    struct taking taking = {.world = world, .store = store, .picture = ret_picture, .tolerant = tolerant};
    store_volume_list(store, list_volume, ret_picture);
    store_base_list(store, list_base, ret_picture);
    for (enum doc_kind kind = DOC_SNAPSHOT; kind <= DOC_OTHER; kind++)
        store_doc_list(store, kind, list_doc, ret_picture);
    int result = 0;
    for (size_t i = 0; i < ret_picture->volume_count && result == 0; i++)
        result = take_volume(&taking, &ret_picture->volumes[i]);
    for (size_t i = 0; i < ret_picture->base_count && result == 0; i++)
        result = take_base(&taking, &ret_picture->bases[i]);
    for (size_t i = 0; i < ret_picture->doc_count && result == 0; i++)
        result = take_blob(&taking, &ret_picture->docs[i]);
    if (result == 0 && !tolerant)
        result = ret_picture->first_error;
    if (result < 0 && ret_picture->where[0] == '\0')
        failed(&taking, result, "nothing is left to happen, and a read was not answered");
    return result;
}

void picture_free(struct picture *picture)
{
    for (size_t i = 0; i < picture->volume_count; i++) {
        free(picture->volumes[i].content.bytes);
        free(picture->volumes[i].content.kinds);
    }
    for (size_t i = 0; i < picture->base_count; i++) {
        free(picture->bases[i].content.bytes);
        free(picture->bases[i].content.kinds);
    }
    for (size_t i = 0; i < picture->doc_count; i++) {
        free(picture->docs[i].doc.body);
        free(picture->docs[i].blob);
    }
    free(picture->volumes);
    free(picture->bases);
    free(picture->docs);
    *picture = (struct picture){0};
}

const struct picture_volume *picture_volume(const struct picture *picture, uint64_t id)
{
    for (size_t i = 0; i < picture->volume_count; i++)
        if (picture->volumes[i].info.id.value == id)
            return &picture->volumes[i];
    return NULL;
}

const struct picture_base *picture_base(const struct picture *picture, uint64_t id)
{
    for (size_t i = 0; i < picture->base_count; i++)
        if (picture->bases[i].info.id.value == id)
            return &picture->bases[i];
    return NULL;
}

const struct picture_doc *picture_doc(const struct picture *picture, uint64_t id)
{
    for (size_t i = 0; i < picture->doc_count; i++)
        if (picture->docs[i].doc.id.value == id)
            return &picture->docs[i];
    return NULL;
}

// ---- Comparison ----

// Data that is all zeros becomes "zero" when it is sealed; nothing else may change, nor become unmapped.
bool picture_same_kind(uint8_t a, uint8_t b, const uint8_t *bytes)
{
    bool zeros = bytes[0] == 0 && memcmp(bytes, bytes + 1, BLOCK_SIZE - 1) == 0;
    bool sealed = (a == EXTENT_DATA && b == EXTENT_ZERO) || (a == EXTENT_ZERO && b == EXTENT_DATA);
    return a == b || (zeros && sealed);
}

static bool content_differs(const struct picture_content *a, const struct picture_content *b,
        const char *what, uint64_t id, char *why, size_t why_size)
{
    bool vast = layout_is_vast(a->size_bytes);
    if (a->size_bytes != b->size_bytes) {
        snprintf(why, why_size, "%s %llu has %llu bytes, and %llu", what, (unsigned long long)id,
                (unsigned long long)a->size_bytes, (unsigned long long)b->size_bytes);
        return true;
    }
    for (uint64_t i = 0; i < a->count; i++) {
        const uint8_t *x = a->bytes + i * BLOCK_SIZE, *y = b->bytes + i * BLOCK_SIZE;
        unsigned at = 0;
        while (at < BLOCK_SIZE && x[at] == y[at])
            at++;
        if (at == BLOCK_SIZE && picture_same_kind(a->kinds[i], b->kinds[i], x))
            continue;
        snprintf(why, why_size, "%s %llu block %llu: extent kind %u and %u, bytes %s from %u (%02x and %02x)",
                what, (unsigned long long)id, (unsigned long long)layout_number(vast, i), a->kinds[i],
                b->kinds[i], at < BLOCK_SIZE ? "differ" : "agree", at, at < BLOCK_SIZE ? x[at] : 0,
                at < BLOCK_SIZE ? y[at] : 0);
        return true;
    }
    return false;
}

static bool volumes_differ(const struct picture *a, const struct picture *b, char *why, size_t why_size)
{
    if (a->volume_count != b->volume_count) {
        snprintf(why, why_size, "%zu volumes, and %zu", a->volume_count, b->volume_count);
        return true;
    }
    for (size_t i = 0; i < a->volume_count; i++) {
        const struct volume_info *x = &a->volumes[i].info;
        const struct picture_volume *other = picture_volume(b, x->id.value);
        const struct volume_info *y = other ? &other->info : NULL;
        if (y == NULL || strcmp(x->name, y->name) != 0 || x->kind != y->kind ||
                x->parent.value != y->parent.value || x->created_wall_ns != y->created_wall_ns) {
            snprintf(why, why_size, "volume %llu is not the same row", (unsigned long long)x->id.value);
            return true;
        }
        if (content_differs(&a->volumes[i].content, &other->content, "volume", x->id.value, why, why_size))
            return true;
    }
    return false;
}

static bool bases_differ(const struct picture *a, const struct picture *b, char *why, size_t why_size)
{
    if (a->base_count != b->base_count) {
        snprintf(why, why_size, "%zu bases, and %zu", a->base_count, b->base_count);
        return true;
    }
    for (size_t i = 0; i < a->base_count; i++) {
        const struct base_info *x = &a->bases[i].info;
        const struct picture_base *other = picture_base(b, x->id.value);
        const struct base_info *y = other ? &other->info : NULL;
        if (y == NULL || x->kind != y->kind || x->source.value != y->source.value ||
                x->parent.value != y->parent.value || x->created_wall_ns != y->created_wall_ns) {
            snprintf(why, why_size, "base %llu is not the same row", (unsigned long long)x->id.value);
            return true;
        }
        if (content_differs(&a->bases[i].content, &other->content, "base", x->id.value, why, why_size))
            return true;
    }
    return false;
}

static bool same_doc(const struct picture_doc *a, const struct picture_doc *b)
{
    const struct doc *x = &a->doc, *y = &b->doc;
    if (x->kind != y->kind || strcmp(x->name, y->name) != 0 || x->created_wall_ns != y->created_wall_ns ||
            x->base_count != y->base_count || x->volume_count != y->volume_count ||
            x->body_bytes != y->body_bytes || a->blob_bytes != b->blob_bytes)
        return false;
    for (unsigned i = 0; i < x->base_count; i++)
        if (x->bases[i].value != y->bases[i].value)
            return false;
    for (unsigned i = 0; i < x->volume_count; i++)
        if (x->volumes[i].value != y->volumes[i].value)
            return false;
    return (x->body_bytes == 0 || memcmp(x->body, y->body, x->body_bytes) == 0) &&
           (a->blob_bytes == 0 || memcmp(a->blob, b->blob, a->blob_bytes) == 0);
}

bool picture_differ(const struct picture *a, const struct picture *b, char *why, size_t why_size)
{
    if (volumes_differ(a, b, why, why_size) || bases_differ(a, b, why, why_size))
        return true;
    if (a->doc_count != b->doc_count) {
        snprintf(why, why_size, "%zu docs, and %zu", a->doc_count, b->doc_count);
        return true;
    }
    for (size_t i = 0; i < a->doc_count; i++) {
        const struct picture_doc *other = picture_doc(b, a->docs[i].doc.id.value);
        if (other == NULL || !same_doc(&a->docs[i], other)) {
            snprintf(why, why_size, "doc %llu is not the same", (unsigned long long)a->docs[i].doc.id.value);
            return true;
        }
    }
    return false;
}
