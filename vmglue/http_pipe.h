// SPDX-License-Identifier: Apache-2.0
// A bounded pipe of bytes between two threads: one writes, one reads. It is what lets a handler that blocks
// (on the guest, on the store) take a body or give an answer that no memory would hold.
//
// Threads: one writer, one reader, and anyone may break it. Errors: -EPIPE after http_pipe_break.
//
// A writer whose reader takes nothing waits for ever, unless it brings a question: `is_over(context)` is
// asked when it begins to wait and HTTP_PIPE_LOOK_MS after the last time, on its own thread and without the
// pipe's lock. True breaks the pipe. Who never waits is never asked: the last words fit in.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { HTTP_PIPE_LOOK_MS = 250 };

struct http_pipe;

struct http_pipe *http_pipe_create(size_t capacity_bytes);   // aborts when there is no memory
struct http_pipe *http_pipe_destroy(struct http_pipe *pipe); // both threads are done with it; accepts NULL
// Waits until all is taken. is_over may be NULL.
int http_pipe_write(struct http_pipe *pipe, const void *bytes, size_t size, bool (*is_over)(void *context),
        void *context);
void http_pipe_finish(struct http_pipe *pipe);      // the writer is done: the reader gets 0 at the end
void http_pipe_break(struct http_pipe *pipe);       // either side is gone: the other gets -EPIPE
void http_pipe_wait_reader(struct http_pipe *pipe); // until somebody has asked for a byte, or it is broken
bool http_pipe_is_broken(struct http_pipe *pipe);
// At least one byte, 0 at the end, or -EPIPE. With wait_ms > 0 also -EAGAIN when nothing came in that time.
ssize_t http_pipe_read(struct http_pipe *pipe, void *buffer, size_t capacity, unsigned wait_ms);
