// SPDX-License-Identifier: Apache-2.0
#include "vmglue/context_stream.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIMES_MAX = 64, NAME_MAX_BYTES = 256 };

// Content of a Result by its MIME type; others stand in "extra".
static const struct {
    const char *mime, *field;
} contents[] = {{"text/plain", "text"}, {"text/html", "html"}, {"text/markdown", "markdown"},
        {"image/svg+xml", "svg"}, {"image/png", "png"}, {"image/jpeg", "jpeg"}, {"application/pdf", "pdf"},
        {"text/latex", "latex"}, {"application/json", "json"}, {"application/javascript", "javascript"},
        {"application/vnd.plotly.v1+json", "plotly"}};

struct text {
    char *bytes;
    size_t size, capacity;
};

struct context_stream {
    char *run;
    context_stream_event on_event;
    void *context;
    struct text line; // what has come of a line
    struct text out[2];
    json_t *results; // of Result objects, with how much each takes of result_bytes
    size_t sizes[CONTEXT_STREAM_RESULT_COUNT_MAX], result_bytes;
    json_t *error, *done, *main_text;
    json_int_t execution_count, sequence;
    bool truncated, clear_waits, ended;
};

static int broken(struct error *err, const char *what)
{
    return error_set(err, -EPROTO,
            "the code context in the guest sent %s; restart it (`ramet context restart NAME`)", what);
}

// As far as limit goes; false when that was not all.
static bool append(struct text *text, const char *bytes, size_t size, size_t limit)
{
    size_t taken = size <= limit - text->size ? size : limit - text->size;
    if (text->size + taken > text->capacity) {
        size_t capacity = text->capacity < 4096 ? 4096 : text->capacity;
        while (capacity < text->size + taken)
            capacity *= 2;
        text->bytes = realloc(text->bytes, capacity);
        if (text->bytes == NULL)
            abort();
        text->capacity = capacity;
    }
    if (taken > 0)
        memcpy(text->bytes + text->size, bytes, taken);
    text->size += taken;
    return taken == size;
}

struct context_stream *context_stream_create(const char *run, context_stream_event on_event, void *context)
{
    struct context_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        abort();
    stream->run = strdup(run);
    stream->on_event = on_event;
    stream->context = context;
    stream->results = json_array();
    return stream;
}

struct context_stream *context_stream_destroy(struct context_stream *stream)
{
    if (stream == NULL)
        return NULL;
    free(stream->run);
    free(stream->line.bytes);
    free(stream->out[0].bytes);
    free(stream->out[1].bytes);
    json_decref(stream->results);
    json_decref(stream->error);
    json_decref(stream->done);
    json_decref(stream->main_text);
    free(stream);
    return NULL;
}

static json_t *parse(const char *line, size_t size)
{
    json_t *json = json_loadb(line, size, JSON_ALLOW_NUL, NULL);
    if (json_is_object(json) && json_is_string(json_object_get(json, "event")))
        return json;
    json_decref(json);
    return NULL;
}

static int refusal(const json_t *event, struct error *err)
{
    const char *code = json_fields_get_text(event, "code");
    const char *message = json_fields_get_text(event, "message");
    int number = strcmp(code, "busy") == 0 ? -EAGAIN : strcmp(code, "unavailable") == 0 ? -ENOTSUP : -EINVAL;
    return error_set(err, number, "%.480s", message[0] == '\0' ? "the code context refused that" : message);
}

int context_stream_answer(const char *line, size_t size, json_t **ret_answer, struct error *err)
{
    json_t *event = parse(line, size);
    if (event == NULL)
        return broken(err, "an answer that is none");
    if (strcmp(json_fields_get_text(event, "event"), "answer") == 0) {
        *ret_answer = event;
        return 0;
    }
    int r = strcmp(json_fields_get_text(event, "event"), "refused") == 0
                    ? refusal(event, err)
                    : broken(err, "an event where an answer was due");
    json_decref(event);
    return r;
}

// A new string of an event's text field, cut to limit; "" when it is none.
static json_t *text_field(const json_t *event, const char *name, size_t limit)
{
    const json_t *value = json_object_get(event, name);
    size_t size = json_is_string(value) ? json_string_length(value) : 0;
    const char *bytes = json_is_string(value) ? json_string_value(value) : "";
    if (size > limit)
        size = json_fields_utf8_whole(bytes, limit);
    return json_stringn(bytes, size);
}

static void give(struct context_stream *stream, const char *event, json_t *data)
{
    if (stream->on_event != NULL)
        stream->on_event(stream->context, event, data);
}

// clear_output(wait=True): what is there goes when something new comes.
static void clear(struct context_stream *stream)
{
    stream->out[0].size = stream->out[1].size = 0;
    json_array_clear(stream->results);
    stream->result_bytes = 0;
    stream->clear_waits = false;
    json_decref(stream->main_text);
    stream->main_text = NULL;
}

static void take_text(struct context_stream *stream, const char *kind, const json_t *event)
{
    JSON_AUTO json_t *text = text_field(event, "text", CONTEXT_STREAM_LINE_MAX);
    if (json_string_length(text) == 0)
        return;
    if (stream->clear_waits)
        clear(stream);
    struct text *out = &stream->out[strcmp(kind, "stderr") == 0];
    const char *bytes = json_string_value(text);
    if (!append(out, bytes, json_string_length(text), CONTEXT_STREAM_TEXT_MAX)) {
        stream->truncated = true;
        out->size = json_fields_utf8_whole(out->bytes, out->size);
    }
    JSON_AUTO json_t *data = json_pack("{s:O}", "text", text);
    give(stream, kind, data);
}

static json_t *make_result(const char *kind, const json_t *event, const json_t *bundle)
{
    json_t *result = json_pack("{s:s}", "type", strcmp(kind, "result") == 0 ? "result" : "display");
    json_t *extra = json_object(), *value;
    const char *mime;
    unsigned count = 0;
    json_object_foreach((json_t *)bundle, mime, value)
    {
        size_t i = 0, known = sizeof contents / sizeof contents[0];
        while (i < known && strcmp(contents[i].mime, mime) != 0)
            i++;
        if (++count > MIMES_MAX || strlen(mime) > NAME_MAX_BYTES)
            break;
        if (i < known)
            json_object_set(result, contents[i].field, value);
        else
            json_object_set(extra, mime, value);
    }
    if (json_object_size(extra) > 0)
        json_object_set(result, "extra", extra);
    json_decref(extra);
    if (json_is_string(json_object_get(event, "display_id")))
        json_object_set_new(result, "display_id", text_field(event, "display_id", NAME_MAX_BYTES));
    if (json_is_true(json_object_get(event, "truncated")))
        json_object_set_new(result, "truncated", json_true());
    return result;
}

// The place of the results that an update goes to, or their end.
static size_t place_of(const struct context_stream *stream, const json_t *result)
{
    const json_t *id = json_object_get(result, "display_id"), *each;
    size_t i;
    json_array_foreach(stream->results, i, each)
    {
        if (id != NULL && json_equal(json_object_get(each, "display_id"), id))
            return i;
    }
    return json_array_size(stream->results);
}

static int take_result(
        struct context_stream *stream, const char *kind, const json_t *event, size_t size, struct error *err)
{
    const json_t *bundle = json_object_get(event, "data");
    if (!json_is_object(bundle))
        return broken(err, "a result without content");
    if (stream->clear_waits)
        clear(stream);
    JSON_AUTO json_t *result = make_result(kind, event, bundle);
    bool update = strcmp(kind, "update_display") == 0;
    size_t place = update ? place_of(stream, result) : json_array_size(stream->results);
    bool replaces = place < json_array_size(stream->results);
    size_t before = replaces ? stream->sizes[place] : 0;
    bool fits = place < CONTEXT_STREAM_RESULT_COUNT_MAX &&
                size <= CONTEXT_STREAM_RESULTS_MAX - stream->result_bytes + before;
    if (fits) {
        stream->result_bytes += size - before;
        stream->sizes[place] = size;
        if (replaces)
            json_array_set(stream->results, place, result);
        else
            json_array_append(stream->results, result);
    }
    stream->truncated |= !fits;
    if (strcmp(kind, "result") == 0 && fits && json_is_string(json_object_get(result, "text"))) {
        json_decref(stream->main_text);
        stream->main_text = json_incref(json_object_get(result, "text"));
    }
    give(stream, kind, result);
    return 0;
}

static void take_error(struct context_stream *stream, const json_t *event)
{
    enum { LIMIT = 2 << 20 };
    json_decref(stream->error);
    stream->error = json_pack("{s:o, s:o, s:o}", "name", text_field(event, "name", 1024), "value",
            text_field(event, "value", LIMIT), "traceback", text_field(event, "traceback", LIMIT));
    give(stream, "error", stream->error);
}

static int take_event(struct context_stream *stream, const json_t *event, size_t size, struct error *err)
{
    const char *kind = json_fields_get_text(event, "event");
    if (strcmp(json_fields_get_text(event, "run"), stream->run) != 0)
        return 0; // the answer to an interrupt, or another's
    if (strcmp(kind, "refused") == 0)
        return refusal(event, err);
    if (json_fields_get_int(event, "seq") != ++stream->sequence)
        return broken(err, "its events out of order");
    if (strcmp(kind, "started") == 0) {
        stream->execution_count = json_fields_get_int(event, "execution_count");
        JSON_AUTO json_t *data = json_pack("{s:I}", "execution_count", stream->execution_count);
        give(stream, kind, data);
    } else if (strcmp(kind, "stdout") == 0 || strcmp(kind, "stderr") == 0) {
        take_text(stream, kind, event);
    } else if (strcmp(kind, "result") == 0 || strcmp(kind, "display") == 0 ||
               strcmp(kind, "update_display") == 0) {
        return take_result(stream, kind, event, size, err);
    } else if (strcmp(kind, "clear") == 0) {
        bool wait = json_is_true(json_object_get(event, "wait"));
        JSON_AUTO json_t *data = json_pack("{s:b}", "wait", (int)wait);
        stream->clear_waits = wait;
        if (!wait)
            clear(stream);
        give(stream, kind, data);
    } else if (strcmp(kind, "error") == 0) {
        take_error(stream, event);
    } else if (strcmp(kind, "done") == 0) {
        stream->done = json_incref((json_t *)event);
        stream->ended = true;
    } else {
        return broken(err, "an event of no known kind");
    }
    return 0;
}

int context_stream_feed(struct context_stream *stream, const void *bytes, size_t size, struct error *err)
{
    const char *next = bytes, *end = next + size;
    while (next < end && !stream->ended) {
        const char *newline = memchr(next, '\n', (size_t)(end - next));
        size_t piece = newline == NULL ? (size_t)(end - next) : (size_t)(newline - next);
        if (!append(&stream->line, next, piece, CONTEXT_STREAM_LINE_MAX))
            return broken(err, "a line that does not end");
        if (newline == NULL)
            return 0;
        next = newline + 1;
        JSON_AUTO json_t *event = parse(stream->line.bytes, stream->line.size);
        int r = event == NULL ? broken(err, "a line that is no event")
                              : take_event(stream, event, stream->line.size, err);
        stream->line.size = 0;
        if (r < 0)
            return r;
    }
    return stream->ended ? 1 : 0;
}

static json_t *as_string(const struct text *text)
{
    return text->size == 0 ? json_string("") : json_stringn(text->bytes, text->size);
}

json_t *context_stream_execution(const struct context_stream *stream)
{
    const json_t *done = stream->done;
    bool truncated = stream->truncated || json_fields_get_bool(done, "truncated");
    json_t *json = json_pack("{s:o, s:o, s:O?, s:O?, s:O, s:I, s:I, s:b, s:b, s:b}", "stdout",
            as_string(&stream->out[0]), "stderr", as_string(&stream->out[1]), "text", stream->main_text,
            "error", stream->error, "results", stream->results, "execution_count", stream->execution_count,
            "duration_ms", (json_int_t)json_fields_get_int(done, "duration_ms"), "timed_out",
            (int)json_fields_get_bool(done, "timed_out"), "interrupted",
            (int)json_fields_get_bool(done, "interrupted"), "truncated", (int)truncated);
    static const char *const numbers[] = {"exit_code", "signal", NULL};
    for (size_t i = 0; numbers[i] != NULL; i++)
        if (json_is_integer(json_object_get(done, numbers[i])))
            json_object_set_new(json, numbers[i], json_integer(json_fields_get_int(done, numbers[i])));
    if (json_fields_get_bool(done, "out_of_memory"))
        json_object_set_new(json, "out_of_memory", json_true());
    json_object_set_new(json, "state_lost",
            json_is_string(json_object_get(done, "state_lost")) ? text_field(done, "state_lost", 2048)
                                                                : json_null());
    return json;
}
