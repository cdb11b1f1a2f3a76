// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy_head.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "vmglue/hex.h"

static bool is_token_character(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

bool proxy_head_is_name(const char *name, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!is_token_character((unsigned char)name[i]))
            return false;
    return size > 0 && size <= 256;
}

bool proxy_head_is_value(const char *value, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)value[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

ssize_t proxy_head_size(const char *bytes, size_t size)
{
    size_t look = size < PROXY_HEAD_MAX ? size : PROXY_HEAD_MAX;
    const char *end = memmem(bytes, look, "\r\n\r\n", 4);
    if (end != NULL)
        return end - bytes + 4;
    return size >= PROXY_HEAD_MAX ? -EMSGSIZE : 0;
}

// "HTTP/1.1 200 OK"; *ret_minor is the digit after the dot.
static int parse_status(const char *line, struct proxy_answer *answer, int *ret_minor, struct error *err)
{
    bool good = strncmp(line, "HTTP/1.", 7) == 0 && (line[7] == '0' || line[7] == '1') && line[8] == ' ';
    for (int i = 9; good && i < 12; i++)
        good = line[i] >= '0' && line[i] <= '9';
    if (!good || line[9] == '0' || (line[12] != ' ' && line[12] != '\0') ||
            !proxy_head_is_value(line, strlen(line)))
        return error_set(
                err, -EPROTO, "its first line is not that of an HTTP/1 answer, such as HTTP/1.1 200 OK");
    *ret_minor = line[7] - '0';
    answer->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    return 0;
}

static int parse_field(char *line, size_t size, struct proxy_answer *answer, struct error *err)
{
    char *colon = memchr(line, ':', size);
    if (line[0] == ' ' || line[0] == '\t')
        return error_set(err, -EPROTO, "a header goes on over two lines, which is not allowed any more");
    if (colon == NULL || !proxy_head_is_name(line, (size_t)(colon - line)))
        return error_set(
                err, -EPROTO, "header %u has no proper name before a colon", answer->field_count + 1);
    *colon = '\0';
    char *value = colon + 1, *end = line + size;
    while (*value == ' ' || *value == '\t')
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    if (!proxy_head_is_value(value, (size_t)(end - value)))
        return error_set(err, -EPROTO, "header %.60s holds control characters", line);
    if (answer->field_count == PROXY_FIELDS_MAX)
        return error_set(err, -EPROTO, "it has more than %d headers", PROXY_FIELDS_MAX);
    answer->fields[answer->field_count++] = (struct proxy_field){line, value};
    return 0;
}

const char *proxy_head_field(const struct proxy_answer *answer, const char *name)
{
    for (unsigned i = 0; i < answer->field_count; i++)
        if (strcasecmp(answer->fields[i].name, name) == 0)
            return answer->fields[i].value;
    return NULL;
}

static int parse_length(const char *value, uint64_t *ret_length)
{
    uint64_t length = 0;
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || value[digits] != '\0' || digits > 18)
        return -EPROTO;
    for (size_t i = 0; i < digits; i++)
        length = length * 10 + (uint64_t)(value[i] - '0');
    *ret_length = length;
    return 0;
}

// RFC 9112, section 6.3. What would be an answer to some readers and two answers to others is none.
static int find_framing(struct proxy_answer *answer, const char *method, int minor, struct error *err)
{
    bool chunked = false;
    for (unsigned i = 0; i < answer->field_count; i++) {
        const struct proxy_field *field = &answer->fields[i];
        uint64_t length;
        if (strcasecmp(field->name, "Content-Length") == 0) {
            if (parse_length(field->value, &length) < 0 || (answer->has_length && answer->length != length))
                return error_set(err, -EPROTO, "its Content-Length is not one number");
            answer->has_length = true;
            answer->length = length;
        } else if (strcasecmp(field->name, "Transfer-Encoding") == 0) {
            if (chunked || strcasecmp(field->value, "chunked") != 0 || minor == 0)
                return error_set(err, -EPROTO, "its Transfer-Encoding is not just \"chunked\"");
            chunked = true;
        }
    }
    if (chunked && answer->has_length)
        return error_set(err, -EPROTO, "it has both Content-Length and Transfer-Encoding");
    if (strcmp(method, "HEAD") == 0 || answer->status < 200 || answer->status == 204 || answer->status == 304)
        answer->framing = PROXY_NO_BODY;
    else
        answer->framing = chunked ? PROXY_CHUNKED : answer->has_length ? PROXY_LENGTH : PROXY_UNTIL_CLOSE;
    return 0;
}

int proxy_head_parse(
        char *head, size_t size, const char *method, struct proxy_answer *ret_answer, struct error *err)
{
    struct proxy_answer answer = {0};
    int minor = 0, r = 0;
    char *line = head, *end = head + size - 2; // without the empty line
    if (size < 4 || memchr(head, '\0', size) != NULL)
        return error_set(err, -EPROTO, "its head holds zero bytes");
    for (bool first = true; r == 0 && line < end; first = false) {
        char *stop = memmem(line, (size_t)(end - line), "\r\n", 2);
        if (stop == NULL)
            return error_set(err, -EPROTO, "its head ends in the middle of a line");
        *stop = '\0';
        r = first ? parse_status(line, &answer, &minor, err)
                  : parse_field(line, (size_t)(stop - line), &answer, err);
        line = stop + 2;
    }
    if (r == 0 && answer.status == 0)
        r = error_set(err, -EPROTO, "it has no first line");
    if (r == 0)
        r = find_framing(&answer, method, minor, err);
    if (r == 0)
        *ret_answer = answer;
    return r;
}

bool proxy_head_lists(const char *list, const char *name)
{
    size_t size = strlen(name);
    while (*list != '\0') {
        list += strspn(list, " \t,");
        size_t word = strcspn(list, " \t,");
        if (word == size && strncasecmp(list, name, size) == 0)
            return true;
        list += word;
    }
    return false;
}

bool proxy_head_is_hop(const char *name, const char *connection)
{
    static const char *const hops[] = {"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate",
            "Proxy-Authorization", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "HTTP2-Settings", NULL};
    for (size_t i = 0; hops[i] != NULL; i++)
        if (strcasecmp(name, hops[i]) == 0)
            return true;
    return proxy_head_lists(connection, name);
}

// ---- chunks ----

enum { IN_SIZE, IN_EXTENSION, SIZE_LF, IN_BODY, BODY_CR, BODY_LF, IN_TRAILER, TRAILER_LF, ENDED };

static int take_size(struct proxy_chunks *chunks, char c)
{
    int digit = hex_digit(c);
    if (chunks->state == IN_SIZE && digit >= 0) {
        if (chunks->left >> 56 != 0)
            return -EPROTO;
        chunks->left = chunks->left << 4 | (uint64_t)digit;
        chunks->digits = true;
        return 0;
    }
    if (!chunks->digits || (c == '\n'))
        return -EPROTO;
    if (c == '\r')
        chunks->state = SIZE_LF;
    else if (chunks->state == IN_EXTENSION || c == ';' || c == ' ' || c == '\t')
        chunks->state = IN_EXTENSION;
    else
        return -EPROTO;
    return 0;
}

// One byte outside of the body.
static int take_byte(struct proxy_chunks *chunks, char c)
{
    if (++chunks->line_size > PROXY_CHUNK_LINE_MAX)
        return -EPROTO;
    switch (chunks->state) {
    case IN_SIZE:
    case IN_EXTENSION:
        return take_size(chunks, c);
    case SIZE_LF:
        chunks->state = chunks->left > 0 ? IN_BODY : IN_TRAILER;
        chunks->line_size = 0;
        chunks->digits = false; // in a trailer: whether the line holds anything
        return c == '\n' ? 0 : -EPROTO;
    case BODY_CR:
        chunks->state = BODY_LF;
        return c == '\r' ? 0 : -EPROTO;
    case BODY_LF:
        chunks->state = IN_SIZE;
        chunks->line_size = 0;
        chunks->digits = false;
        return c == '\n' ? 0 : -EPROTO;
    case IN_TRAILER: // all trailers together are one bounded line here
        if (c == '\r')
            chunks->state = TRAILER_LF;
        else
            chunks->digits = true;
        return c == '\n' ? -EPROTO : 0;
    default: // TRAILER_LF
        chunks->state = chunks->digits ? IN_TRAILER : ENDED;
        chunks->digits = false;
        return c == '\n' ? 0 : -EPROTO;
    }
}

int proxy_chunks_take(struct proxy_chunks *chunks, const char *bytes, size_t size, size_t *ret_taken,
        const char **ret_body, size_t *ret_body_size)
{
    size_t taken = 0;
    int r = 0;
    *ret_body = bytes;
    *ret_body_size = 0;
    while (taken < size && r == 0 && chunks->state != ENDED) {
        if (chunks->state != IN_BODY) {
            r = take_byte(chunks, bytes[taken++]);
            continue;
        }
        size_t part = size - taken < chunks->left ? size - taken : (size_t)chunks->left;
        *ret_body = bytes + taken;
        *ret_body_size = part;
        taken += part;
        chunks->left -= part;
        if (chunks->left == 0) {
            chunks->state = BODY_CR;
            chunks->line_size = 0;
        }
        break;
    }
    *ret_taken = taken;
    return r < 0 ? r : chunks->state == ENDED;
}

// ---- a site below a path of ours ----

static bool has_prefix(const char *path, size_t path_size, const char *prefix)
{
    size_t size = strlen(prefix);
    return path_size >= size && memcmp(path, prefix, size) == 0 &&
           (path_size == size || strchr("/?# \t", path[size]) != NULL);
}

char *proxy_head_location(const char *value, const char *prefix, const char *host)
{
    size_t scheme = strncasecmp(value, "http://", 7) == 0    ? 7
                    : strncasecmp(value, "https://", 8) == 0 ? 8
                                                             : 0;
    const char *path = value;
    if (scheme > 0) { // another site's stays; our own goes below the prefix
        size_t authority = strcspn(value + scheme, "/?#");
        if (host[0] == '\0' || authority != strlen(host) || strncasecmp(value + scheme, host, authority) != 0)
            return strdup(value);
        path = value + scheme + authority;
    }
    // "//host/" names a host; a path without a slash is relative and right as it is.
    bool absolute = scheme > 0 || (path[0] == '/' && path[1] != '/');
    char *text = NULL;
    if (!absolute || has_prefix(path, strlen(path), prefix))
        return strdup(value);
    if (asprintf(&text, "%.*s%s%s", (int)(path - value), value, prefix, path) < 0)
        return NULL;
    return text;
}

// An attribute as browsers read it: blanks around its name and its value are none of either.
struct attribute {
    const char *name, *value; // in the part; value: where it begins
    size_t name_size, value_size;
};

static struct attribute attribute_of(const char *part, size_t size)
{
    struct attribute attribute = {part, part + size, size, 0};
    const char *equals = memchr(part, '=', size);
    if (equals != NULL) {
        attribute.name_size = (size_t)(equals - part);
        attribute.value = equals + 1;
        attribute.value_size = size - attribute.name_size - 1;
    }
    while (attribute.name_size > 0 && (*attribute.name == ' ' || *attribute.name == '\t')) {
        attribute.name++;
        attribute.name_size--;
    }
    while (attribute.name_size > 0 && (attribute.name[attribute.name_size - 1] == ' ' ||
                                              attribute.name[attribute.name_size - 1] == '\t'))
        attribute.name_size--;
    while (attribute.value_size > 0 && (*attribute.value == ' ' || *attribute.value == '\t')) {
        attribute.value++;
        attribute.value_size--;
    }
    return attribute;
}

static bool is_attribute(const struct attribute *attribute, const char *name)
{
    return attribute->name_size == strlen(name) &&
           strncasecmp(attribute->name, name, attribute->name_size) == 0;
}

char *proxy_head_cookie(const char *value, const char *prefix)
{
    // Each attribute may grow by the prefix; a cookie of a hundred attributes is bounded by the head itself.
    size_t parts = 1;
    for (const char *c = value; *c != '\0'; c++)
        parts += *c == ';';
    char *text = malloc(strlen(value) + parts * (strlen(prefix) + 1) + 1), *out = text;
    if (text == NULL)
        return NULL;
    for (const char *part = value, *next; part != NULL; part = next) {
        size_t size = strcspn(part, ";"), kept = 0;
        struct attribute attribute = attribute_of(part, size);
        bool first = part == value;
        next = part[size] == ';' ? part + size + 1 : NULL;
        if (!first && is_attribute(&attribute, "domain"))
            continue; // the host is ours
        if (!first)
            *out++ = ';';
        if (!first && is_attribute(&attribute, "path") && attribute.value_size > 0 &&
                attribute.value[0] == '/' && !has_prefix(attribute.value, attribute.value_size, prefix)) {
            kept = (size_t)(attribute.value - part);
            memcpy(out, part, kept);
            out += kept;
            memcpy(out, prefix, strlen(prefix));
            out += strlen(prefix);
        }
        memcpy(out, part + kept, size - kept);
        out += size - kept;
    }
    *out = '\0';
    return text;
}
