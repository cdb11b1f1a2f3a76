// SPDX-License-Identifier: Apache-2.0
// URLs that lead to a server inside a sandbox. A URL is its own secret, so it is printed once, alone on
// stdout in a pipe: curl $(ramet url create box 8000) works.
#include "tools/ramet/cli.h"
#include "tools/ramet/life_options.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>

static void print_made(const json_t *json, const char *sandbox)
{
    const char *url = json_fields_get_text(json, "url"), *host_url = json_fields_get_text(json, "host_url");
    const char *expires = json_fields_get_text(json, "expires_at");
    printf("%s\n", url[0] == '\0' ? json_fields_get_text(json, "path") : url);
    fflush(stdout);
    if (url[0] == '\0')
        cli_note("The daemon listens on no TCP port, so this path is served on its unix socket alone; `ramet "
                 "down` "
                 "and `ramet up --listen 7480` give it one (sandboxes run on meanwhile).");
    if (host_url[0] != '\0')
        cli_note("For apps that need to stand at the top of a site: %s", host_url);
    cli_note("It is shown this once, %s%s, and `ramet url rm %s %s` revokes it.",
            expires[0] == '\0' ? "never expires" : "expires ", expires, sandbox,
            json_fields_get_text(json, "id"));
}

static int create(struct cli *cli, const struct verb *verb, char **argv)
{
    struct life_options life = {0};
    struct args_option options[] = {{"ttl", 0, ARGS_TEXT, &life.ttl}, {0}};
    struct args args;
    char *end;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    long port = strtol(args.items[1], &end, 10);
    if (end == args.items[1] || *end != '\0')
        return cli_fail_usage(verb, "\"%s\" is no port such as 8000", args.items[1]);
    json_t *body = json_pack("{s:I}", "host_port", (json_int_t)port);
    if (!life_options_add(verb, &life, body)) {
        json_decref(body);
        return CLI_USAGE;
    }
    char *path = resource_path(args.items[0], "urls", NULL, "");
    json_t *json = cli_create(cli, verb, path, body);
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json)
        cli_print_json(json);
    else
        print_made(json, args.items[0]);
    json_decref(json);
    return CLI_DONE;
}

static void print_urls(const json_t *list)
{
    static const char *const heads[] = {"ID", "PORT", "AGE", "EXPIRES"};
    struct table *table = table_create(4, heads);
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *expires = json_fields_get_text(item, "expires_at");
        char port[24];
        snprintf(port, sizeof port, "%lld", (long long)json_fields_get_int(item, "host_port"));
        table_add(table, (const char *[]){json_fields_get_text(item, "id"), port,
                                 output_age(json_fields_get_text(item, "created_at")),
                                 expires[0] == '\0' ? "never" : expires});
    }
    table_print(table);
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_list_of(cli, verb, argv, "urls", print_urls);
}

static int remove_all(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_remove_of(cli, verb, argv, "urls");
}

static const struct verb parts[] = {
        {"url create", "url create NAME PORT [--ttl TIME]", "Make a URL for a port of a sandbox",
                "  --ttl TIME   how long it is good (seconds, or 10m, 8h, 7d); without it, until it is "
                "revoked\n"
                "               or the sandbox removed\n"
                "\n"
                "PORT is what a server in the sandbox listens on, at 127.0.0.1. Whoever has the URL reaches "
                "that\n"
                "port and nothing else; no key is needed. With --json also `host_url` and `token`.\n",
                create, .takes = "s."},
        {"url ls", "url ls NAME", "List a sandbox's URLs: their ids, ports and ends",
                "Tokens are kept as hashes, so URLs cannot be shown again.\n", list, .takes = "s"},
        {"url rm", "url rm NAME ID...", "Revoke URLs at once",
                "Connections that are open through them end too.\n", remove_all, .takes = "s."},
        {0},
};

const struct verb verb_url = {"url", "url create NAME PORT [--ttl TIME] | url ls NAME | url rm NAME ID...",
        "Make, list and revoke URLs that lead to a server in a sandbox",
        "`ramet url create box 8000` makes an address with a secret token in it. HTTP, streams and "
        "WebSockets go\n"
        "through it to port 8000 of the sandbox's 127.0.0.1, with every network policy, also after stop and "
        "start\n"
        "and a restart of the daemon. A fork has none of its parent's URLs: make its own.\n"
        "\n"
        "  url create NAME PORT [--ttl 8h]\n"
        "  url ls NAME\n"
        "  url rm NAME ID...\n"
        "\n"
        "`ramet forward` leads a port of this host to a sandbox instead, for this user alone.\n",
        .parts = parts};
