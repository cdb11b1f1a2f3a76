// SPDX-License-Identifier: Apache-2.0
// /metrics: figures for an operator's monitoring, in the text format of Prometheus.
#include "vmglue/http_metrics.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_memory.h"
#include "vmglue/sandbox_pool.h"
#include "vmglue/service.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_one(FILE *out, const char *name, const char *type, const char *help, double value)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

static void print_store(struct service *service, FILE *out)
{
    struct store_stat stat;
    store_stat(service->store, &stat);
    const double dead = stat.segment_slots_present == 0
                                ? 0
                                : (double)stat.segment_bytes * (double)stat.segment_slots_dead /
                                          (double)stat.segment_slots_present;
    const struct {
        const char *name, *help;
        double value;
        bool counter;
    } figures[] = {
            {"ramet_store_writable", "1 while the store takes writes.", stat.failed == 0, false},
            {"ramet_store_background_ok", "1 when the last background work went well.",
                    stat.background_error == 0, false},
            {"ramet_store_logical_bytes", "Sizes of all volumes together.", (double)stat.logical_bytes,
                    false},
            {"ramet_store_mapped_bytes", "Data of volumes and snapshots, each by itself.",
                    (double)stat.mapped_bytes, false},
            {"ramet_store_unique_bytes", "The same, each block once.", (double)stat.unique_bytes, false},
            {"ramet_store_physical_bytes", "What the files take.", (double)stat.physical_bytes, false},
            {"ramet_store_log_bytes", "Of these, the log.", (double)stat.physical_log_bytes, false},
            {"ramet_store_segment_bytes", "Of these, segments.", (double)stat.physical_segment_bytes, false},
            {"ramet_store_catalog_bytes", "Of these, the catalog.", (double)stat.catalog_bytes, false},
            {"ramet_store_reclaimable_bytes", "What a collection would free.", dead, false},
            {"ramet_store_log_used_bytes", "Log that holds records.", (double)stat.log_used_bytes, false},
            {"ramet_store_log_budget_bytes", "What the log may take.", (double)stat.log_budget_bytes, false},
            {"ramet_store_volumes", "Volumes.", (double)stat.volumes, false},
            {"ramet_store_bases", "Immutable roots.", (double)stat.bases, false},
            {"ramet_store_written_bytes_total", "Bytes written to the log.", (double)stat.written_bytes_total,
                    true},
            {"ramet_store_syncs_total", "Times the log was synced.", (double)stat.sync_count_total, true},
            {"ramet_store_dedup_blocks_total", "Blocks that were there already.", (double)stat.dedup_hits,
                    true},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        print_one(out, figures[i].name, figures[i].counter ? "counter" : "gauge", figures[i].help,
                figures[i].value);
}

static void print_sandboxes(struct service *service, FILE *out)
{
    static const char *const states[] = {
            "creating", "starting", "running", "paused", "stopping", "stopped", "failed", "removing", NULL};
    json_t *list = sandbox_list(service->sandboxes, NULL, NULL, NULL), *box;
    size_t index;
    fprintf(out, "# HELP ramet_sandboxes Sandboxes by state.\n# TYPE ramet_sandboxes gauge\n");
    for (size_t i = 0; states[i] != NULL; i++) {
        unsigned count = 0;
        json_array_foreach(list, index, box)
        {
            const char *state = json_fields_get_text(box, "state");
            count += state != NULL && strcmp(state, states[i]) == 0;
        }
        fprintf(out, "ramet_sandboxes{state=\"%s\"} %u\n", states[i], count);
    }
    json_decref(list);
}

// Each number of an object under a name of its own; what ends in _total is a counter.
static void print_numbers(FILE *out, const char *prefix, const json_t *object, const char *help)
{
    const char *key;
    json_t *value;
    char name[128];
    json_object_foreach((json_t *)object, key, value)
    {
        size_t size = strlen(key);
        bool total = size > 6 && strcmp(key + size - 6, "_total") == 0;
        if (!json_is_number(value))
            continue;
        snprintf(name, sizeof name, "%s%s", prefix, key);
        print_one(out, name, total ? "counter" : "gauge", help, json_number_value(value));
    }
}

static void print_memory(struct service *service, FILE *out)
{
    json_t *report = sandbox_memory_report(service->sandboxes);
    const char *state = json_fields_get_text(report, "state");
    print_one(out, "ramet_memory_short", "gauge", "1 while the host is short of memory.",
            state != NULL && strcmp(state, "short") == 0);
    print_numbers(out, "ramet_memory_", report, "As in GET /v1/memory.");
    print_numbers(
            out, "ramet_host_memory_", json_object_get(report, "host"), "As in GET /v1/memory, of the host.");
    json_decref(report);
}

static void print_pool(struct service *service, FILE *out)
{
    json_t *pool = sandbox_pool_json(service->sandboxes), *row;
    size_t index;
    double taken = 0, missed = 0;
    json_array_foreach(json_object_get(pool, "snapshots"), index, row)
    {
        taken += json_number_value(json_object_get(row, "taken"));
        missed += json_number_value(json_object_get(row, "missed"));
    }
    print_numbers(out, "ramet_pool_", pool, "As in GET /v1/pool.");
    print_one(out, "ramet_pool_taken", "gauge",
            "Creates that took a waiting machine, of the snapshots in the pool.", taken);
    print_one(out, "ramet_pool_missed", "gauge", "Creates that found none waiting.", missed);
    json_decref(pool);
}

static unsigned count_entries(const char *folder)
{
    unsigned count = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    if (directory != NULL)
        closedir(directory);
    return count;
}

static void print_process(FILE *out)
{
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL && fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (file != NULL)
        fclose(file);
    print_one(out, "process_resident_memory_bytes", "gauge", "Of the daemon.",
            (double)resident * (double)sysconf(_SC_PAGESIZE));
    print_one(out, "process_threads", "gauge", "Of the daemon.", count_entries("/proc/self/task"));
    print_one(out, "process_open_fds", "gauge", "Of the daemon.", count_entries("/proc/self/fd"));
    fprintf(out,
            "# HELP ramet_build_info The daemon's version.\n# TYPE ramet_build_info gauge\n"
            "ramet_build_info{version=\"%s\"} 1\n",
            RAMET_VERSION);
}

static void get_metrics(struct http_request *request)
{
    struct service *service = service_of(request);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out != NULL) {
        http_metrics_print(service->http_metrics, out);
        print_sandboxes(service, out);
        print_pool(service, out);
        print_memory(service, out);
        print_store(service, out);
        print_process(out);
    }
    if (out == NULL || fclose(out) != 0)
        http_reply_error(request, 503, "capacity.memory", "no memory for the figures; try again");
    else
        http_reply_bytes(request, 200, "text/plain; version=0.0.4; charset=utf-8", text, size);
    free(text);
}

const struct http_route routes_prometheus[] = {{"GET", "/metrics", 0, get_metrics}, {0}};
