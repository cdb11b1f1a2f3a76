// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/cli.h"
#include "vmglue/json_fields.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// The process that listens at the API's socket, as the kernel tells it.
static int find_daemon(struct cli *cli, pid_t *ret_pid)
{
    uid_t uid;
    int fd;
    int r = unix_socket_connect(cli_server(cli)->socket_path, SOCK_STREAM, &fd);
    if (r < 0)
        return r;
    r = unix_socket_peer(fd, ret_pid, &uid);
    close(fd);
    return r;
}

static int stop_all(struct cli *cli, const struct verb *verb)
{
    json_t *json = cli_call(cli, verb, "GET", "/v1/sandboxes?state=running", NULL), *box;
    size_t i;
    int status = json == NULL ? CLI_FAILED : CLI_DONE;
    json_array_foreach(json_object_get(json, "sandboxes"), i, box)
    {
        char *path = cli_path("/v1/sandboxes/", json_fields_get_text(box, "id"), "/stop");
        json_t *answer = cli_call(cli, verb, "POST", path, json_object());
        free(path);
        if (answer == NULL)
            status = CLI_FAILED;
        else if (!cli->json)
            printf("%s: stopped\n", json_fields_get_text(box, "name"));
        json_decref(answer);
    }
    json_decref(json);
    return status;
}

static int end_process(const struct verb *verb, pid_t pid)
{
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid_fd < 0 || kill(pid, SIGTERM) < 0) {
        int code = errno;
        if (pid_fd >= 0)
            close(pid_fd);
        return code == ESRCH ? CLI_DONE
                             : cli_fail(verb, "the daemon, process %d, cannot be ended: %s", (int)pid,
                                       strerror(code));
    }
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    while (poll(&poll_fd, 1, -1) < 0 && errno == EINTR)
        ;
    close(pid_fd);
    return CLI_DONE;
}

static void say_down(void)
{
    json_t *json = json_pack("{s:s}", "state", "down");
    cli_print_json(json);
    json_decref(json);
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    bool stop = false;
    struct args_option options[] = {{"stop", 0, ARGS_FLAG, &stop}, {0}};
    struct args args;
    pid_t pid = 0;
    int status;
    if (!cli_parse(cli, verb, argv, options, 0, 0, 0, &args, &status))
        return status;
    if ((status = cli_use_local(cli, verb)) != CLI_DONE)
        return status;
    int r = find_daemon(cli, &pid);
    if (r == -ENOENT || r == -ECONNREFUSED) {
        if (cli->json)
            say_down();
        else
            printf("no daemon runs at %s\n", cli_run_dir(cli));
        return CLI_DONE;
    }
    if (r < 0)
        return cli_fail(verb, "the daemon at %s cannot be found: %s", cli_run_dir(cli), strerror(-r));
    status = stop ? stop_all(cli, verb) : CLI_DONE;
    if (status == CLI_DONE)
        status = end_process(verb, pid);
    if (status != CLI_DONE)
        return status;
    if (cli->json)
        say_down();
    else
        printf("the daemon has ended\n");
    return CLI_DONE;
}

const struct verb verb_down = {"down", "down [--stop]",
        "End the daemon; sandboxes run on and the next `ramet up` takes them over",
        "  --stop   stop all sandboxes first, with their memory\n", run};
