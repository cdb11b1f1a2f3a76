// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_disks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOUNT_TIMEOUT_MS = 120000, DISK_BYTES_MIN = 16 << 20 };

static const char *const export_names[VM_DISKS_MAX] = {
        "disk", "disk1", "disk2", "disk3", "disk4", "disk5", "disk6", "disk7"};

void sandbox_disks_export(struct sandbox *sandbox)
{
    const struct sandbox_record *record = &sandbox->record;
    memset(sandbox->disk_exports, 0, sizeof sandbox->disk_exports);
    sandbox->disk_exports[0] = (struct nbd_export){.found = true, .volume = record->disk};
    for (unsigned i = 0; i < record->more_count; i++)
        sandbox->disk_exports[i + 1] = (struct nbd_export){
                .found = true, .volume = record->more[i].volume, .read_only = record->more[i].read_only};
}

// disk_exports does not change while the server runs.
void sandbox_disks_resolve(void *context, const char *name, struct nbd_export *ret_export)
{
    const struct sandbox *sandbox = context;
    for (unsigned i = 0; i < VM_DISKS_MAX; i++)
        if (strcmp(name, export_names[i]) == 0 || (i == 0 && name[0] == '\0'))
            *ret_export = sandbox->disk_exports[i];
}

void sandbox_disks_describe(struct sandbox *sandbox, struct vm_config *config)
{
    const struct sandbox_record *record = &sandbox->record;
    config->disk_count = 1 + record->more_count;
    for (unsigned i = 0; i < config->disk_count; i++) {
        struct volume_info info = {0};
        store_volume_get(sandbox->all->store, i == 0 ? record->disk : record->more[i - 1].volume, &info);
        config->disks[i] = (struct vm_disk){.export_name = export_names[i],
                .size_bytes = info.size_bytes,
                .read_only = i > 0 && record->more[i - 1].read_only};
    }
}

void sandbox_disks_describe_origin(
        struct sandboxes *all, const struct sandbox_origin *origin, struct vm_config *config)
{
    config->disk_count = 1 + origin->more_count;
    for (unsigned i = 0; i < config->disk_count; i++) {
        struct base_info info = {0};
        store_base_get(all->store, i == 0 ? origin->disk : origin->more_bases[i - 1], &info);
        config->disks[i] = (struct vm_disk){.export_name = export_names[i],
                .size_bytes = info.size_bytes,
                .read_only = i > 0 && origin->more[i - 1].read_only};
    }
}

// ---- create ----

// An absolute path without dots and odd characters: it becomes a word in a command of the guest.
static int check_mount(const char *mount, unsigned index, struct error *err)
{
    size_t length = strlen(mount);
    bool good = mount[0] == '/' && length > 1 && length <= SANDBOX_MOUNT_MAX && strstr(mount, "/..") == NULL;
    for (const char *c = mount; good && *c != '\0'; c++)
        good = (unsigned char)*c >= ' ' && *c != 127;
    if (good)
        return 0;
    return error_set(err, -EINVAL,
            "field \"disks\"[%u].mount: \"%.60s\" is no place to mount a disk; use an absolute path of at "
            "most "
            "%d characters, not / itself",
            index, mount, SANDBOX_MOUNT_MAX);
}

static int take_volume(struct sandboxes *all, struct txn *txn, const struct sandbox_create_disk *wanted,
        unsigned index, struct sandbox_disk *disk, struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(&all->config.service->disks, wanted->volume, &ref, err);
    if (r == 0 && ref.kind == DISKS_MACHINE)
        r = error_set(err, -EINVAL, "\"%.60s\" is a snapshot of a machine", wanted->volume);
    if (r < 0) {
        error_prefix(err, "field \"disks\"[%u].volume", index);
        return r;
    }
    struct base_id base = ref.base.value != 0 ? ref.base : txn_freeze(txn, ref.volume);
    snprintf(disk->from, sizeof disk->from, "%.60s", wanted->volume);
    disk->volume = txn_volume_create(txn, "", VOLUME_DISK, 0, base);
    return 0;
}

int sandbox_disks_create(struct sandboxes *all, struct txn *txn, const struct sandbox_create *create,
        struct sandbox_record *record, struct error *err)
{
    if (create->disk_count > VM_DISKS_MAX - 1)
        return error_set(err, -EINVAL,
                "field \"disks\" has %u disks; a machine has at most %d beside its root", create->disk_count,
                VM_DISKS_MAX - 1);
    for (unsigned i = 0; i < create->disk_count; i++) {
        const struct sandbox_create_disk *wanted = &create->disks[i];
        struct sandbox_disk *disk = &record->more[i];
        int r = wanted->mount == NULL ? 0 : check_mount(wanted->mount, i, err);
        disk->read_only = wanted->read_only;
        snprintf(disk->mount, sizeof disk->mount, "%s", wanted->mount == NULL ? "" : wanted->mount);
        if (r == 0 && wanted->volume != NULL)
            r = take_volume(all, txn, wanted, i, disk, err);
        else if (r == 0)
            disk->volume = txn_volume_create(txn, "", VOLUME_DISK, wanted->size_bytes, (struct base_id){0});
        if (r < 0)
            return r;
        record->more_count = i + 1;
    }
    return 0;
}

// ---- in the guest ----

// Words of the command come by the environment, so that nothing in them is read by the shell.
static const char mount_script[] =
        "set -e; mkdir -p -- \"$RAMET_AT\"; "
        "if [ -n \"$RAMET_NEW\" ] && [ \"$(head -c 65536 \"$RAMET_DEV\" | tr -d '\\0' | wc -c)\" = 0 ]; then "
        "mkfs.ext4 -q -F \"$RAMET_DEV\"; RAMET_MADE=1; fi; "
        "mount $RAMET_HOW \"$RAMET_DEV\" \"$RAMET_AT\"; "
        "if [ -n \"$RAMET_MADE\" ]; then chown user: \"$RAMET_AT\" 2>/dev/null || true; fi";

static int mount_one(struct sandbox *sandbox, unsigned index, struct error *err)
{
    const struct sandbox_disk *disk = &sandbox->record.more[index];
    char device[32], at[SANDBOX_MOUNT_MAX + 16];
    snprintf(device, sizeof device, "RAMET_DEV=/dev/vd%c", 'b' + (int)index);
    snprintf(at, sizeof at, "RAMET_AT=%s", disk->mount);
    const char *env[] = {device, at, disk->read_only ? "RAMET_HOW=-oro" : "RAMET_HOW=",
            disk->from[0] == '\0' && !disk->read_only ? "RAMET_NEW=1" : "RAMET_NEW=", NULL};
    const struct agent_exec exec = {.shell_command = mount_script,
            .env = env,
            .cwd = "/",
            .user = "root",
            .timeout_ms = MOUNT_TIMEOUT_MS};
    struct agent_exec_result result = {0};
    int r = agent_exec_run(sandbox->agent, &exec, &result, err);
    if (r == 0 && result.exit_code != 0)
        r = error_set(err, -EINVAL, "the guest says: %.300s", result.err == NULL ? "" : result.err);
    agent_exec_result_free(&result);
    if (r < 0)
        error_prefix(err, "disk %u cannot be mounted at %s", index + 1, disk->mount);
    return r;
}

int sandbox_disks_mount(struct sandbox *sandbox, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < sandbox->record.more_count; i++)
        if (sandbox->record.more[i].mount[0] != '\0')
            r = mount_one(sandbox, i, err);
    return r;
}
