// SPDX-License-Identifier: Apache-2.0
// Compression of frames: zstd at a level, or raw where that saves less than an eighth. What was compressed is
// decompressed and compared before it is handed out, so that a fault of memory or library at that moment
// cannot become a stored one.
//
// Node blocks (512 little-endian locators) are transformed first: each locator becomes its difference from
// the one before (zigzag, so that small steps back are small too), and the bytes of the differences are laid
// out by significance: a leaf of consecutive locators becomes runs of one byte.
//
// Thread-safe; each thread keeps its own zstd contexts until it ends. Aborts on exhaustion of memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum codec { CODEC_RAW = 0, CODEC_ZSTD = 1, CODEC_ZSTD_NODES = 2 };
enum { CODEC_LEVEL_NODES = 3 }; // nodes are few and small: worth the time

// `size`: any, but with nodes a multiple of 4 KiB. Returns how many bytes of `to` (room: size) hold the
// result, and its codec. CODEC_RAW: nothing was written to `to`; store the blocks as they are.
size_t codec_compress(
        const void *blocks, size_t size, int level, enum codec wanted, void *to, enum codec *ret_codec);
// Exactly `size` bytes, or -EBADMSG.
int codec_decompress(const void *stored, size_t stored_bytes, enum codec codec, void *blocks, size_t size);
