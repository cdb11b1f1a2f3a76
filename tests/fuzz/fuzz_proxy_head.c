// SPDX-License-Identifier: Apache-2.0
// What a guest's server answers, over arbitrary bytes: a head, then a body by its framing. Input: byte 0 the
// method (even: GET), byte 1 the size of the pieces that a body is fed in. Whatever comes: nothing that is
// passed on can end a line, and a chunked body is the same in whatever pieces.
#include "vmglue/proxy_head.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool right)
{
    if (!right)
        abort();
}

struct outcome {
    int result;
    size_t bytes, taken;
    uint32_t mix;
};

static struct outcome decode(const char *bytes, size_t size, size_t piece)
{
    struct proxy_chunks chunks = {0};
    struct outcome outcome = {0};
    while (size > 0 && outcome.result == 0) {
        const char *body;
        size_t taken, body_size, part = size < piece ? size : piece;
        outcome.result = proxy_chunks_take(&chunks, bytes, part, &taken, &body, &body_size);
        check(taken <= part && taken > 0);
        check(body_size == 0 || (body >= bytes && body + body_size <= bytes + taken));
        for (size_t i = 0; i < body_size; i++)
            outcome.mix = outcome.mix * 31 + (unsigned char)body[i];
        outcome.bytes += body_size;
        outcome.taken += taken;
        bytes += taken;
        size -= taken;
    }
    return outcome;
}

static void check_rewrites(const struct proxy_answer *answer)
{
    static const char prefix[] = "/u/0123456789012345678901234567890123456789";
    for (unsigned i = 0; i < answer->field_count; i++) {
        const char *value = answer->fields[i].value;
        check(proxy_head_is_name(answer->fields[i].name, strlen(answer->fields[i].name)));
        check(proxy_head_is_value(value, strlen(value)));
        char *location = proxy_head_location(value, prefix, "host"),
             *cookie = proxy_head_cookie(value, prefix);
        check(location != NULL && cookie != NULL);
        check(proxy_head_is_value(location, strlen(location)) && proxy_head_is_value(cookie, strlen(cookie)));
        check(strstr(cookie, "; domain=") == NULL);
        free(location);
        free(cookie);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proxy_answer answer;
    struct error err;
    if (size < 2)
        return 0;
    const char *bytes = (const char *)data + 2;
    size -= 2;
    ssize_t head = proxy_head_size(bytes, size);
    check(head <= (ssize_t)size && head <= PROXY_HEAD_MAX);
    if (head <= 0)
        return 0;
    char *copy = malloc((size_t)head); // exactly: the sanitizer sees a byte beyond
    memcpy(copy, bytes, (size_t)head);
    if (proxy_head_parse(copy, (size_t)head, data[0] % 2 == 0 ? "GET" : "HEAD", &answer, &err) == 0) {
        check(answer.status >= 100 && answer.status <= 999 && answer.field_count <= PROXY_FIELDS_MAX);
        check(answer.framing != PROXY_CHUNKED || !answer.has_length);
        check(data[0] % 2 == 0 || answer.framing == PROXY_NO_BODY);
        check_rewrites(&answer);
        const char *body = bytes + head;
        struct outcome whole = decode(body, size - (size_t)head, size + 1);
        struct outcome pieces = decode(body, size - (size_t)head, data[1] + 1u);
        check(whole.result == pieces.result && whole.bytes == pieces.bytes && whole.taken == pieces.taken &&
                whole.mix == pieces.mix);
    }
    free(copy);
    return 0;
}
