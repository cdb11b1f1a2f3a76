// SPDX-License-Identifier: Apache-2.0
// Brings everything up that is not up: the store, the guests' kernel, the daemon. Calling it again changes
// nothing.
#include "tools/ramet/cli.h"
#include "tools/ramet/local_store.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MS = 20, EXTRA_MAX = 48 };

struct up {
    struct cli *cli;
    const struct verb *verb;
    const char *store, *kernel, *log, *accel, *listen;
    uint64_t shards;
    bool log_requests;
    const char **extra; // options for the daemon, as they were given
    unsigned extra_count;
    char kernel_default[2 * PATH_MAX], log_default[PATH_MAX];
};

static bool answers(struct up *up, json_t **ret_store)
{
    struct error err;
    return client_call(cli_server(up->cli), "GET", "/v1/store", NULL, ret_store, &err) == 0;
}

// The daemon that runs already: is it that of the store asked for?
static int check_running(struct up *up, const json_t *store, bool store_given)
{
    char here[PATH_MAX], there[PATH_MAX];
    const char *directory = json_fields_get_text(store, "directory");
    if (store_given && (realpath(up->store, here) == NULL || realpath(directory, there) == NULL ||
                               strcmp(here, there) != 0))
        return cli_fail(up->verb,
                "the daemon at %s serves the store %s, not %s; use another --run for that one",
                cli_run_dir(up->cli), directory, up->store);
    if (up->extra_count > 0 || up->kernel != NULL || up->accel != NULL || up->listen != NULL ||
            up->shards != 0 || up->log_requests)
        cli_note("note: the daemon runs already, with the options that it was started with; `ramet down`, "
                 "and then "
                 "this again, gives it these (sandboxes run on meanwhile)");
    if (up->cli->json)
        cli_print_json(store);
    else
        printf("rametd runs already: store %s, run directory %s\n", directory, cli_run_dir(up->cli));
    return CLI_DONE;
}

// Programs of the project's tools folder, beside the build tree or installed beside this program.
static bool find_tool(const struct cli *cli, const char *name, char *ret_path, size_t capacity)
{
    static const char *const places[] = {"", "/../../..", "/../../share/ramet"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(ret_path, capacity, "%s%s/tools/image/%s", cli->libexec_dir, places[i], name);
        if (access(ret_path, X_OK) == 0)
            return true;
    }
    return false;
}

static int run_tool(const char *const *argv)
{
    pid_t pid = fork();
    if (pid == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO); // our own output stays what it promises to be
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Guests need a kernel; plain disks do not, so a failure here is only said.
static void prepare_kernel(struct up *up)
{
    char file[2 * PATH_MAX + 16], tool[2 * PATH_MAX], guest[2 * PATH_MAX];
    snprintf(file, sizeof file, "%s/vmlinux", up->kernel);
    if (access(file, R_OK) == 0)
        return;
    if (!find_tool(up->cli, "kernel", tool, sizeof tool)) {
        cli_note("note: %s does not exist, so machines cannot boot yet; make it with tools/image/kernel %s",
                file, up->kernel);
        return;
    }
    snprintf(
            guest, sizeof guest, "%s/ramet-guest", up->cli->libexec_dir); // installed; else in the build tree
    if (access(guest, X_OK) != 0)
        snprintf(guest, sizeof guest, "%s/../vmglue/ramet-guest", up->cli->libexec_dir);
    cli_note("preparing a kernel for guests in %s (once)", up->kernel);
    const char *argv[] = {tool, up->kernel, access(guest, X_OK) == 0 ? "--guest" : NULL, guest, NULL};
    if (run_tool(argv) != 0)
        cli_note("note: that failed, so machines cannot boot yet; `ramet up` tries again after `ramet down`");
}

static pid_t spawn_daemon(struct up *up)
{
    char program[2 * PATH_MAX], shards[24];
    snprintf(program, sizeof program, "%s/rametd", up->cli->libexec_dir);
    snprintf(shards, sizeof shards, "%llu", (unsigned long long)up->shards);
    const char *argv[20 + EXTRA_MAX] = {
            program, "--store", up->store, "--run", cli_run_dir(up->cli), "--kernel-dir", up->kernel};
    size_t count = 7;
    if (up->shards != 0) {
        argv[count++] = "--shards";
        argv[count++] = shards;
    }
    if (up->accel != NULL) {
        argv[count++] = "--accel";
        argv[count++] = up->accel;
    }
    if (up->listen != NULL) {
        argv[count++] = "--listen";
        argv[count++] = up->listen;
    }
    if (up->log_requests)
        argv[count++] = "--log-requests";
    for (unsigned i = 0; i < up->extra_count; i++)
        argv[count++] = up->extra[i];
    int log_fd = open(up->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) {
        cli_fail(up->verb, "the log %s cannot be opened: %s", up->log, strerror(errno));
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null_fd = open("/dev/null", O_RDONLY);
        setsid();
        dup2(null_fd, STDIN_FILENO);
        dup2(log_fd, STDOUT_FILENO);
        dup2(log_fd, STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        execv(program, (char *const *)argv);
        dprintf(STDERR_FILENO, "%s cannot be started: %s\n", program, strerror(errno));
        _exit(127);
    }
    close(log_fd);
    if (pid < 0)
        cli_fail(up->verb, "the daemon cannot be started: %s", strerror(errno));
    return pid;
}

// The last line of the log, without its time: why the daemon did not start.
static void last_line(const char *path, char *buffer, size_t size)
{
    char line[2048] = "";
    FILE *file = fopen(path, "re");
    buffer[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *text = strstr(line, "rametd: ");
        snprintf(buffer, size, "%s", text == NULL ? line : text + 8);
    }
    if (file != NULL)
        fclose(file);
}

// Until it answers or has ended.
static int wait_for_daemon(struct up *up, pid_t pid)
{
    char why[1024];
    int status;
    for (;;) {
        json_t *store = NULL;
        if (answers(up, &store)) {
            if (up->cli->json)
                cli_print_json(store);
            else
                printf("rametd runs, process %d: store %s, run directory %s, log %s\n", (int)pid, up->store,
                        cli_run_dir(up->cli), up->log);
            json_decref(store);
            return CLI_DONE;
        }
        json_decref(store);
        if (waitpid(pid, &status, WNOHANG) == pid) {
            last_line(up->log, why, sizeof why);
            return cli_fail(up->verb, "the daemon did not start: %s (log: %s)", why, up->log);
        }
        poll(NULL, 0, POLL_MS);
    }
}

static int make_parents(const struct verb *verb, const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST)
            return cli_fail(verb, "the folder %s cannot be made: %s", part, strerror(errno));
        *slash = '/';
    }
    return CLI_DONE;
}

static int set_paths(struct up *up)
{
    const char *kernel = getenv("RAMET_KERNEL_DIR");
    char store[PATH_MAX];
    if (make_parents(up->verb, up->store) != CLI_DONE ||
            make_parents(up->verb, cli_run_dir(up->cli)) != CLI_DONE)
        return CLI_FAILED;
    if (mkdir(cli_run_dir(up->cli), 0700) < 0 && errno != EEXIST)
        return cli_fail(
                up->verb, "the run directory %s cannot be made: %s", cli_run_dir(up->cli), strerror(errno));
    snprintf(store, sizeof store, "%s", up->store);
    char *slash = strrchr(store, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(up->kernel_default, sizeof up->kernel_default, "%s/kernel", slash == NULL ? "." : store);
    snprintf(up->log_default, sizeof up->log_default, "%s/rametd.log", cli_run_dir(up->cli));
    if (up->kernel == NULL)
        up->kernel = kernel != NULL && kernel[0] != '\0' ? kernel : up->kernel_default;
    if (up->log == NULL)
        up->log = up->log_default;
    return CLI_DONE;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct up up = {.cli = cli, .verb = verb};
    bool no_kernel = false;
    struct args_option options[] = {{"store", 0, ARGS_TEXT, &cli->store_dir},
            {"kernel-dir", 0, ARGS_TEXT, &up.kernel}, {"log", 0, ARGS_TEXT, &up.log},
            {"listen", 0, ARGS_TEXT, &up.listen}, {"accel", 0, ARGS_TEXT, &up.accel},
            {"shards", 0, ARGS_NUMBER, &up.shards}, {"log-requests", 0, ARGS_FLAG, &up.log_requests},
            {"no-kernel", 0, ARGS_FLAG, &no_kernel}, {0}};
    struct args args;
    json_t *store = NULL;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, EXTRA_MAX, 0, &args, &status))
        return status;
    if (args.count > 0 && args.items[0][0] != '-')
        return cli_fail_usage(verb, "\"%s\" is too much; usage: ramet %s", args.items[0], verb->usage);
    if ((status = cli_use_local(cli, verb)) != CLI_DONE)
        return status;
    up.extra = args.items;
    up.extra_count = args.count;
    bool store_given = cli->store_dir != NULL;
    up.store = cli_store_dir(cli);
    if (answers(&up, &store)) {
        status = check_running(&up, store, store_given);
        json_decref(store);
        return status;
    }
    json_decref(store);
    status = set_paths(&up);
    if (status == CLI_DONE && !local_store_exists(up.store))
        status = local_store_init(verb, up.store, 0, 0);
    if (status != CLI_DONE)
        return status;
    if (!no_kernel)
        prepare_kernel(&up);
    pid_t pid = spawn_daemon(&up);
    return pid < 0 ? CLI_FAILED : wait_for_daemon(&up, pid);
}

const struct verb verb_up = {"up", "up [--store DIR] [options] [-- DAEMON-OPTIONS]",
        "Start the daemon in the background, with a store and a kernel",
        "  --store DIR       made when missing (default: RAMET_STORE, else this user's store)\n"
        "  --kernel-dir DIR  guests' kernel, made when missing (default: RAMET_KERNEL_DIR, else kernel "
        "beside the store)\n"
        "  --no-kernel       do not prepare one: plain disks need none\n"
        "  --log FILE        default: RUNDIR/rametd.log\n"
        "  --log-requests    log every call\n"
        "  --listen [ADDRESS:]PORT  serve the API over TCP too, to those with a key (`ramet help key`)\n"
        "  --accel KIND      auto, kvm or tcg\n"
        "  --shards N        I/O threads\n"
        "  -- OPTIONS        of rametd, as they are: -- --quota 100G --seal-age 60 (rametd --help lists "
        "them)\n"
        "\n"
        "When the daemon runs already this changes nothing.\n",
        run};
