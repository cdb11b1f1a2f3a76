// SPDX-License-Identifier: Apache-2.0
// What the routes of the HTTP API work on: one of these per daemon, made by tools/rametd, the context of
// every request.
//
// Threads: set up before the HTTP server starts, torn down after it has stopped; the parts have locks of
// their own.
#pragma once

#include "vmglue/disks.h"
#include "vmglue/http_server.h"
#include "vmglue/import_export.h"
#include "vmglue/names.h"
#include "vmglue/snapshot_state.h"

struct sandboxes;
struct templates;
struct mem_fuse;
struct image_access;
struct http_metrics;
struct gate;

struct service {
    struct store *store;
    const char *run_dir;
    struct names names;
    struct disks disks;
    struct import_export *transfers;
    struct snapshot_state *snapshots;
    struct sandboxes *sandboxes;
    struct templates *templates;
    struct mem_fuse *fuse;
    struct http_metrics *http_metrics;
    struct image_access *image_access; // who may open what in it
    struct gate *gate;                 // keys and who may what
    struct environment *environment;   // what every sandbox's commands get
    struct urls *urls;                 // connections to exposed ports
    const char *url_host;              // a name of which TOKEN.NAME leads here; NULL = none
    const char *tcp_address;           // "127.0.0.1:7480"; NULL = it listens on no TCP port
    bool tcp_is_tls;
};

// The tables, one per file routes_*.c.
extern const struct http_route routes_store[], routes_volumes[], routes_ranges[], routes_snapshots[],
        routes_transfers[];
extern const struct http_route routes_urls[], routes_environment[], routes_metrics[];
extern const struct http_route routes_life[], routes_events[];
extern const struct http_route routes_jobs[], routes_pty[], routes_watch[], routes_ports[];
extern const struct http_route routes_archives[], routes_maintenance[], routes_sandboxes[], routes_exec[],
        routes_files[], routes_memory[], routes_prometheus[], routes_contexts[], routes_pool[],
        routes_templates[], routes_keys[], routes_openapi[];
// What E2B's clients ask inside a machine (alias_e2b.c leads to them).
extern const struct http_route routes_e2b_process[], routes_e2b_files[], routes_e2b_watch[],
        routes_e2b_code[];
extern const struct http_route routes_pandastack_build[]; // what a form of PandaStack's becomes
// All of them, NULL-terminated.
extern const struct http_route *const routes_all[];
// And those that only other clients' words lead to.
extern const struct http_route *const routes_served[];

static inline struct service *service_of(struct http_request *request)
{
    return http_request_context(request);
}
