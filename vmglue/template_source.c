// SPDX-License-Identifier: Apache-2.0
// The disk that a build boots from: made by one of the programs in tools/image, or a volume that is there.
#include "vmglue/template_internal.h"

#include "vmglue/disk_table.h"
#include "vmglue/json_fields.h"
#include "vmglue/template_child.h"
#include "vmglue/template_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUILDER_TIMEOUT_MS = 45 * 60000, CONFIG_MAX_BYTES = 256 * 1024, ARGUMENTS_MAX = 16, SIZE_TEXT = 24 };

// Programs of the project's tools folder, beside the build tree or installed beside the daemon.
static int find_tool(struct template_build *build, const char *name, char *ret_path, struct error *err)
{
    static const char *const places[] = {"", "/../../..", "/../../share/ramet"};
    const char *libexec = build->all->config.libexec_dir;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int size = snprintf(ret_path, PATH_MAX, "%s%s/tools/image/%s", libexec, places[i], name);
        if (size < PATH_MAX && access(ret_path, X_OK) == 0)
            return 0;
    }
    return error_set(err, -ENOENT,
            "the image builder tools/image/%s was not found beside the daemon (%s); set RAMET_LIBEXEC, or "
            "bring a disk",
            name, libexec);
}

static void on_output(void *context, const char *bytes, size_t size)
{
    struct template_build *build = context;
    template_log_write(build->log, bytes, size);
}

// Runs a builder; `out` is where it puts the image.
static int run_builder(struct template_build *build, const char *const *arguments, struct error *err)
{
    struct template_child child = {.argv = arguments,
            .folder = build->folder,
            .timeout_ms = BUILDER_TIMEOUT_MS,
            .on_output = on_output,
            .cancelled = template_build_is_cancelled,
            .context = build};
    return template_child_run(&child, err);
}

// What the image's configuration says: {"env":{},"user":"","cwd":"","command":""}, each may be missing.
static int take_defaults(struct template_build *build, const char *path, struct error *err)
{
    static const char *const known[] = {"env", "user", "cwd", "command", NULL};
    const json_t *env = NULL;
    const char *text = NULL;
    char *bytes = NULL;
    int r = template_files_read(path, CONFIG_MAX_BYTES, &bytes);
    if (r == -ENOENT)
        return 0; // a source that has none
    if (r < 0)
        return error_set(err, r, "the image's configuration cannot be read: %s", strerror(-r));
    json_t *json = json_loads(bytes, 0, NULL);
    free(bytes);
    // A zero character or half a surrogate pair in a foreign image's words is no JSON here.
    r = json == NULL ? error_set(err, -EINVAL, "it cannot be read") : json_fields_check(json, known, err);
    if (r == 0)
        r = json_fields_string_map(json, "env", &env, err);
    for (size_t i = 1; r >= 0 && known[i] != NULL; i++)
        r = json_fields_string(json, known[i], &text, err);
    if (r < 0) {
        json_decref(json);
        return error_prefix(err, "the image's configuration");
    }
    build->defaults = json;
    return 0;
}

static int image_to_volume(struct template_build *build, const char *path, struct error *err)
{
    struct stat st;
    struct volume *volume = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int code = -errno;
        if (fd >= 0)
            close(fd);
        return error_set(err, code, "the builder left no image: %s", strerror(-code));
    }
    int r = template_journal_volume(build, (uint64_t)st.st_size, err);
    if (r == 0 && (r = volume_open(build->all->store, build->disk, &volume)) < 0)
        error_set(err, r, "the new volume cannot be opened: %s", strerror(-r));
    if (r == 0)
        r = template_files_to_volume(fd, volume, template_build_is_cancelled, build, err);
    volume = volume_close(volume);
    close(fd);
    return r;
}

struct command {
    const char *items[ARGUMENTS_MAX + 1];
    unsigned count;
};

static void add(struct command *command, const char *option, const char *value)
{
    if (option != NULL && value == NULL)
        return; // an option that is not given
    if (option != NULL)
        command->items[command->count++] = option;
    if (value != NULL)
        command->items[command->count++] = value;
}

static int make_image(struct template_build *build, struct error *err)
{
    const struct template_request *request = &build->request;
    bool unpacks = request->source == TEMPLATE_TAR || request->source == TEMPLATE_OCI;
    char tool[PATH_MAX], image[PATH_MAX + 16], config[PATH_MAX + 16], size[SIZE_TEXT];
    struct command command = {0};
    int r = find_tool(build, unpacks ? "unpack" : "build", tool, err);
    if (r == 0)
        r = template_files_make_folder(build->folder, err);
    if (r < 0)
        return r;
    char *packages = request->source == TEMPLATE_PACKAGES ? template_request_packages(request) : NULL;
    if (request->source == TEMPLATE_PACKAGES && packages == NULL) {
        template_files_remove(build->folder);
        return error_set(err, -ENOMEM, "no memory for the list of packages");
    }
    snprintf(image, sizeof image, "%s/image", build->folder);
    snprintf(config, sizeof config, "%s/config", build->folder);
    snprintf(size, sizeof size, "%" PRIu64, request->shape.disk_bytes >> 20);
    add(&command, NULL, tool);
    if (unpacks) {
        add(&command, NULL, template_request_source_name(request->source));
        add(&command, NULL, build->upload);
        add(&command, NULL, image);
        add(&command, "--config", config);
        add(&command, "--image", request->image);
    } else {
        add(&command, "--packages", packages);
        add(&command, "--base", request->base);
        add(&command, "--kernel", build->all->config.kernel_dir);
        if (packages == NULL)
            add(&command, NULL, request->name);
        add(&command, NULL, image);
    }
    add(&command, "--size-mib", request->shape.disk_bytes == 0 ? NULL : size);
    template_build_step(build, unpacks ? "unpacking" : "installing packages");
    r = run_builder(build, command.items, err);
    free(packages);
    if (r == 0)
        r = take_defaults(build, config, err);
    if (r == 0) {
        template_build_step(build, "storing the disk");
        r = image_to_volume(build, image, err);
    }
    template_files_remove(build->folder); // room for the machine
    return r;
}

int template_source_disk(struct template_build *build, struct error *err)
{
    int r;
    switch (build->request.source) {
    case TEMPLATE_IMPORT:
        r = template_journal_adopt(build, err);
        break;
    case TEMPLATE_VOLUME:
        r = template_journal_fork(build, build->request.what, err);
        break;
    default:
        r = make_image(build, err);
    }
    if (r == 0 && disk_table_is_for_4096(build->all->store, build->disk, (struct base_id){0}))
        r = error_set(err, -EINVAL, "the disk cannot boot: %s", disk_table_notice);
    return r;
}
