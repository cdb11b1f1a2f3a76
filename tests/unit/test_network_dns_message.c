// SPDX-License-Identifier: Apache-2.0
// DNS messages, byte by byte.
#include "vmglue/network_dns_message.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

struct message {
    uint8_t bytes[1024];
    size_t size;
};

static void put(struct message *message, const void *bytes, size_t size)
{
    assert_true(message->size + size <= sizeof message->bytes);
    memcpy(message->bytes + message->size, bytes, size);
    message->size += size;
}

static void put_u16(struct message *message, unsigned value)
{
    put(message, (uint8_t[]){(uint8_t)(value >> 8), (uint8_t)value}, 2);
}

static void put_name(struct message *message, const char *name)
{
    while (*name != '\0') {
        size_t size = strcspn(name, ".");
        put(message, (uint8_t[]){(uint8_t)size}, 1);
        put(message, name, size);
        name += size + (name[size] == '.');
    }
    put(message, "", 1);
}

static struct message begin(unsigned id, unsigned flags, unsigned answers, const char *name, unsigned type)
{
    struct message message = {.size = 0};
    put_u16(&message, id);
    put_u16(&message, flags);
    put_u16(&message, 1);
    put_u16(&message, answers);
    put_u16(&message, 0);
    put_u16(&message, 0);
    put_name(&message, name);
    put_u16(&message, type);
    put_u16(&message, 1);
    return message;
}

// owner NULL: a pointer to the question's name.
static void put_record(struct message *message, const char *owner, unsigned type, unsigned ttl,
        const void *data, size_t size)
{
    if (owner == NULL)
        put_u16(message, 0xc00c);
    else
        put_name(message, owner);
    put_u16(message, type);
    put_u16(message, 1);
    put_u16(message, ttl >> 16);
    put_u16(message, ttl & 0xffff);
    put_u16(message, (unsigned)size);
    put(message, data, size);
}

static void put_alias(struct message *message, const char *owner, const char *target)
{
    struct message data = {.size = 0};
    put_name(&data, target);
    put_record(message, owner, 5, 9, data.bytes, data.size);
}

static struct network_dns_question question_of(const struct message *message)
{
    struct network_dns_question question;
    assert_int_equal(network_dns_message_question(message->bytes, message->size, &question), 0);
    return question;
}

static void test_question(void **state)
{
    struct message query = begin(0x1234, 0x0100, 0, "Pypi.EXAMPLE", 1);
    struct network_dns_question question = question_of(&query);
    assert_int_equal(question.id, 0x1234);
    assert_int_equal(question.type, 1);
    assert_int_equal(question.class, 1);
    assert_string_equal(question.name, "pypi.example");
    assert_int_equal(question.end, query.size);
}

static void test_odd_bytes_are_no_host_name(void **state)
{
    struct message query = begin(1, 0x0100, 0, "a", 1);
    query.bytes[13] = '.'; // a dot inside a label must not look like one between two
    assert_string_equal(question_of(&query).name, "?");
}

static void test_what_is_no_query(void **state)
{
    struct network_dns_question question;
    struct message query = begin(1, 0x0100, 0, "a.example", 1), bad;
    for (size_t size = 0; size < query.size; size++)
        assert_int_equal(network_dns_message_question(query.bytes, size, &question), -EBADMSG);
    static const struct {
        unsigned at, value;
    } changes[] = {{2, 0x81}, {2, 0x29}, {5, 0}, {5, 2}, {7, 1}, {9, 1}, {11, 2}, {12, 0xc0}, {12, 0x41}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        bad = query;
        bad.bytes[changes[i].at] = (uint8_t)changes[i].value;
        assert_int_equal(network_dns_message_question(bad.bytes, bad.size, &question), -EBADMSG);
    }
}

static void test_pointers_that_lead_nowhere(void **state)
{
    struct network_dns_question question;
    struct message query = begin(1, 0x0100, 0, "", 1);
    query.size = 12;
    put_u16(&query, 0xc00c); // itself
    put_u16(&query, 1);
    put_u16(&query, 1);
    assert_int_equal(network_dns_message_question(query.bytes, query.size, &question), -EBADMSG);
    query.bytes[13] = 0x0e; // ahead
    assert_int_equal(network_dns_message_question(query.bytes, query.size, &question), -EBADMSG);
}

static void test_names_of_the_greatest_length(void **state)
{
    char name[260] = "";
    struct network_dns_question question;
    for (unsigned i = 0; i < 4; i++) {
        memset(name + 64 * i, 'a', 63);
        name[64 * i + 63] = i < 3 ? '.' : '\0';
    }
    struct message longer = begin(1, 0x0100, 0, name, 1); // 255
    assert_int_equal(network_dns_message_question(longer.bytes, longer.size, &question), -EBADMSG);
    name[NETWORK_NAME_MAX] = '\0';
    struct message longest = begin(1, 0x0100, 0, name, 1);
    assert_string_equal(question_of(&longest).name, name);
}

static void test_addresses_of_an_answer(void **state)
{
    struct message query = begin(7, 0x0100, 0, "a.example", 1);
    struct network_dns_question question = question_of(&query);
    struct network_dns_answer answer;
    struct message reply = begin(7, 0x8180, 3, "A.example", 1);
    put_record(&reply, NULL, 1, 300, "\x01\x02\x03\x04", 4);
    put_record(&reply, "a.example", 1, 20, "\x05\x06\x07\x08", 4);
    put_record(&reply, "else.example", 1, 1, "\x09\x09\x09\x09", 4); // not what was asked for
    assert_int_equal(network_dns_message_answer(reply.bytes, reply.size, &question, &answer), 0);
    assert_int_equal(answer.count, 2);
    assert_int_equal(answer.addresses[0], 0x01020304);
    assert_int_equal(answer.addresses[1], 0x05060708);
    assert_int_equal(answer.ttl_seconds, 20);
    for (size_t size = 0; size < reply.size; size++)
        assert_int_equal(network_dns_message_answer(reply.bytes, size, &question, &answer), -EBADMSG);
}

static void test_other_names_are_followed(void **state)
{
    struct message query = begin(7, 0x0100, 0, "a.example", 1);
    struct network_dns_question question = question_of(&query);
    struct network_dns_answer answer;
    struct message reply = begin(7, 0x8180, 3, "a.example", 1); // in the order that is awkward
    put_record(&reply, "c.example", 1, 30, "\x01\x02\x03\x04", 4);
    put_alias(&reply, "b.example", "c.example");
    put_alias(&reply, NULL, "b.example");
    assert_int_equal(network_dns_message_answer(reply.bytes, reply.size, &question, &answer), 0);
    assert_int_equal(answer.count, 1);
    assert_int_equal(answer.addresses[0], 0x01020304);
    struct message round = begin(7, 0x8180, 2, "a.example", 1);
    put_alias(&round, NULL, "b.example");
    put_alias(&round, "b.example", "a.example");
    assert_int_equal(network_dns_message_answer(round.bytes, round.size, &question, &answer), 0);
    assert_int_equal(answer.count, 0);
}

static void test_answers_to_something_else(void **state)
{
    struct message query = begin(7, 0x0100, 0, "a.example", 1);
    struct network_dns_question question = question_of(&query);
    struct network_dns_answer answer;
    struct message others[] = {begin(8, 0x8180, 0, "a.example", 1), begin(7, 0x8180, 0, "b.example", 1),
            begin(7, 0x8180, 0, "a.example", 28), begin(7, 0x0180, 0, "a.example", 1)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(
                network_dns_message_answer(others[i].bytes, others[i].size, &question, &answer), -EBADMSG);
}

static void test_more_addresses_than_there_is_room_for(void **state)
{
    struct message query = begin(7, 0x0100, 0, "a", 1);
    struct network_dns_question question = question_of(&query);
    struct network_dns_answer answer;
    struct message reply = begin(7, 0x8180, NETWORK_DNS_ADDRESSES_MAX - 4, "a", 1);
    for (unsigned i = 0; i < NETWORK_DNS_ADDRESSES_MAX - 4; i++)
        put_record(&reply, NULL, 1, 5, "\x01\x02\x03\x04", 4);
    // A name that is its own alias makes every round count again.
    assert_int_equal(network_dns_message_answer(reply.bytes, reply.size, &question, &answer), 0);
    assert_int_equal(answer.count, NETWORK_DNS_ADDRESSES_MAX - 4);
    reply.bytes[7] = (uint8_t)(NETWORK_DNS_ADDRESSES_MAX - 3);
    put_alias(&reply, NULL, "a");
    assert_int_equal(network_dns_message_answer(reply.bytes, reply.size, &question, &answer), 0);
    assert_int_equal(answer.count, NETWORK_DNS_ADDRESSES_MAX);
}

static void test_refusing(void **state)
{
    struct message query = begin(0x0102, 0x0100, 0, "a.example", 28);
    struct network_dns_question question = question_of(&query);
    struct network_dns_answer answer;
    uint8_t out[64];
    assert_true(question.end <= sizeof out);
    network_dns_message_reply(query.bytes, &question, NETWORK_DNS_NO_NAME, out);
    assert_int_equal(network_dns_message_answer(out, question.end, &question, &answer), 0);
    assert_int_equal(answer.count, 0);
    assert_int_equal(out[2], 0x81);
    assert_int_equal(out[3], 0x83);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_question),
            cmocka_unit_test(test_odd_bytes_are_no_host_name),
            cmocka_unit_test(test_what_is_no_query),
            cmocka_unit_test(test_pointers_that_lead_nowhere),
            cmocka_unit_test(test_names_of_the_greatest_length),
            cmocka_unit_test(test_addresses_of_an_answer),
            cmocka_unit_test(test_other_names_are_followed),
            cmocka_unit_test(test_answers_to_something_else),
            cmocka_unit_test(test_more_addresses_than_there_is_room_for),
            cmocka_unit_test(test_refusing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
