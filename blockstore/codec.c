// SPDX-License-Identifier: Apache-2.0
#include "blockstore/codec.h"

#include "blockstore/ids.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { NODE_SLOTS = BLOCK_SIZE / 8 };

struct contexts {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
    void *scratch; // one frame
    size_t scratch_bytes;
};

static pthread_key_t contexts_key;
static pthread_once_t contexts_once = PTHREAD_ONCE_INIT;

static void contexts_free(void *argument)
{
    struct contexts *contexts = argument;
    ZSTD_freeCCtx(contexts->compress);
    ZSTD_freeDCtx(contexts->decompress);
    free(contexts->scratch);
    free(contexts);
}

static void contexts_init(void)
{
    if (pthread_key_create(&contexts_key, contexts_free) != 0)
        abort();
}

static struct contexts *contexts_mine(void)
{
    pthread_once(&contexts_once, contexts_init);
    struct contexts *contexts = pthread_getspecific(contexts_key);
    if (contexts != NULL)
        return contexts;
    contexts = calloc(1, sizeof *contexts);
    if (contexts == NULL || pthread_setspecific(contexts_key, contexts) != 0)
        abort();
    return contexts;
}

static void *scratch(struct contexts *contexts, size_t size)
{
    if (contexts->scratch_bytes < size) {
        free(contexts->scratch);
        contexts->scratch = malloc(size);
        if (contexts->scratch == NULL)
            abort();
        contexts->scratch_bytes = size;
    }
    return contexts->scratch;
}

// ---- Nodes ----

static uint64_t load_u64(const uint8_t *bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static void node_split(const uint8_t *block, uint8_t *planes)
{
    uint64_t before = 0;
    for (unsigned slot = 0; slot < NODE_SLOTS; slot++) {
        uint64_t value = load_u64(block + (size_t)slot * 8), delta = value - before;
        uint64_t zigzag = delta << 1 ^ (0 - (delta >> 63));
        for (unsigned i = 0; i < 8; i++)
            planes[i * NODE_SLOTS + slot] = (uint8_t)(zigzag >> (8 * i));
        before = value;
    }
}

static void node_join(const uint8_t *planes, uint8_t *block)
{
    uint64_t value = 0;
    for (unsigned slot = 0; slot < NODE_SLOTS; slot++) {
        uint64_t zigzag = 0;
        for (unsigned i = 0; i < 8; i++)
            zigzag |= (uint64_t)planes[i * NODE_SLOTS + slot] << (8 * i);
        value += zigzag >> 1 ^ (0 - (zigzag & 1));
        for (unsigned i = 0; i < 8; i++)
            block[(size_t)slot * 8 + i] = (uint8_t)(value >> (8 * i));
    }
}

static void each_node(
        const void *from, void *to, size_t size, void (*transform)(const uint8_t *from, uint8_t *to))
{
    for (size_t at = 0; at < size; at += BLOCK_SIZE)
        transform((const uint8_t *)from + at, (uint8_t *)to + at);
}

// ---- Frames ----

size_t codec_compress(
        const void *blocks, size_t size, int level, enum codec wanted, void *to, enum codec *ret_codec)
{
    struct contexts *contexts = contexts_mine();
    if (contexts->compress == NULL && (contexts->compress = ZSTD_createCCtx()) == NULL)
        abort();
    *ret_codec = CODEC_RAW;
    const void *source = blocks;
    if (wanted == CODEC_ZSTD_NODES) {
        each_node(blocks, scratch(contexts, 2 * size), size, node_split);
        source = contexts->scratch;
    }
    size_t room = size - size / 8;
    size_t stored = ZSTD_compressCCtx(contexts->compress, to, room, source, size, level);
    if (ZSTD_isError(stored)) // it does not fit into the room
        return size;
    void *again = (uint8_t *)scratch(contexts, 2 * size) + size;
    if (contexts->decompress == NULL && (contexts->decompress = ZSTD_createDCtx()) == NULL)
        abort();
    // `source` may be the first half of the scratch, which nothing has moved: it had this size before.
    size_t back = ZSTD_decompressDCtx(contexts->decompress, again, size, to, stored);
    if (back != size || memcmp(again, source, size) != 0)
        return size;
    *ret_codec = wanted;
    return stored;
}

int codec_decompress(const void *stored, size_t stored_bytes, enum codec codec, void *blocks, size_t size)
{
    if (codec == CODEC_RAW) {
        if (stored_bytes != size)
            return -EBADMSG;
        memcpy(blocks, stored, size);
        return 0;
    }
    struct contexts *contexts = contexts_mine();
    if (contexts->decompress == NULL && (contexts->decompress = ZSTD_createDCtx()) == NULL)
        abort();
    void *to = codec == CODEC_ZSTD_NODES ? scratch(contexts, size) : blocks;
    size_t n = ZSTD_decompressDCtx(contexts->decompress, to, size, stored, stored_bytes);
    if (ZSTD_isError(n) || n != size)
        return -EBADMSG;
    if (codec == CODEC_ZSTD_NODES)
        each_node(to, blocks, size, node_join);
    return 0;
}
