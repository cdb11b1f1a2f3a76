// SPDX-License-Identifier: Apache-2.0
// The network of a sandbox.
#include "vmglue/network_policy.h"
#include "vmglue/sandbox_internal.h"

int sandbox_network_choose(struct sandboxes *all, const json_t *asked, const json_t *inherited,
        json_t **ret_policy, char *ret_notice, size_t notice_size, struct error *err)
{
    struct network_policy policy;
    json_t *chosen = asked != NULL && !json_is_null(asked) ? json_incref((json_t *)asked)
                     : inherited != NULL                   ? json_incref((json_t *)inherited)
                                                           : json_string("full");
    int r = network_policy_parse(chosen, &policy, err);
    if (r < 0) {
        json_decref(chosen);
        return r;
    }
    network_policy_free(&policy);
    *ret_policy = chosen;
    return 0;
}

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
