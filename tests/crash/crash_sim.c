// SPDX-License-Identifier: Apache-2.0
// Power cuts and kills at every I/O, by seed. See README.md here.
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/crash_run.h"
#include "tests/crash/scenarios.h"

struct totals {
    uint64_t points, quiet_checks, io_events, operations, seeds, failures, scenarios;
};

static const char usage[] =
        "usage: crash_sim [--seeds A..B] [--points N] [--scenario NAME|all|none] [--trace] [--keep-going] "
        "[--verbose]\n"
        "       crash_sim --seed S --cut K [--generation G] [--trace]\n"
        "  --seeds A..B     runs to make (default 1..40)\n"
        "  --points N       about so many crash points over all seeds (default 2000; 0 = at every I/O)\n"
        "  --scenario NAME  only this named scenario; all (default, with --seeds); none; list\n"
        "  --seed S --cut K replays one run with one crash point, --trace prints everything that happens in "
        "it\n"
        "  --keep-going     goes on after a failure\n";

static bool run_seed(const struct crash_run_options *options, struct totals *totals, bool verbose)
{
    struct crash_run_result result;
    if (verbose)
        fprintf(stderr, "seed %" PRIu64 "\n", options->seed);
    crash_run(options, &result);
    totals->points += result.points;
    totals->quiet_checks += result.quiet_checks;
    totals->io_events += result.io_events;
    totals->operations += result.operations;
    totals->seeds++;
    if (!result.failed)
        return true;
    totals->failures++;
    printf("FAILED %s\n  replay: crash_sim --seed %" PRIu64 " --cut %" PRIu64 " --generation %u --trace\n",
            result.text, options->seed, result.failed_cut, result.failed_generation);
    fflush(stdout);
    return false;
}

static bool run_scenarios(const char *name, struct totals *totals, bool keep_going, bool *ret_found)
{
    bool good = true;
    for (size_t i = 0; i < scenarios_count && (good || keep_going); i++) {
        if (strcmp(name, "all") != 0 && strcmp(name, scenarios[i].name) != 0)
            continue;
        *ret_found = true;
        struct scenario_result result = {0};
        bool passed = scenarios[i].run(&result);
        good = good && passed;
        totals->points += result.points;
        totals->scenarios++;
        totals->failures += !passed;
        printf("%s scenario %s (%s): %" PRIu64 " crash points%s%s\n", passed ? "ok    " : "FAILED",
                scenarios[i].name, scenarios[i].what, result.points, result.note[0] || !passed ? "; " : "",
                passed ? result.note : result.text);
        fflush(stdout);
    }
    return good;
}

static int list(void)
{
    for (size_t i = 0; i < scenarios_count; i++)
        printf("%-16s %s\n", scenarios[i].name, scenarios[i].what);
    return 0;
}

static bool number(const char *text, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    *ret_value = strtoull(text, &end, 0);
    return errno == 0 && *end == '\0' && end != text;
}

static int bad(const char *option, const char *text)
{
    fprintf(stderr, "crash_sim: %s does not take '%s'\n%s", option, text, usage);
    return 2;
}

int main(int argc, char **argv)
{
    enum { SEEDS, POINTS, SCENARIO, SEED, CUT, GENERATION, TRACE, KEEP_GOING, VERBOSE, HELP };
    static const struct option known[] = {{"seeds", 1, NULL, SEEDS}, {"points", 1, NULL, POINTS},
            {"scenario", 1, NULL, SCENARIO}, {"seed", 1, NULL, SEED}, {"cut", 1, NULL, CUT},
            {"generation", 1, NULL, GENERATION}, {"trace", 0, NULL, TRACE},
            {"keep-going", 0, NULL, KEEP_GOING}, {"verbose", 0, NULL, VERBOSE}, {"help", 0, NULL, HELP}, {0}};
    uint64_t first = 1, last = 40, points = 2000, seed = 0, cut = 0, generation = 0;
    const char *scenario = "all";
    bool keep_going = false, verbose = false, trace = false, seeds_given = false;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *dots = optarg ? strstr(optarg, "..") : NULL;
        switch (option) {
        case SEEDS:
            if (dots == NULL || (*dots = '\0', !number(optarg, &first)) || !number(dots + 2, &last) ||
                    last < first)
                return bad("--seeds", optarg);
            seeds_given = true;
            break;
        case POINTS:
        case SEED:
        case CUT:
        case GENERATION:
            if (!number(optarg, option == POINTS ? &points
                                : option == SEED ? &seed
                                : option == CUT  ? &cut
                                                 : &generation))
                return bad(argv[optind - 2], optarg);
            break;
        case SCENARIO:
            scenario = optarg;
            break;
        case TRACE:
            trace = true;
            break;
        case KEEP_GOING:
            keep_going = true;
            break;
        case VERBOSE:
            verbose = true;
            break;
        default:
            fputs(usage, option == HELP ? stdout : stderr);
            return option == HELP ? 0 : 2;
        }
    }
    if (strcmp(scenario, "list") == 0)
        return list();
    struct totals totals = {0};
    bool good = true, found = strcmp(scenario, "all") == 0 || strcmp(scenario, "none") == 0;
    if (seed != 0) {
        struct crash_run_options options = {.seed = seed,
                .only_cut = cut,
                .only_generation = (unsigned)generation,
                .trace = trace ? stdout : NULL};
        good = run_seed(&options, &totals, verbose);
    } else {
        scenarios_trace = trace ? stdout : NULL;
        if (strcmp(scenario, "none") != 0)
            good = run_scenarios(scenario, &totals, keep_going, &found);
        if (!found)
            return bad("--scenario", scenario);
        bool seeds = seeds_given || strcmp(scenario, "all") == 0 || strcmp(scenario, "none") == 0;
        uint64_t share = points == 0 ? 0 : (points + last - first) / (last - first + 1);
        for (uint64_t s = first; s <= last && seeds && (good || keep_going); s++)
            good = run_seed(&(struct crash_run_options){.seed = s, .points = (unsigned)share}, &totals,
                           verbose) &&
                   good;
    }
    printf("crash_sim: %" PRIu64 " crash points, %" PRIu64 " seeds, %" PRIu64 " scenarios, %" PRIu64
           " quiet checks, %" PRIu64 " operations, %" PRIu64 " I/O events: %s\n",
            totals.points, totals.seeds, totals.scenarios, totals.quiet_checks, totals.operations,
            totals.io_events, good ? "all right" : "FAILED");
    return good ? 0 : 1;
}
