// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/env_option.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// text is changed. `where`: for sentences.
static bool add_pair(const struct verb *verb, const char *where, char *text, json_t *object)
{
    char *equals = strchr(text, '=');
    const char *value = equals == NULL ? getenv(text) : equals + 1;
    if (equals != NULL)
        *equals = '\0';
    if (text[0] == '\0') {
        cli_fail_usage(verb, "%s: a variable needs a name: NAME=VALUE", where);
        return false;
    }
    if (value == NULL) {
        cli_fail_usage(verb,
                "%s: %s has no value, and this environment has no %s to take it from; write %s=VALUE", where,
                text, text, text);
        return false;
    }
    if (json_object_set_new(object, text, json_string(value)) == 0)
        return true;
    cli_fail_usage(verb, "%s: %s is not UTF-8", where, text);
    return false;
}

static bool add_file(const struct verb *verb, const char *path, json_t *object)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char *line = NULL, where[600];
    size_t capacity = 0;
    bool good = true;
    ssize_t size;
    if (file == NULL) {
        cli_fail(verb, "the file of variables %s cannot be read: %s", path, strerror(errno));
        return false;
    }
    for (unsigned number = 1; good && (size = getline(&line, &capacity, file)) > 0; number++) {
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            line[--size] = '\0';
        char *text = line + strspn(line, " \t");
        snprintf(where, sizeof where, "%.500s, line %u", path, number);
        if (*text != '\0' && *text != '#')
            good = add_pair(verb, where, text, object);
    }
    if (good && ferror(file)) { // a folder, for one, can be opened
        cli_fail(verb, "the file of variables %s cannot be read: %s", path, strerror(errno));
        good = false;
    }
    free(line);
    if (file != stdin)
        fclose(file);
    return good;
}

json_t *env_option_read(const struct verb *verb, const struct env_option *env, bool *ret_good)
{
    *ret_good = true;
    if (env->pairs.count == 0 && env->files.count == 0)
        return NULL;
    json_t *object = json_object();
    for (unsigned i = 0; i < env->files.count && *ret_good; i++)
        *ret_good = add_file(verb, env->files.items[i], object);
    for (unsigned i = 0; i < env->pairs.count && *ret_good; i++) {
        char *text = strdup(env->pairs.items[i]), where[300];
        snprintf(where, sizeof where, "--env %.200s", text);
        *ret_good = add_pair(verb, where, text, object);
        free(text);
    }
    if (*ret_good)
        return object;
    json_decref(object);
    return NULL;
}
