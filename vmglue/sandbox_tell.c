// SPDX-License-Identifier: Apache-2.0
// What a sandbox tells the world: events of its changes, and what its guest wrote to the console.
#include "vmglue/sandbox_internal.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONSOLE_KEPT_BYTES = 64 << 10, PANIC_LOOK_BYTES = 16 << 10 };

void sandbox_tell(struct sandbox *sandbox, const char *type, json_t *data)
{
    const struct sandbox_record *record = &sandbox->record;
    json_t *all = data != NULL ? data : json_object();
    if (all == NULL || sandbox_is_hidden(sandbox)) {
        json_decref(all);
        return;
    }
    json_object_set_new(all, "sandbox_id", json_string(record->id));
    json_object_set_new(all, "sandbox", json_string(record->name));
    if (record->by.owner[0] != '\0')
        json_object_set_new(all, "owner", json_string(record->by.owner));
    sandbox_events_add(sandbox->all->events, record->id, type, all);
}

void sandbox_tell_change(
        struct sandbox *sandbox, const struct sandbox_record *before, const struct sandbox_record *after)
{
    if (strcmp(before->name, after->name) != 0 && before->name[0] != '\0')
        sandbox_tell(sandbox, "renamed", json_pack("{s:s}", "before", before->name));
    if (before->state != after->state) {
        // Where a new one comes from is nobody's business: from the pool it is being created too.
        enum sandbox_state was = before->state == SANDBOX_PARKED ? SANDBOX_CREATING : before->state;
        json_t *data = json_pack(
                "{s:s, s:s}", "state", sandbox_state_name(after->state), "before", sandbox_state_name(was));
        if (after->reason[0] != '\0')
            json_object_set_new(data, "reason", json_fields_text(after->reason, strlen(after->reason)));
        sandbox_tell(sandbox, "state", data);
    } else if (strcmp(before->reason, after->reason) != 0) {
        json_t *reason = after->reason[0] == '\0' ? json_null()
                                                  : json_fields_text(after->reason, strlen(after->reason));
        sandbox_tell(sandbox, "trouble", json_pack("{s:o}", "reason", reason));
    }
}

// ---- the console ----

// Appends the last `limit` bytes of a file to text.
static size_t read_tail(const char *path, char *text, size_t limit)
{
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    size_t used = 0;
    if (fd < 0)
        return 0;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) {
        off_t at = stat.st_size > (off_t)limit ? stat.st_size - (off_t)limit : 0;
        ssize_t got;
        while (used < limit && (got = pread(fd, text + used, limit - used, at + (off_t)used)) > 0)
            used += (size_t)got;
    }
    close(fd);
    return used;
}

// malloc'ed, zero-terminated. The log was cut now and then: what came before lies beside it.
static char *read_console(struct sandboxes *all, const char *id, size_t limit, size_t *ret_size)
{
    char folder[128], path[160];
    char *text = malloc(2 * limit + 1);
    if (text == NULL)
        return NULL;
    sandbox_vm_folder(all, id, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/console.log.1", folder);
    size_t used = read_tail(path, text, limit);
    snprintf(path, sizeof path, "%s/console.log", folder);
    used += read_tail(path, text + used, limit);
    if (used > limit)
        memmove(text, text + used - limit, limit);
    *ret_size = used > limit ? limit : used;
    text[*ret_size] = '\0';
    return text;
}

bool sandbox_console_panicked(struct sandbox *sandbox, char *ret_line, size_t size)
{
    static const char words[] = "Kernel panic - ";
    size_t length = 0;
    char *text = read_console(sandbox->all, sandbox->record.id, PANIC_LOOK_BYTES, &length);
    const char *at = text == NULL ? NULL : memmem(text, length, words, sizeof words - 1);
    if (at != NULL) {
        size_t used = 0, left = length - (size_t)(at - text);
        while (used < left && used + 1 < size && at[used] >= ' ' && at[used] <= '~') {
            ret_line[used] = at[used];
            used++;
        }
        ret_line[used] = '\0';
    }
    free(text);
    return at != NULL;
}

void sandbox_console_keep(struct sandbox *sandbox)
{
    size_t size = 0;
    char *text = read_console(sandbox->all, sandbox->record.id, CONSOLE_KEPT_BYTES, &size);
    if (text == NULL || size == 0) { // no VMM was there: the one before has said the last words
        free(text);
        return;
    }
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    pthread_mutex_lock(&sandbox->all->lock);
    char *old = sandbox->console;
    sandbox->console = text;
    pthread_mutex_unlock(&sandbox->all->lock);
    free(old);
}

int sandbox_console(struct sandboxes *all, const char *name, size_t limit, char **ret_text, size_t *ret_size,
        struct error *err)
{
    char id[SANDBOX_ID_SIZE];
    char *kept = NULL;
    json_t *json = NULL;
    int r = sandbox_show(all, name, &json, err);
    if (r < 0)
        return r;
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(json, "id")));
    json_decref(json);
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (strcmp(sandbox->record.id, id) == 0 && sandbox->vm == NULL && sandbox->console != NULL)
            kept = strdup(sandbox->console);
    pthread_mutex_unlock(&all->lock);
    if (kept != NULL) {
        *ret_size = strlen(kept) < limit ? strlen(kept) : limit;
        memmove(kept, kept + strlen(kept) - *ret_size, *ret_size + 1);
        *ret_text = kept;
        return 0;
    }
    *ret_text = read_console(all, id, limit, ret_size);
    return *ret_text == NULL ? error_set(err, -ENOMEM, "no memory for a console's log") : 0;
}

struct sandbox_events *sandbox_events_of(struct sandboxes *all)
{
    return all->events;
}

// Bytes of one console file from the cursor on; 0: none, or it is another file by now.
static size_t read_from(const char *path, struct sandbox_console_cursor *cursor, char *text, size_t capacity)
{
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t got = 0;
    if (fd < 0)
        return 0;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_ino == cursor->inode)
        got = pread(fd, text, capacity, (off_t)cursor->offset);
    close(fd);
    if (got > 0)
        cursor->offset += (uint64_t)got;
    return got < 0 ? 0 : (size_t)got;
}

ssize_t sandbox_console_next(struct sandboxes *all, const char *name, struct sandbox_console_cursor *cursor,
        char *text, size_t capacity, struct error *err)
{
    char folder[128], path[160], before[160];
    struct stat stat;
    json_t *json = NULL;
    int r = sandbox_show(all, name, &json, err);
    if (r < 0)
        return r;
    sandbox_vm_folder(all, json_fields_get_text(json, "id"), folder, sizeof folder);
    json_decref(json);
    snprintf(path, sizeof path, "%s/console.log", folder);
    snprintf(before, sizeof before, "%s/console.log.1", folder);
    size_t got = cursor->inode == 0 ? 0 : read_from(path, cursor, text, capacity);
    if (got == 0 && cursor->inode != 0)
        got = read_from(before, cursor, text, capacity); // what was written before it was cut
    if (got > 0 || lstat(path, &stat) < 0 || stat.st_ino == cursor->inode)
        return (ssize_t)got;
    *cursor = (struct sandbox_console_cursor){.inode = stat.st_ino};
    return (ssize_t)read_from(path, cursor, text, capacity);
}
