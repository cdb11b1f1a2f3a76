// SPDX-License-Identifier: Apache-2.0
// A sandbox's TCP ports: which have a listener, and connections to them, which an HTTP connection becomes
// ("Upgrade: tcp").
#include "vmglue/sandbox.h"
#include "vmglue/socket_pump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { DIAL_MS = 15000 };

struct port {
    struct sandbox_agent use;
    int guest_fd;
};

static bool is_stopping(void *context)
{
    return http_request_is_stopping(context);
}

static void upgraded(struct http_request *request, void *context, int fd, const void *bytes, size_t size)
{
    struct port *port = context;
    if (fd >= 0)
        socket_pump_run(fd, port->guest_fd, bytes, size, is_stopping, request);
    close(port->guest_fd);
    sandbox_agent_done(&port->use);
    free(port);
}

static int check_port(const char *text, struct error *err)
{
    unsigned long port =
            strlen(text) > 5 || strspn(text, "0123456789") != strlen(text) ? 0 : strtoul(text, NULL, 10);
    return port >= 1 && port <= 65535
                   ? 0
                   : error_set(err, -EINVAL, "\"%.40s\" is no port; a port is 1 to 65535", text);
}

static void open_port(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    const char *upgrade = http_request_header(request, "Upgrade");
    char target[40];
    struct error err;
    struct port *port = calloc(1, sizeof *port);
    int r = port == NULL ? error_set(&err, -ENOMEM, "no memory for a connection")
                         : http_request_check_query(request, no_query, &err);
    if (r == 0)
        r = check_port(http_request_param(request, "port"), &err);
    if (r == 0 && (upgrade == NULL || strcasecmp(upgrade, "tcp") != 0))
        r = error_set(
                &err, -EINVAL, "a port's bytes come after an upgrade: the request needs \"Upgrade: tcp\"");
    if (r == 0)
        r = sandbox_agent_use(
                service_of(request)->sandboxes, http_request_param(request, "name"), &port->use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        free(port);
        return;
    }
    snprintf(target, sizeof target, "tcp:%.30s", http_request_param(request, "port"));
    r = agent_dial(port->use.agent, target, DIAL_MS, &port->guest_fd, &err);
    if (r == 0) {
        http_reply_upgrade(request, "tcp", "Cache-Control", "no-store", upgraded, port);
        return;
    }
    sandbox_agent_failed(&port->use, &err);
    if (err.code == -ECONNREFUSED)
        http_reply_error(request, 502, "port.refused", "%s", err.text);
    else
        http_reply_failure(request, "port", &err);
    sandbox_agent_done(&port->use);
    free(port);
}

// ---- who listens ----

enum { NET_TABLE_MAX = 1 << 20, PORTS_MAX = 65536, TCP_LISTEN = 10 };

struct net_table {
    char *text;
    size_t size;
};

static int take_table(void *context, const void *bytes, size_t size)
{
    struct net_table *table = context;
    if (table->size + size > NET_TABLE_MAX)
        return -EFBIG;
    memcpy(table->text + table->size, bytes, size);
    table->size += size;
    table->text[table->size] = '\0';
    return 0;
}

// A line of /proc/net/tcp: "  0: 0100007F:1F90 00000000:0000 0A ...", address and port in hexadecimal.
static void take_line(const char *line, unsigned char ports[PORTS_MAX / 8])
{
    char address[40];
    unsigned number, port, state;
    if (sscanf(line, " %u: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x", &number, address, &port, &state) == 4 &&
            state == TCP_LISTEN && port < PORTS_MAX)
        ports[port / 8] |= (unsigned char)(1u << port % 8);
}

static int read_table(
        struct agent *agent, const char *path, unsigned char ports[PORTS_MAX / 8], struct error *err)
{
    struct net_table table = {.text = malloc(NET_TABLE_MAX + 1)};
    if (table.text == NULL)
        return error_set(err, -ENOMEM, "no memory for the guest's table of connections");
    table.text[0] = '\0';
    int r = agent_file_read(agent, path, take_table, &table, err);
    for (char *line = table.text; r >= 0 && line != NULL && *line != '\0';) {
        take_line(line, ports);
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    free(table.text);
    return r;
}

static void list_ports(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    unsigned char ports[PORTS_MAX / 8] = {0};
    struct sandbox_agent use;
    struct error err;
    int r = http_request_check_query(request, no_query, &err);
    if (r == 0)
        r = sandbox_agent_use(
                service_of(request)->sandboxes, http_request_param(request, "name"), &use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    r = read_table(use.agent, "/proc/net/tcp", ports, &err);
    if (r >= 0 && (r = read_table(use.agent, "/proc/net/tcp6", ports, &err)) == -ENOENT)
        r = 0; // a guest without IPv6
    if (r < 0) {
        sandbox_agent_failed(&use, &err);
        http_reply_failure(request, "port", &err);
        sandbox_agent_done(&use);
        return;
    }
    json_t *list = json_array();
    for (int port = 1; port < PORTS_MAX; port++)
        if ((ports[port / 8] & 1u << port % 8) != 0)
            json_array_append_new(list, json_pack("{s:i, s:b}", "port", port, "listening", 1));
    sandbox_agent_done(&use);
    http_reply_json(request, 200, json_pack("{s:o}", "ports", list));
}

const struct http_route routes_ports[] = {
        {"GET", "/v1/sandboxes/{name}/ports", 0, list_ports},
        {"GET", "/v1/sandboxes/{name}/ports/{port}", 0, open_port},
        {0},
};
