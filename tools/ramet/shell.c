// SPDX-License-Identifier: Apache-2.0
// A terminal in a sandbox: this one's, in raw mode, over the API's WebSocket.
#include "tools/ramet/shell.h"

#include "blockstore/clock.h"
#include "tools/ramet/shell_quote.h"
#include "tools/ramet/stream.h"
#include "tools/ramet/upgrade.h"
#include "vmglue/json_fields.h"
#include "vmglue/websocket.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

enum {
    HEAD_MAX = 16384,
    OUT_MAX = 65536,
    TICK_MS = 1000,
    END_MS = 200,           // how often an input that has ended says so: whoever reads there gets it
    SILENT_MS = 60 * 1000,  // the daemon asks after us three times within this
    UNHEARD_MS = 10 * 1000, // after what was typed: then the daemon is asked whether it lives
};

struct shell {
    const struct verb *verb;
    int fd, signals;
    struct websocket websocket;
    struct termios before;
    const struct server *server;
    bool raw, exited, input_ended;
    char last_typed;
    bool line_began, tilde; // what was typed last: an Enter, and a ~ behind it
    uint64_t heard_ms, typed_ms, asked_ms;
    int status;
    uint8_t out[OUT_MAX]; // for the daemon, from out_start on
    size_t out_start, out_size;
};

// What the daemon takes now. It may take nothing before its own output was read: nobody waits here for it.
static bool flush_out(struct shell *shell)
{
    while (shell->out_size > 0) {
        ssize_t sent =
                send(shell->fd, shell->out + shell->out_start, shell->out_size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN;
        shell->out_start += (size_t)sent;
        shell->out_size -= (size_t)sent;
    }
    shell->out_start = 0;
    return true;
}

// What is typed is only read when nothing waits, so there is room for it; a size or a pong may be left out.
static bool send_message(struct shell *shell, enum websocket_opcode opcode, void *bytes, size_t size)
{
    uint8_t mask[4], *at = shell->out + shell->out_start + shell->out_size;
    if (getrandom(mask, sizeof mask, 0) != sizeof mask)
        return false;
    if (size + WEBSOCKET_HEADER_MAX > (size_t)(shell->out + sizeof shell->out - at))
        return true;
    size_t head = websocket_header(opcode, size, mask, at);
    websocket_mask(bytes, size, mask, 0);
    memcpy(at + head, bytes, size);
    shell->out_size += head + size;
    return flush_out(shell);
}

static void terminal_size(unsigned *rows, unsigned *columns)
{
    struct winsize size = {0};
    bool known = ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    *rows = known ? size.ws_row : 24;
    *columns = known ? size.ws_col : 80;
}

static bool send_size(struct shell *shell)
{
    char text[100];
    unsigned rows, columns;
    terminal_size(&rows, &columns);
    int length = snprintf(text, sizeof text, "{\"resize\":{\"rows\":%u,\"columns\":%u}}", rows, columns);
    return send_message(shell, WEBSOCKET_TEXT, text, (size_t)length);
}

// Asks for the terminal. CLI_DONE: it is there.
static int connect_shell(struct cli *cli, struct shell *shell, const char *path)
{
    char lines[128], head[HEAD_MAX], accept[WEBSOCKET_KEY_BYTES];
    struct error err = {0};
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return cli_fail(shell->verb, "there are no random numbers");
    char *key = shell_quote_base64((const char *)random, sizeof random);
    snprintf(lines, sizeof lines, "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n", key);
    int r = websocket_accept(key, accept);
    free(key);
    if (r == 0)
        r = upgrade_open(cli_server(cli), path, "websocket", lines, head, sizeof head, &shell->fd, &err);
    if (r < 0)
        return cli_fail_call(cli, shell->verb, &err, NULL);
    if (strstr(head, accept) == NULL)
        return cli_fail(shell->verb, "what answers at %s speaks no WebSocket", cli_server(cli)->name);
    return CLI_DONE;
}

static void raw_terminal(struct shell *shell)
{
    struct termios raw;
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &shell->before) < 0)
        return;
    raw = shell->before;
    cfmakeraw(&raw);
    shell->raw = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

static void cooked_terminal(struct shell *shell)
{
    if (shell->raw)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &shell->before);
    shell->raw = false;
}

static bool lost(struct shell *shell, const char *why)
{
    cooked_terminal(shell);
    if (!shell->exited)
        shell->status = cli_fail(shell->verb, "%s; what ran there was hung up", why);
    shell->exited = true;
    return false;
}

// A terminal that nobody sees is hung up.
static bool show(struct shell *shell, const void *bytes, size_t size)
{
    int status = stream_pass(shell->verb, STDOUT_FILENO, bytes, size);
    if (status == CLI_DONE)
        return true;
    shell->exited = true;
    shell->status = status;
    return false;
}

static void take_text(struct shell *shell, const struct websocket_message *message)
{
    json_t *json = json_loadb((const char *)message->bytes, message->size, 0, NULL);
    const json_t *end = json_object_get(json, "exit");
    if (end != NULL) {
        shell->exited = true;
        shell->status = (int)json_fields_get_int(end, "exit_code");
    }
    json_decref(json);
}

// False: the connection is over.
static bool take_message(struct shell *shell, const struct websocket_message *message)
{
    uint8_t copy[125];
    switch (message->opcode) {
    case WEBSOCKET_BINARY:
        return show(shell, message->bytes, message->size);
    case WEBSOCKET_TEXT:
        take_text(shell, message);
        return true;
    case WEBSOCKET_PING:
        memcpy(copy, message->bytes, message->size);
        return send_message(shell, WEBSOCKET_PONG, copy, message->size);
    case WEBSOCKET_CLOSE:
        cooked_terminal(shell);
        if (!shell->exited && message->size > 2)
            cli_fail(shell->verb, "%.*s", (int)message->size - 2, (const char *)message->bytes + 2);
        return false;
    default:
        return true;
    }
}

static bool take_bytes(struct shell *shell)
{
    char bytes[65536];
    ssize_t got = recv(shell->fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR)
        return true;
    if (got <= 0)
        return lost(shell, "the connection to the daemon broke off");
    shell->heard_ms = clock_monotonic_ms();
    for (size_t done = 0; done < (size_t)got;) {
        struct websocket_message message;
        size_t taken;
        int r = websocket_take(&shell->websocket, bytes + done, (size_t)got - done, &taken, &message);
        done += taken;
        if (r < 0 || (r > 0 && !take_message(shell, &message)))
            return false;
    }
    return true;
}

// "Enter ~ ." ends this program, as with ssh: a sandbox that hangs takes no Ctrl-C. Returns how many bytes
// are left to send, or -1 = it was typed.
static ssize_t take_escapes(struct shell *shell, const char *typed, size_t size, char *ret_bytes)
{
    size_t left = 0;
    for (size_t i = 0; i < size; i++) {
        bool tilde = shell->tilde;
        shell->tilde = false;
        if (tilde && typed[i] == '.')
            return -1;
        if (tilde && typed[i] != '~')
            ret_bytes[left++] = '~';
        if (!tilde && shell->line_began && typed[i] == '~') {
            shell->tilde = true;
            continue;
        }
        shell->line_began = typed[i] == '\r' || typed[i] == '\n';
        ret_bytes[left++] = typed[i];
    }
    return (ssize_t)left;
}

// What is typed; at the end of a file or pipe the terminal's own end-of-file key.
static bool take_typed(struct shell *shell)
{
    char typed[16384], bytes[2 * sizeof typed];
    ssize_t got = read(STDIN_FILENO, typed, sizeof typed);
    if (got < 0 && errno == EINTR)
        return true;
    if (got <= 0) { // a line that has no end gets one: who reads lines would never see it
        shell->input_ended = true;
        bytes[0] = '\n';
        return shell->last_typed == '\n' || send_message(shell, WEBSOCKET_BINARY, bytes, 1);
    }
    shell->last_typed = typed[got - 1];
    shell->typed_ms = clock_monotonic_ms();
    if (!shell->raw)
        return send_message(shell, WEBSOCKET_BINARY, typed, (size_t)got);
    ssize_t left = take_escapes(shell, typed, (size_t)got, bytes);
    if (left < 0)
        return lost(shell, "left by ~.");
    return left == 0 || send_message(shell, WEBSOCKET_BINARY, bytes, (size_t)left);
}

// When nothing happened for a while.
static bool take_tick(struct shell *shell)
{
    uint64_t now = clock_monotonic_ms();
    char end = 4;
    if (now - shell->heard_ms > SILENT_MS)
        return lost(shell, "the daemon does not answer; is its process stopped? (its log and ps say more)");
    if (shell->typed_ms > shell->heard_ms && now - shell->typed_ms > UNHEARD_MS &&
            now - shell->asked_ms > UNHEARD_MS) {
        if (!client_is_alive(shell->server))
            return lost(
                    shell, "the daemon does not answer; is its process stopped? (its log and ps say more)");
        shell->asked_ms = clock_monotonic_ms();
    }
    return !shell->input_ended || shell->exited || shell->out_size > 0 ||
           send_message(shell, WEBSOCKET_BINARY, &end, 1);
}

// False: a signal that ends this program.
static bool take_signals(struct shell *shell)
{
    struct signalfd_siginfo info;
    if (read(shell->signals, &info, sizeof info) != sizeof info)
        return true;
    if (info.ssi_signo == SIGCONT) { // whoever stopped us has made the terminal his own meanwhile
        shell->raw = false;
        raw_terminal(shell);
    }
    if (info.ssi_signo == SIGWINCH || info.ssi_signo == SIGCONT)
        return send_size(shell);
    cooked_terminal(shell);
    shell->exited = true;
    shell->status = 128 + (int)info.ssi_signo;
    return false;
}

static void serve(struct shell *shell)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    sigaddset(&set, SIGCONT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGINT); // a raw terminal sends none, but somebody else may
    sigaddset(&set, SIGQUIT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    shell->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    raw_terminal(shell);
    shell->line_began = true;
    shell->heard_ms = clock_monotonic_ms();
    for (bool open = shell->signals >= 0; open;) {
        bool waits = shell->out_size > 0;
        struct pollfd polls[3] = {{.fd = shell->fd, .events = (short)(POLLIN | (waits ? POLLOUT : 0))},
                {.fd = shell->input_ended || waits ? -1 : STDIN_FILENO, .events = POLLIN},
                {.fd = shell->signals, .events = POLLIN}};
        int ready = poll(polls, 3, shell->input_ended ? END_MS : TICK_MS);
        if (ready < 0 && errno != EINTR)
            break;
        if (polls[0].revents & POLLOUT)
            open = flush_out(shell);
        if (open && polls[0].revents & ~POLLOUT)
            open = take_bytes(shell);
        if (open && polls[1].revents)
            open = take_typed(shell);
        if (open && polls[2].revents)
            open = take_signals(shell);
        if (open)
            open = take_tick(shell);
    }
    cooked_terminal(shell);
}

static char *shell_path(const char *name, const char *line, const char *user, const char *cwd)
{
    unsigned rows, columns;
    terminal_size(&rows, &columns);
    const char *term = getenv("TERM");
    const struct {
        const char *name, *value;
    } words[] = {{"term", term != NULL && term[0] != '\0' ? term : "xterm-256color"}, {"command", line},
            {"user", user}, {"cwd", cwd}};
    char *path, *before = cli_path("/v1/sandboxes/", name, "/exec/pty");
    if (asprintf(&path, "%s?rows=%u&columns=%u", before, rows, columns) < 0)
        abort();
    free(before);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].value == NULL)
            continue;
        char *value = client_escape(words[i].value), *longer;
        if (asprintf(&longer, "%s&%s=%s", path, words[i].name, value) < 0)
            abort();
        free(value);
        free(path);
        path = longer;
    }
    return path;
}

int shell_run(struct cli *cli, const struct verb *verb, const char *name, const char *line, const char *user,
        const char *cwd)
{
    struct shell shell = {.verb = verb, .server = cli_server(cli), .fd = -1, .status = CLI_FAILED};
    char *path = shell_path(name, line, user, cwd);
    websocket_init(&shell.websocket, false);
    int status = connect_shell(cli, &shell, path);
    if (status == CLI_DONE) {
        serve(&shell);
        status = shell.status;
    }
    if (shell.fd >= 0)
        close(shell.fd);
    websocket_free(&shell.websocket);
    free(path);
    return status;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    const char *user = NULL, *cwd = NULL;
    struct args_option options[] = {{"user", 'u', ARGS_TEXT, &user}, {"cwd", 'w', ARGS_TEXT, &cwd}, {0}};
    struct args args;
    int status;
    if (!cli_parse(cli, verb, argv, options, 1, 4096, 1, &args, &status))
        return status;
    if (cli->json)
        return cli_fail_usage(verb, "a terminal has no --json; `ramet exec --json` has");
    char *line = args.count == 1   ? NULL
                 : args.count == 2 ? strdup(args.items[1])
                                   : shell_quote_join(args.items + 1);
    status = shell_run(cli, verb, args.items[0], line, user, cwd);
    free(line);
    return status;
}

const struct verb verb_shell = {"shell", "shell NAME [options] [--] [COMMAND [ARGUMENT...]]",
        "A terminal in a sandbox: the user's login shell, or a command",
        "  -w, --cwd FOLDER   default: the user's home\n"
        "  -u, --user NAME    default: user\n"
        "\n"
        "Every key goes to the sandbox, Ctrl-C and Ctrl-Z too; the terminal's size follows this one's. The "
        "shell's "
        "exit\n"
        "status is passed on. Enter, ~ and . leave at once, also a sandbox that hangs. When the connection "
        "breaks the "
        "shell\n"
        "there gets SIGHUP, as when a line is hung up. Input that is no terminal is typed in, and its end is "
        "Ctrl-D.\n",
        run, .takes = "s."};
