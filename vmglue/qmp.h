// SPDX-License-Identifier: Apache-2.0
// Client of QEMU's machine protocol (QMP): commands that wait for their answer with a deadline, and events.
//
// Threads: qmp_execute from any threads at once, except from inside the event callback (answers are read by
// the same thread). Events are delivered by the connection's reader thread, in QEMU's order relative to
// answers. Errors: -ETIMEDOUT no answer in time (a late one is dropped; QEMU still does what was asked);
// -EPIPE the connection has ended; -EREMOTEIO QEMU refused, its words are in *err; -EPROTO the peer does not
// speak QMP.
#pragma once

#include "blockstore/error.h"
#include "vmglue/json.h"

struct qmp;

// name NULL: the connection has ended; nothing comes after it. `data` may be NULL and belongs to the caller
// of the callback.
typedef void (*qmp_event_callback)(void *context, const char *name, const json_t *data);

// Connects and waits for QEMU's greeting, which comes as soon as its main loop runs.
int qmp_connect(const char *socket_path, unsigned timeout_ms, qmp_event_callback on_event, void *context,
        struct qmp **ret_qmp, struct error *err);
struct qmp *qmp_close(struct qmp *qmp); // accepts NULL; not from the event callback; no event after it

// Takes over the reference to `arguments` (may be NULL). *ret_answer (may be NULL) is a new reference.
int qmp_execute(struct qmp *qmp, const char *command, json_t *arguments, unsigned timeout_ms,
        json_t **ret_answer, struct error *err);
// The same with a descriptor passed beside the command (getfd, add-fd); fd stays the caller's.
int qmp_execute_fd(struct qmp *qmp, const char *command, json_t *arguments, int fd, unsigned timeout_ms,
        json_t **ret_answer, struct error *err);
// Sends without waiting; the answer is dropped. QEMU runs commands in the order sent.
int qmp_send(struct qmp *qmp, const char *command, json_t *arguments, struct error *err);

// Waits until the peer has closed the connection and every event has been delivered. -ETIMEDOUT.
int qmp_wait_closed(struct qmp *qmp, unsigned timeout_ms);
