// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/tar_header.h"

#include <stdio.h>
#include <string.h>

static unsigned checksum(const struct tar_header *header)
{
    struct tar_header copy = *header;
    const unsigned char *bytes = (const unsigned char *)&copy;
    unsigned sum = 0;
    memset(copy.checksum, ' ', sizeof copy.checksum);
    for (unsigned i = 0; i < sizeof copy; i++)
        sum += bytes[i];
    return sum;
}

static void put_number(char *field, unsigned size, uint64_t value)
{
    if (value >> (3 * (size - 1)) == 0) {
        char text[32];
        snprintf(text, sizeof text, "%0*llo", (int)size - 1, (unsigned long long)value);
        memcpy(field, text, size);
        return;
    }
    for (unsigned i = 0; i < size; i++, value >>= 8)
        field[size - 1 - i] = (char)value;
    field[0] = (char)0x80;
}

void tar_header_make(struct tar_header *header, const char *name, char type, unsigned mode, uint64_t size,
        int64_t mtime, const char *link)
{
    memset(header, 0, sizeof *header);
    memcpy(header->name, name, strnlen(name, sizeof header->name));
    memcpy(header->link, link, strnlen(link, sizeof header->link));
    put_number(header->mode, sizeof header->mode, mode & 07777);
    put_number(header->uid, sizeof header->uid, 0);
    put_number(header->gid, sizeof header->gid, 0);
    put_number(header->size, sizeof header->size, size);
    put_number(header->mtime, sizeof header->mtime, mtime < 0 ? 0 : (uint64_t)mtime);
    header->type = type;
    memcpy(header->magic, "ustar ", sizeof header->magic); // GNU's
    memcpy(header->version, " ", sizeof header->version);
    snprintf(header->checksum, sizeof header->checksum, "%06o", checksum(header));
    header->checksum[7] = ' ';
}

uint64_t tar_header_number(const char *field, unsigned size)
{
    uint64_t value = 0;
    unsigned i = 0;
    if ((unsigned char)field[0] & 0x80) {
        if ((unsigned char)field[0] != 0x80)
            return UINT64_MAX; // negative, or beyond what fits
        for (i = 1; i < size; i++) {
            if (value >> 55 != 0)
                return UINT64_MAX;
            value = value << 8 | (unsigned char)field[i];
        }
        return value;
    }
    while (i < size && field[i] == ' ')
        i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    return i < size && field[i] != '\0' && field[i] != ' ' ? UINT64_MAX : value;
}

bool tar_header_is_good(const struct tar_header *header)
{
    return tar_header_number(header->checksum, sizeof header->checksum) == checksum(header);
}

bool tar_header_is_end(const struct tar_header *header)
{
    static const struct tar_header zeros;
    return memcmp(header, &zeros, sizeof zeros) == 0;
}
