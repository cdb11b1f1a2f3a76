// SPDX-License-Identifier: Apache-2.0
// What the keeper and its clients say to each other over RUNDIR/keeper.sock: seqpacket, one request, one
// reply, in the machine's byte order (both ends are on one machine). A descriptor travels with PUT's request
// and with GET's reply. A reader that meets another magic hangs up: the number changes with the layout.
#pragma once

#include "vmglue/keeper.h"

#include <stdint.h>

enum { KEEPER_MAGIC = 0x6b706d31 };
enum { KEEPER_REPLY_NAMES_MAX = 16 * 1024 };

enum keeper_op { KEEPER_PING = 1, KEEPER_PUT, KEEPER_GET, KEEPER_DROP, KEEPER_LIST, KEEPER_STOP };

struct keeper_request {
    uint32_t magic;
    uint16_t op;
    uint16_t name_bytes;        // LIST: names after this one; PING, STOP: 0
    char name[KEEPER_NAME_MAX]; // only name_bytes of it are sent
};

struct keeper_reply {
    uint32_t magic;
    int32_t result;                     // 0 or -errno
    uint32_t names_bytes;               // LIST: zero-terminated names one after the other, ascending
    uint32_t more;                      // LIST: ask again, after the last of these
    char names[KEEPER_REPLY_NAMES_MAX]; // only names_bytes of it are sent
};

#define KEEPER_REQUEST_HEAD offsetof(struct keeper_request, name)
#define KEEPER_REPLY_HEAD offsetof(struct keeper_reply, names)

_Static_assert(sizeof(struct keeper_request) == 8 + KEEPER_NAME_MAX, "keeper_request has no holes");
_Static_assert(sizeof(struct keeper_reply) == 16 + KEEPER_REPLY_NAMES_MAX, "keeper_reply has no holes");
