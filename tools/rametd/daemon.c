// SPDX-License-Identifier: Apache-2.0
// Order at start: run directory's lock, loops, store, left-overs of a dead daemon, keeper, memory images,
// sandboxes (disks first, then VMMs), template builds, keys, operator's exports, API. Everything that a VMM
// may be waiting for is served before anything is asked of a VMM; nobody can call before all of it stands.
// The way down is the way up backwards.
#include "tools/rametd/daemon.h"

#include "blockstore/io_ring.h"
#include "snapshot/passing.h"
#include "tools/rametd/log.h"
#include "tools/rametd/memory_images.h"
#include "tools/rametd/operator_exports.h"
#include "tools/rametd/run_dir.h"
#include "tools/rametd/tcp_listen.h"
#include "vmglue/alias.h"
#include "vmglue/gate.h"
#include "vmglue/http_metrics.h"
#include "vmglue/http_tls.h"
#include "vmglue/environment.h"
#include "vmglue/image_access.h"
#include "vmglue/keeper.h"
#include "vmglue/keeper_guard.h"
#include "vmglue/mem_fuse.h"
#include "vmglue/proxy.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_events.h"
#include "vmglue/service.h"
#include "vmglue/template.h"
#include "vmglue/urls.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARDS_MAX = 64, RING_ENTRIES = 256, LOCAL_CONNECTIONS = 2000 };

struct daemon {
    struct daemon_config config;
    char *run_dir;
    char libexec_dir[PATH_MAX], kernel_dir[PATH_MAX];
    int lock_fd, api_fd, nbd_fd, tcp_fd;
    char *tcp_address; // what it listens on
    struct loop *loops[SHARDS_MAX + 1];
    unsigned loop_count, running_loops;
    struct store *store;
    struct keeper_guard *keeper;
    struct mem_fuse *fuse;
    struct nbd_server *nbd;
    struct http_server *http, *http_tcp;
    struct service service;
};

static void log_request(void *context, struct http_request *request, int status, uint64_t duration_ns)
{
    // A head that was refused before the URL's token was seen in it still holds one; so does a path that
    // somebody put something before, or spelled in another way.
    char masked[1024];
    snprintf(masked, sizeof masked, "%s", http_request_log_path(request));
    urls_mask(masked);
    const char *path = masked;
    const struct keys_info *key = gate_key(request);
    log_line("%s %s %s %d %.1f ms %s", http_request_id(request), http_request_method(request), path, status,
            (double)duration_ns / 1e6,
            key != NULL                      ? key->id
            : http_request_is_local(request) ? "local"
                                             : "-");
}

static void log_message(void *context, const char *message)
{
    log_line("%s", message);
}

// Helpers stand beside this program: keeper, preload library.
static int find_libexec(struct daemon *daemon, struct error *err)
{
    const char *given = getenv("RAMET_LIBEXEC");
    ssize_t size = -1;
    if (given != NULL && given[0] == '\0')
        given = NULL;
    if (given != NULL)
        size = snprintf(daemon->libexec_dir, sizeof daemon->libexec_dir, "%s", given);
    else if ((size = readlink("/proc/self/exe", daemon->libexec_dir, sizeof daemon->libexec_dir - 1)) > 0)
        daemon->libexec_dir[size] = '\0';
    char *slash = given == NULL ? strrchr(daemon->libexec_dir, '/') : NULL;
    if (size <= 0 || (given == NULL && slash == NULL))
        return error_set(
                err, -ENOENT, "the folder of the daemon's helpers cannot be told; set RAMET_LIBEXEC");
    if (slash != NULL)
        *slash = '\0';
    return 0;
}

// An absolute path, since VMMs run in folders of their own. It need not exist before the first sandbox boots.
static int find_kernel(struct daemon *daemon, struct error *err)
{
    const struct daemon_config *config = &daemon->config;
    const char *path = config->kernel_dir != NULL ? config->kernel_dir : config->store_dir;
    char folder[PATH_MAX] = "";
    if (path[0] != '/' && getcwd(folder, sizeof folder) == NULL)
        return error_set(err, -errno, "the current folder cannot be told: %s", strerror(errno));
    if ((size_t)snprintf(daemon->kernel_dir, sizeof daemon->kernel_dir, "%s%s%s%s", folder,
                folder[0] == '\0' ? "" : "/", path,
                config->kernel_dir != NULL ? "" : "/../kernel") >= sizeof daemon->kernel_dir)
        return error_set(err, -ENAMETOOLONG, "the path of the kernel's folder is too long: %.100s", path);
    return 0;
}

static int start_store(struct daemon *daemon, struct error *err)
{
    const char *directory = daemon->config.store_dir;
    for (unsigned i = 0; i < daemon->config.shards + 1; i++) { // the last one is for background work
        int r = io_ring_loop_create(i, RING_ENTRIES, &daemon->loops[i]);
        if (r < 0)
            return error_set(err, r, "an io_uring cannot be made: %s", strerror(-r));
        daemon->loop_count++;
    }
    struct store_config config = daemon->config.store;
    config.background = daemon->loops[daemon->config.shards];
    int r = store_open(daemon->loops, daemon->config.shards, directory, &config, &daemon->store, err);
    if (r == -EBUSY) {
        int owner = run_dir_store_owner(directory);
        if (owner > 0)
            return error_set(err, r,
                    "the store %s is in use by process %d; one daemon owns a store: stop that one first",
                    directory, owner);
    }
    if (r < 0)
        return r;
    for (unsigned i = 0; i < daemon->loop_count; i++) {
        r = io_ring_thread_start(daemon->loops[i]);
        if (r < 0)
            return error_set(err, r, "the thread of shard %u cannot be started: %s", i, strerror(-r));
        daemon->running_loops++;
    }
    struct store_stat stat;
    store_stat(daemon->store, &stat);
    log_line("store %s: %llu volumes, %llu docs, %llu records replayed in %llu ms", directory,
            (unsigned long long)stat.volumes, (unsigned long long)stat.docs,
            (unsigned long long)stat.recovered_records, (unsigned long long)(stat.recovery_ns / 1000000));
    return 0;
}

static int start_services(struct daemon *daemon, struct error *err)
{
    struct service *service = &daemon->service;
    unsigned cleaned = 0;
    service->store = daemon->store;
    service->run_dir = daemon->run_dir;
    names_init(&service->names, daemon->store);
    service->disks = (struct disks){daemon->store, &service->names};
    int r = passing_clean_up(daemon->store, &cleaned, err);
    if (r == 0 && cleaned > 0)
        log_line("%u unfinished imports or exports of an earlier daemon were removed", cleaned);
    if (r == 0)
        r = snapshot_state_start(daemon->store, &service->snapshots, err);
    if (r == 0)
        r = import_export_start(daemon->store, &service->disks, daemon->run_dir, &service->transfers, err);
    service->image_access = image_access_new();
    service->urls = urls_create();
    if (r == 0)
        r = environment_start(daemon->store, &service->environment, err);
    service->url_host = daemon->config.url_host;
    if (r == 0 && service->image_access == NULL)
        r = error_set(err, -ENOMEM, "no memory");
    if (r == 0)
        r = memory_images_start(daemon->run_dir, daemon->libexec_dir, daemon->store, service->image_access,
                &daemon->keeper, &daemon->fuse, err);
    service->fuse = daemon->fuse;
    return r;
}

static int start_sandboxes(struct daemon *daemon, struct error *err)
{
    const char *accel = daemon->config.accel;
    struct sandbox_config config = {
            .service = &daemon->service,
            .run_dir = daemon->run_dir,
            .libexec_dir = daemon->libexec_dir,
            .kernel_dir = daemon->kernel_dir,
            .vmm_path = daemon->config.vmm_path,
            .store_dir = daemon->config.store_dir,
            .confine = !daemon->config.no_confine,
            .uid_base = (uid_t)daemon->config.uid_base,
            .accel = strcmp(accel, "kvm") == 0   ? VM_ACCEL_KVM
                     : strcmp(accel, "tcg") == 0 ? VM_ACCEL_TCG
                                                 : VM_ACCEL_AUTO,
            .memory = daemon->config.memory,
            .keep_stopped_ms = daemon->config.keep_stopped_ms,
            .working_sets = daemon->config.working_sets,
            .pool = daemon->config.pool,
            .network_range = daemon->config.network_range,
            .resolver = daemon->config.resolver,
            .private_networks = daemon->config.private_networks,
            .log = log_message,
    };
    return sandbox_start_all(&config, &daemon->service.sandboxes, err);
}

static int start_templates(struct daemon *daemon, struct error *err)
{
    struct template_config config = {.service = &daemon->service,
            .libexec_dir = daemon->libexec_dir,
            .kernel_dir = daemon->kernel_dir,
            .log = log_message};
    return template_start_all(&config, &daemon->service.templates, err);
}

static int start_gate(struct daemon *daemon, struct error *err)
{
    struct gate_config config = {.service = &daemon->service,
            .requests_per_sec = daemon->config.rate_limit,
            .burst = 2.0 * daemon->config.rate_limit};
    return gate_start(&config, &daemon->service.gate, err);
}

// What can be refused is refused before anything else begins.
static int bind_tcp(struct daemon *daemon, struct error *err)
{
    const struct daemon_config *config = &daemon->config;
    bool loopback;
    if (config->listen == NULL)
        return 0;
    int r = tcp_listen_bind(config->listen, &daemon->tcp_fd, &daemon->tcp_address, &loopback, err);
    if (r == 0 && !loopback && config->tls_cert == NULL && !config->listen_plain_anyway)
        return error_set(err, -EINVAL,
                "--listen %s: others than this host could connect, and without TLS everybody on the way "
                "reads keys, commands and files; give --tls-cert and --tls-key, listen on 127.0.0.1, or say "
                "--listen-plain-anyway as well",
                config->listen);
    if (r == 0 && config->tls_cert != NULL)
        r = http_tls_load(config->tls_cert, config->tls_key, err);
    return r;
}

void daemon_reload(struct daemon *daemon)
{
    struct error err;
    if (daemon->config.listen == NULL || daemon->config.tls_cert == NULL)
        return;
    if (http_tls_load(daemon->config.tls_cert, daemon->config.tls_key, &err) == 0)
        log_line("new connections get the certificate that is in %s now", daemon->config.tls_cert);
    else
        log_line("the old certificate stays in use: %s", err.text);
}

// Each connection has a descriptor; what the limit leaves of them after a share for machines is for the API.
static unsigned connections_within(unsigned wanted)
{
    struct rlimit limit;
    rlim_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 2 : 512;
    if (wanted == 0)
        wanted = HTTP_CONNECTIONS_DEFAULT;
    return most < wanted ? (unsigned)most : wanted;
}

// The same API for those who come by TCP and have a key.
static int start_tcp(struct daemon *daemon, const struct http_server_config *local, struct error *err)
{
    if (daemon->config.listen == NULL)
        return 0;
    struct http_server_config config = *local;
    daemon->service.tcp_address = daemon->tcp_address;
    config.listen_fd = daemon->tcp_fd;
    config.local = false;
    config.tls = daemon->service.tcp_is_tls = daemon->config.tls_cert != NULL;
    config.cors_origins = daemon->config.cors_origins;
    config.limits.connections = connections_within(daemon->config.connections);
    int r = tcp_listen_open(daemon->tcp_fd, err);
    return r < 0 ? r : http_server_start(&config, &daemon->http_tcp, err);
}

static int start_front(struct daemon *daemon, struct error *err)
{
    daemon->service.http_metrics = http_metrics_create();
    int r = daemon->service.http_metrics == NULL
                    ? error_set(err, -ENOMEM, "no memory")
                    : run_dir_listen(daemon->run_dir, "nbd.sock", &daemon->nbd_fd, err);
    if (r == 0)
        r = operator_exports_start(daemon->store, daemon->nbd_fd, &daemon->nbd, err);
    if (r == 0)
        r = run_dir_listen(daemon->run_dir, "api.sock", &daemon->api_fd, err);
    struct http_server_config config = {.listen_fd = daemon->api_fd,
            .tables = routes_served,
            .context = &daemon->service,
            .words = &alias_words,
            .local = true,
            .choose = proxy_choose,
            .gate = gate_enter,
            .mask = gate_mask,
            .before = gate_before,
            .after = gate_after,
            .metrics = daemon->service.http_metrics,
            .limits.connections = connections_within(LOCAL_CONNECTIONS),
            .on_request = daemon->config.log_requests ? log_request : NULL};
    if (r == 0)
        r = http_server_start(&config, &daemon->http, err);
    if (r == 0)
        r = start_tcp(daemon, &config, err);
    return r;
}

int daemon_start(const struct daemon_config *config, struct daemon **ret_daemon, struct error *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (daemon == NULL)
        return error_set(err, -ENOMEM, "no memory");
    daemon->config = *config;
    daemon->lock_fd = daemon->api_fd = daemon->nbd_fd = daemon->tcp_fd = -1;
    int r = bind_tcp(daemon, err);
    if (r == 0)
        r = find_libexec(daemon, err);
    if (r == 0)
        r = find_kernel(daemon, err);
    if (r == 0)
        r = run_dir_take(config->run_dir, &daemon->run_dir, &daemon->lock_fd, err);
    if (r == 0)
        r = start_store(daemon, err);
    if (r == 0)
        r = start_services(daemon, err);
    if (r == 0)
        r = start_sandboxes(daemon, err);
    if (r == 0)
        r = start_templates(daemon, err);
    if (r == 0)
        r = start_gate(daemon, err);
    if (r == 0)
        r = start_front(daemon, err);
    if (r < 0) {
        daemon_stop(daemon);
        return r;
    }
    log_line("ready: API on %s/api.sock%s%s, NBD on %s/nbd.sock", daemon->run_dir,
            daemon->tcp_address == NULL       ? ""
            : daemon->config.tls_cert != NULL ? " and https://"
                                              : " and http://",
            daemon->tcp_address == NULL ? "" : daemon->tcp_address, daemon->run_dir);
    *ret_daemon = daemon;
    return 0;
}

static void remove_socket(struct daemon *daemon, int fd, const char *name)
{
    char path[PATH_MAX];
    if (fd < 0)
        return;
    snprintf(path, sizeof path, "%s/%s", daemon->run_dir, name);
    unlink(path);
    close(fd);
}

static void stop_front(struct daemon *daemon)
{
    // Sandboxes first: a command whose client is cut off is ended in its guest, but one that loses its daemon
    // goes on.
    // Builds before that: what they made is removed while it still can be.
    if (daemon->service.templates != NULL)
        template_quiesce_all(daemon->service.templates);
    if (daemon->service.sandboxes != NULL)
        sandbox_quiesce_all(daemon->service.sandboxes);
    if (daemon->store != NULL)
        store_quiesce(daemon->store);
    if (daemon->http != NULL)
        http_server_quiesce(daemon->http);
    if (daemon->http_tcp != NULL)
        http_server_quiesce(daemon->http_tcp);
    if (daemon->service.sandboxes != NULL)
        sandbox_events_end(
                sandbox_events_of(daemon->service.sandboxes)); // after that: followers leave at once
    daemon->http_tcp = http_server_stop(daemon->http_tcp);
    daemon->http = http_server_stop(daemon->http);
    daemon->nbd = nbd_server_stop(daemon->nbd);
    if (daemon->tcp_fd >= 0)
        close(daemon->tcp_fd);
    free(daemon->tcp_address);
    http_tls_unload();
    daemon->service.http_metrics = http_metrics_destroy(daemon->service.http_metrics);
    remove_socket(daemon, daemon->api_fd, "api.sock");
    remove_socket(daemon, daemon->nbd_fd, "nbd.sock");
}

// With guests that run on, the keeper holds what they need; without any it has nothing to do.
static void stop_memory_images(struct daemon *daemon, unsigned running)
{
    daemon->keeper = keeper_guard_stop(daemon->keeper);
    if (daemon->fuse == NULL)
        return;
    daemon->fuse = mem_fuse_stop(daemon->fuse, running == 0);
    if (running == 0)
        keeper_stop(daemon->run_dir, NULL);
}

void daemon_stop(struct daemon *daemon)
{
    unsigned running = 0;
    if (daemon == NULL)
        return;
    stop_front(daemon);
    bool knows = daemon->service.sandboxes != NULL;
    daemon->service.gate = gate_stop(daemon->service.gate);
    daemon->service.templates = template_stop_all(daemon->service.templates);
    daemon->service.sandboxes = sandbox_stop_all(daemon->service.sandboxes, &running);
    daemon->service.transfers = import_export_stop(daemon->service.transfers);
    stop_memory_images(daemon, knows ? running : 1);
    daemon->service.environment = environment_stop(daemon->service.environment);
    daemon->service.urls = urls_destroy(daemon->service.urls);
    daemon->service.image_access = image_access_free(daemon->service.image_access);
    daemon->service.snapshots = snapshot_state_stop(daemon->service.snapshots);
    while (daemon->running_loops > 0)
        io_ring_thread_stop(daemon->loops[--daemon->running_loops]);
    daemon->store = store_close(daemon->store);
    while (daemon->loop_count > 0) {
        daemon->loop_count--;
        daemon->loops[daemon->loop_count] = io_ring_loop_destroy(daemon->loops[daemon->loop_count]);
    }
    if (running > 0)
        log_line("%u sandboxes run on; the next daemon takes them over", running);
    if (daemon->lock_fd >= 0)
        close(daemon->lock_fd);
    free(daemon->run_dir);
    free(daemon);
}
