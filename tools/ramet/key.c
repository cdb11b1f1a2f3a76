// SPDX-License-Identifier: Apache-2.0
// Keys: make, list, revoke. A key's secret is printed once, alone on stdout in a pipe, so that
// RAMET_API_KEY=$(ramet key create NAME) works.
#include "tools/ramet/cli.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "90", "15m", "12h", "30d" as seconds; 0: it is none of these.
static uint64_t parse_life(const char *text)
{
    static const struct {
        const char *unit;
        uint64_t seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return 0;
    unsigned long long number = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].unit) == 0)
            return number > UINT32_MAX ? 0 : number * units[i].seconds;
    return 0;
}

static void print_made(const json_t *json)
{
    const char *expires = json_fields_get_text(json, "expires_at");
    printf("%s\n", json_fields_get_text(json, "key"));
    fflush(stdout);
    cli_note("Key \"%s\" (%s, %s%s) is shown this once: the store keeps only its hash.",
            json_fields_get_text(json, "name"), json_fields_get_text(json, "preset"),
            expires[0] == '\0' ? "never expires" : "expires ", expires);
    cli_note("Give it to clients as RAMET_API_KEY, with the daemon's address (`ramet up --listen 7480`: "
             "http://127.0.0.1:7480) as RAMET_API.");
    cli_note("`ramet key rm %s` revokes it at once.", json_fields_get_text(json, "name"));
}

static int create(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *preset = "admin", *expires = NULL;
    struct args_option options[] = {
            {"preset", 'p', ARGS_TEXT, &preset}, {"expires", 'e', ARGS_TEXT, &expires}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 1, 0, &args, &status))
        return status;
    uint64_t life = expires == NULL ? 0 : parse_life(expires);
    if (expires != NULL && life == 0)
        return cli_fail_usage(verb, "--expires \"%s\" is no time such as 90s, 15m, 12h or 30d", expires);
    json_t *body = json_pack("{s:s, s:s}", "name", args.items[0], "preset", preset);
    if (life != 0)
        json_object_set_new(body, "expires_in_secs", json_integer((json_int_t)life));
    return resource_create(cli, verb, strdup("/v1/keys"), body, print_made);
}

static void print_keys(const json_t *list)
{
    static const char *const heads[] = {"NAME", "PRESET", "PREFIX", "AGE", "LAST USED", "EXPIRES"};
    struct table *table = table_create(6, heads);
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *used = json_fields_get_text(item, "last_used_at");
        const char *expires = json_fields_get_text(item, "expires_at");
        char age[32], used_age[32];
        snprintf(age, sizeof age, "%s", output_age(json_fields_get_text(item, "created_at")));
        snprintf(used_age, sizeof used_age, "%s", used[0] == '\0' ? "never" : output_age(used));
        table_add(table, (const char *[]){json_fields_get_text(item, "name"),
                                 json_fields_get_text(item, "preset"), json_fields_get_text(item, "prefix"),
                                 age, used_age, expires[0] == '\0' ? "never" : expires});
    }
    table_print(table);
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    return resource_list(cli, verb, strdup("/v1/keys"), "keys", print_keys);
}

static int remove_all(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_remove(cli, verb, argv, "/v1/keys/");
}

static const struct verb parts[] = {
        {"key create", "key create NAME [--preset admin|ci|read] [--expires TIME]",
                "Make a key for the API over TCP",
                "  -p, --preset PRESET  admin: everything (the default). ci: makes things, and sees and "
                "changes\n"
                "                       only what it made. read: sees what there is, changes nothing, sees "
                "no\n"
                "                       contents and runs nothing\n"
                "  -e, --expires TIME   90s, 15m, 12h, 30d; without it the key does not expire\n"
                "\n"
                "The key is printed once and cannot be shown again. With --json also its id.\n",
                create, .takes = "."},
        {"key ls", "key ls", "List keys: their prefix, when they were made and last used",
                "Secrets are not kept, so they are not shown.\n", list, .takes = "."},
        {"key rm", "key rm NAME...", "Revoke keys at once",
                "What goes on with a key (streams, terminals, connections) ends with it. What it made "
                "stays.\n",
                remove_all, .takes = "k"},
        {0},
};

const struct verb verb_key = {"key", "key create NAME [options] | key ls | key rm NAME...",
        "Make, list and revoke keys for the API over TCP",
        "`ramet up --listen PORT` serves the API over TCP to those who have a key. Nobody needs one on "
        "the "
        "daemon's\n"
        "unix socket, which only its owner can open.\n"
        "\n"
        "  key create NAME [--preset admin|ci|read] [--expires 30d]\n"
        "  key ls\n"
        "  key rm NAME...\n"
        "\n"
        "`ramet key create --help` says more.\n",
        .parts = parts};
