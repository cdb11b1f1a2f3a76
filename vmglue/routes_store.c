// SPDX-License-Identifier: Apache-2.0
// /healthz, /version, /v1/store.
#include "vmglue/gate.h"
#include "vmglue/hex.h"
#include "vmglue/json_fields.h"
#include "vmglue/made_by.h"
#include "vmglue/mem_fuse.h"
#include "vmglue/service.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static void get_health(struct http_request *request)
{
    struct store_stat stat;
    store_stat(service_of(request)->store, &stat);
    if (stat.failed != 0) {
        struct error err;
        error_set(&err, -ESTALE,
                "the store has stopped writing (error %d); reads go on; restart the daemon to recover",
                stat.failed);
        http_reply_failure(request, "store", &err);
        return;
    }
    http_reply_json(request, 200, json_pack("{s:s}", "status", "ok"));
}

static void get_version(struct http_request *request)
{
    http_reply_json(request, 200, json_pack("{s:s, s:s}", "version", RAMET_VERSION, "api", "v1"));
}

// About: dead blocks compress as well as the others.
static uint64_t reclaimable_bytes(const struct store_stat *stat)
{
    if (stat->segment_slots_present == 0)
        return 0;
    return (uint64_t)((double)stat->segment_bytes * (double)stat->segment_slots_dead /
                      (double)stat->segment_slots_present);
}

// With four dashes.
static json_t *uuid_json(struct store *store)
{
    uint8_t uuid[16];
    char hex[2 * sizeof uuid + 1];
    store_uuid(store, uuid);
    hex_encode(uuid, sizeof uuid, hex);
    return json_sprintf("%.8s-%.4s-%.4s-%.4s-%s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static void set_figures(struct service *service, const struct store_stat *stat, json_t *json)
{
    struct statvfs room = {0};
    statvfs(store_directory(service->store), &room);
    // Notes of ours about requests and makers are no things of anybody's.
    uint64_t kept = gate_requests_kept(service->gate), notes = kept + made_by_count(service->store);
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {
            {"logical_bytes", stat->logical_bytes},
            {"mapped_bytes", stat->mapped_bytes},
            {"unique_bytes", stat->unique_bytes},
            {"physical_bytes", stat->physical_bytes},
            {"log_bytes", stat->physical_log_bytes},
            {"segment_bytes", stat->physical_segment_bytes},
            {"catalog_bytes", stat->catalog_bytes},
            {"other_bytes", stat->other_bytes},
            {"reclaimable_bytes", reclaimable_bytes(stat)},
            {"leaving_bytes", stat->leaving_bytes},
            {"log_used_bytes", stat->log_used_bytes},
            {"log_spare_bytes", stat->log_spare_bytes},
            {"log_budget_bytes", stat->log_budget_bytes},
            {"live_bytes", stat->live_block_refs * BLOCK_SIZE},
            {"free_bytes", (uint64_t)room.f_bavail * room.f_frsize},
            {"written_bytes_total", stat->written_bytes_total},
            {"sync_count_total", stat->sync_count_total},
            {"volumes", stat->volumes},
            {"bases", stat->bases},
            {"docs", stat->docs > notes ? stat->docs - notes : 0},
            {"requests_kept", kept},
            {"segments", stat->segments},
            {"segment_blocks", stat->segment_slots_present},
            {"segment_blocks_dead", stat->segment_slots_dead},
            {"tree_nodes", stat->tree_nodes},
            {"fingerprint_entries", stat->fingerprint_entries},
            {"fingerprint_bytes", stat->fingerprint_bytes},
            {"checkpoints", stat->checkpoints},
            {"checkpoint_log_file", stat->checkpoint_log_file},
            {"sealed_blocks", stat->sealed_blocks},
            {"dedup_hits", stat->dedup_hits},
            {"zero_blocks", stat->zero_blocks},
            {"appended_seq", stat->appended_seq},
            {"acknowledged_seq", stat->acknowledged_seq},
            {"durable_seq", stat->durable_seq},
            {"recovered_records", stat->recovered_records},
            {"recovered_bytes", stat->recovered_bytes},
            {"recovery_ms", stat->recovery_ns / 1000000},
            {"memory_image_read_bytes", service->fuse == NULL ? 0 : mem_fuse_read_bytes(service->fuse)},
            {"memory_image_reads", service->fuse == NULL ? 0 : mem_fuse_read_count(service->fuse)},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        json_object_set_new(json, figures[i].name, json_integer((json_int_t)figures[i].value));
}

static void get_store(struct http_request *request)
{
    struct service *service = service_of(request);
    struct store_stat stat;
    store_stat(service->store, &stat);
    json_t *json = json_pack("{s:s, s:o, s:i}", "directory", store_directory(service->store), "id",
            uuid_json(service->store), "shards", (int)store_loop_count(service->store));
    set_figures(service, &stat, json);
    json_object_set_new(json, "fingerprints_loaded", json_boolean(stat.fingerprints_loaded));
    json_object_set_new(json, "background_error",
            stat.background_error == 0 ? json_null() : json_string(strerror(-stat.background_error)));
    json_object_set_new(json, "state", json_string(stat.failed == 0 ? "ok" : "stopped writing"));
    http_reply_json(request, 200, json);
}

const struct http_route routes_store[] = {
        {"GET", "/healthz", HTTP_OPEN, get_health},
        {"GET", "/version", HTTP_OPEN, get_version},
        {"GET", "/v1/store", 0, get_store},
        {0},
};
