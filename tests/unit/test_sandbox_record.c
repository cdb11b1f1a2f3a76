// SPDX-License-Identifier: Apache-2.0
// The record of a sandbox in a store: what a guest said, or a VMM, must not keep it from being written.
#include "tests/unit/store_fixture.h"

#include "snapshot/txn.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_internal.h"
#include "vmglue/sandbox_urls.h"
#include "vmglue/urls.h"

static void put(struct store *store, struct sandbox_record *record)
{
    struct error err = {0};
    struct txn *txn = txn_begin(store);
    int r = sandbox_record_put(txn, record, &err);
    if (r == 0)
        r = txn_commit_wait(txn, 0, &err);
    if (r < 0)
        fail_msg("%s", err.text);
}

static void take(void *context, const struct doc *doc)
{
    struct error err = {0};
    if (sandbox_record_parse(doc, context, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_reasons_that_are_no_text(void **state)
{
    static const struct {
        const char *said, *kept;
    } cases[] = {{"", ""}, {"caf\xc3\xa9", "caf\xc3\xa9"}, {"caf\xc3", "caf\xef\xbf\xbd"},
            {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"}};
    const struct store_config config = {.log_file_bytes = 1 << 20, .log_budget_bytes = 24 << 20};
    struct store_fixture f;
    struct sandbox_record record = {.name = "box", .id = "sbx_1", .network = json_string("full")};
    store_fixture_init(&f, "test_sandbox_record.XXXXXX", 1, &config);
    store_fixture_open(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sandbox_record shown = {0};
        strcpy(record.reason, cases[i].said);
        put(f.store, &record);
        store_doc_list(f.store, DOC_SANDBOX, take, &shown);
        assert_string_equal(shown.reason, cases[i].kept);
        sandbox_record_free(&shown);
    }
    // One that is full, and grows where it is put right.
    memset(record.reason, 0xff, sizeof record.reason - 1);
    record.reason[sizeof record.reason - 1] = '\0';
    put(f.store, &record);
    sandbox_record_free(&record);
    store_fixture_remove(&f);
}

// A URL that is revoked while its sandbox goes, and one whose record could not be written, leave nothing
// behind with the sandbox.
static void test_revoked_urls_go_with_their_sandbox(void **state)
{
    struct service service = {.urls = urls_create()};
    struct sandboxes all = {.config = {.service = &service}};
    struct sha256 hash = sha256_of("token", 5);
    char hex[2 * SHA256_SIZE + 1], id[URLS_SANDBOX_SIZE];
    sha256_hex(&hash, hex);
    json_t *both =
            json_pack("[{s:s, s:s}, {s:s, s:s}]", "id", "url_1", "hash", hex, "id", "url_2", "hash", hex);
    json_t *one = json_pack("[O]", json_array_get(both, 0));
    sandbox_url_index(&all, "sbx_1", NULL, both);
    urls_revoke(service.urls, "url_1");
    urls_revoke(service.urls, "url_2");
    sandbox_url_index(&all, "sbx_1", both, one);
    assert_true(urls_is_revoked(service.urls, "url_1")); // its record has it still
    assert_false(urls_is_revoked(service.urls, "url_2"));
    sandbox_url_index(&all, "sbx_1", one, NULL);
    assert_false(urls_is_revoked(service.urls, "url_1"));
    assert_false(urls_index_find(service.urls, &hash, id));
    json_decref(one);
    json_decref(both);
    urls_destroy(service.urls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_reasons_that_are_no_text),
            cmocka_unit_test(test_revoked_urls_go_with_their_sandbox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
