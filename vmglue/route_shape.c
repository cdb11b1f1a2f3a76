// SPDX-License-Identifier: Apache-2.0
#include "vmglue/route_shape.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <string.h>

enum { MEMORY_MB_MIN = 64, MEMORY_MB_MAX = 1048576, CPUS_MAX = 64 };

static const struct {
    const char *name;
    unsigned cpus, memory_mb;
} sizes[] = {{"small", 1, 256}, {"default", 1, 512}, {"large", 2, 1024}};

static int take_size(const json_t *body, struct route_shape *shape, struct error *err)
{
    const char *size = NULL;
    int r = json_fields_string(body, "size", &size, err);
    if (r <= 0)
        return r;
    size_t i = 0;
    while (i < sizeof sizes / sizeof sizes[0] && strcmp(sizes[i].name, size) != 0)
        i++;
    if (i == sizeof sizes / sizeof sizes[0])
        return error_set(err, -EINVAL, "size \"%.20s\" is not known; choose small, default or large", size);
    shape->cpus = sizes[i].cpus;
    shape->memory_mb = sizes[i].memory_mb;
    return 0;
}

int route_shape_take(const json_t *body, struct route_shape *shape, struct error *err)
{
    uint64_t cpus, memory, disk;
    int r = take_size(body, shape, err);
    if (r < 0)
        return r;
    cpus = shape->cpus;
    memory = shape->memory_mb;
    disk = shape->disk_bytes >> 30;
    if ((r = json_fields_uint(body, "cpus", 1, CPUS_MAX, &cpus, err)) < 0)
        return r;
    if ((r = json_fields_uint(body, "memory_mb", MEMORY_MB_MIN, MEMORY_MB_MAX, &memory, err)) < 0)
        return r;
    if ((r = json_fields_uint(body, "disk_gb", 1, 1 << 26, &disk, err)) < 0)
        return r;
    bool by_name = json_object_get(body, "size") != NULL && cpus == shape->cpus && memory == shape->memory_mb;
    *shape = (struct route_shape){(unsigned)cpus, (unsigned)memory, disk << 30, by_name};
    return 0;
}
