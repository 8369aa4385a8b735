/* prefixstore.c: see prefixstore.h. Entries in memory: insertion, search and eviction. Files are handled by prefixdisk.c.
 * SPDX-License-Identifier: MIT */
#include "engine/store/prefixstore.h"

#include <string.h>

#include "base/mem.h"

enum {
    TOKENS_MIN = 16,          /* shorter prefixes are not stored, and smaller savings count as a miss */
    AHEAD_TOKENS = 512,       /* capacity of loaded states beyond their tokens */
    ENTRIES_MAX = 4096,       /* in memory */
    GHOSTS_MAX = 256,         /* per class */
    MEMORY_BYTES = 512 << 20  /* default budget */
};
static const uint64_t disk_bytes_default = (uint64_t)4 << 30;

/* --- eviction --- */

/* GreedyDual: computing time saved per byte and use, plus the store's clock at the last use. The clock rises with every
 * eviction, so that unused entries lose value relative to new ones. An entry saves only the tokens after its nearest ancestor. */
static double worth(const struct sg_store *s, const struct sg_store_entry *e)
{
    const struct sg_prefix_node *above = sg_tree_ancestor(e->node);
    double rows = (double)e->node->depth, ns = e->prefill_ns ? (double)e->prefill_ns : rows * 1000;
    double saved = ns * (rows - (above ? (double)above->depth : 0)) / rows;
    double bytes = (double)sg_checkpoint_bytes(e->checkpoint, s->engine->model->info.vocab) + 1;
    return e->clock + saved * (1 + e->hits) / bytes;
}

/* 1: no entry continues this prefix. */
static int is_leaf(const struct sg_store_entry *e)
{
    for (const struct sg_prefix_node *c = e->node->child; c; c = c->sibling)
        if (sg_tree_first_entry(c)) return 0;
    return 1;
}

/* Marks the node, so that a later miss can be reported as "evicted". All marks of a class are cleared at GHOSTS_MAX. */
static void leave_ghost(struct sg_store_entry *e)
{
    if (++e->class->ghosts > GHOSTS_MAX) {
        sg_tree_clear_ghosts(&e->class->root);
        e->class->ghosts = 1;
    }
    e->node->ghost = 1;
}

/* 1: eviction has to write the entry first. */
static int needs_write(const struct sg_store *s, const struct sg_store_entry *e)
{
    return s->folder && !e->file && is_leaf(e);
}

/* Drops the checkpoint. A leaf is written to disk first if the store has a folder; an inner entry is written with its leaf. */
static void evict(struct sg_store *s, struct sg_store_entry *e)
{
    e->pins++;
    /* before the id of the weights is known an evicted entry is not kept: waiting here would stop all sessions */
    if (needs_write(s, e) && sg_engine_weights_known(s->engine)) {
        sg_store_write(s, e);
        s->written_late += e->file != NULL;
    }
    sg_checkpoint_release(e->checkpoint);
    e->checkpoint = NULL;
    if (!e->file) leave_ghost(e);
    sg_store_unpin(s, e);
}

static uint64_t entry_bytes(const struct sg_store *s, const struct sg_store_entry *e)
{
    return sg_checkpoint_bytes(e->checkpoint, s->engine->model->info.vocab) + e->node->n * sizeof(int32_t);
}

/* Evicts the least valuable entries until both limits, bytes and number of entries, are met; entries that need no write come
 * first, so that the caller seldom waits for one. Returns the bytes in memory. If only an entry that is being written is left
 * to evict, waits for it. */
static uint64_t trim_to(struct sg_store *s, uint64_t limit)
{
    for (;;) {
        uint64_t bytes = 0, n = 0;
        int pinned = 0, least_writes = 0;
        struct sg_store_entry *least = NULL;
        double least_worth = 0;
        for (struct sg_store_entry *e = s->entries; e; e = e->next) {
            if (!e->checkpoint) continue;
            double w = worth(s, e);
            bytes += entry_bytes(s, e);
            n++;
            pinned |= e->pins != 0;
            int writes = needs_write(s, e);
            if (e->pins || (least && (writes > least_writes || (writes == least_writes && w >= least_worth)))) continue;
            least = e;
            least_writes = writes;
            least_worth = w;
        }
        if ((!least && !pinned) || (bytes <= limit && n <= ENTRIES_MAX)) return bytes;
        if (!least) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->clock = least_worth;
        evict(s, least);
    }
}

/* --- writing ahead --- */

/* The least valuable entry that its eviction would write, if such entries take more than half of the memory; else NULL. */
static struct sg_store_entry *to_write(const struct sg_store *s)
{
    struct sg_store_entry *least = NULL;
    double least_worth = 0;
    uint64_t bytes = 0;
    for (struct sg_store_entry *e = s->entries; e; e = e->next) {
        if (!e->checkpoint || e->pins || e->unwritable || !needs_write(s, e)) continue;
        double w = worth(s, e);
        bytes += entry_bytes(s, e);
        if (least && w >= least_worth) continue;
        least = e;
        least_worth = w;
    }
    return bytes > s->limit / 2 ? least : NULL;
}

static void *writer_main(void *arg)
{
    struct sg_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        struct sg_store_entry *e = sg_engine_weights_known(s->engine) ? to_write(s) : NULL;
        if (!e) {
            s->writer_idle = 1;
            pthread_cond_broadcast(&s->changed);
            while (s->writer_idle && !s->closing) pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        e->pins++;
        sg_store_write(s, e);
        s->written_ahead += e->file != NULL;
        sg_store_unpin(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Lets the writer look for work. Without a thread for it, entries are written when they are evicted. */
static void wake_writer(struct sg_store *s)
{
    if (!s->folder) return;
    if (!s->writer_started && to_write(s)) s->writer_started = !pthread_create(&s->writer, NULL, writer_main, s);
    s->writer_idle = 0;
    pthread_cond_broadcast(&s->changed);
}

static void trim(struct sg_store *s)
{
    (void)trim_to(s, s->limit);
    wake_writer(s);
}

uint64_t sg_store_shrink(struct sg_store *s, uint64_t limit)
{
    pthread_mutex_lock(&s->lock);
    s->limit = limit < s->memory_budget ? limit : s->memory_budget;
    uint64_t bytes = trim_to(s, s->limit);
    wake_writer(s);
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

/* --- insertion --- */

/* States that can be cut: the checkpoint of a longer prefix replaces those of all its prefixes. */
static void absorb(struct sg_store *s, struct sg_store_entry *e)
{
    for (struct sg_prefix_node *up = sg_tree_ancestor(e->node); up;) {
        struct sg_store_entry *shorter = up->entry;
        up = sg_tree_ancestor(up);
        sg_checkpoint_release(shorter->checkpoint);
        shorter->checkpoint = NULL;
        if (!shorter->file) sg_store_remove_entry(s, shorter);
    }
}

void sg_store_put(struct sg_store *s, const struct sg_state_origin *origin, const int32_t *tokens, uint64_t prefill_ns,
                  struct sg_checkpoint *checkpoint)
{
    if (checkpoint->tokens_n < TOKENS_MIN) return;
    pthread_mutex_lock(&s->lock);
    struct sg_store_class *c = sg_store_get_class(s, origin);
    struct sg_store_entry *e = c ? sg_store_get_entry(s, c, tokens, checkpoint->tokens_n) : NULL;
    if (e) {
        if (prefill_ns) e->prefill_ns = prefill_ns;
        /* A checkpoint that has logits replaces one without. */
        if (!e->checkpoint || (!e->checkpoint->logits && checkpoint->logits)) {
            sg_checkpoint_release(e->checkpoint);
            e->checkpoint = sg_checkpoint_share(checkpoint);
        }
        e->has_logits |= checkpoint->logits != NULL;
        e->clock = s->clock;
        if (!s->exact) absorb(s, e);
        trim(s);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- search --- */

/* The best entry for a query. */
struct prefix_match {
    struct sg_store_entry *entry;
    size_t matched;     /* tokens that match the tree */
    size_t usable_n;    /* tokens that can be reused */
    int diverges;       /* 1: the tree continues after the match, with other tokens */
    const char *reason; /* why usable_n is smaller than matched; NULL: none */
};

/* 1: an entry was evicted at `node` or an ancestor of more than `rows` tokens. */
static int evicted_between(const struct sg_prefix_node *node, size_t rows)
{
    for (; node && node->depth > rows; node = node->parent)
        if (node->ghost) return 1;
    return 0;
}

/* 1: a query of n tokens can start from this entry: it leaves a token to compute, or has the logits after the last one. */
static int usable(const struct sg_store_entry *e, size_t n) { return e->node->depth < n || e->has_logits; }

/* Cuttable states: any entry at or after the end of the match can be used, cut to the match. Otherwise the deepest entry on the
 * matched path. */
static struct prefix_match find(const struct sg_store *s, struct sg_store_class *class, const int32_t *tokens, size_t n)
{
    struct sg_prefix_node *inside, *below;
    struct prefix_match h = {.matched = sg_tree_walk(&class->root, tokens, n, &inside, &below)};
    h.diverges = below != inside || below->child;
    struct sg_store_entry *e = !s->exact && h.matched ? sg_tree_first_entry(below) : NULL;
    if (e) {
        h.entry = e;
        h.usable_n = h.matched < n || (e->node->depth == n && e->has_logits) ? h.matched : n - 1;
    } else {
        struct sg_prefix_node *node = inside;
        while (node && !(node->entry && usable(node->entry, n))) node = node->parent;
        h.entry = node ? node->entry : NULL;
        h.usable_n = node ? node->depth : 0;
    }
    if (h.usable_n + 1 < h.matched || !h.usable_n)
        h.reason = evicted_between(inside, h.usable_n) ? "evicted" : h.usable_n ? "no-checkpoint" : NULL;
    if (!h.reason && !h.usable_n && class->stale) h.reason = "version";
    return h;
}

/* Reads a pinned entry's file into new states of the query's layout. A fork of them stays in memory for the next query. */
static segue_status load_from_disk(struct sg_store *s, struct sg_store_entry *e, const struct sg_store_query *q,
                                   struct sg_store_hit *out)
{
    struct sg_layout *l = &out->states;
    struct sg_checkpoint *checkpoint = NULL;
    size_t n = e->node->depth;
    *l = *q->layout;
    for (uint32_t i = 0; i < l->n; i++) l->stages[i].state = NULL;
    pthread_mutex_unlock(&s->lock);
    segue_status status = sg_layout_states(l, n + AHEAD_TOKENS, NULL);
    pthread_mutex_lock(&s->lock);
    if (status != SEGUE_OK) return status;
    out->read_disk = 1;
    status = sg_store_read(s, e, l, q->logits, &out->logits_known);
    if (status != SEGUE_OK) {
        out->logits_known = 0;
        sg_layout_drop_states(l);
        return status;
    }
    out->states_n = n;
    pthread_mutex_unlock(&s->lock);
    status = sg_checkpoint_new(&checkpoint, l, n, out->logits_known ? q->logits : NULL, s->engine->model->info.vocab, NULL);
    pthread_mutex_lock(&s->lock);
    if (status == SEGUE_OK && !e->checkpoint) e->checkpoint = checkpoint;
    else if (status == SEGUE_OK) sg_checkpoint_release(checkpoint); /* another thread was faster */
    return SEGUE_OK;
}

/* 1: the match saves enough tokens. */
static int is_hit(const struct prefix_match *m, const struct sg_store_query *q)
{
    return m->entry && m->usable_n >= q->computed + TOKENS_MIN;
}

int sg_store_reads_disk(struct sg_store *s, const struct sg_store_query *q)
{
    if (!s->folder) return 0;
    pthread_mutex_lock(&s->lock);
    int reads = s->scanning || sg_store_folder_changed(s);
    struct sg_store_class *c = reads ? NULL : sg_store_get_class(s, q->origin);
    if (c) {
        struct prefix_match m = find(s, c, q->tokens, q->tokens_n);
        reads = is_hit(&m, q) && !m.entry->checkpoint;
    }
    pthread_mutex_unlock(&s->lock);
    return reads;
}

/* The caller forks a checkpoint outside of the lock, because forking waits for the unit. */
void sg_store_find(struct sg_store *s, const struct sg_store_query *q, struct sg_store_hit *out)
{
    struct prefix_match m = {0};
    *out = (struct sg_store_hit){0};
    pthread_mutex_lock(&s->lock);
    if (s->folder) sg_store_scan(s);
    struct sg_store_class *c = sg_store_get_class(s, q->origin);
    if (c) m = find(s, c, q->tokens, q->tokens_n);
    if (is_hit(&m, q)) {
        m.entry->hits++;
        m.entry->pins++;
        m.entry->clock = s->clock;
        if (m.entry->checkpoint)
            out->checkpoint = sg_checkpoint_share(m.entry->checkpoint);
        else (void)load_from_disk(s, m.entry, q, out);
        sg_store_unpin(s, m.entry);
        if (out->read_disk) trim(s); /* the loaded checkpoint may exceed the budget */
        if (out->checkpoint || out->states_n) out->tokens_n = m.usable_n;
    }
    pthread_mutex_unlock(&s->lock);
    out->matched_n = m.matched;
    out->diverges = m.diverges;
    out->reason = m.reason;
}

/* --- open, close --- */

/* 1: a state of this graph cannot be cut to any length: recurrent slots, or windows that release positions. */
static int needs_checkpoints(const struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (sg_slot_fixed_bytes(&g->slots[i]) || g->slots[i].window) return 1;
    return 0;
}

segue_status sg_store_open(struct sg_store **out, const struct segue_engine *e, const char *folder,
                           uint64_t memory_bytes, uint64_t disk_bytes, segue_error *err)
{
    struct sg_store *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("prefix store", sizeof *s, err);
    s->engine = e;
    s->exact = needs_checkpoints(e->graph);
    s->memory_budget = s->limit = memory_bytes ? memory_bytes : MEMORY_BYTES;
    s->disk_budget = disk_bytes ? disk_bytes : disk_bytes_default;
    if (*folder && !(s->folder = sg_strndup(folder, strlen(folder)))) {
        sg_free(s);
        return sg_no_memory("prefix store", strlen(folder), err);
    }
    segue_status status = s->folder ? sg_make_folders(s->folder, err) : SEGUE_OK;
    if (status == SEGUE_OK && s->folder) status = sg_folder_private(s->folder, err);
    if (status == SEGUE_OK && (pthread_mutex_init(&s->lock, NULL) || pthread_mutex_init(&s->disk, NULL) ||
                               pthread_cond_init(&s->changed, NULL)))
        status = sg_no_memory("locks of a prefix store", sizeof s->lock, err);
    if (status != SEGUE_OK) {
        sg_free(s->folder);
        sg_free(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

void sg_store_close(struct sg_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->writer_started) pthread_join(s->writer, NULL);
    pthread_mutex_lock(&s->lock); /* which the functions below release meanwhile */
    for (struct sg_store_entry *e = s->entries, *next; s->folder && e; e = next) {
        e->pins++;
        if (e->checkpoint && !e->file && is_leaf(e)) sg_store_write(s, e);
        next = e->next; /* writing may remove others */
        sg_store_unpin(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    while (s->entries) {
        struct sg_store_entry *e = s->entries;
        sg_checkpoint_release(e->checkpoint);
        sg_store_remove_entry(s, e);
    }
    while (s->files) {
        struct sg_store_file *f = s->files;
        s->files = f->next;
        sg_free(f->name);
        sg_free(f);
    }
    while (s->classes) {
        struct sg_store_class *k = s->classes;
        s->classes = k->next;
        sg_tree_free(&k->root);
        sg_free(k);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->disk);
    pthread_mutex_destroy(&s->lock);
    sg_free(s->folder);
    sg_free(s);
}
