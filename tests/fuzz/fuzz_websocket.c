// SPDX-License-Identifier: Apache-2.0
// The WebSocket decoder over arbitrary bytes. Input: byte 0 says whether frames are masked (bit 0), byte 1
// the size of the pieces it is fed with. Whatever comes: the same answer in whatever pieces, and never more
// than one message kept.
#include "vmglue/websocket.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool right)
{
    if (!right)
        abort();
}

struct outcome {
    unsigned messages;
    uint64_t bytes;
    uint32_t mix;
    int code; // 0 = all was taken
};

static void note(struct outcome *outcome, const struct websocket_message *message)
{
    check(message->size <= WEBSOCKET_MESSAGE_MAX);
    check(message->opcode < WEBSOCKET_CLOSE || message->size <= 125);
    outcome->messages++;
    outcome->bytes += message->size;
    for (size_t i = 0; i < message->size; i++)
        outcome->mix = outcome->mix * 31 + message->bytes[i];
    outcome->mix = outcome->mix * 31 + message->opcode;
}

static struct outcome decode(const uint8_t *bytes, size_t size, size_t piece, bool masked)
{
    struct outcome outcome = {0};
    struct websocket websocket;
    websocket_init(&websocket, masked);
    while (size > 0 && outcome.code == 0) {
        struct websocket_message message;
        size_t taken, part = size < piece ? size : piece;
        int r = websocket_take(&websocket, bytes, part, &taken, &message);
        check(taken <= part && (r != 0 || taken == part));
        if (r > 0)
            note(&outcome, &message);
        outcome.code = r < 0 ? r : 0;
        check(r >= 0 || (r <= -1000 && r > -1015));
        bytes += taken;
        size -= taken;
        if (r > 0 && taken == 0)
            abort(); // a message comes with the last of its bytes
    }
    websocket_free(&websocket);
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct outcome whole = decode(data + 2, size - 2, size, data[0] & 1);
    struct outcome pieces = decode(data + 2, size - 2, data[1] + 1u, data[0] & 1);
    check(whole.messages == pieces.messages && whole.bytes == pieces.bytes && whole.mix == pieces.mix &&
            whole.code == pieces.code);
    return 0;
}
