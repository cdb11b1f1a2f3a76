// SPDX-License-Identifier: Apache-2.0
// usage: machine_types [BOOTS]     (default 10)
// Compares the machine types, for vmglue/MACHINES.md: boot to the agent's answer on a quiet and on a busy
// host, pause, time and size of the device state. Boots from RAMET_KERNEL_DIR and RAMET_IMAGE, as the driver
// starts machines for everybody. A boot that does not answer ends it with the VMM's words.
#include "blockstore/clock.h"
#include "tests/e2e/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUSY_THREADS = 4, BOOTS_MAX = 1000 };

static atomic_bool busy_stop;

static void *be_busy(void *context)
{
    volatile unsigned long *count = context;
    while (!atomic_load(&busy_stop))
        ++*count;
    return NULL;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static double elapsed_ms(uint64_t since_ns)
{
    return (double)(clock_monotonic_ns() - since_ns) / 1e6;
}

static void measure(struct rig *rig, enum vm_machine type, const char *host, unsigned boots)
{
    double boot[BOOTS_MAX], pause_ms[BOOTS_MAX], save[BOOTS_MAX];
    size_t state_bytes = 0;
    struct error err;
    rig->shape.machine = type;
    for (unsigned i = 0; i < boots; i++) {
        struct machine *machine = machine_boot(rig, vm_machine_name(type));
        void *state = NULL;
        boot[i] = (double)machine->ready_ns / 1e6;
        uint64_t begin = clock_monotonic_ns();
        if (vm_pause(machine->vm, 60000, &err) < 0)
            rig_fail("the machine does not pause: %s", err.text);
        pause_ms[i] = elapsed_ms(begin);
        begin = clock_monotonic_ns();
        if (vm_save_state(machine->vm, &state, &state_bytes, &err) < 0)
            rig_fail("the device state cannot be saved: %s", err.text);
        save[i] = elapsed_ms(begin);
        free(state);
        machine_end(machine, false);
    }
    double middle = median(boot, boots); // sorts: the ends are the least and the most
    printf("%-8s %-6s %3u boots: %6.0f / %6.0f / %6.0f ms   stop %5.1f ms   state %5.1f ms, %zu bytes\n",
            vm_machine_name(type), host, boots, boot[0], middle, boot[boots - 1], median(pause_ms, boots),
            median(save, boots), state_bytes);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned boots = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10;
    struct rig rig;
    if (argc > 2 || boots < 1 || boots > BOOTS_MAX) {
        fprintf(stderr, "usage: machine_types [BOOTS]     (1 to %d, default 10)\n", BOOTS_MAX);
        return 2;
    }
    rig_open(&rig, "types");
    printf("machine  host    boots: least / median / most\n");
    measure(&rig, VM_MACHINE_Q35, "quiet", boots);
    measure(&rig, VM_MACHINE_MICROVM, "quiet", boots);
    pthread_t threads[BUSY_THREADS];
    unsigned long counts[BUSY_THREADS] = {0};
    unsigned started = 0;
    while (started < BUSY_THREADS && pthread_create(&threads[started], NULL, be_busy, &counts[started]) == 0)
        started++;
    measure(&rig, VM_MACHINE_Q35, "busy", boots);
    measure(&rig, VM_MACHINE_MICROVM, "busy", boots);
    atomic_store(&busy_stop, true);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    rig_close(&rig);
    return 0;
}
