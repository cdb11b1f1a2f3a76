// SPDX-License-Identifier: Apache-2.0
// The text of the rules, and that the kernel takes it: in a namespace of the test's own, where there may be
// one.
#include "vmglue/network_link.h"
#include "vmglue/network_nft.h"
#include "vmglue/network_rules.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct network_rules_host host = {.table = "ramet_test", .range = 0x0ac90000, .prefix = 16};
static const struct network_rules_guest guest = {
        .name = "rmt0123456789ab", .address = 0x0ac90005, .mark = 0x52abcdef};

static struct network_policy policy_of(const char *text)
{
    struct network_policy policy;
    JSON_AUTO json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_int_equal(network_policy_parse(json, &policy, NULL), 0);
    return policy;
}

static char *text_of(const struct network_rules_host *of, const char *policy_text)
{
    struct network_policy policy = policy_of(policy_text);
    char *text = network_rules_guest(of, &guest, &policy);
    assert_non_null(text);
    network_policy_free(&policy);
    return text;
}

static void says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("'%s' is not in:\n%s", words, text);
}

static void does_not_say(const char *text, const char *words)
{
    if (strstr(text, words) != NULL)
        fail_msg("'%s' is in:\n%s", words, text);
}

// Where `later` stands only after `earlier`.
static void in_order(const char *text, const char *earlier, const char *later)
{
    const char *first = strstr(text, earlier), *second = strstr(text, later);
    if (first == NULL || second == NULL || first > second)
        fail_msg("'%s' does not stand before '%s' in:\n%s", earlier, later, text);
}

static void test_base_closes_the_host(void **state)
{
    char *text = network_rules_base(&host);
    says(text, "input iifname @peers goto refuse");
    in_order(text, "forward iifname vmap @outgoing", "forward iifname @peers drop");
    in_order(text, "forward oifname vmap @incoming", "forward oifname @peers drop");
    says(text, "ip saddr 10.201.0.0/16 masquerade");
    free(text);
}

static void test_full(void **state)
{
    char *text = text_of(&host, "\"full\"");
    in_order(text, "ip saddr != 10.201.0.5 drop", "accept");
    in_order(text, "169.254.0.0/16", "accept");
    in_order(text, "ip daddr 10.201.0.0/16 goto refuse", "accept");
    in_order(text, "192.168.0.0/16", "accept");
    free(text);
    struct network_rules_host open = host;
    open.private_networks = true;
    text = text_of(&open, "\"full\"");
    does_not_say(text, "192.168.0.0/16");
    says(text, "169.254.0.0/16");
    free(text);
}

static void test_allow_list(void **state)
{
    char *text = text_of(&host, "{\"allow\": [\"10.1.2.0/24\", \"192.0.2.7:443\", \"a.example\"]}");
    says(text, "net_rmt0123456789ab { 10.1.2.0/24 }");
    says(text, "netport_rmt0123456789ab { 192.0.2.7/32 . 443 }");
    does_not_say(text, "a.example"); // a name is the name server's
    in_order(text, "ip daddr 10.201.0.0/16 goto refuse", "ip daddr @net_");
    in_order(text, "ip daddr . th dport @nameport_", "out_rmt0123456789ab goto refuse");
    in_order(text, "out_rmt0123456789ab goto refuse",
            "in_rmt0123456789ab ct state established,related ct mark 0x52abcdef");
    free(text);
}

static void test_admitting(void **state)
{
    const uint32_t addresses[] = {0x01020304, 0x05060708};
    char *text = network_rules_admit(&host, guest.name, addresses, 2, 0, 90);
    says(text, "add element inet ramet_test name_rmt0123456789ab { 1.2.3.4 timeout 90s }");
    says(text, "add element inet ramet_test name_rmt0123456789ab { 5.6.7.8 timeout 90s }");
    free(text);
    text = network_rules_admit(&host, guest.name, addresses, 1, 443, 60);
    says(text, "nameport_rmt0123456789ab { 1.2.3.4 . 443 timeout 60s }");
    free(text);
}

// ---- in the kernel ----

static void run(const char *text)
{
    struct error err;
    if (network_nft_run_here(text, &err) < 0)
        fail_msg("%s\n%s", err.text, text);
}

static void run_and_free(char *text)
{
    run(text);
    free(text);
}

// Every text twice, since every one may be run again.
static int apply_all(void)
{
    static const char *const policies[] = {"\"full\"",
            "{\"allow\": [\"10.1.2.0/24\", \"10.1.2.128/25\", \"10.0.0.0/8:80\", \"192.0.2.7:443\", "
            "\"*.a.example\"]}",
            "{\"allow\": []}", "\"full\""};
    const uint32_t addresses[] = {0x01020304, 0x05060708};
    if (network_nft_run_here("list tables\n", NULL) < 0)
        return -EOPNOTSUPP;
    for (unsigned i = 0; i < 2; i++)
        run_and_free(network_rules_base(&host));
    run_and_free(network_rules_close(&host, guest.name));
    for (size_t i = 0; i < 2 * (sizeof policies / sizeof *policies); i++) {
        run_and_free(text_of(&host, policies[i / 2]));
        if (strstr(policies[i / 2], "allow") != NULL) {
            run_and_free(network_rules_admit(&host, guest.name, addresses, 2, 0, 60));
            run_and_free(network_rules_admit(&host, guest.name, addresses, 2, 443, 60));
        }
    }
    for (unsigned i = 0; i < 2; i++)
        run_and_free(network_rules_remove(&host, guest.name));
    for (unsigned i = 0; i < 2; i++)
        run(network_rules_inside());
    for (unsigned i = 0; i < 2; i++)
        run(network_rules_inside_remove());
    return 0;
}

static void test_the_kernel_takes_it(void **state)
{
    int r = unshare(CLONE_NEWNET) < 0 ? -errno : apply_all();
    if (r == -EPERM || r == -EOPNOTSUPP) {
        print_message("skipped: no network namespace or no nftables here (%s)\n", strerror(-r));
        skip();
    }
    assert_int_equal(r, 0);
}

struct found {
    const char *alias;
    unsigned count;
};

static void look(void *context, const char *name, const char *alias)
{
    struct found *found = context;
    found->count += strcmp(alias, found->alias) == 0;
}

// The host is a namespace of the test's own, too.
static int make_links(void)
{
    struct error err;
    int netns_fd, tap_fd, again_fd, udp_fd, tcp_fd, r;
    uint32_t addresses[2] = {0}, address = 0;
    struct found found = {"ramet-x/sbx_1", 0};
    r = network_link_create(&netns_fd, &tap_fd, &err);
    if (r < 0)
        return r;
    struct network_link_pair pair = {.name = "rmt000000000001",
            .alias = found.alias,
            .range = 0x0ac90000,
            .prefix = 24,
            .first = 252, // the last one, then the first
            .ret_address = &addresses[0]};
    r = network_link_connect(netns_fd, &pair, &err);
    if (r < 0)
        return r;
    assert_int_equal(addresses[0], 0x0ac900fe);
    assert_int_equal(network_link_connect(netns_fd, &pair, &err), -EEXIST);
    assert_int_equal(network_link_namespace(tap_fd, &again_fd), 0);
    assert_int_equal(network_link_address(again_fd, &address), 0);
    assert_int_equal(address, addresses[0]);
    assert_int_equal(network_link_list(look, &found), 0);
    assert_int_equal(found.count, 1);
    assert_int_equal(network_link_dns_socket(netns_fd, SOCK_DGRAM, &udp_fd), 0);
    assert_int_equal(network_link_dns_socket(netns_fd, SOCK_STREAM, &tcp_fd), 0);
    int other_netns_fd, other_tap_fd;
    assert_int_equal(network_link_create(&other_netns_fd, &other_tap_fd, &err), 0);
    assert_int_equal(network_link_address(other_netns_fd, &address), -ENODEV);
    pair.name = "rmt000000000002";
    pair.ret_address = &addresses[1];
    assert_int_equal(network_link_connect(other_netns_fd, &pair, &err), 0);
    assert_int_equal(addresses[1], 0x0ac90002); // the other one's is taken
    assert_int_equal(network_link_remove("rmt000000000001"), 0);
    assert_int_equal(network_link_remove("rmt000000000001"), -ENODEV);
    int fds[] = {netns_fd, tap_fd, again_fd, udp_fd, tcp_fd, other_netns_fd, other_tap_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        close(fds[i]);
    return 0;
}

static void test_links(void **state)
{
    int r = unshare(CLONE_NEWNET) < 0 ? -errno : make_links();
    if (r == -EPERM || r == -EACCES || r == -EOPNOTSUPP) {
        print_message("skipped: no network namespace, tap or veth here (%s)\n", strerror(-r));
        skip();
    }
    assert_int_equal(r, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_base_closes_the_host),
            cmocka_unit_test(test_full),
            cmocka_unit_test(test_allow_list),
            cmocka_unit_test(test_admitting),
            cmocka_unit_test(test_the_kernel_takes_it),
            cmocka_unit_test(test_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
