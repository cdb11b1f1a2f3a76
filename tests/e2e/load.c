// SPDX-License-Identifier: Apache-2.0
// The guest's load. A step changes a page of a table in memory and a block of a file on disk, each to bytes
// that follow from the step's number; now and then all of both is compared with what it must be, the file as
// it is on the disk. Every step is a line of a log that must never lose one.
#include "tests/e2e/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "import hashlib, os, random, sys\n"
                              "PAGES, BLOCKS = 6000, 3000\n"
                              "def content(kind, place, step):\n"
                              "    return hashlib.sha256(b'%s %d %d' % (kind, place, step)).digest() * 128\n"
                              "table, table_steps = bytearray(4096 * PAGES), [0] * PAGES\n"
                              "file_steps = [0] * BLOCKS\n"
                              "fd = os.open('load.blocks', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n"
                              "log = open('load.log', 'a')\n"
                              "def fail(what):\n"
                              "    with open('load.bad', 'a') as bad:\n"
                              "        bad.write(what + '\\n')\n"
                              "    sys.exit(1)\n"
                              "def check():\n"
                              "    for place, step in enumerate(table_steps):\n"
                              "        page = table[4096 * place:4096 * place + 4096]\n"
                              "        if page != (content(b'm', place, step) if step else bytes(4096)):\n"
                              "            fail('memory page %d is not of step %d' % (place, step))\n"
                              "    os.fsync(fd)\n"
                              "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
                              "    for place, step in enumerate(file_steps):\n"
                              "        block = os.pread(fd, 4096, 4096 * place)\n"
                              "        if step and block != content(b'd', place, step):\n"
                              "            fail('file block %d is not of step %d' % (place, step))\n"
                              "step = 0\n"
                              "while not os.path.exists('load.stop'):\n"
                              "    step += 1\n"
                              "    for _ in range(20):\n"
                              "        place = random.randrange(PAGES)\n"
                              "        table[4096 * place:4096 * place + 4096] = content(b'm', place, step)\n"
                              "        table_steps[place] = step\n"
                              "    for _ in range(8):\n"
                              "        place = random.randrange(BLOCKS)\n"
                              "        os.pwrite(fd, content(b'd', place, step), 4096 * place)\n"
                              "        file_steps[place] = step\n"
                              "    log.write('%d\\n' % step)\n"
                              "    log.flush()\n"
                              "    if step % 10 == 0:\n"
                              "        os.fsync(fd)\n"
                              "        os.fsync(log.fileno())\n"
                              "    if step % 100 == 0:\n"
                              "        check()\n"
                              "check()\n";

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

void load_install(struct machine *machine)
{
    struct text text = {program, sizeof program - 1};
    struct error err;
    if (agent_file_write(machine->agent, "load.py", 0644, give_text, &text, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
}

void load_start(struct machine *machine)
{
    free(machine_shell(machine, "rm -f load.stop load.bad; setsid nohup python3 load.py > load.out 2>&1 < "
                                "/dev/null & echo $! > load.pid"));
    load_wait(machine, 1);
}

void load_stop(struct machine *machine)
{
    free(machine_shell(
            machine, "touch load.stop; while kill -0 $(cat load.pid) 2> /dev/null; do sleep 0.1; done"));
}

uint64_t load_count(struct machine *machine)
{
    char *out = machine_shell(machine, "tail -n 1 load.log 2> /dev/null || echo 0");
    uint64_t count = strtoull(out, NULL, 10);
    free(out);
    return count;
}

void load_wait(struct machine *machine, uint64_t at_least)
{
    free(machine_shell(machine,
            "n=0; while [ \"$(tail -n 1 load.log 2> /dev/null || echo 0)\" -lt %llu ] 2> /dev/null || [ ! -s "
            "load.log ]; do "
            "[ -e load.bad ] && cat load.bad && exit 1; n=$((n + 1)); [ $n -lt 2000 ] || { cat load.out; "
            "exit 1; }; sleep 0.1; done",
            (unsigned long long)at_least));
}

void load_check(struct machine *machine)
{
    char *out = machine_shell(machine,
            "cat load.bad load.out 2> /dev/null; awk '$1 != NR { print \"line\", NR, \"is\", $0 }' load.log");
    if (out[0] != 0)
        rig_fail("%s: the load found: %s", machine->id, out);
    free(out);
}

void load_check_disk(struct rig *rig, struct base_id disk, bool clean_shutdown)
{
    char path[128], log[128];
    snprintf(path, sizeof path, "%s/disk.raw", rig->directory);
    snprintf(log, sizeof log, "%s/fsck.log", rig->directory);
    rig_export(rig, disk, path);
    // A disk of a running machine has a journal to replay, as after a power failure; nothing else may need
    // repair.
    const char *const replay[] = {"e2fsck", "-p", "-E", "journal_only", path, NULL};
    if (!clean_shutdown && rig_run(log, replay) > 1)
        rig_fail("the journal of a snapshot's disk cannot be replayed (see %s)", log);
    const char *const check[] = {"e2fsck", "-f", "-n", path, NULL};
    if (rig_run(log, check) != 0) {
        const char *const show[] = {"cat", log, NULL};
        rig_run("/dev/stderr", show);
        rig_fail("the file system of a snapshot's disk is damaged");
    }
    remove(path);
}
