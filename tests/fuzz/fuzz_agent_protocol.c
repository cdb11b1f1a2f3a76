// SPDX-License-Identifier: Apache-2.0
// The agent protocol's decoder and cursor over arbitrary bytes.
// Input: byte 0 says how (bit 0: the rest is a raw byte stream, else instructions for building frames with
// junk between and damage; bit 1: the guest's side, which takes HELLO), byte 1 the size of the pieces the
// decoder is fed with.
#include "vmglue/agent_protocol.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIRE_MAX_BYTES = 1 << 18, EPOCH = 0x1122334455667788 & 0x7FFFFFFF };

static uint8_t wire[WIRE_MAX_BYTES];

static void check(bool right)
{
    if (!right)
        abort();
}

// All that a receiver reads from a payload, in one order that has each kind.
static void read_fields(const struct agent_frame *frame)
{
    struct agent_cursor fields = agent_cursor_over(frame->payload, frame->size);
    agent_cursor_u32(&fields);
    const char *string = agent_cursor_string(&fields);
    check(strlen(string) <= frame->size);
    agent_cursor_u64(&fields);
    uint32_t count = agent_cursor_u32(&fields);
    for (uint32_t i = 0; i < count && !fields.bad; i++)
        check(strlen(agent_cursor_string(&fields)) <= frame->size);
    const uint8_t *bytes = agent_cursor_bytes(&fields, agent_cursor_u8(&fields));
    check(bytes == NULL || (bytes >= frame->payload && bytes <= frame->payload + frame->size));
    check(fields.bad || fields.at <= fields.end);
}

static unsigned decode(const uint8_t *bytes, size_t size, size_t piece, bool guest)
{
    struct agent_decoder decoder;
    unsigned count = 0;
    uint64_t taken = 0;
    check(agent_decoder_init(&decoder, guest) == 0);
    decoder.epoch = EPOCH;
    for (size_t done = 0; done < size;) {
        size_t room, part = size - done < piece ? size - done : piece;
        void *space = agent_decoder_space(&decoder, &room);
        check(room > 0);
        part = part < room ? part : room;
        memcpy(space, bytes + done, part);
        agent_decoder_filled(&decoder, part);
        done += part;
        struct agent_frame frame;
        while (agent_decoder_next(&decoder, &frame)) {
            uint8_t header[AGENT_HEADER_BYTES];
            check(frame.size <= AGENT_PAYLOAD_MAX);
            check(frame.epoch == EPOCH || (guest && frame.type == AGENT_HELLO && frame.epoch != 0));
            agent_frame_header(&frame, header);
            check(memcmp(header, frame.payload - AGENT_HEADER_BYTES, sizeof header) == 0);
            read_fields(&frame);
            taken += AGENT_HEADER_BYTES + frame.size;
            count++;
        }
        check(decoder.skipped_bytes + taken + (decoder.end - decoder.start) == done);
    }
    agent_decoder_free(&decoder);
    return count;
}

// Instructions: length, junk length, damage; then the frame's payload and the junk. Returns how many frames
// are whole.
static unsigned build(const uint8_t *data, size_t size, size_t *ret_size)
{
    unsigned whole = 0;
    size_t at = 0;
    while (size >= 3 && at + AGENT_HEADER_BYTES + 512 < sizeof wire) {
        size_t length = data[0], junk = data[1] & 31, damage = data[2];
        data += 3;
        size -= 3;
        length = length < size ? length : size;
        struct agent_frame frame = {.epoch = EPOCH, .sequence = whole, .stream = 1, .type = AGENT_DATA};
        frame.size = (uint32_t)length;
        frame.payload = data;
        agent_frame_header(&frame, wire + at);
        memcpy(wire + at + AGENT_HEADER_BYTES, data, length);
        size_t total = AGENT_HEADER_BYTES + length;
        if (damage & 1)
            wire[at + (damage >> 1) % total] ^= 0x40;
        else
            whole++;
        at += total;
        data += length;
        size -= length;
        // Junk without the marker's first byte: it cannot begin what looks like a frame.
        for (size_t i = 0; i < junk && size > 0; i++, data++, size--)
            wire[at++] = *data == 0xF7 ? 0 : *data;
    }
    *ret_size = at;
    return whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    bool raw = data[0] & 1, guest = data[0] & 2;
    size_t piece = data[1] + 1u;
    if (raw) {
        decode(data + 2, size - 2, piece, guest);
        return 0;
    }
    size_t wire_size;
    unsigned whole = build(data + 2, size - 2, &wire_size);
    // Zeros end a damaged last frame, as the padding before a HELLO does.
    memset(wire + wire_size, 0, sizeof wire - wire_size);
    size_t padded = wire_size + AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX;
    padded = padded < sizeof wire ? padded : sizeof wire;
    unsigned found = decode(wire, padded, piece * 64, guest);
    check(found >= whole);
    return 0;
}
