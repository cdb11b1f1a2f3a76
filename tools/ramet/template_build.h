// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/ramet/cli.h"

// `ramet template build NAME ...`
int template_build(struct cli *cli, const struct verb *verb, char **argv);
