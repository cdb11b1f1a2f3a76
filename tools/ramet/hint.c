// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/hint.h"

#include "tools/ramet/suggest.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 4096 };

struct names {
    const char *items[NAMES_MAX + 1];
    size_t count;
    json_t *lists[2];
    unsigned list_count;
};

static void add_list(struct cli *cli, struct names *names, const char *path, const char *field)
{
    struct error err;
    json_t *json = NULL, *item;
    size_t i;
    if (client_call(cli_server(cli), "GET", path, NULL, &json, &err) == 0)
        json_array_foreach(json_object_get(json, field), i, item)
        {
            const char *name = json_fields_get_text(item, "name");
            if (name[0] != '\0' && names->count < NAMES_MAX)
                names->items[names->count++] = name;
        }
    names->lists[names->list_count++] = json;
    names->items[names->count] = NULL;
}

// What the sentence has in quotation marks behind `before`.
static bool quoted(const char *message, const char *before, char *ret_name, size_t capacity)
{
    const char *at = strstr(message, before), *end;
    if (at == NULL)
        return false;
    at += strlen(before);
    end = strchr(at, '"');
    if (end == NULL || (size_t)(end - at) >= capacity)
        return false;
    snprintf(ret_name, capacity, "%.*s", (int)(end - at), at);
    return true;
}

// What comes with the project: it is built before it can be used.
static bool is_recipe(const char *name)
{
    static const char *const recipes[] = {"agent-base", "code-interpreter", "docker-base"};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        if (strcmp(recipes[i], name) == 0)
            return true;
    return false;
}

// A sandbox itself is no source of archives, forks and new sandboxes: a snapshot of it is.
static bool is_sandbox(struct cli *cli, const char *message, const char *name)
{
    struct error err;
    json_t *json = NULL;
    if (strstr(message, "no volume or snapshot called \"") == NULL)
        return false;
    char *path = cli_path("/v1/sandboxes/", name, "");
    int r = client_call(cli_server(cli), "GET", path, NULL, &json, &err);
    json_decref(json);
    free(path);
    if (r == 0)
        cli_note("\"%s\" is a sandbox: `ramet snapshot %s --name NAME` makes a snapshot of it, which can be "
                 "had",
                name, name);
    return r == 0;
}

static void suggest_name(struct cli *cli, const char *message)
{
    static const struct {
        const char *before, *paths[2], *fields[2];
    } kinds[] = {{"no sandbox called \"", {"/v1/sandboxes"}, {"sandboxes"}},
            {"no volume or snapshot called \"", {"/v1/volumes", "/v1/snapshots"}, {"volumes", "snapshots"}},
            {"no volume called \"", {"/v1/volumes"}, {"volumes"}},
            {"no snapshot called \"", {"/v1/snapshots"}, {"snapshots"}},
            {"no template called \"", {"/v1/templates"}, {"templates"}},
            {"no key called \"", {"/v1/keys"}, {"keys"}}};
    struct names names = {{NULL}, 0, {NULL}, 0};
    char name[100];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!quoted(message, kinds[i].before, name, sizeof name))
            continue;
        if (is_sandbox(cli, message, name))
            break;
        for (unsigned list = 0; list < 2 && kinds[i].paths[list] != NULL; list++)
            add_list(cli, &names, kinds[i].paths[list], kinds[i].fields[list]);
        const char *nearest = suggest_nearest(name, names.items);
        if (nearest != NULL)
            cli_note("did you mean \"%s\"?", nearest);
        else if (is_recipe(name))
            cli_note("`ramet template build %s` makes it, once for this store", name);
        break;
    }
    for (unsigned i = 0; i < names.list_count; i++)
        json_decref(names.lists[i]);
}

void hint_after(struct cli *cli, const char *code, const char *message)
{
    const struct server *server = cli_server(cli);
    if (strncmp(code, "auth.", 5) == 0 && strcmp(code, "auth.forbidden") != 0 && server_is_remote(server))
        cli_note(server->key[0] == '\0'
                         ? "put the key into RAMET_API_KEY, or name the file that it is in with --key-file"
                         : "the key came from --key-file or RAMET_API_KEY; `ramet key ls` on the daemon's "
                           "host lists "
                           "those that are good");
    else if (strstr(message, "field \"network\"") != NULL)
        cli_note("on the command line: --network full, --network none, or --network "
                 "10.1.2.0/24,host.example:443");
    else
        suggest_name(cli, message);
}

void hint_unreachable(struct cli *cli)
{
    const char *url = getenv("RAMET_API");
    if (cli->server_url == NULL && cli->run_dir == NULL && url != NULL && url[0] != '\0')
        cli_note("the address came from RAMET_API; without it (env -u RAMET_API ramet ...) the daemon of "
                 "this host is meant");
}
