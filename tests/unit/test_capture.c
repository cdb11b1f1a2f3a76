// SPDX-License-Identifier: Apache-2.0
// Machine snapshots with a VM that is a process of this test and a driver that fails where it is told:
// whatever goes wrong, the source runs on, nothing is half committed, and the next snapshot is whole.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "blockstore/io_ring.h"
#include "vmglue/capture.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 512 };

enum failing { NOTHING, STATUS, PAUSE, STATE, STATE_TOO_LARGE, EXTEND, COMMIT, CONT_ONCE, FAILING_COUNT };

// The guest: a process that sets pages of its memory to a byte.
struct guest {
    struct vm vm;
    int order_fd, answer_fd;
    char *memory;
    enum failing failing;
    enum vm_status status;
    unsigned pauses, continues;
    char expected[PAGES]; // what each page is filled with
};

struct order {
    uint32_t page;
    char byte;
};

static struct world {
    char directory[32];
    struct loop *loop;
    struct store *store;
    struct volume_id disk_id, memory_id;
    struct volume *disk, *memory;
    struct guest guest;
    struct dirty_pages *dirty;
} world;

static void guest_main(char *memory, int orders, int answers)
{
    struct order order;
    while (read(orders, &order, sizeof order) == sizeof order) {
        memset(memory + (size_t)order.page * BLOCK_SIZE, order.byte, BLOCK_SIZE);
        if (write(answers, "k", 1) != 1)
            break;
    }
    _exit(0);
}

static void guest_set(uint32_t page, char byte)
{
    struct order order = {.page = page, .byte = byte};
    char answer;
    assert_int_equal(write(world.guest.order_fd, &order, sizeof order), sizeof order);
    assert_int_equal(read(world.guest.answer_fd, &answer, 1), 1);
    world.guest.expected[page] = byte;
}

// ---- The driver ----

static struct guest *of(struct vm *vm)
{
    return (struct guest *)vm;
}

static int fake_status(struct vm *vm, enum vm_status *ret_status, struct error *err)
{
    if (of(vm)->failing == STATUS)
        return error_set(err, -EPIPE, "no answer");
    *ret_status = of(vm)->status;
    return 0;
}

static int fake_pause(struct vm *vm, unsigned deadline_ms, struct error *err)
{
    if (of(vm)->failing == PAUSE)
        return error_set(err, -ETIMEDOUT, "no stop");
    of(vm)->pauses++;
    of(vm)->status = VM_PAUSED;
    return 0;
}

static int fake_cont(struct vm *vm, struct error *err)
{
    if (of(vm)->failing == CONT_ONCE) {
        of(vm)->failing = NOTHING;
        return error_set(err, -ETIMEDOUT, "no cont");
    }
    of(vm)->continues++;
    of(vm)->status = VM_RUNNING;
    return 0;
}

static int fake_save_state(struct vm *vm, void **ret_state, size_t *ret_bytes, struct error *err)
{
    assert_int_equal(of(vm)->status, VM_PAUSED);
    if (of(vm)->failing == STATE)
        return error_set(err, -EIO, "no state");
    size_t size = of(vm)->failing == STATE_TOO_LARGE ? DOC_BLOB_MAX + 1 : 10000;
    *ret_state = calloc(1, size);
    memcpy(*ret_state, "device state", 12);
    *ret_bytes = size;
    return 0;
}

static const struct vm_driver fake_driver = {.name = "fake",
        .pause = fake_pause,
        .cont = fake_cont,
        .save_state = fake_save_state,
        .status = fake_status};

// ---- Set-up ----

static void start_guest(void)
{
    int orders[2], answers[2];
    struct guest *guest = &world.guest;
    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(answers), 0);
    guest->memory =
            mmap(NULL, PAGES * BLOCK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(guest->memory, MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        close(orders[1]);
        guest_main(guest->memory, orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    guest->order_fd = orders[1];
    guest->answer_fd = answers[0];
    guest->status = VM_RUNNING;
    guest->vm = (struct vm){.driver = &fake_driver, .pid = pid, .compat = "{\"format\": 1}", .accel = "none"};
}

static int set_up(void **state)
{
    struct error err;
    memset(&world, 0, sizeof world);
    start_guest(); // before there are threads
    strcpy(world.directory, "/tmp/capture-test-XXXXXX");
    assert_non_null(mkdtemp(world.directory));
    struct store_config config = {
            .log_file_bytes = 4 << 20, .log_budget_bytes = 256 << 20, .spare_log_files = 1};
    assert_int_equal(io_ring_loop_create(0, 64, &world.loop), 0);
    if (store_init(world.loop, world.directory, &config, &err) < 0 ||
            store_open(&world.loop, 1, world.directory, NULL, &world.store, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(io_ring_thread_start(world.loop), 0);
    struct txn *txn = txn_begin(world.store);
    world.disk_id = txn_volume_create(txn, "disk", VOLUME_DISK, 1 << 20, (struct base_id){0});
    world.memory_id =
            txn_volume_create(txn, "memory", VOLUME_MEMORY, PAGES * BLOCK_SIZE, (struct base_id){0});
    assert_int_equal(txn_commit_wait(txn, 0, NULL), 0);
    assert_int_equal(volume_open(world.store, world.disk_id, &world.disk), 0);
    assert_int_equal(volume_open(world.store, world.memory_id, &world.memory), 0);
    int result = dirty_pages_open(
            world.guest.vm.pid, -1, (uintptr_t)world.guest.memory, PAGES * BLOCK_SIZE, &world.dirty, &err);
    if (result < 0)
        fail_msg("%s", err.text);
    return 0;
}

static int tear_down(void **state)
{
    close(world.guest.order_fd);
    waitpid(world.guest.vm.pid, NULL, 0);
    close(world.guest.answer_fd);
    munmap(world.guest.memory, PAGES * BLOCK_SIZE);
    dirty_pages_close(world.dirty);
    volume_close(world.disk);
    volume_close(world.memory);
    io_ring_thread_stop(world.loop);
    store_close(world.store);
    io_ring_loop_destroy(world.loop);
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", world.directory);
    return system(command);
}

static int extend(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err)
{
    if (world.guest.failing == EXTEND)
        return error_set(err, -EMFILE, "no extension");
    if (world.guest.failing == COMMIT)
        txn_volume_create(txn, "disk", VOLUME_DISK, 4096, (struct base_id){0}); // the name is taken
    else
        txn_volume_create(txn, context, VOLUME_DISK, 0, ids->disks[0]);
    return 0;
}

static struct capture_request make_request(const char *name, const char *child)
{
    return (struct capture_request){.store = world.store,
            .vm = &world.guest.vm,
            .dirty = world.dirty,
            .memory = world.memory,
            .disks = {world.disk_id},
            .disk_count = 1,
            .name = name,
            .body = "{\"labels\": {\"a\": \"b\"}}",
            .best_effort = true,
            .extend = child != NULL ? extend : NULL,
            .context = (void *)child};
}

static int capture(const struct capture_request *request, struct capture_result *result, struct error *err)
{
    err->text[0] = 0;
    return capture_machine(request, result, err);
}

static void assert_memory_is(struct base_id id, const char *expected)
{
    struct base *base;
    char page[BLOCK_SIZE], right[BLOCK_SIZE];
    assert_int_equal(base_open(world.store, id, &base), 0);
    for (unsigned i = 0; i < PAGES; i++) {
        memset(right, expected[i], sizeof right);
        assert_int_equal(base_read_wait(base, (uint64_t)i * BLOCK_SIZE, page, sizeof page), 0);
        assert_memory_equal(page, right, sizeof page);
    }
    base_close(base);
}

// ---- Tests ----

static void test_snapshot(void **state)
{
    struct capture_request request = make_request("first", "child");
    struct capture_result result;
    struct error err;
    char block[BLOCK_SIZE];
    memset(block, 'd', sizeof block);
    assert_int_equal(volume_write_wait(world.disk, 4096, block, sizeof block, 0), 0);
    guest_set(3, 'x');
    guest_set(4, 'y');
    guest_set(4, 0);
    if (capture(&request, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_memory_is(result.ids.memory, world.guest.expected);
    assert_int_equal(world.guest.status, VM_RUNNING);
    assert_int_equal(world.guest.continues, 1);
    assert_true(result.figures.pause_ns > 0);
    assert_false(result.figures.unique);

    struct doc doc;
    struct capture_doc parsed;
    void *blob;
    size_t size;
    assert_int_equal(store_doc_find(world.store, DOC_MACHINE, "first", &doc), 0);
    assert_int_equal(doc.id.value, result.ids.machine.value);
    assert_int_equal(doc.base_count, 2);
    assert_non_null(strstr(doc.body, "\"labels\":{\"a\":\"b\"}"));
    assert_non_null(strstr(doc.body, "\"pause_ns\":"));
    assert_int_equal(capture_doc_parse(&doc, &parsed, &err), 0);
    assert_int_equal(parsed.memory.value, result.ids.memory.value);
    assert_int_equal(parsed.disk_count, 1);
    assert_int_equal(parsed.disks[0].value, result.ids.disks[0].value);
    assert_int_equal(store_doc_blob(world.store, doc.id, &blob, &size), 0);
    assert_int_equal(size, 10000);
    assert_memory_equal(blob, "device state", 12);
    free(blob);
    capture_doc_free(&parsed);
    doc_free(&doc);

    struct volume_info info; // from the same transaction
    assert_int_equal(store_volume_find(world.store, "child", &info), 0);
    assert_int_equal(info.parent.value, result.ids.disks[0].value);
}

static void test_earlier_snapshots_stay(void **state)
{
    struct capture_request request = make_request("first", NULL);
    struct capture_result first, second;
    struct error err;
    char then[PAGES];
    guest_set(1, 'a');
    guest_set(2, 'b');
    assert_int_equal(capture(&request, &first, &err), 0);
    memcpy(then, world.guest.expected, sizeof then);
    guest_set(1, 'c');
    guest_set(2, 0);
    guest_set(500, 'e');
    request.name = "second";
    assert_int_equal(capture(&request, &second, &err), 0);
    assert_memory_is(first.ids.memory, then);
    assert_memory_is(second.ids.memory, world.guest.expected);
}

static void test_every_failure_leaves_the_source_running(void **state)
{
    static const struct {
        int code;
        const char *words;
    } right[FAILING_COUNT] = {[STATUS] = {-EPIPE, "no answer"},
            [PAUSE] = {-ETIMEDOUT, "no stop"},
            [STATE] = {-EIO, "no state"},
            [STATE_TOO_LARGE] = {-EFBIG, "device state"},
            [EXTEND] = {-EMFILE, "no extension"},
            [COMMIT] = {-EEXIST, "disk"}};
    for (int failing = STATUS; failing <= COMMIT; failing++) {
        struct capture_request request = make_request("failed", "child");
        struct capture_result result;
        struct error err;
        guest_set((uint32_t)failing, (char)('a' + failing));
        world.guest.failing = (enum failing)failing;
        assert_int_equal(capture(&request, &result, &err), right[failing].code);
        if (strstr(err.text, right[failing].words) == NULL)
            fail_msg("'%s' does not say '%s'", err.text, right[failing].words);
        assert_int_equal(world.guest.status, VM_RUNNING);
        assert_int_equal(world.guest.pauses, world.guest.continues);
        struct doc doc;
        struct volume_info info;
        assert_int_equal(store_doc_find(world.store, DOC_MACHINE, "failed", &doc), -ENOENT);
        assert_int_equal(store_volume_find(world.store, "child", &info), -ENOENT);
    }
    // Pages that failed snapshots had copied or only found are in the next one, also those changed since.
    world.guest.failing = NOTHING;
    guest_set(STATE, 'z');
    struct capture_request request = make_request("failed", "child");
    struct capture_result result;
    struct error err;
    assert_int_equal(capture(&request, &result, &err), 0);
    assert_memory_is(result.ids.memory, world.guest.expected);
}

static void test_a_lost_continue_is_repeated(void **state)
{
    struct capture_request request = make_request("lost", NULL);
    struct capture_result result;
    struct error err;
    world.guest.failing = CONT_ONCE;
    assert_int_equal(capture(&request, &result, &err), 0);
    assert_int_equal(world.guest.status, VM_RUNNING);
    assert_int_equal(result.source_trouble.code, 0);
}

static void test_left_paused_when_asked(void **state)
{
    struct capture_request request = make_request("stop", NULL);
    struct capture_result result;
    struct error err;
    request.leave_paused = true;
    assert_int_equal(capture(&request, &result, &err), 0);
    assert_int_equal(world.guest.status, VM_PAUSED);
    assert_int_equal(world.guest.continues, 0);
    world.guest.status = VM_RUNNING;
    // A failure continues it all the same.
    world.guest.failing = STATE;
    request.name = "again";
    assert_int_equal(capture(&request, &result, &err), -EIO);
    assert_int_equal(world.guest.status, VM_RUNNING);
}

static void test_refusals(void **state)
{
    struct capture_request request = make_request("refused", NULL);
    struct capture_result result;
    struct error err;
    request.best_effort = false;
    assert_int_equal(capture(&request, &result, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no agent"));
    request.best_effort = true;
    world.guest.status = VM_PAUSED;
    assert_int_equal(capture(&request, &result, &err), -EBUSY);
    world.guest.status = VM_IO_ERROR;
    assert_int_equal(capture(&request, &result, &err), -EBUSY);
    assert_non_null(strstr(err.text, "make room"));
    assert_int_equal(world.guest.pauses, 0);
    world.guest.status = VM_RUNNING;
    assert_int_equal(capture(&request, &result, &err), 0);
    assert_int_equal(capture(&request, &result, &err), -EEXIST);
    assert_non_null(strstr(err.text, "refused"));
    assert_int_equal(world.guest.pauses, 1);
    request.name = "body";
    request.body = "[1]";
    assert_int_equal(capture(&request, &result, &err), -EINVAL);
    assert_int_equal(world.guest.status, VM_RUNNING);
}

static void test_damaged_descriptions(void **state)
{
    struct error err;
    struct capture_doc parsed;
    static const struct {
        const char *body;
        int code;
    } bad[] = {{"", -EBADMSG}, {"{}", -EBADMSG}, {"{\"machine\": 3}", -EBADMSG},
            {"{\"machine\": {\"format\": 1, \"memory_base\": 1, \"disk_bases\": 2, \"compat\": {}}}",
                    -EBADMSG},
            {"{\"machine\": {\"format\": 1, \"memory_base\": 1, \"disk_bases\": [1,2,3,4,5,6,7,8,9], "
             "\"compat\": {}}}",
                    -EBADMSG},
            {"{\"machine\": {\"format\": 9, \"memory_base\": 1, \"disk_bases\": [], \"compat\": {}}}",
                    -EPROTO}};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct doc doc = {.name = "bad", .body = (char *)bad[i].body, .body_bytes = strlen(bad[i].body)};
        assert_int_equal(capture_doc_parse(&doc, &parsed, &err), bad[i].code);
        assert_non_null(strstr(err.text, "'bad'"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_snapshot, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_earlier_snapshots_stay, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_every_failure_leaves_the_source_running, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_a_lost_continue_is_repeated, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_left_paused_when_asked, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
            cmocka_unit_test(test_damaged_descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
