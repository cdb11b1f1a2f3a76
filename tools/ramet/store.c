// SPDX-License-Identifier: Apache-2.0
// The store as a whole.
#include "tools/ramet/store.h"

#include "tools/ramet/local_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int init(struct cli *cli, const struct verb *verb, char **argv)
{
    uint64_t file_bytes = 0, budget = 0;
    struct args_option options[] = {
            {"log-file", 0, ARGS_SIZE, &file_bytes}, {"log-budget", 0, ARGS_SIZE, &budget}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 1, 0, &args, &status))
        return status;
    const char *directory = args.count == 1 ? args.items[0] : cli_store_dir(cli);
    status = local_store_init(verb, directory, file_bytes, budget);
    if (status == CLI_DONE && cli->json) {
        json_t *json = json_pack("{s:s, s:s}", "directory", directory, "state", "made");
        cli_print_json(json);
        json_decref(json);
    } else if (status == CLI_DONE) {
        printf("%s: an empty store; `ramet up --store %s` starts its daemon\n", directory, directory);
    }
    return status;
}

static const struct verb parts[] = {
        {"store init", "store init [DIR] [--log-budget SIZE] [--log-file SIZE]", NULL, NULL, init,
                .takes = "f"},
        {"store stat", "store stat", NULL, NULL, store_stat_verb, .takes = "."},
        {"store lineage", "store lineage", NULL, NULL, store_lineage_verb, .takes = "."},
        {"store check", "store check [DIR] [--rebuild-catalog]", NULL, NULL, store_check_verb, .takes = "f"},
        {"store gc", "store gc [--recompress]", NULL, NULL, store_gc_verb, .takes = "."},
        {"store scrub", "store scrub", NULL, NULL, store_scrub_verb, .takes = "."},
        {"store seal", "store seal", NULL, NULL, store_seal_verb, .takes = "."},
        {"store export", "store export NAME... FILE", NULL, NULL, store_export_verb, .takes = "vf"},
        {"store import", "store import FILE [--prefix TEXT]", NULL, NULL, store_import_verb, .takes = "f"},
        {0},
};

const struct verb verb_store = {"store", "store init|stat|lineage|check|gc|scrub|seal|export|import ...",
        "The store as a whole: make one, its space, its health, archives",
        "  store init [DIR]               an empty store\n"
        "    --log-budget SIZE            the log never takes more than this (default: 4G)\n"
        "    --log-file SIZE              size of one log file (default: 64M)\n"
        "  store stat                     what takes how much space\n"
        "  store lineage                  the tree of templates, snapshots, sandboxes and forks\n"
        "  store check [DIR]              verifies everything, changes nothing; without a daemon too, of a "
        "store that is closed\n"
        "    --rebuild-catalog            writes a new catalog from log and segments of a closed store; the "
        "old one is kept\n"
        "  store gc                       frees the space of what nothing needs any more\n"
        "    --recompress                 also compresses everything again, smaller\n"
        "  store scrub                    reads every stored byte, goes on where the last one ended\n"
        "  store seal                     moves what is in the log into segments now (this also happens by "
        "itself)\n"
        "  store export NAME... FILE      volumes and snapshots, with all they consist of, into one file (- "
        "is "
        "standard output)\n"
        "  store import FILE              everything in such a file (- is standard input), or nothing\n"
        "    --prefix TEXT                put before every name\n"
        "\n"
        "check and scrub end with status 1 when they find damage.\n",
        .parts = parts};

const struct verb verb_export = {"export", "export NAME... FILE",
        "Write volumes and snapshots, with all they consist of, into one file",
        "FILE - is standard output. The same as `ramet store export`. What they share is in the file once;\n"
        "`ramet import` puts all of it into any store.\n",
        store_export_verb, .takes = "vf"};
const struct verb verb_import = {"import", "import FILE [--prefix TEXT]",
        "Put everything that such a file holds into the store, or nothing",
        "  --prefix TEXT   put before every name\n"
        "\n"
        "FILE - is standard input. The same as `ramet store import`. Nothing is there before all was "
        "verified.\n",
        store_import_verb, .takes = "f"};
