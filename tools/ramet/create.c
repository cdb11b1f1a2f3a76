// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "tools/ramet/env_option.h"
#include "tools/ramet/life_options.h"
#include "tools/ramet/network_option.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/sandbox_print.h"

#include <string.h>

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *from = NULL, *network = NULL, *size = NULL;
    uint64_t cpus = 0, memory = 0, disk = 0;
    struct args_list labels = {0}, disks = {0};
    struct env_option env = {0};
    struct life_options life = {0};
    bool persistent = false, no_environment = false;
    struct args_option options[] = {{"from", 0, ARGS_TEXT, &from}, {"size", 0, ARGS_TEXT, &size},
            {"cpus", 0, ARGS_NUMBER, &cpus}, {"memory", 'm', ARGS_SIZE, &memory},
            {"disk", 0, ARGS_SIZE, &disk}, {"network", 0, ARGS_TEXT, &network},
            {"add-disk", 0, ARGS_LIST, &disks}, {"ttl", 0, ARGS_TEXT, &life.ttl},
            {"idle", 0, ARGS_TEXT, &life.idle}, {"persistent", 0, ARGS_FLAG, &persistent},
            {"on-timeout", 0, ARGS_TEXT, &life.on_timeout}, {"auto-start", 0, ARGS_FLAG, &life.auto_start},
            {"label", 'l', ARGS_LIST, &labels}, {"no-environment", 0, ARGS_FLAG, &no_environment},
            ENV_OPTION_ROWS(env), {0}};
    struct args args;
    int status;
    bool good = true;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    json_t *body = json_object();
    cli_set_text(body, "name", args.items[0]);
    cli_set_text(body, "from", from);
    cli_set_text(body, "size", size);
    if (network != NULL)
        json_object_set_new(body, "network", network_option(network));
    if (cpus != 0)
        json_object_set_new(body, "cpus", json_integer((json_int_t)cpus));
    if (memory != 0) // a bare number means MiB, as everywhere in the field
        json_object_set_new(
                body, "memory_mb", json_integer((json_int_t)(memory < 1 << 20 ? memory : memory >> 20)));
    if (disk != 0)
        json_object_set_new(body, "disk_gb", json_integer((json_int_t)((disk + (1ull << 30) - 1) >> 30)));
    json_t *pairs = cli_pairs(verb, "label", &labels, &good);
    if (good && pairs != NULL)
        json_object_set_new(body, "labels", pairs);
    pairs = good ? env_option_read(verb, &env, &good) : NULL;
    if (good && pairs != NULL)
        json_object_set_new(body, "env", pairs);
    if (no_environment)
        json_object_set_new(body, "environment", json_false());
    if (persistent)
        json_object_set_new(body, "persistent", json_true());
    if (!good || !life_options_add(verb, &life, body) || !life_options_add_disks(verb, &disks, body)) {
        json_decref(body);
        return CLI_USAGE;
    }
    return resource_create(cli, verb, strdup("/v1/sandboxes"), body, sandbox_print_line);
}

const struct verb verb_create = {"create", "create [NAME] [--from VOLUME|SNAPSHOT] [options]",
        "Make a sandbox: boot a disk, or go on from a machine snapshot",
        "  --from NAME        a volume, a disk snapshot or a machine snapshot (default: agent-base)\n"
        "  --size KIND        small (1 CPU, 256 MiB), default (1, 512 MiB), large (2, 1 GiB)\n"
        "  --cpus N           virtual CPUs\n"
        "  -m, --memory SIZE  memory, e.g. 512M\n"
        "  --disk SIZE        let the root disk be this large (whole GiB)\n"
        "  --add-disk D       one more disk: SIZE[:/MOUNT] (empty) or VOLUME[:/MOUNT][:ro] (a fork of it); "
        "up to "
        "7\n"
        "  --ttl SECS         stop it, with its memory, so long after each start (also 10m, 8h, 7d)\n"
        "  --idle SECS        stop it, with its memory, when nobody worked with it for so long\n"
        "  --on-timeout WHAT  what --ttl and --idle do: stop (default) or delete\n"
        "  --auto-start       calls into it start it when it is stopped\n"
        "  --persistent       keep it however long it is stopped\n"
        "  --network KIND     full (default: everything but this host and other sandboxes), none, or what it "
        "may\n"
        "                     reach: --network 10.1.2.0/24,host.example:443,*.example.org\n"
        "  -l, --label K=V    may be given often\n"
        "  -e, --env K=V      environment of all its commands; may be given often; K alone: as it is here\n"
        "  --env-file FILE    such lines from a file\n"
        "  --no-environment   its commands do not get the server's environment (`ramet help env`)\n"
        "\n"
        "A sandbox from a machine snapshot has the snapshot's CPUs and memory.\n",
        run, .takes = "."};
