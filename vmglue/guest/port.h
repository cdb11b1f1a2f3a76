// SPDX-License-Identifier: Apache-2.0
// The byte stream to the host: the virtio-serial port named agent.0, or in tests a unix socket that takes one
// connection after another. Decodes frames, keeps the session's epoch and sequence, and queues what is sent.
#pragma once

#include "vmglue/agent_protocol.h"

// frame: a whole frame of the present session, or a HELLO; type AGENT_BROKEN: frames were lost and the
// session is over. Its payload is valid during the call.
typedef void port_frame_handler(const struct agent_frame *frame);
// Called when queued bytes went out and there is room for output again; from the loop, never inside of
// port_send.
typedef void port_room_handler(void);

int port_open_virtio(const char *name, port_frame_handler *on_frame, port_room_handler *on_room);
int port_open_socket(const char *path, port_frame_handler *on_frame, port_room_handler *on_room);

// Drops all that is queued and goes on with the new epoch, sequences at 0 (epoch 0 = no session: nothing is
// sent).
void port_session(uint64_t epoch);
// Queues a frame. Control frames always find room; output must ask port_has_room first.
void port_send(uint16_t type, uint16_t flags, uint32_t stream, const void *payload, size_t size);
bool port_has_room(void);
bool port_drained(void); // all that was queued was handed to the transport
