// SPDX-License-Identifier: Apache-2.0
// Every call, decided once. Columns: what a ci key may, whether a read key may. Who adds a route adds its row
// here and in API.md; without one it is for admin keys alone, and a test fails.
#include "vmglue/access.h"

#include <string.h>

enum { NO = false, READS = true };
#define BOX "/v1/sandboxes/{name}"
#define VOLUME "/v1/volumes/{name}"

static const struct access_row rows[] = {
        // The service. Its figures are sums over everybody's things.
        {"GET", "/v1/store", ACCESS_NONE, READS},
        {"GET", "/v1/store/lineage", ACCESS_NONE, READS},
        {"GET", "/v1/memory", ACCESS_NONE, READS},
        {"GET", "/v1/pool", ACCESS_NONE, READS},
        {"GET", "/metrics", ACCESS_NONE, READS},
        {"POST", "/v1/store/seal", ACCESS_NONE, NO},
        {"POST", "/v1/store/gc", ACCESS_NONE, NO},
        {"POST", "/v1/store/scrub", ACCESS_NONE, NO},
        {"POST", "/v1/store/check", ACCESS_NONE, NO},
        {"GET", "/v1/me", ACCESS_ANY, READS},
        {"GET", "/v1/environment", ACCESS_NONE, NO},
        {"PUT", "/v1/environment", ACCESS_NONE, NO},
        {"PATCH", "/v1/environment", ACCESS_NONE, NO},
        {"GET", "/v1/keys", ACCESS_NONE, NO},
        {"POST", "/v1/keys", ACCESS_NONE, NO},
        {"GET", "/v1/keys/{id}", ACCESS_NONE, NO},
        {"DELETE", "/v1/keys/{id}", ACCESS_NONE, NO},
        // Sandboxes.
        {"POST", "/v1/sandboxes", ACCESS_ANY, NO},
        {"GET", "/v1/sandboxes", ACCESS_ANY, READS},
        {"GET", BOX, ACCESS_SANDBOX, READS},
        {"PATCH", BOX, ACCESS_SANDBOX, NO},
        {"DELETE", BOX, ACCESS_SANDBOX, NO},
        {"POST", BOX "/stop", ACCESS_SANDBOX, NO},
        {"POST", BOX "/start", ACCESS_SANDBOX, NO},
        {"POST", BOX "/pause", ACCESS_SANDBOX, NO},
        {"POST", BOX "/resume", ACCESS_SANDBOX, NO},
        {"POST", BOX "/restore", ACCESS_SANDBOX, NO},
        {"POST", BOX "/promote", ACCESS_SANDBOX, NO},
        {"POST", BOX "/snapshots", ACCESS_SANDBOX, NO},
        {"POST", BOX "/fork", ACCESS_SANDBOX, NO},
        {"GET", "/v1/events", ACCESS_ANY, READS},
        {"GET", BOX "/events", ACCESS_SANDBOX, READS},
        {"GET", BOX "/logs", ACCESS_SANDBOX, READS},
        // Inside. What runs there, listens there or holds bytes there is nothing for a read key.
        {"POST", BOX "/exec", ACCESS_SANDBOX, NO},
        {"POST", BOX "/exec/stream", ACCESS_SANDBOX, NO},
        {"GET", BOX "/exec/pty", ACCESS_SANDBOX, NO},
        {"GET", BOX "/ports", ACCESS_SANDBOX, READS},
        {"GET", BOX "/ports/{port}", ACCESS_SANDBOX, NO},
        {"GET", BOX "/metrics", ACCESS_SANDBOX, READS},
        {"POST", BOX "/urls", ACCESS_SANDBOX, NO},
        {"GET", BOX "/urls", ACCESS_SANDBOX, READS},
        {"DELETE", BOX "/urls/{id}", ACCESS_SANDBOX, NO},
        {"POST", BOX "/jobs", ACCESS_SANDBOX, NO},
        {"GET", BOX "/jobs", ACCESS_SANDBOX, READS},
        {"GET", BOX "/jobs/{id}", ACCESS_SANDBOX, READS},
        {"DELETE", BOX "/jobs/{id}", ACCESS_SANDBOX, NO},
        {"POST", BOX "/jobs/{id}/signal", ACCESS_SANDBOX, NO},
        {"GET", BOX "/jobs/{id}/logs", ACCESS_SANDBOX, READS},
        {"POST", BOX "/contexts", ACCESS_SANDBOX, NO},
        {"GET", BOX "/contexts", ACCESS_SANDBOX, READS},
        {"GET", BOX "/contexts/{id}", ACCESS_SANDBOX, READS},
        {"DELETE", BOX "/contexts/{id}", ACCESS_SANDBOX, NO},
        {"POST", BOX "/contexts/{id}/interrupt", ACCESS_SANDBOX, NO},
        {"POST", BOX "/contexts/{id}/restart", ACCESS_SANDBOX, NO},
        {"POST", BOX "/contexts/{id}/run", ACCESS_SANDBOX, NO},
        {"POST", BOX "/contexts/{id}/run/stream", ACCESS_SANDBOX, NO},
        {"GET", BOX "/files/content", ACCESS_SANDBOX, NO},
        {"PUT", BOX "/files/content", ACCESS_SANDBOX, NO},
        {"DELETE", BOX "/files/content", ACCESS_SANDBOX, NO},
        {"GET", BOX "/files", ACCESS_SANDBOX, READS},
        {"GET", BOX "/files/stat", ACCESS_SANDBOX, READS},
        {"POST", BOX "/files/dir", ACCESS_SANDBOX, NO},
        {"POST", BOX "/files/move", ACCESS_SANDBOX, NO},
        {"GET", BOX "/files/watch", ACCESS_SANDBOX, READS},
        // Snapshots and templates.
        {"GET", "/v1/snapshots", ACCESS_ANY, READS},
        {"GET", "/v1/snapshots/{name}", ACCESS_SOURCE, READS},
        {"PATCH", "/v1/snapshots/{name}", ACCESS_DATA, NO},
        {"DELETE", "/v1/snapshots/{name}", ACCESS_DATA, NO},
        {"GET", "/v1/templates", ACCESS_ANY, READS},
        {"POST", "/v1/templates", ACCESS_ANY, NO},
        {"GET", "/v1/templates/{name}", ACCESS_SOURCE, READS},
        {"DELETE", "/v1/templates/{name}", ACCESS_DATA, NO},
        {"GET", "/v1/templates/{name}/log", ACCESS_DATA, READS},
        {"GET", "/v1/templates/builds", ACCESS_ANY, READS},
        {"GET", "/v1/templates/builds/{id}", ACCESS_BUILD, READS},
        {"DELETE", "/v1/templates/builds/{id}", ACCESS_BUILD, NO},
        {"GET", "/v1/templates/builds/{id}/logs", ACCESS_BUILD, READS},
        {"PUT", "/v1/templates/uploads", ACCESS_NONE, NO},
        {"POST", "/v1/pandastack/templates/build", ACCESS_NONE, NO},
        {"DELETE", "/v1/templates/uploads/{id}", ACCESS_NONE, NO},
        // Disks.
        {"GET", "/v1/volumes", ACCESS_ANY, READS},
        {"POST", "/v1/volumes", ACCESS_ANY, NO},
        {"GET", VOLUME, ACCESS_DATA, READS},
        {"PATCH", VOLUME, ACCESS_DATA, NO},
        {"DELETE", VOLUME, ACCESS_DATA, NO},
        {"POST", VOLUME "/fork", ACCESS_DATA, NO},
        {"POST", VOLUME "/snapshots", ACCESS_DATA, NO},
        {"GET", VOLUME "/diff", ACCESS_DATA, READS},
        {"GET", VOLUME "/map", ACCESS_DATA, READS},
        {"GET", VOLUME "/content", ACCESS_DATA, NO},
        {"PUT", VOLUME "/content", ACCESS_NONE, NO},
        {"GET", VOLUME "/{part}", ACCESS_DATA, READS},
        {"POST", VOLUME "/{part}/fork", ACCESS_DATA, NO},
        {"POST", VOLUME "/{part}/snapshots", ACCESS_DATA, NO},
        {"GET", VOLUME "/{part}/diff", ACCESS_DATA, READS},
        {"GET", VOLUME "/{part}/map", ACCESS_DATA, READS},
        {"GET", VOLUME "/{part}/content", ACCESS_DATA, NO},
        // Archives are of things by many names and without owners; transfers go over sockets of the host.
        {"POST", "/v1/store/export", ACCESS_NONE, NO},
        {"POST", "/v1/store/import", ACCESS_NONE, NO},
        {"POST", "/v1/imports", ACCESS_NONE, NO},
        {"POST", "/v1/imports/{id}/commit", ACCESS_NONE, NO},
        {"DELETE", "/v1/imports/{id}", ACCESS_NONE, NO},
        {"POST", "/v1/exports", ACCESS_NONE, NO},
};

const struct access_row *access_find(const char *method, const char *pattern)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].pattern, pattern) == 0 && strcmp(rows[i].method, method) == 0)
            return &rows[i];
    // What other services' clients ask inside a machine, under names of their own.
    static const struct access_row inside = {"*", BOX "/envd/", ACCESS_SANDBOX, NO};
    return strncmp(pattern, inside.pattern, strlen(inside.pattern)) == 0 ? &inside : NULL;
}
