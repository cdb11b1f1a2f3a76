// SPDX-License-Identifier: Apache-2.0
// Everything a store shows through its public face at a quiet moment: catalog, contents, extents, blobs.
// A picture is plain data of its own; two of them can be compared byte for byte.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "snapshot/volume.h"
#include "tests/sim/sim_world.h"

// As an extent kind: the read gave an error; the extents did, and the read did not.
enum { PICTURE_UNREADABLE = 99, PICTURE_UNKNOWN = 98 };

struct picture_content {
    uint64_t size_bytes;
    uint64_t count;    // blocks looked at (layout.h)
    uint8_t *bytes;    // count blocks; past the end of the volume zeros
    uint8_t *kinds;    // enum extent_kind per block
    bool data_outside; // vast: an extent outside the windows claims data
};

struct picture_volume {
    struct volume_info info;
    struct picture_content content;
};
struct picture_base {
    struct base_info info;
    struct picture_content content;
};
struct picture_doc {
    struct doc doc;
    void *blob;
    size_t blob_bytes;
    int blob_result;
};

struct picture {
    struct picture_volume *volumes;
    struct picture_base *bases;
    struct picture_doc *docs;
    size_t volume_count, base_count, doc_count;
    int first_error; // of a read; 0 = all were good
    char where[160]; // what that read was
};

// Steps the world until all is read. With `tolerant`, blocks that cannot be read are marked in `kinds`;
// without, the first failed read ends it with its errno and `where`.
int picture_take(struct sim_world *world, struct store *store, bool tolerant, struct picture *ret_picture);
void picture_free(struct picture *picture);
// Whether a block with these bytes may be of the one kind before a checkpoint and of the other after it.
bool picture_same_kind(uint8_t a, uint8_t b, const uint8_t *bytes);
// Says in `why` where two pictures differ; false when they do not.
bool picture_differ(const struct picture *a, const struct picture *b, char *why, size_t why_size);

const struct picture_volume *picture_volume(const struct picture *picture, uint64_t id); // NULL = not there
const struct picture_base *picture_base(const struct picture *picture, uint64_t id);
const struct picture_doc *picture_doc(const struct picture *picture, uint64_t id);
