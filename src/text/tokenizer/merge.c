/* merge.c: byte-pair merging: always the best pair, and of equal ones the leftmost; by rank of the pair
 * (tokenizer.json, GGUF "gpt2") or by score of the resulting text (SentencePiece files). Three algorithms with the same
 * result: a scan for few symbols, a heap for many, O(n log n), and for very many a heap of queues: candidates of one
 * pair arrive mostly in text order and are queued, only the head of each queue is in the heap.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "text/tokenizer/tokparts.h"

#define NO_PAIR UINT32_MAX
#define NO_QUEUE UINT32_MAX
#define MERGED (-2)

enum { QUEUES_MIN_SYMBOLS = 4096 };

/* A pair of adjacent symbols. order: lower merges first, NO_PAIR = cannot merge; made: the resulting token; queue: index of
 * its queue, which all candidates with this result (by score) or this rank share. */
struct pair {
    uint32_t order, queue;
    int32_t made;
};

/* The pair of the symbols a and b of the text s, where b ends at byte `end`. */
static struct pair pair_of(const struct sg_tokenizer *t, const char *s, const struct sg_symbol *a,
                           const struct sg_symbol *b, size_t end)
{
    if (t->merges) {
        const struct sg_merge *m = sg_merges_find(t, a->id, b->id);
        return m ? (struct pair){m->rank, m->rank, m->made} : (struct pair){NO_PAIR, NO_QUEUE, 0};
    }
    int32_t id = sg_vocab_find(t, s + a->at, end - a->at);
    if (id < 0) return (struct pair){NO_PAIR, NO_QUEUE, 0};
    /* map the float to an integer so that a higher score gives a lower order; adding 0 turns -0 into 0 */
    uint32_t bits = sg_bits_of_f32(t->tokens[id].score + 0.f);
    return (struct pair){~(bits & 0x80000000u ? ~bits : bits | 0x80000000u), (uint32_t)id, id};
}

/* A scan of at most SG_MERGE_FEW pairs is faster than a heap and needs no allocation. Pairs are cached; a merge
 * changes only the two pairs next to it. */
size_t sg_merge_few(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym, size_t n)
{
    struct pair pairs[SG_MERGE_FEW];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = pair_of(t, s, &sym[i], &sym[i + 1], i + 2 < n ? sym[i + 2].at : len);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pairs[i].order < pairs[best].order) best = i;
        if (pairs[best].order == NO_PAIR) break;
        sym[best].id = pairs[best].made;
        n--;
        /* close the gap: symbol best + 1 was merged */
        for (size_t i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
            pairs[i - 1] = pairs[i];
        }
        /* the new symbol's pairs with its neighbours */
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            pairs[i] = pair_of(t, s, &sym[i], &sym[i + 1], i + 2 < n ? sym[i + 2].at : len);
    }
    return n;
}

/* --- waiting places --- */

/* Restore the heap after its first entry has changed. */
static void sift_down(struct sg_merge_candidate *heap, size_t n)
{
    struct sg_merge_candidate x = heap[0];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= x.key) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Add x to the heap, which is ordered by key: the order first, then the position in the text. */
static segue_status heap_push(struct sg_encoding *e, struct sg_merge_candidate x)
{
    if (e->heap_n == e->heap_cap) {
        /* grows by half */
        size_t cap = e->heap_cap + e->heap_cap / 2 + 256;
        struct sg_merge_candidate *more = sg_realloc(e->heap, cap * sizeof *more);
        if (!more) return sg_no_memory("text", cap * sizeof *more, e->err);
        e->heap = more;
        e->heap_cap = cap;
    }
    struct sg_merge_candidate *heap = e->heap;
    size_t i = e->heap_n++;
    for (; i && heap[(i - 1) / 2].key > x.key; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
    return SEGUE_OK;
}

/* *out: index + 1 of a link for symbol, taken from the free list or appended. */
static segue_status new_link(struct sg_encoding *e, uint32_t symbol, uint32_t *out)
{
    if (e->links_free) {
        *out = e->links_free;
        e->links_free = e->links[*out - 1].next;
    } else {
        if (e->links_n == e->links_cap) {
            size_t cap = e->links_cap + e->links_cap / 2 + 4096;
            struct sg_merge_link *more = sg_realloc(e->links, cap * sizeof *more);
            if (!more) return sg_no_memory("text", cap * sizeof *more, e->err);
            e->links = more;
            e->links_cap = cap;
        }
        *out = (uint32_t)++e->links_n;
    }
    e->links[*out - 1] = (struct sg_merge_link){symbol, 0};
    return SEGUE_OK;
}

/* Add the pair at `symbol`. queued: it joins the queue of its kind if it comes after the queue's tail in the text,
 * so that the queue remains sorted; otherwise it goes into the heap by itself. */
static segue_status add_candidate(struct sg_encoding *e, struct pair p, uint32_t symbol, int queued)
{
    struct sg_merge_candidate x = {(uint64_t)p.order << 32 | symbol, NO_QUEUE};
    /* only pairs that can merge become candidates */
    if (p.order == NO_PAIR) return SEGUE_OK;
    if (!queued) return heap_push(e, x);
    struct sg_merge_queue *q = &e->queues[p.queue];
    if (q->head && e->links[q->tail - 1].symbol >= symbol) return heap_push(e, x);
    uint32_t link = 0;
    SG_TRY(new_link(e, symbol, &link));
    if (q->head) {
        e->links[q->tail - 1].next = link;
        q->tail = link;
        return SEGUE_OK;
    }
    q->head = q->tail = link;
    x.queue = p.queue;
    return heap_push(e, x);
}

/* Remove and return the best key. If it was the head of a queue, the next candidate of that queue takes its place in
 * the heap. */
static uint64_t pop_best(struct sg_encoding *e)
{
    struct sg_merge_candidate top = e->heap[0];
    struct sg_merge_queue *q = top.queue == NO_QUEUE ? NULL : &e->queues[top.queue];
    if (q) {
        uint32_t link = q->head;
        q->head = e->links[link - 1].next;
        /* the link goes to the free list */
        e->links[link - 1].next = e->links_free;
        e->links_free = link;
    }
    if (q && q->head)
        e->heap[0].key = (top.key >> 32) << 32 | e->links[q->head - 1].symbol;
    else
        e->heap[0] = e->heap[--e->heap_n];
    if (e->heap_n) sift_down(e->heap, e->heap_n);
    return top.key;
}

/* --- many symbols --- */

/* The pair of symbol i and the next one; NO_PAIR at the end. */
static struct pair pair_at(const struct sg_encoding *e, const char *s, size_t len, uint32_t i)
{
    const struct sg_symbol *sym = e->symbols;
    if (sym[i].id == MERGED || sym[i].next == SG_NO_SYMBOL) return (struct pair){NO_PAIR, NO_QUEUE, 0};
    const struct sg_symbol *b = &sym[sym[i].next];
    return pair_of(e->t, s, &sym[i], b, b->next == SG_NO_SYMBOL ? len : sym[b->next].at);
}

/* The pair at i if it still has the order that it was queued with, else NO_PAIR. By rank, the merge names its two
 * operands, which is cheaper than a hash search. */
static struct pair pair_if_valid(const struct sg_encoding *e, const char *s, size_t len, uint32_t i,
                            uint32_t order)
{
    const struct sg_symbol *a = &e->symbols[i];
    struct pair none = {NO_PAIR, NO_QUEUE, 0};
    if (!e->t->merges) {
        struct pair p = pair_at(e, s, len, i);
        return p.order == order ? p : none;
    }
    const struct sg_merge *m = &e->t->merges[e->t->by_rank[order]];
    if (a->id != m->left || a->next == SG_NO_SYMBOL || e->symbols[a->next].id != m->right) return none;
    return (struct pair){order, order, m->made};
}

/* One queue per rank or token, allocated once per call of sg_tokenize and empty again after each piece. */
static segue_status alloc_queues(struct sg_encoding *e)
{
    size_t n = (size_t)(e->t->merges ? e->t->ranks : e->t->tokens_n) + 1;
    if (!e->queues) e->queues = sg_alloc(n * sizeof *e->queues);
    return e->queues ? SEGUE_OK : sg_no_memory("text", n * sizeof *e->queues, e->err);
}

/* n symbols of e->symbols. Symbols form a doubly linked list; a merged right symbol is marked MERGED and unlinked. */
segue_status sg_merge_many(struct sg_encoding *e, const char *s, size_t len, size_t n)
{
    struct sg_symbol *sym = e->symbols;
    int queued = n >= QUEUES_MIN_SYMBOLS;
    if (queued) SG_TRY(alloc_queues(e));
    e->heap_n = 0;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = i ? (uint32_t)i - 1 : SG_NO_SYMBOL;
        sym[i].next = i + 1 < n ? (uint32_t)i + 1 : SG_NO_SYMBOL;
    }
    for (uint32_t i = 0; i < n; i++) SG_TRY(add_candidate(e, pair_at(e, s, len, i), i, queued));
    while (e->heap_n) {
        uint64_t key = pop_best(e);
        /* the low half of the key is the left symbol */
        uint32_t i = (uint32_t)key;
        struct pair p = pair_if_valid(e, s, len, i, (uint32_t)(key >> 32));
        if (p.order == NO_PAIR) continue; /* the pair has changed since */
        uint32_t gone = sym[i].next;
        sym[i].id = p.made;
        sym[i].next = sym[gone].next;
        sym[gone].id = MERGED;
        if (sym[i].next != SG_NO_SYMBOL) sym[sym[i].next].prev = i;
        /* both neighbouring pairs have changed; their old candidates fail in pair_if_valid */
        if (sym[i].prev != SG_NO_SYMBOL)
            SG_TRY(add_candidate(e, pair_at(e, s, len, sym[i].prev), sym[i].prev, queued));
        SG_TRY(add_candidate(e, pair_at(e, s, len, i), i, queued));
    }
    return SEGUE_OK;
}
