// SPDX-License-Identifier: Apache-2.0
// Requests for exposed ports, from the HTTP server to a guest's 127.0.0.1:PORT and back, through its agent.
//
// Each request has a connection of its own into the guest ("Connection: close"), so nothing that a guest
// sends can be taken for the answer to another request. Bodies stream, with at most some hundred KiB waiting.
// A guest's server that answers before it has the body, and takes no more of it, is heard at once or, while
// it still keeps the connection open, two seconds later; the rest of the body is given up, and its client
// hears the answer under way (http_early.c). A client that waits for leave to send its body gets the guest's.
// An answer that is not clean HTTP/1 is 502; one that breaks off breaks the client's connection off too.
//
// Threads: handlers of the HTTP server (http_server.h). How long an answer takes is the guest's business: the
// client's leaving, the URL's end and the sandbox's end it. A client that closes only its sending side has
// not left.
#pragma once

struct http_request;
struct http_route;

// http_server_config.choose: the proxy's own routes, or NULL. The context is a struct service.
const struct http_route *proxy_choose(void *context, struct http_request *request);
