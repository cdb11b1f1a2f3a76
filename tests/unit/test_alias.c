// SPDX-License-Identifier: Apache-2.0
// The tables of other clients' calls against the server's own: no row leads nowhere, none hides a native
// call.
#include "vmglue/alias.h"
#include "vmglue/service.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct alias_row *const tables[] = {alias_pandastack, alias_e2b, NULL};

// A path that fits the pattern.
static void example(const char *pattern, char *path)
{
    while (*pattern != '\0') {
        if (*pattern == '{') {
            pattern += strcspn(pattern, "}") + 1;
            *path++ = 'x';
        } else {
            *path++ = *pattern++;
        }
    }
    *path = '\0';
}

static const struct http_route *native(const char *method, const char *pattern)
{
    struct http_param params[HTTP_PARAMS_MAX] = {0};
    char path[512], allow[64];
    int status;
    example(pattern, path);
    return http_route_find(routes_served, method, path, params, &status, allow, sizeof allow);
}

static void each_row(void (*check)(const struct alias_row *row))
{
    unsigned count = 0;
    for (size_t t = 0; tables[t] != NULL; t++)
        for (const struct alias_row *row = tables[t]; row->method != NULL; row++) {
            check(row);
            count++;
        }
    assert_true(count > 80);
}

static void check_target(const struct alias_row *row)
{
    if ((row->flags & ALIAS_ABSENT) != 0) {
        assert_non_null(row->words);
        assert_null(row->to);
        return;
    }
    const char *method = row->to == NULL ? row->method : row->to_method;
    if (native(method, row->to == NULL ? row->pattern : row->to) == NULL)
        fail_msg("%s %s leads to no call", row->method, row->pattern);
}

static void test_rows_lead_somewhere(void **state)
{
    each_row(check_target);
}

static void check_hiding(const struct alias_row *row)
{
    if (row->to != NULL && native(row->method, row->pattern) != NULL)
        fail_msg("%s %s is a native call, and its row takes it away", row->method, row->pattern);
    if ((row->flags & ALIAS_ABSENT) != 0 &&
            native(strcmp(row->method, "*") == 0 ? "GET" : row->method, row->pattern) != NULL)
        fail_msg("%s is a native call, and its row says that there is none", row->pattern);
}

static void test_rows_hide_nothing(void **state)
{
    each_row(check_hiding);
}

static void check_name(const struct alias_row *row, const char *pattern)
{
    // What a native pattern names must come from theirs, or from the header.
    for (const char *at = row->to; at != NULL && (at = strchr(at, '{')) != NULL; at++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "}") + 1, at);
        if (strcmp(name, "{sandbox}") == 0)
            assert_true((row->flags & ALIAS_INSIDE) != 0);
        else if (strstr(pattern, name) == NULL)
            fail_msg("%s %s: nothing says what %s of %s is", row->method, pattern, name, row->to);
    }
}

static void check_names(const struct alias_row *row)
{
    check_name(row, row->pattern);
}

static void test_rows_fill_their_target(void **state)
{
    each_row(check_names);
}

static void check_numbers(const struct alias_row *row)
{
    const double numbers[] = {0, -1, 1.5, 1e300, 1e308, -1e308};
    for (const struct alias_field *field = row->fields; field != NULL && field->theirs != NULL; field++)
        for (size_t i = 0; field->convert != NULL && i < sizeof numbers / sizeof numbers[0]; i++) {
            struct error err = {0};
            json_t *number = json_real(numbers[i]), *converted = field->convert(NULL, number, &err);
            if (converted == NULL && err.code == 0)
                fail_msg("%s %s: %s of %g is left out", row->method, row->pattern, field->theirs, numbers[i]);
            json_decref(converted);
            json_decref(number);
        }
}

// A limit that is too large must be refused, not be none.
static void test_numbers_stay(void **state)
{
    each_row(check_numbers);
}

static const struct alias_field *creates(const char *theirs)
{
    const struct alias_row *row = alias_e2b;
    while (strcmp(row->method, "POST") != 0 || strcmp(row->pattern, "/sandboxes") != 0)
        row++;
    const struct alias_field *field = row->fields;
    while (strcmp(field->theirs, theirs) != 0)
        field++;
    return field;
}

// Nothing that says something of the network is left out, but what says that all may be reached: without the
// field that is so.
static void test_networks_stay(void **state)
{
    static const struct {
        const char *field, *value, *native; // NULL = left out, "" = refused here
    } cases[] = {{"allow_internet_access", "true", NULL}, {"allow_internet_access", "false", "\"none\""},
            {"allow_internet_access", "0", "0"}, {"allow_internet_access", "\"false\"", "\"false\""},
            {"network", "{}", NULL}, {"network", "7", "7"}, {"network", "[]", "[]"},
            {"network", "{\"allow_internet_access\":false}", "\"none\""},
            {"network", "{\"allow_internet_access\":0}", ""}, {"network", "{\"denyOut\":\"0.0.0.0/0\"}", ""},
            {"network", "{\"allowOut\":\"10.0.0.0/8\"}", ""},
            {"network", "{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":null}", "\"none\""},
            {"network", "{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"a.example\"]}",
                    "{\"allow\":[\"a.example\"]}"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err = {0};
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
        json_t *native = creates(cases[i].field)->convert(NULL, value, &err);
        char *text = native == NULL ? NULL : json_dumps(native, JSON_ENCODE_ANY | JSON_COMPACT);
        if (cases[i].native != NULL && cases[i].native[0] != '\0')
            assert_string_equal(text == NULL ? "(left out)" : text, cases[i].native);
        else
            assert_null(native);
        assert_int_equal(err.code, cases[i].native == NULL || cases[i].native[0] != '\0' ? 0 : -EINVAL);
        free(text);
        json_decref(native);
        json_decref(value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_rows_lead_somewhere),
            cmocka_unit_test(test_rows_hide_nothing),
            cmocka_unit_test(test_rows_fill_their_target),
            cmocka_unit_test(test_numbers_stay),
            cmocka_unit_test(test_networks_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
