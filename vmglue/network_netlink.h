// SPDX-License-Identifier: Apache-2.0
// Requests to the kernel's routing socket: one message, one answer. A socket belongs to the namespace of the
// thread that opened it. Threads: one at a time for each socket.
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <stdint.h>

struct network_netlink_message {
    struct nlmsghdr head;
    char room[1024];
};

int network_netlink_open(void); // a descriptor or -errno
// Begins a message with its fixed part of `size` bytes.
void network_netlink_begin(
        struct network_netlink_message *message, int type, int flags, const void *fixed, size_t size);
void network_netlink_add(
        struct network_netlink_message *message, int attribute, const void *bytes, size_t size);
void network_netlink_add_text(struct network_netlink_message *message, int attribute, const char *text);
void network_netlink_add_u32(struct network_netlink_message *message, int attribute, uint32_t value);
struct rtattr *network_netlink_nest(struct network_netlink_message *message, int attribute);
void network_netlink_nest_end(struct network_netlink_message *message, struct rtattr *nest);
// Raw bytes without an attribute's head, as some nests begin with.
void network_netlink_add_raw(struct network_netlink_message *message, const void *bytes, size_t size);
// Sends it and waits for the kernel's word: 0 or -errno.
int network_netlink_ask(int fd, struct network_netlink_message *message);
// Sends a question for a list and calls each() with every message of the answer.
int network_netlink_dump(int fd, struct network_netlink_message *message,
        void (*each)(void *context, const struct nlmsghdr *head), void *context);
