// SPDX-License-Identifier: Apache-2.0
#include "vmglue/http_metrics.h"

#include "vmglue/http_internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 1024, SLOTS = 2048, BUCKETS = 11 };
static const double bucket_secs[BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 300};

struct row {
    const char *pattern; // of a route: lives as long as the program
    char method[12];
    int status;
    uint64_t count, timed; // calls; those whose time is in what follows
    uint64_t sum_ns, buckets[BUCKETS];
};

struct http_metrics {
    pthread_mutex_t lock;
    struct row rows[ROWS_MAX]; // protected by lock, as is all below
    unsigned row_count;
    uint16_t slots[SLOTS]; // row + 1, by hash
    int64_t in_flight, streams;
    uint64_t uncounted;
};

struct http_metrics *http_metrics_create(void)
{
    struct http_metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics != NULL)
        pthread_mutex_init(&metrics->lock, NULL);
    return metrics;
}

struct http_metrics *http_metrics_destroy(struct http_metrics *metrics)
{
    if (metrics == NULL)
        return NULL;
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
    return NULL;
}

void http_metrics_begin(struct http_metrics *metrics)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->in_flight++;
    pthread_mutex_unlock(&metrics->lock);
}

void http_metrics_streams(struct http_metrics *metrics, int change)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->streams += change;
    pthread_mutex_unlock(&metrics->lock);
}

static unsigned hash(const char *method, const char *pattern, int status)
{
    unsigned value = 5381u + (unsigned)status;
    for (const char *at = method; *at != '\0'; at++)
        value = value * 33 + (unsigned char)*at;
    for (const char *at = pattern; *at != '\0'; at++)
        value = value * 33 + (unsigned char)*at;
    return value;
}

// The row of these three; NULL: the table is full.
static struct row *row_locked(
        struct http_metrics *metrics, const char *method, const char *pattern, int status)
{
    for (unsigned slot = hash(method, pattern, status) % SLOTS;; slot = (slot + 1) % SLOTS) {
        if (metrics->slots[slot] == 0) {
            if (metrics->row_count == ROWS_MAX)
                return NULL;
            struct row *row = &metrics->rows[metrics->row_count++];
            metrics->slots[slot] = (uint16_t)metrics->row_count;
            row->pattern = pattern;
            row->status = status;
            snprintf(row->method, sizeof row->method, "%s", method);
            return row;
        }
        struct row *row = &metrics->rows[metrics->slots[slot] - 1];
        if (row->status == status && strcmp(row->method, method) == 0 && strcmp(row->pattern, pattern) == 0)
            return row;
    }
}

void http_metrics_end(struct http_metrics *metrics, const char *method, const char *pattern, int status,
        uint64_t duration_ns, bool stream)
{
    // What was not found has neither path nor method of its own, and what is passed on to a guest may have
    // any method: anybody can make up thousands.
    const char *counted_method = pattern == NULL ? "" : http_head_is_method(method) ? method : "other";
    const char *counted = pattern == NULL ? "" : pattern;
    pthread_mutex_lock(&metrics->lock);
    metrics->in_flight--;
    struct row *row = row_locked(metrics, counted_method, counted, status);
    if (row == NULL) {
        metrics->uncounted++;
    } else {
        row->count++;
        for (unsigned i = 0; i < BUCKETS && !stream; i++)
            row->buckets[i] += (double)duration_ns / 1e9 <= bucket_secs[i];
        row->sum_ns += stream ? 0 : duration_ns;
        row->timed += stream ? 0 : 1;
    }
    pthread_mutex_unlock(&metrics->lock);
}

static void print_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

// All statuses of a route make one histogram. Lock held.
static void print_histogram_locked(struct http_metrics *metrics, const struct row *of, FILE *out)
{
    struct row sum = {0};
    for (unsigned i = 0; i < metrics->row_count; i++) {
        const struct row *row = &metrics->rows[i];
        if (row->timed == 0 || strcmp(row->method, of->method) != 0 || strcmp(row->pattern, of->pattern) != 0)
            continue;
        if (row < of)
            return; // printed with that one
        sum.count += row->timed;
        sum.sum_ns += row->sum_ns;
        for (unsigned b = 0; b < BUCKETS; b++)
            sum.buckets[b] += row->buckets[b];
    }
    for (unsigned b = 0; b <= BUCKETS; b++) {
        fprintf(out, "ramet_http_request_duration_seconds_bucket{method=\"%s\",route=\"%s\",le=\"",
                of->method, of->pattern);
        if (b < BUCKETS)
            fprintf(out, "%g\"} %" PRIu64 "\n", bucket_secs[b], sum.buckets[b]);
        else
            fprintf(out, "+Inf\"} %" PRIu64 "\n", sum.count);
    }
    fprintf(out, "ramet_http_request_duration_seconds_sum{method=\"%s\",route=\"%s\"} %.6f\n", of->method,
            of->pattern, (double)sum.sum_ns / 1e9);
    fprintf(out, "ramet_http_request_duration_seconds_count{method=\"%s\",route=\"%s\"} %" PRIu64 "\n",
            of->method, of->pattern, sum.count);
}

void http_metrics_print(struct http_metrics *metrics, FILE *out)
{
    pthread_mutex_lock(&metrics->lock);
    print_head(out, "ramet_http_requests_total", "counter", "Calls answered, by route and status.");
    for (unsigned i = 0; i < metrics->row_count; i++)
        fprintf(out, "ramet_http_requests_total{method=\"%s\",route=\"%s\",status=\"%d\"} %" PRIu64 "\n",
                metrics->rows[i].method, metrics->rows[i].pattern, metrics->rows[i].status,
                metrics->rows[i].count);
    print_head(out, "ramet_http_requests_uncounted_total", "counter",
            "Calls that found no room in the table above.");
    fprintf(out, "ramet_http_requests_uncounted_total %" PRIu64 "\n", metrics->uncounted);
    print_head(out, "ramet_http_request_duration_seconds", "histogram",
            "From a call's head to the end of its answer; streams and other protocols are not in it.");
    for (unsigned i = 0; i < metrics->row_count; i++)
        if (metrics->rows[i].timed > 0)
            print_histogram_locked(metrics, &metrics->rows[i], out);
    print_head(out, "ramet_http_requests_in_flight", "gauge", "Calls under way.");
    fprintf(out, "ramet_http_requests_in_flight %" PRId64 "\n", metrics->in_flight);
    print_head(out, "ramet_http_streams", "gauge",
            "Answers under way whose length nobody knows: events, output.");
    fprintf(out, "ramet_http_streams %" PRId64 "\n", metrics->streams);
    pthread_mutex_unlock(&metrics->lock);
}
