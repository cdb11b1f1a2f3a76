// SPDX-License-Identifier: Apache-2.0
// A sandbox's TCP ports: which have a listener, and connections to them, which an HTTP connection becomes
// ("Upgrade: tcp").
#include "vmglue/route_agent.h"
#include "vmglue/socket_pump.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { DIAL_MS = 15000 };

struct port {
    struct http_request *request;
    struct sandbox_agent use;
    int guest_fd;
};

static bool must_stop(void *context)
{
    struct port *port = context;
    return http_request_is_stopping(port->request) || sandbox_agent_is_over(&port->use);
}

static void upgraded(struct http_request *request, void *context, int fd, const void *bytes, size_t size)
{
    struct port *port = context;
    port->request = request;
    if (fd >= 0)
        socket_pump_run(fd, port->guest_fd, bytes, size, must_stop, port);
    close(port->guest_fd);
    route_agent_done(port->request, &port->use);
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
        r = route_agent_use(request, http_request_param(request, "name"), &port->use, &err);
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
    route_agent_done(request, &port->use);
    free(port);
}

// ---- who listens ----

enum { NET_TABLE_MAX = 1 << 20, PORTS_MAX = 65536, ADDRESSES_MAX = 32, TCP_LISTEN = 10 };

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

// "0100007F" and the like: words of 32 bits in the guest's byte order, which is the host's.
static json_t *address_text(const char *hex)
{
    uint32_t words[4];
    char text[INET6_ADDRSTRLEN];
    size_t count = strlen(hex) / 8;
    for (size_t i = 0; i < count && i < 4; i++)
        if (sscanf(hex + 8 * i, "%8" SCNx32, &words[i]) != 1)
            return NULL;
    if ((count != 1 && count != 4) || strlen(hex) % 8 != 0)
        return NULL;
    return inet_ntop(count == 1 ? AF_INET : AF_INET6, words, text, sizeof text) == NULL ? NULL
                                                                                        : json_string(text);
}

// One line of /proc/net/tcp: "  0: 0100007F:1F90 00000000:0000 0A ...", address and port in hexadecimal.
// ports: the addresses of each, NULL = nobody listens.
static void take_line(const char *line, json_t **ports)
{
    char hex[40];
    unsigned number, port, state;
    if (sscanf(line, " %u: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x", &number, hex, &port, &state) != 4 ||
            state != TCP_LISTEN || port >= PORTS_MAX)
        return;
    json_t *address = address_text(hex);
    if (address == NULL)
        return;
    if (ports[port] == NULL)
        ports[port] = json_array();
    size_t i;
    const json_t *known;
    bool again = json_array_size(ports[port]) >= ADDRESSES_MAX; // SO_REUSEPORT makes many of one
    json_array_foreach(ports[port], i, known) again = again || json_equal(known, address);
    if (again)
        json_decref(address);
    else
        json_array_append_new(ports[port], address);
}

static int read_table(struct agent *agent, const char *path, json_t **ports, struct error *err)
{
    struct net_table table = {.text = malloc(NET_TABLE_MAX + 1)};
    if (table.text == NULL)
        return error_set(err, -ENOMEM, "no memory for the guest's table of connections");
    table.text[0] = '\0';
    int r = agent_file_read(agent, path, take_table, &table, err);
    for (char *line = table.text; r >= 0 && line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0'; // else sscanf goes over all that follows, for each line
        take_line(line, ports);
        line = end == NULL ? NULL : end + 1;
    }
    free(table.text);
    return r;
}

// {"ports":[...]}, by number; takes the addresses over.
static json_t *ports_json(json_t **ports)
{
    json_t *list = json_array();
    for (int port = 0; port < PORTS_MAX; port++)
        if (ports[port] != NULL)
            json_array_append_new(list,
                    json_pack("{s:i, s:b, s:o}", "port", port, "listening", 1, "addresses", ports[port]));
    return json_pack("{s:o}", "ports", list);
}

static void list_ports(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    struct sandbox_agent use;
    struct error err;
    int r = http_request_check_query(request, no_query, &err);
    if (r == 0)
        r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    json_t **ports = calloc(PORTS_MAX, sizeof *ports);
    if (ports == NULL)
        abort();
    r = read_table(use.agent, "/proc/net/tcp", ports, &err);
    if (r >= 0 && (r = read_table(use.agent, "/proc/net/tcp6", ports, &err)) == -ENOENT)
        r = 0; // a guest without IPv6
    json_t *json = ports_json(ports);
    free(ports);
    if (r < 0) {
        sandbox_agent_failed(&use, &err);
        http_reply_failure(request, "port", &err);
        json_decref(json);
    } else {
        http_reply_json(request, 200, json);
    }
    route_agent_done(request, &use);
}

const struct http_route routes_ports[] = {
        {"GET", "/v1/sandboxes/{name}/ports", 0, list_ports},
        {"GET", "/v1/sandboxes/{name}/ports/{port}", 0, open_port},
        {0},
};
