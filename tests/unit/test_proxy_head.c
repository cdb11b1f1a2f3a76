// SPDX-License-Identifier: Apache-2.0
// What the proxy into guests takes for an answer, what it refuses, and what it changes.
#include "vmglue/proxy_head.h"
#include "vmglue/proxy_token.h"
#include "vmglue/urls.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static char text[PROXY_HEAD_MAX + 8]; // answers' fields point into it

static int parse(const char *head, const char *method, struct proxy_answer *answer, struct error *err)
{
    size_t size = strlen(head);
    memcpy(text, head, size);
    assert_int_equal(proxy_head_size(text, size), size);
    return proxy_head_parse(text, size, method, answer, err);
}

static void test_answers(void **state)
{
    static const struct {
        const char *head, *method;
        int status;
        enum proxy_framing framing;
        uint64_t length;
    } rows[] = {
            {"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", "GET", 200, PROXY_LENGTH, 12},
            {"HTTP/1.0 404\r\n\r\n", "GET", 404, PROXY_UNTIL_CLOSE, 0},
            {"HTTP/1.1 200 \r\nTransfer-Encoding: Chunked\r\n\r\n", "POST", 200, PROXY_CHUNKED, 0},
            {"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Length: 12\r\n\r\n", "HEAD", 200,
                    PROXY_NO_BODY, 12},
            {"HTTP/1.1 204 No Content\r\n\r\n", "GET", 204, PROXY_NO_BODY, 0},
            {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET", 304, PROXY_NO_BODY, 9},
            {"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", "GET", 103, PROXY_NO_BODY, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct proxy_answer answer;
        struct error err = {0};
        assert_int_equal(parse(rows[i].head, rows[i].method, &answer, &err), 0);
        assert_int_equal(answer.status, rows[i].status);
        assert_int_equal(answer.framing, rows[i].framing);
        assert_int_equal(answer.length, rows[i].length);
    }
}

static void test_refused(void **state)
{
    static const char *const heads[] = {
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n a: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: 1\nY: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: 1\rY: 2\r\n\r\n",
            "HTTP/1.1 200 OK\nX: 1\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 -20 OK\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
            "http/1.1 200 OK\r\n\r\n",
            "\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct proxy_answer answer;
        struct error err = {0};
        assert_int_equal(parse(heads[i], "GET", &answer, &err), -EPROTO);
        assert_true(strlen(err.text) > 10);
    }
}

static void test_head_size(void **state)
{
    assert_int_equal(proxy_head_size("HTTP/1.1 200 OK\r\n\r", 18), 0);
    memset(text, 'a', sizeof text);
    assert_int_equal(proxy_head_size(text, PROXY_HEAD_MAX - 1), 0);
    assert_int_equal(proxy_head_size(text, PROXY_HEAD_MAX), -EMSGSIZE);
    memcpy(text + PROXY_HEAD_MAX - 4, "\r\n\r\n", 4);
    assert_int_equal(proxy_head_size(text, PROXY_HEAD_MAX), PROXY_HEAD_MAX);
}

// The body, or NULL when it is refused or not complete.
static const char *unchunk(const char *bytes, char *body)
{
    struct proxy_chunks chunks = {0};
    size_t size = strlen(bytes), used = 0;
    int r = 0;
    while (size > 0 && r == 0) {
        const char *part;
        size_t taken, part_size;
        r = proxy_chunks_take(&chunks, bytes, size, &taken, &part, &part_size);
        memcpy(body + used, part, part_size);
        used += part_size;
        bytes += taken;
        size -= taken;
    }
    body[used] = '\0';
    return r == 1 && size == 0 ? body : NULL;
}

static void test_chunks(void **state)
{
    char body[5000], line[5000];
    assert_string_equal(unchunk("5\r\nhello\r\n0\r\n\r\n", body), "hello");
    assert_string_equal(
            unchunk("A;x=\"y\"\r\n0123456789\r\n1 \r\n!\r\n00\r\nT: 1\r\nU: 2\r\n\r\n", body), "0123456789!");
    static const char *const wrong[] = {"\r\n", "g\r\n", "-1\r\n", "5\nhello\r\n0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\rhello", "0x5\r\nhello\r\n0\r\n\r\n",
            "fffffffffffffffff\r\n", "0\r\n\n", "5\r\nhel", "0\r\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_null(unchunk(wrong[i], body));
    memset(line, 'a', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    memcpy(line, "1;", 2);
    assert_null(unchunk(line, body)); // an extension without an end
    memcpy(line, "0\r\n", 3);
    assert_null(unchunk(line, body)); // a trailer without an end
}

static void expect(char *got, const char *wanted)
{
    assert_string_equal(got, wanted);
    free(got);
}

static void test_rewrites(void **state)
{
    expect(proxy_head_location("/login", "/u/t", "h:1"), "/u/t/login");
    expect(proxy_head_location("/u/t/login", "/u/t", "h:1"), "/u/t/login");
    expect(proxy_head_location("/u/tea", "/u/t", "h:1"), "/u/t/u/tea");
    expect(proxy_head_location("next?a=/", "/u/t", "h:1"), "next?a=/");
    expect(proxy_head_location("//other/x", "/u/t", "h:1"), "//other/x");
    expect(proxy_head_location("http://h:1/x", "/u/t", "h:1"), "http://h:1/u/t/x");
    expect(proxy_head_location("HTTPS://H:1?x", "/u/t", "h:1"), "HTTPS://H:1/u/t?x");
    expect(proxy_head_location("http://h:12/x", "/u/t", "h:1"), "http://h:12/x");
    expect(proxy_head_cookie("a=1", "/u/t"), "a=1");
    expect(proxy_head_cookie("path=/; Path=/", "/u/t"), "path=/; Path=/u/t/");
    expect(proxy_head_cookie("a=1;path=/app;PATH=/b; Domain=x.y; Secure", "/u/t"),
            "a=1;path=/u/t/app;PATH=/u/t/b; Secure");
    expect(proxy_head_cookie("a=1; Path =/x; PATH= \t/y ;\tDomain\t= evil; domain", "/u/t"),
            "a=1; Path =/u/t/x; PATH= \t/u/t/y ");
    expect(proxy_head_cookie("a=1; Path=/u/t", "/u/t"), "a=1; Path=/u/t");
    expect(proxy_head_cookie("a=1; Path=/u/t ; Secure", "/u/t"), "a=1; Path=/u/t ; Secure");
    expect(proxy_head_cookie("a=1; Domain=.boxes.example.org; Path=/", ""), "a=1; Path=/");
    expect(proxy_head_cookie("a=1; Path=/u/t/x;", "/u/t"), "a=1; Path=/u/t/x;");
}

static void test_hops(void **state)
{
    assert_true(proxy_head_is_hop("transfer-encoding", ""));
    assert_true(proxy_head_is_hop("X-One", "close, x-one ,y"));
    assert_false(proxy_head_is_hop("X-On", "close, x-one"));
    assert_false(proxy_head_is_hop("Content-Type", ""));
}

#define TOKEN "0123456789abcdef0123456789abcdef01234567"

static void test_tokens(void **state)
{
    char token[URLS_TOKEN_SIZE], sandbox[48];
    size_t rest;
    unsigned port;
    assert_true(urls_token_of_target("/u/" TOKEN "/a?b", token, &rest));
    assert_string_equal(token, TOKEN);
    assert_int_equal(rest, 43);
    assert_true(urls_token_of_target("/u/" TOKEN, token, &rest) &&
                urls_token_of_target("/u/" TOKEN "?x", token, &rest));
    assert_false(urls_token_of_target("/u/" TOKEN "0/", token, &rest));
    assert_false(urls_token_of_target("/u/0123/", token, &rest));
    assert_false(urls_token_of_target("/v1/u/" TOKEN, token, &rest));
    assert_true(urls_token_of_host("0123456789ABCDEF0123456789abcdef01234567.LocalHost:80", NULL, token));
    assert_string_equal(token, TOKEN);
    assert_true(urls_token_of_host(TOKEN ".x.org:8443", "x.org", token));
    assert_true(urls_token_of_host(TOKEN ".x.org", "x.org:443", token));
    assert_false(urls_token_of_host(TOKEN ".y.org", "x.org", token));
    assert_false(urls_token_of_host(TOKEN ".x.org.evil", "x.org", token));
    assert_false(urls_token_of_host(TOKEN, "x.org", token));
    assert_true(urls_preview_of_host("3000-sbx_0a.localhost:1", NULL, &port, sandbox, sizeof sandbox));
    assert_int_equal(port, 3000);
    assert_string_equal(sandbox, "sbx_0a");
    assert_false(urls_preview_of_host("3000-.localhost", NULL, &port, sandbox, sizeof sandbox));
    assert_false(urls_preview_of_host("99999-a.localhost", NULL, &port, sandbox, sizeof sandbox));
    assert_false(urls_preview_of_host("a-b.localhost", NULL, &port, sandbox, sizeof sandbox));
    char path[] = "/x//U/0123456789ABCDEF0123456789abcdef01234567/sbx_0123456789ab/" TOKEN;
    urls_mask(path);
    assert_string_equal(path, "/x//U/......................................../sbx_0123456789ab/"
                              "........................................");
}

#define OTHER "76543210fedcba9876543210fedcba9876543210"

static void expect_cut(
        void (*cut)(char *, struct proxy_tokens *), const char *given, const char *left, const char *tokens)
{
    char list[600], found[400] = "";
    struct proxy_tokens taken = {0};
    snprintf(list, sizeof list, "%s", given);
    cut(list, &taken);
    for (unsigned i = 0; i < taken.count; i++)
        strcat(found, taken.list[i]);
    assert_string_equal(list, left);
    assert_string_equal(found, tokens);
    snprintf(list, sizeof list, "%s", given); // without anybody who wants to know
    cut(list, NULL);
    assert_string_equal(list, left);
}

// Whatever could be ours is taken out, in every spelling; what is not stays to the byte.
static void test_tokens_taken_out(void **state)
{
    static const struct {
        void (*cut)(char *, struct proxy_tokens *);
        const char *given, *left, *tokens;
    } rows[] = {
            {proxy_token_cut_query, "preview_token=" TOKEN, "", TOKEN},
            {proxy_token_cut_query, "a=1&preview_token=" TOKEN "&b=%20&&c", "a=1&b=%20&&c", TOKEN},
            {proxy_token_cut_query, "preview_token=" TOKEN "&a&preview_token=" OTHER, "a", TOKEN OTHER},
            {proxy_token_cut_query, "Preview%5fTOKEN=%30123456789ABCDEF0123456789abcdef01234567&a", "a",
                    TOKEN},
            {proxy_token_cut_query, "preview_token&preview_token=&preview_token=short", "", ""},
            {proxy_token_cut_query, "xpreview_token=1&preview_tokens=2&preview_toke=3&a=preview_token",
                    "xpreview_token=1&preview_tokens=2&preview_toke=3&a=preview_token", ""},
            {proxy_token_cut_query, "%", "%", ""},
            {proxy_token_cut_query, "", "", ""},
            {proxy_token_cut_cookies, "preview_token=" TOKEN, "", TOKEN},
            {proxy_token_cut_cookies, "preview_token=" TOKEN "; a=1; b=\"2\"", "a=1; b=\"2\"", TOKEN},
            {proxy_token_cut_cookies, "a=1;  Preview_Token = \"" TOKEN "\" ;preview_token=" OTHER "; b=2",
                    "a=1; b=2", TOKEN OTHER},
            {proxy_token_cut_cookies, "a=1; preview_token=" TOKEN, "a=1", TOKEN},
            {proxy_token_cut_cookies, "apreview_token=1; a=preview_token=2",
                    "apreview_token=1; a=preview_token=2", ""},
            {proxy_token_cut_address, "http://h/p?preview_token=" TOKEN, "http://h/p", TOKEN},
            {proxy_token_cut_address, "http://h/p?preview_token=" TOKEN "#f?preview_token=1",
                    "http://h/p#f?preview_token=1", TOKEN},
            {proxy_token_cut_address, "/p?a&preview_token=" TOKEN "&b#f", "/p?a&b#f", TOKEN},
            {proxy_token_cut_address, "/p/preview_token=1", "/p/preview_token=1", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_cut(rows[i].cut, rows[i].given, rows[i].left, rows[i].tokens);
    char many[20 * 60] = "";
    struct proxy_tokens taken = {0};
    for (unsigned i = 0; i < 20; i++)
        snprintf(many + strlen(many), 100, "preview_token=%040u&", i);
    proxy_token_cut_query(many, &taken);
    assert_string_equal(many, "");
    assert_int_equal(taken.count, PROXY_TOKENS_MAX);
}

static void test_tokens_hidden(void **state)
{
    struct proxy_tokens tokens = {0};
    proxy_token_add(&tokens, TOKEN, 40);
    proxy_token_add(&tokens, TOKEN, 40);
    proxy_token_add(&tokens, TOKEN, 39);
    assert_int_equal(tokens.count, 1);
    char where[] = "/a/0123456789ABCDEF0123456789abcdef01234567/" TOKEN "b" OTHER;
    proxy_token_hide(where, &tokens);
    assert_string_equal(where, "/a/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/"
                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxb" OTHER);
    assert_true(proxy_token_is_cookie("Preview_Token=1; Path=/") && proxy_token_is_cookie(" preview_token"));
    assert_false(proxy_token_is_cookie("a=1; preview_token=1") || proxy_token_is_cookie("a=preview_token"));
    assert_true(proxy_token_holds_key("Bearer e2b_" TOKEN "0123456789abcdef"));
    assert_true(proxy_token_holds_key("x_e2b_" TOKEN "0123456789abcdef"));
    assert_true(proxy_token_holds_key("rmt_0123456789abcdef_" TOKEN "0123456789abcdef01234567"));
    assert_false(proxy_token_holds_key("e2b_" TOKEN) || proxy_token_holds_key("_" TOKEN "0123456789abcdef") ||
                 proxy_token_holds_key("rmt_0123456789abcde_0") || proxy_token_holds_key("e2b_"));
}

static void test_index(void **state)
{
    struct urls *urls = urls_create();
    char id[URLS_SANDBOX_SIZE];
    struct sha256 hashes[64];
    for (unsigned i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "sbx_%u", i);
        hashes[i] = sha256_of(&i, sizeof i);
        hashes[i].bytes[0] = hashes[i].bytes[1] = (uint8_t)(i % 2); // they share two buckets
        assert_false(urls_index_find(urls, &hashes[i], id));
        urls_index_put(urls, &hashes[i], name);
    }
    urls_index_put(urls, &hashes[5], "sbx_5"); // twice in, once out: it is there
    urls_index_drop(urls, &hashes[5]);
    urls_index_drop(urls, &hashes[6]);
    urls_index_drop(urls, &hashes[6]);
    for (unsigned i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "sbx_%u", i);
        assert_int_equal(urls_index_find(urls, &hashes[i], id), i != 6);
        if (i != 6)
            assert_string_equal(id, name);
    }
    urls_destroy(urls);
}

static void test_revoking(void **state)
{
    struct urls *urls = urls_create();
    int one[2], other[2];
    char byte;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, one), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    struct urls_connection first = {.id = "url_1", .fd = one[0]}, second = {.id = "url_2", .fd = other[0]};
    urls_open(urls, &first);
    urls_open(urls, &second);
    urls_revoke(urls, "url_1");
    assert_true(urls_is_ended(urls, &first) && urls_is_revoked(urls, "url_1"));
    assert_false(urls_is_ended(urls, &second) || urls_is_revoked(urls, "url_2"));
    assert_int_equal(recv(one[1], &byte, 1, 0), 0);
    assert_int_equal(send(other[0], "x", 1, 0), 1);
    assert_int_equal(recv(other[1], &byte, 1, 0), 1);
    urls_close(urls, &first);
    urls_forget(urls, "url_1");
    assert_false(urls_is_revoked(urls, "url_1"));
    urls_close(urls, &second);
    urls_revoke(urls, "url_3"); // destroy frees what was not forgotten
    urls_destroy(urls);
    for (int i = 0; i < 2; i++) {
        close(one[i]);
        close(other[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_refused),
            cmocka_unit_test(test_head_size), cmocka_unit_test(test_chunks), cmocka_unit_test(test_rewrites),
            cmocka_unit_test(test_hops), cmocka_unit_test(test_tokens),
            cmocka_unit_test(test_tokens_taken_out), cmocka_unit_test(test_tokens_hidden),
            cmocka_unit_test(test_index), cmocka_unit_test(test_revoking)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
