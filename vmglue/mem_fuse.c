// SPDX-License-Identifier: Apache-2.0
// One thread takes requests from /dev/fuse (libfuse parses them). It never waits for data: a READ becomes a
// request to the engine, whose completion answers it from a loop. A VM whose fault is not answered hangs, and
// whoever copies that VM's memory hangs with it, so nothing else runs on this thread.
//
// Files opened by this daemon carry its random token as handle, so that closing one that an earlier daemon
// opened is told apart (mem_fuse_images.h).
#define FUSE_USE_VERSION 35
#include "vmglue/mem_fuse.h"

#include "vmglue/mem_fuse_device.h"
#include "vmglue/mem_fuse_images.h"
#include "vmglue/mem_fuse_private.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READAHEAD_MAX = 128 * 1024, PAGE_BYTES = 4096 };
static const double FOREVER_S = 365.0 * 86400; // nothing about an image ever changes

struct mem_fuse {
    struct mem_fuse_config config;
    char *mountpoint;
    struct fuse_session *session;
    uid_t uid;
    gid_t gid;
    uint64_t token; // marks what this daemon opened
    int stop_fd;
    pthread_t thread;
    atomic_bool connected;
    atomic_uint next_loop;
    atomic_uint_fast64_t read_bytes, read_count;
    struct mem_fuse_images *images;
};

struct image_read {
    struct volume_io io;
    fuse_req_t request;
    struct mem_fuse *fuse;
    struct base_id id;
};

static fuse_ino_t base_to_node(struct base_id id)
{
    return (fuse_ino_t)id.value + 1;
}

static struct base_id node_to_base(fuse_ino_t node)
{
    return (struct base_id){node - 1};
}

// ---- Requests ----

static bool is_own(struct mem_fuse *fuse, fuse_req_t request)
{
    uid_t uid = fuse_req_ctx(request)->uid;
    return uid == 0 || uid == fuse->uid;
}

static struct stat make_stat(
        struct mem_fuse *fuse, fuse_ino_t node, mode_t mode, uint64_t size, uint64_t wall_ns)
{
    struct stat st = {
            .st_ino = node, .st_mode = mode, .st_nlink = S_ISDIR(mode) ? 2 : 1, .st_blksize = PAGE_BYTES};
    st.st_uid = fuse->uid;
    st.st_gid = fuse->gid;
    st.st_size = (off_t)size;
    st.st_blocks = (blkcnt_t)(size / 512);
    st.st_mtim = (struct timespec){(time_t)(wall_ns / 1000000000), (long)(wall_ns % 1000000000)};
    st.st_atim = st.st_ctim = st.st_mtim;
    return st;
}

static int fill_image(struct mem_fuse *fuse, struct base_id id, struct stat *st)
{
    struct base_info info;
    int result = store_base_get(fuse->config.store, id, &info);
    if (result == 0)
        *st = make_stat(fuse, base_to_node(id), S_IFREG | 0444, info.size_bytes, info.created_wall_ns);
    return result;
}

// A base id as it is printed: decimal, no leading zero, small enough for a node id.
static bool parse_name(const char *name, struct base_id *ret_id)
{
    uint64_t value = 0;
    if (name[0] < '1' || name[0] > '9')
        return false;
    for (const char *c = name; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || value > (UINT64_MAX - 10) / 10)
            return false;
        value = value * 10 + (uint64_t)(*c - '0');
    }
    ret_id->value = value;
    return true;
}

static void serve_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    struct base_id id;
    struct fuse_entry_param entry = {.attr_timeout = FOREVER_S, .entry_timeout = FOREVER_S};
    if (parent != FUSE_ROOT_ID || !parse_name(name, &id)) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    int result = fill_image(fuse, id, &entry.attr);
    if (result < 0) {
        fuse_reply_err(request, -result);
        return;
    }
    entry.ino = base_to_node(id);
    fuse_reply_entry(request, &entry);
}

static void serve_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    struct stat st = make_stat(fuse, FUSE_ROOT_ID, S_IFDIR | 0711, 0, 0);
    int result = node == FUSE_ROOT_ID ? 0 : fill_image(fuse, node_to_base(node), &st);
    if (result < 0)
        fuse_reply_err(request, result == -ENOENT ? ESTALE : -result);
    else
        fuse_reply_attr(request, &st, FOREVER_S);
}

static void serve_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    const struct mem_fuse_config *config = &fuse->config;
    struct base_id id = node_to_base(node);
    const struct fuse_ctx *caller = fuse_req_ctx(request);
    if ((file->flags & O_ACCMODE) != O_RDONLY || (file->flags & O_TRUNC)) {
        fuse_reply_err(request, EROFS);
        return;
    }
    if (!is_own(fuse, request) &&
            (config->may_open == NULL || !config->may_open(config->context, id, caller->uid, caller->pid))) {
        fuse_reply_err(request, EACCES);
        return;
    }
    int result = mem_fuse_images_open(fuse->images, id);
    if (result < 0) {
        fuse_reply_err(request, -result);
        return;
    }
    file->fh = fuse->token;
    file->keep_cache = 1;
    file->noflush = 1;
    if (fuse_reply_open(request, file) < 0)
        mem_fuse_images_release(fuse->images, id); // interrupted: nobody will close it
}

static void serve_release(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    if (file->fh == fuse->token)
        mem_fuse_images_release(fuse->images, node_to_base(node));
    fuse_reply_err(request, 0);
}

// Ends a READ, on a loop.
static void read_done(struct volume_io *io, int result)
{
    struct image_read *read = io->context;
    struct mem_fuse *fuse = read->fuse;
    if (result < 0) {
        fuse_reply_err(read->request, result == -EBADMSG ? EIO : -result);
    } else {
        fuse_reply_buf(read->request, io->buffer, io->length);
        atomic_fetch_add(&fuse->read_bytes, io->length);
    }
    io_buffer_free(io->buffer);
    struct base_id id = read->id;
    free(read);
    mem_fuse_images_end_read(fuse->images, id); // the last thing: mem_fuse_stop may free all after this
}

static void serve_read(
        fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, struct fuse_file_info *file)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    const struct mem_fuse_config *config = &fuse->config;
    struct base_id id = node_to_base(node);
    atomic_fetch_add(&fuse->read_count, 1);
    if (config->on_read != NULL)
        config->on_read(config->context, id, (uint64_t)offset, size);
    struct image_read *read = calloc(1, sizeof *read);
    if (read == NULL) {
        fuse_reply_err(request, ENOMEM);
        return;
    }
    struct base *base;
    int result = mem_fuse_images_begin_read(fuse->images, id, &base);
    if (result < 0) {
        free(read);
        fuse_reply_err(request, -result);
        return;
    }
    // The kernel asks for whole pages; the last one may reach beyond the end.
    uint64_t end = base_size_bytes(base), start = (uint64_t)offset;
    uint64_t length = start >= end ? 0 : end - start < size ? end - start : size;
    read->request = request;
    read->fuse = fuse;
    read->id = id;
    read->io = (struct volume_io){.op = VOLUME_READ,
            .offset = start,
            .length = length,
            .done = read_done,
            .context = read,
            .buffer = io_buffer_alloc(
                    length > 0 ? (length + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES)};
    if (length == 0) {
        read_done(&read->io, 0);
        return;
    }
    unsigned loop = atomic_fetch_add(&fuse->next_loop, 1) % store_loop_count(config->store);
    base_submit(base, store_loop(config->store, loop), &read->io);
}

// ---- The directory, for its owner ----

static void serve_opendir(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    if (!is_own(fuse_req_userdata(request), request))
        fuse_reply_err(request, EACCES);
    else if (node != FUSE_ROOT_ID)
        fuse_reply_err(request, ENOTDIR);
    else
        fuse_reply_open(request, file);
}

// Offsets are ids: what was made or deleted meanwhile does not disturb.
static void serve_readdir(
        fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, struct fuse_file_info *file)
{
    struct mem_fuse *fuse = fuse_req_userdata(request);
    uint64_t *ids;
    size_t count;
    char *buffer = malloc(size);
    if (buffer == NULL || mem_fuse_images_list(fuse->images, &ids, &count) < 0) {
        free(buffer);
        fuse_reply_err(request, ENOMEM);
        return;
    }
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] <= (uint64_t)offset)
            continue;
        char name[24];
        struct stat st = {.st_ino = base_to_node((struct base_id){ids[i]}), .st_mode = S_IFREG};
        snprintf(name, sizeof name, "%llu", (unsigned long long)ids[i]);
        size_t needed = fuse_add_direntry(request, buffer + used, size - used, name, &st, (off_t)ids[i]);
        if (needed > size - used)
            break;
        used += needed;
    }
    fuse_reply_buf(request, buffer, used);
    free(buffer);
    free(ids);
}

// ---- The connection ----

static void serve_init(void *context, struct fuse_conn_info *connection)
{
    struct mem_fuse *fuse = context;
    connection->max_readahead = fuse->config.readahead_bytes < 0 ? 0 : (unsigned)fuse->config.readahead_bytes;
    connection->max_background = fuse->config.max_background;
    connection->congestion_threshold = fuse->config.max_background;
    connection->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                                    FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_READDIRPLUS);
    connection->want |= connection->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPLICIT_INVAL_DATA);
}

static const struct fuse_lowlevel_ops operations = {
        .init = serve_init,
        .lookup = serve_lookup,
        .getattr = serve_getattr,
        .open = serve_open,
        .read = serve_read,
        .release = serve_release,
        .opendir = serve_opendir,
        .readdir = serve_readdir,
};

static void *receive(void *context)
{
    struct mem_fuse *fuse = context;
    struct fuse_buf buffer = {.mem = NULL};
    struct pollfd fds[] = {{.fd = fuse_session_fd(fuse->session), .events = POLLIN},
            {.fd = fuse->stop_fd, .events = POLLIN}};
    for (;;) {
        if (poll(fds, 2, -1) < 0)
            continue; // interrupted
        if (fds[1].revents)
            break;
        // The descriptor does not block: nobody else takes requests, but an interrupted one may go away.
        int got = fuse_session_receive_buf(fuse->session, &buffer);
        if (got == -EINTR || got == -EAGAIN)
            continue;
        if (got <= 0) {
            atomic_store(&fuse->connected, false);
            break;
        }
        fuse_session_process_buf(fuse->session, &buffer);
    }
    free(buffer.mem);
    return NULL;
}

// libfuse speaks through this; its words for a failed mount go into the caller's sentence. Libraries do not
// print.
static _Thread_local char last_words[200];

static void keep_words(enum fuse_log_level level, const char *format, va_list args)
{
    vsnprintf(last_words, sizeof last_words, format, args);
    last_words[strcspn(last_words, "\n")] = '\0';
}

static int make_session(struct mem_fuse *fuse, int fd, struct error *err)
{
    char *argv[] = {"ramet", NULL}, path[32];
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    snprintf(path, sizeof path, "/dev/fd/%d", fd); // the way to hand it a connection
    last_words[0] = '\0';
    fuse->session = fuse_session_new(&args, &operations, sizeof operations, fuse);
    fuse_opt_free_args(&args);
    if (fuse->session != NULL && fuse_session_mount(fuse->session, path) == 0)
        return 0;
    close(fd);
    return error_set(err, -EIO, "libfuse cannot serve memory images at %s: %s", fuse->mountpoint, last_words);
}

// Checks an earlier daemon's connection and duplicates it.
static int take_over(struct mem_fuse *fuse, int fuse_fd, int *ret_fd, struct error *err)
{
    int result = mem_fuse_device_check_alive(fuse_fd);
    if (result == 0)
        result = mem_fuse_device_check_mounted(fuse->mountpoint);
    if (result < 0)
        return error_set(err, result,
                "the memory images that were mounted at %s are gone (unmounted or aborted): VMs that map "
                "them cannot go on; drop the old descriptor and mount anew",
                fuse->mountpoint);
    int fd = fcntl(fuse_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return error_set(err, -errno, "cannot duplicate the memory images' descriptor: %s", strerror(errno));
    *ret_fd = fd;
    return 0;
}

static int connect_session(struct mem_fuse *fuse, int fuse_fd, struct error *err)
{
    int fd, result;
    if (fuse_fd >= 0) {
        result = take_over(fuse, fuse_fd, &fd, err);
    } else {
        result = mem_fuse_device_prepare(fuse->mountpoint, err);
        if (result == 0)
            result = mem_fuse_device_mount(fuse->mountpoint, &fd, err);
        atomic_store(&fuse->connected, result == 0);
    }
    if (result < 0 || (result = make_session(fuse, fd, err)) < 0)
        return result;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
        return error_set(err, -errno, "cannot set up the memory images' descriptor: %s", strerror(errno));
    atomic_store(&fuse->connected, true);
    if (fuse_fd >= 0) {
        // libfuse refuses everything before INIT, and the kernel has sent that to our predecessor.
        char init[MEM_FUSE_DEVICE_INIT_BYTES];
        struct fuse_buf buffer = {.mem = init, .size = mem_fuse_device_make_init(init)};
        fuse_session_process_buf(fuse->session, &buffer);
    }
    return 0;
}

static int start_thread(struct mem_fuse *fuse)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the daemon's own threads
    int result = pthread_create(&fuse->thread, NULL, receive, fuse);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -result;
}

static struct mem_fuse *free_fuse(struct mem_fuse *fuse)
{
    if (fuse->session != NULL)
        fuse_session_destroy(fuse->session); // closes our descriptor
    if (fuse->stop_fd >= 0)
        close(fuse->stop_fd);
    mem_fuse_images_destroy(fuse->images);
    free(fuse->mountpoint);
    free(fuse);
    return NULL;
}

static struct mem_fuse *make_fuse(const struct mem_fuse_config *config)
{
    struct mem_fuse *fuse = calloc(1, sizeof *fuse);
    if (fuse == NULL)
        return NULL;
    fuse->config = *config;
    if (fuse->config.readahead_bytes == 0)
        fuse->config.readahead_bytes = MEM_FUSE_READAHEAD_DEFAULT;
    if (fuse->config.max_background == 0)
        fuse->config.max_background = MEM_FUSE_BACKGROUND_DEFAULT;
    fuse->uid = geteuid();
    fuse->gid = getegid();
    fuse->images = mem_fuse_images_create(config->store);
    fuse->mountpoint = strdup(config->mountpoint);
    fuse->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (fuse->mountpoint == NULL || fuse->images == NULL || fuse->stop_fd < 0 ||
            getrandom(&fuse->token, sizeof fuse->token, 0) != (ssize_t)sizeof fuse->token)
        return free_fuse(fuse);
    return fuse;
}

int mem_fuse_start_config(const struct mem_fuse_config *config, struct mem_fuse **ret_fuse, struct error *err)
{
    if (config->readahead_bytes > READAHEAD_MAX || config->max_background > UINT16_MAX)
        return error_set(err, -EINVAL,
                "memory images: readahead is at most %d bytes and background requests at most %d",
                READAHEAD_MAX, UINT16_MAX);
    struct mem_fuse *fuse = make_fuse(config);
    if (fuse == NULL)
        return error_set(err, -ENOMEM, "no memory or descriptors left to serve memory images");
    fuse_set_log_func(keep_words);
    int result = connect_session(fuse, config->fuse_fd, err);
    if (result == 0 && (result = start_thread(fuse)) < 0)
        error_set(err, result, "cannot start the thread that serves memory images: %s", strerror(-result));
    if (result < 0) {
        if (config->fuse_fd < 0 && atomic_load(&fuse->connected))
            mem_fuse_device_detach(fuse->mountpoint);
        free_fuse(fuse);
        return result;
    }
    // Faults that were in flight when our predecessor died. A kernel before 6.9 cannot: those stay,
    // everything else works.
    if (config->fuse_fd >= 0)
        mem_fuse_device_resend(fuse_session_fd(fuse->session));
    *ret_fuse = fuse;
    return 0;
}

int mem_fuse_start(struct store *store, const char *mountpoint, int fuse_fd, struct mem_fuse **ret_fuse,
        struct error *err)
{
    struct mem_fuse_config config = {.store = store, .mountpoint = mountpoint, .fuse_fd = fuse_fd};
    return mem_fuse_start_config(&config, ret_fuse, err);
}

int mem_fuse_device_fd(struct mem_fuse *fuse)
{
    return fuse_session_fd(fuse->session);
}

bool mem_fuse_connected(struct mem_fuse *fuse)
{
    return atomic_load(&fuse->connected);
}

struct mem_fuse *mem_fuse_stop(struct mem_fuse *fuse, bool unmount)
{
    if (fuse == NULL)
        return NULL;
    // Unmounting first, while requests are answered: looking at the mount must not hang.
    if (unmount)
        mem_fuse_device_detach(fuse->mountpoint);
    eventfd_write(fuse->stop_fd, 1);
    pthread_join(fuse->thread, NULL);
    mem_fuse_images_wait(fuse->images, 0);
    return free_fuse(fuse);
}

uint64_t mem_fuse_read_bytes(struct mem_fuse *fuse)
{
    return atomic_load(&fuse->read_bytes);
}

uint64_t mem_fuse_read_count(struct mem_fuse *fuse)
{
    return atomic_load(&fuse->read_count);
}

// ---- For mem_fuse_prefetch.c ----

struct store *mem_fuse_store(struct mem_fuse *fuse)
{
    return fuse->config.store;
}

const char *mem_fuse_mountpoint(struct mem_fuse *fuse)
{
    return fuse->mountpoint;
}

void mem_fuse_let_readers_go(struct mem_fuse *fuse, unsigned timeout_ms)
{
    mem_fuse_images_wait(fuse->images, timeout_ms);
}

int mem_fuse_put_pages(struct mem_fuse *fuse, struct base_id image, uint64_t offset, void *bytes, size_t size)
{
    struct fuse_bufvec vector = FUSE_BUFVEC_INIT(size);
    vector.buf[0].mem = bytes;
    return fuse_lowlevel_notify_store(
            fuse->session, base_to_node(image), (off_t)offset, &vector, FUSE_BUF_NO_SPLICE);
}

void mem_fuse_forget(struct mem_fuse *fuse, struct base_id base)
{
    char name[24];
    int size = snprintf(name, sizeof name, "%llu", (unsigned long long)base.value);
    fuse_lowlevel_notify_inval_entry(fuse->session, FUSE_ROOT_ID, name, (size_t)size);
}
