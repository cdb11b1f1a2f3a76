// SPDX-License-Identifier: Apache-2.0
#include "snapshot/extent_list.h"

#include <errno.h>
#include <stdlib.h>

void extent_list_free(struct extent_list *list)
{
    free(list->items);
    *list = (struct extent_list){0};
}

static bool take_note(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct extent_list *list = context;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : list->capacity * 2;
        struct extent_list_item *items = realloc(list->items, capacity * sizeof *items);
        list->no_memory = items == NULL;
        if (items == NULL)
            return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = (struct extent_list_item){offset, length, kind};
    return list->count != list->limit;
}

int extent_list_base(struct extent_list *list, struct base *base, uint64_t offset, uint64_t *ret_next)
{
    list->count = 0;
    list->limit = EXTENT_LIST_PART;
    int r = base_extents_wait(base, offset, base_size_bytes(base) - offset, take_note, list);
    if (r < 0)
        return r;
    if (list->no_memory || list->count == 0)
        return -ENOMEM;
    *ret_next = list->items[list->count - 1].offset + list->items[list->count - 1].length;
    return 0;
}

int extent_list_diff(struct extent_list *list, struct base *older, struct base *newer)
{
    list->count = list->limit = 0;
    int r = base_diff_wait(older, newer, take_note, list);
    return r == 0 && list->no_memory ? -ENOMEM : r;
}
