// SPDX-License-Identifier: Apache-2.0
// Checked access to the fields of a JSON object that somebody else wrote. Every failure names the field and
// says what was expected.
//
// Threads: none kept. Ownership as in jansson: json_t is counted, *_set_new steals, strings returned belong
// to the object.
#pragma once

#include "blockstore/error.h"

#include "vmglue/json.h"
#include <stdbool.h>
#include <stdint.h>

// A field that may be missing or null leaves the value untouched and returns 0; present and right returns 1;
// of the wrong type or outside the limits returns -EINVAL with *err.
int json_fields_string(const json_t *object, const char *name, const char **ret_value, struct error *err);
int json_fields_bool(const json_t *object, const char *name, bool *ret_value, struct error *err);
int json_fields_uint(const json_t *object, const char *name, uint64_t minimum, uint64_t maximum,
        uint64_t *ret_value, struct error *err);
// A whole or broken number, as seconds, into milliseconds (rounded up).
int json_fields_seconds(
        const json_t *object, const char *name, double maximum, uint64_t *ret_ms, struct error *err);
// The same where 0 is allowed and means "none".
int json_fields_limit_secs(
        const json_t *object, const char *name, double maximum, uint64_t *ret_ms, struct error *err);
// An object whose values are all strings (labels, env).
int json_fields_string_map(
        const json_t *object, const char *name, const json_t **ret_value, struct error *err);

// -EINVAL with *err naming the first field of `object` that is not in the NULL-terminated list, or when it is
// no object.
int json_fields_check(const json_t *object, const char *const *known, struct error *err);

// Bytes that may be no text: valid UTF-8 stays, each bad byte becomes U+FFFD. Returns a new json string.
json_t *json_fields_text(const char *bytes, size_t size);
// Length of the longest start of bytes that does not end inside a character (to cut streams cleanly).
size_t json_fields_utf8_whole(const char *bytes, size_t size);
// RFC 3339 in UTC from nanoseconds since 1970; null for 0.
json_t *json_fields_time(uint64_t wall_ns);
// The member's text or number for people who only read ("" and 0 when missing): for the CLI and for stored
// docs.
const char *json_fields_get_text(const json_t *object, const char *name);
int64_t json_fields_get_int(const json_t *object, const char *name);
bool json_fields_get_bool(const json_t *object, const char *name);
