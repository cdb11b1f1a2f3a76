// SPDX-License-Identifier: Apache-2.0
// A call that turns its connection into something else: a WebSocket, or a guest's port.
#pragma once

#include "tools/ramet/server.h"

#include <stddef.h>

// Asks, and reads the answer's head byte by byte, so that nothing behind it is taken. `lines`: further
// headers, each with its line end. 101: the connection is *ret_fd, and the head is in ret_head; everything
// else is -errno with the daemon's sentence.
int upgrade_open(const struct server *server, const char *path, const char *protocol, const char *lines,
        char *ret_head, size_t head_capacity, int *ret_fd, struct error *err);
