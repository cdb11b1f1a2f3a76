// SPDX-License-Identifier: Apache-2.0
// A template, in this version, is a disk to boot from: `template build` makes the image with the project's
// image tool and imports it under the template's name. `ramet create --from` takes it, and `ramet snapshot`
// makes a warm one of it.
#include "tools/ramet/volume.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int run_tool(const char *tool, const char *template, const char *image)
{
    pid_t pid = fork();
    int status = 0;
    if (pid == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execl(tool, tool, template, image, (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool find_tool(const struct cli *cli, char *ret_path, size_t capacity)
{
    static const char *const places[] = {"", "/../../..", "/../share/ramet"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(ret_path, capacity, "%s%s/tools/image/build", cli->libexec_dir, places[i]);
        if (access(ret_path, X_OK) == 0)
            return true;
    }
    return false;
}

static int build(struct cli *cli, const struct verb *verb, const char *template, const char *name)
{
    const char *temporary = getenv("TMPDIR");
    char tool[2 * PATH_MAX], folder[PATH_MAX], image[PATH_MAX + 16];
    json_t *volume = NULL;
    if (!find_tool(cli, tool, sizeof tool))
        return cli_fail(verb,
                "the image builder tools/image/build was not found beside this program; make the image "
                "elsewhere "
                "and use `ramet volume import %s FILE`",
                name);
    snprintf(folder, sizeof folder, "%s/ramet-template-XXXXXX", temporary == NULL ? "/var/tmp" : temporary);
    if (mkdtemp(folder) == NULL)
        return cli_fail(verb, "no folder for the image can be made in %s: %s", folder, strerror(errno));
    snprintf(image, sizeof image, "%s/image.raw", folder);
    int status = CLI_DONE;
    if (run_tool(tool, template, image) != 0)
        status =
                cli_fail(verb, "the image of %s could not be built; what was said above tells why", template);
    else
        status = volume_import_file(cli, verb, name, image, "raw", &volume);
    unlink(image);
    rmdir(folder);
    if (status == CLI_DONE && cli->json)
        cli_print_json(volume);
    else if (status == CLI_DONE)
        printf("%s: ready; `ramet create NAME --from %s` boots it\n", name, name);
    json_decref(volume);
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *name = NULL;
    struct args_option options[] = {{"name", 'n', ARGS_TEXT, &name}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 2, 2, 0, &args, &status))
        return status;
    if (strcmp(args.items[0], "build") != 0)
        return cli_fail_usage(verb, "usage: ramet %s", verb->usage);
    return build(cli, verb, args.items[1], name == NULL ? args.items[1] : name);
}

const struct verb verb_template = {"template", "template build agent-base [--name VOLUME]",
        "Build the disk of a template and import it",
        "  -n, --name VOLUME   default: the template's name\n"
        "\n"
        "The image is made from Debian's packages, which takes a minute and the network.\n",
        run};
