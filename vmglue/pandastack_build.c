// SPDX-License-Identifier: Apache-2.0
// Templates as PandaStack's clients build them: a form with a root file system as a tar archive, which
// becomes an upload and a build of it. What they can ask for beside that (a Dockerfile, an image of a
// registry) is refused with what to do instead.
#include "vmglue/access.h"
#include "vmglue/e2b_multipart.h"
#include "vmglue/json_fields.h"
#include "vmglue/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 1 << 16, MB_PER_GB = 1024 };

struct form {
    struct http_request *request;
    struct e2b_multipart parts;
    json_t *body;   // of POST /v1/templates
    json_t *upload; // what the archive became, NULL = none came
    bool is_image, is_dockerfile;
};

static ssize_t part_source(void *context, void *buffer, size_t capacity)
{
    return e2b_multipart_read(context, buffer, capacity);
}

// The text of a part. -EINVAL: it is longer than any of these is.
static int take_text(struct e2b_multipart *parts, char text[TEXT_MAX], struct error *err)
{
    size_t used = 0;
    for (;;) {
        ssize_t got = e2b_multipart_read(parts, text + used, TEXT_MAX - used);
        if (got < 0)
            return error_set(err, -EINVAL, "the form is damaged or ends early");
        if (got == 0)
            break;
        used += (size_t)got;
        if (used == TEXT_MAX)
            return error_set(err, -EINVAL, "field \"%.40s\" of the form is too long", parts->name);
    }
    text[used] = '\0';
    return 0;
}

static int take_number(json_t *body, const char *name, const char *text, const char *native, uint64_t divide,
        struct error *err)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return error_set(
                err, -EINVAL, "field \"%s\" of the form must be a whole number, not \"%.40s\"", name, text);
    json_object_set_new(body, native, json_integer((json_int_t)((value + divide - 1) / divide)));
    return 0;
}

static int take_field(struct form *form, char text[TEXT_MAX], struct error *err)
{
    const char *name = form->parts.name;
    int r = take_text(&form->parts, text, err);
    if (r < 0)
        return r;
    if (strcmp(name, "name") == 0)
        json_object_set_new(form->body, "name", json_fields_text(text, strlen(text)));
    else if (strcmp(name, "cpu") == 0)
        r = take_number(form->body, name, text, "cpus", 1, err);
    else if (strcmp(name, "memory_mb") == 0)
        r = take_number(form->body, name, text, "memory_mb", 1, err);
    else if (strcmp(name, "size_mb") == 0)
        r = take_number(form->body, name, text, "disk_gb", MB_PER_GB, err);
    else if (strcmp(name, "kernel") == 0)
        r = error_set(err, -EINVAL, "field \"kernel\": machines here have Ramet's kernel; leave it out");
    form->is_image = form->is_image || strcmp(name, "image_ref") == 0;
    form->is_dockerfile = form->is_dockerfile || strcmp(name, "dockerfile") == 0;
    return r;
}

static int take_form(struct form *form, struct error *err)
{
    char *text = malloc(TEXT_MAX);
    int r = text == NULL ? error_set(err, -ENOMEM, "no memory for a form")
                         : e2b_multipart_begin(&form->parts, form->request, err);
    while (r >= 0 && (r = e2b_multipart_next(&form->parts, err)) > 0) {
        if (strcmp(form->parts.name, "rootfs") == 0 && form->upload == NULL)
            r = template_upload(
                    service_of(form->request)->templates, part_source, &form->parts, &form->upload, err);
        else if (!form->is_dockerfile || form->parts.file_name[0] == '\0') // its context is not looked at
            r = take_field(form, text, err);
    }
    free(text);
    return r;
}

// Without a file their Python client sends a plain form, which is only looked into.
static int take_plain(struct form *form, struct error *err)
{
    char *text = malloc(TEXT_MAX), *rest = text, *pair;
    size_t used = 0;
    ssize_t got = 0;
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for a form");
    while (used < TEXT_MAX - 1 &&
            (got = http_request_read(form->request, text + used, TEXT_MAX - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    while ((pair = strsep(&rest, "&")) != NULL) {
        form->is_image = form->is_image || strncmp(pair, "image_ref=", 10) == 0;
        form->is_dockerfile = form->is_dockerfile || strncmp(pair, "dockerfile=", 11) == 0;
    }
    free(text);
    return 0;
}

static int check(const struct form *form, struct error *err)
{
    if (form->is_image)
        return error_set(err, -EINVAL,
                "field \"image_ref\": Ramet fetches no images. `docker save IMAGE -o image.tar` and `ramet "
                "template "
                "build NAME --oci image.tar` make a template of one");
    if (form->is_dockerfile)
        return error_set(err, -EINVAL,
                "field \"dockerfile\": Ramet runs no Dockerfiles. templates.build(name, dockerfile_path=...) "
                "builds "
                "it where this client runs and sends its files; or use packages and set-up lines (`ramet "
                "help "
                "template build`)");
    if (form->upload == NULL)
        return error_set(
                err, -EINVAL, "the form has no file \"rootfs\": the tar archive of a root file system");
    return 0;
}

static void build(struct http_request *request)
{
    const char *type = http_request_header(request, "Content-Type");
    struct templates *all = service_of(request)->templates;
    struct made_by by = access_made_by(request);
    struct form *form = calloc(1, sizeof *form);
    struct error err;
    json_t *json = NULL;
    int r = 0;
    if (form == NULL) {
        error_set(&err, -ENOMEM, "no memory for a form");
        http_reply_failure(request, "template", &err);
        return;
    }
    form->request = request;
    form->body = json_object();
    if (type != NULL && strncmp(type, "application/x-www-form-urlencoded", 33) == 0)
        r = take_plain(form, &err);
    else
        r = take_form(form, &err);
    if (r == 0)
        r = check(form, &err);
    if (r == 0) {
        json_object_set(form->body, "tar", json_object_get(form->upload, "upload"));
        json_object_set_new(form->body, "replace", json_true()); // as theirs
        r = template_build_begin(all, form->body, &by, &json, &err);
    }
    struct error unused;
    if (r < 0 && form->upload != NULL)
        template_upload_remove(all, json_fields_get_text(form->upload, "upload"), &unused);
    if (r < 0)
        http_reply_failure(request, "template", &err);
    else
        http_reply_json(request, 202, json);
    json_decref(form->body);
    json_decref(form->upload);
    free(form);
}

const struct http_route routes_pandastack_build[] = {
        {"POST", "/v1/pandastack/templates/build", HTTP_STREAM, build},
        {0},
};
