// SPDX-License-Identifier: Apache-2.0
// The catalog as the log tells it: the image at the head of the oldest file, then every transaction. At the
// head of each later file the two must agree, and in the end the catalog in memory must.
//
// What may differ: where a document's device state is (sealing moves it), and the next id (those of
// transactions that were given up are known to images, and not to records: a start may hand them out again).
#include "snapshot/check_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check_image {
    struct store *told;  // a catalog without trees
    struct store *loops; // the store whose loops it borrows
    bool begun;
    uint64_t damages; // found before the present record
    uint8_t *bytes;   // parts of an image
    size_t size;
};

static struct store *scratch_new(struct store *like)
{
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL || (store->checkpoint = calloc(1, sizeof *store->checkpoint)) == NULL)
        abort();
    store->directory = like->directory;
    store->loops = like->loops;
    store->loop_count = like->loop_count;
    store->catalog.next_id = 1;
    return store;
}

static void scratch_free(struct store *store)
{
    if (store == NULL)
        return;
    catalog_free(store);
    free(store->checkpoint);
    free(store);
}

struct check_image *check_image_new(struct store *store)
{
    struct check_image *image = calloc(1, sizeof *image);
    if (image == NULL)
        abort();
    image->loops = store;
    image->told = scratch_new(store);
    return image;
}

void check_image_free(struct check_image *image)
{
    scratch_free(image->told);
    free(image->bytes);
    free(image);
}

// ---- Comparing ----

static void forget_places(struct store *store)
{
    for (unsigned i = 0; i < store->catalog.doc_count; i++)
        store->catalog.docs[i]->blob_first = 0;
}

static bool same(struct store *told, struct store *found)
{
    void *a, *b;
    size_t a_size, b_size;
    forget_places(told);
    forget_places(found);
    told->catalog.next_id = found->catalog.next_id;
    catalog_encode_image(told, &a, &a_size);
    catalog_encode_image(found, &b, &b_size);
    bool equal = a_size == b_size && memcmp(a, b, a_size) == 0;
    free(a);
    free(b);
    return equal;
}

static void compare(struct check *check, struct store *found, const char *what)
{
    struct check_image *image = check->image;
    const struct catalog *told = &image->told->catalog, *is = &found->catalog;
    bool damaged_before = check->result->damages != image->damages;
    if (!same(image->told, found) && !damaged_before)
        check_report(check, 0, 0,
                "%s is not what the records before it say (%u volumes, %u bases, %u documents; the records "
                "give %u, %u and %u)",
                what, is->volume_count, is->base_count, is->doc_count, told->volume_count, told->base_count,
                told->doc_count);
    image->damages = check->result->damages;
}

// ---- Records ----

static int take_image(struct check *check, const struct record *record, const void *body)
{
    struct check_image *image = check->image;
    if (record->part == 0)
        image->size = 0;
    image->bytes = realloc(image->bytes, image->size + record->body_bytes + 1);
    if (image->bytes == NULL)
        abort();
    memcpy(image->bytes + image->size, body, record->body_bytes);
    image->size += record->body_bytes;
    if (record->part + 1 < record->parts)
        return 0;
    struct store *found = scratch_new(image->loops);
    char what[100];
    snprintf(what, sizeof what, "log/%08llu: the image of the catalog at its head",
            (unsigned long long)record->file);
    int r = catalog_decode_image(found, image->bytes, image->size);
    if (r < 0) {
        check_report(check, 0, 0, "%s %s", what,
                r == -EPROTO ? "was written by a newer version" : "cannot be decoded");
        image->damages = check->result->damages;
        scratch_free(found);
        return 0;
    }
    if (image->begun)
        compare(check, found, what);
    image->begun = true;
    scratch_free(image->told);
    image->told = found;
    return 0;
}

static void take_txn(struct check *check, const struct record *record, const void *body)
{
    struct check_image *image = check->image;
    struct txn_op *ops;
    unsigned count;
    int r = catalog_decode_ops(body, record->body_bytes, &ops, &count);
    if (r < 0) {
        check_report(check, 0, 0, "log/%08llu: the transaction of record %llu %s",
                (unsigned long long)record->file, (unsigned long long)record->seq,
                r == -EPROTO ? "was written by a newer version" : "cannot be decoded");
        return;
    }
    if (image->begun)
        catalog_apply(image->told, ops, count, 0);
    catalog_free_ops(ops, count);
}

int check_image_record(struct check *check, const struct record *record, const void *body)
{
    struct check_image *image = check->image;
    struct volume *volume;
    switch (record->kind) {
    case RECORD_IMAGE:
        return take_image(check, record, body);
    case RECORD_TXN:
        take_txn(check, record, body);
        return 0;
    case RECORD_WRITE:
    case RECORD_ZERO:
    case RECORD_TRIM:
        volume = catalog_volume(image->told, record->volume);
        if (volume != NULL && atomic_load(&volume->logged_epoch) < record->epoch)
            atomic_store(&volume->logged_epoch, record->epoch);
        return 0;
    default:
        return 0;
    }
}

void check_image_end(struct check *check)
{
    struct store *found = scratch_new(check->image->loops), *store = check->store;
    void *bytes;
    size_t size;
    pthread_mutex_lock(&store->lock);
    catalog_encode_image(store, &bytes, &size);
    pthread_mutex_unlock(&store->lock);
    if (check->image->begun && catalog_decode_image(found, bytes, size) == 0)
        compare(check, found, "the catalog in memory");
    free(bytes);
    scratch_free(found);
}
