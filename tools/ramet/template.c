// SPDX-License-Identifier: Apache-2.0
// Templates: build, list, show, remove, logs.
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/template_build.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_templates(const json_t *list)
{
    static const char *const heads[] = {"NAME", "CPUS", "MEMORY", "DISK", "SOURCE", "WARM", "AGE"};
    struct table *table = table_create(7, heads);
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        char cpus[16], memory[32], disk[32];
        const json_t *build = json_object_get(item, "build");
        uint64_t memory_bytes = (uint64_t)json_fields_get_int(item, "memory_bytes");
        uint64_t all_bytes = (uint64_t)json_fields_get_int(item, "logical_bytes");
        snprintf(cpus, sizeof cpus, "%d", (int)json_fields_get_int(item, "cpus"));
        snprintf(memory, sizeof memory, "%s", output_size(memory_bytes));
        snprintf(disk, sizeof disk, "%s", output_size(all_bytes - memory_bytes));
        table_add(table, (const char *[]){json_fields_get_text(item, "name"), cpus, memory, disk,
                                 json_fields_get_text(build, "source"), json_fields_get_text(build, "warm"),
                                 output_age(json_fields_get_text(item, "created_at"))});
    }
    table_print(table);
}

static void print_waiting(const json_t *builds)
{
    size_t i;
    const json_t *build;
    json_array_foreach(builds, i, build)
    {
        const char *state = json_fields_get_text(build, "state"), *step = json_fields_get_text(build, "step");
        if (strcmp(state, "queued") == 0 || strcmp(state, "running") == 0)
            cli_note("%s: %s%s%s (%s)", json_fields_get_text(build, "name"), state,
                    step[0] == '\0' ? "" : ", ", step, json_fields_get_text(build, "id"));
    }
}

static int list(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 0, 0, 0, &args, &status))
        return status;
    json_t *json = cli_call(cli, verb, "GET", "/v1/templates", NULL), *builds = NULL;
    if (json == NULL)
        return CLI_FAILED;
    if (cli->json) {
        cli_print_json(json_object_get(json, "templates"));
    } else {
        print_templates(json_object_get(json, "templates"));
        builds = cli_call(cli, verb, "GET", "/v1/templates/builds", NULL);
        print_waiting(json_object_get(builds, "builds"));
    }
    json_decref(builds);
    json_decref(json);
    return CLI_DONE;
}

static int show(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_named(cli, verb, argv, "GET", "/v1/templates/", "", resource_print_details);
}

static int remove_all(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_remove(cli, verb, argv, "/v1/templates/");
}

static void print_log(const json_t *json)
{
    fputs(json_fields_get_text(json, "log"), stdout);
}

static void print_cancelled(const json_t *json)
{
    printf("%s: %s\n", json_fields_get_text(json, "id"),
            json_fields_get_bool(json, "cancelled") ? "cancelled" : "had ended");
}

static int show_log(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    bool is_build = strncmp(args.items[0], "bld_", 4) == 0;
    char *path = cli_path(
            is_build ? "/v1/templates/builds/" : "/v1/templates/", args.items[0], is_build ? "" : "/log");
    return resource_call(cli, verb, "GET", path, NULL, print_log);
}

static int cancel(struct cli *cli, const struct verb *verb, char **argv)
{
    return resource_run_named(cli, verb, argv, "DELETE", "/v1/templates/builds/", "", print_cancelled);
}

static const struct verb parts[] = {
        {"template build", "template build NAME [SOURCE] [options]", "Build a template",
                "Sources (default: the built-in recipe of that name: agent-base, code-interpreter, "
                "docker-base):\n"
                "  -p, --packages A,B   Debian packages; --base NAME: added to that recipe\n"
                "  --tar FILE           the archive of a root file system, compressed or not; - is standard "
                "input\n"
                "  --oci FILE           an OCI archive or the output of `docker save`; --image NAME: which "
                "one of it\n"
                "  --disk FILE          a disk, raw or qcow2 (-f, --format)\n"
                "  --volume NAME        a volume or disk snapshot of the store\n"
                "  --from BOX           a running sandbox, as it is now\n"
                "\n"
                "  --size KIND          small, default or large; --cpus N, -m, --memory-mb N, --disk-gb N\n"
                "  --network KIND       what it reaches while it is built, and its sandboxes by default\n"
                "  --setup COMMAND      a line that root runs in the machine before it is captured; may be "
                "given often\n"
                "  --warm KIND          python (a kernel with its imports), docker (dockerd), none\n"
                "  --warm-code FILE     Python code that the warm kernel runs before it is captured\n"
                "  -l, --label K=V      of the template; -e, --env K=V, --env-file FILE: of the commands of "
                "its sandboxes\n"
                "  --replace            in place of an older template of that name\n"
                "  -d, --detach         do not wait for the end\n"
                "\n"
                "The log goes to standard error. Interrupted, the build is cancelled and nothing of it is "
                "left.\n",
                template_build, .takes = "."},
        {"template ls", "template ls", "List templates", "", list, .takes = "."},
        {"template show", "template show NAME", "Show a template", "", show, .takes = "t"},
        {"template log", "template log NAME|BUILD", "Print the log of the build that made it", "", show_log,
                .takes = "t"},
        {"template cancel", "template cancel BUILD", "Give up a build that waits or runs", "", cancel,
                .takes = "."},
        {"template rm", "template rm NAME...", "Remove templates; what was made from them stays", "",
                remove_all, .takes = "t"},
        {0}};

const struct verb verb_template = {"template", "template build|ls|show|log|cancel|rm ...",
        "Build and manage templates: machines that sandboxes go on from",
        "  template build NAME [SOURCE] [options]   make one (`ramet help template build`)\n"
        "  template ls                              list them\n"
        "  template show NAME                       one\n"
        "  template log NAME|BUILD                  how it was built\n"
        "  template cancel BUILD                    give up a build that waits or runs\n"
        "  template rm NAME...                      remove; what was made from them stays\n"
        "\n"
        "A template is a machine that was booted, answered and was captured: `ramet create --from NAME` goes "
        "on from it.\n",
        .parts = parts};
