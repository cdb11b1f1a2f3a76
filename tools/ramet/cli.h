// SPDX-License-Identifier: Apache-2.0
// What every verb has in hand: where the daemon is, how to speak, and the table of verbs.
//
// Exit status: 0 done, 1 failed, 2 called wrongly, 141 nobody reads the output any more; `exec` passes its
// command's status on. Sentences about failures go to stderr; with --json a failure's object also goes to
// stdout: the API's, or one of that shape with a code "client.usage", "client.unreachable" or
// "client.failed". There is one document on stdout, or (events --follow) one a line.
#pragma once

#include "tools/ramet/args.h"
#include "tools/ramet/client.h"

struct cli;

struct verb {
    const char *name;
    const char *usage;   // "create [NAME] [options]"
    const char *summary; // one line for `ramet help`
    const char *details; // the rest of `ramet help VERB`
    int (*run)(struct cli *cli, const struct verb *verb, char **argv);
    const struct verb *parts; // "VERB PART", up to an empty row; NULL = it has none
    // What its arguments name, a letter each, for completion: s sandbox, S snapshot, t template, v volume, j
    // job of the sandbox before, f file, p a file or a place in a sandbox, . nothing known. The last letter
    // repeats.
    const char *takes;
};

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_PIPE_CLOSED = 128 + 13 };

struct cli {
    const char *run_dir, *store_dir; // as given; NULL = the default
    const char *server_url, *key_file, *ca_file;
    struct server server;
    bool server_known;
    bool json, help;
    // Set: cli_parse tells a verb's options, instead of parsing (for completion).
    void (*describe)(void *context, const struct args_option *option);
    void *describe_context;
    char run_default[256], store_default[512];
    char libexec_dir[4096]; // where this program and its helpers are
};

extern const struct verb verb_bench;
extern const struct verb verb_completion;
extern const struct verb verb_context;
extern const struct verb verb_cp;
extern const struct verb verb_create;
extern const struct verb verb_down;
extern const struct verb verb_env;
extern const struct verb verb_events;
extern const struct verb verb_exec;
extern const struct verb verb_export;
extern const struct verb verb_fork;
extern const struct verb verb_forward;
extern const struct verb verb_help;
extern const struct verb verb_import;
extern const struct verb verb_job;
extern const struct verb verb_key;
extern const struct verb verb_logs;
extern const struct verb verb_ls;
extern const struct verb verb_memory;
extern const struct verb verb_metrics;
extern const struct verb verb_pause;
extern const struct verb verb_promote;
extern const struct verb verb_restore;
extern const struct verb verb_resume;
extern const struct verb verb_rm;
extern const struct verb verb_run;
extern const struct verb verb_shell;
extern const struct verb verb_show;
extern const struct verb verb_snapshot;
extern const struct verb verb_snapshots;
extern const struct verb verb_start;
extern const struct verb verb_stop;
extern const struct verb verb_store;
extern const struct verb verb_template;
extern const struct verb verb_up;
extern const struct verb verb_update;
extern const struct verb verb_url;
extern const struct verb verb_version;
extern const struct verb verb_volume;
extern const struct verb *const verbs[]; // NULL-terminated
const struct verb *cli_find_verb(const char *name);
int cli_fail_no_verb(const char *word); // with the verb that was probably meant

// Parses a verb's arguments (args.h) together with --json, --run and --help. Returns 0 to go on; otherwise
// the exit status is *ret_status.
bool cli_parse(struct cli *cli, const struct verb *verb, char **argv, const struct args_option *options,
        unsigned minimum, unsigned maximum, unsigned stop_at, struct args *ret_args, int *ret_status);
// Runs a verb, or the part of it that argv[0] names.
int cli_run(struct cli *cli, const struct verb *verb, char **argv);
int cli_run_part(struct cli *cli, const struct verb *verb, const struct verb *parts, char **argv);
// "VERB PART"; NULL when it has none of that name.
const struct verb *cli_find_part(const struct verb *verb, const char *name);
// The options that every verb takes, into the first CLI_COMMON_OPTIONS rows.
enum { CLI_COMMON_OPTIONS = 6 };
void cli_common_options(struct cli *cli, struct args_option *ret_options);
void cli_help(const struct verb *verb);
const char *cli_run_dir(struct cli *cli);
// The daemon that is spoken to: --server, --run, RAMET_API, RAMET_RUN, or this user's own. cli_parse has made
// sure that it is there.
const struct server *cli_server(struct cli *cli);
// For verbs, and parts of them, that work on this host's files or processes. CLI_DONE, or CLI_USAGE with a
// sentence when the daemon is another host's.
int cli_need_local(struct cli *cli, const struct verb *verb, const char *instead);
// For verbs that never mean another daemon than one of this host, whatever RAMET_API says.
int cli_use_local(struct cli *cli, const struct verb *verb);
const char *cli_store_dir(struct cli *cli);

// Prints "ramet VERB: sentence" and returns CLI_FAILED (or CLI_USAGE).
__attribute__((format(printf, 2, 3))) int cli_fail(const struct verb *verb, const char *format, ...);
__attribute__((format(printf, 2, 3))) int cli_fail_usage(const struct verb *verb, const char *format, ...);
__attribute__((format(printf, 1, 2))) void cli_note(const char *format, ...); // to stderr
// Failure of client_call: the sentence, and with --json its object. Releases json.
int cli_fail_call(struct cli *cli, const struct verb *verb, const struct error *err, json_t *json);
// The same for one of several things: with --json its object goes into the list of results.
int cli_fail_one(
        struct cli *cli, const struct verb *verb, const struct error *err, json_t *json, json_t *results);
// Tells of --json before the words are parsed, for failures on the way.
void cli_expect_json(char **argv);
// client_call, or client_create when method is NULL; on a terminal it is seen how long it takes.
int cli_try(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body,
        json_t **ret_json, struct error *err);
// A call whose answer must be there. On failure it has printed, and the result is NULL.
json_t *cli_call(
        struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body);
// POST of what makes something (client_create).
json_t *cli_create(struct cli *cli, const struct verb *verb, const char *path, json_t *body);
// A call whose answer is read piece by piece: sends it, with a JSON body or none (stolen), and reads the
// head. CLI_DONE: the answer is good, and is *ret_client's to give.
int cli_begin(struct cli *cli, const struct verb *verb, const char *method, const char *path, json_t *body,
        struct client **ret_client);
// The same when the caller has opened the call and sent its body.
int cli_take_answer(struct cli *cli, const struct verb *verb, struct client *client);
// "format" with one name, escaped; malloc'ed.
char *cli_path(const char *before, const char *name, const char *after);
// A field of a body; nothing when the value is NULL.
void cli_set_text(json_t *body, const char *field, const char *value);
// key=value options into an object; NULL with a sentence when one has no "=".
json_t *cli_pairs(const struct verb *verb, const char *option, const struct args_list *list, bool *ret_good);
void cli_print_json(const json_t *json);      // and a line end
void cli_print_json_line(const json_t *json); // one of many
