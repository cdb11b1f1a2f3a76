// SPDX-License-Identifier: Apache-2.0
// A sentence for a person, beside the errno for the program.
//
// Calls return >= 0 on success and -errno on failure. Fixed meanings in the whole project:
//   -EBADMSG  stored bytes do not match their checksum      -EPROTO  format newer than this program
//   -ENOSPC   no room (budget or file system)               -EBUSY   in use by somebody else
//   -ENOENT   no such thing    -EEXIST  name taken          -ESTALE  the store has failed and stopped writing
// Control calls that face a person also take a last `struct error *` (may be NULL) that is filled on failure.
// Threads: any; an error is its caller's.
#pragma once

struct error {
    int code;       // -errno
    char text[512]; // what is wrong, where, and what to do next; no newline
};

// Fills *err (if not NULL) with a formatted sentence and returns `code` (a negative errno).
__attribute__((format(printf, 3, 4))) int error_set(struct error *err, int code, const char *format, ...);
// Puts "PREFIX: " before the text already in *err and returns its code.
__attribute__((format(printf, 2, 3))) int error_prefix(struct error *err, const char *format, ...);
