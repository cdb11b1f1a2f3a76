// SPDX-License-Identifier: Apache-2.0
// Parts of files, appends, moves, modes, uploads in pieces, watches.
#include "tests/unit/agent_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

struct content {
    const char *bytes;
    size_t size, given, fail_at; // fail_at 0 = never
};

static ssize_t give(void *context, void *buffer, size_t capacity)
{
    struct content *content = context;
    if (content->fail_at != 0 && content->given >= content->fail_at)
        return -ECANCELED;
    size_t size = content->size - content->given;
    size = size < capacity ? size : capacity;
    if (content->fail_at != 0 && content->fail_at - content->given < size)
        size = content->fail_at - content->given;
    memcpy(buffer, content->bytes + content->given, size);
    content->given += size;
    return (ssize_t)size;
}

struct text {
    char bytes[200000];
    size_t size;
};

static int keep(void *context, const void *bytes, size_t size)
{
    struct text *text = context;
    assert_true(text->size + size < sizeof text->bytes);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
    return 0;
}

static const char *in(struct guest *guest, const char *name)
{
    static char paths[4][200];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 200, "%s/%s", guest->directory, name);
    return path;
}

static void put(struct guest *guest, const char *name, const char *text)
{
    struct error err;
    struct content content = {.bytes = text, .size = strlen(text)};
    assert_int_equal(agent_file_write(guest->agent, in(guest, name), 0, give, &content, &err), 0);
}

static void assert_content(struct guest *guest, const char *name, const char *wanted)
{
    static struct text text;
    struct error err;
    text.size = 0;
    text.bytes[0] = 0;
    assert_int_equal(agent_file_read(guest->agent, in(guest, name), keep, &text, &err), 0);
    assert_string_equal(text.bytes, wanted);
}

// Nothing but these names is in the directory.
static void assert_names(struct guest *guest, const char *directory, const char *names)
{
    char command[300];
    snprintf(command, sizeof command, "ls -A %s | tr '\\n' ' '", in(guest, directory));
    assert_shell(guest, command, 0, names);
}

static void parts_of_a_file_are_read(void **state)
{
    struct guest *guest = *state;
    static struct text text;
    struct error err;
    uint64_t size = 0;
    put(guest, "parts", "0123456789");
    const struct {
        uint64_t offset, length;
        const char *wanted;
    } cases[] = {{0, 3, "012"}, {3, 4, "3456"}, {8, 100, "89"}, {10, 5, ""}, {1000, 5, ""}, {0, 0, ""},
            {5, UINT64_MAX, "56789"}, {UINT64_MAX, 1, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text.size = 0;
        text.bytes[0] = 0;
        assert_int_equal(agent_file_read_range(guest->agent, in(guest, "parts"), cases[i].offset,
                                 cases[i].length, keep, &text, &size, &err),
                0);
        assert_string_equal(text.bytes, cases[i].wanted);
        assert_int_equal(size, 10);
    }
    assert_int_equal(
            agent_file_read_range(guest->agent, in(guest, "."), 0, 1, keep, &text, &size, &err), -EISDIR);
    assert_int_equal(
            agent_file_read_range(guest->agent, in(guest, "no"), 0, 1, keep, &text, &size, &err), -ENOENT);
}

static void appends_are_whole_or_nothing(void **state)
{
    struct guest *guest = *state;
    struct error err;
    struct content content = {.bytes = "two", .size = 3};
    put(guest, "log", "one");
    assert_int_equal(agent_file_append(guest->agent, in(guest, "log"), 0, give, &content, &err), 0);
    assert_content(guest, "log", "onetwo");
    content = (struct content){.bytes = "three", .size = 5, .fail_at = 2};
    assert_int_equal(agent_file_append(guest->agent, in(guest, "log"), 0, give, &content, &err), -ECANCELED);
    assert_content(guest, "log", "onetwo");
    content = (struct content){.bytes = "new", .size = 3, .fail_at = 2};
    assert_int_equal(
            agent_file_append(guest->agent, in(guest, "sub/made"), 0, give, &content, &err), -ECANCELED);
    assert_names(guest, "sub", "");
    content = (struct content){.bytes = "new", .size = 3};
    assert_int_equal(agent_file_append(guest->agent, in(guest, "sub/made"), 0640, give, &content, &err), 0);
    assert_content(guest, "sub/made", "new");
    struct agent_stat stat;
    assert_int_equal(agent_file_stat(guest->agent, in(guest, "sub/made"), &stat, &err), 0);
    assert_int_equal(stat.mode & 07777, 0640);
    content = (struct content){.bytes = "x", .size = 1};
    assert_int_equal(agent_file_append(guest->agent, in(guest, "sub"), 0, give, &content, &err), -EISDIR);
}

static void moves_and_modes(void **state)
{
    struct guest *guest = *state;
    struct error err;
    put(guest, "from", "moved");
    put(guest, "there", "old");
    assert_int_equal(
            agent_file_move(guest->agent, in(guest, "from"), in(guest, "there"), false, &err), -EEXIST);
    assert_content(guest, "there", "old");
    assert_int_equal(agent_file_move(guest->agent, in(guest, "from"), in(guest, "there"), true, &err), 0);
    assert_content(guest, "there", "moved");
    assert_int_equal(agent_file_move(guest->agent, in(guest, "from"), in(guest, "x"), true, &err), -ENOENT);
    put(guest, "dir/a/b", "deep");
    assert_int_equal(agent_file_move(guest->agent, in(guest, "dir"), in(guest, "new/place"), false, &err), 0);
    assert_content(guest, "new/place/a/b", "deep");
    assert_int_equal(
            agent_file_move(guest->agent, in(guest, "there"), in(guest, "new"), true, &err), -EISDIR);
    assert_non_null(strstr(err.text, "whole new name"));
    assert_int_equal(agent_file_move(guest->agent, in(guest, "there"), "/proc/x", true, &err) < 0, 1);
    assert_content(guest, "there", "moved");
    assert_int_equal(agent_file_chmod(guest->agent, in(guest, "there"), 0751, &err), 0);
    struct agent_stat stat;
    assert_int_equal(agent_file_stat(guest->agent, in(guest, "there"), &stat, &err), 0);
    assert_int_equal(stat.mode & 07777, 0751);
    assert_int_equal(agent_file_chmod(guest->agent, in(guest, "there"), 0100644, &err), -EINVAL);
    assert_int_equal(agent_file_chmod(guest->agent, in(guest, "nothing"), 0644, &err), -ENOENT);
}

static void X17_an_upload_goes_on_where_it_was_cut(void **state)
{
    struct guest *guest = *state;
    struct agent_upload upload, now;
    struct error err;
    static char bytes[150000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)('a' + i % 23);
    put(guest, "up/target", "before");
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "up/target"), 0, &upload, &err), 0);
    struct content content = {.bytes = bytes, .size = sizeof bytes, .fail_at = 100000};
    assert_int_equal(agent_upload_write(guest->agent, upload.id, 0, give, &content, &now, &err), -ECANCELED);
    guest->agent = agent_disconnect(guest->agent);
    assert_int_equal(agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err), 0);
    int result; // what the first call had sent is still being written, or not even that
    do {
        result = agent_upload_get(guest->agent, upload.id, &now, &err);
    } while (result == -EBUSY || (result == 0 && now.size_bytes == 0));
    assert_int_equal(result, 0);
    assert_true(now.size_bytes <= 100000);
    assert_int_equal(now.crc32c, agent_crc32c(0, bytes, now.size_bytes));
    assert_content(guest, "up/target", "before");
    content = (struct content){.bytes = bytes, .size = 10};
    assert_int_equal(
            agent_upload_write(guest->agent, upload.id, 149000, give, &content, &now, &err), -EINVAL);
    assert_int_equal(agent_upload_commit(guest->agent, upload.id, sizeof bytes, NULL, &err), -EINVAL);
    content = (struct content){.bytes = bytes + now.size_bytes, .size = sizeof bytes - now.size_bytes};
    assert_int_equal(
            agent_upload_write(guest->agent, upload.id, now.size_bytes, give, &content, &now, &err), 0);
    assert_int_equal(now.size_bytes, sizeof bytes);
    uint32_t wrong = 1, right = agent_crc32c(0, bytes, sizeof bytes);
    assert_int_equal(agent_upload_commit(guest->agent, upload.id, sizeof bytes, &wrong, &err), -EBADMSG);
    assert_content(guest, "up/target", "before");
    assert_int_equal(agent_upload_commit(guest->agent, upload.id, sizeof bytes, &right, &err), 0);
    static struct text text;
    text.size = 0;
    assert_int_equal(agent_file_read(guest->agent, in(guest, "up/target"), keep, &text, &err), 0);
    assert_int_equal(text.size, sizeof bytes);
    assert_memory_equal(text.bytes, bytes, sizeof bytes);
    assert_names(guest, "up", "target ");
    assert_int_equal(agent_upload_get(guest->agent, upload.id, &now, &err), -ENOENT);
    assert_names(guest, "uploads", "");
}

static void X17_dropped_and_expired_uploads_leave_nothing(void **state)
{
    struct guest *guest = *state;
    struct agent_upload upload, now, other;
    struct error err;
    char command[400];
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "dropped/x"), 0, &upload, &err), 0);
    assert_int_equal(agent_upload_drop(guest->agent, upload.id, &err), 0);
    assert_names(guest, "dropped", "");
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "dropped/x"), 0, &upload, &err), 0);
    snprintf(command, sizeof command, "touch -d '2 days ago' %s/dropped/.*ramet*", guest->directory);
    assert_shell(guest, command, 0, "");
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "dropped/y"), 0, &other, &err), 0);
    assert_int_equal(agent_upload_get(guest->agent, upload.id, &now, &err), -ENOENT);
    assert_int_equal(agent_upload_drop(guest->agent, other.id, &err), 0);
    assert_names(guest, "dropped", "");
    assert_int_equal(agent_upload_drop(guest->agent, "../../etc/passwd", &err), -ENOENT);
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "dropped"), 0, &upload, &err), -EISDIR);
}

struct slow {
    pthread_barrier_t *begun;
    bool told;
    int left;
};

static ssize_t give_slowly(void *context, void *buffer, size_t capacity)
{
    struct slow *slow = context;
    if (!slow->told) {
        slow->told = true;
        memset(buffer, 's', 10);
        return 10;
    }
    if (slow->begun != NULL) {
        pthread_barrier_wait(slow->begun);
        pthread_barrier_wait(slow->begun);
        slow->begun = NULL;
    }
    return 0;
}

struct writer {
    struct guest *guest;
    struct agent_upload upload;
    struct slow slow;
    int result;
};

static void *write_slowly(void *argument)
{
    struct writer *writer = argument;
    struct agent_upload now;
    struct error err;
    writer->result = agent_upload_write(
            writer->guest->agent, writer->upload.id, 0, give_slowly, &writer->slow, &now, &err);
    return NULL;
}

static void X17_two_writers_of_one_upload_do_not_mix(void **state)
{
    struct guest *guest = *state;
    struct writer writer = {.guest = guest};
    struct agent_upload now = {0};
    struct error err;
    pthread_barrier_t begun;
    pthread_t thread;
    pthread_barrier_init(&begun, NULL, 2);
    writer.slow.begun = &begun;
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "both"), 0, &writer.upload, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, write_slowly, &writer), 0);
    pthread_barrier_wait(&begun);
    // The first holds it once its bytes have arrived.
    int result;
    do {
        result = agent_upload_get(guest->agent, writer.upload.id, &now, &err);
    } while (result == 0);
    assert_int_equal(result, -EBUSY);
    pthread_barrier_wait(&begun);
    pthread_join(thread, NULL);
    assert_int_equal(writer.result, 0);
    assert_int_equal(agent_upload_commit(guest->agent, writer.upload.id, 10, NULL, &err), 0);
    assert_content(guest, "both", "ssssssssss");
    pthread_barrier_destroy(&begun);
}

struct asker {
    struct guest *guest;
    const char *id;
    atomic_bool stop;
    int wrong;
};

static void *ask_often(void *argument)
{
    struct asker *asker = argument;
    struct agent_upload now;
    struct error err;
    while (!atomic_load(&asker->stop)) {
        int r = agent_upload_get(asker->guest->agent, asker->id, &now, &err);
        if (r != 0 && r != -EBUSY)
            asker->wrong = r;
    }
    return NULL;
}

// Who only asks how far an upload is keeps nobody from writing to it.
static void X17_asking_refuses_no_writer(void **state)
{
    enum { ASKERS = 3, PIECES = 100 };
    struct guest *guest = *state;
    struct agent_upload upload, now;
    struct error err;
    struct asker askers[ASKERS];
    pthread_t threads[ASKERS];
    assert_int_equal(agent_upload_begin(guest->agent, in(guest, "asked"), 0, &upload, &err), 0);
    for (int i = 0; i < ASKERS; i++) {
        askers[i] = (struct asker){.guest = guest, .id = upload.id};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    }
    int result = 0;
    for (uint64_t i = 0; i < PIECES && result == 0; i++) {
        struct content content = {.bytes = "0123456789", .size = 10};
        result = agent_upload_write(guest->agent, upload.id, i * 10, give, &content, &now, &err);
    }
    for (int i = 0; i < ASKERS; i++) {
        atomic_store(&askers[i].stop, true);
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].wrong, 0);
    }
    if (result < 0)
        fail_msg("%s", err.text);
    assert_int_equal(agent_upload_commit(guest->agent, upload.id, PIECES * 10, NULL, &err), 0);
}

struct events {
    char lines[8000];
    size_t size;
    bool ready, stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct guest *guest;
    bool recursive;
    int result;
};

static int note(void *context, int kind, const char *path, const char *other)
{
    struct events *events = context;
    size_t skip = strlen(events->guest->directory) + strlen("/watched");
    static const char *const words[] = {
            "", "ready", "created", "changed", "attributes", "removed", "moved", "overflow"};
    pthread_mutex_lock(&events->lock);
    events->ready = events->ready || kind == AGENT_WATCH_READY;
    if (sizeof events->lines - events->size > 300)
        events->size += (size_t)snprintf(events->lines + events->size, 300, "%s %s%s%s\n", words[kind],
                path + skip, other[0] ? " " : "", other[0] ? other + skip : "");
    pthread_cond_broadcast(&events->changed);
    pthread_mutex_unlock(&events->lock);
    return 0;
}

static bool stopped(void *context)
{
    struct events *events = context;
    pthread_mutex_lock(&events->lock);
    bool stop = events->stop;
    pthread_mutex_unlock(&events->lock);
    return stop;
}

static void *watch_main(void *argument)
{
    struct events *events = argument;
    struct error err;
    struct agent_watch watch = {.path = in(events->guest, "watched"),
            .recursive = events->recursive,
            .each = note,
            .context = events,
            .cancelled = stopped};
    events->result = agent_watch(events->guest->agent, &watch, &err);
    return NULL;
}

static void await_line(struct events *events, const char *line)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_MS / 1000;
    pthread_mutex_lock(&events->lock);
    while (strstr(events->lines, line) == NULL) {
        if (pthread_cond_timedwait(&events->changed, &events->lock, &until) != 0)
            fail_msg("\"%s\" never came; there is: %s", line, events->lines);
    }
    pthread_mutex_unlock(&events->lock);
}

static void watches_tell_what_happens(void **state)
{
    struct guest *guest = *state;
    static struct events events;
    pthread_t thread;
    char command[1000];
    events = (struct events){.guest = guest,
            .recursive = true,
            .lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER};
    snprintf(command, sizeof command, "mkdir -p %s/watched/deep/er; mkdir %s/aside", guest->directory,
            guest->directory);
    assert_shell(guest, command, 0, "");
    assert_int_equal(pthread_create(&thread, NULL, watch_main, &events), 0);
    await_line(&events, "ready \n");
    snprintf(command, sizeof command,
            "cd %s/watched; echo x > a; mv a b; chmod 600 b; echo y > deep/er/c; mkdir new; mv b ../aside/; "
            "rm deep/er/c",
            guest->directory);
    assert_shell(guest, command, 0, "");
    await_line(&events, "created /a\n");
    await_line(&events, "changed /a\n");
    await_line(&events, "moved /a /b\n");
    await_line(&events, "attributes /b\n");
    await_line(&events, "created /deep/er/c\n");
    await_line(&events, "created /new\n");
    await_line(&events, "removed /b\n");
    await_line(&events, "removed /deep/er/c\n");
    snprintf(command, sizeof command, "echo z > %s/watched/new/z", guest->directory);
    assert_shell(guest, command, 0, "");
    await_line(&events, "created /new/z\n");
    snprintf(command, sizeof command, "cd %s/watched; mv new deep/renamed; echo z > deep/renamed/again",
            guest->directory);
    assert_shell(guest, command, 0, "");
    await_line(&events, "moved /new /deep/renamed\n");
    await_line(&events, "created /deep/renamed/again\n");
    snprintf(command, sizeof command, "cd %s/watched; mv deep ../aside/", guest->directory);
    assert_shell(guest, command, 0, "");
    await_line(&events, "removed /deep\n");
    snprintf(command, sizeof command, "cd %s; echo z > aside/deep/renamed/unseen; echo z > watched/last",
            guest->directory);
    assert_shell(guest, command, 0, "");
    await_line(&events, "created /last\n");
    assert_null(strstr(events.lines, "unseen"));
    snprintf(command, sizeof command, "rm -r %s/watched", guest->directory);
    assert_shell(guest, command, 0, "");
    pthread_join(thread, NULL);
    assert_int_equal(events.result, 0); // it ends with what it watches
}

static void a_watch_is_ended_with_its_helper(void **state)
{
    struct guest *guest = *state;
    static struct events events;
    pthread_t thread;
    char command[300];
    for (int round = 0; round < 2; round++) {
        events = (struct events){
                .guest = guest, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        snprintf(command, sizeof command, "mkdir -p %s/watched", guest->directory);
        assert_shell(guest, command, 0, "");
        assert_int_equal(pthread_create(&thread, NULL, watch_main, &events), 0);
        await_line(&events, "ready \n");
        if (round == 0) {
            pthread_mutex_lock(&events.lock);
            events.stop = true;
            pthread_mutex_unlock(&events.lock);
        } else {
            agent_break(guest->agent);
        }
        pthread_join(thread, NULL);
        assert_int_equal(events.result, round == 0 ? -ECANCELED : -EPIPE);
        if (round == 1) {
            struct error err;
            guest->agent = agent_disconnect(guest->agent);
            assert_int_equal(agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err), 0);
        }
        // Only the shell that looks and its children are left of the agent's.
        snprintf(command, sizeof command,
                "for i in $(seq 6000); do n=$(pgrep -P %d | wc -l); [ $n -le 1 ] && break; sleep 0.02; done; "
                "echo $n",
                (int)guest->pid);
        assert_shell(guest, command, 0, "1\n");
    }
}

static void disks_and_networks_that_cannot_be_are_refused(void **state)
{
    struct guest *guest = *state;
    struct error err;
    uint64_t bytes;
    assert_int_equal(agent_disk_mount(guest->agent, 25, "/mnt/x", true, &err), -ENODEV);
    assert_non_null(strstr(err.text, "no disk 25"));
    assert_int_equal(agent_disk_mount(guest->agent, 1000, "/mnt/x", true, &err), -ENODEV);
    assert_int_equal(agent_disk_grow(guest->agent, 25, &bytes, &err), -ENODEV);
    assert_int_equal(agent_disk_unmount(guest->agent, "/", &err), -EINVAL);
    assert_int_equal(
            agent_network_set(guest->agent, &(struct agent_network){.address = "10.0.2.15"}, &err), -EINVAL);
    assert_int_equal(
            agent_network_set(guest->agent, &(struct agent_network){.host_name = "a b\n"}, &err), -EINVAL);
    assert_int_equal(agent_network_set(guest->agent, &(struct agent_network){.host_name = "named"}, &err), 0);
    assert_shell(guest, "true", 0, "");
    char command[200];
    snprintf(command, sizeof command, "grep -c named %s/hosts", guest->directory);
    assert_shell(guest, command, 0, "1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(parts_of_a_file_are_read),
            cmocka_unit_test(appends_are_whole_or_nothing),
            cmocka_unit_test(moves_and_modes),
            cmocka_unit_test(X17_an_upload_goes_on_where_it_was_cut),
            cmocka_unit_test(X17_dropped_and_expired_uploads_leave_nothing),
            cmocka_unit_test(X17_two_writers_of_one_upload_do_not_mix),
            cmocka_unit_test(X17_asking_refuses_no_writer),
            cmocka_unit_test(watches_tell_what_happens),
            cmocka_unit_test(a_watch_is_ended_with_its_helper),
            cmocka_unit_test(disks_and_networks_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
