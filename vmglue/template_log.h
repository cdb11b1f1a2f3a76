// SPDX-License-Identifier: Apache-2.0
// The log of a template's build: text that is written by one thread while others read along. Bounded: of a
// long one the newest part is kept.
//
// Threads: any. Positions are bytes since the log began, also where the oldest were given up.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TEMPLATE_LOG_MAX_BYTES = 256 * 1024 };

struct template_log;

struct template_log *template_log_create(void);                      // aborts when there is no memory
struct template_log *template_log_destroy(struct template_log *log); // accepts NULL
void template_log_write(struct template_log *log, const char *bytes, size_t size);
// A line of its own.
__attribute__((format(printf, 2, 3))) void template_log_line(
        struct template_log *log, const char *format, ...);
void template_log_close(struct template_log *log); // nothing more will come
// What is there from *position on, which it moves. 0: closed and all was read; -EAGAIN: nothing came in
// wait_ms.
ssize_t template_log_read(
        struct template_log *log, uint64_t *position, char *buffer, size_t capacity, unsigned wait_ms);
// All that is kept; malloc'ed, zero-terminated.
char *template_log_text(struct template_log *log);
