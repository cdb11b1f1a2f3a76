// SPDX-License-Identifier: Apache-2.0
// The parts of `ramet store`.
#pragma once

#include "tools/ramet/cli.h"

int store_export(struct cli *cli, const struct verb *verb, char **argv);
int store_import(struct cli *cli, const struct verb *verb, char **argv);
