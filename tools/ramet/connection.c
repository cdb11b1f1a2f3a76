// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/connection.h"

#include "vmglue/unix_socket.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BRIDGE_BYTES = 65536, RETRY_MS = 50 };

// ---- unix sockets ----

// A daemon that hangs may have a full queue of connections, in which connect would wait for ever.
static int open_unix(const struct server *server, int *ret_fd, struct error *err)
{
    int fd = -1, r = -EAGAIN;
    for (int waited = 0; r == -EAGAIN && waited < CONNECTION_SECS * 1000; waited += RETRY_MS) {
        r = unix_socket_connect(server->socket_path, SOCK_STREAM | SOCK_NONBLOCK, &fd);
        if (r == -EAGAIN)
            poll(NULL, 0, RETRY_MS);
    }
    struct stat folder;
    if (r == -ENOTDIR ||
            (r == -ECONNREFUSED && stat(server->socket_path, &folder) == 0 && S_ISDIR(folder.st_mode)))
        return error_set(err, r,
                "%s is no daemon's socket: --run names the folder in which it is, unix:// the socket itself "
                "(unix:///run/ramet/api.sock)",
                server->socket_path);
    if (r == -ENOENT || r == -ECONNREFUSED)
        return error_set(err, r,
                "no daemon answers at %s; start one with `ramet up`, or name its directory with --run",
                server->socket_path);
    if (r == -EACCES || r == -EPERM)
        return error_set(err, r,
                "the daemon at %s is another user's; use sudo, or `ramet up` for one of your own",
                server->socket_path);
    if (r == -EAGAIN)
        return error_set(err, -ETIMEDOUT,
                "the daemon at %s does not answer; is its process stopped? (its log and ps say more)",
                server->socket_path);
    if (r < 0)
        return error_set(err, r, "the daemon at %s cannot be reached: %s", server->socket_path, strerror(-r));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *ret_fd = fd;
    return 0;
}

// ---- sentences for what libcurl says ----

static int explain(const struct server *server, CURLcode code, const char *details, struct error *err)
{
    const char *words = details[0] != '\0' ? details : curl_easy_strerror(code);
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return error_set(err, -EHOSTUNREACH, "there is no host \"%s\"; is %s spelt right?", server->host,
                server->name);
    case CURLE_COULDNT_RESOLVE_PROXY:
        return error_set(err, -EHOSTUNREACH, "the proxy that HTTPS_PROXY names does not exist");
    case CURLE_COULDNT_CONNECT:
        return error_set(err, -ECONNREFUSED,
                "nothing listens at %s; is its daemon up (`ramet up --listen PORT` on that host) and the "
                "port right?",
                server->name);
    case CURLE_OPERATION_TIMEDOUT:
        return error_set(err, -ETIMEDOUT,
                "%s does not answer; is the address right, does a firewall let it through, is the daemon's "
                "process stopped?",
                server->name);
    case CURLE_PEER_FAILED_VERIFICATION:
        return error_set(err, -EPROTO,
                "the certificate of %s is not trusted (%s); name the right host, or the certificate's "
                "authority with --ca FILE",
                server->name, words);
    case CURLE_SSL_CACERT_BADFILE:
        return error_set(err, -EINVAL, "the certificates of --ca %s cannot be read: a PEM file is wanted",
                server->ca_file);
    case CURLE_SSL_CONNECT_ERROR:
        return error_set(err, -EPROTO,
                "no TLS connection to %s (%s); if its daemon listens without a certificate, write http://",
                server->name, words);
    default:
        return error_set(err, -EIO, "%s cannot be reached: %s", server->name, words);
    }
}

// ---- TCP and TLS ----

static void start_curl(void)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        abort();
}

static CURL *connect_curl(const struct server *server, struct error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char details[CURL_ERROR_SIZE] = "", url[512];
    pthread_once(&once, start_curl);
    CURL *curl = curl_easy_init();
    if (curl == NULL)
        abort();
    bool brackets = strchr(server->host, ':') != NULL, tls = server->kind == SERVER_TLS;
    snprintf(url, sizeof url, "%s://%s%s%s:%u/", tls ? "https" : "http", brackets ? "[" : "", server->host,
            brackets ? "]" : "", server->port);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECTION_SECS);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    // A proxy of the environment is gone through blindly, or not at all: our HTTP is for the daemon.
    curl_easy_setopt(curl, CURLOPT_HTTPPROXYTUNNEL, 1L);
    if (!tls)
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (server->ca_file[0] != '\0') {
        curl_easy_setopt(curl, CURLOPT_CAINFO, server->ca_file);
        curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
    }
    CURLcode code = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);
    if (code == CURLE_OK)
        return curl;
    curl_easy_cleanup(curl);
    explain(server, code, details, err);
    return NULL;
}

static int curl_socket(CURL *curl)
{
    curl_socket_t fd = -1;
    return curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &fd) == CURLE_OK ? (int)fd : -1;
}

// ---- TLS behind a descriptor ----

struct way {
    char bytes[BRIDGE_BYTES];
    size_t begin, end;
    bool ended; // nothing more comes
};

struct bridge {
    CURL *curl;
    int tls_fd, fd;
    struct way up, down; // to the daemon, from it
    bool broken;
};

// Each step moves what can be moved now, and says whether it moved anything.
static bool step_up(struct bridge *bridge)
{
    struct way *way = &bridge->up;
    if (way->begin == way->end && !way->ended) {
        ssize_t got = recv(bridge->fd, way->bytes, sizeof way->bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        way->ended = got <= 0;
        way->begin = 0;
        way->end = got > 0 ? (size_t)got : 0;
        return true;
    }
    size_t sent = 0;
    if (way->begin == way->end)
        return false;
    CURLcode code = curl_easy_send(bridge->curl, way->bytes + way->begin, way->end - way->begin, &sent);
    way->begin += sent;
    bridge->broken |= code != CURLE_OK && code != CURLE_AGAIN;
    return sent > 0;
}

static bool step_down(struct bridge *bridge)
{
    struct way *way = &bridge->down;
    if (way->begin == way->end && !way->ended) {
        size_t got = 0;
        CURLcode code = curl_easy_recv(bridge->curl, way->bytes, sizeof way->bytes, &got);
        if (code == CURLE_AGAIN)
            return false;
        way->ended = code != CURLE_OK || got == 0;
        way->begin = 0;
        way->end = way->ended ? 0 : got;
        return true;
    }
    if (way->begin == way->end)
        return false;
    ssize_t sent =
            send(bridge->fd, way->bytes + way->begin, way->end - way->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        bridge->broken |= errno != EAGAIN && errno != EINTR;
        return false;
    }
    way->begin += (size_t)sent;
    return sent > 0;
}

static void *run_bridge(void *argument)
{
    struct bridge *bridge = argument;
    while (!bridge->broken && !(bridge->down.ended && bridge->down.begin == bridge->down.end)) {
        bool moved = step_up(bridge);
        moved |= step_down(bridge);
        if (moved)
            continue;
        bool up = bridge->up.begin < bridge->up.end, down = bridge->down.begin < bridge->down.end;
        struct pollfd polls[2] = {
                {.fd = bridge->tls_fd, .events = (short)((down ? 0 : POLLIN) | (up ? POLLOUT : 0))},
                {.fd = bridge->fd,
                        .events = (short)((up || bridge->up.ended ? 0 : POLLIN) | (down ? POLLOUT : 0))}};
        poll(polls, 2, -1);
        if (polls[1].revents & (POLLHUP | POLLERR) && (up || bridge->up.ended))
            break; // the other end of it was closed
    }
    close(bridge->fd);
    curl_easy_cleanup(bridge->curl);
    free(bridge);
    return NULL;
}

static int start_bridge(CURL *curl, int *ret_fd, struct error *err)
{
    struct bridge *bridge = calloc(1, sizeof *bridge);
    pthread_t thread;
    pthread_attr_t attributes;
    int pair[2];
    if (bridge == NULL)
        abort();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        free(bridge);
        curl_easy_cleanup(curl);
        return error_set(err, -errno, "no sockets: %s", strerror(errno));
    }
    *bridge = (struct bridge){.curl = curl, .tls_fd = curl_socket(curl), .fd = pair[1]};
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    // Signals are the callers' business: a terminal waits for them with its own set.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&thread, &attributes, run_bridge, bridge);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (r < 0) {
        close(pair[0]);
        close(pair[1]);
        curl_easy_cleanup(curl);
        free(bridge);
        return error_set(err, r, "no thread for TLS: %s", strerror(-r));
    }
    *ret_fd = pair[0];
    return 0;
}

int connection_open(const struct server *server, int *ret_fd, struct error *err)
{
    if (server->kind == SERVER_UNIX)
        return open_unix(server, ret_fd, err);
    CURL *curl = connect_curl(server, err);
    if (curl == NULL)
        return err->code;
    if (server->kind == SERVER_TLS)
        return start_bridge(curl, ret_fd, err);
    int fd = fcntl(curl_socket(curl), F_DUPFD_CLOEXEC, 3), code = -errno;
    curl_easy_cleanup(curl);
    if (fd < 0)
        return error_set(err, code, "no descriptor for the connection: %s", strerror(-code));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *ret_fd = fd;
    return 0;
}
