// SPDX-License-Identifier: Apache-2.0
// DNS messages (RFC 1035), as far as a forwarder must understand them: the question of a query, and the IPv4
// addresses in an answer. Every byte is untrusted. Threads: any; no state. -EBADMSG: not a message that a
// well-meant program sends.
#pragma once

#include "vmglue/network_policy.h"

#include <stddef.h>

enum {
    NETWORK_DNS_TYPE_A = 1,
    NETWORK_DNS_TYPE_AAAA = 28,
    NETWORK_DNS_OK = 0,
    NETWORK_DNS_FAILED = 2,  // SERVFAIL
    NETWORK_DNS_NO_NAME = 3, // NXDOMAIN: programs give up on it at once, unlike on REFUSED
    NETWORK_DNS_HEAD = 12,
    NETWORK_DNS_ADDRESSES_MAX = 64,
};

struct network_dns_question {
    uint16_t id, type, class;
    char name[NETWORK_NAME_MAX + 1]; // lower case, no dot at the end; a byte that no host name has is a '?'
    size_t end;                      // offset behind the question
};

// One question and no answers.
int network_dns_message_question(
        const uint8_t *bytes, size_t size, struct network_dns_question *ret_question);

struct network_dns_answer {
    uint32_t addresses[NETWORK_DNS_ADDRESSES_MAX]; // of the name asked for, also by way of CNAMEs
    unsigned count;
    uint32_t ttl_seconds; // the smallest
};
// The answer to `question`: its id and question must be the same.
int network_dns_message_answer(const uint8_t *bytes, size_t size, const struct network_dns_question *question,
        struct network_dns_answer *ret_answer);

// An answer without records to a query whose question was parsed; `out` has room for question->end bytes,
// which is its size.
void network_dns_message_reply(
        const uint8_t *query, const struct network_dns_question *question, unsigned code, uint8_t *out);
