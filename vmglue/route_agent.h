// SPDX-License-Identifier: Apache-2.0
// How a handler of a call gets at the agent of a sandbox, and lets it go. Stopping, restoring and removing
// the sandbox wait for every such use. The guest's side of a call ends with the connection to the agent; the
// other side is a client, which may take nothing more of the answer. So the request is bound to the use: who
// waits for the client then asks sandbox_agent_is_over, and gives the answer up some seconds after the
// connection's end, with the client's connection broken off, as upgraded connections do (socket_pump.h). In
// these seconds a client that reads gets the call's last words; an answer of a sandbox that runs may be read
// as slowly as the server's own limit allows.
//
// Threads: the handler's. One use at a time of a request. The daemon's end breaks all answers off by itself
// (http_server_quiesce).
#pragma once

#include "vmglue/sandbox.h"

// As sandbox_agent_use; *ret_use stays where it is until route_agent_done.
int route_agent_use(
        struct http_request *request, const char *name, struct sandbox_agent *ret_use, struct error *err);
void route_agent_done(struct http_request *request, struct sandbox_agent *use);
