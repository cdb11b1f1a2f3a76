// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/users.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool number(const char *text, unsigned long *ret_value)
{
    char *end;
    errno = 0;
    *ret_value = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && *ret_value < 0xFFFFFFFFul;
}

// Splits a line at its colons into at most `count` fields; missing ones are "".
static void split(char *line, char **fields, size_t count)
{
    line[strcspn(line, "\n")] = 0;
    for (size_t i = 0; i < count; i++)
        fields[i] = line == NULL ? "" : strsep(&line, ":");
}

static void read_groups(struct users_entry *entry)
{
    FILE *file = fopen("/etc/group", "re");
    if (file == NULL)
        return;
    char *line = NULL;
    size_t size = 0;
    while (entry->group_count < USERS_GROUPS_MAX && getline(&line, &size, file) > 0) {
        char *fields[4], *member;
        unsigned long gid;
        split(line, fields, 4);
        if (!number(fields[2], &gid))
            continue;
        while (fields[3][0] != 0 && (member = strsep(&fields[3], ",")) != NULL) {
            if (strcmp(member, entry->name) == 0) {
                entry->groups[entry->group_count++] = (gid_t)gid;
                break;
            }
            if (fields[3] == NULL)
                break;
        }
    }
    free(line);
    fclose(file);
}

static void fill(struct users_entry *entry, char **fields, unsigned long uid, unsigned long gid)
{
    snprintf(entry->name, sizeof entry->name, "%s", fields[0]);
    snprintf(entry->home, sizeof entry->home, "%s", fields[5][0] ? fields[5] : "/");
    snprintf(entry->shell, sizeof entry->shell, "%s", fields[6][0] ? fields[6] : "/bin/sh");
    entry->uid = (uid_t)uid;
    entry->gid = (gid_t)gid;
    read_groups(entry);
}

static int lookup(const char *name, struct users_entry *ret_entry)
{
    FILE *file = fopen("/etc/passwd", "re");
    char *line = NULL;
    size_t size = 0;
    int found = -ENOENT;
    unsigned long wanted, uid, gid;
    bool by_number = number(name, &wanted);
    *ret_entry = (struct users_entry){0};
    while (file != NULL && found < 0 && getline(&line, &size, file) > 0) {
        char *fields[7];
        split(line, fields, 7);
        if (!number(fields[2], &uid) || !number(fields[3], &gid))
            continue;
        if (strcmp(fields[0], name) != 0 && !(by_number && uid == wanted))
            continue;
        fill(ret_entry, fields, uid, gid);
        found = 0;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    if (found < 0 && by_number) {
        *ret_entry = (struct users_entry){
                .uid = (uid_t)wanted, .gid = (gid_t)wanted, .home = "/", .shell = "/bin/sh"};
        snprintf(ret_entry->name, sizeof ret_entry->name, "%lu", wanted);
        found = 0;
    }
    return found;
}

int users_find(const char *name, struct users_entry *ret_entry)
{
    if (name != NULL && name[0] != 0) {
        int result = lookup(name, ret_entry);
        if (result < 0 && strcmp(name, "root") == 0)
            result = lookup("0", ret_entry);
        return result;
    }
    if (geteuid() != 0) { // a test without root can only be who it is
        char own[20];
        snprintf(own, sizeof own, "%u", (unsigned)geteuid());
        return lookup(own, ret_entry);
    }
    if (lookup("user", ret_entry) == 0 || lookup("root", ret_entry) == 0)
        return 0;
    return lookup("0", ret_entry); // an image without /etc/passwd
}

bool users_may_write(const struct users_entry *entry, uid_t owner, gid_t group, mode_t mode)
{
    if (entry->uid == 0)
        return true;
    if (entry->uid == owner)
        return mode & S_IWUSR;
    bool member = entry->gid == group;
    for (size_t i = 0; i < entry->group_count && !member; i++)
        member = entry->groups[i] == group;
    return member ? mode & S_IWGRP : mode & S_IWOTH;
}
