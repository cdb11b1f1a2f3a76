// SPDX-License-Identifier: Apache-2.0
// What a network's policy may say, and what it covers.
#include "vmglue/network_policy.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static struct network_policy good(const char *text)
{
    struct network_policy policy;
    struct error err;
    JSON_AUTO json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    if (network_policy_parse(json, &policy, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return policy;
}

static void refused(const char *text, const char *word)
{
    struct network_policy policy;
    struct error err = {0};
    JSON_AUTO json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(json);
    assert_int_equal(network_policy_parse(json, &policy, &err), -EINVAL);
    if (strstr(err.text, "network") == NULL || strstr(err.text, word) == NULL)
        fail_msg("%s: '%s' does not say '%s'", text, err.text, word);
}

static void test_kinds(void **state)
{
    struct network_policy policy = good("\"full\"");
    assert_int_equal(policy.kind, NETWORK_FULL);
    network_policy_free(&policy);
    policy = good("\"none\"");
    assert_int_equal(policy.kind, NETWORK_NONE);
    network_policy_free(&policy);
    policy = good("{\"allow\": []}");
    assert_int_equal(policy.kind, NETWORK_ALLOW);
    assert_int_equal(policy.count, 0);
    network_policy_free(&policy);
}

static void test_entries(void **state)
{
    struct network_policy policy = good(
            "{\"allow\": [\"10.1.2.0/24\", \"192.0.2.7:443\", \"Host.Example.\", \"*.b.example:8080\"]}");
    assert_int_equal(policy.count, 4);
    const struct network_entry *entry = policy.entries;
    assert_false(entry[0].is_name);
    assert_int_equal(entry[0].address, 0x0a010200);
    assert_int_equal(entry[0].prefix, 24);
    assert_int_equal(entry[0].port, 0);
    assert_int_equal(entry[1].address, 0xc0000207);
    assert_int_equal(entry[1].prefix, 32);
    assert_int_equal(entry[1].port, 443);
    assert_true(entry[2].is_name);
    assert_string_equal(entry[2].name, "host.example");
    assert_false(entry[2].below);
    assert_string_equal(entry[3].name, "b.example");
    assert_true(entry[3].below);
    assert_int_equal(entry[3].port, 8080);
    struct network_policy copy;
    assert_int_equal(network_policy_copy(&policy, &copy), 0);
    assert_int_equal(network_policy_digest(&copy), network_policy_digest(&policy));
    copy.entries[1].port = 80;
    assert_int_not_equal(network_policy_digest(&copy), network_policy_digest(&policy));
    network_policy_free(&copy);
    network_policy_free(&policy);
}

static void test_refusals_say_what_is_wrong(void **state)
{
    refused("\"open\"", "open");
    refused("\"user\"", "choose");
    refused("1", "forms");
    refused("{}", "forms");
    refused("{\"allow\": [], \"deny\": []}", "forms");
    refused("{\"allow\": \"x.example\"}", "list");
    refused("{\"allow\": [1]}", "number 1");
    refused("{\"allow\": [\"\"]}", "empty");
    refused("{\"allow\": [\"a.example\\u0000\"]}", "number 1");
    refused("{\"allow\": [\"10.1.2.3/24\"]}", "10.1.2.0/24");
    refused("{\"allow\": [\"10.1.2.3/33\"]}", "not an IPv4");
    refused("{\"allow\": [\"10.1.2\"]}", "not an IPv4");
    refused("{\"allow\": [\"300.1.1.1\"]}", "not an IPv4");
    refused("{\"allow\": [\"::1\"]}", "IPv6");
    refused("{\"allow\": [\"[2001:db8::1]:80\"]}", "IPv6");
    refused("{\"allow\": [\"a.example:0\"]}", "port");
    refused("{\"allow\": [\"a.example:65536\"]}", "port");
    refused("{\"allow\": [\"a.example:\"]}", "port");
    refused("{\"allow\": [\"a.example:-1\"]}", "port");
    refused("{\"allow\": [\"a b\"]}", "neither");
    refused("{\"allow\": [\"-a.example\"]}", "neither");
    refused("{\"allow\": [\"a..example\"]}", "neither");
    refused("{\"allow\": [\"x.*.example\"]}", "star");
    refused("{\"allow\": [\"*\"]}", "star");
    refused("{\"allow\": [\"http://a.example\"]}", "a.example");
    // What no policy opens.
    refused("{\"allow\": [\"127.0.0.1\"]}", "never");
    refused("{\"allow\": [\"169.254.169.254:80\"]}", "never");
    refused("{\"allow\": [\"224.0.0.0/8\"]}", "never");
    refused("{\"allow\": [\"10.0.2.2\"]}", "never");
}

static void test_too_many_entries(void **state)
{
    struct network_policy policy;
    struct error err;
    JSON_AUTO json_t *json = json_pack("{s:[]}", "allow");
    for (unsigned i = 0; i <= NETWORK_ENTRIES_MAX; i++)
        json_array_append_new(json_object_get(json, "allow"), json_string("a.example"));
    assert_int_equal(network_policy_parse(json, &policy, &err), -EINVAL);
    assert_non_null(strstr(err.text, "200"));
}

static void test_names_that_are_covered(void **state)
{
    struct network_policy policy = good("{\"allow\": [\"a.example\", \"*.b.example\", \"192.168.0.0/16\"]}");
    assert_true(network_policy_allows_name(&policy, "a.example"));
    assert_true(network_policy_allows_name(&policy, "x.b.example"));
    assert_true(network_policy_allows_name(&policy, "y.x.b.example"));
    assert_false(network_policy_allows_name(&policy, "b.example"));
    assert_false(network_policy_allows_name(&policy, "xb.example"));
    assert_false(network_policy_allows_name(&policy, "x.a.example"));
    assert_false(network_policy_allows_name(&policy, "a.example.org"));
    assert_false(network_policy_allows_name(&policy, ""));
    assert_true(network_policy_allows_address(&policy, 0xc0a80101));
    assert_false(network_policy_allows_address(&policy, 0xc0a90101));
    network_policy_free(&policy);
    policy = good("\"none\"");
    assert_false(network_policy_allows_name(&policy, "a.example"));
    policy = good("\"full\"");
    assert_true(network_policy_allows_name(&policy, "a.example"));
}

static void test_addresses_that_stay_closed(void **state)
{
    static const uint32_t never[] = {0x00000000, 0x7f000001, 0xa9fea9fe, 0x0a000202, 0xe0000001, 0xffffffff};
    static const uint32_t private[] = {0x0a010203, 0xac100001, 0xac1fffff, 0xc0a80001, 0x64400001};
    static const uint32_t open[] = {0xcb00710a, 0x01010101, 0xac200000, 0xa9ff0001, 0x64800000, 0x09ffffff};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        assert_true(network_policy_is_never(never[i]));
    for (size_t i = 0; i < sizeof private / sizeof *private; i++)
        assert_true(network_policy_is_private(private[i]));
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        assert_false(network_policy_is_never(open[i]) || network_policy_is_private(open[i]));
}

static void test_what_is_stored(void **state)
{
    static const char *const pairs[][2] = {
            {"\"restricted\"", "none"}, {"\"user\"", "full"}, {"\"full\"", "full"}, {"\"none\"", "none"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        JSON_AUTO json_t *stored = json_loads(pairs[i][0], JSON_DECODE_ANY, NULL);
        JSON_AUTO json_t *policy = network_policy_stored(stored);
        assert_string_equal(json_string_value(policy), pairs[i][1]);
    }
    JSON_AUTO json_t *odd = json_string("odd");
    assert_null(network_policy_stored(odd));
    assert_null(network_policy_stored(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_kinds),
            cmocka_unit_test(test_entries),
            cmocka_unit_test(test_refusals_say_what_is_wrong),
            cmocka_unit_test(test_too_many_entries),
            cmocka_unit_test(test_names_that_are_covered),
            cmocka_unit_test(test_addresses_that_stay_closed),
            cmocka_unit_test(test_what_is_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
