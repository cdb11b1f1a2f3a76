// SPDX-License-Identifier: Apache-2.0
// Arguments of a verb: options may stand anywhere, "--" ends them, "--name=value" and "--name value" mean the
// same.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum args_kind { ARGS_FLAG, ARGS_TEXT, ARGS_NUMBER, ARGS_SIZE, ARGS_LIST };
enum { ARGS_LIST_MAX = 256 };

struct args_list {
    const char *items[ARGS_LIST_MAX];
    unsigned count;
};

struct args_option {
    const char *name; // without dashes; NULL ends the table
    char letter;      // 0 = none
    enum args_kind kind;
    void *target; // bool, const char *, uint64_t, uint64_t (bytes), struct args_list
};

struct args {
    const char **items; // what is no option, in order; NULL-terminated
    unsigned count;
};

// minimum and maximum of items; `stop_at` > 0: after that many items everything is an item (the command of
// exec). Returns 0, or -EINVAL with a sentence in message. items points into argv, which is put in order.
int args_parse(char **argv, const struct args_option *options, unsigned minimum, unsigned maximum,
        unsigned stop_at, const char *usage, struct args *ret_args, char *message, size_t message_size);
// "10G", "512M", "4096": powers of 1024. false: no size.
bool args_size(const char *text, uint64_t *ret_bytes);
// Only the options that stand before the first item. Returns how many words they are, or -EINVAL.
int args_take_options(char **argv, const struct args_option *options, char *message, size_t message_size);
