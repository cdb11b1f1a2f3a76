// SPDX-License-Identifier: Apache-2.0
#include "vmglue/memory_map.h"

#include "blockstore/fd.h"
#include "vmglue/preload/preload_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert((int)MEMORY_MAP_EXTENTS_MAX <= (int)PRELOAD_EXTENTS_MAX, "the library takes as many");

void memory_map_free(struct memory_map *map)
{
    free(map->extents);
    *map = (struct memory_map){0};
}

int memory_map_add(struct memory_map *map, uint64_t offset, uint64_t length)
{
    struct memory_map_extent *last = map->count > 0 ? &map->extents[map->count - 1] : NULL;
    if (last != NULL && last->offset + last->length == offset) {
        last->length += length;
        map->own_bytes += length;
        return 0;
    }
    if ((map->count & (map->count - 1)) == 0) { // room is a power of two
        size_t room = map->count == 0 ? 1 : 2 * (size_t)map->count;
        struct memory_map_extent *extents = realloc(map->extents, room * sizeof *extents);
        if (extents == NULL)
            return -ENOMEM;
        map->extents = extents;
    }
    map->extents[map->count++] = (struct memory_map_extent){offset, length};
    map->own_bytes += length;
    return 0;
}

// Joins all that are at most gap_bytes apart. Returns how many are left when that were done (dry), or does
// it.
static unsigned join(struct memory_map *map, uint64_t gap_bytes, bool dry)
{
    unsigned kept = 0;
    uint64_t end = 0;
    for (unsigned i = 0; i < map->count; i++) {
        struct memory_map_extent next = map->extents[i];
        if (kept > 0 && next.offset - end <= gap_bytes) {
            if (!dry) {
                map->own_bytes += next.offset - end;
                map->extents[kept - 1].length = next.offset + next.length - map->extents[kept - 1].offset;
            }
        } else {
            if (!dry)
                map->extents[kept] = next;
            kept++;
        }
        end = next.offset + next.length;
    }
    return kept;
}

void memory_map_close_gaps(struct memory_map *map, uint64_t gap_bytes, unsigned max)
{
    while (gap_bytes < map->bytes && join(map, gap_bytes, true) > max)
        gap_bytes *= 2;
    map->count = join(map, gap_bytes, false);
}

// ---- From two trees ----

struct collection {
    struct memory_map *map;
    int result;
};

static bool take_difference(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct collection *collection = context;
    collection->result = memory_map_add(collection->map, offset, length);
    return collection->result == 0;
}

struct count {
    uint64_t bytes, enough;
};

static bool count_data(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct count *count = context;
    count->bytes += kind == EXTENT_DATA ? length : 0;
    return count->bytes < count->enough;
}

// Whether mapping it so is worth it: at least half of what it holds is the origin's. Looks no further than it
// must.
static int is_shared(struct base *own, const struct memory_map *map, bool *ret_shared)
{
    struct count data = {.enough = 2 * map->own_bytes};
    int result = base_extents_wait(own, 0, base_size_bytes(own), count_data, &data);
    *ret_shared = data.bytes >= data.enough;
    return result;
}

static int make(struct base *own, struct base *origin, struct memory_map *map, bool *ret_shared)
{
    struct collection collection = {.map = map};
    *ret_shared = false;
    if (base_size_bytes(own) != base_size_bytes(origin) || base_size_bytes(own) % BLOCK_SIZE != 0)
        return 0;
    int result = base_diff_places_wait(origin, own, take_difference, &collection);
    if (result == 0)
        result = collection.result;
    if (result < 0)
        return result;
    memory_map_close_gaps(map, MEMORY_MAP_GAP_BYTES, MEMORY_MAP_EXTENTS_MAX);
    return is_shared(own, map, ret_shared);
}

int memory_map_make(struct store *store, struct base_id own_id, struct base_id origin_id,
        struct memory_map *ret_map, struct error *err)
{
    struct memory_map map = {.own = own_id};
    struct base *own, *origin = NULL;
    bool shared = false;
    int result = base_open(store, own_id, &own);
    if (result < 0)
        return error_set(
                err, result, "the memory image of a machine cannot be opened: %s", strerror(-result));
    map.bytes = base_size_bytes(own);
    if (origin_id.value != 0 && origin_id.value != own_id.value &&
            base_open(store, origin_id, &origin) == 0) {
        result = make(own, origin, &map, &shared);
        if (result < 0)
            error_set(err, result, "what a machine's memory shares with its template cannot be told: %s",
                    strerror(-result));
    }
    base_close(origin);
    base_close(own);
    if (result < 0) {
        memory_map_free(&map);
        return result;
    }
    if (shared) {
        map.origin = origin_id;
    } else {
        uint64_t bytes = map.bytes;
        memory_map_free(&map);
        map = (struct memory_map){.own = own_id, .bytes = bytes};
    }
    *ret_map = map;
    return 0;
}

// ---- For the VMM ----

int memory_map_file(const struct memory_map *map, int *ret_fd, struct error *err)
{
    struct preload_extents_header header = {
            .magic = PRELOAD_EXTENTS_MAGIC, .count = map->count, .ram_bytes = map->bytes};
    _Static_assert(sizeof(struct memory_map_extent) == sizeof(struct preload_extent), "the same two numbers");
    int fd = memfd_create("ramet-extents", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int result = fd < 0 ? -errno : fd_write_all(fd, &header, sizeof header);
    if (result == 0)
        result = fd_write_all(fd, map->extents, map->count * sizeof *map->extents);
    if (result == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        result = -errno;
    if (result < 0) {
        if (fd >= 0)
            close(fd);
        return error_set(err, result, "no memory file for a machine's memory map: %s", strerror(-result));
    }
    *ret_fd = fd;
    return 0;
}

// ---- Ranges ----

// The first extent that ends behind `offset`; map->count when there is none.
static unsigned find(const struct memory_map *map, uint64_t offset)
{
    unsigned low = 0, high = map->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (map->extents[middle].offset + map->extents[middle].length > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int memory_map_split(const struct memory_map *map, const struct working_set_range *ranges, unsigned count,
        int (*each)(void *context, struct base_id image, uint64_t offset, uint64_t length), void *context)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t at = ranges[i].offset, end = ranges[i].offset + ranges[i].length;
        while (at < end) {
            unsigned next = find(map, at);
            const struct memory_map_extent *extent = next < map->count ? &map->extents[next] : NULL;
            bool own = map->origin.value == 0 || (extent != NULL && extent->offset <= at);
            uint64_t stop = map->origin.value == 0 || extent == NULL ? end
                            : own                                    ? extent->offset + extent->length
                                                                     : extent->offset;
            stop = stop < end ? stop : end;
            int result = each(context, own ? map->own : map->origin, at, stop - at);
            if (result < 0)
                return result;
            at = stop;
        }
    }
    return 0;
}
