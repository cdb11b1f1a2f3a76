// SPDX-License-Identifier: Apache-2.0
// Files through the real agent and client.
#include "tests/unit/agent_fixture.h"

#include <pthread.h>

struct content {
    const uint8_t *bytes;
    size_t size, done, piece;
    size_t cut_at; // the source fails here; SIZE_MAX = never
};

static ssize_t give(void *context, void *buffer, size_t capacity)
{
    struct content *content = context;
    size_t size = content->size - content->done;
    if (content->done >= content->cut_at)
        return -ECONNRESET;
    size = size < capacity ? size : capacity;
    if (content->piece != 0 && size > content->piece)
        size = content->piece;
    memcpy(buffer, content->bytes + content->done, size);
    content->done += size;
    return (ssize_t)size;
}

struct received {
    uint8_t *bytes;
    size_t size, capacity, stop_at;
};

static int take(void *context, const void *bytes, size_t size)
{
    struct received *received = context;
    if (received->size + size > received->stop_at)
        return -ECANCELED;
    assert_true(received->size + size <= received->capacity);
    memcpy(received->bytes + received->size, bytes, size);
    received->size += size;
    return 0;
}

static const char *below(struct guest *guest, const char *name)
{
    static _Thread_local char paths[4][200];
    static _Thread_local int next;
    char *path = paths[next++ % 4];
    snprintf(path, 200, "%s/%s", guest->directory, name);
    return path;
}

static uint8_t *pattern(size_t size)
{
    uint8_t *bytes = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    return bytes;
}

static int put(struct guest *guest, const char *path, const void *bytes, size_t size, struct error *err)
{
    struct content content = {.bytes = bytes, .size = size, .cut_at = SIZE_MAX};
    return agent_file_write(guest->agent, path, 0, give, &content, err);
}

static void assert_file(const char *path, const void *bytes, size_t size)
{
    uint8_t *found = malloc(size + 1);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    size_t got = 0;
    for (ssize_t n; (n = read(fd, found + got, size + 1 - got)) > 0;)
        got += (size_t)n;
    close(fd);
    assert_int_equal(got, size);
    assert_memory_equal(found, bytes, size);
    free(found);
}

// Names in the directory other than the test's own, so that a forgotten temporary file shows.
static int count_temporaries(struct guest *guest)
{
    char command[200];
    snprintf(command, sizeof command, "exit $(find %s -name '*.ramet-*' | wc -l)", guest->directory);
    return WEXITSTATUS(system(command));
}

static void every_size_arrives_whole(void **state)
{
    const size_t sizes[] = {0, 1, 4095, 32767, 32768, 32769, 65535, 65536, 65537, 5000000};
    uint8_t *bytes = pattern(5000000);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct error err;
        const char *path = below(*state, "sized");
        struct received received = {.bytes = malloc(sizes[i] + 1), .capacity = sizes[i], .stop_at = SIZE_MAX};
        struct agent_stat stat;
        assert_int_equal(put(*state, path, bytes, sizes[i], &err), 0);
        assert_file(path, bytes, sizes[i]);
        assert_int_equal(agent_file_read(((struct guest *)*state)->agent, path, take, &received, &err), 0);
        assert_int_equal(received.size, sizes[i]);
        assert_memory_equal(received.bytes, bytes, sizes[i]);
        assert_int_equal(agent_file_stat(((struct guest *)*state)->agent, path, &stat, &err), 0);
        assert_int_equal(stat.size_bytes, sizes[i]);
        assert_int_equal(stat.mode, S_IFREG | 0644);
        free(received.bytes);
    }
    assert_int_equal(count_temporaries(*state), 0);
    free(bytes);
}

static void small_pieces_add_up(void **state)
{
    uint8_t *bytes = pattern(20000);
    struct content content = {.bytes = bytes, .size = 20000, .piece = 7, .cut_at = SIZE_MAX};
    assert_int_equal(agent_file_write(((struct guest *)*state)->agent, below(*state, "small"), 0640, give,
                             &content, NULL),
            0);
    assert_file(below(*state, "small"), bytes, 20000);
    free(bytes);
}

static void parents_are_made_and_links_followed(void **state)
{
    struct guest *guest = *state;
    struct error err;
    assert_int_equal(put(guest, below(guest, "a/b/c/file"), "deep", 4, &err), 0);
    assert_file(below(guest, "a/b/c/file"), "deep", 4);
    assert_int_equal(symlink("a/b/c/file", below(guest, "link")), 0);
    assert_int_equal(put(guest, below(guest, "link"), "through", 7, &err), 0);
    assert_file(below(guest, "a/b/c/file"), "through", 7);
    struct stat st;
    assert_int_equal(lstat(below(guest, "link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

static void cut_off_upload_leaves_the_old_file(void **state)
{
    struct guest *guest = *state;
    struct error err;
    uint8_t *bytes = pattern(2000000);
    assert_int_equal(put(guest, below(guest, "kept"), "old", 3, &err), 0);
    struct content content = {.bytes = bytes, .size = 2000000, .cut_at = 1000000};
    assert_int_equal(
            agent_file_write(guest->agent, below(guest, "kept"), 0, give, &content, &err), -ECONNRESET);
    assert_file(below(guest, "kept"), "old", 3);
    content = (struct content){.bytes = bytes, .size = 2000000, .cut_at = 0};
    assert_int_equal(
            agent_file_write(guest->agent, below(guest, "never"), 0, give, &content, &err), -ECONNRESET);
    assert_int_equal(access(below(guest, "never"), F_OK), -1);
    assert_int_equal(count_temporaries(guest), 0);
    free(bytes);
}

static void replaced_files_keep_mode_and_owner(void **state)
{
    struct guest *guest = *state;
    struct error err;
    struct stat st;
    assert_int_equal(put(guest, below(guest, "script"), "old", 3, &err), 0);
    assert_int_equal(chmod(below(guest, "script"), 0750), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(below(guest, "script"), 12, 34), 0);
    assert_int_equal(put(guest, below(guest, "script"), "new", 3, &err), 0);
    assert_int_equal(stat(below(guest, "script"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0750);
    if (geteuid() == 0) {
        assert_int_equal(st.st_uid, 12);
        assert_int_equal(st.st_gid, 34);
    }
}

static void assert_put_fails(struct guest *guest, const char *path, int code)
{
    struct error err = {0};
    assert_int_equal(put(guest, path, "x", 1, &err), code);
    assert_true(strlen(err.text) > 10);
}

static void impossible_targets_are_refused(void **state)
{
    struct guest *guest = *state;
    struct error err;
    char long_name[400];
    memset(long_name, 'n', sizeof long_name);
    memcpy(long_name, "/tmp/", 5);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(agent_file_mkdir(guest->agent, below(guest, "dir/sub"), &err), 0);
    assert_int_equal(agent_file_mkdir(guest->agent, below(guest, "dir/sub"), &err), 0);
    assert_int_equal(mkfifo(below(guest, "fifo"), 0600), 0);
    assert_put_fails(guest, below(guest, "dir"), -EISDIR);
    assert_put_fails(guest, below(guest, "new/"), -EISDIR);
    assert_put_fails(guest, below(guest, "fifo"), -EINVAL);
    assert_put_fails(guest, "/proc/no/such", -ENOENT);
    assert_put_fails(guest, long_name, -ENAMETOOLONG);
    assert_put_fails(guest, "", -EINVAL);
    assert_int_equal(put(guest, below(guest, "plain"), "x", 1, &err), 0);
    assert_put_fails(guest, below(guest, "plain/below"), -ENOTDIR);
    assert_int_equal(agent_file_mkdir(guest->agent, below(guest, "plain"), &err), -EEXIST);
    assert_int_equal(count_temporaries(guest), 0);
}

static void reading_what_cannot_be_read(void **state)
{
    struct guest *guest = *state;
    struct error err;
    uint8_t bytes[16];
    struct received received = {.bytes = bytes, .capacity = sizeof bytes, .stop_at = SIZE_MAX};
    struct agent_stat stat;
    assert_int_equal(agent_file_read(guest->agent, below(guest, "nothing"), take, &received, &err), -ENOENT);
    assert_non_null(strstr(err.text, "nothing"));
    assert_int_equal(agent_file_read(guest->agent, guest->directory, take, &received, &err), -EISDIR);
    assert_int_equal(agent_file_read(guest->agent, "/dev/zero", take, &received, &err), -EINVAL);
    assert_int_equal(agent_file_read(guest->agent, below(guest, "fifo"), take, &received, &err), -EINVAL);
    assert_int_equal(agent_file_stat(guest->agent, below(guest, "nothing"), &stat, &err), -ENOENT);
    assert_int_equal(received.size, 0);
}

static void files_of_the_kernel_have_content_without_size(void **state)
{
    uint8_t bytes[65536];
    struct received received = {.bytes = bytes, .capacity = sizeof bytes, .stop_at = SIZE_MAX};
    assert_int_equal(
            agent_file_read(((struct guest *)*state)->agent, "/proc/version", take, &received, NULL), 0);
    assert_true(received.size > 10);
    assert_memory_equal(bytes, "Linux", 5);
}

static void a_reader_may_stop(void **state)
{
    struct guest *guest = *state;
    uint8_t *bytes = pattern(8000000);
    struct received received = {.bytes = malloc(100000), .capacity = 100000, .stop_at = 100000};
    struct error err;
    assert_int_equal(put(guest, below(guest, "large"), bytes, 8000000, &err), 0);
    assert_int_equal(agent_file_read(guest->agent, below(guest, "large"), take, &received, &err), -ECANCELED);
    assert_int_equal(agent_ping(guest->agent, 0, &err), 0);
    free(received.bytes);
    free(bytes);
}

struct listing {
    unsigned count;
    bool odd_found, sorted;
    char last[300];
};

static void each(void *context, const char *name, const struct agent_stat *stat)
{
    struct listing *listing = context;
    listing->count++;
    listing->sorted = listing->sorted && strcmp(listing->last, name) < 0;
    snprintf(listing->last, sizeof listing->last, "%s", name);
    if (strcmp(name, "odd \xff\nname") == 0)
        listing->odd_found = stat->size_bytes == 3 && S_ISREG(stat->mode);
}

static void large_folders_are_listed(void **state)
{
    struct guest *guest = *state;
    struct listing listing = {.sorted = true};
    struct error err;
    char command[300];
    assert_int_equal(put(guest, below(guest, "many/odd \xff\nname"), "abc", 3, &err), 0);
    snprintf(command, sizeof command, "cd %s/many && seq -f %%06.0f-a-name-of-some-length 5000 | xargs touch",
            guest->directory);
    assert_int_equal(system(command), 0);
    assert_int_equal(agent_file_list(guest->agent, below(guest, "many"), each, &listing, &err), 0);
    assert_int_equal(listing.count, 5001);
    assert_true(listing.odd_found);
    assert_int_equal(
            agent_file_list(guest->agent, below(guest, "many/nothing"), each, &listing, &err), -ENOENT);
    assert_int_equal(agent_file_list(guest->agent, "/proc/version", each, &listing, &err), -ENOTDIR);
}

static void removing(void **state)
{
    struct guest *guest = *state;
    struct error err;
    assert_int_equal(put(guest, below(guest, "tree/a/b/file"), "x", 1, &err), 0);
    assert_int_equal(put(guest, below(guest, "outside"), "x", 1, &err), 0);
    assert_int_equal(symlink(guest->directory, below(guest, "tree/a/out")), 0);
    assert_int_equal(agent_file_remove(guest->agent, below(guest, "tree"), false, &err), -ENOTEMPTY);
    assert_non_null(strstr(err.text, "recursive"));
    assert_int_equal(agent_file_remove(guest->agent, below(guest, "tree"), true, &err), 0);
    assert_int_equal(access(below(guest, "tree"), F_OK), -1);
    assert_int_equal(access(below(guest, "outside"), F_OK), 0);
    assert_int_equal(agent_file_remove(guest->agent, below(guest, "outside"), false, &err), 0);
    assert_int_equal(agent_file_remove(guest->agent, below(guest, "outside"), true, &err), -ENOENT);
    assert_int_equal(agent_file_remove(guest->agent, "/", true, &err), -EBUSY);
}

struct writer {
    struct guest *guest;
    uint8_t *bytes;
};

static void *write_often(void *argument)
{
    struct writer *writer = argument;
    for (int i = 0; i < 10; i++)
        assert_int_equal(
                put(writer->guest, below(writer->guest, "contended"), writer->bytes, 300000, NULL), 0);
    return NULL;
}

static void two_writers_leave_one_whole_file(void **state)
{
    struct writer writers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        writers[i] = (struct writer){.guest = *state, .bytes = malloc(300000)};
        memset(writers[i].bytes, 'A' + i, 300000);
        assert_int_equal(pthread_create(&threads[i], NULL, write_often, &writers[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    uint8_t first;
    int fd = open(below(*state, "contended"), O_RDONLY);
    assert_int_equal(read(fd, &first, 1), 1);
    close(fd);
    assert_file(below(*state, "contended"), writers[first == 'B'].bytes, 300000);
    assert_int_equal(count_temporaries(*state), 0);
    free(writers[0].bytes);
    free(writers[1].bytes);
}

static void full_disk_is_told_and_leaves_nothing(void **state)
{
    struct guest *guest = *state;
    struct error err;
    if (geteuid() != 0 || access("/dev/full", W_OK) < 0) {
        print_message("skipped: needs root\n");
        skip();
    }
    char command[300];
    snprintf(command, sizeof command, "mkdir %s/tiny && mount -t tmpfs -o size=64k tmpfs %s/tiny 2>/dev/null",
            guest->directory, guest->directory);
    if (system(command) != 0) {
        print_message("skipped: cannot mount a small file system here\n");
        skip();
    }
    uint8_t *bytes = pattern(500000);
    int result = put(guest, below(guest, "tiny/file"), bytes, 500000, &err);
    int left = count_temporaries(guest), exists = access(below(guest, "tiny/file"), F_OK);
    snprintf(command, sizeof command, "umount %s/tiny", guest->directory);
    assert_int_equal(system(command), 0);
    assert_int_equal(result, -ENOSPC);
    assert_int_equal(left, 0);
    assert_int_equal(exists, -1);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(every_size_arrives_whole),
            cmocka_unit_test(small_pieces_add_up),
            cmocka_unit_test(parents_are_made_and_links_followed),
            cmocka_unit_test(cut_off_upload_leaves_the_old_file),
            cmocka_unit_test(replaced_files_keep_mode_and_owner),
            cmocka_unit_test(impossible_targets_are_refused),
            cmocka_unit_test(reading_what_cannot_be_read),
            cmocka_unit_test(files_of_the_kernel_have_content_without_size),
            cmocka_unit_test(a_reader_may_stop),
            cmocka_unit_test(large_folders_are_listed),
            cmocka_unit_test(removing),
            cmocka_unit_test(two_writers_leave_one_whole_file),
            cmocka_unit_test(full_disk_is_told_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
