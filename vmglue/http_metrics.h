// SPDX-License-Identifier: Apache-2.0
// Counts the calls of HTTP servers, for an operator's monitoring: by route and status, how long they took,
// how many are under way. Threads: any.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct http_metrics;

struct http_metrics *http_metrics_create(void);                          // NULL: no memory
struct http_metrics *http_metrics_destroy(struct http_metrics *metrics); // accepts NULL
void http_metrics_begin(struct http_metrics *metrics);                   // a request's head has come
// It is over. The pattern is one of the routes' (kept as it is); NULL = no route was found. A stream's time
// is not among the durations.
void http_metrics_end(struct http_metrics *metrics, const char *method, const char *pattern, int status,
        uint64_t duration_ns, bool stream);
void http_metrics_streams(struct http_metrics *metrics, int change); // answers of unknown length under way
// Writes all of it in the text format of Prometheus.
void http_metrics_print(struct http_metrics *metrics, FILE *out);
