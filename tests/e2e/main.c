// SPDX-License-Identifier: Apache-2.0
// usage: machine_test ram|generations|shape|reboot|random [COUNT] [q35|microvm]
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RAM_ROUNDS = 40, GENERATIONS = 10, FORKS = 20, LONG_FACTOR = 10 };

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0,
             factor = getenv("RAMET_TEST_LONG") != NULL ? LONG_FACTOR : 1;
    enum vm_machine machine = VM_MACHINE_Q35;
    static const char *const names[] = {"ram", "generations", "shape", "reboot", "random"};
    unsigned which = 0;
    while (which < 5 && strcmp(name, names[which]) != 0)
        which++;
    if (which == 5 || (argc > 3 && vm_machine_parse(argv[3], &machine) < 0)) {
        fprintf(stderr, "usage: machine_test ram|generations|shape|reboot|random [COUNT] [q35|microvm]\n");
        return 2;
    }
    struct rig rig;
    rig_open(&rig, name);
    rig.shape.machine = machine;
    if (which == 0)
        case_ram(&rig, count != 0 ? count : RAM_ROUNDS * factor);
    else if (which == 1)
        case_generations(&rig, count != 0 ? count : GENERATIONS * factor);
    else if (which == 2)
        case_shape(&rig);
    else if (which == 3)
        case_reboot(&rig);
    else
        case_random(&rig, count != 0 ? count : FORKS * factor);
    rig_close(&rig);
    return 0;
}
