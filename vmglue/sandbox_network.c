// SPDX-License-Identifier: Apache-2.0
// The network of a sandbox.
#include "vmglue/sandbox_internal.h"

int sandbox_network_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_network **ret_network, struct error *err)
{
    *ret_network = NULL;
    return 0;
}

void sandbox_network_release(struct sandbox_network *network)
{
}

void sandbox_network_clean(struct sandboxes *all, const char *id)
{
}
