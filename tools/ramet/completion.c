// SPDX-License-Identifier: Apache-2.0
// Completion. The shells' functions ask this program ("completion words WORD..."), so that verbs, options and
// the daemon's names are always those that there are: one candidate a line, and a line "/" for "files, too".
#include "tools/ramet/cli.h"
#include "tools/ramet/table.h"
#include "vmglue/json_fields.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPTIONS_MAX = 48, PATIENCE_SECS = 3 };
static const unsigned NOTHING = ~0u; // a word that means nothing: so does what follows

static const char bash_script[] =
        "# ramet completion for bash: source <(ramet completion bash)\n"
        "_ramet() {\n"
        "    local line=${COMP_LINE:0:COMP_POINT} words cur prefix='' item files=''\n"
        "    read -ra words <<< \"$line\"\n"
        "    [[ $line == *[[:space:]] ]] && words+=('')\n"
        "    cur=${words[${#words[@]} - 1]}\n"
        "    # These end a word for readline, which then replaces only what is behind them.\n"
        "    [[ $cur == *[:=]* ]] && prefix=${cur%\"${cur##*[:=]}\"}\n"
        "    COMPREPLY=()\n"
        "    while IFS= read -r item; do\n"
        "        # A sandbox names its files as it likes: no such name may be a command here.\n"
        "        if [[ $item == / ]]; then files=yes; else printf -v item %q \"${item#\"$prefix\"}\" && "
        "COMPREPLY+=(\"$item\"); fi\n"
        "    done < <(\"${words[0]/#\\~/$HOME}\" completion words \"${words[@]:1}\" 2> /dev/null)\n"
        "    if [[ -n $files ]]; then\n"
        "        while IFS= read -r item; do COMPREPLY+=(\"$item\"); done < <(compgen -f -- "
        "\"${cur#\"$prefix\"}\")\n"
        "        compopt -o filenames 2> /dev/null\n"
        "    fi\n"
        "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:/=] ]] && compopt -o nospace 2> /dev/null\n"
        "    return 0\n"
        "}\n"
        "complete -F _ramet ramet\n";

static const char zsh_script[] =
        "#compdef ramet\n"
        "# ramet completion for zsh: in a folder of fpath as _ramet, or source <(ramet completion zsh)\n"
        "_ramet() {\n"
        "    local item files=''\n"
        "    local -a open closed\n"
        "    for item in ${(f)\"$(${~words[1]} completion words \"${(@Q)words[2,CURRENT]}\" 2> "
        "/dev/null)\"}; do\n"
        "        case $item in\n"
        "        /) files=yes ;;\n"
        "        *[:/=]) open+=(\"$item\") ;;\n"
        "        *) closed+=(\"$item\") ;;\n"
        "        esac\n"
        "    done\n"
        "    [[ ${words[CURRENT]} == --*=* ]] && compset -P '*='\n"
        "    compadd -- $closed\n"
        "    compadd -S '' -- $open\n"
        "    [[ -n $files ]] && _files\n"
        "    return 0\n"
        "}\n"
        "if [ \"${funcstack[1]}\" = _ramet ]; then _ramet \"$@\"; else compdef _ramet ramet; fi\n";

struct completion {
    struct cli *cli;
    const char *word; // what is completed
    struct args_option options[OPTIONS_MAX];
    unsigned option_count;
};

static void offer(const struct completion *completion, const char *candidate)
{
    if (strncmp(candidate, completion->word, strlen(completion->word)) == 0)
        puts(candidate);
}

static void offer_files(void)
{
    puts("/");
}

// ---- names ----

static json_t *ask(const struct completion *completion, const char *path)
{
    struct error err;
    json_t *json = NULL;
    if (client_call(&completion->cli->server, "GET", path, NULL, &json, &err) == 0)
        return json;
    json_decref(json);
    return NULL;
}

// The names of a list, with `after` behind each.
static void offer_names(const struct completion *completion, const char *path, const char *list,
        const char *field, const char *after)
{
    char name[300];
    size_t i;
    json_t *json = ask(completion, path), *item;
    json_array_foreach(json_object_get(json, list), i, item)
    {
        const char *text = json_fields_get_text(item, field);
        snprintf(name, sizeof name, "%s%s", text, after);
        if (text[0] != '\0')
            offer(completion, name);
    }
    json_decref(json);
}

static void offer_sandboxes(const struct completion *completion, const char *after)
{
    offer_names(completion, "/v1/sandboxes", "sandboxes", "name", after);
}

// "NAME:" of sandboxes; behind the colon what is in that folder; files here.
static void offer_places(const struct completion *completion)
{
    const char *colon = strchr(completion->word, ':');
    if (colon == NULL) {
        offer_sandboxes(completion, ":");
        offer_files();
        return;
    }
    const char *slash = strrchr(colon, '/');
    char *box = strndup(completion->word, (size_t)(colon - completion->word));
    char *folder = slash == NULL ? strdup("") : strndup(colon + 1, (size_t)(slash - colon));
    char *call = cli_path("/v1/sandboxes/", box, "/files?path="),
         *path = cli_path(call, folder[0] == '\0' ? "." : folder, ""), *candidate;
    size_t i;
    json_t *json = ask(completion, path), *entry;
    json_array_foreach(json_object_get(json, "entries"), i, entry)
    {
        char *name = table_clean(json_fields_get_text(entry, "name"));
        bool is_folder = strcmp(json_fields_get_text(entry, "type"), "dir") == 0;
        if (asprintf(&candidate, "%s:%s%s%s", box, folder, name, is_folder ? "/" : "") < 0)
            abort();
        offer(completion, candidate);
        free(candidate);
        free(name);
    }
    json_decref(json);
    free(path);
    free(call);
    free(folder);
    free(box);
}

static void offer_jobs(const struct completion *completion, const char *sandbox)
{
    char *path = cli_path("/v1/sandboxes/", sandbox, "/jobs");
    offer_names(completion, path, "jobs", "name", "");
    free(path);
}

static void offer_kind(const struct completion *completion, char kind, const char *before)
{
    switch (kind) {
    case 's':
        offer_sandboxes(completion, "");
        break;
    case 'S':
        offer_names(completion, "/v1/snapshots", "snapshots", "name", "");
        break;
    case 't':
        offer_names(completion, "/v1/templates", "templates", "name", "");
        break;
    case 'v':
        offer_names(completion, "/v1/volumes", "volumes", "name", "");
        offer_names(completion, "/v1/snapshots", "snapshots", "name", "");
        break;
    case 'k':
        offer_names(completion, "/v1/keys", "keys", "name", "");
        break;
    case 'j':
        offer_jobs(completion, before);
        break;
    case 'p':
        offer_places(completion);
        break;
    case 'f':
        offer_files();
        break;
    default:
        break;
    }
}

// ---- options ----

static void take_option(void *context, const struct args_option *option)
{
    struct completion *completion = context;
    if (completion->option_count < OPTIONS_MAX)
        completion->options[completion->option_count++] = *option;
}

// What the verb takes, told by itself.
static void learn_options(struct completion *completion, const struct verb *verb)
{
    char *nothing[] = {NULL};
    completion->option_count = 0;
    completion->cli->describe = take_option;
    completion->cli->describe_context = completion;
    verb->run(completion->cli, verb, nothing);
    completion->cli->describe = NULL;
}

static const struct args_option *find_option(const struct completion *completion, const char *word)
{
    for (unsigned i = 0; i < completion->option_count; i++) {
        const struct args_option *option = &completion->options[i];
        bool by_letter = word[1] != '-' && option->letter != 0 && word[strlen(word) - 1] == option->letter;
        if (by_letter || (word[1] == '-' && strcmp(word + 2, option->name) == 0))
            return option;
    }
    return NULL;
}

static void offer_options(const struct completion *completion)
{
    char text[80];
    for (unsigned i = 0; i < completion->option_count; i++) {
        snprintf(text, sizeof text, "--%s", completion->options[i].name);
        offer(completion, text);
    }
}

static void offer_values(const struct completion *completion, const char *option)
{
    static const struct {
        const char *option, *words; // a kind in brackets, or the words
    } values[] = {{"size", "small default large"}, {"network", "full none"},
            {"state", "running paused stopped failed"}, {"format", "raw qcow2"}, {"language", "python bash"},
            {"preset", "admin ci read"}, {"warm", "python docker none"}, {"accel", "auto kvm tcg"},
            {"signal", "TERM KILL INT HUP USR1 USR2 STOP CONT"}, {"from", "[v]"}, {"volume", "[v]"},
            {"snapshot", "[S]"}, {"add-disk", "[v]"}, {"server", "http:// https:// unix:///"}};
    static const char *const files[] = {"run", "store", "kernel-dir", "log", "key-file", "ca", "env-file",
            "tar", "oci", "disk", "warm-code", "save"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(option, files[i]) == 0)
            offer_files();
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(option, values[i].option) != 0)
            continue;
        if (values[i].words[0] == '[') {
            offer_kind(completion, values[i].words[1], NULL);
            return;
        }
        char *words = strdup(values[i].words), *rest = words;
        for (char *word; (word = strsep(&rest, " ")) != NULL;)
            offer(completion, word);
        free(words);
    }
}

// ---- words ----

static void offer_verbs(const struct completion *completion)
{
    for (size_t i = 0; verbs[i] != NULL; i++)
        offer(completion, verbs[i]->name);
}

static void offer_parts(const struct completion *completion, const struct verb *verb)
{
    for (const struct verb *part = verb->parts; part != NULL && part->name != NULL; part++)
        offer(completion, part->name + strlen(verb->name) + 1);
}

// Where the options that say which daemon go.
static void remember(struct cli *cli, const char *option, const char *value)
{
    const char **target = strcmp(option, "run") == 0        ? &cli->run_dir
                          : strcmp(option, "server") == 0   ? &cli->server_url
                          : strcmp(option, "key-file") == 0 ? &cli->key_file
                          : strcmp(option, "ca") == 0       ? &cli->ca_file
                                                            : NULL;
    if (target != NULL)
        *target = value;
}

// Walks over the words before the one that is completed. Returns how many arguments of the verb there are;
// *ret_value: the option whose value comes now.
static unsigned walk(struct completion *completion, char **words, unsigned count,
        const struct verb **ret_verb, const struct verb **ret_group, const struct args_option **ret_value,
        const char **ret_last)
{
    unsigned arguments = 0;
    struct args_option common[CLI_COMMON_OPTIONS];
    cli_common_options(completion->cli, common);
    for (unsigned i = 0; i < CLI_COMMON_OPTIONS; i++)
        take_option(completion, &common[i]);
    for (unsigned i = 0; i < count; i++) {
        *ret_value = NULL;
        if (words[i][0] == '-' && words[i][1] != '\0') {
            char *name = strndup(words[i], strcspn(words[i], "=")), *equals = strchr(words[i], '=');
            const struct args_option *option = find_option(completion, name);
            free(name);
            if (option == NULL || option->kind == ARGS_FLAG)
                continue;
            if (equals == NULL && i + 1 == count)
                *ret_value = option;
            else
                remember(completion->cli, option->name, equals != NULL ? equals + 1 : words[++i]);
            continue;
        }
        if (*ret_verb == NULL && *ret_group == NULL) {
            const struct verb *verb = cli_find_verb(words[i]);
            *(verb != NULL && verb->parts != NULL ? ret_group : ret_verb) = verb;
            if (verb == NULL)
                return NOTHING;
        } else if (*ret_verb == NULL) {
            *ret_verb = cli_find_part(*ret_group, words[i]);
            if (*ret_verb == NULL)
                return NOTHING;
        } else {
            arguments++;
            *ret_last = words[i];
            continue;
        }
        if (*ret_verb != NULL)
            learn_options(completion, *ret_verb);
    }
    return arguments;
}

static void give_up(int number)
{
    _exit(CLI_DONE);
}

// "--from=ag": only what is behind the sign.
static void offer_after_equals(struct completion *completion)
{
    char *name = strndup(completion->word, strcspn(completion->word, "="));
    const struct args_option *option = find_option(completion, name);
    completion->word = strchr(completion->word, '=') + 1;
    if (option != NULL)
        offer_values(completion, option->name);
    free(name);
}

static int complete_words(struct cli *cli, char **words)
{
    struct completion completion = {.cli = cli};
    const struct verb *verb = NULL, *group = NULL;
    const struct args_option *value = NULL;
    const char *last = NULL;
    unsigned count = 0;
    struct args args;
    char *nothing[] = {NULL};
    int status;
    while (words[count] != NULL)
        count++;
    completion.word = count == 0 ? "" : words[count - 1];
    signal(SIGALRM, give_up); // nobody waits for a completion
    alarm(PATIENCE_SECS);
    unsigned arguments = walk(&completion, words, count == 0 ? 0 : count - 1, &verb, &group, &value, &last);
    if (!cli_parse(cli, &verb_completion, nothing, NULL, 0, 0, 0, &args, &status)) // finds the daemon
        return CLI_DONE;
    bool is_help = verb == &verb_help;
    if (arguments == NOTHING)
        return CLI_DONE;
    if (value != NULL)
        offer_values(&completion, value->name);
    else if (completion.word[0] == '-' && strchr(completion.word, '=') != NULL)
        offer_after_equals(&completion);
    else if (completion.word[0] == '-')
        offer_options(&completion);
    else if (verb == NULL && group == NULL)
        offer_verbs(&completion);
    else if (verb == NULL)
        offer_parts(&completion, group);
    else if (is_help && arguments == 0)
        offer_verbs(&completion);
    else if (is_help && arguments == 1 && cli_find_verb(last) != NULL)
        offer_parts(&completion, cli_find_verb(last));
    else if (verb->takes != NULL && verb->takes[0] != '\0') {
        size_t kinds = strlen(verb->takes);
        offer_kind(&completion, verb->takes[arguments < kinds ? arguments : kinds - 1], last);
    }
    return CLI_DONE;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    int status;
    if (cli->describe == NULL && argv[0] != NULL && strcmp(argv[0], "words") == 0)
        return complete_words(cli, argv + 1);
    if (!cli_parse(cli, verb, argv, NULL, 1, 1, 0, &args, &status))
        return status;
    if (strcmp(args.items[0], "bash") == 0)
        fputs(bash_script, stdout);
    else if (strcmp(args.items[0], "zsh") == 0)
        fputs(zsh_script, stdout);
    else
        return cli_fail_usage(verb, "there is completion for bash and zsh, not for \"%s\"", args.items[0]);
    return CLI_DONE;
}

const struct verb verb_completion = {"completion", "completion bash|zsh",
        "Print what a shell needs to complete this program's words",
        "For bash, in ~/.bashrc:  source <(ramet completion bash)\n"
        "For zsh, in ~/.zshrc:    source <(ramet completion zsh)\n"
        "\n"
        "An installed ramet has both in place already. Verbs, options, and the names of sandboxes, "
        "snapshots, "
        "templates,\n"
        "volumes and files in sandboxes are completed, as the daemon knows them at that moment.\n",
        run};
