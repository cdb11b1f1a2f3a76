// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/args.h"
#include "tools/ramet/man.h"
#include "tools/rametd/daemon.h"
#include "tools/rametd/log.h"
#include "vmglue/access.h"
#include "vmglue/gate.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_pool.h"
#include "vmglue/sandbox_steps.h"
#include "vmglue/service.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    EXIT_USAGE = 2,
    SHARDS_DEFAULT_MAX = 4,
    SHARDS_MAX = 64,
    UID_BASE_MIN = 65536,
    SEAL_AGE_DEFAULT_SECS = 3600,
    SEAL_AGE_MAX_SECS = 10 * 365 * 86400,
    MEMORY_IDLE_MAX_SECS = 7 * 86400,
    FINGERPRINTS_DEFAULT_MB = 256,
    CONNECTIONS_MAX = 60000,
    OOM_SCORE = -900
};

static const char usage[] =
        "usage: rametd --store DIR --run RUNDIR [options]\n"
        "\n"
        "Owns the store in DIR (made by `ramet store init DIR`), runs sandboxes, and answers on "
        "RUNDIR/api.sock (HTTP) and\n"
        "RUNDIR/nbd.sock (NBD, volumes and snapshots by name). Logs to stderr. SIGTERM ends it cleanly; "
        "sandboxes run on\n"
        "and the next rametd takes them over.\n"
        "\n"
        "  --store DIR          the store\n"
        "  --run RUNDIR         sockets, mounts and one folder per sandbox; made when missing\n"
        "  --shards N           I/O threads (default: one per CPU, at most 4)\n"
        "  --kernel-dir DIR     vmlinux and initramfs-q35.cpio for guests (default: DIR-OF-STORE/../kernel)\n"
        "  --vmm FILE           the emulator (default: qemu-system-x86_64)\n"
        "  --accel KIND         auto (default: probed by booting), kvm or tcg\n"
        "  --pool N             machines to keep ready for each template that was used in the last ten "
        "minutes (default: "
        "1; 0 = none)\n"
        "  --working-sets off   do not record what the first resume of a snapshot touches, nor fetch it "
        "ahead for "
        "later ones\n"
        "  --keep-stopped SECS  remove sandboxes that were stopped for so long, unless persistent (default: "
        "0 = "
        "never)\n"
        "  --vmm-uid-base N     users that VMMs run as: one each from N to N + 67108863, without a name and "
        "used by\n"
        "                       nothing else (default: 2000000000)\n"
        "  --no-confine         run VMMs as the daemon's own user, with all that it may touch; for "
        "debugging\n"
        "  --network-range NET  addresses for the sandboxes' ways out (default: 10.201.0.0/16); not the "
        "host's own\n"
        "  --resolver ADDRESS   name server that guests' look-ups go to, also ADDRESS:PORT (default: as in "
        "/etc/resolv.conf)\n"
        "  --private-networks   let the network \"full\" reach private addresses (10.0.0.0/8 and the like)\n"
        "  --listen [ADDRESS:]PORT  the API on TCP too (default address: 127.0.0.1; port 0: a free one, see "
        "the log)\n"
        "  --tls-cert FILE --tls-key FILE  TLS for it (PEM, the certificate with its chain); SIGHUP reads "
        "them "
        "again\n"
        "  --listen-plain-anyway  no TLS although others than this host can connect: they can read keys and "
        "data\n"
        "  --cors-origin ORIGIN  pages of this origin (https://host.example) may call from browsers; may be "
        "repeated\n"
        "  --connections N      open at once by TCP; beyond them calls get a 503 (default: 6000, or half the "
        "limit\n"
        "                       of open files)\n"
        "  --url-host NAME      a name of which every TOKEN.NAME leads to this daemon (NAME:PORT when "
        "clients see another\n"
        "                       port): exposed ports have URLs there, besides TOKEN.localhost\n"
        "  --log-requests       one log line for every API call\n"
        "  --rate-limit N       requests a second that each key may make over TCP, and twice as many at "
        "once\n"
        "                       (default: 500; 0 = any number)\n"
        "  --memory-budget SIZE what all machines together may grow to; beyond it none is started "
        "(default: four fifths\n"
        "                       of the host's memory, without --cache and --fingerprints)\n"
        "  --memory-overcommit PERCENT  how much guest memory is promised for each byte of the budget, 100 "
        "to 1000\n"
        "                       (default: 200; a machine counts as at least what it has)\n"
        "  --memory-low SIZE    with less than this available on the host, idle sandboxes are stopped with "
        "their memory\n"
        "                       (default: a twentieth of the host's memory, at least 256M)\n"
        "  --memory-idle SECS   only those that nobody used for so long (default: 60)\n"
        "  --steps              print the names of the steps that RAMET_TEST_STOP_AT knows (for tests)\n"
        "  --routes             print every call of the API: method, path, flags (for tests)\n"
        "  --help, --man, --version\n"
        "\n"
        "Of the store (sizes in bytes, or 512M, 10G, 1T):\n"
        "  --log-budget SIZE    the log never takes more than this\n"
        "  --seal-log SIZE      seal when the log holds this much (default: a quarter of its budget)\n"
        "  --seal-age SECS      seal what is older than this (default: 3600; 0 = never)\n"
        "  --quota SIZE         all files of the store together; guests get \"no space\" before it is "
        "reached "
        "(default: none)\n"
        "  --reserve SIZE       left free on the file system, for sealing and collecting\n"
        "  --cache SIZE         sealed data in memory, uncompressed (default: a sixteenth of memory, 64M to "
        "1G)\n"
        "  --node-cache SIZE    maps of volumes in memory\n"
        "  --index-cache SIZE   footers of segments in memory\n"
        "  --fingerprints SIZE  index that finds equal blocks (default: 256M); a smaller one finds fewer\n"
        "  --catalog-map SIZE   address space for the catalog\n";

static int fail_usage(const char *sentence)
{
    fprintf(stderr, "rametd: %s; see rametd --help\n", sentence);
    return EXIT_USAGE;
}

static bool is_host_name(const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-");
    const char *port = name + size + (name[size] == ':');
    return size > 0 && size < 200 && name[0] != '.' && name[0] != '-' &&
           (name[size] == '\0' || (name[size] == ':' && port[0] != '\0' && strlen(port) <= 5 &&
                                          port[strspn(port, "0123456789")] == '\0'));
}

// What no option can be on its own.
static const char *complaint(const struct daemon_config *config, uint64_t shards, uint64_t age)
{
    const struct store_config *store = &config->store;
    if (config->store_dir == NULL)
        return "--store DIR is missing";
    if (config->run_dir == NULL)
        return "--run RUNDIR is missing";
    if (config->url_host != NULL && !is_host_name(config->url_host))
        return "--url-host is not a name such as sandboxes.example.org or sandboxes.example.org:443";
    if (shards < 1 || shards > SHARDS_MAX)
        return "--shards is not a number from 1 to 64";
    if (strcmp(config->accel, "auto") != 0 && strcmp(config->accel, "kvm") != 0 &&
            strcmp(config->accel, "tcg") != 0)
        return "--accel is not auto, kvm or tcg";
    if (config->memory.overcommit_percent < 100 ||
            config->memory.overcommit_percent > SANDBOX_MEMORY_OVERCOMMIT_MAX)
        return "--memory-overcommit is not a number of percent from 100 to 1000";
    if (config->memory.idle_ms < 1000 || config->memory.idle_ms > MEMORY_IDLE_MAX_SECS * UINT64_C(1000))
        return "--memory-idle is not a number of seconds from 1 to 604800";
    if (config->memory.budget_bytes != 0 && config->memory.budget_bytes < 1 << 20)
        return "--memory-budget is less than 1 MiB";
    if (config->uid_base != 0 &&
            (config->uid_base < UID_BASE_MIN || config->uid_base > UINT32_MAX - SANDBOX_UID_COUNT - 1))
        return "--vmm-uid-base is not a number from 65536 to 4227858430";
    if (age > SEAL_AGE_MAX_SECS)
        return "--seal-age is more than ten years of seconds";
    if (store->log_budget_bytes != 0 && store->log_budget_bytes < 1 << 20)
        return "--log-budget is less than 1 MiB";
    if (store->quota_bytes != 0 && store->quota_bytes < 1 << 20)
        return "--quota is less than 1 MiB";
    return NULL;
}

// "https://host.example:8443" and nothing behind it, as browsers send it.
static bool is_origin(const char *text)
{
    size_t scheme = strncmp(text, "http://", 7) == 0 ? 7 : strncmp(text, "https://", 8) == 0 ? 8 : 0;
    const char *host = text + scheme;
    return scheme > 0 && host[0] != '\0' &&
           strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789.-_:[]") == strlen(host);
}

// What is wrong with who may connect how; NULL: nothing.
static const char *front_complaint(const struct daemon_config *config, const struct args_list *origins)
{
    if ((config->tls_cert == NULL) != (config->tls_key == NULL))
        return "--tls-cert FILE and --tls-key FILE are given together";
    if (config->listen == NULL &&
            (config->tls_cert != NULL || config->listen_plain_anyway || origins->count > 0))
        return "--tls-cert, --listen-plain-anyway and --cors-origin are about --listen, which is missing";
    if (config->tls_cert != NULL && config->listen_plain_anyway)
        return "--listen-plain-anyway means without TLS, and there is a --tls-cert";
    for (unsigned i = 0; i < origins->count; i++)
        if (!is_origin(origins->items[i]))
            return "--cors-origin is not like https://host.example or http://localhost:3000, in small "
                   "letters "
                   "and without a path";
    return NULL;
}

// Sealed data is read past the page cache, so what is hot must fit here.
static uint64_t default_cache_bytes(void)
{
    const uint64_t least = UINT64_C(64) << 20, most = UINT64_C(1) << 30;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t share = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 16 : 0;
    return share < least ? least : share > most ? most : share;
}

// What keys other than admin ones may: "ci=sandbox read", or "unclassified".
static void print_access(const struct http_route *route)
{
    const struct access_row *row = access_find(route->method, route->pattern);
    if ((route->flags & HTTP_OPEN) != 0)
        putchar('\n');
    else if (row == NULL)
        puts(" unclassified");
    else
        printf(" ci=%s%s\n", access_rule_name(row->ci), row->read ? " read" : "");
}

static void print_routes(void)
{
    for (size_t t = 0; routes_all[t] != NULL; t++) {
        for (const struct http_route *route = routes_all[t]; route->method != NULL; route++) {
            printf("%s %s%s%s%s%s%s", route->method, route->pattern,
                    (route->flags & HTTP_STREAM) != 0 ? " stream" : "",
                    (route->flags & HTTP_OPEN) != 0 ? " open" : "",
                    (route->flags & HTTP_ADMIN) != 0 ? " admin" : "",
                    (route->flags & HTTP_READS) != 0 ? " reads" : "",
                    (route->flags & HTTP_CREATES) != 0 ? " creates" : "");
            print_access(route);
        }
    }
}

// 0 go on, otherwise the exit status; *ret_done: nothing more to do.
static int parse(char **argv, struct daemon_config *config, bool *ret_done)
{
    struct store_config *store = &config->store;
    struct sandbox_memory_config *memory = &config->memory;
    uint64_t shards = config->shards, age = SEAL_AGE_DEFAULT_SECS,
             overcommit = SANDBOX_MEMORY_OVERCOMMIT_DEFAULT, idle = SANDBOX_MEMORY_IDLE_DEFAULT_MS / 1000;
    uint64_t keep_stopped = 0;
    const char *working_sets = "on";
    uint64_t pool = config->pool, rate_limit = GATE_RATE_DEFAULT, connections = 0;
    static struct args_list origins; // the daemon keeps it
    bool help = false, version = false, steps = false, routes = false;
    const struct args_option options[] = {{"store", 0, ARGS_TEXT, &config->store_dir},
            {"run", 0, ARGS_TEXT, &config->run_dir}, {"shards", 0, ARGS_NUMBER, &shards},
            {"kernel-dir", 0, ARGS_TEXT, &config->kernel_dir}, {"vmm", 0, ARGS_TEXT, &config->vmm_path},
            {"accel", 0, ARGS_TEXT, &config->accel}, {"vmm-uid-base", 0, ARGS_NUMBER, &config->uid_base},
            {"no-confine", 0, ARGS_FLAG, &config->no_confine}, {"listen", 0, ARGS_TEXT, &config->listen},
            {"url-host", 0, ARGS_TEXT, &config->url_host}, {"tls-cert", 0, ARGS_TEXT, &config->tls_cert},
            {"tls-key", 0, ARGS_TEXT, &config->tls_key},
            {"listen-plain-anyway", 0, ARGS_FLAG, &config->listen_plain_anyway},
            {"cors-origin", 0, ARGS_LIST, &origins}, {"connections", 0, ARGS_NUMBER, &connections},
            {"rate-limit", 0, ARGS_NUMBER, &rate_limit}, {"routes", 0, ARGS_FLAG, &routes},
            {"log-requests", 0, ARGS_FLAG, &config->log_requests},
            {"memory-budget", 0, ARGS_SIZE, &memory->budget_bytes},
            {"memory-overcommit", 0, ARGS_NUMBER, &overcommit},
            {"memory-low", 0, ARGS_SIZE, &memory->low_bytes}, {"memory-idle", 0, ARGS_NUMBER, &idle},
            {"working-sets", 0, ARGS_TEXT, &working_sets}, {"pool", 0, ARGS_NUMBER, &pool},
            {"keep-stopped", 0, ARGS_NUMBER, &keep_stopped}, {"steps", 0, ARGS_FLAG, &steps},
            {"log-budget", 0, ARGS_SIZE, &store->log_budget_bytes},
            {"network-range", 0, ARGS_TEXT, &config->network_range},
            {"resolver", 0, ARGS_TEXT, &config->resolver},
            {"private-networks", 0, ARGS_FLAG, &config->private_networks},
            {"seal-log", 0, ARGS_SIZE, &store->seal_log_bytes}, {"seal-age", 0, ARGS_NUMBER, &age},
            {"quota", 0, ARGS_SIZE, &store->quota_bytes}, {"reserve", 0, ARGS_SIZE, &store->reserve_bytes},
            {"cache", 0, ARGS_SIZE, &store->frame_cache_bytes},
            {"node-cache", 0, ARGS_SIZE, &store->node_cache_bytes},
            {"index-cache", 0, ARGS_SIZE, &store->index_cache_bytes},
            {"fingerprints", 0, ARGS_SIZE, &store->fingerprint_bytes},
            {"catalog-map", 0, ARGS_SIZE, &store->catalog_map_bytes}, {"help", 'h', ARGS_FLAG, &help},
            {"version", 0, ARGS_FLAG, &version}, {0}};
    struct args args;
    char message[512];
    if (args_parse(argv, options, 0, UINT_MAX, 0, "", &args, message, sizeof message) < 0)
        return fail_usage(message);
    *ret_done = help || version || steps || routes;
    if (help)
        fputs(usage, stdout);
    else if (version)
        puts("rametd " RAMET_VERSION);
    for (int i = 0; steps && i < STEP_COUNT; i++)
        puts(sandbox_step_name((enum sandbox_step)i));
    if (routes)
        print_routes();
    if (*ret_done)
        return 0;
    if (args.count > 0) {
        snprintf(message, sizeof message, "\"%s\" is not expected here", args.items[0]);
        return fail_usage(message);
    }
    memory->overcommit_percent = overcommit > UINT_MAX ? UINT_MAX : (unsigned)overcommit;
    memory->idle_ms = idle > MEMORY_IDLE_MAX_SECS ? UINT64_MAX : idle * 1000;
    const char *wrong = complaint(config, shards, age);
    if (wrong == NULL)
        wrong = front_complaint(config, &origins);
    if (wrong == NULL && connections > CONNECTIONS_MAX)
        wrong = "--connections is more than 60000";
    if (wrong != NULL)
        return fail_usage(wrong);
    if (keep_stopped > SANDBOX_LIFE_MAX_SECS)
        return fail_usage("--keep-stopped is more than a hundred years of seconds");
    config->keep_stopped_ms = keep_stopped * 1000;
    if (pool > SANDBOX_POOL_MAX)
        return fail_usage("--pool is not a number from 0 to 16");
    config->pool = (unsigned)pool;
    if (rate_limit > GATE_RATE_MAX)
        return fail_usage("--rate-limit is more than a million requests a second");
    config->rate_limit = (unsigned)rate_limit;
    config->connections = (unsigned)connections;
    config->cors_origins = origins.count > 0 ? origins.items : NULL;
    config->working_sets = strcmp(working_sets, "on") == 0;
    if (!config->working_sets && strcmp(working_sets, "off") != 0)
        return fail_usage("--working-sets is not on or off");
    config->shards = (unsigned)shards;
    if (store->frame_cache_bytes == 0)
        store->frame_cache_bytes = default_cache_bytes();
    store->seal_age_ns = age * 1000000000;
    uint64_t fingerprints = store->fingerprint_bytes;
    if (fingerprints == 0)
        fingerprints = (uint64_t)FINGERPRINTS_DEFAULT_MB << 20;
    if (memory->budget_bytes == 0)
        memory->budget_bytes = sandbox_memory_default_budget(store->frame_cache_bytes + fingerprints);
    return 0;
}

// A sandbox takes about ten descriptors; the usual soft limit of 1024 would end at a hundred.
static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

// Every machine waits for this process, so the kernel should end one of them first. Not permitted is fine:
// then all are alike.
static void outlive_machines(void)
{
    FILE *file = fopen("/proc/self/oom_score_adj", "r+e");
    int score = OOM_SCORE;
    if (file == NULL)
        return;
    if (fscanf(file, "%d", &score) == 1 && score > OOM_SCORE) {
        rewind(file);
        fprintf(file, "%d", OOM_SCORE);
    }
    fclose(file);
}

// The manual page: what --help says.
static int print_page(void)
{
    const char *first = strchr(usage, '\n');
    man_begin("rametd", 1, "the daemon that owns a store of machines' snapshots and runs sandboxes");
    man_section("SYNOPSIS");
    man_paragraph("rametd --store DIR --run RUNDIR [OPTION...]");
    man_section("DESCRIPTION");
    man_text(first + 2);
    man_section("SEE ALSO");
    man_paragraph("ramet(1)");
    return 0;
}

int main(int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct daemon_config config = {.accel = "auto",
            .pool = 1,
            .shards = cpus < 1                    ? 1
                      : cpus > SHARDS_DEFAULT_MAX ? SHARDS_DEFAULT_MAX
                                                  : (unsigned)cpus};
    struct daemon *daemon;
    struct error err = {0};
    bool done = false;
    if (argc == 2 && strcmp(argv[1], "--man") == 0)
        return print_page();
    int status = parse(argv + 1, &config, &done);
    if (status != 0 || done)
        return status;

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL); // before any thread: they all inherit it, sigwait takes them
    signal(SIGPIPE, SIG_IGN);
    allow_descriptors();
    outlive_machines();
    if (daemon_start(&config, &daemon, &err) < 0) {
        log_line("cannot start: %s", err.text);
        return 1;
    }
    int received = 0;
    while (sigwait(&set, &received) != 0 || received == SIGHUP)
        if (received == SIGHUP)
            daemon_reload(daemon);
    log_line("ending on signal %d", received);
    daemon_stop(daemon);
    log_line("ended");
    return 0;
}
