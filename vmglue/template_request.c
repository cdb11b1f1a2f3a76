// SPDX-License-Identifier: Apache-2.0
#include "vmglue/template_request.h"

#include "vmglue/json_fields.h"
#include "vmglue/network_policy.h"
#include "vmglue/route_life.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PACKAGES_MAX = 500, PACKAGE_NAME_MAX = 100, SETUP_MAX = 200, CODE_MAX_BYTES = 1 << 20 };

static const struct {
    const char *name;
    enum template_warm warm;
    unsigned memory_mb; // 0 = as any machine
} recipes[] = {{"agent-base", TEMPLATE_WARM_NONE, 0}, {"code-interpreter", TEMPLATE_WARM_PYTHON, 0},
        {"docker-base", TEMPLATE_WARM_DOCKER, 1024}};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static const char *const source_names[] = {[TEMPLATE_RECIPE] = "recipe",
        [TEMPLATE_PACKAGES] = "packages",
        [TEMPLATE_TAR] = "tar",
        [TEMPLATE_OCI] = "oci",
        [TEMPLATE_IMPORT] = "import",
        [TEMPLATE_VOLUME] = "volume",
        [TEMPLATE_BOX] = "sandbox"};
static const char *const warm_names[] = {
        [TEMPLATE_WARM_NONE] = "none", [TEMPLATE_WARM_PYTHON] = "python", [TEMPLATE_WARM_DOCKER] = "docker"};

const char *template_request_source_name(enum template_source source)
{
    return source_names[source];
}

const char *template_request_warm_name(enum template_warm warm)
{
    return warm_names[warm];
}

static int find_recipe(const char *name)
{
    int i = 0;
    while (i < RECIPES && strcmp(recipes[i].name, name) != 0)
        i++;
    return i < RECIPES ? i : -1;
}

// A package's name as Debian allows it, perhaps with =VERSION or :ARCHITECTURE: nothing that a shell, apt or
// mmdebstrap could take for something else.
static bool is_package(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.~:=";
    size_t length = text == NULL ? 0 : strlen(text);
    return length >= 2 && length <= PACKAGE_NAME_MAX &&
           strchr("abcdefghijklmnopqrstuvwxyz0123456789", text[0]) && strspn(text, allowed) == length;
}

static int check_packages(const json_t *packages, struct error *err)
{
    size_t i;
    const json_t *item;
    if (!json_is_array(packages) || json_array_size(packages) == 0 ||
            json_array_size(packages) > PACKAGES_MAX)
        return error_set(err, -EINVAL,
                "field \"packages\" must be a list of 1 to %d names of Debian packages", PACKAGES_MAX);
    json_array_foreach(packages, i, item)
    {
        if (!is_package(json_string_value(item)))
            return error_set(err, -EINVAL,
                    "field \"packages\": \"%.60s\" is not the name of a Debian package",
                    json_is_string(item) ? json_string_value(item) : "(no string)");
    }
    return 0;
}

static int check_setup(const json_t *setup, struct error *err)
{
    size_t i;
    const json_t *item;
    if (setup == NULL)
        return 0;
    if (!json_is_array(setup) || json_array_size(setup) > SETUP_MAX)
        return error_set(
                err, -EINVAL, "field \"setup\" must be a list of at most %d command lines", SETUP_MAX);
    json_array_foreach(setup, i, item)
    {
        if (!json_is_string(item) || json_string_length(item) == 0 ||
                strlen(json_string_value(item)) != json_string_length(item))
            return error_set(err, -EINVAL,
                    "field \"setup\" must be a list of command lines; number %zu is none", i + 1);
    }
    return 0;
}

// Exactly one source may be named; none means the recipe of the template's name.
static int take_source(const json_t *body, struct template_request *request, struct error *err)
{
    const char *given = NULL;
    request->source = TEMPLATE_RECIPE;
    for (int source = TEMPLATE_PACKAGES; source <= TEMPLATE_BOX; source++) {
        const json_t *value = json_object_get(body, source_names[source]);
        if (value == NULL || json_is_null(value))
            continue;
        if (given != NULL)
            return error_set(err, -EINVAL,
                    "fields \"%s\" and \"%s\" exclude each other: a template has one source", given,
                    source_names[source]);
        given = source_names[source];
        request->source = (enum template_source)source;
        if (source == TEMPLATE_PACKAGES) {
            int r = check_packages(value, err);
            if (r < 0)
                return r;
            continue;
        }
        int r = json_fields_string(body, given, &request->what, err);
        if (r < 0)
            return r;
        if (request->what[0] == '\0')
            return error_set(err, -EINVAL, "field \"%s\" is empty", given);
    }
    if (given == NULL && find_recipe(request->name) < 0)
        return error_set(err, -EINVAL,
                "\"%s\" is none of the built-in templates (agent-base, code-interpreter, docker-base), and "
                "no source "
                "is given: packages, tar, oci, import, volume or sandbox",
                request->name);
    return 0;
}

static int take_warm(const json_t *body, struct template_request *request, struct error *err)
{
    const char *warm = NULL;
    int r = json_fields_string(body, "warm", &warm, err);
    if (r < 0)
        return r;
    request->warm = TEMPLATE_WARM_NONE;
    if (request->source == TEMPLATE_RECIPE)
        request->warm = recipes[find_recipe(request->name)].warm;
    if (warm != NULL) {
        int i = TEMPLATE_WARM_DOCKER;
        while (i >= 0 && strcmp(warm_names[i], warm) != 0)
            i--;
        if (i < 0)
            return error_set(
                    err, -EINVAL, "warm \"%.20s\" is not known; choose python, docker or none", warm);
        request->warm = (enum template_warm)i;
    }
    r = json_fields_string(body, "warm_code", &request->warm_code, err);
    if (r > 0 && request->warm != TEMPLATE_WARM_PYTHON)
        return error_set(err, -EINVAL, "field \"warm_code\" is Python code for \"warm\": \"python\"");
    if (r > 0 && strlen(request->warm_code) > CODE_MAX_BYTES)
        return error_set(err, -EINVAL, "field \"warm_code\" is larger than 1 MiB");
    return r < 0 ? r : 0;
}

// Fields that only go with some sources.
static int check_together(const struct template_request *request, struct error *err)
{
    const struct route_shape *shape = &request->shape;
    if (request->base != NULL && request->source != TEMPLATE_PACKAGES)
        return error_set(err, -EINVAL, "field \"base\" is what \"packages\" are added to");
    if (request->base != NULL && find_recipe(request->base) < 0)
        return error_set(err, -EINVAL,
                "base \"%.40s\" is not known; choose agent-base, code-interpreter or docker-base",
                request->base);
    if (request->image != NULL && request->source != TEMPLATE_OCI)
        return error_set(err, -EINVAL, "field \"image\" chooses an image of an \"oci\" archive");
    if (request->source != TEMPLATE_BOX)
        return 0;
    if (shape->cpus != 0 || shape->memory_mb != 0 || shape->disk_bytes != 0 || request->network != NULL)
        return error_set(err, -EINVAL,
                "a template of a running sandbox is as that is: leave size, cpus, memory_mb, disk_gb and "
                "network out");
    if (request->setup != NULL || request->warm != TEMPLATE_WARM_NONE)
        return error_set(err, -EINVAL,
                "a template of a running sandbox is as that is: run what is needed in it first, and leave "
                "setup and "
                "warm out");
    return 0;
}

static int take_rest(const json_t *body, struct template_request *request, struct error *err)
{
    int r = json_fields_string(body, "base", &request->base, err);
    if (r >= 0)
        r = json_fields_string(body, "image", &request->image, err);
    if (r >= 0)
        r = json_fields_bool(body, "replace", &request->replace, err);
    if (r >= 0)
        r = route_life_maps(body, &request->labels, &request->env, err);
    if (r >= 0)
        r = route_shape_take(body, &request->shape, err);
    request->network = json_object_get(body, "network");
    request->setup = json_object_get(body, "setup");
    if (json_is_null(request->network))
        request->network = NULL;
    if (json_is_null(request->setup))
        request->setup = NULL;
    if (r >= 0 && request->network != NULL) { // the machine's start, which is later, would refuse it too
        struct network_policy policy = {0};
        r = network_policy_parse(request->network, &policy, err);
        if (r >= 0)
            network_policy_free(&policy);
    }
    return r < 0 ? r : check_setup(request->setup, err);
}

int template_request_parse(const json_t *body, struct template_request *ret_request, struct error *err)
{
    static const char *const known[] = {"name", "packages", "tar", "oci", "import", "volume", "sandbox",
            "base", "image", "size", "cpus", "memory_mb", "disk_gb", "network", "labels", "env", "setup",
            "warm", "warm_code", "replace", NULL};
    struct template_request request = {.body = json_deep_copy(body)};
    const char *name = NULL;
    int r = json_fields_check(request.body, known, err);
    if (r == 0)
        r = json_fields_string(request.body, "name", &name, err);
    if (r == 0)
        r = error_set(err, -EINVAL, "field \"name\" is missing: what the template is to be called");
    if (r > 0)
        r = names_check("template", name, err);
    if (r == 0 && (strcmp(name, "builds") == 0 || strcmp(name, "uploads") == 0))
        r = error_set(err, -EINVAL, "\"%s\" is a word of the API and cannot name a template", name);
    if (r == 0) {
        snprintf(request.name, sizeof request.name, "%s", name);
        r = take_source(request.body, &request, err);
    }
    if (r == 0)
        r = take_warm(request.body, &request, err);
    if (r == 0)
        r = take_rest(request.body, &request, err);
    if (r == 0)
        r = check_together(&request, err);
    if (r < 0) {
        template_request_free(&request);
        return r;
    }
    if (request.source == TEMPLATE_RECIPE && request.shape.memory_mb == 0)
        request.shape.memory_mb = recipes[find_recipe(request.name)].memory_mb;
    *ret_request = request;
    return 0;
}

void template_request_free(struct template_request *request)
{
    json_decref(request->body);
    *request = (struct template_request){0};
}

char *template_request_packages(const struct template_request *request)
{
    const json_t *packages = json_object_get(request->body, "packages"), *item;
    char *text = NULL;
    size_t i, size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file == NULL)
        return NULL;
    json_array_foreach(packages, i, item) fprintf(file, "%s%s", i == 0 ? "" : ",", json_string_value(item));
    if (fclose(file) == 0)
        return text;
    free(text);
    return NULL;
}
