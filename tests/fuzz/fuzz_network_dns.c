// SPDX-License-Identifier: Apache-2.0
// DNS messages from guests and from the network. The first byte says which: a query, whose refusal must be an
// answer to it, or an answer to a fixed question.
#include "vmglue/network_dns_message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_name(const char *name)
{
    if (strlen(name) > NETWORK_NAME_MAX || name[0] == '.')
        abort();
    for (const char *c = name; *c != '\0'; c++)
        if (*c < ' ' || *c > '~' || (*c >= 'A' && *c <= 'Z'))
            abort();
}

static void query(const uint8_t *bytes, size_t size)
{
    struct network_dns_question question;
    struct network_dns_answer answer;
    if (network_dns_message_question(bytes, size, &question) < 0)
        return;
    check_name(question.name);
    if (question.end > size)
        abort();
    uint8_t *reply = malloc(question.end);
    if (reply == NULL)
        abort();
    network_dns_message_reply(bytes, &question, NETWORK_DNS_NO_NAME, reply);
    if (network_dns_message_answer(reply, question.end, &question, &answer) < 0 || answer.count != 0)
        abort();
    free(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct network_dns_question asked = {.id = 7, .type = 1, .class = 1, .name = "a.example"};
    struct network_dns_answer answer;
    if (size < 2)
        return 0;
    // A copy of its own size: a byte read beyond it is noticed.
    uint8_t *copy = malloc(size - 1);
    if (copy == NULL)
        abort();
    memcpy(copy, bytes + 1, size - 1);
    if (bytes[0] % 2 == 0)
        query(copy, size - 1);
    else if (network_dns_message_answer(copy, size - 1, &asked, &answer) == 0 &&
             answer.count > NETWORK_DNS_ADDRESSES_MAX)
        abort();
    free(copy);
    return 0;
}
