// SPDX-License-Identifier: Apache-2.0
// Multipart bodies that come in pieces of every size, whole and damaged.
#include "vmglue/e2b_multipart.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// The request: a body that is given in pieces, and a Content-Type.
static struct {
    const char *bytes, *type;
    size_t size, piece, given;
} body;

ssize_t http_request_read(struct http_request *request, void *buffer, size_t capacity)
{
    size_t left = body.size - body.given, take = body.piece < capacity ? body.piece : capacity;
    if (take > left)
        take = left;
    memcpy(buffer, body.bytes + body.given, take);
    body.given += take;
    return (ssize_t)take;
}

const char *http_request_header(struct http_request *request, const char *name)
{
    assert_string_equal(name, "Content-Type");
    return body.type;
}

static void give(const char *type, const char *bytes, size_t size, size_t piece)
{
    body.type = type;
    body.bytes = bytes;
    body.size = size;
    body.piece = piece;
    body.given = 0;
}

#define TYPE "multipart/form-data; boundary=B1"
#define PART(head, content) "--B1\r\n" head "\r\n\r\n" content "\r\n"
#define FILE_HEAD(name) "Content-Disposition: form-data; name=\"file\"; filename=\"" name "\""

static char *read_part(struct e2b_multipart *form, size_t *ret_size)
{
    char *content = malloc(1 << 20);
    ssize_t got;
    size_t size = 0;
    while ((got = e2b_multipart_read(form, content + size, 7)) > 0)
        size += (size_t)got;
    assert_int_equal(got, 0);
    *ret_size = size;
    return content;
}

static void expect_part(struct e2b_multipart *form, const char *file_name, const char *content)
{
    struct error err;
    size_t size;
    assert_int_equal(e2b_multipart_next(form, &err), 1);
    assert_string_equal(form->name, "file");
    assert_string_equal(form->file_name, file_name);
    char *found = read_part(form, &size);
    assert_int_equal(size, strlen(content));
    assert_memory_equal(found, content, size);
    free(found);
}

static void test_parts(void **state)
{
    static const char bytes[] = PART(FILE_HEAD("/a b"), "first\r\n--B\r\n-")
            PART(FILE_HEAD("q%22 \\\"e\\\""), "") PART(FILE_HEAD("c"), "\r\n--B2\r\n") "--B1--\r\n";
    struct e2b_multipart *form = malloc(sizeof *form);
    struct error err;
    for (size_t piece = 1; piece < sizeof bytes; piece++) {
        give(TYPE, bytes, sizeof bytes - 1, piece);
        assert_int_equal(e2b_multipart_begin(form, NULL, &err), 0);
        expect_part(form, "/a b", "first\r\n--B\r\n-");
        expect_part(form, "q\" \"e\"", "");
        expect_part(form, "c", "\r\n--B2\r\n");
        assert_int_equal(e2b_multipart_next(form, &err), 0);
    }
    free(form);
}

// A part that nobody reads is passed over.
static void test_skips(void **state)
{
    static const char bytes[] = PART(FILE_HEAD("one"), "1234567890") PART(FILE_HEAD("two"), "2") "--B1--";
    struct e2b_multipart *form = malloc(sizeof *form);
    struct error err;
    give("multipart/form-data; charset=x; boundary=\"B1\"", bytes, sizeof bytes - 1, 3);
    assert_int_equal(e2b_multipart_begin(form, NULL, &err), 0);
    assert_int_equal(e2b_multipart_next(form, &err), 1);
    expect_part(form, "two", "2");
    assert_int_equal(e2b_multipart_next(form, &err), 0);
    free(form);
}

static void test_large(void **state)
{
    static const char head[] = "--B1\r\n" FILE_HEAD("x") "\r\n\r\n", tail[] = "\r\n--B1--\r\n";
    enum { SIZE = 3 * E2B_MULTIPART_BUFFER + 17 };
    char *bytes = malloc(SIZE + sizeof head + sizeof tail), *at = stpcpy(bytes, head);
    struct e2b_multipart *form = malloc(sizeof *form);
    struct error err;
    size_t size;
    memset(at, '\r', SIZE);
    stpcpy(at + SIZE, tail);
    give(TYPE, bytes, (size_t)(at - bytes) + SIZE + sizeof tail - 1, 5000);
    assert_int_equal(e2b_multipart_begin(form, NULL, &err), 0);
    assert_int_equal(e2b_multipart_next(form, &err), 1);
    char *found = read_part(form, &size);
    assert_int_equal(size, SIZE);
    assert_memory_equal(found, at, SIZE);
    assert_int_equal(e2b_multipart_next(form, &err), 0);
    free(found);
    free(form);
    free(bytes);
}

// Cut at every byte: an error in words, never a short part that looks whole.
static void test_cut(void **state)
{
    static const char bytes[] = PART(FILE_HEAD("one"), "content") "--B1--\r\n";
    struct e2b_multipart *form = malloc(sizeof *form);
    struct error err;
    char content[64];
    for (size_t size = 0; size < sizeof bytes - 5; size++) {
        give(TYPE, bytes, size, 11);
        assert_int_equal(e2b_multipart_begin(form, NULL, &err), 0);
        int r = e2b_multipart_next(form, &err);
        ssize_t got = 1;
        while (r == 1 && (got = e2b_multipart_read(form, content, sizeof content)) > 0)
            ;
        if (r == 1 && got == 0)
            r = e2b_multipart_next(form, &err);
        assert_true(r == -EINVAL || got == -EINVAL);
    }
    free(form);
}

static void test_wrong(void **state)
{
    static const char *const types[] = {NULL, "application/json", "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; "
            "boundary=12345678901234567890123456789012345678901234567890123456789012345678901"};
    static const char *const bodies[] = {
            "", "x", "--B2\r\n\r\n\r\n--B2--", "--B1", "--B1\r\nno end of a head", "--B1xx\r\n\r\n"};
    struct e2b_multipart *form = malloc(sizeof *form);
    struct error err;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        give(types[i], "", 0, 1);
        assert_int_equal(e2b_multipart_begin(form, NULL, &err), -EINVAL);
    }
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        give(TYPE, bodies[i], strlen(bodies[i]), 2);
        assert_int_equal(e2b_multipart_begin(form, NULL, &err), 0);
        assert_int_equal(e2b_multipart_next(form, &err), -EINVAL);
        assert_int_equal(e2b_multipart_next(form, &err), -EINVAL);
    }
    free(form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_parts),
            cmocka_unit_test(test_skips),
            cmocka_unit_test(test_large),
            cmocka_unit_test(test_cut),
            cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
