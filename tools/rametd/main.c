// SPDX-License-Identifier: Apache-2.0
#include "tools/rametd/daemon.h"
#include "tools/rametd/log.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, SHARDS_DEFAULT_MAX = 4 };

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
        "  --log-budget BYTES   the log never takes more than this\n"
        "  --log-requests       one log line for every API call\n"
        "  --help, --version\n";

static int fail_usage(const char *format, const char *value)
{
    fprintf(stderr, "rametd: ");
    fprintf(stderr, format, value);
    fprintf(stderr, "; see rametd --help\n");
    return EXIT_USAGE;
}

static bool parse_number(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < minimum || value > maximum)
        return false;
    *ret_value = value;
    return true;
}

// 0 go on, otherwise the exit status; *ret_done: nothing more to do.
static int parse(int argc, char **argv, struct daemon_config *config, bool *ret_done)
{
    enum { STORE = 256, RUN, SHARDS, KERNEL, VMM, ACCEL, BUDGET, REQUESTS, HELP, VERSION };
    static const struct option options[] = {{"store", required_argument, NULL, STORE},
            {"run", required_argument, NULL, RUN}, {"shards", required_argument, NULL, SHARDS},
            {"kernel-dir", required_argument, NULL, KERNEL}, {"vmm", required_argument, NULL, VMM},
            {"accel", required_argument, NULL, ACCEL}, {"log-budget", required_argument, NULL, BUDGET},
            {"log-requests", no_argument, NULL, REQUESTS}, {"help", no_argument, NULL, HELP},
            {"version", no_argument, NULL, VERSION}, {0}};
    uint64_t number;
    for (int code; (code = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (code) {
        case STORE:
            config->store_dir = optarg;
            break;
        case RUN:
            config->run_dir = optarg;
            break;
        case SHARDS:
            if (!parse_number(optarg, 1, 64, &number))
                return fail_usage("--shards %s is no number from 1 to 64", optarg);
            config->shards = (unsigned)number;
            break;
        case KERNEL:
            config->kernel_dir = optarg;
            break;
        case VMM:
            config->vmm_path = optarg;
            break;
        case ACCEL:
            if (strcmp(optarg, "auto") != 0 && strcmp(optarg, "kvm") != 0 && strcmp(optarg, "tcg") != 0)
                return fail_usage("--accel %s is not auto, kvm or tcg", optarg);
            config->accel = optarg;
            break;
        case BUDGET:
            if (!parse_number(optarg, 1 << 20, UINT64_MAX / 2, &config->log_budget_bytes))
                return fail_usage("--log-budget %s is no number of bytes of at least 1 MiB", optarg);
            break;
        case REQUESTS:
            config->log_requests = true;
            break;
        case 'h':
        case HELP:
            fputs(usage, stdout);
            *ret_done = true;
            return 0;
        case VERSION:
            puts("rametd " RAMET_VERSION);
            *ret_done = true;
            return 0;
        default:
            fputs("see rametd --help\n", stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc)
        return fail_usage("\"%s\" is not expected here", argv[optind]);
    if (config->store_dir == NULL || config->run_dir == NULL)
        return fail_usage("%s is missing", config->store_dir == NULL ? "--store DIR" : "--run RUNDIR");
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

int main(int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct daemon_config config = {.accel = "auto",
            .shards = cpus < 1                    ? 1
                      : cpus > SHARDS_DEFAULT_MAX ? SHARDS_DEFAULT_MAX
                                                  : (unsigned)cpus};
    struct daemon *daemon;
    struct error err = {0};
    bool done = false;
    int status = parse(argc, argv, &config, &done);
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
    if (daemon_start(&config, &daemon, &err) < 0) {
        log_line("cannot start: %s", err.text);
        return 1;
    }
    int received = 0;
    do
        sigwait(&set, &received);
    while (received == SIGHUP);
    log_line("ending on signal %d", received);
    daemon_stop(daemon);
    log_line("ended");
    return 0;
}
