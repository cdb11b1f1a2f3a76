// SPDX-License-Identifier: Apache-2.0
// A short self-measurement: what the calls that people wait for take on this host, as this client sees them.
#include "blockstore/clock.h"
#include "tools/ramet/cli.h"
#include "tools/ramet/interrupt.h"
#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { ROUNDS_DEFAULT = 5, ROUNDS_MAX = 100, EXECS = 4, CHILDREN = 4 };

enum row {
    CREATE,
    EXEC,
    SNAPSHOT,
    SNAPSHOT_PAUSE,
    READY,
    RESUME,
    FORK,
    FORK_PAUSE,
    FORKS,
    STOP,
    START,
    REMOVE,
    ROWS
};
static const struct {
    const char *name, *meaning;
} rows[ROWS] = {[CREATE] = {"create", "a sandbox from what was given, until commands run in it"},
        [EXEC] = {"exec", "the command `true`, there and back"},
        [SNAPSHOT] = {"snapshot", "until it can be used"},
        [SNAPSHOT_PAUSE] = {"  pause", "for so long the sandbox stood still"},
        [READY] = {"  ready", "until it also survives power loss"},
        [RESUME] = {"resume", "a sandbox from that snapshot, until commands run in it"},
        [FORK] = {"fork", "one child that runs"},
        [FORK_PAUSE] = {"  pause", "for so long the parent stood still"},
        [FORKS] = {"fork 4", "four children that run"},
        [STOP] = {"stop", "with memory and disk"},
        [START] = {"start", "going on from there"},
        [REMOVE] = {"rm", "with its disk"}};

struct samples {
    double ms[ROUNDS_MAX * EXECS];
    unsigned count;
};

struct bench {
    struct cli *cli;
    const struct verb *verb;
    const char *from;
    uint64_t rounds;
    char name[40], snapshot[40]; // of what there is, "" = nothing
    json_t *children;            // names, of what is left
    char start_mode[16];
    struct samples samples[ROWS];
};

static double now_ms(void)
{
    return (double)clock_monotonic_ns() / 1e6;
}

static void add(struct bench *bench, enum row row, double ms)
{
    struct samples *samples = &bench->samples[row];
    if (samples->count < sizeof samples->ms / sizeof samples->ms[0])
        samples->ms[samples->count++] = ms;
}

// A timed call; NULL = it failed, and said so.
static json_t *timed(struct bench *bench, enum row row, const char *method, const char *path, json_t *body)
{
    double begin = now_ms();
    json_t *json = cli_call(bench->cli, bench->verb, method, path, body);
    if (json != NULL)
        add(bench, row, now_ms() - begin);
    return json;
}

static json_t *on_box(struct bench *bench, enum row row, const char *method, const char *after, json_t *body)
{
    char *path = cli_path("/v1/sandboxes/", bench->name, after);
    json_t *json = timed(bench, row, method, path, body);
    free(path);
    return json;
}

static void remove_quietly(struct bench *bench, const char *before, const char *name)
{
    struct error err;
    json_t *json = NULL;
    char *path = cli_path(before, name, "");
    client_call(cli_server(bench->cli), "DELETE", path, NULL, &json, &err);
    json_decref(json);
    free(path);
}

// Whatever this round has made and not removed.
static void clean_up(void *context)
{
    struct bench *bench = context;
    size_t i;
    json_t *name;
    json_array_foreach(bench->children, i, name)
            remove_quietly(bench, "/v1/sandboxes/", json_string_value(name));
    json_array_clear(bench->children);
    if (bench->name[0] != '\0')
        remove_quietly(bench, "/v1/sandboxes/", bench->name);
    if (bench->snapshot[0] != '\0')
        remove_quietly(bench, "/v1/snapshots/", bench->snapshot);
    bench->name[0] = bench->snapshot[0] = '\0';
}

static void new_name(char *ret_name, size_t capacity)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        abort();
    snprintf(ret_name, capacity, "bench-%08" PRIx64, random >> 32);
}

// Names are noted before the calls, so that an interrupt in the middle of one removes what it makes.
static bool run_create(struct bench *bench, enum row row, const char *from)
{
    char name[40];
    new_name(name, sizeof name);
    json_array_append_new(bench->children, json_string(name));
    json_t *json = timed(bench, row, "POST", "/v1/sandboxes",
            json_pack(
                    "{s:s, s:s*, s:{s:s}}", "name", name, "from", from, "labels", "made-by", "ramet bench"));
    if (json == NULL)
        return false;
    if (row == CREATE) {
        snprintf(bench->name, sizeof bench->name, "%s", name);
        json_array_clear(bench->children);
        snprintf(bench->start_mode, sizeof bench->start_mode, "%s", json_fields_get_text(json, "start_mode"));
    }
    json_decref(json);
    return true;
}

static bool run_snapshot(struct bench *bench)
{
    new_name(bench->snapshot, sizeof bench->snapshot);
    double begin = now_ms();
    json_t *json = on_box(bench, SNAPSHOT, "POST", "/snapshots", json_pack("{s:s}", "name", bench->snapshot));
    if (json == NULL)
        return false;
    add(bench, SNAPSHOT_PAUSE, json_number_value(json_object_get(json, "pause_ms")));
    json_decref(json);
    char *path = cli_path("/v1/snapshots/", bench->snapshot, "?wait=1");
    json = cli_call(bench->cli, bench->verb, "GET", path, NULL);
    free(path);
    add(bench, READY, now_ms() - begin);
    json_decref(json);
    return json != NULL;
}

static bool run_fork(struct bench *bench, enum row row, unsigned count)
{
    json_t *names = json_array();
    for (unsigned i = 0; i < count; i++) {
        char name[40];
        new_name(name, sizeof name);
        json_array_append_new(names, json_string(name));
        json_array_append_new(bench->children, json_string(name));
    }
    json_t *json = on_box(bench, row, "POST", "/fork", json_pack("{s:o}", "names", names));
    if (json != NULL && row == FORK)
        add(bench, FORK_PAUSE, json_number_value(json_object_get(json, "pause_ms")));
    json_decref(json);
    return json != NULL;
}

static bool run_round(struct bench *bench)
{
    json_t *json = NULL;
    bool good = run_create(bench, CREATE, bench->from);
    for (unsigned i = 0; good && i < EXECS; i++) {
        good = (json = on_box(bench, EXEC, "POST", "/exec", json_pack("{s:s}", "command", "true"))) != NULL;
        json_decref(json);
    }
    good = good && run_snapshot(bench) && run_create(bench, RESUME, bench->snapshot) &&
           run_fork(bench, FORK, 1) && run_fork(bench, FORKS, CHILDREN);
    if (good) {
        good = (json = on_box(bench, STOP, "POST", "/stop", json_object())) != NULL;
        json_decref(json);
    }
    if (good) {
        good = (json = on_box(bench, START, "POST", "/start", json_object())) != NULL;
        json_decref(json);
    }
    if (good) {
        good = (json = on_box(bench, REMOVE, "DELETE", "", NULL)) != NULL;
        json_decref(json);
        bench->name[0] = '\0';
    }
    clean_up(bench);
    return good;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct samples *samples)
{
    unsigned middle = samples->count / 2;
    return samples->count % 2 == 1 ? samples->ms[middle]
                                   : (samples->ms[middle - 1] + samples->ms[middle]) / 2;
}

static void print_results(struct bench *bench)
{
    static const char *const heads[] = {"WHAT", "MEDIAN", "LEAST", "MOST", "N", "MEANING"};
    struct table *table = table_create(6, heads);
    for (int row = 0; row < ROWS; row++) {
        const struct samples *samples = &bench->samples[row];
        char count[16];
        snprintf(count, sizeof count, "%u", samples->count);
        const char *cells[] = {rows[row].name, output_ms(median(samples)), output_ms(samples->ms[0]),
                output_ms(samples->ms[samples->count - 1]), count, rows[row].meaning};
        table_add(table, cells);
    }
    table_print(table);
    cli_note("from %s (%s), %u rounds, one after the other", bench->from == NULL ? "agent-base" : bench->from,
            bench->start_mode, (unsigned)bench->rounds);
}

static json_t *results_json(struct bench *bench)
{
    static const char *const names[ROWS] = {[CREATE] = "create",
            [EXEC] = "exec",
            [SNAPSHOT] = "snapshot",
            [SNAPSHOT_PAUSE] = "snapshot_pause",
            [READY] = "snapshot_ready",
            [RESUME] = "resume",
            [FORK] = "fork",
            [FORK_PAUSE] = "fork_pause",
            [FORKS] = "fork_4",
            [STOP] = "stop",
            [START] = "start",
            [REMOVE] = "rm"};
    json_t *list = json_array();
    for (int row = 0; row < ROWS; row++) {
        const struct samples *samples = &bench->samples[row];
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:i}", "what", names[row], "median_ms",
                                            median(samples), "least_ms", samples->ms[0], "most_ms",
                                            samples->ms[samples->count - 1], "count", (int)samples->count));
    }
    return json_pack("{s:s, s:s, s:I, s:o}", "from", bench->from == NULL ? "agent-base" : bench->from,
            "start_mode", bench->start_mode, "rounds", (json_int_t)bench->rounds, "results", list);
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct bench bench = {.cli = cli, .verb = verb, .rounds = ROUNDS_DEFAULT};
    struct progress progress = {.what = "measuring"};
    struct args_option options[] = {
            {"from", 0, ARGS_TEXT, &bench.from}, {"rounds", 'n', ARGS_NUMBER, &bench.rounds}, {0}};
    struct args args;
    int status = CLI_DONE;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    if (bench.rounds < 1 || bench.rounds > ROUNDS_MAX)
        return cli_fail_usage(verb, "--rounds is from 1 to %d", ROUNDS_MAX);
    bench.children = json_array();
    interrupt_start();
    struct interrupt *interrupt = interrupt_add(clean_up, &bench);
    for (uint64_t i = 0; status == CLI_DONE && i < bench.rounds; i++) {
        progress_set(&progress, (double)i / (double)bench.rounds);
        status = run_round(&bench) ? CLI_DONE : CLI_FAILED;
    }
    progress_end(&progress);
    interrupt_remove(interrupt);
    for (int row = 0; status == CLI_DONE && row < ROWS; row++)
        qsort(bench.samples[row].ms, bench.samples[row].count, sizeof(double), compare);
    if (status == CLI_DONE && cli->json) {
        json_t *json = results_json(&bench);
        cli_print_json(json);
        json_decref(json);
    } else if (status == CLI_DONE) {
        print_results(&bench);
    }
    json_decref(bench.children);
    return status;
}

const struct verb verb_bench = {"bench", "bench [--from NAME] [--rounds N]",
        "Measure create, exec, snapshot, resume and fork on this host",
        "  --from NAME        what the sandboxes are made from: as in `ramet create` (default: agent-base)\n"
        "  -n, --rounds N     how often (default: 5)\n"
        "\n"
        "Makes sandboxes of its own, one round after the other, and removes them. Times are this client's: "
        "with "
        "the way\n"
        "to the daemon and back. tests/bench compares with other programs.\n",
        run};
