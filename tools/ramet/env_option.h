// SPDX-License-Identifier: Apache-2.0
// --env and --env-file, the same in every verb that has them.
#pragma once

#include "tools/ramet/cli.h"

struct env_option {
    struct args_list pairs, files;
};
#define ENV_OPTION_ROWS(env)                                                                                 \
    {"env", 'e', ARGS_LIST, &(env).pairs},                                                                   \
    {                                                                                                        \
        "env-file", 0, ARGS_LIST, &(env).files                                                               \
    }

// "K=V", or "K" with the value that this program's own environment has (so that it shows in no list of
// processes). Files have such lines, with comments (#) and empty lines between; --env goes over them. An
// object, or NULL when nothing was given; *ret_good false: it was wrong, and said so.
json_t *env_option_read(const struct verb *verb, const struct env_option *env, bool *ret_good);
