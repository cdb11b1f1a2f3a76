// SPDX-License-Identifier: Apache-2.0
// ramet: the command line. One file per verb; this one finds the verb.
#include "tools/ramet/cli.h"
#include "tools/ramet/suggest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// In the order of `ramet help`.
const struct verb *const verbs[] = {
        &verb_up,         //
        &verb_down,       //
        &verb_create,     //
        &verb_ls,         //
        &verb_show,       //
        &verb_metrics,    //
        &verb_exec,       //
        &verb_run,        //
        &verb_context,    //
        &verb_shell,      //
        &verb_job,        //
        &verb_forward,    //
        &verb_url,        //
        &verb_cp,         //
        &verb_snapshot,   //
        &verb_snapshots,  //
        &verb_fork,       //
        &verb_promote,    //
        &verb_restore,    //
        &verb_pause,      //
        &verb_resume,     //
        &verb_stop,       //
        &verb_start,      //
        &verb_update,     //
        &verb_rm,         //
        &verb_events,     //
        &verb_logs,       //
        &verb_env,        //
        &verb_volume,     //
        &verb_template,   //
        &verb_store,      //
        &verb_export,     //
        &verb_import,     //
        &verb_key,        //
        &verb_memory,     //
        &verb_bench,      //
        &verb_completion, //
        &verb_help,       //
        &verb_version,    //
        NULL,
};

const struct verb *cli_find_verb(const char *name)
{
    for (size_t i = 0; verbs[i] != NULL; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}

static void find_libexec(struct cli *cli)
{
    const char *given = getenv("RAMET_LIBEXEC");
    if (given != NULL && given[0] != '\0') {
        snprintf(cli->libexec_dir, sizeof cli->libexec_dir, "%s", given);
        return;
    }
    ssize_t size = readlink("/proc/self/exe", cli->libexec_dir, sizeof cli->libexec_dir - 1);
    cli->libexec_dir[size < 0 ? 0 : size] = '\0';
    char *slash = strrchr(cli->libexec_dir, '/');
    if (slash != NULL)
        *slash = '\0';
}

enum { VERBS_MAX = 64 };

static const char *nearest_verb(const char *word)
{
    // As other programs call it.
    static const struct {
        const char *word, *verb;
    } others[] = {{"ps", "ls"}, {"list", "ls"}, {"status", "ls"}, {"inspect", "show"}, {"info", "show"},
            {"get", "show"}, {"delete", "rm"}, {"remove", "rm"}, {"destroy", "rm"}, {"kill", "rm"},
            {"ssh", "shell"}, {"attach", "shell"}, {"enter", "shell"}, {"login", "shell"}, {"sh", "shell"},
            {"bash", "shell"}, {"clone", "fork"}, {"branch", "fork"}, {"launch", "create"}, {"new", "create"},
            {"init", "up"}, {"serve", "up"}, {"daemon", "up"}, {"quit", "down"}, {"console", "logs"},
            {"log", "logs"}, {"save", "snapshot"}, {"checkpoint", "snapshot"}, {"rollback", "restore"},
            {"copy", "cp"}, {"images", "template"}, {"image", "template"}, {"build", "template build"},
            {"rename", "update"}, {"python", "run"}, {"port", "forward"}, {"expose", "url"},
            {"disk", "volume"}};
    const char *names[VERBS_MAX + 1];
    size_t count = 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(word, others[i].word) == 0)
            return others[i].verb;
    for (; verbs[count] != NULL && count < VERBS_MAX; count++)
        names[count] = verbs[count]->name;
    names[count] = NULL;
    return suggest_nearest(word, names);
}

int cli_fail_no_verb(const char *word)
{
    const char *nearest = nearest_verb(word);
    if (nearest != NULL)
        return cli_fail_usage(NULL, "there is no verb \"%s\"; did you mean \"%s\"?", word, nearest);
    return cli_fail_usage(NULL, "there is no verb \"%s\"", word);
}

// Options before the verb: those that every verb takes. Returns how many words they are, or -1 with
// *ret_status.
static int take_options(struct cli *cli, char **argv, bool *ret_version, int *ret_status)
{
    struct args_option options[CLI_COMMON_OPTIONS + 2] = {{0}};
    char message[512];
    cli_common_options(cli, options);
    options[CLI_COMMON_OPTIONS] = (struct args_option){"version", 0, ARGS_FLAG, ret_version};
    int taken = args_take_options(argv, options, message, sizeof message);
    if (taken < 0)
        *ret_status = cli_fail_usage(NULL, "%s", message);
    return taken;
}

// A standard descriptor that is closed would be that of the next file or connection: what is printed would go
// to the daemon. The other direction, so that its use fails as it should.
static void open_missing(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(CLI_FAILED);
}

// Whether all of the output is where it should be.
static int end_output(const struct verb *verb, int status)
{
    bool good = fflush(stdout) == 0;
    int code = errno;
    if (good && !ferror(stdout))
        return status;
    struct pollfd poll_fd = {.fd = STDOUT_FILENO};
    if ((!good && code == EPIPE) || (poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLERR))
        return status == CLI_DONE ? CLI_PIPE_CLOSED : status; // who has read enough needs no sentence
    if (good)
        return cli_fail(verb, "the output cannot be written whole; is there room where it goes?");
    return cli_fail(verb, "the output cannot be written: %s", strerror(code));
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    bool version = false;
    int status;
    char *nothing[] = {NULL};
    open_missing();
    signal(SIGPIPE, SIG_IGN);
    cli_expect_json(argv + (argc > 0));
    find_libexec(&cli);
    int taken = take_options(&cli, argv + 1, &version, &status);
    if (taken < 0)
        return status;
    char **rest = argv + 1 + (argc > 1 ? taken : 0);
    const struct verb *verb = version ? &verb_version : cli.help || *rest == NULL ? &verb_help : NULL;
    if (verb == NULL && (verb = cli_find_verb(*rest)) == NULL)
        return cli_fail_no_verb(*rest);
    bool named = !version && !cli.help && *rest != NULL;
    bool said_nothing = !version && !cli.help && *rest == NULL;
    cli.help = false;
    status = cli_run(&cli, verb, named ? rest + 1 : verb == &verb_help ? rest : nothing);
    status = end_output(verb, status);
    return said_nothing && status == CLI_DONE ? CLI_USAGE : status;
}
