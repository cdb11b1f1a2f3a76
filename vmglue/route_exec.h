// SPDX-License-Identifier: Apache-2.0
// What calls have in common that run a command in a sandbox (exec, jobs, terminals): its fields, its
// environment, and how bytes look in JSON. A client that leaves cancels an exec.
// Threads: the request's, which may block.
#pragma once

#include "vmglue/json.h"
#include "vmglue/sandbox.h"

struct route_exec_rest { // of a stream of text, what ends inside a character
    char bytes[4];
    size_t size;
};

struct route_exec {
    struct http_request *request;
    struct sandbox_agent use;
    struct agent_exec exec;
    char **env; // "NAME=value", NULL-terminated, malloc'ed
    bool base64;
    void *stdin_bytes; // malloc'ed, of stdin_base64
    struct route_exec_rest rest[3];
};

// Reads the body, which may hold the fields of `more` (NULL-terminated; may be NULL), and takes the agent. On
// failure it has replied. Either way route_exec_end follows.
bool route_exec_begin(struct route_exec *call, const char *const *more, json_t **ret_body);
// The same from an object that was checked; the command may be left out when need_command is false.
int route_exec_take(struct route_exec *call, const json_t *body, bool need_command, struct error *err);
void route_exec_end(struct route_exec *call);

char *route_exec_base64(const void *bytes, size_t size);                 // malloc'ed
void *route_exec_from_base64(const char *text, size_t *ret_size);        // malloc'ed; NULL: it is none
json_t *route_exec_text(const char *bytes, size_t size, bool as_base64); // {"text", "base64"?}
// Joins the rest and the bytes; returns how many of *ret_text (malloc'ed, NULL = no memory) are whole
// characters.
size_t route_exec_cut(struct route_exec_rest *rest, const void *bytes, size_t size, char **ret_text);
