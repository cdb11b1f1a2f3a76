// SPDX-License-Identifier: Apache-2.0
// Who may do what: one table of every call, by its method and pattern, and the one check in front of all
// handlers.
//
// - admin: everything.
// - ci: what it made, and nothing else, as if nothing else were there (404). What is made from something that
//   has an owner has that owner; otherwise it is the maker's. Owners are ids of keys; the record of a thing
//   holds it, written by the transaction that makes the thing. Things without an owner are the daemon owner's
//   and admin keys'; of these a ci key sees templates alone, and may start from them and from the default
//   source.
// - read: sees what there is, its state and figures, and changes nothing. It sees no contents (bytes of
// files,
//   disks and archives, values of environment variables) and reaches nothing inside a guest that runs or
//   listens.
// A call that is not in the table is for admin keys alone.
//
// Threads: any that is not a loop.
#pragma once

#include "vmglue/http_server.h"
#include "vmglue/keys.h"
#include "vmglue/made_by.h"

enum access_rule {
    ACCESS_UNKNOWN, // not in the table
    ACCESS_NONE,    // not for ci keys
    ACCESS_ANY,     // nothing of anybody is named by the path; the handler filters or checks what it names
    ACCESS_SANDBOX, // {name} is a sandbox of its own
    ACCESS_DATA,    // {name} is a volume or snapshot of its own, {name}/{part} the disk of a sandbox
    ACCESS_SOURCE,  // as ACCESS_DATA, or a template without an owner
    ACCESS_BUILD,   // {id} is a build of its own
};
struct access_row {
    const char *method, *pattern;
    enum access_rule ci;
    bool read; // for read keys too
};

// NULL: not in the table.
const struct access_row *access_find(const char *method, const char *pattern);
const char *access_rule_name(enum access_rule rule);

// The check in front of the handler. false: it has replied. What the path names is written into its parameter
// as an id, so that the handler works on what was checked, however late the request's body comes.
bool access_allow(struct http_request *request);

// ---- For handlers ----

// The owner of whom alone this caller sees things: a key's id; NULL = it sees everybody's.
const char *access_owner(struct http_request *request);
// For what the request makes.
struct made_by access_made_by(struct http_request *request);
// Names in bodies and queries: -ENOENT with a sentence, as if it were not there. NULL = none was given, fine.
// data: a volume or snapshot of its own; source: also a template without an owner. `use`: for names that are
// looked up after something was waited for: *name becomes the id of what was checked, in the buffer.
enum { ACCESS_ID_SIZE = 64 };
int access_check_data(struct http_request *request, const char *name, struct error *err);
int access_use_data(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err);
int access_use_source(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err);
int access_use_sandbox(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err);
// Somebody else's ci key made it: whoever names nothing shall not start from what such a key gave a usual
// name.
bool access_is_foreign(struct http_request *request, const char *name);
int access_check_source(struct http_request *request, const char *name, struct error *err);
// For lists: does this caller see it?
bool access_sees_volume(struct http_request *request, const struct volume_info *info);
bool access_sees_doc(struct http_request *request, const struct doc *doc); // of a snapshot or template
// A list of templates or builds as the API shows them, without those of others; nobodys: those without an
// owner stay.
void access_filter(struct http_request *request, json_t *list, bool nobodys);
bool access_sees_owned(struct http_request *request, const json_t *event); // an event's data: member "owner"
