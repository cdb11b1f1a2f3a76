// SPDX-License-Identifier: Apache-2.0
// What comes from a code context in the guest: lines of JSON (guest/context/README.md), made into the events
// and the Execution of the API. Nothing that comes is believed: every line, text, count and sum is bounded
// here again, and what has the wrong form ends the stream with -EPROTO.
//
// Threads: none kept; one thread at a time for each stream. Memory: at most CONTEXT_STREAM_LINE_MAX for a
// line that is not whole yet, and what an Execution may hold (CONTEXT_STREAM_TEXT_MAX of each output,
// CONTEXT_STREAM_RESULTS_MAX bytes and CONTEXT_STREAM_RESULT_COUNT_MAX pieces of results).
#pragma once

#include "blockstore/error.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    CONTEXT_STREAM_LINE_MAX = 20 << 20,
    CONTEXT_STREAM_TEXT_MAX = 8 << 20,
    CONTEXT_STREAM_RESULTS_MAX = 48 << 20,
    CONTEXT_STREAM_RESULT_COUNT_MAX = 2000,
};

struct context_stream;

// For each event of the run, as it comes: "started" {execution_count}, "stdout" and "stderr" {text},
// "result", "display" and "update_display" (a Result), "clear" {wait}, "error" {name, value, traceback}. The
// data is borrowed.
typedef void (*context_stream_event)(void *context, const char *event, const json_t *data);

// run: the name that the request carried; events of others are passed over. on_event may be NULL.
struct context_stream *context_stream_create(const char *run, context_stream_event on_event, void *context);
struct context_stream *context_stream_destroy(struct context_stream *stream); // accepts NULL
// Takes bytes. 1: the run has ended, and what came behind its end is dropped. 0: more must come. -EPROTO: no
// event of a context. What the context itself refuses: -EAGAIN busy, -EINVAL, -ENOTSUP it cannot run, with
// its sentence.
int context_stream_feed(struct context_stream *stream, const void *bytes, size_t size, struct error *err);
// The API's Execution, once the run has ended: a new reference.
json_t *context_stream_execution(const struct context_stream *stream);

// A line that answers another request than a run (status, interrupt, restart), as an object; -EPROTO and, for
// what is refused, as above.
int context_stream_answer(const char *line, size_t size, json_t **ret_answer, struct error *err);
