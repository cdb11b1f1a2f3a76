// SPDX-License-Identifier: Apache-2.0
// Connections to ports and sockets of the guest: bytes, half-closed ends, back-pressure, refusals.
#include "tests/unit/agent_fixture.h"
#include "vmglue/agent_pump.h"

#include <pthread.h>

static const char echo_server[] =
        "import socket,threading,sys\n"
        "def serve(c):\n"
        "  while True:\n"
        "    d=c.recv(65536)\n"
        "    if not d: break\n"
        "    c.sendall(d)\n"
        "  c.sendall(b'bye'); c.close()\n"
        "def run(s):\n"
        "  while True: threading.Thread(target=serve,args=(s.accept()[0],),daemon=True).start()\n"
        "a=socket.create_server(('127.0.0.1',7001))\n"
        "u=socket.socket(socket.AF_UNIX); u.bind(sys.argv[1]); u.listen()\n"
        "r=socket.create_server(('127.0.0.1',7002))\n"
        "def reset():\n"
        "  import struct\n"
        "  while True:\n"
        "    c=r.accept()[0]; c.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0)); "
        "c.recv(1); c.close()\n"
        "q=socket.create_server(('127.0.0.1',7003))\n"
        "d=socket.socket(socket.AF_UNIX); d.bind(sys.argv[1]+'.silent'); d.listen(1000)\n"
        "threading.Thread(target=reset,daemon=True).start()\n"
        "threading.Thread(target=run,args=(u,),daemon=True).start()\n"
        "print('ready',flush=True)\n"
        "run(a)\n";

static void bring_up_loopback_and_serve(struct guest *guest, struct agent_job *ret_job)
{
    struct error err;
    char path[200];
    snprintf(path, sizeof path, "%s/echo.sock", guest->directory);
    if (geteuid() == 0)
        assert_shell(guest, "ip link set lo up 2>/dev/null || ifconfig lo up", 0, "");
    const char *argv[] = {"python3", "-c", echo_server, path, NULL};
    if (agent_job_start(guest->agent, &(struct agent_exec){.argv = argv}, "echo", ret_job, &err) < 0)
        fail_msg("%s", err.text);
    struct agent_job job = *ret_job;
    while (job.out.end == 0 && job.running)
        assert_int_equal(agent_job_get(guest->agent, ret_job->id, &job, &err), 0);
    assert_true(job.running);
}

static int dial_setup(void **state)
{
    static struct agent_job job;
    setup(state);
    bring_up_loopback_and_serve(*state, &job);
    return 0;
}

static int dial_teardown(void **state)
{
    struct guest *guest = *state;
    struct agent_job job;
    struct error err;
    assert_int_equal(agent_job_find(guest->agent, "echo", &job, &err), 0);
    assert_int_equal(agent_job_remove(guest->agent, job.id, true, &err), 0);
    return teardown(state);
}

static int dial(struct guest *guest, const char *target)
{
    struct error err;
    int fd = -1;
    if (agent_dial(guest->agent, target, PATIENCE_MS, &fd, &err) < 0)
        fail_msg("%s: %s", target, err.text);
    return fd;
}

static void wait_fd(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events};
    assert_int_equal(poll(&one, 1, 60000), 1);
}

static void send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        wait_fd(fd, POLLOUT);
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        assert_true(sent > 0 || errno == EAGAIN);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        }
    }
}

static size_t read_to_end(int fd, char *bytes, size_t capacity)
{
    size_t size = 0;
    for (;;) {
        wait_fd(fd, POLLIN);
        ssize_t got = recv(fd, bytes + size, capacity - size, 0);
        if (got < 0 && errno == EAGAIN)
            continue;
        assert_true(got >= 0);
        if (got == 0)
            return size;
        size += (size_t)got;
    }
}

static void a_port_answers_and_half_closes(void **state)
{
    char text[100] = "";
    int fd = dial(*state, "tcp:7001");
    send_all(fd, "hello", 5);
    shutdown(fd, SHUT_WR);
    size_t size = read_to_end(fd, text, sizeof text - 1);
    assert_int_equal(size, 8);
    assert_string_equal(text, "hellobye");
    close(fd);
}

static void a_socket_below_run_answers(void **state)
{
    char text[100] = "";
    int fd = dial(*state, "unix:/run/echo.sock");
    send_all(fd, "x", 1);
    shutdown(fd, SHUT_WR);
    assert_int_equal(read_to_end(fd, text, sizeof text), 4);
    assert_string_equal(text, "xbye");
    close(fd);
}

static void refusals_have_words(void **state)
{
    struct guest *guest = *state;
    struct error err;
    char command[200];
    int fd = 4711;
    snprintf(command, sizeof command, "ln -s echo.sock %s/link.sock", guest->directory);
    assert_shell(guest, command, 0, "");
    assert_int_equal(agent_dial(guest->agent, "tcp:7009", 0, &fd, &err), -ECONNREFUSED);
    assert_non_null(strstr(err.text, "7009"));
    assert_int_equal(agent_dial(guest->agent, "unix:/run/nothing.sock", 0, &fd, &err), -ENOENT);
    assert_non_null(strstr(err.text, "nothing.sock"));
    assert_int_equal(agent_dial(guest->agent, "unix:/run/link.sock", 0, &fd, &err), -ELOOP);
    assert_int_equal(agent_dial(guest->agent, "unix:/etc/x", 0, &fd, &err), -EINVAL);
    assert_int_equal(agent_dial(guest->agent, "tcp:0", 0, &fd, &err), -EINVAL);
    assert_int_equal(agent_dial(guest->agent, "tcp:65536", 0, &fd, &err), -EINVAL);
    assert_int_equal(agent_dial(guest->agent, "tcp:12x", 0, &fd, &err), -EINVAL);
    assert_int_equal(agent_dial(guest->agent, "http://x", 0, &fd, &err), -EINVAL);
    assert_true(agent_dial(guest->agent, "unix:/run/../etc/passwd", 0, &fd, &err) < 0);
    assert_int_equal(fd, 4711);
}

static void a_reset_ends_both_sides(void **state)
{
    char bytes[10];
    int fd = dial(*state, "tcp:7002");
    send_all(fd, "x", 1);
    wait_fd(fd, POLLIN);
    assert_true(recv(fd, bytes, sizeof bytes, 0) <= 0);
    close(fd);
}

struct flood {
    int fd;
    size_t size;
};

static void *send_flood(void *argument)
{
    struct flood *flood = argument;
    static char bytes[65536];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 31 + (i >> 8));
    for (size_t done = 0; done < flood->size; done += sizeof bytes)
        send_all(flood->fd, bytes, sizeof bytes);
    shutdown(flood->fd, SHUT_WR);
    return NULL;
}

static void much_goes_both_ways_unharmed(void **state)
{
    struct flood flood = {.fd = dial(*state, "tcp:7001"), .size = 16 << 20};
    char *bytes = malloc(flood.size + 10);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_flood, &flood), 0);
    size_t size = read_to_end(flood.fd, bytes, flood.size + 10);
    pthread_join(thread, NULL);
    assert_int_equal(size, flood.size + 3);
    for (size_t i = 0; i < flood.size; i++) {
        size_t at = i % 65536;
        if (bytes[i] != (char)(at * 31 + (at >> 8)))
            fail_msg("byte %zu is wrong", i);
    }
    close(flood.fd);
    free(bytes);
}

// Nobody accepts on port 7003: what the host may send is bounded, and others are not held up.
static void who_does_not_read_holds_back_his_peer_alone(void **state)
{
    struct guest *guest = *state;
    static char bytes[65536];
    int fd = dial(guest, "tcp:7003");
    size_t sent = 0;
    for (int idle = 0; idle < 20;) {
        ssize_t got = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        if (got > 0) {
            sent += (size_t)got;
            idle = 0;
        } else {
            usleep(10000);
            idle++;
        }
        assert_true(sent < 64 << 20);
    }
    a_port_answers_and_half_closes(state);
    close(fd);
    a_port_answers_and_half_closes(state);
}

static void many_at_once(void **state)
{
    enum { COUNT = 60 };
    int fds[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            fds[i] = dial(*state, "tcp:7001");
        for (int i = 0; i < COUNT; i++) {
            char text[20], answer[20] = "";
            snprintf(text, sizeof text, "%d", i);
            send_all(fds[i], text, strlen(text));
            shutdown(fds[i], SHUT_WR);
            read_to_end(fds[i], answer, sizeof answer - 1);
            assert_memory_equal(answer, text, strlen(text));
            close(fds[i]);
        }
    }
}

// Nobody accepts there: what was written to it before the end is not taken, and must keep no place. It is
// more than the stream's window and the guest's socket hold together, and less than these and the user's end.
static void who_has_left_keeps_no_place(void **state)
{
    enum { DEFAULT_BUFFER = 212992 };
    static char bytes[AGENT_WINDOW_BYTES + DEFAULT_BUFFER + 50000];
    int size = DEFAULT_BUFFER; // the kernel doubles it
    for (int i = 0; i < AGENT_PUMPS_MAX + AGENT_PUMPS_LEFT_MAX + 10; i++) {
        int fd = dial(*state, "unix:/run/echo.sock.silent");
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
        send_all(fd, bytes, sizeof bytes);
        close(fd);
    }
    a_port_answers_and_half_closes(state);
}

static void closing_and_disconnecting_leave_nothing_open(void **state)
{
    struct guest *guest = *state;
    struct error err;
    char byte;
    char command[300];
    int fd = dial(guest, "tcp:7001");
    send_all(fd, "x", 1);
    close(fd);
    fd = dial(guest, "tcp:7001");
    guest->agent = agent_disconnect(guest->agent);
    wait_fd(fd, POLLIN);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    assert_int_equal(agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err), 0);
    // The agent's own sockets: the listener, the connection, nothing else; the server sees all of them end.
    snprintf(command, sizeof command,
            "for i in $(seq 6000); do n=$(ls -l /proc/%d/fd | grep -c socket); [ $n -le 2 ] && break; sleep "
            "0.02; "
            "done; echo $n",
            (int)guest->pid);
    struct agent_exec_result result = shell(guest, command);
    assert_true(atoi(result.out) <= 2);
    agent_exec_result_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_port_answers_and_half_closes),
            cmocka_unit_test(a_socket_below_run_answers),
            cmocka_unit_test(refusals_have_words),
            cmocka_unit_test(a_reset_ends_both_sides),
            cmocka_unit_test(much_goes_both_ways_unharmed),
            cmocka_unit_test(who_does_not_read_holds_back_his_peer_alone),
            cmocka_unit_test(many_at_once),
            cmocka_unit_test(who_has_left_keeps_no_place),
            cmocka_unit_test(closing_and_disconnecting_leave_nothing_open),
    };
    return cmocka_run_group_tests(tests, dial_setup, dial_teardown);
}
