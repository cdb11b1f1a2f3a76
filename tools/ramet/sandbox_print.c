// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/sandbox_print.h"

#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sandbox_print_line(const json_t *sandbox)
{
    const char *state = json_fields_get_text(sandbox, "state"),
               *reason = json_fields_get_text(sandbox, "reason");
    printf("%s: %s", json_fields_get_text(sandbox, "name"), state);
    if (strcmp(state, "running") == 0)
        printf(" (%s, %s)", json_fields_get_text(sandbox, "start_mode"),
                output_ms((double)json_fields_get_int(sandbox, "ready_ms")));
    else if (strcmp(state, "stopped") == 0)
        printf(" (%s)", json_fields_get_bool(sandbox, "memory_kept") ? "memory and disk kept" : "disk kept");
    else if (strcmp(state, "paused") == 0)
        printf(" (`ramet resume %s` lets it go on)", json_fields_get_text(sandbox, "name"));
    if (reason[0] != '\0')
        printf(": %s", reason);
    putchar('\n');
}

void sandbox_print_table(const json_t *list)
{
    static const char *const heads[] = {
            "NAME", "STATE", "FROM", "CPUS", "MEMORY", "DISK", "MODE", "READY", "AGE"};
    struct table *table = table_create(9, heads);
    size_t i;
    json_t *box;
    json_array_foreach((json_t *)list, i, box)
    {
        char cpus[16], memory[32];
        snprintf(cpus, sizeof cpus, "%d", (int)json_fields_get_int(box, "cpus"));
        snprintf(memory, sizeof memory, "%d MiB", (int)json_fields_get_int(box, "memory_mb"));
        const char *cells[] = {json_fields_get_text(box, "name"), json_fields_get_text(box, "state"),
                json_fields_get_text(box, "from"), cpus, memory,
                output_size((uint64_t)json_fields_get_int(box, "disk_bytes")),
                json_fields_get_text(box, "start_mode"),
                output_ms((double)json_fields_get_int(box, "ready_ms")),
                output_age(json_fields_get_text(box, "created_at"))};
        table_add(table, cells);
    }
    table_print(table);
}

void sandbox_print_snapshots(const json_t *list)
{
    static const char *const heads[] = {"NAME", "KIND", "STATE", "OF", "SIZE", "NEW", "PAUSE", "AGE"};
    struct table *table = table_create(8, heads);
    size_t i;
    json_t *snapshot;
    json_array_foreach((json_t *)list, i, snapshot)
    {
        bool machine = strcmp(json_fields_get_text(snapshot, "kind"), "machine") == 0;
        const char *cells[] = {json_fields_get_text(snapshot, "name"), json_fields_get_text(snapshot, "kind"),
                json_fields_get_text(snapshot, "state"), json_fields_get_text(snapshot, "parent"),
                output_size((uint64_t)json_fields_get_int(snapshot, "logical_bytes")),
                machine ? output_size((uint64_t)json_fields_get_int(snapshot, "new_bytes")) : "",
                machine ? output_ms(json_number_value(json_object_get(snapshot, "pause_ms"))) : "",
                output_age(json_fields_get_text(snapshot, "created_at"))};
        table_add(table, cells);
    }
    table_print(table);
}
