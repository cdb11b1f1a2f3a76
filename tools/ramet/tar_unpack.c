// SPDX-License-Identifier: Apache-2.0
// A parser that is fed with whatever pieces come. Each member's folder is opened component by component,
// never through a link, so that no name leads out of the target folder, whatever was unpacked before it.
#include "blockstore/fd.h"
#include "tools/ramet/tar.h"
#include "tools/ramet/tar_header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_MAX = 65536, FOLDER_MODE = 0700 };

enum state { HEADER, BODY, SKIP, TEXT, END };

struct late_mode { // folders get their modes at the end: they must be writable until then
    struct late_mode *next;
    unsigned mode;
    char name[];
};

struct tar_unpack {
    int folder;
    enum state state;
    union {
        struct tar_header header;
        char bytes[TAR_HEADER_BLOCK];
    } block;
    size_t filled;          // of the block
    uint64_t left, padding; // of the present member
    int fd;                 // of the file that is written
    unsigned mode;
    char text_type, *text; // a long name or a pax header that comes before its member
    size_t text_size;
    char *long_name, *long_link;
    uint64_t long_size;
    bool has_long_size;
    struct late_mode *modes;
    unsigned top_mode; // of the folder itself; 0 = not told
    struct tar_totals totals;
};

static int bad(struct error *err, const char *what, const char *name)
{
    return error_set(err, -EPROTO, "the sandbox sent an archive that %s%s%.200s", what,
            name == NULL ? "" : ": ", name == NULL ? "" : name);
}

// ---- places ----

// The name without "./", "/" before it and "/" behind it. False: it would lead out, or is none.
static bool clean_name(char *name)
{
    char *in = name, *out = name;
    while (*in != '\0') {
        size_t length = strcspn(in, "/");
        if (length == 2 && in[0] == '.' && in[1] == '.')
            return false;
        if (length > 0 && !(length == 1 && in[0] == '.')) {
            if (out > name)
                *out++ = '/';
            memmove(out, in, length);
            out += length;
            in += length;
        } else {
            in += length;
        }
        in += *in == '/';
    }
    *out = '\0';
    return true;
}

// The folder that holds the name, made where it is missing; *ret_last points into name.
static int open_parent(struct tar_unpack *unpack, char *name, const char **ret_last, struct error *err)
{
    int fd = fcntl(unpack->folder, F_DUPFD_CLOEXEC, 3);
    char *at = name, *slash;
    while (fd >= 0 && (slash = strchr(at, '/')) != NULL) {
        *slash = '\0';
        if (mkdirat(fd, at, FOLDER_MODE) < 0 && errno != EEXIST) {
            close(fd);
            fd = -1;
        } else {
            int next = openat(fd, at, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), code = errno;
            close(fd);
            fd = next;
            errno = code;
        }
        *slash = '/';
        at = slash + 1;
    }
    if (fd < 0)
        return error_set(err, -errno, "%s cannot be made: %s", name, strerror(errno));
    *ret_last = at;
    return fd;
}

// What an earlier member of the same name left; a folder stays.
static void make_room(int folder, const char *name)
{
    unlinkat(folder, name, 0);
}

static void add_mode(struct tar_unpack *unpack, const char *name, unsigned mode)
{
    struct late_mode *late = malloc(sizeof *late + strlen(name) + 1);
    if (late == NULL)
        abort();
    late->mode = mode;
    strcpy(late->name, name);
    late->next = unpack->modes;
    unpack->modes = late;
}

// ---- members ----

static int begin_file(
        struct tar_unpack *unpack, int folder, const char *last, const char *name, struct error *err)
{
    make_room(folder, last);
    unpack->fd = openat(folder, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (unpack->fd < 0)
        return error_set(err, -errno, "%s cannot be made: %s", name, strerror(errno));
    unpack->totals.files++;
    return 0;
}

static int make_hard_link(
        struct tar_unpack *unpack, int folder, const char *last, char *link, struct error *err)
{
    const char *from;
    if (!clean_name(link) || link[0] == '\0')
        return bad(err, "links to outside", link);
    int from_folder = open_parent(unpack, link, &from, err);
    if (from_folder < 0)
        return from_folder;
    make_room(folder, last);
    int r = linkat(from_folder, from, folder, last, 0) < 0 ? -errno : 0;
    close(from_folder);
    return r < 0 ? error_set(err, r, "the link to %s cannot be made: %s", link, strerror(-r)) : 0;
}

static int make_member(struct tar_unpack *unpack, char type, char *name, char *link, struct error *err)
{
    const char *last;
    int r = 0, folder = open_parent(unpack, name, &last, err);
    if (folder < 0)
        return folder;
    if (type == '0' || type == '7' || type == '\0') {
        r = begin_file(unpack, folder, last, name, err);
    } else if (type == '5') {
        if (mkdirat(folder, last, FOLDER_MODE) < 0 && errno != EEXIST)
            r = error_set(err, -errno, "%s cannot be made: %s", name, strerror(errno));
        else
            add_mode(unpack, name, unpack->mode);
    } else if (type == '2') {
        make_room(folder, last);
        if (symlinkat(link, folder, last) < 0)
            r = error_set(err, -errno, "%s cannot be made: %s", name, strerror(errno));
        unpack->totals.files++;
    } else if (type == '1') {
        r = make_hard_link(unpack, folder, last, link, err);
        unpack->totals.files++;
    } else {
        unpack->totals.left_out++;
    }
    close(folder);
    return r;
}

static char *field_text(const char *field, size_t size)
{
    char *text = strndup(field, size);
    if (text == NULL)
        abort();
    return text;
}

static char *member_name(const struct tar_header *header)
{
    bool ustar =
            memcmp(header->magic, "ustar", 6) == 0; // GNU's has a blank there, and other things in prefix
    char *name;
    if (!ustar || header->prefix[0] == '\0')
        return field_text(header->name, sizeof header->name);
    if (asprintf(&name, "%.155s/%.100s", header->prefix, header->name) < 0)
        abort();
    return name;
}

static void drop_long(struct tar_unpack *unpack)
{
    free(unpack->long_name);
    free(unpack->long_link);
    unpack->long_name = unpack->long_link = NULL;
    unpack->has_long_size = false;
}

static int begin_member(struct tar_unpack *unpack, struct error *err)
{
    const struct tar_header *header = &unpack->block.header;
    char type = header->type;
    if (tar_header_is_end(header)) {
        unpack->state = END;
        return 0;
    }
    uint64_t size = tar_header_number(header->size, sizeof header->size);
    if (!tar_header_is_good(header) || size > INT64_MAX)
        return bad(err, "is damaged", NULL);
    bool text = strchr("LKxg", type) != NULL && type != '\0';
    if (text && size > TEXT_MAX)
        return bad(err, "has a name of more than 64 KiB", NULL);
    if (!text && unpack->has_long_size)
        size = unpack->long_size;
    unpack->left = size;
    unpack->padding = (TAR_HEADER_BLOCK - size % TAR_HEADER_BLOCK) % TAR_HEADER_BLOCK;
    if (text) {
        unpack->text_type = type;
        unpack->text_size = 0;
        unpack->text = calloc(1, size + 1);
        if (unpack->text == NULL)
            abort();
        unpack->state = TEXT;
        return 0;
    }
    char *name = unpack->long_name != NULL ? strdup(unpack->long_name) : member_name(header);
    char *link = unpack->long_link != NULL ? strdup(unpack->long_link)
                                           : field_text(header->link, sizeof header->link);
    drop_long(unpack);
    unpack->mode = (unsigned)tar_header_number(header->mode, sizeof header->mode) & 0777;
    int r = !clean_name(name) ? bad(err, "leads out of its folder", name)
            : name[0] == '\0' ? 0 // "./" itself
                              : make_member(unpack, type, name, link, err);
    if (name[0] == '\0' && type == '5')
        unpack->top_mode = unpack->mode;
    free(name);
    free(link);
    unpack->state = unpack->fd >= 0 ? BODY : SKIP;
    return r;
}

// "27 path=some/long name\n", one after the other.
static void take_pax(struct tar_unpack *unpack)
{
    for (char *at = unpack->text, *end = at + unpack->text_size; at < end;) {
        char *word;
        unsigned long length = strtoul(at, &word, 10);
        if (length == 0 || length > (size_t)(end - at) || *word != ' ' || at[length - 1] != '\n')
            return;
        at[length - 1] = '\0';
        word++;
        if (strncmp(word, "path=", 5) == 0) {
            free(unpack->long_name);
            unpack->long_name = strdup(word + 5);
        } else if (strncmp(word, "linkpath=", 9) == 0) {
            free(unpack->long_link);
            unpack->long_link = strdup(word + 9);
        } else if (strncmp(word, "size=", 5) == 0) {
            unpack->long_size = strtoull(word + 5, NULL, 10) & INT64_MAX;
            unpack->has_long_size = true;
        }
        at += length;
    }
}

static void end_text(struct tar_unpack *unpack)
{
    char **target = unpack->text_type == 'L' ? &unpack->long_name : &unpack->long_link;
    if (unpack->text_type == 'x') {
        take_pax(unpack);
        free(unpack->text);
    } else if (unpack->text_type == 'g') {
        free(unpack->text);
    } else {
        free(*target);
        *target = unpack->text;
    }
    unpack->text = NULL;
}

static int end_member(struct tar_unpack *unpack, struct error *err)
{
    int r = 0;
    if (unpack->state == TEXT)
        end_text(unpack);
    if (unpack->fd >= 0) {
        if (fchmod(unpack->fd, unpack->mode) < 0 || close(unpack->fd) < 0)
            r = error_set(err, -errno, "a file cannot be completed: %s", strerror(errno));
        unpack->fd = -1;
    }
    unpack->state = HEADER;
    unpack->filled = 0;
    return r;
}

static int take_body(struct tar_unpack *unpack, const char *bytes, size_t size, struct error *err)
{
    if (unpack->state == TEXT) {
        memcpy(unpack->text + unpack->text_size, bytes, size);
        unpack->text_size += size;
    }
    if (unpack->state != BODY)
        return 0;
    int r = fd_write_all(unpack->fd, bytes, size);
    if (r < 0)
        return error_set(err, r, "a file cannot be written: %s", strerror(-r));
    unpack->totals.bytes += size;
    return 0;
}

// ---- the stream ----

int tar_unpack_feed(struct tar_unpack *unpack, const void *given, size_t size, struct error *err)
{
    const char *bytes = given;
    int r = 0;
    while (r == 0 && size > 0 && unpack->state != END) {
        size_t part;
        if (unpack->state == HEADER) {
            part = sizeof unpack->block - unpack->filled;
            part = part < size ? part : size;
            memcpy(unpack->block.bytes + unpack->filled, bytes, part);
            unpack->filled += part;
            if (unpack->filled == sizeof unpack->block)
                r = begin_member(unpack, err);
        } else if (unpack->left > 0) {
            part = unpack->left < size ? (size_t)unpack->left : size;
            r = take_body(unpack, bytes, part, err);
            unpack->left -= part;
        } else {
            part = unpack->padding < size ? (size_t)unpack->padding : size;
            unpack->padding -= part;
        }
        bytes += part;
        size -= part;
        if (r == 0 && (unpack->state == BODY || unpack->state == SKIP || unpack->state == TEXT) &&
                unpack->left == 0 && unpack->padding == 0)
            r = end_member(unpack, err);
    }
    return r;
}

int tar_unpack_new(const char *folder, struct tar_unpack **ret_unpack, struct error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, -errno, "%s cannot be opened: %s", folder, strerror(errno));
    struct tar_unpack *unpack = calloc(1, sizeof *unpack);
    if (unpack == NULL)
        abort();
    unpack->folder = fd;
    unpack->fd = -1;
    *ret_unpack = unpack;
    return 0;
}

static int set_modes(struct tar_unpack *unpack, struct error *err)
{
    int r = 0;
    for (struct late_mode *late = unpack->modes; r == 0 && late != NULL; late = late->next) {
        const char *last;
        int folder = open_parent(unpack, late->name, &last, err);
        int fd = folder < 0 ? -1 : openat(folder, last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder < 0)
            return folder;
        if (fd >= 0 && fchmod(fd, late->mode) < 0)
            r = error_set(err, -errno, "the mode of %s cannot be set: %s", late->name, strerror(errno));
        if (fd >= 0)
            close(fd);
        close(folder);
    }
    if (r == 0 && unpack->top_mode != 0 && fchmod(unpack->folder, unpack->top_mode) < 0)
        r = error_set(err, -errno, "the mode of the folder cannot be set: %s", strerror(errno));
    return r;
}

int tar_unpack_end(struct tar_unpack *unpack, struct tar_totals *ret_totals, struct error *err)
{
    int r = unpack->state != END ? bad(err, "breaks off", NULL) : set_modes(unpack, err);
    *ret_totals = unpack->totals;
    tar_unpack_free(unpack);
    return r;
}

void tar_unpack_free(struct tar_unpack *unpack)
{
    if (unpack == NULL)
        return;
    while (unpack->modes != NULL) {
        struct late_mode *next = unpack->modes->next;
        free(unpack->modes);
        unpack->modes = next;
    }
    drop_long(unpack);
    free(unpack->text);
    if (unpack->fd >= 0)
        close(unpack->fd);
    close(unpack->folder);
    free(unpack);
}
