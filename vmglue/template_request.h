// SPDX-License-Identifier: Apache-2.0
// What a template is to be built from and how: the body of POST /v1/templates, checked.
//
// Threads: none kept. Errors: -EINVAL with a sentence that names the field and says what is allowed.
#pragma once

#include "vmglue/names.h"
#include "vmglue/route_shape.h"

#include <stdbool.h>

enum template_source {
    TEMPLATE_RECIPE, // one of the built-in ones, by the template's own name
    TEMPLATE_PACKAGES,
    TEMPLATE_TAR,    // an upload
    TEMPLATE_OCI,    // an upload
    TEMPLATE_IMPORT, // a disk that came by NBD (import_export.h)
    TEMPLATE_VOLUME, // a volume or disk snapshot; it stays
    TEMPLATE_BOX,    // a running sandbox; it runs on
};
enum template_warm { TEMPLATE_WARM_NONE, TEMPLATE_WARM_PYTHON, TEMPLATE_WARM_DOCKER };

struct template_request {
    json_t *body; // owned; strings point into it
    char name[NAMES_MAX + 1];
    enum template_source source;
    const char *what;  // upload, import, volume, sandbox
    const char *base;  // recipe that packages are added to; NULL = none
    const char *image; // which one of an archive; NULL = the only one
    const json_t *network, *labels, *env, *setup;
    const char *warm_code;
    enum template_warm warm;
    struct route_shape shape;
    bool replace;
};
int template_request_parse(const json_t *body, struct template_request *ret_request, struct error *err);
void template_request_free(struct template_request *request);

const char *template_request_source_name(enum template_source source);
const char *template_request_warm_name(enum template_warm warm);
// The packages, joined by commas; malloc'ed.
char *template_request_packages(const struct template_request *request);
