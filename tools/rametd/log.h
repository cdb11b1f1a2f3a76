// SPDX-License-Identifier: Apache-2.0
// The daemon's log: one line per message on stderr, with the time. Threads: any.
#pragma once

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);
