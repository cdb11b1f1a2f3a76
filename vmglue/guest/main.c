// SPDX-License-Identifier: Apache-2.0
// ramet-guest: the first process of a machine and the host's agent in it. One thread, one loop.
//   as /init of the initramfs      loads modules, mounts the root disk and starts itself there
//   (boot_initramfs.c) as process 1 on the root disk  prepares the machine and serves the host; of a disk
//   with an
//                                  init of its own, in a process beside that (boot_init.c)
//   --test SOCKET DIR              serves a unix socket, beside an ordinary system: user processes live in a
//                                  cgroup of its own, machine id and hosts files are below DIR, the clock
//                                  stays
#include "blockstore/clock.h"
#include "vmglue/guest/boot.h"
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/loop.h"
#include "vmglue/guest/port.h"
#include "vmglue/guest/session.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t own_init_grace_ns = 20000000000;

static bool testing, power_off_wanted, restart_wanted;
static struct loop_source signals;
static char test_cgroup_path[300];

// Descriptors 0 to 4 are what job_spawn.c puts a child's pipes on.
static void fill_descriptors(void)
{
    for (int fd = 0; fd <= JOB_COMMIT_FD;) {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0)
            return;
        if (fd > JOB_COMMIT_FD)
            close(fd);
    }
}

static void signals_ready(struct loop_source *source, uint32_t events)
{
    struct signalfd_siginfo info;
    while (read(source->fd, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (boot_has_own_init())
            continue; // they are for process 1
        if (number == SIGUSR1 || number == SIGUSR2 || number == SIGRTMIN + 4 ||
                (testing && number != SIGCHLD))
            power_off_wanted = true;
        else if (number != SIGCHLD)
            restart_wanted = true;
    }
    job_reap();
}

// The signals that tools send to the first process to end the machine: SIGUSR1, SIGUSR2, SIGRTMIN+4 to power
// off, SIGTERM, SIGINT, SIGRTMIN+5 to restart.
static int watch_signals(void)
{
    const int wanted[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGRTMIN + 4, SIGRTMIN + 5};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        sigaddset(&set, wanted[i]);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signals.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    signals.ready = signals_ready;
    return signals.fd < 0 ? -errno : loop_arm(&signals, EPOLLIN);
}

static void power_off(void)
{
    power_off_wanted = true;
}

static void serve_until(uint64_t limit_ns, bool (*enough)(void))
{
    struct loop_timer wake = {.fire = loop_timer_clear};
    while (!(enough != NULL && enough()) && clock_monotonic_ns() < limit_ns) {
        loop_timer_set(&wake, limit_ns);
        loop_step();
    }
    loop_timer_clear(&wake);
}

static void end_machine(void)
{
    serve_until(clock_monotonic_ns() + 500000000, port_drained);
    if (testing) {
        cgroup_remove_all();
        rmdir(test_cgroup_path);
        exit(0);
    }
    if (boot_has_own_init()) { // it ends the machine, and us with it; if it cannot, we do
        cgroup_freeze(false);
        kill(1, SIGRTMIN + 4);
        serve_until(clock_monotonic_ns() + own_init_grace_ns, NULL);
    }
    if (restart_wanted)
        boot_restart();
    boot_power_off();
}

static int serve(int opened)
{
    if (opened < 0)
        return opened;
    while (!power_off_wanted && !restart_wanted)
        loop_step();
    end_machine();
    return 0;
}

static int set_no_clock(uint64_t realtime_ns)
{
    return realtime_ns == 0 ? -EINVAL : 0;
}

// A cgroup below the first cgroup v2 mount, named by our process id.
static void test_cgroup(void)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    char *path = test_cgroup_path;
    for (struct mntent *mount; mounts != NULL && (mount = getmntent(mounts)) != NULL;) {
        if (strcmp(mount->mnt_type, "cgroup2") == 0 && path[0] == 0)
            snprintf(path, sizeof test_cgroup_path, "%.200s/ramet-test-%d", mount->mnt_dir, (int)getpid());
    }
    if (mounts != NULL)
        endmntent(mounts);
    if (path[0] != 0 && mkdir(path, 0755) == 0)
        cgroup_init(path);
}

static int test_main(const char *socket_path, const char *directory)
{
    testing = true;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (geteuid() == 0 && unshare(CLONE_NEWUTS | CLONE_NEWNET) < 0)
        return -errno;
    identity_use(&(struct identity_system){
            .etc = directory, .run = directory, .state = directory, .set_realtime = set_no_clock});
    test_cgroup();
    return serve(port_open_socket(socket_path, session_frame, session_room));
}

static int root_main(void)
{
    int result = serve(port_open_virtio("agent.0", session_frame, session_room));
    boot_say("no port to the host: %s", strerror(-result));
    boot_power_off();
    return result;
}

int main(int argc, char **argv)
{
    bool test = argc == 4 && strcmp(argv[1], "--test") == 0;
    if (!test && getpid() != 1) {
        fprintf(stderr, "%s is the first process of a Ramet machine, and does nothing elsewhere\n", argv[0]);
        return 2;
    }
    if (!test && access("/modules.list", F_OK) == 0)
        boot_initramfs(argv);
    fill_descriptors();
    if (!test) {
        prctl(PR_SET_NAME, "ramet-guest");
        boot_root();
    }
    int result = loop_init();
    if (result == 0)
        result = watch_signals();
    session_init(power_off);
    if (test && result == 0)
        result = test_main(argv[2], argv[3]);
    else if (result == 0)
        result = root_main();
    if (result < 0)
        fprintf(stderr, "ramet-guest: %s\n", strerror(-result));
    return result < 0 ? 1 : 0;
}
