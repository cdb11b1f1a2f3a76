// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cp_tree.h"

#include "tools/ramet/interrupt.h"
#include "tools/ramet/output.h"
#include "tools/ramet/resource.h"
#include "tools/ramet/shell_quote.h"
#include "tools/ramet/staging.h"
#include "tools/ramet/tar.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// What a tree is called within its archive when its own name does not matter.
static const char member[] = "tree";

struct copying {
    const struct cp_tree *tree;
    struct progress progress;
    uint64_t done, total; // bytes; total 0 = not known
    struct client *upload;
    struct tar_unpack *unpack;
};

// ---- sandboxes ----

static void last_line(const char *text, char *ret_line, size_t capacity)
{
    size_t end = strlen(text);
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r'))
        end--;
    size_t start = end;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    snprintf(ret_line, capacity, "%.*s", (int)(end - start), text + start);
}

static int explain(const struct cp_tree *tree, const char *box, int64_t exit_code, const char *errors)
{
    char line[400];
    last_line(errors, line, sizeof line);
    if (exit_code == 127)
        return cli_fail(tree->verb,
                "%s: copying a folder needs tar in the sandbox, and it has none; copy files one by one", box);
    return cli_fail(
            tree->verb, "%s: %s", box, line[0] != '\0' ? line : "the copy failed there without a word");
}

// user NULL = the sandbox's own. *ret_out (may be NULL): what it printed, malloc'ed.
static int run_there(
        const struct cp_tree *tree, const char *box, const char *user, const char *line, char **ret_out)
{
    char *path = cli_path("/v1/sandboxes/", box, "/exec");
    json_t *json = cli_call(
            tree->cli, tree->verb, "POST", path, json_pack("{s:s, s:s*}", "command", line, "user", user));
    free(path);
    if (json == NULL)
        return CLI_FAILED;
    int64_t code = json_fields_get_int(json, "exit_code");
    int status = code == 0 ? CLI_DONE : explain(tree, box, code, json_fields_get_text(json, "stderr"));
    if (status == CLI_DONE && ret_out != NULL)
        *ret_out = strdup(json_fields_get_text(json, "stdout"));
    json_decref(json);
    return status;
}

// The path for commands that root runs, whose home is another.
static int make_absolute(const struct cp_tree *tree, const char *box, const char *path, char **ret_path)
{
    char *home = NULL;
    if (path[0] == '/') {
        *ret_path = strdup(path);
        return CLI_DONE;
    }
    int status = run_there(tree, box, NULL, "cd && pwd", &home);
    if (status != CLI_DONE)
        return status;
    home[strcspn(home, "\n")] = '\0';
    if (asprintf(ret_path, "%s/%s", home, path) < 0)
        abort();
    free(home);
    return CLI_DONE;
}

// ---- where it comes from ----

static int pass_on(void *context, const void *bytes, size_t size, struct error *err)
{
    struct copying *copying = context;
    int r = copying->upload != NULL ? client_write(copying->upload, bytes, size, err)
                                    : tar_unpack_feed(copying->unpack, bytes, size, err);
    copying->done += size;
    if (copying->total > 0)
        progress_set(&copying->progress,
                copying->done < copying->total ? (double)copying->done / (double)copying->total : 1);
    else
        progress_amount(&copying->progress, copying->done);
    return r;
}

static int send_local(struct copying *copying)
{
    const struct cp_tree *tree = copying->tree;
    struct tar_totals totals;
    struct error err = {0};
    int r = tar_measure(tree->from, &totals, &err);
    copying->total = totals.bytes;
    if (r == 0)
        r = tar_pack(tree->from, member, pass_on, copying, &totals, &err);
    progress_end(&copying->progress);
    if (r == -EPIPE || r == -ECONNRESET)
        return CLI_DONE; // the daemon has refused more: its answer says why
    if (r < 0)
        return cli_fail(tree->verb, "%s", err.text);
    if (totals.left_out > 0)
        cli_note("note: %llu devices, sockets or pipes were left out", (unsigned long long)totals.left_out);
    return CLI_DONE;
}

static int take_events(
        struct copying *copying, struct client *client, int64_t *ret_code, char *errors, size_t capacity)
{
    const struct verb *verb = copying->tree->verb;
    struct error err = {0};
    char *event;
    json_t *data;
    int r = 0, status = CLI_DONE;
    bool ended = false;
    errors[0] = '\0';
    while (status == CLI_DONE && !ended && (r = client_event(client, &event, &data, &err)) > 0) {
        if (strcmp(event, "stdout") == 0) {
            size_t size;
            char *bytes = shell_quote_from_base64(json_fields_get_text(data, "base64"), &size);
            if (pass_on(copying, bytes, size, &err) < 0)
                status = cli_fail(verb, "%s", err.text);
            free(bytes);
        } else if (strcmp(event, "stderr") == 0) {
            snprintf(errors, capacity, "%s", json_fields_get_text(data, "text"));
        } else if (strcmp(event, "error") == 0) {
            status = cli_fail(verb, "%s", json_fields_get_text(data, "message"));
        } else {
            *ret_code = json_fields_get_int(data, "exit_code");
            ended = strcmp(event, "exit") == 0;
        }
        free(event);
        json_decref(data);
    }
    progress_end(&copying->progress);
    if (status == CLI_DONE && !ended)
        status = cli_fail(verb, "%s", r < 0 ? err.text : "the daemon ended before the copy did");
    return status;
}

static int send_remote(struct copying *copying)
{
    const struct cp_tree *tree = copying->tree;
    struct client *client;
    char *from = NULL, *line, errors[2048];
    int64_t code = 0;
    int status = make_absolute(tree, tree->from_box, tree->from, &from);
    if (status != CLI_DONE)
        return status;
    // Under one name whatever it is called here: `tar .` from within it.
    char *quoted = shell_quote_join((const char *const[]){from, NULL});
    if (asprintf(&line, "cd %s && exec tar -cf - .", quoted) < 0)
        abort();
    char *path = cli_path("/v1/sandboxes/", tree->from_box, "/exec/stream");
    status = cli_begin(tree->cli, tree->verb, "POST", path,
            json_pack("{s:s, s:s, s:s}", "command", line, "user", "root", "encoding", "base64"), &client);
    if (status == CLI_DONE) {
        status = take_events(copying, client, &code, errors, sizeof errors);
        client_close(client);
    }
    if (status == CLI_DONE && code > 1)
        status = explain(tree, tree->from_box, code, errors);
    else if (status == CLI_DONE && code == 1)
        cli_note("note: %s: some files changed while they were read", tree->from_box);
    free(path);
    free(line);
    free(quoted);
    free(from);
    return status;
}

static int send(struct copying *copying)
{
    return copying->tree->from_box != NULL ? send_remote(copying) : send_local(copying);
}

// ---- where it goes ----

struct there { // the staging folder in a sandbox
    const struct cp_tree *tree;
    char *folder;
};

static void undo_there(void *context)
{
    struct there *there = context;
    struct error err;
    json_t *json = NULL;
    char *path = resource_file_path(there->tree->to_box, "content?path=", there->folder, "&recursive=1");
    client_call(cli_server(there->tree->cli), "DELETE", path, NULL, &json,
            &err); // what is gone with its daemon is gone
    json_decref(json);
    free(path);
}

static int upload(struct copying *copying, const struct there *there)
{
    const struct cp_tree *tree = copying->tree;
    struct error err = {0};
    char *file, *url;
    if (asprintf(&file, "%s/tar", there->folder) < 0)
        abort();
    url = resource_file_path(tree->to_box, "content?path=", file, "&mode=600");
    free(file);
    int r = client_open(
            cli_server(tree->cli), "PUT", url, "application/octet-stream", -1, &copying->upload, &err);
    free(url);
    if (r < 0)
        return cli_fail_call(tree->cli, tree->verb, &err, NULL);
    int status = send(copying);
    if (status == CLI_DONE)
        status = cli_take_answer(tree->cli, tree->verb, copying->upload);
    copying->upload = client_close(copying->upload); // one that breaks off is not kept there
    return status;
}

// Unpacks as root, since the folder may be root's; everything then belongs to whom the folder above belongs
// to.
static int unpack_there(const struct there *there, const char *to)
{
    static const char script[] = "set -e; s=$1 d=$2 e=$1/t/$3; trap 'rm -rf \"$s\"' EXIT; cd \"$s\"; "
                                 "o=$(stat -c %u:%g .); mkdir t; "
                                 "tar -C t -xopf tar; rm tar; chown -hR \"$o\" t; cd /; "
                                 "if [ -d \"$d\" ]; then cp -a --remove-destination \"$e/.\" \"$d/\" 2> "
                                 "/dev/null || cp -a \"$e/.\" \"$d/\"; "
                                 "elif [ -e \"$d\" ] || [ -L \"$d\" ]; then echo \"$d exists and is no "
                                 "folder; remove it, or choose another "
                                 "name\" >&2; exit 1; else mv \"$e\" \"$d\"; fi";
    const struct cp_tree *tree = there->tree;
    const char *const words[] = {
            "sh", "-c", script, "ramet-cp", there->folder, to, tree->from_box == NULL ? member : "", NULL};
    char *line = shell_quote_join(words);
    int status = run_there(tree, tree->to_box, "root", line, NULL);
    free(line);
    return status;
}

static int copy_in(struct copying *copying, bool exists)
{
    const struct cp_tree *tree = copying->tree;
    struct there there = {.tree = tree};
    uint64_t random;
    char *to = NULL;
    int status = make_absolute(tree, tree->to_box, tree->to, &to);
    if (status != CLI_DONE)
        return status;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        abort();
    char *parent = strdup(to);
    if (asprintf(&there.folder, "%s/.ramet-cp-%012" PRIx64, exists ? to : dirname(parent), random >> 16) < 0)
        abort();
    free(parent);
    struct interrupt *interrupt = interrupt_add(undo_there, &there);
    char *path = resource_file_path(tree->to_box, "dir?path=", there.folder, "");
    interrupt_hold(); // else it could be removed before it is made
    json_t *json = cli_call(tree->cli, tree->verb, "POST", path, NULL);
    interrupt_release();
    free(path);
    status = json == NULL ? CLI_FAILED : upload(copying, &there);
    if (status == CLI_DONE)
        status = unpack_there(&there, to);
    if (status != CLI_DONE && json != NULL)
        undo_there(&there);
    interrupt_remove(interrupt);
    json_decref(json);
    free(there.folder);
    free(to);
    return status;
}

static int copy_out(struct copying *copying)
{
    const struct cp_tree *tree = copying->tree;
    struct staging staging;
    struct tar_totals totals;
    struct error err = {0};
    char *parent = strdup(tree->to), *tree_path;
    // The parts of an existing folder are moved into it, so they are put together on its own file system.
    int r = staging_create(tree->to_exists ? tree->to : dirname(parent), &staging, &err);
    free(parent);
    if (r < 0)
        return cli_fail(tree->verb, "%s", err.text);
    if (asprintf(&tree_path, "%s/%s", staging.path, member) < 0)
        abort();
    int status = mkdir(tree_path, 0700) < 0 || tar_unpack_new(tree_path, &copying->unpack, &err) < 0
                         ? cli_fail(tree->verb, "%s cannot be made", tree_path)
                         : send(copying);
    if (status == CLI_DONE && tar_unpack_end(copying->unpack, &totals, &err) < 0)
        status = cli_fail(tree->verb, "%s", err.text);
    else if (status != CLI_DONE)
        tar_unpack_free(copying->unpack);
    if (status == CLI_DONE && totals.left_out > 0)
        cli_note("note: %llu devices or pipes were left out", (unsigned long long)totals.left_out);
    if (status == CLI_DONE && staging_publish(&staging, member, tree->to, &err) < 0)
        status = cli_fail(tree->verb, "%s", err.text);
    staging_remove(&staging);
    free(tree_path);
    return status;
}

int cp_tree_copy(const struct cp_tree *tree)
{
    struct copying copying = {.tree = tree, .progress = {.what = tree->from}};
    interrupt_start();
    return tree->to_box != NULL ? copy_in(&copying, tree->to_exists) : copy_out(&copying);
}
