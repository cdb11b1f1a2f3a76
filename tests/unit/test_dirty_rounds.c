// SPDX-License-Identifier: Apache-2.0
// Dirty tracking: whole snapshots of a busy process, and what happens when tracking, the VMM or the daemon is
// lost.
#include "tests/unit/dirty_subject.h"

static void run_rounds(bool from_image)
{
    int image_fd = from_image ? make_image() : -1;
    struct subject subject = start_subject(image_fd);
    compose_from(image_fd);
    tell(&subject, HAMMER, 0, 0, 0);
    struct dirty_pages *pages = open_pages(&subject, subject.uffd);
    must(dirty_pages_start(pages, &err));
    assert_true(dirty_pages_tracks(pages));
    uint64_t last_round = 0;
    for (unsigned round = 0; round < 40; round++) {
        if (round > 0)
            must(dirty_pages_scan(pages, &err));
        for (unsigned i = 0; i < 3; i++) { // while it runs
            copy_round(pages, NULL);
            must(dirty_pages_scan(pages, &err));
        }
        if (round % 8 == 5) { // a snapshot that fails: nothing may be lost by it
            copy_round(pages, NULL);
            memset(composed + round * PAGE, 0xee, PAGE); // as the memory volume after a lost write
            tell(&subject, WRITE_PAGE, round, 1, round);
            must(dirty_pages_scan(pages, &err));
            dirty_pages_round_all_uncommitted(pages);
        }
        stop_subject(&subject);
        must(dirty_pages_scan(pages, &err));
        last_round += copy_round(pages, NULL);
        assert_same_as(&subject);
        dirty_pages_committed(pages);
        assert_int_equal(dirty_pages_uncommitted_count(pages), 0);
        assert_int_equal(kill(subject.pid, SIGCONT), 0);
    }
    assert_true(dirty_pages_tracks(pages));
    assert_true(last_round > 0); // it did hammer
    dirty_pages_close(pages);
    end_subject(&subject);
    free(composed);
    if (image_fd >= 0)
        close(image_fd);
}

static void test_rounds_image(void **state)
{
    run_rounds(true);
}

static void test_rounds_anonymous(void **state)
{
    run_rounds(false);
}

static void test_unregistered_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, UNREGISTER, 0, RAM_PAGES, 0);
    tell(&fixture->subject, WRITE_PAGE, 50, 1, 2); // unseen by anybody
    assert_int_equal(snapshot(fixture->pages, NULL), 200);
    assert_same_and_absorb(fixture);
    assert_true(dirty_pages_tracks(fixture->pages)); // and it is tracked again
    tell(&fixture->subject, WRITE_PAGE, 60, 3, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 3);
    assert_same_as(&fixture->subject);
}

static void test_remapped_piece_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, REMAP, 4096, 100, 0);
    tell(&fixture->subject, WRITE_PAGE, 4096, 100, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 300);
    assert_same_as(&fixture->subject);
}

static void test_new_daemon(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 300, 5, 2);
    must(dirty_pages_scan(fixture->pages, &err)); // consumed, then the daemon dies
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, fixture->subject.uffd);
    must(dirty_pages_start(fixture->pages, &err));
    assert_true(dirty_pages_tracks(fixture->pages));
    assert_int_equal(snapshot(fixture->pages, NULL), 205);
    assert_same_and_absorb(fixture);
    tell(&fixture->subject, WRITE_PAGE, 400, 6, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 6);
    assert_same_as(&fixture->subject);
}

static void test_without_userfaultfd(void **state)
{
    struct fixture *fixture = *state;
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, -1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_false(dirty_pages_tracks(fixture->pages));
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    assert_int_equal(snapshot(fixture->pages, NULL), 20);
    tell(&fixture->subject, WRITE_PAGE, 3, 1, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 20); // all of them, each time
    assert_same_as(&fixture->subject);
}

static void test_wrong_descriptor(void **state)
{
    struct fixture *fixture = *state;
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, 2); // no userfaultfd at all
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_false(dirty_pages_tracks(fixture->pages));
    assert_int_equal(snapshot(fixture->pages, NULL), 20);
    assert_same_as(&fixture->subject);
}

static void test_dead_vmm(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    kill(fixture->subject.pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(fixture->subject.pid, &status, 0), fixture->subject.pid);
    uint64_t blocks[8];
    bool zero[8];
    unsigned char buffer[8 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 8, &err), -ESRCH);
    assert_int_equal(dirty_pages_round_count(fixture->pages), 20);
    assert_int_equal(dirty_pages_scan(fixture->pages, &err), -ESRCH);
    assert_non_null(strstr(err.text, "gone"));
    struct dirty_pages *none = NULL;
    assert_true(
            dirty_pages_open(fixture->subject.pid, -1, fixture->subject.address, RAM_BYTES, &none, &err) < 0);
    assert_null(none);
    dirty_pages_close(fixture->pages);
    close(fixture->subject.control);
    close(fixture->subject.uffd);
    fixture->subject = start_subject(fixture->image_fd); // for teardown
    fixture->pages = NULL;
}

static void test_unreadable_page(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    tell(&fixture->subject, UNMAP, 10, 1, 0);
    uint64_t blocks[32];
    bool zero[32];
    unsigned char buffer[32 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 32, &err), 10);
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 32, &err), -EFAULT);
    assert_non_null(strstr(err.text, "guest page 10"));
    assert_int_equal(dirty_pages_round_count(fixture->pages), 10); // nothing is forgotten
}

static void test_wrong_place(void **state)
{
    struct fixture *fixture = *state;
    struct dirty_pages *none = NULL;
    uint64_t address = fixture->subject.address;
    assert_int_equal(
            dirty_pages_open(fixture->subject.pid, -1, address, RAM_BYTES + (64ULL << 30), &none, &err),
            -EFAULT);
    assert_int_equal(
            dirty_pages_open(fixture->subject.pid, -1, address + 1, RAM_BYTES, &none, &err), -EINVAL);
    assert_int_equal(dirty_pages_open(fixture->subject.pid, -1, address, 0, &none, &err), -EINVAL);
    assert_int_equal(dirty_pages_open(fixture->subject.pid, -1, -4096ULL, 8192, &none, &err), -EINVAL);
    assert_null(none);
}

// As on a kernel that does not know PAGEMAP_SCAN.
static void test_old_kernel(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, READ_PAGE, 3000, 50, 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc0606610, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
            _exit(2);
        bool good = dirty_pages_start(fixture->pages, &err) == 0 && !dirty_pages_tracks(fixture->pages) &&
                    dirty_pages_round_count(fixture->pages) >= 20 &&
                    dirty_pages_round_count(fixture->pages) <= 70;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    if (!can_track()) {
        printf("skipped: this kernel does not track writes asynchronously (Linux 6.7 and later do)\n");
        return 77;
    }
#define both(name)                                                                                           \
    cmocka_unit_test_setup_teardown(name, setup_image, teardown),                                            \
            cmocka_unit_test_setup_teardown(name, setup_anonymous, teardown)
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_rounds_image),
            cmocka_unit_test(test_rounds_anonymous),
            both(test_unregistered_is_noticed),
            both(test_remapped_piece_is_noticed),
            both(test_new_daemon),
            both(test_without_userfaultfd),
            both(test_wrong_descriptor),
            both(test_dead_vmm),
            both(test_unreadable_page),
            both(test_wrong_place),
            both(test_old_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
