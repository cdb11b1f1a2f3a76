// SPDX-License-Identifier: Apache-2.0
// Shared by the files contexts*.c, not for anybody else.
#pragma once

#include "vmglue/contexts.h"

#define CONTEXTS_SOCKETS "/run/ramet/contexts" // a folder in the guest

enum {
    CONTEXTS_ANSWER_MS = 30000, // of a supervisor that only looks at itself
    CONTEXTS_START_MS = 180000, // until a kernel has imported what it needs, on a machine that is busy
};

// A context as the guest's list of jobs has it.
struct contexts_place {
    char id[CONTEXTS_ID_MAX + 1], language[16];
    struct agent_job job;
};

uint64_t contexts_now_ms(void);

// ---- contexts.c ----
int contexts_check_id(const char *id, struct error *err);
// The language of an id that is made when it is first used, or NULL. "default" becomes "python".
const char *contexts_default_language(const char **id);
int contexts_find(
        struct sandbox_agent *use, const char *id, struct contexts_place *ret_place, struct error *err);
// Starts the processes; *ret_fd is a connection to them. A context of that id that has ended is taken away.
int contexts_start(struct sandbox_agent *use, const struct contexts_create *create, const char *id,
        const char *language, int *ret_fd, struct error *err);
// Connects, as soon as it listens.
int contexts_await(
        struct sandbox_agent *use, const char *id, uint32_t job_id, int *ret_fd, struct error *err);
int contexts_ended(const struct contexts_place *place, struct error *err); // -EBUSY

// ---- contexts_call.c: connections to a supervisor ----
int contexts_dial(struct sandbox_agent *use, const char *id, int *ret_fd, struct error *err);
int contexts_send(int fd, json_t *request, struct error *err); // steals request
// The one line that answers a request other than a run.
int contexts_receive(int fd, unsigned wait_ms, json_t **ret_answer, struct error *err);
// Both, on a connection of its own. Steals request.
int contexts_ask(struct sandbox_agent *use, const char *id, json_t *request, unsigned wait_ms,
        json_t **ret_answer, struct error *err);
