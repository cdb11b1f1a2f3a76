// SPDX-License-Identifier: Apache-2.0
// Connections to a sandbox's TCP ports: an HTTP connection that becomes one ("Upgrade: tcp").
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

static void open_port(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    const char *upgrade = http_request_header(request, "Upgrade");
    char target[40];
    struct error err;
    struct port *port = calloc(1, sizeof *port);
    int r = port == NULL ? error_set(&err, -ENOMEM, "no memory for a connection")
                         : http_request_check_query(request, no_query, &err);
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

const struct http_route routes_ports[] = {
        {"GET", "/v1/sandboxes/{name}/ports/{port}", 0, open_port},
        {0},
};
