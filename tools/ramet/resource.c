// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/resource.h"

#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_AT_ONCE = 4096 };

// Steals json; NULL = the call failed.
static int show(struct cli *cli, json_t *json, const json_t *part, resource_print *print)
{
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(part);
    else if (print != NULL)
        print(part);
    json_decref(json);
    return CLI_DONE;
}

int resource_call(struct cli *cli, const struct verb *verb, const char *method, char *path, json_t *body,
        resource_print *print)
{
    json_t *json = cli_call(cli, verb, method, path, body);
    free(path);
    return show(cli, json, json, print);
}

int resource_create(struct cli *cli, const struct verb *verb, char *path, json_t *body, resource_print *print)
{
    json_t *json = cli_create(cli, verb, path, body);
    free(path);
    return show(cli, json, json, print);
}

int resource_list(
        struct cli *cli, const struct verb *verb, char *path, const char *field, resource_print *print)
{
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    free(path);
    return show(cli, json, json_object_get(json, field), print);
}

int resource_remove(struct cli *cli, const struct verb *verb, const char *before, const char *const *names,
        const char *after, bool missing_is_fine)
{
    int status = CLI_DONE;
    json_t *results = json_array();
    bool several = names[0] != NULL && names[1] != NULL;
    for (; *names != NULL; names++) {
        struct error err = {0};
        json_t *json = NULL;
        char *path = cli_path(before, *names, after);
        int r = cli_try(cli, verb, "DELETE", path, NULL, &json, &err);
        free(path);
        const char *code = json_fields_get_text(json_object_get(json, "error"), "code");
        size_t length = strlen(code);
        bool missing = length > 10 && strcmp(code + length - 10, ".not_found") == 0;
        if (r < 0 && missing && missing_is_fine) {
            json_decref(json);
        } else if (r < 0) {
            status = cli_fail_one(cli, verb, &err, json, results);
        } else {
            json_decref(json);
            json_array_append_new(results, json_pack("{s:s, s:s}", "name", *names, "state", "removed"));
            if (!cli->json)
                printf("%s: removed\n", *names);
        }
    }
    if (cli->json)
        cli_print_json(several || json_array_size(results) == 0 ? results : json_array_get(results, 0));
    json_decref(results);
    return status;
}

char *resource_path(const char *sandbox, const char *kind, const char *id, const char *after)
{
    char *folder = cli_path("/v1/sandboxes/", sandbox, "/"), *escaped = id == NULL ? NULL : client_escape(id),
         *path;
    if (asprintf(&path, "%s%s%s%s%s", folder, kind, id == NULL ? "" : "/", id == NULL ? "" : escaped, after) <
            0)
        abort();
    free(escaped);
    free(folder);
    return path;
}

char *resource_file_path(const char *sandbox, const char *call, const char *path, const char *after)
{
    char *head = resource_path(sandbox, "files", NULL, "/"), *whole = NULL;
    char *escaped = client_escape(path);
    if (asprintf(&whole, "%s%s%s%s", head, call, escaped, after) < 0)
        abort();
    free(escaped);
    free(head);
    return whole;
}

int resource_run_named(struct cli *cli, const struct verb *verb, char **argv, const char *method,
        const char *before, const char *after, resource_print *print)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    return resource_call(cli, verb, method, cli_path(before, args.items[0], after), NULL, print);
}

int resource_run_remove(struct cli *cli, const struct verb *verb, char **argv, const char *before)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, NAMES_AT_ONCE, 0, &args, &status))
        return status;
    return resource_remove(cli, verb, before, args.items, "", false);
}

int resource_run_list_of(
        struct cli *cli, const struct verb *verb, char **argv, const char *kind, resource_print *print)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    return resource_list(cli, verb, resource_path(args.items[0], kind, NULL, ""), kind, print);
}

int resource_run_remove_of(struct cli *cli, const struct verb *verb, char **argv, const char *kind)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, NAMES_AT_ONCE, 0, &args, &status))
        return status;
    char *folder = resource_path(args.items[0], kind, NULL, "/");
    status = resource_remove(cli, verb, folder, args.items + 1, "", false);
    free(folder);
    return status;
}

// before: what is put before each key.
static void print_members(const char *before, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        int width = 26 - (int)strlen(before);
        if (strcmp(key, "memory") == 0 && json_is_object(value)) {
            print_members("memory ", value);
            continue;
        }
        if (json_is_null(value))
            continue;
        printf("%s", before);
        if (json_is_string(value)) {
            printf("%-*s %s\n", width, key, json_string_value(value));
        } else if (json_is_integer(value) && strstr(key, "bytes") != NULL) {
            printf("%-*s %lld (%s)\n", width, key, (long long)json_integer_value(value),
                    output_size((uint64_t)json_integer_value(value)));
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
            printf("%-*s %s\n", width, key, text);
            free(text);
        }
    }
}

void resource_print_details(const json_t *object)
{
    print_members("", object);
}
