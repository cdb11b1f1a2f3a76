// SPDX-License-Identifier: Apache-2.0
// RUN/ramet/generation holds a new random number after every change, so that a program that was started
// before a fork can see that it is a copy (its own random generators are its own affair).
#include "vmglue/guest/identity.h"

#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <linux/random.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "blockstore/clock.h"
#include "blockstore/fd.h"

enum { SEED_BYTES = 64 };

static int set_realtime(uint64_t realtime_ns)
{
    struct timespec now = clock_timespec(realtime_ns);
    return clock_settime(CLOCK_REALTIME, &now) < 0 ? -errno : 0;
}

static struct identity_system files = {
        .etc = "/etc", .run = "/run", .state = "/var/lib/ramet", .set_realtime = set_realtime};

void identity_use(const struct identity_system *system)
{
    files = *system;
}

const char *identity_run(void)
{
    return files.run;
}

const char *identity_state(void)
{
    return files.state;
}

int identity_set_clock(uint64_t realtime_ns)
{
    return files.set_realtime(realtime_ns);
}

// Writing to /dev/urandom would mix the seed in and go on with the old key. Only crediting it and asking for
// a new key makes the next byte that anybody reads depend on it.
static int reseed(const uint8_t *seed)
{
    _Alignas(struct rand_pool_info) uint8_t bytes[sizeof(struct rand_pool_info) + SEED_BYTES];
    struct rand_pool_info *entropy = (struct rand_pool_info *)bytes;
    entropy->entropy_count = SEED_BYTES * 8;
    entropy->buf_size = SEED_BYTES;
    memcpy(entropy->buf, seed, SEED_BYTES);
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = ioctl(fd, RNDADDENTROPY, entropy) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0 ? -errno : 0;
    close(fd);
    explicit_bzero(bytes, sizeof bytes);
    return result;
}

// Overwrites in place where the length is the same: that needs no free block on a full disk.
static int write_file(const char *directory, const char *name, const char *text)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    size_t size = strlen(text);
    ssize_t written = pwrite(fd, text, size, 0);
    int result = written < 0 ? -errno : (size_t)written < size ? -ENOSPC : 0;
    if (result == 0 && fstat(fd, &st) == 0 && (size_t)st.st_size > size && ftruncate(fd, (off_t)size) < 0)
        result = -errno;
    close(fd);
    return result;
}

static int make_run_directory(char *ret_path, size_t size)
{
    snprintf(ret_path, size, "%s/ramet", files.run);
    return mkdir(ret_path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

// On a read-only root the file is put over the image's by a bind mount.
static int write_etc(const char *name, const char *text)
{
    char directory[200], over[300], target[300];
    int result = write_file(files.etc, name, text);
    if (result != -EROFS)
        return result;
    result = make_run_directory(directory, sizeof directory);
    if (result == 0)
        result = write_file(directory, name, text);
    snprintf(over, sizeof over, "%s/%s", directory, name);
    snprintf(target, sizeof target, "%s/%s", files.etc, name);
    if (result == 0 && mount(over, target, NULL, MS_BIND, NULL) < 0)
        result = -errno;
    return result;
}

static int set_machine_id(const char *machine_id)
{
    char line[40];
    snprintf(line, sizeof line, "%.32s\n", machine_id);
    return write_etc("machine-id", line);
}

// sudo and many servers look the machine's own name up: it must be in the hosts file, or they wait for a name
// server.
static int set_hosts(const char *old, const char *hostname)
{
    char path[300], text[16384], line[200];
    snprintf(path, sizeof path, "%s/hosts", files.etc);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // nobody shall make the agent wait by a FIFO
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - sizeof line - 1);
    if (fd >= 0)
        close(fd);
    if (got < 0 || (size_t)got >= sizeof text - sizeof line - 1)
        return -EFBIG; // a file of that size is somebody's own affair
    text[got] = 0;
    snprintf(line, sizeof line, "127.0.1.1\t%s\n", old);
    char *at = strstr(text, line);
    if (at != NULL)
        memmove(at, at + strlen(line), strlen(at + strlen(line)) + 1);
    else if (got == 0)
        snprintf(text, sizeof text, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n");
    else if (text[got - 1] != '\n')
        strcat(text, "\n");
    snprintf(line, sizeof line, "127.0.1.1\t%s\n", hostname);
    strcat(text, line);
    return write_etc("hosts", text);
}

int identity_hosts(const char *hostname)
{
    return set_hosts(hostname, hostname);
}

static int set_hostname(const char *hostname)
{
    char old[65] = "", line[66];
    gethostname(old, sizeof old - 1);
    if (sethostname(hostname, strlen(hostname)) < 0)
        return -errno;
    // The files are for later boots and for look-ups: on a full disk the machine is still its own without
    // them.
    snprintf(line, sizeof line, "%.64s\n", hostname);
    write_etc("hostname", line);
    set_hosts(old, hostname);
    return 0;
}

static int set_mac(const uint8_t *mac)
{
    static const uint8_t none[6];
    struct ifreq request = {.ifr_name = "eth0", .ifr_hwaddr.sa_family = ARPHRD_ETHER};
    if (memcmp(mac, none, sizeof none) == 0 || access("/sys/class/net/eth0", F_OK) < 0)
        return 0;
    memcpy(request.ifr_hwaddr.sa_data, mac, sizeof none);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int result = ioctl(fd, SIOCSIFHWADDR, &request) < 0 ? -errno : 0;
    close(fd);
    return result;
}

static int new_generation(void)
{
    char directory[200], line[40];
    uint64_t words[2];
    int result = make_run_directory(directory, sizeof directory);
    if (result < 0)
        return result;
    if (getrandom(words, sizeof words, GRND_NONBLOCK) != sizeof words)
        return -EIO;
    snprintf(line, sizeof line, "%016llx%016llx\n", (unsigned long long)words[0],
            (unsigned long long)words[1]);
    return write_file(directory, "generation", line);
}

static int failed(int result, const char *step, char *ret_sentence, size_t size)
{
    if (result < 0)
        snprintf(ret_sentence, size, "%s: %s", step, strerror(-result));
    return result;
}

int identity_change(const struct identity *identity, char *ret_sentence, size_t size)
{
    int result =
            failed(reseed(identity->seed), "reseeding the kernel's random generator", ret_sentence, size);
    if (result == 0)
        result = failed(files.set_realtime(identity->realtime_ns), "setting the clock", ret_sentence, size);
    if (result == 0 && identity->machine_id[0] != 0)
        result = failed(set_machine_id(identity->machine_id), "writing the machine id", ret_sentence, size);
    if (result == 0 && identity->hostname[0] != 0)
        result = failed(set_hostname(identity->hostname), "setting the host name", ret_sentence, size);
    if (result == 0)
        result = failed(set_mac(identity->mac), "setting the network card's address", ret_sentence, size);
    if (result == 0)
        result = failed(new_generation(), "writing the generation file", ret_sentence, size);
    return result;
}

void identity_boot(const char *hostname)
{
    char path[300], text[80] = "";
    snprintf(path, sizeof path, "%s/machine-id", files.etc);
    struct stat st;
    uint64_t words[2];
    if ((stat(path, &st) < 0 || st.st_size < 33) && getrandom(words, sizeof words, 0) == sizeof words) {
        snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)words[0],
                (unsigned long long)words[1]);
        set_machine_id(text);
    }
    snprintf(path, sizeof path, "%s/hostname", files.etc);
    fd_read_text(AT_FDCWD, path, text, HOST_NAME_MAX + 1);
    text[strcspn(text, " \t\r\n")] = 0;
    if (hostname[0] != 0)
        set_hostname(hostname);
    else if (text[0] != 0)
        sethostname(text, strlen(text));
    else
        set_hostname("sandbox");
    new_generation();
}
