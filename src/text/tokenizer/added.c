/* added.c: added tokens: a sorted list of texts, searched by narrowing a range byte by byte, so that of the
 * texts that begin at a place the longest is found without looking at the others.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* A search looks at no more bytes than this from each place, which keeps it linear in the text. */
enum { LONGEST_ADDED = 1024 };

/* By text, and of equal texts the lowest id first: that one is kept. */
static int compare_added(const void *pa, const void *pb)
{
    const struct sg_added *a = pa, *b = pb;
    int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (order) return order;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

segue_status sg_added_make(struct sg_tokenizer *t, struct sg_added_set *set, struct sg_added *items, size_t n,
                           const char *what, segue_error *err)
{
    size_t kept = 0;
    set->items = sg_arena_alloc(&t->arena, n * sizeof *set->items + 1);
    if (!set->items) return sg_no_memory("tokenizer", n * sizeof *set->items, err);
    if (n) qsort(items, n, sizeof *items, compare_added);
    for (size_t i = 0; i < n; i++) {
        struct sg_added *a = &items[i], *last = kept ? &set->items[kept - 1] : NULL;
        if (a->len > LONGEST_ADDED)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "read tokenizer: %s: added token %d has %u bytes, at most %d work; remove it",
                           what, (int)a->id, a->len, LONGEST_ADDED);
        /* Empty texts never match, and bytes that are no text cannot stand in a repaired one. */
        if (!a->len || sg_utf8_valid(a->text, a->len) != a->len) continue;
        if (last && last->len == a->len && memcmp(last->text, a->text, a->len) == 0) continue;
        set->items[kept++] = *a;
    }
    set->n = (uint32_t)kept;
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (b && i < kept && (unsigned char)set->items[i].text[0] < b) i++;
        set->first[b] = i;
    }
    return SEGUE_OK;
}

/* First item of [low, high) whose byte d is at least b; all of them are longer than d. */
static uint32_t lower_bound(const struct sg_added_set *set, uint32_t low, uint32_t high, size_t d, unsigned b)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if ((unsigned char)set->items[mid].text[d] < b)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest text that s begins with. A text that ends at depth d is the first of its range, as it sorts
 * before all that go on. */
static const struct sg_added *longest_at(const struct sg_added_set *set, const char *s, size_t n)
{
    const struct sg_added *best = NULL;
    unsigned b = (unsigned char)s[0];
    uint32_t low = set->first[b], high = set->first[b + 1];
    for (size_t d = 1; low < high; d++) { /* all of [low, high) share d bytes with s */
        if (set->items[low].len == d) best = &set->items[low++];
        if (d == n || low == high) break;
        b = (unsigned char)s[d];
        low = lower_bound(set, low, high, d, b);
        high = lower_bound(set, low, high, d, b + 1);
    }
    return best;
}

const struct sg_added *sg_added_find(const struct sg_added_set *set, const char *s, size_t n, size_t from,
                                     size_t *at)
{
    for (size_t i = set->n ? from : n; i < n; i++) {
        unsigned b = (unsigned char)s[i];
        if (set->first[b] == set->first[b + 1]) continue;
        const struct sg_added *found = longest_at(set, s + i, n - i);
        if (found) {
            *at = i;
            return found;
        }
    }
    return NULL;
}
