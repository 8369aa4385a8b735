/* added.c: added tokens: a sorted list of texts. A search narrows a range of the list byte by byte, so that it finds
 * the longest text at a position without comparing all of them.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* Max bytes of an added token. A search reads at most this many bytes from each position, so that it is linear. */
enum { LONGEST_ADDED = 1024 };

/* qsort order: by text, of equal texts the lowest id first, which is the one that is kept. */
static int compare_added(const void *pa, const void *pb)
{
    const struct sg_added *a = pa, *b = pb;
    int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (order) return order;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* items is sorted in place and copied into the arena. Duplicates and texts that can never match are left out. */
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
                           "read tokenizer: %s: added token %d has %u bytes, at most %d are supported; remove it",
                           what, (int)a->id, a->len, LONGEST_ADDED);
        /* empty texts never match; invalid UTF-8 cannot occur in a text, which is repaired before the search */
        if (!a->len || sg_utf8_valid(a->text, a->len) != a->len) continue;
        if (last && last->len == a->len && memcmp(last->text, a->text, a->len) == 0) continue;
        set->items[kept++] = *a;
    }
    set->n = (uint32_t)kept;
    /* first[256] = n, the end of byte 255 */
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (b && i < kept && (unsigned char)set->items[i].text[0] < b) i++;
        set->first[b] = i;
    }
    return SEGUE_OK;
}

/* First item of [low, high) whose byte d is at least b. All these items are longer than d. */
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

/* The longest text that s begins with, or NULL. A text of length d is the first of its range, since it sorts before
 * all its continuations. */
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

/* Tries each position in turn; `first` skips the positions where no added token begins. */
const struct sg_added *sg_added_find(const struct sg_added_set *set, const char *s, size_t n, size_t from,
                                     size_t *at)
{
    for (size_t i = set->n ? from : n; i < n; i++) {
        unsigned b = (unsigned char)s[i];
        /* most positions are skipped here: no added token begins with this byte */
        if (set->first[b] == set->first[b + 1]) continue;
        const struct sg_added *found = longest_at(set, s + i, n - i);
        if (found) {
            *at = i;
            return found;
        }
    }
    return NULL;
}
