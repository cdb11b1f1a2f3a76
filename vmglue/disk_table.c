// SPDX-License-Identifier: Apache-2.0
#include "vmglue/disk_table.h"

#include <string.h>

enum { LOOK_BYTES = 4096 + 8, SMALL_SECTOR = 512, LARGE_SECTOR = 4096 };

const char disk_table_notice[] =
        "its partition table is for a disk with sectors of 4096 bytes, and machines here have disks with "
        "512: "
        "they find no partition on it; convert it first (sgdisk or sfdisk on a loop device), or use a plain "
        "file system without partitions";

static bool read_start(struct store *store, struct volume_id volume, struct base_id base, char *bytes)
{
    struct volume *open_volume = NULL;
    struct base *open_base = NULL;
    bool good = false;
    if (volume.value != 0 && volume_open(store, volume, &open_volume) == 0)
        good = volume_size_bytes(open_volume) >= LOOK_BYTES &&
               volume_read_wait(open_volume, 0, bytes, LOOK_BYTES) == 0;
    else if (volume.value == 0 && base_open(store, base, &open_base) == 0)
        good = base_size_bytes(open_base) >= LOOK_BYTES &&
               base_read_wait(open_base, 0, bytes, LOOK_BYTES) == 0;
    if (open_volume != NULL)
        volume_close(open_volume);
    if (open_base != NULL)
        base_close(open_base);
    return good;
}

bool disk_table_is_for_4096(struct store *store, struct volume_id volume, struct base_id base)
{
    static const char magic[8] = "EFI PART";
    char bytes[LOOK_BYTES];
    return read_start(store, volume, base, bytes) && memcmp(bytes + LARGE_SECTOR, magic, sizeof magic) == 0 &&
           memcmp(bytes + SMALL_SECTOR, magic, sizeof magic) != 0;
}
