// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_watch.h"

#include <errno.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TABLE_SIZE = 64, NEWS_BYTES = 64 << 10 };

struct network_watch {
    char table[TABLE_SIZE];
    void (*deleted)(void *context);
    void *context;
    int fd, stop_fd;
    pthread_t thread;
    char news[NEWS_BYTES]; // of the thread
};

static bool is_deletion(const struct network_watch *watch, const struct nlmsghdr *head)
{
    if (head->nlmsg_type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE))
        return false;
    const char *end = (const char *)head + head->nlmsg_len,
               *at = (const char *)NLMSG_DATA(head) + NLMSG_ALIGN(sizeof(struct nfgenmsg));
    while (end - at >= (ptrdiff_t)sizeof(struct nlattr)) {
        const struct nlattr *attribute = (const struct nlattr *)at;
        if (attribute->nla_len < sizeof *attribute || attribute->nla_len > end - at)
            return false;
        if ((attribute->nla_type & NLA_TYPE_MASK) == NFTA_TABLE_NAME)
            return strncmp(at + sizeof *attribute, watch->table, attribute->nla_len - sizeof *attribute) == 0;
        at += NLA_ALIGN(attribute->nla_len);
    }
    return false;
}

// Whether what has come means that the table may be gone.
static bool read_news(struct network_watch *watch)
{
    ssize_t got = recv(watch->fd, watch->news, sizeof watch->news, MSG_DONTWAIT);
    if (got < 0)
        return errno == ENOBUFS; // more came than the socket could hold
    size_t left = (size_t)got;
    bool deleted = false;
    for (const struct nlmsghdr *head = (const struct nlmsghdr *)watch->news; NLMSG_OK(head, left);
            head = NLMSG_NEXT(head, left))
        deleted = deleted || is_deletion(watch, head);
    return deleted;
}

static void *watch_thread(void *context)
{
    struct network_watch *watch = context;
    for (;;) {
        struct pollfd fds[] = {{.fd = watch->fd, .events = POLLIN}, {.fd = watch->stop_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents != 0)
            return NULL;
        if (read_news(watch))
            watch->deleted(watch->context);
    }
}

static int open_socket(int *ret_fd)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    int group = NFNLGRP_NFTABLES, fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
            setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    *ret_fd = fd;
    return 0;
}

int network_watch_start(
        const char *table, void (*deleted)(void *context), void *context, struct network_watch **ret_watch)
{
    struct network_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return -ENOMEM;
    watch->deleted = deleted;
    watch->context = context;
    watch->fd = -1;
    snprintf(watch->table, sizeof watch->table, "%s", table);
    watch->stop_fd = eventfd(0, EFD_CLOEXEC);
    int r = watch->stop_fd < 0 ? -errno : open_socket(&watch->fd);
    if (r == 0)
        r = -pthread_create(&watch->thread, NULL, watch_thread, watch);
    if (r == 0) {
        *ret_watch = watch;
        return 0;
    }
    if (watch->fd >= 0)
        close(watch->fd);
    if (watch->stop_fd >= 0)
        close(watch->stop_fd);
    free(watch);
    return r;
}

struct network_watch *network_watch_stop(struct network_watch *watch)
{
    if (watch == NULL)
        return NULL;
    eventfd_write(watch->stop_fd, 1);
    pthread_join(watch->thread, NULL);
    close(watch->fd);
    close(watch->stop_fd);
    free(watch);
    return NULL;
}
