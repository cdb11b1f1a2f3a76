// SPDX-License-Identifier: Apache-2.0
// Options about a sandbox's life that create and update share.
#pragma once

#include "tools/ramet/cli.h"

struct life_options {
    const char *ttl, *idle, *on_timeout; // as given, NULL = not
    bool auto_start, no_auto_start;
};
// Adds ttl_secs, idle_secs, on_timeout and auto_start to a body. false: it has said what is wrong.
bool life_options_add(const struct verb *verb, const struct life_options *options, json_t *body);
// "1G:/data", "VOLUME:/data:ro", "VOLUME" into the items of "disks". false: it has said what is wrong.
bool life_options_add_disks(const struct verb *verb, const struct args_list *disks, json_t *body);
