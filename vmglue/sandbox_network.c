// SPDX-License-Identifier: Apache-2.0
// The network of a sandbox: its policy is in the record, all else is network.h's, by the sandbox's id.
#include "vmglue/network.h"
#include "vmglue/sandbox_internal.h"
#include "vmglue/vm_process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sandbox_network {
    int tap_fd;
};

static void log_message(void *context, const char *message)
{
    sandbox_log(context, "%s", message);
}

int sandbox_network_open(struct sandboxes *all, struct error *err)
{
    const char *range = all->config.network_range != NULL ? all->config.network_range : NETWORK_DEFAULT_RANGE;
    struct network_config config = {.tag = all->tag,
            .private_networks = all->config.private_networks,
            .resolver = all->config.resolver,
            .log = log_message,
            .context = all};
    if (network_policy_range(range, &config.range, &config.prefix) < 0)
        return error_set(err, -EINVAL,
                "the range of the sandboxes' networks, \"%.40s\", is no network such as %s", range,
                NETWORK_DEFAULT_RANGE);
    return network_open(&config, &all->network, err);
}

// What nobody asked for is not refused, but left out with a word.
int sandbox_network_choose(struct sandboxes *all, const json_t *asked, const json_t *inherited,
        json_t **ret_policy, char *ret_notice, size_t notice_size, struct error *err)
{
    struct network_policy policy;
    struct error why;
    bool wanted = asked != NULL && !json_is_null(asked);
    json_t *chosen = wanted              ? json_incref((json_t *)asked)
                     : inherited != NULL ? json_incref((json_t *)inherited)
                                         : json_string("full");
    ret_notice[0] = '\0';
    int r = network_policy_parse(chosen, &policy, err);
    if (r == 0 && policy.kind != NETWORK_NONE && (r = network_able(all->network, true, &why)) < 0) {
        if (wanted) {
            error_set(err, -EINVAL, "this host cannot give a sandbox that network: %s", why.text);
            r = -EINVAL;
        } else {
            snprintf(ret_notice, notice_size, "its network is \"none\": %s", why.text);
            sandbox_log(all, "a new sandbox has the network \"none\": %s", why.text);
            json_decref(chosen);
            chosen = json_string("none");
            r = 0;
        }
        network_policy_free(&policy);
    } else if (r == 0) {
        network_policy_free(&policy);
    }
    if (r < 0)
        json_decref(chosen);
    else
        *ret_policy = chosen;
    return r;
}

static int parse_own(struct sandbox *sandbox, struct network_policy *ret_policy, struct error *err)
{
    return network_policy_parse(sandbox->record.network, ret_policy, err);
}

// This host lacks something; trying again does not help.
static bool cannot(int r)
{
    return r == -EPERM || r == -EACCES || r == -EOPNOTSUPP || r == -EADDRINUSE;
}

int sandbox_network_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_network **ret_network, struct error *err)
{
    struct network_policy policy;
    struct sandbox_network *network = calloc(1, sizeof *network);
    int r = network == NULL ? error_set(err, -ENOMEM, "no memory") : parse_own(sandbox, &policy, err);
    if (r < 0) {
        free(network);
        return r;
    }
    struct error why;
    r = network_attach(sandbox->all->network, sandbox->record.id, &policy, &network->tap_fd, &why);
    // Without the rights for a namespace there still are machines, with a cable that is not plugged in.
    if (cannot(r) && policy.kind == NETWORK_NONE)
        r = 0;
    else if (cannot(r))
        r = error_set(err, -EBUSY,
                "this host cannot give the sandbox its network (%.300s); `ramet update %s --network none` "
                "lets "
                "it run without",
                why.text, sandbox->record.name);
    else if (r < 0)
        error_set(err, r, "%s", why.text);
    network_policy_free(&policy);
    if (r < 0) {
        free(network);
        return r;
    }
    config->tap_fd = network->tap_fd;
    *ret_network = network;
    return 0;
}

void sandbox_network_release(struct sandbox_network *network)
{
    if (network != NULL && network->tap_fd > 0)
        close(network->tap_fd);
    free(network);
}

void sandbox_network_clean(struct sandboxes *all, const char *id)
{
    network_detach(all->network, id);
}

// The VMM is where the tap is: it is borrowed from there.
void sandbox_network_adopt(struct sandbox *sandbox)
{
    struct network_policy policy;
    struct error err;
    int tap_fd = -1;
    int r = vm_process_take_fd(sandbox->vm->pid, sandbox->vm->pid_fd, "/dev/net/tun", &tap_fd);
    if (r == -ENOENT)
        return; // it was started without
    r = r < 0 ? error_set(&err, r, "its tap cannot be borrowed: %s", strerror(-r))
              : parse_own(sandbox, &policy, &err);
    if (r == 0) {
        r = network_adopt(sandbox->all->network, sandbox->record.id, tap_fd, &policy, &err);
        network_policy_free(&policy);
    }
    if (tap_fd >= 0)
        close(tap_fd);
    if (r < 0)
        sandbox_log(sandbox->all, "sandbox %s: its network cannot be taken over, it may be cut off: %s",
                sandbox->record.name, err.text);
}

static int apply(struct sandbox *sandbox, const json_t *network, struct error *err)
{
    struct network_policy policy;
    int r = network_policy_parse(network, &policy, err);
    if (r < 0)
        return r;
    r = network_change(sandbox->all->network, sandbox->record.id, &policy, err);
    network_policy_free(&policy);
    return r;
}

int sandbox_network_apply(struct sandbox *sandbox, struct error *err)
{
    return apply(sandbox, sandbox->record.network, err);
}

void sandbox_network_back(struct sandbox *sandbox)
{
    struct error err;
    if (sandbox->vm != NULL && sandbox_network_apply(sandbox, &err) < 0)
        sandbox_log(sandbox->all, "sandbox %s: its network's old policy cannot be brought back: %s",
                sandbox->record.name, err.text);
}

int sandbox_network_lead(struct sandbox *sandbox, const json_t *network, struct error *err)
{
    int r = sandbox->vm == NULL ? 0 : apply(sandbox, network, err);
    if (r < 0)
        sandbox_network_back(sandbox);
    return r;
}

static bool is_wanted(void *context, const char *id)
{
    struct sandboxes *all = context;
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (strcmp(sandbox->record.id, id) == 0)
            return !sandbox->removed && sandbox_is_live(sandbox);
    return false;
}

void sandbox_network_sweep(struct sandboxes *all)
{
    network_sweep(all->network, is_wanted, all);
}
