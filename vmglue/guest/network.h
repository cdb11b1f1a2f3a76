// SPDX-License-Identifier: Apache-2.0
// The machine's network card: address, default route, name servers; at boot and by request.
//
// At boot by the kernel command line: ramet.address=10.0.2.15/24 ramet.gateway=10.0.2.2 ramet.dns=10.0.2.3
// (or none; several with commas); these are what a machine has without them.
#pragma once

#include "vmglue/agent_protocol.h"

void network_boot(void);
// The NETWORK operation: address with prefix, gateway, name servers (spaces or commas between), a name of
// this machine for its hosts file; each may be "" = as it is; gateway and name servers may be "none".
void network_start(uint32_t stream, struct agent_cursor fields);
