// SPDX-License-Identifier: Apache-2.0
// The name server of guests, on loopback sockets, before a resolver of the test's own.
#include "vmglue/network_dns.h"
#include "vmglue/network_dns_message.h"
#include "vmglue/network_dns_upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HANG_S = 60, MESSAGE_MAX = 2048 };

// ---- a resolver: the name's first letter says what comes ----

static struct {
    int udp_fd, tcp_fd;
    char text[32]; // "127.0.0.1:PORT"
    atomic_uint asked;
    pthread_t threads[2];
} resolver;

static size_t put_record(uint8_t *at, uint32_t address)
{
    const uint8_t record[] = {0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, (uint8_t)(address >> 24),
            (uint8_t)(address >> 16), (uint8_t)(address >> 8), (uint8_t)address};
    memcpy(at, record, sizeof record);
    return sizeof record;
}

static size_t make_reply(const uint8_t *query, size_t size, uint8_t *reply)
{
    struct network_dns_question question;
    atomic_fetch_add(&resolver.asked, 1);
    if (network_dns_message_question(query, size, &question) < 0 || question.name[0] == 's')
        return 0; // silent
    network_dns_message_reply(query, &question, 0, reply);
    size_t used = question.end;
    reply[7] = question.name[0] == 'm' ? 2 : 1;
    if (question.name[0] == 'm')
        used += put_record(reply + used, 0xcb00710a);
    return used + put_record(reply + used, question.name[0] == 'g' ? 0xcb00710a : 0xc0a80001);
}

static void *resolve_datagrams(void *context)
{
    uint8_t query[MESSAGE_MAX], reply[MESSAGE_MAX];
    for (;;) {
        struct sockaddr_in from;
        socklen_t from_size = sizeof from;
        ssize_t got =
                recvfrom(resolver.udp_fd, query, sizeof query / 2, 0, (struct sockaddr *)&from, &from_size);
        if (got <= 0)
            return NULL;
        size_t size = make_reply(query, (size_t)got, reply);
        uint8_t forged[MESSAGE_MAX];
        memcpy(forged, reply, size);
        forged[0] ^= 1; // somebody guesses
        if (size > 0) {
            sendto(resolver.udp_fd, forged, size, 0, (struct sockaddr *)&from, from_size);
            sendto(resolver.udp_fd, reply, size, 0, (struct sockaddr *)&from, from_size);
        }
    }
}

static void *resolve_streams(void *context)
{
    uint8_t query[MESSAGE_MAX], reply[MESSAGE_MAX];
    for (;;) {
        int fd = accept(resolver.tcp_fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (recv(fd, query, 2, MSG_WAITALL) == 2) {
            size_t size = (size_t)query[0] << 8 | query[1];
            if (size < MESSAGE_MAX / 2 && recv(fd, query, size, MSG_WAITALL) == (ssize_t)size) {
                size = make_reply(query, size, reply + 2);
                reply[0] = (uint8_t)(size >> 8);
                reply[1] = (uint8_t)size;
                send(fd, reply, size + 2, MSG_NOSIGNAL);
            }
        }
        close(fd);
    }
}

static int bound(int type, uint16_t *port)
{
    struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), one = 1;
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    if ((type & 0xf) == SOCK_STREAM)
        assert_int_equal(listen(fd, 8), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

// One port for both kinds; somebody else may have the second.
static uint16_t bound_twice(int flags, int *ret_udp_fd, int *ret_tcp_fd)
{
    for (;;) {
        uint16_t port = 0;
        *ret_udp_fd = bound(SOCK_DGRAM | flags, &port);
        *ret_tcp_fd = bound(SOCK_STREAM | flags, &port);
        if (*ret_tcp_fd >= 0)
            return port;
        close(*ret_udp_fd);
    }
}

// ---- the guest ----

static struct {
    struct network_dns *dns;
    uint16_t port;
    pthread_mutex_t lock;
    char admitted[512]; // (lock)
} rig = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int admit(void *context, const char *guest, const uint32_t *addresses, unsigned count, uint16_t port,
        unsigned seconds)
{
    pthread_mutex_lock(&rig.lock);
    size_t used = strlen(rig.admitted);
    for (unsigned i = 0; i < count; i++)
        used += (size_t)snprintf(rig.admitted + used, sizeof rig.admitted - used, "%s %08x:%u for %u;", guest,
                addresses[i], port, seconds);
    pthread_mutex_unlock(&rig.lock);
    return 0;
}

static void admitted(const char *wanted)
{
    pthread_mutex_lock(&rig.lock);
    assert_string_equal(rig.admitted, wanted);
    rig.admitted[0] = '\0';
    pthread_mutex_unlock(&rig.lock);
}

static struct network_policy policy_of(const char *text)
{
    struct network_policy policy;
    JSON_AUTO json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_int_equal(network_policy_parse(json, &policy, NULL), 0);
    return policy;
}

static void change(const char *text)
{
    struct network_policy policy = policy_of(text);
    assert_int_equal(network_dns_change(rig.dns, "rmt1", &policy), 0);
    network_policy_free(&policy);
}

static int set_up(void **state)
{
    struct network_policy policy = policy_of("\"full\"");
    int udp_fd, tcp_fd;
    snprintf(resolver.text, sizeof resolver.text, "127.0.0.1:%u",
            bound_twice(0, &resolver.udp_fd, &resolver.tcp_fd));
    pthread_create(&resolver.threads[0], NULL, resolve_datagrams, NULL);
    pthread_create(&resolver.threads[1], NULL, resolve_streams, NULL);
    struct network_dns_config config = {.resolver = resolver.text, .admit = admit};
    struct error err;
    assert_int_equal(network_dns_start(&config, &rig.dns, &err), 0);
    rig.port = bound_twice(SOCK_NONBLOCK, &udp_fd, &tcp_fd);
    assert_int_equal(network_dns_serve(rig.dns, "rmt1", &policy, udp_fd, tcp_fd), 0);
    network_policy_free(&policy);
    return 0;
}

static int tear_down(void **state)
{
    rig.dns = network_dns_stop(rig.dns);
    // A datagram socket without a peer does not wake by its shutdown: an empty datagram ends it.
    struct sockaddr_in own;
    socklen_t size = sizeof own;
    getsockname(resolver.udp_fd, (struct sockaddr *)&own, &size);
    sendto(resolver.udp_fd, "", 0, 0, (struct sockaddr *)&own, size);
    shutdown(resolver.tcp_fd, SHUT_RDWR);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(resolver.threads[i], NULL);
    close(resolver.udp_fd);
    close(resolver.tcp_fd);
    return 0;
}

static size_t make_query(const char *name, unsigned type, uint8_t *query)
{
    size_t used = 12;
    memcpy(query, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00", 12);
    while (*name != '\0') {
        size_t size = strcspn(name, ".");
        query[used++] = (uint8_t)size;
        memcpy(query + used, name, size);
        used += size;
        name += size + (name[size] == '.');
    }
    const uint8_t end[] = {0, (uint8_t)(type >> 8), (uint8_t)type, 0, 1};
    memcpy(query + used, end, sizeof end);
    return used + sizeof end;
}

static int connected(int type)
{
    struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(rig.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = HANG_S};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

struct outcome {
    unsigned code, addresses;
};

static struct outcome outcome_of(const uint8_t *query, size_t query_size, const uint8_t *reply, ssize_t size)
{
    struct network_dns_question question;
    struct network_dns_answer answer;
    assert_true(size > 12);
    assert_int_equal(network_dns_message_question(query, query_size, &question), 0);
    assert_int_equal(network_dns_message_answer(reply, (size_t)size, &question, &answer), 0);
    return (struct outcome){reply[3] & 15, answer.count};
}

static struct outcome ask(const char *name, unsigned type, bool stream)
{
    uint8_t query[MESSAGE_MAX], reply[MESSAGE_MAX];
    size_t size = make_query(name, type, query + 2);
    int fd = connected(stream ? SOCK_STREAM : SOCK_DGRAM);
    ssize_t got;
    query[0] = (uint8_t)(size >> 8);
    query[1] = (uint8_t)size;
    if (stream) {
        assert_int_equal(send(fd, query, size + 2, 0), size + 2);
        assert_int_equal(recv(fd, reply, 2, MSG_WAITALL), 2);
        got = recv(fd, reply, (size_t)reply[0] << 8 | reply[1], MSG_WAITALL);
    } else {
        assert_int_equal(send(fd, query + 2, size, 0), size);
        got = recv(fd, reply, sizeof reply, 0);
    }
    close(fd);
    return outcome_of(query + 2, size, reply, got);
}

static void comes(const char *name, unsigned type, unsigned code, unsigned addresses)
{
    for (unsigned stream = 0; stream < 2; stream++) {
        struct outcome outcome = ask(name, type, stream != 0);
        if (outcome.code != code || outcome.addresses != addresses)
            fail_msg("%s by %s: code %u with %u addresses, not %u with %u", name, stream ? "TCP" : "UDP",
                    outcome.code, outcome.addresses, code, addresses);
    }
}

static void test_full_passes_all_on(void **state)
{
    change("\"full\"");
    comes("g.example", 1, NETWORK_DNS_OK, 1);
    comes("private.example", 1, NETWORK_DNS_OK, 1);
    admitted("");
}

static void test_only_allowed_names_are_asked_for(void **state)
{
    change("{\"allow\": [\"g.example:443\", \"*.example.org\", \"G.example\"]}");
    unsigned before = atomic_load(&resolver.asked);
    comes("other.example", 1, NETWORK_DNS_NO_NAME, 0);
    comes("example.org", 1, NETWORK_DNS_NO_NAME, 0);
    comes("g.example", NETWORK_DNS_TYPE_AAAA, NETWORK_DNS_OK, 0);
    assert_int_equal(atomic_load(&resolver.asked), before);
    admitted("");
    assert_int_equal(ask("G.Example", 1, false).addresses, 1);
    admitted("rmt1 cb00710a:443 for 60;rmt1 cb00710a:0 for 60;");
    assert_int_equal(ask("g.example.org", 1, true).addresses, 1);
    admitted("rmt1 cb00710a:0 for 60;");
}

static void test_names_lead_to_no_private_address(void **state)
{
    change("{\"allow\": [\"p.example\", \"m.example\"]}");
    comes("p.example", 1, NETWORK_DNS_NO_NAME, 0);
    comes("m.example", 1, NETWORK_DNS_NO_NAME, 0); // one of two
    admitted("");
    change("{\"allow\": [\"p.example:80\", \"192.168.0.0/24\"]}");
    assert_int_equal(ask("p.example", 1, false).addresses, 1);
    admitted("rmt1 c0a80001:80 for 60;");
}

static void test_junk_is_passed_over(void **state)
{
    change("\"full\"");
    int fd = connected(SOCK_DGRAM);
    static const char junk[] = "\xff\xff\xff";
    for (size_t size = 0; size < sizeof junk; size++)
        assert_int_equal(send(fd, junk, size, 0), size);
    close(fd);
    fd = connected(SOCK_STREAM);
    char byte;
    assert_int_equal(send(fd,
                             "\xff\xff"
                             "junk",
                             6, 0),
            6);
    assert_true(recv(fd, &byte, 1, 0) <= 0); // turned away
    close(fd);
    comes("g.example", 1, NETWORK_DNS_OK, 1);
}

// Forgetting does not wait until a silent resolver has had its time.
static void test_forgetting_ends_what_waits(void **state)
{
    uint8_t query[MESSAGE_MAX];
    int udp_fd, tcp_fd;
    struct network_policy policy = policy_of("\"full\"");
    uint16_t old = rig.port;
    rig.port = bound_twice(SOCK_NONBLOCK, &udp_fd, &tcp_fd);
    assert_int_equal(network_dns_serve(rig.dns, "rmt2", &policy, udp_fd, tcp_fd), 0);
    network_policy_free(&policy);
    unsigned before = atomic_load(&resolver.asked);
    size_t size = make_query("silent.example", 1, query);
    int fd = connected(SOCK_DGRAM), stream_fd = connected(SOCK_STREAM);
    assert_int_equal(send(fd, query, size, 0), size);
    while (atomic_load(&resolver.asked) == before)
        usleep(1000);
    network_dns_forget(rig.dns, "rmt2");
    network_dns_forget(rig.dns, "rmt2");
    char byte;
    assert_true(recv(stream_fd, &byte, 1, 0) <= 0);
    close(fd);
    close(stream_fd);
    rig.port = old;
    comes("g.example", 1, NETWORK_DNS_OK, 1);
}

static void test_resolvers(void **state)
{
    struct network_dns_resolvers resolvers;
    assert_int_equal(network_dns_upstream_parse("192.0.2.53", &resolvers), 0);
    assert_int_equal(resolvers.count, 1);
    assert_int_equal(network_dns_upstream_parse("192.0.2.53:5353", &resolvers), 0);
    assert_int_equal(network_dns_upstream_parse("2001:db8::53", &resolvers), 0);
    assert_int_equal(resolvers.addresses[0].ss_family, AF_INET6);
    static const char *const bad[] = {"", "x", "192.0.2.53:", "192.0.2.53:x", "resolver.example", ":53"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(network_dns_upstream_parse(bad[i], &resolvers), -EINVAL);
    struct network_dns_config config = {.resolver = "x"};
    struct network_dns *dns;
    struct error err;
    assert_int_equal(network_dns_start(&config, &dns, &err), -EINVAL);
    assert_non_null(strstr(err.text, "\"x\""));
    network_dns_upstream_read("/dev/null", &resolvers);
    assert_int_equal(resolvers.count, 1); // this host itself
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_full_passes_all_on),
            cmocka_unit_test(test_only_allowed_names_are_asked_for),
            cmocka_unit_test(test_names_lead_to_no_private_address),
            cmocka_unit_test(test_junk_is_passed_over),
            cmocka_unit_test(test_forgetting_ends_what_waits),
            cmocka_unit_test(test_resolvers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
