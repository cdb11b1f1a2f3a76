// SPDX-License-Identifier: Apache-2.0
// A TCP socket for the API.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>

// text: "PORT", "ADDRESS:PORT" or "[ADDRESS]:PORT"; the address defaults to 127.0.0.1, port 0 = a free one.
// ("localhost" is 127.0.0.1.) *ret_address ("127.0.0.1:7480", malloc'ed) is what it listens on;
// *ret_loopback: only this host reaches it. It is bound, and nobody can connect yet.
int tcp_listen_bind(const char *text, int *ret_fd, char **ret_address, bool *ret_loopback, struct error *err);
int tcp_listen_open(int fd, struct error *err);
