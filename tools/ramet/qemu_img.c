// SPDX-License-Identifier: Apache-2.0
// qemu-img runs as a child that dies with us (it is a helper of this command, not a guest), without a
// terminal to ask for passwords on, and with bounded memory: a hostile header must not take the machine down.
#include "tools/ramet/qemu_img.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const rlim_t MEMORY_MAX_BYTES = 4ull << 30;

struct child {
    pid_t pid;
    int out, err;
};

static int start(const char *const *argv, struct child *ret_child, struct error *err)
{
    int out[2], errors[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return error_set(err, -errno, "no pipe for qemu-img: %s", strerror(errno));
    if (pipe2(errors, O_CLOEXEC) < 0) {
        int code = -errno;
        close(out[0]);
        close(out[1]);
        return error_set(err, code, "no pipe for qemu-img: %s", strerror(-code));
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        struct rlimit limit = {MEMORY_MAX_BYTES, MEMORY_MAX_BYTES};
        int null_fd = open("/dev/null", O_RDONLY);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_AS, &limit);
        signal(SIGPIPE, SIG_DFL);
        dup2(null_fd, STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(errors[1], STDERR_FILENO);
        if (getppid() == parent)
            execvp(argv[0], (char *const *)argv);
        dprintf(STDERR_FILENO, "qemu-img cannot be started (%s); install the package qemu-utils\n",
                strerror(errno));
        _exit(127);
    }
    int code = -errno;
    close(out[1]);
    close(errors[1]);
    *ret_child = (struct child){pid, out[0], errors[0]};
    if (pid > 0)
        return 0;
    close(out[0]);
    close(errors[0]);
    return error_set(err, code, "qemu-img cannot be started: %s", strerror(-code));
}

// The last line that qemu-img said, without its name.
static void tidy(char *text)
{
    for (size_t length = strlen(text); length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r');
            length--)
        text[length - 1] = '\0';
    char *line = strrchr(text, '\n');
    line = line == NULL ? text : line + 1;
    if (strncmp(line, "qemu-img: ", 10) == 0)
        line += 10;
    memmove(text, line, strlen(line) + 1);
}

struct collector {
    char *text;
    size_t size, capacity, limit;
};

static void collect(struct collector *collector, const char *bytes, size_t size)
{
    if (collector->size + size >= collector->limit)
        return;
    if (collector->size + size + 1 > collector->capacity) {
        collector->capacity = (collector->size + size + 1) * 2;
        collector->text = realloc(collector->text, collector->capacity);
        if (collector->text == NULL)
            abort();
    }
    memcpy(collector->text + collector->size, bytes, size);
    collector->size += size;
    collector->text[collector->size] = '\0';
}

// "    (12.34/100%)\r"
static void follow_progress(struct progress *progress, const char *text)
{
    const char *at = strrchr(text, '(');
    double percent;
    if (progress != NULL && at != NULL && sscanf(at, "(%lf/100%%)", &percent) == 1)
        progress_set(progress, percent / 100);
}

// Reads both streams until the child ends. `out` NULL: its text is progress.
static int watch(struct child *child, struct collector *out, struct collector *errors, int watch_fd,
        struct progress *progress)
{
    struct pollfd fds[3] = {{.fd = child->out, .events = POLLIN}, {.fd = child->err, .events = POLLIN},
            {.fd = watch_fd, .events = POLLRDHUP}}; // its end, not the comments that keep it alive
    int result = 0, status = 0;
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        char buffer[4096];
        if (poll(fds, 3, -1) < 0 && errno != EINTR)
            break;
        if (fds[2].fd >= 0 && (fds[2].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
            kill(child->pid, SIGKILL);
            fds[2].fd = -1;
            result = -EPIPE;
        }
        for (int i = 0; i < 2; i++) {
            if (fds[i].fd < 0 || fds[i].revents == 0)
                continue;
            ssize_t got = read(fds[i].fd, buffer, sizeof buffer - 1);
            if (got <= 0) {
                close(fds[i].fd);
                fds[i].fd = -1;
                continue;
            }
            buffer[got] = '\0';
            if (i == 0 && out == NULL)
                follow_progress(progress, buffer);
            else
                collect(i == 0 ? out : errors, buffer, (size_t)got);
        }
    }
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (result == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        result = -EIO;
    return result;
}

static int parse_info(const char *text, struct qemu_img_info *info)
{
    json_t *json = json_loads(text, 0, NULL);
    if (json == NULL)
        return -EPROTO;
    json_t *data = json_object_get(json_object_get(json, "format-specific"), "data");
    snprintf(info->format, sizeof info->format, "%s", json_fields_get_text(json, "format"));
    info->virtual_bytes = (uint64_t)json_fields_get_int(json, "virtual-size");
    info->encrypted = json_fields_get_bool(json, "encrypted");
    info->corrupt = json_fields_get_bool(data, "corrupt");
    info->snapshots = (unsigned)json_array_size(json_object_get(json, "snapshots"));
    info->bitmaps = (unsigned)json_array_size(json_object_get(data, "bitmaps"));
    const char *backing = json_fields_get_text(json, "full-backing-filename");
    if (backing[0] == '\0')
        backing = json_fields_get_text(json, "backing-filename");
    snprintf(info->backing, sizeof info->backing, "%s", backing);
    json_decref(json);
    return 0;
}

int qemu_img_probe(const char *file, const char *format, struct qemu_img_info *ret_info, struct error *err)
{
    const char *argv[] = {"qemu-img", "info", "--output=json", format == NULL ? "--" : "-f",
            format == NULL ? file : format, format == NULL ? NULL : "--", file, NULL};
    struct collector out = {.limit = 16 << 20}, errors = {.limit = 65536};
    struct qemu_img_info info = {0};
    struct child child;
    int r = start(argv, &child, err);
    if (r < 0)
        return r;
    r = watch(&child, &out, &errors, -1, NULL);
    if (errors.text != NULL)
        tidy(errors.text);
    if (r == 0)
        r = parse_info(out.text == NULL ? "" : out.text, &info);
    if (r < 0)
        error_set(err, r, "%s",
                errors.text != NULL && errors.text[0] != '\0' ? errors.text
                                                              : "qemu-img cannot read the image");
    free(out.text);
    free(errors.text);
    if (r == 0)
        *ret_info = info;
    return r;
}

int qemu_img_convert(const char *source, const char *source_format, const char *target,
        const char *target_format, bool target_exists, int watch_fd, struct progress *progress,
        struct error *err)
{
    const char *argv[20] = {
            "qemu-img", "convert", "-p", "-f", source_format, "-O", target_format, "-S", "4k"};
    size_t count = 9;
    if (target_exists) {
        argv[count++] = "-n";
        argv[count++] = "--target-is-zero";
    }
    argv[count++] = "--";
    argv[count++] = source;
    argv[count++] = target;
    struct collector errors = {.limit = 65536};
    struct child child;
    int r = start(argv, &child, err);
    if (r < 0)
        return r;
    r = watch(&child, NULL, &errors, watch_fd, progress);
    progress_end(progress);
    if (errors.text != NULL)
        tidy(errors.text);
    if (r == -EPIPE)
        error_set(err, r, "the daemon ended in the middle of the copy");
    else if (r < 0)
        error_set(err, r, "%s",
                errors.text != NULL && errors.text[0] != '\0' ? errors.text
                                                              : "qemu-img failed without a word");
    free(errors.text);
    return r;
}

char *qemu_img_nbd(const char *socket_path)
{
    char *name = NULL;
    if (asprintf(&name, "nbd+unix:///?socket=%s", socket_path) < 0)
        abort();
    return name;
}
