// SPDX-License-Identifier: Apache-2.0
// A stream of bytes to the daemon (libcurl, included by connection.c alone, finds the host, connects and does
// TLS; HTTP is ours). Whatever the transport, the result is a descriptor that can be polled: behind that of
// a TLS connection a thread moves bytes. There, and there alone, shutting down one direction is not passed
// on.
//
// Threads: any. Bounded: a host that does not answer fails after CONNECTION_SECS.
#pragma once

#include "tools/ramet/server.h"

enum { CONNECTION_SECS = 10 };

// *ret_fd: a blocking stream socket, close-on-exec, the caller's to close. -errno with the next step in *err.
int connection_open(const struct server *server, int *ret_fd, struct error *err);
