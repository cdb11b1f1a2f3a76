// SPDX-License-Identifier: Apache-2.0
// Runs nftables' own language; nobody else links to the library. A text is one transaction: all of it
// happens, or nothing.
//
// Threads: any that is not a loop; calls take turns (the library keeps tables of its own). Errors: -EPERM
// without the rights, -EOPNOTSUPP when the kernel lacks something, -ENOENT when a thing named is not there,
// -EINVAL otherwise; *err has the library's first line.
#pragma once

#include "blockstore/error.h"

// In the namespace of the thread that was the first to call one of these two: the daemon's.
int network_nft_run(const char *text, struct error *err);
// Calls each() with the text's answer lines ("list tables" and the like); the string is valid during the
// call.
int network_nft_list(
        const char *text, void (*each)(void *context, const char *line), void *context, struct error *err);
// In the namespace of the calling thread.
int network_nft_run_here(const char *text, struct error *err);
