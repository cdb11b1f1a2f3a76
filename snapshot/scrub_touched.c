// SPDX-License-Identifier: Apache-2.0
// Which volumes, snapshots and docs have damaged slots. Walks the sealed trees of all roots; only done when
// something is damaged. Nodes are shared between trees: what was found below one is remembered, as a set of
// damages (at most 64; more are looked up in turns).
#include "snapshot/mark.h"
#include "snapshot/scrub.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURN = 64, NAMES_MAX = 8, ROOM = 1600 };

struct memo { // of the nodes of a segment
    uint64_t number;
    uint64_t *touched; // by slot: damages below it
    uint64_t known[SEGMENT_BITMAP_WORDS];
};

struct touching {
    struct task *task;
    struct store *store;
    const struct scrub_damage *damages; // of this turn
    size_t count;
    struct memo *memos;
    size_t memo_count;
    char (*texts)[ROOM];
    unsigned names[TURN];
};

static uint64_t damages_at(const struct touching *self, locator_t locator)
{
    uint64_t set = 0, number = locator_segment_number(locator);
    uint32_t slot = locator_segment_slot(locator);
    for (size_t i = 0; i < self->count; i++) {
        const struct scrub_damage *damage = &self->damages[i];
        if (damage->number == number && slot >= damage->first_slot &&
                slot - damage->first_slot < damage->count)
            set |= UINT64_C(1) << i;
    }
    return set;
}

static struct memo *memo_of(struct touching *self, uint64_t number)
{
    for (size_t i = self->memo_count; i-- > 0;)
        if (self->memos[i].number == number)
            return &self->memos[i];
    self->memos = realloc(self->memos, (self->memo_count + 1) * sizeof *self->memos);
    if (self->memos == NULL)
        abort();
    struct memo *memo = &self->memos[self->memo_count++];
    memset(memo, 0, sizeof *memo);
    memo->number = number;
    memo->touched = calloc(SEGMENT_SLOTS_MAX, sizeof *memo->touched);
    if (memo->touched == NULL)
        abort();
    return memo;
}

static uint64_t touched(struct touching *self, locator_t node, unsigned level)
{
    uint32_t slot = locator_segment_slot(node);
    if (slot >= SEGMENT_SLOTS_MAX)
        return 0;
    struct memo *memo = memo_of(self, locator_segment_number(node));
    if (memo->known[slot / 64] >> (slot % 64) & 1)
        return memo->touched[slot];
    memo->known[slot / 64] |= UINT64_C(1) << (slot % 64);
    uint64_t set = damages_at(self, node);
    locator_t *slots = calloc(TREE_FANOUT, sizeof *slots);
    if (slots == NULL)
        abort();
    // What is below a node that cannot be read is not known; the node itself is among the damages.
    bool read = !task_stopping(self->task) &&
                node_cache_read_task(self->store->node_cache, self->task, node, slots) == 0;
    for (unsigned i = 0; read && i < TREE_FANOUT; i++)
        if (locator_is_segment(slots[i]))
            set |= level == 0 ? damages_at(self, slots[i]) : touched(self, slots[i], level - 1);
    free(slots);
    memo_of(self, locator_segment_number(node))->touched[slot] = set;
    return set;
}

// ---- Sentences ----

__attribute__((format(printf, 3, 4))) static void add_name(
        struct touching *self, uint64_t set, const char *format, ...)
{
    char name[STORE_NAME_MAX + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (size_t i = 0; i < self->count; i++) {
        if (!(set >> i & 1))
            continue;
        char *text = self->texts[i];
        size_t used = strlen(text);
        unsigned n = self->names[i]++;
        if (n < NAMES_MAX)
            snprintf(text + used, ROOM - used, "%s%s", n == 0 ? "; it touches " : ", ", name);
        else if (n == NAMES_MAX)
            snprintf(text + used, ROOM - used, " and others");
    }
}

static const char *kind_name(enum doc_kind kind)
{
    return kind == DOC_SNAPSHOT  ? "snapshot"
           : kind == DOC_MACHINE ? "machine snapshot"
           : kind == DOC_SANDBOX ? "sandbox"
                                 : "document";
}

static void name_docs_of_base(struct touching *self, uint64_t set, uint64_t base)
{
    struct catalog *catalog = &self->store->catalog;
    bool named = false;
    pthread_mutex_lock(&self->store->lock);
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        const struct doc *doc = &catalog->docs[i]->doc;
        for (unsigned k = 0; k < doc->base_count; k++)
            if (doc->bases[k].value == base) {
                add_name(self, set, "%s \"%s\" (%llu)", kind_name(doc->kind), doc->name,
                        (unsigned long long)doc->id.value);
                named = true;
                break;
            }
    }
    pthread_mutex_unlock(&self->store->lock);
    if (!named)
        add_name(self, set, "base %llu", (unsigned long long)base);
}

static void name_root(struct touching *self, uint64_t set, const struct checkpoint_root *root)
{
    struct volume_info info;
    struct doc doc;
    if (set == 0)
        return;
    if (root->kind == CHECKPOINT_BASE) {
        name_docs_of_base(self, set, root->id);
    } else if (root->kind == CHECKPOINT_VOLUME &&
               store_volume_get(self->store, (struct volume_id){root->id}, &info) == 0) {
        add_name(self, set, "volume \"%s\" (%llu)", info.name, (unsigned long long)root->id);
    } else if (root->kind == CHECKPOINT_DOC &&
               store_doc_get(self->store, (struct doc_id){root->id}, &doc) == 0) {
        add_name(self, set, "the device state of %s \"%s\"", kind_name(doc.kind), doc.name);
        doc_free(&doc);
    }
}

static uint64_t touched_by_root(struct touching *self, const struct checkpoint_root *root)
{
    uint64_t set = 0;
    if (!locator_is_segment(root->root))
        return 0;
    if (root->kind != CHECKPOINT_DOC)
        return touched(self, root->root, root->height - 1);
    for (unsigned i = 0; i < root->height; i++)
        set |= damages_at(self, locator_next(root->root, i));
    return set;
}

static void one_turn(struct touching *self, void (*damaged)(void *, const char *), void *context)
{
    const struct checkpoint_rows *rows = &self->store->checkpoint->rows;
    memset(self->names, 0, sizeof self->names);
    for (size_t i = 0; i < self->count; i++)
        snprintf(self->texts[i], ROOM, "%s", self->damages[i].sentence);
    for (size_t i = 0; i < rows->root_count; i++)
        name_root(self, touched_by_root(self, &rows->roots[i]), &rows->roots[i]);
    for (size_t i = 0; i < self->count; i++) {
        size_t used = strlen(self->texts[i]);
        if (self->names[i] == 0)
            snprintf(self->texts[i] + used, ROOM - used, "; no volume or snapshot is known to need it");
        damaged(context, self->texts[i]);
    }
    for (size_t i = 0; i < self->memo_count; i++)
        free(self->memos[i].touched);
    free(self->memos);
    self->memos = NULL;
    self->memo_count = 0;
}

void scrub_tell(struct task *task, struct store *store, const struct scrub_damage *damages, size_t count,
        void (*damaged)(void *context, const char *sentence), void *context)
{
    struct touching self = {.task = task, .store = store};
    self.texts = calloc(TURN, sizeof *self.texts);
    if (self.texts == NULL)
        abort();
    for (size_t at = 0; at < count; at += TURN) {
        self.damages = damages + at;
        self.count = count - at < TURN ? count - at : TURN;
        one_turn(&self, damaged, context);
    }
    free(self.texts);
}
