// SPDX-License-Identifier: Apache-2.0
// V02: a damaged memory image. A guest that touches a damaged page is ended with words that say so; it never
// reads zeros or other bytes, and other machines of the store go on.
#include "tests/e2e/cases.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATTERN_BYTES = 32, PAGES = 64 };

// Holds pages full of the pattern; when told to, looks at all of them and says whether they are as they were.
static const char holder[] = "import mmap, sys\n"
                             "pattern = bytes.fromhex(sys.argv[1]) * (4096 // 32)\n"
                             "area = mmap.mmap(-1, 64 * 4096)\n"
                             "for i in range(64): area[4096 * i:4096 * (i + 1)] = pattern\n"
                             "del pattern\n"
                             "open('held', 'w').write('x')\n"
                             "while True:\n"
                             "    open('look').read()\n"
                             "    pattern = bytes.fromhex(sys.argv[1]) * (4096 // 32)\n"
                             "    good = all(area[4096 * i:4096 * (i + 1)] == pattern for i in range(64))\n"
                             "    open('seen', 'w').write('right' if good else 'wrong')\n";

// Flips a bit in every stored block that is full of the pattern. Returns how many.
static unsigned damage_file(const char *path, const uint8_t *page)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t block[BLOCK_SIZE];
    unsigned damaged = 0;
    for (off_t at = 0; fd >= 0 && pread(fd, block, sizeof block, at) == sizeof block; at += sizeof block) {
        if (memcmp(block, page, sizeof block) != 0)
            continue;
        block[1000] ^= 4;
        if (pwrite(fd, block, sizeof block, at) != sizeof block)
            rig_fail("cannot damage %s: %s", path, strerror(errno));
        damaged++;
    }
    if (fd < 0 || fsync(fd) != 0)
        rig_fail("cannot damage %s: %s", path, strerror(errno));
    close(fd);
    return damaged;
}

static unsigned damage_log(struct rig *rig, const uint8_t *page)
{
    char folder[128], path[512];
    unsigned damaged = 0;
    snprintf(folder, sizeof folder, "%s/store/log", rig->directory);
    DIR *directory = opendir(folder);
    if (directory == NULL)
        rig_fail("cannot list %s: %s", folder, strerror(errno));
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (isdigit((unsigned char)
                            entry->d_name[0])) // a spare holds no data, and may get another name meanwhile
            damaged += damage_file(path, page);
    }
    closedir(directory);
    return damaged;
}

static void look(struct machine *machine)
{
    char *seen = machine_shell(machine, "echo > look; cat seen");
    if (strcmp(seen, "right") != 0)
        rig_fail("%s: its memory is %s", machine->id, seen);
    free(seen);
}

void case_damage(struct rig *rig)
{
    uint8_t page[BLOCK_SIZE];
    char hex[2 * PATTERN_BYTES + 1];
    for (unsigned i = 0; i < PATTERN_BYTES; i++) {
        page[i] = (uint8_t)rig_random();
        snprintf(hex + 2 * i, 3, "%02x", page[i]);
    }
    for (unsigned i = PATTERN_BYTES; i < BLOCK_SIZE; i++)
        page[i] = page[i - PATTERN_BYTES];

    struct machine *source = machine_boot(rig, "source");
    free(machine_shell(source,
            "mkfifo look seen; cat > holder.py <<'END'\n%sEND\n"
            "setsid nohup python3 holder.py %s > holder.out 2>&1 < /dev/null & until [ -s held ]; do sleep "
            "0.05; done",
            holder, hex));
    look(source);
    struct capture_request request = machine_capture_request(source, NULL);
    struct capture_result result;
    machine_capture(&request, &result);
    unsigned damaged = damage_log(rig, page);
    if (damaged < PAGES)
        rig_fail("only %u of the %d pages were found in the log: this test shows nothing", damaged, PAGES);

    struct machine *victim = machine_resume(rig, "victim", result.ids.machine);
    struct agent_exec exec = {.shell_command = "echo > look; cat seen", .timeout_ms = 120000};
    struct agent_exec_result said = {0};
    if (agent_exec_run(victim->agent, &exec, &said, NULL) == 0)
        rig_fail("a guest with a damaged memory image said '%s'", said.out);
    machine_wait_event(victim, &victim->exited, "the end of the guest whose memory is damaged");
    if (strstr(victim->detail, "memory image") == NULL)
        rig_fail("the end of a guest whose memory is damaged was reported as '%s'", victim->detail);
    printf("%u blocks damaged; reported: %s\n", damaged, victim->detail);
    machine_end(victim, false);
    look(source);
    machine_end(source, false);
}
