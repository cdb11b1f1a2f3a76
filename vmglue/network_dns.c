// SPDX-License-Identifier: Apache-2.0
// One thread waits on the sockets of all guests; each query that must wait for a resolver gets a thread.
#include "vmglue/network_dns.h"

#include "blockstore/clock.h"
#include "vmglue/network_dns_upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    WORKERS_MAX = 16,       // of one guest
    WORKERS_ALL_MAX = 256,  // of all guests
    QUERY_MAX = 4096,       // bytes; a name, a type and options
    STREAM_IDLE_MS = 10000, // a guest's connection without a query
    TTL_MIN_S = 60,         // programs keep addresses for a while after they asked
    TTL_MAX_S = 24 * 3600,
    REST_MS = 100, // without descriptors
    GUEST_NAME_SIZE = 32,
    WORKER_STACK_BYTES = 1 << 20, // admitting goes through nftables, which takes 100 KiB at once
};

struct dns_guest {
    struct network_dns *dns;
    struct dns_guest *next; // (lock)
    char name[GUEST_NAME_SIZE];
    struct network_policy policy; // (lock)
    int udp_fd, tcp_fd;           // until the last worker has gone
    int gone_fd;                  // eventfd: readable when it is being forgotten
    unsigned workers;             // (lock)
    bool gone;                    // (lock)
};

struct network_dns {
    struct network_dns_config config;
    struct network_dns_resolvers fixed; // count 0 = read the file
    int epoll_fd, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock; // guards all fields marked (lock); held while addresses are admitted
    pthread_cond_t fewer; // a worker has gone
    struct dns_guest *guests;
    unsigned workers; // (lock)
};

struct job {
    struct dns_guest *guest;
    int stream_fd; // a connection of the guest's; -1: the datagram below
    struct sockaddr_in from;
    size_t size;
    uint8_t query[QUERY_MAX];
};

// ---- what is answered ----

// Whether every address may be given. Callers hold the lock.
static bool is_harmless_locked(const struct dns_guest *guest, const struct network_dns_answer *answer)
{
    for (unsigned i = 0; i < answer->count; i++) {
        uint32_t address = answer->addresses[i];
        if (network_policy_is_never(address))
            return false;
        if (network_policy_is_private(address) && !network_policy_allows_address(&guest->policy, address))
            return false;
    }
    return true;
}

static int admit_locked(struct dns_guest *guest, const char *name, const struct network_dns_answer *answer)
{
    const struct network_dns_config *config = &guest->dns->config;
    unsigned seconds = answer->ttl_seconds < TTL_MIN_S   ? TTL_MIN_S
                       : answer->ttl_seconds > TTL_MAX_S ? TTL_MAX_S
                                                         : answer->ttl_seconds;
    int r = 0;
    for (unsigned i = 0; i < guest->policy.count && r == 0 && answer->count > 0; i++) {
        const struct network_entry *entry = &guest->policy.entries[i];
        if (network_policy_entry_covers(entry, name))
            r = config->admit(
                    config->context, guest->name, answer->addresses, answer->count, entry->port, seconds);
    }
    return r;
}

// The code to answer with before anybody is asked; -1: ask.
static int judge(struct dns_guest *guest, const struct network_dns_question *question)
{
    pthread_mutex_lock(&guest->dns->lock);
    bool full = guest->policy.kind == NETWORK_FULL;
    bool allowed = network_policy_allows_name(&guest->policy, question->name);
    pthread_mutex_unlock(&guest->dns->lock);
    if (!allowed)
        return NETWORK_DNS_NO_NAME;
    return !full && question->type == NETWORK_DNS_TYPE_AAAA ? NETWORK_DNS_OK : -1;
}

// The code in place of the resolver's answer; -1: give it. Judged again, for the policy may be another by
// now.
static int judge_answer(struct dns_guest *guest, const struct network_dns_question *question,
        const struct network_dns_answer *answer)
{
    int code = -1;
    pthread_mutex_lock(&guest->dns->lock);
    if (!network_policy_allows_name(&guest->policy, question->name))
        code = NETWORK_DNS_NO_NAME;
    else if (guest->policy.kind == NETWORK_ALLOW && !is_harmless_locked(guest, answer))
        code = NETWORK_DNS_NO_NAME;
    else if (guest->policy.kind == NETWORK_ALLOW && admit_locked(guest, question->name, answer) < 0)
        code = NETWORK_DNS_FAILED;
    pthread_mutex_unlock(&guest->dns->lock);
    return code;
}

// Fills reply (NETWORK_DNS_MESSAGE_MAX bytes). 0 bytes: nothing is answered.
static size_t answer_query(
        struct dns_guest *guest, bool stream, const uint8_t *query, size_t size, uint8_t *reply)
{
    struct network_dns *dns = guest->dns;
    struct network_dns_question question;
    struct network_dns_answer answer;
    struct network_dns_resolvers resolvers = dns->fixed;
    size_t reply_size = 0;
    if (network_dns_message_question(query, size, &question) < 0)
        return 0;
    int code = judge(guest, &question);
    if (code < 0) {
        if (resolvers.count == 0)
            network_dns_upstream_read("/etc/resolv.conf", &resolvers);
        int r = network_dns_upstream_ask(
                &resolvers, stream, guest->gone_fd, query, size, &question, reply, &reply_size, &answer);
        code = r < 0 ? NETWORK_DNS_FAILED : judge_answer(guest, &question, &answer);
    }
    if (code < 0)
        return reply_size;
    network_dns_message_reply(query, &question, (unsigned)code, reply);
    return question.end;
}

// ---- workers ----

static int receive_whole(const struct dns_guest *guest, int fd, uint8_t *bytes, size_t size)
{
    int64_t until_ms = (int64_t)clock_monotonic_ms() + STREAM_IDLE_MS;
    while (size > 0) {
        ssize_t got = -1;
        int r = network_dns_upstream_wait(fd, POLLIN, guest->gone_fd, until_ms);
        if (r == 0 && ((got = recv(fd, bytes, size, MSG_DONTWAIT)) == 0 || (got < 0 && errno != EAGAIN)))
            r = -ECONNRESET;
        if (r < 0)
            return r;
        if (got > 0) {
            bytes += got;
            size -= (size_t)got;
        }
    }
    return 0;
}

static int send_whole(const struct dns_guest *guest, int fd, const uint8_t *bytes, size_t size)
{
    int64_t until_ms = (int64_t)clock_monotonic_ms() + STREAM_IDLE_MS;
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        int r = 0;
        if (sent < 0)
            r = errno == EAGAIN ? network_dns_upstream_wait(fd, POLLOUT, guest->gone_fd, until_ms) : -errno;
        if (r < 0)
            return r;
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        }
    }
    return 0;
}

// One query after the other, until the guest closes or is silent for long. Length and answer leave together:
// not every client puts them together again.
static void serve_stream(struct job *job, uint8_t *framed)
{
    for (;;) {
        uint8_t head[2];
        if (receive_whole(job->guest, job->stream_fd, head, sizeof head) < 0)
            return;
        size_t size = (size_t)head[0] << 8 | head[1];
        if (size > QUERY_MAX || receive_whole(job->guest, job->stream_fd, job->query, size) < 0)
            return;
        size = answer_query(job->guest, true, job->query, size, framed + sizeof head);
        framed[0] = (uint8_t)(size >> 8);
        framed[1] = (uint8_t)size;
        if (size == 0 || send_whole(job->guest, job->stream_fd, framed, sizeof head + size) < 0)
            return;
    }
}

static void leave(struct dns_guest *guest)
{
    struct network_dns *dns = guest->dns;
    pthread_mutex_lock(&dns->lock);
    guest->workers--;
    dns->workers--;
    pthread_cond_broadcast(&dns->fewer);
    pthread_mutex_unlock(&dns->lock);
}

static void end_job(struct job *job)
{
    struct dns_guest *guest = job->guest;
    if (job->stream_fd >= 0)
        close(job->stream_fd);
    free(job);
    leave(guest);
}

static void *work(void *context)
{
    struct job *job = context;
    uint8_t *reply = malloc(2 + NETWORK_DNS_MESSAGE_MAX);
    if (reply != NULL && job->stream_fd >= 0) {
        serve_stream(job, reply);
    } else if (reply != NULL) {
        size_t size = answer_query(job->guest, false, job->query, job->size, reply);
        if (size > 0) // lost when there is no room: the guest asks again
            (void)!sendto(job->guest->udp_fd, reply, size, MSG_DONTWAIT, (struct sockaddr *)&job->from,
                    sizeof job->from);
    }
    free(reply);
    end_job(job);
    return NULL;
}

// The guest's place for one more; the caller holds the lock.
static struct job *new_job_locked(struct dns_guest *guest)
{
    struct network_dns *dns = guest->dns;
    if (guest->gone || guest->workers >= WORKERS_MAX || dns->workers >= WORKERS_ALL_MAX)
        return NULL;
    struct job *job = malloc(sizeof *job);
    if (job == NULL)
        return NULL;
    job->guest = guest;
    job->stream_fd = -1;
    job->size = 0; // for a connection that could not be accepted: no query
    guest->workers++;
    dns->workers++;
    return job;
}

static void start_job(struct job *job)
{
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, WORKER_STACK_BYTES);
    if (pthread_create(&thread, &detached, work, job) != 0)
        end_job(job);
    pthread_attr_destroy(&detached);
}

// ---- the thread that waits ----

// Takes what there is on one socket. The lock is held for taking alone. False: there was no descriptor for a
// connection, which stays there.
static bool take_one(struct network_dns *dns, int fd)
{
    uint8_t waste[1];
    bool taken = true;
    struct job *job = NULL;
    pthread_mutex_lock(&dns->lock);
    struct dns_guest *guest = dns->guests;
    while (guest != NULL && guest->udp_fd != fd && guest->tcp_fd != fd)
        guest = guest->next;
    if (guest != NULL && !guest->gone) {
        job = new_job_locked(guest);
        socklen_t from_size = sizeof(struct sockaddr_in);
        if (fd == guest->tcp_fd) {
            int stream_fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            taken = stream_fd >= 0 || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
            if (job != NULL)
                job->stream_fd = stream_fd;
            else if (stream_fd >= 0)
                close(stream_fd);
        } else if (job != NULL) {
            ssize_t got =
                    recvfrom(fd, job->query, sizeof job->query, 0, (struct sockaddr *)&job->from, &from_size);
            job->size = got > 0 ? (size_t)got : 0;
        } else {
            (void)!recv(fd, waste, sizeof waste, 0);
        }
    }
    pthread_mutex_unlock(&dns->lock);
    if (job != NULL)
        start_job(job);
    return taken;
}

static void *wait_thread(void *context)
{
    struct network_dns *dns = context;
    struct epoll_event events[32];
    struct pollfd stop = {.fd = dns->stop_fd, .events = POLLIN};
    for (;;) {
        int count = epoll_wait(dns->epoll_fd, events, 32, -1);
        bool taken = true;
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == dns->stop_fd)
                return NULL;
            taken = take_one(dns, events[i].data.fd) && taken;
        }
        if (!taken)
            poll(&stop, 1, REST_MS); // what ends meanwhile gives one back
    }
}

static int watch(struct network_dns *dns, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(dns->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

// ---- the face ----

int network_dns_start(
        const struct network_dns_config *config, struct network_dns **ret_dns, struct error *err)
{
    struct network_dns *dns = calloc(1, sizeof *dns);
    if (dns == NULL)
        return error_set(err, -ENOMEM, "no memory");
    dns->config = *config;
    if (config->resolver != NULL && network_dns_upstream_parse(config->resolver, &dns->fixed) < 0) {
        free(dns);
        return error_set(err, -EINVAL,
                "the resolver \"%.60s\" is not an address such as 192.0.2.53 or 192.0.2.53:5353",
                config->resolver);
    }
    pthread_mutex_init(&dns->lock, NULL);
    pthread_cond_init(&dns->fewer, NULL);
    dns->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    dns->stop_fd = eventfd(0, EFD_CLOEXEC);
    int r = dns->epoll_fd < 0 || dns->stop_fd < 0 ? -errno : watch(dns, dns->stop_fd);
    if (r == 0)
        r = -pthread_create(&dns->thread, NULL, wait_thread, dns);
    if (r == 0) {
        *ret_dns = dns;
        return 0;
    }
    if (dns->epoll_fd >= 0)
        close(dns->epoll_fd);
    if (dns->stop_fd >= 0)
        close(dns->stop_fd);
    free(dns);
    return error_set(err, r, "the name server for guests cannot be started: %s", strerror(-r));
}

static void free_guest(struct dns_guest *guest)
{
    if (guest->udp_fd >= 0)
        close(guest->udp_fd);
    if (guest->tcp_fd >= 0)
        close(guest->tcp_fd);
    if (guest->gone_fd >= 0)
        close(guest->gone_fd);
    network_policy_free(&guest->policy);
    free(guest);
}

int network_dns_serve(struct network_dns *dns, const char *name, const struct network_policy *policy,
        int udp_fd, int tcp_fd)
{
    struct dns_guest *guest = calloc(1, sizeof *guest);
    if (guest == NULL) {
        close(udp_fd);
        close(tcp_fd);
        return -ENOMEM;
    }
    *guest = (struct dns_guest){
            .dns = dns, .udp_fd = udp_fd, .tcp_fd = tcp_fd, .gone_fd = eventfd(0, EFD_CLOEXEC)};
    snprintf(guest->name, sizeof guest->name, "%s", name);
    int r = guest->gone_fd < 0 ? -errno : network_policy_copy(policy, &guest->policy);
    if (r < 0) {
        free_guest(guest);
        return r;
    }
    pthread_mutex_lock(&dns->lock);
    guest->next = dns->guests;
    dns->guests = guest;
    pthread_mutex_unlock(&dns->lock);
    r = watch(dns, udp_fd);
    if (r == 0)
        r = watch(dns, tcp_fd);
    if (r < 0)
        network_dns_forget(dns, name);
    return r;
}

static struct dns_guest *find_locked(struct network_dns *dns, const char *name)
{
    struct dns_guest *guest = dns->guests;
    while (guest != NULL && (guest->gone || strcmp(guest->name, name) != 0))
        guest = guest->next;
    return guest;
}

int network_dns_change(struct network_dns *dns, const char *name, const struct network_policy *policy)
{
    struct network_policy copy;
    int r = network_policy_copy(policy, &copy);
    if (r < 0)
        return r;
    pthread_mutex_lock(&dns->lock);
    struct dns_guest *guest = find_locked(dns, name);
    if (guest != NULL) {
        struct network_policy old = guest->policy;
        guest->policy = copy;
        copy = old;
    }
    pthread_mutex_unlock(&dns->lock);
    network_policy_free(&copy);
    return guest == NULL ? -ENOENT : 0;
}

void network_dns_forget(struct network_dns *dns, const char *name)
{
    pthread_mutex_lock(&dns->lock);
    struct dns_guest *guest = find_locked(dns, name);
    if (guest == NULL) {
        pthread_mutex_unlock(&dns->lock);
        return;
    }
    guest->gone = true;
    epoll_ctl(dns->epoll_fd, EPOLL_CTL_DEL, guest->udp_fd, NULL);
    epoll_ctl(dns->epoll_fd, EPOLL_CTL_DEL, guest->tcp_fd, NULL);
    eventfd_write(guest->gone_fd, 1);
    while (guest->workers > 0)
        pthread_cond_wait(&dns->fewer, &dns->lock);
    struct dns_guest **link = &dns->guests;
    while (*link != guest)
        link = &(*link)->next;
    *link = guest->next;
    pthread_mutex_unlock(&dns->lock);
    free_guest(guest);
}

struct network_dns *network_dns_stop(struct network_dns *dns)
{
    if (dns == NULL)
        return NULL;
    eventfd_write(dns->stop_fd, 1);
    pthread_join(dns->thread, NULL);
    while (dns->guests != NULL)
        network_dns_forget(dns, dns->guests->name);
    pthread_mutex_lock(&dns->lock); // the last worker has let go of it
    pthread_mutex_unlock(&dns->lock);
    close(dns->epoll_fd);
    close(dns->stop_fd);
    pthread_cond_destroy(&dns->fewer);
    pthread_mutex_destroy(&dns->lock);
    free(dns);
    return NULL;
}
