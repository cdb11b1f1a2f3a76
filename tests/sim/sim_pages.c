// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_pages.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

struct sim_page {
    unsigned references;
    uint8_t bytes[PAGE];
};

size_t sim_pages_read(const struct sim_pages *pages, uint64_t offset, void *buffer, size_t size)
{
    if (offset >= pages->size)
        return 0;
    if (size > pages->size - offset)
        size = pages->size - offset;
    for (size_t done = 0; done < size;) {
        size_t index = (offset + done) / PAGE, inside = (offset + done) % PAGE;
        size_t part = PAGE - inside < size - done ? PAGE - inside : size - done;
        const struct sim_page *page = index < pages->page_count ? pages->page[index] : NULL;
        if (page != NULL)
            memcpy((uint8_t *)buffer + done, page->bytes + inside, part);
        else
            memset((uint8_t *)buffer + done, 0, part);
        done += part;
    }
    return size;
}

static void page_drop(struct sim_page *page)
{
    if (page != NULL && --page->references == 0)
        free(page);
}

// The page at index, private to these pages. With `whole` its old content is not needed.
static struct sim_page *page_own(struct sim_pages *pages, size_t index, int whole)
{
    struct sim_page *old = pages->page[index];
    if (old != NULL && old->references == 1)
        return old;
    struct sim_page *page = malloc(sizeof *page);
    if (page == NULL)
        abort();
    page->references = 1;
    if (old == NULL) {
        pages->allocated++;
        if (!whole)
            memset(page->bytes, 0, PAGE);
    } else if (!whole) {
        memcpy(page->bytes, old->bytes, PAGE);
    }
    page_drop(old);
    pages->page[index] = page;
    return page;
}

static void reserve(struct sim_pages *pages, size_t count)
{
    if (count <= pages->page_count)
        return;
    pages->page = realloc(pages->page, count * sizeof(struct sim_page *));
    if (pages->page == NULL)
        abort();
    memset(pages->page + pages->page_count, 0, (count - pages->page_count) * sizeof(struct sim_page *));
    pages->page_count = count;
}

void sim_pages_write(struct sim_pages *pages, uint64_t offset, const void *bytes, size_t size)
{
    if (size == 0)
        return;
    reserve(pages, (offset + size + PAGE - 1) / PAGE);
    for (size_t done = 0; done < size;) {
        size_t index = (offset + done) / PAGE, inside = (offset + done) % PAGE;
        size_t part = PAGE - inside < size - done ? PAGE - inside : size - done;
        struct sim_page *page = page_own(pages, index, part == PAGE);
        memcpy(page->bytes + inside, (const uint8_t *)bytes + done, part);
        done += part;
    }
    if (offset + size > pages->size)
        pages->size = offset + size;
}

void sim_pages_extend(struct sim_pages *pages, uint64_t size)
{
    if (size > pages->size)
        pages->size = size;
}

void sim_pages_copy(struct sim_pages *pages, const struct sim_pages *from)
{
    sim_pages_free(pages);
    reserve(pages, from->page_count);
    for (size_t i = 0; i < from->page_count; i++) {
        pages->page[i] = from->page[i];
        if (pages->page[i] != NULL)
            pages->page[i]->references++;
    }
    pages->allocated = from->allocated;
    pages->size = from->size;
}

void sim_pages_free(struct sim_pages *pages)
{
    for (size_t i = 0; i < pages->page_count; i++)
        page_drop(pages->page[i]);
    free(pages->page);
    *pages = (struct sim_pages){0};
}

size_t sim_pages_allocated(const struct sim_pages *pages)
{
    return pages->allocated;
}

size_t sim_pages_missing(const struct sim_pages *pages, uint64_t offset, size_t size)
{
    size_t missing = 0;
    for (uint64_t index = offset / PAGE; size > 0 && index <= (offset + size - 1) / PAGE; index++)
        missing += index >= pages->page_count || pages->page[index] == NULL;
    return missing;
}
