// SPDX-License-Identifier: Apache-2.0
// RUNDIR/nbd.sock: the operator's NBD exports, every volume and snapshot by its name (vmglue/names.h: one
// name space).
#pragma once

#include "vmglue/nbd_server.h"

int operator_exports_start(
        struct store *store, int listen_fd, struct nbd_server **ret_server, struct error *err);
