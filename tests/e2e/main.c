// SPDX-License-Identifier: Apache-2.0
// usage: machine_test CASE [COUNT] [q35|microvm]
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_FACTOR = 16 };

static void shape(struct rig *rig, unsigned count)
{
    case_shape(rig);
}

static void reboot(struct rig *rig, unsigned count)
{
    case_reboot(rig);
}

static void setup(struct rig *rig, unsigned count)
{
    case_setup(rig);
}

static void damage(struct rig *rig, unsigned count)
{
    case_damage(rig);
}

static void pace(struct rig *rig, unsigned count)
{
    case_pace(rig);
}

static void generations_on_two(struct rig *rig, unsigned count)
{
    rig->shape.cpus = 2;
    case_generations(rig, count);
}

static const struct {
    const char *name;
    unsigned count; // RAMET_TEST_LONG multiplies it
    void (*run)(struct rig *rig, unsigned count);
} cases[] = {
        {"ram", 25, case_ram},
        {"sharing", 6, case_sharing},
        {"pace", 1, pace},
        {"generations", 6, generations_on_two},
        {"shape", 1, shape},
        {"reboot", 1, reboot},
        {"setup", 1, setup},
        {"random", 12, case_random},
        {"unique", 2, case_unique},
        {"traffic", 6, case_traffic},
        {"damage", 1, damage},
};
enum { CASES = sizeof cases / sizeof *cases };

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0, which = 0;
    enum vm_machine machine = VM_MACHINE_Q35;
    while (which < CASES && strcmp(name, cases[which].name) != 0)
        which++;
    if (which == CASES || (argc > 3 && vm_machine_parse(argv[3], &machine) < 0)) {
        fprintf(stderr, "usage: machine_test CASE [COUNT] [q35|microvm]; the cases are");
        for (which = 0; which < CASES; which++)
            fprintf(stderr, " %s", cases[which].name);
        fprintf(stderr, "\n");
        return 2;
    }
    if (count == 0)
        count = cases[which].count * (getenv("RAMET_TEST_LONG") != NULL ? LONG_FACTOR : 1);
    struct rig rig;
    rig_open(&rig, name);
    rig.shape.machine = machine;
    cases[which].run(&rig, count);
    rig_close(&rig);
    return 0;
}
