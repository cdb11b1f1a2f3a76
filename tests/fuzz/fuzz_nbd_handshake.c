// SPDX-License-Identifier: Apache-2.0
// The NBD handshake, fed in pieces whose size the first input byte sets. It must end, keep nothing open but
// what GO or EXPORT_NAME opened, and answer in whole option replies.
#include "vmglue/nbd_negotiate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int open_count;

static int open_export(void *context, const char *name, struct nbd_target *ret_target)
{
    if (strcmp(name, "disk") != 0)
        return -ENOENT;
    *ret_target = (struct nbd_target){.size_bytes = 4096};
    open_count++;
    return 0;
}

static void close_export(void *context, struct nbd_target *target)
{
    open_count--;
}

static void list_exports(void *context,
        void (*each)(void *each_context, const char *name, const char *description), void *each_context)
{
    each(each_context, "disk", "a disk");
}

// What is in `out` after the greeting: option replies, and after EXPORT_NAME ten bytes and perhaps 124 zeros.
static void check_answers(const struct nbd_negotiation *negotiation, bool transmits)
{
    struct nbd_cursor cursor = nbd_cursor_over(negotiation->out.bytes, negotiation->out.size);
    nbd_cursor_bytes(&cursor, 18);
    while (nbd_cursor_left(&cursor)) {
        if (transmits && (nbd_cursor_left(&cursor) == 10 || nbd_cursor_left(&cursor) == 134))
            return;
        if (nbd_cursor_u64(&cursor) != NBD_OPTION_REPLY_MAGIC)
            abort();
        nbd_cursor_bytes(&cursor, 8);
        nbd_cursor_bytes(&cursor, nbd_cursor_u32(&cursor));
    }
    if (!nbd_cursor_finished(&cursor))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct nbd_negotiation_source source = {
            .open = open_export, .close = close_export, .list = list_exports};
    struct nbd_negotiation negotiation;
    enum nbd_negotiation_step step = NBD_NEGOTIATION_WAIT;
    if (size == 0)
        return 0;
    size_t piece = 1 + data[0] % 64, begin = 1, end = 1;
    nbd_negotiation_begin(&negotiation, &source);
    while (step == NBD_NEGOTIATION_WAIT || step == NBD_NEGOTIATION_ANSWERED) {
        size_t consumed;
        step = nbd_negotiation_input(&negotiation, data + begin, end - begin, &consumed);
        if (consumed > end - begin)
            abort();
        begin += consumed;
        if (step == NBD_NEGOTIATION_WAIT && end == size)
            break;
        if (step == NBD_NEGOTIATION_WAIT)
            end = size - end < piece ? size : end + piece;
    }
    bool transmits = step == NBD_NEGOTIATION_TRANSMIT;
    check_answers(&negotiation, transmits);
    if (open_count != transmits)
        abort();
    open_count = 0;
    nbd_negotiation_end(&negotiation);
    return 0;
}
