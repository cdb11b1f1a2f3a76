// SPDX-License-Identifier: Apache-2.0
// The parts of `ramet volume`.
#pragma once

#include "tools/ramet/cli.h"

int volume_import(struct cli *cli, const struct verb *verb, char **argv);
int volume_export(struct cli *cli, const struct verb *verb, char **argv);
int volume_diff(struct cli *cli, const struct verb *verb, char **argv);
int volume_map(struct cli *cli, const struct verb *verb, char **argv);
// One file into a new volume, for other verbs too. format NULL = told by the file.
int volume_import_file(struct cli *cli, const struct verb *verb, const char *name, const char *file,
        const char *format, json_t **ret_volume);
// One file into a disk without a name; complete is called with the import's id when all is there, and gives
// what the call that takes it over answered (NULL = it failed, and said so). *ret_json is that.
int volume_import_disk(struct cli *cli, const struct verb *verb, const char *file, const char *format,
        json_t *(*complete)(void *context, const char *import_id), void *context, json_t **ret_json);
