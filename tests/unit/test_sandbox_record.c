// SPDX-License-Identifier: Apache-2.0
// The record of a sandbox in a store: what a guest said, or a VMM, must not keep it from being written.
#include "tests/unit/store_fixture.h"

#include "snapshot/txn.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_internal.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_reasons_that_are_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
