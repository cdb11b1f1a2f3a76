// SPDX-License-Identifier: Apache-2.0
// Forks draw no random bytes twice, although processes of the guest draw all the time across the fork point
// and nobody asks the agent first. Each draw is noted between two looks at the host name, which the
// after-fork step changes before it lets processes run: a line with the child's name twice was drawn after
// the fork for certain.
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READERS = 2, DRAWS_EACH = 50, ID_MAX = 40 };

// Draws without a pause; after 200 draws under a new name, or when told so, it has seen enough.
static const char reader[] = "import os, socket, sys\n"
                             "out = open('/dev/shm/draws.' + sys.argv[1], 'w')\n"
                             "born, count, left = socket.gethostname(), 0, 200\n"
                             "while left > 0 and not os.path.exists('/dev/shm/stop'):\n"
                             "    before = socket.gethostname()\n"
                             "    draw = os.urandom(16).hex()\n"
                             "    out.write('%s %s %s\\n' % (before, socket.gethostname(), draw))\n"
                             "    out.flush()\n"
                             "    count += 1\n"
                             "    left -= before != born\n"
                             "    if count % 5000 == 0 and before == born:\n"
                             "        out.seek(0)\n"
                             "        out.truncate()\n";

struct draws {
    char (*lines)[33];
    size_t count, capacity;
};

static void add_draw(struct draws *draws, const char *hex)
{
    if (draws->count == draws->capacity) {
        draws->capacity = draws->capacity != 0 ? 2 * draws->capacity : 4096;
        draws->lines = realloc(draws->lines, draws->capacity * sizeof *draws->lines);
        if (draws->lines == NULL)
            rig_fail("no memory");
    }
    snprintf(draws->lines[draws->count++], sizeof *draws->lines, "%s", hex);
}

// Adds the draws of lines whose both names are `name`; returns how many.
static size_t add_lines(struct draws *draws, char *text, const char *name)
{
    size_t before = draws->count;
    char *state = NULL, first[ID_MAX + 1], second[ID_MAX + 1], hex[33];
    for (char *line = strtok_r(text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
        if (sscanf(line, "%40s %40s %32[0-9a-f]", first, second, hex) == 3 && strlen(hex) == 32 &&
                strcmp(first, name) == 0 && strcmp(second, name) == 0)
            add_draw(draws, hex);
    }
    return draws->count - before;
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void check_distinct(struct draws *draws)
{
    qsort(draws->lines, draws->count, sizeof *draws->lines, compare);
    for (size_t i = 1; i < draws->count; i++) {
        if (strcmp(draws->lines[i - 1], draws->lines[i]) == 0)
            rig_fail("two machines drew the same random bytes, %s", draws->lines[i]);
    }
}

static void start_readers(struct machine *machine)
{
    free(machine_shell(machine,
            "cat > reader.py <<'END'\n%sEND\n"
            "for i in $(seq %d); do setsid nohup python3 reader.py $i > reader.out 2>&1 < /dev/null & done\n"
            "for i in $(seq %d); do until [ -s /dev/shm/draws.$i ]; do sleep 0.05; done; done",
            reader, READERS, READERS));
}

static size_t collect(struct draws *draws, struct machine *machine, const char *name)
{
    char *text = machine_shell(machine,
            "n=0; while pgrep -f '[r]eader.py' > /dev/null; do n=$((n + 1)); [ $n -lt 3000 ] || exit 1; "
            "sleep 0.05; done; "
            "cat /dev/shm/draws.* | grep '^%s %s '",
            name, name);
    size_t count = add_lines(draws, text, name);
    free(text);
    char *own = machine_shell(machine, "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'");
    add_draw(draws, own);
    free(own);
    return count;
}

void case_random(struct rig *rig, unsigned forks)
{
    struct draws draws = {0};
    struct machine *source = machine_boot(rig, "source");
    char *name = machine_shell(source, "hostname");
    name[strcspn(name, "\n")] = 0;
    start_readers(source);
    struct capture_request request = machine_capture_request(source, NULL);
    struct capture_result result;
    machine_capture(&request, &result);
    if (!result.figures.unique)
        rig_fail("the snapshot was taken without freezing the guest's processes");
    free(machine_shell(source, "touch /dev/shm/stop"));
    size_t before = collect(&draws, source, name), after = 0;
    machine_end(source, false);
    for (unsigned i = 0; i < forks; i++) {
        char id[20];
        snprintf(id, sizeof id, "fork-%u", i);
        struct machine *child = machine_resume(rig, id, result.ids.machine);
        size_t count = collect(&draws, child, id);
        if (count < READERS * DRAWS_EACH)
            rig_fail("%s: only %zu draws were made after the fork", id, count);
        after += count;
        machine_end(child, false);
    }
    check_distinct(&draws);
    printf("%u forks with %d readers: %zu draws after the fork and %zu of the source, no two alike\n", forks,
            READERS, after, before);
    free(draws.lines);
    free(name);
}
