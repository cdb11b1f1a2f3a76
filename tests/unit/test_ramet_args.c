// SPDX-License-Identifier: Apache-2.0
// The command line's arguments, sizes, quoting and base64. These files belong to a program, so they are taken
// in here.
#include "tools/ramet/args.c"
#include "tools/ramet/shell_quote.c"
#include "tools/ramet/suggest.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct given {
    bool flag;
    const char *text;
    uint64_t number, size;
    struct args_list list;
};

static int parse(struct given *given, struct args *args, unsigned minimum, unsigned maximum, unsigned stop_at,
        char *message, char **words)
{
    struct args_option options[] = {{"flag", 'f', ARGS_FLAG, &given->flag},
            {"text", 't', ARGS_TEXT, &given->text}, {"number", 'n', ARGS_NUMBER, &given->number},
            {"size", 0, ARGS_SIZE, &given->size}, {"list", 'l', ARGS_LIST, &given->list}, {0}};
    return args_parse(words, options, minimum, maximum, stop_at, "verb X", args, message, 200);
}

#define WORDS(...) ((char *[]){__VA_ARGS__, NULL})

static void options_stand_anywhere(void **state)
{
    struct given given = {0};
    struct args args;
    char message[200] = "";
    assert_int_equal(
            parse(&given, &args, 2, 2, 0, message,
                    WORDS("a", "--flag", "--text=x=y", "-n", "7", "b", "--size", "3G", "-lone", "-l", "two")),
            0);
    assert_int_equal(args.count, 2);
    assert_string_equal(args.items[0], "a");
    assert_string_equal(args.items[1], "b");
    assert_null(args.items[2]);
    assert_true(given.flag);
    assert_string_equal(given.text, "x=y");
    assert_int_equal(given.number, 7);
    assert_int_equal(given.size, 3ull << 30);
    assert_int_equal(given.list.count, 2);
    assert_string_equal(given.list.items[0], "one");
}

static void two_dashes_and_commands_end_them(void **state)
{
    struct given given = {0};
    struct args args;
    char message[200] = "";
    assert_int_equal(parse(&given, &args, 0, 9, 0, message, WORDS("a", "--", "--flag", "-", "--")), 0);
    assert_int_equal(args.count, 4);
    assert_string_equal(args.items[1], "--flag");
    assert_string_equal(args.items[3], "--");
    assert_false(given.flag);
    // exec NAME COMMAND ...: what follows the command is the command's.
    assert_int_equal(parse(&given, &args, 0, 9, 1, message, WORDS("box", "-f", "ls", "-l", "--text")), 0);
    assert_true(given.flag);
    assert_int_equal(args.count, 4);
    assert_string_equal(args.items[3], "--text");
    assert_int_equal(given.list.count, 0);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        char *words[4];
        const char *says;
    } cases[] = {{{"--nope"}, "--nope"}, {{"-x"}, "-x"}, {{"--text"}, "--text"}, {{"-n", "x"}, "number"},
            {{"-n", "-1"}, "number"}, {{"--size", "12Q"}, "12Q"}, {{"--flag=1"}, "--flag"},
            {{"a", "b"}, "\"b\""}, {{NULL}, "missing"}, {{"-n", "99999999999999999999"}, "number"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct given given = {0};
        struct args args;
        char message[200] = "", *words[5] = {0};
        memcpy(words, cases[i].words, sizeof cases[i].words);
        assert_int_equal(parse(&given, &args, 1, 1, 0, message, words), -EINVAL);
        assert_non_null(strstr(message, cases[i].says));
    }
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
        bool good;
    } cases[] = {{"0", 0, true}, {"512", 512, true}, {"1k", 1024, true}, {"10G", 10ull << 30, true},
            {"1TiB", 1ull << 40, true}, {"8P", 8ull << 50, true}, {"", 0, false}, {"G", 0, false},
            {"-1", 0, false}, {"1.5G", 0, false}, {"1GB", 0, false}, {"1 G", 0, false},
            {"99999999999P", 0, false}, {"18446744073709551616", 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = 0;
        assert_int_equal(args_size(cases[i].text, &bytes), cases[i].good);
        if (cases[i].good)
            assert_int_equal(bytes, cases[i].bytes);
    }
}

static void quoting(void **state)
{
    static const char *const words[] = {
            "printf", "%s|", "a b", "", "it's", "$HOME", "A=b", "plain/path-1.0", NULL};
    char *line = shell_quote_join(words);
    assert_string_equal(line, "printf '%s|' 'a b' '' 'it'\\''s' '$HOME' A=b plain/path-1.0");
    free(line);
    static const char *const assignment[] = {"A=b", NULL};
    line = shell_quote_join(assignment);
    assert_string_equal(line, "'A=b'");
    free(line);
}

static void base64_both_ways(void **state)
{
    for (size_t size = 0; size < 300; size++) {
        unsigned char bytes[300];
        size_t back;
        for (size_t i = 0; i < size; i++)
            bytes[i] = (unsigned char)(i * 7 + size);
        char *text = shell_quote_base64(bytes, size);
        assert_int_equal(strlen(text), (size + 2) / 3 * 4);
        char *again = shell_quote_from_base64(text, &back);
        assert_int_equal(back, size);
        assert_memory_equal(again, bytes, size);
        free(text);
        free(again);
    }
    char *text = shell_quote_base64("Ramet", 5);
    assert_string_equal(text, "UmFtZXQ=");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(options_stand_anywhere),
            cmocka_unit_test(two_dashes_and_commands_end_them),
            cmocka_unit_test(mistakes_are_named),
            cmocka_unit_test(sizes),
            cmocka_unit_test(quoting),
            cmocka_unit_test(base64_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
