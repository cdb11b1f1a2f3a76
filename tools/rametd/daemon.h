// SPDX-License-Identifier: Apache-2.0
// The daemon's parts, in the order in which they come up and go down.
#pragma once

#include "snapshot/store.h"
#include "vmglue/sandbox_memory.h"

#include <stdbool.h>
#include <stdint.h>

struct daemon;

struct daemon_config {
    const char *store_dir, *run_dir;
    const char *kernel_dir; // NULL = STORE's neighbour "kernel"
    const char *vmm_path;   // NULL = qemu-system-x86_64
    const char *accel;      // "auto", "kvm", "tcg"
    unsigned shards;
    struct store_config store; // what is 0 is as stored, or the default
    struct sandbox_memory_config memory;
    const char *listen;              // the API's TCP address (tcp_listen.h); NULL = none
    bool listen_plain_anyway;        // without TLS although others than this host can listen in
    const char *tls_cert, *tls_key;  // files; both or none
    const char *const *cors_origins; // NULL-terminated; NULL = none
    unsigned connections;            // of TCP; 0 = default
    const char *url_host; // exposed ports are served at TOKEN.NAME too; NULL = at TOKEN.localhost alone
    bool log_requests;
    unsigned rate_limit;                  // requests a second of one key; 0 = none
    const char *network_range, *resolver; // NULL = the default
    bool private_networks;
    uint64_t keep_stopped_ms; // 0 = for ever
    bool working_sets;        // record what resumes touch, and prefetch it
    unsigned pool;
    bool no_confine;
    uint64_t uid_base; // of confined VMMs; 0 = default
};

int daemon_start(const struct daemon_config *config, struct daemon **ret_daemon, struct error *err);
// Reads the certificate and key again. A pair that is no good leaves the old one in use, with a line in the
// log.
void daemon_reload(struct daemon *daemon);
// Ends cleanly: guests and the keeper go on, the log is synced. Accepts NULL.
void daemon_stop(struct daemon *daemon);
