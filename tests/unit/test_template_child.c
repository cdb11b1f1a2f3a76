// SPDX-License-Identifier: Apache-2.0
// The builder's process: its output, its end in every way, and that nothing of it outlives it. And the log of
// a build, which keeps the newest part.
#include "vmglue/template_child.h"
#include "vmglue/template_log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct seen {
    char text[4096];
    size_t size;
    const char *cancel_at; // text after which it is cancelled
};

static void on_output(void *context, const char *bytes, size_t size)
{
    struct seen *seen = context;
    size_t room = sizeof seen->text - 1 - seen->size, part = size < room ? size : room;
    memcpy(seen->text + seen->size, bytes, part);
    seen->size += part;
}

static bool is_cancelled(void *context)
{
    const struct seen *seen = context;
    return seen->cancel_at != NULL && strstr(seen->text, seen->cancel_at) != NULL;
}

static int run(struct seen *seen, const char *line, unsigned timeout_ms, struct error *err)
{
    const char *argv[] = {"/bin/sh", "-c", line, NULL};
    struct template_child child = {.argv = argv,
            .folder = "/",
            .timeout_ms = timeout_ms,
            .on_output = on_output,
            .cancelled = is_cancelled,
            .context = seen};
    return template_child_run(&child, err);
}

static int need_root(void **state)
{
    if (geteuid() == 0)
        return 0;
    fprintf(stderr, "skipped: namespaces of its own need root\n");
    exit(77);
}

static void test_output_and_status(void **state)
{
    struct seen seen = {0};
    struct error err;
    assert_int_equal(run(&seen, "echo out; echo err >&2; echo $$; pwd", 60000, &err), 0);
    assert_string_equal(seen.text, "out\nerr\n1\n/\n"); // the first process of a namespace of its own
    assert_int_equal(run(&seen, "exit 3", 60000, &err), -EIO);
    assert_non_null(strstr(err.text, "exit status 3"));
    assert_int_equal(run(&seen, "kill -9 $$; sleep 1000", 1000, &err), -ETIMEDOUT); // nothing in there can
    const char *argv[] = {"/nowhere/at/all", NULL};
    struct template_child child = {argv, "/", 60000, on_output, is_cancelled, &seen};
    assert_int_equal(template_child_run(&child, &err), -EIO);
    assert_non_null(strstr(seen.text, "/nowhere/at/all: No such file or directory"));
}

// What it left running in the background ends with it: its output's end is what is waited for.
static void test_all_ends(void **state)
{
    struct seen seen = {0};
    struct error err;
    assert_int_equal(run(&seen, "setsid sleep 1000 & echo over", 60000, &err), 0);
    assert_string_equal(seen.text, "over\n");
    seen = (struct seen){.cancel_at = "begun"};
    assert_int_equal(run(&seen, "setsid sleep 1000 & echo begun; sleep 1000", 60000, &err), -ECANCELED);
    seen = (struct seen){0};
    assert_int_equal(run(&seen, "sleep 1000 & sleep 1000", 100, &err), -ETIMEDOUT);
    assert_int_equal(
            run(&seen, "mount -t tmpfs none /mnt && echo own > /mnt/template-child", 60000, &err), 0);
    assert_int_equal(access("/mnt/template-child", F_OK), -1); // a mount of its own, gone with it
}

static void test_log_keeps_the_newest(void **state)
{
    struct template_log *log = template_log_create();
    char piece[1000];
    uint64_t position = 0;
    for (unsigned i = 0; i < 40000; i++)
        template_log_line(log, "line %08u", i);
    ssize_t got = template_log_read(log, &position, piece, sizeof piece, 0);
    assert_true(got > 0 && position > (uint64_t)got); // the oldest were given up, at a line's end
    assert_memory_equal(piece, "line ", 5);
    char *text = template_log_text(log);
    assert_true(strlen(text) <= TEMPLATE_LOG_MAX_BYTES);
    assert_string_equal(text + strlen(text) - 14, "line 00039999\n");
    free(text);
    while (template_log_read(log, &position, piece, sizeof piece, 0) > 0)
        ;
    assert_int_equal(template_log_read(log, &position, piece, sizeof piece, 10), -EAGAIN);
    template_log_close(log);
    assert_int_equal(template_log_read(log, &position, piece, sizeof piece, 10), 0);
    template_log_destroy(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup(test_output_and_status, need_root),
            cmocka_unit_test_setup(test_all_ends, need_root),
            cmocka_unit_test(test_log_keeps_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
