// SPDX-License-Identifier: Apache-2.0
#include "vmglue/websocket.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// ---- SHA-1 (FIPS 180-4), which the handshake asks for; it protects nothing ----

static uint32_t rotate(uint32_t value, int bits)
{
    return value << bits | value >> (32 - bits);
}

static void sha1_block(uint32_t state[5], const uint8_t block[64])
{
    uint32_t words[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 16; i++) {
        memcpy(&words[i], block + 4 * i, 4);
        words[i] = be32toh(words[i]);
    }
    for (int i = 16; i < 80; i++)
        words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t mix = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999u
                       : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1u
                       : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDCu
                                : (b ^ c ^ d) + 0xCA62C1D6u;
        uint32_t next = rotate(a, 5) + mix + e + words[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

// Of at most 119 bytes: two blocks.
static void sha1_short(const void *bytes, size_t size, uint8_t ret_sum[20])
{
    uint32_t state[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    uint8_t blocks[128] = {0};
    size_t count = size < 56 ? 1 : 2;
    memcpy(blocks, bytes, size);
    blocks[size] = 0x80;
    uint64_t bits = htobe64((uint64_t)size * 8);
    memcpy(blocks + count * 64 - 8, &bits, 8);
    for (size_t i = 0; i < count; i++)
        sha1_block(state, blocks + 64 * i);
    for (int i = 0; i < 5; i++) {
        uint32_t word = htobe32(state[i]);
        memcpy(ret_sum + 4 * i, &word, 4);
    }
}

// ---- The handshake ----

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int websocket_accept(const char *key, char ret_accept[WEBSOCKET_KEY_BYTES])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455, 1.3
    char joined[24 + sizeof guid];
    uint8_t sum[21] = {0};
    if (strlen(key) != 24 || strspn(key, digits) != 22 || strcmp(key + 22, "==") != 0)
        return -EINVAL;
    memcpy(joined, key, 24);
    memcpy(joined + 24, guid, sizeof guid);
    sha1_short(joined, strlen(joined), sum);
    for (int i = 0, out = 0; i < 21; i += 3, out += 4) {
        uint32_t three = (uint32_t)sum[i] << 16 | (uint32_t)sum[i + 1] << 8 | sum[i + 2];
        for (int j = 0; j < 4; j++)
            ret_accept[out + j] = digits[three >> (18 - 6 * j) & 63];
    }
    ret_accept[27] = '='; // 20 bytes: the 21st is none
    ret_accept[28] = '\0';
    return 0;
}

// ---- Frames ----

size_t websocket_header(enum websocket_opcode opcode, size_t size, const uint8_t *mask,
        uint8_t ret_header[WEBSOCKET_HEADER_MAX])
{
    size_t used = 2;
    ret_header[0] = (uint8_t)(0x80 | opcode);
    if (size < 126) {
        ret_header[1] = (uint8_t)size;
    } else if (size < 65536) {
        uint16_t length = htobe16((uint16_t)size);
        ret_header[1] = 126;
        memcpy(ret_header + 2, &length, 2);
        used = 4;
    } else {
        uint64_t length = htobe64(size);
        ret_header[1] = 127;
        memcpy(ret_header + 2, &length, 8);
        used = 10;
    }
    if (mask == NULL)
        return used;
    ret_header[1] |= 0x80;
    memcpy(ret_header + used, mask, 4);
    return used + 4;
}

void websocket_mask(void *bytes, size_t size, const uint8_t mask[4], size_t offset)
{
    uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        at[i] ^= mask[(offset + i) % 4];
}

void websocket_init(struct websocket *websocket, bool masked)
{
    *websocket = (struct websocket){.masked = masked};
}

void websocket_free(struct websocket *websocket)
{
    free(websocket->message);
    websocket->message = NULL;
}

static size_t head_wanted(const struct websocket *websocket)
{
    if (websocket->head_size < 2)
        return 2;
    unsigned length = websocket->head[1] & 127;
    return 2 + (length == 126 ? 2 : length == 127 ? 8 : 0) + (websocket->masked ? 4 : 0);
}

static bool is_control(int opcode)
{
    return opcode >= WEBSOCKET_CLOSE;
}

// The first two bytes are there: what can be wrong is known before any more is waited for.
static int check_start(const struct websocket *websocket)
{
    int opcode = websocket->head[0] & 15;
    bool final = websocket->head[0] & 0x80,
         known = opcode <= WEBSOCKET_BINARY || (opcode >= WEBSOCKET_CLOSE && opcode <= WEBSOCKET_PONG);
    if (websocket->head[0] & 0x70 || !known || (websocket->head[1] >> 7) != websocket->masked)
        return -WEBSOCKET_CLOSE_PROTOCOL;
    if (is_control(opcode) && (!final || (websocket->head[1] & 127) > 125))
        return -WEBSOCKET_CLOSE_PROTOCOL;
    // A message is begun once and gone on with by frames of opcode 0.
    if (!is_control(opcode) && (opcode == 0) != (websocket->opcode != 0))
        return -WEBSOCKET_CLOSE_PROTOCOL;
    return 0;
}

static int begin_payload(struct websocket *websocket)
{
    const uint8_t *at = websocket->head + 2;
    unsigned length = websocket->head[1] & 127;
    uint64_t size = length;
    if (length == 126) {
        uint16_t value;
        memcpy(&value, at, 2);
        size = be16toh(value);
        at += 2;
    } else if (length == 127) {
        memcpy(&size, at, 8);
        size = be64toh(size);
        at += 8;
    }
    if ((length == 126 && size < 126) || (length == 127 && size < 65536)) // not the shortest form
        return -WEBSOCKET_CLOSE_PROTOCOL;
    int opcode = websocket->head[0] & 15;
    if (!is_control(opcode) && opcode != 0)
        websocket->size = 0; // what there was is an earlier message
    if (!is_control(opcode) && size > WEBSOCKET_MESSAGE_MAX - websocket->size)
        return -WEBSOCKET_CLOSE_TOO_BIG;
    if (websocket->masked)
        memcpy(websocket->mask, at, 4);
    websocket->masked_bytes = 0;
    websocket->left = size;
    websocket->in_payload = true;
    websocket->control_size = 0;
    if (is_control(opcode))
        return 0;
    if (opcode != 0)
        websocket->opcode = opcode;
    uint8_t *grown = realloc(websocket->message, websocket->size + (size_t)size + 1);
    if (grown == NULL)
        return -WEBSOCKET_CLOSE_TOO_BIG;
    websocket->message = grown;
    return 0;
}

// How many bytes follow the first one of a character (RFC 3629); 4 = it is none.
static size_t bytes_behind(uint8_t first)
{
    if (first < 0x80)
        return 0;
    if (first >= 0xC2 && first <= 0xDF)
        return 1;
    if ((first & 0xF0) == 0xE0)
        return 2;
    return first >= 0xF0 && first <= 0xF4 ? 3 : 4;
}

static bool is_text(const uint8_t *at, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t more = bytes_behind(at[i]);
        if (more > 3 || more >= size - i)
            return false;
        for (size_t j = 1; j <= more; j++)
            if ((at[i + j] & 0xC0) != 0x80)
                return false;
        if ((at[i] == 0xE0 && at[i + 1] < 0xA0) || (at[i] == 0xED && at[i + 1] > 0x9F) ||
                (at[i] == 0xF0 && at[i + 1] < 0x90) || (at[i] == 0xF4 && at[i + 1] > 0x8F))
            return false;
        i += more + 1;
    }
    return true;
}

static int check_close(const struct websocket *websocket)
{
    if (websocket->control_size == 0)
        return 0;
    unsigned code =
            websocket->control_size < 2 ? 0 : (unsigned)websocket->control[0] << 8 | websocket->control[1];
    bool known =
            (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code < 5000);
    if (!known || !is_text(websocket->control + 2, websocket->control_size - 2))
        return -WEBSOCKET_CLOSE_PROTOCOL;
    return 0;
}

// A frame is whole: 1 when it ends a message, or is a control frame.
static int end_frame(struct websocket *websocket, struct websocket_message *ret_message)
{
    int opcode = websocket->head[0] & 15;
    bool final = websocket->head[0] & 0x80;
    websocket->in_payload = false;
    websocket->head_size = 0;
    if (is_control(opcode)) {
        int result = opcode == WEBSOCKET_CLOSE ? check_close(websocket) : 0;
        *ret_message = (struct websocket_message){.opcode = (enum websocket_opcode)opcode,
                .bytes = websocket->control,
                .size = websocket->control_size};
        return result < 0 ? result : 1;
    }
    if (!final)
        return 0;
    *ret_message = (struct websocket_message){.opcode = (enum websocket_opcode)websocket->opcode,
            .bytes = websocket->message,
            .size = websocket->size};
    websocket->opcode = 0;
    if (ret_message->opcode == WEBSOCKET_TEXT && !is_text(ret_message->bytes, ret_message->size))
        return -WEBSOCKET_CLOSE_NO_TEXT;
    return 1;
}

static size_t take_payload(struct websocket *websocket, const uint8_t *bytes, size_t size)
{
    if (size > websocket->left)
        size = (size_t)websocket->left;
    bool control = is_control(websocket->head[0] & 15);
    uint8_t *to =
            control ? websocket->control + websocket->control_size : websocket->message + websocket->size;
    if (size > 0)
        memcpy(to, bytes, size);
    if (websocket->masked)
        websocket_mask(to, size, websocket->mask, (size_t)websocket->masked_bytes);
    websocket->masked_bytes += size;
    websocket->left -= size;
    if (control)
        websocket->control_size += size;
    else
        websocket->size += size;
    return size;
}

int websocket_take(struct websocket *websocket, const void *bytes, size_t size, size_t *ret_taken,
        struct websocket_message *ret_message)
{
    const uint8_t *at = bytes;
    size_t done = 0;
    int result = 0;
    while (result == 0 && (done < size || (websocket->in_payload && websocket->left == 0))) {
        if (!websocket->in_payload) {
            websocket->head[websocket->head_size++] = at[done++];
            if (websocket->head_size == 2)
                result = check_start(websocket);
            if (result == 0 && websocket->head_size >= 2 && websocket->head_size == head_wanted(websocket))
                result = begin_payload(websocket);
            continue;
        }
        done += take_payload(websocket, at + done, size - done);
        if (websocket->left == 0)
            result = end_frame(websocket, ret_message);
    }
    *ret_taken = done;
    return result;
}
