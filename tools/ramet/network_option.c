// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/network_option.h"

#include <string.h>

// Checking is the daemon's: a single word that is no kind of network is told apart there from a name by its
// lack of a dot, a port or a prefix, so that a slip of the pen is not taken for a host.
json_t *network_option(const char *text)
{
    if (text[strcspn(text, ",.:/")] == '\0' && strcmp(text, "localhost") != 0)
        return json_string(text);
    json_t *list = json_array();
    for (;;) {
        size_t size = strcspn(text, ",");
        json_array_append_new(list, json_stringn(text, size));
        if (text[size] == '\0')
            return json_pack("{s:o}", "allow", list);
        text += size + 1;
    }
}
