// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_netlink.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES = 32 << 10 };

int network_netlink_open(void)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    return fd < 0 ? -errno : fd;
}

void network_netlink_begin(
        struct network_netlink_message *message, int type, int flags, const void *fixed, size_t size)
{
    memset(message, 0, sizeof *message);
    message->head.nlmsg_len = NLMSG_HDRLEN;
    message->head.nlmsg_type = (uint16_t)type;
    message->head.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    message->head.nlmsg_seq = 1;
    network_netlink_add_raw(message, fixed, size);
}

void network_netlink_add_raw(struct network_netlink_message *message, const void *bytes, size_t size)
{
    size_t used = NLMSG_ALIGN(message->head.nlmsg_len);
    if (used + size > sizeof *message)
        return; // no caller's message comes near it
    if (size > 0)
        memcpy((char *)message + used, bytes, size);
    message->head.nlmsg_len = (uint32_t)(used + size);
}

void network_netlink_add(
        struct network_netlink_message *message, int attribute, const void *bytes, size_t size)
{
    struct rtattr head = {.rta_len = (uint16_t)RTA_LENGTH(size), .rta_type = (uint16_t)attribute};
    network_netlink_add_raw(message, &head, sizeof head);
    network_netlink_add_raw(message, bytes, size);
}

void network_netlink_add_text(struct network_netlink_message *message, int attribute, const char *text)
{
    network_netlink_add(message, attribute, text, strlen(text) + 1);
}

void network_netlink_add_u32(struct network_netlink_message *message, int attribute, uint32_t value)
{
    network_netlink_add(message, attribute, &value, sizeof value);
}

struct rtattr *network_netlink_nest(struct network_netlink_message *message, int attribute)
{
    size_t at = NLMSG_ALIGN(message->head.nlmsg_len);
    network_netlink_add(message, attribute, NULL, 0);
    return (struct rtattr *)((char *)message + at);
}

void network_netlink_nest_end(struct network_netlink_message *message, struct rtattr *nest)
{
    nest->rta_len = (uint16_t)((char *)message + message->head.nlmsg_len - (char *)nest);
}

static int send_message(int fd, const struct network_netlink_message *message)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    ssize_t sent;
    do
        sent = sendto(fd, message, message->head.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}

static ssize_t receive(int fd, void *buffer, size_t size)
{
    ssize_t got;
    do
        got = recv(fd, buffer, size, 0);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

int network_netlink_dump(int fd, struct network_netlink_message *message,
        void (*each)(void *context, const struct nlmsghdr *head), void *context)
{
    _Alignas(struct nlmsghdr) char buffer[ANSWER_BYTES]; // not per thread: there may be thousands of those
    int r = send_message(fd, message);
    while (r == 0) {
        ssize_t got = receive(fd, buffer, sizeof buffer);
        if (got <= 0)
            return got < 0 ? (int)got : -EIO;
        size_t left = (size_t)got;
        for (struct nlmsghdr *head = (struct nlmsghdr *)buffer; NLMSG_OK(head, left);
                head = NLMSG_NEXT(head, left)) {
            if (head->nlmsg_type == NLMSG_DONE)
                return 0;
            if (head->nlmsg_type == NLMSG_ERROR)
                return ((struct nlmsgerr *)NLMSG_DATA(head))->error; // 0 is the word for "done"
            if (each != NULL)
                each(context, head);
        }
    }
    return r;
}

int network_netlink_ask(int fd, struct network_netlink_message *message)
{
    message->head.nlmsg_flags |= NLM_F_ACK;
    return network_netlink_dump(fd, message, NULL, NULL);
}
