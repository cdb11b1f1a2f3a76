// SPDX-License-Identifier: Apache-2.0
// The certificate and key with which the HTTP server answers over TLS: one pair for the whole program, which
// may be exchanged while it serves; connections that stand go on with what they began with.
//
// Threads: any.
#pragma once

#include "blockstore/error.h"

#include <stddef.h>
#include <sys/types.h>

// PEM files: the certificate, with the chain behind it, and its key. A pair that is no good (cannot be read,
// does not belong together, is encrypted, has expired) is refused with a sentence, and the one before it
// stays.
int http_tls_load(const char *certificate_file, const char *key_file, struct error *err);
// On a session of libmicrohttpd's, from a thread that is the only one to send on it: bytes taken, or -errno.
ssize_t http_tls_send(void *session, const void *bytes, size_t size);
void http_tls_unload(void);    // when no server uses it any more
void *http_tls_callback(void); // libmicrohttpd's MHD_OPTION_HTTPS_CERT_CALLBACK
