// SPDX-License-Identifier: Apache-2.0
// Client flags come first, then options until one of them (EXPORT_NAME, GO) opens an export or the client
// leaves. An option is looked at only when all of it is there; its data is decoded with a checked cursor, and
// every option gets exactly one final reply. Agreements (structured replies, metadata contexts) are kept only
// after their ACK.
#include "vmglue/nbd_negotiate.h"

#include "vmglue/nbd_context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nbd_negotiation_begin(struct nbd_negotiation *negotiation, const struct nbd_negotiation_source *source)
{
    *negotiation = (struct nbd_negotiation){.source = source};
    nbd_writer_u64(&negotiation->out, NBD_MAGIC);
    nbd_writer_u64(&negotiation->out, NBD_OPTION_MAGIC);
    nbd_writer_u16(&negotiation->out, NBD_HANDSHAKE_FIXED_NEWSTYLE | NBD_HANDSHAKE_NO_ZEROES);
}

void nbd_negotiation_end(struct nbd_negotiation *negotiation)
{
    nbd_writer_free(&negotiation->out);
}

uint16_t nbd_negotiation_flags(const struct nbd_target *target, bool structured)
{
    // A flush on one connection covers writes answered on all others: the engine promises it for the whole
    // store. On a read-only export FLUSH and FUA have nothing to do and succeed.
    unsigned flags = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_CAN_MULTI_CONN |
                     NBD_FLAG_SEND_CACHE;
    if (structured)
        flags |= NBD_FLAG_SEND_DF; // without them nothing is ever fragmented
    if (target->read_only)
        flags |= NBD_FLAG_READ_ONLY;
    else
        flags |= NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
    return (uint16_t)flags;
}

uint32_t nbd_negotiation_minimum_block_bytes(const struct nbd_target *target)
{
    return target->size_bytes % 512 == 0 ? 512 : 1;
}

static enum nbd_negotiation_step reply(
        struct nbd_negotiation *negotiation, uint32_t option, uint32_t type, const char *text)
{
    size_t size = strlen(text);
    nbd_writer_option_reply(&negotiation->out, option, type, (uint32_t)size);
    nbd_writer_bytes(&negotiation->out, text, size);
    return NBD_NEGOTIATION_ANSWERED;
}

static enum nbd_negotiation_step acknowledge(struct nbd_negotiation *negotiation, uint32_t option)
{
    return reply(negotiation, option, NBD_REP_ACK, "");
}

static enum nbd_negotiation_step reply_invalid(struct nbd_negotiation *negotiation, uint32_t option)
{
    return reply(
            negotiation, option, NBD_REP_ERR_INVALID, "the data of this option does not follow the protocol");
}

static int open_target(struct nbd_negotiation *negotiation, const char *name, struct nbd_target *ret_target)
{
    const struct nbd_negotiation_source *source = negotiation->source;
    return source->open(source->context, name, ret_target);
}

static void close_target(struct nbd_negotiation *negotiation, struct nbd_target *target)
{
    negotiation->source->close(negotiation->source->context, target);
}

static enum nbd_negotiation_step reply_not_opened(
        struct nbd_negotiation *negotiation, uint32_t option, const char *name, int result)
{
    char text[NBD_STRING_MAX];
    if (result == -ENOENT) {
        snprintf(text, sizeof text, "there is no export named \"%.200s\"", name);
        return reply(negotiation, option, NBD_REP_ERR_UNKNOWN, text);
    }
    snprintf(text, sizeof text, "export \"%.200s\" cannot be opened: %s", name, strerror(-result));
    return reply(negotiation, option, NBD_REP_ERR_POLICY, text);
}

// Contexts were agreed for one export; the choice of another drops them.
static void forget_other_contexts(struct nbd_negotiation *negotiation, const char *name)
{
    if (strcmp(name, negotiation->context_name) != 0)
        negotiation->contexts = 0;
}

static enum nbd_negotiation_step take_export_name(
        struct nbd_negotiation *negotiation, const uint8_t *data, uint32_t size)
{
    // This option has no error reply: all that can be done about a wrong name is to close.
    char name[NBD_STRING_MAX + 1];
    if (size > NBD_STRING_MAX || (size && memchr(data, 0, size)))
        return NBD_NEGOTIATION_CLOSE;
    memcpy(name, data, size);
    name[size] = 0;
    if (open_target(negotiation, name, &negotiation->target) < 0)
        return NBD_NEGOTIATION_CLOSE;
    forget_other_contexts(negotiation, name);
    nbd_writer_u64(&negotiation->out, negotiation->target.size_bytes);
    nbd_writer_u16(&negotiation->out, nbd_negotiation_flags(&negotiation->target, negotiation->structured));
    if (!negotiation->no_zeroes)
        nbd_writer_zeros(&negotiation->out, 124);
    return NBD_NEGOTIATION_TRANSMIT;
}

struct list_state {
    struct nbd_writer *out;
    uint32_t option;
};

static void list_name(void *context, const char *name, const char *description)
{
    struct list_state *state = context;
    size_t size = strlen(name), description_size = description ? strlen(description) : 0;
    if (size > NBD_STRING_MAX || description_size > NBD_STRING_MAX)
        return;
    nbd_writer_option_reply(
            state->out, state->option, NBD_REP_SERVER, (uint32_t)(4 + size + description_size));
    nbd_writer_u32(state->out, (uint32_t)size);
    nbd_writer_bytes(state->out, name, size);
    nbd_writer_bytes(state->out, description, description_size);
}

static enum nbd_negotiation_step take_list(struct nbd_negotiation *negotiation, uint32_t size)
{
    const struct nbd_negotiation_source *source = negotiation->source;
    if (size)
        return reply_invalid(negotiation, NBD_OPT_LIST);
    if (!source->list)
        return reply(negotiation, NBD_OPT_LIST, NBD_REP_ERR_POLICY, "this server does not list its exports");
    struct list_state state = {.out = &negotiation->out, .option = NBD_OPT_LIST};
    source->list(source->context, list_name, &state);
    return acknowledge(negotiation, NBD_OPT_LIST);
}

static void put_export_info(
        struct nbd_negotiation *negotiation, uint32_t option, const struct nbd_target *target)
{
    struct nbd_writer *out = &negotiation->out;
    nbd_writer_option_reply(out, option, NBD_REP_INFO, 12);
    nbd_writer_u16(out, NBD_INFO_EXPORT);
    nbd_writer_u64(out, target->size_bytes);
    nbd_writer_u16(out, nbd_negotiation_flags(target, negotiation->structured));

    nbd_writer_option_reply(out, option, NBD_REP_INFO, 14);
    nbd_writer_u16(out, NBD_INFO_BLOCK_SIZE);
    nbd_writer_u32(out, nbd_negotiation_minimum_block_bytes(target));
    nbd_writer_u32(out, NBD_PREFERRED_BLOCK_BYTES);
    nbd_writer_u32(out, NBD_PAYLOAD_MAX_BYTES);
}

static void put_text_info(
        struct nbd_negotiation *negotiation, uint32_t option, enum nbd_info info, const char *text)
{
    size_t size = strlen(text);
    nbd_writer_option_reply(&negotiation->out, option, NBD_REP_INFO, (uint32_t)(2 + size));
    nbd_writer_u16(&negotiation->out, (uint16_t)info);
    nbd_writer_bytes(&negotiation->out, text, size);
}

// INFO and GO are the same question; GO also opens.
static enum nbd_negotiation_step take_info(
        struct nbd_negotiation *negotiation, uint32_t option, struct nbd_cursor cursor)
{
    char name[NBD_STRING_MAX + 1];
    bool wants_name = false, wants_description = false;
    nbd_cursor_string(&cursor, name);
    unsigned count = nbd_cursor_u16(&cursor);
    for (unsigned i = 0; i < count && !cursor.bad; i++) {
        unsigned wanted = nbd_cursor_u16(&cursor);
        wants_name |= wanted == NBD_INFO_NAME;
        wants_description |= wanted == NBD_INFO_DESCRIPTION;
    }
    if (!nbd_cursor_finished(&cursor))
        return reply_invalid(negotiation, option);

    struct nbd_target target = {0};
    int result = open_target(negotiation, name, &target);
    if (result < 0)
        return reply_not_opened(negotiation, option, name, result);
    put_export_info(negotiation, option, &target);
    if (wants_name)
        put_text_info(negotiation, option, NBD_INFO_NAME, name);
    if (wants_description && target.description[0])
        put_text_info(negotiation, option, NBD_INFO_DESCRIPTION, target.description);
    acknowledge(negotiation, option);
    if (option == NBD_OPT_INFO) {
        close_target(negotiation, &target);
        return NBD_NEGOTIATION_ANSWERED;
    }
    forget_other_contexts(negotiation, name);
    negotiation->target = target;
    return NBD_NEGOTIATION_TRANSMIT;
}

static void put_contexts(
        struct nbd_negotiation *negotiation, uint32_t option, unsigned contexts, bool listing)
{
    for (unsigned i = 0; i < NBD_CONTEXT_COUNT; i++) {
        if (!(contexts & 1u << i))
            continue;
        const char *name = nbd_context_name(i);
        size_t size = strlen(name);
        nbd_writer_option_reply(&negotiation->out, option, NBD_REP_META_CONTEXT, (uint32_t)(4 + size));
        nbd_writer_u32(&negotiation->out, listing ? 0 : nbd_context_wire_id(i));
        nbd_writer_bytes(&negotiation->out, name, size);
    }
}

// LIST says what could be agreed (all of it when nothing is asked for); SET replaces what was agreed before,
// also when it fails.
static enum nbd_negotiation_step take_meta_context(
        struct nbd_negotiation *negotiation, uint32_t option, struct nbd_cursor cursor)
{
    char name[NBD_STRING_MAX + 1], query[NBD_STRING_MAX + 1];
    bool listing = option == NBD_OPT_LIST_META_CONTEXT, malformed = false;
    if (!listing)
        negotiation->contexts = 0;
    nbd_cursor_string(&cursor, name);
    uint32_t count = nbd_cursor_u32(&cursor);
    unsigned contexts = listing && count == 0 ? NBD_CONTEXT_ALL : 0;
    for (uint32_t i = 0; i < count && !cursor.bad; i++) {
        nbd_cursor_string(&cursor, query);
        malformed |= nbd_context_query_is_malformed(query);
        contexts |= nbd_context_match(query, listing);
    }
    if (!nbd_cursor_finished(&cursor) || malformed)
        return reply_invalid(negotiation, option);
    if (!negotiation->structured)
        return reply(negotiation, option, NBD_REP_ERR_INVALID,
                "metadata contexts need structured replies; negotiate these first");

    struct nbd_target target = {0};
    int result = open_target(negotiation, name, &target);
    if (result < 0)
        return reply_not_opened(negotiation, option, name, result);
    close_target(negotiation, &target);
    put_contexts(negotiation, option, contexts, listing);
    if (!listing) {
        negotiation->contexts = contexts;
        memcpy(negotiation->context_name, name, strlen(name) + 1);
    }
    return acknowledge(negotiation, option);
}

static enum nbd_negotiation_step take_option(
        struct nbd_negotiation *negotiation, uint32_t option, const uint8_t *data, uint32_t size)
{
    switch (option) {
    case NBD_OPT_EXPORT_NAME:
        return take_export_name(negotiation, data, size);
    case NBD_OPT_ABORT:
        acknowledge(negotiation, option);
        return NBD_NEGOTIATION_CLOSE;
    case NBD_OPT_LIST:
        return take_list(negotiation, size);
    case NBD_OPT_INFO:
    case NBD_OPT_GO:
        return take_info(negotiation, option, nbd_cursor_over(data, size));
    case NBD_OPT_STRUCTURED_REPLY:
        if (size)
            return reply_invalid(negotiation, option);
        negotiation->structured = true;
        return acknowledge(negotiation, option);
    case NBD_OPT_LIST_META_CONTEXT:
    case NBD_OPT_SET_META_CONTEXT:
        return take_meta_context(negotiation, option, nbd_cursor_over(data, size));
    case NBD_OPT_STARTTLS:
        if (size)
            return reply_invalid(negotiation, option);
        return reply(negotiation, option, NBD_REP_ERR_UNSUP,
                "this server has no TLS; its socket's permissions protect it");
    default:
        return reply(negotiation, option, NBD_REP_ERR_UNSUP, "this server does not know that option");
    }
}

static enum nbd_negotiation_step take_client_flags(
        struct nbd_negotiation *negotiation, struct nbd_cursor cursor)
{
    uint32_t flags = nbd_cursor_u32(&cursor);
    negotiation->greeted = true;
    negotiation->no_zeroes = flags & NBD_HANDSHAKE_NO_ZEROES;
    // A client that sets a bit we did not offer expects a protocol that we do not speak.
    if (flags & ~(uint32_t)(NBD_HANDSHAKE_FIXED_NEWSTYLE | NBD_HANDSHAKE_NO_ZEROES))
        return NBD_NEGOTIATION_CLOSE;
    return NBD_NEGOTIATION_ANSWERED;
}

enum nbd_negotiation_step nbd_negotiation_input(
        struct nbd_negotiation *negotiation, const uint8_t *bytes, size_t size, size_t *ret_consumed)
{
    *ret_consumed = 0;
    if (negotiation->skip_bytes) {
        *ret_consumed = size < negotiation->skip_bytes ? size : negotiation->skip_bytes;
        negotiation->skip_bytes -= (uint32_t)*ret_consumed;
        return *ret_consumed ? NBD_NEGOTIATION_ANSWERED : NBD_NEGOTIATION_WAIT;
    }
    if (!negotiation->greeted) {
        if (size < 4)
            return NBD_NEGOTIATION_WAIT;
        *ret_consumed = 4;
        return take_client_flags(negotiation, nbd_cursor_over(bytes, 4));
    }
    if (size < NBD_OPTION_BYTES)
        return NBD_NEGOTIATION_WAIT;
    struct nbd_cursor cursor = nbd_cursor_over(bytes, size);
    if (nbd_cursor_u64(&cursor) != NBD_OPTION_MAGIC)
        return NBD_NEGOTIATION_CLOSE;
    uint32_t option = nbd_cursor_u32(&cursor);
    uint32_t data_bytes = nbd_cursor_u32(&cursor);
    if (data_bytes > NBD_NEGOTIATION_OPTION_MAX) {
        if (option == NBD_OPT_EXPORT_NAME)
            return NBD_NEGOTIATION_CLOSE;
        *ret_consumed = NBD_OPTION_BYTES;
        negotiation->skip_bytes = data_bytes;
        return reply(negotiation, option, NBD_REP_ERR_TOO_BIG, "the data of this option is over 64 KiB");
    }
    const uint8_t *data = nbd_cursor_bytes(&cursor, data_bytes);
    if (!data)
        return NBD_NEGOTIATION_WAIT;
    *ret_consumed = NBD_OPTION_BYTES + data_bytes;
    return take_option(negotiation, option, data, data_bytes);
}
