// SPDX-License-Identifier: Apache-2.0
// Widths of texts on a terminal, what a terminal must not see, and guesses at misspelt words.
#include "tools/ramet/suggest.c"
#include "tools/ramet/table.c"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void characters_have_their_width(void **state)
{
    assert_int_equal(table_width("plain"), 5);
    assert_int_equal(table_width("gr\xc3\xbc\xc3\x9f"), 4);       // two bytes, one column
    assert_int_equal(table_width("\xe6\xbc\xa2\xe5\xad\x97"), 4); // han, two columns each
    assert_int_equal(table_width("\xf0\x9f\x90\x99!"), 3);        // a picture
    assert_int_equal(table_width("e\xcc\x81"), 1);                // a combining accent
    assert_int_equal(table_width("\xff\xc3"), 2);                 // no UTF-8 at all
    assert_int_equal(table_width(""), 0);
}

static void a_terminal_sees_no_commands(void **state)
{
    static const struct {
        const char *text, *clean;
    } cases[] = {{"a\x1b[31mb", "a?[31mb"}, {"two\nlines\tand a tab", "two lines and a tab"}, {"\x7f", "?"},
            {"\xc2\x9b"
             "31m",
                    "?31m"}, // the one-character CSI
            {"\xc3", "\xef\xbf\xbd"}, {"gr\xc3\xbcn", "gr\xc3\xbcn"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *clean = table_clean(cases[i].text);
        assert_string_equal(clean, cases[i].clean);
        free(clean);
    }
}

static void print(const char *text, size_t width, const char *expected)
{
    char buffer[200] = "";
    FILE *before = stdout, *memory = fmemopen(buffer, sizeof buffer, "w");
    assert_non_null(memory);
    stdout = memory;
    size_t used = print_cut(text, width);
    stdout = before;
    fclose(memory);
    assert_string_equal(buffer, expected);
    assert_int_equal(used, table_width(expected));
}

static void what_is_cut_says_so(void **state)
{
    print("short", 5, "short");
    print("longer", 5, "long\xe2\x80\xa6");
    print("\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", 5, "\xe6\xbc\xa2\xe5\xad\x97\xe2\x80\xa6");
    print("\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", 4, "\xe6\xbc\xa2\xe2\x80\xa6"); // no half of a character
}

static void the_widest_columns_give_way(void **state)
{
    struct table table = {.columns = 3, .widths = {30, 10, 40}};
    fit(&table, 60);
    assert_int_equal(table.widths[0] + table.widths[1] + table.widths[2] + 2 * GAP, 60);
    assert_int_equal(table.widths[1], 10);
    fit(&table, 3); // a terminal that is too narrow for anything
    assert_int_equal(table.widths[0], CUT_TO);
}

static void misspelt_words_are_guessed(void **state)
{
    static const char *const words[] = {
            "create", "snapshot", "snapshots", "ls", "rm", "template", "shell", NULL};
    static const struct {
        const char *word, *meant;
    } cases[] = {{"craete", "create"}, {"sanpshot", "snapshot"}, {"sl", "ls"}, {"temp", "template"},
            {"shel", "shell"}, {"snapshotss", "snapshots"}, {"frobnicate", NULL}, {"", NULL}, {"x", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *found = suggest_nearest(cases[i].word, words);
        if (cases[i].meant == NULL)
            assert_null(found);
        else
            assert_string_equal(found, cases[i].meant);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(characters_have_their_width),
            cmocka_unit_test(a_terminal_sees_no_commands),
            cmocka_unit_test(what_is_cut_says_so),
            cmocka_unit_test(the_widest_columns_give_way),
            cmocka_unit_test(misspelt_words_are_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
