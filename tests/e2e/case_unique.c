// SPDX-License-Identifier: Apache-2.0
// What case_random does with many forks and one way to draw, done with a few forks and each way that programs
// have, and with its own proof: two children that are thawed without the after-fork step do draw equal
// numbers. A draw is a line "HOST-BEFORE NUMBER HOST-AFTER": one whose host before is the child's was drawn
// after the fork for certain, since the host name changes while everything stands still. (A number that was
// drawn but not yet written when the machine was frozen is of the common past: at most one a process, told by
// its two hosts.)
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS_WANTED = 300, DRAW_KINDS = 3 };

// Old lines are dropped until the file `keep` is there.
static const char program[] =
        "import os, sys, time\n"
        "kind = sys.argv[1]\n"
        "os.makedirs('/dev/shm/draws', exist_ok=True)\n"
        "out = open('/dev/shm/draws/' + kind, 'w')\n"
        "urandom = os.open('/dev/urandom', os.O_RDONLY)\n"
        "def draw():\n"
        "    if kind == 'getrandom':\n"
        "        return os.getrandom(16).hex()\n"
        "    if kind == 'urandom':\n"
        "        return os.read(urandom, 16).hex()\n"
        "    return open('/proc/sys/kernel/random/uuid').read().strip().replace('-', '')\n"
        "count, keep, host = 0, False, ''\n"
        "while True:\n"
        "    before = os.uname().nodename\n"
        "    number = draw()\n"
        "    after = os.uname().nodename\n"
        "    print(before, number, after, file=out, flush=True)\n"
        "    count = count + 1 if host == after else 0\n"
        "    host = after\n"
        "    if not keep and count % 100 == 0:\n"
        "        keep = os.path.exists('/dev/shm/keep')\n"
        "        if not keep and count >= 1000:\n"
        "            out.seek(0)\n"
        "            out.truncate()\n"
        "            count = 0\n"
        "    if count > (3000 if after == 'sandbox' else 400):\n"
        "        time.sleep(0.1)\n";
static const char *const kinds[DRAW_KINDS] = {"getrandom", "urandom", "uuid"};

struct draws {
    char (*numbers)[48];
    size_t count, capacity;
};

static void add(struct draws *draws, const char *number)
{
    if (draws->count == draws->capacity) {
        draws->capacity = draws->capacity * 2 + 4096;
        draws->numbers = realloc(draws->numbers, draws->capacity * sizeof *draws->numbers);
        if (draws->numbers == NULL)
            rig_fail("no memory");
    }
    snprintf(draws->numbers[draws->count++], sizeof *draws->numbers, "%s", number);
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void sort(struct draws *draws)
{
    if (draws->count > 0)
        qsort(draws->numbers, draws->count, sizeof *draws->numbers, compare);
}

static bool contains(const struct draws *sorted, const char *number)
{
    char key[48];
    snprintf(key, sizeof key, "%s", number);
    return sorted->count > 0 &&
           bsearch(key, sorted->numbers, sorted->count, sizeof *sorted->numbers, compare) != NULL;
}

struct text {
    const char *bytes;
    size_t left;
};

static ssize_t give_text(void *context, void *buffer, size_t capacity)
{
    struct text *text = context;
    size_t size = text->left < capacity ? text->left : capacity;
    memcpy(buffer, text->bytes, size);
    text->bytes += size;
    text->left -= size;
    return (ssize_t)size;
}

// One of them is where a container engine would put it: in a cgroup made at the top of what the guest sees.
static void start_drawing(struct machine *machine)
{
    struct text text = {program, sizeof program - 1};
    struct error err;
    if (agent_file_write(machine->agent, "draw.py", 0644, give_text, &text, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    free(machine_shell(machine, "for kind in getrandom urandom uuid; do setsid nohup python3 draw.py $kind > "
                                "/dev/null 2>&1 & done; "
                                "for kind in getrandom urandom uuid; do until [ -s /dev/shm/draws/$kind ]; "
                                "do sleep 0.05; done; done; "
                                "p=$(pgrep -f '[d]raw.py uuid') && sudo mkdir /sys/fs/cgroup/engine && "
                                "echo $p | sudo tee /sys/fs/cgroup/engine/cgroup.procs && grep -q "
                                "'^0::/engine$' /proc/$p/cgroup && "
                                "touch /dev/shm/keep"));
}

// The numbers of one kind whose line begins with `host`, once there are more than at_least. straddling: of
// lines that begin with another host's name and end with this one's.
static void collect(struct machine *machine, const char *kind, const char *host, size_t at_least,
        struct draws *into, unsigned *ret_straddling)
{
    char *out = machine_shell(machine,
            "f=/dev/shm/draws/%s; until [ $(grep -c '^%s ' $f) -gt %zu ]; do sleep 0.05; done; head -n -1 $f",
            kind, host, at_least);
    *ret_straddling = 0;
    for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char before[65], number[48], after[65];
        if (sscanf(line, "%64s %47s %64s", before, number, after) != 3)
            rig_fail("%s: a draw that cannot be read: '%s'", machine->id, line);
        if (strcmp(before, host) == 0)
            add(into, number);
        else if (strcmp(after, host) == 0)
            ++*ret_straddling;
    }
    free(out);
}

// What programs draw that were not there before the fork.
static void collect_new_programs(struct machine *machine, struct draws *into)
{
    char *out = machine_shell(machine, "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An "
                                       "-tx1 | tr -d ' '; cat /etc/machine-id; "
                                       "cat /run/ramet/generation; python3 -c 'import random, secrets, uuid; "
                                       "print(secrets.token_hex(16)); "
                                       "print(random.random()); print(uuid.uuid4())'; ls -d $(mktemp -d)");
    unsigned lines = 0;
    for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++)
        add(into, line);
    if (lines != 8)
        rig_fail("%s: %u new programs drew, not 8", machine->id, lines);
    free(out);
}

static void check_child(struct machine *machine, struct draws *all)
{
    collect_new_programs(machine, all);
    for (unsigned kind = 0; kind < DRAW_KINDS; kind++) {
        unsigned straddling;
        collect(machine, kinds[kind], machine->id, DRAWS_WANTED, all, &straddling);
        if (straddling > 1)
            rig_fail("%s: %u draws of one process straddle the fork", machine->id, straddling);
    }
}

// A child in which the step is left out.
static void collect_unsafe(struct rig *rig, const char *id, struct doc_id snapshot,
        const size_t past[DRAW_KINDS], struct draws *into)
{
    struct error err;
    struct machine *machine = machine_load(rig, id, snapshot);
    machine_go(machine, false);
    if (!agent_was_frozen(machine->agent))
        rig_fail("%s: its user processes were not frozen in the snapshot", id);
    if (agent_thaw(machine->agent, &err) < 0)
        rig_fail("%s: %s", id, err.text);
    for (unsigned kind = 0; kind < DRAW_KINDS; kind++) {
        unsigned straddling;
        collect(machine, kinds[kind], "sandbox", past[kind] + DRAWS_WANTED, into, &straddling);
    }
    sort(into);
    machine_end(machine, false);
}

// Which process gets which number of the kernel's sequence may differ, so all kinds are looked at together.
static void show_that_it_can_fail(struct rig *rig, struct doc_id snapshot,
        const size_t past_counts[DRAW_KINDS], const struct draws *past)
{
    struct draws first = {0}, second = {0};
    unsigned equal = 0;
    collect_unsafe(rig, "unsafe-1", snapshot, past_counts, &first);
    collect_unsafe(rig, "unsafe-2", snapshot, past_counts, &second);
    for (size_t i = 0; i < first.count; i++)
        equal += contains(&second, first.numbers[i]) && !contains(past, first.numbers[i]);
    if (equal == 0)
        rig_fail("two children without the after-fork step drew nothing equal: this test sees nothing");
    printf("without the after-fork step two children drew %u equal numbers\n", equal);
    free(first.numbers);
    free(second.numbers);
}

void case_unique(struct rig *rig, unsigned forks)
{
    struct draws all = {0}, past = {0};
    size_t past_counts[DRAW_KINDS] = {0};
    struct machine *source = machine_boot(rig, "source");
    start_drawing(source);
    struct capture_request request = machine_capture_request(source, "unique");
    struct capture_result result;
    machine_capture(&request, &result);
    if (!result.figures.unique)
        rig_fail("the snapshot says that its forks may draw equal numbers");
    for (unsigned fork = 1; fork <= forks; fork++) {
        char id[20];
        snprintf(id, sizeof id, "child-%u", fork);
        struct machine *child = machine_resume(rig, id, result.ids.machine);
        check_child(child, &all);
        unsigned straddling;
        for (unsigned kind = 0; fork == 1 && kind < DRAW_KINDS; kind++) {
            size_t before = past.count;
            collect(child, kinds[kind], "sandbox", 0, &past, &straddling);
            past_counts[kind] = past.count - before;
        }
        printf("%s: ready in %.0f ms\n", id, (double)child->ready_ns / 1e6);
        machine_end(child, false);
    }
    size_t of_children = all.count;
    for (unsigned kind = 0; kind < DRAW_KINDS; kind++) {
        unsigned straddling;
        struct draws of_source = {0};
        collect(source, kinds[kind], "sandbox", past_counts[kind] + DRAWS_WANTED, &of_source, &straddling);
        for (size_t i = 0; i < of_source.count; i++)
            add(&all, of_source.numbers[i]);
        free(of_source.numbers);
    }
    sort(&all);
    for (size_t i = 1; i < all.count; i++) {
        if (strcmp(all.numbers[i - 1], all.numbers[i]) == 0)
            rig_fail("%s was drawn twice", all.numbers[i]);
    }
    printf("%u forks drew %zu numbers after the fork, their source %zu in all: no two are equal\n", forks,
            of_children, all.count - of_children);
    machine_end(source, false);
    sort(&past);
    show_that_it_can_fail(rig, result.ids.machine, past_counts, &past);
    free(all.numbers);
    free(past.numbers);
}
