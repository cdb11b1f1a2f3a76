// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_context.h"

#include <string.h>

static const char *const names[NBD_CONTEXT_COUNT] = {
        [NBD_CONTEXT_ALLOCATION] = "base:allocation",
        [NBD_CONTEXT_SHARED] = "ramet:shared",
};

const char *nbd_context_name(enum nbd_context context)
{
    return names[context];
}

uint32_t nbd_context_wire_id(enum nbd_context context)
{
    return (uint32_t)context + 1;
}

unsigned nbd_context_match(const char *query, bool listing)
{
    unsigned set = 0;
    size_t size = strlen(query);
    bool is_namespace = size > 1 && strchr(query, ':') == query + size - 1;
    for (unsigned i = 0; i < NBD_CONTEXT_COUNT; i++) {
        bool matches =
                listing && is_namespace ? strncmp(query, names[i], size) == 0 : strcmp(query, names[i]) == 0;
        set |= (unsigned)matches << i;
    }
    return set;
}

bool nbd_context_query_is_malformed(const char *query)
{
    return !strchr(query, ':') || query[0] == ':';
}
