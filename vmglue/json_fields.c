// SPDX-License-Identifier: Apache-2.0
#include "vmglue/json_fields.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *type_name(const json_t *value)
{
    if (value == NULL)
        return "nothing that can be read";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a number";
    case JSON_REAL:
        return "a broken number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

// The member, or NULL when it is missing or null.
static const json_t *member(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static int wrong_type(struct error *err, const char *name, const char *wanted, const json_t *value)
{
    return error_set(err, -EINVAL, "field \"%s\" must be %s, but it is %s", name, wanted, type_name(value));
}

int json_fields_string(const json_t *object, const char *name, const char **ret_value, struct error *err)
{
    const json_t *value = member(object, name);
    if (value == NULL)
        return 0;
    if (!json_is_string(value))
        return wrong_type(err, name, "a string", value);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return error_set(
                err, -EINVAL, "field \"%s\" contains a zero character, which nothing here can hold", name);
    *ret_value = json_string_value(value);
    return 1;
}

int json_fields_bool(const json_t *object, const char *name, bool *ret_value, struct error *err)
{
    const json_t *value = member(object, name);
    if (value == NULL)
        return 0;
    if (!json_is_boolean(value))
        return wrong_type(err, name, "true or false", value);
    *ret_value = json_is_true(value);
    return 1;
}

int json_fields_uint(const json_t *object, const char *name, uint64_t minimum, uint64_t maximum,
        uint64_t *ret_value, struct error *err)
{
    const json_t *value = member(object, name);
    if (value == NULL)
        return 0;
    double real = json_real_value(value);
    bool whole = json_is_integer(value) || (json_is_real(value) && floor(real) == real && fabs(real) < 1e15);
    if (!whole)
        return wrong_type(err, name, "a whole number", value);
    json_int_t number = json_is_real(value) ? (json_int_t)real : json_integer_value(value);
    if (number < 0 || (uint64_t)number < minimum || (uint64_t)number > maximum)
        return error_set(err, -EINVAL, "field \"%s\" is %lld; it must be from %llu to %llu", name,
                (long long)number, (unsigned long long)minimum, (unsigned long long)maximum);
    *ret_value = (uint64_t)number;
    return 1;
}

int json_fields_seconds(
        const json_t *object, const char *name, double maximum, uint64_t *ret_ms, struct error *err)
{
    const json_t *value = member(object, name);
    if (value == NULL)
        return 0;
    if (!json_is_number(value))
        return wrong_type(err, name, "a number of seconds", value);
    double seconds = json_number_value(value);
    if (!(seconds > 0) || seconds > maximum)
        return error_set(err, -EINVAL, "field \"%s\" is %.15g; it must be above 0 and at most %.15g seconds",
                name, seconds, maximum);
    *ret_ms = (uint64_t)ceil(seconds * 1000);
    return 1;
}

int json_fields_limit_secs(
        const json_t *object, const char *name, double maximum, uint64_t *ret_ms, struct error *err)
{
    const json_t *value = member(object, name);
    if (value == NULL)
        return 0;
    if (!json_is_number(value))
        return wrong_type(err, name, "a number of seconds", value);
    double seconds = json_number_value(value);
    if (!(seconds >= 0) || seconds > maximum)
        return error_set(err, -EINVAL,
                "field \"%s\" is %.15g; it must be from 0 (none) to %.0f seconds (a hundred years)", name,
                seconds, maximum);
    *ret_ms = (uint64_t)ceil(seconds * 1000);
    return 1;
}

int json_fields_string_map(
        const json_t *object, const char *name, const json_t **ret_value, struct error *err)
{
    const json_t *map = member(object, name), *value;
    const char *key;
    if (map == NULL)
        return 0;
    if (!json_is_object(map))
        return wrong_type(err, name, "an object of strings", map);
    json_object_foreach((json_t *)map, key, value)
    {
        if (!json_is_string(value))
            return error_set(err, -EINVAL,
                    "field \"%s\": the value of \"%.60s\" must be a string, but it is %s", name, key,
                    type_name(value));
        if (strlen(json_string_value(value)) != json_string_length(value))
            return error_set(err, -EINVAL, "field \"%s\": the value of \"%.60s\" contains a zero character",
                    name, key);
    }
    *ret_value = map;
    return 1;
}

int json_fields_check(const json_t *object, const char *const *known, struct error *err)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(object))
        return error_set(
                err, -EINVAL, "the request's body must be a JSON object, but it is %s", type_name(object));
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] != NULL)
            continue;
        char list[300] = "";
        for (size_t k = 0, used = 0; known[k] != NULL && used < sizeof list; k++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", k == 0 ? "" : ", ", known[k]);
        return error_set(err, -EINVAL, "unknown field \"%.60s\"; this call knows: %s", key,
                list[0] == '\0' ? "no fields at all" : list);
    }
    return 0;
}

// Length of the character at bytes: 1 to 4; 0 when the bytes are no UTF-8; -1 when they stop inside one.
static int character_length(const unsigned char *bytes, size_t size)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (bytes[0] < 0x80)
        return 1;
    int length = (bytes[0] & 0xe0) == 0xc0   ? 2
                 : (bytes[0] & 0xf0) == 0xe0 ? 3
                 : (bytes[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    if (length == 0)
        return 0;
    uint32_t code = bytes[0] & (0xff >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= size)
            return -1;
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (bytes[i] & 0x3f);
    }
    return code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : length;
}

size_t json_fields_utf8_whole(const char *bytes, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char byte = (unsigned char)bytes[size - back];
        if ((byte & 0xc0) == 0x80)
            continue;
        if (byte >= 0xc0 && character_length((const unsigned char *)bytes + size - back, back) < 0)
            return size - back;
        break;
    }
    return size;
}

json_t *json_fields_text(const char *bytes, size_t size)
{
    char *text = malloc(size * 3 + 1);
    if (text == NULL)
        return NULL;
    size_t used = 0;
    for (size_t i = 0; i < size;) {
        int length = character_length((const unsigned char *)bytes + i, size - i);
        if (length > 0) {
            memcpy(text + used, bytes + i, (size_t)length);
            used += (size_t)length;
            i += (size_t)length;
        } else {
            memcpy(text + used, "\xef\xbf\xbd", 3);
            used += 3;
            i++;
        }
    }
    json_t *string = json_stringn_nocheck(text, used);
    free(text);
    return string;
}

json_t *json_fields_time(uint64_t wall_ns)
{
    if (wall_ns == 0)
        return json_null();
    time_t seconds = (time_t)(wall_ns / 1000000000u);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    char date[40], text[64];
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, sizeof text, "%s.%03uZ", date, (unsigned)(wall_ns / 1000000u % 1000u));
    return json_string(text);
}

const char *json_fields_get_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text == NULL ? "" : text;
}

int64_t json_fields_get_int(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

bool json_fields_get_bool(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}
