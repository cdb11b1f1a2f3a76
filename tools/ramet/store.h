// SPDX-License-Identifier: Apache-2.0
// The parts of `ramet store`.
#pragma once

#include "tools/ramet/cli.h"

int store_export_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_import_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_stat_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_lineage_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_seal_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_gc_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_scrub_verb(struct cli *cli, const struct verb *verb, char **argv);
int store_check_verb(struct cli *cli, const struct verb *verb, char **argv);
