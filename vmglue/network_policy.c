// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_policy.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char choices[] =
        "choose \"full\", \"none\" or {\"allow\": [\"10.1.2.0/24\", \"host.example:443\"]}";

struct range {
    uint32_t address;
    unsigned prefix;
};

static const struct range private_ranges[] = {
        {0x0a000000, 8}, {0xac100000, 12}, {0xc0a80000, 16}, {0x64400000, 10}};
static const struct range never_ranges[] = {{0x00000000, 8}, {0x7f000000, 8}, {0xa9fe0000, 16},
        {0xa83f8110, 32}, // 168.63.129.16: a cloud's machines ask it for their secrets
        {0x0a000200, 24}, // 10.0.2.0/24: where every guest lives itself
        {0xe0000000, 4}, {0xf0000000, 4}};

static uint32_t mask_of(unsigned prefix)
{
    return prefix == 0 ? 0 : UINT32_MAX << (32 - prefix);
}

static bool is_within(const struct range *ranges, size_t count, uint32_t address, unsigned prefix)
{
    for (size_t i = 0; i < count; i++)
        if (prefix >= ranges[i].prefix && ((address ^ ranges[i].address) & mask_of(ranges[i].prefix)) == 0)
            return true;
    return false;
}

bool network_policy_is_private(uint32_t address)
{
    return is_within(private_ranges, sizeof private_ranges / sizeof *private_ranges, address, 32);
}

bool network_policy_is_never(uint32_t address)
{
    return is_within(never_ranges, sizeof never_ranges / sizeof *never_ranges, address, 32);
}

int network_policy_range(const char *text, uint32_t *ret_address, unsigned *ret_prefix)
{
    char copy[20];
    unsigned prefix = 32;
    struct in_addr parsed;
    if (strlen(text) >= sizeof copy)
        return -EINVAL;
    strcpy(copy, text);
    char *slash = strchr(copy, '/');
    if (slash != NULL) {
        char *end;
        if (!isdigit((unsigned char)slash[1]))
            return -EINVAL;
        unsigned long value = strtoul(slash + 1, &end, 10);
        if (*end != '\0' || value > 32)
            return -EINVAL;
        prefix = (unsigned)value;
        *slash = '\0';
    }
    if (inet_pton(AF_INET, copy, &parsed) != 1)
        return -EINVAL;
    *ret_address = ntohl(parsed.s_addr);
    *ret_prefix = prefix;
    return 0;
}

// ---- one entry ----

static int bad(struct error *err, const char *text, const char *why)
{
    return error_set(err, -EINVAL, "field \"network\": \"%.80s\" %s", text, why);
}

// Cuts ":PORT" off.
static int take_port(const char *text, char *copy, uint16_t *ret_port, struct error *err)
{
    char *colon = strrchr(copy, ':'), *end;
    if (colon == NULL)
        return 0;
    if (strchr(copy, ':') != colon || copy[0] == '[')
        return bad(err, text, "is an IPv6 address; guests have IPv4 only");
    if (!isdigit((unsigned char)colon[1]))
        return bad(err, text, "has no port behind its colon; a port is 1 to 65535");
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end != '\0' || port == 0 || port > 65535)
        return bad(err, text, "has a port that is none; a port is 1 to 65535");
    *ret_port = (uint16_t)port;
    *colon = '\0';
    return 0;
}

static int take_address(const char *text, const char *copy, struct network_entry *entry, struct error *err)
{
    if (network_policy_range(copy, &entry->address, &entry->prefix) < 0)
        return bad(err, text, "is not an IPv4 address or network such as 10.1.2.3 or 10.1.2.0/24");
    if ((entry->address & ~mask_of(entry->prefix)) != 0) {
        struct in_addr first = {.s_addr = htonl(entry->address & mask_of(entry->prefix))};
        char shown[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &first, shown, sizeof shown);
        return error_set(err, -EINVAL,
                "field \"network\": \"%.80s\" has bits behind its prefix; the network is %s/%u, one address "
                "is written without a prefix",
                text, shown, entry->prefix);
    }
    if (is_within(never_ranges, sizeof never_ranges / sizeof *never_ranges, entry->address, entry->prefix))
        return bad(err, text,
                "can never be reached: loopback, link-local, metadata services, multicast and the guest's "
                "own network 10.0.2.0/24 stay closed");
    return 0;
}

static bool is_label(const char *label, size_t size)
{
    if (size == 0 || size > 63 || label[0] == '-' || label[size - 1] == '-')
        return false;
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)label[i]) && label[i] != '-' && label[i] != '_')
            return false;
    return true;
}

static int take_name(const char *text, char *copy, struct network_entry *entry, struct error *err)
{
    entry->is_name = true;
    entry->below = strncmp(copy, "*.", 2) == 0;
    char *name = copy + (entry->below ? 2 : 0);
    size_t size = strlen(name);
    if (size > 0 && name[size - 1] == '.')
        name[--size] = '\0';
    if (size == 0 || size > NETWORK_NAME_MAX)
        return bad(err, text, "is not a name of 1 to 253 characters");
    for (const char *label = name; label != NULL;) {
        const char *dot = strchr(label, '.');
        if (!is_label(label, dot == NULL ? strlen(label) : (size_t)(dot - label)))
            return bad(err, text,
                    strchr(name, '*') != NULL
                            ? "has a star where none may be; \"*.example.org\" is all below example.org"
                            : "is neither an address nor a name (letters, digits, '-', '_' between dots; "
                              "others in their xn-- form)");
        label = dot == NULL ? NULL : dot + 1;
    }
    for (size_t i = 0; i <= size; i++)
        entry->name[i] = (char)tolower((unsigned char)name[i]);
    return 0;
}

static int parse_entry(const char *text, struct network_entry *ret_entry, struct error *err)
{
    struct network_entry entry = {0};
    char copy[NETWORK_NAME_MAX + 16];
    if (text[0] == '\0')
        return error_set(err, -EINVAL, "field \"network\": an entry of \"allow\" is empty");
    if (strlen(text) >= sizeof copy)
        return bad(err, text, "is too long for a name");
    strcpy(copy, text);
    int r = take_port(text, copy, &entry.port, err);
    if (r < 0)
        return r;
    // A name's last part is never a number, so what ends in one is meant as an address.
    const char *last = strrchr(copy, '.');
    last = last == NULL ? copy : last + 1;
    bool address = strchr(copy, '/') != NULL || (*last != '\0' && strspn(last, "0123456789") == strlen(last));
    r = address ? take_address(text, copy, &entry, err) : take_name(text, copy, &entry, err);
    if (r == 0)
        *ret_entry = entry;
    return r;
}

// ---- the whole ----

static int parse_list(const json_t *list, struct network_policy *policy, struct error *err)
{
    size_t count = json_array_size(list);
    if (!json_is_array(list))
        return error_set(err, -EINVAL, "field \"network\": \"allow\" must be a list of strings");
    if (count > NETWORK_ENTRIES_MAX)
        return error_set(err, -EINVAL, "field \"network\": \"allow\" has %zu entries; %d are the most", count,
                NETWORK_ENTRIES_MAX);
    policy->entries = calloc(count + 1, sizeof *policy->entries);
    if (policy->entries == NULL)
        return error_set(err, -ENOMEM, "no memory for the network's policy");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        // A zero character would be kept, and the record that holds it could not be read again.
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
            return error_set(err, -EINVAL,
                    "field \"network\": \"allow\" must be a list of strings; number %zu is none", i + 1);
        int r = parse_entry(json_string_value(item), &policy->entries[i], err);
        if (r < 0)
            return r;
        policy->count++;
    }
    return 0;
}

int network_policy_parse(const json_t *json, struct network_policy *ret_policy, struct error *err)
{
    struct network_policy policy = {.kind = NETWORK_ALLOW};
    const char *word = json_string_value(json);
    const json_t *list = json_object_get(json, "allow");
    int r = 0;
    if (word != NULL && strcmp(word, "full") == 0)
        policy.kind = NETWORK_FULL;
    else if (word != NULL && strcmp(word, "none") == 0)
        policy.kind = NETWORK_NONE;
    else if (word != NULL)
        r = error_set(err, -EINVAL, "field \"network\": \"%.20s\" is not known; %s", word, choices);
    else if (list == NULL || json_object_size(json) != 1)
        r = error_set(err, -EINVAL, "field \"network\" is not one of its forms; %s", choices);
    else
        r = parse_list(list, &policy, err);
    if (r < 0)
        network_policy_free(&policy);
    else
        *ret_policy = policy;
    return r;
}

int network_policy_copy(const struct network_policy *policy, struct network_policy *ret_copy)
{
    struct network_policy copy = *policy;
    copy.entries = calloc(policy->count + 1u, sizeof *copy.entries);
    if (copy.entries == NULL)
        return -ENOMEM;
    if (policy->count > 0)
        memcpy(copy.entries, policy->entries, policy->count * sizeof *copy.entries);
    *ret_copy = copy;
    return 0;
}

void network_policy_free(struct network_policy *policy)
{
    free(policy->entries);
    *policy = (struct network_policy){0};
}

static uint64_t digest_more(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u; // FNV-1a
    return hash;
}

uint64_t network_policy_digest(const struct network_policy *policy)
{
    uint64_t hash = digest_more(14695981039346656037u, &policy->kind, sizeof policy->kind);
    for (unsigned i = 0; i < policy->count; i++) {
        const struct network_entry *entry = &policy->entries[i];
        const uint32_t numbers[] = {entry->is_name, entry->below, entry->address, entry->prefix, entry->port};
        hash = digest_more(hash, numbers, sizeof numbers);
        hash = digest_more(hash, entry->name, strlen(entry->name) + 1);
    }
    return hash;
}

json_t *network_policy_stored(const json_t *stored)
{
    struct network_policy policy;
    const char *word = json_string_value(stored);
    if (word != NULL && strcmp(word, "restricted") == 0)
        return json_string("none");
    if (word != NULL && strcmp(word, "user") == 0)
        return json_string("full");
    if (network_policy_parse(stored, &policy, NULL) < 0)
        return NULL;
    network_policy_free(&policy);
    return json_incref((json_t *)stored);
}

bool network_policy_entry_covers(const struct network_entry *entry, const char *name)
{
    size_t size = strlen(name), own = strlen(entry->name);
    if (!entry->is_name)
        return false;
    if (!entry->below)
        return strcmp(name, entry->name) == 0;
    return size > own + 1 && name[size - own - 1] == '.' && strcmp(name + size - own, entry->name) == 0;
}

bool network_policy_allows_name(const struct network_policy *policy, const char *name)
{
    if (policy->kind != NETWORK_ALLOW)
        return policy->kind == NETWORK_FULL;
    for (unsigned i = 0; i < policy->count; i++)
        if (network_policy_entry_covers(&policy->entries[i], name))
            return true;
    return false;
}

bool network_policy_allows_address(const struct network_policy *policy, uint32_t address)
{
    for (unsigned i = 0; i < policy->count; i++) {
        const struct network_entry *entry = &policy->entries[i];
        if (!entry->is_name && ((address ^ entry->address) & mask_of(entry->prefix)) == 0)
            return true;
    }
    return false;
}
