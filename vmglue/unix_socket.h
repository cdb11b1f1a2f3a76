// SPDX-License-Identifier: Apache-2.0
// Unix sockets by path, and descriptors passed over them (SCM_RIGHTS).
//
// Paths of any length work: the directory is opened and the socket is addressed through /proc/self/fd.
// Threads: any. Descriptors are close-on-exec. Errors: -errno.
#pragma once

#include "blockstore/error.h"

#include <stddef.h>
#include <sys/types.h>

// type: SOCK_STREAM or SOCK_SEQPACKET, with SOCK_NONBLOCK if wanted. The socket takes the place of whatever
// bears that name, in one step, and has permissions `mode` before anybody can connect.
int unix_socket_listen(const char *path, int type, mode_t mode, int *ret_fd, struct error *err);
// -ENOENT and -ECONNREFUSED: nobody listens there.
int unix_socket_connect(const char *path, int type, int *ret_fd);
// One message (all its bytes), with a descriptor unless pass_fd is -1. No SIGPIPE.
int unix_socket_send(int fd, const void *bytes, size_t size, int pass_fd);
// One receive of at most capacity bytes: returns their number, 0 at the end. *ret_fd is the descriptor that
// came along (the caller's to close) or -1. Bytes or descriptors that did not fit: -EMSGSIZE, nothing is
// kept.
ssize_t unix_socket_receive(int fd, void *buffer, size_t capacity, int flags, int *ret_fd);
// As recorded by the kernel at connect. -errno.
int unix_socket_peer(int fd, pid_t *ret_pid, uid_t *ret_uid);
