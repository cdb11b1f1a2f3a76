// SPDX-License-Identifier: Apache-2.0
// Moves bytes between two stream sockets, both ways, until both directions have ended.
//
// Threads: blocks the caller. At most 128 KiB wait for a slow side; a half-closed side is passed on.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// first: bytes that go to b before anything else. stop is asked four times a second; true = give up. Neither
// socket is closed. Errors on either end both.
void socket_pump_run(
        int a, int b, const void *first, size_t first_size, bool (*stop)(void *context), void *context);
