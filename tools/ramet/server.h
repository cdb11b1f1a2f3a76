// SPDX-License-Identifier: Apache-2.0
// Which daemon is spoken to: one of this host by its unix socket, or any by URL and key.
//
// Threads: any, once it is made. A key is never printed.
#pragma once

#include "blockstore/error.h"

#include <limits.h>
#include <stdbool.h>

enum server_kind { SERVER_UNIX, SERVER_TCP, SERVER_TLS };
enum { SERVER_KEY_MAX = 512 };

struct server {
    enum server_kind kind;
    char name[PATH_MAX + 16]; // as sentences call it: the socket's path, or the URL
    char socket_path[PATH_MAX];
    char host[256], prefix[256]; // prefix: what stands before /v1, "" or "/path"
    unsigned port;
    char key[SERVER_KEY_MAX]; // "" = none
    char ca_file[PATH_MAX];   // "" = the system's certificates
};

void server_of_run_dir(const char *run_dir, struct server *ret_server);
// "http://HOST[:PORT][/PATH]", "https://...", "unix:///PATH/api.sock". -EINVAL with a sentence.
int server_parse(const char *url, struct server *ret_server, struct error *err);
// A key from the environment or a file. -EINVAL when it cannot be one.
int server_set_key(struct server *server, const char *key, const char *from, struct error *err);
int server_read_key(struct server *server, const char *file, struct error *err);
static inline bool server_is_remote(const struct server *server)
{
    return server->kind != SERVER_UNIX;
}
bool server_is_loopback(const struct server *server); // nobody else sees what is sent
