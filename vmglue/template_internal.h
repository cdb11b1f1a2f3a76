// SPDX-License-Identifier: Apache-2.0
// Shared by the files template*.c, not for anybody else.
//
// Locks: templates.lock guards the list and every field marked (lock); it is never held over anything that
// waits. Fields marked (worker) belong to the thread that runs builds.
#pragma once

#include "vmglue/sandbox.h"
#include "vmglue/template.h"
#include "vmglue/template_log.h"
#include "vmglue/template_request.h"
#include "vmglue/template_spool.h"

#include <limits.h>
#include <pthread.h>

enum template_state { TEMPLATE_QUEUED, TEMPLATE_RUNNING, TEMPLATE_READY, TEMPLATE_FAILED };
enum { TEMPLATE_ID_SIZE = 24, TEMPLATE_STEP_SIZE = 40 };

struct template_build {
    struct templates *all;
    struct template_build *next; // (lock) the one that came after it
    char id[TEMPLATE_ID_SIZE];
    struct template_request request; // constant until it is freed
    struct made_by by;               // constant too
    struct template_log *log;
    bool reserved_name;
    struct volume_id imported; // taken over from an import, with its passing doc; 0 = none
    struct doc_id passing;
    char upload[PATH_MAX];                     // file of an upload that is ours; "" = none
    enum template_state state;                 // (lock)
    char step[TEMPLATE_STEP_SIZE];             // (lock) what it does now
    bool cancelled;                            // (lock)
    struct error err;                          // (lock) when it failed
    unsigned references;                       // (lock)
    uint64_t created_ns, started_ns, ended_ns; // (lock) wall clock
    // (worker) what it has made so far:
    char box[NAMES_MAX + 1]; // the build machine, and the snapshot until it has its name
    bool box_made;
    struct doc_id journal;
    struct volume_id disk;
    char folder[PATH_MAX]; // of its files; "" = none yet
    json_t *defaults;      // what the image says: user, cwd, command, env
};

struct templates {
    struct template_config config;
    struct store *store;
    char folder[PATH_MAX / 2]; // STORE/templates
    struct template_spool *spool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker;
    bool stopping;                // (lock)
    struct template_build *first; // (lock)
};

__attribute__((format(printf, 2, 3))) void template_say(struct templates *all, const char *format, ...);

// ---- template_names.c: templates by name ----
// Logs of builds whose template is gone go too.
void template_names_sweep_logs(struct templates *all);

// ---- template_build.c: one build, on the worker ----
int template_build_run(struct template_build *build, struct error *err);
bool template_build_is_cancelled(void *build);
void template_build_step(struct template_build *build, const char *step); // also a line in the log

// ---- template_source.c: the disk to boot from. (worker) ----
// Makes build->disk, named by the journal, and build->defaults.
int template_source_disk(struct template_build *build, struct error *err);

// Whether its maker may replace the template that body describes.
bool template_is_replaceable(const struct template_build *build, const json_t *body);
// ---- template_journal.c: what must not outlive a build. (worker) ----
int template_journal_begin(struct template_build *build, struct error *err);
// A new empty volume that the journal names; or one that an import made, taken over with its passing doc.
int template_journal_volume(struct template_build *build, uint64_t size_bytes, struct error *err);
int template_journal_adopt(struct template_build *build, struct error *err);
int template_journal_fork(struct template_build *build, const char *from, struct error *err);
// The snapshot gets its name and its mark, in place of an older template if the request says so.
int template_journal_publish(struct template_build *build, struct error *err);
// Removes the machine, the snapshot that has no name yet, the volume and the journal.
void template_journal_end(struct template_build *build);
// What builds of an earlier daemon left. Returns how many there were.
unsigned template_journal_clean_up(struct templates *all);

// ---- template_warm.c: what runs in the build machine. (worker) ----
int template_warm_commands(struct template_build *build, struct error *err);
int template_warm_up(struct template_build *build, struct error *err);
